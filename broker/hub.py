# The hub: takes packets out of what a connection received and has each of them done.
#
# It sequences and decides nothing itself: the wire decodes, routes know the receivers, sessions know what a client
# is owed, reception knows who may come and how one leaves. PUBLISH and the acknowledgements, nearly all of the
# traffic, are read here in place, without a packet object; everything else goes through decode().
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from broker.connection import Connection
from broker.delivery.outbox import Outbox
from broker.fanout import Deliveries
from broker.metrics.counters import Counters
from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.fields import protocol_error, read_length
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Auth,
    Connect,
    Disconnect,
    PingReq,
    Publish,
    Subscribe,
    Unsubscribe,
)
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from broker.net.reactor import LARGE_READ, Reactor, Service
from broker.net.stream import OPEN, Stream
from broker.overload.quantum import ANSWER_COST, BYTES_PER_UNIT_SHIFT, CONNECT_COST, FILTER_COST, PUBLISH_COST
from broker.reasons import CloseReason, DropReason, ProtocolError
from broker.reception import Reception
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.session.session import Session
from broker.session.will import expires_at, forwardable
from broker.subscribing import Subscribing

CONNECT_BYTES: Final = 256 * 1024  # will, user name and password are at most 64 KiB each
PINGRESP: Final = b"\xd0\x00"
RUN: Final = 0x30  # the first byte of a QoS 0 PUBLISH without flags
SUCCESS: Final = 0x00
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NOT_AUTHORIZED: Final = 0x87


