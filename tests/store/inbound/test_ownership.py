# Who dispatches which partition, and what is saved of it: with real Redis servers, and workers that are a part of one.
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from broker.reasons import StoreFailure
from broker.store.inbound.feed import PartitionFeed
from broker.store.inbound.ownership import PATIENCE, RETRY, PartitionOwnership, home_of
from broker.store.inbound.positions import PartitionPositions, SavedPosition
from broker.store.logs.records import Position, Record
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from tests.redis_servers import RunningRedis
from tests.store.conftest import every_server, loop
from tests.store.inbound.test_feed import Stage as FeedStage
from tests.store.inbound.test_feed import numbered
from tests.store.inbound.test_log import TOPIC, Link
from tests.store.loop import Loop

__all__ = ["every_server", "loop"]  # fixtures

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # real servers

PARTITIONS: Final = 4
KEY: Final = b"weir:backbone:t:node"
ENDS: Final = {number: Position(10 + number) for number in range(PARTITIONS)}


class Reading:
    def __init__(self) -> None:
        self.stopped = False

    def taken(self, record: Record) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True


class ReadingLink(Link):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int]] = []  # partitions, and offsets

    def read(self, topic, partition, position, reader):  # type: ignore[no-untyped-def]  # as LogLink's
        assert topic == TOPIC
        self.begun.append((partition, position.offset))
        return Reading()


class Shard:
    """A worker, as far as partitions are concerned."""

    def __init__(self, loop: Loop, redis: RunningRedis, shard: int, incarnation: int, workers: list["Shard"]) -> None:
        self.loop = loop
        self.worker = WorkerId("node", shard, incarnation)
        self.commands = CommandPipeline(loop.wire(), redis.address, f"shard{shard}", loop.log)
        self.link = ReadingLink()
        self.positions = PartitionPositions(self.commands, KEY, self.worker, loop.now)
        self.lives = True
        self.redis = redis
        self.workers = workers
        self.ownership = PartitionOwnership(
            self.link,
            TOPIC,
            PARTITIONS,
            self.positions,
            self.worker,
            2,
            lambda: [one.worker for one in self.workers if one is not self and one.lives],
            lambda: None,
            loop.now,
            loop.log,
        )
        workers.append(self)
        loop.ticking += [self.commands]
        self.commands.start(loop.now())
        loop.ready(self.commands)

    def dispatch(self) -> None:
        """Dispatch from now on."""
        self.loop.ticking.append(self.ownership)

    def die(self) -> None:
        self.lives = False
        self.loop.ticking.remove(self.ownership)

    def forget(self) -> None:
        """Have Redis lose all that it has."""
        with self.redis.client() as client:
            client.flushall()

    def has_position(self, number: int) -> bool:
        """Whether Redis has a position of the partition."""
        with self.redis.client() as client:
            return bool(client.hexists(KEY.decode(), f"position/{number}"))

    def numbers(self) -> list[int]:
        return sorted(self.ownership.feeds)

    def feed(self, number: int) -> PartitionFeed:
        return self.ownership.feeds[number]


@pytest.fixture
def shards(loop: Loop, start_redis: Callable[..., RunningRedis]) -> Iterator[Callable[[int, int], Shard]]:
    redis = start_redis()
    workers: list[Shard] = []

    def start(shard: int, incarnation: int) -> Shard:
        made = Shard(loop, redis, shard, incarnation, workers)
        begun: list[object] = []
        made.positions.begin(ENDS, begun.append)
        loop.until(lambda: bool(begun))
        if begun != [None]:  # the server did not know the script
            made.positions.begin(ENDS, begun.append)
            loop.until(lambda: len(begun) == 2)
        made.dispatch()
        return made

    yield start


def test_the_homes_of_partitions_are_even() -> None:
    """One worker would have most of the work; or a death move what need not move."""
    assert [0, 1, 2, 0, 1, 2] == [home_of(number, 3, [0, 1, 2]) for number in range(6)]
    assert [0, 0, 2, 0, 2, 2] == [home_of(number, 3, [0, 2]) for number in range(6)]
    assert {1} == {home_of(number, 3, [1]) for number in range(6)}


