# From an entry of the log to one worker's second, or to why it is none.
#
# The type of a record is made from the broker's RECORD, and msgspec reads bodies by it: what fits is as `misfit` has
# it, found at the speed of C (from_json of Spark, and conditions on what it gives, cost three times as much). What
# exactly is wrong with the few that do not fit is said by `misfit`, later. Nothing of a body can stop the job.
#
# Event time is the record's own, by the clock of its node. One that is ahead would push the watermark and make the
# records of all others late, so it is at most AHEAD seconds after the log took the record in; a record was certainly
# made before that.
from collections.abc import Iterable, Iterator
from keyword import iskeyword
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow

from analytics.seconds import fewer, second_of
from broker.metrics.record import REAL, RECORD, TEXT, VERSION, WHOLE_LIMIT, Group, Kind, Table, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AHEAD: Final = 5  # seconds that clocks may differ, and nobody is the worse for it: half of DELAY
DELAY: Final = "10 seconds"  # of the watermark: what comes later than that is late, and counted
LATEST: Final = 4e9  # Unix time; what is later is no time
MICROSECONDS: Final = 1_000_000
SHOWN: Final = 4096  # characters of a body that does not fit that are kept

# Of an entry. `key` names the record for ever; `time` is event time; `ahead`: its clock was, by more than AHEAD
# seconds; `second`: a Second, as JSON; `unfit`: the beginning of a body that is no record. One of the two is null.
ENTRY: Final = pyarrow.schema(
    [
        ("id", pyarrow.string()),
        ("key", pyarrow.string()),
        ("time", pyarrow.timestamp("us", tz="UTC")),
        ("ahead", pyarrow.bool_()),
        ("second", pyarrow.string()),
        ("unfit", pyarrow.string()),
    ]
)


def form(kind: Kind = RECORD, name: str = "record") -> Any:
    """The type of *kind*, for msgspec. A field that is a word of Python has an underscore behind it."""
    if isinstance(kind, Value):
        whole = Annotated[int, msgspec.Meta(ge=0, le=WHOLE_LIMIT - 1)]
        return {TEXT: str, REAL: float}.get(kind.type, whole)
    if isinstance(kind, Group):
        attributes = {field: f"{field}_" if iskeyword(field) else field for field in kind.fields}
        fields = [(attributes[field], form(of, field)) for field, of in kind.fields.items()]
        renamed = {attribute: field for field, attribute in attributes.items()}
        return msgspec.defstruct(name, fields, rename=renamed, gc=False)
    if isinstance(kind, Table):
        return dict[str, form(kind.of, name)]  # type: ignore[misc]
    return Annotated[list[form(kind.of, name)], msgspec.Meta(max_length=kind.most)]  # type: ignore[misc]


DECODER: Final = msgspec.json.Decoder(form())


def record_of(body: bytes | None) -> Any:
    """What *body* says, as `form` has it; None: it is no record of ours."""
    if body is None:
        return None
    try:
        found = DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if found.version == VERSION and 0.0 <= found.ts <= LATEST else None


def decoded(entries: "DataFrame") -> "DataFrame":
    """*entries* of a log (source.COLUMNS), as ENTRY has them."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return entries.mapInArrow(_of_batches, from_arrow_schema(ENTRY))


def once(records: "DataFrame") -> "DataFrame":
    """*records* as `decoded` gives them, each once, and those that are too late left out."""
    return records.withWatermark("time", DELAY).dropDuplicatesWithinWatermark(["key"])


def _of_batches(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    return map(of_entries, batches)


def of_entries(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """What `decoded` makes of a part of the log."""
    most = fewer(max(batch.column("among").to_pylist(), default=0))
    ids = batch.column("id").to_pylist()
    taken_in = batch.column("at").cast(pyarrow.int64()).to_pylist()
    keys: list[str] = []
    times: list[int] = []
    ahead: list[bool] = []
    seconds: list[str | None] = []
    unfit: list[str | None] = []
    for id, at, body in zip(ids, taken_in, batch.column("body").cast(pyarrow.binary()).to_pylist(), strict=True):
        record = record_of(body)
        if record is None:
            keys.append(id)
            times.append(at)
            ahead.append(False)
            seconds.append(None)
            unfit.append((body or b"").decode()[:SHOWN])
            continue
        made, latest = int(record.ts * MICROSECONDS), at + AHEAD * MICROSECONDS
        time = min(made, latest)
        keys.append(f"{record.boot}:{record.sequence}")
        times.append(time)
        ahead.append(made > latest)
        seconds.append(msgspec.json.encode(second_of(record, time / MICROSECONDS, most)).decode())
        unfit.append(None)
    columns = (ids, keys, times, ahead, seconds, unfit)
    arrays = [pyarrow.array(column, field.type) for column, field in zip(columns, ENTRY, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=ENTRY)
