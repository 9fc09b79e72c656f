# What only the log in Redis does: retention, and waiting for many streams. And positions, which are always in Redis.
from collections.abc import Callable
from importlib.resources import files
from itertools import count
from typing import Any

import pytest

from broker.carrier.appends import MOST_BYTES, RECORD_BYTES
from broker.carrier.offsets import Offsets
from broker.carrier.redis_keys import LogKeys
from broker.reasons import StoreFailure
from broker.store.logs.records import Pack, Position
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties
from supervisor.redis_server import RedisServer
from tests.carrier.logs import PREFIX, RedisStage
from tests.redis_servers import RunningRedis

A = 1


def fill(stage: RedisStage, partition: Partition, count: int, size: int = 100) -> None:
    for number in range(count):
        stage.append(partition, Pack(A, number + 1, bytes(size)))


def test_every_server_has_what_the_scripts_need(
    every_server: RedisServer, start_redis: Callable[..., RunningRedis]
) -> None:
    """The oldest Redis that Weir promises would refuse a command of the log."""
    stage = RedisStage(start_redis(every_server))
    partition = stage.topic(TopicProperties(retention_bytes=1))
    pages = stage.read(partition)
    fill(stage, partition, 3)
    stage.until(lambda: len(pages.packs) == 3)
    trim(stage)
    found = stage.describe(partition.topic)
    stage.close()

    assert found is not None and ([3], [3]) == (found.first, found.next)


@pytest.mark.parametrize(("kept", "first"), [(10_000, 0), (1_000, 13), (125, 20), (126, 19), (0, 20)])
def test_retention_keeps_the_newest_bytes(redis_stage: RedisStage, kept: int, first: int) -> None:
    """A log would grow for ever, or lose what it promises to keep. A record here has 125 bytes and 1 in its length."""
    partition = redis_stage.topic(TopicProperties(retention_bytes=kept))
    fill(redis_stage, partition, 20, size=101)
    trim(redis_stage)
    found = redis_stage.describe(partition.topic)

    assert found is not None
    assert ([first], [20]) == (found.first, found.next)


def test_retention_keeps_the_newest_seconds(redis_stage: RedisStage) -> None:
    """Messages would stay for ever, or go before their time."""
    partition = redis_stage.topic(TopicProperties(retention=3600))
    fill(redis_stage, partition, 10)
    age(redis_stage, partition, [7000, 6000, 5000, 3700, 3500, 100, 50, 20, 1, 0])
    trim(redis_stage)
    found = redis_stage.describe(partition.topic)

    assert found is not None
    assert ([4], [10]) == (found.first, found.next)


def test_a_log_that_was_trimmed_to_nothing_goes_on(redis_stage: RedisStage) -> None:
    """Offsets would begin anew, and readers be given old messages or none."""
    partition = redis_stage.topic(TopicProperties(retention_bytes=0))
    fill(redis_stage, partition, 3)
    trim(redis_stage)
    pages = redis_stage.read(partition, Position(1))
    offsets = redis_stage.append(partition, Pack(A, 9, b"new"))
    redis_stage.until(lambda: pages.packs)

    assert [3] == offsets
    assert [(1, 3)] == pages.jumps


def test_a_log_is_trimmed_by_itself(redis_stage: RedisStage) -> None:
    """Retention would be kept only where somebody asks for it."""
    partition = redis_stage.topic(TopicProperties(retention_bytes=0))
    fill(redis_stage, partition, 3)

    later = count(1.0)  # seconds

    def trimmed() -> bool:
        redis_stage.log.tick(redis_stage.loop.now() + 2 * next(later))
        found = redis_stage.describe(partition.topic)
        return found is not None and [3] == found.first

    redis_stage.until(trimmed)


