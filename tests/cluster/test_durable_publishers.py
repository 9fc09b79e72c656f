# Publishers of QoS 2 whose sessions are stored: what they are told, and when.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Overload, Retained
from broker.insight.explain import explain
from broker.mqtt.packets import PUBACK, PUBREC, V5, V311, Ack, Publish
from broker.reasons import CloseReason, PublishRefusal
from tests.cluster.durable_node import Durable
from tests.cluster.test_durable import payloads

pytestmark = pytest.mark.system  # real servers

WAIT = Overload().wait


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
    node.redis.pause()  # a full one would remove the token
    node.worker.answered = False

    publisher.send(Publish(b"other", b"1", 2, True, packet_id=7))

    assert [] == publisher.receive()
    node.redis.go_on()
    node.worker.answered = True
    assert [Ack(PUBREC, 7, CloseReason.QUOTA_EXCEEDED.code)] == publisher.receive()
    assert [b"1", b"1"] == [payload for payload, _, _ in payloads(node.connect("reader"))]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_publish_that_waits_for_the_store_has_the_deadline_of_a_gate(node: Durable, version: int) -> None:
    """A client would wait for ever for a store that is full, and `weir why` would say that nothing throttles it."""
    node.subscriber("reader", b"+", qos=2).socket.close()
    publisher = node.connect("writer", version)
    full(node, True)

    publisher.send(Publish(b"a", b"1", 2, packet_id=7))

    node.worker.advance(WAIT - 0.5)
    assert [] == publisher.receive()
    told = " ".join(explain(node.worker.diagnostics.facts("writer")))
    assert " s (store): its publish of QoS 2 needs an entry in the store first" in told
    assert "It continues as soon as that is stored. If that takes more than " in told
    node.worker.advance(1.0)
    if version == V5:
        (refused,) = publisher.receive()
        assert isinstance(refused, Ack)
        assert (PUBREC, 7, PublishRefusal.GATE_TIMEOUT.code) == (refused.kind, refused.packet_id, refused.code)
        assert "Nothing throttles it." in " ".join(explain(node.worker.diagnostics.facts("writer")))
    else:
        assert [] == publisher.receive()
        assert "gate_timeout" in " ".join(explain(node.worker.diagnostics.facts("writer")))


def test_a_publish_goes_on_once_what_it_waits_for_is_stored(node: Durable) -> None:
    """It would wait for its deadline, or be lost with the wait; or each of these waits would be logged as overload."""
    node.subscriber("reader", b"+", qos=2).socket.close()
    publisher = node.connect("writer")
    full(node, True)
    publisher.send(Publish(b"a", b"1", 2, packet_id=7))
    node.worker.advance(2.0)
    assert [] == publisher.receive()
    full(node, False)

    assert [Ack(PUBREC, 7)] == publisher.receive()
    assert [] == node.worker.diagnostics.facts("writer")["decisions"]
    assert [b"1"] == [payload for payload, _, _ in payloads(node.connect("reader"))]


def test_a_client_that_leaves_while_its_publish_waits_for_the_store_leaves_nothing(node: Durable) -> None:
    """What is stored later would be told to a connection that has ended, or its next one would count as throttled."""
    node.subscriber("reader", b"+", qos=2).socket.close()
    publisher = node.connect("writer")
    full(node, True)
    publisher.send(Publish(b"a", b"1", 2, packet_id=7))
    publisher.socket.close()
    publisher = node.connect("writer")
    assert node.worker.diagnostics.facts("writer")["held"] is None
    publisher.send(Publish(b"a", b"2", 2, packet_id=7))
    full(node, False)

    assert [Ack(PUBREC, 7)] == publisher.receive()
    assert [b"2"] == [payload for payload, _, _ in payloads(node.connect("reader"))]
