# When Python's cyclic garbage collector runs, so that it never holds the loop for long.
#
# The hot path makes no cycles (a test holds it), so the collector finds little and could only pause us: a full pass
# over the objects of 100 000 sessions takes over 40 ms. So it does not run by itself. Young objects are looked at
# between two slices, a few thousand at a time; those that live are looked at once more a little later, as the
# libraries under WebSocket leave cycles when a connection ends, and most connections of a storm end soon. All that came
# since the start are looked at only when nothing goes on, and the longer that is expected to take the more rarely. What
# was there at the start, mostly code, stays out of sight for good: it alone would take longer than a pass may.
import gc
import sys
import time
from typing import Final

YOUNG: Final = 3_000  # objects looked at together: about a millisecond
AGAIN_EVERY: Final = 5  # so many times the young, then also those who lived since the last time
FULL_EVERY: Final = 60.0  # seconds
LONGEST: Final = 0.008  # seconds a full pass may take that often; one that takes longer comes as much later
LONGEST_EVER: Final = 0.02  # seconds, about 50 000 sessions; what is expected to take longer is not done


class Collector:
    def __init__(self) -> None:
        self.collections = 0
        self.longest = 0.0  # seconds
        self._at_start = 0  # blocks of memory
        self._per_block = 0.1e-6  # seconds of a full pass, for each block since the start; corrected by each
        self._last_full = 0.0
        self._full_at = 0.0  # when to think of the next

    def start(self, now: float) -> None:
        """Everything is loaded: look at it once, then no more."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._at_start = sys.getallocatedblocks()
        self._last_full = now
        self._full_at = now + FULL_EVERY

    def look(self, idle: bool, now: float) -> None:
        """Between two slices; *idle*: nothing happened in the last one."""
        young, passes, _ = gc.get_count()
        if young >= YOUNG:
            self._timed(1 if passes >= AGAIN_EVERY else 0)
        elif idle and now >= self._full_at:
            self._full(now)

    def _full(self, now: float) -> None:
        blocks = max(1, sys.getallocatedblocks() - self._at_start)  # tells about how many objects, for little
        expected = blocks * self._per_block
        due = self._last_full + FULL_EVERY * max(1.0, expected / LONGEST)
        if expected > LONGEST_EVER:
            self._full_at = now + FULL_EVERY
        elif now < due:
            self._full_at = due
        else:
            self._last_full = now
            self._full_at = now + FULL_EVERY
            self._per_block = self._timed(2) / blocks

    def _timed(self, generation: int) -> float:
        """Collect; the seconds it took."""
        began = time.perf_counter()
        gc.collect(generation)
        took = time.perf_counter() - began
        self.collections += 1
        self.longest = max(self.longest, took)
        return took
