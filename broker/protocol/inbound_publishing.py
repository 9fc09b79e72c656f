# Publishing through the inbound backbone: a publish that is accepted is appended to a log in Kafka, and acknowledged
# when the log has it. From there it is dispatched (inbound_dispatch.py).
#
# What is checked before is as in publishing.py, in the same order: protocol, overload protection and quotas, access. A
# publish passes one gate, that of the log, whatever its receivers are: what they need is waited for where it is
# dispatched. Its price and its credits are those of the receivers that there are now.
#
# PUBACK and PUBREC of 5.0 do not say that there are no matching subscribers: who is one is found out later.
#
# Wills, and what Weir itself publishes, are delivered directly: they may come before what their client has published.
from typing import Final

from broker.mqtt.packets import V5
from broker.mqtt.scanner import PLAIN_PUBLISH
from broker.overload.admit import ACCEPT, PAUSE
from broker.overload.admit import Publish as Judged
from broker.overload.client import ProtectedClient
from broker.overload.quantum import BYTES_PER_UNIT_SHIFT, PUBLISH_COST
from broker.protocol.connection import Connection
from broker.protocol.publish_answers import PUBACK_2, PUBREC_2, encode_answer
from broker.protocol.publishing import ANY_NUMBER, GO_ON, NOT_AUTHORIZED, Publishing
from broker.reasons import CloseReason, ProtocolError
from broker.routing.route import Route
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session
from broker.store.inbound.log import InboundLog, Partition

FEW: Final = 16  # subscriptions that are looked at with each publish of their client


def tells_publisher(session: Session) -> bool:
    """Whether what *session* publishes may have to pass it by, as subscriptions of it are no local [MQTT-3.8.3-3]."""
    subscriptions = session.subscriptions
    if not subscriptions:
        return False
    return len(subscriptions) > FEW or any(subscription.no_local for subscription in subscriptions.values())


