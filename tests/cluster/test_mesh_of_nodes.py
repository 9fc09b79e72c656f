# The mesh by real lanes: two nodes that meet in a Redis.
import select
from collections.abc import Callable, Sequence

import pytest

from broker.cluster.lane_pair import SETTLING
from broker.config.schema import Config, Redis
from broker.mqtt.packets import V5, ConnAck, Connect, Packet, Publish, Subscribe, Wanted
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.innode import Node
from tests.inprocess import Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis


@pytest.fixture
def names() -> Sequence[str]:
    return ("a", "b")


@pytest.fixture
def node(nodes: Callable[..., Node], redis: RunningRedis) -> Node:
    found = nodes(2, Config(redis=Redis(url="redis://localhost")), redis)  # which says that it is no server of its own
    until(found, lambda: joined(found))
    return found


def until(node: Node, done: Callable[[], bool]) -> None:
    """Lanes bring what they have to bring; time passes for their timers."""
    for _ in range(3000):
        node.settle()
        if done():
            return
        select.select([broker.worker.loop for broker in node], [], [], 0.01)
        node.clock.now += 0.01
    raise AssertionError("it does not come")


def joined(node: Node) -> bool:
    return all(len(broker.mesh.peers) == 1 and broker.mesh.complete() for broker in node)


def subscribers(node: Node) -> list[Client]:
    """One at each worker, to `a`."""
    clients = [broker.connect(f"subscriber {broker.number}", V5) for broker in node]
    for client in clients:
        client.send(Subscribe(1, [Wanted(b"a", 1)]))
    waiting = [*clients]

    def answered() -> bool:
        waiting[:] = [client for client in waiting if not client.receive()]
        return not waiting

    until(node, answered)
    return clients


def say(node: Node, clients: list[Client], *said: bytes) -> None:
    """Publish at each worker, and see that all *clients* get all of it."""
    for broker in node:
        publisher = broker.connect(f"publisher {broker.number}", V5)
        for n, payload in enumerate(said):
            publisher.send(Publish(b"a", payload, 1, packet_id=n + 1))
    got: list[list[bytes]] = [[] for _ in clients]

    def arrived() -> bool:
        for client, had in zip(clients, got, strict=True):
            had += [packet.payload for packet in client.receive() if isinstance(packet, Publish)]
        return all(len(had) >= 2 * len(said) for had in got)

    until(node, arrived)
    assert [sorted(said * 2)] * len(clients) == [sorted(had) for had in got]


def test_nodes_hear_each_other(node: Node) -> None:
    """Each would be a broker of its own."""
    say(node, subscribers(node), b"1", b"2", b"3")


def test_lanes_that_one_end_begins_anew_are_begun_anew_by_the_other_one(node: Node) -> None:
    """The two would not hear each other again, or begin anew for ever."""
    one, two = node
    clients = subscribers(node)
    former = [*one.mesh.peers, *two.mesh.peers]
    one.mesh.restarted(two.identity)
    until(node, lambda: joined(node) and not {*one.mesh.peers, *two.mesh.peers} & {*former})
    say(node, clients, b"1", b"2", b"3")
    again = [*one.mesh.peers, *two.mesh.peers]
    node.advance(5)

    assert again == [*one.mesh.peers, *two.mesh.peers]


def test_what_cannot_be_read_has_both_ends_begin_anew(node: Node) -> None:
    """One end would wait for a peer that does not listen."""
    one, two = node
    clients = subscribers(node)
    (peer,) = two.mesh.peers
    peer.tell(bytes(8))
    until(node, lambda: one.counters.lanes_malformed > 0)
    until(node, lambda: joined(node) and two.mesh.peers != [peer])
    say(node, clients, b"1", b"2", b"3")


@pytest.mark.parametrize("at", ["a node that lives", "the dead node"])
def test_a_node_that_has_died_keeps_no_session_from_moving(
    nodes: Callable[..., Node], redis: RunningRedis, at: str
) -> None:
    """Until it counts as silent, no client that goes to another worker would get its session."""
    node = nodes(4, Config(redis=Redis(url="redis://localhost")), redis, durable=True)
    until(node, lambda: all(len(broker.mesh.peers) == 3 and broker.mesh.complete() for broker in node))
    a0, b0, a1, b1 = node
    owner = b0 if at == "the dead node" else a0
    client = owner.connect("me", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    until(node, lambda: owner.session("me") is not None)
    client.drop()
    node.clock.now += SETTLING
    node.settle()
    for dead in (b1, b0):
        node.kill(dead, heard=False)
    began = node.clock.now
    again = a1.open(V5)
    again.send(Connect(V5, "me", False, properties={SESSION_EXPIRY_INTERVAL: 100}))
    answers: list[Packet] = []

    def answered() -> bool:
        answers.extend(again.receive())
        return bool(answers)

    until(node, answered)

    assert [True] == [packet.session_present for packet in answers if isinstance(packet, ConnAck)]
    assert node.clock.now - began < 0.5


def test_connections_to_redis_that_are_lost_cost_nothing(node: Node, redis: RunningRedis) -> None:
    """Peers would be lost with them."""
    clients = subscribers(node)
    former = [peer for broker in node for peer in broker.mesh.peers]
    redis.client().client_kill_filter(_type="pubsub")
    say(node, clients, *[b"%d" % n for n in range(100)])

    assert former == [peer for broker in node for peer in broker.mesh.peers]
