# Members, publishers and restarts for tests of shared subscriptions of durable sessions, with workers in this process.
import random

import pytest

from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    Connect,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 10_000}
FILTER = "$share/group/a"
LIST = b"*:%b:*\0g*"  # the keys of lists
RETURNED = b"*:%b:*\0r*"  # and of messages that return to their groups
NUMBERS = [b"%d" % number for number in range(200)]  # more than a pack


def arrive(broker: Broker, name: str = "member", clean: bool = False, window: int = 0) -> Client:
    """The durable client *name*, which has at most *window* messages in flight."""
    properties = LASTING | ({RECEIVE_MAXIMUM: window} if window else {})
    client = broker.connect(name, V5, clean_start=clean, properties=properties)
    broker.settle()
    return client


def member(broker: Broker, name: str = "member", qos: int = 2, window: int = 0) -> Client:
    """A durable client that is a member of the group. What waits may come ahead of its SUBACK."""
    client = arrive(broker, name, window=window)
    client.send(Subscribe(1, [Wanted(FILTER.encode(), qos)]))
    packets = client.receive()
    assert SubAck(1, [qos]) in packets
    client.inbox.extend([each for each in packets if isinstance(each, Publish)])
    return client


def absent(broker: Broker, name: str = "member", qos: int = 2) -> None:
    member(broker, name, qos).drop()
    broker.settle()
    broker.advance(0.3)


def publisher(broker: Broker, *said: bytes, qos: int = 1) -> Client:
    """A client that has published and waits for its answers."""
    client = broker.connect("publisher", V5)
    client.send(*[Publish(b"a", payload, qos, packet_id=number + 1) for number, payload in enumerate(said)])
    return client


def answers(client: Client) -> int:
    return len([each for each in client.receive() if isinstance(each, Ack)])


def publish(broker: Broker, *said: bytes, qos: int = 1) -> None:
    """Publish, and see the acknowledgements."""
    client = publisher(broker, *said, qos=qos)
    broker.settle()
    broker.advance(0.2)
    assert len(said) == answers(client)
    client.drop()
    broker.settle()


def payloads(client: Client) -> list[bytes]:
    return [each.payload for each in client.receive() if isinstance(each, Publish)]


def taken(client: Client, broker: Broker) -> list[bytes]:
    """Everything that *client* is sent, which it acknowledges, also at QoS 2."""
    found: list[bytes] = []
    for _ in range(1000):
        packets = client.receive()
        if not packets:
            broker.advance(0.2)
            packets = client.receive()
            if not packets:
                return found
        for packet in packets:
            if isinstance(packet, Publish):
                found.append(packet.payload)
                client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
            elif isinstance(packet, Ack) and packet.kind == PUBREL:
                client.send(Ack(PUBCOMP, packet.packet_id))
    raise AssertionError("there is no end to it")


def end(node: Node) -> None:
    """All workers end as if they were killed."""
    for broker in list(node):
        node.workers.remove(broker)
        broker.close()


def restart(node: Node, count: int) -> None:
    """All workers end as if they were killed, and *count* others begin."""
    end(node)
    node._workers = count
    for _ in range(count):
        node.start()


def stored(redis: RunningRedis) -> int:
    """How many lists of groups there are."""
    return len(redis.client().keys(LIST % b"session"))


def nothing_is_stored(redis: RunningRedis) -> bool:
    client = redis.client()
    names = (LIST, RETURNED)
    return [] == [
        key for kind in (b"session", b"queue", b"released") for name in names for key in client.keys(name % kind)
    ]


def expire_at_the_next_start(broker: Broker, name: str) -> None:
    session = broker.session(name)
    assert session is not None and session.storage is not None
    session.storage.store_head(0, None, False)
    broker.settle()


def seeds(first: int, last: int) -> list[object]:
    """Those that take too long for each run."""
    return [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(first, last + 1)]


class Fleet:
    """Members that come and go, publishers, and workers that die, as *chance* has it."""

    def __init__(self, node: Node, qos: int, seed: int, leaves: bool = False) -> None:
        """*leaves*: sessions of members end, too, but for the first one."""
        self._node = node
        self._leaves = leaves
        self._qos = qos
        self._chance = random.Random(seed)
        self._members: dict[str, Client | None] = dict.fromkeys(("one", "two", "three"))
        self._publishers: dict[Broker, Client] = {}
        self._published = 0
        self.answered: set[bytes] = set()
        self.received: list[bytes] = []
        for number, name in enumerate(self._members):
            member(node[number % len(node)], name, qos).drop()

    def step(self, deaths: bool) -> None:
        chance, node = self._chance, self._node
        choices = ["publish", "publish", "come", "go", "take", "take", "die" if deaths else "take", "begin"]
        what = chance.choice([*choices, "leave"] if self._leaves else choices)
        if what == "publish":
            self._publish(chance.choice(node.workers), chance.randint(1, 40))
        elif what == "come":
            name = chance.choice(list(self._members))
            client = chance.choice(node.workers).open(V5)
            client.send(Connect(V5, name, False, 0, properties=LASTING | {RECEIVE_MAXIMUM: chance.choice([2, 10, 99])}))
            self._members[name] = client
        elif what == "go":
            gone = self._members[chance.choice(list(self._members))]
            if gone is not None:
                gone.drop()
        elif what == "leave":
            name = chance.choice(list(self._members)[1:])
            client = chance.choice(node.workers).open(V5)
            wanted = Subscribe(1, [Wanted(FILTER.encode(), self._qos)])
            client.send(Connect(V5, name, True, 0, properties=LASTING), wanted)
            self._members[name] = client
        elif what == "take":
            self.take()
        elif what == "die" and len(node) > 1:
            victim = chance.choice(node.workers)
            self._publishers.pop(victim, None)
            node.kill(victim)
        elif what == "begin" and len(node) < 3:
            node.start()
        for _ in range(chance.randint(0, 5)):
            for broker in list(node):
                broker.turn()
        if chance.random() < 0.3:
            node.advance(0.1)
        self._hear()

    def _publish(self, broker: Broker, count: int) -> None:
        client = self._publishers.get(broker)
        if client is None or client.closed:
            client = self._publishers[broker] = broker.open(V5)
            client.send(Connect(V5, f"publisher{broker.shard}"))
        for _ in range(count):
            self._published += 1
            client.post(Publish(b"a", b"%d" % self._published, self._qos, packet_id=self._published))

    def _hear(self) -> None:
        for client in self._publishers.values():
            for packet in client.receive():
                if isinstance(packet, Ack) and packet.code < 0x80 and packet.kind != PUBCOMP:
                    self.answered.add(b"%d" % packet.packet_id)
                    if packet.kind == PUBREC:
                        client.post(Ack(PUBREL, packet.packet_id))

    def take(self) -> int:
        """All members take what they have been sent; how many packets that was."""
        count = 0
        for client in [each for each in self._members.values() if each is not None]:
            for packet in client.receive():
                count += 1
                if isinstance(packet, Publish):
                    self.received.append(packet.payload)
                    client.post(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))
                elif isinstance(packet, Ack) and packet.kind == PUBREL:
                    client.post(Ack(PUBCOMP, packet.packet_id))
        return count

    def end(self) -> None:
        """All workers are there, then all members, until nothing comes any more."""
        node = self._node
        while len(node) < 3:
            node.start()
        node.advance(1.0)
        for name in self._members:
            self._members[name] = arrive(node[0], name)
        quiet = 0
        while quiet < 5:
            quiet = 0 if self.take() else quiet + 1
            node.advance(0.2)
            self._hear()
