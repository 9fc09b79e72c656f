# CONNACK says exactly what is enforced: each limit is changed, seen in CONNACK, kept by one client without harm and
# broken by another.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import PUBREC, V5, V311, Connect, Disconnect, PingReq, Properties, Publish, Subscribe, Wanted
from broker.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
)
from broker.mqtt.properties import REASON_STRING as REASON
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, goodbye, subscribe

Brokers = Callable[..., Broker]

UNTOLD: Properties = {RECEIVE_MAXIMUM: 65535, MAXIMUM_QOS: 2, RETAIN_AVAILABLE: 1, TOPIC_ALIAS_MAXIMUM: 0}


def told(client: Client, identifier: int) -> object:
    """What CONNACK said about a limit, by a property or by leaving it out."""
    return client.connack.properties.get(identifier, UNTOLD.get(identifier))


def survives(client: Client) -> bool:
    client.send(PingReq())
    return bool(client.receive()) and not client.closed


@pytest.mark.parametrize("most", [1, 7, 65535])
def test_the_receive_maximum_is_told_and_enforced(brokers: Brokers, most: int) -> None:
    """A client that obeys would be closed, or one that does not cost us what it likes [MQTT-3.3.4-7]."""
    broker = brokers(Config(limits=Limits(receive_maximum=most)))
    client = broker.connect("me", V5)
    assert most == told(client, RECEIVE_MAXIMUM)
    if most == 65535:
        return  # as many as there are packet ids: it cannot be broken
    for packet_id in range(1, most + 1):
        client.send(Publish(b"t", b"", 2, packet_id=packet_id))
    assert list(range(1, most + 1)) == acks(client.receive(), PUBREC)
    client.send(Publish(b"t", b"", 2, packet_id=1, dup=True))  # one that we have is none more
    assert survives(client)
    client.send(Publish(b"t", b"", 2, packet_id=most + 1))

    assert 0x93 == goodbye(client)


@pytest.mark.parametrize("size", [1024, 5000])
def test_the_maximum_packet_size_is_told_and_enforced(brokers: Brokers, size: int) -> None:
    """A lawful packet would be refused, or one that is too large taken into memory [MQTT-3.2.2-15]."""
    broker = brokers(Config(limits=Limits(packet_bytes=size)))
    client = broker.connect("me", V5)
    assert size == told(client, MAXIMUM_PACKET_SIZE)
    head = 1 + 2 + 3 + 1  # first byte, remaining length, topic, properties
    client.send(Publish(b"t", bytes(size - head)))
    assert survives(client)
    client.send_bytes(b"\x30" + bytes(((size - 2) & 0x7F | 0x80, size - 2 >> 7)))  # one byte more, not sent at all

    assert 0x95 == goodbye(client)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_maximum_qos_is_told_and_enforced(brokers: Brokers, qos: int) -> None:
    """A QoS that is switched off would be taken, or one that is not refused [MQTT-3.2.2-11].

    Or a client not be told [MQTT-3.2.2-9], or not be let subscribe [MQTT-3.2.2-10].
    """
    broker = brokers(Config(limits=Limits(qos=qos)))
    client = broker.connect("me", V5)
    assert qos == told(client, MAXIMUM_QOS)
    client.send(Subscribe(1, [Wanted(b"t", 2)]))
    assert [qos] == [code for packet in client.receive() for code in getattr(packet, "codes", [])]
    client.send(Publish(b"t", b"", qos, packet_id=1 if qos else 0))
    assert survives(client)
    if qos < 2:
        client.send(Publish(b"t", b"", qos + 1, packet_id=1))
        assert 0x9B == goodbye(client)


@pytest.mark.parametrize("retain", [False, True])
def test_whether_retained_messages_are_kept_is_told_and_enforced(brokers: Brokers, retain: bool) -> None:
    """A client would rely on a message that nobody ever sees [MQTT-3.2.2-14]."""
    broker = brokers(Config(limits=Limits(retain=retain)))
    client = broker.connect("me", V5)
    assert int(retain) == told(client, RETAIN_AVAILABLE)
    client.send(Publish(b"t", b"kept", retain=True))
    if retain:
        assert survives(client)
        assert [b"kept"] == [message.payload for message in subscribe(client, "t")]
    else:
        assert 0x9A == goodbye(client)


