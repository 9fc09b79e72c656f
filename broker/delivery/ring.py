# A ring: a queue for what comes and goes several times with each message.
#
# Compiled, its methods are called as C functions, at a fifth of what a deque's cost there; it has as many of them as
# its users need. Interpreted they cost more than a deque's, and to ask whether it is empty would take four times what
# it takes to look: `count` is there to be read. It grows to what was in it at once, and stays as large.
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

FIRST_ROOM: Final = 16


class Ring(Generic[T]):
    def __init__(self) -> None:
        self.count = 0  # how many are in it: for others to read
        self._slots: list[Any] = [None] * FIRST_ROOM
        self._head = 0  # where the first one is

    def append(self, item: T) -> None:
        """Put *item* last."""
        slots = self._slots
        room = len(slots)
        if self.count == room:
            slots = self._grow()
            room = len(slots)
        at = self._head + self.count
        slots[at - room if at >= room else at] = item
        self.count += 1

    def appendleft(self, item: T) -> None:
        """Put *item* first."""
        slots = self._slots
        if self.count == len(slots):
            slots = self._grow()
        head = self._head if self._head > 0 else len(slots)
        self._head = head - 1
        slots[head - 1] = item
        self.count += 1

    def first(self) -> T:
        """The one that `popleft()` would give. IndexError: there is none."""
        if self.count == 0:
            raise IndexError("an empty ring")
        item: T = self._slots[self._head]
        return item

    def popleft(self) -> T:
        """Take out the first one. IndexError: there is none."""
        if self.count == 0:
            raise IndexError("an empty ring")
        slots = self._slots
        head = self._head
        item: T = slots[head]
        slots[head] = None
        head += 1
        self._head = 0 if head == len(slots) else head
        self.count -= 1
        return item

    def _grow(self) -> list[Any]:
        """Make room for twice as many; the slots."""
        slots = self._slots
        self._slots = slots[self._head :] + slots[: self._head] + [None] * len(slots)
        self._head = 0
        return self._slots
