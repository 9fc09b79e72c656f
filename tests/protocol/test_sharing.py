# A QoS 1 or 2 message of a shared subscription is its member's, whatever becomes of the member.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import PUBACK, PUBREC, PUBREL, V5, Ack, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import dropped, messages, payloads, subscribe

Brokers = Callable[..., Broker]
QOS = pytest.mark.parametrize("qos", [1, 2])
EXPIRY = 20  # seconds


def join(broker: Broker, name: str) -> Client:
    return broker.connect(name, V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: EXPIRY})


def share_one(broker: Broker, qos: int) -> tuple[Client, Client, Publish]:
    """Two members, "busy" and "idle", and the message that the first was sent."""
    busy = join(broker, "busy")
    subscribe(busy, "$share/g/t", qos=2)
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"t", b"job", qos, packet_id=1), *[Ack(PUBREL, 1)] * (qos == 2))
    publisher.receive()
    (message,) = messages(busy.receive())
    idle = join(broker, "idle")
    subscribe(idle, "$share/g/t", qos=2)
    return busy, idle, message


@QOS
def test_a_message_waits_for_the_member_that_it_was_sent_to(brokers: Brokers, qos: int) -> None:
    """A job would be done twice, or be lost, because a connection broke [MQTT-4.8.2-4]."""
    broker = brokers()
    busy, idle, message = share_one(broker, qos)
    busy.drop()
    assert [] == idle.receive()
    back = join(broker, "busy")

    assert [(b"job", message.packet_id, True)] == [(m.payload, m.packet_id, m.dup) for m in messages(back.receive())]
    assert [] == idle.receive()


@QOS
def test_a_message_ends_with_the_session_of_its_member(brokers: Brokers, qos: int) -> None:
    """A job that somebody may have done would be done again by another [MQTT-4.8.2-5]."""
    broker = brokers()
    busy, idle, _ = share_one(broker, qos)
    busy.drop()
    broker.advance(EXPIRY + 1)

    assert [] == idle.receive()
    assert {DropReason.SESSION_ENDED: 1} == dropped(broker)


@QOS
def test_a_message_ends_with_the_refusal_of_its_member(brokers: Brokers, qos: int) -> None:
    """A message that makes a worker fail would take down one after the other [MQTT-4.8.2-6]."""
    broker = brokers()
    busy, idle, message = share_one(broker, qos)
    busy.send(Ack(PUBACK if qos == 1 else PUBREC, message.packet_id, 0x80))

    assert [] == payloads(busy.receive())
    assert [] == payloads(idle.receive())
    broker.advance(EXPIRY)
    assert [] == payloads(idle.receive())
