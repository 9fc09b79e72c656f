# What one client may make the broker hold, or do in one piece.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import (
    V5,
    V311,
    Ack,
    Connect,
    Properties,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker
from tests.protocol.talk import acks, closed, dropped, goodbye, messages, payloads, subscribe

Brokers = Callable[..., Broker]
AT_ONCE = 1024  # filters of one packet, user properties of one packet


def test_one_packet_has_a_bounded_number_of_filters(brokers: Brokers) -> None:
    """A megabyte of one-letter filters would hold the loop for seconds."""
    client = brokers().connect("client", V5)

    client.send(Subscribe(1, [Wanted(b"%d" % i) for i in range(AT_ONCE)]))
    assert [SubAck(1, [0] * AT_ONCE)] == client.receive()
    client.send(Unsubscribe(2, [b"%d" % i for i in range(AT_ONCE)]))
    assert [UnsubAck(2, [0] * AT_ONCE)] == client.receive()
    client.send(Unsubscribe(3, [b"a"] * (AT_ONCE + 1)))
    assert CloseReason.QUOTA_EXCEEDED.code == goodbye(client)


def test_too_many_filters_end_a_subscriber(brokers: Brokers) -> None:
    """The same for SUBSCRIBE, and nothing of such a packet counts."""
    broker = brokers()
    client = broker.connect("client", V5)

    client.send(Subscribe(1, [Wanted(b"%d" % i) for i in range(AT_ONCE + 1)]))

    assert CloseReason.QUOTA_EXCEEDED.code == goodbye(client)
    assert 0 == broker.routes.index.subscribers()


def test_one_packet_has_a_bounded_number_of_user_properties(brokers: Brokers) -> None:
    """A megabyte of empty user properties would hold the loop for half a second."""
    broker = brokers()
    reader = broker.connect("reader", V5)
    client = broker.connect("client", V5)
    subscribe(reader, "t")

    client.send(Publish(b"t", b"fine", properties={USER_PROPERTY: [("", "")] * AT_ONCE}))
    client.receive()
    client.send(Publish(b"t", b"not", properties={USER_PROPERTY: [("", "")] * (AT_ONCE + 1)}))

    assert CloseReason.QUOTA_EXCEEDED.code == goodbye(client)
    assert [b"fine"] == payloads(reader.receive())


def test_a_burst_goes_in_one_piece_to_who_allows_aliases(brokers: Brokers) -> None:
    """An alias for each packet of a burst and each reader made one client hold the loop; QoS 1 still saves bytes."""
    broker = brokers()
    reader = broker.connect("reader", V5, properties={TOPIC_ALIAS_MAXIMUM: 5})
    publisher = broker.connect("publisher")
    subscribe(reader, "t", qos=1)

    publisher.send(Publish(b"t", b"1"), Publish(b"t", b"2"))
    burst = messages(reader.receive())
    publisher.send(Publish(b"t", b"3", 1, packet_id=1), Publish(b"t", b"4", 1, packet_id=2))
    single = messages(reader.receive())

    assert [(b"t", b"1", {}), (b"t", b"2", {})] == [(m.topic, m.payload, m.properties) for m in burst]
    assert [(b"t", {TOPIC_ALIAS: 1}), (b"", {TOPIC_ALIAS: 1})] == [(m.topic, m.properties) for m in single]


def test_an_idle_connection_holds_no_input(brokers: Brokers) -> None:
    """Ten thousand clients that once sent a large packet would hold ten gigabytes."""
    broker = brokers()
    client = broker.connect("client")

    client.send(Publish(b"t", bytes(900_000)))
    client.receive()

    (stream,) = broker.streams()
    assert (b"", 0) == (stream.input, stream.left)


