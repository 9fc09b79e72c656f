# ConnectionLifecycle: who comes in, who leaves and how, and what is left of those who left.
#
# Every connection ends through `_leave()`, once, with a reason that is counted and logged. After it the session is
# without a connection: it ends at once, or when its expiry has passed, and its will is published in between as
# MQTT says.
# What comes before its session, from the bytes of CONNECT to who sent it, is in arrivals.py.
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from broker.config.schema import Delivery, Limits
from broker.delivery.flushing import STRATEGIES
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.pauses import Pauses
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Connect, Disconnect, Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import REASON_STRING, SESSION_EXPIRY_INTERVAL
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import OPEN
from broker.overload.addresses import Address, Addresses
from broker.overload.connects import Connects
from broker.protocol.connection import GRACE, Connection, Replay
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.handshake import Terms, accept, refuse
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.recent_disconnects import RecentDisconnect, RecentDisconnects
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import CONNECT_DEADLINE, KEEP_ALIVE, REFUSAL, SESSION_EXPIRY, WILL, Timers
from broker.reasons import CloseReason, DropReason, PauseReason, ProtocolError
from broker.routing.authority import Authoriser
from broker.routing.fanout import Deliveries
from broker.session.message import Message
from broker.session.origin import Origin
from broker.session.principal import NOBODY, Principal
from broker.session.session import QueueBudget, Session, SessionLimits, Subscription
from broker.session.will import Will
from broker.store.sessions import SessionStore

REFUSABLE: Final = 256  # connections beyond a limit that are still told so by a CONNACK
DUE: Final = 50  # timers served in one go: each may end a session
LATE_LOOK: Final = 1.0  # seconds that we have for looking at what a stranger has sent, again and again
LONGEST_NAME: Final = 200  # characters of a client id that nobody has verified, for the log
NORMAL: Final = 0x00  # the only end of a client's that takes its will back