class Hub(Service):
    def __init__(
        self,
        reception: Reception,
        subscribing: Subscribing,
        routes: Routes,
        retained: Retained,
        deliveries: Deliveries,
        reactor: Reactor,
        counters: Counters,
        clock: Callable[[], float],
        *,
        packet_bytes: int,
        receive_maximum: int,
        alias_maximum: int,
        qos: int,
        retain: bool,
    ) -> None:
        self._reception = reception
        self._subscribing = subscribing
        self._routes = routes
        self._retained = retained
        self._deliveries = deliveries
        self._reactor = reactor
        self._counters = counters
        self._clock = clock
        self._packet_bytes = packet_bytes
        self._receive_maximum = receive_maximum
        self._alias_maximum = alias_maximum
        self._qos = qos
        self._retain = retain

    # What the reactor calls.

    def open(self, sock: socket.socket, address: str, dirty: deque[Outbox], now: float) -> Stream | None:
        return self._reception.open(sock, address, dirty, now)

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        connection = cast(Connection, stream)
        try:
            return self._take_packets(connection, quantum, now)
        except ProtocolError as error:
            self._reception.reject(connection, error, now)
        except Exception as error:  # our mistake: it costs this connection and not the worker
            self._reception.failed(connection, error, now)
        return quantum

    def refuse(self, stream: Stream, error: ProtocolError, now: float) -> None:
        self._reception.reject(cast(Connection, stream), error, now)

    def drained(self, stream: Stream, now: float) -> None:
        connection = cast(Connection, stream)
        try:
            self._go_on(connection, now)
        except Exception as error:
            self._reception.failed(connection, error, now)

    def _go_on(self, connection: Connection, now: float) -> None:
        """*connection* takes more again."""
        session = connection.session
        if session is not None:
            session.pump(now)
            self._subscribing.go_on(connection)
        if connection.stuffed:
            connection.stuffed = False
            self._reactor.release(connection)

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        try:
            self._reception.lost(cast(Connection, stream), reason, now)
        except Exception as error:  # our mistake, in what its end entails: it must not cost the worker
            self._reception.failed(None, error, now)
            self._reactor.destroy(stream)

    def tick(self, now: float) -> float:
        return self._reception.tick(now)

    def work(self, until: float) -> bool:
        if not self._deliveries.unfinished and not self._subscribing.busy():
            return False
        try:
            left = self._deliveries.work(until)
        except Exception as error:  # our mistake: it costs this publish and not the worker
            self._reception.failed(self._deliveries.give_up(), error, self._clock())
            left = True
        try:
            return self._subscribing.work(until) or left
        except Exception as error:
            self._reception.failed(None, error, self._clock())
            return True

    def out_of_descriptors(self) -> None:
        self._reception.out_of_descriptors()

    # Packets.

    def _take_packets(self, connection: Connection, quantum: int, now: float) -> int:
        """Do what the complete packets in the input say, for about *quantum* units; the units used."""
        data = connection.input
        position = connection.position
        end = len(data)
        spent = 0
        packets = 0
        connection.needs = 0
        limit = self._packet_bytes if connection.session is not None else min(CONNECT_BYTES, self._packet_bytes)
        while spent < quantum and position < end and not connection.held:
            if position + 2 > end:
                connection.needs = 2
                break
            first = data[position]
            length = data[position + 1]
            body = position + 2
            if length > 127:
                length, body = read_length(data, position + 1, end, connection.version)
                if length < 0:
                    check_first_byte(first, connection.version)
                    connection.needs = end - position + 1
                    break
            stop = body + length
            if stop - position > limit:
                raise ProtocolError(CloseReason.PACKET_TOO_LARGE, f"{stop - position} bytes")  # [MQTT-3.2.2-15]
            if stop > end:
                check_first_byte(first, connection.version)
                connection.needs = stop - position
                break
            session = connection.session
            if session is None:
                spent += self._before_session(connection, first, data, body, stop, now)
                position = stop
                connection.position = stop
                packets += 1
                limit = self._packet_bytes
                if connection.state != OPEN:
                    break
                continue
            if first & 0xF0 == 0x30:
                position, units = self._publish(connection, session, data, position, body, stop, quantum - spent, now)
                spent += units
            elif length == 2 and (first == 0x40 or first == 0x50 or first == 0x62 or first == 0x70):
                packet_id = data[body] << 8 | data[body + 1]
                self._acknowledged(session, first >> 4, packet_id, SUCCESS, now)
                spent += ANSWER_COST
                packets += 1
                position = stop
            else:
                connection.position = stop
                spent += self._other(connection, session, first, data, body, stop, now)
                packets += 1
                position = stop
                if connection.state != OPEN:
                    break
            connection.position = position
        self._counters.packets_received += packets
        if connection.state == OPEN:
            connection.left = end - position
            if position == end:  # an idle connection holds no input
                connection.input = b""
                connection.position = 0
            elif position > LARGE_READ:  # nor one that has begun its next packet a large one
                connection.input = data[position:]
                connection.position = 0
            if spent:
                connection.heard = now  # [MQTT-3.1.2-22]
            if connection.outbox.stuffed() and not connection.held:
                connection.stuffed = True
                self._reactor.hold(connection)
            if connection.replays is not None:
                self._subscribing.go_on(connection)
        return spent

    def _publish(
        self,
        connection: Connection,
        session: Session,
        data: bytes,
        position: int,
        body: int,
        stop: int,
        quantum: int,
        now: float,
    ) -> tuple[int, int]:
        """The PUBLISH at *position*, and what can go with it: (position after it, units used)."""
        first = data[position]
        five = connection.version == V5
        after = body + 2
        if after <= stop:
            after += data[body] << 8 | data[body + 1]
        qos = first >> 1 & 3
        section = after + 2 if qos else after  # where 5.0 has its properties
        if after == body + 2 or section + (1 if five else 0) > stop or first & 1 or qos == 3:
            return stop, self._publish_decoded(connection, session, first, data, body, stop, now)
        if five and data[section] != 0:
            return stop, self._publish_decoded(connection, session, first, data, body, stop, now)
        if first == RUN:
            return self._publish_run(connection, data, position, body, stop, after, quantum, now)
        if qos == 0:
            check_first_byte(first, connection.version)  # a duplicate of QoS 0, which only 3.1 allows
        identifier = data[after:section]
        if identifier == b"\x00\x00":
            raise protocol_error("packet identifier 0")  # [MQTT-2.2.1-3]
        payload = data[section + 1 : stop] if five else data[section:stop]
        message = Message(data[body + 2 : after], payload, qos, False, b"", NEVER)
        if first & 8 == 0:  # the same bytes go out again, unless they say that they are a duplicate [MQTT-3.3.1-3]
            if five:
                message.head5 = data[position:after]
            else:
                message.head3 = data[position:after]
        return stop, self._accept(connection, session, message, identifier, now)

    def _publish_run(
        self,
        connection: Connection,
        data: bytes,
        position: int,
        body: int,
        stop: int,
        after: int,
        quantum: int,
        now: float,
    ) -> tuple[int, int]:
        """A QoS 0 PUBLISH and those behind it to the same topic: (position after them, units used)."""
        end = len(data)
        skip = 1 if connection.version == V5 else 0
        named = data[body:after]  # the topic with its length
        topic = named[2:]
        route = self._routes.find(topic)
        price = PUBLISH_COST + route.price
        start = position
        units = price + (stop - position >> BYTES_PER_UNIT_SHIFT)
        count = 1
        longest = stop - position
        payload_bytes = stop - after - skip
        position = stop
        while units < quantum and position + 2 < end and data[position] == RUN:
            length = data[position + 1]
            body = position + 2
            if length > 127:
                if position + 5 > end:
                    break
                length, body = _long_length(data, position + 1)
            stop = body + length
            after = body + len(named)
            if stop > end or after + skip > stop or stop - position > self._packet_bytes:
                break
            if data[body:after] != named or (skip and data[after] != 0):
                break
            count += 1
            payload_bytes += stop - after - skip
            units += price + (stop - position >> BYTES_PER_UNIT_SHIFT)
            if stop - position > longest:
                longest = stop - position
            position = stop
        counters = self._counters
        counters.packets_received += count
        counters.publishes_received += count
        counters.publish_bytes_received += payload_bytes
        if route.reserved:
            counters.dropped(DropReason.NOT_AUTHORIZED, count)
        elif route.receivers:
            run = Run(data[start:position], connection.version, count, topic, payload_bytes, longest)
            self._deliveries.deliver_run(route, run, connection, now)
        return position, units

    def _publish_decoded(
        self, connection: Connection, session: Session, first: int, data: bytes, body: int, stop: int, now: float
    ) -> int:
        """A PUBLISH with a retain flag, properties or an alias; the units used."""
        packet = cast(Publish, decode(first, data, body, stop, connection.version))
        properties = packet.properties
        topic = packet.topic
        if SUBSCRIPTION_IDENTIFIER in properties:
            raise protocol_error("subscription identifier from a client")  # [MQTT-3.3.4-6]
        if TOPIC_ALIAS in properties:
            topic = self._resolve(connection, topic, cast(int, properties[TOPIC_ALIAS]))
        if packet.retain and not self._retain:
            raise ProtocolError(CloseReason.RETAIN_NOT_SUPPORTED, "retain is switched off")  # [MQTT-3.2.2-14]
        message = Message(
            topic, packet.payload, packet.qos, packet.retain, forwardable(properties), expires_at(properties, now)
        )
        return self._accept(connection, session, message, packet.packet_id.to_bytes(2, "big"), now)

    def _accept(self, connection: Connection, session: Session, message: Message, identifier: bytes, now: float) -> int:
        """Deliver a message, keep it if it is to be retained, acknowledge it; the units used."""
        counters = self._counters
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        qos = message.qos
        if qos > self._qos:
            raise ProtocolError(CloseReason.QOS_NOT_SUPPORTED, f"QoS {qos}")  # [MQTT-3.2.2-11]
        route = self._routes.find(message.topic)
        code = SUCCESS
        if route.reserved:
            counters.dropped(DropReason.NOT_AUTHORIZED, 1)
            self._answer(connection, qos, identifier, NOT_AUTHORIZED)
            return PUBLISH_COST
        if qos == 2:
            packet_id = identifier[0] << 8 | identifier[1]
            if session.holds(packet_id):  # sent again: it was delivered the first time [MQTT-4.3.3-10]
                self._answer(connection, qos, identifier, SUCCESS)
                return PUBLISH_COST
            if connection.version == V5 and session.unreleased() >= self._receive_maximum:
                raise ProtocolError(CloseReason.RECEIVE_MAXIMUM_EXCEEDED, "QoS 2")  # [MQTT-3.3.4-7]
            session.receive(packet_id)
        if message.retain:
            self.keep(message, now)
        if not route.receivers:
            code = NO_MATCHING_SUBSCRIBERS
        if qos == 0:
            self._deliveries.deliver(route, message, session, connection, b"", now)
        else:
            self._deliveries.deliver(
                route, message, session, connection, answer(connection, qos, identifier, code), now
            )
        return PUBLISH_COST + route.price + (message.size >> BYTES_PER_UNIT_SHIFT)

    def publish(self, message: Message, publisher: Session | None, now: float) -> None:
        """A message that came over no connection: a will, or the broker's own."""
        if message.retain:
            self.keep(message, now)
        route = self._routes.find(message.topic)
        self._deliveries.deliver(route, message, publisher, None, b"", now)

    def keep(self, message: Message, now: float) -> None:
        """Retain *message* for its topic; an empty one ends that [MQTT-3.3.1-5] to [MQTT-3.3.1-8]."""
        if not message.payload:
            if self._retained.delete(message.topic):
                self._counters.retained_deleted += 1
            return
        kept = Message(message.topic, message.payload, message.qos, True, message.properties, message.expires)
        if self._retained.put(kept, now):
            self._counters.retained_set += 1
        else:
            self._counters.dropped(DropReason.RETAINED_FULL, 1)

    def _resolve(self, connection: Connection, topic: bytes, alias: int) -> bytes:
        """The topic that *alias* stands for; with a topic, it stands for that from now on [MQTT-3.3.2-12]."""
        if alias > self._alias_maximum:
            raise ProtocolError(CloseReason.TOPIC_ALIAS_INVALID, f"topic alias {alias}")  # [MQTT-3.3.2-9]
        if connection.aliases is None:
            connection.aliases = {}
        if topic:
            connection.aliases[alias] = topic
            return topic
        known = connection.aliases.get(alias)
        if known is None:
            raise protocol_error(f"topic alias {alias} was never set")
        return known

    def _answer(self, connection: Connection, qos: int, identifier: bytes, code: int) -> None:
        if qos:
            self._counters.answers_sent += 1
            connection.outbox.write(answer(connection, qos, identifier, code))

    def _acknowledged(self, session: Session, kind: int, packet_id: int, code: int, now: float) -> None:
        """PUBACK, PUBREC, PUBREL or PUBCOMP from the client."""
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

    def _before_session(self, connection: Connection, first: int, data: bytes, body: int, stop: int, now: float) -> int:
        """The first packet, which must be a CONNECT [MQTT-3.1.0-1]; the units used."""
        check_first_byte(first, 0)
        self._reception.connect(connection, data, body, stop, now)
        return CONNECT_COST

    def _other(
        self, connection: Connection, session: Session, first: int, data: bytes, body: int, stop: int, now: float
    ) -> int:
        """Any packet but a PUBLISH or a plain acknowledgement; the units used."""
        packet = decode(first, data, body, stop, connection.version)
        if isinstance(packet, Ack):
            self._acknowledged(session, packet.kind, packet.packet_id, packet.code, now)
        elif isinstance(packet, PingReq):
            self._counters.answers_sent += 1
            connection.outbox.write(PINGRESP)  # [MQTT-3.12.4-1]
        elif isinstance(packet, Subscribe):
            self._subscribing.subscribe(connection, session, packet, now)
            return FILTER_COST * len(packet.filters)
        elif isinstance(packet, Unsubscribe):
            self._subscribing.unsubscribe(connection, session, packet)
            return FILTER_COST * len(packet.filters)
        elif isinstance(packet, Disconnect):
            self._reception.disconnect(connection, session, packet, now)
        elif isinstance(packet, Connect):
            raise protocol_error("a second CONNECT")  # [MQTT-3.1.0-2]
        elif isinstance(packet, Auth):
            raise protocol_error("AUTH without an authentication method")  # [MQTT-4.12.0-7]
        else:
            raise protocol_error(f"packet type {first >> 4} from a client")
        return ANSWER_COST


def _long_length(data: bytes, position: int) -> tuple[int, int]:
    """A length of two to four bytes, and the position after it, if the bytes are one; else a length that fits nowhere.

    For looking ahead: what is wrong is told when its turn comes, after all that lies before it.
    """
    length = data[position] & 0x7F
    shift = 7
    for at in range(position + 1, position + 4):
        byte = data[at]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (length, at + 1) if byte else (len(data), at)
        shift += 7
    return len(data), position


def answer(connection: Connection, qos: int, identifier: bytes, code: int) -> bytes:
    """The PUBACK or PUBREC for a publish; 3.x has no codes."""
    if code and connection.version == V5:
        return b"%b%b%b" % (b"\x40\x03" if qos == 1 else b"\x50\x03", identifier, bytes((code,)))
    return (b"\x40\x02" if qos == 1 else b"\x50\x02") + identifier
