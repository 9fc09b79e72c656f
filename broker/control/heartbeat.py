# The heartbeat: shared memory into which the loop of a worker, which serves its clients, writes the time. The loop of a
# hung worker does not write, whatever else of the process still runs; a thread could not notice that.
#
# The page has a slot for each shard. The supervisor only checks whether a slot changes (supervisor/liveness.py), so the
# two clocks need not agree, and reading a slot while it is written does no harm.
import mmap
import struct
from typing import Final

SLOT: Final = 64  # bytes: one cache line per worker, as several processors write
EVERY: Final = 0.1  # seconds between two stamps at most

STARTING: Final = 1
SERVING: Final = 2
DRAINING: Final = 3

_STAMP: Final = struct.Struct("@QdB")  # incarnation, time (CLOCK_MONOTONIC), phase; aligned, so each is written at once


class Heartbeat:
    """The slot of one worker, in that worker."""

    def __init__(self, page: mmap.mmap, shard: int, incarnation: int) -> None:
        self.due = 0.0  # time by which the next stamp is needed
        self.worth_while = 0.0  # from this time on a loop that runs anyway stamps, so that stamps cause no wake-ups
        self.phase = STARTING
        self._page = page
        self._offset = shard * SLOT
        self._incarnation = incarnation

    def enter(self, phase: int, now: float) -> None:
        """Begin *phase*, which has its own limit for silence (supervisor/liveness.py)."""
        self.phase = phase
        self.stamp(now)

    def stamp(self, now: float) -> None:
        """Write *now*."""
        self.due = now + EVERY
        self.worth_while = now + EVERY / 2
        _STAMP.pack_into(self._page, self._offset, self._incarnation, now, self.phase)


def read(page: mmap.mmap, shard: int) -> tuple[int, float, int]:
    """The slot of *shard*: (incarnation, time, phase)."""
    found: tuple[int, float, int] = _STAMP.unpack_from(page, shard * SLOT)
    return found


def clear(page: mmap.mmap, shard: int) -> None:
    """Remove what a former worker wrote into the slot of *shard*."""
    page[shard * SLOT : (shard + 1) * SLOT] = bytes(SLOT)
