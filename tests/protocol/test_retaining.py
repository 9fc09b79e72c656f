# Retained messages: what is kept for a topic, and what ends it.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import V5, V31, V311, Disconnect, Publish
from tests.inprocess import Broker, Client
from tests.protocol.talk import messages, subscribe

Brokers = Callable[..., Broker]
VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


def publish(client: Client, payload: bytes, qos: int = 0, *, retain: bool = True) -> None:
    client.send(Publish(b"t", payload, qos, retain, packet_id=1 if qos else 0))
    client.receive()


def retained(broker: Broker, version: int = V311) -> list[tuple[bytes, int, bool]]:
    """What somebody who comes now is shown: (payload, QoS, retain flag)."""
    late = broker.connect("late", version)
    return [(message.payload, message.qos, message.retain) for message in subscribe(late, "t", qos=2)]


@VERSIONS
def test_a_new_subscription_is_shown_what_is_retained(brokers: Brokers, version: int) -> None:
    """Who comes late would not know the state, or take it for news: 3.1.1 [MQTT-3.3.1-6], 3.1.1 [MQTT-3.3.1-8]."""
    broker = brokers()
    publish(broker.connect("publisher", version), b"state", 1)

    assert [(b"state", 1, True)] == retained(broker, version)


@VERSIONS
@pytest.mark.parametrize(("former", "later"), [(2, 0), (0, 2), (1, 1)])
def test_the_last_one_is_kept_with_its_qos(brokers: Brokers, version: int, former: int, later: int) -> None:
    """Who comes late would be told what is no longer true [MQTT-3.3.1-5], also at QoS 0, 3.1.1 [MQTT-3.3.1-7]."""
    broker = brokers()
    publisher = broker.connect("publisher", version)
    publish(publisher, b"former", former)
    publish(publisher, b"later", later)

    assert [(b"later", later, True)] == retained(broker)


@VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_an_empty_one_is_delivered_and_ends_what_was_kept(brokers: Brokers, version: int, qos: int) -> None:
    """A state could not be taken back [MQTT-3.3.1-6], or an empty message be kept instead [MQTT-3.3.1-7]."""
    broker = brokers()
    publisher = broker.connect("publisher", version)
    publish(publisher, b"state", 1)
    reader = broker.connect("reader", version)
    subscribe(reader, "t", qos=2)
    publish(publisher, b"", qos)

    assert [(b"", qos, False)] == [(m.payload, m.qos, m.retain) for m in messages(reader.receive())]
    assert [] == retained(broker)
    assert 0 == broker.retained.statistics().count


@VERSIONS
@pytest.mark.parametrize("payload", [b"news", b""])
def test_what_is_not_to_be_retained_changes_nothing(brokers: Brokers, version: int, payload: bytes) -> None:
    """News would become the state of its topic, or an empty one clear it [MQTT-3.3.1-8]."""
    broker = brokers()
    publisher = broker.connect("publisher", version)
    publish(publisher, payload, retain=False)
    assert [] == retained(broker)
    publish(publisher, b"state")
    publish(publisher, payload, 1, retain=False)

    assert [(b"state", 0, True)] == retained(broker)


@VERSIONS
def test_what_is_retained_outlives_its_publisher(brokers: Brokers, version: int) -> None:
    """The state of a sensor that reports once a day would be gone with its connection, 3.1.1 [MQTT-3.1.2-7]."""
    broker = brokers()
    publisher = broker.connect("publisher", version)
    publish(publisher, b"state")
    publisher.send(Disconnect())
    publisher.receive()
    assert 0 == broker.session_count()

    assert [(b"state", 0, True)] == retained(broker)
