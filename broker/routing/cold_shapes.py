# The shapes of the filters of cold sessions (interest.py), by numbers. A topic costs a hash for each, so they are few.
from typing import Final

from broker.routing.interest import FILTERS, HASH

SHAPES: Final = 64  # distinct shapes: so many hashes a topic costs at most
NEW_SHAPES: Final = 16  # that one session brings: it takes four clients at least to use up all


class Shapes:
    def __init__(self) -> None:
        self.numbers: Final[dict[bytes, int]] = {}  # of the shapes that are used
        self._prefixes: list[bytes] = []  # by number: what an entry with that shape begins with
        self._uses: list[int] = []  # by number

    def has_room(self, interest: bytes) -> bool:
        """Whether *interest*, of one session, is well-formed, and its shapes are known or may be added."""
        added: dict[bytes, None] | None = None
        numbers = self.numbers
        at, entries, end = 0, 0, len(interest)
        while at < end:
            length = interest[at]
            stop = at + 1 + length + HASH
            entries += 1
            if stop > end or length == 1 or entries > FILTERS:
                return False
            shape = interest[at + 1 : stop - HASH]
            if shape not in numbers:
                if added is None:
                    added = {}
                added[shape] = None
            at = stop
        if added is None:
            return True
        return len(added) <= NEW_SHAPES and len(numbers) + len(added) <= SHAPES

    def use(self, shape: bytes) -> int:
        """The number of *shape*, which is used once more."""
        number = self.numbers.get(shape, -1)
        if number < 0:
            number = self._uses.index(0) if 0 in self._uses else len(self._uses)
            if number == len(self._uses):
                self._uses.append(0)
                self._prefixes.append(b"")
            self._prefixes[number] = bytes((len(shape),)) + shape
            self.numbers[shape] = number
        self._uses[number] += 1
        return number

    def prefix(self, number: int) -> bytes:
        """An entry without its hash."""
        return self._prefixes[number]

    def leave(self, number: int) -> None:
        """The shape is used once less."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self.numbers[self._prefixes[number][1:]]
