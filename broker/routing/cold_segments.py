# The memory of the index of cold sessions (cold_index.py): sessions, their filters and the tables to find both.
#
# Sessions and filters have numbers. What belongs to number n is in segments of 1 024 numbers, in flat vectors: to grow
# is to add a segment, and nothing is ever moved. A session takes some 130 bytes with two filters, as no part of it is
# an object. Vectors are those of mypyc's library: compiled code reads and writes them as C does its arrays, in a
# twentieth of the time that array.array takes.
from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

from broker.routing.linear_hashing import FEWEST, LinearHashing

NO_DEADLINE: Final = 0xFFFFFFFF  # a deadline, in seconds
NONE: Final = -1  # no session, no node
BITS: Final = 10
SEGMENT: Final = 1 << BITS  # numbers of a segment
LOW: Final = SEGMENT - 1
FIRST: Final = 128  # with the number of a shape: the node is the first of its chain
SHAPE: Final = 127

PART_BITS: Final = 12  # the buckets of one vector, which grows by copying
PART: Final = 1 << PART_BITS
PART_LOW: Final = PART - 1

# Bytes of a segment beside the text of client ids, and of a bucket; `size()` is tested against the allocator.
SESSIONS_BYTES: Final = SEGMENT * (4 + 2 + 4 + 4 + 4 + 4 + 8 + 8) + 900
NODES_BYTES: Final = SEGMENT * (4 + 4 + 4 + 4 + 1 + 8) + 800

_NONE_OF_ALL: Final = vec[i32]([NONE] * SEGMENT)
_NO_BUCKETS: Final = vec[i32]([NONE] * PART)
_NEVER: Final = vec[i64]([NO_DEADLINE] * SEGMENT)


class Sessions:
    """SEGMENT sessions."""

    def __init__(self) -> None:
        self.text = bytearray()  # client ids
        self.garbage = 0  # bytes of it that are of sessions that have left
        self.soonest = NO_DEADLINE  # no deadline is sooner
        self.offset: vec[i32] = _NONE_OF_ALL[:]  # of the client id in `text`; NONE: the number is free
        self.length: vec[i16] = vec[i16]([0] * SEGMENT)  # of the client id
        self.node: vec[i32] = _NONE_OF_ALL[:]  # the first of the session's filters
        self.deadline: vec[i64] = _NEVER[:]
        self.link: vec[i32] = _NONE_OF_ALL[:]  # the next session of the bucket, or the next free number
        self.hashed: vec[i32] = _NONE_OF_ALL[:]  # the client id
        self.owner: vec[i32] = _NONE_OF_ALL[:]
        self.stamp: vec[i64] = _NEVER[:]

    def name(self, at: i64) -> bytes:
        start = i64(self.offset[at])
        stop = start + i64(self.length[at])
        return bytes(self.text[start:stop])

    def compact(self) -> None:
        text, self.text = self.text, bytearray()
        offset = self.offset
        for at in range(SEGMENT):
            start: int = offset[at]
            if start != NONE:
                offset[at] = len(self.text)
                self.text += text[start : start + self.length[at]]
        self.garbage = 0


class Nodes:
    """SEGMENT nodes, each a filter of a session."""

    def __init__(self) -> None:
        self.session: vec[i32] = _NONE_OF_ALL[:]
        self.sibling: vec[i32] = _NONE_OF_ALL[:]  # the next filter of the same session, or the next free number
        self.later: vec[i32] = _NONE_OF_ALL[:]  # the next node of the chain, whose session was added before
        self.before: vec[i32] = _NONE_OF_ALL[:]  # the one before it; of the first: the next chain of the bucket
        self.shape: vec[u8] = vec[u8]([0] * SEGMENT)  # the number of the shape, and FIRST
        self.digest: vec[i64] = _NEVER[:]  # of the filter


class Buckets(LinearHashing):
    """The first session, or the first node, of each bucket."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: vec[vec[i32]] = vec[vec[i32]]([_NO_BUCKETS[:FEWEST]])

    def expect(self, buckets: i64) -> None:
        """Have *buckets*, about, while all are empty."""
        self.begin(buckets)
        self._parts = vec[vec[i32]]()
        start: i64 = 0
        while start < self.count:
            self._parts = append(self._parts, _NO_BUCKETS[: min(PART, self.count - start)])
            start += PART

    def get(self, number: i64) -> i64:
        return i64(self._parts[number >> PART_BITS][number & PART_LOW])

    def set(self, number: i64, first: i64) -> None:
        self._parts[number >> PART_BITS][number & PART_LOW] = i32(first)

    def firsts(self, numbers: vec[i64]) -> vec[i64]:
        """What is first in each of the buckets *numbers*. No read waits for another one."""
        found = vec[i64]()
        for number in numbers:
            found = append(found, self.get(number))
        return found

    def grow(self) -> i64:
        """Add a bucket; the number of the one whose content is to be divided between itself and the new one."""
        if not self.count & PART_LOW:
            self._parts = append(self._parts, vec[i32]())
        last: i64 = len(self._parts) - 1
        self._parts[last] = append(self._parts[last], NONE)
        return self.split()
