import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.packets import AUTH, CONNACK, CONNECT, DISCONNECT, PUBACK, PUBLISH, SUBSCRIBE, UNSUBSCRIBE
from broker.mqtt.properties import (
    BINARY,
    FLAG,
    PAIRS,
    PROPERTIES,
    STRING,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    UINT16,
    UINT32,
    USER_PROPERTY,
    VARINTS,
    WILL,
    decode_properties,
    encode_properties,
)
from broker.reasons import CloseReason, ProtocolError
from tests.mqtt.strategies import properties

MALFORMED = CloseReason.MALFORMED_PACKET
ERROR = CloseReason.PROTOCOL_ERROR

# Table 2-4, written out once more: each property with the type of its value and its packet types, 0 for the will.
TABLE = {
    0x01: (FLAG, {0, 3}),  # payload format indicator
    0x02: (UINT32, {0, 3}),  # message expiry interval
    0x03: (STRING, {0, 3}),  # content type
    0x08: (STRING, {0, 3}),  # response topic
    0x09: (BINARY, {0, 3}),  # correlation data
    0x0B: (VARINTS, {3, 8}),  # subscription identifier
    0x11: (UINT32, {1, 2, 14}),  # session expiry interval
    0x12: (STRING, {2}),  # assigned client identifier
    0x13: (UINT16, {2}),  # server keep alive
    0x15: (STRING, {1, 2, 15}),  # authentication method
    0x16: (BINARY, {1, 2, 15}),  # authentication data
    0x17: (FLAG, {1}),  # request problem information
    0x18: (UINT32, {0}),  # will delay interval
    0x19: (FLAG, {1}),  # request response information
    0x1A: (STRING, {2}),  # response information
    0x1C: (STRING, {2, 14}),  # server reference
    0x1F: (STRING, {2, 4, 5, 6, 7, 9, 11, 14, 15}),  # reason string
    0x21: (UINT16, {1, 2}),  # receive maximum
    0x22: (UINT16, {1, 2}),  # topic alias maximum
    0x23: (UINT16, {3}),  # topic alias
    0x24: (FLAG, {2}),  # maximum QoS
    0x25: (FLAG, {2}),  # retain available
    0x26: (PAIRS, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15}),  # user property
    0x27: (UINT32, {1, 2}),  # maximum packet size
    0x28: (FLAG, {2}),  # wildcard subscription available
    0x29: (FLAG, {2}),  # subscription identifier available
    0x2A: (FLAG, {2}),  # shared subscription available
}

packet_types = st.sampled_from(sorted(PROPERTIES[USER_PROPERTY][1]))


def reason(section: str, packet_type: int) -> CloseReason:
    """Why this section (hexadecimal, without its length) is refused."""
    body = bytes.fromhex(section)
    data = bytes((len(body),)) + body
    with pytest.raises(ProtocolError) as refused:
        decode_properties(data, 0, len(data), packet_type)
    return refused.value.reason


def smallest(wire: int) -> str:
    """A value of that wire type that every property accepts (hexadecimal)."""
    return {FLAG: "01", UINT16: "0001", UINT32: "00000001", VARINTS: "01", BINARY: "0000", PAIRS: "00000000"}.get(
        wire, "000161"
    )


@given(st.data(), packet_types, st.binary(max_size=4), st.binary(max_size=4))
def test_properties_survive_the_wire(draw: st.DataObject, packet_type: int, before: bytes, after: bytes) -> None:
    """A property is lost, changed, or read beyond its section."""
    sent = draw.draw(properties(packet_type))
    section = encode_properties(sent)
    data = before + section + after

    read, position = decode_properties(data, len(before), len(data), packet_type)

    assert sent == read
    assert len(before) + len(section) == position


def test_the_properties_are_those_of_the_specification() -> None:
    """A property would be taken for another, read by another type, or allowed in another packet."""
    assert TABLE == {identifier: (wire, set(packets)) for identifier, (wire, packets) in PROPERTIES.items()}


def test_each_property_is_malformed_where_it_does_not_belong() -> None:
    """A property is accepted in a packet that table 2-4 does not give it (2.2.2.2)."""
    for identifier, (wire, allowed) in PROPERTIES.items():
        for packet_type in range(16):
            section = f"{identifier:02x}" + smallest(wire)
            if packet_type not in allowed:
                assert MALFORMED is reason(section, packet_type)


def test_unknown_identifiers_are_malformed() -> None:
    """An identifier that MQTT does not define is skipped, or taken for another (2.2.2.2)."""
    for identifier in range(256):
        if identifier not in PROPERTIES:
            assert MALFORMED is reason(f"{identifier:02x}01", CONNECT)


def test_a_property_may_occur_once() -> None:
    """A second value silently replaces the first; only user properties may repeat, and identifiers in a PUBLISH."""
    for identifier, (wire, allowed) in PROPERTIES.items():
        one = f"{identifier:02x}" + smallest(wire)
        for packet_type in allowed - {PUBLISH} if identifier == SUBSCRIPTION_IDENTIFIER else allowed:
            if identifier == USER_PROPERTY:
                continue
            assert ERROR is reason(one + one, packet_type)


