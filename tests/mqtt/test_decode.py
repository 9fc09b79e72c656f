# One table row a rule: the whole packet in hexadecimal, and the reason why it is refused.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.decode import decode
from broker.mqtt.encode import encode
from broker.mqtt.fields import read_length
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import (
    AUTHENTICATION_METHOD,
    REASON_STRING,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
)
from broker.reasons import CloseReason, ProtocolError
from tests.mqtt.reading import only, refusal
from tests.mqtt.strategies import VERSIONS, packets

MALFORMED = CloseReason.MALFORMED_PACKET
ERROR = CloseReason.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("packet", "version", "expected"),
    [
        ("30 03 000161", V311, Publish(b"a", b"")),
        ("3d 07 000161 0102 7879", V311, Publish(b"a", b"xy", qos=2, retain=True, dup=True, packet_id=258)),
        ("38 03 000161", V31, Publish(b"a", b"", dup=True)),  # 3.1 gives DUP no meaning at QoS 0, and forbids nothing
        ("32 09 000161 0001 03 230002", V5, Publish(b"a", b"", qos=1, packet_id=1, properties={TOPIC_ALIAS: 2})),
        ("30 06 0000 03 230002", V5, Publish(b"", b"", properties={TOPIC_ALIAS: 2})),
        ("40 02 1234", V311, Ack(PUBACK, 0x1234)),
        ("50 03 1234 10", V5, Ack(PUBREC, 0x1234, 0x10)),
        ("62 03 0001 92", V5, Ack(PUBREL, 1, 0x92)),
        ("6a 02 0001", V31, Ack(PUBREL, 1)),  # 3.1 sends a PUBREL again with DUP
        ("70 08 0001 00 04 1f000161", V5, Ack(PUBCOMP, 1, 0, {REASON_STRING: "a"})),
        ("40 04 0001 00 00", V5, Ack(PUBACK, 1)),
        ("82 0c 0001 000161 02 0003 622f23 00", V311, Subscribe(1, [Wanted(b"a", 2), Wanted(b"b/#")])),
        ("8a 06 0001 000161 fd", V31, Subscribe(1, [Wanted(b"a", 1)])),  # the upper bits are not used in 3.1
        (
            "82 09 0001 02 0b05 000161 2d",
            V5,
            Subscribe(1, [Wanted(b"a", 1, True, True, 2)], {SUBSCRIPTION_IDENTIFIER: [5]}),
        ),
        ("82 07 0001 00 000161 1c", V5, Subscribe(1, [Wanted(b"a", 0, True, True, 1)])),
        ("90 04 0001 0280", V311, SubAck(1, [2, 0x80])),
        ("90 04 0001 00 a2", V5, SubAck(1, [0xA2])),
        ("a2 08 0001 000161 000162", V311, Unsubscribe(1, [b"a", b"b"])),
        ("a2 06 0001 00 000161", V5, Unsubscribe(1, [b"a"])),
        ("b0 02 0001", V311, UnsubAck(1, [])),
        ("b0 05 0001 00 0011", V5, UnsubAck(1, [0, 0x11])),
        ("c0 00", V5, PingReq()),
        ("d0 00", V311, PingResp()),
        ("e0 00", V311, Disconnect()),
        ("e0 00", V5, Disconnect()),
        ("e0 01 04", V5, Disconnect(4)),
        ("e0 07 00 05 1100000000", V5, Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0})),
        ("20 02 0100", V311, ConnAck(True)),
        ("20 02 0100", V31, ConnAck(False)),  # the byte is not used in 3.1
        ("20 02 0005", V31, ConnAck(False, 5)),
        ("20 03 008600", V5, ConnAck(False, 0x86)),
        ("f0 00", V5, Auth()),
        ("f0 06 18 04 15000161", V5, Auth(0x18, {AUTHENTICATION_METHOD: "a"})),
        ("f0 06 00 04 15000161", V5, Auth(0, {AUTHENTICATION_METHOD: "a"})),
    ],
)
def test_packets_are_read_as_the_specification_draws_them(packet: str, version: int, expected: Packet) -> None:
    """A field of a packet is read from the wrong place, or a valid form of it is refused."""
    assert expected == only(packet, version)


@pytest.mark.parametrize(
    ("packet", "version", "reason"),
    [
        ("3606 000161 0001 00", V5, MALFORMED),  # QoS 3 [MQTT-3.3.1-4]
        ("3605 000161 0001", V311, MALFORMED),
        ("3e05 000161 0001", V31, MALFORMED),
        ("3803 000161", V5, MALFORMED),  # DUP with QoS 0 [MQTT-3.3.1-2]
        ("3803 000161", V311, MALFORMED),
        ("3003 000123", V311, CloseReason.TOPIC_NAME_INVALID),  # [MQTT-3.3.2-2]
        ("3002 0000", V311, CloseReason.TOPIC_NAME_INVALID),  # [MQTT-4.7.3-1]
        ("3003 0001ff", V311, MALFORMED),  # [MQTT-3.3.2-1]
        ("3003 000261", V311, MALFORMED),  # the topic ends after the packet
        ("3001 00", V311, MALFORMED),
        ("3000", V311, MALFORMED),
        ("3205 000161 0000", V311, ERROR),  # packet identifier 0 [MQTT-2.2.1-3]
        ("3204 000161 00", V311, MALFORMED),
        ("3003 000161", V5, MALFORMED),  # no property length
        ("3003 0000 00", V5, ERROR),  # neither topic nor alias: 3.3.2.1
        ("3006 0000 03230000", V5, CloseReason.TOPIC_ALIAS_INVALID),  # [MQTT-3.3.2-8]
        ("3007 00012b 03230001", V5, CloseReason.TOPIC_NAME_INVALID),
    ],
)
def test_what_is_no_publish(packet: str, version: int, reason: CloseReason) -> None:
    """A PUBLISH that the specification forbids is routed."""
    assert reason is refusal(packet, version)


