# A hybrid logical clock: stamps that rise at each worker, follow the machine's time, and differ between workers.
#
# Of two writes to the same topic the one with the greater stamp wins everywhere, in whatever order they arrive: a
# worker that has seen a stamp gives only greater ones, so what is written after another write was seen wins over it.
from typing import Final

SHARD_BITS: Final = 10


class HybridClock:
    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._latest = 0  # microseconds

    def stamp(self, now: float) -> int:
        """A stamp greater than all that were given or seen; *now*: seconds of a clock that all workers share."""
        self._latest = max(int(now * 1e6), self._latest + 1)
        return self._latest << SHARD_BITS | self._shard

    def seen(self, stamp: int) -> None:
        """Another worker gave *stamp*."""
        self._latest = max(self._latest, stamp >> SHARD_BITS)


def age(stamp: int, now: float) -> float:
    """Seconds since *stamp* was given."""
    return now - (stamp >> SHARD_BITS) / 1e6
