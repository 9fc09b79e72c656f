# The job: one streaming query, and what the driver does with each of its batches.
#
#   the log -> decoded into seconds, each record once (Spark) -> folded (here) -> Redis, Parquet
#
# A batch is done when its state is saved (checkpoint.py). Until then all of it can be done again and comes out the
# same: its entries are exact, folding is a pure function, and "now" is what the offset says.
# Whatever fails, and Redis being away above all, ends the query and not the job: it begins again from its checkpoint.
# Only what fails again and again while Redis answers ends it.
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
from analytics.keys import AnalyticsKeys
from analytics.rows import VERSION, Status
from analytics.sinks import History, RedisSink, unfit_entries

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


TRIGGER: Final = 1.0  # seconds
QUIET: Final = 4.0  # seconds without a batch, after which the job says that it lives
MOST_UNFIT: Final = 100  # entries of a batch that are kept; all are counted
FAILURES: Final = 6  # in a row without a batch between them, while Redis answers
LONGEST_PAUSE: Final = 10.0
LAST_BATCH: Final = 10.0  # seconds that it may take when the job is to end
LOOK: Final = 0.5  # seconds
YOUNG: Final = 100_000  # objects before cycles are looked for: there are none in what is folded, and it is large

Counts = dict[str, int]
NOTHING_COUNTED: Final[Counts] = {"late": 0, "unfit": 0, "gone": 0, "ahead": 0}  # gone: as a batch was to read it


@dataclass(frozen=True, kw_only=True)
class Settings:
    url: str  # of Redis
    prefix: str
    checkpoint: Path
    history: Path | None  # None: none is kept
    limit: int = 10_000  # entries of a batch: some 30 MB
    trigger: float = TRIGGER


class JobClosed(Exception):
    """A batch came after the last one. It may not wait instead: Spark does not stop a query that waits for Python."""