def test_each_partition_has_one_owner_which_begins_where_the_node_is(
    loop: Loop, shards: Callable[[int, int], Shard]
) -> None:
    """Two workers would dispatch the same publishes; or those before the node began to."""
    one, two = shards(0, 1), shards(1, 2)
    loop.until(lambda: [0, 2] == one.numbers() and [1, 3] == two.numbers())

    assert {(0, 10), (2, 12)} <= {*one.link.begun}
    assert {(1, 11), (3, 13)} == {*two.link.begun}


def test_who_follows_a_dead_worker_goes_on_from_what_it_had_saved(
    loop: Loop, shards: Callable[[int, int], Shard]
) -> None:
    """Publishes would be passed over, or all be dispatched again."""
    one, two = shards(0, 1), shards(1, 2)
    loop.until(lambda: [1, 3] == two.numbers())
    feed = two.feed(1)
    feed.position.offset, feed.begun, feed.changed = 20, 25, True
    loop.until(lambda: 25 == feed.confirmed)
    two.die()
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())

    assert (20, 25) == (one.feed(1).position.offset, one.feed(1).begun)
    assert not one.feed(1).changed


def test_a_worker_that_comes_back_gets_its_partitions(loop: Loop, shards: Callable[[int, int], Shard]) -> None:
    """After some restarts one worker would dispatch everything."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    one.feed(1).position.offset = 33
    two = shards(1, 2)
    loop.until(lambda: [0, 2] == one.numbers() and [1, 3] == two.numbers())

    assert 33 == two.feed(1).position.offset


def test_what_is_under_way_keeps_a_partition_for_a_while(loop: Loop, shards: Callable[[int, int], Shard]) -> None:
    """It would be dispatched twice; or nothing of the partition be, while something is stuck."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    stage = FeedStage()
    stage.feed = one.feed(1)
    stage.give(11, numbered(b"1"))
    stage.dispatch(holds=lambda payload: True)
    two = shards(1, 2)
    loop.until(lambda: [3] == two.numbers() and one.feed(1).ending)
    assert 1 in one.numbers()
    loop.pass_seconds(PATIENCE + 0.5)
    loop.until(lambda: not one.feed(1).ending)
    stage.pending[0].settle(loop.now())
    loop.pass_seconds(RETRY + 0.5)
    loop.until(lambda: [1, 3] == two.numbers())

    assert 12 == two.feed(1).position.offset


def test_who_has_lost_a_partition_stops(loop: Loop, shards: Callable[[int, int], Shard]) -> None:
    """When the data of Redis are older again, two workers could dispatch the same publishes for ever."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    other = PartitionPositions(one.commands, KEY, WorkerId("node", 5, 9), loop.now)
    taken: list[list[SavedPosition]] = []
    other.claim([2], [], lambda found, unknown, failure: taken.append(found))
    loop.until(lambda: bool(taken))
    lost = one.feed(2)
    lost.changed = True
    loop.until(lambda: one.ownership.feeds.get(2) is not lost)

    assert [2] == [each["partition"] for each in loop.log.named("backbone_partition_lost")]


def test_what_could_not_be_saved_is_saved_later(
    loop: Loop, shards: Callable[[int, int], Shard], start_redis: Callable[..., RunningRedis]
) -> None:
    """After an outage of Redis everything since would be dispatched again."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    feed = one.feed(0)
    submit = one.commands.submit
    failed: list[bool] = []

    def refuse(command, now):  # type: ignore[no-untyped-def]  # as submit()
        failed.append(True)
        command.failed(StoreFailure.LOST, "", now)

    one.commands.submit = refuse  # type: ignore[method-assign]
    feed.position.offset, feed.begun, feed.changed = 50, 60, True
    loop.until(lambda: bool(failed))
    assert feed.changed and 60 != feed.confirmed
    one.commands.submit = submit  # type: ignore[method-assign]
    loop.until(lambda: 60 == feed.confirmed)


