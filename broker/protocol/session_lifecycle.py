# The lifecycle of a session: its beginning, its time without a connection, its end, and its will.
#
# A session whose connection has ended lasts until its expiry has passed. Its will is published after the will delay, or
# when the session ends, if that comes first [MQTT-3.1.2-8].
from collections.abc import Callable

from broker.config.overrides import ClientOverride
from broker.config.schema import Limits
from broker.log import Log
from broker.metrics.counters import Counters
from broker.mqtt.packets import Will as WillFields
from broker.overload.quotas.configured import ConfiguredOverrides
from broker.protocol.connection import Replay
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.pending_wills import FIRST, PendingWill, PendingWills
from broker.protocol.recent_disconnects import RecentDisconnects
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import SESSION_EXPIRY, TICK, WILL, Timers
from broker.reasons import DropReason
from broker.routing.authority import Authoriser
from broker.session.limits import SessionLimits
from broker.session.losses import LossListener
from broker.session.message import RELEASED, Message
from broker.session.origin import Origin, TransferFilter
from broker.session.principal import UNJUDGED, Principal
from broker.session.queue import MessageBudget
from broker.session.reserve import Reserve
from broker.session.session import Session
from broker.session.storage import SessionStorage
from broker.session.subscription import Subscription
from broker.session.will import Will
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.index import READ, SUBSCRIPTIONS, index_value
from broker.store.durable.record import SessionRecord
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore

# Message, client id, user, session, when it was published before, now; returns the quota that the will exceeds.
PublishWill = Callable[[Message, str, str | None, Session | None, float, float], DropReason | None]


