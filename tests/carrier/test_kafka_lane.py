# One connection to a broker of Kafka: when it fetches, and for whom. The broker only notes what it is asked.
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kafka.errors import KafkaConnectionError
from kafka.future import Future

from broker.carrier.kafka_lane import AHEAD, Lane, Source
from broker.carrier.kafka_session import Entry
from broker.carrier.log import LogStatistics, Reading
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError, Partition
from tests.carrier.logs import Pages

TOPIC = UUID(int=1)


@pytest.fixture(autouse=True)
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes between two looks at the clock: no fetch has to wait for its time."""
    seconds = count(100.0)
    monkeypatch.setattr("broker.carrier.kafka_lane.time", SimpleNamespace(monotonic=lambda: next(seconds)))


class Owner:
    """A reader with one lane, and what the lane has told it."""

    def __init__(self) -> None:
        self.ahead = 0
        self.closed = False
        self.asked: list[Any] = []
        self.answers: list[Future] = []
        self.pauses: list[float] = []
        self.came: list[list[Source]] = []
        self.lost: list[Source] = []
        manager = SimpleNamespace(send=self._send)
        self.lane = Lane(self, 1, SimpleNamespace(_manager=manager), 20)

    def _send(self, request: Any, node_id: int) -> Future:
        self.asked.append(request)
        self.answers.append(Future())
        return self.answers[-1]

    def answer(self, partitions: Sequence[int] = ()) -> None:
        parts = [SimpleNamespace(partition_index=number) for number in partitions]
        topics = [SimpleNamespace(topic_id=TOPIC, partitions=parts)]
        self.answers[-1].success(SimpleNamespace(error_code=0, session_id=9, responses=topics))

    def offsets(self) -> dict[int, int]:
        """What the last request names."""
        return {part.partition: part.fetch_offset for topic in self.asked[-1].topics for part in topic.partitions}

    def guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        work(*arguments)

    def later(self, seconds: float, work: Callable[[], None]) -> None:
        self.pauses.append(seconds)

    def entry_of(self, source: Source) -> Entry | None:
        return Entry(TOPIC, source.offset, 0, -1)

    def lose_leader(self, source: Source, error: LogError) -> None:
        self.lost.append(source)
        self.lane.remove(source)

    def recovered(self, source: Source) -> None:
        source.told = None

    def has_come(self, sources: list[Source], entry: Entry, data: Any) -> None:
        self.came.append(sources)

    def settle(self, lane: Lane) -> None:
        pass


def source(owner: Owner, number: int, offset: int = 0) -> Source:
    """A source that is fetched."""
    reading = Reading(Partition("t", number), Position(offset), Pages(), LogStatistics(), lambda reading: None)
    one = Source(reading)
    owner.lane.add(one)
    return one


def test_one_fetch_is_under_way() -> None:
    """Kafka answers the fetches of a connection one after the other; and records would come twice."""
    owner = Owner()
    source(owner, 0)
    owner.lane.pump()
    source(owner, 1)
    owner.lane.pump()
    one = len(owner.asked)
    owner.answer()
    owner.lane.pump()

    assert (1, 2) == (one, len(owner.asked))
    assert {1: 0} == owner.offsets()


def test_nothing_is_fetched_while_too_much_is_not_taken() -> None:
    """Readers that are slower than Kafka would have it read into memory whole."""
    owner = Owner()
    source(owner, 0)
    owner.ahead = AHEAD
    owner.lane.pump()
    full = len(owner.asked)
    owner.ahead -= 1
    owner.lane.pump()

    assert (0, 1) == (full, len(owner.asked))


@pytest.mark.parametrize(("partitions", "pause"), [(1, 0.003), (1000, 0.05)])
def test_a_fetch_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch, partitions: int, pause: float) -> None:
    """A message now and then for each of a thousand clients would occupy Kafka: it looks at all of them each time."""
    monkeypatch.setattr("broker.carrier.kafka_lane.time", SimpleNamespace(monotonic=lambda: 100.0))
    owner = Owner()
    for number in range(partitions):
        source(owner, number)
    owner.lane.pump()
    owner.answer()
    for _ in range(2):  # there is one timer, however many sources are added meanwhile
        owner.lane.pump()

    assert 1 == len(owner.asked)
    assert [pause] == [round(each, 6) for each in owner.pauses]


def test_readers_of_one_partition_take_turns() -> None:
    """Of two groups that read one topic, one would wait until the other one is at the end, or for ever."""
    owner = Owner()
    behind, also_behind, ahead = source(owner, 0, 5), source(owner, 0, 5), source(owner, 0, 9)
    owner.lane.pump()
    first = owner.offsets()
    owner.answer([0])
    turns = []
    for _ in range(3):
        owner.lane.pump()
        turns.append(owner.offsets())
        owner.answer([0])

    assert {0: 5} == first
    assert {behind, also_behind} == {*owner.came[0]}
    assert {0: 9} in turns and {0: 5} in turns
    assert [ahead] in owner.came[1:]


def test_a_connection_that_fails_gives_up_all_its_readers() -> None:
    """They would wait for a broker that does not lead any more; or the broker be thought to know the partitions."""
    owner = Owner()
    sources = [source(owner, number) for number in range(3)]
    owner.lane.pump()
    owner.answer()
    owner.lane.pump()
    owner.answers[-1].failure(KafkaConnectionError("gone"))
    again = source(owner, 1, 7)
    owner.lane.pump()

    assert sources == owner.lost
    assert (0, {1: 7}) == (owner.asked[-1].session_epoch, owner.offsets())
    assert [again] == owner.lane.sources[again.partition]
