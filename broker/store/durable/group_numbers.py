# The numbers (tokens.py) that a queue has taken through shared subscriptions.
#
# A member of a group gets some of the publishes of an origin, in any order: a publish that its first receiver may have
# lost goes to another member, which may have taken later publishes. So a number below the highest one that the queue
# has taken may be new, and the highest number says nothing. Each number is kept, as one bit.
#
# The bits are kept in chunks of CHUNK numbers, as publishes are numbered one by one, and those of a record of the
# inbound backbone likewise. A transaction writes the chunks that have changed. An origin keeps its last CHUNKS chunks,
# a queue those of ORIGINS origins and MOST in all: a publisher sends again at most what it had not been answered for,
# 65 535 publishes. A publish whose chunk is forgotten is taken again: it may come twice, and is never lost.
#
# Rejected: gaps below the highest number, which take 16 bytes for each number that another member has, and would make
# publishes repetitions as soon as there are too many gaps.
from typing import Final

ORIGIN: Final = 8  # bytes
CHUNK: Final = 1024  # numbers
CHUNKS: Final = 64  # of an origin
MOST: Final = 2048  # chunks of a queue
ORIGINS: Final = 1000  # of a queue
NAME: Final = 2 * ORIGIN  # bytes: the origin, and the place of the chunk among those of the origin


class GroupNumbers:
    """Those of one queue."""

    def __init__(self, stored: dict[bytes, bytes]) -> None:
        """*stored*: chunks by their names, see `is_chunk()`."""
        self._chunks: dict[bytes, dict[bytes, int]] = {}  # by origin, that of which a chunk was begun last is last
        self._count = 0  # chunks
        self._changed: dict[bytes, None] = {}  # names of chunks
        self._removed: list[bytes] = []  # the same
        for name in sorted(stored):
            self._begin(name[:ORIGIN], name[ORIGIN:], int.from_bytes(stored[name], "little"))

    def take(self, token: bytes) -> bool:
        """Remember that the publish with *token* is taken; false if it was taken before."""
        number = int.from_bytes(token[ORIGIN:], "big")
        origin, place, bit = token[:ORIGIN], (number // CHUNK).to_bytes(ORIGIN, "big"), 1 << number % CHUNK
        chunks = self._chunks.get(origin)
        bits = None if chunks is None else chunks.get(place)
        if chunks is None or bits is None:
            self._begin(origin, place, bit)
        elif bits & bit:
            return False
        else:
            chunks[place] = bits | bit
        self._changed[origin + place] = None
        return True

    def _begin(self, origin: bytes, place: bytes, bits: int) -> None:
        chunks = self._chunks.pop(origin, None)
        if chunks is None:
            chunks = {}
        elif len(chunks) >= CHUNKS:
            oldest = next(iter(chunks))
            del chunks[oldest]
            self._forgotten(origin + oldest)
        chunks[place] = bits
        self._chunks[origin] = chunks
        self._count += 1
        while self._count > MOST or len(self._chunks) > ORIGINS:
            self._forget_origin(next(iter(self._chunks)))

    def _forget_origin(self, origin: bytes) -> None:
        for place in self._chunks.pop(origin):
            self._forgotten(origin + place)

    def _forgotten(self, name: bytes) -> None:
        self._count -= 1
        self._changed.pop(name, None)
        self._removed.append(name)

    def forget(self) -> None:
        """Take each publish for one that was not taken."""
        for origin in list(self._chunks):
            self._forget_origin(origin)

    def unstored(self) -> bool:
        """Whether `removes()` or `collect()` has something to store."""
        return bool(self._changed or self._removed)

    def removes(self) -> list[bytes]:
        """The names of the chunks to remove, before those that `collect()` returns are written."""
        removed, self._removed = self._removed, []
        return removed

    def collect(self) -> dict[bytes, bytes]:
        """The chunks to write, by their names."""
        changed, self._changed = self._changed, {}
        return {name: _encoded(self._chunks[name[:ORIGIN]][name[ORIGIN:]]) for name in changed}


def is_chunk(name: bytes, value: bytes) -> bool:
    """Whether *value* under *name* can be a chunk that was stored."""
    return len(name) == NAME and 0 < len(value) <= CHUNK // 8


def _encoded(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
