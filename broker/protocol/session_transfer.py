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
#
# Of a durable session nothing is sent that is stored. With withdraw() the worker that has it stores the rest and gives
# it to the other one, which owns it from then on, whatever becomes of either: that step cannot be cancelled. But it is
# refused if that worker has died, and its sessions are adopted: so the subscriptions here are removed only after that
# step, and the session stays as it is. The worker that asks takes the session (take()) before finish_import(): it reads
# what is long, or if the other one has died meanwhile, takes it from there.
from collections.abc import Callable
from functools import partial

from broker.metrics.counters import Counters
from broker.overload.credits import Accounts
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.publish_answers import redeliver_unanswered
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import SESSION_EXPIRY, WILL, Timers
from broker.reasons import CloseReason
from broker.session.message import RELEASED
from broker.session.queue import MessageBudget, MessageQueue
from broker.session.session import Session
from broker.session.storage import SessionStorage
from broker.session.subscription import Subscription
from broker.session.transfer.session_export import SessionExport
from broker.session.transfer.session_import import SessionImport
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore
from broker.worker_id import WorkerId


class SessionTransfer:
    def __init__(
        self,
        lifecycle: ConnectionLifecycle,
        sessions: SessionLifecycle,
        subscribing: Subscribing,
        store: SessionStore,
        timers: Timers,
        clock: Callable[[], float],
        counters: Counters,
        queue_budget: MessageBudget,
        accounts: Accounts,
        durable: DurableStore | None,
    ) -> None:
        """*durable*: where sessions are stored that outlive their connections; None: in memory."""
        self._lifecycle = lifecycle
        self._sessions = sessions
        self._subscribing = subscribing
        self._store = store
        self._timers = timers
        self._clock = clock
        self._counters = counters
        self._queue_budget = queue_budget
        self._accounts = accounts
        self._durable = durable
        self.leaving: dict[str, Session] = {}  # durable sessions that are being moved to other workers, by client id
        self.arriving: set[str] = set()  # clients whose durable sessions come from other workers, which may have died

    # At the worker that has the session.

    def credits_of(self, client_id: str, now: float) -> float:
        """The credits that the client has left, which go with it."""
        return self._accounts.balance_of(client_id, now)

    def begin_export(self, session: Session, now: float) -> SessionExport | None:
        """Begin to move *session*, which is in the store, to another worker; None if it ends with its connection.

        A connection is closed as for any takeover: a will without a delay is published now, on this worker (3.1.4, the
        comment on takeovers). A will with a delay moves with the session.
        """
        former_will = session.will
        self.part(session, now)
        if session.ended:
            return None
        # A will that was published is stored and taken from the session in one transaction: then nothing is put off.
        if session.storage is not None and session.will is former_will:
            session.storage.put_off(now)
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
        if session.storage is not None:
            self.leaving[session.client_id] = session
            redeliver_unanswered(session)
        self._sessions.limits.listener.leaves(session)
        return SessionExport(session, self._queue_budget, expires, will_due, list(owed))

    def withdraw(
        self, export: SessionExport, taker: WorkerId, then: Callable[[], None], refused: Callable[[], None]
    ) -> None:
        """Remove the subscriptions here, in pages if they are many, and call *then*: all peers know the new ones.

        Messages that are delivered until then are in the last chunks. If the session is durable, *taker* owns it
        before; if it has ended, *refused* is called instead, and the session stays.
        """
        if not export.stored:
            self._withdraw(export, then)
            return
        storage = export.session.storage
        assert storage is not None
        export.giving = True
        storage.give(taker.incarnation_text.encode(), partial(self._given, export, then, refused))

    def _given(
        self, export: SessionExport, then: Callable[[], None], refused: Callable[[], None], state: bytes | None
    ) -> None:
        if state is None:
            export.giving = False
            refused()
            return
        export.state = state
        # What could not be stored, as the store is full, is published again, to the new owner.
        for message in self._sessions.disown(export.session):
            self._lifecycle.abandon(message.as_published().completion, self._clock())
        self._withdraw(export, then)

    def _withdraw(self, export: SessionExport, then: Callable[[], None]) -> None:
        export.leaving = True
        self._subscribing.withdraw(export.session, then)

    def finish_export(self, export: SessionExport) -> None:
        """Drop what is left of the session: the other worker has all of it."""
        self._forget(export.session)
        export.release()

    def _forget(self, session: Session) -> None:
        if self.leaving.get(session.client_id) is session:
            del self.leaving[session.client_id]

    def cancel_export(self, export: SessionExport, now: float, then: Callable[[], None]) -> None:
        """Keep the session here, without a connection, as the other worker has died; then call *then*.

        Not for a session that is being given to that worker (`SessionExport.giving`): whoever claims it finds it there.
        If its client has begun another session on this worker meanwhile, this one ends. One that has ended, as it was
        taken from here by force, is left as it is: it may have to stay in the routes (`DurableSessions.taken()`).
        """
        session = export.session
        if session.ended:
            self._forget(session)
            then()
            return
        export.undo()
        missing = [each for each in export.subscriptions if each.key() not in session.subscriptions]
        self._subscribing.enrol(session, missing, partial(self._taken_back, export, now, then))

    def _taken_back(self, export: SessionExport, now: float, then: Callable[[], None]) -> None:
        session = export.session
        self._forget(session)
        if not session.ended:
            self._charge_will(session)
            self._sessions.limits.listener.stays(session)
            if self._store.find(session.client_id) is not None:
                self._sessions.end(session, now)
            else:
                self._keep(session, export.expires, export.will_due, export.owed)
        then()

    def when_owned(self, session: Session, then: Callable[[], None], now: float) -> None:
        """Call *then* when it is certain that no other worker has taken *session*; if one has, it has ended.

        While Redis answers nothing, nobody can take it: *then* is called at once.
        """
        if session.storage is None or self._durable is None or not self._durable.answers(now):
            then()
        else:
            session.storage.confirm(then)

    def end_instead(self, session: Session, now: float) -> None:
        """End *session*, and publish its will [MQTT-3.1.2-8]: its client has begun a new one at another worker."""
        if session.ended:
            return
        self.part(session, now)
        if not session.ended:
            self._sessions.end(session, now)

    def part(self, session: Session, now: float) -> None:
        """Close the connection of *session*, whose client has come to another worker."""
        former = self._lifecycle.connection_of(session)
        if former is not None:
            self._lifecycle.close(former, CloseReason.SESSION_TAKEN_OVER, now)  # [MQTT-3.1.4-3]

    # At the worker that asks for the session.

    def restore_credits(self, client_id: str, credits: float, now: float) -> None:
        """Give the client the *credits* that it had left at another worker."""
        self._accounts.bring(client_id, credits, now)

    def begin_import(self, shift: float) -> SessionImport:
        """Begin to receive a session, chunk by chunk. *shift*: see `SessionImport`."""
        return SessionImport(self._sessions.limits_of, self._queue_budget, self._counters, self._expect, shift)

    def _expect(self, client_id: str, application: bool) -> tuple[SessionStorage, MessageQueue] | None:
        if self._durable is None:
            return None
        self.arriving.add(client_id)
        return self._durable.expect(client_id.encode(), application)

    def subscribe(self, incoming: SessionImport, then: Callable[[], None]) -> None:
        """Register the subscriptions of the session, in pages if they are many; then call *then*.

        Messages that are delivered from now on are queued behind those that are still to come. If an earlier session of
        the client is here, or is to be removed from the store, its end comes first: it has the same keys.
        """
        session = incoming.session
        assert session is not None
        enrol = partial(self._subscribing.enrol, session, incoming.subscriptions, then)
        if session.storage is None or self._durable is None:
            enrol()
        elif self._store.find(session.client_id) is None:
            self._durable.commit.when_removed(enrol)
        else:  # if it was taken from here, it has to end as such: see `DurableSessions.taken()`
            self._durable.commit.confirm(partial(self._replace, self._durable.commit, session.client_id, enrol))

    def _replace(self, commit: GroupCommit, client_id: str, then: Callable[[], None]) -> None:
        former = self._store.find(client_id)
        if former is not None:  # see `finish_import()`
            self._lifecycle.evict(former)
        commit.when_removed(then)

    def take(self, incoming: SessionImport, former: WorkerId, lives: bool, then: Callable[[bool], None]) -> None:
        """Read what is stored of the durable session that came from *former*, and call *then* with whether it is there.

        It is not if it was lost or is damaged. *lives*: *former* has given it to this worker; otherwise it has ended,
        and may have had the session when it did.
        """
        session = incoming.session
        assert session is not None and self._durable is not None
        incarnation = b"" if lives else former.incarnation_text.encode()
        if not lives:
            incoming.cut_off()
        taken = partial(self._taken, session, then)
        self._durable.take(session.client_id.encode(), incarnation, incoming.state, taken, self._clock())

    def _taken(
        self, session: Session, then: Callable[[bool], None], adopted: AdoptedSession | None, now: float
    ) -> None:
        if adopted is not None and not session.ended:
            session.restore(dict.fromkeys(adopted.record.released_ids(), RELEASED))
            self._sessions.limits.listener.bring(session, adopted.stored.owed)
            self._sessions.publish_found_will(session, adopted.stored.will, now)
        then(adopted is not None)

    def finish_import(self, incoming: SessionImport) -> Session:
        """Keep the session, which is complete. It has no connection until it is claimed.

        If there is a session of this client here, it was made when the other one could not be asked for: it ends, with
        its connection [MQTT-3.1.4-3].
        """
        session = incoming.finish()
        self.arriving.discard(session.client_id)
        if incoming.owed_gap is not None:
            self._sessions.limits.listener.bring(session, incoming.owed_gap)
        self._charge_will(session)
        former = self._store.find(session.client_id)
        if former is not None:
            self._lifecycle.evict(former)
        self._keep(session, incoming.expires, incoming.will_due, incoming.owed)
        return session

    def cancel_import(self, incoming: SessionImport) -> None:
        """Drop a session that will not be complete."""
        session = incoming.session
        if session is not None:
            self._subscribing.withdraw(session)
            if session.storage is not None:
                # Another worker may have the session, without what was delivered to it here: that is published again.
                for message in self._sessions.disown(session):
                    self._lifecycle.abandon(message.as_published().completion, self._clock())
        if self._durable is not None:
            self.arriving.discard(incoming.client_id)
            self._durable.forget(incoming.client_id.encode())
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
