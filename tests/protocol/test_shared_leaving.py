# What waits for a member of a shared subscription when members end and others come.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, V311, Ack, Publish
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.reasons import DropReason
from broker.routing.fanout import SHARED_PAGE
from tests.inprocess import Broker
from tests.protocol.talk import dropped, messages, payloads, subscribe

Brokers = Callable[..., Broker]

SHARED = "$share/g/t"
LASTING = {SESSION_EXPIRY_INTERVAL: 10}


def away(broker: Broker, name: str, *filters: str, qos: int = 1, identifier: int = 0) -> None:
    """A client that subscribed and is away; its session ends ten seconds later."""
    client = broker.connect(name, V5, properties=dict(LASTING))
    subscribe(client, *(filters or (SHARED,)), qos=qos, identifier=identifier)
    client.drop()


def publish(broker: Broker, count: int, qos: int = 1) -> list[bytes]:
    """Publish so many messages, with different payloads; these."""
    publisher = broker.connect("publisher")
    sent = [b"%d" % number for number in range(count)]
    publisher.send(*(Publish(b"t", payload, qos, packet_id=n + 1) for n, payload in enumerate(sent)))
    publisher.receive()
    return sent


def joined(broker: Broker, qos: int = 1) -> list[Publish]:
    """What a new member is sent: "heir"."""
    client = broker.connect("heir", V5)
    return subscribe(client, SHARED, qos=qos) + messages(client.receive())


@pytest.mark.parametrize("count", [1, 3 * SHARED_PAGE + 1])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_new_member_gets_what_was_never_sent(brokers: Brokers, count: int, qos: int) -> None:
    """What came while a worker of a group is away would wait for it, and be lost with it (4.8.2)."""
    broker = brokers(Config(limits=Limits(receive_maximum=65535)))
    away(broker, "gone", qos=qos, identifier=5)
    sent = publish(broker, count, qos)
    received = joined(broker, qos)

    assert sent == payloads(received)
    assert {qos} == {message.qos for message in received}
    assert not any(message.properties for message in received)  # the identifier was the other member's
    assert {} == dropped(broker)
    broker.connect("heir", V5)  # its session ends, with all that it has not acknowledged
    assert (0, 0) == (broker.queue_budget.used, broker.queue_budget.messages)


def test_what_was_sent_and_not_acknowledged_stays_with_its_member(brokers: Brokers) -> None:
    """A message of QoS 2 would reach two members [MQTT-4.8.2-5]."""
    broker = brokers()
    gone = broker.connect("gone", V5, properties=dict(LASTING))
    subscribe(gone, SHARED, qos=2)
    publish(broker, 2, qos=2)
    received = messages(gone.receive())
    gone.send(Ack(PUBREC, received[0].packet_id))
    gone.receive()
    gone.drop()
    received = joined(broker, qos=2)
    broker.advance(11)

    assert [] == received
    assert {DropReason.SESSION_ENDED: 1} == dropped(broker)


def test_only_what_waited_for_the_group_goes_to_the_group(brokers: Brokers) -> None:
    """Another member would get what the client had subscribed to for itself, or what another group is owed."""
    broker = brokers()
    away(broker, "gone", SHARED, "t", "$share/other/t")
    sent = publish(broker, 1)
    received = joined(broker)
    broker.advance(11)

    assert sent == payloads(received)
    assert {DropReason.SESSION_ENDED: 1, DropReason.NO_SHARED_MEMBER: 1} == dropped(broker)


def test_what_expired_while_it_waited_goes_to_nobody(brokers: Brokers) -> None:
    """Another member would get what its publisher did not want to be delivered any more [MQTT-3.3.2-5]."""
    broker = brokers()
    away(broker, "gone")
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 3}))
    publisher.receive()
    broker.advance(4)

    assert [] == joined(broker)
    assert {DropReason.EXPIRED: 1} == dropped(broker)


def test_what_waits_outlives_a_member(brokers: Brokers) -> None:
    """What waits for a group would go with the member that came first."""
    broker = brokers()
    away(broker, "first")
    broker.advance(5)
    away(broker, "second")
    sent = publish(broker, 3)
    broker.advance(6)
    assert (1, 3) == (broker.session_count() - broker.connected, broker.queue_budget.messages)

    assert sent == payloads(joined(broker))
    assert {} == dropped(broker)


@pytest.mark.parametrize("version", [V311, V5])
def test_a_clean_start_takes_nothing_from_the_others(brokers: Brokers, version: int) -> None:
    """What waits for a group would vanish when a member begins anew [MQTT-3.1.2-4]."""
    broker = brokers()
    away(broker, "other")
    gone = broker.connect("gone", version, clean_start=False, properties=dict(LASTING) if version == V5 else None)
    subscribe(gone, SHARED, qos=1)
    gone.drop()
    sent = publish(broker, 2)
    back = broker.connect("gone", version)

    assert [] == messages(back.receive())
    assert sent == payloads(joined(broker))


def test_what_was_dropped_for_a_full_list_is_not_delivered(brokers: Brokers) -> None:
    """A message would be counted as lost and delivered, and the budget be given back twice."""
    broker = brokers(Config(limits=Limits(queue=2)))
    away(broker, "gone")
    sent = publish(broker, 5)

    assert sent[3:] == payloads(joined(broker))
    assert {DropReason.SHARED_FULL: 3} == dropped(broker)
    broker.connect("heir", V5)  # its session ends, with all that it has not acknowledged
    assert (0, 0) == (broker.queue_budget.used, broker.queue_budget.messages)


@pytest.mark.parametrize("qos", [1, 2])
def test_members_take_what_waits_as_they_acknowledge(brokers: Brokers, qos: int) -> None:
    """A message would wait for a member that does not acknowledge, although another one does."""
    broker = brokers()
    stuck, quick = (broker.connect(name, V5, properties={RECEIVE_MAXIMUM: 1}) for name in ("stuck", "quick"))
    for member in (stuck, quick):
        subscribe(member, SHARED, qos=qos)
    sent = publish(broker, 6, qos)
    (first,) = messages(stuck.receive())
    received = []
    while arrived := messages(quick.receive()):
        for message in arrived:
            received.append(message.payload)
            done = [PUBACK] if qos == 1 else [PUBREC, PUBCOMP]
            quick.send(*[Ack(kind, message.packet_id) for kind in done])

    assert [payload for payload in sent if payload != first.payload] == received
    assert 0 == broker.backlog.lists
