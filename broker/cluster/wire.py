# The bytes that two workers exchange.
#
# Two workers have two lanes between them, a stream each. The *data* lane carries messages, in the order in which they
# were accepted: MQTT PUBLISH packets without retain flag and expiry, in the format of 3.1.1 or of 5.0 according to the
# last FORMAT byte (packet ids have no meaning); and frames for what such a packet has no place for. The *control* lane,
# which never waits behind messages, carries frames only: interest, confirmations, progress.
#
# A frame is its length in four bytes, its kind in one, and its body. On the data lane a FRAME byte precedes it. All
# numbers are big-endian.
#
# All of this, with takeover_frames.py, is one LANE_FORMAT (lane_format.py). Within a node both ends run the same build,
# started by the same supervisor: a frame that cannot be read is a mistake in our own code, and ends the worker. Between
# nodes the other end may be of the build before or after this one: the lease of a node says its format, and only nodes
# whose formats differ by one at most are joined. So what a worker sends has to be understood by the format before its
# own. A new kind of frame raises LANE_FORMAT, and is not sent to peers of the former format (`Peer.former`). A change
# of a frame that exists, or of when it is sent, is a new kind of frame beside the old one, which is read for one format
# longer, and sent to peers of the former format. What still cannot be read ends the lanes, and not the worker.
import struct
from typing import Final

from broker.mqtt.packets import V5, V311
from broker.routing.hybrid_clock import WRITER_BITS, WRITER_MASK
from broker.session.message import NEVER, Message
from broker.session.run import Run

# First bytes on the data lane, beside those of PUBLISH.
FRAME: Final = 0x00
FORMAT_3: Final = V311
FORMAT_5: Final = V5
CONFIRM: Final = 0x01  # the publish before it is to be confirmed, see confirmations.py
TOKEN: Final = 0x02  # the token of the publish behind it, in TOKEN_BYTES (store/durable/tokens.py)
TOKEN_BYTES: Final = 16

# Frames on the data lane.
RUN: Final = 1  # QoS 0 packets to one topic: struct, topic, packets
MESSAGE: Final = 2  # struct, topic, owner, properties, payload
SHARED: Final = 3  # hop, share name and filter (each with its length), then as MESSAGE without its kind
BARRIER: Final = 4  # a number, to be sent back once everything before it is processed
ALL_RETAINED: Final = 5  # the sender has told all its retained messages
PUBLISHER: Final = 6  # the client id of who has published the message behind it, which may not be for that client

# Frames on the control lane.
GAINED: Final = 16  # sequence, filter
LOST: Final = 17
MEMBERS: Final = 18  # sequence, members, writable ones, whether any is durable, length of the share name, it, filter
CONFIRMED: Final = 19  # the sequence of the last change that was taken; the bytes written to the data lane before
RETELL: Final = (
    24  # asks for the retained messages again: the worker with this writer number (hybrid_clock.py) has died
)
SYNC: Final = 23  # a sequence number without a change, to be confirmed
GAINED_DURABLE: Final = 26  # sequence, filter: of durable subscribers, beside GAINED and LOST
LOST_DURABLE: Final = 27
COLD_GAINED: Final = 30  # sequence, entries of interest (routing/interest.py): of cold sessions, beside filters
COLD_LOST: Final = 31
SETTLED: Final = 28  # ranges of publishes that are confirmed: (the number of the first, how many)
UNSETTLED: Final = 29  # the same, of publishes that never will be
LONG: Final = 44  # the same, of publishes that wait for what is being read
LOGGED: Final = 45  # the same, of publishes that are being appended to a log
DONE: Final = 20  # bytes of the data lane that were processed since its beginning
PASSED: Final = 21  # the number of a barrier
ALL_TOLD: Final = 22  # the sender has told all filters of its subscribers
INHERITS: Final = 46  # the incarnation of a dead worker whose durable sessions the sender is to adopt: settlement.py
NOT_INHERITED: Final = 47  # the same, of one that another worker was first to have
ADOPTED: Final = 48  # the same, of one whose sessions the sender has, and has told what they wait for
LEAVING: Final = 49  # the sender is about to end: nothing more is to be published for it
RELEASED: Final = 50  # nothing that the sender has published for the one that is leaving is waited for any more
HEAR_ALL: Final = 52  # a number: tell when you have heard all other workers since, see all_heard.py
HEARD_ALL: Final = 53  # that number
DRAINED: Final = 51  # within a node that stops: the sender has no client any more
REPORT: Final = 25  # how overloaded a worker is, at most LARGEST_REPORT bytes: overload_reports.py

