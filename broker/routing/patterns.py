# Wildcard patterns: what bounds the cost of a match.
#
# A match walks the tree of wildcard filters with a topic. Each level of the tree that it reaches has a path whose names
# are "+" or the topic's own, so the path is known from the positions of "+" alone: that is a pattern. A match therefore
# reaches at most one level for each pattern in the index, and one for each level of the topic, however many filters
# there are. A fleet of a hundred thousand clients has few patterns, as its clients subscribe alike. One client whose
# 8 192 filters have "+" in every combination of positions makes each match visit 170 000 levels.
#
# So it is the patterns that are limited, at SUBSCRIBE. The road not taken is to match in pages: a match within
# milliseconds needs no pages, no publish that waits for its route, and no order to be kept meanwhile.
#
# A pattern of n levels is an int: two leading bits, then one for each level, 1 for "+". "#" ends filters only and is
# looked up at each level that is reached, so it makes no pattern.
from typing import Final

PLAIN: Final = 2  # the leading bits of filters in one index, and of those of shared subscriptions in another
SHARED: Final = 3
FEWEST: Final = 1024  # patterns that a worker has room for, however many workers there are
CLIENTS: Final = 4  # clients that it takes at least to fill a worker


class Pattern:
    def __init__(self, owner: str) -> None:
        self.owner = owner  # the client id whose filter was the first with it
        self.filters = 0  # distinct filters that begin with the pattern


class Patterns:
    """The patterns of the filters at one worker: at most *limit*, of which one client adds at most *share*."""

    def __init__(self, limit: int, share: int) -> None:
        self._limit = limit
        self._share = share
        self._patterns: dict[int, Pattern] = {}
        self._added: dict[str, int] = {}  # patterns by owner

    def __len__(self) -> int:
        return len(self._patterns)

    def fits(self, filter: bytes, shared: bool, client_id: str) -> bool:
        """Whether *client_id* may add *filter*. O(levels)."""
        if b"+" not in filter:
            return True
        missing = 0
        for code in _codes(filter, shared):
            if code not in self._patterns:
                missing += 1
        if missing == 0:
            return True
        return len(self._patterns) + missing <= self._limit and self._added.get(client_id, 0) + missing <= self._share

    def largest(self) -> tuple[str, int]:
        """(client id, patterns) of the client that added most of them; O(clients)."""
        return max(self._added.items(), key=lambda item: item[1], default=("", 0))

    def add(self, filter: bytes, shared: bool, client_id: str) -> None:
        """Add a *filter* that is new to its index, whether it fits or not: a session that moves keeps its filters."""
        if b"+" not in filter:
            return
        for code in _codes(filter, shared):
            pattern = self._patterns.get(code)
            if pattern is None:
                pattern = self._patterns[code] = Pattern(client_id)
                self._added[client_id] = self._added.get(client_id, 0) + 1
            pattern.filters += 1

    def remove(self, filter: bytes, shared: bool) -> None:
        """Remove a *filter* that its index does not have any more."""
        if b"+" not in filter:
            return
        for code in _codes(filter, shared):
            pattern = self._patterns[code]
            pattern.filters -= 1
            if pattern.filters == 0:
                del self._patterns[code]
                left = self._added[pattern.owner] - 1
                if left:
                    self._added[pattern.owner] = left
                else:
                    del self._added[pattern.owner]


def patterns_of_worker(limit: int) -> Patterns:
    """The patterns of a worker that has *limit* of those of the node. One client adds a quarter of them at most.

    A publish is matched with the filters of its own worker and with those of all others, so the node is what counts.
    """
    limit = max(FEWEST, limit)
    return Patterns(limit, limit // CLIENTS)


def _codes(filter: bytes, shared: bool) -> list[int]:
    """The patterns that *filter* begins with, from its first "+" on."""
    code = SHARED if shared else PLAIN
    codes: list[int] = []
    wild = False
    for name in filter.split(b"/"):
        if name == b"#":
            break
        code <<= 1
        if name == b"+":
            code |= 1
            wild = True
        if wild:
            codes.append(code)
    return codes
