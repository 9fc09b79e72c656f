# A histogram that costs the same for a million values as for ten: buckets as HDR histograms have them, linear within
# each power of two.
#
# 128 buckets a power of two, so a value read back is at most 0.8 % above the one that was put in; below 128 and at the
# very top it is exact. Histograms of several processes are added by adding their buckets.
from typing import Final

BITS: Final = 7
LINEAR: Final = 1 << BITS  # values below this have a bucket of their own
VALUE_BITS: Final = 32  # greater values go into the last bucket
BUCKETS: Final = (VALUE_BITS - BITS + 1) * LINEAR
GREATEST: Final = (1 << VALUE_BITS) - 1


class Histogram:
    """Counts of whole numbers from 0 on."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.count = 0
        self.total = 0
        self.greatest = 0

    def __reduce__(self) -> tuple[object, ...]:
        """For the way to another process."""
        return restored, (self.counts, self.count, self.total, self.greatest)

    def add(self, value: int, times: int) -> None:
        """Count *value* as often as *times*; less than 0 is taken as 0."""
        if value < 0:
            value = 0
        if value > self.greatest:
            self.greatest = value
        self.count += times
        self.total += value * times
        if value < LINEAR:
            self.counts[value] += times
            return
        if value > GREATEST:
            value = GREATEST
        shift = value.bit_length() - BITS - 1
        self.counts[(shift << BITS) + (value >> shift)] += times

    def merge(self, other: "Histogram") -> None:
        for index, times in enumerate(other.counts):
            if times:
                self.counts[index] += times
        self.count += other.count
        self.total += other.total
        self.greatest = max(self.greatest, other.greatest)

    def quantile(self, share: float) -> int:
        """The least value that *share* (0 to 1) of all values do not exceed, rounded up to its bucket; 0 if empty."""
        wanted = max(1, -int(-share * self.count // 1))
        seen = 0
        for index, times in enumerate(self.counts):
            seen += times
            if times and seen >= wanted:
                return min(upper(index), self.greatest)
        return self.greatest

    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def buckets(self) -> list[tuple[int, int]]:
        """(greatest value that counts there, how many) of each bucket that is not empty, rising."""
        return [(min(upper(index), self.greatest), times) for index, times in enumerate(self.counts) if times]


def restored(counts: list[int], count: int, total: int, greatest: int) -> Histogram:
    """The histogram that had these attributes."""
    histogram = Histogram()
    histogram.counts = counts
    histogram.count = count
    histogram.total = total
    histogram.greatest = greatest
    return histogram


def upper(index: int) -> int:
    """The greatest value that is counted in bucket *index*."""
    if index < 2 * LINEAR:
        return index
    shift = (index >> BITS) - 1
    return ((index - (shift << BITS) + 1) << shift) - 1
