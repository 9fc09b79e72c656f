# Packs: the form in which the messages of a durable queue are stored.
#
# The queue of a session is a Redis list of packs. A pack has the messages that were stored together, in their order.
# A list of one element takes 189 bytes, a stream 4 360, and an element of a long list a few bytes beside its own, so
# the fewer elements the better: all messages that a session gets in one tick share a pack.
#
# A message has a position, which grows by one from message to message of the session and is never used again. Packet
# ids follow from positions, so a message has the same id after any crash, and nothing has to be stored for it. The
# first pack and the last one say how many messages and bytes a queue has, so no counter has to be stored either.
#
# Each message ends: when its own expiry has passed, or when it has waited for as long as queues keep messages. Of the
# second times a pack has only one, that of its last message: they are as close together as the messages came. A pack
# also says when the earliest of all messages ends that are stored up to it, or a time before that: so the last pack of
# a list tells when the queue has to be looked through.
#
# The form, with numbers as LEB128 (7 bits to a byte, the low ones first, as in a Variable Byte Integer), but for times
# in seconds of Unix time, which have 32 bits and are good until 2106:
#
#   FORM; times: of storing, at which the last of its messages ends, at which something up to this pack may end;
#   position of the first message; bytes of all messages before it
#   then for each message:
#     flags; GAP: positions left out before it; without SAME_TOPIC: length of the topic, topic; length of the payload,
#     payload; PROPERTIES: their length, properties; EXPIRES: milliseconds from the time of storing to its own expiry
import struct
from typing import Final

from broker.session.message import NEVER, Message

FORM: Final = 2  # the first one had no time at which messages end
QOS: Final = 0x03
RETAIN: Final = 0x04
SAME_TOPIC: Final = 0x08  # as the message before it
PROPERTIES: Final = 0x10
EXPIRES: Final = 0x20
GAP: Final = 0x40  # messages between were acknowledged before they were stored
HEAD: Final = struct.Struct(">BIII")
LONGEST: Final = 56  # bits of a number
PACKET_IDS: Final = 65535


class DamagedPack(ValueError):
    """The bytes are no pack: they were damaged, or written by a newer version."""


class StoredMessage:
    """A message and its *position* in the queue of its session, from 1 on."""

    def __init__(self, position: int, message: Message) -> None:
        self.position = position
        self.message = message


class Pack:
    """Messages that are stored together, not none. *bytes_before*: of all messages of the queue before them.

    Times in seconds of Unix time: *stored_at*; *end*, after which none of them is kept; *due*, before which no message
    of the queue ends, up to these.
    """

    def __init__(self, bytes_before: int, stored_at: int, end: int, due: int, messages: list[StoredMessage]) -> None:
        self.bytes_before = bytes_before
        self.stored_at = stored_at
        self.end = end
        self.due = due
        self.messages = messages


class StoredPack:
    """A pack in Redis of which messages are sent or ready. *first*, *last*: positions.

    *ends*: when the first of its messages ends, Unix time.
    """

    def __init__(self, first: int, last: int, left: int, ends: float) -> None:
        self.first = first
        self.last = last
        self.left = left  # messages that are not done
        self.ends = ends
        self.removed = False
        self.completed: list[int] = []  # positions of messages with PUBCOMP, whose marks go with the pack


def packet_id_of(position: int) -> int:
    """The packet id of the message at *position*."""
    return (position - 1) % PACKET_IDS + 1


def position_of(packet_id: int, last: int) -> int:
    """The greatest position up to *last* whose message has *packet_id*; 0 or less if there is none."""
    return last - (last - packet_id) % PACKET_IDS


def encode_pack(pack: Pack, now: float, wall: float) -> bytes:
    """*pack* as it is stored. *now*: the worker's time; *wall*: the same in Unix time."""
    messages = pack.messages
    out = bytearray(HEAD.pack(FORM, pack.stored_at, pack.end, pack.due))
    position = messages[0].position
    _put(out, position)
    _put(out, pack.bytes_before)
    stored_at = pack.stored_at - wall + now
    topic = b""
    for stored in messages:
        message = stored.message
        flags = message.qos
        if message.retain:
            flags |= RETAIN
        same = message.topic == topic
        if same:
            flags |= SAME_TOPIC
        if message.properties:
            flags |= PROPERTIES
        if message.expires != NEVER:
            flags |= EXPIRES
        if stored.position != position:
            flags |= GAP
        out.append(flags)
        if stored.position != position:
            _put(out, stored.position - position)
        if not same:
            topic = message.topic
            _put(out, len(topic))
            out += topic
        _put(out, len(message.payload))
        out += message.payload
        if message.properties:
            _put(out, len(message.properties))
            out += message.properties
        if message.expires != NEVER:
            _put(out, max(0, round((message.expires - stored_at) * 1000)))
        position = stored.position + 1
    return bytes(out)


def decode_pack(data: bytes, now: float, wall: float) -> Pack:
    """The pack that `encode_pack()` made, perhaps on another worker. DamagedPack: it did not."""
    if not data or data[0] != FORM:
        raise DamagedPack("unknown form" if data else "empty")
    end = len(data)
    if end < HEAD.size:
        raise DamagedPack("it ends in its head")
    _, stored_at, lasts_to, due = HEAD.unpack_from(data)
    position, at = _take(data, HEAD.size, end)
    bytes_before, at = _take(data, at, end)
    stored_here = stored_at - wall + now  # by the clock of this worker
    latest = lasts_to - wall + now or -1.0  # 0.0 would be NEVER
    messages: list[StoredMessage] = []
    topic = b""
    while at < end:
        flags = data[at]
        at += 1
        if flags & GAP:
            gap, at = _take(data, at, end)
            position += gap
        if not flags & SAME_TOPIC:
            topic, at = _take_bytes(data, at, end)
        payload, at = _take_bytes(data, at, end)
        properties = b""
        if flags & PROPERTIES:
            properties, at = _take_bytes(data, at, end)
        expires = NEVER
        if flags & EXPIRES:
            milliseconds, at = _take(data, at, end)
            expires = stored_here + milliseconds / 1000
            if expires == NEVER:
                expires = -1.0  # it has expired, whatever the clock of this worker says
        qos = flags & QOS
        if qos == QOS or flags & 0x80:
            raise DamagedPack(f"flags {flags:#x}")
        message = Message(topic, payload, qos, flags & RETAIN != 0, properties, expires)
        message.end_by(latest)
        messages.append(StoredMessage(position, message))
        position += 1
    if not messages:
        raise DamagedPack("no message")
    return Pack(bytes_before, stored_at, lasts_to, due, messages)


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number: (value, position after it)."""
    value = 0
    shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= LONGEST:
            raise DamagedPack("a number is too long")
    raise DamagedPack("it ends in a number")


def _take_bytes(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Bytes behind their length: (bytes, position after them)."""
    size, at = _take(data, at, end)
    if size > end - at:
        raise DamagedPack("it ends in a message")
    return data[at : at + size], at + size
