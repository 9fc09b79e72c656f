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
# The body of a message (topic, payload and properties) that many queues get is stored once (shared_bodies.py), and a
# pack refers to it: by the number of a group of bodies, of the worker that has stored them, and an index in the group.
# A pack with references has another form, and so have the packs behind it in a list: the last pack of a list tells
# whether there may be references in it.
#
# The form, with numbers as LEB128 (7 bits to a byte, the low ones first, as in a Variable Byte Integer), but for times
# in seconds of Unix time, which have 32 bits and are good until 2106:
#
#   HEAD: PLAIN, REFERRING or BEHIND (4 bits); seconds from the time of storing to the time at which the last of its
#     messages ends (SPAN bits); seconds to that from the time at which something up to this pack may end (SPAN bits);
#     time of storing
#   or LONG_HEAD, if a number of seconds needs more bits, and in builds before DURABLE_FORMAT 4: PLAIN, REFERRING or
#     BEHIND (a byte); these three times: of storing, at which the last message ends, at which something may end
#   then position of the first message; bytes of all messages before it; REFERRING: incarnation of the worker
#   then for each message:
#     flags; GAP: positions left out before it; without SAME_TOPIC: length of the topic, topic; length of the payload,
#     payload; PROPERTIES: their length, properties; EXPIRES: milliseconds from the time of storing to its own expiry;
#     RETURNS: the tag of the shared subscription it came through, how many bytes at the end of its properties are added
#     REFERENCE: in place of topic, payload and properties: without SAME_TOPIC the number of the group, else it is that
#     of the reference before; index; bytes of the message. Never with RETURNS: one member has such a message
import struct
from collections.abc import Iterable
from typing import Final

from broker.session.message import NEVER, GroupMessage, Message

PLAIN: Final = 2  # the first form had no time at which messages end
REFERRING: Final = 3  # some of its messages are references
BEHIND: Final = 4  # none is, but there may be some in packs before it
QOS: Final = 0x03
RETURNS: Final = 0x03  # in place of QoS 1: the message returns to its shared subscription if its session ends
RETAIN: Final = 0x04
SAME_TOPIC: Final = 0x08  # as the message before it
PROPERTIES: Final = 0x10
EXPIRES: Final = 0x20
GAP: Final = 0x40  # messages between were acknowledged before they were stored
REFERENCE: Final = 0x80
WRITER: Final = 8  # bytes of an incarnation
SPAN: Final = 22  # bits: 48 days; queues keep messages for 7, unless `limits.queue_ttl` says otherwise
LONGEST_SPAN: Final = (1 << SPAN) - 1
FORM: Final = 2 * SPAN  # place of the 4 bits
HEAD: Final = struct.Struct(">HII")
LONG_HEAD: Final = struct.Struct(">BIII")
SHORT: Final = 16  # the first byte of a pack with HEAD, or more
LONGEST: Final = 56  # bits of a number
PACKET_IDS: Final = 65535
PACK: Final = 128  # messages of a pack
PACK_BYTES: Final = 64 * 1024  # and about as many bytes of them
# What is put together is a list of pieces: with mypyc each change of a bytearray costs ten times what a piece does.
BYTES: Final[list[bytes]] = [bytes((value,)) for value in range(256)]


class DamagedPack(ValueError):
    """The bytes are no pack: they were damaged, or written by a newer version."""


class Reference:
    """Where the body of a message is that many queues have: the *index* in *group*."""

    def __init__(self, group: int, index: int) -> None:
        self.group = group
        self.index = index


class StoredMessage:
    """A message and its *position* in the queue of its session, from 1 on.

    *body*: where its body is, if it is not in the pack.
    """

    def __init__(self, position: int, message: Message, body: Reference | None = None) -> None:
        self.position = position
        self.message = message
        self.body = body

    def has_body(self) -> bool:
        """Whether the message is whole: one that was read has no body before `add_body()`, if it is not in its pack."""
        return len(self.message.topic) > 0  # as each topic has [MQTT-4.7.3-1]


class Groups:
    """The groups of bodies that a pack refers to: their *numbers* at the worker *writer*, as in `Pack`. Immutable."""

    def __init__(self, writer: bytes, numbers: list[int]) -> None:
        self.writer = writer
        self.numbers = numbers


class Pack:
    """Messages that are stored together, not none. *bytes_before*: of all messages of the queue before them.

    Times in seconds of Unix time: *stored_at*; *end*, after which none of them is kept; *due*, before which no message
    of the queue ends, up to these. *writer*: the WRITER bytes of the incarnation of the worker that has stored the
    bodies that they refer to; b"": they refer to none. *behind*: packs before it may refer to some.
    """

    def __init__(
        self,
        bytes_before: int,
        stored_at: int,
        end: int,
        due: int,
        messages: list[StoredMessage],
        writer: bytes = b"",
        behind: bool = False,
    ) -> None:
        self.bytes_before = bytes_before
        self.stored_at = stored_at
        self.end = end
        self.due = due
        self.messages = messages
        self.writer = writer
        self.behind = behind

    def may_refer(self) -> bool:
        """Whether there may be references in a list up to this pack."""
        return self.behind or len(self.writer) > 0

    def groups(self) -> Groups | None:
        """The groups that it refers to."""
        return groups_of(self.writer, self.messages) if self.writer else None


