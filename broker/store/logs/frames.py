# The bytes that a worker and the carrier exchange.
#
# Two lanes lie between them, a stream each. The *data* lane carries packs to the log and records of it. The *control*
# lane carries all else, so that a confirmation or a STOP never waits behind megabytes of records. No frame refers to a
# frame of the other lane that has to come before it: lanes are read independently of each other.
#
# A frame is its length in four bytes, its kind in one, and its body. All numbers in a body have eight bytes,
# big-endian, and a text has its length in two bytes. A worker begins each lane with HELLO. A frame of more than LARGEST
# bytes is never sent: a pack that is larger is refused where it is appended, as Kafka would; LARGEST is what the
# largest PUBLISH of MQTT fits into. A frame that cannot be read is a mistake in our own code, and ends the process that
# reads it; only the version in HELLO may differ, when a program was updated while its node ran.
from collections.abc import Sequence
from struct import Struct
from typing import Final

from broker.config.schema import LARGEST_PACKET
from broker.reasons import LogFailure
from broker.store.logs.records import LOG_BYTES, OVERHEAD, Pack, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

VERSION: Final = 3
LARGEST: Final = LARGEST_PACKET + 1024 * 1024  # bytes of a frame
LARGEST_BODY: Final = LARGEST_PACKET + 512 * 1024  # bytes of a pack

# From a worker, on both lanes.
HELLO: Final = 1  # version, source of all its packs
# On the data lane.
APPEND: Final = 2  # sequence, partition, topic, the body of the pack
# On the control lane.
READ: Final = 3  # reading, partition, bytes that its reader has already, topic, position
TAKEN: Final = 4  # reading, bytes that its reader needs no more
STOP: Final = 5  # reading
CREATE: Final = 6  # request, topic, properties
DELETE: Final = 7  # request, topic, its identity; b"": whichever it has
DESCRIBE: Final = 8  # request, topic
METRICS: Final = 9  # a metrics record, which is answered by RECORDED
DONE: Final = 10  # partition, offset, topic, group: all that the group is to have of the partition before that is done
JOIN: Final = 11  # member, partitions of the topic, topic, group: a client is to be a member of that group of Kafka
LEAVE: Final = 12  # member

# From the carrier, on the control lane.
STORED: Final = 16  # sequence and offset of each pack that is stored
REFUSED: Final = 17  # sequence, error
ANSWER: Final = 18  # request, error, description with the identity of the topic; "" for those that there are not
STATUS: Final = 19  # packs that wait, their bytes, failing partitions, why the log is unusable or "", how many of those
# partitions follow: topic, number, why; then the ones of these that fail while the log is well: topic, number
RECORDED: Final = 24  # why a metrics record was not published, or may not have been; "": it was
ASSIGNED: Final = 25  # member, why it is none now or "", the partitions that it is to read
# On the data lane.
RECORD: Final = 20  # reading, offset, identity of the topic, and of each pack: source, sequence, length, body
JUMPED: Final = 21  # reading, expected offset, offset
DAMAGED: Final = 22  # reading, offset, why, the record
FAILED: Final = 23  # reading, error; none: it can be read again

HEAD: Final = 5  # bytes of a frame before its body
RECORD_HEAD: Final = 16 + LOG_BYTES  # bytes of the body of RECORD before the first pack
SHOWN: Final = 64 * 1024  # bytes of a damaged record that are told
PARTITIONS: Final = 20  # failing ones that a STATUS names

_HEAD: Final = Struct(">IB")
_NUMBER: Final = Struct(">Q")
_SIGNED: Final = Struct(">q")
_TEXT: Final = Struct(">H")
_TWO: Final = Struct(">QQ")
_PACK: Final = Struct(">QQQ")
_FAILURES: Final = {failure.label: failure for failure in LogFailure}


class LaneError(Exception):
    """What came is no frame, or must not come now."""


