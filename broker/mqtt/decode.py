# Packets from bytes, in both directions. Bytes that are not exactly a packet of the version are a ProtocolError.
#
# There are two kinds of errors. A packet that cannot be read, or whose flag bits are wrong, is MALFORMED_PACKET. A
# packet that can be read and contains what MQTT forbids is PROTOCOL_ERROR, or the more exact reason that the
# specification names. What depends on the role of the sender or on earlier packets (a second CONNECT, an alias never
# set, a client that sends a SUBACK) is checked by the layers above.
from typing import Final

from broker.mqtt.codes import allowed_codes
from broker.mqtt.connect import decode_connect
from broker.mqtt.fields import malformed, protocol_error, read_binary, read_packet_id
from broker.mqtt.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    Ack,
    Auth,
    ConnAck,
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
from broker.mqtt.properties import AUTHENTICATION_METHOD, TOPIC_ALIAS, decode_properties
from broker.mqtt.topics import SHARE_PREFIX, check_topic, check_utf8
from broker.reasons import CloseReason, ProtocolError

FILTERS: Final = 1024  # of one SUBSCRIBE or UNSUBSCRIBE


def decode(first: int, data: bytes, start: int, stop: int, version: int) -> Packet:
    """The packet whose first byte is *first* and whose body, all bytes after the fixed header, is data[start:stop].

    *version* is V31, V311 or V5, or 0 before the CONNECT. Raises nothing but ProtocolError.
    """
    check_first_byte(first, version)
    kind = first >> 4
    if kind == PUBLISH:
        return _decode_publish(first, data, start, stop, version)
    if PUBACK <= kind <= PUBCOMP:
        return _decode_ack(kind, data, start, stop, version)
    if kind in (PINGREQ, PINGRESP):
        if start != stop:
            raise malformed("a ping with a body")
        return PingReq() if kind == PINGREQ else PingResp()
    if kind == SUBSCRIBE:
        return _decode_subscribe(data, start, stop, version)
    if kind == UNSUBSCRIBE:
        return _decode_unsubscribe(data, start, stop, version)
    if kind == CONNECT:
        return decode_connect(first, data, start, stop)
    if kind == DISCONNECT:
        return _decode_disconnect(data, start, stop, version)
    if kind == CONNACK:
        return _decode_connack(data, start, stop, version)
    if kind == SUBACK:
        return _decode_suback(data, start, stop, version)
    if kind == UNSUBACK:
        return _decode_unsuback(data, start, stop, version)
    return _decode_auth(data, start, stop)


def check_first_byte(first: int, version: int) -> None:
    """Refuse a first byte that no packet of *version* has; with version 0, one that no CONNECT has."""
    if _FIRST_BYTES[version << 8 | first]:
        return
    if version == 0 and first >> 4 != CONNECT:
        raise ProtocolError(CloseReason.NOT_MQTT, f"first byte 0x{first:02x}")  # [MQTT-3.1.0-1]
    raise malformed(f"packet type or flags 0x{first:02x}")  # [MQTT-2.1.3-1]


def _may_begin(first: int, version: int) -> bool:
    kind, flags = first >> 4, first & 0x0F
    qos = flags >> 1 & 3
    if version == 0:
        return kind == CONNECT  # its flags are checked once its version is known
    if kind == PUBLISH:
        return qos < 3 and (flags < 8 or qos > 0 or version == V31)  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
    if kind == 0 or (kind == AUTH and version != V5):
        return False
    if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        # [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.10.1-1]; in 3.1 these have QoS 1, and DUP when sent again
        return qos == 1 if version == V31 else flags == 2
    return flags == 0 or version == V31  # [MQTT-3.14.1-1], [MQTT-3.15.1-1]; 3.1 does not use them


_FIRST_BYTES: Final = bytes(_may_begin(first, version) for version in range(V5 + 1) for first in range(256))


