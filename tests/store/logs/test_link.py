# The link of a worker, with a carrier of which the test reads and writes the frames.
from collections.abc import Callable
from typing import Any

import pytest

from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.reasons import LogFailure
from broker.store.logs import frames
from broker.store.logs.frames import HEAD, Body, LaneError, LogStatus
from broker.store.logs.link import LOOK, CarrierLink
from broker.store.logs.log_gate import LATE, MOST, LogGate
from broker.store.logs.records import Pack, Position, Record
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

SOURCE = 77
LOG = bytes(range(16))  # the identity of a topic
AWAY = LogError(LogFailure.UNREACHABLE, "")


class PaperLane:
    """A `Lane` whose other end is the test."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, chunk: bytes) -> None:
        self.written += chunk

    def pause(self) -> None:
        raise AssertionError("a worker always reads")

    def resume(self) -> None:
        raise AssertionError

    def close(self) -> None:
        self.closed = True


class PaperCarrier:
    def __init__(self, link: CarrierLink, now: float) -> None:
        self.data, self.control = PaperLane(), PaperLane()
        self._link = link
        link.connect(self.data, self.control, now)

    def says(self, frame: bytes, now: float, data: bool = False) -> None:
        lane = self.data if data else self.control
        assert self._link.take(lane, frame[HEAD - 1], frame, HEAD, len(frame), now)

    def gives(self, reading: int, record: Record, now: float = 0.0) -> None:
        self.says(frames.record(reading, record), now, data=True)

    def appended(self) -> list[tuple[str, int, int, bytes]]:
        """Topic, partition, sequence and body of each pack that has come since the last call."""
        found = []
        for kind, body in taken(self.data):
            if kind == frames.HELLO:
                assert (frames.VERSION, SOURCE) == (body.number(), body.number())
            else:
                assert frames.APPEND == kind
                sequence, partition, topic = body.number(), body.number(), body.text()
                found.append((topic, partition, sequence, body.rest()))
        return found

    def told(self) -> list[tuple[Any, ...]]:
        """What has come on the control lane since the last call."""
        found: list[tuple[Any, ...]] = []
        for kind, body in taken(self.control):
            if kind == frames.READ:
                reading, partition, held = body.number(), body.number(), body.number()
                found.append(("read", reading, body.text(), partition, held, Position.decode(body.rest()).offset))
            elif kind == frames.TAKEN:
                found.append(("taken", body.number(), body.number()))
            elif kind == frames.STOP:
                found.append(("stop", body.number()))
            elif kind == frames.CREATE:
                found.append(("create", body.number(), body.text(), body.properties()))
            elif kind == frames.JOIN:
                member, partitions, topic = body.number(), body.number(), body.text()
                found.append(("join", member, body.text(), topic, partitions))
            elif kind == frames.LEAVE:
                found.append(("leave", body.number()))
            elif kind == frames.DONE:
                partition, offset, topic = body.number(), body.number(), body.text()
                found.append(("done", body.text(), topic, partition, offset))
            elif kind != frames.HELLO:
                name = {frames.DELETE: "delete", frames.DESCRIBE: "describe"}[kind]
                asked: tuple[Any, ...] = (name, body.number(), body.text())
                found.append((*asked, body.log()) if kind == frames.DELETE else asked)
        return found


def taken(lane: PaperLane) -> list[tuple[int, Body]]:
    written, lane.written = lane.written, b""
    found = []
    at = 0
    while at < len(written):
        stop = at + frames.frame_length(written, at)
        found.append((written[at + HEAD - 1], Body(written, at + HEAD, stop)))
        at = stop
    return found


class Told:
    """An `Appender` and a `LogReader` that notes what it is told."""

    def __init__(self, notes: list[tuple[Any, ...]], name: str = "") -> None:
        self.notes = notes
        self.name = name
        self.raises = False

    def note(self, *what: Any) -> None:
        self.notes.append((self.name, *what) if self.name else what)
        if self.raises:
            raise RuntimeError("a mistake")

    def stored(self, offset: int, now: float) -> None:
        self.note("stored", offset)

    def refused(self, error: LogError, now: float) -> None:
        self.note("refused", error.failure)

    def late(self, now: float) -> None:
        self.note("late")

    def received(self, record: Record, now: float) -> None:
        self.note("received", record)

    def jumped(self, expected: int, offset: int, now: float) -> None:
        self.note("jumped", expected, offset)

    def damaged(self, offset: int, record: bytes, why: str, now: float) -> None:
        self.note("damaged", offset, record, why)

    def failed(self, error: LogError | None, now: float) -> None:
        self.note("failed", None if error is None else error.failure)


class Worker:
    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.notes: list[tuple[Any, ...]] = []
        self.gate = Gate(Overload(), "node/0 log", 1, 0.0)
        self.link = CarrierLink(SOURCE, LogGate(self.gate, lambda gate, now: None), self.failures.append)

    def carrier(self, now: float = 0.0) -> PaperCarrier:
        return PaperCarrier(self.link, now)

    def append(self, name: str, topic: str = "t", partition: int = 0, now: float = 0.0) -> Told:
        told = Told(self.notes, name)
        self.link.append(topic, partition, name.encode(), told, now)
        return told

    def publish(self, name: str, topic: str = "t", now: float = 0.0) -> None:
        """A publish that passes the gate, is appended, and whose turn ends."""
        self.gate.take(1, len(name), now)
        self.append(name, topic, now=now)
        self.link.tick(now)


@pytest.fixture
def worker() -> Worker:
    return Worker()


# Appending.


def test_packs_are_sent_in_order_and_their_appenders_told(worker: Worker) -> None:
    """A publisher would be answered for what is not stored, or never."""
    carrier = worker.carrier()
    worker.append("a")
    worker.append("b", "u", 3)
    worker.append("c")
    assert [("t", 0, 1, b"a"), ("u", 3, 2, b"b"), ("t", 0, 3, b"c")] == carrier.appended()
    carrier.says(frames.stored([(2, 0), (1, 5)]), 0.1)
    assert [("b", "stored", 0), ("a", "stored", 5)] == worker.notes
    carrier.says(frames.refused(3, AWAY), 0.2)

    assert ("c", "refused", LogFailure.UNREACHABLE) == worker.notes[-1]
    assert (0, 0) == (worker.link.statistics().unstored, worker.link.statistics().unstored_bytes)


def test_the_next_carrier_gets_what_is_not_stored(worker: Worker) -> None:
    """What was accepted would be lost with a carrier, or overtaken by what came after it."""
    worker.append("before")
    first = worker.carrier()
    worker.append("a")
    worker.append("b")
    assert [b"before", b"a", b"b"] == [body for *_, body in first.appended()]
    first.says(frames.stored([(2, 7)]), 0.1)
    worker.link.lost(first.data, "peer_closed", 0.2)
    assert (True, True) == (first.data.closed, first.control.closed)
    worker.append("c")
    second = worker.carrier(0.3)
    worker.append("d")

    assert [(1, b"before"), (3, b"b"), (4, b"c"), (5, b"d")] == [(one[2], one[3]) for one in second.appended()]
    second.says(frames.stored([(1, 6), (3, 8), (4, 9), (5, 9)]), 0.4)
    assert ["a", "before", "b", "c", "d"] == [name for name, *_ in worker.notes]


def test_the_end_of_a_former_lane_changes_nothing(worker: Worker) -> None:
    """The lanes of the next carrier may come before the end of the former ones is seen."""
    first = worker.carrier()
    second = worker.carrier()
    worker.link.lost(first.control, "peer_closed", 0.1)
    worker.append("a")

    assert [b"a"] == [body for *_, body in second.appended()]
    assert worker.gate.open


def test_what_cannot_be_sent_is_refused(worker: Worker) -> None:
    """A frame that is too long would end the carrier, again and again."""
    carrier = worker.carrier()
    worker.link.append("t", 0, bytes(frames.LARGEST_BODY + 1), Told(worker.notes), 0.0)  # the kernel maps no page of it

    assert [("refused", LogFailure.TOO_LARGE)] == worker.notes
    assert [] == carrier.appended()


def test_an_appender_with_a_mistake_costs_nobody_else(worker: Worker) -> None:
    """One session would take the publishes of all others with it."""
    carrier = worker.carrier()
    for name in "abc":
        worker.append(name).raises = name == "a"
    carrier.says(frames.stored([(1, 0), (2, 1), (3, 2)]), 0.1)

    assert ["a", "b", "c"] == [name for name, *_ in worker.notes]
    assert 1 == len(worker.failures)


def test_an_answer_to_what_was_not_sent_is_an_error(worker: Worker) -> None:
    """A carrier that is wrong would settle what it has not stored."""
    carrier = worker.carrier()
    for frame in (frames.stored([(1, 0)]), frames.refused(1, AWAY), frames.answer(1, None, None)):
        with pytest.raises(LaneError):
            carrier.says(frame, 0.1)
    for frame, data in ((frames.hello(1), False), (frames.hello(1), True), (frames.stop(1), True)):
        with pytest.raises(LaneError):
            carrier.says(frame, 0.1, data)


# The gate.


def test_the_gate_counts_what_is_not_stored(worker: Worker) -> None:
    """Publishers would be let in beyond what the log stores in time, or never again."""
    carrier = worker.carrier()
    for name in "abc":
        worker.publish(name)
    assert 3 == worker.gate.count
    carrier.says(frames.stored([(1, 0), (3, 0)]), 0.1)
    assert 2 == worker.gate.count  # "c" is behind "b"
    carrier.says(frames.stored([(2, 0)]), 0.2)

    assert (0, 0) == (worker.gate.count, worker.gate.bytes)


def test_a_partition_that_stands_still_does_not_hold_the_gate(worker: Worker) -> None:
    """One topic without a leader would stop the publishers of all others."""
    carrier = worker.carrier()
    worker.publish("stuck", "other", now=1.0)
    worker.publish("a", now=1.0)
    carrier.says(frames.stored([(2, 0)]), 1.1)
    assert (2, [("a", "stored", 0)]) == (worker.gate.count, worker.notes)
    for at in (1.0 + LOOK, 1.0 + LATE + 2 * LOOK, 1.0 + LATE + 3 * LOOK):
        worker.link.tick(at)

    assert [("a", "stored", 0), ("stuck", "late")] == worker.notes
    assert 0 == worker.gate.count
    carrier.says(frames.stored([(1, 0)]), 9.0)
    assert ("stuck", "stored", 0) == worker.notes[-1]


def test_a_partition_that_fails_alone_costs_its_own_publishers_only(worker: Worker) -> None:
    """While nothing else is published nothing overtakes: the gate would close, and the level rise, for everybody."""
    carrier = worker.carrier()
    worker.publish("stuck", now=1.0)
    worker.publish("slow", "u", now=1.0)
    alone = [("t", 0)]
    carrier.says(LogStatus(2, 9, 2, [("t", 0, "no leader"), ("u", 0, "timeout")], "", alone).encode(), 1.1)
    for at in (1.0 + LOOK, 1.0 + LATE + 2 * LOOK):
        worker.link.tick(at)
    assert [("stuck", "late")] == worker.notes
    assert 1 == worker.gate.count
    worker.publish("stuck as well", now=2.0)
    assert ("stuck as well", "late") == worker.notes[-1]
    carrier.says(frames.stored([(2, 0)]), 2.1)
    assert 0 == worker.gate.count
    carrier.says(LogStatus(2, 9, 0, []).encode(), 2.2)
    worker.publish("well", now=3.0)

    assert ("well", "late") not in worker.notes


def test_who_is_told_to_be_late_may_append(worker: Worker) -> None:
    """The worker would fail as a session appends its next pack, or nobody else be told."""

    class Appending(Told):
        def late(self, now: float) -> None:
            super().late(now)
            worker.append("next", now=now)

    carrier = worker.carrier()
    for name in "ab":
        worker.link.append("stuck", 0, b"", Appending(worker.notes, name), 1.0)
    worker.append("c", now=1.0)
    carrier.says(frames.stored([(3, 0)]), 1.1)
    for at in (1.1, 1.1 + LATE + LOOK):
        worker.link.tick(at)

    assert [("c", "stored", 0), ("a", "late"), ("b", "late")] == worker.notes
    assert [b"", b"", b"c", b"next", b"next"] == [body for *_, body in carrier.appended()]


def test_a_publish_of_which_nothing_is_appended_leaves_the_gate(worker: Worker) -> None:
    """Publishes to clients that may not read them would close the gate for all others."""
    worker.carrier()
    worker.gate.take(1, 10, 1.0)
    worker.link.tick(1.0)
    assert 0 == worker.gate.count
    worker.publish("a")
    worker.gate.take(1, 10, 1.0)
    worker.link.tick(1.0)

    assert 2 == worker.gate.count  # it may be behind "a", and nobody knows


def test_what_is_wrong_with_a_topic_is_known(worker: Worker) -> None:
    """`weir why` would say of each client that its log is well, or that it is not when another one is not."""
    carrier = worker.carrier()
    assert "" == worker.link.append_trouble("t")
    carrier.says(LogStatus(1, 9, 2, [("t", 0, "no leader"), ("u", 0, "full")]).encode(), 0.1)
    assert ["no leader", "full", ""] == [worker.link.append_trouble(topic) for topic in "tuv"]
    worker.link.lost(carrier.data, "peer_closed", 0.2)

    assert LogFailure.CARRIER_AWAY.words == worker.link.append_trouble("v")


def test_a_log_that_cannot_be_used_is_known(worker: Worker) -> None:
    """Clients would be let in for whom no topic can be made, and their publishers wait."""
    carrier = worker.carrier()
    assert "" == worker.link.unusable()
    carrier.says(LogStatus(0, 0, 0, [], "Kafka is away").encode(), 0.1)
    assert "Kafka is away" == worker.link.unusable()
    worker.link.lost(carrier.data, "peer_closed", 0.2)

    assert "" == worker.link.unusable()  # the next carrier says


def test_what_the_next_carrier_has_not_answered_is_not_late(worker: Worker) -> None:
    """After each outage all publishers would be made to wait one by one, whose packs are just sent again."""
    first = worker.carrier()
    worker.publish("a", now=1.0)
    worker.publish("b", "u", now=1.0)
    first.says(frames.stored([(2, 0)]), 1.1)
    worker.link.lost(first.data, "peer_closed", 1.2)
    second = worker.carrier(9.0)
    for at in (9.0, 9.0 + LOOK, 9.0 + 2 * LOOK):
        worker.link.tick(at)
    assert [("b", "stored", 0)] == worker.notes
    second.says(frames.stored([(1, 0)]), 9.3)

    assert [("b", "stored", 0), ("a", "stored", 0)] == worker.notes


def test_a_log_that_stands_still_holds_the_gate(worker: Worker) -> None:
    """While nothing is stored at all, everybody has to wait, or memory would fill."""
    carrier = worker.carrier()
    worker.publish("a", now=1.0)
    worker.publish("b", "u", now=1.0)
    for at in (1.5, 2.0, 20.0):
        worker.link.tick(at)
    assert (2, []) == (worker.gate.count, worker.notes)
    carrier.says(frames.stored([(1, 0), (2, 0)]), 21.0)

    assert 0 == worker.gate.count


def test_the_gate_is_closed_while_there_is_no_carrier(worker: Worker) -> None:
    """Publishes would be accepted that nobody takes."""
    assert not worker.gate.open
    carrier = worker.carrier()
    assert worker.gate.open
    worker.link.lost(carrier.control, "peer_closed", 1.0)

    assert not worker.gate.open


def test_bytes_that_are_not_stored_close_the_gate(worker: Worker) -> None:
    """A message for thousands of topics would fill the memory, as the gate counts it once."""
    carrier = worker.carrier()
    body = bytes(MOST // 8)
    for _ in range(8):
        worker.link.append("t", 0, body, Told(worker.notes), 0.0)
    assert not worker.gate.open  # with what they take beside their bodies
    carrier.says(frames.stored([(number, 0) for number in range(1, 6)]), 0.1)

    assert worker.gate.open


def test_trouble_is_named(worker: Worker) -> None:
    """`weir why` could not say what a publisher waits for."""

    def words() -> str:
        trouble = worker.link.trouble()
        return "" if trouble is None else str(trouble)

    assert LogFailure.CARRIER_AWAY.words == words()
    carrier = worker.carrier()
    assert "" == words()
    carrier.says(LogStatus(5, 500, 2, [("t", 0, "it has no leader"), ("u", 1, "nor this")]).encode(), 0.1)
    assert f"{LogFailure.APPENDING_FAILS.words} (t/0 and 1 more: it has no leader)" == words()
    carrier.says(LogStatus(0, 0, 0, []).encode(), 0.2)
    assert "" == words()
    worker.link.lost(carrier.data, "peer_closed", 0.3)

    assert LogFailure.CARRIER_AWAY.words == words()


# Reading.


def test_a_reader_gets_records_and_says_what_it_has_taken(worker: Worker) -> None:
    """A reader would get nothing, or the carrier send more than the worker can hold."""
    carrier = worker.carrier()
    position = Position(3)
    reading = worker.link.read("t", 2, position, Told(worker.notes))
    assert [("read", 1, "t", 2, 0, 3)] == carrier.told()
    record = Record(3, [Pack(1, 1, b"body")])
    carrier.gives(1, record)
    carrier.gives(1, Record(4, []))
    size = frames.size_of(record)
    assert [("received", record), ("received", Record(4, []))] == worker.notes
    assert (size + 32, 3) == (worker.link.statistics().held_bytes, position.offset)  # it has a position of its own
    reading.taken(record)

    assert [("taken", 1, size)] == carrier.told()
    assert 32 == worker.link.statistics().held_bytes


def test_the_next_carrier_goes_on_behind_what_was_given(worker: Worker) -> None:
    """Records would be given twice, or left out, or more come than the window allows."""
    first = worker.carrier()
    reading = worker.link.read("t", 0, Position(), Told(worker.notes))
    records = [Record(offset, [Pack(9, offset + 1, b"x" * 10)]) for offset in range(3)]
    for record in records[:2]:
        first.gives(1, record)
    reading.taken(records[0])
    worker.link.lost(first.control, "peer_closed", 1.0)
    reading.taken(records[1])
    first.gives(1, records[2])  # on a lane that has ended
    second = worker.carrier(2.0)

    assert [("read", 1, "t", 0, 0, 2)] == second.told()
    assert records[:2] == [one[1] for one in worker.notes]
    second.gives(1, records[2])
    third = worker.carrier(3.0)
    assert [("read", 1, "t", 0, frames.size_of(records[2]), 3)] == third.told()


def test_the_position_knows_the_sources_that_were_read(worker: Worker) -> None:
    """Packs that the log has twice, as a carrier died, would be read twice from the next carrier."""
    first = worker.carrier()
    worker.link.read("t", 0, Position(), Told(worker.notes))
    first.gives(1, Record(0, [Pack(9, 5, b"five")]))
    worker.link.lost(first.data, "peer_closed", 1.0)
    second = worker.carrier(2.0)
    ((_, body),) = [one for one in taken(second.control) if one[0] == frames.READ]
    assert (1, 0, frames.size_of(Record(0, [Pack(9, 5, b"five")]))) == (body.number(), body.number(), body.number())
    assert "t" == body.text()
    position = Position.decode(body.rest())

    assert [] == position.take(1, [Pack(9, 4, b"four"), Pack(9, 5, b"five")]).packs


def test_a_reading_that_has_ended_gets_nothing_and_gives_all_back(worker: Worker) -> None:
    """A session would get messages after its end, or the carrier count for ever what nobody has."""
    carrier = worker.carrier()
    reading = worker.link.read("t", 0, Position(), Told(worker.notes))
    record = Record(0, [Pack(1, 1, b"body")])
    carrier.gives(1, record)
    carrier.told()
    reading.stop()
    assert [("taken", 1, frames.size_of(record)), ("stop", 1)] == carrier.told()
    carrier.gives(1, record)
    carrier.says(frames.jumped(1, 0, 5), 0.1, data=True)
    carrier.says(frames.failed(1, AWAY), 0.1, data=True)

    assert [("taken", 1, frames.size_of(record))] == carrier.told()
    assert 1 == len(worker.notes)
    assert [] == worker.carrier().told()


def test_a_reader_is_told_of_gaps_damage_and_failures(worker: Worker) -> None:
    """Messages would be missing and nobody know; or a damaged record come again and again."""
    carrier = worker.carrier()
    worker.link.read("t", 0, Position(), Told(worker.notes))
    carrier.told()
    carrier.says(frames.jumped(1, 0, 7), 0.1, data=True)
    damaged = frames.damaged(1, 7, "why", b"record")
    carrier.says(damaged, 0.2, data=True)
    assert [("taken", 1, len(damaged) - HEAD)] == carrier.told()
    carrier.says(frames.failed(1, LogError(LogFailure.FORBIDDEN, "")), 0.3, data=True)

    assert [("jumped", 0, 7), ("damaged", 7, b"record", "why"), ("failed", LogFailure.FORBIDDEN)] == worker.notes
    assert [("read", 1, "t", 0, 0, 8)] == worker.carrier().told()


def test_a_reader_with_a_mistake_costs_nobody_else(worker: Worker) -> None:
    """One session would end the worker."""
    carrier = worker.carrier()
    bad = Told(worker.notes, "bad")
    bad.raises = True
    worker.link.read("t", 0, Position(), bad)
    worker.link.read("t", 0, Position(), Told(worker.notes, "good"))
    for reading in (1, 2):
        carrier.gives(reading, Record(0, []))

    assert ["bad", "good"] == [name for name, *_ in worker.notes]
    assert 1 == len(worker.failures)


# Topics.


def test_requests_are_answered(worker: Worker) -> None:
    """A client would be served before its topic exists, or never."""
    carrier = worker.carrier()
    notes = worker.notes
    properties = TopicProperties(partitions=2)
    found = TopicDescription(properties=properties, log=LOG, first=[0, 1], next=[2, 3])

    def then(name: str) -> Callable[[LogError | None], None]:
        return lambda error: notes.append((name, error and error.failure))

    worker.link.create("t", properties, then("created"))
    worker.link.delete("u", LOG, then("deleted"))
    worker.link.describe("v", lambda description, error: notes.append(("described", description, error)))
    assert [("create", 1, "t", properties), ("delete", 2, "u", LOG), ("describe", 3, "v")] == carrier.told()
    carrier.says(frames.answer(3, None, found), 0.1)
    carrier.says(frames.answer(1, LogError(LogFailure.OTHER_TOPIC, "t"), None), 0.2)
    carrier.says(frames.answer(2, None, None), 0.3)

    assert [("described", found, None), ("created", LogFailure.OTHER_TOPIC), ("deleted", None)] == notes


def test_the_next_carrier_is_asked_what_was_not_answered(worker: Worker) -> None:
    """A client that came as the carrier died would wait for ever."""
    first = worker.carrier()
    worker.link.create("t", TopicProperties(), lambda error: None)
    worker.link.delete("u", LOG, lambda error: None)
    first.says(frames.answer(1, None, None), 0.1)
    worker.link.lost(first.control, "peer_closed", 0.2)
    worker.link.describe("v", lambda description, error: None)

    assert [("delete", 2, "u", LOG), ("describe", 3, "v")] == worker.carrier().told()


def test_how_far_a_group_is_goes_to_the_carrier_that_there_is(worker: Worker) -> None:
    """It would be kept for the next one, without bound, or go on the lane with megabytes."""
    worker.link.done("g", "t", 1, 2)
    carrier = worker.carrier()
    worker.link.done("g", "t", 1, 3)

    assert [("done", "g", "t", 1, 3)] == carrier.told()
    assert 1 == worker.link.carriers


def test_a_member_of_a_group_joins_at_each_carrier_until_it_leaves(worker: Worker) -> None:
    """Nobody would read its partitions after a carrier has died; or Kafka go on giving some to who has left."""
    notes: list[tuple[list[int], str]] = []
    first = worker.link.join("g", "t", 6, lambda partitions, why: notes.append((partitions, why)))
    second = worker.link.join("h", "t", 6, lambda partitions, why: notes.append(([], "of another one")))
    carrier = worker.carrier()
    assert [("join", 1, "g", "t", 6), ("join", 2, "h", "t", 6)] == carrier.told()
    second.leave()
    assert [("leave", 2)] == carrier.told()
    carrier.says(frames.assigned(2, [1], ""), 0.1)  # it was on its way
    carrier.says(frames.assigned(1, [3, 4], ""), 0.2)
    again = worker.carrier(0.3)
    assert [("join", 1, "g", "t", 6)] == again.told()
    again.says(frames.assigned(1, [], "why"), 0.4)
    first.leave()

    assert [([3, 4], ""), ([], "why")] == notes
    assert [("leave", 1)] == again.told()
