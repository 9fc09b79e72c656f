# What the group commit (group_commit.py) asks for what is to be written, and the parts of its transactions.
from collections.abc import Callable
from typing import Protocol

from hiredis import ReplyError

from broker.store.durable.removals import Words, size_of
from broker.store.redis.connection import packed


class Writer(Protocol):
    """Has something to write. GroupCommit keeps track of it by two attributes, which no one else sets.

    Classes that inherit from it are called three times as fast when compiled as others that have its methods.
    """

    dirty: bool  # it is asked for its writes with the next transaction
    held: bool  # it is asked when the time has come

    def removes(self, now: float) -> list[Words]:
        """Its removals; `removed()` follows. While Redis is full it is asked for these alone, also if what `collect()`
        returned is not carried out: then they must be right ahead of that, and without it."""
        ...

    def removed(self, errors: list[ReplyError], now: float) -> None:
        """What `removes()` returned last is carried out, but for single commands with *errors*."""
        ...

    def collect(self, now: float, wall: float) -> list[bytes]:
        """The commands that write what else is to be written, behind the removals. `committed()` follows, unless this
        is asked again or the writer has called `withdraw()`."""
        ...

    def committed(self, errors: list[ReplyError], now: float) -> None:
        """What `collect()` returned last is stored, but for single commands with *errors*."""
        ...


class Giver(Protocol):
    """Is giving a session to another worker."""

    def give_stored(self) -> None:
        """Nothing more can be stored: go on with what is."""
        ...


class Part:
    """What *writer* has in a transaction; None: the shared bodies."""

    def __init__(self, writer: Writer | None, removals: list[Words], writes: list[bytes]) -> None:
        self.writer = writer
        self.removals = removals
        self.writes = writes
        self.size = 0  # bytes, about
        for one in writes:
            self.size += len(one)
        for words in removals:
            self.size += size_of(words)


class Mark(Writer):
    """The place of everything that was to be written, in the order of what is written: a `Writer`."""

    def __init__(self, key: bytes, then: Callable[[], None], last: bool) -> None:
        """*last*: behind what is to be stored as well, and not only what is to be removed."""
        self.dirty = False
        self.held = False
        self._key = key
        self._then = then
        self._last = last
        self._sent = False

    def removes(self, now: float) -> list[Words]:
        if self._last or self._sent:
            return []
        self._sent = True
        return [("EXISTS", self._key)]  # a part of a transaction is a command at least

    def removed(self, errors: list[ReplyError], now: float) -> None:
        self._then()

    def collect(self, now: float, wall: float) -> list[bytes]:
        return [packed("EXISTS", self._key)] if self._last else []

    def committed(self, errors: list[ReplyError], now: float) -> None:
        self._then()
