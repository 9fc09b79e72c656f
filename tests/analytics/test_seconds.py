import json
from typing import Any

from analytics.decoding import of_entries
from analytics.second import Second
from analytics.seconds import HITTERS, LEAST, MOST, names_per_row, of_workers, table
from tests.analytics.records import BEGAN, record, top
from tests.analytics.test_decoding import entries


def boiled(*records: dict[str, Any]) -> list[Second]:
    found = of_entries(entries([None, *map(json.dumps, records)]))  # what is no record is no second
    return of_workers(found.column("second").to_pylist())


def test_a_record_is_boiled_down_to_its_second() -> None:
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
                {"name": "pump", "cost": 60, "messages": 1, "bytes": 10, "paused_ms": 0},
            ],
            "topics": [
                {"name": "river", "cost": 60, "messages": 1, "bytes": 10, "paused_ms": 0},
            ],
        }
    ] == boiled(made)


def test_of_those_who_cost_something_the_first_are_left_and_who_was_held_back() -> None:
    """The client that waited longest costs least, as it is not read: it would never be told of."""
    costs = {f"c{number:02}": 100 + number for number in range(30)}
    made = record(
        top={"clients": top("client", {"c00": 900, "c01": 1000, "c29": 5}, **costs), "topics": top("topic", **costs)}
    )

    many = [None] * (HITTERS // 12)
    (row,) = of_workers(of_entries(entries([*many, json.dumps(made)], parts=2)).column("second").to_pylist())

    assert ["c29", "c28", "c27", "c01", "c00"] == [one["name"] for one in row["clients"]]
    assert ["c29", "c28", "c27"] == [one["name"] for one in row["topics"]]
    assert sum(costs.values()) == row["cost_in"]


def test_a_cost_beyond_reason_is_still_a_number() -> None:
    """A sum that overflows would fail the batch, and so would its repetition."""
    huge = (1 << 63) - 1
    made = record(top={"clients": top("client", a=huge, b=huge), "topics": top("topic")}, interval_s=1e300)

    (row,) = boiled(made)

    assert 9 * 10**18 == row["cost_in"]


def test_what_goes_into_the_history_is_what_was_folded() -> None:
    """A column would have the figures of another one, or of another second."""
    held = top("client", {"slow": 800}, pump=60, slow=1)
    busy = record(
        paused={"credits": {"clients": 1, "pauses": 1, "ms": 5}}, top={"clients": held, "topics": top("topic")}
    )
    seconds = boiled(record(sequence=1), busy, record(sequence=3, signals={}))

    rows = table(seconds).to_pylist()

    tables = ("signals", "paused", "dropped", "refused")
    assert seconds == [row | {name: dict(row[name]) for name in tables} for row in rows]
    assert [1, 2, 1] == [len(row["clients"]) for row in rows]


def test_more_records_leave_room_for_fewer_hitters_of_each() -> None:
    """The driver would fold longer than a batch may take, with two thousand workers."""
    assert [MOST, MOST, LEAST] == [names_per_row(0), names_per_row(1000), names_per_row(HITTERS)]
    assert names_per_row(4000) * 4000 * 2 <= HITTERS
