# The log as the carrier sees it: topics of partitions, each of which is a sequence of records with rising offsets.
#
# Two implementations pass the same tests: Kafka (kafka_log.py), and streams of Redis (redis_log.py), the default, which
# needs no other server. They differ in how records end: Kafka deletes whole segments, and its brokers keep what is
# within the retention; the streams are trimmed to it to the record.
#
# Nothing here waits. A log has a clock (seconds, monotonic) in place of a time in each call, as threads of a client may
# be what calls back. All methods are called in one thread, and what they cause is told there: by the callable that was
# given, or by a `Reader`. A failure that passes is not told, but seen in `statistics()`: what was to be appended
# waits, in order, until the log takes it (appends.py), and who reads receives nothing meanwhile. So what must not wait
# for ever has a deadline elsewhere: the gate of the publisher. A failure that is told says what to do about it.
#
# Offsets of readers are ours, in Redis (offsets.py), whichever log it is: those in Kafka expire when a group is idle.
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.reasons import LogFailure
from broker.store.logs.records import Pack, Position, Record, decode
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties


@dataclass(kw_only=True)
class LogStatistics:
    waiting: int = 0  # packs that the log has not stored yet
    waiting_bytes: int = 0
    refused: int = 0  # packs, as too many bytes waited
    stored: int = 0  # packs
    stored_records: int = 0
    resent: int = 0  # records
    read: int = 0  # records
    repeated: int = 0  # packs that were read before
    damaged: int = 0  # records that cannot be decoded
    failing: dict[Partition, str] = field(default_factory=dict)  # where appending has failed last, and why
    # Of those, the ones where the failure is theirs: the log answers.
    alone: set[Partition] = field(default_factory=set)
    unusable: str = ""  # why no topic can be made or found now; "": nothing is known to be wrong


class Reader(Protocol):
    """Who reads a partition."""

    def received(self, records: Sequence[Record]) -> None:
        """The next records, in order; one may have no pack that is new."""
        ...

    def jumped(self, expected: int, offset: int) -> None:
        """Reading goes on at *offset*, as the records from *expected* on have been deleted.

        *offset* below *expected*: the topic has been made anew, and is read from its beginning.
        """
        ...

    def damaged(self, offset: int, record: bytes, why: str) -> None:
        """The record at *offset* cannot be decoded, and is skipped."""
        ...

    def failed(self, error: LogError | None) -> None:
        """The partition cannot be read, for a reason that people have to remove; it is tried again.

        None: it can be read again.
        """
        ...


class Reading:
    """One reader of one partition. The log calls `take()`, `jump()` and `identify()`; its owner the rest.

    A reading that is paused holds nothing: what comes for it is dropped, and read again from `position` on.
    """

    def __init__(
        self,
        partition: Partition,
        position: Position,
        reader: Reader,
        statistics: LogStatistics,
        changed: Callable[["Reading"], None],
    ) -> None:
        """*changed* is called when the reading was paused, resumed or stopped."""
        self.partition = partition
        self.position = position
        self.paused = False
        self.stopped = False
        self.reader = reader
        self._statistics = statistics
        self._changed = changed

    def pause(self) -> None:
        """Give nothing from now on."""
        if not self.paused:
            self.paused = True
            self._changed(self)

    def resume(self) -> None:
        """Give what follows again."""
        if self.paused and not self.stopped:
            self.paused = False
            self._changed(self)

    def stop(self) -> None:
        """End the reading."""
        if not self.stopped:
            self.stopped = self.paused = True
            self._changed(self)

    def identify(self, log: bytes) -> None:
        """The topic is *log*: begin anew if the position is of a former one of the same name."""
        former, self.position.log = self.position.log, log
        if former not in (b"", log) and self.position.offset > 0:
            self.jump(0)

    def take(self, records: Sequence[tuple[int, bytes]]) -> None:
        """Give the reader *records*, offsets and contents; those that it has read are left out."""
        given: list[Record] = []
        for offset, content in records:
            if offset < self.position.offset:
                continue
            packs: list[Pack] = []
            why = ""
            try:
                packs = decode(content)
            except ValueError as error:
                why = str(error)
            if why or offset > self.position.offset:
                given = self._give(given)  # who receives it may pause, or stop
            if offset > self.position.offset and not self.paused:
                self.jump(offset)
            if self.paused:
                break
            if why:
                self._statistics.damaged += 1
                self.position.offset = offset + 1
                self.reader.damaged(offset, content, why)
            else:
                given.append(self._fresh(offset, packs))
        self._give(given)

    def jump(self, offset: int) -> None:
        """Go on at *offset*, where the oldest record of the log is."""
        expected, self.position.offset = self.position.offset, offset
        self.reader.jumped(expected, offset)

    def _fresh(self, offset: int, packs: Sequence[Pack]) -> Record:
        record = self.position.take(offset, packs)
        self._statistics.read += 1
        self._statistics.repeated += len(packs) - len(record.packs)
        return record

    def _give(self, records: list[Record]) -> list[Record]:
        if records:
            self.reader.received(records)
        return []


class Log(Protocol):
    def start(self) -> None:
        """Connect, and connect again whenever that is needed."""
        ...

    def stop(self) -> None:
        """End; what has not been stored yet may or may not be, and nothing is told any more."""
        ...

    def append(self, partition: Partition, pack: Pack, done: Callable[[int, LogError | None], None]) -> bool:
        """Append *pack* behind all that have been appended to *partition*; False: too many bytes wait already.

        *done* is called with the offset of its record when it is stored as safely as the topic provides for, in the
        order of the packs; or with an error if it never will be, and then the packs behind it go on.
        """
        ...

    def flush(self) -> float:
        """Send what has been appended since the last call: packs of one turn share a record. When it is to be called
        again, as it was too early to send; infinity: nothing waits for that."""
        ...

    def read(self, partition: Partition, position: Position, reader: Reader) -> Reading:
        """Give *reader* the records from *position* on, which is the reading's from now on."""
        ...

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        """Make *topic*, or check that it is as it would be made; ready to be appended to when *then* is called.

        The properties that may differ, as people may have changed them: retention and replication.
        """
        ...

    def try_out(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        """Find out whether *topic* could be made; nothing is made."""
        ...

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        """Delete *topic* with all records, if its identity is *log*; one that does not exist is none.

        b"": whichever it has. A topic of this name that has another identity stays.
        """
        ...

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        """Tell *then* about *topic*; None: it does not exist."""
        ...

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing that will be."""
        ...

    def statistics(self) -> LogStatistics: ...


class RecordTopic(Protocol):
    """Where the metrics records of workers are published, for readers of Kafka. It drops what it cannot publish now."""

    def append(self, worker: str, record: bytes, done: Callable[[LogFailure | None], None]) -> None:
        """Publish *record* of *worker*. *done* is called once, perhaps at once; with a failure: it may not be there."""
        ...


class GroupOffsets(Protocol):
    """Where others than Weir see how far groups have read."""

    def done(self, group: str, partition: Partition, offset: int) -> None:
        """All that *group* is to have of *partition* before *offset* is done."""
        ...


class Member(Protocol):
    """A member of a consumer group of Kafka."""

    def leave(self) -> None:
        """Have its partitions given to others; nothing is told any more. Once."""
        ...


class Groups(Protocol):
    """Consumer groups of Kafka, which say who is to read which partitions."""

    def join(self, group: str, topic: str, partitions: int, told: Callable[[list[int], str], None]) -> Member:
        """Have a member join *group*, which reads *topic* with so many *partitions*.

        *told* is called with the partitions that it is to read, whenever these change, and with "" or why it is no
        member now.
        """
        ...
