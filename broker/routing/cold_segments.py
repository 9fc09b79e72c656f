# The memory of the index of cold sessions (cold_index.py): sessions, their filters and the tables to find both.
#
# Sessions and filters have numbers. What belongs to number n is in segments of 1 024 numbers, in flat arrays: to grow
# is to add a segment, and nothing is ever moved. A session takes some 110 bytes with two filters, as no part of it is
# an object.
from array import array
from typing import Final

from broker.routing.interest import HASH
from broker.routing.linear_hashing import FEWEST, LinearHashing

NO_DEADLINE: Final = 0xFFFFFFFF  # a deadline, in seconds
NONE: Final = 0xFFFFFFFF  # no session, no node
EMPTY: Final = b"\xff\xff\xff\xff"  # NONE in an array
BITS: Final = 10
SEGMENT: Final = 1 << BITS  # numbers of a segment
LOW: Final = SEGMENT - 1
FIRST: Final = 128  # with the number of a shape: the node is the first of its chain
SHAPE: Final = 127

PART_BITS: Final = 12  # the buckets of one array, which grows by copying
PART_LOW: Final = (1 << PART_BITS) - 1

# Bytes of a segment beside the text of client ids, and of a bucket; `size()` is tested against the allocator.
SESSIONS_BYTES: Final = SEGMENT * (4 + 4 + 4 + 4 + 2 + 8) + 900
NODES_BYTES: Final = SEGMENT * (4 + 4 + 4 + 4 + 1 + HASH) + 800


class Sessions:
    """SEGMENT sessions."""

    def __init__(self) -> None:
        self.text = bytearray()  # client ids, each behind its length in two bytes
        self.garbage = 0  # bytes of it that are of sessions that have left
        self.soonest = NO_DEADLINE  # no deadline is sooner
        self.offset: array[int] = _numbers()  # in `text`; NONE: the number is free
        self.node: array[int] = _numbers()  # the first of the session's filters
        self.deadline: array[int] = _numbers()
        self.link: array[int] = _numbers()  # the next session of the bucket, or the next free number
        self.owner = array("H", bytes(2 * SEGMENT))
        self.stamp = array("Q", bytes(8 * SEGMENT))

    def name(self, at: int) -> bytes:
        start = self.offset[at]
        text = self.text
        stop = start + 2 + (text[start] << 8 | text[start + 1])
        return bytes(text[start + 2 : stop])

    def compact(self) -> None:
        text, self.text = self.text, bytearray()
        offset = self.offset
        for at in range(SEGMENT):
            start = offset[at]
            if start != NONE:
                offset[at] = len(self.text)
                self.text += text[start : start + 2 + (text[start] << 8 | text[start + 1])]
        self.garbage = 0


class Nodes:
    """SEGMENT nodes, each a filter of a session."""

    def __init__(self) -> None:
        self.session: array[int] = _numbers()
        self.sibling: array[int] = _numbers()  # the next filter of the same session, or the next free number
        self.later: array[int] = _numbers()  # the next node of the chain, whose session was added before
        self.before: array[int] = _numbers()  # the one before it; of the first: the next chain of the bucket
        self.shape = bytearray(SEGMENT)  # the number of the shape, and FIRST
        self.hash = bytearray()  # HASH bytes of each number that was ever used


class Buckets(LinearHashing):
    """The first session, or the first node, of each bucket."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[array[int]] = [array("I", EMPTY * FEWEST)]

    def expect(self, buckets: int) -> None:
        """Have *buckets*, about, while all are empty."""
        self.begin(buckets)
        self._parts = []
        for start in range(0, self.count, 1 << PART_BITS):
            self._parts.append(array("I", EMPTY * min(1 << PART_BITS, self.count - start)))

    def get(self, number: int) -> int:
        return self._parts[number >> PART_BITS][number & PART_LOW]

    def set(self, number: int, first: int) -> None:
        self._parts[number >> PART_BITS][number & PART_LOW] = first

    def grow(self) -> int:
        """Add a bucket; the number of the one whose content is to be divided between itself and the new one."""
        if not self.count & PART_LOW:
            self._parts.append(array("I"))
        self._parts[-1].append(NONE)
        return self.split()


def _numbers() -> "array[int]":
    """NONE, or NO_DEADLINE, for each number of a segment."""
    return array("I", EMPTY * SEGMENT)
