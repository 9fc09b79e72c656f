# A batch of records, boiled down to one compact row for each second of a worker (second.py).
#
# Spark does this in its own code: of some 80 rows of tops those that matter are left, and the row comes as columns, for
# the history, and as the JSON text of a Second, which Python reads ten times as fast as it takes in Spark's rows.
# Entries that are no records come along, as their ids and bodies: a batch is looked at once.
import json
from typing import TYPE_CHECKING, Final, cast

from analytics.second import Second

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

MOST: Final = 10  # clients, and topics, of a row, by cost; and clients who were held back
LEAST: Final = 3
HITTERS: Final = 40_000  # of a batch, that Python is to fold
LONGEST_INTERVAL: Final = 60  # seconds, as configured


def hitters(rows: str, name: str, most: int) -> str:
    """The first *most* of *rows* by cost, and those held back longest, each once, as Hitters; in SQL.

    Without lambdas, which Spark interprets: structs are sorted by their first field.
    """
    others = {
        "name": f"{rows}.`{name}`",
        "node": f"array_repeat(record.node, size({rows}))",
        "messages": f"{rows}.messages",
        "bytes": f"{rows}.bytes",
    }
    by_cost = {"cost": f"{rows}.cost", "paused_ms": f"{rows}.paused_ms", **others}
    by_pause = {"paused_ms": f"{rows}.paused_ms", "cost": f"{rows}.cost", **others}
    held_back = _first(by_pause, f"least({most}, size(array_remove({rows}.paused_ms, 0)))")
    same_order = ", ".join(f"{held_back}.{field}" for field in by_cost)
    return f"array_union({_first(by_cost, str(most))}, arrays_zip({same_order}))"


def _first(fields: dict[str, str], most: str) -> str:
    """The first *most* of the structs of *fields*, by the first one of these, the greatest first."""
    types = ", ".join(f"{name}: {'string' if name in ('name', 'node') else 'bigint'}" for name in fields)
    zipped = f"CAST(arrays_zip({', '.join(fields.values())}) AS array<struct<{types}>>)"
    return f"slice(sort_array({zipped}, false), 1, {most})"


def columns(most: int = MOST) -> dict[str, str]:
    """The columns of a Second, by name, as SQL over a record."""
    half = f"greatest(0, least(record.interval_s, {LONGEST_INTERVAL})) / 2"
    return {
        "node": "record.node",
        "worker": "record.worker",
        "boot": "record.boot",
        "sequence": "record.sequence",
        "second": f"CAST(floor(unix_micros(time) / 1e6 - {half}) AS BIGINT)",
        "level": "record.level",
        "cluster_level": "record.cluster_level",
        "cause": "record.cause",
        "signals": "record.signals",
        "credits_per_tick": "record.credits_per_tick",
        "connected": "record.clients.connected",
        "throttled": "record.clients.throttled",
        "using_credits": "record.clients.using_credits",
        "average_credits": "record.clients.average_credits",
        "non_writable": "record.clients.non_writable",
        "outbound_bytes": "record.queues.outbound_bytes",
        "outbound_limit_bytes": "record.queues.outbound_limit_bytes",
        "paused": "map_from_arrays(map_keys(record.paused), map_values(record.paused).ms)",
        "connects": "record.connects.received",
        "connects_refused": "record.connects.refused",
        "messages_in": "record.`in`.messages",
        "messages_out": "record.`out`.messages",
        # A sum of figures that were made up may be more than 63 bits have room for.
        "cost_in": "CAST(least(9e18, aggregate(record.top.clients.rows, 0D, (sum, r) -> sum + r.cost)) AS BIGINT)",
        "dropped": "record.dropped",
        "refused": "record.refused",
        "p99_ms": "record.latency.p99_ms",
        "clients": hitters("record.top.clients.rows", "client", most),
        "topics": hitters("record.top.topics.rows", "topic", most),
    }


def seconds(records: "DataFrame", most: int = MOST) -> "DataFrame":
    """*records* as `decoded` gives them: a Second each, by columns and as `text`; or `unfit`, which is no record."""
    rows = columns(most)
    fields = ", ".join(f"'{name}', {name}" for name in rows)
    return records.selectExpr("id", "ahead", "unfit", *(f"{sql} AS {name}" for name, sql in rows.items())).selectExpr(
        "*", f"IF(unfit IS NULL, to_json(named_struct({fields})), NULL) AS text"
    )


def of_workers(table: "pyarrow.Table") -> list[Second]:
    """The Seconds in what `seconds` gave."""
    texts = [text for text in table.column("text").to_pylist() if text is not None]
    return cast(list[Second], json.loads(f"[{','.join(texts)}]"))


def fewer(expected: int) -> int:
    """How many clients and topics of a row there is room for, in a batch of about so many records."""
    return max(LEAST, min(MOST, HITTERS // (2 * max(1, expected))))
