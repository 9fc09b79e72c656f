# $SYS: what the broker tells about itself over MQTT, by the names and in the formats of Mosquitto 2.0, so that
# its dashboards and exporters work with us; and by names of our own why messages and connections went, and how
# overloaded the broker is.
#
# Everything is made afresh for a sample and only what reads differently than before is returned. There are a
# hundred topics every ten seconds: that is no place to be clever.
#
# A load is the average per minute over the last 1, 5 or 15 minutes, as the kernel's load average is computed: each
# sample decays the former average by exp(-elapsed / window) and makes the rate of the interval up to the rest.
from dataclasses import dataclass, field
from math import exp
from typing import Final

from broker.metrics.counters import Counters
from broker.metrics.overload_figures import OverloadFigures

ROOT: Final = b"$SYS/broker/"
WINDOWS: Final = (("1min", 60.0), ("5min", 300.0), ("15min", 900.0))  # seconds
SHORTEST_INTERVAL: Final = 0.001  # seconds; two samples at one time must not divide by zero


@dataclass(kw_only=True)
class Gauges:
    """What the broker holds at this moment."""

    clients_connected: int = 0
    clients_total: int = 0  # with the sessions whose client is away
    clients_expired: int = 0  # sessions that expired while their client was away, since the start
    connects_waiting: int = 0  # CONNECTs whose turn has not come
    subscriptions: int = 0
    shared_subscriptions: int = 0
    retained: int = 0
    retained_bytes: int = 0
    queued: int = 0  # messages that wait in sessions
    queued_bytes: int = 0
    queued_limit: int = 0  # bytes
    heap_bytes: int = 0
    non_writable: int = 0  # clients over their high watermark
    paused: int = 0  # clients that are held back, for any reason
    outbound_bytes: int = 0  # unsent, of all clients
    outbound_limit: int = 0  # bytes
    p50_ms: float = 0.0  # from when a publish was read to its acknowledgement, in the last interval of the record
    p99_ms: float = 0.0
    overload: OverloadFigures = field(default_factory=OverloadFigures)


class SysTopics:
    def __init__(self, version: str, started: float) -> None:
        """*version* as it is to be read, "weir version 1.0"; *started* on the clock of sample()'s now, in seconds."""
        self._version = version
        self._started = started
        self._sampled = started
        self._clients_most = 0
        self._heap_most = 0
        self._totals: dict[str, int] = {}
        self._loads: dict[str, float] = {}
        self._told: dict[str, str] = {}

    def sample(self, now: float, counters: Counters, gauges: Gauges) -> list[tuple[bytes, bytes]]:
        """(topic, payload) of everything that changed since the last sample; of everything at the first."""
        self._clients_most = max(self._clients_most, gauges.clients_connected)
        self._heap_most = max(self._heap_most, gauges.heap_bytes)
        values = {"version": self._version, "uptime": f"{int(now - self._started)} seconds"}
        values.update(self._current(gauges))
        values.update(_overload(gauges))
        values.update(_cumulative(counters))
        values.update(_reasons(counters))
        values.update(self._averages(now, counters))
        changed = {name: value for name, value in values.items() if self._told.get(name) != value}
        self._told.update(changed)
        return [(ROOT + name.encode(), value.encode()) for name, value in changed.items()]

    def _current(self, gauges: Gauges) -> dict[str, str]:
        stored = gauges.retained + gauges.queued
        away = gauges.clients_total - gauges.clients_connected
        current = {
            "clients/total": gauges.clients_total,
            "clients/maximum": self._clients_most,
            "clients/connected": gauges.clients_connected,
            "clients/disconnected": away,
            "clients/expired": gauges.clients_expired,
            "clients/active": gauges.clients_connected,  # the former names of the two above
            "clients/inactive": away,
            "messages/stored": stored,  # the former name of the next
            "store/messages/count": stored,
            "store/messages/bytes": gauges.retained_bytes + gauges.queued_bytes,
            "retained messages/count": gauges.retained,
            "subscriptions/count": gauges.subscriptions,
            "shared_subscriptions/count": gauges.shared_subscriptions,
            "heap/current": gauges.heap_bytes,
            "heap/maximum": self._heap_most,
        }
        return {name: str(value) for name, value in current.items()}

    def _averages(self, now: float, counters: Counters) -> dict[str, str]:
        """The loads; they start at zero with the broker."""
        elapsed = max(now - self._sampled, SHORTEST_INTERVAL)
        self._sampled = now
        averages: dict[str, str] = {}
        for kind, total in _loaded(counters).items():
            grown = total - self._totals.get(kind, 0)
            rate = grown * 60.0 / elapsed
            self._totals[kind] = total
            for window, seconds in WINDOWS:
                name = f"load/{kind}/{window}"
                load = self._loads.get(name, 0.0)
                load = rate + exp(-elapsed / seconds) * (load - rate)
                self._loads[name] = load
                averages[name] = f"{load:.2f}"
        return averages


