# Who is held back, why and for how long: each time that we do not read a client which has more to say, do not send it
# what it is owed, or let its CONNECT wait.
#
# The time by reason is the integral of how many are held, so it is exact at any moment and costs nothing for those who
# wait. That of each client goes to the heavy hitters when its pause ends, and at the end of each interval for those
# that are held then: the longest first, TOLD of them at most, as a million may be. Others are told of when they end.
from itertools import islice
from typing import Final

from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.reasons import PauseReason

TOLD: Final = 10_000  # held clients; about a millisecond


class Pause:
    """One client that is held back."""

    def __init__(self, reason: PauseReason, since: float) -> None:
        self.reason = reason
        self.told = since  # up to when the heavy hitters know


class Held:
    """Those who are held for one reason."""

    def __init__(self, since: float) -> None:
        self.clients = 0
        self.most = 0  # in the interval
        self.since = since  # up to when their time was counted
        self.owed = 0.0  # seconds that are no whole millisecond yet

    def count(self, now: float) -> int:
        """Whole milliseconds that all of them were held since this was last asked."""
        self.owed += self.clients * max(0.0, now - self.since)
        self.since = now
        milliseconds = int(self.owed * 1e3)
        self.owed -= milliseconds * 1e-3
        return milliseconds


class Pauses:
    """Counts pauses and their time in *counters*, and what each cost its client in *clients*."""

    def __init__(self, counters: Counters, clients: HeavyHitters) -> None:
        self._counters = counters
        self._clients = clients
        self._pauses: dict[str, Pause] = {}  # by client, in the order in which they began
        self._held: dict[str, Held] = {}  # by the label of the reason

    def begin(self, client_id: str, reason: PauseReason, now: float) -> None:
        """*client_id* is not read from now on. Held already for another reason, it is held for this one now."""
        if client_id in self._pauses:
            if self._pauses[client_id].reason is reason:
                return
            self.end(client_id, now)
        self._pauses[client_id] = Pause(reason, now)
        self.hold(reason, now)

    def end(self, client_id: str, now: float) -> None:
        """*client_id* is read again, or gone; nothing happens if it was not held."""
        pause = self._pauses.pop(client_id, None)
        if pause is None:
            return
        self.let_go(pause.reason, now)
        self._tell(client_id, pause, now)

    def hold(self, reason: PauseReason, now: float) -> None:
        """Somebody waits from now on who is not `begin()`'s: one that may not be sent more, or nobody knows yet."""
        label = reason.label
        held = self._held.get(label)
        if held is None:
            held = self._held[label] = Held(now)
        self._count(label, held, now)
        held.clients += 1
        held.most = max(held.most, held.clients)
        self._counters.paused(reason)

    def let_go(self, reason: PauseReason, now: float) -> None:
        """Who was held for *reason* is not any more."""
        held = self._held[reason.label]
        self._count(reason.label, held, now)
        held.clients -= 1

    def settle(self, now: float) -> None:
        """Bring the counters up to date."""
        for label, held in self._held.items():
            self._count(label, held, now)

    def close_interval(self, now: float) -> dict[str, int]:
        """Up to date, and told to the heavy hitters; by reason the most clients that were held at one time."""
        self.settle(now)
        for client_id, pause in islice(self._pauses.items(), TOLD):
            self._tell(client_id, pause, now)
        most = {label: held.most for label, held in self._held.items()}
        for held in self._held.values():
            held.most = held.clients
        return most

    def held(self) -> dict[str, int]:
        """Clients that are held, by the label of the reason."""
        return {label: held.clients for label, held in self._held.items() if held.clients}

    def __len__(self) -> int:
        """Clients that are held."""
        return len(self._pauses)

    def _count(self, label: str, held: Held, now: float) -> None:
        milliseconds = held.count(now)
        if milliseconds:
            self._counters.paused_ms_by_reason[label] += milliseconds

    def _tell(self, client_id: str, pause: Pause, now: float) -> None:
        self._clients.add_pause(client_id, int(max(0.0, now - pause.told) * 1e6))
        pause.told = now
