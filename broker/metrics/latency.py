# The latencies of publishes, from reading their bytes to writing their acknowledgements, in fixed memory.
#
# Log-linear buckets, as in HDR histograms: LINEAR of them for each power of two of microseconds. A quantile is the
# upper end of its bucket: never below the truth, and above it by at most 1 / LINEAR (1.6 %) and a microsecond. The time
# in the kernel before the bytes are read is not included: the signal `lag` measures it.
from typing import Final

BITS: Final = 6
LINEAR: Final = 1 << BITS  # microseconds below this have a bucket of their own
VALUE_BITS: Final = 28  # the greatest value is 268 s; a longer time counts as that
GREATEST: Final = (1 << VALUE_BITS) - 1
BUCKETS: Final = (VALUE_BITS - BITS + 1) * LINEAR


class Latencies:
    """The latencies since the last `clear()`."""

    def __init__(self) -> None:
        self.count = 0
        self._counts = [0] * BUCKETS

    def add(self, seconds: float, times: int) -> None:
        """Count *times* publishes that took *seconds*; a negative time counts as 0."""
        value = int(seconds * 1e6)
        if value < 0:
            value = 0
        elif value > GREATEST:
            value = GREATEST
        self.count += times
        if value < LINEAR:
            self._counts[value] += times
            return
        shift = value.bit_length() - BITS - 1
        self._counts[(shift << BITS) + (value >> shift)] += times

    def quantile(self, share: float) -> float:
        """The seconds that *share* (0 to 1) of all publishes took at most; 0.0 if there were none."""
        wanted = max(1, -int(-share * self.count // 1))
        seen = 0
        for index, times in enumerate(self._counts):
            seen += times
            if seen >= wanted:
                return _upper(index) * 1e-6
        return 0.0

    def clear(self) -> None:
        """Forget all latencies."""
        self.count = 0
        self._counts = [0] * BUCKETS


def _upper(index: int) -> int:
    """The upper end of bucket *index*, exclusive, in microseconds."""
    if index < 2 * LINEAR:
        return index + 1
    shift = (index >> BITS) - 1
    return (index - (shift << BITS) + 1) << shift
