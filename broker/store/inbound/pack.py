# Packs of the inbound backbone: publishes that were accepted one after the other, for one partition.
#
#   FORM; flags: UNREPEATED; when the last of them was accepted (milliseconds of Unix time, 8 bytes); then parts, each
#   of which begins with its kind and its length (4 bytes):
#     MESSAGES  how many marks there are (2 bytes), the marks, and a pack as it is in Redis (store/durable/pack.py),
#               whose positions are no positions in a queue
#     RUN       RUN_HEAD, the topic, and consecutive PUBLISH packets of QoS 0 as they were received (session/run.py)
#   A mark is about one message: its index (2 bytes), MARK, the length of the value (2 bytes), the value:
#     TOKEN      of a QoS 2 publish that may be sent again after a crash (store/durable/tokens.py)
#     PUBLISHER  the client id, where receivers have to be told apart from the publisher, or the message is retained
#     RETAINED   when a message that is to be retained was accepted (microseconds of Unix time, 8 bytes)
#
# Most messages have no mark: what each would need of a client id would be half of a small pack.
from collections.abc import Sequence
from struct import Struct
from typing import Final

from broker.delivery.completion import Completion
from broker.session.message import Message
from broker.session.run import Run
from broker.store.durable.pack import DamagedPack, Pack, StoredMessage, decode_pack, encode_pack
from broker.store.durable.tokens import TOKEN as TOKEN_BYTES
from broker.store.durable.tokens import token_of

FORM: Final = 1
UNREPEATED: Final = 0x01  # some of its publishes are of QoS 0, which nobody may get twice
MESSAGES: Final = 1
RUN: Final = 2
TOKEN: Final = 1
PUBLISHER: Final = 2
RETAINED: Final = 3
MOST: Final = 500  # publishes of a pack; a run counts as one
MOST_BYTES: Final = 128 * 1024  # and about as many bytes of them, unless it is one publish
EACH: Final = 16  # bytes that a publish takes beside its own, about
LASTS: Final = 0xFFFFFFFF  # the log keeps messages for as long as it is told to, whenever they were accepted
START: Final = Struct(">BBQ")
PART: Final = Struct(">BI")
COUNT: Final = Struct(">H")
MARK: Final = Struct(">HBH")
RUN_HEAD: Final = Struct(">BIIIH")  # version, packets, bytes of payloads, bytes of the longest packet, of the topic
TIME: Final = Struct(">Q")


class AcceptedPublish:
    """A publish that was accepted, *message*, or several of QoS 0, *run*: one of both.

    *publisher*: the client id, "" if it does not matter. *retained_at*: when a message that is to be retained was
    accepted, in microseconds of Unix time, else 0.
    """

    def __init__(self, message: Message | None, run: Run | None, publisher: str = "", retained_at: int = 0) -> None:
        self.message = message
        self.run = run
        self.publisher = publisher
        self.retained_at = retained_at

    def count(self) -> int:
        """How many publishes it is."""
        return 1 if self.run is None else self.run.count


