# The hub: finds the packets in what a connection has received, and calls the part of the broker that each is for.
#
# The hub decides nothing itself. It reads PUBLISH and plain acknowledgements, nearly all of the traffic, in place and
# without packet objects; decode() makes an object of every other packet. The reactor calls the protocol through the
# hub, so that an exception costs the connection that it came by, and not the worker.
import socket
from collections.abc import Callable
from typing import Final, cast

from broker.delivery.outbox import Outbox
from broker.delivery.ring import Ring
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.fields import protocol_error
from broker.mqtt.packets import (
    AUTH,
    CONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Ack,
    Auth,
    Disconnect,
    PingReq,
    Subscribe,
    Unsubscribe,
)
from broker.mqtt.scanner import read_header
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.service import Service
from broker.net.stream import LARGE_READ, OPEN, Stream
from broker.overload.quantum import ANSWER_COST, CONNECT_COST, VISIT_COST
from broker.protocol.background import Background
from broker.protocol.connect_attempt import ConnectAttempts
from broker.protocol.connection import Connection
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.publishing import Publishing
from broker.protocol.read_ahead import read_ahead
from broker.protocol.states import Input, State
from broker.protocol.subscribing import Subscribing
from broker.reasons import CloseReason, ProtocolError
from broker.routing.fanout import Deliveries
from broker.routing.routes import Routes
from broker.session.session import Session

CONNECT_BYTES: Final = 256 * 1024  # will, user name and password are at most 64 KiB each
PINGRESP: Final = b"\xd0\x00"
SUCCESS: Final = 0x00
# Pauses in which acknowledgements and PINGREQ are taken.
READS_AHEAD: Final = Pause.OVERLOAD | Pause.ANSWERS


