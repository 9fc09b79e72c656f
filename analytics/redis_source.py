# The stream of metrics records (Redis stream PREFIX:metrics) as a streaming source of Spark.
#
# An offset describes exactly what was read:
# - `after`: the id of the last entry
# - `seen`: how many entries had been added to the stream up to that entry
# - `count`: how many entries the batch has
# - `lost`: how many of them Redis trimmed before they were read
# - `now`: the clock of Redis, in milliseconds
# - `cuts`: the ids at the boundaries of the partitions since the previous offset. They are few: a partition costs its
#   executor more than its first hundred entries do.
# So a batch that is read again after a failure has the same entries in the same partitions, however the stream has
# grown since. If no entries arrive, an empty batch is made every IDLE milliseconds: time passes in the folded state,
# and a repetition of the batch has the same time. A script in Redis counts the entries, in small steps: the records go
# from Redis directly to the executors.
#
# While Redis is unavailable, `latestOffset` reports no new entries. Reading a batch that is already planned retries for
# a while and then fails; the job resumes from its checkpoint (job.py). If Redis trims an entry between planning and
# reading, the job notices. A stream that was created anew, by a Redis without data, is read from its beginning. Redis
# before 7 does not report how many entries were added: `lost` stays 0, and only the sequence numbers of the records
# reveal gaps.
import math
import time
from collections.abc import Iterator, MutableMapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow
import redis
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from analytics.checkpoint import Checkpoint
from analytics.connecting import connect
from analytics.keys import AnalyticsKeys
from analytics.source import COLUMNS, IDLE, LAST_MS, LIMIT, LONGEST, Planned, id_order

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "weir_log"
FIELD: Final = b"record"  # of an entry (broker/store/redis/record_log.py)
CHUNK: Final = 500  # entries that are counted or read in one step: one or two milliseconds of Redis
PARTS: Final = 4  # partitions of a batch, at most
BEGINNING: Final = "0-0"
RETRY_FOR: Final = 20.0  # seconds that reading waits for an unavailable Redis
RETRY_EVERY: Final = 0.5

