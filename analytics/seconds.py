# Reduces a metrics record to one compact row (second.py): of about 80 rows of top clients and topics, the first remain.
#
# Executors pass the rows to the driver as JSON, in a single column: Spark would take longer to move nested columns than
# all other processing takes.
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from operator import attrgetter, itemgetter
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec
import pyarrow

from analytics.second import Heavy, Second

MOST: Final = 10  # clients (and topics) of a row by cost, and as many by throttled time
LEAST: Final = 3
HITTERS: Final = 40_000  # clients and topics of a batch, for the driver to fold
LONGEST_INTERVAL: Final = 60.0  # seconds; the limit of the setting
LARGEST_COST: Final = 9 * 10**18  # a sum of forged figures may need more than 63 bits

COST: Final = attrgetter("cost")
PAUSED: Final = attrgetter("paused_ms")


def second_of(record: Any, time: float, most: int = MOST) -> Second:
    """Return the row of *record* (decoding.py), whose interval ended at *time*, with at most *most* clients and topics
    by each measure.
    """
    clients, topics = record.top.clients.rows, record.top.topics.rows
    half = max(0.0, min(record.interval_s, LONGEST_INTERVAL)) / 2
    return {
        "node": record.node,
        "worker": record.worker,
        "boot": record.boot,
        "sequence": record.sequence,
        "second": int((time - half) // 1),
        "level": record.level,
        "cluster_level": record.cluster_level,
        "cause": record.cause,
        "signals": record.signals,
        "credits_per_tick": record.credits_per_tick,
        "connected": record.clients.connected,
        "throttled": record.clients.throttled,
        "using_credits": record.clients.using_credits,
        "average_credits": record.clients.average_credits,
        "non_writable": record.clients.non_writable,
        "outbound_bytes": record.queues.outbound_bytes,
        "outbound_limit_bytes": record.queues.outbound_limit_bytes,
        "paused": {reason: held.ms for reason, held in record.paused.items()},
        "connects": record.connects.received,
        "connects_refused": record.connects.refused,
        "messages_in": record.in_.messages,
        "messages_out": record.out.messages,
        "cost_in": min(LARGEST_COST, sum([one.cost for one in clients])),
        "dropped": record.dropped,
        "refused": record.refused,
        "p99_ms": record.latency.p99_ms,
        "clients": [_heavy(one.client, one) for one in _first(clients, most)],
        "topics": [_heavy(one.topic, one) for one in _first(topics, most)],
    }


def _first(rows: list[Any], most: int) -> list[Any]:
    """Return the first *most* of *rows* by cost, then the others of the first *most* by throttled time."""
    by_cost = sorted(rows, key=COST, reverse=True)[:most]
    held_back = sorted(filter(PAUSED, rows), key=PAUSED, reverse=True)[:most]
    return [*by_cost, *(one for one in held_back if one not in by_cost)]


def _heavy(name: str, row: Any) -> Heavy:
    return {
        "name": name,
        "cost": row.cost,
        "messages": row.messages,
        "bytes": row.bytes,
        "paused_ms": row.paused_ms,
    }


def of_workers(texts: Iterable[str | None]) -> list[Second]:
    """Decode the JSON Seconds in *texts*."""
    return cast(list[Second], msgspec.json.decode(f"[{','.join(filter(None, texts))}]"))


def names_per_row(expected: int) -> int:
    """Return how many clients and topics each row may have by each measure, in a batch of *expected* records."""
    return max(LEAST, min(MOST, HITTERS // (2 * max(1, expected))))


def table(seconds: Sequence[Second]) -> pyarrow.Table:
    """Return *seconds* as an Arrow table, for the history."""
    fields = get_type_hints(Second).items()
    return pyarrow.table({name: _array([*map(itemgetter(name), seconds)], of) for name, of in fields})


def _array(values: list[Any], of: Any) -> pyarrow.Array:
    """Return *values* of the type *of* as an Arrow array. It is built from flat lists: Arrow is slow for dicts."""
    if get_origin(of) is None:
        return pyarrow.array(values, _SCALARS[of])
    offsets = pyarrow.array(accumulate(map(len, values), initial=0), pyarrow.int32())
    if get_origin(of) is dict:
        keys = pyarrow.array([*chain.from_iterable(values)], pyarrow.string())
        items = [*chain.from_iterable([value.values() for value in values])]
        return pyarrow.MapArray.from_arrays(offsets, keys, pyarrow.array(items, _SCALARS[get_args(of)[1]]))
    flat = [*chain.from_iterable(values)]
    fields = get_type_hints(get_args(of)[0])
    inner = [_array([*map(itemgetter(name), flat)], kind) for name, kind in fields.items()]
    return pyarrow.ListArray.from_arrays(offsets, pyarrow.StructArray.from_arrays(inner, [*fields]))


_SCALARS: Final = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
