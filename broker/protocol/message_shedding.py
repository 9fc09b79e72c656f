# Shedding: when messages fill the memory that they may have, the sessions that hold most of it let go of theirs.
#
# A session that never acknowledges, or never comes back, keeps what it has for ever, and enough of them keep the whole
# budget, each within its share. So the largest ones pay: the older half of what waits for them, and when nothing waits,
# what is in flight, with the connection that does not acknowledge it. Who holds less than half of what the largest
# holds goes on, also if that is not enough: each pass, ten times a second, halves what the largest hold. A durable
# session loses its connection and no message: without one, nothing of it stays in memory that is stored.
from collections.abc import Callable
from heapq import nlargest
from typing import Final, cast

from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.reasons import CloseReason, DropReason
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.store.sessions import SessionStore

SHED_AT_ONCE: Final = 64  # sessions


class MessageShedding:
    def __init__(
        self,
        budget: MessageBudget,
        store: SessionStore,
        lifecycle: ConnectionLifecycle,
        reactor: Reactor,
        counters: Counters,
        log: Log,
        clock: Callable[[], float],
    ) -> None:
        self._budget = budget
        self._store = store
        self._lifecycle = lifecycle
        self._reactor = reactor
        self._counters = counters
        self._log = log
        self._clock = clock

    def run(self) -> None:
        """Shed if the budget is nearly used up, and have sessions go on that it has refused. To be called often."""
        now = self._clock()
        budget = self._budget
        if budget.used > budget.high:
            largest = nlargest(SHED_AT_ONCE, self._store.sessions(), key=Session.held_bytes)
            least = max(1, largest[0].held_bytes() >> 1) if largest else 0
            for session in largest:
                if session.held_bytes() < least or budget.used <= budget.low:
                    break
                self._shed(session, now)
        budget.retry(now)

    def _shed(self, session: Session, now: float) -> None:
        size = session.held_bytes()
        durable = session.storage is not None  # what waits for it leaves the memory as soon as it is stored
        dropped = 0 if durable else self._drop_older_half(session)
        if not dropped:
            stream = None if session.outbox is None else self._reactor.stream_of(session.outbox)
            if stream is not None:
                self._lifecycle.close(cast(Connection, stream), CloseReason.MESSAGE_BUDGET, now)
            dropped = 0 if durable else session.drop_all(now)
        self._log.warning("messages_shed", client=session.client_id, messages=dropped, bytes=size)

    def _drop_older_half(self, session: Session) -> int:
        """Drop the older half of what waits for *session*; return how many messages."""
        waiting = session.take_waiting()
        count = len(waiting) - (len(waiting) >> 1)
        for _ in range(count):
            message = waiting.popleft()
            self._budget.give_back(message)
            session.lost(message.topic)
        session.put_before(waiting)
        if count:
            self._counters.dropped(DropReason.MESSAGE_BUDGET, count)
            session.missed(DropReason.MESSAGE_BUDGET, count)
        return count
