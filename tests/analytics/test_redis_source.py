# The source against real servers of Redis, the oldest and the newest that are here; Spark itself is in test_job.py.
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import pytest
import redis

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from analytics.checkpoint import Checkpoint
from analytics.redis_source import CHUNK, RedisLogReader, RedisSource
from analytics.source import LAST_MS, Planned
from tests.redis_servers import SERVERS, RunningRedis

KEY: Final = "weir:metrics"
Entry = tuple[str, datetime, str | None]


class Log:
    """The stream on *server*, and a reader of it."""

    def __init__(self, server: RunningRedis, limit: int = 1000) -> None:
        self.redis = server.client()
        options = {"url": f"unix://{server.socket}", "key": KEY, "limit": str(limit), "parts": "2"}
        self.reader = RedisLogReader(options)
        self.limit = self.reader.getDefaultReadLimit()
        self.offset = self.reader.initialOffset()

    def add(self, *ids: str) -> None:
        for id in ids:
            self.redis.xadd(KEY, {"record": id}, id=id)

    def now(self, body: str) -> None:
        self.redis.xadd(KEY, {"record": body})

    def batch(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The offsets of the next one."""
        before, self.offset = self.offset, self.reader.latestOffset(self.offset, self.limit)
        return before, self.offset

    def entries(self, start: dict[str, Any], end: dict[str, Any]) -> list[list[Entry]]:
        """What lies between, by partitions."""
        return [self.read(part) for part in self.reader.partitions(start, end)]

    def read(self, part: Any) -> list[Entry]:
        found: list[Entry] = []
        for batch in self.reader.read(part):
            found += [(row["id"], row["at"], row["body"]) for row in cast(Any, batch).to_pylist()]
        return found

    def ids(self) -> list[str]:
        """Of the entries of the next batch."""
        return [id for part in self.entries(*self.batch()) for id, _, _ in part]


@pytest.fixture(params=SERVERS, ids=str)
def log(request: pytest.FixtureRequest, start_redis: Callable[..., RunningRedis]) -> Iterator[Log]:
    made = Log(start_redis(request.param))
    yield made
    made.redis.close()


def counts(client: "redis.Redis") -> bool:
    """Whether this server says how many entries there ever were."""
    return "entries-added" in client.xinfo_stream(KEY)


def test_each_entry_is_read_once_with_its_time_and_its_body(log: Log) -> None:
    """A record would be lost between two batches, or count twice."""
    log.add("1000-0", "1000-1", "2500-0")
    first = log.entries(*log.batch())
    log.add("2500-1")

    assert [
        [
            ("1000-0", datetime.fromtimestamp(1, UTC), "1000-0"),
            ("1000-1", datetime.fromtimestamp(1, UTC), "1000-1"),
            ("2500-0", datetime.fromtimestamp(2.5, UTC), "2500-0"),
        ]
    ] == first
    assert ["2500-1"] == log.ids()
    assert [] == log.ids()


def test_nothing_new_is_the_same_offset(log: Log) -> None:
    """Spark would run a batch a second for nothing, or one for a log that is not there yet."""
    before, after = log.batch()
    assert before == after
    log.now("1")
    log.batch()

    before, after = log.batch()

    assert before == after


def test_when_nobody_writes_time_passes(log: Log) -> None:
    """An overload that ended as its only node was killed would go on for ever."""
    log.add("1-0")
    log.batch()

    before, after = log.batch()

    assert (before["after"], before["seen"], before["lost"]) == (after["after"], after["seen"], after["lost"])
    assert after["now"] > 1_700_000_000_000
    assert [] == log.entries(before, after)
    assert log.batch()[1] == after


def test_a_batch_has_at_most_so_many_entries_in_a_few_partitions(log: Log) -> None:
    """What piled up in an hour would be one batch, and more than there is memory for."""
    numbers = [f"{number}-0" for number in range(1, 2 * 1000 + 301)]
    with log.redis.pipeline() as line:
        for id in numbers:
            line.xadd(KEY, {"record": "r"}, id=id)
        line.execute()

    batches = [log.entries(*log.batch()) for _ in range(3)]

    assert [[CHUNK, CHUNK], [CHUNK, CHUNK], [300]] == [[len(part) for part in one] for one in batches]
    assert numbers == [id for one in batches for part in one for id, _, _ in part]
    assert isinstance(log.limit, ReadMaxRows)
    everything = log.reader.latestOffset(log.reader.initialOffset(), ReadAllAvailable())
    assert (2300, "2300-0") == (everything["seen"], everything["after"])
    parts = log.entries(log.reader.initialOffset(), everything)
    assert [3 * CHUNK, 2300 - 3 * CHUNK] == [len(part) for part in parts]
    assert numbers == [id for part in parts for id, _, _ in part]


def test_a_batch_that_is_read_again_has_the_same_entries(log: Log) -> None:
    """After a failure a record would be in two batches, or in none."""
    log.add("1-0", "2-0")
    offsets = log.batch()
    before = log.entries(*offsets)
    log.add("2-1", "3-0")

    assert before == log.entries(*offsets)
    assert before == Log.entries(log, *offsets)


def test_what_redis_cut_off_unread_is_counted(log: Log) -> None:
    """The job would be an hour behind, jump, and nobody would know what it says nothing of."""
    log.add("1-0")
    log.batch()
    log.add(*(f"{number}-0" for number in range(2, 12)))
    log.redis.xtrim(KEY, maxlen=4, approximate=False)
    lost = 6 if counts(log.redis) else 0  # Redis before 7 does not say

    assert (["8-0", "9-0", "10-0", "11-0"], lost) == (log.ids(), log.offset["lost"])
    log.redis.xtrim(KEY, maxlen=1, approximate=False)
    log.add("12-0")
    assert (["12-0"], lost) == (log.ids(), log.offset["lost"])


def test_what_was_cut_off_before_the_job_began_is_not_lost(log: Log) -> None:
    """A new job would begin with a loss that is none."""
    log.add("1-0", "2-0", "3-0")
    log.redis.xtrim(KEY, maxlen=1, approximate=False)

    assert (["3-0"], 0) == (log.ids(), log.offset["lost"])
    log.add("4-0", "5-0")
    log.redis.xtrim(KEY, maxlen=1, approximate=False)
    assert (["5-0"], 1 if counts(log.redis) else 0) == (log.ids(), log.offset["lost"])


@pytest.mark.parametrize("first", ["5-0", "500-0"])
def test_a_log_that_was_made_anew_is_read_from_its_beginning(log: Log, first: str) -> None:
    """After Redis lost its data the job would wait until the ids are as high as before."""
    log.add("100-0", "101-0", "102-0")
    log.batch()
    log.redis.delete(KEY)
    assert [] == log.ids()
    log.add(first)

    assert [first] == log.ids()
    assert 0 == log.offset["lost"]


def test_each_part_knows_how_many_its_batch_has(log: Log) -> None:
    """An executor would leave out names for which there is room, or send the driver more than it has time for."""
    log.add(*(f"{number}-0" for number in range(1, CHUNK + 2)))
    first = log.batch()
    log.add(f"{CHUNK + 2}-0")
    second = log.batch()

    assert [2] * 2 == [part.parts for part in log.reader.partitions(*first)]
    assert [1] == [part.parts for part in log.reader.partitions(*second)]
    (read,) = log.reader.read(log.reader.partitions(*second)[0])
    assert [1] == cast(Any, read).column("parts").to_pylist()


def test_an_entry_may_be_anything(log: Log) -> None:
    """One entry that somebody else wrote would end the job."""
    log.redis.xadd(KEY, {"other": "1"}, id="1-0")
    log.redis.xadd(KEY, {"record": b"\xff\xfe"}, id="2-0")
    log.redis.xadd(KEY, {"record": "late"}, id=f"{(1 << 64) - 1}-0")

    (found,) = log.entries(*log.batch())

    assert [None, "\ufffd\ufffd", "late"] == [body for _, _, body in found]
    assert datetime.fromtimestamp(LAST_MS / 1000, UTC) == found[-1][1]


def test_without_redis_there_is_nothing_new(start_redis: Callable[..., RunningRedis]) -> None:
    """Each second without Redis would be a failure of the job."""
    server = start_redis()
    log = Log(server)
    log.add("1-0")
    log.batch()
    log.batch()  # of the time that has passed since 1970
    server.kill()

    before, after = log.batch()

    assert before == after
    server.start()
    log.redis = server.client()
    log.add("2-0")
    assert ["2-0"] == log.ids()


def test_reading_waits_for_redis_a_while(start_redis: Callable[..., RunningRedis]) -> None:
    """A Redis that restarts within a second would fail the batch that is being read."""
    server = start_redis()
    log = Log(server)
    log.add("1-0")
    (part,) = log.reader.partitions(*log.batch())
    server.kill()
    found: list[list[Entry]] = []
    reading = threading.Thread(target=lambda: found.append(log.read(part)))
    reading.start()
    server.start()
    reading.join(15)

    assert [["1-0"]] == [[id for id, _, _ in one] for one in found]


def test_reading_fails_when_redis_stays_away(
    start_redis: Callable[..., RunningRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would wait for ever, and could not be stopped."""
    monkeypatch.setattr("analytics.redis_source.RETRY_FOR", 0.1)
    monkeypatch.setattr("analytics.redis_source.RETRY_EVERY", 0.01)
    server = start_redis()
    log = Log(server)
    log.add("1-0")
    (part,) = log.reader.partitions(*log.batch())
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    began = time.monotonic()

    with pytest.raises(redis.ConnectionError):
        log.read(part)
    assert time.monotonic() - began < 10


def test_what_is_known_of_a_batch_is_in_its_offsets(log: Log, tmp_path: Path) -> None:
    """Entries that were cut off before the job began would count as lost, or those that were lost not at all."""
    source, kept = RedisSource(f"unix://{log.redis.connection_pool.connection_kwargs['path']}", "weir"), tmp_path / "c"
    checkpoint = Checkpoint(kept, source.name)
    (checkpoint.spark / "offsets").mkdir(parents=True)
    log.add(*(f"{number}-0" for number in range(1, 8)))
    log.redis.xtrim(KEY, maxlen=3, approximate=False)
    found: list[Planned] = []
    for batch, more in enumerate((range(0), range(8, 13), range(13, 17))):
        log.add(*(f"{number}-0" for number in more))
        log.redis.xtrim(KEY, maxlen=3, approximate=False)
        text = f"v1\n{{}}\n{json.dumps(log.batch()[1])}"
        (checkpoint.spark / "offsets" / str(batch)).write_text(text)
        found.append(source.planned(checkpoint, batch, 0.0))
    checkpoint.close()

    lost = (0, 2, 1) if counts(log.redis) else (0, 0, 0)  # Redis before 7 does not say
    assert [Planned(3, some, now) for some, now in zip(lost, (0.007, 0.012, 0.016), strict=True)] == found
