# The turns of the carrier: what its loop does for the log and for the workers.
#
# A turn takes the frames of workers and the replies of Redis, and after them sends: packs of one turn share records,
# and what was stored in one turn is confirmed in one frame.
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Final, Protocol

from broker.carrier.log import Log
from broker.carrier.worker_lanes import FullLog, WorkerLanes
from broker.log import Log as Lines
from broker.net.service import Service
from broker.net.stream import Stream
from broker.reasons import CloseReason
from broker.store.logs.frames import PARTITIONS, LogStatus
from broker.store.logs.topics import Partition

TICK: Final = 0.05  # seconds between two ticks of the log at most: what fails in between says nothing
STATUS: Final = 1.0  # seconds between two reports to workers, unless what fails has changed
LOOK: Final = 1.0  # seconds between two looks for what is to be logged
LOGGED: Final = 20  # failing partitions that are logged by name; how many there are is in each line


class Ticks(Protocol):
    def tick(self, now: float) -> float: ...


class FailingPartitions:
    """Logs to which partitions nothing can be appended, and why, when that has changed."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._logged: dict[Partition, str] = {}  # and the words for why, without details, which vary

    def look(self, failing: Mapping[Partition, str]) -> None:
        logged, count = self._logged, len(failing)
        for partition in [one for one in logged if one not in failing]:
            del logged[partition]
            self._lines.info(
                "log_partition_recovered", topic=partition.topic, partition=partition.number, failing=count
            )
        for partition, why in failing.items():
            words = why.partition(" (")[0]
            if logged.get(partition, "" if len(logged) < LOGGED else words) != words:
                logged[partition] = words
                self._lines.warning(
                    "log_partition_failed",
                    topic=partition.topic,
                    partition=partition.number,
                    why=why,
                    failing=count,
                )


class Turns(Service):
    """It has no clients."""

    def __init__(self, log: Log, connections: Sequence[Ticks], lines: Lines, soon: Callable[[float], None]) -> None:
        """*connections*: those of the log, to Redis. *soon* has `tick()` called at a time."""
        self.workers: list[WorkerLanes] = []
        self.full = FullLog()
        self._log = log
        self._connections = connections
        self._soon = soon
        self._flush = inf  # when the log wants to be flushed
        self._tick = 0.0  # when the log has its next tick at the latest
        self._status = 0.0  # when workers are told the status of the log
        self._failing = 0  # partitions, when they were last told
        self._unusable = ""  # the same
        self._failures = FailingPartitions(lines)
        self._look = 0.0

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
        self._flush = self._log.flush()
        if self._flush < inf:
            self._soon(self._flush)
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
            if now >= self._look:
                self._look = now + LOOK
                self._failures.look(self._log.statistics().failing)
        return min(due, self._tick, self._flush)

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        pass

    def _tell_status(self, now: float) -> None:
        self.workers = [worker for worker in self.workers if not worker.closed]
        statistics = self._log.statistics()
        failing, unusable = len(statistics.failing), statistics.unusable
        if now >= self._status or failing != self._failing or unusable != self._unusable:
            self._status = now + STATUS
            self._failing, self._unusable = failing, unusable
            named = self.failing()
            alone = [(topic, number) for topic, number, _ in named if Partition(topic, number) in statistics.alone]
            status = LogStatus(statistics.waiting, statistics.waiting_bytes, failing, named, unusable, alone)
            frame = status.encode()
            for worker in self.workers:
                worker.tell_status(frame)
