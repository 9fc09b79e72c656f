# Publishing: from the bytes of a PUBLISH to its receivers, to the retained messages, and to the answer.
#
# A PUBLISH is read in place, without a packet object, unless it has properties or a retain flag. QoS 0 packets that
# lie next to each other and go to the same topic are one run: looked up, counted and delivered in one go.
from typing import Final, cast

from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.encode import encode
from broker.mqtt.fields import protocol_error
from broker.mqtt.packets import PUBACK, PUBREC, V5, Ack, Properties, Publish
from broker.mqtt.properties import REASON_STRING, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, USER_PROPERTY
from broker.mqtt.scanner import PLAIN_PUBLISH, RunScanner
from broker.overload.admit import ACCEPT, DROP, PAUSE, Verdict
from broker.overload.admit import Publish as Judged
from broker.overload.client import ProtectedClient
from broker.overload.protection import Protection
from broker.overload.quantum import BYTES_PER_UNIT_SHIFT, PUBLISH_COST
from broker.overload.quota import QuotaExceeded
from broker.protocol.connection import Connection
from broker.protocol.fanout import Deliveries
from broker.protocol.handshake import RETRY_AFTER
from broker.reasons import CloseReason, DropReason, ProtocolError, PublishRefusal
from broker.routing.hybrid_clock import HybridClock
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.routing.routes import Route, Routes
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.session.session import Session
from broker.session.will import expires_at, forwardable

ANY_NUMBER: Final = 1 << 40
GO_ON: Final = -1
SUCCESS: Final = 0x00
NO_MATCHING_SUBSCRIBERS: Final = 0x10
NOT_AUTHORIZED: Final = 0x87
QUOTA_EXCEEDED: Final = 0x97


