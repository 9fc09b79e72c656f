# Publishing: from the bytes of a PUBLISH to its receivers, to the retained messages, and to the answer.
#
# A PUBLISH is read in place, without a packet object, unless it has properties or a retain flag. Consecutive QoS 0
# packets to one topic are one run: the route is looked up once, and each receiver gets them in one piece. Order for
# each PUBLISH: protocol errors, then overload protection and quotas, then authorisation. A publish that has to wait
# is not taken: its connection is paused, and the publish is read again later.
#
# What is accepted goes to its receivers, or with an inbound backbone to a log (inbound_publishing.py), from which it is
# dispatched. Then a publish passes one gate, that of the log, whatever its receivers are: what they need is waited for
# where it is dispatched. Its price and its credits are those of the receivers that there are now. PUBACK and PUBREC of
# 5.0 do not say that there are no matching subscribers: who is one is found out later. Wills, and what Weir itself
# publishes, are delivered directly: they may come before what their client has published.
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from broker.delivery.completion import SourcePause
from broker.log import Log
from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.mqtt.decode import check_first_byte, decode
from broker.mqtt.fields import protocol_error
from broker.mqtt.packets import V5, Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS
from broker.mqtt.scanner import PLAIN_PUBLISH, RunScanner
from broker.overload.admit import ACCEPT, DROP, PAUSE, Verdict
from broker.overload.admit import Publish as Judged
from broker.overload.client import ProtectedClient
from broker.overload.gate import Gate
from broker.overload.protection import Protection
from broker.overload.quantum import BYTES_PER_UNIT_SHIFT, PUBLISH_COST
from broker.overload.store_rate import StoreRate
from broker.protocol.connection import Connection
from broker.protocol.inbound_publishing import InboundTarget
from broker.protocol.publish_answers import (
    PUBACK_2,
    PUBREC_2,
    PublishAnswers,
    encode_answer,
    encode_refusal,
    take_unanswered,
)
from broker.protocol.retaining import Retaining
from broker.reasons import CloseReason, DropReason, ProtocolError, PublishRefusal
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import HybridClock
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.routing.route import Route
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.session.session import Session
from broker.session.will import expires_at, forwardable
from broker.store.durable.retained import RetainedStore
from broker.store.inbound.log import InboundLog

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
        latencies: Latencies,
        answer_pause: SourcePause,
        clock: Callable[[], float],
        retained_store: RetainedStore | None,
        store_rate: StoreRate | None,
    ) -> None:
        """*answer_pause* stops reading from a client of whom *receive_maximum* publishes wait for their answers.

        *retained_store*: None: retained messages are in memory only. *store_rate*: None: no limit.
        """
        self._routes = routes
        self._deliveries = deliveries
        self._counters = counters
        self._log = log
        self._scanner = RunScanner(packet_bytes, BYTES_PER_UNIT_SHIFT)
        self._receive_maximum = receive_maximum
        self._alias_maximum = alias_maximum
        self._qos = qos
        self._retain = retain
        self._neighbours = neighbours
        self._topics = topics
        self._protection = protection
        self._prices = protection.prices
        self._store_rate = store_rate
        self._clock = clock
        self._retaining = Retaining(retained, stamps, neighbours, counters, log, retained_store)
        self._answers = PublishAnswers(counters, latencies, receive_maximum, answer_pause)
        self._target: InboundTarget | None = None  # where all goes that clients publish; None: to its receivers

    def accept_into(self, log: InboundLog) -> None:
        """Append to *log* what clients publish. To be called before anything is published."""
        self._target = InboundTarget(log, self._retaining)

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
        """Take the PUBLISH at *position*, and the packets of its run: (position after them, units used).

        Nothing is taken, and *connection* is paused, if the publish has to wait.
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
            return self._take_run(connection, session, data, position, body, stop, after, quantum, now)
        if qos == 0:
            check_first_byte(first, connection.version)  # a duplicate of QoS 0, which only 3.1 allows
        identifier = data[after:section]
        if identifier == b"\x00\x00":
            raise protocol_error("packet identifier 0")  # [MQTT-2.2.1-3]
        payload = data[section + 1 : stop] if five else data[section:stop]
        message = Message(data[body + 2 : after], payload, qos, False, b"", NEVER)
        if first & 8 == 0:  # the received bytes are sent on, unless they are marked as a duplicate [MQTT-3.3.1-3]
            if five:
                message.head5 = data[position:after]
            else:
                message.head3 = data[position:after]
        units = self._accept(connection, session, message, identifier, first & 8 != 0, now)
        return (stop, units) if units else (position, PUBLISH_COST)

    def _take_run(
        self,
        connection: Connection,
        session: Session,
        data: bytes,
        position: int,
        body: int,
        stop: int,
        after: int,
        quantum: int,
        now: float,
    ) -> tuple[int, int]:
        """Take a QoS 0 PUBLISH and those behind it to the same topic: (position after them, units used)."""
        version = connection.version
        named = data[body:after]  # the topic with its length
        topic = named[2:]
        route = self._routes.find(topic, session.principal)
        target = self._target
        most = ANY_NUMBER
        protection = self._protection
        client = connection.client
        assert client is not None
        gated = target is not None or route.crossing
        judged = protection.judging or client.judging
        if judged or (gated and not (route.free(0) if target is None else target.free(session))):
            judged = True
            most = self._judge_run(connection, session, client, route, stop - position, now)
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
        gates = route.gates if target is None else target.gates
        if judged:
            first = self._prices.of_run(1, size // count, route.receivers)
            rest, rest_cost = size - size // count, max(0, cost - first)
            protection.charge(client, gates, count - 1, rest, rest_cost, route.receivers, now)
        else:
            client.account.spent += cost
            if gated:
                for gate in gates:
                    gate.take(count, size, now)
        counters = self._counters
        counters.packets_received += count
        counters.publishes_received += count
        counters.publish_bytes_received += payload_bytes
        self._topics.add(route.topic, units, count, payload_bytes)
        if route.guarded and self._unauthorized(route, connection, count, now):
            return position, units
        if target is not None:
            target.append_run(session, Run(data[start:position], version, count, topic, payload_bytes, longest), now)
        elif route.receivers:
            run = Run(data[start:position], version, count, topic, payload_bytes, longest)
            self._deliveries.deliver_run(route, run, session, connection.outbox, now)
        return position, units

    def _take_decoded(
        self, connection: Connection, session: Session, first: int, data: bytes, body: int, stop: int, now: float
    ) -> int:
        """Take a PUBLISH with a retain flag, properties or an alias; the units used, 0 if it has to wait."""
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
        return self._accept(connection, session, message, packet.packet_id.to_bytes(2, "big"), packet.dup, now)

    def _accept(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        identifier: bytes,
        duplicate: bool,
        now: float,
    ) -> int:
        """Deliver *message* or have it appended, retain it, answer it; the units used, 0 if it has to wait."""
        route = self._routes.find(message.topic, session.principal)
        target = self._target
        qos = message.qos
        if qos > self._qos:
            raise ProtocolError(CloseReason.QOS_NOT_SUPPORTED, f"QoS {qos}")  # [MQTT-3.2.2-11]
        tokens = qos == 2 and (target is not None or route.stores is not None)
        if tokens:
            verdict = self._await_store(connection, session, message, identifier, duplicate, now)
            if verdict != GO_ON:
                return verdict
        counters = self._counters
        cost = self._prices.of(message.size, route.receivers, message.retain, qos)
        client = connection.client
        assert client is not None
        gated = message.retain or route.crossing or target is not None
        if self._protection.judging or client.judging or (gated and self._busy(session, route, message)):
            # A QoS 2 message that is sent again was judged the first time.
            if qos != 2 or not session.holds(identifier[0] << 8 | identifier[1]):
                verdict = self._judge(connection, session, client, route, message, identifier, cost, now)
                if verdict != GO_ON:
                    return verdict
        else:
            client.account.spent += cost
            if gated:
                if qos:
                    client.account.spent += self._prices.stored(route.persistent)
                    if self._store_rate is not None and target is None:
                        self._store_rate.take(route.persistent, now)
                for gate in self._gates(route, message):
                    gate.take(1, message.size, now)
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        units = PUBLISH_COST + route.price + (message.size >> BYTES_PER_UNIT_SHIFT)
        self._topics.add(route.topic, units, 1, len(message.payload))
        if qos == 2:
            packet_id = identifier[0] << 8 | identifier[1]
            if session.holds(packet_id) and self._answer_again(connection, session, packet_id, identifier, now):
                return PUBLISH_COST
        if route.guarded and self._unauthorized(route, connection, 1, now):
            # 3.x has no code for a refusal: the publish is acknowledged and the connection stays open. Clients expect
            # that, and 3.1.1 [MQTT-3.3.5-2] allows it. A QoS 2 id is not remembered: the next publish with that id is
            # a new one [MQTT-4.3.3-9].
            if qos:
                self._answers.write(connection, encode_answer(connection, qos, identifier, NOT_AUTHORIZED), now)
            return PUBLISH_COST
        if qos == 2:
            if connection.version == V5 and session.unreleased() >= self._receive_maximum:
                raise ProtocolError(CloseReason.RECEIVE_MAXIMUM_EXCEEDED, "QoS 2")  # [MQTT-3.3.4-7]
            storage = session.storage
            if storage is not None and tokens:
                storage.receive(packet_id, duplicate, message)
        if target is not None:
            if qos == 2:
                session.receive(packet_id)
            target.append(session, message, now)
            if qos:
                answer = (PUBACK_2 if qos == 1 else PUBREC_2) + identifier
                self._answers.write_in_order(connection, message.completion, answer, now)
            return units
        # If the message cannot be retained, a client that can be told so is told, and nobody gets the message: after a
        # refusal the client may send it again as a new one [MQTT-4.3.3-9], and receivers would get it twice. A client
        # that cannot be told (QoS 0, and 3.x, whose answers have no codes) assumes success, so the message is at least
        # delivered to the current subscribers.
        if message.retain and self._retaining.retain(message, session, now) is not None:
            if qos and connection.version == V5:
                answer = encode_answer(connection, qos, identifier, QUOTA_EXCEEDED)
                released = None if qos == 1 or session.storage is None else session.storage.release(packet_id)
                if released is None:
                    self._answers.write(connection, answer, now)
                else:  # as PUBCOMP, see tokens.py: with this answer the packet id is free
                    self._answers.write_in_order(connection, released, answer, now)
                return PUBLISH_COST
            self._neighbours.not_retained(message)
        if qos == 2:
            session.receive(packet_id)
        completion = self._deliveries.deliver(route, message, session, connection.outbox, now)
        if qos:
            answer = (PUBACK_2 if qos == 1 else PUBREC_2) + identifier
            if connection.version == V5 and not route.receivers:
                answer = encode_answer(connection, qos, identifier, NO_MATCHING_SUBSCRIBERS)
            if completion is None and connection.answers is None:
                counters.answers_sent += 1
                connection.outbox.answer(answer)
                connection.acknowledged += 1
            else:
                self._answers.write_in_order(connection, completion, answer, now)
        return units

    def _answer_again(
        self, connection: Connection, session: Session, packet_id: int, identifier: bytes, now: float
    ) -> bool:
        """Answer a publish of QoS 2 that was sent again, as it was accepted the first time [MQTT-4.3.3-10].

        False: nobody may have it, so it is to be taken as a new one.
        """
        unanswered = take_unanswered(session, packet_id)
        answer = encode_answer(connection, 2, identifier, SUCCESS)
        if unanswered is None:
            self._answers.write(connection, answer, now)
            return True
        if not unanswered.abandoned:
            self._answers.write_in_order(connection, unanswered, answer, now)
            return True
        if session.incoming is not None:
            session.incoming.discard(packet_id)
        return False

    def _await_store(
        self, connection: Connection, session: Session, message: Message, identifier: bytes, duplicate: bool, now: float
    ) -> int:
        """Decide whether a publish of QoS 2, with receivers that store it, may get its token: as `_judge()`."""
        storage = session.storage
        packet_id = identifier[0] << 8 | identifier[1]
        if storage is None or session.holds(packet_id) or storage.may_receive(packet_id, duplicate):
            return GO_ON
        client = connection.client
        assert client is not None
        verdict = self._protection.await_store(client, message.size, now)
        if verdict.kind == PAUSE:
            storage.when_stored(partial(self._stored, client))
            return 0
        return self._turn_away(connection, verdict, message, identifier, now)

    def _stored(self, client: ProtectedClient) -> None:
        self._protection.stored(client, self._clock())

    def _busy(self, session: Session, route: Route, message: Message) -> bool:
        """Whether a gate that *message* of *session* needs is not free."""
        if self._target is not None:
            return not self._target.free(session)
        if message.retain and not self._neighbours.free():
            return True
        return route.crossing and (not route.free(message.qos) or self._over_store_rate(route, message))

    def _over_store_rate(self, route: Route, message: Message) -> bool:
        """Whether *message* would be stored, and more is being stored than the configuration allows."""
        rate = self._store_rate
        return rate is not None and rate.gate.blocked and message.qos > 0 and route.persistent > 0

    def _gates(self, route: Route, message: Message) -> list[Gate]:
        """The gates that *message* has to pass: if it is retained, those of all workers, and of one that has died."""
        if self._target is not None:
            return self._target.gates
        gates = route.gates_of(message.qos)
        return list(dict.fromkeys([*self._neighbours.gates(), *gates])) if message.retain else gates

    def _judge(
        self,
        connection: Connection,
        session: Session,
        client: ProtectedClient,
        route: Route,
        message: Message,
        identifier: bytes,
        cost: int,
        now: float,
    ) -> int:
        """Decide whether *message* is accepted: GO_ON, or else the units used, 0 if it has to wait.

        *cost* in credits, without those for the receivers that store it.
        """
        persistent = route.persistent if message.qos else 0
        cost += self._prices.stored(persistent)
        publish = Judged(connection.version, message.qos, message.size, cost, 0)
        publish.deliveries = route.receivers
        publish.persistent = persistent
        publish.retained = message.retain
        target, rate = self._target, self._store_rate
        gates = self._gates(route, message)
        closed = self._closed_gate(route, message) if target is None else target.closed_gate(session)
        verdict = self._protection.judge(client, gates, publish, closed, now)
        if verdict.kind == ACCEPT:
            if rate is not None and target is None:
                rate.take(persistent, now)
            return GO_ON
        return 0 if verdict.kind == PAUSE else self._turn_away(connection, verdict, message, identifier, now)

    def _closed_gate(self, route: Route, message: Message) -> Gate | None:
        """A gate beside `_gates()` that *message* has to wait for; None if there is none."""
        closed = route.closed_gate() if route.shared else None
        rate = self._store_rate
        if closed is None and rate is not None and self._over_store_rate(route, message):
            closed = rate.gate
        return route.closed_for_cold(message.qos) if closed is None else closed

    def _turn_away(
        self, connection: Connection, verdict: Verdict, message: Message, identifier: bytes, now: float
    ) -> int:
        """Take *message*, which is not accepted; the units used."""
        counters = self._counters
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        self._refuse(connection, verdict, message.qos, identifier, now)
        return PUBLISH_COST

    def _judge_run(
        self,
        connection: Connection,
        session: Session,
        client: ProtectedClient,
        route: Route,
        size: int,
        now: float,
    ) -> int:
        """Decide about the first message of a run: how many messages are accepted, 0 if it has to wait, -1: refused."""
        cost = self._prices.of_run(1, size, route.receivers)
        publish = Judged(connection.version, 0, size, cost, 0)
        publish.deliveries = route.receivers
        target = self._target
        if target is None:
            gates, closed = route.gates, route.closed_gate() if route.shared else None
        else:
            gates, closed = target.gates, target.closed_gate(session)
        verdict = self._protection.judge(client, gates, publish, closed, now)
        if verdict.kind == ACCEPT:
            return 1 + self._protection.fitting(client, gates, size, cost, now)
        if verdict.kind == PAUSE:
            return 0
        self._counters.packets_received += 1
        self._counters.publishes_received += 1
        self._refuse(connection, verdict, 0, b"", now)
        return -1

    def _refuse(self, connection: Connection, verdict: Verdict, qos: int, identifier: bytes, now: float) -> None:
        """Drop a publish, refuse it with a reason code, or end the connection, as *verdict* says."""
        reason = verdict.reason
        if isinstance(reason, DropReason):
            self._counters.dropped(reason, 1)
        elif isinstance(reason, PublishRefusal):
            self._counters.publish_refused(reason)
            self._answers.write(connection, encode_refusal(connection, qos, identifier, reason, verdict, now), now)
        elif isinstance(reason, CloseReason):
            raise ProtocolError(reason, "a publish waited for too long")

    def _unauthorized(self, route: Route, connection: Connection, count: int, now: float) -> bool:
        """Whether the client may not publish to the topic of *route*; then *count* messages are dropped and logged."""
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

    def publish_will(
        self, message: Message, client_id: str, user: str | None, publisher: Session | None, since: float, now: float
    ) -> DropReason | None:
        """Publish a will of the client *client_id*, or return the quota that it exceeds, which is counted.

        It waits for no gate, because wills are few. *since*: Unix time at which it was published before, or 0.0. What
        was retained on its topic later than that stays.
        """
        route = self._routes.find(message.topic)
        cost = self._prices.of(message.size, route.receivers, message.retain, message.qos)
        if message.qos:
            cost += self._prices.stored(route.persistent)
        reason = self._protection.charge_will(client_id, user, message.qos, message.size, cost, now)
        if reason is not None:
            self._counters.dropped(reason, 1)
            return reason
        if message.retain:
            outdated = since > 0.0 and self._retaining.has_later(message.topic, since)
            if outdated or self._retaining.retain(message, publisher, now) is not None:
                self._neighbours.not_retained(message)
        self._deliveries.deliver(route, message, publisher, None, now)
        return None

    def clear_retained(self, topic: bytes, now: float) -> DropReason | None:
        """Publish an empty retained message to *topic*, as an administrator asks [MQTT-3.3.1-6].

        It reaches subscribers and the other workers as that of a client does; no quota and no access rule applies.
        Returns None, or the limit that forbids it: then nothing was published.
        """
        message = Message(topic, b"", 0, True, b"", NEVER)
        refusal = self._retaining.retain(message, None, now)
        if refusal is None:
            self._deliveries.deliver(self._routes.find(topic), message, None, None, now)
        return refusal

    def publish_here(self, message: Message, now: float) -> None:
        """Publish a retained message of the broker itself, which every worker publishes to its own clients."""
        self._retaining.retain_here(message, now)
        self._deliveries.deliver_here(self._routes.find(message.topic), message, now)

    def _resolve(self, connection: Connection, topic: bytes, alias: int) -> bytes:
        """The topic that *alias* stands for. A *topic* that is not empty becomes its new value [MQTT-3.3.2-12]."""
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