class Job:
    def __init__(self, settings: Settings, spark: "SparkSession") -> None:
        """CheckpointUnusable."""
        self._settings = settings
        self._spark = spark
        self._key = AnalyticsKeys(settings.prefix).metrics
        self._checkpoint = Checkpoint(settings.checkpoint, self._key)
        self._history = None if settings.history is None else History(settings.history)
        self._query: StreamingQuery | None = None
        self._stopping = threading.Event()
        self._taking = threading.Lock()  # held while a batch is taken, in a thread of its own
        self._closed = False  # no batch is taken any more
        self._writing = threading.Lock()
        self._status: Status | None = None
        self._away = False
        self._batches = 0  # done by this process

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> str:
        """Until `stop()`; what ended it otherwise, "" for nothing."""
        gc.set_threshold(YOUNG)
        failures, before = 0, 0
        try:
            while not self._stopping.is_set():
                wrong = self._run_query()
                if not wrong:
                    continue
                failures = 1 if self._batches > before else failures + 1
                before = self._batches
                if self._answers():
                    if failures >= FAILURES:
                        return wrong
                    _say(f"A batch failed, and is done again: {wrong}")
                self._stopping.wait(min(LONGEST_PAUSE, 0.5 * 2**failures))
                while not self._stopping.is_set() and not self._answers():
                    failures = 0
                    self._stopping.wait(LOOK)
        finally:
            self._checkpoint.close()
        return ""

    def _run_query(self) -> str:
        """One life of the query; what ended it, "" for `stop()`."""
        from py4j.protocol import Py4JError
        from pyspark.errors import StreamingQueryException

        query = None
        try:
            query = self._query = self._start()
            while not query.awaitTermination(LOOK):  # type: ignore[arg-type]  # seconds with decimals will do
                if self._stopping.is_set():
                    self._close()
                    query.stop()
                    return ""
                self._tell_if_quiet()
        except (StreamingQueryException, Py4JError) as error:
            return "" if self._stopping.is_set() else _cause(error)
        return ""

    def _start(self) -> "StreamingQuery":
        from analytics.decoding import decoded, once
        from analytics.source import entries

        settings = self._settings
        log = entries(self._spark, settings.url, self._key, settings.limit)
        return (
            once(decoded(log))
            .writeStream.foreachBatch(self.take)
            .option("checkpointLocation", str(self._checkpoint.spark.absolute()))
            .trigger(processingTime=f"{settings.trigger:g} seconds")
            .start()
        )

    def _close(self) -> None:
        """Let the batch that is being taken be the last one."""
        taken = self._taking.acquire(timeout=LAST_BATCH)
        self._closed = True
        if taken:
            self._taking.release()

    def take(self, records: "DataFrame", batch: int) -> None:
        """All that is done with *batch*. JobClosed: nothing is, and Spark is not to take it for done."""
        with self._taking:
            if self._closed:
                raise JobClosed
            self._take(records, batch)

    def _take(self, records: "DataFrame", batch: int) -> None:
        from analytics.seconds import of_workers, table

        if self._checkpoint.done(batch):  # we were killed before Spark knew; it has its own state to write
            records.write.format("noop").mode("overwrite").save()
            return
        began = time.time()
        saved = self._checkpoint.state_before(batch)
        state = saved["fold"] if saved else folding.begin()
        counts: Counts = NOTHING_COUNTED | (saved["counts"] if saved else {})
        offset = self._checkpoint.offset(batch)
        expected = max(0, offset["seen"] - (saved["seen"] if saved else 0))
        found = records.toArrow()
        ids, bodies = found.column("id").to_pylist(), found.column("unfit").to_pylist()
        wrong = len(ids) - bodies.count(None)
        duplicates = self._count_what_was_dropped(counts, saved["expected"] if saved else 0)
        counts["unfit"] += wrong
        counts["ahead"] += found.column("ahead").to_pylist().count(True)
        made = of_workers(found.column("second").to_pylist())
        folded = folding.fold(state, made, offset["now"] / 1000)
        counts["late"] += folded.late
        newest = max([saved["newest"] if saved else 0, *(one["second"] for one in made)])
        with self._writing, connect(self._settings.url) as client:
            sink = RedisSink(client, self._settings.prefix)
            if wrong:
                sink.write_unfit(unfit_entries(ids, bodies, MOST_UNFIT))
            if self._history is not None and made:
                self._history.write(batch, table(made))
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
                "lost": offset["lost"] + counts["gone"],
            }
            sink.write(folded.windows, folded.episodes, folded.findings, status)
            self._status = status
        read = {"seen": offset["seen"], "expected": expected, "newest": newest}
        self._checkpoint.save(batch, {"fold": folded.state, "counts": counts, **read})
        self._batches += 1

    def _count_what_was_dropped(self, counts: Counts, expected: int) -> int:
        """Add to *counts* what the batch before this one found too late, and what of the *expected* entries it did not
        find at all; how many duplicates it had. What the last batch before a crash dropped, nobody knows.
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

    def _tell_if_quiet(self) -> None:
        """Without records there are no batches; we say that we live."""
        if not self._writing.acquire(blocking=False):
            return
        try:
            status = self._status or _no_batch()
            now = time.time()
            if now - status["updated"] < QUIET:
                return
            self._status = status = {**status, "updated": now}
            if self._answers():
                with connect(self._settings.url) as client:
                    RedisSink(client, self._settings.prefix).tell(status)
        except redis.RedisError:
            pass
        finally:
            self._writing.release()

    def _answers(self) -> bool:
        """Whether Redis does; the change is told."""
        try:
            with connect(self._settings.url) as client:
                client.ping()
            away = ""
        except (redis.RedisError, OSError) as error:
            away = str(error)
        if away and not self._away:
            _say(f"Redis does not answer ({away}); the analysis goes on by itself when it does.")
        if self._away and not away:
            _say("Redis answers again, and the analysis goes on.")
        self._away = bool(away)
        return not away


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
    )


def _cause(error: Exception) -> str:
    """The line that says most: Python's own exception if there was one, else Java's."""
    lines = [line.strip(" :") for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith("An error occurred while calling ")]
    told = [line for line in lines if "Error: " in line and not line.startswith(("at ", "File "))]
    return (told or lines or [type(error).__name__])[-1 if told else 0][:300]


def _say(sentence: str) -> None:
    print(f"weir: {sentence}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(prog="python -m analytics.job", description="Analyse the log of a broker.")
    options.add_argument("--master", default="", help="of Spark; without it, this machine")
    options.add_argument("--prefix", default="weir", help="redis.prefix of the broker")
    options.add_argument("--checkpoint", type=Path, required=True, metavar="DIR")
    options.add_argument("--history", type=Path, metavar="DIR")
    options.add_argument("--limit", type=int, default=10_000, help="entries of a batch")
    options.add_argument("--trigger", type=float, default=TRIGGER, help="seconds between batches")
    given = options.parse_args(arguments)
    settings = Settings(
        url=os.environ[URL],
        prefix=given.prefix,
        checkpoint=given.checkpoint,
        history=given.history,
        limit=given.limit,
        trigger=given.trigger,
    )

    from py4j.protocol import Py4JError

    from analytics.spark import LOCAL, session

    spark = session(given.master or LOCAL)
    try:
        job = Job(settings, spark)
    except CheckpointUnusable as error:
        _say(str(error))
        return 2
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda *_: job.stop())
    _say(f"The analysis of {settings.prefix}:metrics runs, and keeps its place in {settings.checkpoint}.")
    wrong = job.run()
    with suppress(Py4JError, OSError):  # it may be Java that ended
        spark.stop()
    if wrong:
        _say(f"The analysis ended, as this failed again and again: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