class InboundPublishing(Publishing):
    log: InboundLog

    def accept_into(self, log: InboundLog) -> None:
        """Append to *log* what is accepted. To be called before anything is published."""
        self.log = log

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
        version = connection.version
        named = data[body:after]
        topic = named[2:]
        route = self._routes.find(topic, session.principal)
        log, protection, client = self.log, self._protection, connection.client
        assert client is not None
        partition = log.partition_of(session.client_id)
        most = ANY_NUMBER
        judged = self._needs_verdict(client, partition)
        if judged:
            most = self._judge_run_for(connection, client, partition, route, stop - position, now)
            if most <= 0:
                return (position, PUBLISH_COST) if most == 0 else (stop, PUBLISH_COST)
        price = PUBLISH_COST + route.price
        start, longest = position, stop - position
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
            longest = max(longest, largest)
        size = position - start
        cost = self._prices.of_run(count, size, route.receivers)
        if judged:
            first = self._prices.of_run(1, size // count, route.receivers)
            rest, rest_cost = size - size // count, max(0, cost - first)
            protection.charge(client, log.gates, count - 1, rest, rest_cost, route.receivers, now)
        else:
            client.account.spent += cost
            log.gate.take(count, size, now)
        counters = self._counters
        counters.packets_received += count
        counters.publishes_received += count
        counters.publish_bytes_received += payload_bytes
        self._topics.add(route.topic, units, count, payload_bytes)
        if route.guarded and self._unauthorized(route, connection, count, now):
            return position, units
        run = Run(data[start:position], version, count, topic, payload_bytes, longest)
        if tells_publisher(session):
            for message in run.messages(b""):
                log.offer(partition, message, session.client_id, 0, now)
        else:
            log.offer_run(partition, run, now)
        return position, units

    def _accept(
        self,
        connection: Connection,
        session: Session,
        message: Message,
        identifier: bytes,
        duplicate: bool,
        now: float,
    ) -> int:
        """Have *message* appended, and answer it when it is; the units used, 0 if it has to wait."""
        route = self._routes.find(message.topic, session.principal)
        qos = message.qos
        packet_id = identifier[0] << 8 | identifier[1] if qos == 2 else 0
        if qos > self._qos:
            raise ProtocolError(CloseReason.QOS_NOT_SUPPORTED, f"QoS {qos}")  # [MQTT-3.2.2-11]
        if qos == 2:
            verdict = self._await_store(connection, session, message, identifier, duplicate, now)
            if verdict != GO_ON:
                return verdict
        log, client = self.log, connection.client
        assert client is not None
        partition = log.partition_of(session.client_id)
        cost = self._prices.of(message.size, route.receivers, message.retain, qos)
        if qos:
            cost += self._prices.stored(route.persistent)
        if self._needs_verdict(client, partition):
            if qos != 2 or not session.holds(packet_id):
                verdict = self._judge_for(connection, client, partition, route, message, identifier, cost, now)
                if verdict != GO_ON:
                    return verdict
        else:
            client.account.spent += cost
            log.gate.take(1, message.size, now)
        counters = self._counters
        counters.packets_received += 1
        counters.publishes_received += 1
        counters.publish_bytes_received += len(message.payload)
        units = PUBLISH_COST + route.price + (message.size >> BYTES_PER_UNIT_SHIFT)
        self._topics.add(route.topic, units, 1, len(message.payload))
        if (
            qos == 2
            and session.holds(packet_id)
            and self._answer_again(connection, session, packet_id, identifier, now)
        ):
            return PUBLISH_COST
        if route.guarded and self._unauthorized(route, connection, 1, now):
            if qos:
                self._answers.write(connection, encode_answer(connection, qos, identifier, NOT_AUTHORIZED), now)
            return PUBLISH_COST
        if qos == 2:
            if connection.version == V5 and session.unreleased() >= self._receive_maximum:
                raise ProtocolError(CloseReason.RECEIVE_MAXIMUM_EXCEEDED, "QoS 2")  # [MQTT-3.3.4-7]
            if session.storage is not None:
                session.storage.receive(packet_id, duplicate, message)
            session.receive(packet_id)
        publisher = session.client_id if message.retain or tells_publisher(session) else ""
        retained_at = self._retaining.accept(message.topic) if message.retain else 0
        log.offer(partition, message, publisher, retained_at, now)
        if qos:
            answer = (PUBACK_2 if qos == 1 else PUBREC_2) + identifier
            self._answers.write_in_order(connection, message.completion, answer, now)
        return units

    def _needs_verdict(self, client: ProtectedClient, partition: Partition) -> bool:
        """Whether a publish of *client* has to be judged."""
        log = self.log
        if self._protection.judging or client.judging or not log.gate.free:
            return True
        return log.closed_gate(partition) is not None

    def _judge_for(
        self,
        connection: Connection,
        client: ProtectedClient,
        partition: Partition,
        route: Route,
        message: Message,
        identifier: bytes,
        cost: int,
        now: float,
    ) -> int:
        """Decide whether *message* is accepted for *partition*: GO_ON, or the units used, 0 if it has to wait."""
        publish = Judged(connection.version, message.qos, message.size, cost, 0)
        publish.deliveries = route.receivers
        publish.persistent = route.persistent if message.qos else 0
        publish.retained = message.retain
        log = self.log
        verdict = self._protection.judge(client, log.gates, publish, log.closed_gate(partition), now)
        if verdict.kind == ACCEPT:
            return GO_ON
        return 0 if verdict.kind == PAUSE else self._turn_away(connection, verdict, message, identifier, now)

    def _judge_run_for(
        self,
        connection: Connection,
        client: ProtectedClient,
        partition: Partition,
        route: Route,
        size: int,
        now: float,
    ) -> int:
        """Decide about the first message of a run: how many messages are accepted, 0 if it has to wait, -1: refused."""
        cost = self._prices.of_run(1, size, route.receivers)
        publish = Judged(connection.version, 0, size, cost, 0)
        publish.deliveries = route.receivers
        log = self.log
        verdict = self._protection.judge(client, log.gates, publish, log.closed_gate(partition), now)
        if verdict.kind == ACCEPT:
            return 1 + self._protection.fitting(client, log.gates, size, cost, now)
        if verdict.kind == PAUSE:
            return 0
        self._counters.packets_received += 1
        self._counters.publishes_received += 1
        self._refuse(connection, verdict, 0, b"", now)
        return -1
