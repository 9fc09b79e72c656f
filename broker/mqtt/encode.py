# Packets to bytes. Fields that the version does not have are left out: properties and most codes before 5.0, session
# present before 3.1.1. Otherwise the caller ensures that the packet is valid in the version. A value that does not fit
# into its field is an OverflowError; a packet of 256 MiB is a ValueError.
from broker.mqtt.connect import CLEAN_START, PASSWORD, USER_NAME, WILL_FLAG, WILL_RETAIN
from broker.mqtt.fields import encode_binary, encode_length, encode_string, encode_uint16
from broker.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
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
from broker.mqtt.properties import encode_properties


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of *packet* in *version* (V31, V311 or V5); a Connect has a version of its own."""
    if isinstance(packet, Publish):
        return _encode_publish(packet, version)
    if isinstance(packet, Ack):
        return _encode_ack(packet, version)
    if isinstance(packet, SubAck):
        return _frame(SUBACK << 4, _identified(packet.packet_id, packet.properties, version) + bytes(packet.codes))
    if isinstance(packet, UnsubAck):
        codes = bytes(packet.codes) if version == V5 else b""
        return _frame(UNSUBACK << 4, _identified(packet.packet_id, packet.properties, version) + codes)
    if isinstance(packet, ConnAck):
        return _encode_connack(packet, version)
    if isinstance(packet, PingResp):
        return b"\xd0\0"
    if isinstance(packet, PingReq):
        return b"\xc0\0"
    if isinstance(packet, Disconnect):
        if version != V5:
            return b"\xe0\0"
        return _frame(DISCONNECT << 4, _encode_code(packet.code, packet.properties))
    if isinstance(packet, Subscribe):
        return _encode_subscribe(packet, version)
    if isinstance(packet, Unsubscribe):
        filters = b"".join([encode_binary(filter) for filter in packet.filters])
        return _frame(UNSUBSCRIBE << 4 | 2, _identified(packet.packet_id, packet.properties, version) + filters)
    if isinstance(packet, Connect):
        return _encode_connect(packet)
    if packet.code == 0 and not packet.properties:
        return b"\xf0\0"
    return _frame(AUTH << 4, bytes((packet.code,)) + encode_properties(packet.properties))


def _frame(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_length(len(body)) + body


def _encode_publish(packet: Publish, version: int) -> bytes:
    first = PUBLISH << 4 | packet.qos << 1
    if packet.retain:
        first |= 1
    if packet.dup:
        first |= 8
    head = encode_binary(packet.topic)
    if packet.qos > 0:
        head += encode_uint16(packet.packet_id)  # [MQTT-2.2.1-2]
    if version == V5:
        head += encode_properties(packet.properties)
    return bytes((first,)) + encode_length(len(head) + len(packet.payload)) + head + packet.payload


def _encode_ack(packet: Ack, version: int) -> bytes:
    first = packet.kind << 4
    if packet.kind == PUBREL:
        first |= 2  # [MQTT-3.6.1-1]
    packet_id = packet.packet_id
    if version != V5 or (packet.code == 0 and not packet.properties):
        return bytes((first, 2, packet_id >> 8, packet_id & 0xFF))
    return _frame(first, encode_uint16(packet_id) + _encode_code(packet.code, packet.properties))


def _encode_code(code: int, properties: Properties) -> bytes:
    """A 5.0 reason code and properties at the end of a packet, in as few bytes as possible."""
    if properties:
        return bytes((code,)) + encode_properties(properties)
    return bytes((code,)) if code else b""


def _identified(packet_id: int, properties: Properties, version: int) -> bytes:
    """A packet identifier, followed in 5.0 by properties."""
    if version == V5:
        return encode_uint16(packet_id) + encode_properties(properties)
    return encode_uint16(packet_id)


def _encode_connack(packet: ConnAck, version: int) -> bytes:
    present = 1 if packet.session_present and version != V31 else 0  # and nothing else [MQTT-3.2.2-1]
    body = bytes((present, packet.code))
    if version == V5:
        body += encode_properties(packet.properties)
    return _frame(CONNACK << 4, body)


def _encode_subscribe(packet: Subscribe, version: int) -> bytes:
    body = bytearray(_identified(packet.packet_id, packet.properties, version))
    for wanted in packet.filters:
        body += encode_binary(wanted.filter)
        body.append(_options(wanted) if version == V5 else wanted.qos)
    return _frame(SUBSCRIBE << 4 | 2, bytes(body))


def _options(wanted: Wanted) -> int:
    options = wanted.qos | wanted.retain_handling << 4
    if wanted.no_local:
        options |= 4
    if wanted.retain_as_published:
        options |= 8
    return options


def _encode_connect(packet: Connect) -> bytes:
    body = bytearray(b"\0\6MQIsdp" if packet.version == V31 else b"\0\4MQTT")
    body.append(packet.version)
    body.append(_connect_flags(packet))
    body += encode_uint16(packet.keep_alive)
    if packet.version == V5:
        body += encode_properties(packet.properties)
    body += encode_string(packet.client_id)
    will = packet.will
    if will is not None:
        if packet.version == V5:
            body += encode_properties(will.properties)
        body += encode_binary(will.topic) + encode_binary(will.payload)
    if packet.user_name is not None:
        body += encode_string(packet.user_name)
    if packet.password is not None:
        body += encode_binary(packet.password)
    return _frame(CONNECT << 4, bytes(body))


def _connect_flags(packet: Connect) -> int:
    flags = CLEAN_START if packet.clean_start else 0
    will = packet.will
    if will is not None:
        flags |= WILL_FLAG | will.qos << 3
        if will.retain:
            flags |= WILL_RETAIN
    if packet.user_name is not None:
        flags |= USER_NAME
    if packet.password is not None:
        flags |= PASSWORD
    return flags
