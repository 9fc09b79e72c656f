# Linear hashing: a table that grows by one bucket at a time.
#
# A table that doubles when it is full holds the loop for as long as it takes to move all its entries: 100 ms for a
# million. Here each addition that makes the table too full splits one bucket, in turn, so all pay the same. Buckets are
# found by Python's hash of bytes, which has a secret, so that nobody can choose keys that end in one bucket.
from typing import Final

FEWEST: Final = 64  # buckets


class LinearHashing:
    """Numbers of buckets from 0 to `count` - 1."""

    def __init__(self) -> None:
        self.count = FEWEST
        self._whole = FEWEST  # buckets when the present round of splits began; each of them is split once in it

    def begin(self, buckets: int) -> None:
        """Have about *buckets* while all are empty: the largest power of 2 that is not larger."""
        while 2 * self._whole <= buckets:
            self._whole *= 2
        self.count = self._whole

    def number(self, key: bytes) -> int:
        """The bucket of *key*."""
        found = hash(key) & (2 * self._whole - 1)
        return found if found < self.count else found - self._whole

    def split(self) -> int:
        """There is one more bucket; the number of the one whose entries belong to itself or to the new one now."""
        divided = self.count - self._whole
        self.count += 1
        if self.count == 2 * self._whole:
            self._whole = self.count
        return divided