def test_a_stranger_may_send_a_connect_and_no_megabytes(brokers: Brokers) -> None:
    """Before CONNECT nobody has a name, and so nobody may fill a buffer of the largest packet size."""
    broker = brokers(Config(limits=Limits(packet_bytes=8 << 20)))
    client = broker.open()

    client.send_bytes(b"\x10\xff\xff\x7f")  # a CONNECT of two megabytes

    assert goodbye(client) is None
    assert {CloseReason.PACKET_TOO_LARGE: 1} == closed(broker)


@pytest.mark.parametrize("version, code", [(V311, 3), (V5, 0x97)])
def test_the_number_of_sessions_is_bounded(brokers: Brokers, version: int, code: int) -> None:
    """A client that comes under ever new names would leave a session each time."""
    broker = brokers(Config(limits=Limits(sessions=1)))
    broker.connect("known", V5, properties={SESSION_EXPIRY_INTERVAL: 100}).drop()

    refused = broker.connect("new", version)
    welcome = broker.connect("known", V5, clean_start=False)

    assert (code, True) == (refused.connack.code, refused.closed)
    assert (0, True) == (welcome.connack.code, welcome.connack.session_present)
    assert 1 == closed(broker)[CloseReason.SESSION_LIMIT]


def test_all_queues_together_are_bounded(brokers: Brokers) -> None:
    """Each session within its own limits, a thousand of them would still take the machine's memory."""
    broker = brokers(Config(limits=Limits(queue_budget=9000)))
    publisher = broker.connect("publisher")
    away = [broker.connect(name, clean_start=False) for name in ("one", "two")]
    for client in away:
        subscribe(client, "t", qos=1)
        client.drop()

    publisher.send(*(Publish(b"t", bytes(999), 1, packet_id=i + 1) for i in range(3)))
    assert 3 == len(acks(publisher.receive(), 4))

    assert {DropReason.QUEUE_FULL: 4} == dropped(broker)
    back = [broker.connect(name, clean_start=False) for name in ("one", "two")]
    assert 2 == sum(len(messages(client.receive())) for client in back)
    for client in back:
        client.drop()
    broker.connect("one", clean_start=True)
    broker.connect("two", clean_start=True)
    assert 0 == broker.queue_budget.used


def test_what_is_in_flight_is_bounded_in_bytes(brokers: Brokers) -> None:
    """A thousand unacknowledged messages of a megabyte are a gigabyte for one client."""
    broker = brokers(Config(limits=Limits(queue_budget=200_000)))
    reader = broker.connect("reader", V5)
    publisher = broker.connect("publisher")
    subscribe(reader, "t", qos=1)

    publisher.send(*(Publish(b"t", bytes([i]) * 5000, 1, packet_id=i + 1) for i in range(7)))
    received: list[list[int]] = []
    while arrived := messages(reader.receive()):
        received.append([message.payload[0] for message in arrived])
        reader.send(*(Ack(4, message.packet_id) for message in arrived))

    assert [[0, 1, 2], [3, 4, 5], [6]] == received  # the third goes over a 16th of what is free


def test_the_limit_of_the_absent_does_not_bind_the_present(brokers: Brokers) -> None:
    """`limits.queue` is for sessions that are away; a connected reader has `limits.pending`."""
    broker = brokers(Config(limits=Limits(queue=2, pending=10)))
    reader = broker.connect("reader", V5, properties={RECEIVE_MAXIMUM: 1})
    publisher = broker.connect("publisher")
    subscribe(reader, "t", qos=1)

    publisher.send(*(Publish(b"t", b"%d" % i, 1, packet_id=i + 1) for i in range(11)))
    received = []
    while arrived := messages(reader.receive()):
        received += arrived
        reader.send(Ack(4, arrived[0].packet_id))

    assert [b"%d" % i for i in range(11)] == payloads(received)
    assert {} == dropped(broker)


