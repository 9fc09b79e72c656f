# The form of the metrics record, which each worker writes about each second.
#
# The broker writes it as one JSON object (recorder.py) to the log `weir.metrics`, and the analysis makes its table from
# RECORD: a field is declared here and nowhere else. This file is data and imports nothing of Weir, so that the analysis
# can import it alone.
#
# Counts are those since the record before: nothing is cumulative, and records can be added up over workers and over
# time. (`boot`, `sequence`) identifies a record; a gap in it is a record that was dropped. A reader ignores fields that
# it does not know; a change that would mislead a reader needs another VERSION.
from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Final

LOG: Final = "weir.metrics"  # the name of the log, whatever carries it
VERSION: Final = 1
TOP: Final = 10  # clients, and topics, by each measure
MORE_MEASURES: Final = 4  # that a newer broker may have: readers accept its rows
LONGEST_NAME: Final = 512  # characters of a client id or a topic; a longer one is cut

TEXT: Final = "text"
WHOLE: Final = "whole"  # 0 or more, below 2 ** 63
REAL: Final = "real"  # finite

WHOLE_LIMIT: Final = 1 << 63


@dataclass(frozen=True)
class Value:
    """*type*: TEXT, WHOLE or REAL; *unit*: "" for a text."""

    type: str
    unit: str
    meaning: str


@dataclass(frozen=True)
class Group:
    """An object that has all of these fields."""

    fields: "dict[str, Kind]"
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """An object with a field for each *key* that occurs."""

    key: str
    of: "Kind"
    meaning: str


@dataclass(frozen=True)
class Rows:
    """An array of at most *most* objects."""

    of: Group
    most: int
    meaning: str


Kind = Value | Group | Table | Rows


def _text(meaning: str) -> Value:
    return Value(TEXT, "", meaning)


def _whole(unit: str, meaning: str) -> Value:
    return Value(WHOLE, unit, meaning)


def _real(unit: str, meaning: str) -> Value:
    return Value(REAL, unit, meaning)


def _by_reason(unit: str, meaning: str) -> Table:
    return Table("label of the reason", _whole(unit, "in the interval"), meaning)


MEASURES: Final[dict[str, Kind]] = {
    "cost": _whole("units", "work of the reactor: a small publish is 10, a delivery 1, 128 bytes 1"),
    "messages": _whole("messages", "that were published"),
    "bytes": _whole("bytes", "of their payloads"),
    "paused_ms": _whole("ms", "that the client was throttled; 0 for a topic"),
}


def _top(what: str, meaning: str) -> Group:
    row = Group({what: _text(f"its name, cut after {LONGEST_NAME} characters"), **MEASURES})
    most = (len(MEASURES) + MORE_MEASURES) * TOP
    return Group(
        {
            "rows": Rows(row, most, f"the first {TOP} by cost, by messages, by bytes and by paused_ms, each once"),
            "error": Group(MEASURES, "the most that a figure of a row is above the truth; it is never below"),
            "others": _whole("1", "further ones; if there is an error, those that are still known"),
        },
        meaning,
    )


