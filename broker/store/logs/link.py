# The link of a worker to the carrier: what the worker appends to the log, reads of it, and asks about topics.
#
# Everything is kept until the carrier has answered. A carrier may end at any moment; over the lanes to the next one,
# all packs that are not known to be stored are sent again, in order, and each reading goes on behind the last record
# that its reader was given. A pack that the log has twice is read once: the carrier leaves out what the position of a
# reading has passed (records.py), and nobody else has to. The link passes the same records in a position of its own, to
# have it when it is needed again.
#
# Packs of the whole worker are numbered in one sequence, so sequences rise within each partition. They are stored in
# any order between partitions; within one, their appenders are told in order.
#
# What is held here is bounded: packs by the gate of the log (log_gate.py), and records by the window that the carrier
# keeps to for each reading, and for all of a worker. Who reads says what it needs no more, and nothing else: a reader
# that needs a rest takes nothing, and the carrier pauses.
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import Body, LaneError, LogStatus
from broker.store.logs.lane import Lane
from broker.store.logs.log_gate import LATE, LogGate
from broker.store.logs.port import Appender, LogReader
from broker.store.logs.record_log import CarrierRecordLog
from broker.store.logs.records import Position, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

LOOK: Final = 0.1  # seconds between two looks for packs that are late
PACK: Final = 400  # bytes that a pack takes beside its body, with who has it appended

Then = Callable[[LogError | None], None]
Described = Callable[[TopicDescription | None, LogError | None], None]
Told = Callable[[list[int], str], None]  # partitions; why it is no member now, or ""


class Unstored:
    """A pack of which it is not known that the log has it."""

    def __init__(self, sequence: int, topic: str, partition: int, body: bytes, appender: Appender, at: float) -> None:
        self.sequence: Final = sequence
        self.topic: Final = topic
        self.partition: Final = partition
        self.body = body
        self.appender: Final = appender
        self.at: Final = at
        self.passed = False  # the gate does not wait for it any more


class Request:
    """What was asked about a topic, and is not answered yet."""

    def __init__(self, frame: bytes, then: Then | None, described: Described | None) -> None:
        self.frame: Final = frame
        self.then: Final = then
        self.described: Final = described


class LogReading:
    """One reader of one partition, by `CarrierLink.read()`."""

    def __init__(
        self, link: "CarrierLink", number: int, topic: str, partition: int, position: Position, reader: LogReader
    ) -> None:
        self.number: Final = number
        self.reader: Final = reader
        self.position: Final = position  # behind what the reader was given
        self.held = 0  # bytes that the reader has and has not taken
        self._link = link
        self._topic = topic
        self._partition = partition

    def taken(self, record: Record) -> None:
        """The reader needs *record*, which it was given, no more."""
        size = frames.size_of(record)
        self.held -= size
        self._link.tell(frames.taken(self.number, size))

    def stop(self) -> None:
        """End the reading; once."""
        self._link.end(self)

    def frame(self) -> bytes:
        """What has the carrier read it, or go on."""
        return frames.read(self.number, self._topic, self._partition, self.held, self.position.encode())


class LogMembership:
    """A member of a consumer group of Kafka, by `CarrierLink.join()`."""

    def __init__(self, link: "CarrierLink", number: int, frame: bytes, told: Told) -> None:
        self.number: Final = number
        self.frame: Final = frame  # what has the carrier join the group
        self.told: Final = told
        self._link = link

    def leave(self) -> None:
        """Have its partitions given to others; nothing is told any more. Once."""
        self._link.leave(self)


class LinkStatistics:
    def __init__(self, unstored: int, unstored_bytes: int, held_bytes: int, readings: int, requests: int) -> None:
        self.unstored = unstored  # packs
        self.unstored_bytes = unstored_bytes  # PACK for each included
        self.held_bytes = held_bytes  # that readers have
        self.readings = readings
        self.requests = requests  # that are not answered yet