class Publishing:
    def __init__(
        self,
        routes: Routes,
        retained: Retained,
        deliveries: Deliveries,
        counters: Counters,
        log: Log,
        *,
        packet_bytes: int,
        receive_maximum: int,
        alias_maximum: int,
        qos: int,
        retain: bool,
        neighbours: Neighbours,
        stamps: HybridClock,
        topics: HeavyHitters,
        protection: Protection,
    ) -> None:
        self._neighbours = neighbours
        self._stamps = stamps
        self._routes = routes
        self._retained = retained
        self._deliveries = deliveries
        self._counters = counters
        self._log = log
        self._scanner = RunScanner(packet_bytes, BYTES_PER_UNIT_SHIFT)
        self._receive_maximum = receive_maximum
        self._alias_maximum = alias_maximum
        self._qos = qos
        self._retain = retain
        self._topics = topics
        self._protection = protection
        self._prices = protection.prices

    def take(
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
        """The PUBLISH at *position*, and what can go with it: (position after it, units used).

        Nothing is taken, and *connection* is held, if it has to wait for another worker.
        """
        first = data[position]
        five = connection.version == V5
        after = body + 2
        if after <= stop:
            after += data[body] << 8 | data[body + 1]
        qos = first >> 1 & 3
        section = after + 2 if qos else after  # where 5.0 has its properties
        plain = after != body + 2 and section + (1 if five else 0) <= stop and not first & 1 and qos != 3
        if not plain or (five and data[section] != 0):
            units = self._take_decoded(connection, session, first, data, body, stop, now)
            return (stop, units) if units else (position, PUBLISH_COST)
        if first == PLAIN_PUBLISH:
            return self._take_run(connection, data, position, body, stop, after, quantum, now)
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
        units = self._accept(connection, session, message, identifier, now)
        return (stop, units) if units else (position, PUBLISH_COST)

    def _take_run(
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
        version = connection.version
        named = data[body:after]  # the topic with its length
        topic = named[2:]
        route = self._routes.find(topic)
        most = ANY_NUMBER
        protection = self._protection
        client = connection.client
        assert client is not None
        judged = protection.judging or client.quota is not None
        if judged or (route.crossing and not route.free()):
            judged = True
            most = self._judge_run(connection, client, route, stop - position, now)
            if most <= 0:
                return (position, PUBLISH_COST) if most == 0 else (stop, PUBLISH_COST)
        price = PUBLISH_COST + route.price
        start = position
        longest = stop - position
        units = price + (longest >> BYTES_PER_UNIT_SHIFT)
        count = 1
        payload_bytes = stop - after - (1 if version == V5 else 0)
        position = stop
        if units < quantum and most > 1 and stop + 2 < len(data) and data[stop] == PLAIN_PUBLISH:
            position, further, further_bytes, largest, further_units = self._scanner.scan(
                data, stop, named, version, most - 1, price, quantum - units
            )
            count += further
            payload_bytes += further_bytes
            units += further_units
            if largest > longest:
                longest = largest
        size = position - start
        cost = self._prices.of_run(count, size, route.receivers)
        if judged:
            first = self._prices.of_run(1, size // count, route.receivers)
            rest, rest_cost = size - size // count, max(0, cost - first)
            protection.charge(client, route.gates, count - 1, rest, rest_cost, route.receivers, now)
        else:
            client.account.spent += cost
            if route.crossing:
                for gate in route.gates:
                    gate.take(count, size, now)
        counters = self._counters
        counters.packets_received += count
        counters.publishes_received += count
        counters.publish_bytes_received += payload_bytes
        self._topics.add(route.topic, units, count, payload_bytes)
        if route.guarded and self._refused(route, connection, count, now):
            return position, units
        if route.receivers:
            run = Run(data[start:position], version, count, topic, payload_bytes, longest)
            self._deliveries.deliver_run(route, run, connection, now)
        return position, units

    def _take_decoded(
        self, connection: Connection, session: Session, first: int, data: bytes, body: int, stop: int, now: float
    ) -> int:
        """A PUBLISH with a retain flag, properties or an alias; the units used, 0 if it has to wait."""
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
        """Deliver a message, keep it if it is to be retained, acknowledge it; the units used, 0 if it has to wait."""
        route = self._routes.find(message.topic)
        qos = message.qos
        if qos > self._qos:
            raise ProtocolError(CloseReason.QOS_NOT_SUPPORTED, f"QoS {qos}")  # [MQTT-3.2.2-11]
        counters = self._counters
        cost = self._prices.of(message.size, route.receivers, 0, message.retain, qos)
        client = connection.client
        assert client is not None
        if self._protection.judging or client.quota is not None or self._busy(route, message.retain):
            # Sent again, it was judged the first time.
            if qos != 2 or not session.holds(identifier[0] << 8 | identifier[1]):
                verdict = self._judge(connection, client, route, message, identifier, cost, now)
                if verdict != GO_ON:
                    return verdict
        else:
            self._count(client, route, message, cost, now)
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        units = PUBLISH_COST + route.price + (message.size >> BYTES_PER_UNIT_SHIFT)
        self._topics.add(route.topic, units, 1, len(message.payload))
        code = SUCCESS
        packet_id = 0
        if qos == 2:
            packet_id = identifier[0] << 8 | identifier[1]
            if session.holds(packet_id):  # sent again: it was delivered the first time [MQTT-4.3.3-10]
                self._answer(connection, qos, identifier, SUCCESS)
                return PUBLISH_COST
        if route.guarded and self._refused(route, connection, 1, now):
            # 3.x has no word for no: acknowledged as usual, and not closed, as 3.1.1 [MQTT-3.3.5-2] allows and clients
            # expect. A QoS 2 id is not remembered: what comes under it next is new [MQTT-4.3.3-9].
            self._answer(connection, qos, identifier, NOT_AUTHORIZED)
            return PUBLISH_COST
        if qos == 2:
            if connection.version == V5 and session.unreleased() >= self._receive_maximum:
                raise ProtocolError(CloseReason.RECEIVE_MAXIMUM_EXCEEDED, "QoS 2")  # [MQTT-3.3.4-7]
        # A message that cannot be retained. Who can be told so is told, and then nobody gets it: after a refusal the
        # client may send it again as a new one [MQTT-4.3.3-9], and what was delivered would be delivered twice. Who
        # cannot be told (QoS 0, and 3.x, whose answers have no codes) believes that all is well, so the message at
        # least reaches those who are there.
        if message.retain and self.keep(message, session, now) is not None:
            if qos and connection.version == V5:
                self._answer(connection, qos, identifier, QUOTA_EXCEEDED)
                return PUBLISH_COST
            self._neighbours.not_retained(message)
        if qos == 2:
            session.receive(identifier[0] << 8 | identifier[1])
        if not route.receivers:
            code = NO_MATCHING_SUBSCRIBERS
        if qos == 0:
            self._deliveries.deliver(route, message, session, connection, b"", now)
        else:
            self._deliveries.deliver(
                route, message, session, connection, answer(connection, qos, identifier, code), now
            )
        return units

    def _busy(self, route: Route, everywhere: bool) -> bool:
        """Whether a worker that a publish needs, or any when it goes *everywhere*, has much to do."""
        if everywhere and not self._neighbours.free():
            return True
        return route.crossing and not route.free()

    def _count(self, client: ProtectedClient, route: Route, message: Message, cost: int, now: float) -> None:
        """Nothing holds *message* back: what it costs is taken note of."""
        client.account.spent += cost
        if message.retain:
            for gate in self._neighbours.gates():
                gate.take(1, message.size, now)
        elif route.crossing:
            for gate in route.gates:
                gate.take(1, message.size, now)

    def _judge(
        self,
        connection: Connection,
        client: ProtectedClient,
        route: Route,
        message: Message,
        identifier: bytes,
        cost: int,
        now: float,
    ) -> int:
        """Have it decided whether *message* is taken: GO_ON, or the units used, 0 if it has to wait."""
        publish = Judged(connection.version, message.qos, message.size, cost, 0)
        publish.deliveries = route.receivers
        publish.retained = message.retain
        gates = self._neighbours.gates() if message.retain else route.gates
        closed = route.closed_gate() if route.shared else None
        verdict = self._protection.judge(client, gates, publish, closed, now)
        if verdict.kind == ACCEPT:
            return GO_ON
        if verdict.kind == PAUSE:
            return 0
        counters = self._counters
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        self._turn_away(connection, verdict, message.qos, identifier, now)
        return PUBLISH_COST

    def _judge_run(self, connection: Connection, client: ProtectedClient, route: Route, size: int, now: float) -> int:
        """The same for the first message of a run: how many may go together, 0 if it has to wait, -1 if it is gone."""
        cost = self._prices.of_run(1, size, route.receivers)
        publish = Judged(connection.version, 0, size, cost, 0)
        publish.deliveries = route.receivers
        closed = route.closed_gate() if route.shared else None
        verdict = self._protection.judge(client, route.gates, publish, closed, now)
        if verdict.kind == ACCEPT:
            return 1 + self._protection.fitting(client, route.gates, size, cost, now)
        if verdict.kind == PAUSE:
            return 0
        self._counters.packets_received += 1
        self._counters.publishes_received += 1
        self._turn_away(connection, verdict, 0, b"", now)
        return -1

    def _turn_away(self, connection: Connection, verdict: Verdict, qos: int, identifier: bytes, now: float) -> None:
        """A publish is not taken, and never will be: drop it, say so, or end the connection."""
        reason = verdict.reason
        if isinstance(reason, DropReason):
            self._counters.dropped(reason, 1)
        elif isinstance(reason, PublishRefusal):
            self._counters.publish_refused(reason)
            self._counters.answers_sent += 1
            connection.outbox.answer(refusal(connection, qos, identifier, reason, verdict, now))
        elif isinstance(reason, CloseReason):
            raise ProtocolError(reason, "a publish waited for too long")

    def _refused(self, route: Route, connection: Connection, count: int, now: float) -> bool:
        """Whether the client may not publish to the topic of *route*; then *count* messages are dropped with a line."""
        session = connection.session
        if session is None or self._routes.may_publish(route, session.principal):
            return False
        self._counters.dropped(DropReason.NOT_AUTHORIZED, count)
        session.note(DROP, DropReason.NOT_AUTHORIZED.label, now)
        self._log.info(
            "publish_refused",
            client=session.client_id,
            reason=DropReason.NOT_AUTHORIZED.label,
            user=connection.user,
            address=connection.address,
            topic=route.topic.decode(),
            messages=count,
        )
        return True

    def publish(self, message: Message, publisher: Session | None, now: float) -> None:
        """A message that came over no connection: a will. It waits for nobody, there are few."""
        if message.retain and self.keep(message, publisher, now) is not None:
            self._neighbours.not_retained(message)
        self._deliveries.deliver(self._routes.find(message.topic), message, publisher, None, b"", now)

    def publish_here(self, message: Message, now: float) -> None:
        """A retained message of the broker's own, which every worker publishes to its own clients."""
        if self._retained.put(message, now) is None:
            self._counters.retained_set += 1
        self._deliveries.deliver_here(self._routes.find(message.topic), message, None, None, b"", now)

    def keep(self, message: Message, publisher: Session | None, now: float) -> DropReason | None:
        """Retain *message*, which says so [MQTT-3.3.1-8], at any QoS, 3.1.1 [MQTT-3.3.1-7]; an empty one ends that.

        [MQTT-3.3.1-5] to [MQTT-3.3.1-7]. None, or the limit that forbids it, which is counted.
        """
        owner = "" if publisher is None else publisher.client_id
        stamp = self._stamps.stamp(self._retained.stamp_of(message.topic))
        if not message.payload:
            if self._retained.delete(message.topic, stamp, now):
                self._counters.retained_deleted += 1
            self._neighbours.retained(message, owner, stamp)
            return None
        refusal = self._retained.put(message, now, owner, stamp)
        if refusal is None:
            self._counters.retained_set += 1
            self._neighbours.retained(message, owner, stamp)
        else:
            self._counters.dropped(refusal, 1)
            if publisher is not None and publisher.note(DROP, refusal.label, now):
                self._log.info("message_not_retained", client=owner, reason=refusal.label)
        return refusal

    def _resolve(self, connection: Connection, topic: bytes, alias: int) -> bytes:
        """The topic that *alias* stands for; with a topic, it stands for that from now on [MQTT-3.3.2-12]."""
        if alias > self._alias_maximum:
            # [MQTT-3.2.2-17], [MQTT-3.2.2-18]
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
            connection.outbox.answer(answer(connection, qos, identifier, code))


def answer(connection: Connection, qos: int, identifier: bytes, code: int) -> bytes:
    """The PUBACK or PUBREC for a publish [MQTT-3.3.4-1], under its id [MQTT-2.2.1-5]; 3.x has no codes.

    No message of QoS 1 is remembered: its id may be a new one's next [MQTT-4.3.2-4], [MQTT-4.3.2-5], [MQTT-4.3.3-8].
    No properties, so that it fits any maximum packet size: [MQTT-3.4.2-2] to [MQTT-3.4.2-3], [MQTT-3.5.2-2] to
    [MQTT-3.5.2-3].
    """
    if code and connection.version == V5:
        return b"%b%b%b" % (b"\x40\x03" if qos == 1 else b"\x50\x03", identifier, bytes((code,)))
    return (b"\x40\x02" if qos == 1 else b"\x50\x02") + identifier


def refusal(
    connection: Connection, qos: int, identifier: bytes, reason: PublishRefusal, verdict: Verdict, now: float
) -> bytes:
    """The PUBACK or PUBREC of 5.0 for a publish that is refused; with words, unless the client declined them.

    [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3]; it fits the client's maximum packet size.
    """
    short = answer(connection, qos, identifier, reason.code)
    session = connection.session
    if session is None or not connection.wants_reasons:
        return short
    words = reason.words
    properties: Properties = {}
    if isinstance(verdict, QuotaExceeded):
        words = verdict.words()
        properties[USER_PROPERTY] = [(RETRY_AFTER, str(verdict.retry_after(now)))]
    properties[REASON_STRING] = words
    packet_id = identifier[0] << 8 | identifier[1]
    long = encode(Ack(PUBACK if qos == 1 else PUBREC, packet_id, reason.code, properties), V5)
    return short if session.maximum_packet and len(long) > session.maximum_packet else long