def _decode_publish(first: int, data: bytes, start: int, stop: int, version: int) -> Publish:
    topic, position = read_binary(data, start, stop)  # [MQTT-3.3.2-1]
    qos = first >> 1 & 3
    packet_id = 0
    if qos > 0:
        packet_id = read_packet_id(data, position, stop)
        position += 2
    properties: Properties = {}
    if version == V5:
        properties, position = decode_properties(data, position, stop, PUBLISH)
        if not topic and TOPIC_ALIAS not in properties:
            raise protocol_error("neither topic nor topic alias")  # 3.3.2.1
    if topic or version != V5:
        check_topic(topic)
    return Publish(topic, data[position:stop], qos, first & 1 != 0, first & 8 != 0, packet_id, properties)


def _decode_ack(kind: int, data: bytes, start: int, stop: int, version: int) -> Ack:
    packet_id = read_packet_id(data, start, stop)
    position = start + 2
    if position == stop:
        return Ack(kind, packet_id)
    if version != V5:
        raise malformed("an acknowledgement of more than two bytes")
    code, properties = _decode_code(kind, data, position, stop)
    return Ack(kind, packet_id, code, properties)


def _decode_code(kind: int, data: bytes, position: int, stop: int) -> tuple[int, Properties]:
    """The reason code and the properties at the end of a 5.0 packet. Both, or the properties, may be left out."""
    if position == stop:
        return 0, {}
    code = data[position]
    _check_code(code, kind, V5)
    if position + 1 == stop:
        return code, {}
    return code, _decode_last_properties(kind, data, position + 1, stop)


def _decode_last_properties(kind: int, data: bytes, position: int, stop: int) -> Properties:
    """The properties at the end of a 5.0 packet."""
    properties, position = decode_properties(data, position, stop, kind)
    if position != stop:
        raise malformed("a packet goes on after its properties")
    return properties


def _check_code(code: int, kind: int, version: int) -> None:
    if code not in allowed_codes(kind, version):
        raise protocol_error(f"code 0x{code:02x} in packet type {kind}")


def _decode_subscribe(data: bytes, start: int, stop: int, version: int) -> Subscribe:
    packet_id = read_packet_id(data, start, stop)
    position = start + 2
    properties: Properties = {}
    if version == V5:
        properties, position = decode_properties(data, position, stop, SUBSCRIBE)
    if position == stop:
        raise protocol_error("SUBSCRIBE without a topic filter")  # [MQTT-3.8.3-2]
    filters: list[Wanted] = []
    while position < stop:
        _check_count(len(filters))
        filter, position = _decode_filter(data, position, stop)
        if position == stop:
            raise malformed("topic filter without options")
        filters.append(_decode_wanted(filter, data[position], version))
        position += 1
    return Subscribe(packet_id, filters, properties)


def _check_count(filters: int) -> None:
    """Limit the filters of one packet, because it is handled in one piece."""
    if filters >= FILTERS:
        raise ProtocolError(CloseReason.QUOTA_EXCEEDED, f"more than {FILTERS} topic filters in a packet")


def _decode_filter(data: bytes, position: int, stop: int) -> tuple[bytes, int]:
    """A filter. The place of its wildcards is not checked here, because each filter is answered by itself."""
    filter, position = read_binary(data, position, stop)
    if not filter:
        raise ProtocolError(CloseReason.TOPIC_FILTER_INVALID, "empty topic filter")  # [MQTT-4.7.3-1]
    check_utf8(filter)  # [MQTT-3.8.3-1], [MQTT-3.10.3-1]
    return filter, position


