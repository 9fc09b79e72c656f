# The heartbeat: memory that a worker shares with its supervisor, into which the loop that serves clients writes the
# time. A worker whose loop hangs does not write, whatever else of it still runs; no thread of its own could know.
#
# A page has a slot for each shard. The supervisor only asks whether a slot changes (supervisor/supervision.py), so
# that the two need not agree on the time, and a slot that is read while it is written does no harm.
import mmap
import struct
from typing import Final

SLOT: Final = 64  # bytes: a cache line each, as several processors write
EVERY: Final = 0.1  # seconds between two stamps at most

STARTING: Final = 1
SERVING: Final = 2
DRAINING: Final = 3

_STAMP: Final = struct.Struct("@QdB")  # incarnation, time (CLOCK_MONOTONIC), what for; aligned, so written in one go


class Heartbeat:
    """The slot of one worker, seen from inside."""

    def __init__(self, page: mmap.mmap, shard: int, incarnation: int) -> None:
        self.due = 0.0  # when the next stamp has to be made
        self.worth_while = 0.0  # when it may be, as the loop turns anyway: idle, it wakes for other things as often
        self.phase = STARTING
        self._page = page
        self._offset = shard * SLOT
        self._incarnation = incarnation

    def enter(self, phase: int, now: float) -> None:
        """From now on we do this, and may be silent for as long as that may take."""
        self.phase = phase
        self.stamp(now)

    def stamp(self, now: float) -> None:
        """We are alive at *now*."""
        self.due = now + EVERY
        self.worth_while = now + EVERY / 2
        _STAMP.pack_into(self._page, self._offset, self._incarnation, now, self.phase)


def read(page: mmap.mmap, shard: int) -> tuple[int, float, int]:
    """What the slot of *shard* says: (incarnation, time, phase)."""
    found: tuple[int, float, int] = _STAMP.unpack_from(page, shard * SLOT)
    return found


def clear(page: mmap.mmap, shard: int) -> None:
    """Forget who wrote into the slot of *shard*."""
    page[shard * SLOT : (shard + 1) * SLOT] = bytes(SLOT)
