# The lanes of a worker at the carrier, with a log that does what the test says.
from collections.abc import Callable
from math import inf
from typing import Any

import pytest

from broker.carrier.appends import MOST_BYTES
from broker.carrier.log import LogStatistics, Reader, Reading
from broker.carrier.worker_lanes import ENOUGH, FullLog, WorkerLanes
from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import HEAD, LaneError
from broker.store.logs.records import Pack, Position, Record, encode
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties

AWAY = LogError(LogFailure.UNREACHABLE, "")
SOURCE = 77
LOG = bytes(range(16))  # the identity of a topic
WINDOW = 1000
MOST = 8000


class PaperLog:
    """A `Log`."""

    def __init__(self) -> None:
        self.full = False
        self.appended: list[tuple[Partition, Pack]] = []
        self.done: list[Callable[[int, LogError | None], None]] = []
        self.asked: list[tuple[Any, ...]] = []
        self.readings: list[Reading] = []
        self.flushes = 0
        self.flush_again = inf  # when it wants the next one
        self.ticks: list[float] = []
        self._statistics = LogStatistics()

    def append(self, partition: Partition, pack: Pack, done: Callable[[int, LogError | None], None]) -> bool:
        if self.full:
            return False
        self.appended.append((partition, pack))
        self.done.append(done)
        return True

    def flush(self) -> float:
        self.flushes += 1
        return self.flush_again

    def read(self, partition: Partition, position: Position, reader: Reader) -> Reading:
        reading = Reading(partition, position, reader, self._statistics, lambda reading: None)
        self.readings.append(reading)
        return reading

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        self.asked.append(("create", topic, properties, then))

    def try_out(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        self.asked.append(("try_out", topic, properties, then))

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        self.asked.append(("delete", topic, log, then))

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        self.asked.append(("describe", topic, then))

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def tick(self, now: float) -> float:
        self.ticks.append(now)
        return now + 100.0

    def statistics(self) -> LogStatistics:
        return self._statistics


class PaperLane:
    """A `Lane` whose other end is the test."""

    def __init__(self) -> None:
        self.written = b""
        self.paused = False
        self.closed = False

    def write(self, chunk: bytes) -> None:
        self.written += chunk

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    def frames(self) -> list[tuple[int, bytes]]:
        """Kind and body of each frame that was written since the last call."""
        written, self.written = self.written, b""
        found = []
        while written:
            stop = frames.frame_length(written, 0)
            found.append((written[HEAD - 1], written[HEAD:stop]))
            written = written[stop:]
        return found


class Lines:
    """A log of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **facts: object) -> None:
        self.events.append(event)

    warning = error = info


class PaperTopic:
    """A `RecordTopic`."""

    def __init__(self) -> None:
        self.appended: list[tuple[str, bytes, Callable[[LogFailure | None], None]]] = []

    def append(self, worker: str, record: bytes, done: Callable[[LogFailure | None], None]) -> None:
        self.appended.append((worker, record, done))


class PaperOffsets:
    """A `GroupOffsets`."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Partition, int]] = []

    def done(self, group: str, partition: Partition, offset: int) -> None:
        self.told.append((group, partition, offset))


class PaperMember:
    def __init__(self, told: Callable[[list[int], str], None]) -> None:
        self.told = told
        self.left = 0

    def leave(self) -> None:
        self.left += 1


class PaperGroups:
    """`Groups`."""

    def __init__(self) -> None:
        self.joined: list[tuple[str, str, int]] = []
        self.members: list[PaperMember] = []

    def join(self, group: str, topic: str, partitions: int, told: Callable[[list[int], str], None]) -> PaperMember:
        self.joined.append((group, topic, partitions))
        self.members.append(PaperMember(told))
        return self.members[-1]


class Worker:
    """A worker that has greeted the carrier."""

    def __init__(
        self,
        log: PaperLog,
        hello: bytes | None = None,
        full: FullLog | None = None,
        metrics: "PaperTopic | None" = None,
        offsets: "PaperOffsets | None" = None,
        groups: "PaperGroups | None" = None,
    ) -> None:
        self.log = log
        self.full = full or FullLog()
        self.lines = Lines()
        self.lanes = WorkerLanes("node/0", log, self.full, self.lines, WINDOW, MOST, metrics, offsets, groups)
        self.data, self.control = PaperLane(), PaperLane()
        self.lanes.connect(self.data, self.control)
        self.says(hello or frames.hello(SOURCE))
        self.says(hello or frames.hello(SOURCE), data=True)

    def says(self, frame: bytes, data: bool = False) -> bool:
        lane = self.data if data else self.control
        return self.lanes.take(lane, frame[HEAD - 1], frame, HEAD, len(frame), 0.0)

    def append(self, sequence: int, body: bytes = b"body", topic: str = "t", partition: int = 0) -> bool:
        return self.says(frames.append_head(sequence, topic, partition, len(body)) + body, data=True)

    def read(self, number: int = 1, held: int = 0, position: Position | None = None) -> Reading:
        saved = (position or Position()).encode()
        assert self.says(frames.read(number, f"t{number}", 0, held, saved))
        return self.log.readings[-1]

    def takes(self, reading: int, *sizes: int) -> None:
        for size in sizes:
            self.says(frames.taken(reading, size))
        self.lanes.flush()

    def records(self) -> list[tuple[int, Record]]:
        """Reading and record of each frame on the data lane."""
        found = []
        for kind, body in self.data.frames():
            assert frames.RECORD == kind
            found.append(frames.read_record(body, 0, len(body)))
        return found


@pytest.fixture
def log() -> PaperLog:
    return PaperLog()


@pytest.fixture
def worker(log: PaperLog) -> Worker:
    return Worker(log)


def give(reading: Reading, *bodies: bytes) -> list[int]:
    """What the log has next for *reading*, each in a record; the sizes that they count as."""
    offset = reading.position.offset
    packs = [Pack(5, offset + 1 + at, body) for at, body in enumerate(bodies)]
    reading.take([(offset + at, encode([pack])) for at, pack in enumerate(packs)])
    return [frames.size_of(Record(0, [pack])) for pack in packs]


# Appending.


def test_packs_go_to_the_log_and_come_back_confirmed(worker: Worker, log: PaperLog) -> None:
    """A publish would go to another topic, or its publisher never be answered."""
    for sequence in (1, 2, 3):
        assert worker.append(sequence, b"%d" % sequence, "t", sequence)
    assert [(Partition("t", number), Pack(SOURCE, number, b"%d" % number)) for number in (1, 2, 3)] == log.appended
    log.done[1](9, None)
    log.done[0](8, None)
    log.done[2](-1, AWAY)
    assert [frames.REFUSED] == [kind for kind, _ in worker.control.frames()]
    worker.lanes.flush()
    worker.lanes.flush()

    ((kind, body),) = worker.control.frames()  # one frame for all of a turn
    assert (frames.STORED, [(2, 9), (1, 8)]) == (kind, frames.read_stored(body, 0, len(body)))


def test_a_log_that_is_full_stops_the_data_lane_only(worker: Worker, log: PaperLog) -> None:
    """The carrier would hold whatever workers send; or a worker could not say that it has taken records."""
    reading = worker.read()
    statistics = log.statistics()
    log.full = True
    statistics.waiting, statistics.waiting_bytes = 9, ENOUGH + 1
    assert not worker.append(1)
    worker.full.go_on(statistics)
    assert worker.data.paused
    assert worker.says(frames.stop(1))
    assert reading.stopped
    log.full = False
    statistics.waiting_bytes = ENOUGH
    worker.full.go_on(statistics)
    assert not worker.data.paused
    assert worker.append(1)

    assert [1] == [pack.sequence for _, pack in log.appended]


def test_a_large_pack_gets_its_turn_beside_small_ones(worker: Worker, log: PaperLog) -> None:
    """A worker would wait for ever with a pack that has no room beside what others append."""
    other, gone = Worker(log, full=worker.full), Worker(log, full=worker.full)
    statistics = log.statistics()
    statistics.waiting, statistics.waiting_bytes = 5, 500
    log.full = True
    assert not gone.append(1)
    assert not worker.append(1, bytes(MOST_BYTES))
    log.full = False
    assert not other.append(1, b"small")  # there would be room
    gone.lanes.close()
    worker.full.go_on(statistics)
    assert (True, True) == (worker.data.paused, other.data.paused)
    statistics.waiting = statistics.waiting_bytes = 0
    worker.full.go_on(statistics)

    assert (False, False) == (worker.data.paused, other.data.paused)
    assert worker.append(1, bytes(MOST_BYTES))


def test_an_append_before_the_greeting_is_an_error(log: PaperLog) -> None:
    """Packs without a source could not be told from those of another worker."""
    lanes = WorkerLanes("node/0", log, FullLog(), Lines())
    data = PaperLane()
    lanes.connect(data, PaperLane())
    frame = frames.append_head(1, "t", 0, 1) + b"x"
    with pytest.raises(LaneError):
        lanes.take(data, frames.APPEND, frame, HEAD, len(frame), 0.0)


def test_a_worker_of_another_version_is_not_served(log: PaperLog) -> None:
    """After an update the carrier would misread what workers of before send, or end again and again."""
    hello = frames.frame(frames.HELLO, (frames.VERSION + 1).to_bytes(8, "big") + bytes(8))
    worker = Worker(log, hello)

    assert (True, True) == (worker.data.closed, worker.control.closed)
    assert worker.lanes.closed
    assert "carrier_refused_worker" in worker.lines.events


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("kind", [frames.STORED, frames.RECORD, 0, 255])
def test_what_a_worker_cannot_send_is_an_error(worker: Worker, data: bool, kind: int) -> None:
    """A mistake would go on unseen."""
    with pytest.raises(LaneError):
        worker.says(frames.frame(kind, b""), data)


def test_control_frames_on_the_data_lane_are_an_error(worker: Worker) -> None:
    """They would wait behind what the log has no room for."""
    for frame in (frames.taken(1, 1), frames.delete(1, "t", b""), frames.read(1, "t", 0, 0, Position().encode())):
        with pytest.raises(LaneError):
            worker.says(frame, data=True)
    with pytest.raises(LaneError):
        worker.says(frames.stop(1))
    with pytest.raises(LaneError):
        worker.says(frames.read(1, "t", 0, 0, b"no position"))


# Reading.


def test_records_go_to_the_worker_without_what_it_has_read(worker: Worker) -> None:
    """A message would come twice, as the log has its pack twice."""
    position = Position()
    position.take(0, [Pack(5, 3, b"")])
    reading = worker.read(position=position)
    assert 1 == reading.position.offset
    packs = [Pack(5, 3, b"again"), Pack(5, 4, b"new")]
    reading.take([(1, encode(packs)), (2, encode(packs))])

    assert [(1, Record(1, packs[1:])), (1, Record(2, []))] == worker.records()


def test_a_reading_waits_until_its_reader_has_taken(worker: Worker) -> None:
    """A reader that takes nothing would fill the memory of its worker."""
    reading = worker.read()
    sizes = give(reading, *[bytes(100)] * 10)
    assert reading.paused
    assert sum(sizes) == worker.lanes.held
    worker.takes(1, *sizes[:6])
    assert reading.paused
    worker.takes(1, *sizes[6:7])

    assert not reading.paused
    assert sum(sizes[7:]) == worker.lanes.held


def fill(worker: Worker, numbers: range) -> list[Reading]:
    """Readings whose readers take nothing, each of which has as much as it gets."""
    readings = [worker.read(number) for number in numbers]
    for reading in readings:
        while not reading.paused:
            give(reading, bytes(200))
    return readings


def test_readers_that_take_nothing_leave_room_to_others(worker: Worker) -> None:
    """A few slow clients would have the window of all others."""
    fill(worker, range(1, 8))
    reading = worker.read(8)
    give(reading, bytes(100), bytes(100))

    assert not reading.paused


def test_a_reader_without_records_gets_some_in_any_case(worker: Worker) -> None:
    """Many slow clients together would keep the records of all others from them."""
    slow = fill(worker, range(1, 60))
    assert MOST < worker.lanes.held < MOST + 59 * 300
    quick = worker.read(99)
    for _ in range(20):
        assert not quick.paused
        worker.takes(99, *give(quick, bytes(100)))

    assert all(reading.paused for reading in slow)


def test_a_reading_goes_on_when_others_have_left_it_room(worker: Worker) -> None:
    """A reading that was paused for the sum of all would wait for ever."""
    readings = [worker.read(number) for number in range(1, 40)]
    sizes = [give(reading, *[bytes(100)] * 3) for reading in readings]
    few = readings[-1]
    assert few.paused
    for number, taken in enumerate(sizes[:-1], 1):
        worker.takes(number, *taken)

    assert not few.paused
    assert sum(sizes[-1]) == worker.lanes.held


def test_what_a_worker_has_from_the_former_carrier_counts(worker: Worker) -> None:
    """With each carrier that dies a reader would get a window more."""
    reading = worker.read(held=WINDOW + 1)
    assert reading.paused
    worker.takes(1, WINDOW + 1)

    assert (False, 0) == (reading.paused, worker.lanes.held)


def test_a_reading_that_was_stopped_counts_until_all_is_taken(worker: Worker) -> None:
    """A client that comes and goes would have its records counted for ever, or not at all."""
    reading = worker.read()
    first, *others = give(reading, *[bytes(100)] * 10)
    assert reading.paused
    worker.says(frames.taken(1, first))
    worker.says(frames.stop(1))
    assert (True, {}) == (reading.stopped, worker.lanes._paused)
    assert sum(others) == worker.lanes.held
    worker.says(frames.taken(1, sum(others)))

    assert (0, 0) == (worker.lanes.held, worker.lanes.readings())


def test_gaps_damage_and_failures_are_told_in_order(worker: Worker) -> None:
    """A reader would think that nothing is missing."""
    reading = worker.read()
    reading.take([(2, b"no record"), (3, encode([]))])
    reading.reader.failed(AWAY)
    reading.reader.failed(None)
    kinds = [kind for kind, _ in worker.data.frames()]

    assert [frames.JUMPED, frames.DAMAGED, frames.RECORD, frames.FAILED, frames.FAILED] == kinds
    assert worker.lanes.held > 0


def test_damaged_records_are_bounded_as_others(worker: Worker) -> None:
    """Who may write to the log would fill the memory of the carrier."""
    reading = worker.read()
    reading.take([(number, bytes(300)) for number in range(10)])

    assert reading.paused


# Topics, and the end.


def test_topics_are_asked_about(worker: Worker, log: PaperLog) -> None:
    """A client's topic would not be made."""
    properties = TopicProperties(partitions=2)
    found = TopicDescription(properties=properties, log=LOG, first=[0, 0], next=[1, 2])
    worker.says(frames.create(7, "t", properties))
    worker.says(frames.delete(8, "u", LOG))
    worker.says(frames.describe(9, "v"))
    create, delete, describe = log.asked
    assert ("create", "t", properties) == create[:3]
    assert ("delete", "u", LOG) == delete[:3]
    assert ("describe", "v") == describe[:2]
    create[3](AWAY)
    delete[3](None)
    describe[2](found, None)
    answers = [frames.read_answer(body, 0, len(body)) for kind, body in worker.control.frames()]

    assert [7, 8, 9] == [request for request, *_ in answers]
    assert [AWAY.failure, None, None] == [error and error.failure for _, error, _ in answers]
    assert [None, None, found] == [description for *_, description in answers]


def test_a_worker_that_has_ended_leaves_nothing_behind(worker: Worker, log: PaperLog) -> None:
    """Readings would go on for nobody, or the carrier end as it tells a worker that is gone."""
    reading = worker.read()
    assert worker.append(1)
    worker.says(frames.describe(1, "t"))
    worker.lanes.lost(worker.data, "peer_closed", 1.0)
    assert (True, True, True) == (reading.stopped, worker.data.closed, worker.control.closed)
    log.done[0](0, None)
    log.done[0](0, AWAY)
    log.asked[0][2](None, None)
    worker.lanes.flush()
    worker.lanes.tell_status(b"")

    assert ([], []) == (worker.data.frames(), worker.control.frames())


# Metrics records.


def test_a_metrics_record_is_published_under_the_name_of_its_worker() -> None:
    """A consumer could not tell the workers apart, or the worker would never know what became of its record."""
    topic = PaperTopic()
    worker = Worker(PaperLog(), metrics=topic)
    for record in (b"{1}", b"{2}"):
        assert worker.says(frames.metrics(record))
    for (_, _, done), failure in zip(topic.appended, (None, LogFailure.TIMEOUT), strict=True):
        done(failure)

    assert [("node/0", b"{1}"), ("node/0", b"{2}")] == [(name, record) for name, record, _ in topic.appended]
    assert [frames.recorded(None)[HEAD:], frames.recorded(LogFailure.TIMEOUT)[HEAD:]] == [
        body for kind, body in worker.control.frames() if kind == frames.RECORDED
    ]


def test_what_became_of_the_record_of_a_worker_that_has_ended_is_told_to_nobody() -> None:
    """The carrier would end with it."""
    topic = PaperTopic()
    worker = Worker(PaperLog(), metrics=topic)
    worker.says(frames.metrics(b"{}"))
    worker.lanes.close()
    topic.appended[0][2](None)

    assert b"" == worker.control.written


def test_a_metrics_record_without_kafka_is_a_mistake(log: PaperLog) -> None:
    """It would be lost without a word."""
    worker = Worker(log)

    with pytest.raises(LaneError, match="a frame of kind"):
        worker.says(frames.metrics(b"{}"))


# Offsets of groups.


def test_how_far_a_group_is_goes_to_where_it_is_kept() -> None:
    """The tools of Kafka would show no lag, or that of another group."""
    offsets = PaperOffsets()
    worker = Worker(PaperLog(), offsets=offsets)
    assert worker.says(frames.done("g", "t", 2, 5))

    assert [("g", Partition("t", 2), 5)] == offsets.told


def test_offsets_without_kafka_are_a_mistake(worker: Worker) -> None:
    """Workers would tell them all the time to nobody."""
    with pytest.raises(LaneError, match="a frame of kind"):
        worker.says(frames.done("g", "t", 2, 5))


# Members of groups.


def test_members_are_told_what_they_are_to_read(log: PaperLog) -> None:
    """A client would read what another one was given."""
    groups = PaperGroups()
    worker = Worker(log, groups=groups)
    for number, group in ((7, "g"), (8, "h")):
        assert worker.says(frames.join(number, group, "t", 3))
    groups.members[1].told([0, 2], "")
    groups.members[0].told([], "why")
    found = [
        frames.read_assigned(body, 0, len(body)) for kind, body in worker.control.frames() if kind == frames.ASSIGNED
    ]

    assert [("g", "t", 3), ("h", "t", 3)] == groups.joined
    assert [(8, [0, 2], ""), (7, [], "why")] == found


def test_members_of_a_worker_leave_once(log: PaperLog) -> None:
    """Kafka would give partitions to a worker that has ended, or a member of another one leave."""
    groups = PaperGroups()
    worker = Worker(log, groups=groups)
    for number in (7, 8):
        worker.says(frames.join(number, "g", "t", 3))
    worker.says(frames.leave(7))
    with pytest.raises(LaneError, match="no member"):
        worker.says(frames.leave(7))
    worker.lanes.close()

    assert [1, 1] == [member.left for member in groups.members]


def test_members_without_groups_are_a_mistake(worker: Worker) -> None:
    """They would wait for partitions for ever."""
    for frame in (frames.join(7, "g", "t", 3), frames.leave(7)):
        with pytest.raises(LaneError, match="a frame of kind"):
            worker.says(frame)
