# SessionTransfer: sessions that leave this worker for another one of the node, and those that come from there.
#
# A client that comes back may reach another worker than the one that holds its session. Its session moves in steps, so
# that none of its messages is lost or overtaken, and the mesh between the workers takes one after the other:
#
#   where it leaves                          where it comes
#   give_up(): no connection, no timers
#   next_chunk() ...                         expect(), take() ... until there is a session
#                                            enrol(): it is subscribed; the mesh waits until all peers know
#   withdraw(): it gets nothing any more
#   next_chunk() ... until it is finished    take() ... until it is complete; take_in(): it is the client's
#   gone()
#
# Until gone() it may be taken back, and until take_in() it may be turned away: a session is in one place whole, or in
# the other. For a client that begins anew nothing is moved: end_elsewhere().
from collections.abc import Callable
from functools import partial

from broker.metrics.counters import Counters
from broker.overload.credits import Accounts
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import SESSION_EXPIRY, WILL, Timers
from broker.reasons import CloseReason
from broker.routing.routes import Routes
from broker.session.queue import QueueBudget
from broker.session.session import Session, Subscription
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport
from broker.store.sessions import SessionStore


class SessionTransfer:
    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        sessions: SessionLifecycle,
        subscribing: Subscribing,
        routes: Routes,
        store: SessionStore,
        timers: Timers,
        counters: Counters,
        queue_budget: QueueBudget,
        accounts: Accounts,
    ) -> None:
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._subscribing = subscribing
        self._routes = routes
        self._store = store
        self._timers = timers
        self._counters = counters
        self._queue_budget = queue_budget
        self._accounts = accounts

    # Where it leaves.

    def credits(self, client_id: str, now: float) -> float:
        """What a client that has left us has to pay its publishes with, wherever it is now."""
        return self._accounts.balance_of(client_id, now)

    def give_up(self, session: Session, now: float) -> SessionExport | None:
        """*session*, which the store found, is to live at another worker; None if it ended with its connection.

        The client hears that its connection was taken over. That end is as any: a will without a delay is published
        now, here, by whoever may have published last (3.1.4, the comment on takeovers). A delayed one goes along.
        """
        self._close(session, now)
        if session.ended:
            return None
        self._store.forget(session)
        owed = self._sessions.replays.pop(session, {})
        will = session.will
        will_due = 0.0
        if will is not None and will.delay < session.expiry:
            will_due = self._timers.when(session.will_timer)
        expires = self._timers.when(session.expiry_timer)
        self._sessions.stop_timers(session)
        return SessionExport(session, self._queue_budget, expires, will_due, list(owed))

    def withdraw(self, frozen: SessionExport, then: Callable[[], None]) -> None:
        """All peers know where it is subscribed now: it leaves our routes, in pages if they are many; then *then*.

        What was delivered to it until then is in its last chunks.
        """
        frozen.leaving = True
        self._subscribing.withdraw(frozen.session, then)

    def gone(self, frozen: SessionExport) -> None:
        """The other worker has it all."""
        frozen.release()

    def take_back(self, frozen: SessionExport, now: float, then: Callable[[], None]) -> None:
        """The other worker is no more: the session stays, without a connection; *then* it may be claimed again.

        If its client has begun another one here meanwhile, it ends instead.
        """
        frozen.undo()
        session = frozen.session
        missing = [each for each in frozen.subscriptions if each.key() not in session.subscriptions]
        self._subscribing.enrol(session, missing, partial(self._taken_back, frozen, now, then))

    def _taken_back(self, frozen: SessionExport, now: float, then: Callable[[], None]) -> None:
        session = frozen.session
        if self._store.find(session.client_id) is not None:
            self._sessions.end(session, now)
        else:
            self._keep(session, frozen.expires, frozen.will_due, frozen.owed)
        then()

    def end_elsewhere(self, session: Session, now: float) -> None:
        """Its client has begun anew at another worker: *session* ends, and its will is published [MQTT-3.1.2-8]."""
        self._close(session, now)
        if not session.ended:
            self._sessions.end(session, now)

    def _close(self, session: Session, now: float) -> None:
        former = self._lifecycle.connection_of(session)
        if former is not None:
            self._lifecycle.close(former, CloseReason.SESSION_TAKEN_OVER, now)  # [MQTT-3.1.4-3]

    # Where it comes.

    def bring_credits(self, client_id: str, credits: float, now: float) -> None:
        """The same for the worker that it has come to."""
        self._accounts.bring(client_id, credits, now)

    def expect(self) -> SessionImport:
        """A session will come, chunk by chunk."""
        return SessionImport(self._sessions.limits, self._counters)

    def enrol(self, thaw: SessionImport, then: Callable[[], None]) -> None:
        """All it held has come: subscribe it here, in pages if it has many filters; *then* the peers may be told.

        What is delivered to it from now on waits behind what is still to come.
        """
        assert thaw.session is not None
        self._subscribing.enrol(thaw.session, thaw.subscriptions, then)

    def take_in(self, thaw: SessionImport) -> Session:
        """It is complete: from now on it lives here, without a connection until somebody claims it.

        One that is here already is of a time when it could not be asked for, so its client was given the other: it
        ends, with its connection [MQTT-3.1.4-3].
        """
        session = thaw.finish(self._routes.shared_group)
        former = self._store.find(session.client_id)
        if former is not None:
            self._lifecycle.evict(former)
        self._keep(session, thaw.expires, thaw.will_due, thaw.owed)
        return session

    def turn_away(self, thaw: SessionImport) -> None:
        """It will not be complete: nothing of it remains here, and what it was chosen for here others get (4.8.2)."""
        if thaw.session is not None:
            self._subscribing.withdraw(thaw.session)
            self._sessions.share_again(thaw.session)
        thaw.abandon()

    def _keep(self, session: Session, expires: float, will_due: float, owed: list[Subscription]) -> None:
        """*session*, which has no connection, is one of this worker's."""
        self._store.keep(session)
        session.expiry_timer = self._timers.set(expires, SESSION_EXPIRY, session)
        if will_due:
            session.will_timer = self._timers.set(will_due, WILL, session)
        if owed:
            self._sessions.replays[session] = self._subscribing.owe(owed)
