# CONNECT from bytes: the packet that names the protocol version, and whose rules differ most between versions.
#
# 3.1 leaves many bits "not used" and allows user name and password to be missing although their flags are set. 3.1.1
# made both an error. 5.0 added properties and allows a password without a user name.
from typing import Final

from broker.mqtt.fields import malformed, read_binary, read_string, read_uint16
from broker.mqtt.packets import CONNECT, V5, V31, V311, Connect, Properties, Will
from broker.mqtt.properties import WILL, decode_properties
from broker.mqtt.topics import check_topic, check_utf8
from broker.reasons import CloseReason, ProtocolError

# Connect flags (3.1.2.3)
RESERVED: Final = 0x01
CLEAN_START: Final = 0x02
WILL_FLAG: Final = 0x04
WILL_QOS: Final = 0x18
WILL_RETAIN: Final = 0x20
PASSWORD: Final = 0x40
USER_NAME: Final = 0x80


def decode_connect(first: int, data: bytes, start: int, stop: int) -> Connect:
    """The CONNECT whose first byte is *first* and whose body is data[start:stop]. Its version is a field of it.

    The fields are in a fixed order [MQTT-3.1.3-1], and each is present if and only if its flag is set.
    """
    version, position = _decode_version(data, start, stop)
    if first != CONNECT << 4 and version != V31:
        raise malformed(f"CONNECT with the flags 0x{first & 0x0F:x}")  # [MQTT-2.1.3-1]; 3.1 does not use them
    if position == stop:
        raise malformed("CONNECT ends before its flags")
    flags = data[position]
    _check_flags(flags, version)
    keep_alive = read_uint16(data, position + 1, stop)
    position += 3
    properties: Properties = {}
    if version == V5:
        properties, position = decode_properties(data, position, stop, CONNECT)
    client_id, position = read_string(data, position, stop)  # [MQTT-3.1.3-3], [MQTT-3.1.3-4]
    clean_start = flags & CLEAN_START != 0
    if not client_id:
        _check_anonymous(version, clean_start)
    will: Will | None = None
    if flags & WILL_FLAG:
        will, position = _decode_will(data, position, stop, version, flags)
    user_name: str | None = None
    if flags & USER_NAME and not _left_out(position, stop, version):
        user_name, position = read_string(data, position, stop)  # [MQTT-3.1.2-17], [MQTT-3.1.3-12]
    password: bytes | None = None
    if flags & PASSWORD and not _left_out(position, stop, version):
        password, position = read_binary(data, position, stop)  # [MQTT-3.1.2-19]
    if position != stop:  # [MQTT-3.1.2-16], [MQTT-3.1.2-18], 3.1.1 [MQTT-3.1.2-11]
        raise malformed("CONNECT goes on after its last field")
    return Connect(version, client_id, clean_start, keep_alive, user_name, password, will, properties)


def _decode_version(data: bytes, start: int, stop: int) -> tuple[int, int]:
    """The version that protocol name and level denote, and the position after them."""
    name, position = read_binary(data, start, stop)
    check_utf8(name)
    if position == stop:
        raise malformed("CONNECT ends before its protocol level")
    level = data[position]
    if (name == b"MQTT" and (level in (V5, V311))) or (name == b"MQIsdp" and level == V31):
        return level, position + 1
    # [MQTT-3.1.2-1], [MQTT-3.1.2-2], 3.1.1 [MQTT-3.1.2-2]
    raise ProtocolError(CloseReason.UNSUPPORTED_VERSION, f"protocol name of {len(name)} bytes, level {level}")


def _check_flags(flags: int, version: int) -> None:
    """The rules between the connect flags."""
    if flags & WILL_FLAG and flags & WILL_QOS == WILL_QOS:
        raise malformed("will QoS 3")  # [MQTT-3.1.2-12]; 3.1.1 [MQTT-3.1.2-14]
    if version != V5 and flags & PASSWORD and not flags & USER_NAME:
        raise malformed("password without user name")  # 3.1.1 [MQTT-3.1.2-22]
    if version == V31:
        return  # 3.1 does not use the bits below
    if flags & RESERVED:
        raise malformed("reserved connect flag")  # [MQTT-3.1.2-3]
    if not flags & WILL_FLAG and flags & (WILL_QOS | WILL_RETAIN):
        raise malformed("will QoS or will retain without a will")  # [MQTT-3.1.2-11], [MQTT-3.1.2-13]


def _check_anonymous(version: int, clean_start: bool) -> None:
    """Check that the client id may be empty: in 5.0, and in 3.1.1 with clean session; 3.1.1 [MQTT-3.1.3-7]."""
    if version == V31 or (version == V311 and not clean_start):
        raise ProtocolError(CloseReason.CLIENT_ID_INVALID, "empty client identifier")  # 3.1.1 [MQTT-3.1.3-8]


def _decode_will(data: bytes, position: int, stop: int, version: int, flags: int) -> tuple[Will, int]:
    properties: Properties = {}
    if version == V5:
        properties, position = decode_properties(data, position, stop, WILL)
    topic, position = read_binary(data, position, stop)  # [MQTT-3.1.2-9]
    check_topic(topic)  # [MQTT-3.1.3-11]
    payload, position = read_binary(data, position, stop)
    return Will(topic, payload, (flags & WILL_QOS) >> 3, flags & WILL_RETAIN != 0, properties), position


def _left_out(position: int, stop: int, version: int) -> bool:
    """Whether a field is missing though its flag is set, which 3.1 allows for user name and password."""
    return version == V31 and position == stop


def peek_version(data: bytes, start: int, stop: int) -> int:
    """The version in which to answer a CONNECT that cannot be decoded; 0 if there is no hint of it.

    A level above 5 is answered as 5.0 [MQTT-3.1.2-2], others as 3.1.1.
    """
    if stop - start < 2:
        return 0
    level = start + 2 + (data[start] << 8 | data[start + 1])
    if level >= stop:
        return 0
    return (
        V5 if data[level] & 0x7F >= V5 else V311
    )  # the high bit is set by Mosquitto bridges, which then try without it
