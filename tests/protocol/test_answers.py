# What the broker answers, packet by packet: to what, with which code, and with nothing beside it.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import REASON_STRING, SESSION_EXPIRY_INTERVAL
from broker.routing.fanout import PAGE
from tests.inprocess import Broker, Client
from tests.protocol.talk import payloads, subscribe

Brokers = Callable[..., Broker]
VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


@VERSIONS
def test_an_answer_carries_the_id_of_what_it_answers(brokers: Brokers, version: int) -> None:
    """A client could not tell which of its requests is done [MQTT-2.2.1-5], [MQTT-2.2.1-6].

    Or would wait for a SUBACK [MQTT-3.8.4-1], [MQTT-3.8.4-2], an UNSUBACK [MQTT-3.10.4-4], [MQTT-3.10.4-5], a PUBACK
    [MQTT-3.3.4-1], [MQTT-4.3.2-4], a PUBREC [MQTT-4.3.3-8], a PUBCOMP [MQTT-4.3.3-11] or a PINGRESP [MQTT-3.12.4-1].
    """
    client = brokers().connect("me", version)
    client.send(
        Subscribe(10, [Wanted(b"other")]),
        Publish(b"other/x", b"", 1, packet_id=258),
        Publish(b"other/x", b"", 2, packet_id=65535),
        Ack(PUBREL, 65535),
        PingReq(),
        Unsubscribe(11, [b"other"]),
        Unsubscribe(12, [b"other"]),
    )
    code = 0x10 if version == V5 else 0  # nobody subscribes to that topic

    assert [
        SubAck(10, [0]),
        Ack(PUBACK, 258, code),
        Ack(PUBREC, 65535, code),
        Ack(PUBCOMP, 65535),
        PingResp(),
        UnsubAck(11, [0] if version == V5 else []),
        UnsubAck(12, [0x11] if version == V5 else []),
    ] == client.receive()


def refused_and_unknown(client: Client) -> None:
    """Have *client* answered with a code of 0x10 or above in every packet type that has one."""
    client.send(
        Publish(b"nobody", b"", 1, packet_id=1),
        Publish(b"$SYS/x", b"", 2, packet_id=2),
        Ack(PUBREC, 3),
        Ack(PUBREL, 4),
        Subscribe(5, [Wanted(b"a#")]),
        Unsubscribe(6, [b"never"]),
    )


def test_an_answer_is_a_code_and_nothing_else(brokers: Brokers) -> None:
    """A small client would be sent more than it takes, or one that wants no problem information be sent it.

    A reason string or user property in a PUBACK [MQTT-3.4.2-2], [MQTT-3.4.2-3], PUBREC [MQTT-3.5.2-2], [MQTT-3.5.2-3],
    PUBREL [MQTT-3.6.2-2], [MQTT-3.6.2-3], PUBCOMP [MQTT-3.7.2-2], [MQTT-3.7.2-3], SUBACK [MQTT-3.9.2-1],
    [MQTT-3.9.2-2] or UNSUBACK [MQTT-3.11.2-1], [MQTT-3.11.2-2]; or a code that the packet does not have.

    [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1], [MQTT-3.9.3-2], [MQTT-3.11.3-2], [MQTT-3.1.2-29]
    """
    client = brokers().connect("me", V5)
    refused_and_unknown(client)

    assert [
        Ack(PUBACK, 1, 0x10),
        Ack(PUBREC, 2, 0x87),
        Ack(PUBREL, 3, 0x92),
        Ack(PUBCOMP, 4, 0x92),
        SubAck(5, [0x8F]),
        UnsubAck(6, [0x11]),
    ] == client.receive()


@pytest.mark.parametrize("version", [V31, V311])
def test_an_answer_of_3_x_is_as_it_was_before_there_were_codes(brokers: Brokers, version: int) -> None:
    """A 3.x client would be sent a code that it cannot read, 3.1.1 [MQTT-3.9.3-2]."""
    client = brokers().connect("me", version)
    refused_and_unknown(client)

    assert [
        Ack(PUBACK, 1),
        Ack(PUBREC, 2),
        Ack(PUBREL, 3),
        Ack(PUBCOMP, 4),
        SubAck(5, [0x80]),
        UnsubAck(6, []),
    ] == client.receive()


@VERSIONS
def test_acknowledgements_keep_the_order_of_what_they_acknowledge(brokers: Brokers, version: int) -> None:
    """A publisher could not take its messages off the head of its list [MQTT-4.6.0-2], [MQTT-4.6.0-3].

    Even where one message has so many receivers that it is delivered in pages, and the next one has none.
    """
    broker = brokers()
    crowd = broker.connect("crowd")
    subscribe(crowd, *[f"$share/{n}/crowd" for n in range(PAGE + 1)])
    publisher = broker.connect("publisher", version)
    topics = [b"crowd", b"nobody", b"crowd", b"nobody"]
    publisher.send(*[Publish(topic, b"", 1 + n // 2 % 2, packet_id=9 - n) for n, topic in enumerate(topics * 2)])

    answers = [packet for packet in publisher.receive() if isinstance(packet, Ack)]
    assert [9, 8, 5, 4] == [answer.packet_id for answer in answers if answer.kind == PUBACK]
    assert [7, 6, 3, 2] == [answer.packet_id for answer in answers if answer.kind == PUBREC]


@VERSIONS
def test_releases_keep_the_order_of_what_they_release(brokers: Brokers, version: int) -> None:
    """A reader would be told to hand messages on in another order than it received them [MQTT-4.6.0-4]."""
    broker = brokers()
    reader = broker.connect("reader", version)
    subscribe(reader, "t", qos=2)
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t", b"%d" % n, 2, packet_id=n) for n in (1, 2, 3)])
    publisher.receive()
    assert [b"1", b"2", b"3"] == payloads(reader.receive())
    reader.send(Ack(PUBREC, 2), Ack(PUBREC, 3), Ack(PUBREC, 1))

    assert [Ack(PUBREL, 2), Ack(PUBREL, 3), Ack(PUBREL, 1)] == reader.receive()


def violate(client: Client) -> None:
    client.send(PingResp())


def be_replaced(client: Client) -> None:
    client.broker.connect("me", V5)


def fall_silent(client: Client) -> None:
    client.broker.advance(31)


def be_sent_away(client: Client) -> None:
    client.broker.lifecycle.stop(client.broker.clock.now)


@pytest.mark.parametrize(
    ("end", "code"), [(violate, 0x82), (be_replaced, 0x8E), (fall_silent, 0x8D), (be_sent_away, 0x8B)]
)
def test_a_goodbye_has_a_code_and_at_most_a_sentence(
    brokers: Brokers, end: Callable[[Client], None], code: int
) -> None:
    """A client would be sent a session expiry, which is its own to say [MQTT-3.14.2-2], or other than a reason.

    [MQTT-3.14.2-1], [MQTT-3.14.2-4]
    """
    client = brokers().connect("me", V5, keep_alive=20, properties={SESSION_EXPIRY_INTERVAL: 60})
    end(client)
    (goodbye,) = client.receive()

    assert isinstance(goodbye, Disconnect)
    assert code == goodbye.code
    assert goodbye.properties.keys() <= {REASON_STRING}
