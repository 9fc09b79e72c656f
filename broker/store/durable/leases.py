# A partition of a shared log that a session reads for its group, and how far the group has read it.
#
# What is saved: FORM, how many messages of the next record were passed on, the origins of QoS 2 publishes that were
# passed on last with their highest numbers, and the position (store/logs/records.py).
#
# A QoS 2 publish that is sent again after a crash may be in the log twice (tokens.py), and both times in one partition,
# as that follows from its topic name. The member that reads the second one may be another than had the first one, so
# the numbers are those of the partition and go with the lease, and not with a session. Numbers of one origin rise in a
# partition: a worker appends in order, keeps what is not stored, and a publisher sends again in order.
#
# ORIGINS of them are kept: so many publishers of one partition may have publishes under way when a worker dies. With
# each transaction that passes on QoS 2, all of them are written, 16 bytes each.
from struct import Struct
from typing import Final

from broker.session.message import Message
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.log_pack import LogMessage
from broker.store.durable.tokens import ORIGIN, TOKEN
from broker.store.logs.records import Position

FORM: Final = 1
SAVED: Final = Struct(">BIH")  # FORM, messages of the next record that were passed on, origins
EPOCH: Final = 16  # hexadecimal digits
ORIGINS: Final = 512
SHARED_ERA: Final = bytes(8)  # of the packs in shared logs: positions tell what is for a group


HELD: Final = b"L"  # how the value of a partition in the state of a group begins while it is leased (lease_scripts.py)
MEMBER: Final = 16  # bytes


class RecentTokens:
    """The highest number of each origin whose publishes were passed on last."""

    def __init__(self, saved: bytes = b"") -> None:
        self._highest: dict[bytes, bytes] = {}  # the origin that was taken last is the last one
        for at in range(0, len(saved), TOKEN):
            self._highest[saved[at : at + ORIGIN]] = saved[at + ORIGIN : at + TOKEN]

    def take(self, token: bytes) -> bool:
        """Remember that the publish with *token* is passed on; false if it was before."""
        origin, number = token[:ORIGIN], token[ORIGIN:]
        highest = self._highest.pop(origin, b"")
        new = number > highest  # both in eight bytes, the most significant first; b"" is below all
        self._highest[origin] = number if new else highest
        if len(self._highest) > ORIGINS:
            del self._highest[next(iter(self._highest))]
        return new

    def encode(self) -> bytes:
        return b"".join([origin + number for origin, number in self._highest.items()])

    def __len__(self) -> int:
        return len(self._highest)


class LeaseReader:
    """Who reads a partition for its group: a member, at this worker."""

    def for_member(self, message: Message) -> Message | None:
        """What the member gets of *message*; None: it may not read it."""
        raise NotImplementedError

    def mirrored_as(self) -> tuple[str, str]:
        """The consumer group that the tools of Kafka see, and its topic."""
        raise NotImplementedError

    def lease_ended(self, lease: "Lease", now: float) -> None:
        """*lease* was released, or had been lost."""
        raise NotImplementedError

    def client_changed(self) -> None:
        """The client of the session has connected, or is not connected any more."""
        raise NotImplementedError

    def passes_on(self) -> None:
        """The session is passed on messages, from whichever log."""
        raise NotImplementedError


def saved_position(value: bytes) -> int | None:
    """The offset up to which a group has read a partition, by *value*, which its state has of it; None: unknown.

    While the partition is leased, it is that at which the lease began.
    """
    saved = value[1 + EPOCH + MEMBER :] if value[:1] == HELD else value[1:]
    try:
        return Lease(b"", 0, bytes(EPOCH) + saved).position.offset
    except ValueError:
        return None


def first_saved(offset: int, log: bytes = b"") -> bytes:
    """What is saved of a partition that a group begins to read at *offset*, of the topic with the identity *log*."""
    return SAVED.pack(FORM, 0, 0) + Position(offset, log).encode()


class Lease:
    """A lease of *partition* of the group with the digest *group*, with what is saved: *value* is its epoch and that.

    ValueError: it cannot be read.
    """

    def __init__(self, group: bytes, partition: int, value: bytes) -> None:
        self.group: Final = group
        self.partition: Final = partition
        self.epoch: Final = value[:EPOCH]
        self.feed: LogFeed | None = None  # None: it is not read, or not any more
        self.due = False  # what is saved is to be stored
        self.under_way = False  # it is being stored
        self.reader: LeaseReader | None = None  # None: nobody reads it
        self.releasing = False  # it ends as soon as it is stored how far it was read
        self.release_under_way = False
        try:
            form, passed, origins = SAVED.unpack_from(value, EPOCH)
        except Exception as error:  # of struct
            raise ValueError("what is saved of a partition is too short") from error
        if form != FORM:
            raise ValueError(f"what is saved of a partition has form {form}")
        at = EPOCH + SAVED.size
        end = at + origins * TOKEN
        self.tokens: Final = RecentTokens(value[at:end])
        self.passed = passed  # messages of the next record that were, without a feed
        self.position = Position.decode(value[end:])

    def value(self) -> bytes:
        passed, tokens = self.passed if self.feed is None else self.feed.passed, self.tokens
        return self.epoch + SAVED.pack(FORM, passed, len(tokens)) + tokens.encode() + self.position.encode()

    def is_new(self, found: LogMessage) -> bool:
        """Whether *found* is no publish that was passed on before."""
        return not found.token or self.tokens.take(found.token)

    def for_member(self, message: Message) -> Message | None:
        return None if self.reader is None else self.reader.for_member(message)

    def ended(self, now: float) -> None:
        """It was released, or had been lost."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.lease_ended(self, now)

    def stop(self) -> None:
        """Read no more, and forget what was not passed on."""
        feed, self.feed = self.feed, None
        if feed is not None:
            self.passed = feed.passed
            feed.stop()

    def trouble(self) -> str:
        """Why the partition cannot be read; "": nothing is known to be wrong."""
        return "" if self.feed is None else self.feed.trouble
