# The transfer of a session to or from another worker of the node.
#
# A client that comes back may reach another worker than the one that has its session. The session moves in steps, so
# that no message is lost or overtakes another one. cluster/takeovers.py takes these steps on both workers in turn:
#
#   at the worker that has it                at the worker that asks
#   begin_export(): no connection, no timers
#   next_chunk() ...                         begin_import(), take() ... until the session itself has come
#                                            subscribe(); wait until all peers know
#   withdraw(): nothing is delivered to it
#   next_chunk() ... until all is sent       take() ... until all has come; finish_import(): the client gets it
#   finish_export()
#
# Each side can cancel until its last step, so a session is whole on one of the two workers. For a client that asks for
# a clean start nothing is moved: end_instead().
from collections.abc import Callable
from functools import partial

from broker.metrics.counters import Counters
from broker.overload.credits import Accounts
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import SESSION_EXPIRY, WILL, Timers
from broker.reasons import CloseReason
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport
from broker.store.sessions import SessionStore


class SessionTransfer:
    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        sessions: SessionLifecycle,
        subscribing: Subscribing,
        store: SessionStore,
        timers: Timers,
        counters: Counters,
        queue_budget: MessageBudget,
        accounts: Accounts,
    ) -> None:
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._subscribing = subscribing
        self._store = store
        self._timers = timers
        self._counters = counters
        self._queue_budget = queue_budget
        self._accounts = accounts

    # At the worker that has the session.

    def credits_of(self, client_id: str, now: float) -> float:
        """The credits that the client has left, which go with it."""
        return self._accounts.balance_of(client_id, now)

    def begin_export(self, session: Session, now: float) -> SessionExport | None:
        """Begin to move *session*, which is in the store, to another worker; None if it ends with its connection.

        A connection is closed as for any takeover: a will without a delay is published now, on this worker (3.1.4, the
        comment on takeovers). A will with a delay moves with the session.
        """
        self._close(session, now)
        if session.ended:
            return None
        self._store.forget(session)
        owed = self._sessions.replays.pop(session, {})
        will = session.will
        will_due = 0.0
        if will is not None:
            self._sessions.wills.give_back(will.held)
            if will.delay < session.expiry:
                will_due = self._timers.when(session.will_timer)
        expires = self._timers.when(session.expiry_timer)
        self._sessions.stop_timers(session)
        return SessionExport(session, self._queue_budget, expires, will_due, list(owed))

    def withdraw(self, export: SessionExport, then: Callable[[], None]) -> None:
        """Remove the subscriptions here, in pages if they are many, and call *then*: all peers know the new ones.

        Messages that are delivered until then are in the last chunks.
        """
        export.leaving = True
        self._subscribing.withdraw(export.session, then)

    def finish_export(self, export: SessionExport) -> None:
        """Drop what is left of the session: the other worker has all of it."""
        export.release()

    def cancel_export(self, export: SessionExport, now: float, then: Callable[[], None]) -> None:
        """Keep the session here, without a connection, as the other worker has died; then call *then*.

        If its client has begun another session on this worker meanwhile, this one ends.
        """
        export.undo()
        session = export.session
        missing = [each for each in export.subscriptions if each.key() not in session.subscriptions]
        self._subscribing.enrol(session, missing, partial(self._taken_back, export, now, then))

    def _taken_back(self, export: SessionExport, now: float, then: Callable[[], None]) -> None:
        session = export.session
        if not session.ended:
            self._charge_will(session)
            if self._store.find(session.client_id) is not None:
                self._sessions.end(session, now)
            else:
                self._keep(session, export.expires, export.will_due, export.owed)
        then()

    def end_instead(self, session: Session, now: float) -> None:
        """End *session*, and publish its will [MQTT-3.1.2-8]: its client has begun a new one at another worker."""
        self._close(session, now)
        if not session.ended:
            self._sessions.end(session, now)

    def _close(self, session: Session, now: float) -> None:
        former = self._lifecycle.connection_of(session)
        if former is not None:
            self._lifecycle.close(former, CloseReason.SESSION_TAKEN_OVER, now)  # [MQTT-3.1.4-3]

    # At the worker that asks for the session.

    def restore_credits(self, client_id: str, credits: float, now: float) -> None:
        """Give the client the *credits* that it had left at another worker."""
        self._accounts.bring(client_id, credits, now)

    def begin_import(self) -> SessionImport:
        """Begin to receive a session, chunk by chunk."""
        return SessionImport(self._sessions.limits_of, self._queue_budget, self._counters)

    def subscribe(self, incoming: SessionImport, then: Callable[[], None]) -> None:
        """Register the subscriptions of the session, in pages if they are many; then call *then*.

        Messages that are delivered from now on are queued behind those that are still to come.
        """
        assert incoming.session is not None
        self._subscribing.enrol(incoming.session, incoming.subscriptions, then)

    def finish_import(self, incoming: SessionImport) -> Session:
        """Keep the session, which is complete. It has no connection until it is claimed.

        If there is a session of this client here, it was made when the other one could not be asked for: it ends, with
        its connection [MQTT-3.1.4-3].
        """
        session = incoming.finish()
        self._charge_will(session)
        former = self._store.find(session.client_id)
        if former is not None:
            self._lifecycle.evict(former)
        self._keep(session, incoming.expires, incoming.will_due, incoming.owed)
        return session

    def cancel_import(self, incoming: SessionImport) -> None:
        """Drop a session that will not be complete."""
        if incoming.session is not None:
            self._subscribing.withdraw(incoming.session)
        incoming.abandon()

    def _charge_will(self, session: Session) -> None:
        if session.will is not None:
            self._sessions.wills.take(session.will.held)

    def _keep(self, session: Session, expires: float, will_due: float, owed: list[Subscription]) -> None:
        """Keep *session*, which has no connection, on this worker."""
        self._store.keep(session)
        session.expiry_timer = self._timers.set(expires, SESSION_EXPIRY, session)
        if will_due:
            session.will_timer = self._timers.set(will_due, WILL, session)
        if owed:
            self._sessions.replays[session] = self._subscribing.owe(owed)
