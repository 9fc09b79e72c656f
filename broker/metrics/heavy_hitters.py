# Heavy hitters: the clients or topics that cost most, of any number of them, in bounded memory.
#
# A table of counts by key that is pruned when it is full: the algorithm Space-Saving with the evictions put together,
# so that most calls are one look-up and some additions. Each measure has a floor, the greatest figure of any evicted
# key. A key that is not in the table starts at the floor: so a figure is never too low, and never above the truth by
# more than the floor.
# Why is the floor of a measure at most its total / KEPT? Take the KEPT greatest figures, each at least the floor (as
# placeholders, if there are fewer). Adding w raises their sum by at most w: also for a new key, as that begins at the
# floor, in the place of a placeholder or a greater figure. A prune raises the floor to the KEPT-th greatest figure,
# which changes none of these. So the sum is at most the total, and the floor at most its KEPT-th part.
# A key is kept if it is great by any measure; Space-Saving as published has one measure only.
from heapq import nlargest
from typing import Final

KEPT: Final = 100  # keys for each measure: a figure is off by at most 1 % of the total
CAPACITY: Final = 2048  # keys that are counted exactly; a prune leaves fewer than 4 * KEPT


class Hitter:
    """One key and its figures."""

    def __init__(self, key: object, cost: int, messages: int, size: int, paused: int) -> None:
        self.key = key
        self.cost = cost
        self.messages = messages
        self.bytes = size
        self.paused = paused


class HeavyHitters:
    """Figures by key, since the last `clear()`, of at most *capacity* keys.

    For each measure: a key's figure is its true total or above it, by at most `error()`, which is at most the true sum
    over all keys / *kept*; the total of a key that is not in the table is at most `error()`, too.
    """

    def __init__(self, kept: int = KEPT, capacity: int = CAPACITY) -> None:
        """*capacity*: at least 4 * *kept*, better many times that, as each prune costs time."""
        self._kept = kept
        self._capacity = capacity
        self._hitters: dict[object, Hitter] = {}
        self._floor = Hitter(None, 0, 0, 0, 0)

    def add(self, key: object, cost: int, messages: int, size: int) -> None:
        """Add cost (units), messages and bytes to those of *key*, which is hashable."""
        hitter = self._hitters.get(key)
        if hitter is None:
            hitter = self._enter(key)
        hitter.cost += cost
        hitter.messages += messages
        hitter.bytes += size

    def add_pause(self, key: object, microseconds: int) -> None:
        """Add *microseconds* to the time that *key* was paused."""
        hitter = self._hitters.get(key)
        if hitter is None:
            hitter = self._enter(key)
        hitter.paused += microseconds

    def top(self, count: int) -> list[Hitter]:
        """The first *count* keys by each measure, if it is above 0. Each key once, the highest cost first."""
        found: dict[Hitter, None] = {}
        hitters = list(self._hitters.values())
        for hitter in nlargest(count, hitters, key=_cost):
            if hitter.cost:
                found[hitter] = None
        for hitter in nlargest(count, hitters, key=_messages):
            if hitter.messages:
                found[hitter] = None
        for hitter in nlargest(count, hitters, key=_bytes):
            if hitter.bytes:
                found[hitter] = None
        for hitter in nlargest(count, hitters, key=_paused):
            if hitter.paused:
                found[hitter] = None
        return sorted(found, key=_cost, reverse=True)

    def error(self) -> Hitter:
        """By how much a figure may be above the truth; 0 while no key was evicted. Read only."""
        return self._floor

    def clear(self) -> None:
        """Forget all keys."""
        self._hitters = {}
        self._floor = Hitter(None, 0, 0, 0, 0)

    def __len__(self) -> int:
        return len(self._hitters)

    def _enter(self, key: object) -> Hitter:
        if len(self._hitters) >= self._capacity:
            self._prune()
        floor = self._floor
        hitter = Hitter(key, floor.cost, floor.messages, floor.bytes, floor.paused)
        self._hitters[key] = hitter
        return hitter

    def _prune(self) -> None:
        """Keep the keys that are above the KEPT-th figure of any measure: fewer than 4 * KEPT."""
        kept = self._kept
        hitters = self._hitters.values()
        floor = self._floor
        cost = _greatest([hitter.cost for hitter in hitters], kept)
        messages = _greatest([hitter.messages for hitter in hitters], kept)
        size = _greatest([hitter.bytes for hitter in hitters], kept)
        paused = _greatest([hitter.paused for hitter in hitters], kept)
        left: dict[object, Hitter] = {}
        for hitter in hitters:
            if hitter.cost > cost or hitter.messages > messages or hitter.bytes > size or hitter.paused > paused:
                left[hitter.key] = hitter
        self._hitters = left
        # Keys that were kept for another measure may all be below the floor.
        floor.cost = max(floor.cost, cost)
        floor.messages = max(floor.messages, messages)
        floor.bytes = max(floor.bytes, size)
        floor.paused = max(floor.paused, paused)


def _greatest(figures: list[int], rank: int) -> int:
    """The *rank*-th greatest of *figures*."""
    figures.sort()
    return figures[-rank]


def _cost(hitter: Hitter) -> int:
    return hitter.cost


def _messages(hitter: Hitter) -> int:
    return hitter.messages


def _bytes(hitter: Hitter) -> int:
    return hitter.bytes


def _paused(hitter: Hitter) -> int:
    return hitter.paused
