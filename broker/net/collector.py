# When Python's cyclic garbage collector runs, so that it never holds the loop for long.
#
# The hot path makes no cycles (a test holds it), so the collector finds little and could only pause us: a full pass
# over the objects of 100 000 sessions takes over 40 ms. So it does not run by itself. Young objects are looked at
# between two slices, a few thousand at a time, and those that live are then moved out of its sight; all are looked
# at again only when nothing goes on and the pass is expected to be short.
import gc
import time
from typing import Final

YOUNG: Final = 3_000  # objects looked at together: about a millisecond
FULL_EVERY: Final = 60.0  # seconds
LONGEST: Final = 0.008  # seconds a full pass may be expected to take


class Collector:
    def __init__(self) -> None:
        self.collections = 0
        self.longest = 0.0  # seconds
        self._per_object = 0.3e-6  # seconds of a full pass; corrected by each
        self._full_at = 0.0

    def start(self, now: float) -> None:
        """Everything is loaded: look at it once, then no more."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._full_at = now + FULL_EVERY

    def look(self, idle: bool, now: float) -> None:
        """Between two slices; *idle*: nothing happened in the last one."""
        if gc.get_count()[0] >= YOUNG:
            self._timed(0)
            gc.freeze()
        elif idle and now >= self._full_at:
            self._full_at = now + FULL_EVERY
            self._full()

    def _full(self) -> None:
        objects = gc.get_freeze_count()
        if objects * self._per_object > LONGEST:
            return
        gc.unfreeze()
        self._per_object = self._timed(2) / max(1, objects)
        gc.freeze()

    def _timed(self, generation: int) -> float:
        """Collect; the seconds it took."""
        began = time.perf_counter()
        gc.collect(generation)
        took = time.perf_counter() - began
        self.collections += 1
        self.longest = max(self.longest, took)
        return took
