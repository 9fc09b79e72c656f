# Dropped queues: the lists of sessions that have ended, whose packs refer to shared bodies.
#
# The counts of the bodies have to be reduced by what is in the list, and only what is read is known. So when a session
# ends its list gets another name (queue.py), which is in the index of the worker like a client id. Then it is taken
# apart from its head, together with others: a round reads a page of each of up to LISTS lists, and one transaction
# removes the pages and reduces the groups that they refer to, each group once. The pause after a round is in proportion
# to its packs and messages. So a million sessions that end take a tenth of a worker, and a queue of a million messages
# costs no tick more than one of a thousand.
# Interpreted, 2 900 lists of three packs go in a second at 50 us of the worker and 19 us of the server for each; one
# list after the other, it was 230 at 282 and 219 us.
#
# After a crash the next worker finds the names in the index (adoption.py) and goes on.
#
# A pack that cannot be read is removed as well: what it referred to stays until it expires.
import os
from itertools import islice
from typing import Any, Final, Protocol, cast

from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.store.durable.group_commit import PAUSE, GroupCommit
from broker.store.durable.pack import REFERRING, DamagedPack, Groups, decode_pack, form_of
from broker.store.durable.removals import Words
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys
from broker.store.redis.pipeline import Command

PATIENCE: Final = 3600.0  # seconds, as for other pages
LISTS: Final = 32  # of a round
PACKS: Final = 128  # of a round, 8 MiB at most; a list has an equal part of them
PAUSE_PER_PACK: Final = 20e-6  # seconds: about ten times what it takes the worker, and the server
PAUSE_PER_MESSAGE: Final = 5e-6  # of those that were decoded
MESSAGE_UNITS: Final = 10  # of the reactor's quantum, for one of these
UNREAD: Final = -1
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


def dropping(keys: SessionKeys, client: bytes, name: bytes) -> list[Words]:
    """The commands that make the queue of *client* a dropped one, with *name*."""
    rename = "RENAME", keys.queues + client, keys.queues + name  # fails if there is no list: none is found then
    return [rename, ("HSET", keys.index, name, b""), ("DEL", keys.released + client)]


class _List:
    """A list that is to be taken apart."""

    def __init__(self, keys: SessionKeys, name: bytes) -> None:
        self.keys = keys
        self.name = name
        self.packs = UNREAD  # of the page that is removed

    def key(self) -> bytes:
        return self.keys.queues + self.name


class DroppedQueues:
    """Also a `Writer`."""

    def __init__(self, commit: GroupCommit, commands: Submit) -> None:
        self.dirty = False
        self.held = False
        self._commit = commit
        self._commands = commands
        self._waiting: dict[bytes, _List] = {}  # by their keys: no list is twice in a round
        self._round: list[_List] = []  # whose pages are read, or removed
        self._each = 0  # packs of a page
        self._unanswered = 0  # pages that are read
        self._arrived = False  # all pages of the round are read, and to be removed
        self._next_at = 0.0  # when the next round begins
        self._pause = 0.0  # seconds after this one
        self._groups: list[Groups] = []  # of the packs that are removed

    def add(self, keys: SessionKeys, name: bytes) -> None:
        """The list *name* is to be taken apart, and is in the index."""
        self._wait(_List(keys, name))

    def _wait(self, one: _List) -> None:
        self._waiting.setdefault(one.key(), one)

    def idle(self) -> bool:
        return not (self._waiting or self._round)

    def tick(self, now: float) -> float:
        """Begin the next round, if it is time; the time at which it will be."""
        if self._round or not self._waiting:
            return float("inf")
        if now < self._next_at:
            return self._next_at
        count = min(len(self._waiting), LISTS)
        self._round = list(islice(self._waiting.values(), count))
        self._each = PACKS // count
        self._unanswered = count
        self._pause = 0.0
        for one in self._round:
            del self._waiting[one.key()]
            one.packs = UNREAD
        for one in list(self._round):
            self._commands.submit(_ReadPage(self, one, packed("LRANGE", one.key(), 0, self._each - 1)), now)
        return float("inf")

    def arrived(self, one: _List, packs: list[bytes], now: float) -> int:
        """The first *packs* of a list were read, none if it is gone or no list; returns the messages decoded."""
        decoded = 0
        for data in packs:
            if form_of(data) != REFERRING:
                continue
            try:
                pack = decode_pack(data, 0.0, 0.0)
            except DamagedPack:
                continue
            decoded += len(pack.messages)
            groups = pack.groups()
            if groups is not None:
                self._groups.append(groups)
        one.packs = len(packs)
        self._pause += PAUSE_PER_PACK * len(packs) + PAUSE_PER_MESSAGE * decoded
        self._answered(now)
        return decoded

    def not_read(self, now: float) -> None:
        """Redis is away, or refuses: the page is read again."""
        self._pause = PAUSE
        self._answered(now)

    def _answered(self, now: float) -> None:
        self._unanswered -= 1
        if self._unanswered:
            return
        read: list[_List] = []
        for one in self._round:
            if one.packs == UNREAD:
                self._wait(one)
            else:
                read.append(one)
        self._round = read
        if read:
            self._arrived = True
            self._commit.soon(self)
        else:
            self._next_at = now + self._pause

    def removes(self, now: float) -> list[Words]:
        if not self._arrived:
            return []
        self._arrived = False
        self._commit.bodies.reduce(self._groups)
        self._groups = []
        removals: list[Words] = []
        for one in self._round:
            if one.packs == self._each:
                removals.append(("LTRIM", one.key(), self._each, -1))
            else:
                removals += [("DEL", one.key()), ("HDEL", one.keys.index, one.name)]
        return removals

    def collect(self, now: float, wall: float) -> list[bytes]:
        return []

    def committed(self, errors: list[ReplyError], now: float) -> None:
        pass

    def removed(self, errors: list[ReplyError], now: float) -> None:
        done, self._round = self._round, []
        for one in done:
            if one.packs == self._each:
                self._wait(one)
        self._next_at = now + self._pause


class _ReadPage(Command):
    def __init__(self, queues: DroppedQueues, one: _List, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._queues = queues
        self._list = one

    def replied(self, reply: object, now: float) -> None:
        self.units += MESSAGE_UNITS * self._queues.arrived(self._list, cast(list[Any], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        if detail.startswith("WRONGTYPE"):
            self._queues.arrived(self._list, [], now)
        else:
            self._queues.not_read(now)