# Frames about sessions that go from one worker to another: takeover.py.
ASK: Final = 32
ANSWER: Final = 33
SWITCH: Final = 34
TAKEN: Final = 35
ABANDON: Final = 36
CHUNK: Final = 37  # on the data lane
MARK: Final = 38  # on the data lane
OFFER: Final = 39  # the client id of a session whose worker ends
WHETHER: Final = 40  # number, client id
HAS: Final = 41
TOOK: Final = 42  # see forced_takeovers.py
LET_GO: Final = 43  # on the data lane

# What a worker does with a message in a frame.
DELIVER: Final = 1
KEEP: Final = 2  # retain it

LONGEST: Final = 1 << 29  # bytes of a frame: a message has 256 MiB at most (2.2.3), beside its topic and properties
LARGEST_REPORT: Final = 4096  # bytes; reports go ahead of messages, and must not delay them

DATA_HEAD: Final = b"\x00"  # FRAME, before each frame on the data lane
HEAD: Final = 5  # bytes of a frame before its body
_HEAD: Final = struct.Struct(">IB")
_RUN: Final = struct.Struct(">BIIIH")
_MESSAGE: Final = struct.Struct(">BBQQdHHI")
_NUMBER: Final = struct.Struct(">Q")
_MEMBERS: Final = struct.Struct(">QII?H")
_RANGE: Final = struct.Struct(">QI")


def frame(kind: int, body: bytes = b"") -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


def number(kind: int, value: int) -> bytes:
    """A frame whose body is a number."""
    return _HEAD.pack(9, kind) + _NUMBER.pack(value)


def read_number(body: bytes) -> int:
    (value,) = _NUMBER.unpack_from(body)
    return int(value)


def publisher(client_id: str) -> bytes:
    """PUBLISHER, as it is on the data lane."""
    return DATA_HEAD + frame(PUBLISHER, client_id.encode(errors="surrogateescape"))


def change(kind: int, sequence: int, filter: bytes) -> bytes:
    """GAINED or LOST. For COLD_GAINED and COLD_LOST, *filter* is entries."""
    return _HEAD.pack(9 + len(filter), kind) + _NUMBER.pack(sequence) + filter


def read_change(body: bytes) -> tuple[int, bytes]:
    """(sequence, filter)"""
    return read_number(body), body[8:]


def confirmed(sequence: int, written: int) -> bytes:
    """CONFIRMED."""
    return _HEAD.pack(17, CONFIRMED) + _NUMBER.pack(sequence) + _NUMBER.pack(written)


def read_confirmed(body: bytes) -> tuple[int, int]:
    """(sequence, written)"""
    return read_number(body), read_number(body[8:])


def settled(kind: int, numbers: list[int]) -> bytes:
    """SETTLED, UNSETTLED, LONG or LOGGED; *numbers* are not empty, and in order."""
    ranges: list[bytes] = []
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            ranges.append(_RANGE.pack(first, last - first + 1))
            first = number
        last = number
    ranges.append(_RANGE.pack(first, last - first + 1))
    return frame(kind, b"".join(ranges))


def read_settled(body: bytes) -> list[tuple[int, int]]:
    """Ranges: (the number of the first, how many)."""
    return list(_RANGE.iter_unpack(body))


def members(sequence: int, share: bytes, filter: bytes, count: int, quick: int, durable: bool) -> bytes:
    """MEMBERS."""
    return frame(MEMBERS, _MEMBERS.pack(sequence, count, quick, durable, len(share)) + share + filter)


