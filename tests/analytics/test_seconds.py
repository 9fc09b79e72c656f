import json
from typing import TYPE_CHECKING, Any

from analytics.decoding import decoded
from analytics.second import Second
from analytics.seconds import HITTERS, LEAST, MOST, columns, fewer, of_workers, seconds
from tests.analytics.records import BEGAN, record, top
from tests.analytics.test_decoding import entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def boiled(spark: "SparkSession", *records: dict[str, Any], most: int = MOST) -> list[Second]:
    table = seconds(decoded(entries(spark, [json.dumps(one) for one in records])), most).toArrow()
    return of_workers(table)


def test_a_second_has_every_field_that_folding_reads() -> None:
    """Folding would fail at a field that is missing, hours later, when there is the first episode."""
    assert set(Second.__annotations__) == set(columns())


def test_a_record_is_boiled_down_to_its_second(spark: "SparkSession") -> None:
    """A figure would be that of another one, or of another second."""
    made = record(
        ts=BEGAN + 1.4,
        node='quo"te',
        worker=3,
        sequence=7,
        level=4,
        cluster_level=6,
        cause="lag",
        credits_per_tick=3000,
        paused={"overload": {"clients": 2, "pauses": 9, "ms": 1500}},
        connects={"received": 11, "accepted": 8, "refused": 3},
        dropped={"expired": 4},
        refused={"quota": 5},
    )

    assert [
        {
            "node": 'quo"te',
            "worker": 3,
            "boot": "b00",
            "sequence": 7,
            "second": BEGAN,  # its middle is at 0.9
            "level": 4,
            "cluster_level": 6,
            "cause": "lag",
            "signals": {"lag": 0.25, "outbound": 0.0},
            "credits_per_tick": 3000,
            "connected": 3,
            "throttled": 0,
            "using_credits": 1,
            "average_credits": 49_000.5,
            "non_writable": 0,
            "outbound_bytes": 10,
            "outbound_limit_bytes": 2000,
            "paused": {"overload": 1500},
            "connects": 11,
            "connects_refused": 3,
            "messages_in": 5,
            "messages_out": 7,
            "cost_in": 60,
            "dropped": {"expired": 4},
            "refused": {"quota": 5},
            "p99_ms": 1.5,
            "clients": [
                {"name": "pump", "node": 'quo"te', "cost": 60, "messages": 1, "bytes": 10, "paused_ms": 0},
            ],
            "topics": [
                {"name": "river", "node": 'quo"te', "cost": 60, "messages": 1, "bytes": 10, "paused_ms": 0},
            ],
        }
    ] == boiled(spark, made)


def test_of_those_who_cost_something_the_first_are_left_and_who_was_held_back(spark: "SparkSession") -> None:
    """The client that waited longest costs least, as it is not read: it would never be told of."""
    costs = {f"c{number:02}": 100 + number for number in range(30)}
    made = record(
        top={"clients": top("client", {"c00": 900, "c01": 1000, "c29": 5}, **costs), "topics": top("topic", **costs)}
    )

    (row,) = boiled(spark, made, most=3)

    assert ["c29", "c28", "c27", "c01", "c00"] == [one["name"] for one in row["clients"]]
    assert ["c29", "c28", "c27"] == [one["name"] for one in row["topics"]]
    assert sum(costs.values()) == row["cost_in"]


def test_a_cost_beyond_reason_is_still_a_number(spark: "SparkSession") -> None:
    """A sum that overflows would fail the batch, and so would its repetition."""
    huge = (1 << 63) - 1
    made = record(top={"clients": top("client", a=huge, b=huge), "topics": top("topic")}, interval_s=1e300)

    (row,) = boiled(spark, made)

    assert 9 * 10**18 == row["cost_in"]


def test_more_records_leave_room_for_fewer_hitters_of_each() -> None:
    """The driver would fold longer than a batch may take, with two thousand workers."""
    assert [MOST, MOST, LEAST] == [fewer(0), fewer(1000), fewer(HITTERS)]
    assert fewer(4000) * 4000 * 2 <= HITTERS
