# For how long clients are throttled, and why. A pause is a time in which Weir does not read a client that has sent
# more, does not send a client what waits for it, or lets a CONNECT wait.
#
# The time by reason is the integral of the number of paused clients: exact at any moment, at no cost per client. The
# time of a client goes to the heavy hitters when its pause ends, and at the end of each interval for the clients that
# are paused then. There may be a million of those, so only the REPORTED that are paused longest are updated then.
from itertools import islice
from typing import Final

from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.reasons import PauseReason

REPORTED: Final = 10_000  # paused clients at the end of an interval; about a millisecond


class ClientPause:
    """The pause of one client."""

    def __init__(self, reason: PauseReason, since: float) -> None:
        self.reason = reason
        self.reported = since  # the time up to which the heavy hitters know


class PausedForReason:
    """The clients that are paused for one reason."""

    def __init__(self, since: float) -> None:
        self.clients = 0
        self.most = 0  # in the interval
        self.since = since  # the time up to which pauses are counted
        self.rest = 0.0  # seconds that are less than a millisecond

    def count(self, now: float) -> int:
        """Whole milliseconds that all the clients were paused since the last call."""
        self.rest += self.clients * max(0.0, now - self.since)
        self.since = now
        milliseconds = int(self.rest * 1e3)
        self.rest -= milliseconds * 1e-3
        return milliseconds


class PauseStatistics:
    """Counts pauses and their time in *counters*, and the time of each client in *clients*."""

    def __init__(self, counters: Counters, clients: HeavyHitters) -> None:
        self._counters = counters
        self._clients = clients
        self._pauses: dict[str, ClientPause] = {}  # by client, in the order in which they began
        self._paused: dict[str, PausedForReason] = {}  # by the label of the reason

    def begin(self, client_id: str, reason: PauseReason, now: float) -> None:
        """*client_id* is paused from now on. If it is paused for another reason, that pause ends."""
        if client_id in self._pauses:
            if self._pauses[client_id].reason is reason:
                return
            self.end(client_id, now)
        self._pauses[client_id] = ClientPause(reason, now)
        self.begin_unnamed(reason, now)

    def end(self, client_id: str, now: float) -> None:
        """*client_id* continues, or has disconnected. Nothing happens if it is not paused."""
        pause = self._pauses.pop(client_id, None)
        if pause is None:
            return
        self.end_unnamed(pause.reason, now)
        self._report(client_id, pause, now)

    def begin_unnamed(self, reason: PauseReason, now: float) -> None:
        """A client is paused whose time is not counted by its id: it is not sent more, or its CONNECT waits."""
        label = reason.label
        paused = self._paused.get(label)
        if paused is None:
            paused = self._paused[label] = PausedForReason(now)
        self._count(label, paused, now)
        paused.clients += 1
        paused.most = max(paused.most, paused.clients)
        self._counters.paused(reason)

    def end_unnamed(self, reason: PauseReason, now: float) -> None:
        """A client that was paused for *reason* continues."""
        paused = self._paused[reason.label]
        self._count(reason.label, paused, now)
        paused.clients -= 1

    def settle(self, now: float) -> None:
        """Bring the counters up to date."""
        for label, paused in self._paused.items():
            self._count(label, paused, now)

    def close_interval(self, now: float) -> dict[str, int]:
        """Bring counters and heavy hitters up to date. By reason: the most clients that were paused at one time."""
        self.settle(now)
        for client_id, pause in islice(self._pauses.items(), REPORTED):
            self._report(client_id, pause, now)
        most = {label: paused.most for label, paused in self._paused.items()}
        for paused in self._paused.values():
            paused.most = paused.clients
        return most

    def paused(self) -> dict[str, int]:
        """The number of paused clients, by the label of the reason."""
        return {label: paused.clients for label, paused in self._paused.items() if paused.clients}

    def __len__(self) -> int:
        """The number of paused clients that are counted by name."""
        return len(self._pauses)

    def _count(self, label: str, paused: PausedForReason, now: float) -> None:
        milliseconds = paused.count(now)
        if milliseconds:
            self._counters.paused_ms_by_reason[label] += milliseconds

    def _report(self, client_id: str, pause: ClientPause, now: float) -> None:
        self._clients.add_pause(client_id, int(max(0.0, now - pause.reported) * 1e6))
        pause.reported = now
