# CONNECTs that wait for their turn: a fleet that comes back all at once is let in no faster than it can be served.
#
# Connections are always accepted, as a backlog that is full leaves clients to the clock of their kernel, which doubles
# its pauses. What waits is the CONNECT, parsed, on a connection that is held; who is in notices nothing.
# They pass in the order in which they came, at a rate with a burst (a token bucket, filled lazily). Both halve with
# each level of overload, and the rate never falls below a trickle, or who is out would never come in again.
# The queue is bounded. When it is full the oldest goes that has said nothing since: others show by what they send
# behind their CONNECT that they still believe in it. If all do, the newcomer goes.
from collections import OrderedDict
from math import inf
from typing import Final, Protocol

SHRINK: Final = 0.5  # what each level leaves of the rate and the burst: a thousandth at level 10
TRICKLE: Final = 1.0  # CONNECTs a second at least, or the whole rate if it is less
SOONEST: Final = 1.0  # seconds after which who found no room may come back
SPREAD: Final = 10.0  # seconds over which those who found none come back at least
WIDEST: Final = 300.0  # seconds at most: overload is over by then, or they are told again
ALMOST: Final = 1.0 - 1e-9  # of a token is one: a clock that is read when it is due may be a rounding early


class Waiter(Protocol):
    """A CONNECT that waits."""

    since: float
    client_id: str  # that it gives itself

    def silent(self) -> bool:
        """Its connection has sent nothing since."""


class Connects:
    """Lets *rate* CONNECTs a second pass beyond the first *burst*; a rate of 0 lets any number. *most* wait."""

    def __init__(self, rate: float, burst: float, most: int) -> None:
        self.limited = rate > 0.0
        self._full_rate = rate
        self._full_burst = max(1.0, burst)
        self._rate = self._full_rate
        self._burst = self._full_burst
        self._tokens = self._full_burst  # CONNECTs that may pass at once, as of `_counted`
        self._counted = 0.0
        self._most = most
        self._waiting: OrderedDict[Waiter, None] = OrderedDict()  # in the order in which they came
        self._silent: OrderedDict[Waiter, None] = OrderedDict()  # those of them that were not seen to speak, likewise

    def allow(self, level: float, now: float) -> None:
        """Go by the overload *level* (0 to 10) from now on: of the worker that they enter, and nothing else.

        By a level to which their own waiting adds, fewer would pass the longer they wait, until none does. And a worker
        that is gone or late would keep its clients from coming to the others.
        """
        if not self.limited:
            return
        self._fill(now)
        left = SHRINK**level
        self._rate = max(self._full_rate * left, min(TRICKLE, self._full_rate))
        self._burst = max(1.0, self._full_burst * left)
        self._tokens = min(self._tokens, self._burst)

    def at_once(self, now: float) -> bool:
        """Whether one that has just come may pass, as nobody waits; if so, it has."""
        return not self._waiting and self._take(now)

    def offer(self, waiter: Waiter) -> Waiter | None:
        """*waiter* waits from now on. Who does not any more, for lack of room: another one, itself, or nobody."""
        displaced = None
        if len(self._waiting) >= self._most:
            displaced = self._oldest_silent()
            if displaced is None:
                return waiter
            self.remove(displaced)
        self._waiting[waiter] = None
        self._silent[waiter] = None
        return displaced

    def next(self, now: float) -> Waiter | None:
        """The one whose turn it is, which waits no more; None: nobody waits, or none may pass yet."""
        if not self._waiting or not self._take(now):
            return None
        waiter = self._first(self._waiting)
        self.remove(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """*waiter* does not wait any more, if it did."""
        self._waiting.pop(waiter, None)
        self._silent.pop(waiter, None)

    def due(self, now: float) -> float:
        """When the next one may pass; infinity if nobody waits."""
        if not self._waiting:
            return inf
        if not self.limited:
            return now
        self._fill(now)
        return now + max(0.0, 1.0 - self._tokens) / self._rate

    def oldest(self, now: float) -> float:
        """Seconds that the oldest one has waited; 0.0 if nobody waits."""
        return now - self._first(self._waiting).since if self._waiting else 0.0

    def find(self, client_id: str) -> Waiter | None:
        """The CONNECT of *client_id* that waits, the oldest of several."""
        for waiter in self._waiting:
            if waiter.client_id == client_id:
                return waiter
        return None

    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def retry_after(self, chance: float) -> float:
        """Seconds after which who found no room may come back; *chance*, from 0 to 1, spreads a fleet.

        Over twice the time that those who wait now will take, as they come in before it.
        """
        ahead = len(self._waiting) / self._rate if self.limited else 0.0
        return SOONEST + chance * min(WIDEST, max(SPREAD, 2.0 * ahead))

    def _take(self, now: float) -> bool:
        """Take a token, if there is one."""
        if not self.limited:
            return True
        self._fill(now)
        if self._tokens < ALMOST:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self, now: float) -> None:
        if now > self._counted:
            self._tokens = min(self._burst, self._tokens + (now - self._counted) * self._rate)
            self._counted = now

    def _oldest_silent(self) -> Waiter | None:
        """The oldest that has said nothing since. Who was seen to speak once is not looked at again."""
        while self._silent:
            waiter = self._first(self._silent)
            if waiter.silent():
                return waiter
            del self._silent[waiter]
        return None

    def _first(self, waiters: OrderedDict[Waiter, None]) -> Waiter:
        return next(iter(waiters))
