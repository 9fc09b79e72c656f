# The marks of a queue: messages of QoS 2 whose client has sent PUBREC, by position, in a set in Redis.
#
# A marked message is never sent again, PUBREL is. So a mark is stored before PUBREL leaves, and removed when PUBCOMP
# has come and the pack of the message is removed: in a pack without its mark it would be sent once more.
from typing import Final

from broker.store.durable.pack import StoredPack
from broker.store.durable.removals import MARK, UNMARK, Words

NOT_READ: Final = StoredPack(0, 0, 0, 0.0, None)  # in place of a pack that is unread, or not in the list any more
NOT_READ.removed = True


class PubrecMarks:
    def __init__(self) -> None:
        self.asked: dict[int, None] = {}  # to be stored
        self.stored: dict[int, StoredPack] = {}  # with their packs while those are in the list and were read
        self.completed: list[int] = []  # those with PUBCOMP that are to be removed
        self.completed_unread: dict[int, None] = {}  # those with PUBCOMP whose packs are unread
        self._writing: dict[int, None] = {}  # in the transaction under way

    def restore(self, stored: list[int], completed: list[int]) -> None:
        """Go on with the marks *stored* in Redis; for those *completed*, PUBCOMP has come."""
        self.completed_unread = dict.fromkeys(completed)
        self.stored = {position: NOT_READ for position in stored if position not in self.completed_unread}

    def is_empty(self) -> bool:
        """Whether nothing is marked, or to be."""
        return not (self.stored or self.asked or self.completed or self.completed_unread or self._writing)

    def has(self, position: int) -> bool:
        """Whether *position* is marked, or will be: PUBCOMP has not come."""
        return position in self.stored or position in self.asked or position in self._writing

    def open(self) -> list[int]:
        """The positions that are marked, or will be."""
        return [*self.stored, *self.asked, *self._writing]

    def ask(self, position: int) -> bool:
        """Have *position* stored; false if it is or will be anyway."""
        if position in self._writing:
            return False
        self.asked[position] = None
        return True

    def complete(self, position: int, ready_to: int) -> bool:
        """PUBCOMP has come for *position*, or it is done without; true if the message itself was done before.

        What is behind the position *ready_to* is unread.
        """
        stored = self.stored
        if not (stored or self.asked or self._writing):  # most queues have no QoS 2
            return False
        pack = stored.get(position)
        if pack is None:
            self.asked.pop(position, None)
            if position in self._writing:  # PUBCOMP without PUBREL
                del self._writing[position]
                self.completed.append(position)
            return False
        del stored[position]
        if position > ready_to:
            self.completed_unread[position] = None
        elif pack.removed:
            self.completed.append(position)
        else:
            pack.completed.append(position)
        return True

    def read(self, position: int, pack: StoredPack) -> bool:
        """*pack* was read, which has *position*; whether that is marked."""
        if position in self.stored:
            self.stored[position] = pack
            return True
        if position in self.completed_unread:
            del self.completed_unread[position]
            pack.completed.append(position)
            return True
        return False

    def removes(self, key: bytes) -> list[Words]:
        """The command that removes marks in the set *key*, if some are to be removed."""
        if not self.completed:
            return []
        completed, self.completed = self.completed, []
        return [(UNMARK, key, *completed)]

    def adds(self, key: bytes) -> list[Words]:
        """The command that stores marks, if some are to be stored; `added()` follows."""
        if not self.asked:
            return []
        self._writing, self.asked = self.asked, {}
        return [(MARK, key, *self._writing)]

    def added(self) -> list[int]:
        """What `adds()` returned was carried out: the positions whose PUBREL may leave, once they are in `stored`."""
        written, self._writing = list(self._writing), {}
        return written
