# A retained message, or the deletion of one, as it is stored: a field of a hash in Redis, named by its topic.
#
#   stamp, 12 bytes; flags, 1 byte
#   EXPIRES: Unix time in seconds, 5 bytes; OWNER: its length, 2 bytes, and the client id of the client that set it
#   PROPERTIES: their length, 4 bytes, and the properties; then the payload, to the end
#
# All numbers are big-endian, so that retained.lua can compare stamps byte by byte. A deletion is a stamp and DELETED.
#
# MEMORY USAGE of 100 000 messages in SLICES hashes, beside topic, payload and owner: 41 to 47 bytes each in Valkey 9.1,
# of which 13 are the stamp and the flags, and 68 to 84 in Redis 6.2 and 7.0. A key for each topic takes 40 bytes more.
# Many small hashes, which Redis packs, take half of it while all payloads are short, and as much as a large hash as
# soon as one value has more than 64 bytes; a node with few messages would pay a key for nearly each of them.
from typing import Final

from broker.mqtt.fields import encode_length
from broker.mqtt.packets import PUBLISH
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, decode_properties
from broker.mqtt.topics import check_topic
from broker.reasons import ProtocolError
from broker.routing.route import RESERVED
from broker.session.message import NEVER, Message

STAMP_BYTES: Final = 12
QOS: Final = 0x03
DELETED: Final = 0x04
PROPERTIES: Final = 0x08
EXPIRES: Final = 0x10
OWNER: Final = 0x20
UNKNOWN: Final = 0xC0  # a newer version may use them
HEAD: Final = STAMP_BYTES + 1
TIME_BYTES: Final = 5
OWNER_BYTES: Final = 2
PROPERTIES_BYTES: Final = 4


class DamagedValue(ValueError):
    """The bytes are no value: they were damaged, or written by a newer version."""


class StoredValue:
    """A value that was read. *message*: None, if the message of the topic was deleted."""

    def __init__(self, stamp: int, message: Message | None, client_id: str) -> None:
        self.stamp = stamp
        self.message = message
        self.client_id = client_id


def encode_stamp(stamp: int) -> bytes:
    return stamp.to_bytes(STAMP_BYTES, "big")


def encode_deletion(stamp: int) -> bytes:
    return encode_stamp(stamp) + bytes((DELETED,))


def encode_message(message: Message, client_id: str, stamp: int, now: float, wall: float) -> bytes:
    """The value of *message*, which *client_id* has set. *now*: the worker's time; *wall*: the same in Unix time."""
    owner = client_id.encode()
    flags = message.qos
    parts = [encode_stamp(stamp), b""]
    if message.expires != NEVER:
        flags |= EXPIRES
        parts.append(max(0, int(message.expires - now + wall)).to_bytes(TIME_BYTES, "big"))
    if owner:
        flags |= OWNER
        parts.append(len(owner).to_bytes(OWNER_BYTES, "big") + owner)
    if message.properties:
        flags |= PROPERTIES
        parts.append(len(message.properties).to_bytes(PROPERTIES_BYTES, "big") + message.properties)
    parts[1] = bytes((flags,))
    parts.append(message.payload)
    return b"".join(parts)


def decode_value(topic: bytes, data: bytes, now: float, wall: float) -> StoredValue:
    """The value that was made here, perhaps by another worker. DamagedValue: it was not."""
    if len(data) < HEAD:
        raise DamagedValue("it is shorter than its head")
    stamp = int.from_bytes(data[:STAMP_BYTES], "big")
    flags = data[STAMP_BYTES]
    if not stamp or flags & UNKNOWN or flags & QOS == QOS:
        raise DamagedValue(f"flags {flags:#04x}")
    _check_topic(topic)
    if flags & DELETED:
        if flags != DELETED or len(data) != HEAD:
            raise DamagedValue("a deletion with a message")
        return StoredValue(stamp, None, "")
    at = HEAD
    expires = NEVER
    if flags & EXPIRES:
        expires = int.from_bytes(data[at : at + TIME_BYTES], "big") - wall + now
        if expires == NEVER:
            expires = -1.0  # it has expired, whatever the clock of this worker says
        at += TIME_BYTES
    owner = properties = b""
    if flags & OWNER:
        owner, at = _take_bytes(data, at, OWNER_BYTES)
    if flags & PROPERTIES:
        properties, at = _take_bytes(data, at, PROPERTIES_BYTES)
        _check_properties(properties)
    if at >= len(data):
        raise DamagedValue("it ends before its payload")
    try:
        client_id = owner.decode()
    except UnicodeDecodeError as error:
        raise DamagedValue("the client id is no UTF-8") from error
    return StoredValue(stamp, Message(topic, data[at:], flags & QOS, True, properties, expires), client_id)


def _take_bytes(data: bytes, at: int, length_bytes: int) -> tuple[bytes, int]:
    """Bytes behind their length: (bytes, position after them)."""
    start = at + length_bytes
    end = start + int.from_bytes(data[at:start], "big")
    if end > len(data):
        raise DamagedValue("it ends within a part")
    return data[start:end], end


def _check_topic(topic: bytes) -> None:
    if topic.startswith(RESERVED):
        raise DamagedValue("a topic of the broker itself")
    try:
        check_topic(topic)
    except ProtocolError as error:
        raise DamagedValue("the topic is none") from error


def _check_properties(properties: bytes) -> None:
    """Raise DamagedValue unless they are those of a PUBLISH that are kept: they are sent to subscribers as they are."""
    section = encode_length(len(properties)) + properties
    try:
        found, _ = decode_properties(section, 0, len(section), PUBLISH)
    except ProtocolError as error:
        raise DamagedValue("the properties cannot be read") from error
    if TOPIC_ALIAS in found or SUBSCRIPTION_IDENTIFIER in found or MESSAGE_EXPIRY_INTERVAL in found:
        raise DamagedValue("properties that each receiver has its own of")