@pytest.mark.parametrize(
    ("packet", "version", "reason"),
    [
        ("40 02 0000", V311, ERROR),  # packet identifier 0
        ("40 01 00", V311, MALFORMED),
        ("40 03 000100", V311, MALFORMED),
        ("42 02 0001", V311, MALFORMED),  # reserved flags [MQTT-2.1.3-1]
        ("60 02 0001", V311, MALFORMED),  # [MQTT-3.6.1-1]
        ("60 02 0001", V31, MALFORMED),  # QoS 1 in 3.1
        ("6a 02 0001", V311, MALFORMED),
        ("40 03 000192", V5, ERROR),  # a PUBREL's code [MQTT-3.4.2-1]
        ("50 03 000101", V5, ERROR),  # [MQTT-3.5.2-1]
        ("62 03 000110", V5, ERROR),  # [MQTT-3.6.2-1]
        ("70 03 000180", V5, ERROR),  # [MQTT-3.7.2-1]
        ("40 04 0001 00 01", V5, MALFORMED),  # properties longer than the packet
        ("40 05 0001 00 00 00", V5, MALFORMED),  # the packet goes on
        ("40 07 0001 00 03 210001", V5, MALFORMED),  # receive maximum in a PUBACK
    ],
)
def test_what_is_no_acknowledgement(packet: str, version: int, reason: CloseReason) -> None:
    """An acknowledgement that means nothing frees a packet identifier."""
    assert reason is refusal(packet, version)


@pytest.mark.parametrize(
    ("packet", "version", "reason"),
    [
        ("80 06 0001 000161 00", V311, MALFORMED),  # [MQTT-3.8.1-1]
        ("8a 06 0001 000161 00", V311, MALFORMED),
        ("80 06 0001 000161 00", V31, MALFORMED),
        ("82 06 0000 000161 00", V311, ERROR),  # [MQTT-2.2.1-3]
        ("82 02 0001", V311, ERROR),  # [MQTT-3.8.3-2]
        ("82 03 0001 00", V5, ERROR),
        ("82 05 0001 000161", V311, MALFORMED),  # a filter without options
        ("82 05 0001 0000 00", V311, CloseReason.TOPIC_FILTER_INVALID),  # [MQTT-4.7.3-1]
        ("82 06 0001 0001ff 00", V311, MALFORMED),  # [MQTT-3.8.3-1]
        ("82 06 0001 000100 00", V311, MALFORMED),  # [MQTT-4.7.3-2]
        ("82 06 0001 000161 03", V311, MALFORMED),  # 3.1.1 [MQTT-3.8.3-4]
        ("82 06 0001 000161 04", V311, MALFORMED),
        ("82 06 0001 000161 03", V31, MALFORMED),
        ("82 07 0001 00 000161 03", V5, ERROR),  # maximum QoS 3: 3.8.3.1
        ("82 07 0001 00 000161 30", V5, ERROR),  # retain handling 3: 3.8.3.1
        ("82 07 0001 00 000161 40", V5, MALFORMED),  # [MQTT-3.8.3-5]
        ("82 07 0001 00 000161 80", V5, MALFORMED),
        ("82 10 0001 00 000a 2473686172652f672f61 04", V5, ERROR),  # no local on "$share/g/a" [MQTT-3.8.3-4]
        ("82 09 0001 02 0b00 000161 00", V5, ERROR),  # subscription identifier 0
        ("82 0b 0001 04 0b010b02 000161 00", V5, ERROR),  # two of them: 3.8.2.1.2
        ("a0 05 0001 000161", V311, MALFORMED),  # [MQTT-3.10.1-1]
        ("a2 05 0000 000161", V311, ERROR),
        ("a2 02 0001", V311, ERROR),  # [MQTT-3.10.3-2]
        ("a2 03 0001 00", V5, ERROR),
        ("a2 04 0001 0000", V311, CloseReason.TOPIC_FILTER_INVALID),
        ("a2 05 0001 0001ff", V311, MALFORMED),  # [MQTT-3.10.3-1]
        ("a2 04 0001 0001", V311, MALFORMED),
    ],
)
def test_what_is_no_subscribe_or_unsubscribe(packet: str, version: int, reason: CloseReason) -> None:
    """A request that the specification forbids changes subscriptions."""
    assert reason is refusal(packet, version)


