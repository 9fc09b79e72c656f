import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow

from analytics.decoding import SKEW, decoded, of_entries, record_of
from broker.metrics.record import RECORD, TEXT, Group, Kind, Rows, Table, Value, misfit
from tests.analytics.records import BEGAN, body, record, top

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT = datetime.fromtimestamp(BEGAN + 1, UTC)


def entries(bodies: Sequence[str | None], parts: int = 1) -> pyarrow.RecordBatch:
    """A log of *bodies*, all taken in at the same time, and read in a batch with *parts* partitions."""
    ids = [f"{(BEGAN + 1) * 1000}-{number}" for number in range(len(bodies))]
    return pyarrow.RecordBatch.from_pydict(
        {
            "id": pyarrow.array(ids, pyarrow.string()),
            "at": pyarrow.array([AT] * len(ids), pyarrow.timestamp("us", tz="UTC")),
            "body": pyarrow.array(bodies, pyarrow.string()),
            "parts": pyarrow.array([parts] * len(ids), pyarrow.int32()),
        }
    )


def spoilt(whole: dict[str, Any]) -> list[str]:
    """*whole*, with one thing in it missing or another, each time another thing, as JSON."""
    made: list[str] = []

    def spoil(kind: Kind, place: Any, key: Any) -> None:
        good = place[key]
        for bad in bad_ones(kind):
            place[key] = bad
            made.append(json.dumps(whole))
        del place[key]
        if isinstance(place, dict):
            made.append(json.dumps(whole))
            place[key] = good
        else:
            place.insert(key, good)
        if isinstance(kind, Group):
            for name, of in kind.fields.items():
                spoil(of, good, name)
        elif isinstance(kind, Table) and good:
            spoil(kind.of, good, next(iter(good)))
        elif isinstance(kind, Rows) and good:
            spoil(kind.of, good, 0)

    for name, kind in RECORD.fields.items():
        spoil(kind, whole, name)
    return made


def bad_ones(kind: Kind) -> list[object]:
    if isinstance(kind, Value):
        if kind.type == TEXT:
            return [None, 5, [], {}, True]
        more: list[object] = [] if kind.type == "real" else [-1, 1.5, 2**63]
        return [None, "x", [], {}, True, *more]
    return [None, 5, "x", {} if isinstance(kind, Group | Rows) else []]


def busy() -> dict[str, Any]:
    """A record with something in every table of it."""
    return record(
        level=3,
        cause="lag",
        paused={"overload": {"clients": 1, "pauses": 2, "ms": 3}},
        dropped={"expired": 1},
        refused={"quota": 1},
        closed={"client": 1},
        top={"clients": top("client", a=5), "topics": top("topic", t=5)},
    )


def test_the_analysis_and_the_broker_agree_on_what_is_a_record() -> None:
    """Half a record would be taken for a whole one, or a whole one thrown away."""
    bodies = [json.dumps(busy()), json.dumps(busy() | {"more": [1]}), *spoilt(busy())]

    fits = [one is None for one in of_entries(entries(bodies)).column("unfit").to_pylist()]

    expected = [not misfit(json.loads(one)) for one in bodies]
    assert len(bodies) > 300
    assert [True, True] == expected[:2]
    assert [] == [body[:300] for body, is_one, should in zip(bodies, fits, expected, strict=True) if is_one != should]


def test_whatever_is_in_the_log_is_a_record_or_unfit_and_nothing_stops() -> None:
    """One corrupt entry would end the analysis, again and again after each restart."""
    good = body()
    strange = [
        None,
        "",
        " ",
        "{",
        "null",
        "[]",
        "true",
        "\x00",
        f"[{good}]",
        good[:-1],
        good.replace("0.25", "NaN"),
        good.replace("0.25", "1e999"),
        good.replace("0.25", "Infinity"),
        good.replace('"level": 0', '"level": 99999999999999999999'),
        '{"version": ' * 5000,
        "[" * 100_000,
        "{" + "x" * 100_000,
        '{"x":' * 200_000,
        body(version=2),
        body(ts=-1.0),
        body(ts=1e300),
    ]

    *found, fits = of_entries(entries([*strange, good])).to_pylist()

    assert [] == [body for body, row in zip(strange, found, strict=True) if row["unfit"] is None]
    assert all(row["key"] == row["id"] and row["second"] is None for row in found)
    assert 4096 == max(len(row["unfit"]) for row in found)
    assert (None, "b00:0") == (fits["unfit"], fits["key"])


def test_a_wrong_clock_is_corrected_whether_it_is_ahead_or_behind() -> None:
    """Ahead, it would make the records of all other nodes late; behind, those of its own, and no one would know."""
    skews = (-86_400.0, -SKEW - 0.5, -SKEW, 0.0, SKEW, SKEW + 0.5, 86_400.0)
    bodies = [body(ts=BEGAN + 1 + skew) for skew in skews]

    found = of_entries(entries(bodies)).to_pylist()

    expected = [timedelta(seconds=skew) for skew in (-SKEW, -SKEW, -SKEW, 0.0, SKEW, SKEW, SKEW)]
    assert expected == [row["time"] - AT for row in found]
    assert [-86_400.0, -SKEW - 0.5, 0.0, 0.0, 0.0, SKEW + 0.5, 86_400.0] == [row["skew"] for row in found]


def test_a_record_of_a_newer_broker_is_read() -> None:
    """While a cluster is upgraded node by node, the upgraded nodes would be missing on every page."""
    newer = record()
    newer["another"] = {"figure": 1}
    newer["clients"]["another"] = 1
    rows = [{**newer["top"]["clients"]["rows"][0], "another": 1, "client": f"c{n}"} for n in range(50)]
    newer["top"] = {**newer["top"], "clients": {**newer["top"]["clients"], "rows": rows}}  # 10 more by one more measure

    assert "" == misfit(newer)
    assert record_of(json.dumps(newer).encode()) is not None


def test_spark_says_what_we_make_of_entries(spark: "SparkSession") -> None:
    """Columns would be taken for others, or lose what Spark has no type for."""
    log = entries([json.dumps(busy()), body(sequence=-1), None, body(sequence=7)])

    found = decoded(spark.createDataFrame(pyarrow.Table.from_batches([log]))).toArrow()

    assert of_entries(log).to_pylist() == found.sort_by("id").to_pylist()
