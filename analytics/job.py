# The job: one streaming query, and the work of the driver for each batch.
#
#   the log of metrics records -> decoded into seconds, without duplicates (Spark) -> folded (here) -> Redis, Parquet
#
# The log is the stream of Redis or the topic of Kafka (source.py). A batch is finished when its state is saved
# (checkpoint.py). Until then it can be repeated with the same result: its entries are exact, folding is a pure
# function, and the current time is taken from the offsets and the entries. A failure, for example while Redis is
# unavailable, ends the query but not the job: the query starts again from the checkpoint. The job ends if a batch fails
# repeatedly while Redis and the log are available.
import argparse
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import redis

from analytics import folding
from analytics.checkpoint import Checkpoint, CheckpointUnusable
from analytics.connecting import URL, connect
from analytics.connector import ADDRESS, ConnectorUnusable, KafkaAddress, jars
from analytics.rows import VERSION, Status
from analytics.second import Second
from analytics.sinks import History, RedisSink, unfit_entries
from analytics.source import LIMIT, Source, time_of
from broker.metrics.record import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


TRIGGER: Final = 1.0  # seconds
HEARTBEAT: Final = 4.0  # seconds without a batch, after which the job updates its status
MOST_CLOCKS: Final = 10  # nodes with a wrong clock that are named
MOST_UNFIT: Final = 100  # invalid entries of a batch that are kept; all are counted
FAILURES: Final = 6  # in a row, without a finished batch between them, while Redis is available
LONGEST_PAUSE: Final = 10.0
LAST_BATCH: Final = 10.0  # seconds that the last batch may take when the job stops
POLL: Final = 0.5  # seconds
REDIS: Final = "Redis"
GC_THRESHOLD: Final = 100_000  # objects: the folded state is large and has no cycles, so collections are mostly wasted