class StoredPack:
    """A pack in Redis of which messages are sent or ready. *first*, *last*: positions.

    *ends*: when the first of its messages ends, Unix time. *groups*: of bodies that it refers to.
    """

    def __init__(self, first: int, last: int, left: int, ends: float, groups: Groups | None) -> None:
        self.first = first
        self.last = last
        self.left = left  # messages that are not done
        self.ends = ends
        self.groups = groups
        self.removed = False
        self.unanswered_at = 0.0  # when it was written, if its client had been sent the first of its messages by then
        self.completed: list[int] = []  # positions of messages with PUBCOMP, whose marks go with the pack


def packet_id_of(position: int) -> int:
    """The packet id of the message at *position*."""
    return (position - 1) % PACKET_IDS + 1


def position_of(packet_id: int, last: int) -> int:
    """The greatest position up to *last* whose message has *packet_id*; 0 or less if there is none."""
    return last - (last - packet_id) % PACKET_IDS


def groups_of(writer: bytes, messages: Iterable[StoredMessage]) -> Groups | None:
    """The groups of *writer* that *messages* refer to."""
    numbers = dict.fromkeys([stored.body.group for stored in messages if stored.body is not None])
    return Groups(writer, list(numbers)) if numbers else None


def encode_pack(pack: Pack, now: float, wall: float) -> bytes:
    """*pack* as it is stored. *now*: the worker's time; *wall*: the same in Unix time."""
    position, stored_at = pack.messages[0].position, pack.stored_at
    out = _head(position, pack.bytes_before, stored_at, pack.end, pack.due, pack.writer, pack.behind)
    _put_messages(out, pack.messages, stored_at - wall + now)
    return b"".join(out)


def encode_messages(messages: list[StoredMessage], now: float, wall: float) -> bytes:
    """*messages* as they are behind the head of a pack that is stored now.

    The bytes are the same for all queues that get the same messages, one after the other.
    """
    out: list[bytes] = []
    _put_messages(out, messages, int(wall) - wall + now)
    return b"".join(out)


def add_head(
    messages: bytes, position: int, bytes_before: int, stored_at: int, end: int, due: int, writer: bytes, behind: bool
) -> bytes:
    """The pack of *messages* from `encode_messages()`, the first of which has *position*. The rest is as in `Pack`."""
    out = _head(position, bytes_before, stored_at, end, due, writer, behind)
    out.append(messages)
    return b"".join(out)


def _head(
    position: int, bytes_before: int, stored_at: int, end: int, due: int, writer: bytes, behind: bool
) -> list[bytes]:
    form = REFERRING if writer else BEHIND if behind else PLAIN
    lasts, early = end - stored_at, end - due
    if (lasts | early) >> SPAN == 0:  # neither is below 0 or above LONGEST_SPAN
        out = [(form << FORM | lasts << SPAN | early).to_bytes(6, "big"), stored_at.to_bytes(4, "big")]
    else:
        out = [BYTES[form], stored_at.to_bytes(4, "big"), end.to_bytes(4, "big"), due.to_bytes(4, "big")]
    _put(out, position)
    _put(out, bytes_before)
    out.append(writer)
    return out


def _put_messages(out: list[bytes], messages: list[StoredMessage], stored_at: float) -> None:
    """Append *messages*. *stored_at*: by the clock of the worker."""
    position = messages[0].position
    group = 0
    topic = b""
    for stored in messages:
        message = stored.message
        returns = message if isinstance(message, GroupMessage) and message.qos == 1 else None
        flags = message.qos if returns is None else RETURNS
        if message.retain:
            flags |= RETAIN
        body = stored.body
        if body is not None:
            same = body.group == group
            flags |= REFERENCE
        else:
            same = message.topic == topic
            if message.properties:
                flags |= PROPERTIES
        if same:
            flags |= SAME_TOPIC
        if message.expires != NEVER:
            flags |= EXPIRES
        if stored.position != position:
            flags |= GAP
        out.append(BYTES[flags])
        if stored.position != position:
            _put(out, stored.position - position)
        if body is not None:
            if not same:
                group = body.group
                _put(out, group)
            _put(out, body.index)
            _put(out, message.size)
        else:
            if not same:
                topic = message.topic
                _put(out, len(topic))
                out.append(topic)
            _put(out, len(message.payload))
            out.append(message.payload)
            if message.properties:
                _put(out, len(message.properties))
                out.append(message.properties)
        if message.expires != NEVER:
            _put(out, max(0, round((message.expires - stored_at) * 1000)))
        if returns is not None:
            _put(out, returns.group)
            _put(out, returns.added)
        position = stored.position + 1


