# The job on Spark and Redis. The folding it calls has tests of its own: here nothing may be lost or doubled on the way.
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet
import pytest

from analytics.job import Job, _cause
from analytics.redis_source import next_offset
from analytics.rows import Status
from tests.analytics.records import BEGAN, body
from tests.analytics.running import InProcess, InThread, Log, Record, story, wait_for
from tests.redis_servers import RunningRedis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.system
MESSAGES: Final = 5  # of a record


@pytest.fixture
def log(start_redis: Callable[..., RunningRedis]) -> Log:
    return Log(start_redis())


def status(log: Log) -> Status:
    found = log.status()
    assert found is not None
    return found


def messages(log: Log) -> dict[int, int]:
    """What came in, by second from the beginning."""
    return {start - BEGAN: one["cluster"]["messages_in"] for start, one in log.windows().items()}


def history(folder: Path) -> list[tuple[str, int]]:
    """The records in the files, by boot and sequence."""
    rows: list[dict[str, Any]] = []
    for file in (folder / "history").rglob("*.parquet"):
        rows += pyarrow.parquet.ParquetFile(file).read().to_pylist()
    return sorted((row["boot"], row["sequence"]) for row in rows)


def names(records: list[Record]) -> list[tuple[str, int]]:
    return sorted((one["boot"], one["sequence"]) for one in records)


