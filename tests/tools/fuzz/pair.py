# The pair beside the stream of inputs: whatever is done to the broker, this is what it owes everybody else.
#
# One publisher sends numbers at QoS 0, 1 and 2. One subscriber stays; another one, with a persistent session, breaks
# its connection all the time and comes back. Nobody but they knows the topics. Each number has to reach each of them,
# in order; at QoS 2 once, at QoS 1 a second time only as the duplicate it is then marked as. The one that
# comes and goes asks for no QoS 0, which is not kept for those who are away.
# What is not everywhere yet is at most a window, so the queue of a session never holds more than that.
from collections.abc import Callable
from typing import Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.stream import PacketReader
from broker.reasons import ProtocolError
from tests.tools.fuzz.connection import Connection
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.transports import Transport

INTERVAL: Final = 0.01  # seconds between two publishes at each QoS
WINDOW: Final = 10  # messages at each QoS that did not reach everybody yet; those of both must fit the broker's queue
AWAY_EVERY: Final = 0.5  # seconds that the restless subscriber stays
AWAY: Final = 0.05  # seconds that it is away
PATIENCE: Final = 20.0  # seconds for anything
LIMIT: Final = 1024 * 1024  # bytes of a packet
REFUSED: Final = 0x80  # reason codes from here on

Fail = Callable[[str], None]


class Client:
    """A client that keeps the rules and its session, over any number of connections."""

    def __init__(self, loop: Loop, transport: Transport, client_id: str, version: int, clean: bool, fail: Fail) -> None:
        self.client_id = client_id
        self.version = version
        self.connected = False
        self.sessions_found = 0
        self.fail = fail
        self._loop = loop
        self._transport = transport
        self._clean = clean
        self._connection: Connection | None = None
        self._reader = PacketReader(version, LIMIT)

    def connect(self) -> None:
        self._reader = PacketReader(self.version, LIMIT)
        self._connection = Connection(self._loop, self._transport.port, self._transport.channel(), self)
        self.say(self.hello())

    def hello(self) -> Connect:
        return Connect(self.version, self.client_id, self._clean)

    def say(self, *packets: Packet) -> None:
        assert self._connection is not None
        self._connection.say(b"".join([encode(packet, self.version) for packet in packets]))

    def drop(self, reset: bool) -> None:
        """End the connection without a word."""
        if self._connection is not None:
            self.connected = False
            if reset:
                self._connection.reset()
            else:
                self._connection.close()

    def heard(self, data: bytes) -> None:
        try:
            for packet in self._reader.feed(data):
                if isinstance(packet, ConnAck):
                    if packet.code:
                        self.fail(f"{self.client_id} was refused: {packet}")
                    self.connected = True
                    self.sessions_found += packet.session_present
                    self.arrived(packet)
                elif isinstance(packet, Disconnect):
                    self.fail(f"{self.client_id} was sent away: {packet}")
                else:
                    self.take(packet)
        except ProtocolError as error:
            self.fail(f"{self.client_id} was sent what is no MQTT: {error}")

    def ended(self, why: str) -> None:
        self.connected = False
        self.fail(f"{self.client_id} lost its connection: {why}")

    def arrived(self, answer: ConnAck) -> None:
        raise NotImplementedError

    def take(self, packet: Packet) -> None:
        raise NotImplementedError


class Subscriber(Client):
    def __init__(
        self,
        loop: Loop,
        transport: Transport,
        client_id: str,
        version: int,
        topics: dict[bytes, int],
        clean: bool,
        fail: Fail,
    ) -> None:
        super().__init__(loop, transport, client_id, version, clean, fail)
        self.ready = False  # subscribed
        self.next = dict.fromkeys(topics, 0)  # the number to come
        self.repeated = 0  # at QoS 1, lawfully
        self.topics = topics
        self.returns = 0
        self._unreleased: set[int] = set()

    def arrived(self, answer: ConnAck) -> None:
        if self.ready and not answer.session_present:
            self.fail(f"the session of {self.client_id} was lost")
        if not self.ready:
            self.say(Subscribe(1, [Wanted(topic, qos) for topic, qos in self.topics.items()]))

    def take(self, packet: Packet) -> None:
        if isinstance(packet, Publish):
            self._take_message(packet)
        elif isinstance(packet, Ack) and packet.kind == PUBREL:
            self._unreleased.discard(packet.packet_id)
            self.say(Ack(PUBCOMP, packet.packet_id))
        elif isinstance(packet, SubAck):
            self.ready = True
            if packet.codes != list(self.topics.values()):
                self.fail(f"{self.client_id} may not subscribe: {packet}")
        else:
            self.fail(f"{self.client_id} was sent {packet}")

    def come_back(self) -> None:
        self.returns += 1
        self.connect()

    def _take_message(self, message: Publish) -> None:
        if message.qos == 1:
            self.say(Ack(PUBACK, message.packet_id))
        elif message.qos == 2:
            self.say(Ack(PUBREC, message.packet_id))
            if message.packet_id in self._unreleased:
                return  # it had not heard that we have it [MQTT-4.3.3-10]
            self._unreleased.add(message.packet_id)
        if message.topic not in self.topics or message.qos != self.topics[message.topic]:
            self.fail(f"{self.client_id} was sent what nobody sent: {message}")
            return
        found, expected = int(message.payload), self.next[message.topic]
        if found == expected:
            self.next[message.topic] += 1
        elif found < expected and message.qos == 1 and message.dup:
            self.repeated += 1
        else:
            what = "twice or late" if found < expected else "too early, or what is before it was lost"
            self.fail(f"{self.client_id}, QoS {message.qos}: message {found} came {what}; {expected} was to come")


