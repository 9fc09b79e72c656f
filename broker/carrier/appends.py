# What waits to be appended to a log, by partition: one record of each partition is under way at a time.
#
# So whatever happens to a record, nothing behind it has overtaken it, and it is sent again as it was until the log has
# it or refuses it for good. Kafka's producer by itself does not promise that: batches that were under way when it gave
# one up fail, and those behind them are written. What is appended meanwhile becomes the next record, so a slow log has
# larger records, and a thousand messages a millisecond are one request a partition. The price is the time of one
# request, in which a pack waits for the record before it.
#
# The limit in bytes is for all partitions together: Kafka's producer has none of its own.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.carrier.log import LogError, LogStatistics, Partition
from broker.carrier.records import OVERHEAD, START, Pack, encode
from broker.reasons import LogFailure

MOST_BYTES: Final = 64 * 1024 * 1024  # that wait, in all partitions: a second of 500 000 messages of 120 bytes
RECORD_BYTES: Final = 512 * 1024  # of a record, unless one pack is larger; Kafka takes 1 MiB
FIRST_PAUSE: Final = 0.05  # seconds until a record is sent again; it doubles
LONGEST_PAUSE: Final = 1.0

Done = Callable[[int, LogError | None], None]


class _Queue:
    def __init__(self, partition: Partition, record_bytes: int) -> None:
        self.partition = partition
        self.waiting: deque[tuple[Pack, Done]] = deque()
        self.record = b""  # that is under way, or waits to be sent again; b"": none
        self.packs = 0  # in that record: the first ones that wait
        self.record_bytes = record_bytes
        self.pause = 0.0  # before the next attempt; 0.0: the last one did not fail
        self.again = 0.0  # when that is; 0.0: the record is under way


class Appends:
    def __init__(
        self,
        send: Callable[[Partition, bytes], None],
        clock: Callable[[], float],
        statistics: LogStatistics,
        most_bytes: int = MOST_BYTES,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        """*send* sends a record, upon which `stored()` is called, later, or `failed()`, perhaps at once."""
        self._send = send
        self._clock = clock
        self._statistics = statistics
        self._most_bytes = most_bytes
        self._record_bytes = record_bytes
        self._queues: dict[Partition, _Queue] = {}
        self._dirty: list[_Queue] = []  # without a record, since packs were appended
        self._failing: dict[Partition, _Queue] = {}  # whose record waits to be sent again

    def append(self, partition: Partition, pack: Pack, done: Done) -> bool:
        """Have *pack* appended; False: too many bytes wait. One pack is taken whatever its size, if none waits."""
        statistics = self._statistics
        size = OVERHEAD + len(pack.body)
        if statistics.waiting and statistics.waiting_bytes + size > self._most_bytes:
            statistics.refused += 1
            return False
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = _Queue(partition, self._record_bytes)
        if not queue.waiting:
            self._dirty.append(queue)
        queue.waiting.append((pack, done))
        statistics.waiting += 1
        statistics.waiting_bytes += size
        return True

    def flush(self) -> None:
        """Send a record of each partition that has packs and none under way."""
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for queue in dirty:
                if queue.waiting and not queue.record:
                    self._send_next(queue)

    def stored(self, partition: Partition, offset: int) -> None:
        """The record of *partition* is stored at *offset*."""
        queue = self._queues[partition]
        self._statistics.stored += queue.packs
        self._statistics.stored_records += 1
        self._recovered(queue)
        self._end_record(queue, offset, None)

    def failed(self, partition: Partition, error: LogError) -> None:
        """The record of *partition* was refused, or may not be stored."""
        queue = self._queues[partition]
        if error.failure is LogFailure.TOO_LARGE:
            self._recovered(queue)
            if queue.packs == 1:
                self._end_record(queue, -1, error)
            else:
                queue.record_bytes = max(1, len(queue.record) // 2)
                self._send_next(queue)
            return
        queue.pause = min(max(FIRST_PAUSE, 2 * queue.pause), LONGEST_PAUSE)
        queue.again = self._clock() + queue.pause
        self._failing[partition] = queue
        self._statistics.failing[partition] = str(error)

    def tick(self, now: float) -> float:
        """Send again what is due; return when the next record will be."""
        due = float("inf")
        for queue in [*self._failing.values()]:
            if queue.again and queue.again <= now:
                queue.again = 0.0
                self._statistics.resent += 1
                self._send(queue.partition, queue.record)
            if queue.again:
                due = min(due, queue.again)
        return due

    def _send_next(self, queue: _Queue) -> None:
        packs: list[Pack] = []
        size = START.size
        for pack, _ in queue.waiting:
            size += OVERHEAD + len(pack.body)
            if packs and size > queue.record_bytes:
                break
            packs.append(pack)
        queue.packs = len(packs)
        queue.record = encode(packs)
        self._send(queue.partition, queue.record)

    def _end_record(self, queue: _Queue, offset: int, error: LogError | None) -> None:
        ended = [queue.waiting.popleft() for _ in range(queue.packs)]
        queue.record = b""
        queue.packs = 0
        self._statistics.waiting -= len(ended)
        self._statistics.waiting_bytes -= sum(OVERHEAD + len(pack.body) for pack, _ in ended)
        for _, done in ended:
            done(offset, error)
        if not queue.waiting:
            del self._queues[queue.partition]
        elif not queue.record:  # a callable that was called may have had it sent
            self._send_next(queue)

    def _recovered(self, queue: _Queue) -> None:
        queue.pause = 0.0
        if self._failing.pop(queue.partition, None) is not None:
            del self._statistics.failing[queue.partition]
