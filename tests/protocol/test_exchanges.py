# QoS 1 and 2, from the first packet of an exchange to its last, across connections and expiries.
from collections.abc import Callable

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    ConnAck,
    Connect,
    PingReq,
    PingResp,
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
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
)
from tests.inprocess import Broker, Client
from tests.protocol.talk import goodbye, messages, payloads, subscribe

Brokers = Callable[..., Broker]
VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])
REFUSED = 0x80


def connect_kept(broker: Broker, version: int = V5, **extra: int) -> Client:
    """The client "me", whose session outlives its connections."""
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 3600} if version == V5 else {}
    if "window" in extra:
        properties[RECEIVE_MAXIMUM] = extra["window"]
    if "largest" in extra:
        properties[MAXIMUM_PACKET_SIZE] = extra["largest"]
    return broker.connect("me", version, clean_start=False, properties=properties)


def publish(broker: Broker, *said: Publish) -> None:
    """Have another client publish to the end."""
    publisher = broker.connect("publisher", V5)
    for packet in said:
        publisher.send(packet)
        if packet.qos == 2:
            publisher.send(Ack(PUBREL, packet.packet_id))
    publisher.receive()


@VERSIONS
def test_qos_0_is_sent_without_an_id_and_never_as_a_duplicate(brokers: Brokers, version: int) -> None:
    """A reader would take two bytes of the payload for an id [MQTT-2.2.1-2], or throw a message away.

    [MQTT-3.3.1-2], [MQTT-4.3.1-1]; also what was a retransmission when it came to us.
    """
    broker = brokers()
    reader = broker.connect("reader", version)
    subscribe(reader, "t", qos=0)
    publish(
        broker, Publish(b"t", b"0"), Publish(b"t", b"1", 1, dup=True, packet_id=1), Publish(b"t", b"2", 2, packet_id=2)
    )

    assert [Publish(b"t", b"0"), Publish(b"t", b"1"), Publish(b"t", b"2")] == reader.receive()


@VERSIONS
def test_after_puback_the_same_id_is_a_new_message(brokers: Brokers, version: int) -> None:
    """A publisher with one id for all its messages, or that lost our PUBACK, would not be heard [MQTT-4.3.2-5]."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "t")
    publisher = broker.connect("publisher", version)
    publisher.send(Publish(b"t", b"one", 1, packet_id=1), Publish(b"t", b"two", 1, dup=True, packet_id=1))

    assert [Ack(PUBACK, 1), Ack(PUBACK, 1)] == publisher.receive()
    assert [b"one", b"two"] == payloads(reader.receive())


@VERSIONS
def test_after_a_refusal_the_same_id_is_a_new_message(brokers: Brokers, version: int) -> None:
    """A message would be taken for the one that was refused, and be lost [MQTT-4.3.3-9]."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "t")
    publisher = broker.connect("publisher", version)
    publisher.send(Publish(b"$SYS/x", b"forged", 2, packet_id=1))
    assert [Ack(PUBREC, 1, 0x87 if version == V5 else 0)] == publisher.receive()
    publisher.send(Publish(b"t", b"lawful", 2, packet_id=1))

    assert [Ack(PUBREC, 1)] == publisher.receive()
    assert [b"lawful"] == payloads(reader.receive())


@VERSIONS
def test_nothing_is_sent_again_while_the_connection_lives(brokers: Brokers, version: int) -> None:
    """A slow client would be sent ever more of the same [MQTT-4.4.0-1]."""
    broker = brokers()
    client = connect_kept(broker, version)
    subscribe(client, "t", qos=2)
    publish(broker, *[Publish(b"t", b"", qos, packet_id=qos) for qos in (1, 2, 2)])
    first = [packet.packet_id for packet in messages(client.receive())]
    assert 3 == len(first)
    client.send(Ack(PUBREC, first[2]))
    client.receive()
    broker.advance(30)

    assert [] == client.receive()


@VERSIONS
def test_what_waits_for_an_absent_client_is_its_session_s(brokers: Brokers, version: int) -> None:
    """A client that is away would lose what it was promised [MQTT-4.5.0-1], 3.1.1 [MQTT-3.1.2-5]."""
    broker = brokers()
    client = connect_kept(broker, version)
    subscribe(client, "t", qos=2)
    client.drop()
    publish(broker, *[Publish(b"t", b"%d" % n, n % 3, packet_id=n if n % 3 else 0) for n in range(6)])

    assert [b"1", b"2", b"4", b"5"] == payloads(connect_kept(broker, version).receive())


