# The log of metrics records as a source of Spark: the Redis stream PREFIX:metrics.
#
# An offset says exactly what was read: `after`, the id of the last entry; `seen`, how many entries Redis had taken in
# by then; `lost`, how many of them Redis had cut off before anybody read them; `now`, what the clock of Redis says, in
# milliseconds. And how the offset was reached from the one before it: `cuts`, the ids between which the partitions lie,
# few of them, as each costs its executor more than its first hundred entries do. So a batch that is read again after a
# failure has the same entries in the same partitions, however the stream has grown since. When nobody writes there is a
# batch without entries each IDLE milliseconds, so that time passes in what is folded, and on repetition the same.
# Counting is done in Redis, by a script in small steps: the records themselves go from there to the executors alone.
#
# Redis away is no failure here: then there is nothing new. Reading what was promised already waits for it a while, and
# then fails; the job begins again where it was (job.py). An entry may be cut off between the two; the job sees that.
# A stream that was made anew, by a Redis that has forgotten everything, is read from its beginning.
# Redis before 7 does not say how many entries there were: then `lost` stays 0, and gaps are seen by the sequences of
# the records alone.
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

from analytics.connecting import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "weir_log"
# Of any source. *at*: when its log took the entry in; *among*: how many entries are in its batch, as far as is known.
COLUMNS: Final = "id string, at timestamp, body string, among long"
FIELD: Final = b"record"  # of an entry (broker/store/redis/record_log.py)
CHUNK: Final = 500  # entries that are counted, or read, in one step: a millisecond or two of Redis
PARTS: Final = 4  # partitions of a batch, at most
LIMIT: Final = 10_000  # entries of a batch: some 30 MB
LONGEST: Final = 1 << 20  # characters of a body; a longer one is no record, and cut
LAST_MS: Final = 4_102_444_800_000  # 2100: an id may be any number of 64 bits, a timestamp may not
FROM_THE_BEGINNING: Final = "0-0"
IDLE: Final = 10_000  # milliseconds
PATIENCE: Final = 20.0  # seconds that reading waits for Redis to come back
PAUSE: Final = 0.5

# How many entries follow *after*, of at most *count*, and which is the last: without their bodies leaving Redis.
STEP: Final = """
local found = redis.call('XRANGE', KEYS[1], '(' .. ARGV[1], '+', 'COUNT', ARGV[2])
return {#found, #found > 0 and found[#found][1] or ''}
"""

Offset = dict[str, Any]


class Part(InputPartition):
    """The entries after the id *after*, to the id *to*, of a batch of *among*."""

    def __init__(self, after: str, to: str, among: int) -> None:
        self.after = after
        self.to = to
        self.among = among


class RedisLog(DataSource):
    """Options: `url` of Redis, `key` of the stream, `limit` of entries per batch, `parts` of a batch at most."""

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
        return {"after": FROM_THE_BEGINNING, "seen": -1, "lost": 0, "now": 0, "cuts": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; *start*, if there is nothing new, or nobody to ask."""
        most = None if isinstance(limit, ReadAllAvailable) else cast(ReadMaxRows, limit).max_rows
        try:
            with connect(self._url) as client:
                return next_offset(client, self._key, start, most, self._parts)
        except (redis.RedisError, OSError):
            return start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[Part]:
        cuts = end["cuts"].split() if end != start else []
        among = max(0, end["seen"] - max(0, start["seen"]))
        return [Part(after, to, among) for after, to in pairwise(cuts)]

    def read(self, partition: InputPartition) -> "Iterator[tuple[Any, ...]] | Iterator[pyarrow.RecordBatch]":
        """The entries of *partition*. redis.RedisError: Redis was away too long."""
        part = cast(Part, partition)
        return iter([_columns(_patiently(self._url, self._key, part), part.among)])


def next_offset(client: "redis.Redis", key: str, start: Offset, most: int | None, parts: int = PARTS) -> Offset:
    """*start* and at most *most* entries further, in at most *parts* partitions. redis.RedisError."""
    try:
        told: dict[str, Any] = client.xinfo_stream(key)
    except redis.ResponseError as error:
        if "no such key" in str(error):
            return _later(client, start)
        raise
    if not told["length"]:
        return _later(client, start)
    after, seen, lost = start["after"], start["seen"], start["lost"]
    added = told.get("entries-added")
    cut_off = max(0, added - told["length"]) if added is not None else 0
    if order(_text(told["last-generated-id"])) < order(after) or (added is not None and added < seen):
        after, seen = FROM_THE_BEGINNING, cut_off  # another stream under the same name
    elif seen < 0:
        seen = cut_off  # before our time
    elif cut_off > seen and order(_text(told["first-entry"][0])) > order(after):
        lost += cut_off - seen
        seen = cut_off
    cuts = [after]
    left = most
    while left is None or left > 0:
        wanted = CHUNK if left is None else min(CHUNK, left)
        found, last = cast(list[Any], client.eval(STEP, 1, key, cuts[-1], str(wanted)))
        if found:
            cuts.append(_text(last))
            seen += found
        if found < wanted:
            break
        left = None if left is None else left - found
    if len(cuts) == 1:
        return _later(client, start)
    now = max(start["now"], min(order(cuts[-1])[0], LAST_MS))
    chunks = math.ceil((len(cuts) - 1) / parts)  # of a partition
    kept = [*cuts[:-1:chunks], cuts[-1]]
    return {"after": cuts[-1], "seen": seen, "lost": lost, "now": now, "cuts": " ".join(kept)}


def _later(client: "redis.Redis", start: Offset) -> Offset:
    """*start*, or IDLE later the same place at another time."""
    if start["seen"] < 0:
        return start
    seconds, _ = client.time()
    now = seconds * 1000
    return start if now < start["now"] + IDLE else {**start, "now": now, "cuts": ""}


def order(id: str) -> tuple[int, int]:
    """What ids of entries are compared by."""
    milliseconds, _, number = id.partition("-")
    return int(milliseconds), int(number or 0)


def register(spark: SparkSession) -> None:
    spark.dataSource.register(RedisLog)


def entries(spark: SparkSession, url: str, key: str, limit: int = LIMIT) -> "DataFrame":
    """The log at *url* under *key*, with COLUMNS."""
    register(spark)
    options: dict[str, str | int] = {"url": url, "key": key, "limit": limit}
    options["parts"] = 2 * spark.sparkContext.defaultParallelism
    return spark.readStream.format(NAME).options(**options).load()


def _patiently(url: str, key: str, part: Part) -> list[tuple[str, str | None]]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with connect(url) as client:
                return _read(client, key, part)
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError, OSError):
            if time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE)


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


def _columns(rows: list[tuple[str, str | None]], among: int) -> pyarrow.RecordBatch:
    ids = [id for id, _ in rows]
    at = [min(order(id)[0], LAST_MS) * 1000 for id in ids]
    return pyarrow.RecordBatch.from_arrays(
        [
            pyarrow.array(ids, pyarrow.string()),
            pyarrow.array(at, pyarrow.timestamp("us", tz="UTC")),
            pyarrow.array([body for _, body in rows], pyarrow.string()),
            pyarrow.array([among] * len(rows), pyarrow.int64()),
        ],
        names=["id", "at", "body", "among"],
    )


def _text(found: bytes | str) -> str:
    return found.decode() if isinstance(found, bytes) else found