class Body:
    """What is left to read of the body of a frame."""

    def __init__(self, data: bytes, at: int, stop: int) -> None:
        self._data = data
        self._at = at
        self._stop = stop

    def left(self) -> int:
        return self._stop - self._at

    def number(self) -> int:
        """LaneError, as of the following."""
        at = self._pass(8)
        return int(_NUMBER.unpack_from(self._data, at)[0])

    def signed(self) -> int:
        at = self._pass(8)
        return int(_SIGNED.unpack_from(self._data, at)[0])

    def text(self) -> str:
        at = self._pass(2)
        length = int(_TEXT.unpack_from(self._data, at)[0])
        at = self._pass(length)
        try:
            return self._data[at : at + length].decode()
        except UnicodeDecodeError:
            raise LaneError("a text that is not UTF-8") from None

    def take(self, length: int) -> bytes:
        at = self._pass(length)
        return self._data[at : at + length]

    def rest(self) -> bytes:
        return self.take(self._stop - self._at)

    def error(self) -> LogError | None:
        failure, detail = self.failure(), self.text()
        return None if failure is None else LogError(failure, detail)

    def failure(self) -> LogFailure | None:
        label = self.text()
        if label and label not in _FAILURES:
            raise LaneError(f"the unknown failure {label!r:.100}")
        return _FAILURES[label] if label else None

    def log(self) -> bytes:
        """The identity of a topic; b"": it is not known."""
        log = self.take(LOG_BYTES)
        return log if any(log) else b""

    def properties(self) -> TopicProperties:
        partitions, retention = self.number(), self.signed()
        retention_bytes, replication = self.signed(), self.signed()
        return TopicProperties(
            partitions=partitions, retention=retention, retention_bytes=retention_bytes, replication=replication
        )

    def end(self) -> None:
        if self._at != self._stop:
            raise LaneError(f"{self._stop - self._at} bytes behind a frame's body")

    def _pass(self, count: int) -> int:
        at = self._at
        if at + count > self._stop:
            raise LaneError("a frame that ends too early")
        self._at = at + count
        return at


