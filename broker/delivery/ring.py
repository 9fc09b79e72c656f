# A ring: a queue for items that are added and removed several times for each message.
#
# Compiled, its methods are called as C functions and cost a fifth of those of a deque; it has only the methods that are
# used. Interpreted they cost more than those of a deque, and a method that says whether the ring is empty would cost
# four times what reading `count` does. A ring grows to the largest number of items it has had, and stays as large.
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

FIRST_ROOM: Final = 16


class Ring(Generic[T]):
    def __init__(self) -> None:
        self.count = 0  # items; to be read directly
        self._slots: list[Any] = [None] * FIRST_ROOM
        self._head = 0  # the index of the first item

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
        """The item that `popleft()` would return. IndexError: the ring is empty."""
        if self.count == 0:
            raise IndexError("an empty ring")
        item: T = self._slots[self._head]
        return item

    def popleft(self) -> T:
        """Remove and return the first item. IndexError: the ring is empty."""
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
        """Make room for twice as many items; return the slots."""
        slots = self._slots
        self._slots = slots[self._head :] + slots[: self._head] + [None] * len(slots)
        self._head = 0
        return self._slots