class Publisher(Client):
    def __init__(self, loop: Loop, transport: Transport, client_id: str, version: int, fail: Fail) -> None:
        super().__init__(loop, transport, client_id, version, True, fail)
        self.waiting: set[int] = set()  # packet ids on their way
        self._packet_id = 0

    def arrived(self, answer: ConnAck) -> None:
        pass

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        packet = Publish(topic, payload, qos)
        if qos:
            self._packet_id = self._packet_id % 0xFFFF + 1
            packet.packet_id = self._packet_id
            self.waiting.add(packet.packet_id)
        self.say(packet)

    def take(self, packet: Packet) -> None:
        if not isinstance(packet, Ack) or packet.code >= REFUSED or packet.packet_id not in self.waiting:
            self.fail(f"{self.client_id} was sent {packet}")
        elif packet.kind == PUBREC:
            self.say(Ack(PUBREL, packet.packet_id))
        else:
            self.waiting.discard(packet.packet_id)


class Pair:
    """Runs until stop(); *name* is known to nobody else. What is wrong is told to *fail*, in a sentence."""

    CONNECTIONS: Final = 3

    def __init__(self, loop: Loop, transport: Transport, name: str, fail: Fail) -> None:
        self._loop = loop
        self._fail = fail
        self._topics = {f"{name}/{qos}".encode(): qos for qos in (0, 1, 2)}
        kept = {topic: qos for topic, qos in self._topics.items() if qos}
        self._publisher = Publisher(loop, transport, f"{name}-publisher", V5, fail)
        self.steady = Subscriber(loop, transport, f"{name}-steady", V5, self._topics, True, fail)
        self.restless = Subscriber(loop, transport, f"{name}-restless", V311, kept, False, fail)
        self.sent = dict.fromkeys(self._topics, 0)
        self._stopping = False
        self._moved = loop.now  # when somebody last received something, or had nothing to receive
        self._received = 0

    def start(self) -> None:
        """Returns when all are there. AssertionError after PATIENCE seconds."""
        clients = [self._publisher, self.steady, self.restless]
        for client in clients:
            client.connect()
        self._until(lambda: self._publisher.connected and self.steady.ready and self.restless.ready, "to be there")
        self._loop.later(INTERVAL, self._publish)
        self._loop.later(AWAY_EVERY, self._leave)

    def stop(self) -> None:
        """Publish no more; returns when everything has arrived. AssertionError after PATIENCE seconds."""
        self._stopping = True
        self._until(lambda: not self.missing() and self.restless.connected, "to have everything")
        for client in (self._publisher, self.steady, self.restless):
            client.drop(reset=False)

    def missing(self) -> int:
        """Deliveries, and acknowledgements of the publisher's, that are still to come."""
        steady = sum(self.sent[topic] - reached for topic, reached in self.steady.next.items())
        restless = sum(self.sent[topic] - reached for topic, reached in self.restless.next.items())
        return steady + restless + len(self._publisher.waiting)

    def check(self) -> None:
        """Fail when nothing has moved for PATIENCE seconds."""
        received = sum(self.steady.next.values()) + sum(self.restless.next.values())
        if received != self._received or not self.missing():
            self._received, self._moved = received, self._loop.now
        elif self._loop.now - self._moved > PATIENCE:
            self._moved = self._loop.now
            self._fail(f"nothing has come for {PATIENCE:.0f} s, and {self.missing()} deliveries are missing")

    def statistics(self) -> dict[str, int]:
        return {
            "messages": sum(self.sent.values()),
            "deliveries": sum(self.steady.next.values()) + sum(self.restless.next.values()),
            "missing": self.missing(),
            "repeated lawfully": self.restless.repeated,
            "returns": self.restless.returns,
        }

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = self._loop.now + PATIENCE
        while not condition():
            assert self._loop.now < deadline, f"the pair waits {what}: {self.statistics()}"
            self._loop.turn(0.1)

    def _publish(self) -> None:
        if self._stopping:
            return
        for topic, qos in self._topics.items():
            reached = min(who.next[topic] for who in (self.steady, self.restless) if topic in who.next)
            if self._publisher.connected and self.sent[topic] - reached < WINDOW:
                self._publisher.publish(topic, b"%d" % self.sent[topic], qos)
                self.sent[topic] += 1
        self._loop.later(INTERVAL, self._publish)

    def _leave(self) -> None:
        if self._stopping:
            return
        if self.restless.connected:  # who leaves before it has come would, on a slow machine, never be there
            self.restless.drop(reset=self.restless.returns % 2 == 0)
            self._loop.later(AWAY, self.restless.come_back)
        self._loop.later(AWAY_EVERY, self._leave)
