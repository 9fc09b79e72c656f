# A worker dies: the wills of its clients are published by another one, each once, and not of those who came back.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import V5, Connect, Disconnect, Properties, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}


@pytest.fixture
def node(nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis]) -> Node:
    return nodes(3, None, start_redis())


def leave_a_will(broker: Broker, delay: int) -> Client:
    will = Will(b"will", b"gone", 1, properties={WILL_DELAY_INTERVAL: delay})
    return broker.connect("me", V5, properties=LASTING, will=will)


def die(node: Node, broker: Broker) -> None:
    node.kill(broker)
    node.publish_wills_of(broker, node[0])


def test_the_will_is_published_once_its_delay_has_passed(node: Node) -> None:
    """Nobody would hear that a device is gone [MQTT-3.1.2-8]."""
    listener = node[0].connect("listener", V5)
    subscribed(listener, "will")
    leave_a_will(node[2], 5)
    die(node, node[2])
    node.advance(4.9)
    assert [] == payloads(listener)
    node.advance(0.3)
    assert [b"gone"] == payloads(listener)


@pytest.mark.parametrize("delay", [0, 5])
def test_a_will_that_was_published_is_not_published_again(node: Node, delay: int) -> None:
    """Who is away would be said to be gone once more when the worker that has the session dies."""
    listener = node[0].connect("listener", V5)
    subscribed(listener, "will")
    leave_a_will(node[2], delay).drop()
    node.advance(6)
    assert [b"gone"] == payloads(listener)
    die(node, node[2])
    node.advance(6)

    assert [] == payloads(listener)


def test_who_came_back_and_left_has_no_former_will(node: Node) -> None:
    """A will that was taken back [MQTT-3.1.3-9] would be published when nobody has the session any more."""
    listener = node[0].connect("listener", V5)
    subscribed(listener, "will")
    leave_a_will(node[2], 5)
    die(node, node[2])
    back = node[1].connect("me", V5)
    back.send(Disconnect(0))
    node.advance(10)

    assert [] == payloads(listener)


@pytest.mark.parametrize("offered", [False, True])
def test_a_will_that_moved_with_its_session_is_known_where_it_is(node: Node, offered: bool) -> None:
    """It would be lost with the worker that took the session over, for a client that has not come back."""
    listener = node[0].connect("listener", V5)
    subscribed(listener, "will")
    leave_a_will(node[2], 20).drop()
    if offered:  # as by a worker that is replaced
        session = node[2].session("me")
        assert session is not None
        while node[1].session("me") is None:
            node[2].takeovers.offer(session)
            node.settle()
    else:
        gone = node[1].open(V5)
        gone.send(Connect(V5, "me", False, 0, None, None, None, LASTING))
        node[1].turn()  # its CONNECT is taken, and claims the session
        gone.drop()
    assert node[1].session("me") is not None
    die(node, node[1])
    node.advance(21)

    assert [b"gone"] == payloads(listener)