def test_what_is_written_twice_or_is_no_record_or_has_a_wrong_time_counts_once_or_not_at_all(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    """Messages would be counted twice, or a node whose clock is behind would be missing, and nobody know of it."""
    first, second = story(40), story(40, first=40)
    behind = [body(boot="slow", node="slow", ts=BEGAN + 5.0)]  # counts in second 74: when it came, less the tolerance
    with InThread(spark, log, tmp_path) as running:
        log.add([one for record in first for one in (record, record)])
        log.reaches(BEGAN + 39)
        log.add(["no record", *second, body(sequence=-1)])
        log.reaches(BEGAN + 79)
        log.add([*behind, *story(1, first=80)])
        log.reaches(BEGAN + 80)
        wait_for(lambda: status(log)["clocks"] == {"slow": -74.9}, lambda: str(status(log)))
        log.add(story(1, first=81))
        log.reaches(BEGAN + 81)

        assert dict.fromkeys(range(82), 2 * MESSAGES) | {74: 3 * MESSAGES} == messages(log)
        assert (0, 2, 0) == (status(log)["late"], status(log)["unfit"], status(log)["lost"])
        assert 80 == sum(
            one["stateOperators"][0]["customMetrics"]["numDroppedDuplicateRows"] for one in running.progress()
        )
    assert ["not JSON, or too long", "sequence: -1 is not whole"] == [one["problem"] for one in log.unfit()]
    assert ["no record", body(sequence=-1)] == [one["record"] for one in log.unfit()]
    assert sorted([*names([*first, *second, *story(2, first=80)]), ("slow", 0)]) == history(tmp_path)
    (episode,) = [one for one in log.episodes().values() if one["start"] < BEGAN + 60]
    assert (BEGAN + 20, BEGAN + 30, "closed", "lag") == (
        episode["start"],
        episode["end"],
        episode["state"],
        episode["cause"],
    )
    assert "pump" == episode["clients"][0]["name"]


def test_state_stays_as_it_is_however_long_the_job_runs(spark: "SparkSession", log: Log, tmp_path: Path) -> None:
    """The job would need more memory each hour, and be killed in a week."""
    log.add(story(400))
    with InThread(spark, log, tmp_path, limit=50) as running:
        log.reaches(BEGAN + 399)

        kept = [one["stateOperators"][0]["numRowsTotal"] for one in running.progress()]
    assert len(kept) >= 15  # the last one may not be told yet
    assert max(kept) <= 2 * 50 + 2 * 12  # records of two batches, and of the watermark's delay
    assert len(list((tmp_path / "checkpoint" / "state").iterdir())) <= 5


def test_without_redis_the_job_waits_and_goes_on(
    spark: "SparkSession", log: Log, tmp_path: Path, start_redis: Callable[..., RunningRedis]
) -> None:
    """Each restart of Redis would end the analysis until somebody looks."""
    server = start_redis()
    log = Log(server)
    with InThread(spark, log, tmp_path) as running:
        log.add(story(5))
        log.reaches(BEGAN + 4)
        server.kill()
        wait_for(lambda: bool(running.job._away))
        server.start()
        log.add(story(5, first=5))
        log.reaches(BEGAN + 9)

    assert dict.fromkeys(range(10), 2 * MESSAGES) == messages(log)


def test_entries_that_redis_cut_off_as_they_were_to_be_read_are_lost(
    spark: "SparkSession", log: Log, tmp_path: Path, start_redis: Callable[..., RunningRedis]
) -> None:
    """A batch would have fewer records than were promised, and nobody would know."""
    server = start_redis()
    log = Log(server)
    offsets, commits = (tmp_path / "checkpoint" / "spark" / name for name in ("offsets", "commits"))
    with InThread(spark, log, tmp_path):
        log.add(story(5))
        log.reaches(BEGAN + 4)
        wait_for((commits / "0").exists)
    newest = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
    for one in (*offsets.iterdir(), *(tmp_path / "checkpoint" / "state").iterdir()):
        if int(one.name.strip(".").partition(".")[0]) > newest:  # a batch may have begun as the job ended
            one.unlink()
    *head, last = (offsets / f"{newest}").read_text().splitlines()
    log.add(story(5, first=5))
    with server.client() as client:
        planned = next_offset(client, log.keys.metrics, json.loads(last), None)
        client.xtrim(log.keys.metrics, maxlen=3, approximate=False)
    (offsets / f"{newest + 1}").write_text("\n".join([*head, json.dumps(planned)]))

    with InThread(spark, log, tmp_path):
        log.reaches(BEGAN + 9)
        log.add(story(1, first=10))
        log.reaches(BEGAN + 10)

    assert 7 == status(log)["lost"]


def test_a_batch_that_begins_as_the_job_ends_is_left_to_the_next_one(
    spark: "SparkSession", log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would wait for the batch, the batch for the job, and the checkpoint be nobody's for good."""
    begun, take, close = list[int](), Job.take, Job._close

    def taken(self: Job, records: "DataFrame", batch: int) -> None:
        begun.append(batch)
        take(self, records, batch)

    def closed(self: Job) -> None:
        close(self)
        before = len(begun)
        log.add(story(5, first=5))
        wait_for(lambda: len(begun) > before)

    with monkeypatch.context() as patched:
        patched.setattr(Job, "take", taken)
        patched.setattr(Job, "_close", closed)
        with InThread(spark, log, tmp_path):
            log.add(story(5))
            log.reaches(BEGAN + 4)

    assert BEGAN + 4 == status(log)["newest"]
    with InThread(spark, log, tmp_path):
        log.reaches(BEGAN + 9)
    assert dict.fromkeys(range(10), 2 * MESSAGES) == messages(log)


def test_what_java_says_of_a_failure_is_told() -> None:
    """Who reads why a batch failed would learn the number of a call."""
    error = Exception("An error occurred while calling o845.start.\n: java.io.IOException: it is full\n\tat x.y(z)")

    assert "java.io.IOException: it is full" == _cause(error)


def test_a_batch_that_cannot_be_written_is_written_later_and_once(
    spark: "SparkSession", log: Log, tmp_path: Path
) -> None:
    """What was folded as the disk was full would be in the figures twice, or never."""
    blocked = tmp_path / "history" / "seconds"
    with InThread(spark, log, tmp_path):
        log.add(story(5))
        log.reaches(BEGAN + 4)
        shutil.rmtree(blocked)
        blocked.write_text("in the way")
        log.add(["no record", *story(5, first=5)])
        wait_for(lambda: bool(log.unfit()))
        blocked.unlink()
        log.reaches(BEGAN + 9)

    assert dict.fromkeys(range(10), 2 * MESSAGES) == messages(log)
    assert (1, 1) == (status(log)["unfit"], len(log.unfit()))


def test_time_passes_when_nobody_writes(
    spark: "SparkSession", log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overload that ended with its node would stay open, and the job seem to be dead."""
    monkeypatch.setattr("analytics.job.HEARTBEAT", 0.1)
    with InThread(spark, log, tmp_path):
        log.add(story(25))
        log.reaches(BEGAN + 24)
        before = status(log)

        wait_for(lambda: status(log)["updated"] > before["updated"])
        wait_for(lambda: [one["state"] for one in log.episodes().values()] == ["closed"])
    assert dict.fromkeys(range(25), 2 * MESSAGES) == messages(log)


def killed(log: Log, sure: Log, folder: Path, spark: "SparkSession", kills: int) -> None:
    """Kill the job of *log* so often on its way; then it says what one says of *sure* that nobody killed."""
    seconds = 60 * (
        (kills + 2) // 2
    )  # whole minutes end in peace: when the last episode ends is no matter of our clock
    for one in (log, sure):
        one.add(["no record", *story(seconds)])
    steps = [BEGAN + seconds * part // (kills + 1) for part in range(1, kills + 1)]
    for step in steps:
        running = InProcess(log, folder, limit=20)
        try:
            log.reaches(step)
        finally:
            running.kill()
    running = InProcess(log, folder, limit=20)
    try:
        wait_for(lambda: messages(log).get(seconds - 1) == 2 * MESSAGES)
    finally:
        code = running.terminate()

    assert 0 == code, (folder / "errors").read_text()
    with InThread(spark, sure, folder / "sure", limit=20):  # of the same batches: findings are of what was known then
        wait_for(lambda: messages(sure).get(seconds - 1) == 2 * MESSAGES)
    assert dict.fromkeys(range(seconds), 2 * MESSAGES) == messages(log)
    assert [BEGAN + start for start in range(20, seconds, 60)] == [one["start"] for one in log.episodes().values()]
    assert sure.all_of_it() == log.all_of_it()
    assert (1, 0, 0) == (status(log)["unfit"], status(log)["late"], status(log)["lost"])
    assert names(story(seconds)) == history(folder)


@pytest.mark.faults
def test_a_job_that_is_killed_says_what_one_says_that_is_not(
    spark: "SparkSession", log: Log, tmp_path: Path, start_redis: Callable[..., RunningRedis]
) -> None:
    """After a crash an episode would be there twice, or with half of what it was."""
    killed(log, Log(start_redis()), tmp_path, spark, kills=1)


@pytest.mark.faults
def test_a_job_that_is_killed_ten_times_says_what_one_says_that_is_not(
    spark: "SparkSession", log: Log, tmp_path: Path, start_redis: Callable[..., RunningRedis]
) -> None:
    """The same, with more chances to be killed between two writes."""
    killed(log, Log(start_redis()), tmp_path, spark, kills=10)
