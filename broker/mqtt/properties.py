# The properties of MQTT 5.0 (section 2.2.2), from and to bytes. One table has the type and the packets of each.
#
# The specification knows two errors. An identifier that is unknown or not allowed in its packet, or a value that cannot
# be read, is a malformed packet. A property that occurs twice, or has a forbidden value, is a protocol error. A topic
# alias of 0 has a reason code of its own.
from typing import Final, cast

from broker.mqtt.fields import (
    encode_binary,
    encode_length,
    encode_string,
    malformed,
    protocol_error,
    read_binary,
    read_length,
    read_string,
    read_uint16,
    read_uint32,
)
from broker.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    Properties,
    PropertyValue,
)
from broker.mqtt.topics import check_topic
from broker.reasons import CloseReason, ProtocolError

WILL: Final = 0  # a pseudo packet type: the properties of the will inside a CONNECT

PAYLOAD_FORMAT_INDICATOR: Final = 0x01
MESSAGE_EXPIRY_INTERVAL: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY_INTERVAL: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY_INTERVAL: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_SUBSCRIPTION_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIER_AVAILABLE: Final = 0x29
SHARED_SUBSCRIPTION_AVAILABLE: Final = 0x2A

# Wire types, and the type of the value in Properties.
FLAG: Final = 1  # int: every Byte of the specification is 0 or 1
UINT16: Final = 2  # int
UINT32: Final = 3  # int
VARINTS: Final = 4  # list[int]
STRING: Final = 5  # str
BINARY: Final = 6  # bytes
PAIRS: Final = 7  # list[tuple[str, str]]

_ACKS: Final = frozenset({PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK})
_ALL: Final = _ACKS | {WILL, CONNECT, CONNACK, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH}

# identifier: (wire type, packet types it is allowed in)
PROPERTIES: Final[dict[int, tuple[int, frozenset[int]]]] = {
    PAYLOAD_FORMAT_INDICATOR: (FLAG, frozenset({PUBLISH, WILL})),
    MESSAGE_EXPIRY_INTERVAL: (UINT32, frozenset({PUBLISH, WILL})),
    CONTENT_TYPE: (STRING, frozenset({PUBLISH, WILL})),
    RESPONSE_TOPIC: (STRING, frozenset({PUBLISH, WILL})),
    CORRELATION_DATA: (BINARY, frozenset({PUBLISH, WILL})),
    SUBSCRIPTION_IDENTIFIER: (VARINTS, frozenset({PUBLISH, SUBSCRIBE})),
    SESSION_EXPIRY_INTERVAL: (UINT32, frozenset({CONNECT, CONNACK, DISCONNECT})),
    ASSIGNED_CLIENT_IDENTIFIER: (STRING, frozenset({CONNACK})),
    SERVER_KEEP_ALIVE: (UINT16, frozenset({CONNACK})),
    AUTHENTICATION_METHOD: (STRING, frozenset({CONNECT, CONNACK, AUTH})),
    AUTHENTICATION_DATA: (BINARY, frozenset({CONNECT, CONNACK, AUTH})),
    REQUEST_PROBLEM_INFORMATION: (FLAG, frozenset({CONNECT})),
    WILL_DELAY_INTERVAL: (UINT32, frozenset({WILL})),
    REQUEST_RESPONSE_INFORMATION: (FLAG, frozenset({CONNECT})),
    RESPONSE_INFORMATION: (STRING, frozenset({CONNACK})),
    SERVER_REFERENCE: (STRING, frozenset({CONNACK, DISCONNECT})),
    REASON_STRING: (STRING, _ACKS | {CONNACK, DISCONNECT, AUTH}),
    RECEIVE_MAXIMUM: (UINT16, frozenset({CONNECT, CONNACK})),
    TOPIC_ALIAS_MAXIMUM: (UINT16, frozenset({CONNECT, CONNACK})),
    TOPIC_ALIAS: (UINT16, frozenset({PUBLISH})),
    MAXIMUM_QOS: (FLAG, frozenset({CONNACK})),
    RETAIN_AVAILABLE: (FLAG, frozenset({CONNACK})),
    USER_PROPERTY: (PAIRS, _ALL),
    MAXIMUM_PACKET_SIZE: (UINT32, frozenset({CONNECT, CONNACK})),
    WILDCARD_SUBSCRIPTION_AVAILABLE: (FLAG, frozenset({CONNACK})),
    SUBSCRIPTION_IDENTIFIER_AVAILABLE: (FLAG, frozenset({CONNACK})),
    SHARED_SUBSCRIPTION_AVAILABLE: (FLAG, frozenset({CONNACK})),
}


USER_PROPERTIES: Final = 1024  # of one packet at most, because it is handled in one piece