class PackBuilder:
    """Collects the publishes of the next pack."""

    def __init__(self) -> None:
        self.count = 0  # publishes; a run counts as one
        self.publishes = 0  # with each packet of the runs
        self.size = 0  # bytes, about
        self._flags = 0
        self._parts: list[bytes] = []
        self._messages: list[StoredMessage] = []  # of the part that is not encoded yet
        self._marks: list[bytes] = []

    def has_room(self, size: int) -> bool:
        """Whether a publish of *size* bytes may be added."""
        return not self.count or (self.count < MOST and self.size + size + EACH <= MOST_BYTES)

    def add(self, message: Message, publisher: str, retained_at: int) -> None:
        """Add *message*. *publisher*, *retained_at*: as in `AcceptedPublish`."""
        messages = self._messages
        index = len(messages)
        messages.append(StoredMessage(index + 1, message))
        self.count += 1
        self.publishes += 1
        self.size += message.size + EACH
        if message.qos == 0:
            self._flags |= UNREPEATED
        elif message.qos == 2:
            token = token_of(message)
            if token:
                self._mark(index, TOKEN, token)
        if publisher:
            self._mark(index, PUBLISHER, publisher.encode(errors="surrogateescape"))
        if retained_at:
            self._mark(index, RETAINED, TIME.pack(retained_at))

    def _mark(self, index: int, kind: int, value: bytes) -> None:
        self._marks.append(MARK.pack(index, kind, len(value)))
        self._marks.append(value)

    def add_run(self, run: Run, now: float, wall: float) -> None:
        """Add *run* behind the messages so far. *now*: the worker's time; *wall*: the same in Unix time."""
        self._encode_messages(now, wall)
        packets, topic = run.encoded(run.version, b""), run.topic
        head = RUN_HEAD.pack(run.version, run.count, run.payload_bytes, run.longest, len(topic))
        size = len(head) + len(topic) + len(packets)
        self._parts += [PART.pack(RUN, size), head, topic, packets]
        self._flags |= UNREPEATED
        self.count += 1
        self.publishes += run.count
        self.size += size + EACH

    def take(self, now: float, wall: float) -> bytes:
        """The pack of what was added since the last call, which is something."""
        self._encode_messages(now, wall)
        pack = START.pack(FORM, self._flags, int(wall * 1000)) + b"".join(self._parts)
        self._parts = []
        self._flags = self.count = self.publishes = self.size = 0
        return pack

    def _encode_messages(self, now: float, wall: float) -> None:
        messages, marks = self._messages, self._marks
        if not messages:
            return
        content = encode_pack(Pack(0, int(wall), LASTS, 0, messages), now, wall)
        before = b"".join(marks)
        self._parts += [PART.pack(MESSAGES, COUNT.size + len(before) + len(content))]
        self._parts += [COUNT.pack(len(marks) // 2), before, content]
        self._messages, self._marks = [], []


def accepted_at(data: bytes) -> float:
    """When the publishes of a pack were accepted, in seconds of Unix time. DamagedPack."""
    milliseconds: int
    _, milliseconds = _head(data)
    return milliseconds / 1000


def has_unrepeated(data: bytes) -> bool:
    """Whether publishes of QoS 0 are in a pack. DamagedPack."""
    flags, _ = _head(data)
    return flags & UNREPEATED != 0


def _head(data: bytes) -> tuple[int, int]:
    """(flags, milliseconds)"""
    if len(data) < START.size:
        raise DamagedPack("it ends in its head")
    form: int
    flags: int
    milliseconds: int
    form, flags, milliseconds = START.unpack_from(data)
    if form != FORM:
        raise DamagedPack("unknown form")
    return flags, milliseconds


def decode_accepted(data: bytes, now: float, wall: float) -> list[AcceptedPublish]:
    """What `PackBuilder.take()` made, perhaps at another worker. DamagedPack: it did not."""
    _head(data)
    found: list[AcceptedPublish] = []
    at = START.size
    kind: int
    size: int
    while at < len(data):
        if at + PART.size > len(data):
            raise DamagedPack("it ends in a part")
        kind, size = PART.unpack_from(data, at)
        at += PART.size
        if at + size > len(data):
            raise DamagedPack("it ends in a part")
        if kind == MESSAGES:
            found += _decode_messages(data[at : at + size], now, wall)
        elif kind == RUN:
            found.append(AcceptedPublish(None, _decode_run(data[at : at + size])))
        else:
            raise DamagedPack(f"a part of kind {kind}")
        at += size
    return found


def _decode_run(part: bytes) -> Run:
    if len(part) < RUN_HEAD.size:
        raise DamagedPack("it ends in the head of a run")
    version: int
    count: int
    payload_bytes: int
    longest: int
    length: int
    version, count, payload_bytes, longest, length = RUN_HEAD.unpack_from(part)
    at = RUN_HEAD.size + length
    if not length or not count or not longest or at >= len(part):
        raise DamagedPack("a run without packets")
    return Run(part[at:], version, count, part[RUN_HEAD.size : at], payload_bytes, longest)


def _decode_messages(part: bytes, now: float, wall: float) -> list[AcceptedPublish]:
    if len(part) < COUNT.size:
        raise DamagedPack("it ends in its marks")
    left: int
    index: int
    kind: int
    size: int
    (left,) = COUNT.unpack_from(part)
    at = COUNT.size
    marks: list[tuple[int, int, bytes]] = []
    while left:
        left -= 1
        if at + MARK.size > len(part):
            raise DamagedPack("it ends in its marks")
        index, kind, size = MARK.unpack_from(part, at)
        at += MARK.size
        if at + size > len(part):
            raise DamagedPack("it ends in a mark")
        marks.append((index, kind, part[at : at + size]))
        at += size
    found: list[AcceptedPublish] = []
    for stored in decode_pack(part[at:], now, wall).messages:
        message = stored.message
        message.ends = message.expires  # no queue has had it yet
        found.append(AcceptedPublish(message, None))
    for index, kind, value in marks:
        _apply(found, index, kind, value)
    return found


def _apply(found: Sequence[AcceptedPublish], index: int, kind: int, value: bytes) -> None:
    """Note the *value* of a mark. DamagedPack."""
    if index >= len(found):
        raise DamagedPack("a mark of no message")
    one = found[index]
    message = one.message
    if kind == TOKEN and message is not None and len(value) == TOKEN_BYTES:
        completion = message.completion = Completion()
        completion.token = value
    elif kind == PUBLISHER and value:
        one.publisher = value.decode(errors="surrogateescape")
    elif kind == RETAINED and len(value) == TIME.size:
        one.retained_at = int.from_bytes(value, "big")
    else:
        raise DamagedPack(f"a mark of kind {kind}")
