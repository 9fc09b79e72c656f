# A set of entries of interest (interest.py): what the cold sessions of another worker want, without knowing them.
#
# There may be millions of entries, so they are hashes side by side in bytearrays, some 12 bytes each. A bucket is one
# bytearray, searched from its beginning to its end: it has FULL entries on average at most. The shapes of the entries
# are counted beside them, as they say which hashes a topic has.
from typing import Final

from broker.routing.interest import HASH, TopicHashes
from broker.routing.linear_hashing import FEWEST, LinearHashing

FULL: Final = 32  # entries of a bucket on average: to search it takes 0.1 us
BUCKET_BYTES: Final = 66  # of a bucket beside its entries
SET_BYTES: Final = 700


class HashSet:
    def __init__(self) -> None:
        self._count = 0
        self._shapes: dict[bytes, int] = {}  # how many entries have them
        self._hashing = LinearHashing()
        self._buckets: list[bytearray] = [bytearray() for _ in range(FEWEST)]

    def __len__(self) -> int:
        return self._count

    def add(self, entry: bytes) -> bool:
        """Add *entry*; false if it is there."""
        digest = entry[-HASH:]
        if self._place(digest) >= 0:
            return False
        shape = entry[1:-HASH]
        self._shapes[shape] = self._shapes.get(shape, 0) + 1
        self._count += 1
        if self._count > FULL * self._hashing.count:
            self._split()
        self._buckets[self._hashing.number(digest)] += digest
        return True

    def remove(self, entry: bytes) -> bool:
        """Remove *entry*; false if it is not there."""
        digest = entry[-HASH:]
        place = self._place(digest)
        if place < 0:
            return False
        bucket = self._buckets[self._hashing.number(digest)]
        bucket[place : place + HASH] = bucket[-HASH:]
        del bucket[-HASH:]
        shape = entry[1:-HASH]
        left = self._shapes[shape] - 1
        if left:
            self._shapes[shape] = left
        else:
            del self._shapes[shape]
        self._count -= 1
        return True

    def matching(self, hashes: TopicHashes) -> list[bytes]:
        """The shapes of the entries that match a topic. O(shapes)."""
        found: list[bytes] = []
        for shape in self._shapes:
            digest = hashes.of(shape)
            if digest and self._place(digest) >= 0:
                found.append(shape)
        return found

    def forget(self, most: int) -> bool:
        """Free *most* buckets of a set that is not used any more; true if that was the last."""
        del self._buckets[-most:]
        return not self._buckets

    def size(self) -> int:
        """Bytes of memory."""
        entries = self._count * HASH
        return SET_BYTES + BUCKET_BYTES * len(self._buckets) + entries + (entries >> 3)

    def _place(self, digest: bytes) -> int:
        """Where *digest* is in its bucket; negative if it is not there."""
        bucket = self._buckets[self._hashing.number(digest)]
        place = bucket.find(digest)
        while place % HASH and place >= 0:  # the end of one and the beginning of the next
            place = bucket.find(digest, place + 1)
        return place

    def _split(self) -> None:
        hashing = self._hashing
        divided = hashing.split()
        entries = self._buckets[divided]
        stay, go = bytearray(), bytearray()
        for at in range(0, len(entries), HASH):
            digest = bytes(entries[at : at + HASH])
            if hashing.number(digest) == divided:
                stay += digest
            else:
                go += digest
        self._buckets[divided] = stay
        self._buckets.append(go)
