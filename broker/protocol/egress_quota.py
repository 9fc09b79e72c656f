# EgressQuota: clients that are sent no more than their quotas say, which wait here until there is room.
#
# The outbox of such a client has an egress limit (delivery/egress_limit.py). When that finds no room it is shut, and
# its client is to everybody what a slow reader is: QoS 0 goes by, QoS 1 and 2 waits in its session, a shared
# subscription takes the next member. When there should be room it is open again, and the client is told so in the way
# of one that has drained.
#
# Many may share a quota and wait for the same moment, and the first ones may take all there is. So whoever has waited
# longest since it was last sent something goes first, and they come in pages: each may have a session to go on with.
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from broker.log import Log
from broker.metrics.pauses import Pauses
from broker.net.reactor import Reactor
from broker.overload.admit import PAUSE
from broker.overload.quota import Quota, QuotaExceeded
from broker.overload.waiting import SLOT, Slots
from broker.protocol.connection import Connection
from broker.reasons import DropReason, PauseReason

AT_ONCE: Final = 100  # clients told in one go that they may be sent more


class ClientEgress:
    """The `EgressLimit` of one client, while it is connected."""

    def __init__(self, outgoing: "EgressQuota", connection: Connection, quota: Quota) -> None:
        self.connection = connection
        self.shut: PauseReason | None = None
        self.dropping: DropReason | None = None  # for the same reason
        self.slot = 0  # in which it is to be open again
        self.since = 0.0  # when it was first shut after the last batch
        self.waits = False  # it was, and nothing was sent since
        self._outgoing = outgoing
        self._quota = quota

    def refusal(self) -> DropReason | None:
        if self.shut is None:
            now = self._outgoing.clock()
            over = self._quota.over_outgoing(now)
            if over is not None:
                self._outgoing.shut(self, over, now)
        return self.dropping

    def charge(self, messages: int, size: int) -> None:
        if messages:
            self.waits = False
            self._quota.take_outgoing(messages, size, self._outgoing.clock())


class EgressQuota:
    def __init__(self, reactor: Reactor, pauses: Pauses, log: Log, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._log = log
        self._reactor = reactor
        self._pauses = pauses
        self._shut = Slots()
        self._opened: deque[ClientEgress] = deque()  # whose clients were not told yet

    def arrive(self, connection: Connection, quota: Quota) -> None:
        """*connection* has a session that *quota* concerns."""
        if quota.limits_outgoing():
            connection.outbox.set_egress_limit(ClientEgress(self, connection, quota))

    def leave(self, connection: Connection, now: float) -> None:
        """It has it no longer."""
        limit = connection.outbox.egress_limit
        if limit is None:
            return
        connection.outbox.egress_limit = None  # it knows its connection: that would be a cycle
        assert isinstance(limit, ClientEgress)
        if limit.shut is not None:
            self._shut.remove(limit.slot, limit)
            self._open(limit, now)

    def shut(self, limit: ClientEgress, over: QuotaExceeded, now: float) -> None:
        """There is no room for *limit*'s client until about `over.until`."""
        reason = over.reason
        assert isinstance(reason, PauseReason)
        limit.shut = reason
        limit.dropping = over.drop_reason()
        if not limit.waits:
            limit.waits = True
            limit.since = now
        limit.slot = int(over.until / SLOT) + 1
        self._shut.add(limit.slot, limit)
        self._reactor.soon(now + SLOT)
        self._pauses.hold(reason, now)
        session = limit.connection.session
        if session is not None and session.note(PAUSE, reason.label, now):
            self._log.info("client_throttled", client=session.client_id, reason=reason.label)

    def tick(self, now: float) -> float:
        """Go on with those for whom there should be room; when to look again."""
        if not self._shut.empty():
            opened = [limit for limit in self._shut.take(int(now / SLOT)) if isinstance(limit, ClientEgress)]
            for limit in opened:
                self._open(limit, now)
            self._opened.extend(sorted(opened, key=_since))
        for _ in range(min(AT_ONCE, len(self._opened))):
            limit = self._opened.popleft()
            if not limit.connection.outbox.full:  # who is full is told when it has drained
                self._reactor.report_drained(limit.connection)
        if self._opened:
            return now
        return inf if self._shut.empty() else now + SLOT

    def _open(self, limit: ClientEgress, now: float) -> None:
        reason = limit.shut
        if reason is not None:
            self._pauses.let_go(reason, now)
        limit.shut = limit.dropping = None


def _since(limit: ClientEgress) -> float:
    return limit.since
