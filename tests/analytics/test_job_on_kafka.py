# The job on Spark, with the metrics records in Kafka. What it makes of them is the same as in test_job.py: here it
# matters what comes through Spark's connector, and that nothing is lost or doubled on the way.
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from analytics.connector import ConnectorUnusable, jars
from tests.analytics.records import BEGAN, body
from tests.analytics.running import InThread, KafkaLog, story, wait_for
from tests.analytics.test_job import MESSAGES, history, killed, messages, names, status
from tests.kafka_servers import HOST, SharedKafka, free_port, kafka, kafka_of_the_process, own_kafka
from tests.redis_servers import RunningRedis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["kafka", "kafka_of_the_process", "own_kafka"]  # fixtures

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]

MakeLog = Callable[..., KafkaLog]


@pytest.fixture
def make_log(start_redis: Callable[..., RunningRedis], kafka: SharedKafka) -> Iterator[MakeLog]:
    try:
        jars()
    except ConnectorUnusable as error:
        pytest.skip(str(error))

    def make(address: str = kafka.address, *, made: bool = True) -> KafkaLog:
        return KafkaLog(start_redis(), address, made=made)

    yield make


def test_each_record_counts_once_and_what_is_none_is_kept(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path
) -> None:
    """What others write to the topic would end the job, or a record that the producer repeats count twice."""
    log = make_log()
    first, second = story(20), story(20, first=20)
    with InThread(spark, log, tmp_path):
        log.add([one for record in first for one in (record, record)])
        log.reaches(BEGAN + 19)
        log.add([b"\xff\xfe", *second, body(sequence=-1)])
        log.reaches(BEGAN + 39)
        log.add(story(1, first=40))
        log.reaches(BEGAN + 40)

    assert dict.fromkeys(range(41), 2 * MESSAGES) == messages(log)
    assert (0, 2, 0) == (status(log)["late"], status(log)["unfit"], status(log)["lost"])
    kept = log.unfit()
    assert [("\ufffd\ufffd", "not JSON, or too long"), (body(sequence=-1), "sequence: -1 is not whole")] == [
        (one["record"], one["problem"]) for one in kept
    ]
    assert ["80", "121"] == [one["id"].partition("-")[2] for one in kept]  # offsets
    assert names([*first, *second, *story(1, first=40)]) == history(tmp_path)


def test_records_that_kafka_deleted_unread_are_lost(spark: "SparkSession", make_log: MakeLog, tmp_path: Path) -> None:
    """A job that was away for longer than the retention would say nothing of what it has not seen."""
    log = make_log()
    log.add(story(5))
    log.delete_before(4)  # before the job began: nothing is lost
    with InThread(spark, log, tmp_path):
        log.reaches(BEGAN + 4)
    log.add(story(5, first=5))
    log.delete_before(13)
    with InThread(spark, log, tmp_path):
        log.reaches(BEGAN + 9)
        log.add(story(1, first=10))
        log.reaches(BEGAN + 10)

    assert 3 == status(log)["lost"]
    assert names([*story(11)[4:10], *story(11)[13:]]) == history(tmp_path)


def test_time_passes_when_nobody_writes(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An overload that ended with its node would stay open for ever."""
    monkeypatch.setattr("analytics.kafka_source.IDLE", 500)
    log = make_log()
    with InThread(spark, log, tmp_path):
        log.add(story(25))
        log.reaches(BEGAN + 24)

        wait_for(lambda: [one["state"] for one in log.episodes().values()] == ["closed"])
    assert dict.fromkeys(range(25), 2 * MESSAGES) == messages(log)


def test_a_job_waits_for_a_topic_that_no_node_has_made(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who starts the analysis before the first node would have to start it again."""
    log = make_log(made=False)
    with InThread(spark, log, tmp_path) as running:
        wait_for(lambda: bool(running.job._away))
        log.make()
        log.add(story(5))
        log.reaches(BEGAN + 4)

    assert dict.fromkeys(range(5), 2 * MESSAGES) == messages(log)
    said = capsys.readouterr().err.splitlines()
    assert [
        f"weir: {running.job.shown} is not available (it does not exist); the analysis waits for it.",
        f"weir: {running.job.shown} is available; the analysis goes on.",
    ] == said


def test_a_job_that_finds_no_kafka_says_so_and_can_be_stopped(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """With a wrong address nothing would happen, and nobody know why."""
    from analytics.kafka_source import TIMES

    monkeypatch.setattr("analytics.kafka_source.TIMES", dict.fromkeys(TIMES, "500"))
    log = make_log(f"{HOST}:{free_port()}", made=False)
    with InThread(spark, log, tmp_path) as running:
        wait_for(lambda: bool(running.job._away))

    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"weir: {running.job.shown} is not available (")


@pytest.mark.nightly
def test_without_kafka_the_job_waits_and_goes_on(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path, own_kafka: Any
) -> None:
    """Each restart of Kafka would end the analysis until somebody looks."""
    log = make_log(own_kafka.address)
    with InThread(spark, log, tmp_path) as running:
        log.add(story(5))
        log.reaches(BEGAN + 4)
        own_kafka.kill()
        wait_for(lambda: running.job._away.startswith("the Kafka topic "))
        own_kafka.start()
        log.add(story(5, first=5))
        log.reaches(BEGAN + 9)

    assert dict.fromkeys(range(10), 2 * MESSAGES) == messages(log)


def test_a_job_that_is_killed_says_what_one_says_that_is_not(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path
) -> None:
    """After a crash records would be missing, or count twice."""
    killed(make_log(), make_log(), tmp_path, spark, kills=1)


@pytest.mark.faults
def test_a_job_that_is_killed_ten_times_says_what_one_says_that_is_not(
    spark: "SparkSession", make_log: MakeLog, tmp_path: Path
) -> None:
    """The same, with more chances to be killed between two writes."""
    killed(make_log(), make_log(), tmp_path, spark, kills=10)