Counts = dict[str, int]
# gone: the log deleted the entry before it was read
NOTHING_COUNTED: Final[Counts] = {"late": 0, "unfit": 0, "gone": 0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str  # of Redis
    prefix: str
    checkpoint: Path
    history: Path | None  # None: no history is written
    kafka: KafkaAddress | None = None  # that has the records; None: they are in Redis
    topic: str = LOG  # of Kafka
    limit: int = LIMIT  # entries of a batch
    trigger: float = TRIGGER

    def source(self) -> Source:
        """The log. Raises ConnectorUnusable."""
        if self.kafka is not None:
            from analytics.kafka_source import KafkaSource

            return KafkaSource(self.kafka, self.limit, self.topic)
        from analytics.redis_source import RedisSource

        return RedisSource(self.url, self.prefix, self.limit)


class JobClosed(Exception):
    """A batch started after the last one. It must fail: Spark cannot stop a query that waits for Python."""


class Job:
    def __init__(self, settings: Settings, spark: "SparkSession") -> None:
        """Raises CheckpointUnusable, ConnectorUnusable."""
        self._settings = settings
        self._spark = spark
        self._source = settings.source()
        self._checkpoint = Checkpoint(settings.checkpoint, self._source.name)
        self._history = None if settings.history is None else History(settings.history)
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._taking = threading.Lock()  # held while a batch is processed, in a thread of its own
        self._closed = False  # true: no further batch is processed
        self._writing = threading.Lock()
        self._status: Status | None = None
        self._away = ""  # which server is not available
        self._batches = 0  # done by this process

    @property
    def shown(self) -> str:
        """The name of the log, for people."""
        return self._source.shown

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> str:
        """Run until `stop()`; return "", or the failure that ended the job."""
        gc.set_threshold(GC_THRESHOLD)
        failures, before = 0, 0
        try:
            self._wait_until_available()
            while not self._stopping.is_set():
                failure = self._run_query()
                if not failure:
                    continue
                failures = 1 if self._batches > before else failures + 1
                before = self._batches
                if self._available():
                    if failures >= FAILURES:
                        return failure
                    _print(f"A batch failed and is repeated: {failure}")
                self._stopping.wait(min(LONGEST_PAUSE, 0.5 * 2**failures))
                if self._wait_until_available():
                    failures = 0
        finally:
            self._checkpoint.close()
        return ""

    def _wait_until_available(self) -> bool:
        """Wait until Redis and the log are available, or `stop()`; return whether that took time."""
        waited = False
        while not self._stopping.is_set() and not self._available():
            waited = True
            self._stopping.wait(POLL)
        return waited

    def _run_query(self) -> str:
        """Run the query until it ends; return "" after `stop()`, otherwise the failure."""
        from py4j.protocol import Py4JError
        from pyspark.errors import StreamingQueryException

        query = None
        try:
            query = self._query = self._start()
            while not query.awaitTermination(POLL):  # type: ignore[arg-type]  # seconds with decimals will do
                if self._stopping.is_set():
                    self._close()
                    query.stop()
                    return ""
                self._write_status_if_idle()
        except (StreamingQueryException, Py4JError) as error:
            return "" if self._stopping.is_set() else _cause(error)
        return ""

    def _start(self) -> "StreamingQuery":
        from analytics.decoding import decoded, deduplicated

        settings = self._settings
        return (
            deduplicated(decoded(self._source.entries(self._spark)))
            .writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(self._checkpoint.spark.absolute()))
            .trigger(processingTime=f"{settings.trigger:g} seconds")
            .start()
        )

    def _close(self) -> None:
        """Wait for the current batch and refuse further ones."""
        taken = self._taking.acquire(timeout=LAST_BATCH)
        self._closed = True
        if taken:
            self._taking.release()

    def take(self, records: "DataFrame", batch: int) -> None:
        """Process *batch*. Raises JobClosed if the job stops: Spark must not regard the batch as finished."""
        with self._taking:
            if self._closed:
                raise JobClosed
            self._take(records, batch)

    def _take(self, records: "DataFrame", batch: int) -> None:
        from analytics.seconds import of_workers, table

        if self._checkpoint.done(batch):  # the job was killed before Spark committed; only Spark's state is written
            records.write.format("noop").mode("overwrite").save()
            return
        began = time.time()
        saved = self._checkpoint.state_before(batch)
        state = saved["fold"] if saved else folding.begin()
        counts: Counts = NOTHING_COUNTED | (saved["counts"] if saved else {})
        found = records.toArrow()
        ids, bodies = found.column("id").to_pylist(), found.column("unfit").to_pylist()
        planned = self._source.planned(self._checkpoint, batch, max(map(time_of, ids), default=0.0))
        now = max(planned.now, saved.get("now", 0.0) if saved else 0.0)
        invalid = len(ids) - bodies.count(None)
        duplicates = self._count_dropped(counts, saved["expected"] if saved else 0)
        counts["unfit"] += invalid
        counts["gone"] += planned.lost
        made = of_workers(found.column("second").to_pylist())
        folded = folding.fold(state, made, now)
        counts["late"] += folded.late
        newest = max([saved["newest"] if saved else 0, *(one["second"] for one in made)])
        with self._writing, connect(self._settings.url) as client:
            sink = RedisSink(client, self._settings.prefix)
            if invalid:
                sink.write_unfit(unfit_entries(ids, bodies, MOST_UNFIT))
            if self._history is not None and made:
                self._history.write(self._checkpoint.query(), batch, table(made))
            if saved is None:
                sink.close_left_open()
            updated = time.time()
            status: Status = {
                "version": VERSION,
                "batch": batch,
                "updated": updated,
                "newest": newest,
                "delay_s": round(updated - newest, 3) if newest else 0.0,
                "batch_s": round(updated - began, 3),
                "records": len(made),
                "duplicates": duplicates,
                "late": counts["late"],
                "unfit": counts["unfit"],
                "lost": counts["gone"],
                "clocks": _clocks(found.column("skew").to_pylist(), bodies, made),
            }
            sink.write(folded.windows, folded.episodes, folded.incidents, folded.findings, status)
            self._status = status
        read = {"expected": planned.entries, "now": now, "newest": newest}
        self._checkpoint.save(batch, {"fold": folded.state, "counts": counts, **read})
        self._batches += 1

    def _count_dropped(self, counts: Counts, expected: int) -> int:
        """Add the late records and the missing entries (of *expected*) of the previous batch to *counts*; return its
        number of duplicates. These figures are lost for the last batch before a crash.
        """
        progress = self._query.lastProgress if self._query is not None else None
        if progress is None or not progress["stateOperators"]:
            return 0
        if progress["batchId"] == counts.get("progress", -1):
            return 0
        counts["progress"] = progress["batchId"]
        operator = progress["stateOperators"][0]
        counts["late"] += operator["numRowsDroppedByWatermark"]
        counts["gone"] += max(0, expected - progress["numInputRows"])
        return int(operator["customMetrics"].get("numDroppedDuplicateRows", 0))

    def _write_status_if_idle(self) -> None:
        """Update the status if no batch has finished for HEARTBEAT seconds: without records there are no batches."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            status = self._status or _no_batch()
            now = time.time()
            if now - status["updated"] < HEARTBEAT:
                return
            self._status = status = {**status, "updated": now}
            why = self._redis_trouble()
            if why or self._away == REDIS:  # reading waits for Redis by itself, and says nothing
                self._tell(REDIS, why)
            if not why:
                with connect(self._settings.url) as client:
                    RedisSink(client, self._settings.prefix).write_status(status)
        except redis.RedisError:
            pass
        finally:
            self._writing.release()

    def _available(self) -> bool:
        """Return whether Redis and the log are available; print a line if this has changed."""
        away, why = REDIS, self._redis_trouble()
        if not why:
            away, why = self._source.shown, self._source.trouble(self._spark)
        self._tell(away, why)
        return not why

    def _tell(self, away: str, why: str) -> None:
        """Print a line if it has changed *why* *away* is not available; "": all are."""
        if why and away != self._away:
            _print(f"{away} is not available ({why}); the analysis waits for it.")
        if self._away and not why:
            _print(f"{self._away} is available; the analysis goes on.")
        self._away = away if why else ""

    def _redis_trouble(self) -> str:
        """Return why Redis is not available; "" if it is."""
        try:
            with connect(self._settings.url) as client:
                client.ping()
        except (redis.RedisError, OSError) as error:
            return str(error) or type(error).__name__
        return ""


def _no_batch() -> Status:
    return Status(
        version=VERSION,
        batch=-1,
        updated=0.0,
        newest=0.0,
        delay_s=0.0,
        batch_s=0.0,
        records=0,
        duplicates=0,
        late=0,
        unfit=0,
        lost=0,
        clocks={},
    )


def _clocks(skews: list[float], unfit: list[str | None], seconds: list[Second]) -> dict[str, float]:
    """Return the nodes of *seconds* whose clock is wrong, with the greatest of *skews* of each.

    *seconds* are those of the entries that are not *unfit*.
    """
    found: dict[str, float] = {}
    valid = (skew for skew, body in zip(skews, unfit, strict=True) if body is None)
    for skew, second in zip(valid, seconds, strict=True):
        node = second["node"]
        if abs(skew) > abs(found.get(node, 0.0)) and (node in found or len(found) < MOST_CLOCKS):
            found[node] = round(skew, 1)
    return found


def _cause(error: Exception) -> str:
    """Return the most informative line of *error*: the exception of Python if there is one, otherwise that of Java."""
    lines = [line.strip(" :") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("An error occurred while calling ")]
    exceptions = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File "))]
    return (exceptions or lines or [type(error).__name__])[-1 if exceptions else 0][:300]


def _print(sentence: str) -> None:
    print(f"weir: {sentence}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m analytics.job", description="Analyse the metrics of a cluster.")
    options.add_argument("--master", default="", help="URL of the Spark master (default: this machine)")
    options.add_argument("--prefix", default="weir", help="`redis.prefix` of the broker")
    options.add_argument("--checkpoint", type=Path, required=True, metavar="DIR")
    options.add_argument("--history", type=Path, metavar="DIR")
    options.add_argument("--limit", type=int, default=LIMIT, help="maximum number of entries per batch")
    options.add_argument("--topic", default=LOG, help="topic of Kafka with the metrics records")
    options.add_argument("--trigger", type=float, default=TRIGGER, help="seconds between batches")
    given = options.parse_args(arguments)
    settings = Settings(
        url=os.environ[URL],
        prefix=given.prefix,
        checkpoint=given.checkpoint,
        history=given.history,
        kafka=KafkaAddress.decode(os.environ[ADDRESS]) if ADDRESS in os.environ else None,
        topic=given.topic,
        limit=given.limit,
        trigger=given.trigger,
    )

    from py4j.protocol import Py4JError

    from analytics.spark import LOCAL, session

    try:
        spark = session(given.master or LOCAL, jars() if settings.kafka is not None else ())
        job = Job(settings, spark)
    except (CheckpointUnusable, ConnectorUnusable) as error:
        _print(str(error))
        return 2
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: job.stop())
    _print(f"The analysis of {job.shown} has started; its checkpoint is {settings.checkpoint}.")
    failure = job.run()
    with suppress(Py4JError, OSError):  # the Java process may have ended
        spark.stop()
    if failure:
        _print(f"The analysis stopped after repeated failures: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