class Hub(Service):
    def __init__(
        self,
        attempts: ConnectAttempts,
        lifecycle: ConnectionLifecycle,
        subscribing: Subscribing,
        publishing: Publishing,
        routes: Routes,
        deliveries: Deliveries,
        reactor: Reactor,
        counters: Counters,
        background: Background,
        protection: ConnectionProtection,
        internal_errors: InternalErrors,
        clock: Callable[[], float],
        *,
        packet_bytes: int,
        clients: HeavyHitters,
    ) -> None:
        self._attempts = attempts
        self._lifecycle = lifecycle
        self._subscribing = subscribing
        self._publishing = publishing
        self._routes = routes
        self._deliveries = deliveries
        self._reactor = reactor
        self._counters = counters
        self._background = background
        self._protection = protection
        self._internal_errors = internal_errors
        self._clock = clock
        self._packet_bytes = packet_bytes
        self._clients = clients

    # What the reactor calls.

    def open(
        self, sock: socket.socket, address: str, dirty: Ring[Outbox], now: float, handshake: bool
    ) -> Stream | None:
        return self._lifecycle.open(sock, address, dirty, now, handshake)

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        connection = cast(Connection, stream)
        try:
            return self._take_packets(connection, quantum, now)
        except ProtocolError as error:
            self._lifecycle.reject(connection, error, now)
        except Exception as error:
            self._lifecycle.failed(connection, error, now)
        return quantum

    def serve_while_paused(self, stream: Stream, now: float) -> int:
        connection = cast(Connection, stream)
        try:
            return self._read_ahead(connection, now)
        except ProtocolError as error:
            self._lifecycle.reject(connection, error, now)
        except Exception as error:
            self._lifecycle.failed(connection, error, now)
        return 1

    def refuse(self, stream: Stream, error: ProtocolError, now: float) -> None:
        self._lifecycle.reject(cast(Connection, stream), error, now)

    def drained(self, stream: Stream, now: float) -> None:
        connection = cast(Connection, stream)
        try:
            session = connection.session
            if session is not None:
                session.pump(now)
                self._subscribing.continue_replays(connection)
            self._reactor.resume(connection, Pause.REPLIES)
        except Exception as error:
            self._lifecycle.failed(connection, error, now)

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        try:
            self._lifecycle.lost(cast(Connection, stream), reason, now)
        except Exception as error:  # in what follows from its end
            self._internal_errors.report(error)
            self._reactor.destroy(stream)

    def shed(self, stream: Stream, reason: CloseReason, now: float) -> None:
        connection = cast(Connection, stream)
        try:
            self._lifecycle.close(connection, reason, now)
        except Exception as error:
            self._internal_errors.report(error)
            self._reactor.destroy(stream)

    def tick(self, now: float) -> float:
        due = min(self._lifecycle.tick(now), self._attempts.tick(now), self._protection.tick(now))
        return min(due, self._background.tick(now))

    def work(self, until: float) -> bool:
        if not self._deliveries.unfinished and not self._subscribing.busy() and not self._background.busy():
            return False
        try:
            left = self._deliveries.work(until)
        except Exception as error:  # it costs the publish that failed
            source = self._deliveries.abandon()
            publisher = None if source is None else self._reactor.stream_of(source)
            if publisher is None:
                self._internal_errors.report(error)
            else:
                self._lifecycle.failed(cast(Connection, publisher), error, self._clock())
            left = True
        try:
            left = self._background.work(until) or left
            return self._subscribing.work(until) or left
        except Exception as error:
            self._internal_errors.report(error)
            return True

    def out_of_descriptors(self) -> None:
        self._lifecycle.out_of_descriptors()

    # Packets.

    def _take_packets(self, connection: Connection, quantum: int, now: float) -> int:
        """Process the complete packets in the input, for about *quantum* units; the units used."""
        data = connection.input
        position = connection.position
        end = len(data)
        spent = 0
        packets = 0
        counters = self._counters
        routes = self._routes
        published = counters.publishes_received
        published_bytes = counters.publish_bytes_received
        connection.needs = 0
        limit = self._packet_bytes if connection.session is not None else min(CONNECT_BYTES, self._packet_bytes)
        while spent < quantum and position < end and not connection.paused:
            first = data[position]
            body = position + 2
            if body <= end and data[position + 1] < 0x80:  # a short packet: the call would cost as much as a PUBACK
                stop = body + data[position + 1]
            else:
                body, stop = read_header(data, position, end, connection.version)
            if stop - position > limit:
                raise ProtocolError(CloseReason.PACKET_TOO_LARGE, f"{stop - position} bytes")  # [MQTT-3.2.2-15]
            if stop > end:
                check_first_byte(first, connection.version)
                connection.needs = stop - position
                break
            session = connection.session
            if session is None:
                spent += self._before_session(connection, data, position, body, stop, now)
                position = stop
                connection.position = stop
                packets += 1
                limit = self._packet_bytes
                if connection.state != OPEN:  # refused: the rest of the input is discarded [MQTT-3.1.4-6]
                    break
                continue
            if first & 0xF0 == 0x30:
                position, units = self._publishing.take(
                    connection, session, data, position, body, stop, quantum - spent, now
                )
                spent += units
                if routes.visits:
                    spent += self._charge_visits(connection)
            elif stop - body == 2 and (first == 0x40 or first == 0x50 or first == 0x62 or first == 0x70):
                packet_id = data[body] << 8 | data[body + 1]
                # As `_acknowledged()` does: the call would cost as much as the rest.
                if first == 0x40 and packet_id:  # PUBACK, the most frequent one
                    session.puback(packet_id, now)
                elif first == 0x50 and packet_id:
                    session.pubrec(packet_id, SUCCESS, now)
                elif first == 0x62 and packet_id:
                    session.pubrel(packet_id)
                elif packet_id:
                    session.pubcomp(packet_id, now)
                else:
                    raise protocol_error("packet identifier 0")
                spent += ANSWER_COST
                packets += 1
                position = stop
            else:
                connection.position = stop
                units = self._other(connection, session, first, data, body, stop, now)
                if units == 0:  # it waits
                    spent += ANSWER_COST
                    connection.position = position
                    break
                spent += units
                if routes.visits:
                    spent += self._charge_visits(connection)
                if connection.pending is not None:  # it goes on with its next turn
                    spent = max(spent, quantum)
                    connection.position = position
                    break
                packets += 1
                position = stop
                if connection.state != OPEN:
                    break
            connection.position = position
        counters.packets_received += packets
        session = connection.session
        if session is not None and spent:
            messages = counters.publishes_received - published
            self._clients.add(session.client_id, spent, messages, counters.publish_bytes_received - published_bytes)
            if session.replayed and connection.client is not None:
                self._protection.charge_replays(connection.client)
        if connection.state == OPEN:
            if connection.read_ahead:
                connection.read_ahead = max(0, connection.read_ahead - connection.left + end - position)
            connection.left = end - position
            if position == end:  # an idle connection holds no input
                connection.input = b""
                connection.position = 0
            elif position > LARGE_READ or (position > end >> 1 and connection.waits()):
                # Nor does one that waits keep all before what is left, which alone counts in the budget of input.
                connection.input = data[position:]
                connection.position = 0
            if packets or counters.publishes_received != published or (spent and self._protection.honours_silence()):
                connection.heard = now  # [MQTT-3.1.2-22]
            if connection.paused & READS_AHEAD and connection.left > connection.read_ahead:
                self._read_ahead(connection, now)
            outbox = connection.outbox
            if outbox.size and outbox.reply_backlog():
                self._reactor.pause(connection, Pause.REPLIES)
            if connection.replays is not None:
                self._subscribing.continue_replays(connection)
        return spent

    def _charge_visits(self, connection: Connection) -> int:
        """Charge what was visited to make a route to the credits of *connection*; the units of it."""
        visits = self._routes.take_visits()
        if connection.client is not None:
            self._protection.charge_visits(connection.client, visits)
        return VISIT_COST * visits

    def _read_ahead(self, connection: Connection, now: float) -> int:
        """Take acknowledgements and PINGREQ out of the input of *connection* that was not read ahead yet; how many.

        The packet at the beginning of the input waits, or an earlier one has not been answered yet. PINGREQ is left
        where a throttled client counts as silent (`overload.keepalive_while_throttled = "strict"`).
        """
        session = connection.session
        if session is None:
            return 0
        data = connection.input
        begin = connection.position + connection.read_ahead
        pings = not connection.paused & Pause.OVERLOAD or self._protection.honours_silence()
        found = read_ahead(data, begin, connection.version, pings)
        packets = found.pings + len(found.acknowledgements)
        if packets:
            connection.input = data[connection.position : begin] + found.left
            connection.position = 0
            connection.left = len(connection.input)
            connection.needs = 0  # of a packet that is complete, and may be taken
        connection.read_ahead = connection.left - found.unparsed
        if packets == 0:
            return 0
        connection.heard = now
        for _ in range(found.pings):
            self._counters.answers_sent += 1
            connection.outbox.answer(PINGRESP)
        for kind, packet_id in found.acknowledgements:
            self._acknowledged(session, kind, packet_id, SUCCESS, now)
        self._counters.packets_received += packets
        return packets

    def _acknowledged(self, session: Session, kind: int, packet_id: int, code: int, now: float) -> None:
        """Process a PUBACK, PUBREC, PUBREL or PUBCOMP."""
        if packet_id == 0:
            raise protocol_error("packet identifier 0")
        if kind == PUBACK:
            session.puback(packet_id, now)
        elif kind == PUBREC:
            session.pubrec(packet_id, code, now)
        elif kind == PUBREL:
            session.pubrel(packet_id)
        elif kind == PUBCOMP:
            session.pubcomp(packet_id, now)

    def _before_session(
        self, connection: Connection, data: bytes, position: int, body: int, stop: int, now: float
    ) -> int:
        """Process a packet of a client that has no session yet: a CONNECT [MQTT-3.1.0-1]; the units used."""
        if connection.protocol_state is State.NEW:
            check_first_byte(data[position], 0)
        kind = data[position] >> 4
        if kind == CONNECT:
            self._attempts.connect(connection, data, position, body, stop, now)
        else:  # AUTH is legal while the client is authenticated, but each CONNECT that names a method is refused
            connection.enter(Input.AUTH if kind == AUTH else Input.PACKET)
        return CONNECT_COST

    def _other(
        self, connection: Connection, session: Session, first: int, data: bytes, body: int, stop: int, now: float
    ) -> int:
        """Process any packet but a PUBLISH or a plain acknowledgement; the units used, 0 if it has to wait."""
        if connection.pending is not None:  # this packet, some of whose filters have been taken
            return self._subscribing.continue_packet(connection, session, connection.pending, now)
        if first >> 4 == CONNECT:  # before it is decoded: mistakes in a CONNECT have codes for a CONNACK only
            connection.enter(Input.CONNECT)
        packet = decode(first, data, body, stop, connection.version)
        if isinstance(packet, Ack):
            self._acknowledged(session, packet.kind, packet.packet_id, packet.code, now)
        elif isinstance(packet, PingReq):
            self._counters.answers_sent += 1
            connection.outbox.answer(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Subscribe):
            if self._protection.defers(connection, len(packet.filters), now):
                return 0
            return self._subscribing.subscribe(connection, session, packet, now)
        elif isinstance(packet, Unsubscribe):
            return self._subscribing.unsubscribe(connection, session, packet)
        elif isinstance(packet, Disconnect):
            self._lifecycle.disconnect(connection, session, packet, now)
        elif isinstance(packet, Auth):
            connection.enter(Input.AUTH)  # [MQTT-4.12.0-7], [MQTT-4.12.1-1]: there is no authentication method
        else:
            raise protocol_error(f"packet type {first >> 4} from a client")
        return ANSWER_COST
