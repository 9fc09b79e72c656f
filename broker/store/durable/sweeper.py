# The sweeper: has the durable queues of a worker drop what has ended, a few at a time.
#
# When a million sessions have messages that end in the same second, they are looked through one after the other: no
# more than SWEEPS queues wait for a page at once, and after AT_ONCE queues the sweeper rests for PAUSE. That is a tenth
# of a worker. What is late meanwhile is never sent, it only takes memory for longer.
#
# Its time is Unix time, as that of the packs is: a clock that jumps ends messages earlier or later, and nothing has to
# be computed again.
from collections.abc import Callable
from typing import Final, cast

from broker.session.expiry import ExpirySchedule
from broker.store.durable.queue import DurableQueue

SWEEPS: Final = 8
AT_ONCE: Final = 8  # queues
PAUSE: Final = 0.001  # seconds
AWAY_PAUSE: Final = 0.05  # while Redis is away, and only the memory can be looked through


class Sweeper:
    def __init__(self, expiry: ExpirySchedule, wall: Callable[[], float]) -> None:
        """*wall*: Unix time in seconds, which is that of *expiry*."""
        self._expiry = expiry
        self._wall = wall
        self._rests_until = 0.0

    def tick(self, now: float, reads: bool) -> float:
        """Have queues that are due drop what has ended; the time at which more is to be done.

        *reads*: Redis is there, and what is unread can be looked through.
        """
        expiry, wall = self._expiry, self._wall()
        expiry.offset = wall - now
        if expiry.next_due() <= wall and now >= self._rests_until:
            self._rests_until = now + (PAUSE if reads else AWAY_PAUSE)
            for _ in range(AT_ONCE):
                queue = None if reads and expiry.sweeps >= SWEEPS else expiry.pop_due(wall)
                if queue is None:
                    break
                cast(DurableQueue, queue).expire(now, wall, reads)
        return max(self._rests_until, now + expiry.next_due() - wall)