def time_of(data: bytes) -> int:
    """When the messages of a pack were stored, in seconds of Unix time. DamagedPack: that is not said."""
    if len(data) < LONG_HEAD.size:
        raise DamagedPack("it ends in its head")
    form: int
    time: int
    form, _, time = HEAD.unpack_from(data)
    if form < SHORT << 8:
        _, time, _, _ = LONG_HEAD.unpack_from(data)
    return time


def decode_pack(data: bytes, now: float, wall: float) -> Pack:
    """The pack that `encode_pack()` made, perhaps on another worker. DamagedPack: it did not.

    A message whose body is elsewhere has its size, and neither topic nor payload nor properties.
    """
    end = len(data)
    if end < LONG_HEAD.size:  # a pack with HEAD and one message is not shorter
        raise DamagedPack("it ends in its head" if data else "empty")
    high: int  # a declared type is 200 ns less, compiled: struct returns objects of any type
    low: int
    stored_at: int
    lasts_to: int
    due: int
    high, low, stored_at = HEAD.unpack_from(data)
    form = high >> 12
    if form:
        lasts_to = stored_at + ((high & 0xFFF) << 10 | low >> SPAN)
        due = lasts_to - (low & LONGEST_SPAN)
        position, at = _take(data, HEAD.size, end)
    else:
        form, stored_at, lasts_to, due = LONG_HEAD.unpack_from(data)
        position, at = _take(data, LONG_HEAD.size, end)
    if not PLAIN <= form <= BEHIND:
        raise DamagedPack("unknown form")
    bytes_before, at = _take(data, at, end)
    writer = b""
    if form == REFERRING:
        writer, at = data[at : at + WRITER], at + WRITER
    group = 0
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
        payload = properties = b""
        body: Reference | None = None
        size = 0
        if flags & REFERENCE:
            if not flags & SAME_TOPIC:
                group, at = _take(data, at, end)
            index, at = _take(data, at, end)
            size, at = _take(data, at, end)
            body = Reference(group, index)
        else:
            if not flags & SAME_TOPIC:
                topic, at = _take_bytes(data, at, end)
            payload, at = _take_bytes(data, at, end)
            if flags & PROPERTIES:
                properties, at = _take_bytes(data, at, end)
        expires = NEVER
        if flags & EXPIRES:
            milliseconds, at = _take(data, at, end)
            expires = stored_here + milliseconds / 1000
            if expires == NEVER:
                expires = -1.0  # it has expired, whatever the clock of this worker says
        qos, retain = flags & QOS, flags & RETAIN != 0
        if body is not None and (form != REFERRING or not group or qos == RETURNS):
            raise DamagedPack(f"flags {flags:#x}")
        if qos == RETURNS:
            tag, at = _take(data, at, end)
            added, at = _take(data, at, end)
            if added > len(properties):
                raise DamagedPack("a message has fewer properties than were added")
            message: Message = GroupMessage(topic, payload, 1, retain, properties, expires, tag, added)
        else:
            message = Message(b"" if body else topic, payload, qos, retain, properties, expires)
        if body is not None:
            message.size = size
        message.end_by(latest)
        messages.append(StoredMessage(position, message, body))
        position += 1
    if not messages:
        raise DamagedPack("no message")
    return Pack(bytes_before, stored_at, lasts_to, due, messages, writer, form == BEHIND)


def form_of(data: bytes) -> int:
    """Of a pack: PLAIN, REFERRING or BEHIND. *data* with another form is no pack."""
    return 0 if not data else data[0] if data[0] < SHORT else data[0] >> 4


def encode_body(message: Message) -> bytes:
    """The body of *message* as it is stored: length of the topic, topic; length of the payload, payload; properties."""
    out: list[bytes] = []
    _put(out, len(message.topic))
    out.append(message.topic)
    _put(out, len(message.payload))
    out.append(message.payload)
    out.append(message.properties)
    return b"".join(out)


def add_body(stored: StoredMessage, data: bytes) -> None:
    """Give *stored*, which was read without its body, the body in *data*. DamagedPack: it is none of that message."""
    bare = stored.message
    end = len(data)
    topic, at = _take_bytes(data, 0, end)
    payload, at = _take_bytes(data, at, end)
    message = Message(topic, payload, bare.qos, bare.retain, data[at:], bare.expires)
    if not topic or message.size != bare.size:
        raise DamagedPack("a body is that of another message")
    message.ends = bare.ends
    stored.message = message


def _put(out: list[bytes], number: int) -> None:
    while number > 0x7F:
        out.append(BYTES[number & 0x7F | 0x80])
        number >>= 7
    out.append(BYTES[number])


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
