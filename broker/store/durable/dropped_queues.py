# Dropped queues: the lists of sessions that have ended, whose packs refer to shared bodies.
#
# The counts of the bodies have to be reduced by what is in the list, and only what is read is known. So when a session
# ends its list gets another name (queue.py), which is in the index of the worker like a client id. Then it is taken
# apart from its head: a page of packs is read; they are removed, and their groups reduced, in one transaction. One list
# after the other, and one page at a time, with a pause for what it takes: a queue of 10 000 messages costs no tick
# more than one of 1 000.
#
# After a crash the next worker finds the names in the index (adoption.py) and goes on.
#
# A pack that cannot be read is removed as well: what it referred to stays until it expires.
import os
from collections import deque
from typing import Any, Final, Protocol, cast

from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.store.durable.group_commit import PAUSE, GroupCommit
from broker.store.durable.pack import DamagedPack, Groups, decode_pack
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys
from broker.store.redis.pipeline import Command

PATIENCE: Final = 3600.0  # seconds, as for other pages
PACKS: Final = 16  # of a page: 2 000 messages at most
PAUSE_PER_PAGE: Final = 0.01  # seconds; of a page that is not full a part of it
MARK: Final = b"\0d"  # the beginning of a name that is no client id: no string of MQTT has a NUL


class Submit(Protocol):
    """Sends commands to Redis."""

    def submit(self, command: Command, now: float) -> None: ...


def name_of(client: bytes) -> bytes:
    """A new name for the queue of *client*, whose session ends."""
    return b"%b%b:%b" % (MARK, os.urandom(8).hex().encode(), client)


def is_dropped(name: bytes) -> bool:
    """Whether *name*, from an index, is that of a dropped queue."""
    return name.startswith(MARK)


def dropping(keys: SessionKeys, client: bytes, name: bytes) -> list[bytes]:
    """The commands that make the queue of *client* a dropped one, with *name*."""
    rename = packed("RENAME", keys.queues + client, keys.queues + name)  # fails if there is no list: none is found then
    return [rename, packed("HSET", keys.index, name, b""), packed("DEL", keys.released + client)]


class DroppedQueues:
    """Also a `Writer`."""

    def __init__(self, commit: GroupCommit, commands: Submit) -> None:
        self.dirty = False
        self.held = False
        self._commit = commit
        self._commands = commands
        self._waiting: deque[tuple[SessionKeys, bytes]] = deque()  # the first one is taken apart now
        self._busy = False  # a page is read, or removed
        self._next_at = 0.0  # when the next page is read
        self._packs = 0  # of the page that is removed
        self._groups: list[Groups] = []  # of it

    def add(self, keys: SessionKeys, name: bytes) -> None:
        """The list *name* is to be taken apart, and is in the index."""
        self._waiting.append((keys, name))

    def idle(self) -> bool:
        return not self._waiting

    def tick(self, now: float) -> float:
        """Read the next page, if it is time; the time at which it will be."""
        if self._busy or not self._waiting:
            return float("inf")
        if now < self._next_at:
            return self._next_at
        keys, name = self._waiting[0]
        self._busy = True
        self._commands.submit(_ReadPage(self, packed("LRANGE", keys.queues + name, 0, PACKS - 1)), now)
        return float("inf")

    def arrived(self, packs: list[bytes]) -> None:
        """The first packs of the list were read; none: it is gone, or no list."""
        for data in packs:
            try:
                groups = decode_pack(data, 0.0, 0.0).groups()
            except DamagedPack:
                continue
            if groups is not None:
                self._groups.append(groups)
        self._packs = len(packs)
        self._commit.soon(self)

    def not_read(self, now: float) -> None:
        """Redis is away, or refuses: the page is read again."""
        self._busy = False
        self._next_at = now + PAUSE

    def collect(self, now: float, wall: float) -> list[bytes]:
        keys, name = self._waiting[0]
        self._commit.bodies.reduce(self._groups)
        self._groups = []
        if self._packs == PACKS:
            return [packed("LPOP", keys.queues + name, PACKS)]
        return [packed("DEL", keys.queues + name), packed("HDEL", keys.index, name)]

    def committed(self, errors: list[ReplyError], now: float) -> None:
        if self._packs < PACKS:
            self._waiting.popleft()
        self._busy = False
        self._next_at = now + PAUSE_PER_PAGE * self._packs / PACKS


class _ReadPage(Command):
    def __init__(self, queues: DroppedQueues, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._queues = queues

    def replied(self, reply: object, now: float) -> None:
        self._queues.arrived(cast(list[Any], reply))

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        if detail.startswith("WRONGTYPE"):
            self._queues.arrived([])
        else:
            self._queues.not_read(now)