# Returns how many entries (at most ARGV[2]) follow the id ARGV[1], and the id of the last. The bodies stay in Redis.
STEP: Final = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
return {#found, #found > 0 and found[#found][1] or ''}
"""

Offset = dict[str, Any]


class Part(InputPartition):
    """The entries after the id *after* up to the id *to*; the batch has *parts* partitions."""

    def __init__(self, after: str, to: str, parts: int) -> None:
        self.after = after
        self.to = to
        self.parts = parts


class RedisSource:
    """A `Source`: the stream of the cluster with *prefix*, in the Redis at *url*."""

    def __init__(self, url: str, prefix: str, limit: int = LIMIT) -> None:
        """*limit*: entries of a batch."""
        self.name = self.shown = AnalyticsKeys(prefix).metrics
        self._url = url
        self._limit = limit

    def entries(self, spark: SparkSession) -> "DataFrame":
        register(spark)
        options: dict[str, str | int] = {"url": self._url, "key": self.name, "limit": self._limit}
        options["parts"] = 2 * spark.sparkContext.defaultParallelism
        return spark.readStream.format(NAME).options(**options).load()

    def planned(self, checkpoint: Checkpoint, batch: int, newest: float) -> Planned:
        (end,) = checkpoint.offsets(batch)
        lost = checkpoint.offsets(batch - 1)[0]["lost"] if batch else 0
        # Without `count`, the batch was planned by an earlier version: if an entry is missing, it is not noticed.
        return Planned(end.get("count", 0), end["lost"] - lost, end["now"] / 1000)

    def trouble(self, spark: SparkSession) -> str:
        return ""  # the results are in the same Redis, which the job looks after


class RedisLog(DataSource):
    """Options: `url` of Redis, `key` of the stream, `limit` (entries per batch), `parts` (partitions per batch)."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: StructType) -> "RedisLogReader":
        return RedisLogReader(self.options)


class RedisLogReader(DataSourceStreamReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._url = options["url"]
        self._key = options["key"]
        self._limit = int(options.get("limit") or LIMIT)
        self._parts = int(options.get("parts") or PARTS)

    def initialOffset(self) -> dict[str, Any]:
        return {"after": BEGINNING, "seen": -1, "count": 0, "lost": 0, "now": 0, "cuts": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; *start* if no entries are new or Redis is unavailable."""
        most = None if isinstance(limit, ReadAllAvailable) else cast(ReadMaxRows, limit).max_rows
        try:
            with connect(self._url) as client:
                return next_offset(client, self._key, start, most, self._parts)
        except (redis.RedisError, OSError):
            return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Part]:
        cuts = end["cuts"].split() if end != start else []
        return [Part(after, to, len(cuts) - 1) for after, to in pairwise(cuts)]

    def read(self, partition: InputPartition) -> "Iterator[tuple[Any, ...]] | Iterator[pyarrow.RecordBatch]":
        """Return the entries of *partition*. Raises redis.RedisError if Redis is unavailable for too long."""
        part = cast(Part, partition)
        return iter([_columns(_read_with_retries(self._url, self._key, part), part.parts)])


def next_offset(client: "redis.Redis", key: str, start: Offset, most: int | None, parts: int = PARTS) -> Offset:
    """Return the offset at most *most* entries after *start*, with at most *parts* partitions. redis.RedisError."""
    try:
        info: dict[str, Any] = client.xinfo_stream(key)
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return _idle_offset(client, start)
        raise
    if not info["length"]:
        return _idle_offset(client, start)
    after, seen, lost = start["after"], start["seen"], start["lost"]
    added = info.get("entries-added")
    cut_off = max(0, added - info["length"]) if added is not None else 0
    if id_order(_text(info["last-generated-id"])) < id_order(after) or (added is not None and added < seen):
        after, seen = BEGINNING, cut_off  # another stream under the same name
    elif seen < 0:
        seen = cut_off  # the first read: entries that were trimmed before do not count as lost
    elif cut_off > seen and id_order(_text(info["first-entry"][0])) > id_order(after):
        lost += cut_off - seen
        seen = cut_off
    cuts = [after]
    count = 0
    left = most
    while left is None or left > 0:
        wanted = CHUNK if left is None else min(CHUNK, left)
        found, last = cast(list[Any], client.eval(STEP, 1, key, cuts[-1], str(wanted)))
        if found:
            cuts.append(_text(last))
            seen += found
            count += found
        if found < wanted:
            break
        left = None if left is None else left - found
    if len(cuts) == 1:
        return _idle_offset(client, start)
    now = max(start["now"], min(id_order(cuts[-1])[0], LAST_MS))
    chunks = math.ceil((len(cuts) - 1) / parts)  # per partition
    kept = [*cuts[:-1:chunks], cuts[-1]]
    return {"after": cuts[-1], "seen": seen, "count": count, "lost": lost, "now": now, "cuts": " ".join(kept)}


def _idle_offset(client: "redis.Redis", start: Offset) -> Offset:
    """Return *start*; if IDLE milliseconds have passed, the same position with the current time."""
    if start["seen"] < 0:
        return start
    seconds, _ = client.time()
    now = seconds * 1000
    return start if now < start["now"] + IDLE else {**start, "count": 0, "now": now, "cuts": ""}


def register(spark: SparkSession) -> None:
    spark.dataSource.register(RedisLog)


def _read_with_retries(url: str, key: str, part: Part) -> list[tuple[str, str | None]]:
    deadline = time.monotonic() + RETRY_FOR
    while True:
        try:
            with connect(url) as client:
                return _read(client, key, part)
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError, OSError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_EVERY)


def _read(client: "redis.Redis", key: str, part: Part) -> list[tuple[str, str | None]]:
    rows: list[tuple[str, str | None]] = []
    after = part.after
    while True:
        found = cast(list[Any], client.xrange(key, f"({after}", part.to, CHUNK))
        for id, fields in found:
            body = fields.get(FIELD) if fields else None
            rows.append((_text(id), None if body is None else body.decode(errors="replace")[:LONGEST]))
        if len(found) < CHUNK:
            return rows
        after = rows[-1][0]


def _columns(rows: list[tuple[str, str | None]], parts: int) -> pyarrow.RecordBatch:
    ids = [id for id, _ in rows]
    at = [min(id_order(id)[0], LAST_MS) * 1000 for id in ids]
    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array(ids, pyarrow.string()),
            pyarrow.array(at, pyarrow.timestamp("us", tz="UTC")),
            pyarrow.array([body for _, body in rows], pyarrow.string()),
            pyarrow.array([parts] * len(rows), pyarrow.int32()),
        ],
        names=["id", "at", "body", "parts"],
    )


def _text(found: bytes | str) -> str:
    return found.decode() if isinstance(found, bytes) else found
