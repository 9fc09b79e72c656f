# Linear hashing: a table that grows by one bucket at a time.
#
# A table that doubles when it is full holds the loop for as long as it takes to move all its entries: 100 ms for a
# million. Here each addition that makes the table too full splits one bucket, in turn, so all pay the same. Where a key
# belongs depends on a secret, the one of Python's hash of bytes, so that nobody can choose keys that end in one bucket.
from typing import Final

from mypy_extensions import i64

FEWEST: Final = 64  # buckets
HASHED: Final = 0x3FFFFFFF  # the bits of a hashed key
# Of `hashed()`. The sum has 63 bits at most.
_COEFFICIENT: Final = (1 << 45) - 1
_A: Final[i64] = hash(b"first") & _COEFFICIENT
_B: Final[i64] = hash(b"second") & _COEFFICIENT
_C: Final[i64] = hash(b"third") & _COEFFICIENT
_D: Final[i64] = hash(b"fourth") & _COEFFICIENT
_E: Final[i64] = hash(b"constant") & _COEFFICIENT


def hashed(digest: i64) -> i64:
    """HASHED bits for a stored hash, which everybody can work out.

    Strongly universal: "vector multiply-shift" with pieces of 16 bits (Thorup, High Speed Hashing for Integers and
    Strings, section 3.2).
    """
    found: i64 = _A * (digest & 0xFFFF) + _B * (digest >> 16 & 0xFFFF) + _C * (digest >> 32 & 0xFFFF)
    return (found + _D * (digest >> 48 & 0xFFFF) + _E) >> 15 & HASHED


class LinearHashing:
    """Numbers of buckets from 0 to `count` - 1."""

    def __init__(self) -> None:
        self.count: i64 = FEWEST
        self._whole: i64 = FEWEST  # buckets when the present round of splits began; each of them is split once in it

    def begin(self, buckets: i64) -> None:
        """Have about *buckets* while all are empty: the smallest power of 2 that is not smaller."""
        while self._whole < buckets:
            self._whole *= 2
        self.count = self._whole

    def number(self, hashed: i64) -> i64:
        """The bucket of a key with HASHED bits *hashed*."""
        found: i64 = hashed & (2 * self._whole - 1)
        return found if found < self.count else found - self._whole

    def split(self) -> i64:
        """There is one more bucket; the number of the one whose entries belong to itself or to the new one now."""
        divided: i64 = self.count - self._whole
        self.count += 1
        if self.count == 2 * self._whole:
            self._whole = self.count
        return divided