def test_user_properties_keep_their_order_and_repetitions() -> None:
    """Forwarded user properties change their order [MQTT-3.3.2-18], or a repeated name is lost."""
    data = bytes.fromhex("15 26 000162 000131 26 000161 000132 26 000162 000133")

    assert ({USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")]}, 22) == decode_properties(data, 0, 22, PUBLISH)


def test_a_publish_carries_every_identifier_that_it_matched() -> None:
    """A client with overlapping subscriptions learns of one only [MQTT-3.3.4-4]."""
    data = bytes.fromhex("07 0b01 0bffffff7f")

    assert ({SUBSCRIPTION_IDENTIFIER: [1, 0xFFFFFFF]}, 8) == decode_properties(data, 0, 8, PUBLISH)


@pytest.mark.parametrize(
    ("section", "packet_type", "expected"),
    [
        ("21 0000", CONNECT, ERROR),  # receive maximum 0: 3.1.2.11.3
        ("27 00000000", CONNACK, ERROR),  # maximum packet size 0: 3.2.2.3.6
        ("0b 00", SUBSCRIBE, ERROR),  # subscription identifier 0: 3.8.2.1.2
        ("0b 00", PUBLISH, ERROR),  # 3.3.2.3.8
        ("23 0000", PUBLISH, CloseReason.TOPIC_ALIAS_INVALID),  # [MQTT-3.3.2-8]
        ("16 0000", CONNECT, ERROR),  # authentication data without method: 3.1.2.11.10
        ("16 0000", AUTH, ERROR),
        ("08 0000", PUBLISH, ERROR),  # an empty response topic [MQTT-4.7.3-1]
        ("08 0003 612f23", PUBLISH, ERROR),  # a wildcard in it [MQTT-3.3.2-14]
        ("08 0001 2b", WILL, ERROR),
        ("03 0001 ff", PUBLISH, MALFORMED),  # content type not UTF-8 [MQTT-3.3.2-19]
        ("08 0001 ff", PUBLISH, MALFORMED),  # response topic not UTF-8 [MQTT-3.3.2-13]
        ("26 0001 00 0001 61", PUBLISH, MALFORMED),  # NUL in a name [MQTT-1.5.7-1]
        ("26 0001 61 0001 ff", UNSUBSCRIBE, MALFORMED),
        ("0b 8000", SUBSCRIBE, MALFORMED),  # padded identifier [MQTT-1.5.5-1]
        ("0b 80808080 01", SUBSCRIBE, MALFORMED),
    ],
)
def test_bad_values_get_the_reason_the_specification_names(
    section: str, packet_type: int, expected: CloseReason
) -> None:
    """A value that a property must not have is accepted, or blamed on the wrong rule."""
    assert expected is reason(section, packet_type)


def test_a_flag_is_0_or_1() -> None:
    """A byte that MQTT defines as 0 or 1 carries something else to the session."""
    for identifier, (wire, allowed) in PROPERTIES.items():
        if wire == FLAG:
            assert ERROR is reason(f"{identifier:02x} 02", min(allowed))


def test_zero_is_a_value_where_it_is_one() -> None:
    """An expiry of 0, or a topic alias maximum of 0, is refused as if it were a topic alias of 0."""
    data = bytes.fromhex("0d 11 00000000 22 0000 02 00000000")

    with pytest.raises(ProtocolError):  # 0x02 belongs to PUBLISH
        decode_properties(data, 0, len(data), CONNECT)
    assert ({0x11: 0, 0x22: 0}, 9) == decode_properties(b"\x08" + data[1:9], 0, 9, CONNECT)


@pytest.mark.parametrize("identifier", sorted(PROPERTIES))
def test_a_property_cut_short_is_malformed(identifier: int) -> None:
    """A value is read beyond the end of its section, from the bytes that follow."""
    wire, allowed = PROPERTIES[identifier]
    value = smallest(wire)
    for kept in range(0, len(value), 2):
        body = bytes.fromhex(f"{identifier:02x}" + value[:kept])
        data = bytes((len(body),)) + body + bytes(8)
        with pytest.raises(ProtocolError) as refused:
            decode_properties(data, 0, len(data), min(allowed))
        assert refused.value.reason is MALFORMED


@pytest.mark.parametrize("data", ["", "01", "05 2100", "80", "8000", "ffffff7f", "ffffffff01"])
def test_a_section_longer_than_its_packet_is_malformed(data: str) -> None:
    """A property length is believed although the packet ends before."""
    raw = bytes.fromhex(data)
    with pytest.raises(ProtocolError) as refused:
        decode_properties(raw, 0, len(raw), DISCONNECT)
    assert refused.value.reason is MALFORMED


def test_no_properties_are_one_byte() -> None:
    """A packet without properties does not say so [MQTT-2.2.2-1]."""
    assert b"\0" == encode_properties({})
    assert ({}, 3) == decode_properties(b"ab\0", 2, 3, PUBACK)


def test_what_a_property_cannot_hold_is_not_sent() -> None:
    """A number too large for its property goes out as another number."""
    with pytest.raises(OverflowError):
        encode_properties({TOPIC_ALIAS: 0x10000})
    with pytest.raises(KeyError):
        encode_properties({0x7F: 1})
