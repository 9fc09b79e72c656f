# The list in Redis that has the packs of a queue, as the worker that owns it knows it.
#
# Only the owner writes the list, so it knows the index of each pack without asking:
#
#   removable   all of their messages are done: removed with the next transaction
#   read        some of their messages are sent or ready
#   unread      of these it knows only how many there are
#
# New packs are appended behind them. A pack that is not at the head of the list can lose messages, too, while it is
# unread: it is replaced in its place by what is left of it, or removed. Redis has no command that removes by index, so
# such packs are replaced by GONE first, and then all of these by value, within the transaction. In a list of 10 000
# packs that takes the server 0.1 ms, whether one is removed or a hundred. Rejected: to leave GONE in the list until it
# is at the head. Then a queue in which each message lasts a minute would keep a place for each message behind one that
# lasts a week, and the number of packs would say nothing.
from collections import deque
from collections.abc import Iterator
from typing import Final

from broker.store.durable.pack import Groups, Pack, StoredMessage, StoredPack, encode_pack, groups_of
from broker.store.durable.removals import Words
from broker.store.durable.shared_bodies import SharedBodies

GONE: Final = b""  # no pack
NO_GROUPS: Final[list[Groups]] = []  # of all queues whose packs have none: never changed
NOTHING_READ: Final[deque[StoredPack]] = deque()  # of all queues that have read nothing: never changed


class StoredList:
    def __init__(self) -> None:
        self.read: deque[StoredPack] = NOTHING_READ
        self.pack_of: dict[int, StoredPack] = {}  # by the positions of messages that are sent or ready
        self.unread = 0  # packs
        self.removable = 0  # packs
        self.stored_bytes = 0  # of all messages that were ever stored
        self.refers = False  # packs may refer to shared bodies
        self.reduced: list[Groups] | None = None  # of bodies that packs will refer to no more when `removes()` is done
        self.changing = False  # packs that are unread are to be written with the next transaction
        self.coming = 0  # of the packs, the last ones: in a transaction that is not carried out
        self.coming_unread = 0  # the same, of those that are unread
        self.coming_groups: list[Groups] = NO_GROUPS  # of bodies that those refer to
        self._replaced: dict[int, bytes] | None = None  # packs that are to be written, by index in what is unread

    # What it has.

    def is_empty(self) -> bool:
        """Whether nothing is stored, or to be removed."""
        return not (self.unread or self.read or self.removable or self.changing)

    def is_listed(self) -> bool:
        """Whether there is a list, once all is carried out but for what is to be removed."""
        return self.first_unread() + self.unread > 0

    def first_unread(self) -> int:
        """The index in the list of the first pack that is unread, once what is under way has been carried out."""
        return self.removable + len(self.read)

    def done_positions(self) -> Iterator[int]:
        """The positions of messages that are done, in packs that are read."""
        for pack in self.read:
            if pack.left <= pack.last - pack.first:  # or none of them is done: so it is with most of a full window
                for position in range(pack.first, pack.last + 1):
                    if position not in self.pack_of:
                        yield position

    # What changes.

    def add_read(self, pack: StoredPack, messages: list[StoredMessage]) -> None:
        """*pack*, the first one that was unread or is written now, is read; *messages* of it are sent or ready."""
        if self.read is NOTHING_READ:
            self.read = deque()
        self.read.append(pack)
        for stored in messages:
            self.pack_of[stored.position] = pack

    def comes(self, groups: Groups | None) -> None:
        """A pack is in the transaction that is packed, the last one of the list, and refers to *groups*."""
        self.coming += 1
        if groups is not None:
            if self.coming_groups is NO_GROUPS:
                self.coming_groups = []
            self.coming_groups.append(groups)

    def arrived(self) -> None:
        """That transaction is carried out."""
        self.coming = self.coming_unread = 0
        self.coming_groups = NO_GROUPS

    def forget_read(self) -> None:
        """What is read is unread again."""
        self.unread += len(self.read)
        self.read = NOTHING_READ
        self.pack_of = {}

    def take_done(self) -> StoredPack | None:
        """Take the pack at the head of the list, if its messages are all done: it is removable.

        One that is not stored yet is not: Redis may be full, and carry out removals first.
        """
        if not self.read or self.read[0].left or len(self.read) + self.unread <= self.coming:
            return None
        self.removable += 1
        pack = self.read.popleft()
        if not self.read:
            self.read = NOTHING_READ
        pack.removed = True
        self._reduce(pack.groups)
        return pack

    def replace(self, index: int, pack: Pack, rest: Pack, now: float, wall: float) -> None:
        """Replace the unread *pack*, *index* behind the first that is unread, by the *rest* of it."""
        if pack.writer:
            left = [stored.body.group for stored in rest.messages if stored.body is not None]
            gone = [stored for stored in pack.messages if stored.body is not None and stored.body.group not in left]
            self._reduce(groups_of(pack.writer, gone))
        self._write(index, encode_pack(rest, now, wall))

    def remove(self, index: int, pack: Pack) -> bool:
        """Remove the unread *pack*, as for `replace()`; true if those behind it have the next lower index from now on.

        Otherwise they have it when `removes()` is called.
        """
        self._reduce(pack.groups())
        if index == 0 and not self.read and not self.changing:
            self.unread -= 1
            self.removable += 1
            return True
        self._write(index, GONE)
        return False

    def _reduce(self, groups: Groups | None) -> None:
        if groups is not None:
            if self.reduced is None:
                self.reduced = []
            self.reduced.append(groups)

    def _write(self, index: int, data: bytes) -> None:
        if self._replaced is None:
            self._replaced = {}
        self._replaced[index] = data
        self.changing = True

    def removes(self, key: bytes, bodies: SharedBodies) -> list[Words]:
        """The commands that make the list what it is to be, but for packs that are appended."""
        if self.reduced is not None:
            bodies.reduce(self.reduced)
            self.reduced = None
        removals: list[Words] = []
        if self.removable:
            removals.append(("LTRIM", key, self.removable, -1))  # LPOP would return them
            self.removable = 0
        if self._replaced is not None:
            first, gone = len(self.read), 0
            for index, data in self._replaced.items():
                removals.append(("LSET", key, first + index, data))
                gone += data == GONE
            if gone:
                removals.append(("LREM", key, gone, GONE))
                self.unread -= gone
            self._replaced = None
            self.changing = False
        return removals