def decode_properties(data: bytes, start: int, stop: int, packet_type: int) -> tuple[Properties, int]:
    """The section of properties that begins with its length at *start*, and the position after it.

    *packet_type* is that of the packet, or WILL. Raises ProtocolError MALFORMED_PACKET, PROTOCOL_ERROR or
    TOPIC_ALIAS_INVALID. A rule that depends on the role of the sender is checked elsewhere: a client must not send
    subscription identifiers in a PUBLISH [MQTT-3.3.4-6].
    """
    properties: Properties = {}
    length, position = read_length(data, start, stop, V5)
    if length == 0:
        return properties, position
    end = position + length
    if length < 0 or end > stop:
        raise malformed("properties longer than their packet")
    while position < end:
        identifier = data[position]  # a variable byte integer, but none is above 127 yet
        known = PROPERTIES.get(identifier)
        if known is None or packet_type not in known[1]:
            raise malformed(f"property 0x{identifier:02x} is not allowed here")
        position = _decode_property(data, position + 1, end, identifier, known[0], packet_type, properties)
    if AUTHENTICATION_DATA in properties and AUTHENTICATION_METHOD not in properties:
        raise protocol_error("authentication data without a method")  # 3.1.2.11.10
    return properties, position


def _decode_property(
    data: bytes, position: int, end: int, identifier: int, wire: int, packet_type: int, properties: Properties
) -> int:
    """Put the value at *position* into *properties*; return the position after it."""
    if wire == PAIRS:
        return _decode_pair(data, position, end, properties)
    if wire == VARINTS:
        return _decode_subscription_identifier(data, position, end, packet_type, properties)
    if identifier in properties:
        raise protocol_error(f"property 0x{identifier:02x} twice")
    if wire == STRING:
        text, position = read_string(data, position, end)  # [MQTT-3.3.2-13], [MQTT-3.3.2-19]
        if identifier == RESPONSE_TOPIC:
            _check_response_topic(text)
        properties[identifier] = text
        return position
    if wire == BINARY:
        properties[identifier], position = read_binary(data, position, end)
        return position
    if wire == FLAG:
        if position == end:
            raise malformed("packet ends in a property")
        number = data[position]
        if number > 1:
            raise protocol_error(f"property 0x{identifier:02x} is neither 0 nor 1")
        position += 1
    elif wire == UINT16:
        number = read_uint16(data, position, end)
        position += 2
    else:
        number = read_uint32(data, position, end)
        position += 4
    if number == 0:
        _check_zero(identifier)
    properties[identifier] = number
    return position


def _decode_pair(data: bytes, position: int, end: int, properties: Properties) -> int:
    """A user property. There may be many, and their order is kept [MQTT-3.3.2-18]."""
    name, position = read_string(data, position, end)  # [MQTT-1.5.7-1]
    value, position = read_string(data, position, end)
    pairs = cast(list[tuple[str, str]], properties.setdefault(USER_PROPERTY, []))
    if len(pairs) >= USER_PROPERTIES:
        raise ProtocolError(CloseReason.QUOTA_EXCEEDED, f"more than {USER_PROPERTIES} user properties")
    pairs.append((name, value))
    return position


def _decode_subscription_identifier(
    data: bytes, position: int, end: int, packet_type: int, properties: Properties
) -> int:
    """A subscription identifier: one in a SUBSCRIBE, and in a PUBLISH one for each matching subscription."""
    number, position = read_length(data, position, end, V5)
    if number < 0:
        raise malformed("packet ends in a property")
    if number == 0:
        raise protocol_error("subscription identifier 0")  # 3.8.2.1.2
    numbers = cast(list[int], properties.setdefault(SUBSCRIPTION_IDENTIFIER, []))
    if numbers and packet_type == SUBSCRIBE:
        raise protocol_error("property 0x0b twice")
    numbers.append(number)
    return position


def _check_response_topic(topic: str) -> None:
    """Check that a response topic is a topic name [MQTT-3.3.2-14]. Code 0x90 is for the topic of the PUBLISH itself."""
    try:
        check_topic(topic.encode())
    except ProtocolError:
        raise protocol_error("bad response topic") from None


def _check_zero(identifier: int) -> None:
    if identifier == TOPIC_ALIAS:
        raise ProtocolError(CloseReason.TOPIC_ALIAS_INVALID, "topic alias 0")  # [MQTT-3.3.2-8]
    if identifier in (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE):
        raise protocol_error(f"property 0x{identifier:02x} is 0")  # 3.1.2.11.3, 3.1.2.11.4


def encode_properties(properties: Properties) -> bytes:
    """The section with its length. KeyError, OverflowError or ValueError for a value that cannot be encoded."""
    if not properties:
        return b"\0"  # [MQTT-2.2.2-1]
    section = bytearray()
    for identifier, value in properties.items():
        _encode_property(section, identifier, value)
    return encode_length(len(section)) + bytes(section)


def _encode_property(section: bytearray, identifier: int, value: PropertyValue) -> None:
    if isinstance(value, list):
        for item in value:
            section.append(identifier)
            if isinstance(item, tuple):
                section += encode_string(item[0]) + encode_string(item[1])
            else:
                section += encode_length(item)
        return
    section.append(identifier)
    if isinstance(value, str):
        section += encode_string(value)
    elif isinstance(value, bytes):
        section += encode_binary(value)
    else:
        wire = PROPERTIES[identifier][0]
        section += value.to_bytes(1 if wire == FLAG else 2 if wire == UINT16 else 4, "big")
