# Who cost most, merged over workers and seconds in the memory of a few; and counts by label, likewise.
#
# Each worker tells of its own first ten a second; here they are added up by name. More than MOST names are cut to those
# that are great by cost or by the time they were held back, KEPT of each. A figure is therefore never too high. Who is
# cut and comes again begins at nothing, which loses him what he had: less than KEPT others have, so never who matters.
#
# Up to MOST names the result does not depend on the order in which things are added.
from typing import Final

from analytics.rows import Hitter
from analytics.second import Heavy

KEPT: Final = 50  # names, by each of two measures
MOST: Final = 4 * KEPT  # twice what a cut can leave: so there are few
LABELS: Final = 100  # of counts; there are fewer reasons than that, so more are nonsense
OTHER: Final = "other"  # what they are counted under

COST, MESSAGES, BYTES, PAUSED, NODE, BEST = range(6)

Entry = list[int | str]
Tops = dict[str, list]  # type: ignore[type-arg]  # name -> [cost, messages, bytes, paused_ms, node, its best second]
Counts = dict[str, int]


def add_hitters(tops: Tops, hitters: list[Heavy], node: str) -> None:
    """Add what one worker of *node* told of one second."""
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
    """Add *more*, which stays as it is."""
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
    """*tops*, or if there are too many those that are great by either measure."""
    if len(tops) <= 4 * kept:
        return tops
    names = {name: None for by in (COST, PAUSED) for name in _greatest(tops, kept, by)}
    return {name: tops[name] for name in names}


def copied(tops: Tops) -> Tops:
    return {name: entry.copy() for name, entry in tops.items()}


def first(tops: Tops, count: int, by: int = COST) -> list[Hitter]:
    """The first *count* by a measure, the greatest first, without those that have nothing of it."""
    return [_hitter(name, tops[name]) for name in _greatest(tops, count, by) if tops[name][by]]


def add_counts(into: Counts, more: Counts) -> None:
    """Add *more*, without what is 0."""
    for label, count in more.items():
        if count:
            known = label if label in into or len(into) < LABELS else OTHER
            into[known] = into.get(known, 0) + count


def _greatest(tops: Tops, count: int, by: int) -> list[str]:
    """Names, the greatest first; those that are equal by name. Of many names most are dismissed by one comparison."""
    figures = sorted([entry[by] for entry in tops.values()], reverse=True)
    least = figures[min(count, len(figures)) - 1] if figures else 0
    names = [name for name, entry in tops.items() if entry[by] >= least]
    return sorted(names, key=lambda name: (-tops[name][by], name))[:count]


def _hitter(name: str, entry: list) -> Hitter:  # type: ignore[type-arg]
    cost, messages, size, paused, node, _ = entry
    return Hitter(name=name, node=node, cost=cost, messages=messages, bytes=size, paused_ms=paused)