def _decode_wanted(filter: bytes, options: int, version: int) -> Wanted:
    if version == V31:
        options &= 3  # the other bits are "not used" there
    qos = options & 3
    if version != V5:
        if options > 2:
            raise malformed(f"requested QoS byte 0x{options:02x}")  # 3.1.1 [MQTT-3.8.3-4]
        return Wanted(filter, qos)
    if options & 0xC0:
        raise malformed("reserved bits of the subscription options")  # [MQTT-3.8.3-5]
    if qos == 3:
        raise protocol_error("maximum QoS 3")  # 3.8.3.1
    retain_handling = options >> 4
    if retain_handling == 3:
        raise protocol_error("retain handling 3")  # 3.8.3.1
    no_local = options & 4 != 0
    if no_local and filter.startswith(SHARE_PREFIX):
        raise protocol_error("no local on a shared subscription")  # [MQTT-3.8.3-4]
    return Wanted(filter, qos, no_local, options & 8 != 0, retain_handling)


def _decode_unsubscribe(data: bytes, start: int, stop: int, version: int) -> Unsubscribe:
    packet_id = read_packet_id(data, start, stop)
    position = start + 2
    properties: Properties = {}
    if version == V5:
        properties, position = decode_properties(data, position, stop, UNSUBSCRIBE)
    if position == stop:
        raise protocol_error("UNSUBSCRIBE without a topic filter")  # [MQTT-3.10.3-2]
    filters: list[bytes] = []
    while position < stop:
        _check_count(len(filters))
        filter, position = _decode_filter(data, position, stop)
        filters.append(filter)
    return Unsubscribe(packet_id, filters, properties)


def _decode_suback(data: bytes, start: int, stop: int, version: int) -> SubAck:
    packet_id = read_packet_id(data, start, stop)
    properties: Properties = {}
    position = start + 2
    if version == V5:
        properties, position = decode_properties(data, position, stop, SUBACK)
    return SubAck(packet_id, _decode_codes(SUBACK, data, position, stop, version), properties)


def _decode_unsuback(data: bytes, start: int, stop: int, version: int) -> UnsubAck:
    packet_id = read_packet_id(data, start, stop)
    if version != V5:
        if start + 2 != stop:
            raise malformed("UNSUBACK of more than two bytes")
        return UnsubAck(packet_id, [])
    properties, position = decode_properties(data, start + 2, stop, UNSUBACK)
    return UnsubAck(packet_id, _decode_codes(UNSUBACK, data, position, stop, version), properties)


def _decode_codes(kind: int, data: bytes, position: int, stop: int, version: int) -> list[int]:
    codes = list(data[position:stop])
    if not codes:
        raise protocol_error("no reason code")
    for code in codes:
        _check_code(code, kind, version)  # [MQTT-3.9.3-2], [MQTT-3.11.3-2]
    return codes


def _decode_disconnect(data: bytes, start: int, stop: int, version: int) -> Disconnect:
    if version != V5:
        if start != stop:
            raise malformed("DISCONNECT with a body")
        return Disconnect()
    code, properties = _decode_code(DISCONNECT, data, start, stop)
    return Disconnect(code, properties)


def _decode_connack(data: bytes, start: int, stop: int, version: int) -> ConnAck:
    if start + 2 > stop:
        raise malformed("CONNACK of less than two bytes")
    flags = data[start]
    code = data[start + 1]
    if version == V31:
        flags = 0  # not used there
    if flags > 1:
        raise malformed("reserved CONNACK flags")  # [MQTT-3.2.2-1]
    _check_code(code, CONNACK, version)  # [MQTT-3.2.2-8]
    if flags and code:
        raise protocol_error("session present in a refusal")  # [MQTT-3.2.2-6]
    if version == V5:
        return ConnAck(flags != 0, code, _decode_last_properties(CONNACK, data, start + 2, stop))
    if start + 2 != stop:
        raise malformed("CONNACK of more than two bytes")
    return ConnAck(flags != 0, code)


def _decode_auth(data: bytes, start: int, stop: int) -> Auth:
    code, properties = _decode_code(AUTH, data, start, stop)
    # A success without properties may be empty (3.15.2.1), every other AUTH names its method (3.15.2.2.2).
    if AUTHENTICATION_METHOD not in properties and (code or properties):
        raise protocol_error("AUTH without a method")
    return Auth(code, properties)
