# What waits to be appended to a log, by partition: one record of each partition is under way at a time.
#
# So whatever happens to a record, nothing behind it has overtaken it, and it is sent again as it was until the log has
# it or refuses it for good. Kafka's producer by itself does not promise that: batches that were under way when it gave
# one up fail, and those behind them are written. What is appended meanwhile becomes the next record, so a slow log has
# larger records, and a thousand messages a millisecond are one request a partition. The price is the time of one
# request, in which a pack waits for the record before it.
#
# Records of many partitions leave together, with *pace* seconds between two such times at least: each request costs
# Kafka and its client a millisecond of CPU, whatever is in it. A pack that comes alone does not wait.
#
# The limit in bytes is for all partitions together, and counts what Python and the clients need beside the packs:
# Kafka's producer has no limit of its own. A partition may have as much as is free behind it, so one that is stuck
# takes half, and two take two thirds: those that go on always find room.
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from broker.carrier.log import LogStatistics
from broker.config.budget import WAITING_BYTES
from broker.reasons import LogFailure
from broker.store.logs.records import OVERHEAD as ENCODED
from broker.store.logs.records import START, Pack, encode
from broker.store.logs.topics import LogError, Partition

MOST_BYTES: Final = WAITING_BYTES  # that wait, in all partitions
PACK_BYTES: Final = 520  # of a pack that waits, beside its body: objects, and what it calls
QUEUE_BYTES: Final = 1200  # of a partition that has some
COPIES: Final = 4  # of a record that is under way: here, in a batch, in a request, and in what the socket has not taken
RECORD_BYTES: Final = 512 * 1024  # of a record, unless one pack is larger; Kafka takes 1 MiB
FIRST_PAUSE: Final = 0.05  # seconds until a record is sent again; it doubles
LONGEST_PAUSE: Final = 1.0

# Failures that a log which is well answers with, for one partition. If several partitions fail so, and none has stored
# anything for WELL seconds, it is the log that fails: it may have too few replicas of everything.
OF_PARTITION: Final = (
    LogFailure.UNKNOWN_TOPIC,
    LogFailure.OTHER_TOPIC,
    LogFailure.FORBIDDEN,
    LogFailure.NO_LEADER,
    LogFailure.TOO_FEW_REPLICAS,
)
WELL: Final = 5.0

Done = Callable[[int, LogError | None], None]


class _Queue:
    def __init__(self, partition: Partition, record_bytes: int) -> None:
        self.partition = partition
        self.waiting: deque[tuple[Pack, Done]] = deque()
        self.record = b""  # that is under way, or waits to be sent again; b"": none
        self.number = 0  # of the attempt that is under way
        self.packs = 0  # in that record: the first ones that wait
        self.bytes = 0  # of all that wait, as they are counted
        self.record_bytes = record_bytes
        self.pause = 0.0  # before the next attempt; 0.0: the last one did not fail
        self.again = 0.0  # when that is; 0.0: the record is under way


