# The topics below $SYS/broker: what Mosquitto 2.0 publishes, by its names and in its formats, so that dashboards and
# exporters made for Mosquitto work with Weir; and topics of Weir's own, for overload and reasons. table.py lists them.
#
# Each sample makes all topics and returns those that changed. They are about a hundred, every ten seconds.
#
# A load is the average per minute over the last 1, 5 or 15 minutes, computed as the kernel's load average is: each
# sample decays the former average by exp(-elapsed / window), and the rate since the last sample makes up the rest.
from math import exp
from typing import Final

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.table import COUNTERS, GAUGES, OVERLOAD, REASONS

ROOT: Final = b"$SYS/broker/"
WINDOWS: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))  # seconds
SHORTEST_INTERVAL: Final = 0.001  # seconds; two samples at one time must not divide by zero


class SysTopics:
    def __init__(self, version: str, started: float) -> None:
        """*version* is published as it is. *started*: seconds, on the clock of `sample()`."""
        self._version = version
        self._started = started
        self._sampled = started
        self._clients_most = 0
        self._heap_most = 0
        self._totals: dict[str, int] = {}
        self._loads: dict[str, float] = {}
        self._published: dict[str, str] = {}

    def sample(self, now: float, counters: Counters, gauges: Gauges) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of each topic whose payload changed since the last sample; of all topics at the first."""
        values = {"version": self._version, "uptime": f"{int(now - self._started)} seconds"}
        values.update(_from_table(counters, gauges))
        values.update(self._computed(gauges))
        values.update(self._averages(now, counters))
        changed = {name: value for name, value in values.items() if self._published.get(name) != value}
        self._published.update(changed)
        return [(ROOT + name.encode(), value.encode()) for name, value in changed.items()]

    def _computed(self, gauges: Gauges) -> dict[str, str]:
        """Topics that are made of several gauges, or of former ones."""
        self._clients_most = max(self._clients_most, gauges.clients_connected)
        self._heap_most = max(self._heap_most, gauges.heap_bytes)
        away = str(gauges.clients_total - gauges.clients_connected)
        stored = str(gauges.retained + gauges.queued)
        return {
            "clients/maximum": str(self._clients_most),
            "clients/disconnected": away,
            "clients/inactive": away,  # the former name
            "messages/stored": stored,  # the former name of the next
            "store/messages/count": stored,
            "store/messages/bytes": str(gauges.retained_bytes + gauges.queued_bytes),
            "heap/maximum": str(self._heap_most),
        }

    def _averages(self, now: float, counters: Counters) -> dict[str, str]:
        """The loads. They are 0 when the worker starts."""
        elapsed = max(now - self._sampled, SHORTEST_INTERVAL)
        self._sampled = now
        averages: dict[str, str] = {}
        for row in COUNTERS:
            if not row.load:
                continue
            total: int = getattr(counters, row.attribute)
            rate = (total - self._totals.get(row.load, 0)) * 60.0 / elapsed
            self._totals[row.load] = total
            for window, seconds in WINDOWS:
                name = f"load/{row.load}/{window}"
                load = self._loads.get(name, 0.0)
                load = rate + exp(-elapsed / seconds) * (load - rate)
                self._loads[name] = load
                averages[name] = f"{load:.2f}"
        return averages


def _from_table(counters: Counters, gauges: Gauges) -> dict[str, str]:
    values: dict[str, str] = {}
    for row in COUNTERS:
        for topic in row.topics:
            values[topic] = str(getattr(counters, row.attribute))
    for gauge in GAUGES:
        for topic in gauge.topics:
            values[topic] = format(getattr(gauges, gauge.attribute), gauge.form)
    for figure in OVERLOAD:
        if figure.topic:  # an empty payload would delete the retained message, so an empty text is "none"
            values[figure.topic] = format(getattr(gauges.overload, figure.attribute), figure.form) or "none"
    for by in REASONS:
        if by.topic:
            counts: dict[str, int] = getattr(counters, by.attribute)
            values.update({by.topic.format(label): str(count) for label, count in counts.items() if count})
    return values