def test_what_was_sent_does_not_expire_any_more(brokers: Brokers) -> None:
    """A QoS 2 exchange would break off in the middle, and its id stay in use at the client [MQTT-4.3.3-7]."""
    broker = brokers()
    client = connect_kept(broker)
    subscribe(client, "t", qos=2)
    publish(broker, Publish(b"t", b"x", 2, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    (first,) = messages(client.receive())
    client.drop()
    broker.advance(10)
    back = connect_kept(broker)

    assert [(first.packet_id, True, b"x")] == [(m.packet_id, m.dup, m.payload) for m in messages(back.receive())]


@pytest.mark.parametrize("fate", ["nobody", "away"])
def test_an_exchange_is_finished_though_its_message_expired(brokers: Brokers, fate: str) -> None:
    """A publisher would not be able to let go of its message [MQTT-4.3.3-13]."""
    broker = brokers()
    if fate == "away":
        client = connect_kept(broker)
        subscribe(client, "t", qos=2)
        client.drop()
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"t", b"x", 2, packet_id=7, properties={MESSAGE_EXPIRY_INTERVAL: 1}))
    assert [(PUBREC, 7)] == [(p.kind, p.packet_id) for p in publisher.receive() if isinstance(p, Ack)]
    broker.advance(5)
    publisher.send(Ack(PUBREL, 7))

    assert [Ack(PUBCOMP, 7)] == publisher.receive()


def test_what_a_client_refused_is_not_sent_again(brokers: Brokers) -> None:
    """A message that its reader cannot bear would come back with each connection [MQTT-4.4.0-2]."""
    broker = brokers()
    client = connect_kept(broker)
    subscribe(client, "t", qos=2)
    publish(broker, Publish(b"t", b"", 1, packet_id=1), Publish(b"t", b"", 2, packet_id=2))
    one, two = messages(client.receive())
    client.send(Ack(PUBACK, one.packet_id, REFUSED), Ack(PUBREC, two.packet_id, REFUSED))
    assert [] == client.receive()
    client.drop()

    assert [] == connect_kept(broker).receive()


def test_a_full_window_holds_back_messages_and_nothing_else(brokers: Brokers) -> None:
    """A client that owes acknowledgements would be flooded [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2].

    Or be left without an answer to anything [MQTT-3.3.4-10], [MQTT-4.9.0-3], and so never get out of it.
    """
    broker = brokers()
    client = connect_kept(broker, window=2)
    subscribe(client, "t", qos=2)
    publish(broker, *[Publish(b"t", b"%d" % n, 1 + n % 2, packet_id=n + 1) for n in range(5)])
    got = messages(client.receive())
    assert [b"0", b"1"] == [message.payload for message in got]
    client.send(
        PingReq(),
        Subscribe(2, [Wanted(b"other")]),
        Publish(b"elsewhere", b"", 2, packet_id=1),
        Ack(PUBREL, 1),
        Unsubscribe(3, [b"other"]),
        Ack(PUBREC, got[1].packet_id),
    )

    assert [
        PingResp(),
        SubAck(2, [0]),
        Ack(PUBREC, 1, 0x10),
        Ack(PUBCOMP, 1),
        UnsubAck(3, [0]),
        Ack(PUBREL, got[1].packet_id),
    ] == client.receive()
    client.send(Ack(PUBCOMP, got[1].packet_id))
    assert [b"2"] == payloads(client.receive())


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_too_large_to_be_sent_takes_no_place(brokers: Brokers, qos: int) -> None:
    """A client would wait for ever behind a message that it can never be sent [MQTT-3.1.2-25], [MQTT-3.1.2-24]."""
    broker = brokers()
    client = connect_kept(broker, window=1, largest=60)
    subscribe(client, "t", qos=2)
    publish(broker, Publish(b"t", b"x" * 100, qos, packet_id=1), Publish(b"t", b"small", qos, packet_id=2))

    assert [b"small"] == payloads(client.receive())


@VERSIONS
@pytest.mark.parametrize(("qos", "wrong"), [(1, PUBREC), (1, PUBCOMP), (2, PUBACK), (2, PUBCOMP)])
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(
    brokers: Brokers, version: int, qos: int, wrong: int
) -> None:
    """A client that confuses two exchanges would be served on, and lose messages without anybody knowing.

    In 5.0 it is told by a DISCONNECT with 0x82. What it was owed is sent again on its next connection.
    """
    broker = brokers()
    reader = connect_kept(broker, version)
    subscribe(reader, "t", qos=qos)
    publish(broker, Publish(b"t", b"owed", qos, packet_id=1))
    (message,) = messages(reader.receive())

    reader.send(Ack(wrong, message.packet_id))

    assert (0x82 if version == V5 else None) == goodbye(reader)
    assert [b"owed"] == payloads(connect_kept(broker, version).receive())


def test_a_client_of_3_1_may_mark_what_it_sends_again(brokers: Brokers) -> None:
    """A client of 3.1 that sends any of these packets again with DUP would be refused (3.1, 2.1)."""
    client = brokers().open(V31)
    connect, subscribe, release, unsubscribe = (
        bytearray(encode(packet, V31))
        for packet in (
            Connect(V31, "again"),
            Subscribe(1, [Wanted(b"t")]),
            Ack(PUBREL, 2),
            Unsubscribe(3, [b"t"]),
        )
    )
    for packet in (connect, subscribe, release, unsubscribe):
        packet[0] |= 0x08
    client.send_bytes(bytes(connect + subscribe + release + unsubscribe))

    assert [ConnAck(False), SubAck(1, [0]), Ack(PUBCOMP, 2), UnsubAck(3, [])] == client.receive()