@pytest.mark.parametrize("most", [0, 1, 32])
def test_the_topic_alias_maximum_is_told_and_enforced(brokers: Brokers, most: int) -> None:
    """A client could make us remember any number of topics [MQTT-3.3.2-9], [MQTT-3.2.2-17], [MQTT-3.2.2-18].

    Or one that keeps to what it was told be closed [MQTT-3.3.2-12].
    """
    broker = brokers(Config(limits=Limits(topic_alias_maximum=most)))
    client = broker.connect("me", V5)
    assert most == told(client, TOPIC_ALIAS_MAXIMUM)
    if most:
        client.send(Publish(b"t", b"", properties={TOPIC_ALIAS: most}))
        assert survives(client)
    client.send(Publish(b"t", b"", properties={TOPIC_ALIAS: most + 1}))

    assert 0x94 == goodbye(client)


@pytest.mark.parametrize(("asked", "granted"), [(60, 60), (600, 100), (0xFFFFFFFF, 100)])
def test_the_session_expiry_is_told_and_enforced(brokers: Brokers, asked: int, granted: int) -> None:
    """A client would count on a session that is gone, or a session stay for ever (3.2.2.3.2)."""
    broker = brokers(Config(limits=Limits(session_expiry=100.0)))
    client = broker.connect("me", V5, properties={SESSION_EXPIRY_INTERVAL: asked})
    assert granted == client.connack.properties.get(SESSION_EXPIRY_INTERVAL, asked)
    client.drop()
    broker.advance(granted - 1)
    assert 1 == broker.session_count()
    broker.advance(1.2)

    assert 0 == broker.session_count()
    assert 1 == broker.sessions_expired


@pytest.mark.parametrize(("asked", "granted"), [(0, 20), (10, 10), (20, 20), (65535, 20)])
def test_the_keep_alive_is_told_and_enforced(brokers: Brokers, asked: int, granted: int) -> None:
    """A client would ping by its own clock and be closed by ours [MQTT-3.2.2-21], [MQTT-3.1.2-21].

    Or one that we told nothing be closed by ours [MQTT-3.2.2-22].
    """
    broker = brokers(Config(limits=Limits(keep_alive=20)))
    client = broker.connect("me", V5, keep_alive=asked)
    assert granted == client.connack.properties.get(SERVER_KEEP_ALIVE, asked)
    broker.advance(1.5 * granted - 1)
    assert not client.closed
    broker.advance(1.2)

    assert 0x8D == goodbye(client)


def test_a_client_that_cannot_be_told_keeps_its_keep_alive(brokers: Brokers) -> None:
    """A 3.1.1 client would be closed for a limit that it was never told."""
    broker = brokers(Config(limits=Limits(keep_alive=20)))
    client = broker.connect("me", V311, keep_alive=0)
    broker.advance(60)

    assert not client.closed


def test_the_limits_of_subscriptions_are_answered_filter_by_filter(brokers: Brokers) -> None:
    """One filter too many or too deep would cost a client its connection."""
    broker = brokers(Config(limits=Limits(subscriptions=2, topic_levels=3)))
    filters = [Wanted(b"a/b/c/d"), Wanted(b"a"), Wanted(b"b"), Wanted(b"c"), Wanted(b"a", 1), Wanted(b"a/#/b")]
    codes = []
    for version in (V5, V311):
        client = broker.connect("me", version)
        client.send(Subscribe(1, filters))
        codes.append([code for packet in client.receive() for code in getattr(packet, "codes", [])])

    assert [0x8F, 0, 0, 0x97, 1, 0x8F] == codes[0]
    assert [0x80, 0, 0, 0x80, 1, 0x80] == codes[1]  # 3.1.1 has one word for all


def test_nothing_is_told_to_a_client_of_3_1_1(brokers: Brokers) -> None:
    """A 3.1.1 client could not read the CONNACK."""
    client = brokers().connect("me", V311)

    assert {} == client.connack.properties


@pytest.mark.parametrize("wants", [0, 1])
def test_reason_strings_go_to_those_who_want_them(brokers: Brokers, wants: int) -> None:
    """A client that asked for none would be sent problem information all the same [MQTT-3.1.2-29]."""
    broker = brokers()
    client = broker.connect("me", V5, properties={REQUEST_PROBLEM_INFORMATION: wants})
    client.send(Connect(V5, "me"))
    said = client.receive()

    assert isinstance(said[-1], Disconnect)
    assert wants == (REASON in said[-1].properties)
    assert {CloseReason.PROTOCOL_ERROR: 1} == closed(broker)
