# What a worker measures of itself over one interval, and the metrics record that is made of it (recorder.py).
#
# The parts are handed to the code that sees the events: `clients` to the hub, `topics` to publishing, `pauses` to the
# code that throttles clients. The reactor has the latencies.
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.metrics.pause_statistics import PauseStatistics
from broker.metrics.recorder import Recorder, Store, encoded
from broker.worker_id import WorkerId

MINUTE: Final = 60.0  # seconds


class RecordLog(Protocol):
    """A log that metrics records are written to."""

    def append(self, record: bytes, now: float) -> None:
        """Write *record*, or drop and count it. Never waits."""
        ...


class IntervalMetrics:
    def __init__(
        self,
        counters: Counters,
        latencies: Latencies,
        records: Sequence[RecordLog],
        log: Log,
        *,
        worker: WorkerId,
        now: float,
    ) -> None:
        """*records*: the logs that each record is written to. The first interval starts *now*."""
        self.clients = HeavyHitters()
        self.topics = HeavyHitters()
        self.pauses = PauseStatistics(counters, self.clients)
        self.recorder = Recorder(counters, self.clients, self.topics, latencies, self.pauses, worker=worker, now=now)
        self.last: dict[str, Any] | None = None  # the record of the last interval
        self._records = records
        self._paused: deque[tuple[float, dict[str, dict[str, int]]]] = deque()  # (time, paused) of a minute's records
        self._log = log
        self._logged = 0  # the second of the last `clients_non_writable` line

    def close_interval(self, gauges: Gauges, stores: dict[str, Store], wall: float, now: float) -> None:
        """End the interval at *now* (*wall* in Unix time); *gauges* and *stores* are readings of this moment."""
        record = self.last = self.recorder.record(now, wall, gauges, stores)
        self._paused.append((now, record["paused"]))
        while self._paused[0][0] <= now - MINUTE:
            self._paused.popleft()
        second = int(wall)
        if gauges.non_writable and second != self._logged:
            self._logged = second
            became, unsent = record["clients"]["became_non_writable"], gauges.outbound_bytes
            self._log.warning("clients_non_writable", clients=gauges.non_writable, became=became, unsent_bytes=unsent)
        if self._records:
            text = encoded(record)
            for log in self._records:
                log.append(text, now)

    def paused_for(self) -> dict[str, int]:
        """By reason label: the milliseconds that clients were paused in the records of the last minute."""
        found: dict[str, int] = {}
        for _, reasons in self._paused:
            for label, figures in reasons.items():
                found[label] = found.get(label, 0) + figures["ms"]
        return found
