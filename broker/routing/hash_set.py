# A set of entries of interest (interest.py): what the cold sessions of another worker want, without knowing them.
#
# There may be millions of entries, so they are hashes side by side in flat vectors, some 12 bytes each. A bucket is one
# vector, searched from its beginning to its end: it has FULL entries on average at most. The shapes of the entries are
# counted beside them, as they say which hashes a topic has.
from typing import Final

from librt.strings import read_i64_le
from librt.vecs import append, pop, vec
from mypy_extensions import i64

from broker.routing.cold_shapes import UNKNOWN, Shapes
from broker.routing.interest import HASH, TopicHashes
from broker.routing.linear_hashing import FEWEST, LinearHashing, hashed

FULL: Final = 64  # entries of a bucket on average: to search it takes 30 ns
BUCKET_BYTES: Final = 150  # of a bucket beside its entries
SET_BYTES: Final = 700


class Bucket:
    def __init__(self) -> None:
        self.digests: vec[i64] = vec[i64]()


class HashSet:
    def __init__(self) -> None:
        self._count: i64 = 0
        self._shapes = Shapes()  # each is used once by an entry
        self._hashing = LinearHashing()
        self._buckets: list[Bucket] = [Bucket() for _ in range(FEWEST)]

    def __len__(self) -> int:
        return self._count

    def add_all(self, entries: bytes) -> bool:
        """Add those *entries* that are not there; false, if they are malformed: then those before are added."""
        at: i64 = 0
        end: i64 = len(entries)
        while at < end:
            length = i64(entries[at])
            after = at + 1 + length + HASH
            if after > end or length == 1:
                return False
            self._add(entries, at)
            at = after
        return True

    def add(self, entry: bytes) -> bool:
        """Add *entry*; false if it is there."""
        return self._add(entry, 0)

    def _add(self, entries: bytes, at: i64) -> bool:
        digest = read_i64_le(entries, at + 1 + i64(entries[at]))
        bucket = self._bucket_of(digest)
        if digest in bucket.digests:
            return False
        bucket.digests = append(bucket.digests, digest)
        self._shapes.use(entries, at)
        self._count += 1
        if self._count > FULL * self._hashing.count:
            self._split()
        return True

    def remove(self, entry: bytes) -> bool:
        """Remove *entry*; false if it is not there."""
        digest = _digest_of(entry)
        bucket = self._bucket_of(digest)
        shape = self._shapes.find(entry, 0)
        if digest not in bucket.digests or shape == UNKNOWN:
            return False
        bucket.digests, last = pop(bucket.digests)
        for place in range(len(bucket.digests)):
            if bucket.digests[place] == digest:
                bucket.digests[place] = last
        self._shapes.leave(shape)
        self._count -= 1
        return True

    def matching(self, hashes: TopicHashes) -> list[bytes]:
        """The shapes of the entries that match a topic. O(shapes)."""
        found: list[bytes] = []
        for shape in self._shapes.numbers:
            wanted = hashes.of(shape)
            if wanted and self._has(read_i64_le(wanted, 0)):
                found.append(shape)
        return found

    def forget(self, most: int) -> bool:
        """Free *most* buckets of a set that is not used any more; true if that was the last."""
        del self._buckets[-most:]
        return not self._buckets

    def size(self) -> int:
        """Bytes of memory."""
        entries = self._count * HASH
        return SET_BYTES + BUCKET_BYTES * len(self._buckets) + entries + (entries >> 2)

    def _has(self, digest: i64) -> bool:
        return digest in self._bucket_of(digest).digests

    def _bucket_of(self, digest: i64) -> Bucket:
        return self._buckets[self._hashing.number(hashed(digest))]

    def _split(self) -> None:
        hashing = self._hashing
        divided = hashing.split()
        stay, go = Bucket(), Bucket()
        for digest in self._buckets[divided].digests:
            bucket = stay if hashing.number(hashed(digest)) == divided else go
            bucket.digests = append(bucket.digests, digest)
        self._buckets[divided] = stay
        self._buckets.append(go)


def _digest_of(entry: bytes) -> i64:
    return read_i64_le(entry, len(entry) - HASH)
