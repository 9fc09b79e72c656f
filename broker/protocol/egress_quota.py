# EgressQuota: clients that are sent no more than their quotas say, which wait here until there is room.
#
# Who has such a quota stands behind a toll (delivery/toll.py). When that finds no room it is shut, and its client is to
# everybody what a slow reader is: QoS 0 goes by, QoS 1 and 2 waits in its session, a shared subscription takes the next
# member. When there should be room it is open again, and the client is told so in the way of one that has drained.
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
    """The `Toll` of one client, while it is connected."""

    def __init__(self, outgoing: "EgressQuota", connection: Connection, quota: Quota) -> None:
        self.connection = connection
        self.shut: PauseReason | None = None
        self.dropping: DropReason | None = None  # for the same reason
        self.slot = 0  # in which it is to be open again
        self.since = 0.0  # when it was first shut after the last batch
        self.waits = False  # it was, and nothing was sent since
        self._outgoing = outgoing
        self._quota = quota

    def closed(self) -> DropReason | None:
        if self.shut is None:
            now = self._outgoing.clock()
            over = self._quota.over_outgoing(now)
            if over is not None:
                self._outgoing.shut(self, over, now)
        return self.dropping

    def take(self, messages: int, size: int) -> None:
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
            connection.outbox.stand_behind(ClientEgress(self, connection, quota))

    def leave(self, connection: Connection, now: float) -> None:
        """It has it no longer."""
        toll = connection.outbox.toll
        if toll is None:
            return
        connection.outbox.toll = None  # it knows its connection: that would be a cycle
        assert isinstance(toll, ClientEgress)
        if toll.shut is not None:
            self._shut.remove(toll.slot, toll)
            self._open(toll, now)

    def shut(self, toll: ClientEgress, over: QuotaExceeded, now: float) -> None:
        """There is no room for *toll*'s client until about `over.until`."""
        reason = over.reason
        assert isinstance(reason, PauseReason)
        toll.shut = reason
        toll.dropping = over.drop_reason()
        if not toll.waits:
            toll.waits = True
            toll.since = now
        toll.slot = int(over.until / SLOT) + 1
        self._shut.add(toll.slot, toll)
        self._reactor.soon(now + SLOT)
        self._pauses.hold(reason, now)
        session = toll.connection.session
        if session is not None and session.note(PAUSE, reason.label, now):
            self._log.info("client_throttled", client=session.client_id, reason=reason.label)

    def tick(self, now: float) -> float:
        """Go on with those for whom there should be room; when to look again."""
        if not self._shut.empty():
            opened = [toll for toll in self._shut.take(int(now / SLOT)) if isinstance(toll, ClientEgress)]
            for toll in opened:
                self._open(toll, now)
            self._opened.extend(sorted(opened, key=_since))
        for _ in range(min(AT_ONCE, len(self._opened))):
            toll = self._opened.popleft()
            if not toll.connection.outbox.full:  # who is full is told when it has drained
                self._reactor.report_drained(toll.connection)
        if self._opened:
            return now
        return inf if self._shut.empty() else now + SLOT

    def _open(self, toll: ClientEgress, now: float) -> None:
        reason = toll.shut
        if reason is not None:
            self._pauses.let_go(reason, now)
        toll.shut = toll.dropping = None


def _since(toll: ClientEgress) -> float:
    return toll.since
