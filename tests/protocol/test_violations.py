# A client that breaks MQTT: one DISCONNECT with the code on 5.0, a plain close on 3.x, one line, one counter.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    V5,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import (
    AUTHENTICATION_METHOD,
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
)
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker
from tests.protocol.talk import closed, dropped, goodbye, payloads, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]

BOTH = [
    # (what is sent, the reason), the same in 3.1.1 and 5.0
    (Connect(V311, "me"), CloseReason.PROTOCOL_ERROR),
    (
        b"\x10\x0e\x00\x04MQTT\x09\x02\x00\x00\x00\x02me",
        CloseReason.PROTOCOL_ERROR,
    ),  # of a version that no DISCONNECT has a word for
    (b"\x10\x0c\x00\x04MQTT\x04\x00\x00\x00\x00\x00", CloseReason.PROTOCOL_ERROR),  # without a client id: neither
    (ConnAck(False), CloseReason.PROTOCOL_ERROR),
    (PingResp(), CloseReason.PROTOCOL_ERROR),
    (SubAck(1, [0]), CloseReason.PROTOCOL_ERROR),
    (Publish(b"a/+", b""), CloseReason.TOPIC_NAME_INVALID),
    (b"\x32\x05\x00\x01t\x00\x00", CloseReason.PROTOCOL_ERROR),  # a packet id of 0
    (b"\x40\x02\x00\x00", CloseReason.PROTOCOL_ERROR),
    (b"\x60\x02\x00\x01", CloseReason.MALFORMED_PACKET),  # PUBREL without its flags
    (b"\x36\x05\x00\x01t\x00\x01", CloseReason.MALFORMED_PACKET),  # QoS 3
    (b"\x38\x04\x00\x01t\x00", CloseReason.MALFORMED_PACKET),  # a duplicate at QoS 0
    (b"\x00\x00", CloseReason.MALFORMED_PACKET),
    (b"\x30\xff\xff\xff\xff\x7f", CloseReason.MALFORMED_PACKET),  # a length of five bytes
    (Publish(b"a/b/c/d/e", b""), CloseReason.TOPIC_LEVELS),
    (Publish(b"\xff", b""), CloseReason.MALFORMED_PACKET),
]
ONLY_5 = [
    (Auth(), CloseReason.PROTOCOL_ERROR),
    (Auth(0x18, {AUTHENTICATION_METHOD: "x"}), CloseReason.PROTOCOL_ERROR),
    (Auth(0x19, {AUTHENTICATION_METHOD: "x"}), CloseReason.PROTOCOL_ERROR),
    (Publish(b"t", b"", properties={SUBSCRIPTION_IDENTIFIER: [1]}), CloseReason.PROTOCOL_ERROR),
    (Publish(b"t", b"", properties={RESPONSE_TOPIC: "a/#"}), CloseReason.PROTOCOL_ERROR),
    (Publish(b"", b""), CloseReason.PROTOCOL_ERROR),
    (Publish(b"", b"", properties={TOPIC_ALIAS: 1}), CloseReason.PROTOCOL_ERROR),  # never set
    (Disconnect(0, {SESSION_EXPIRY_INTERVAL: 5}), CloseReason.PROTOCOL_ERROR),  # CONNECT said 0
    (Subscribe(1, [Wanted(b"$share/g/t", no_local=True)]), CloseReason.PROTOCOL_ERROR),
    (Unsubscribe(1, []), CloseReason.PROTOCOL_ERROR),
]
CASES = [(V311, *case) for case in BOTH] + [(V5, *case) for case in BOTH + ONLY_5]


@pytest.mark.parametrize(("version", "sent", "reason"), CASES)
def test_a_violation_ends_the_connection_once_and_by_name(
    brokers: Brokers, log: Log, version: int, sent: Packet | bytes, reason: CloseReason
) -> None:
    """A broken client would go on unnoticed, or be closed without anybody knowing why [MQTT-4.13.1-1].

    Or something else follow our DISCONNECT [MQTT-3.14.4-1], or the end not [MQTT-3.14.4-2], [MQTT-4.13.2-1]. What is
    seen here: a second CONNECT [MQTT-3.1.0-2], answered by no second CONNACK [MQTT-3.2.0-2]; the packet id 0
    [MQTT-2.2.1-3]; a topic that is not UTF-8 [MQTT-3.3.2-1]; a subscription identifier from a client [MQTT-3.3.4-6];
    AUTH, which nobody asked for [MQTT-4.12.0-6], [MQTT-4.12.0-7], [MQTT-4.12.1-1], [MQTT-4.12.1-2].
    """
    broker = brokers(Config(limits=Limits(topic_levels=4)))
    client = broker.connect("me", version)
    client.send_bytes(sent if isinstance(sent, bytes) else encode(sent, version))
    client.send(PingReq())  # is not answered any more
    said = client.receive()

    assert client.closed
    assert [reason.code] * (version == V5) == [packet.code for packet in said if isinstance(packet, Disconnect)]
    assert len(said) == (version == V5)
    assert {reason: 1} == closed(broker)
    assert [("me", reason.label)] == [(e["client"], e["reason"]) for e in log if e["event"] == "client_closed"]
    assert 0 == broker.connected


def test_what_came_before_a_violation_is_done(brokers: Brokers) -> None:
    """A client's last good messages would be lost with its first mistake."""
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "t")
    client = broker.connect("me")
    client.send(Publish(b"t", b"1"), Publish(b"t", b"2", 1, packet_id=1), ConnAck(False))
    client.send(Publish(b"t", b"3"))

    assert [b"1", b"2"] == payloads(listener.receive())


def test_a_violation_harms_nobody_else(brokers: Brokers) -> None:
    """One broken client would take others down."""
    broker = brokers()
    good = broker.connect("good")
    broken = broker.connect("broken", V5)
    broken.send_bytes(b"\x30\x80\x80\x80\x80\x01")
    good.send(PingReq())

    assert [PingResp()] == good.receive()
    assert 0x81 == goodbye(broken)


@pytest.mark.parametrize("version", [V311, V5])
def test_clients_do_not_publish_to_sys(brokers: Brokers, version: int) -> None:
    """Any client could forge the broker's own numbers, for good with a retained message.

    Or a 3.1.1 client that may not publish wait for an acknowledgement for ever, 3.1.1 [MQTT-3.3.5-2].
    """
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "$SYS/#")
    client = broker.connect("me", version)
    client.send(Publish(b"$SYS/broker/uptime", b"forged"))
    client.send(Publish(b"$SYS/broker/uptime", b"forged", retain=True))
    client.send(Publish(b"$SYS/broker/uptime", b"forged", 1, packet_id=7))

    assert [Ack(PUBACK, 7, 0x87 if version == V5 else 0)] == client.receive()
    assert [] == listener.receive()
    assert 0 == broker.retained.statistics().count
    assert {DropReason.NOT_AUTHORIZED: 3} == dropped(broker)


def test_a_large_announcement_costs_nothing(brokers: Brokers) -> None:
    """A client could have us reserve a megabyte with four bytes, or wait for one that is refused anyway."""
    broker = brokers(Config(limits=Limits(packet_bytes=4096)))
    client = broker.connect("me", V5)
    client.send_bytes(b"\x30\xff\x7f")

    assert 0x95 == goodbye(client)
