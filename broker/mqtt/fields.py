# The data types that packets consist of (MQTT 5.0, section 1.5), from and to bytes.
#
# A reader takes the data, a position and an end, and returns the value and the position after it. There is no cursor
# object and no copy but the value, and a length is not trusted before its bytes have been received.
from broker.mqtt.packets import V5
from broker.mqtt.topics import check_utf8
from broker.reasons import CloseReason, ProtocolError


def malformed(detail: str) -> ProtocolError:
    """The error for bytes that cannot be read as MQTT."""
    return ProtocolError(CloseReason.MALFORMED_PACKET, detail)


def protocol_error(detail: str) -> ProtocolError:
    """The error for a packet that can be read and contains what MQTT forbids."""
    return ProtocolError(CloseReason.PROTOCOL_ERROR, detail)


def read_length(data: bytes, position: int, end: int, version: int) -> tuple[int, int]:
    """A Variable Byte Integer: (value, position after it), or (-1, *position*) if it is not complete at *end*.

    Raises MALFORMED_PACKET for more than four bytes, and in 5.0 for more bytes than the value needs. Before 5.0, and
    before the version is known, padding is allowed.
    """
    value = 0
    shift = 0
    at = position
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0 and version == V5:
                raise malformed("variable byte integer longer than needed")  # [MQTT-1.5.5-1]
            return value, at
        if shift == 21:
            raise malformed("variable byte integer of more than four bytes")
        shift += 7
    return -1, position


def read_uint16(data: bytes, position: int, end: int) -> int:
    """A Two Byte Integer."""
    if position + 2 > end:
        raise malformed("packet ends in a two byte integer")
    return data[position] << 8 | data[position + 1]


def read_uint32(data: bytes, position: int, end: int) -> int:
    """A Four Byte Integer."""
    return read_uint16(data, position, end) << 16 | read_uint16(data, position + 2, end)


def read_packet_id(data: bytes, position: int, end: int) -> int:
    """A Packet Identifier. PROTOCOL_ERROR for 0 [MQTT-2.2.1-3], [MQTT-2.2.1-4]."""
    packet_id = read_uint16(data, position, end)
    if packet_id == 0:
        raise protocol_error("packet identifier 0")
    return packet_id


def read_binary(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    """Binary Data, at most 65 535 bytes [MQTT-4.7.3-3], and the position after it."""
    begin = position + 2
    after = begin + read_uint16(data, position, end)
    if after > end:
        raise malformed("packet ends in a field with a length")
    return data[begin:after], after


def read_string(data: bytes, position: int, end: int) -> tuple[str, int]:
    """A UTF-8 Encoded String, and the position after it."""
    raw, after = read_binary(data, position, end)
    check_utf8(raw)
    return raw.decode(), after


def encode_length(value: int) -> bytes:
    """A Variable Byte Integer in as few bytes as it needs [MQTT-1.5.5-1]; ValueError outside of 0..268 435 455."""
    if not 0 <= value < 1 << 28:
        raise ValueError(f"{value} does not fit a variable byte integer")
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_uint16(value: int) -> bytes:
    """A Two Byte Integer; OverflowError if *value* is too large."""
    return value.to_bytes(2, "big")


def encode_binary(value: bytes) -> bytes:
    """Binary Data, or a string that is encoded already; OverflowError above 65 535 bytes [MQTT-4.7.3-3]."""
    return len(value).to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """A UTF-8 Encoded String; OverflowError above 65 535 bytes."""
    return encode_binary(value.encode())