class Appends:
    def __init__(
        self,
        send: Callable[[Partition, bytes, int], None],
        clock: Callable[[], float],
        statistics: LogStatistics,
        most_bytes: int = MOST_BYTES,
        record_bytes: int = RECORD_BYTES,
        pace: float = 0.0,
    ) -> None:
        """*send* sends a record, upon which `stored()` is called, later, or `failed()`, perhaps at once.

        Both are told the number that *send* was told; the result of an attempt that nobody waits for is ignored.
        """
        self._send = send
        self._clock = clock
        self._statistics = statistics
        self._most_bytes = most_bytes
        self._record_bytes = record_bytes
        self._pace = pace
        self._not_before = -inf  # when records may be sent
        self._queues: dict[Partition, _Queue] = {}
        self._dirty: list[_Queue] = []  # that have packs, and no record
        self._failing: dict[Partition, _Queue] = {}  # whose record waits to be sent again
        self._own: set[Partition] = set()  # of these, the ones with a failure OF_PARTITION
        self._stored_at = clock()  # when a record was stored last
        self._well = True  # the log, as far as is known
        self._due = inf  # when the first of them is
        self._number = 0

    def append(self, partition: Partition, pack: Pack, done: Done) -> bool:
        """Have *pack* appended; False: too many bytes wait. One pack is taken whatever its size, if none waits."""
        statistics = self._statistics
        size = PACK_BYTES + len(pack.body)
        queue = self._queues.get(partition)
        behind = QUEUE_BYTES if queue is None else queue.bytes
        if statistics.waiting and behind + size > self._most_bytes - statistics.waiting_bytes:
            statistics.refused += 1
            return False
        if queue is None:
            queue = self._queues[partition] = _Queue(partition, self._record_bytes)
            self._count(queue, QUEUE_BYTES)
        if not queue.waiting:
            self._dirty.append(queue)
        queue.waiting.append((pack, done))
        statistics.waiting += 1
        self._count(queue, size)
        return True

    def flush(self) -> float:
        """Send a record of each partition that has packs and none under way, if it is time; return when it will be."""
        if not self._dirty:
            return inf
        if self._pace:
            now = self._clock()
            if now < self._not_before:
                return self._not_before
            self._not_before = now + self._pace
        while self._dirty:
            dirty, self._dirty = self._dirty, []
            for queue in dirty:
                if queue.waiting and not queue.record:
                    self._send_next(queue)
        return inf

    def stored(self, partition: Partition, number: int, offset: int) -> bytes:
        """The record of *partition* is stored at *offset*; the record, or b"" if nobody waits for this attempt."""
        queue = self._queues.get(partition)
        if queue is None or queue.number != number:
            return b""
        record = queue.record
        self._statistics.stored += queue.packs
        self._statistics.stored_records += 1
        self._stored_at = self._clock()
        self._recovered(queue)
        self._end_record(queue, offset, None)
        return record

    def failed(self, partition: Partition, number: int, error: LogError) -> None:
        """The record of *partition* was refused, or may not be stored."""
        queue = self._queues.get(partition)
        if queue is None or queue.number != number:
            return
        if error.failure is LogFailure.TOO_LARGE:
            self._recovered(queue)
            if queue.packs == 1:
                self._end_record(queue, -1, error)
            else:
                queue.record_bytes = max(1, len(queue.record) // 2)
                self._count(queue, -COPIES * len(queue.record))
                self._send_next(queue)
            return
        queue.pause = min(max(FIRST_PAUSE, 2 * queue.pause), LONGEST_PAUSE)
        queue.again = self._clock() + queue.pause
        self._due = min(self._due, queue.again)
        self._fails(queue, error)

    def stuck(self, partition: Partition, error: LogError) -> None:
        """The record of *partition* is under way still, and cannot be stored now."""
        queue = self._queues.get(partition)
        if queue is not None and queue.record:
            self._fails(queue, error)

    def _fails(self, queue: _Queue, error: LogError) -> None:
        partition, statistics = queue.partition, self._statistics
        self._failing[partition] = queue
        statistics.failing[partition] = str(error)
        if error.failure in OF_PARTITION:
            self._own.add(partition)
        else:
            self._own.discard(partition)
            statistics.alone.discard(partition)
        self._judge()
        if self._well and partition in self._own:
            statistics.alone.add(partition)

    def _judge(self) -> None:
        """Look whether the log is well, so that partitions with failures of their own fail alone."""
        well = len(self._own) == 1 or self._clock() - self._stored_at < WELL
        if well != self._well:
            self._well = well
            self._statistics.alone.clear()
            if well:
                self._statistics.alone |= self._own

    def drop(self, topic: str, error: LogError) -> None:
        """Give up all that waits for *topic*, which will not be there again."""
        for queue in [one for partition, one in self._queues.items() if partition.topic == topic]:
            del self._queues[queue.partition]
            self._recovered(queue)
            ended = [*queue.waiting]
            queue.waiting.clear()  # it may still be one of those that are dirty
            self._statistics.waiting -= len(ended)
            self._count(queue, -queue.bytes)
            for _, done in ended:
                done(-1, error)

    def tick(self, now: float) -> float:
        """Send again what is due; return when the next record will be."""
        if now < self._due:
            return self._due
        self._due = inf
        for queue in [*self._failing.values()]:
            if queue.again and queue.again <= now:
                queue.again = 0.0
                self._statistics.resent += 1
                self._try(queue)
            if queue.again:
                self._due = min(self._due, queue.again)
        return self._due

    def _send_next(self, queue: _Queue) -> None:
        packs: list[Pack] = []
        size = START.size
        for pack, _ in queue.waiting:
            size += ENCODED + len(pack.body)
            if packs and size > queue.record_bytes:
                break
            packs.append(pack)
        queue.packs = len(packs)
        queue.record = encode(packs)
        self._count(queue, COPIES * len(queue.record))
        self._try(queue)

    def _try(self, queue: _Queue) -> None:
        self._number += 1
        queue.number = self._number
        self._send(queue.partition, queue.record, queue.number)

    def _end_record(self, queue: _Queue, offset: int, error: LogError | None) -> None:
        ended = [queue.waiting.popleft() for _ in range(queue.packs)]
        size = sum(PACK_BYTES + len(pack.body) for pack, _ in ended)
        self._count(queue, -size - COPIES * len(queue.record))
        queue.record = b""
        queue.number = queue.packs = 0
        self._statistics.waiting -= len(ended)
        for _, done in ended:
            done(offset, error)
        if self._queues.get(queue.partition) is not queue:  # a callable that was called has deleted the topic
            return
        if not queue.waiting:
            del self._queues[queue.partition]
            self._count(queue, -QUEUE_BYTES)
        elif not queue.record:  # a callable that was called may have had it sent
            self._dirty.append(queue)

    def _count(self, queue: _Queue, size: int) -> None:
        queue.bytes += size
        self._statistics.waiting_bytes += size

    def _recovered(self, queue: _Queue) -> None:
        queue.pause = 0.0
        if self._failing.pop(queue.partition, None) is not None:
            del self._statistics.failing[queue.partition]
            self._own.discard(queue.partition)
            self._statistics.alone.discard(queue.partition)
        if self._failing:
            self._judge()