class CarrierLink:
    """A `LaneUser`."""

    def __init__(
        self,
        source: int,
        gate: LogGate,
        failed: Callable[[Exception], None],
        metrics: CarrierRecordLog | None = None,
    ) -> None:
        """*source*: no other process has or had the same. *failed* is called with exceptions of those who use it.

        *metrics*: the log of metrics records that the carrier publishes; None if it publishes none.
        """
        self.carriers = 0  # that there have been
        self.stored_packs = 0
        self.stored_bytes = 0
        self.refused_packs: dict[str, int] = {}  # by the label of the failure
        self.status: LogStatus | None = None  # of the log, as the carrier has told last
        self._source = source
        self._gate = gate
        self._failed = failed
        self._metrics = metrics
        self._data: Lane | None = None
        self._control: Lane | None = None
        self._sequence = 0  # of the last pack
        self._unstored: dict[int, Unstored] = {}  # by sequence
        self._unstored_bytes = 0
        self._waited_for: deque[Unstored] = deque()  # by the gate, in order; some may have been passed
        self._furthest = 0  # sequence of the last pack that the carrier has answered
        self._look = inf  # when packs are looked at that may be late
        self._readings: dict[int, LogReading] = {}
        self._last_reading = 0
        self._requests: dict[int, Request] = {}
        self._last_request = 0
        self._memberships: dict[int, LogMembership] = {}
        self._last_membership = 0

    # The carrier comes and goes.

    def connect(self, data: Lane, control: Lane, now: float) -> None:
        """*data* and *control* lead to a new carrier, which does the work of the former one from now on."""
        self._disconnect(now)
        self.carriers += 1
        self._data, self._control = data, control
        self._furthest = 0
        hello = frames.hello(self._source)
        data.write(hello)
        control.write(hello)
        for pack in self._unstored.values():
            self._send(data, pack)
        for request in self._requests.values():
            control.write(request.frame)
        for reading in self._readings.values():
            control.write(reading.frame())
        for membership in self._memberships.values():
            control.write(membership.frame)
        if self._metrics is not None:
            self._metrics.connect(control)
        self._gate.connected(True, now)

    def lost(self, lane: Lane, why: str, now: float) -> None:
        """*lane* has ended: the carrier has, or is about to."""
        if lane is self._data or lane is self._control:
            self._disconnect(now)

    def _disconnect(self, now: float) -> None:
        data, control = self._data, self._control
        self._data = self._control = None
        self.status = None
        if data is not None:
            data.close()
        if control is not None:
            control.close()
        if self._metrics is not None:
            self._metrics.disconnect()
        self._gate.connected(False, now)

    def trouble(self) -> LogError | None:
        """Why the log may not take what is appended; None: nothing is known to be wrong."""
        if self._control is None:
            return LogError(LogFailure.CARRIER_AWAY, "")
        status = self.status
        if status is None or not status.named:
            return None
        topic, number, why = status.named[0]
        count = "" if status.failing == 1 else f" and {status.failing - 1} more"
        return LogError(LogFailure.APPENDING_FAILS, f"{topic}/{number}{count}: {why}")

    def unusable(self) -> str:
        """Why no topic can be made or found now; "": nothing is known to be wrong."""
        return "" if self.status is None else self.status.unusable

    def append_trouble(self, topic: str) -> str:
        """Why nothing is appended to *topic* now; "": nothing is known to be wrong."""
        if self._control is None:
            return str(LogError(LogFailure.CARRIER_AWAY, ""))
        if self.status is not None:
            for failing, _, why in self.status.named:
                if failing == topic:
                    return why
        return ""

    def statistics(self) -> LinkStatistics:
        held = sum([reading.held for reading in self._readings.values()])
        return LinkStatistics(len(self._unstored), self._unstored_bytes, held, len(self._readings), len(self._requests))

    # Appending.

    def append(self, topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        """Append *body*, a pack, behind all that have been appended to the partition.

        A pack of more than LARGEST_BODY bytes is refused at once. The topic has to have been created.
        """
        if len(body) > frames.LARGEST_BODY:
            self._count_refusal(LogFailure.TOO_LARGE)
            appender.refused(LogError(LogFailure.TOO_LARGE, f"{len(body)} bytes"), now)
            return
        self._sequence += 1
        pack = Unstored(self._sequence, topic, partition, body, appender, now)
        self._unstored[pack.sequence] = pack
        self._waited_for.append(pack)
        self._unstored_bytes += PACK + len(body)
        self._gate.holds(self._unstored_bytes, now)
        if self._data is not None:
            self._send(self._data, pack)
        if self._fails_alone(pack):
            pack.passed = True
            appender.late(now)

    def _send(self, data: Lane, pack: Unstored) -> None:
        data.write(frames.append_head(pack.sequence, pack.topic, pack.partition, len(pack.body)))
        data.write(pack.body)

    def _remove(self, sequence: int, now: float) -> Unstored:
        pack = self._unstored.pop(sequence, None)
        if pack is None:
            raise LaneError(f"an answer to the pack {sequence}, which is not under way")
        if sequence > self._furthest:
            self._furthest = sequence
        self._unstored_bytes -= PACK + len(pack.body)
        pack.passed = True
        pack.body = b""  # it may be waited for behind others
        return pack

    def _stored(self, packs: list[tuple[int, int]], now: float) -> None:
        for sequence, offset in packs:
            before = self._unstored_bytes
            pack = self._remove(sequence, now)
            self.stored_packs += 1
            self.stored_bytes += before - self._unstored_bytes - PACK
            try:
                pack.appender.stored(offset, now)
            except Exception as error:
                self._failed(error)
        self._gate.holds(self._unstored_bytes, now)
        self._pass_gate(now)

    def _refused(self, sequence: int, why: LogError, now: float) -> None:
        pack = self._remove(sequence, now)
        self._count_refusal(why.failure)
        self._gate.holds(self._unstored_bytes, now)
        self._pass_gate(now)
        pack.appender.refused(why, now)

    def _count_refusal(self, failure: LogFailure) -> None:
        self.refused_packs[failure.label] = self.refused_packs.get(failure.label, 0) + 1

    def _pass_gate(self, now: float) -> None:
        waited_for = self._waited_for
        while waited_for and waited_for[0].passed:
            waited_for.popleft()
        self._gate.reach(waited_for[0].sequence - 1 if waited_for else self._sequence, now)

    def tick(self, now: float) -> float:
        """Mark the gate, and find what is late; to be called between two publishes. Returns when to look again."""
        self._gate.mark(self._sequence, now)
        self._pass_gate(now)  # publishes of which nothing was appended
        if not self._unstored:
            self._look = inf
        elif self._look == inf:
            self._look = now + LOOK
        elif now >= self._look:
            self._look = now + LOOK
            self._find_late(now)
        return self._look

    def _fails_alone(self, pack: Unstored) -> bool:
        """Whether nothing can be appended to the partition of *pack*, and that is no failure of the whole log."""
        status = self.status
        return status is not None and len(status.alone) > 0 and (pack.topic, pack.partition) in status.alone

    def _find_late(self, now: float) -> None:
        late: list[Unstored] = []
        some_alone = self.status is not None and len(self.status.alone) > 0
        for pack in self._waited_for:
            overtaken = pack.sequence <= self._furthest
            if now - pack.at < LATE or not (overtaken or some_alone):
                break
            if not pack.passed and (overtaken or self._fails_alone(pack)):
                late.append(pack)
        for pack in late:  # who is told may append
            pack.passed = True
            try:
                pack.appender.late(now)
            except Exception as error:
                self._failed(error)
        self._pass_gate(now)

    # Reading.

    def read(self, topic: str, partition: int, position: Position, reader: LogReader) -> LogReading:
        """Give *reader* the records from *position* on, one by one."""
        self._last_reading += 1
        own = Position.decode(position.encode())
        reading = LogReading(self, self._last_reading, topic, partition, own, reader)
        self._readings[reading.number] = reading
        self.tell(reading.frame())
        return reading

    def tell(self, frame: bytes) -> None:
        """For readings: send *frame*, if there is a carrier; the next one is told the state that follows."""
        if self._control is not None:
            self._control.write(frame)

    def end(self, reading: LogReading) -> None:
        """For readings: stop *reading*. Records that are on their way to it are taken as they come."""
        del self._readings[reading.number]
        if reading.held:
            self.tell(frames.taken(reading.number, reading.held))
        self.tell(frames.stop(reading.number))

    # Topics. An answer may be lost with its carrier: then what was asked for is done once more. So a topic may be
    # deleted after it was made anew, unless the request says which one is meant.

    def create(self, topic: str, properties: TopicProperties, then: Then) -> None:
        """Make *topic*, or check that it is as it would be made; ready to be appended to when *then* is called."""
        self._ask(frames.create(self._last_request + 1, topic, properties), then, None)

    def delete(self, topic: str, log: bytes, then: Then) -> None:
        """Delete *topic*, if its identity is *log*; b"": whichever it has. One that does not exist is none."""
        self._ask(frames.delete(self._last_request + 1, topic, log), then, None)

    def describe(self, topic: str, then: Described) -> None:
        """Tell *then* about *topic*; None: it does not exist."""
        self._ask(frames.describe(self._last_request + 1, topic), None, then)

    def _ask(self, frame: bytes, then: Then | None, described: Described | None) -> None:
        self._last_request += 1
        self._requests[self._last_request] = Request(frame, then, described)
        self.tell(frame)

    def _answered(self, number: int, error: LogError | None, description: TopicDescription | None) -> None:
        request = self._requests.pop(number, None)
        if request is None:
            raise LaneError(f"an answer to the request {number}, which was not made")
        if request.then is not None:
            request.then(error)
        if request.described is not None:
            request.described(description, error)

    # Consumer groups of Kafka. A member that the former carrier had is another one for Kafka.

    def done(self, group: str, topic: str, partition: int, offset: int) -> None:
        """All that *group* is to have of the partition before *offset* is done: the tools of Kafka are to see that."""
        self.tell(frames.done(group, topic, partition, offset))

    def join(self, group: str, topic: str, partitions: int, told: Told) -> LogMembership:
        """Have Kafka give a new member of *group* some of the *partitions* of *topic* to read.

        *told* is called with those that it is to read, whenever they change, and with "" or why it is no member now.
        """
        self._last_membership += 1
        number = self._last_membership
        membership = LogMembership(self, number, frames.join(number, group, topic, partitions), told)
        self._memberships[number] = membership
        self.tell(membership.frame)
        return membership

    def leave(self, membership: LogMembership) -> None:
        """For memberships."""
        del self._memberships[membership.number]
        self.tell(frames.leave(membership.number))

    # What the carrier sends.

    def take(self, lane: Lane, kind: int, data: bytes, start: int, stop: int, now: float) -> bool:
        try:
            if lane is self._control:
                self._take_control(kind, data, start, stop, now)
            elif lane is self._data:
                self._take_data(kind, data, start, stop, now)
        except LaneError:
            raise
        except Exception as error:
            self._failed(error)
        return True

    def _take_control(self, kind: int, data: bytes, start: int, stop: int, now: float) -> None:
        if kind == frames.STORED:
            self._stored(frames.read_stored(data, start, stop), now)
        elif kind == frames.REFUSED:
            body = Body(data, start, stop)
            sequence, error = body.number(), body.error()
            if error is None:
                raise LaneError("a pack that is refused for no reason")
            self._refused(sequence, error, now)
        elif kind == frames.ANSWER:
            self._answered(*frames.read_answer(data, start, stop))
        elif kind == frames.ASSIGNED:
            number, partitions, why = frames.read_assigned(data, start, stop)
            membership = self._memberships.get(number)
            if membership is not None:  # otherwise it has left meanwhile
                membership.told(partitions, why)
        elif kind == frames.STATUS:
            self.status = frames.read_status(data, start, stop)
        elif kind == frames.RECORDED and self._metrics is not None:
            self._metrics.answered(Body(data, start, stop).failure())
        else:
            raise LaneError(f"a frame of kind {kind} on the control lane")

    def _take_data(self, kind: int, data: bytes, start: int, stop: int, now: float) -> None:
        if kind == frames.RECORD:
            number, record = frames.read_record(data, start, stop)
            self._received(number, record, now)
            return
        body = Body(data, start, stop)
        number = body.number()
        reading = self._readings.get(number)  # None: it was stopped meanwhile
        if kind == frames.JUMPED:
            expected, offset = body.number(), body.number()
            if reading is not None:
                reading.position.offset = offset
                reading.reader.jumped(expected, offset, now)
        elif kind == frames.DAMAGED:
            self.tell(frames.taken(number, stop - start))
            offset, why = body.number(), body.text()
            if reading is not None:
                reading.position.offset = offset + 1
                reading.reader.damaged(offset, body.rest(), why, now)
        elif kind == frames.FAILED:
            error = body.error()
            if reading is not None:
                reading.reader.failed(error, now)
        else:
            raise LaneError(f"a frame of kind {kind} on the data lane")

    def _received(self, number: int, record: Record, now: float) -> None:
        reading = self._readings.get(number)
        if reading is None:
            self.tell(frames.taken(number, frames.size_of(record)))
        else:
            reading.position.advance(record)
            reading.held += frames.size_of(record)
            reading.reader.received(record, now)