def read_members(body: bytes) -> tuple[int, bytes, bytes, int, int, bool]:
    """(sequence, share, filter, members, quick, durable)"""
    sequence, count, quick, durable, length = _MEMBERS.unpack_from(body)
    start = _MEMBERS.size
    return sequence, body[start : start + length], body[start + length :], count, quick, durable


def run(what: Run) -> bytes:
    """A run of QoS 0 packets, on the data lane."""
    packets = what.encoded(what.version, b"")
    topic = what.topic
    length = 1 + _RUN.size + len(topic) + len(packets)
    fixed = _RUN.pack(what.version, what.count, what.payload_bytes, what.longest, len(topic))
    return b"%b%b%b%b%b" % (b"\x00", _HEAD.pack(length, RUN), fixed, topic, packets)


def read_run(data: bytes, start: int, stop: int) -> Run:
    """The body that `run()` wrote."""
    version, count, payload_bytes, longest, length = _RUN.unpack_from(data, start)
    start += _RUN.size
    topic = data[start : start + length]
    return Run(data[start + length : stop], version, count, topic, payload_bytes, longest)


def token(what: Message) -> bytes:
    """TOKEN, to be written before the publish *what*; b"" if it has none."""
    completion = what.completion
    return b"" if completion is None or not completion.token else bytes((TOKEN,)) + completion.token


def message(what: Message, flags: int, owner: str, stamp: int) -> bytes:
    """A message with everything that belongs to it, on the data lane; *flags*: DELIVER, KEEP or both."""
    body = _message(what, flags, owner, stamp)
    return b"%b%b%b" % (b"\x00", _HEAD.pack(1 + len(body), MESSAGE), body)


def read_message(data: bytes, start: int, stop: int, shift: float) -> tuple[Message, int, str, int]:
    """(message, flags, owner, stamp). *shift*: see `Peer`."""
    flags, kind, time, writer, expires, topic_bytes, owner_bytes, property_bytes = _MESSAGE.unpack_from(data, start)
    at = start + _MESSAGE.size
    owner_at = at + topic_bytes
    properties_at = owner_at + owner_bytes
    payload_at = properties_at + property_bytes
    what = Message(
        data[at:owner_at],
        data[payload_at:stop],
        kind & 3,
        kind & 4 != 0,
        data[properties_at:payload_at],
        expires + shift if expires != NEVER else NEVER,
    )
    return what, flags, data[owner_at:properties_at].decode(), time << WRITER_BITS | writer


def shared(share: bytes, filter: bytes, hop: int, what: Message) -> bytes:
    """A message for one member of a shared subscription, on the data lane."""
    head = bytes((hop,)) + len(share).to_bytes(2, "big") + share + len(filter).to_bytes(2, "big") + filter
    body = head + _message(what, DELIVER, "", 0)
    return b"%b%b%b" % (b"\x00", _HEAD.pack(1 + len(body), SHARED), body)


def read_shared(data: bytes, start: int, stop: int, shift: float) -> tuple[bytes, bytes, int, Message]:
    """(share, filter, hop, message). *shift*: see `Peer`."""
    share_at = start + 3
    share_end = share_at + (data[start + 1] << 8 | data[start + 2])
    filter_at = share_end + 2
    filter_end = filter_at + (data[share_end] << 8 | data[share_end + 1])
    return (
        data[share_at:share_end],
        data[filter_at:filter_end],
        data[start],
        read_message(data, filter_end, stop, shift)[0],
    )


def _message(what: Message, flags: int, owner: str, stamp: int) -> bytes:
    topic = what.topic
    name = owner.encode()
    properties = what.properties
    kind = what.qos | (4 if what.retain else 0)
    fixed = _MESSAGE.pack(
        flags,
        kind,
        stamp >> WRITER_BITS,
        stamp & WRITER_MASK,
        what.expires,
        len(topic),
        len(name),
        len(properties),
    )
    return b"%b%b%b%b%b" % (fixed, topic, name, properties, what.payload)
