# A histogram of constant size: buckets as in HDR histograms, linear within each power of two.
#
# There are 128 buckets per power of two, so a value that is read is at most 0.8 % above the value that was added; below
# 128 and at the maximum it is exact. Histograms of several processes are merged by adding their buckets.
from typing import Final

BITS: Final = 7
LINEAR: Final = 1 << BITS  # values below this have a bucket of their own
VALUE_BITS: Final = 32  # greater values go into the last bucket
BUCKETS: Final = (VALUE_BITS - BITS + 1) * LINEAR
GREATEST: Final = (1 << VALUE_BITS) - 1


class Histogram:
    """Counts non-negative integers."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.count = 0
        self.total = 0
        self.greatest = 0

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickle, for transfer to another process."""
        return restored, (self.counts, self.count, self.total, self.greatest)

    def add(self, value: int, times: int) -> None:
        """Count *value* *times* times; a negative value counts as 0."""
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
        """Return the quantile *share* (0 to 1), rounded up to its bucket; 0 if the histogram is empty."""
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
        """Return (greatest value, count) of each non-empty bucket, in ascending order."""
        return [(min(upper(index), self.greatest), times) for index, times in enumerate(self.counts) if times]


def restored(counts: list[int], count: int, total: int, greatest: int) -> Histogram:
    """Return the histogram with these attributes."""
    histogram = Histogram()
    histogram.counts = counts
    histogram.count = count
    histogram.total = total
    histogram.greatest = greatest
    return histogram


def upper(index: int) -> int:
    """Return the greatest value of the bucket *index*."""
    if index < 2 * LINEAR:
        return index
    shift = (index >> BITS) - 1
    return ((index - (shift << BITS) + 1) << shift) - 1
