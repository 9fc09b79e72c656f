# The lifecycle of a client's connection, from the accepted socket to its end.
#
# Every connection ends through `_leave()`, once, with a reason that is counted and logged. What lies between the socket
# and a connection with a session is the work of a `ConnectAttempt`; what becomes of the session without a connection,
# that of the `SessionLifecycle`.
import socket
from collections.abc import Callable
from typing import Final, cast

from broker.config.schema import Delivery, Flush, Limits
from broker.delivery.completion import Completion
from broker.delivery.flushing import STRATEGIES
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.log import Log
from broker.metrics.counters import Counters
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, ConnAck, Disconnect, Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import REASON_STRING, SERVER_REFERENCE, SESSION_EXPIRY_INTERVAL
from broker.net.reactor import Reactor
from broker.overload.addresses import Address, Addresses
from broker.protocol.connection import GRACE, Connection
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.handshake import Terms, refuse
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.pending_wills import PendingWill
from broker.protocol.publish_answers import keep_unanswered
from broker.protocol.recent_disconnects import RecentDisconnect, RecentDisconnects
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.states import DEADLINES, Input, State
from broker.protocol.timers import CONNECT_DEADLINE, IDLE, KEEP_ALIVE, PENDING_WILL, SESSION_EXPIRY, WILL, Timers
from broker.reasons import CloseReason, ProtocolError
from broker.session.session import Session
from broker.session.will import Will

REFUSABLE: Final = 256  # connections beyond a limit that still get a CONNACK with the reason
DUE: Final = 50  # timers served in one go: each may end a session
RETRY_DEADLINE: Final = 1.0  # seconds until the deadline of a connection is looked at again that has unread input
LOGGED_CLIENT_ID: Final = 200  # characters of a client id that is not verified
NORMAL: Final = 0x00  # the only reason code of a DISCONNECT that withdraws the will


