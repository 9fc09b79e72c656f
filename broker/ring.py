# A ring: a queue for what comes and goes several times with each message.
#
# Compiled, its methods are called as C functions, at a fifth of what a deque's cost there; it has as many of them as
# its users need. It grows to what was in it at once, and stays as large.
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")

FIRST_ROOM: Final = 16


class Ring(Generic[T]):
    def __init__(self) -> None:
        self._slots: list[T | None] = [None] * FIRST_ROOM
        self._head = 0  # where the first one is
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def append(self, item: T) -> None:
        """Put *item* last."""
        slots = self._slots
        room = len(slots)
        if self._count == room:
            slots = self._grow()
            room = len(slots)
        at = self._head + self._count
        slots[at - room if at >= room else at] = item
        self._count += 1

    def appendleft(self, item: T) -> None:
        """Put *item* first."""
        slots = self._slots
        if self._count == len(slots):
            slots = self._grow()
        head = self._head if self._head > 0 else len(slots)
        self._head = head - 1
        slots[head - 1] = item
        self._count += 1

    def first(self) -> T:
        """The one that `popleft()` would give. IndexError: there is none."""
        if self._count == 0:
            raise IndexError("an empty ring")
        return cast(T, self._slots[self._head])

    def popleft(self) -> T:
        """Take out the first one. IndexError: there is none."""
        item = self.first()
        slots = self._slots
        head = self._head
        slots[head] = None
        head += 1
        self._head = 0 if head == len(slots) else head
        self._count -= 1
        return item

    def _grow(self) -> list[T | None]:
        """Make room for twice as many; the slots."""
        slots = self._slots
        self._slots = slots[self._head :] + slots[: self._head] + [None] * len(slots)
        self._head = 0
        return self._slots