# When Redis does not answer, or has lost its data.


def unanswered(shard: Shard) -> Callable[[], None]:
    """Redis does what *shard* claims and saves, and its answers are lost, until what is returned is called."""
    positions = shard.positions
    claim, save = positions.claim, positions.save
    positions.claim = lambda numbers, living, then: claim(  # type: ignore[method-assign]
        numbers, living, lambda found, unknown, failure: then([], [], StoreFailure.TIMEOUT)
    )
    positions.save = lambda positions, then: save(  # type: ignore[method-assign]
        positions, lambda lost, failure: then([], StoreFailure.TIMEOUT)
    )

    def end() -> None:
        positions.claim, positions.save = claim, save  # type: ignore[method-assign]

    return end


def test_a_claim_that_was_not_answered_takes_no_partition_from_its_home(
    loop: Loop, shards: Callable[[int, int], Shard]
) -> None:
    """The worker that follows the dead one would wait for it for ever, as it knows nothing of its partitions."""
    one, two = shards(0, 1), shards(1, 2)
    loop.until(lambda: [0, 2] == one.numbers() and [1, 3] == two.numbers())
    answer = unanswered(one)
    two.die()
    loop.until(lambda: {1, 3} == one.ownership._unanswered)
    three = shards(1, 3)
    answer()

    loop.until(lambda: [0, 2] == one.numbers() and [1, 3] == three.numbers())


def test_what_may_have_been_given_up_is_not_dispatched_any_more(
    loop: Loop, shards: Callable[[int, int], Shard]
) -> None:
    """Two workers would dispatch the same publishes, QoS 0 among them."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    given_up = one.feed(1)
    answer = unanswered(one)
    two = shards(1, 2)
    loop.until(lambda: [1, 3] == two.numbers())
    feed = two.feed(1)
    feed.position.offset, feed.changed = 50, True
    loop.until(lambda: not feed.changed and not two.ownership._saving)
    two.die()
    loop.for_seconds(0.3)
    assert given_up is one.feed(1) and given_up.ending
    answer()
    loop.until(lambda: one.ownership.feeds.get(1) not in (None, given_up))

    assert 50 == one.feed(1).position.offset
    assert [1, 3] == sorted(int(str(each["partition"])) for each in loop.log.named("backbone_partition_lost"))


def test_an_owner_saves_again_what_redis_has_lost(loop: Loop, shards: Callable[[int, int], Shard]) -> None:
    """It would own nothing any more, and nobody could claim what has no position: nothing would be dispatched again."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    feed = one.feed(1)
    feed.position.offset, feed.begun, feed.changed = 50, 60, True
    loop.until(lambda: 60 == feed.confirmed and not one.ownership._saving)
    one.forget()
    one.commands.times_ready += 1  # as after a reconnect
    loop.until(lambda: one.has_position(1))
    assert feed is one.feed(1)
    one.die()
    two = shards(1, 2)
    loop.until(lambda: [0, 1, 2, 3] == two.numbers())

    assert (50, 60) == (two.feed(1).position.offset, two.feed(1).begun)


def test_what_has_no_position_and_no_owner_is_told(loop: Loop, shards: Callable[[int, int], Shard]) -> None:
    """Nobody could claim it, and its publishes would wait for ever."""
    one = shards(0, 1)
    loop.until(lambda: [0, 1, 2, 3] == one.numbers())
    one.die()
    one.forget()
    two = Shard(loop, one.redis, 1, 2, one.workers)
    two.dispatch()
    loop.until(lambda: [0, 1, 2, 3] == sorted(two.ownership._unknown))
    assert [] == two.ownership.without_position(loop.now())
    assert [0, 1, 2, 3] == sorted(two.ownership.without_position(loop.now() + 2 * PATIENCE))
    two.positions.begin({2: Position(7)}, lambda failure: None)
    loop.until(lambda: [2] == two.numbers())

    assert 7 == two.feed(2).position.offset
    assert [0, 1, 3] == sorted(two.ownership.without_position(loop.now() + 2 * PATIENCE))
