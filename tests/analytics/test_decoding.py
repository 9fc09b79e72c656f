import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from analytics.decoding import AHEAD, decoded, schema
from broker.metrics.record import RECORD, TEXT, Group, Kind, Rows, Table, Value, misfit
from tests.analytics.records import BEGAN, body, record, top

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AT = datetime.fromtimestamp(BEGAN + 1, UTC)


def entries(spark: "SparkSession", bodies: Sequence[str | None]) -> "DataFrame":
    """A log of *bodies*, all taken in at the same time."""
    rows = [(f"{(BEGAN + 1) * 1000}-{number}", AT, one) for number, one in enumerate(bodies)]
    return spark.createDataFrame(rows, "id string, at timestamp, body string")


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
            return [None]
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


def test_the_schema_has_every_field_of_the_record() -> None:
    """A field that the broker adds would be lost on the way, or asked for and not there."""
    assert "struct<`version`: bigint, `ts`: double, `interval_s`: double, `node`: string" in schema()
    assert "`signals`: map<string, double>" in schema()
    assert "`rows`: array<struct<`topic`: string, `cost`: bigint" in schema()
    assert all(f"`{name}`: " in schema() for name in RECORD.fields)


def test_spark_and_the_broker_agree_on_what_is_a_record(spark: "SparkSession") -> None:
    """Half a record would be taken for a whole one, or a whole one thrown away."""
    bodies = [json.dumps(busy()), json.dumps(busy() | {"more": [1]}), *spoilt(busy())]

    found = decoded(entries(spark, bodies)).selectExpr("id", "unfit").collect()

    verdicts = {int(row.id.partition("-")[2]): row.unfit is None for row in found}
    expected = {number: not misfit(json.loads(one)) for number, one in enumerate(bodies)}
    assert len(bodies) > 300
    assert [True, True] == [expected[0], expected[1]]
    assert [] == [bodies[number][:300] for number, fits in expected.items() if fits != verdicts[number]]


def test_whatever_is_in_the_log_is_a_record_or_unfit_and_nothing_stops(spark: "SparkSession") -> None:
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
        body(version=2),
        body(ts=-1.0),
        body(ts=1e300),
    ]

    found = decoded(entries(spark, [*strange, good])).selectExpr("id", "key", "unfit").collect()

    unfit = {int(row.id.partition("-")[2]) for row in found if row.unfit is not None and row.key == row.id}
    assert [] == [strange[number] for number in set(range(len(strange))) - unfit]
    assert ["b00:0"] == [row.key for row in found if row.unfit is None]
    assert max(len(row.unfit) for row in found if row.unfit) <= 4096


def test_a_clock_that_is_ahead_does_not_take_the_watermark_with_it(spark: "SparkSession") -> None:
    """The records of all other nodes would be late, and none of them count."""
    bodies = [body(ts=BEGAN + 1 + skew) for skew in (-7.25, 0.0, AHEAD, AHEAD + 0.5, 86_400.0)]

    found = decoded(entries(spark, bodies)).orderBy("id").selectExpr("time", "ahead").collect()

    expected = [timedelta(seconds=skew) for skew in (-7.25, 0.0, AHEAD, AHEAD, AHEAD)]
    assert expected == [row.time.astimezone(UTC) - AT for row in found]
    assert [False, False, False, True, True] == [row.ahead for row in found]