def test_a_misplaced_wildcard_is_left_to_the_answer() -> None:
    """One bad filter ends the connection, instead of being answered 0x8F beside the good ones."""
    assert Subscribe(1, [Wanted(b"a#"), Wanted(b"b")]) == only("82 0c 0001 00 0002 6123 00 0001 62 00", V5)


@pytest.mark.parametrize(
    ("packet", "version", "reason"),
    [
        ("20 02 0200", V311, MALFORMED),  # [MQTT-3.2.2-1]
        ("20 02 0006", V311, ERROR),  # [MQTT-3.2.2-8]
        ("20 03 000100", V5, ERROR),
        ("20 02 0101", V311, ERROR),  # session present in a refusal [MQTT-3.2.2-6]
        ("20 01 00", V311, MALFORMED),
        ("20 03 000000", V311, MALFORMED),
        ("20 02 0000", V5, MALFORMED),  # no property length
        ("20 04 00000000", V5, MALFORMED),
        ("90 02 0001", V311, ERROR),  # no codes
        ("90 03 0001 00", V5, ERROR),
        ("90 03 0001 03", V311, ERROR),  # 3.1.1 [MQTT-3.9.3-2]
        ("90 04 0001 00 11", V5, ERROR),  # [MQTT-3.9.3-2]
        ("90 02 0000", V311, ERROR),
        ("b0 03 0001 00", V311, MALFORMED),
        ("b0 03 0001 00", V5, ERROR),
        ("b0 04 0001 00 01", V5, ERROR),  # [MQTT-3.11.3-2]
        ("c0 01 00", V5, MALFORMED),
        ("d0 01 00", V311, MALFORMED),
        ("c1 00", V311, MALFORMED),
        ("e1 00", V5, MALFORMED),  # [MQTT-3.14.1-1]
        ("e0 01 00", V311, MALFORMED),
        ("e0 01 01", V5, ERROR),  # [MQTT-3.14.2-1]
        ("e0 03 00 00 00", V5, MALFORMED),
        ("f0 00", V311, MALFORMED),  # reserved before 5.0
        ("f1 00", V5, MALFORMED),  # [MQTT-3.15.1-1]
        ("f0 01 18", V5, ERROR),  # no method: 3.15.2.2.2
        ("f0 02 19 00", V5, ERROR),
        ("f0 06 00 04 1f000161", V5, ERROR),
        ("f0 06 01 04 15000161", V5, ERROR),  # [MQTT-3.15.2-1]
        ("00 00", V5, MALFORMED),  # packet type 0 is forbidden
        ("0f 00", V31, MALFORMED),
    ],
)
def test_what_is_none_of_the_other_packets(packet: str, version: int, reason: CloseReason) -> None:
    """A packet that the specification forbids is taken for another, or for a shorter one."""
    assert reason is refusal(packet, version)


def test_3_1_does_not_use_the_flags_of_most_packets() -> None:
    """A 3.1 peer is refused for flag bits that its specification calls "not used"."""
    assert PingReq() == only("cf 00", V31)
    assert Ack(PUBACK, 1) == only("4a 02 0001", V31)


@pytest.mark.parametrize("first", ["30", "82", "c0", "e0", "f0", "00", "47"])
def test_the_first_packet_is_a_connect(first: str) -> None:
    """Something is done for a peer that did not connect, or that speaks HTTP [MQTT-3.1.0-1]."""
    assert CloseReason.NOT_MQTT is refusal(first, 0)


def outcome(first: int, data: bytes, stop: int, version: int) -> Packet | CloseReason:
    """What decode() makes of data[:stop] with that first byte."""
    try:
        return decode(first, data, 0, stop, version)
    except ProtocolError as error:
        return error.reason


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
def test_a_body_that_ends_early_is_never_read_beyond(version: int, draw: st.DataObject) -> None:
    """A field that the body no longer holds is taken from the packet behind it."""
    packet = encode(draw.draw(packets(version)), version)
    first, body = packet[0], packet[read_length(packet, 1, len(packet), version)[1] :]

    for stop in range(len(body)):
        assert outcome(first, body[:stop], stop, version) == outcome(first, body, stop, version)


def test_a_body_is_read_where_it_stands() -> None:
    """decode() looks at bytes before or after the body that it was given."""
    data = b"\xff\xff" + bytes.fromhex("000161 7879") + b"\xff"

    assert Publish(b"a", b"xy") == decode(0x30, data, 2, 7, V311)


def test_each_option_of_a_subscription_is_in_its_own_bits() -> None:
    """A subscription would get an option that belongs to another, and its messages with it (3.8.3.1)."""
    for options in range(0x30):
        qos, no_local, as_published, handling = options & 3, options & 4 > 0, options & 8 > 0, options >> 4
        if qos < 3:
            expected = Subscribe(1, [Wanted(b"a", qos, no_local, as_published, handling)])
            packet = f"82 07 0001 00 000161 {options:02x}"
            assert expected == only(packet, V5)
            assert bytes.fromhex(packet) == encode(expected, V5)
