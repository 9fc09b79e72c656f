# From an entry of the log to a record, or to why it is none.
#
# The schema is made from the broker's RECORD, and so is the condition that tells what fits: as `misfit` has it, but
# that a number does for a text. Spark decides it in its own code, for thousands of records a second; what exactly is
# wrong with the few that do not fit is said by `misfit`, later.
# Nothing of a body can stop the job: what JSON does not give is null here, and null does not fit.
#
# Event time is the record's own, by the clock of its node. One that is ahead would push the watermark and make the
# records of all others late, so it is at most AHEAD seconds after the log took the record in; a record was certainly
# made before that.
from typing import TYPE_CHECKING, Final

from broker.metrics.record import REAL, RECORD, TEXT, VERSION, Group, Kind, Table, Value

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AHEAD: Final = 5  # seconds that clocks may differ, and nobody is the worse for it: half of DELAY
DELAY: Final = "10 seconds"  # of the watermark: what comes later than that is late, and counted
LARGEST: Final = "1.7976931348623157E308D"
SHOWN: Final = 4096  # characters of a body that does not fit that are kept
OPTIONS: Final = "map('mode', 'PERMISSIVE', 'allowNonNumericNumbers', 'false')"


def schema(kind: Kind = RECORD) -> str:
    """The type of *kind*, in SQL."""
    if isinstance(kind, Value):
        return {TEXT: "string", REAL: "double"}.get(kind.type, "bigint")
    if isinstance(kind, Group):
        fields = ", ".join(f"`{name}`: {schema(of)}" for name, of in kind.fields.items())
        return f"struct<{fields}>"
    of = f"map<string, {schema(kind.of)}>" if isinstance(kind, Table) else f"array<{schema(kind.of)}>"
    return of


def unfit(found: str, kind: Kind = RECORD) -> str:
    """The condition, in SQL, that *found* is not as *kind* has it; never null."""
    if isinstance(kind, Value):
        if kind.type == TEXT:
            return f"{found} IS NULL"
        if kind.type == REAL:
            return f"({found} IS NULL OR NOT {found} BETWEEN -{LARGEST} AND {LARGEST})"
        return f"({found} IS NULL OR {found} < 0)"
    if isinstance(kind, Group):
        fields = " OR ".join(unfit(f"{found}.`{name}`", of) for name, of in kind.fields.items())
        return f"({found} IS NULL OR {fields})"
    if isinstance(kind, Table):
        return f"({found} IS NULL OR {_one_is_unfit(f'map_values({found})', kind.of)})"
    return f"({found} IS NULL OR size({found}) > {kind.most} OR {_one_is_unfit(found, kind.of)})"


def _one_is_unfit(array: str, kind: Kind) -> str:
    """The condition that an element of *array*, which is not null, is not as *kind* has it.

    `exists` would say the same, but Spark interprets lambdas, and this is most of what a record costs. Sorted, a null
    comes first, and then the least.
    """
    if isinstance(kind, Group):  # of an element that is null the fields are
        return " OR ".join(_one_is_unfit(f"{array}.`{name}`", of) for name, of in kind.fields.items())
    assert isinstance(kind, Value), "a table in a table needs more than this"
    least = f"get(sort_array({array}), 0)"
    if kind.type == TEXT:
        wrong = f"{least} IS NULL"
    elif kind.type == REAL:
        wrong = f"({least} IS NULL OR {least} < -{LARGEST} OR array_max({array}) > {LARGEST})"
    else:
        wrong = f"coalesce({least}, -1) < 0"
    return f"(size({array}) > 0 AND {wrong})"


def decoded(entries: "DataFrame") -> "DataFrame":
    """*entries* of a log (`id`, `at`, `body`) as (`id`, `at`, `key`, `time`, `ahead`, `unfit`, `record`).

    *key*: what names the record for ever; *time*: event time; *ahead*: its clock was, by more than AHEAD seconds;
    *unfit*: the beginning of a body that is no record, else null.
    """
    record = f"from_json(body, '{schema()}', {OPTIONS})"
    return (
        # As a row of its own it is parsed once, and not again for each column that is asked for.
        entries.selectExpr("id", "at", "body", f"explode(array(named_struct('of', {record}))) AS parsed")
        .selectExpr("id", "at", "body", "parsed.of AS record")
        .selectExpr("*", f"(body IS NULL OR NOT startswith(body, '{{') OR {unfit('record')}) AS strange")
        .selectExpr("*", f"(strange OR record.version <> {VERSION} OR NOT record.ts BETWEEN 0 AND 4e9) AS wrong")
        .selectExpr(
            "id",
            "at",
            "IF(wrong, id, concat_ws(':', record.boot, record.sequence)) AS key",
            "IF(wrong, at, least(timestamp_micros(CAST(record.ts * 1e6 AS BIGINT)), "
            f"at + INTERVAL {AHEAD} SECONDS)) AS time",
            f"NOT wrong AND record.ts > unix_micros(at) / 1e6 + {AHEAD} AS ahead",
            f"IF(wrong, left(coalesce(body, ''), {SHOWN}), NULL) AS unfit",
            "record",
        )
    )


def once(records: "DataFrame") -> "DataFrame":
    """*records* as `decoded` gives them, each once, and those that are too late left out."""
    return records.withWatermark("time", DELAY).dropDuplicatesWithinWatermark(["key"])
