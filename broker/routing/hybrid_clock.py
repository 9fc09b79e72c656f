# A hybrid logical clock: stamps for writes that several workers make to the same thing, such as a retained message.
#
# Of two writes to one topic the write with the greater stamp wins at every worker, in whatever order the writes arrive.
# A stamp is one integer: microseconds since the Unix epoch, and below them the writer (a number for the node, shard and
# incarnation of the worker), so the stamps of two workers always differ. Stamps outlive the process and the machine's
# uptime: they come from wall time and never from CLOCK_MONOTONIC, which begins anew at each boot.
#
# Wall time may step back (NTP, an administrator): a clock then goes on from its latest stamp, one microsecond per
# stamp, until wall time has caught up. Wall time may also differ between nodes: a clock follows each greater stamp that
# it sees, so that what is written after another write was seen gets the greater stamp.
#
# A worker whose wall time is years ahead must not pull the clocks of all others along: a clock follows a stamp by
# FOLLOWED at most. The write with a stamp beyond that still wins like any other, and a later write to the same topic
# gets a stamp just above the one it replaces (`after`). So only the topics that the wrong worker wrote to carry stamps
# of the future, and no write is lost.
import zlib
from collections.abc import Callable
from typing import Final

from broker.worker_id import WorkerId

SHARD_BITS: Final = 10
WRITER_BITS: Final = 32 + SHARD_BITS
WRITER_MASK: Final = (1 << WRITER_BITS) - 1
FOLLOWED: Final = 60_000_000  # microseconds; clocks that NTP keeps differ by milliseconds


class HybridClock:
    def __init__(self, worker: WorkerId, wall: Callable[[], float]) -> None:
        """*wall* returns Unix time in seconds."""
        self.not_followed = 0  # stamps of other workers that were too far ahead of wall time
        self._writer = writer_of(worker)
        self._wall = wall
        self._latest = 0  # microseconds

    def stamp(self, after: int = 0) -> int:
        """A stamp greater than all that this clock gave or followed, and than *after*, the stamp that it replaces."""
        latest = self._latest = max(int(self._wall() * 1e6), self._latest + 1)
        return max(latest, (after >> WRITER_BITS) + 1) << WRITER_BITS | self._writer

    def at(self, time: int) -> int:
        """The stamp of a write that was accepted at *time*, microseconds of Unix time, perhaps by another worker.

        This worker makes the write, so it answers for it; no later stamp has to be greater.
        """
        return time << WRITER_BITS | self._writer

    def resume(self, stamp: int) -> None:
        """*stamp* is stored: stamps of this clock are greater from now on, however far ahead it is.

        The wall clock may have been set back since, perhaps by a reboot, and what is written now must not lose.
        """
        self._latest = max(self._latest, stamp >> WRITER_BITS)

    def gave(self, stamp: int) -> bool:
        """Whether *stamp* is one of this clock."""
        return stamp & WRITER_MASK == self._writer

    def follow(self, stamp: int) -> None:
        """Another worker gave *stamp*: stamps of this clock are greater from now on, unless it is too far ahead."""
        time = stamp >> WRITER_BITS
        if time <= self._latest:
            return
        if time <= int(self._wall() * 1e6) + FOLLOWED:
            self._latest = time
        else:
            self.not_followed += 1


def time_of(stamp: int) -> float:
    """Unix time in seconds at which *stamp* was given, or later if its clock was ahead."""
    return (stamp >> WRITER_BITS) / 1e6


def writer_of(worker: WorkerId) -> int:
    """The lower bits of the stamps of *worker*: unique in a node, and in a cluster but for one chance in 2**32."""
    name = f"{worker.node} {worker.incarnation_text}"
    return zlib.crc32(name.encode()) << SHARD_BITS | worker.shard
