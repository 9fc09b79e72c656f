# Decodes an entry of the log of metrics records (source.py) to a Second (second.py), or marks it as invalid.
#
# The record is decoded by its msgspec type (record_type.py); Spark's from_json with conditions on its result costs
# three times as much. `misfit` explains later what is wrong with the few invalid entries. No content of an entry can
# stop the job.
#
# The event time is the timestamp of the record, by the clock of its node. A clock that is ahead would advance the
# watermark and make the records of all other nodes late. A clock that is behind would make the records of its
# node late. The log gets a record within seconds, or not at all (broker/store/redis/record_log.py). Therefore the event
# time is at most SKEW seconds from the time at which the log took the entry in.
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow

from analytics.record_type import DECODER
from analytics.seconds import names_per_row, second_of
from broker.metrics.record import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SKEW: Final = 5  # seconds by which clocks may differ without harm: half of DELAY
DELAY: Final = "10 seconds"  # of the watermark: later records are dropped and counted as late
LATEST: Final = 4e9  # Unix time; a later timestamp is invalid
MICROSECONDS: Final = 1_000_000
SHOWN: Final = 4096  # characters of an invalid body that are kept

# A decoded entry. `key` identifies the record; `time` is the event time; `skew` is the number of seconds by which the
# clock of the node is ahead (behind, if negative) if these are more than SKEW, otherwise 0; `second` is a Second, as
# JSON; `unfit` is the beginning of an invalid body. Either `second` or `unfit` is null.
ENTRY: Final = pyarrow.schema(
    [
        ("id", pyarrow.string()),
        ("key", pyarrow.string()),
        ("time", pyarrow.timestamp("us", tz="UTC")),
        ("skew", pyarrow.float64()),
        ("second", pyarrow.string()),
        ("unfit", pyarrow.string()),
    ]
)


def record_of(body: bytes | None) -> Any:
    """Return the record in *body*, an instance of the type of `record_type`; None if *body* is not a valid record."""
    if body is None:
        return None
    try:
        found = DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.version == VERSION and 0.0 <= found.ts <= LATEST else None


def decoded(entries: "DataFrame") -> "DataFrame":
    """Return *entries* of the log (source.COLUMNS) with the columns of ENTRY."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return entries.mapInArrow(_of_batches, from_arrow_schema(ENTRY))


def deduplicated(records: "DataFrame") -> "DataFrame":
    """Return *records* (see `decoded`) without duplicates and without records that are later than the watermark."""
    return records.withWatermark("time", DELAY).dropDuplicatesWithinWatermark(["key"])


def _of_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    return map(of_entries, batches)


def of_entries(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """Decode one Arrow batch of entries."""
    most = names_per_row(len(batch) * max(batch.column("parts").to_pylist(), default=1))
    ids = batch.column("id").to_pylist()
    taken_in = batch.column("at").cast(pyarrow.int64()).to_pylist()
    keys: list[str] = []
    times: list[int] = []
    skews: list[float] = []
    seconds: list[str | None] = []
    unfit: list[str | None] = []
    for id, at, body in zip(ids, taken_in, batch.column("body").cast(pyarrow.binary()).to_pylist(), strict=True):
        record = record_of(body)
        if record is None:
            keys.append(id)
            times.append(at)
            skews.append(0.0)
            seconds.append(None)
            unfit.append((body or b"").decode()[:SHOWN])
            continue
        made = int(record.ts * MICROSECONDS)
        time = min(max(made, at - SKEW * MICROSECONDS), at + SKEW * MICROSECONDS)
        keys.append(f"{record.boot}:{record.sequence}")
        times.append(time)
        skews.append(0.0 if time == made else (made - at) / MICROSECONDS)
        seconds.append(msgspec.json.encode(second_of(record, time / MICROSECONDS, most)).decode())
        unfit.append(None)
    columns = (ids, keys, times, skews, seconds, unfit)
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, ENTRY, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=ENTRY)