class ConnectionLifecycle:
    def __init__(
        self,
        sessions: SessionLifecycle,
        addresses: Addresses,
        reactor: Reactor,
        timers: Timers,
        counters: Counters,
        disconnects: RecentDisconnects,
        internal_errors: InternalErrors,
        log: Log,
        limits: Limits,
        delivery: Delivery,
        budget: OutboundBudget,
        protection: ConnectionProtection,
        connections: int,
        clock: Callable[[], float],
    ) -> None:
        """*connections*: how many may have a session at once."""
        self.connected = 0  # connections with a session
        self.stopping = False  # each CONNECT is refused
        self.draining = False  # the same, as clients are to use other nodes
        self._timers_held = False
        self._sessions = sessions
        self._addresses = addresses
        self._reactor = reactor
        self._timers = timers
        self._counters = counters
        self._disconnects = disconnects
        self._internal_errors = internal_errors
        self._log = log
        self._limits = limits
        self._delivery = delivery
        self._budget = budget
        self._protection = protection
        self._connections = connections
        self._clock = clock
        self._open = 0  # connections that have not ended
        self._surplus = 0  # those of them that exceed a limit of their address

    # Beginning.

    def open(
        self, sock: socket.socket, address: str, dirty: Ring[Outbox], now: float, handshake: bool
    ) -> Connection | None:
        """Make a connection of an accepted socket. None if there are too many: the caller closes the socket.

        A connection beyond the rate of its address stays open for the CONNACK that refuses it, except if the transport
        does a *handshake* first: the handshake would cost more than the rest of the connection.
        """
        self._counters.sockets_opened += 1
        origin = self._addresses.arrive(address, now) if self._addresses.limited else None
        surplus = None if origin is None else self._exceeded(origin, now)
        if self._open >= self._connections + REFUSABLE:
            self._refuse_socket(CloseReason.CONNECTION_LIMIT, address, origin)
            return None
        if surplus is not None:
            # Refused connections count while they linger, as each of them has a descriptor.
            full = self._surplus + self._reactor.closing() >= REFUSABLE
            if full or (handshake and surplus is CloseReason.CONNECT_RATE):
                self._refuse_socket(surplus, address, origin)
                return None
            self._surplus += 1
        self._open += 1
        delivery = self._delivery
        outbox = Outbox(sock.fileno(), delivery.high_watermark, delivery.low_watermark, self._budget, dirty)
        connection = Connection(sock, address, outbox, now)
        connection.origin = origin
        connection.surplus = surplus
        self.set_deadline(connection, now + self._limits.connect_timeout)
        return connection

    def _exceeded(self, origin: Address, now: float) -> CloseReason | None:
        """The limit of *origin* that its newest connection exceeds. The rate counts all connections, refused or not."""
        if self._addresses.too_fast(origin, now):
            return CloseReason.CONNECT_RATE
        return CloseReason.CONNECTIONS_PER_ADDRESS if self._addresses.crowded(origin) else None

    def _refuse_socket(self, reason: CloseReason, address: str, origin: Address | None) -> None:
        """Count and log a socket that is closed without a connection having been made of it."""
        if origin is not None:
            self._addresses.leave(origin)
        self._counters.closed(reason)
        self._log.warning("connection_refused", reason=reason.label, address=address)

    def out_of_descriptors(self) -> None:
        """The process has no descriptor left for another connection."""
        self._log.warning("out_of_descriptors", connections=self._open)

    def missing_room(self, connection: Connection, former: Connection | None) -> CloseReason | None:
        """The limit of connections that *connection* exceeds, unless it replaces *former*.

        A client whose connection died unnoticed must get its session back however full the worker is: it costs nothing
        more than before.
        """
        if former is None and self.connected >= self._connections:
            return CloseReason.CONNECTION_LIMIT
        origin = connection.origin
        if origin is not None and connection.surplus is CloseReason.CONNECTIONS_PER_ADDRESS:
            if self._addresses.crowded(origin) and (former is None or former.origin is not origin):
                return CloseReason.CONNECTIONS_PER_ADDRESS
        return None

    def connection_of(self, session: Session) -> Connection | None:
        """The connection that *session* has."""
        return None if session.outbox is None else cast(Connection | None, self._reactor.stream_of(session.outbox))

    def begin(
        self, connection: Connection, session: Session, terms: Terms, will: WillFields | None, now: float
    ) -> None:
        """Give *connection* its *session*, under *terms*."""
        connection.enter(Input.SESSION_FOUND)
        self._within_limits(connection)
        connection.attempt = None
        connection.session = session
        self.connected += 1
        self._reactor.mark_authenticated(connection)
        connection.replays = self._sessions.replays.pop(session, None)
        connection.wants_reasons = terms.wants_reasons
        connection.keep_alive = terms.keep_alive * GRACE
        self._timers.cancel(connection.timer, connection)
        if terms.keep_alive:
            connection.timer = self._timers.set(now + connection.keep_alive, KEEP_ALIVE, connection)
        if self._timers_held:
            self._sessions.publish_overdue_will(session, now)
        self._sessions.stop_timers(session)
        session.expiry = terms.expiry
        self._sessions.connected(session)
        self._sessions.set_will(session, None if will is None else Will(will))  # [MQTT-3.1.2-7], 3.1.1 [MQTT-3.1.2-12]
        self.choose_flushing(connection, session)
        self._protection.arrive(connection, session, now)
        session.attach(
            connection.outbox, connection.version, terms.receive_maximum, terms.maximum_packet, terms.alias_maximum
        )
        if session.transfer_filter is not None:
            connection.outbox.begin_aside()  # it judges each message
        self._sessions.limits.listener.attached(session, terms.wants_marks, now)

    def choose_flushing(self, connection: Connection, session: Session) -> None:
        """Have *connection* flush as the kind of the client of *session* asks for."""
        kind: Flush = self._delivery.device if session.expiry else self._delivery.non_persistent
        if session.storage is not None and session.storage.application:
            kind = self._delivery.application
        connection.outbox.strategy = STRATEGIES[kind.flush]
        connection.outbox.enough = kind.buffered_msg_count

    def _within_limits(self, connection: Connection) -> None:
        """*connection* is within the limits of its address now, or ends: it does not count as surplus any more."""
        if connection.surplus is not None:
            connection.surplus = None
            self._surplus -= 1

    # Ends.

    def disconnect(self, connection: Connection, session: Session, packet: Disconnect, now: float) -> None:
        """Close *connection*, as its client asks in a DISCONNECT [MQTT-3.14.4-3]."""
        expiry = packet.properties.get(SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry, int):
            if session.expiry == 0 and expiry != 0:
                raise ProtocolError(CloseReason.PROTOCOL_ERROR, "session expiry set in DISCONNECT only")  # 3.14.2.2.2
            session.expiry = min(expiry, int(self._limits.session_expiry))
        if packet.code == NORMAL:
            self._sessions.withdraw_will(session)
        self._leave(connection, Input.DISCONNECT, CloseReason.CLIENT_DISCONNECTED, "", now)
        self._reactor.close(connection, now)

    def close(
        self, connection: Connection, reason: CloseReason, now: float, detail: str = "", reference: str = ""
    ) -> None:
        """Close *connection*, with a DISCONNECT if its version has one for a client.

        *reference*: how to reach the server that the client is to use; "": it is not told.

        Only a client that has had its CONNACK gets a DISCONNECT [MQTT-3.14.0-1], with the code of *reason*
        [MQTT-3.14.2-1] and at most a reason string and a reference: no expiry [MQTT-3.14.2-2], no user properties
        [MQTT-3.14.2-4]. It is the last packet [MQTT-3.14.4-1], and the connection is closed with it or without it
        [MQTT-3.14.4-2], [MQTT-4.13.2-1].
        """
        if connection.ended():
            return
        session = connection.session
        if session is not None and connection.version == V5 and reason.code:
            where: Properties = {SERVER_REFERENCE: reference} if reference else {}
            properties: Properties = {**where}
            if detail and connection.wants_reasons:
                properties[REASON_STRING] = detail
            goodbye = encode(Disconnect(reason.code, properties), V5)
            if session.maximum_packet and len(goodbye) > session.maximum_packet:  # [MQTT-3.14.2-3]
                goodbye = encode(Disconnect(reason.code, where), V5)
                if len(goodbye) > session.maximum_packet:
                    goodbye = encode(Disconnect(reason.code), V5)
            connection.outbox.answer(goodbye)
            self._counters.answers_sent += 1
        self._leave(connection, Input.CLOSE, reason, detail, now)
        self._reactor.close(connection, now)

    def failed(self, connection: Connection, error: Exception, now: float) -> None:
        """Report *error*, a bug in serving *connection*, and close the connection. 3.1.1 [MQTT-4.8.0-2]"""
        self._internal_errors.report_for(connection.address, error)
        self.close(connection, CloseReason.INTERNAL_ERROR, now)

    def reject(self, connection: Connection, error: ProtocolError, now: float) -> None:
        """Close *connection*, whose client broke the protocol [MQTT-4.13.1-1]."""
        if connection.session is None:
            self.refuse(connection, error.reason, error.detail, now)
        else:
            self.close(connection, error.reason, now, error.detail)

    def refuse(self, connection: Connection, reason: CloseReason, detail: str, now: float) -> None:
        """Close *connection* without a session; its CONNACK names *reason*, if the version has a code for it."""
        connack = refuse(connection.version, reason) if connection.version else None
        self.refuse_with(connack, connection, reason, detail, now)

    def refuse_with(
        self, connack: ConnAck | None, connection: Connection, reason: CloseReason, detail: str, now: float
    ) -> None:
        """Close *connection* without a session, after *connack* if there is one [MQTT-3.2.2-7]."""
        if connack is not None:
            connection.outbox.answer(encode(connack, connection.version))
            self._counters.answers_sent += 1
        self._counters.connects_refused += 1
        self._leave(connection, Input.REFUSE, reason, detail, now)
        self._reactor.close(connection, now)

    def evict(self, session: Session, withdraw: bool = True) -> None:
        """End *session*, and its connection: another worker has a session of this client.

        *withdraw*: see `SessionLifecycle.end()`.
        """
        now = self._clock()
        connection = self.connection_of(session)
        if connection is not None:
            self.close(connection, CloseReason.SESSION_TAKEN_OVER, now)
        if session.ended:
            return
        lost = self._sessions.disown(session)
        publishers = [self._abandon(message.as_published().completion, now) for message in lost]
        self._sessions.end(session, now, withdraw)
        for publisher in publishers:  # now, as the wills of these connections would be lost in this session
            if publisher is not None:
                self.close(publisher, CloseReason.RECEIVER_MOVED, now)

    def abandon(
        self, completion: Completion | None, now: float, reason: CloseReason = CloseReason.RECEIVER_MOVED
    ) -> None:
        """A receiver of the publish of *completion* may have lost it: nobody answers it, so it is published again.

        *reason*: of the end of its connection.
        """
        publisher = self._abandon(completion, now)
        if publisher is not None:
            self.close(publisher, reason, now)

    def _abandon(self, completion: Completion | None, now: float) -> Connection | None:
        """As `abandon()`; the connection that is to be closed, if there is one."""
        if completion is None or completion.abandoned:  # by another receiver
            return None
        completion.abandoned = True
        queue = completion.queue
        publisher = None if queue is None else queue.abandoned(now)
        return None if publisher is None else cast(Connection | None, self._reactor.stream_of(publisher))

    def dismiss(self, gone: Callable[[str], bool], now: float) -> None:
        """Close the connections of all users for whom *gone* returns true."""
        for stream in self._reactor.streams():
            connection = cast(Connection, stream)
            if connection.user is not None and gone(connection.user):
                self.close(connection, CloseReason.NOT_AUTHORIZED, now, "its password is no longer in force")

    def lost(self, connection: Connection, reason: CloseReason, now: float) -> None:
        """End *connection*: its client is gone or takes no more bytes, so nothing can be sent to it."""
        if not connection.ended():
            self._leave(connection, Input.PEER_GONE, reason, "", now)
        self._reactor.destroy(connection)

    def refuse_attempts(self, reason: CloseReason, now: float) -> None:
        """Refuse each CONNECT that is not answered yet."""
        for stream in self._reactor.streams():
            connection = cast(Connection, stream)
            if connection.attempt is not None:
                self.refuse(connection, reason, "", now)

    def stop(self, now: float) -> None:
        """Close all connections because the worker shuts down (3.14.2.1: 0x8B), and refuse each further CONNECT."""
        self.stopping = True
        for stream in self._reactor.streams():
            connection = cast(Connection, stream)
            if connection.attempt is not None:
                self.refuse(connection, CloseReason.SHUTTING_DOWN, "", now)
            else:
                self.close(connection, CloseReason.SHUTTING_DOWN, now)
        self._sessions.limits.listener.flush(now)

    def _leave(self, connection: Connection, event: Input, reason: CloseReason, detail: str, now: float) -> None:
        """What every end of a connection has in common."""
        attempt = connection.attempt
        if attempt is not None:
            attempt.cancel(now)
            connection.attempt = None
        connection.enter(event)
        self._open -= 1
        self._within_limits(connection)
        if connection.origin is not None:
            self._addresses.leave(connection.origin)
        self._counters.closed(reason)
        self._timers.cancel(connection.timer, connection)
        session = connection.session
        facts: dict[str, object] = {"reason": reason.label, "address": connection.address}
        disconnect = RecentDisconnect(reason, detail, connection.address, now)
        if session is not None:
            facts["client"] = session.client_id
            self._disconnects.note_disconnect(session.client_id, disconnect)
        elif attempt is not None and attempt.named:
            facts["named"] = attempt.named[:LOGGED_CLIENT_ID]
            self._disconnects.note_refusal(attempt.named, disconnect)
        if detail:
            facts["detail"] = detail
        self._log.info("client_closed", **facts)
        if session is None:
            return
        self.connected -= 1
        if connection.replays is not None and session.expiry:
            self._sessions.replays[session] = connection.replays
        connection.session = None
        connection.replays = None
        session.detach()
        if connection.answers is not None:
            keep_unanswered(session, connection.answers.discard())
            connection.answers = None
        self._protection.leave(connection, now)
        self._sessions.rest(session, now)

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        if self._timers_held:
            return now + IDLE
        for kind, whom in self._timers.pop_due(now, DUE):
            try:
                self._fire(kind, whom, now)
            except Exception as error:
                self._internal_errors.report(error)
        return self._timers.next_due(now)

    def hold_timers(self) -> None:
        """No expiry and no will of a session is due before `release_timers()`: not all of its receivers are known."""
        self._timers_held = True

    def release_timers(self) -> None:
        self._timers_held = False
        self._reactor.wake()

    def _fire(self, kind: int, whom: object, now: float) -> None:
        if kind == KEEP_ALIVE:
            self._check_keep_alive(cast(Connection, whom), now)
        elif kind == CONNECT_DEADLINE:
            self._deadline_passed(cast(Connection, whom), now)
        elif kind == SESSION_EXPIRY:
            self._sessions.expire(cast(Session, whom), now)
        elif kind == WILL:
            self._sessions.publish_will(cast(Session, whom), now)
        elif kind == PENDING_WILL:
            self._sessions.publish_again(cast(PendingWill, whom), now)

    def set_deadline(self, connection: Connection, when: float) -> None:
        """The current step of *connection*, which has no session yet, has to be done at the time *when*."""
        self._timers.cancel(connection.timer, connection)
        connection.timer = self._timers.set(when, CONNECT_DEADLINE, connection)

    def _deadline_passed(self, connection: Connection, now: float) -> None:
        if connection.attempt is not None:
            connection.attempt.deadline_passed(now)
        elif connection.queued and connection.read_at < connection.since + self._limits.connect_timeout:
            # What the client has sent in time waits for the worker, and may be its CONNECT. One look is enough: else
            # key updates and pings would extend the deadline without end.
            self.set_deadline(connection, now + RETRY_DEADLINE)
        else:
            self.close(connection, DEADLINES[connection.protocol_state], now)

    def _check_keep_alive(self, connection: Connection, now: float) -> None:
        silent_since = now if self._protection.causes_silence(connection) else connection.heard
        due = silent_since + connection.keep_alive
        if now < due:
            connection.timer = self._timers.set(due, KEEP_ALIVE, connection)
        elif connection.queued and not connection.paused:  # what the client has sent waits for the worker
            connection.timer = self._timers.set(now + RETRY_DEADLINE, KEEP_ALIVE, connection)
        else:  # nor did it ping [MQTT-3.1.2-20]
            self.close(connection, DEADLINES[State.LIVE], now)  # [MQTT-3.1.2-22]