class ConnectionLifecycle:
    def __init__(
        self,
        store: SessionStore,
        subscribing: Subscribing,
        deliveries: Deliveries,
        publish: Callable[[Message, Session | None, float], None],
        internal_errors: InternalErrors,
        addresses: Addresses,
        reactor: Reactor,
        timers: Timers,
        counters: Counters,
        log: Log,
        limits: Limits,
        delivery: Delivery,
        budget: OutboundBudget,
        queue_budget: QueueBudget,
        connects: Connects,
        pauses: Pauses,
        protection: ConnectionProtection,
        connections: int,
        clock: Callable[[], float],
        authoriser: Authoriser | None,
        origin: Origin,
    ) -> None:
        self.connected = 0  # connections with a session
        self.stopping = False  # nobody new is let in
        self.disconnects = RecentDisconnects()
        self._publish_message = publish
        self._internal_errors = internal_errors
        self._store = store
        self._subscribing = subscribing
        self._deliveries = deliveries
        self._addresses = addresses
        self._reactor = reactor
        self._timers = timers
        self._counters = counters
        self._log = log
        self._limits = limits
        self.session_limits = SessionLimits(
            inflight=limits.inflight,
            pending=limits.pending,
            queue=limits.queue,
            queue_bytes=limits.queue_bytes,
            budget=queue_budget,
            origin=origin,
        )
        self._delivery = delivery
        self._budget = budget
        self._queue_budget = queue_budget
        self._connects = connects
        self._pauses = pauses
        self._protection = protection
        self._most = connections
        self._clock = clock
        self._authoriser = authoriser
        self._open = 0  # sockets
        self._surplus = 0  # those of them that are over a limit of their address
        self.unreplayed: dict[
            Session, dict[Subscription, Replay]
        ] = {}  # retained messages owed to sessions that are away

    # Coming.

    def open(self, sock: socket.socket, address: str, dirty: Ring[Outbox], now: float) -> Connection | None:
        """A socket was accepted: it has `connect_timeout` for its CONNECT. None if it has to go at once."""
        self._counters.sockets_opened += 1
        origin = self._addresses.arrive(address, now) if self._addresses.limited else None
        surplus = None if origin is None else self._over_its_address(origin, now)
        if self._open >= self._most + REFUSABLE:
            self._turn_away(CloseReason.CONNECTION_LIMIT, address, origin)
            return None
        if surplus is not None:
            # Those whom we told linger for a moment: they have descriptors, too.
            if self._surplus + self._reactor.closing() >= REFUSABLE:
                self._turn_away(surplus, address, origin)
                return None
            self._surplus += 1
        self._open += 1
        delivery = self._delivery
        outbox = Outbox(sock.fileno(), delivery.high_watermark, delivery.low_watermark, self._budget, dirty)
        connection = Connection(sock, address, outbox, now)
        connection.origin = origin
        connection.surplus = surplus
        connection.timer = self._timers.set(now + self._limits.connect_timeout, CONNECT_DEADLINE, connection)
        return connection

    def _over_its_address(self, origin: Address, now: float) -> CloseReason | None:
        """The limit of *origin* that its newest connection is over."""
        if self._addresses.crowded(origin):
            return CloseReason.CONNECTIONS_PER_ADDRESS
        return CloseReason.CONNECT_RATE if self._addresses.too_fast(origin, now) else None

    def _turn_away(self, reason: CloseReason, address: str, origin: Address | None) -> None:
        """Nothing is left even for being told: the socket is closed."""
        if origin is not None:
            self._addresses.leave(origin)
        self._counters.closed(reason)
        self._log.warning("connection_refused", reason=reason.label, address=address)

    def delay(self, client_id: str) -> None:
        """The CONNECT of *client_id*, if that is who it is, waits for its turn."""
        self._counters.connects_delayed += 1
        self._log.info("client_throttled", client=client_id, reason=PauseReason.CONNECT.label)

    def claimed(
        self,
        connection: Connection,
        packet: Connect,
        terms: Terms,
        assigned: str,
        principal: Principal,
        found: Session | None,
    ) -> None:
        """The store has answered: go on with the session *found*, or with a new one."""
        connection.claiming = False
        now = self._clock()
        if connection.state == OPEN:
            self._reactor.resume(connection, Pause.CONNECT)
            self._welcome(connection, packet, terms, assigned, principal, found, now)
        if found is not None and found.outbox is None and found.expiry_timer == 0 and not found.ended:
            self._rest(found, now)  # another worker gave it up for a client that is gone, or had to go

    def not_claimed(self, connection: Connection, reason: CloseReason) -> None:
        """The store cannot say whether there is a session."""
        connection.claiming = False
        if connection.state == OPEN:
            self._reactor.resume(connection, Pause.CONNECT)
            self.refuse(connection, reason, "", self._clock())

    def _welcome(
        self,
        connection: Connection,
        packet: Connect,
        terms: Terms,
        assigned: str,
        principal: Principal,
        found: Session | None,
        now: float,
    ) -> None:
        connack = accept(packet, terms, False, assigned, self._limits)
        if terms.maximum_packet and len(encode(connack, packet.version)) > terms.maximum_packet:
            self._counters.connects_refused += 1
            self._leave(connection, CloseReason.PACKET_TOO_LARGE, "CONNACK", now)  # nor any other word [MQTT-3.1.2-24]
            self._reactor.close(connection, now)
            return
        former = None if found is None or found.outbox is None else self._reactor.stream_of(found.outbox)
        reason = self._no_room(connection, found, cast(Connection | None, former))
        if reason is not None:
            self.refuse(connection, reason, "", now)
            return
        if former is not None:
            self.close(cast(Connection, former), CloseReason.SESSION_TAKEN_OVER, now)  # [MQTT-3.1.4-3]
        if found is not None and packet.clean_start and not found.ended:  # [MQTT-3.1.4-4]
            self.end(found, now)  # [MQTT-3.1.2-4], 3.1.1 [MQTT-3.1.2-6]
        if found is None or found.ended:
            session = Session(packet.client_id, self.session_limits, self._counters)  # [MQTT-3.1.2-6]
            self._store.keep(session)  # session present stays 0 [MQTT-3.2.2-2]
        else:
            session = found  # [MQTT-3.1.2-5], 3.1.1 [MQTT-3.1.2-4]
            connack.session_present = True  # [MQTT-3.2.2-3]
        self._act_for(session, principal)
        self._begin(connection, session, packet, terms, now)
        connection.outbox.answer(encode(connack, packet.version))  # [MQTT-3.1.4-5], [MQTT-3.2.0-1], [MQTT-3.2.0-2]
        self._counters.answers_sent += 1
        self._counters.connects_accepted += 1
        self.connected += 1
        self._log.info(
            "client_connected",
            client=session.client_id,
            address=connection.address,
            transport=connection.transport,
            version=packet.version,
            clean=packet.clean_start,
            keep_alive=terms.keep_alive,
        )
        session.resume(now)
        self._subscribing.go_on(connection)

    def _no_room(self, connection: Connection, found: Session | None, former: Connection | None) -> CloseReason | None:
        """The limit that is reached, if *connection* does not take the place of *former*.

        A client whose connection died unnoticed must get its session back, however full we are: it costs nothing more.
        """
        origin = connection.origin
        if former is None and self.connected >= self._most:
            return CloseReason.CONNECTION_LIMIT
        if origin is not None and connection.surplus is CloseReason.CONNECTIONS_PER_ADDRESS:
            if self._addresses.crowded(origin) and (former is None or former.origin is not origin):
                return CloseReason.CONNECTIONS_PER_ADDRESS
        if found is None and self._store.count() >= self._limits.sessions:
            return CloseReason.SESSION_LIMIT
        return None

    def _act_for(self, session: Session, principal: Principal) -> None:
        """*session*, which has no connection, acts for *principal* from now on.

        It may have come from another user, or the rules have changed since: then it is not routed as before, and what
        waits for it is not sent if that may not be read now.
        """
        former = session.principal
        session.principal = principal
        authoriser = self._authoriser
        if authoriser is None or former is NOBODY:
            return
        if not principal.acts_for(former):
            self._subscribing.judge_again(session)
        elif principal.judged == former.judged:
            return
        self.share_again(session)
        session.withhold(partial(authoriser.may_receive, principal))

    def _begin(self, connection: Connection, session: Session, packet: Connect, terms: Terms, now: float) -> None:
        self._settled(connection)
        connection.session = session
        self._reactor.mark_authenticated(connection)
        connection.replays = self.unreplayed.pop(session, None)
        connection.wants_reasons = terms.wants_reasons
        connection.keep_alive = terms.keep_alive * GRACE
        self._timers.cancel(connection.timer, connection)
        if terms.keep_alive:
            connection.timer = self._timers.set(now + connection.keep_alive, KEEP_ALIVE, connection)
        self._timers.cancel(session.expiry_timer, session)  # [MQTT-4.1.0-1]
        self._timers.cancel(session.will_timer, session)  # taken back [MQTT-3.1.3-9]
        session.expiry = terms.expiry
        session.will = None if packet.will is None else Will(packet.will)  # [MQTT-3.1.2-7], 3.1.1 [MQTT-3.1.2-12]
        kind = self._delivery.device if session.expiry else self._delivery.non_persistent
        connection.outbox.strategy = STRATEGIES[kind.flush]
        connection.outbox.enough = kind.buffered_msg_count
        self._protection.arrive(connection, session, now)
        session.attach(
            connection.outbox, packet.version, terms.receive_maximum, terms.maximum_packet, terms.alias_maximum
        )

    def _settled(self, connection: Connection) -> None:
        """*connection* has a right to be here, or is not here any more: the next one over its limits can be told."""
        if connection.surplus is not None:
            connection.surplus = None
            self._surplus -= 1

    # Going.

    def disconnect(self, connection: Connection, session: Session, packet: Disconnect, now: float) -> None:
        """DISCONNECT: the client goes by itself [MQTT-3.14.4-3]."""
        expiry = packet.properties.get(SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry, int):
            if session.expiry == 0 and expiry != 0:
                raise ProtocolError(CloseReason.PROTOCOL_ERROR, "session expiry set in DISCONNECT only")  # 3.14.2.2.2
            session.expiry = min(expiry, int(self._limits.session_expiry))
        if packet.code == NORMAL and session.will is not None:
            session.will = None  # [MQTT-3.14.4-3], [MQTT-3.1.2-10]
            self._store.without_will(session)
        self._leave(connection, CloseReason.CLIENT_DISCONNECTED, "", now)
        self._reactor.close(connection, now)

    def close(self, connection: Connection, reason: CloseReason, now: float, detail: str = "") -> None:
        """End *connection* from our side, and say why where the version has a word for it.

        Only who got our CONNACK hears a DISCONNECT [MQTT-3.14.0-1], with the code of *reason* [MQTT-3.14.2-1] and at
        most a reason string: no expiry [MQTT-3.14.2-2], no user properties [MQTT-3.14.2-4]. It is the last packet
        [MQTT-3.14.4-1], and the end comes with it or without [MQTT-3.14.4-2], [MQTT-4.13.2-1].
        """
        if connection.state != OPEN:
            return
        session = connection.session
        if session is not None and connection.version == V5 and reason.code:
            properties: Properties = {}
            if detail and connection.wants_reasons:
                properties[REASON_STRING] = detail
            goodbye = encode(Disconnect(reason.code, properties), V5)
            if session.maximum_packet and len(goodbye) > session.maximum_packet:
                goodbye = encode(Disconnect(reason.code), V5)  # [MQTT-3.14.2-3]
            connection.outbox.answer(goodbye)
            self._counters.answers_sent += 1
        self._leave(connection, reason, detail, now)
        self._reactor.close(connection, now)

    def failed(self, connection: Connection, error: Exception, now: float) -> None:
        """Report *error*, a mistake of ours in serving *connection*, and close the connection. 3.1.1 [MQTT-4.8.0-2]"""
        self._internal_errors.report_for(connection.address, error)
        self.close(connection, CloseReason.INTERNAL_ERROR, now)

    def reject(self, connection: Connection, error: ProtocolError, now: float) -> None:
        """The client broke MQTT [MQTT-4.13.1-1]."""
        if connection.session is None:
            self.refuse(connection, error.reason, error.detail, now)
        else:
            self.close(connection, error.reason, now, error.detail)

    def refuse(
        self, connection: Connection, reason: CloseReason, detail: str, now: float, connack: ConnAck | None = None
    ) -> None:
        """No session for this connection: CONNACK, if there is a word for it, and the end [MQTT-3.2.2-7].

        *connack*: the one to send, if not the shortest that says *reason*.
        """
        if connack is None and connection.version:
            connack = refuse(connection.version, reason)
        if connack is not None:
            connection.outbox.answer(encode(connack, connection.version))
            self._counters.answers_sent += 1
        self._counters.connects_refused += 1
        self._leave(connection, reason, detail, now)
        self._reactor.close(connection, now)

    def evict(self, session: Session) -> None:
        """Somebody else has *session*, without what is here of it."""
        now = self._clock()
        connection = None if session.outbox is None else self._reactor.stream_of(session.outbox)
        if connection is not None:
            self.close(cast(Connection, connection), CloseReason.SESSION_TAKEN_OVER, now)
        if not session.ended:
            self.end(session, now)

    def dismiss(self, gone: Callable[[str], bool], now: float) -> None:
        """End the connections of those users of whom *gone* is true."""
        for stream in self._reactor.streams():
            connection = cast(Connection, stream)
            if connection.user is not None and gone(connection.user):
                self.close(connection, CloseReason.NOT_AUTHORIZED, now, "its password is no longer in force")

    def lost(self, connection: Connection, reason: CloseReason, now: float) -> None:
        """The peer is gone, or takes nothing any more: nothing can be said to it."""
        if connection.state == OPEN:
            self._leave(connection, reason, "", now)
        self._reactor.destroy(connection)

    def _leave(self, connection: Connection, reason: CloseReason, detail: str, now: float) -> None:
        """What every end of a connection has in common."""
        self._open -= 1
        self._settled(connection)
        if connection.origin is not None:
            self._addresses.leave(connection.origin)
        self._counters.closed(reason)
        self._timers.cancel(connection.timer, connection)
        if connection.waiter is not None:
            self._connects.remove(connection.waiter)
            connection.waiter = None
            self._pauses.let_go(PauseReason.CONNECT, now)
        if connection.check is not None:
            connection.check.abandoned = True
            connection.check = None
        session = connection.session
        named = connection.named if session is None else session.client_id
        disconnect = RecentDisconnect(reason, detail, connection.address, now)
        if session is None:
            self.disconnects.note_refusal(named, disconnect)
        else:
            self.disconnects.note_disconnect(named, disconnect)
        facts: dict[str, object] = {"reason": reason.label, "address": connection.address}
        if session is not None:
            facts["client"] = session.client_id
        elif named:
            facts["named"] = named[:LONGEST_NAME]
        if detail:
            facts["detail"] = detail
        self._log.info("client_closed", **facts)
        if session is None:
            return
        self.connected -= 1
        if connection.replays is not None and session.expiry:
            self.unreplayed[session] = connection.replays
        connection.session = None
        connection.replays = None
        session.detach()
        if connection.answers is not None:
            connection.answers.discard()
            connection.answers = None
        self._protection.leave(connection, now)
        self._rest(session, now)

    def _rest(self, session: Session, now: float) -> None:
        """*session* is without a connection, for as long as it may be."""
        if session.expiry == 0:
            self.end(session, now)
            return
        session.expiry_timer = self._timers.set(now + session.expiry, SESSION_EXPIRY, session)  # [MQTT-3.1.2-23]
        will = session.will
        if will is not None and will.delay < session.expiry:  # later than the session, it goes with the session's end
            if will.delay:
                session.will_timer = self._timers.set(now + will.delay, WILL, session)
            else:
                self._publish_will(session, now)

    def end(self, session: Session, now: float) -> None:
        """The session is over: nothing of it remains [MQTT-4.1.0-2] but what it retained, 3.1.1 [MQTT-3.1.2-7]."""
        self._timers.cancel(session.expiry_timer, session)
        self._timers.cancel(session.will_timer, session)
        self.unreplayed.pop(session, None)
        self._subscribing.withdraw(session)
        self.share_again(session)
        lost = session.end()
        if lost:
            self.disconnects.note_undelivered(session.client_id, lost)
        self._store.forget(session)
        self._publish_will(session, now)  # [MQTT-3.1.2-8]; last, or its own share of a group might take it along

    def share_again(self, session: Session) -> None:
        """What waits in *session* for shared subscriptions goes to other members, soon."""
        self._deliveries.redeliver(session.take_shared(), self._queue_budget)

    def _publish_will(self, session: Session, now: float) -> None:
        will = session.will
        if will is None:
            return
        session.will = None  # [MQTT-3.1.2-10]
        if not session.ended:
            self._store.without_will(session)
        self._publish(will, session.client_id, session.principal, session, now)

    def publish_will(self, client_id: str, user: str | None, fields: WillFields, now: float) -> None:
        """The will of a client whose worker has died [MQTT-3.1.2-8]."""
        authoriser = self._authoriser
        principal = NOBODY if authoriser is None else Principal(client_id, user, authoriser.generation)
        self._publish(Will(fields), client_id, principal, None, now)

    def _publish(self, will: Will, client_id: str, principal: Principal, publisher: Session | None, now: float) -> None:
        authoriser = self._authoriser  # the rules may be others than when it connected
        if authoriser is not None and not authoriser.may_publish(principal, will.topic):
            self._counters.dropped(DropReason.NOT_AUTHORIZED, 1)
            self._log.info(
                "will_refused", client=client_id, reason=DropReason.NOT_AUTHORIZED.label, topic=will.topic.decode()
            )
            return
        try:
            self._publish_message(will.message(now), publisher, now)
        except Exception as error:  # our mistake: it costs the will, and not the end of a connection half done
            self._internal_errors.report(error)

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        for kind, whom in self._timers.pop_due(now, DUE):
            try:
                self._fire(kind, whom, now)
            except Exception as error:
                self._internal_errors.report(error)
        return self._timers.next_due(now)

    def _fire(self, kind: int, whom: object, now: float) -> None:
        if kind == KEEP_ALIVE:
            self._check_keep_alive(cast(Connection, whom), now)
        elif kind == CONNECT_DEADLINE:
            self._check_deadline(cast(Connection, whom), now)
        elif kind == REFUSAL:
            refused = cast(Connection, whom)
            self.refuse(refused, CloseReason.BAD_CREDENTIALS, refused.refusal, now)
        elif kind == SESSION_EXPIRY:
            self._counters.sessions_expired += 1
            self.end(cast(Session, whom), now)
        elif kind == WILL:
            self._publish_will(cast(Session, whom), now)

    def _check_deadline(self, connection: Connection, now: float) -> None:
        if connection.queued and connection.state == OPEN:  # what it has sent waits for us to look at it
            connection.timer = self._timers.set(now + LATE_LOOK, CONNECT_DEADLINE, connection)
        else:
            self.close(connection, CloseReason.CONNECT_TIMEOUT, now)

    def _check_keep_alive(self, connection: Connection, now: float) -> None:
        # We caused the silence of those we hold; those whom we hold back for overload are HiveMQ's case, if so set.
        silent_since = now if self._protection.causes_silence(connection) else connection.heard
        if now >= silent_since + connection.keep_alive:  # nor did it ping [MQTT-3.1.2-20]
            self.close(connection, CloseReason.KEEP_ALIVE_TIMEOUT, now)  # [MQTT-3.1.2-22]
        else:
            connection.timer = self._timers.set(silent_since + connection.keep_alive, KEEP_ALIVE, connection)

    # Trouble and the end.

    def out_of_descriptors(self) -> None:
        """The process has no descriptor left for another connection."""
        self._log.warning("out_of_descriptors", connections=self._open)

    def stop(self, now: float) -> None:
        """Tell everybody that we shut down (3.14.2.1: 0x8B)."""
        self.stopping = True
        for stream in self._reactor.streams():
            connection = cast(Connection, stream)
            if connection.claiming and connection.state == OPEN:  # it has asked, so it is answered
                self.refuse(connection, CloseReason.SHUTTING_DOWN, "", now)
            else:
                self.close(connection, CloseReason.SHUTTING_DOWN, now)
