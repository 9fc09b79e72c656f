# CONNECTs that wait for their turn: when a whole fleet reconnects at once, CONNECTs pass no faster than they can be
# served.
#
# Connections are always accepted: with a full backlog clients would depend on the retries of their kernel, which
# doubles its pauses. What waits is the CONNECT, decoded, on a connection that is paused; connected clients are not
# affected. CONNECTs pass in the order of their arrival, at a rate with a burst (a token bucket, filled lazily). Each
# level of overload halves the rate and the burst. The rate never falls below TRICKLE, as no client would get in any
# more. The queue is bounded. When it is full, the oldest CONNECT whose client has sent nothing since is displaced:
# clients that sent more still wait for the answer. If all clients have sent more, the newest CONNECT is refused. The
# bytes of the queue are bounded, too: beyond them only CONNECTs are queued that take no more than their share, so that
# clients with long CONNECTs do not keep out clients with short ones. There are at most twice as many bytes.
from collections import OrderedDict
from math import inf
from typing import Final, Protocol

SHRINK: Final = 0.5  # factor on the rate and the burst for each level: a thousandth is left at level 10
TRICKLE: Final = 1.0  # CONNECTs a second at least, or the whole rate if it is less
SOONEST: Final = 1.0  # seconds after which a refused client may retry, at the earliest
SPREAD: Final = 10.0  # seconds over which refused clients are spread, at least
WIDEST: Final = 300.0  # seconds over which they are spread, at most
UNLIMITED: Final = 1 << 60  # bytes
ALMOST: Final = 1.0 - 1e-9  # so much of a token counts as one: a timer may fire a rounding error early


class Waiter(Protocol):
    """A CONNECT that waits."""

    since: float
    client_id: str  # as in the CONNECT

    def silent(self) -> bool:
        """Whether the client has sent nothing since its CONNECT."""


class Connects:
    """Lets *rate* CONNECTs a second pass beyond the first *burst*; a rate of 0 lets any number. *most* wait, with
    *most_bytes*.
    """

    def __init__(self, rate: float, burst: float, most: int, most_bytes: int = UNLIMITED) -> None:
        self.limited = rate > 0.0
        self._full_rate = rate
        self._full_burst = max(1.0, burst)
        self._rate = self._full_rate
        self._burst = self._full_burst
        self._tokens = self._full_burst  # CONNECTs that may pass at once, at the time `_counted`
        self._counted = 0.0
        self._most = most
        self._most_bytes = most_bytes
        self._share = most_bytes // most  # bytes of a CONNECT that always finds room
        self.bytes = 0  # of the CONNECTs that wait
        self._waiting: OrderedDict[Waiter, int] = OrderedDict()  # with their bytes, in the order of arrival
        self._silent: OrderedDict[Waiter, None] = (
            OrderedDict()
        )  # those that were not seen to send more, in the same order

    def allow(self, level: float, now: float) -> None:
        """Adapt the rate to the overload *level* (0 to 10) of this worker.

        *level* must not contain the delay of waiting CONNECTs: fewer would pass the longer they wait, until none does.
        Nor the level of other workers: a worker that is gone or late would keep its clients from the other workers.
        """
        if not self.limited:
            return
        self._fill(now)
        left = SHRINK**level
        self._rate = max(self._full_rate * left, min(TRICKLE, self._full_rate))
        self._burst = max(1.0, self._full_burst * left)
        self._tokens = min(self._tokens, self._burst)

    def at_once(self, now: float) -> bool:
        """Let a CONNECT that has just arrived pass, if none waits and the rate allows it; true if it has passed."""
        return not self._waiting and self._take(now)

    def offer(self, waiter: Waiter, size: int = 0) -> Waiter | None:
        """Queue *waiter*, which takes *size* bytes.

        Returns the CONNECT that finds no room: an older one, *waiter* itself, or None.
        """
        displaced = None
        if size > self._share and self.bytes + size > self._most_bytes:
            return waiter
        if len(self._waiting) >= self._most:
            displaced = self._oldest_silent()
            if displaced is None:
                return waiter
            self.remove(displaced)
        self._waiting[waiter] = size
        self.bytes += size
        self._silent[waiter] = None
        return displaced

    def next(self, now: float) -> Waiter | None:
        """Remove and return the CONNECT whose turn it is; None if none waits, or none may pass yet."""
        if not self._waiting or not self._take(now):
            return None
        waiter = self._first(self._waiting)
        self.remove(waiter)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """*waiter* does not wait any more, if it did."""
        self.bytes -= self._waiting.pop(waiter, 0)
        self._silent.pop(waiter, None)

    def due(self, now: float) -> float:
        """When the next CONNECT may pass; infinity if none waits."""
        if not self._waiting:
            return inf
        if not self.limited:
            return now
        self._fill(now)
        return now + max(0.0, 1.0 - self._tokens) / self._rate

    def oldest(self, now: float) -> float:
        """Seconds that the oldest CONNECT has waited; 0.0 if none waits."""
        return now - self._first(self._waiting).since if self._waiting else 0.0

    def find(self, client_id: str) -> Waiter | None:
        """The oldest waiting CONNECT of *client_id*."""
        for waiter in self._waiting:
            if waiter.client_id == client_id:
                return waiter
        return None

    def waiting(self) -> int:
        """CONNECTs that wait."""
        return len(self._waiting)

    def ahead(self) -> float:
        """Seconds that the CONNECTs waiting now will take."""
        return len(self._waiting) / self._rate if self.limited else 0.0

    def retry_after(self, chance: float, ahead: float) -> float:
        """Seconds after which a refused client may retry; *chance*, from 0 to 1, spreads a fleet.

        *ahead*: seconds that the CONNECTs waiting where it may come to will take; it is spread over twice that time.
        """
        return SOONEST + chance * min(WIDEST, max(SPREAD, 2.0 * ahead))

    def _take(self, now: float) -> bool:
        """Take a token; false if there is none."""
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
        """The oldest CONNECT whose client has sent nothing since. A client that has sent more is looked at once."""
        while self._silent:
            waiter = self._first(self._silent)
            if waiter.silent():
                return waiter
            del self._silent[waiter]
        return None

    def _first(self, waiters: OrderedDict[Waiter, int] | OrderedDict[Waiter, None]) -> Waiter:
        return next(iter(waiters))
