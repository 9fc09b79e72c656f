# Publishers of QoS 2 whose sessions are stored: what they are told, and when.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Retained
from broker.mqtt.packets import PUBACK, PUBREC, V5, Ack, Publish
from broker.reasons import CloseReason
from tests.cluster.durable_node import Durable
from tests.cluster.test_durable import payloads

pytestmark = pytest.mark.system  # real servers


def full(node: Durable, yes: bool) -> None:
    """The memory of Redis is used up, or there is room again."""
    node.redis.client().config_set("maxmemory", 1 if yes else 0)
    node.worker.answered = not yes
    if not yes:
        node.worker.advance(1)


def test_a_retained_publish_that_is_refused_costs_no_exchange_of_qos_2(nodes_of: Callable[..., Durable]) -> None:
    """A QoS 1 publish with the packet id of an exchange of QoS 2 would have that exchange's message stored twice."""
    node = nodes_of(Config(retained=Retained(messages=1)))
    node.subscriber("reader", b"a", qos=2).socket.close()
    publisher = node.connect("writer", V5)
    publisher.send(Publish(b"a", b"1", 2, packet_id=7), Publish(b"kept", b"1", 1, True, packet_id=1))
    assert {PUBREC, PUBACK} == {each.kind for each in publisher.receive() if isinstance(each, Ack)}

    publisher.send(Publish(b"other", b"1", 1, True, packet_id=7))

    assert [Ack(PUBACK, 7, CloseReason.QUOTA_EXCEEDED.code)] == publisher.receive()
    node.worker.advance(0.3)
    node.kill()
    publisher = node.connect("writer", V5)
    publisher.send(Publish(b"a", b"1", 2, packet_id=7, dup=True))
    assert [Ack(PUBREC, 7)] == publisher.receive()
    assert [(b"1", 1, True)] == payloads(node.connect("reader"))


def test_a_retained_publish_is_refused_once_it_leaves_nothing_in_the_store(nodes_of: Callable[..., Durable]) -> None:
    """After a crash the next publish with its packet id, or the one after it, would be taken for a repetition."""
    node = nodes_of(Config(retained=Retained(messages=1)))
    node.subscriber("reader", b"+", qos=2).socket.close()
    publisher = node.connect("writer", V5)
    publisher.send(Publish(b"a", b"1", 2, packet_id=1), Publish(b"kept", b"1", 1, True, packet_id=2))
    assert 2 == len(publisher.receive())
    node.worker.advance(0.3)
    full(node, True)

    publisher.send(Publish(b"other", b"1", 2, True, packet_id=7))

    assert [] == publisher.receive()
    full(node, False)
    assert [Ack(PUBREC, 7, CloseReason.QUOTA_EXCEEDED.code)] == publisher.receive()
    assert [b"1", b"1"] == [payload for payload, _, _ in payloads(node.connect("reader"))]