def _loaded(counters: Counters) -> dict[str, int]:
    return {
        "messages/received": counters.packets_received,
        "messages/sent": counters.packets_sent,
        "publish/received": counters.publishes_received,
        "publish/sent": counters.publishes_sent,
        "publish/dropped": counters.publishes_dropped,
        "bytes/received": counters.bytes_received,
        "bytes/sent": counters.bytes_sent,
        "sockets": counters.sockets_opened,
        "connections": counters.connects_received,
    }


def _cumulative(counters: Counters) -> dict[str, str]:
    cumulative = {
        "messages/received": counters.packets_received,
        "messages/sent": counters.packets_sent,
        "publish/messages/received": counters.publishes_received,
        "publish/messages/sent": counters.publishes_sent,
        "publish/messages/dropped": counters.publishes_dropped,
        "publish/bytes/received": counters.publish_bytes_received,
        "publish/bytes/sent": counters.publish_bytes_sent,
        "bytes/received": counters.bytes_received,
        "bytes/sent": counters.bytes_sent,
    }
    return {name: str(value) for name, value in cumulative.items()}


def _overload(gauges: Gauges) -> dict[str, str]:
    """Our own topics for what HiveMQ and TBMQ measure, who have none for it."""
    overload = gauges.overload
    return {
        "overload/level": str(overload.level),
        "overload/cluster_level": str(overload.cluster_level),
        "overload/cause": overload.cause or "none",  # an empty retained message would be none
        "overload/credits_per_tick": str(overload.credits_per_tick),
        "overload/clients/using_credits": str(overload.using_credits),
        "overload/clients/average_credits": f"{overload.average_credits:.0f}",
        "overload/clients/throttled": str(overload.throttled),
        "overload/clients/paused": str(gauges.paused),
        "overload/clients/non_writable": str(gauges.non_writable),
        "overload/latency/p50_ms": f"{gauges.p50_ms:.3f}",
        "overload/latency/p99_ms": f"{gauges.p99_ms:.3f}",
    }


def _reasons(counters: Counters) -> dict[str, str]:
    """Our own topics, for the reasons that occurred."""
    dropped = {f"weir/dropped/{label}": str(n) for label, n in counters.dropped_by_reason.items() if n}
    closed = {f"weir/closed/{label}": str(n) for label, n in counters.closed_by_reason.items() if n}
    refusals = counters.refused_by_reason | counters.publishes_refused_by_reason  # no label is in both
    refused = {f"weir/refused/{label}": str(n) for label, n in refusals.items() if n}
    paused = {f"overload/paused/{label}/pauses": str(n) for label, n in counters.pauses_by_reason.items() if n}
    held = {f"overload/paused/{label}/ms": str(n) for label, n in counters.paused_ms_by_reason.items() if n}
    return dropped | closed | refused | paused | held
