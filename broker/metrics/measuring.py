# Measuring: what a worker finds out about itself by the interval, and the record that comes of it.
#
# What is measured is handed to those who see it happen: `clients` to the hub, `topics` to publishing, `pauses` to
# whoever holds a client back, and the reactor has the latencies.
from collections import deque
from typing import Any, Final

from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.metrics.pauses import Pauses
from broker.metrics.recorder import Recorder, Store, encoded
from broker.metrics.sys_topics import Gauges
from broker.store.redis.record_log import RecordLog

MINUTE: Final = 60.0  # seconds


class Measuring:
    def __init__(
        self,
        counters: Counters,
        latencies: Latencies,
        log: Log,
        *,
        node: str,
        shard: int,
        boot: str,
        now: float,
    ) -> None:
        """*boot* names this life of the worker; *now*: when the first interval begins."""
        self.clients = HeavyHitters()
        self.topics = HeavyHitters()
        self.pauses = Pauses(counters, self.clients)
        self.records: RecordLog | None = None  # where they go, if anywhere
        self.recorder = Recorder(
            counters, self.clients, self.topics, latencies, self.pauses, node=node, worker=shard, boot=boot, now=now
        )
        self.last: dict[str, Any] | None = None  # the record of the last interval
        self._paused: deque[tuple[float, dict[str, dict[str, int]]]] = deque()  # of each record of a minute, and when
        self._log = log
        self._told = 0  # the second in which the log was last told of slow readers

    def close_interval(self, gauges: Gauges, stores: dict[str, Store], wall: float, now: float) -> None:
        """An interval ends *now*, and at *wall*, Unix time; *gauges* and *stores*: what holds at its end."""
        record = self.last = self.recorder.record(now, wall, gauges, stores)
        self._paused.append((now, record["paused"]))
        while self._paused[0][0] <= now - MINUTE:
            self._paused.popleft()
        second = int(wall)
        if gauges.non_writable and second != self._told:
            self._told = second
            facts = record["clients"]
            became, unsent = facts["became_non_writable"], gauges.outbound_bytes
            self._log.warning("clients_non_writable", clients=gauges.non_writable, became=became, unsent_bytes=unsent)
        if self.records is not None:
            self.records.append(encoded(record), now)

    def paused_for(self) -> dict[str, int]:
        """By the label of the reason, the milliseconds that clients were held in the records of the last minute."""
        found: dict[str, int] = {}
        for _, reasons in self._paused:
            for label, figures in reasons.items():
                found[label] = found.get(label, 0) + figures["ms"]
        return found
