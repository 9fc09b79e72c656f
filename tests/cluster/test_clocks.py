# Nodes on several machines, whose monotonic clocks began at different times.
from collections.abc import Callable, Sequence

import pytest

from broker.config.schema import Config, Redis
from broker.mqtt.packets import V5, Ack, ConnAck, Connect, Packet, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, SESSION_EXPIRY_INTERVAL
from tests.cluster.test_mesh_of_nodes import joined, until
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

LATER = (1_000_000.0, -900.0)  # seconds that the second node's clock is ahead: a month of uptime more, and less
EXPIRY = 60  # seconds


@pytest.fixture
def names() -> Sequence[str]:
    return ("a", "b")


@pytest.fixture(params=LATER)
def node(nodes: Callable[..., Node], redis: RunningRedis, request: pytest.FixtureRequest) -> Node:
    found = nodes(2, Config(redis=Redis(url="redis://localhost")), redis, later=request.param)
    until(found, lambda: joined(found))
    return found


@pytest.fixture(params=[(0, 1), (1, 0)], ids=["to the other clock", "from the other clock"])
def way(node: Node, request: pytest.FixtureRequest) -> tuple[Broker, Broker]:
    """The worker where something is published, and that where it is received."""
    here, there = request.param
    return node[here], node[there]


def until_answered(node: Node, client: Client, kind: type[Packet]) -> list[Packet]:
    """What *client* is sent, up to a packet of *kind*."""
    found: list[Packet] = []

    def answered() -> bool:
        found.extend(client.receive())
        return any(isinstance(packet, kind) for packet in found)

    until(node, answered)
    return found


def connected(node: Node, broker: Broker) -> Client:
    client = broker.open(V5)
    client.send(Connect(V5, "subscriber", False, properties={SESSION_EXPIRY_INTERVAL: 100}))
    client.inbox = until_answered(node, client, ConnAck)
    return client


def subscribed(node: Node, broker: Broker, filter: bytes) -> Client:
    client = connected(node, broker)
    client.send(Subscribe(1, [Wanted(filter, 1)]))
    client.inbox = until_answered(node, client, SubAck)
    return client


def publish(node: Node, broker: Broker, retain: bool = False) -> None:
    publisher = broker.connect("publisher", V5)
    properties: Properties = {MESSAGE_EXPIRY_INTERVAL: EXPIRY}
    publisher.send(Publish(b"a", b"x", 1, retain, packet_id=1, properties=properties))
    until_answered(node, publisher, Ack)
    publisher.drop()


def life(node: Node, client: Client) -> object:
    """The expiry of the message that *client* is sent."""
    found = [packet for packet in until_answered(node, client, Publish) if isinstance(packet, Publish)]
    return found[0].properties[MESSAGE_EXPIRY_INTERVAL]


def pass_time(node: Node, seconds: float) -> None:
    for _ in range(round(10 * seconds)):
        node.clock.now += 0.1
        node.settle()


@pytest.mark.parametrize("filter", [b"a", b"$share/group/a"])
def test_a_message_keeps_its_expiry_at_another_node(node: Node, way: tuple[Broker, Broker], filter: bytes) -> None:
    """It would be lost though it was acknowledged, or not expire for a month."""
    here, there = way
    client = subscribed(node, there, filter)

    publish(node, here)

    assert EXPIRY == life(node, client)


def test_a_retained_message_keeps_its_expiry_at_another_node(node: Node, way: tuple[Broker, Broker]) -> None:
    """Subscribers of one node would not find it, and those of another find it for a month."""
    here, there = way
    publish(node, here, retain=True)
    pass_time(node, 10)

    assert EXPIRY - 10 == life(node, subscribed(node, there, b"a"))


def test_what_waits_for_a_client_keeps_its_expiry_at_another_node(node: Node, way: tuple[Broker, Broker]) -> None:
    """A client that goes to another node would find nothing of what waits for it, or all of it for a month."""
    here, there = way
    subscribed(node, here, b"a").drop()
    publish(node, here)
    pass_time(node, 10)

    assert EXPIRY - 10 == life(node, connected(node, there))
