# Merges the heavy hitters of several workers, with error bounds.
#
# A worker reports its first TOP rows by each measure (broker/metrics/record.py). The figure of a reported row is at
# least the true value, and at most the worker's error above it. A row that a worker did not report may still have had
# some traffic there: at most the figure of the last of its first TOP rows, or the error if the worker reported all rows
# it knows. So each sum has a bound in both directions.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.metrics.record import MEASURES, TOP

ORDERS: Final = ("cost", "messages", "bytes")

Figures = dict[str, float]


@dataclass(frozen=True)
class Hitter:
    """One client or topic; figures per second."""

    name: str
    figures: Figures
    above: Figures  # by how much a figure may exceed the true value
    below: Figures  # by how much a figure may fall short of it


def merged(tops: Sequence[tuple[dict[str, Any], float]], what: str, by: str) -> list[Hitter]:
    """All rows that any worker reported, the heaviest first.

    *tops*: each worker's table with its interval in seconds; *what*: "client" or "topic"; *by*: one of ORDERS. Names
    that were truncated to the same text are one row.
    """
    found: dict[str, Hitter] = {}
    absent: Figures = dict.fromkeys(MEASURES, 0.0)  # upper bound for a row that no table so far contains
    for table, interval in tops:
        error, unseen = _bounds(table, interval)
        rows: dict[str, Figures] = {}
        for row in table["rows"]:
            rows[row[what]] = _sum(rows.get(row[what]), {name: row[name] / interval for name in MEASURES})
        for name in rows.keys() - found.keys():
            found[name] = Hitter(name, dict.fromkeys(MEASURES, 0.0), dict.fromkeys(MEASURES, 0.0), absent)
        for name, hitter in found.items():
            if name in rows:
                figures, above = _sum(hitter.figures, rows[name]), _sum(hitter.above, error)
                found[name] = Hitter(name, figures, above, hitter.below)
            else:
                found[name] = Hitter(name, hitter.figures, hitter.above, _sum(hitter.below, unseen))
        absent = _sum(absent, unseen)
    return sorted(found.values(), key=lambda hitter: (-hitter.figures[by], hitter.name))


def _bounds(table: dict[str, Any], interval: float) -> tuple[Figures, Figures]:
    """The error of the figures in *table*, and an upper bound for a row that is not in it."""
    error = {name: table["error"][name] / interval for name in MEASURES}
    if not table["others"]:
        return error, error
    unseen = {}
    for name in MEASURES:
        figures = sorted([row[name] for row in table["rows"]], reverse=True)
        last = figures[TOP - 1] if len(figures) >= TOP else 0
        unseen[name] = max(error[name], last / interval)
    return error, unseen


def _sum(one: Figures | None, other: Figures) -> Figures:
    return other if one is None else {name: one[name] + other[name] for name in MEASURES}
