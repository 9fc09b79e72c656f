# The egress quota: clients are sent no more than their outgoing quotas say.
#
# The outbox of a client with an outgoing quota has an egress limit (egress_limit.py). When the quota has no room the
# limit closes, and the client is then treated as a slow reader: QoS 0 is skipped, QoS 1 and 2 wait in its session, and
# a shared subscription takes the next member. When the quota should have room the limit opens again, and the client
# goes on like a slow reader that has drained.
#
# Many clients may share a quota and wait for the same moment, and the first of them may use up all the room. So the
# client whose limit has been closed longest goes first. They go on in pages, as each may have a session to be sent.
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from broker.delivery.outbox import Outbox
from broker.log import Log
from broker.metrics.pause_statistics import PauseStatistics
from broker.overload.admit import PAUSE
from broker.overload.client import ProtectedClient
from broker.overload.quotas.quota import Quota, QuotaExceeded
from broker.overload.wait_list import SLOT, TimeSlots
from broker.reasons import DropReason, PauseReason

AT_ONCE: Final = 100  # clients that go on in one page


class ClientEgress:
    """The `EgressLimit` of one connected client."""

    def __init__(self, egress: "EgressQuota", client: ProtectedClient, outbox: Outbox, quota: Quota) -> None:
        self.client = client
        self.outbox = outbox
        self.reason: PauseReason | None = None  # why the limit is closed
        self.drop_reason: DropReason | None = None  # the same reason, for QoS 0 that is skipped
        self.slot = 0  # of time, in which the limit opens
        self.since = 0.0  # when the limit was first closed after the last delivery
        self.waits = False  # the limit was closed, and nothing was sent since
        self._egress = egress
        self._quota = quota

    def refusal(self) -> DropReason | None:
        if self.reason is None:
            now = self._egress.clock()
            over = self._quota.over_outgoing(now)
            if over is not None:
                self._egress.close(self, over, now)
        return self.drop_reason

    def charge(self, messages: int, size: int) -> None:
        if messages:
            self.waits = False
            self._quota.take_outgoing(messages, size, self._egress.clock())


class EgressQuota:
    def __init__(
        self, pauses: PauseStatistics, log: Log, clock: Callable[[], float], soon: Callable[[float], None]
    ) -> None:
        """*soon*: has `tick()` called at the given time, at the latest."""
        self.clock = clock
        self._log = log
        self._soon = soon
        self._pauses = pauses
        self._closed = TimeSlots()
        self._opened: deque[ClientEgress] = deque()  # their clients do not go on yet

    def arrive(self, client: ProtectedClient, outbox: Outbox) -> None:
        """Apply the outgoing quota of *client*, if it has one, to *outbox*."""
        quota = client.quota
        if quota is not None and quota.limits_outgoing():
            outbox.set_egress_limit(ClientEgress(self, client, outbox, quota))

    def leave(self, outbox: Outbox, now: float) -> None:
        """Stop applying a quota to *outbox*."""
        limit = outbox.egress_limit
        if limit is None:
            return
        outbox.end_egress_limit()  # the limit has the outbox: the two would be a cycle
        assert isinstance(limit, ClientEgress)
        if limit.reason is not None:
            self._closed.remove(limit.slot, limit)
            self._open(limit, now)

    def close(self, limit: ClientEgress, over: QuotaExceeded, now: float) -> None:
        """Close *limit* until its quota should have room, about `over.until`."""
        reason = over.reason
        assert isinstance(reason, PauseReason)
        limit.reason = reason
        limit.drop_reason = over.drop_reason()
        if not limit.waits:
            limit.waits = True
            limit.since = now
        limit.slot = int(over.until / SLOT) + 1
        self._closed.add(limit.slot, limit)
        self._soon(now + SLOT)
        self._pauses.begin_unnamed(reason, now)
        client = limit.client
        if client.note(PAUSE, reason.label, now):
            self._log.info("client_throttled", client=client.client_id, reason=reason.label)

    def tick(self, now: float) -> float:
        """Open the limits whose time has come and let their clients go on; return when to look again."""
        if not self._closed.empty():
            opened = [limit for limit in self._closed.take(int(now / SLOT)) if isinstance(limit, ClientEgress)]
            for limit in opened:
                self._open(limit, now)
            self._opened.extend(sorted(opened, key=_since))
        for _ in range(min(AT_ONCE, len(self._opened))):
            limit = self._opened.popleft()
            if not limit.outbox.full:  # a client with a full outbox goes on when that has drained
                limit.client.writable(now)
        if self._opened:
            return now
        return inf if self._closed.empty() else now + SLOT

    def _open(self, limit: ClientEgress, now: float) -> None:
        reason = limit.reason
        if reason is not None:
            self._pauses.end_unnamed(reason, now)
        limit.reason = limit.drop_reason = None


def _since(limit: ClientEgress) -> float:
    return limit.since