class SessionLifecycle:
    def __init__(
        self,
        store: SessionStore,
        subscribing: Subscribing,
        publish_will: PublishWill,
        timers: Timers,
        counters: Counters,
        disconnects: RecentDisconnects,
        internal_errors: InternalErrors,
        log: Log,
        limits: Limits,
        queue_budget: MessageBudget,
        wills: Reserve,
        origin: Origin,
        authoriser: Authoriser | None,
        configured: ConfiguredOverrides,
        durable: DurableStore | None,
        wall: Callable[[], float],
        listener: LossListener,
    ) -> None:
        """*wills*: the account of the wills of all sessions. *configured*: other limits for single clients.

        *durable*: where sessions are stored that outlive their connections; None: in memory. *wall*: Unix time in
        seconds. *listener*: who tells clients of messages that they lost.
        """
        self.wills = wills
        self.limits = SessionLimits(
            inflight=limits.inflight,
            pending=limits.pending,
            queue=limits.queue,
            queue_bytes=limits.queue_bytes,
            budget=queue_budget,
            origin=origin,
            queue_qos0=limits.queue_qos0,
            listener=listener,
        )
        # Retained messages that sessions without a connection still have to get.
        self.replays: dict[Session, dict[Subscription, Replay]] = {}
        # Called when a session has no client, and again when its will is published then.
        self.resting: Callable[[Session, float], None] = _nobody_minds
        self._store = store
        self._subscribing = subscribing
        self._publish_will = publish_will
        self._timers = timers
        self._counters = counters
        self._disconnects = disconnects
        self._internal_errors = internal_errors
        self._log = log
        self._authoriser = authoriser
        self._configured = configured
        self._durable = durable
        self._wall = wall
        self._pending: PendingWills | None = None
        if durable is not None:
            self._pending = PendingWills(durable, self._publish_for, timers, wills)
        # Of sessions with an override, by pending, queue and queue_bytes: sessions with equal limits share them.
        self._other_limits: dict[tuple[int, int, int], SessionLimits] = {}

    def may_begin(self, expiry: int, now: float) -> bool:
        """Whether a session with *expiry* in seconds could be kept: it cannot while its store is away."""
        return self._durable is None or expiry == 0 or self._durable.takes_sessions(now)

    def log_trouble(self) -> str:
        """Why the session of an APPLICATION client could get no log now; "": nothing is known to be wrong."""
        return "" if self._durable is None or self._durable.logs is None else self._durable.logs.unusable()

    def begin(self, client_id: str, expiry: int, application: bool = False) -> Session:
        """A new session for *client_id*, which is in the store. *expiry* in seconds.

        *application*: the client is of that kind. A session that ends with its connection is as any other.
        """
        record: SessionRecord | None = None
        if self._durable is not None and expiry:
            record = self._durable.begin(client_id.encode(), application)
        queue = record.queue() if record is not None and record.application else None
        session = Session(client_id, self.limits, self._counters, queue)
        session.storage = record
        self._store.keep(session)
        return session

    def stand_in(self, client_id: str, user: str | None, moves: TransferFilter, application: bool) -> Session:
        """A session that is to be in the routes for the one of *client_id* until that one is here.

        Nothing is stored of it, and *moves* refuses all messages. *application*: that one is of an APPLICATION client.
        """
        assert self._durable is not None
        session = Session(client_id, self.limits, self._counters)
        session.storage = SessionStorage(self._durable.commit.gate.gate)  # publishers wait for durable receivers
        session.storage.application = application
        session.transfer_filter = moves
        self._set_principal(session, user)
        return session

    def _set_principal(self, session: Session, user: str | None) -> None:
        if user is not None or self._authoriser is not None:
            session.principal = Principal(session.client_id, user, UNJUDGED)

    def adopt(self, adopted: AdoptedSession, now: float) -> Session:
        """The session that another worker has stored, without its subscriptions and its client.

        It is in the store, unless its expiry has passed meanwhile: then it has ended.
        """
        client_id, user = adopted.client_id, adopted.stored.user
        limits = self.limits_of(client_id, user)
        session = Session(client_id, limits, self._counters, adopted.record.present_queue())
        session.limit(limits)
        session.storage = adopted.record
        self._set_principal(session, user)
        session.expiry = adopted.stored.expiry
        session.restore(dict.fromkeys(adopted.record.released_ids(), RELEASED))
        self.limits.listener.bring(session, adopted.stored.owed)
        self._store.keep(session)
        session.will = adopted.stored.will
        if session.will is not None:
            self.wills.take(session.will.held)
        away = max(0.0, self._wall() - adopted.stored.left)
        if away >= session.expiry and session.will is None:
            self.expire(session, now)
        else:
            self._begin_to_wait(session, now - away)
            self.resting(session, now)
        return session

    # The limits of a session.

    def limit(self, session: Session) -> None:
        """Apply the limits that the configuration has for the client of *session*."""
        user = session.principal.user
        session.limit(self.limits_of(session.client_id, None if user is None else user.decode()))

    def limits_of(self, client_id: str, user: str | None) -> SessionLimits:
        """What a session of a client may hold: by its override, or as all others."""
        override = self._configured.find(client_id, user)
        if override is None:
            return self.limits
        table, general = override.table, self.limits
        pending = general.pending if table.pending is None else table.pending
        queue = general.queue if table.queue is None else table.queue
        queue_bytes = general.queue_bytes if table.queue_bytes is None else table.queue_bytes
        if (pending, queue, queue_bytes) == (general.pending, general.queue, general.queue_bytes):
            return general
        limits = self._other_limits.get((pending, queue, queue_bytes))
        if limits is None:
            limits = self._other_limits[pending, queue, queue_bytes] = SessionLimits(
                inflight=general.inflight,
                pending=pending,
                queue=queue,
                queue_bytes=queue_bytes,
                budget=general.budget,
                origin=general.origin,
                queue_qos0=general.queue_qos0,
                listener=general.listener,
            )
        return limits

    def configure(self, tables: list[ClientOverride]) -> None:
        """Use the overrides *tables* of the configuration, also for the sessions that are here."""
        self._configured.replace(tables)
        self._other_limits = {}
        for session in self._store.sessions():
            self.limit(session)

    def expires(self, session: Session) -> float:
        """When the expiry of *session*, which has no connection, will have passed."""
        return self._timers.when(session.expiry_timer)

    # The beginning and the end.

    def connected(self, session: Session) -> None:
        """*session* has a connection."""
        if session.storage is not None:
            session.storage.store_head(session.expiry, session.principal.user, True)

    def stop_timers(self, session: Session) -> None:
        """*session* has a connection, lives elsewhere or ends: neither its expiry nor its will delay runs."""
        self._timers.cancel(session.expiry_timer, session)  # [MQTT-4.1.0-1]
        self._timers.cancel(session.will_timer, session)  # [MQTT-3.1.3-9]

    def rest(self, session: Session, now: float) -> None:
        """*session* has no connection: it ends at once, or its expiry and its will delay begin to run."""
        if session.expiry == 0:
            self.end(session, now)
            return
        if session.will is not None and session.will.delay == 0:
            self.publish_will(session, now)
        if session.storage is not None:
            session.storage.store_head(session.expiry, session.principal.user, False)
            self.limits.listener.rests(session, now)
        self._begin_to_wait(session, now)
        if session.storage is not None:
            session.storage.store_index(self.index_value(session, self._wall() + session.expiry))
            self.resting(session, now)

    def index_value(self, session: Session, expires: float) -> bytes:
        """What the index says of *session*, which has no connection. *expires*: Unix time."""
        if self.limits.queue_qos0 or len(session.subscriptions) > SUBSCRIPTIONS:
            return READ  # QoS 0 waits in memory alone, so the session has to be there; or it takes long to restore
        return index_value(expires, [key for key, each in session.subscriptions.items() if each.qos])

    def leave(self, session: Session) -> None:
        """*session*, which has no connection, goes on in its store alone: nothing of it remains here."""
        self.stop_timers(session)
        while session.subscriptions:
            self._subscribing.withdraw(session)
        self.limits.budget.forget(session)
        if session.storage is not None:
            session.storage.leave()
        session.ended = True

    def _begin_to_wait(self, session: Session, since: float) -> None:
        """The client of *session* is away *since* that time: set the timers of its expiry and of its will."""
        session.expiry_timer = self._timers.set(since + session.expiry, SESSION_EXPIRY, session)  # [MQTT-3.1.2-23]
        will = session.will
        if will is not None and will.delay < session.expiry:  # otherwise the end of the session publishes it
            session.will_timer = self._timers.set(since + will.delay, WILL, session)

    def expire(self, session: Session, now: float) -> None:
        """The expiry of *session* has passed."""
        self._counters.sessions_expired += 1
        self.end(session, now)

    def end(self, session: Session, now: float, withdraw: bool = True) -> None:
        """End *session*: nothing of it remains [MQTT-4.1.0-2] but what it retained, 3.1.1 [MQTT-3.1.2-7].

        Not *withdraw*: its subscriptions stay in the routes, and its `transfer_filter` refuses all messages.
        """
        self.stop_timers(session)
        self.replays.pop(session, None)
        if withdraw:
            self._subscribing.withdraw(session)
        undelivered = session.end()
        if undelivered:
            self._disconnects.note_undelivered(session.client_id, undelivered)
        self._store.forget(session)
        # [MQTT-3.1.2-8]; not before, or the session could be chosen to receive its own will as a member of a group
        self.publish_will(session, now)
        if session.storage is not None:  # last: its will is stored elsewhere before
            session.storage.end()

    def disown(self, session: Session) -> list[Message]:
        """Another worker has *session*, which is to end here.

        Returns the messages whose publishers must not be answered, as nobody may have them.
        """
        return [] if session.storage is None else session.storage.disown()

    # Wills.

    def set_will(self, session: Session, will: Will | None) -> None:
        """Give *session* a *will*, or none, in place of the one that it has."""
        if session.will is not None:
            self.wills.give_back(session.will.held)
        session.will = will
        if will is not None:
            self.wills.take(will.held)
        if session.storage is not None:  # that of a session without expiry is stored by the claim
            session.storage.store_will(will if session.expiry else None)

    def withdraw_will(self, session: Session) -> None:
        """Forget the will of *session* without publishing it."""
        if session.will is not None:
            self.set_will(session, None)  # [MQTT-3.14.4-3], [MQTT-3.1.2-10]
            self._store.without_will(session)

    def publish_will(self, session: Session, now: float) -> None:
        """Publish the will of *session*, if it has one."""
        will = session.will
        if will is None:
            return
        if session.storage is None or self._pending is None:
            self.set_will(session, None)  # [MQTT-3.1.2-10]
            if not session.ended:
                self._store.without_will(session)
            self._publish_for(will.message(now), session.client_id, session.principal, session, FIRST, now)
            return
        session.will = None
        if not session.ended:
            self._store.without_will(session)
            if session.outbox is None:
                self.resting(session, now)
        self._pending.publish(will, session, False, now)
        session.storage.store_will(None)

    def publish_overdue_will(self, session: Session, now: float) -> None:
        """The client of *session*, whose worker has died, is back: publish its will if the delay has passed.

        The timer would have done that, and is cancelled. It may be held until all receivers are known: so is the will.
        """
        will = session.will
        if will is None or session.storage is None or self._pending is None:
            return
        due = self._timers.when(session.will_timer) + TICK / 2  # when it fires
        if will.delay == 0 or (will.delay < session.expiry and due <= now):
            session.will = None
            self._pending.publish(will, session, True, now)
            session.storage.store_will(None)

    def hold_will(self, session: Session) -> PendingWill | None:
        """*session* was taken from a worker that may publish its will, as its client is not connected there any more.

        What to publish if that worker dies before: `end_hold()` follows. A will with a delay is that of the session
        here.
        """
        will = session.will
        if will is None or will.delay or session.storage is None or self._pending is None:
            return None
        session.will = None
        held = self._pending.hold(will, session)
        session.storage.store_will(None)
        return held

    def end_hold(self, pending: PendingWill, published: bool, now: float) -> None:
        """That worker has *published* it, or has died."""
        assert self._pending is not None
        if published:
            self._pending.ended(pending)
        else:
            self._pending.again(pending, now)

    def publish_found_will(self, session: Session, will: Will | None, now: float) -> None:
        """*will* was read with *session*, which was on its way here from a worker that has died.

        If the session came without one, that worker has published it, and nobody may have stored it.
        """
        if will is None or session.will is not None or session.storage is None or self._pending is None:
            return
        self.wills.take(will.held)
        self._pending.publish(will, session, True, now)
        session.storage.store_will(None)

    def publish_again(self, pending: PendingWill, now: float) -> None:
        """Publish *pending* again: a receiver may have lost it."""
        assert self._pending is not None
        self._pending.publish_again(pending, now)

    def has_pending(self, name: bytes) -> bool:
        """Whether the pending will *name* is here."""
        return self._pending is not None and self._pending.has(name)

    def adopt_pending(self, adopted: AdoptedSession, now: float) -> None:
        """Publish the pending will of a worker that has ended, as soon as all its receivers are known."""
        assert self._pending is not None
        self._pending.adopt(adopted, now)

    def publish_orphaned_will(self, client_id: str, user: str | None, fields: WillFields, now: float) -> None:
        """Publish the will of a client whose worker has died [MQTT-3.1.2-8]."""
        authoriser = self._authoriser
        principal = Principal(client_id, user, UNJUDGED if authoriser is None else authoriser.generation)
        self._publish_for(Will(fields).message(now), client_id, principal, None, FIRST, now)

    def _publish_for(
        self,
        message: Message,
        client_id: str,
        principal: Principal,
        publisher: Session | None,
        since: float,
        now: float,
    ) -> None:
        """*since*: see `Publishing.publish_will()`."""
        authoriser = self._authoriser  # its rules may have changed since the client connected
        reason: DropReason | None = None
        if authoriser is not None and not authoriser.may_publish(principal, message.topic):
            reason = DropReason.NOT_AUTHORIZED
            self._counters.dropped(reason, 1)
        else:
            try:
                user = None if publisher is not None or principal.user is None else principal.user.decode()
                reason = self._publish_will(message, client_id, user, publisher, since, now)
            except Exception as error:  # a bug costs the will, and does not leave the end of a session half done
                self._internal_errors.report(error)
        if reason is not None:
            self._log.info("will_refused", client=client_id, reason=reason.label, topic=message.topic.decode())


def _nobody_minds(session: Session, now: float) -> None:
    pass
