# The log of the inbound backbone at the worker's end: what is offered is appended, and who published is answered.
from collections.abc import Callable
from typing import Final

from broker.config.schema import Overload
from broker.delivery.completion import Completion
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.reasons import DropReason, LogFailure
from broker.session.message import Message
from broker.store.inbound.log import LARGE, InboundLog, Partition
from broker.store.inbound.pack import MOST, decode_accepted
from broker.store.logs.port import Appender, LogReader, LogReading
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties
from tests.session.receiver import message
from tests.store.inbound.test_pack import run
from tests.store.loop import Lines

NOW: Final = 1000.0
WALL: Final = 1_800_000_000.0
TOPIC: Final = "weir.msg.all"


class Link:
    """A `LogLink` that keeps what is appended."""

    def __init__(self) -> None:
        self.appended: list[tuple[int, bytes, Appender]] = []

    def append(self, topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        assert topic == TOPIC
        self.appended.append((partition, body, appender))

    def payloads(self) -> list[tuple[int, list[bytes]]]:
        found = []
        for partition, body, _ in self.appended:
            packs = decode_accepted(body, NOW, WALL)
            found.append((partition, [one.message.payload if one.message else b"run" for one in packs]))
        return found

    def read(self, topic: str, partition: int, position: Position, reader: LogReader) -> LogReading:
        raise AssertionError

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        raise AssertionError

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        raise AssertionError

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        raise AssertionError

    def unusable(self) -> str:
        return ""

    def append_trouble(self, topic: str) -> str:
        return ""


class Stage:
    def __init__(self, partitions: int = 4) -> None:
        self.link = Link()
        self.counters = Counters()
        self.lines = Lines()
        self.opened: list[Gate] = []
        self.abandoned: list[Completion] = []
        gate, self.waiting = (Gate(Overload(), name, bit, NOW) for name, bit in (("log", 1), ("backbone", 2)))
        self.log = InboundLog(
            self.link,
            TOPIC,
            partitions,
            gate,
            self.waiting,
            lambda gate, now: self.opened.append(gate),
            lambda completion, now: self.abandoned.append(completion),
            self.counters,
            self.lines,
            lambda: WALL,
        )

    def offer(self, partition: Partition, payload: bytes = b"x", qos: int = 1) -> Message:
        offered = message(payload, qos)
        self.log.offer(partition, offered, "", 0, NOW)
        return offered


def answered(published: Message) -> bool:
    return published.completion is None or published.completion.pending == 0


def test_what_is_offered_in_a_slice_is_one_pack_for_each_partition() -> None:
    """Each message would be a record of its own, which costs ten times as much."""
    stage = Stage()
    first, second = stage.log.partitions[1], stage.log.partitions[3]
    for partition, payload in ((first, b"1"), (second, b"2"), (first, b"3")):
        stage.offer(partition, payload)
    assert stage.log.has_work() and not stage.link.appended
    stage.log.flush(NOW)

    assert [(1, [b"1", b"3"]), (3, [b"2"])] == stage.link.payloads()
    assert not stage.log.has_work()


def test_publishes_are_answered_when_their_pack_is_stored() -> None:
    """What is acknowledged would be lost with the worker."""
    stage = Stage()
    partition = stage.log.partitions[0]
    one, none = stage.offer(partition), stage.offer(partition, qos=0)
    stage.log.offer_run(partition, run(b"a", b"b"), NOW)
    stage.log.flush(NOW)
    assert not answered(one) and answered(none)
    stage.link.appended[0][2].stored(7, NOW)

    assert answered(one)
    assert (8, 4) == (partition.end, stage.log.appended)


def test_a_pack_is_bounded_and_a_large_publish_is_alone() -> None:
    """A record would be larger than Kafka takes; or many publishers pay for one that is."""
    stage = Stage()
    partition = stage.log.partitions[0]
    for _ in range(MOST + 1):
        stage.offer(partition)
    stage.offer(partition, bytes(LARGE + 1))
    stage.offer(partition, b"y")
    stage.log.flush(NOW)

    assert [MOST, 1, 1, 1] == [len(payloads) for _, payloads in stage.link.payloads()]


def test_a_client_has_one_partition_wherever_it_is() -> None:
    """What it publishes at another worker would overtake what it published before."""
    one, two = Stage().log, Stage().log
    names = [f"client-{number}" for number in range(200)]

    assert [one.partition_of(name).number for name in names] == [two.partition_of(name).number for name in names]
    assert {0, 1, 2, 3} == {one.partition_of(name).number for name in names}


def test_publishers_wait_until_the_topic_is_there() -> None:
    """What they are told to be safe would be nowhere."""
    stage = Stage(2)
    partition = stage.log.partitions[1]
    assert stage.log.closed_gate(partition) is stage.waiting and stage.waiting.blocked
    stage.log.begin([3, 5], NOW)

    assert stage.log.closed_gate(partition) is None
    assert (5, [stage.waiting]) == (partition.end, stage.opened)


def test_a_partition_that_takes_long_is_closed_by_itself() -> None:
    """Its publishers could have any number of publishes of QoS 0 wait here; or those of others would have to wait."""
    stage = Stage(2)
    stage.log.begin([0, 0], NOW)
    late, other = stage.log.partitions
    published = [stage.offer(late), stage.offer(late)]
    stage.log.flush(NOW)
    stage.offer(late)
    stage.log.flush(NOW)
    for _, _, appender in stage.link.appended:
        appender.late(NOW)
    assert stage.log.closed_gate(late) is stage.waiting and not stage.waiting.blocked
    assert stage.log.closed_gate(other) is None
    assert all(one.completion is not None and one.completion.long for one in published)
    stage.link.appended[0][2].stored(0, NOW)
    assert stage.log.closed_gate(late) is stage.waiting
    stage.link.appended[1][2].stored(1, NOW)

    assert stage.log.closed_gate(late) is None


def test_what_the_log_refuses_is_never_answered() -> None:
    """A publisher would be told that a message is safe which nobody has."""
    stage = Stage(1)
    partition = stage.log.partitions[0]
    published = stage.offer(partition)
    stage.offer(partition, qos=0)
    stage.log.flush(NOW)
    error = LogError(LogFailure.TOO_LARGE, "")
    appender = stage.link.appended[0][2]
    appender.late(NOW)
    appender.refused(error, NOW)

    assert not answered(published)
    assert [published.completion] == stage.abandoned
    assert 2 == stage.counters.dropped_by_reason[DropReason.BACKBONE_REFUSED.label]
    assert [{"topic": TOPIC, "count": 2, "why": str(error)}] == stage.lines.named("backbone_refused_publishes")
    assert 0 == partition.late