def frame(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(len(body) + 1, kind) + body


def frame_length(data: bytes, at: int) -> int:
    """The length of the frame at *at*, whose HEAD is there, with its first four bytes. LaneError."""
    length = int.from_bytes(data[at : at + 4], "big")
    if not 0 < length <= LARGEST:
        raise LaneError(f"a frame of {length} bytes")
    return length + 4


# From a worker.


def hello(source: int) -> bytes:
    return frame(HELLO, _TWO.pack(VERSION, source))


def append_head(sequence: int, topic: str, partition: int, size: int) -> bytes:
    """APPEND without the body of the pack, which has *size* bytes and follows."""
    name = _text(topic)
    return _HEAD.pack(1 + 16 + len(name) + size, APPEND) + _TWO.pack(sequence, partition) + name


def read(reading: int, topic: str, partition: int, held: int, position: bytes) -> bytes:
    return frame(READ, _PACK.pack(reading, partition, held) + _text(topic) + position)


def taken(reading: int, size: int) -> bytes:
    return frame(TAKEN, _TWO.pack(reading, size))


def stop(reading: int) -> bytes:
    return frame(STOP, _NUMBER.pack(reading))


def create(request: int, topic: str, properties: TopicProperties) -> bytes:
    return frame(CREATE, _NUMBER.pack(request) + _text(topic) + _properties(properties))


def delete(request: int, topic: str, log: bytes) -> bytes:
    return frame(DELETE, _NUMBER.pack(request) + _text(topic) + _log(log))


def describe(request: int, topic: str) -> bytes:
    return frame(DESCRIBE, _NUMBER.pack(request) + _text(topic))


def done(group: str, topic: str, partition: int, offset: int) -> bytes:
    return frame(DONE, _TWO.pack(partition, offset) + _text(topic) + _text(group))


def join(member: int, group: str, topic: str, partitions: int) -> bytes:
    return frame(JOIN, _TWO.pack(member, partitions) + _text(topic) + _text(group))


def leave(member: int) -> bytes:
    return frame(LEAVE, _NUMBER.pack(member))


def metrics(record: bytes) -> bytes:
    return frame(METRICS, record)


# From the carrier.


def stored(packs: list[tuple[int, int]]) -> bytes:
    """*packs*: sequence and offset of each."""
    return frame(STORED, b"".join([_TWO.pack(sequence, offset) for sequence, offset in packs]))


def read_stored(data: bytes, start: int, stop: int) -> list[tuple[int, int]]:
    if (stop - start) % 16:
        raise LaneError("a part of a pack that is stored")
    return list(_TWO.iter_unpack(data[start:stop]))


def refused(sequence: int, error: LogError) -> bytes:
    return frame(REFUSED, _NUMBER.pack(sequence) + _error(error))


def recorded(failure: LogFailure | None) -> bytes:
    return frame(RECORDED, _text("" if failure is None else failure.label))


def assigned(member: int, partitions: Sequence[int], why: str) -> bytes:
    return frame(ASSIGNED, b"".join([_NUMBER.pack(member), _text(why), *map(_NUMBER.pack, partitions)]))


def read_assigned(data: bytes, start: int, stop: int) -> tuple[int, list[int], str]:
    """(member, partitions, why it is none now or "")"""
    body = Body(data, start, stop)
    member, why = body.number(), body.text()
    partitions: list[int] = []
    while body.left():
        partitions.append(body.number())
    return member, partitions, why


def answer(request: int, error: LogError | None, description: TopicDescription | None) -> bytes:
    parts = [_NUMBER.pack(request), _error(error)]
    if description is not None:
        parts += [_properties(description.properties), _log(description.log)]
        parts += [
            _TWO.pack(first, following) for first, following in zip(description.first, description.next, strict=True)
        ]
    return frame(ANSWER, b"".join(parts))


def read_answer(data: bytes, start: int, stop: int) -> tuple[int, LogError | None, TopicDescription | None]:
    """(request, error, description)"""
    body = Body(data, start, stop)
    request, error = body.number(), body.error()
    if not body.left():
        return request, error, None
    properties, log = body.properties(), body.log()
    offsets = read_stored(data, stop - body.left(), stop)
    if len(offsets) != properties.partitions:
        raise LaneError(f"the offsets of {len(offsets)} partitions of {properties.partitions}")
    first, following = [one[0] for one in offsets], [one[1] for one in offsets]
    return request, error, TopicDescription(properties=properties, log=log, first=first, next=following)


def record(reading: int, what: Record) -> bytes:
    parts = [b"", _TWO.pack(reading, what.offset), _log(what.log)]
    size = 1 + RECORD_HEAD
    for pack in what.packs:
        length = len(pack.body)
        parts.append(_PACK.pack(pack.source, pack.sequence, length))
        parts.append(pack.body)
        size += _PACK.size + length
    parts[0] = _HEAD.pack(size, RECORD)
    return b"".join(parts)


def read_record(data: bytes, start: int, stop: int) -> tuple[int, Record]:
    """(reading, record)"""
    body = Body(data, start, stop)
    reading, offset, log = body.number(), body.number(), body.log()
    packs: list[Pack] = []
    while body.left():
        source, sequence, length = body.number(), body.number(), body.number()
        packs.append(Pack(source, sequence, body.take(length)))
    return reading, Record(offset, packs, log)


def size_of(what: Record) -> int:
    """How many bytes *what* counts as, where bytes that a reader has are counted."""
    size = RECORD_HEAD
    for pack in what.packs:
        size += OVERHEAD + len(pack.body)
    return size


def jumped(reading: int, expected: int, offset: int) -> bytes:
    return frame(JUMPED, _PACK.pack(reading, expected, offset))


def damaged(reading: int, offset: int, why: str, what: bytes) -> bytes:
    """*what*: the record, of which the first SHOWN bytes are told."""
    return frame(DAMAGED, _TWO.pack(reading, offset) + _text(why) + what[:SHOWN])


def failed(reading: int, error: LogError | None) -> bytes:
    return frame(FAILED, _NUMBER.pack(reading) + _error(error))


class LogStatus:
    """The state of the log, as the carrier sees it."""

    def __init__(
        self,
        waiting: int,
        waiting_bytes: int,
        failing: int,
        named: list[tuple[str, int, str]],
        unusable: str = "",
        alone: Sequence[tuple[str, int]] = (),
    ) -> None:
        self.waiting = waiting  # packs of all workers that are not stored yet
        self.waiting_bytes = waiting_bytes
        self.failing = failing  # partitions that nothing can be appended to
        self.named = named  # some of them: topic, number, why
        self.unusable = unusable  # why no topic can be made or found; "": nothing is known to be wrong
        self.alone = set(alone)  # of those in `named`, the ones that fail while the log is well: topic, number

    def encode(self) -> bytes:
        parts = [_PACK.pack(self.waiting, self.waiting_bytes, self.failing), _text(self.unusable)]
        parts.append(_NUMBER.pack(len(self.named)))
        for topic, number, why in self.named:
            parts += [_text(topic), _NUMBER.pack(number), _text(why)]
        for topic, number in self.alone:
            parts += [_text(topic), _NUMBER.pack(number)]
        return frame(STATUS, b"".join(parts))


def read_status(data: bytes, start: int, stop: int) -> LogStatus:
    body = Body(data, start, stop)
    status = LogStatus(body.number(), body.number(), body.number(), [], body.text())
    for _ in range(body.number()):
        topic, number = body.text(), body.number()
        status.named.append((topic, number, body.text()))
    while body.left():
        topic, number = body.text(), body.number()
        status.alone.add((topic, number))
    return status


def _text(text: str) -> bytes:
    """*text*, cut to what its length has room for."""
    encoded = text.encode(errors="replace")
    if len(encoded) > 0xFFFF:
        encoded = encoded[:0xFFFF].decode(errors="ignore").encode()
    return _TEXT.pack(len(encoded)) + encoded


def _log(log: bytes) -> bytes:
    return log or bytes(LOG_BYTES)


def _error(error: LogError | None) -> bytes:
    return _text("") + _text("") if error is None else _text(error.failure.label) + _text(error.detail)


def _properties(properties: TopicProperties) -> bytes:
    parts = [_NUMBER.pack(properties.partitions)]
    for number in (properties.retention, properties.retention_bytes, properties.replication):
        parts.append(_SIGNED.pack(number))
    return b"".join(parts)