def test_a_qos_2_message_over_the_receive_maximum_is_not_lost(brokers: Brokers) -> None:
    """Its id would be taken for one that was delivered when the client sends it again after the reconnect."""
    broker = brokers(Config(limits=Limits(receive_maximum=1)))
    reader = broker.connect("reader")
    subscribe(reader, "t", qos=2)
    lasting: Properties = {SESSION_EXPIRY_INTERVAL: 100}
    client = broker.connect("client", V5, properties=lasting)

    client.send(Publish(b"t", b"1", 2, packet_id=1), Publish(b"t", b"2", 2, packet_id=2))
    assert CloseReason.RECEIVE_MAXIMUM_EXCEEDED.code == goodbye(client)
    back = broker.connect("client", V5, clean_start=False, properties=lasting)
    back.send(Ack(6, 1), Publish(b"t", b"2", 2, dup=True, packet_id=2))
    back.receive()

    assert [b"1", b"2"] == payloads(reader.receive())


def test_a_new_connection_has_the_whole_receive_maximum(brokers: Brokers) -> None:
    """What waits for its PUBREL since the former connection does not count: a lawful client would be closed (4.9)."""
    broker = brokers(Config(limits=Limits(receive_maximum=2)))
    lasting: Properties = {SESSION_EXPIRY_INTERVAL: 100}
    client = broker.connect("client", V5, properties=lasting)
    client.send(Publish(b"t", b"1", 2, packet_id=1), Publish(b"t", b"2", 2, packet_id=2))
    client.receive()
    client.drop()

    back = broker.connect("client", V5, clean_start=False, properties=lasting)
    back.send(*(Publish(b"t", b"x", 2, packet_id=i) for i in (3, 4)))
    assert [3, 4] == acks(back.receive(), 5)
    back.send(Ack(6, 1), Publish(b"t", b"x", 2, packet_id=5))
    assert CloseReason.RECEIVE_MAXIMUM_EXCEEDED.code == goodbye(back)


def test_what_lies_before_a_broken_packet_is_delivered(brokers: Brokers) -> None:
    """Whether good packets count must not depend on what the kernel put into the same read."""
    broker = brokers()
    reader = broker.connect("reader")
    client = broker.connect("client", V5)
    subscribe(reader, "t")

    client.send_bytes(b"\x30\x05\x00\x01t\x00x" * 2 + b"\x30\xff\xff\xff\xff\x7f" + bytes(10))

    assert CloseReason.MALFORMED_PACKET.code == goodbye(client)
    assert [b"x", b"x"] == payloads(reader.receive())


@pytest.mark.parametrize("packet", [Subscribe(1, [Wanted(b"t")] * 100), Unsubscribe(1, [b"t"] * 100)])
def test_an_answer_that_the_client_does_not_take_is_not_sent(brokers: Brokers, packet: Subscribe | Unsubscribe) -> None:
    """A client that says it takes 30 bytes may have no room for more [MQTT-3.1.2-24]."""
    client = brokers().connect("client", V5, properties={MAXIMUM_PACKET_SIZE: 30})

    client.send(packet)

    assert CloseReason.PACKET_TOO_LARGE.code == goodbye(client)


def test_a_connack_that_the_client_does_not_take_is_not_sent(brokers: Brokers) -> None:
    """The same for the very first answer."""
    broker = brokers()
    client = broker.open(V5)

    client.send(Connect(V5, "client", properties={MAXIMUM_PACKET_SIZE: 6}))

    assert goodbye(client) is None
    assert [] == client.inbox
    assert {CloseReason.PACKET_TOO_LARGE: 1} == closed(broker)
    assert 0 == broker.session_count()


def test_a_session_with_many_subscriptions_ends_in_pages(brokers: Brokers) -> None:
    """Ten thousand filters withdrawn at once would hold the loop."""
    broker = brokers()
    client = broker.connect("client")
    for page in range(3):
        subscribe(client, *(f"{page}/{i}" for i in range(500)))
    subscribing = broker.hub._subscribing
    session = next(iter(broker.sessions()))

    subscribing.withdraw(session)
    assert 1500 == broker.routes.index.subscribers()
    broker.settle()
    assert 0 == broker.routes.index.subscribers()
    assert not session.subscriptions