def test_many_streams_are_waited_for_together(redis_stage: RedisStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record would be given a second late if its stream was added while another was waited for."""
    monkeypatch.setattr("broker.carrier.redis_log.BLOCK", 0)  # a wait has no end by itself
    redis_stage.loop.stop_clock()  # and nothing is late
    partitions = [redis_stage.topic() for _ in range(30)]
    all_pages = [redis_stage.read(partition) for partition in partitions]
    for number, partition in enumerate(partitions):
        redis_stage.append(partition, Pack(A, 1, b"%d" % number))
    redis_stage.until(lambda: all(pages.packs for pages in all_pages))

    assert [b"%d" % number for number in range(30)] == [pages.packs[0].body for pages in all_pages]


def test_a_reading_that_is_resumed_looks_whether_its_topic_is_the_same(
    redis_stage: RedisStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was slow for a moment would miss the first messages of a topic that was made anew."""
    partition = redis_stage.topic()
    pages = redis_stage.read(partition)
    fill(redis_stage, partition, 3)
    redis_stage.until(lambda: len(pages.packs) == 3)
    monkeypatch.setattr("broker.carrier.redis_log.TURN", 600.0)  # it looks by itself
    redis_stage.log.tick(redis_stage.loop.now() + 2.0)
    pages.reading.pause()
    redis_stage.delete_outside(partition.topic)
    for number in range(4, 9):
        redis_stage.append(partition, Pack(A, number, b""))
    pages.reading.resume()
    redis_stage.until(lambda: len(pages.packs) == 8)

    assert [(3, 0)] == pages.jumps


def test_many_readers_that_catch_up_take_turns(redis_stage: RedisStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage a thousand clients would have a page each read into memory at the same time; or some never."""
    monkeypatch.setattr("broker.carrier.redis_log.READS", 2)
    partitions = [redis_stage.topic() for _ in range(10)]
    for partition in partitions:
        fill(redis_stage, partition, 20)
    most = 0

    def all_read() -> bool:
        nonlocal most
        most = max(most, redis_stage.log._reads)  # type: ignore[attr-defined]
        return all(len(pages.packs) == 20 for pages in every)

    every = [redis_stage.read(partition) for partition in partitions]
    redis_stage.until(all_read)

    assert 2 == most


def test_a_reader_that_catches_up_reads_page_by_page(redis_stage: RedisStage) -> None:
    """A client that comes back after a week would be read into memory whole."""
    partition = redis_stage.topic()
    fill(redis_stage, partition, 100)
    pages = redis_stage.read(partition)
    redis_stage.until(lambda: pages.packs)
    pages.reading.pause()
    redis_stage.append(partition, Pack(A, 101, b""))
    read = len(pages.packs)
    pages.reading.resume()
    redis_stage.until(lambda: len(pages.packs) == 101)

    assert read < 100
    assert [*range(1, 102)] == [pack.sequence for pack in pages.packs]


def test_positions_are_kept_by_group_and_partition(redis_stage: RedisStage) -> None:
    """Two share names of one filter would skip each other's messages, or a restart begin from the first one."""
    offsets = Offsets(redis_stage.commands, PREFIX, redis_stage.loop.now)
    one, two = Partition("t"), Partition("t", 1)
    position = Position()
    position.take(4, [Pack(A, 9, b"")])
    told: list[Any] = []

    offsets.commit("group", one, position, told.append)
    position.take(5, [])  # what comes later is not in what was committed
    for group, partition in (("group", one), ("group", two), ("other", one)):
        offsets.committed(group, partition, lambda found, failure: told.append((found and found.offset, failure)))
    redis_stage.until(lambda: len(told) == 4)
    offsets.forget("group", told.append)
    offsets.committed("group", one, lambda found, failure: told.append((found, failure)))
    redis_stage.until(lambda: len(told) == 6)

    assert [None, (5, None), (None, None), (None, None), None, (None, None)] == told


def test_a_position_that_is_damaged_is_an_error(redis_stage: RedisStage) -> None:
    """A client would begin anywhere."""
    told: list[Any] = []
    with redis_stage.server.client() as client:
        client.hset(LogKeys(PREFIX).offsets("group"), "t/0", "damaged")
    offsets = Offsets(redis_stage.commands, PREFIX, redis_stage.loop.now)
    offsets.committed("group", Partition("t"), lambda *found: told.append(found))
    redis_stage.until(lambda: told)

    assert [(None, StoreFailure.MALFORMED_REPLY)] == told


def trim(stage: RedisStage) -> None:
    """Have all partitions trimmed now."""
    with stage.server.client() as client:
        script = client.register_script((files("broker.carrier") / "trim.lua").read_text())
        keys = LogKeys(PREFIX)
        for topic, text in client.hgetall(keys.topics).items():
            _, seconds, kept = text.split()
            partition = Partition(topic.decode())
            script(keys=[keys.records(partition), keys.head(partition)], args=[1000 * int(seconds), kept])


def age(stage: RedisStage, partition: Partition, seconds: list[int]) -> None:
    """Write the records of *partition* anew, so old as *seconds* say."""
    keys = LogKeys(PREFIX)
    with stage.server.client() as client:
        now = 1000 * client.time()[0]
        entries = client.xrange(keys.records(partition))
        client.delete(keys.records(partition))
        for (key, fields), old in zip(entries, seconds, strict=True):
            fields[b"at"] = now - 1000 * old
            client.xadd(keys.records(partition), fields, id=key)


def test_a_topic_that_is_deleted_while_it_is_described_is_none(redis_stage: RedisStage) -> None:
    """The worker would be told of offsets that there are not, or nothing, and its session would wait for ever."""
    partition = redis_stage.topic(TopicProperties(partitions=3))
    log = redis_stage.describe(partition.topic)
    assert log is not None
    told: list[TopicDescription | LogError | None] = []
    redis_stage.log.describe(partition.topic, lambda found, error: told.append(found or error))
    redis_stage.log.delete(partition.topic, log.log, lambda error: told.append(error))
    redis_stage.until(lambda: len(told) == 2)

    assert [None, None] == told


def test_large_records_of_many_partitions_are_appended_together(start_redis: Callable[..., RunningRedis]) -> None:
    """Some would count as refused by a Redis that is well, be told to operators, and be sent again after a pause."""
    stage = RedisStage(start_redis(), MOST_BYTES)
    partitions = [stage.topic() for _ in range(40)]
    stored: list[int] = []
    for partition in partitions:
        assert stage.log.append(partition, Pack(A, 1, bytes(RECORD_BYTES)), lambda offset, error: stored.append(offset))
    stage.log.flush()
    failing = dict(stage.log.statistics().failing)
    stage.until(lambda: len(stored) == len(partitions))
    resent = stage.log.statistics().resent
    stage.close()

    assert {} == failing
    assert 0 == resent
