# The log as a worker's sessions see it: the port. The link to the carrier, which has the log, stands behind it.
#
# Everything is answered later, and not within the call, but for what is appended: a pack may be refused at once, as it
# is too large, and be late, as its partition is known to stand still.
# What is appended to a partition is told in its order. A pack that the log has twice is read once: what lies behind the
# port leaves out what the position of a reading has passed (records.py), and nobody here has to.
from collections.abc import Callable
from typing import Protocol

from broker.store.logs.records import Position, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties


class Appender(Protocol):
    """Who has a pack appended. One of `stored()` and `refused()` is called, once."""

    def stored(self, offset: int, now: float) -> None:
        """The log has the pack, in the record at *offset*."""
        ...

    def refused(self, error: LogError, now: float) -> None:
        """The log will never have the pack; those behind it go on."""
        ...

    def late(self, now: float) -> None:
        """The gate of the log counts its publishes no more, as it takes long, or will: their publishers are to wait.

        At most once, and before `stored()` or `refused()`.
        """
        ...


class LogReader(Protocol):
    """Who reads a partition. What it is told is in the order of the log."""

    def received(self, record: Record, now: float) -> None:
        """The next record, to be given to `LogReading.taken()`; it may have no pack that is new."""
        ...

    def jumped(self, expected: int, offset: int, now: float) -> None:
        """Reading goes on at *offset*, as the records from *expected* on have been deleted.

        *offset* below *expected*: the topic has been made anew, and is read from its beginning.
        """
        ...

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        """The record at *offset*, of which *record* is the beginning, cannot be decoded, and is skipped."""
        ...

    def failed(self, error: LogError | None, now: float) -> None:
        """The partition cannot be read, for a reason that people have to remove; it is tried again.

        None: it can be read again.
        """
        ...


class LogReading(Protocol):
    """A reading of one partition. What its reader has and did not take is bounded."""

    def taken(self, record: Record) -> None:
        """The reader needs *record*, which it was given, no more: others may come in its place."""
        ...

    def stop(self) -> None:
        """End the reading, with all records that its reader has; once."""
        ...


class LogMembership(Protocol):
    """A member of a consumer group of Kafka."""

    def leave(self) -> None:
        """Have its partitions given to others; nothing is told any more. Once."""
        ...


class LogLink(Protocol):
    def append(self, topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        """Append *body*, a pack, behind all that have been appended to the partition. It is refused if it is too large.

        The topic has to have been created.
        """
        ...

    def read(self, topic: str, partition: int, position: Position, reader: LogReader) -> LogReading:
        """Give *reader* the records from *position* on, one by one. *position* stays the caller's."""
        ...

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        """Make *topic*, or check that it is as it would be made; ready to be appended to when *then* is called."""
        ...

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        """Delete *topic* with all records, if its identity is *log*; one that does not exist is none.

        It may be done late, or twice.
        """
        ...

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        """Tell *then* about *topic*; None: it does not exist."""
        ...

    def unusable(self) -> str:
        """Why no topic can be made or found now; "": nothing is known to be wrong."""
        ...

    def append_trouble(self, topic: str) -> str:
        """Why nothing is appended to *topic* now; "": nothing is known to be wrong."""
        ...


class GroupLink(LogLink, Protocol):
    """A link that knows of consumer groups of Kafka."""

    carriers: int  # that there have been: what only the carrier knows is to be told to each

    def done(self, group: str, topic: str, partition: int, offset: int) -> None:
        """All that *group* is to have of the partition before *offset* is done: the tools of Kafka are to see that."""
        ...

    def join(self, group: str, topic: str, partitions: int, told: Callable[[list[int], str], None]) -> LogMembership:
        """Have Kafka give a new member of the consumer group *group* some of the *partitions* of *topic* to read.

        *told* is called with those that it is to read, whenever they change, and with "" or why it is no member now.
        """
        ...
