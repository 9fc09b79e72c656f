# When Python's cyclic garbage collector runs, so that it never stops the loop for long.
#
# The hot path makes no cycles (a test checks it), so the collector finds little and would only cost time: a full pass
# over the objects of 100 000 sessions takes over 40 ms. So it does not run by itself. Young objects are collected
# between two slices, a few thousand at a time; those that survive are collected once more a little later, as the
# libraries under WebSocket leave cycles when a connection ends, and most connections of a storm end soon. A full pass
# over all objects made since the start runs only while nothing happens, and the longer it is expected to take the more
# rarely. Objects from before the start, mostly code, are never examined: they alone would take longer than a pass may.
import gc
import sys
import time
from typing import Final

YOUNG: Final = 3_000  # objects collected together: about a millisecond
SURVIVORS_EVERY: Final = 5  # collections of the young, before one that includes the survivors of those
FULL_EVERY: Final = 60.0  # seconds
LONGEST: Final = 0.008  # seconds of a full pass that runs so often; a longer one runs as much more rarely
LONGEST_EVER: Final = 0.02  # seconds, about 50 000 sessions; a pass expected to take longer does not run


class Collector:
    def __init__(self) -> None:
        self.collections = 0
        self.longest = 0.0  # seconds
        self._blocks_at_start = 0  # blocks of memory
        self._per_block = 0.1e-6  # seconds of a full pass for each block since the start; each pass corrects it
        self._last_full = 0.0
        self._full_at = 0.0  # when to consider the next

    def start(self, now: float) -> None:
        """Collect once and exempt all objects that exist now; from then on only `collect_if_due()` collects."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._blocks_at_start = sys.getallocatedblocks()
        self._last_full = now
        self._full_at = now + FULL_EVERY

    def collect_if_due(self, idle: bool, now: float) -> None:
        """Collect what is due. To be called between two slices; *idle*: nothing happened in the last one."""
        young, passes, _ = gc.get_count()
        if young >= YOUNG:
            self._timed(1 if passes >= SURVIVORS_EVERY else 0)
        elif idle and now >= self._full_at:
            self._full(now)

    def _full(self, now: float) -> None:
        blocks = max(1, sys.getallocatedblocks() - self._blocks_at_start)  # a cheap estimate of the number of objects
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
        """Collect; return the seconds it took."""
        began = time.perf_counter()
        gc.collect(generation)
        took = time.perf_counter() - began
        self.collections += 1
        self.longest = max(self.longest, took)
        return took
