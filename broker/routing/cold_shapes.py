# The shapes of the filters of cold sessions (interest.py), by numbers. A topic costs a hash for each, so they are few.
#
# Millions of entries have the same few shapes. So the shape of an entry is compared as one number, where it is stored.
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64

from broker.routing.interest import FILTERS, HASH

SHAPES: Final = 64  # distinct shapes: so many hashes a topic costs at most
NEW_SHAPES: Final = 16  # that one session brings: it takes four clients at least to use up all
SHORT: Final = 7  # bytes of a shape that is compared as a number; longer ones are looked up
UNKNOWN: Final = -1  # the number of a shape that is not used, and the number in place of one that is not compared


class Shapes:
    def __init__(self) -> None:
        self.numbers: Final[dict[bytes, int]] = {}  # of the shapes that are used
        self._short: vec[i64] = vec[i64]()  # by number: see `_short_of()`
        self._prefixes: list[bytes] = []  # by number: what an entry with that shape begins with
        self._uses: vec[i64] = vec[i64]()  # by number

    def find(self, interest: bytes, at: i64) -> i64:
        """The number of the shape of the entry at *at* in *interest*, which is well-formed; UNKNOWN: it is not used."""
        length: i64 = interest[at]
        if length > SHORT:
            return self.numbers.get(interest[at + 1 : at + 1 + length], UNKNOWN)
        short = _short_of(interest, at, length)
        known: i64 = len(self._short)
        for number in range(known):
            if self._short[number] == short:
                return number
        return UNKNOWN

    def has_room(self, interest: bytes, start: i64) -> bool:
        """Whether *interest* of one session, from *start* on, is well-formed, and there is room for its shapes."""
        added: dict[bytes, None] | None = None
        at = start
        entries: i64 = 0
        end: i64 = len(interest)
        while at < end:
            length: i64 = interest[at]
            stop: i64 = at + 1 + length + HASH
            entries += 1
            if stop > end or length == 1 or entries > FILTERS:
                return False
            if self.find(interest, at) == UNKNOWN:
                if added is None:
                    added = {}
                added[interest[at + 1 : stop - HASH]] = None
            at = stop
        if added is None:
            return True
        return len(added) <= NEW_SHAPES and len(self.numbers) + len(added) <= SHAPES

    def use(self, interest: bytes, at: i64) -> i64:
        """The number of the shape of the entry at *at* in *interest*, which is used once more."""
        number = self.find(interest, at)
        if number == UNKNOWN:
            number = self._add(interest, at)
        self._uses[number] += 1
        return number

    def _add(self, interest: bytes, at: i64) -> i64:
        length: i64 = interest[at]
        number: i64 = 0
        while number < len(self._uses) and self._uses[number]:
            number += 1
        if number == len(self._uses):
            self._uses = append(self._uses, 0)
            self._short = append(self._short, UNKNOWN)
            self._prefixes.append(b"")
        self._prefixes[number] = interest[at : at + 1 + length]
        self.numbers[interest[at + 1 : at + 1 + length]] = number
        if length <= SHORT:
            self._short[number] = _short_of(interest, at, length)
        return number

    def prefix(self, number: i64) -> bytes:
        """An entry without its hash."""
        return self._prefixes[number]

    def leave(self, number: i64) -> None:
        """The shape is used once less."""
        self._uses[number] -= 1
        if not self._uses[number]:
            del self.numbers[self._prefixes[number][1:]]
            self._short[number] = UNKNOWN


def _short_of(interest: bytes, at: i64, length: i64) -> i64:
    """A shape of *length* bytes, at most SHORT, with that length as one number. A hash of 8 bytes is behind it."""
    beyond: i64 = 1
    beyond <<= 8 * length
    return length << 8 * SHORT | (read_i64_le(interest, at + 1) & (beyond - 1))
