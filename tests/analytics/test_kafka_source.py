# What the source in Kafka knows of a batch; Kafka and Spark themselves are in test_job_on_kafka.py.
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from analytics.checkpoint import Checkpoint
from analytics.clock import ClockReader
from analytics.connector import KafkaAddress
from analytics.kafka_source import KafkaSource
from analytics.source import IDLE, Planned

TOPIC = "weir.metrics"
NOON = 1_700_000_000_000  # milliseconds


class Batches:
    """What Spark saves of them, and what is known then."""

    def __init__(self, folder: Path) -> None:
        self.source = KafkaSource(KafkaAddress(hosts=("k:1",)))
        self.checkpoint = Checkpoint(folder, self.source.name)
        for name in ("offsets", "sources/0"):
            (self.checkpoint.spark / name).mkdir(parents=True)
        self._next = 0

    def begin(self, offset: int) -> None:
        text = "\0v1\n" + json.dumps({TOPIC: {"0": offset}})
        (self.checkpoint.spark / "sources" / "0" / "0").write_text(text)

    def add(self, end: int, clock: int = NOON, newest: float = 0.0) -> Planned:
        lines = ("v1", '{"batchWatermarkMs":0}', json.dumps({TOPIC: {"0": end}}), json.dumps({"now": clock}))
        (self.checkpoint.spark / "offsets" / str(self._next)).write_text("\n".join(lines))
        self._next += 1
        return self.source.planned(self.checkpoint, self._next - 1, newest)


@pytest.fixture
def batches(tmp_path: Path) -> Iterator[Batches]:
    made = Batches(tmp_path)
    yield made
    made.checkpoint.close()


def test_a_batch_has_the_entries_between_two_offsets(batches: Batches) -> None:
    """Records that Kafka deleted before they were read would not be missed, or some that were before the job began."""
    batches.begin(5000)

    assert 7 == batches.add(5007).entries
    assert 0 == batches.add(5007).entries
    assert Planned(3, 0, 12.5) == batches.add(5010, newest=12.5)


def test_the_records_of_a_topic_that_was_made_anew_are_lost_up_to_where_reading_goes_on(batches: Batches) -> None:
    """Nobody would know that the job has not read them."""
    batches.begin(0)
    batches.add(100)

    found = [batches.add(5), batches.add(8)]

    assert [(0, 5), (3, 0)] == [(one.entries, one.lost) for one in found]


def test_the_time_of_a_batch_is_that_of_its_newest_entry_and_of_the_clock_if_nobody_writes(batches: Batches) -> None:
    """A job that is hours behind would take all episodes for ended, or those that ended with their node for open."""
    batches.begin(0)

    assert 1000.5 == batches.add(1, newest=1000.5).now
    assert 0.0 == batches.add(2).now  # its entry was dropped: it says nothing of the time
    assert NOON / 1000 == batches.add(2).now


def test_the_clock_has_a_new_time_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would make a batch each second for nothing, or none at all."""
    now = NOON
    monkeypatch.setattr("analytics.clock._now", lambda: now)
    reader = ClockReader()
    first = reader.initialOffset()
    now += IDLE - 1
    assert first == reader.latestOffset(first, ReadAllAvailable())
    now += 1

    second = reader.latestOffset(first, ReadAllAvailable())

    assert {"now": NOON + IDLE} == second
    assert [] == reader.partitions(first, second)