RECORD: Final = Group(
    {
        "version": _whole("1", f"of this form: {VERSION}"),
        "ts": _real("s", "the end of the interval, Unix time by the clock of the node"),
        "interval_s": _real("s", "length of the interval"),
        "node": _text("its name in the configuration"),
        "worker": _whole("1", "number of the worker in its node"),
        "boot": _text("names this run of the worker: another one after each start"),
        "sequence": _whole("1", "number of this record in that run, from 0; dropped records count"),
        "level": _whole("1", "overload of the worker, 0 to 10, rounded up"),
        "cluster_level": _whole("1", "the highest level of all nodes, which is in force"),
        "cause": _text("the worker's signal with the highest value; empty at level 0"),
        "signals": Table(
            "name of the signal", _real("of its target", "1 is at its target"), "what the level is computed from"
        ),
        "credits_per_tick": _whole("credits", "that each client gets every 200 ms"),
        "clients": Group(
            {
                "connected": _whole("clients", "at the end of the interval"),
                "throttled": _whole("clients", "that overload protection throttles at the end"),
                "using_credits": _whole("clients", "with fewer credits than the maximum"),
                "average_credits": _real("credits", "that a client has, on average"),
                "non_writable": _whole("clients", "over their high watermark at the end: slow readers"),
                "became_non_writable": _whole("1", "times that a client exceeded its high watermark"),
            }
        ),
        "paused": Table(
            "label of the reason",
            Group(
                {
                    "clients": _whole("clients", "the most that were throttled at one time"),
                    "pauses": _whole("1", "times that a client was throttled"),
                    "ms": _whole("ms", "of all clients together"),
                }
            ),
            "clients that were throttled: not read, CONNECT not accepted yet, or not sent more",
        ),
        "connects": Group(
            {
                "received": _whole("1", "CONNECT packets"),
                "accepted": _whole("1", "of them"),
                "refused": _whole("1", "of them, including those of former intervals"),
            }
        ),
        "in": Group(
            {
                "messages": _whole("messages", "PUBLISH packets from clients"),
                "bytes": _whole("bytes", "of their payloads"),
            }
        ),
        "out": Group(
            {
                "messages": _whole("messages", "PUBLISH packets to clients"),
                "bytes": _whole("bytes", "of their payloads"),
            }
        ),
        "dropped": _by_reason("messages", "that a receiver did not get"),
        "refused": _by_reason("1", "filters and publishes that were answered with an error code"),
        "closed": _by_reason("connections", "that ended"),
        "queues": Group(
            {
                "messages": _whole("messages", "that are queued in sessions at the end"),
                "bytes": _whole("bytes", "of them"),
                "limit_bytes": _whole("bytes", "that may be queued"),
                "outbound_bytes": _whole("bytes", "that wait to be sent to clients at the end"),
                "outbound_limit_bytes": _whole("bytes", "that may be unsent"),
            }
        ),
        "latency": Group(
            {
                "messages": _whole("messages", "QoS 1 and 2 publishes that were acknowledged"),
                "p50_ms": _real("ms", "from reading a publish to its acknowledgement, the median; 0 if there was none"),
                "p99_ms": _real("ms", "the time that 99 % of them took at most"),
            }
        ),
        "stores": Table(
            "name of the store",
            Group(
                {
                    "used_bytes": _whole("bytes", "that it holds, redis for all its workers; 0: not known"),
                    "limit_bytes": _whole("bytes", "that it may hold; 0: not known"),
                    "ops": _whole("1", "operations"),
                }
            ),
            "stores of the worker: retained messages in its memory, redis, and durable sessions in redis",
        ),
        "flushes": Table("cause", _whole("1", "in the interval"), "times that the waiting bytes of a client were sent"),
        "top": Group(
            {
                "clients": _top("client", "that published most, or were throttled longest"),
                "topics": _top("topic", "that were published to most"),
            }
        ),
    }
)


def misfit(found: object, kind: Kind = RECORD, where: str = "") -> str:
    """The first difference between *found*, a decoded JSON value, and *kind*, in a few words; "" if there is none."""
    if isinstance(kind, Value):
        return "" if _fits(found, kind.type) else f"{where}: {found!r:.60} is not {kind.type}"
    if isinstance(kind, Rows):
        if not isinstance(found, list) or len(found) > kind.most:
            return f"{where}: not an array of at most {kind.most}"
        return _first(misfit(row, kind.of, f"{where}[{at}]") for at, row in enumerate(found))
    if not isinstance(found, dict):
        return f"{where or 'the record'}: not an object"
    if isinstance(kind, Table):
        return _first(misfit(value, kind.of, _below(where, key)) for key, value in found.items())
    missing = [name for name in kind.fields if name not in found]
    if missing:
        return f"{_below(where, missing[0])}: missing"
    return _first(misfit(found[name], of, _below(where, name)) for name, of in kind.fields.items())


def _first(problems: Iterable[str]) -> str:
    return next((problem for problem in problems if problem), "")


def _below(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


def _fits(found: object, type: str) -> bool:
    if isinstance(found, bool):
        return False
    if type == TEXT:
        return isinstance(found, str)
    if type == WHOLE:
        return isinstance(found, int) and 0 <= found < WHOLE_LIMIT
    return isinstance(found, int | float) and isfinite(found)
