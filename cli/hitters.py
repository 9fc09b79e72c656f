# Heavy hitters of several workers together: what each says of its own (record.py), added up, and how far off that is.
#
# A worker tells its first TOP rows by each measure. Who is among them has at least the truth there, and at most the
# error above it. Who is not may still have had something there: at most what the last of the first TOP by that measure
# had, or the error, if the worker tells all that it knows of. So each sum goes with how much it may be off either way.
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.metrics.record import MEASURES, TOP

ORDERS: Final = ("cost", "messages", "bytes")

Figures = dict[str, float]


@dataclass(frozen=True)
class Hitter:
    """One client or topic; figures a second."""

    name: str
    figures: Figures
    above: Figures  # by so much a figure may be above the truth
    below: Figures  # and by so much below it


def merged(tops: Sequence[tuple[dict[str, Any], float]], what: str, by: str) -> list[Hitter]:
    """All that any worker names, the greatest first; *tops*: of each worker its table and the seconds that it is of.

    *what*: "client" or "topic"; *by*: one of ORDERS. Names that were cut alike are one.
    """
    found: dict[str, Hitter] = {}
    absent: Figures = dict.fromkeys(MEASURES, 0.0)  # what whoever is in no table may have had
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
    """By how much a figure of *table* may be too high; and what somebody may have had who is not in it."""
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
