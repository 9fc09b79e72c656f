# The most costly clients and topics, summed over workers and seconds in bounded memory; and counters by label.
#
# Each worker reports its first ten per second; they are summed by name. If there are more than MOST names, only the
# first KEPT by cost and the first KEPT by throttled time remain. A figure is therefore never too high. A name that was
# removed and appears again starts at zero: it loses less than what KEPT other names have, so no important one is lost.
#
# Up to MOST names the result does not depend on the order of the additions.
from typing import Final

from analytics.rows import Hitter
from analytics.second import Heavy

KEPT: Final = 50  # names, by each of two measures
MOST: Final = 4 * KEPT  # twice the names that a cut leaves, so that cuts are rare
LABELS: Final = 100  # of counters: there are fewer reasons, so further labels are invalid
OTHER: Final = "other"  # the label for them

COST, MESSAGES, BYTES, PAUSED, NODE, BEST = range(6)

Entry = list[int | str]
Tops = dict[str, list]  # type: ignore[type-arg]  # name -> [cost, messages, bytes, paused_ms, node, its best second]
Counts = dict[str, int]


def add_hitters(tops: Tops, hitters: list[Heavy], node: str) -> None:
    """Add the hitters of one second of a worker of *node*."""
    for hitter in hitters:
        name, cost, paused = hitter["name"], hitter["cost"], hitter["paused_ms"]
        best = cost + paused
        entry = tops.get(name)
        if entry is None:
            tops[name] = [cost, hitter["messages"], hitter["bytes"], paused, node, best]
            continue
        entry[COST] += cost
        entry[MESSAGES] += hitter["messages"]
        entry[BYTES] += hitter["bytes"]
        entry[PAUSED] += paused
        if (best, node) > (entry[BEST], entry[NODE]):
            entry[NODE], entry[BEST] = node, best


def add_tops(tops: Tops, more: Tops) -> None:
    """Add *more* to *tops*."""
    for name, other in more.items():
        entry = tops.get(name)
        if entry is None:
            tops[name] = other.copy()
            continue
        entry[COST] += other[COST]
        entry[MESSAGES] += other[MESSAGES]
        entry[BYTES] += other[BYTES]
        entry[PAUSED] += other[PAUSED]
        if (other[BEST], other[NODE]) > (entry[BEST], entry[NODE]):
            entry[NODE], entry[BEST] = other[NODE], other[BEST]


def cut(tops: Tops, kept: int = KEPT) -> Tops:
    """Return *tops*; if they are too many, only the first *kept* by each measure."""
    if len(tops) <= 4 * kept:
        return tops
    names = {name: None for by in (COST, PAUSED) for name in _greatest(tops, kept, by)}
    return {name: tops[name] for name in names}


def entry_of(hitter: Hitter) -> Entry:
    """Return the entry of *hitter*, as if all of it had been in one second."""
    cost, paused = hitter["cost"], hitter["paused_ms"]
    return [cost, hitter["messages"], hitter["bytes"], paused, hitter["node"], cost + paused]


def copied(tops: Tops) -> Tops:
    return {name: entry.copy() for name, entry in tops.items()}


def first(tops: Tops, count: int, by: int = COST) -> list[Hitter]:
    """Return the first *count* by a measure, the greatest first, without zeros."""
    return [_hitter(name, tops[name]) for name in _greatest(tops, count, by) if tops[name][by]]


def add_counts(into: Counts, more: Counts) -> None:
    """Add *more* to *into*, without zeros."""
    for label, count in more.items():
        if count:
            known = label if label in into or len(into) < LABELS else OTHER
            into[known] = into.get(known, 0) + count


def _greatest(tops: Tops, count: int, by: int) -> list[str]:
    """Return the first *count* names, the greatest first, equal ones by name. The threshold avoids a sort of all."""
    figures = sorted([entry[by] for entry in tops.values()], reverse=True)
    least = figures[min(count, len(figures)) - 1] if figures else 0
    names = [name for name, entry in tops.items() if entry[by] >= least]
    return sorted(names, key=lambda name: (-tops[name][by], name))[:count]


def _hitter(name: str, entry: list) -> Hitter:  # type: ignore[type-arg]
    cost, messages, size, paused, node, _ = entry
    return Hitter(name=name, node=node, cost=cost, messages=messages, bytes=size, paused_ms=paused)
