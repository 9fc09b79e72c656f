# The turns of the carrier: what its loop does for the log and for the workers.
#
# A turn takes the frames of workers and the replies of Redis, and after them sends: packs of one turn share records,
# and what was stored in one turn is confirmed in one frame.
from collections.abc import Sequence
from itertools import islice
from math import inf
from typing import Final, Protocol

from broker.carrier.log import Log
from broker.carrier.worker_lanes import FullLog, WorkerLanes
from broker.net.service import Service
from broker.net.stream import Stream
from broker.reasons import CloseReason
from broker.store.logs.frames import PARTITIONS, LogStatus

TICK: Final = 0.05  # seconds between two ticks of the log at most: what fails in between says nothing
STATUS: Final = 1.0  # seconds between two reports to workers, unless what fails has changed


class Ticks(Protocol):
    def tick(self, now: float) -> float: ...


class Turns(Service):
    """It has no clients."""

    def __init__(self, log: Log, connections: Sequence[Ticks]) -> None:
        """*connections*: those of the log, to Redis."""
        self.workers: list[WorkerLanes] = []
        self.full = FullLog()
        self._log = log
        self._connections = connections
        self._tick = 0.0  # when the log has its next tick at the latest
        self._status = 0.0  # when workers are told the status of the log
        self._failing = 0  # partitions, when they were last told

    def join(self, worker: WorkerLanes) -> None:
        """Serve *worker*, which is connected."""
        self.workers.append(worker)
        self._status = 0.0

    def failing(self) -> list[tuple[str, int, str]]:
        """Some of the partitions that nothing can be appended to now: topic, number, why."""
        failing = self._log.statistics().failing
        return [(topic, number, why) for (topic, number), why in islice(failing.items(), PARTITIONS)]

    # A Service.

    def work(self, until: float) -> bool:
        self._log.flush()
        for worker in self.workers:
            worker.flush()
        if self.full.someone_waits():
            self.full.go_on(self._log.statistics())
        return False

    def tick(self, now: float) -> float:
        due = inf
        for connection in self._connections:
            due = min(due, connection.tick(now))
        if now >= self._tick:
            self._tick = min(self._log.tick(now), now + TICK)
            self._tell_status(now)
        return min(due, self._tick)

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        pass

    def _tell_status(self, now: float) -> None:
        self.workers = [worker for worker in self.workers if not worker.closed]
        statistics = self._log.statistics()
        if now >= self._status or len(statistics.failing) != self._failing:
            self._status = now + STATUS
            self._failing = len(statistics.failing)
            status = LogStatus(statistics.waiting, statistics.waiting_bytes, self._failing, self.failing())
            frame = status.encode()
            for worker in self.workers:
                worker.tell_status(frame)
