# The queue of passwords that wait to be checked.
#
# One queue for all would serve the one that asks most often: behind 400 wrong passwords a second nobody else is
# checked. So each address (IPv4 host or IPv6 /64) has a queue of its own, and the queues take turns. Addresses that
# fail wait behind all others, and get one turn in TURNS while others wait: behind a NAT, one broken device would
# otherwise lock out all others.
#
# The queue is bounded. When it is full, the address with the longest queue loses its newest check, a failing one first:
# that client is refused as "server busy". So the queue of an address shrinks only while it is the longest one.
from collections import OrderedDict
from typing import Final

WAITING: Final = 1000  # checks: five seconds of one core at 5 ms each
FAILING_WAITING: Final = 250  # checks of one address that fails
TURNS: Final = 8  # of which one is for addresses that fail


class Waiting:
    """A check that waits, or waited, in the queue."""

    def __init__(self, key: str) -> None:
        """*key*: the address, or what else has a queue of its own."""
        self.key = key
        self.line: Line | None = None  # in which it waits


class Line:
    """The checks of one key, the oldest first."""

    def __init__(self, key: str, failing: bool) -> None:
        self.key = key
        self.failing = failing
        self.checks: OrderedDict[Waiting, None] = OrderedDict()


class CheckQueue:
    def __init__(self, limit: int = WAITING, failing_limit: int = FAILING_WAITING) -> None:
        """At most *limit* checks wait, *failing_limit* of them of one address that fails."""
        self._limit = limit
        self._failing_limit = failing_limit
        self._lines: OrderedDict[str, Line] = OrderedDict()  # of addresses that do not fail; the next turn first
        self._failing: OrderedDict[str, Line] = OrderedDict()
        self._count = 0
        self._turn = 0

    def __len__(self) -> int:
        return self._count

    def offer(self, waiting: Waiting, failing: bool) -> Waiting | None:
        """Queue *waiting*, whose address is *failing* or not. Returns the check that lost its place: *waiting* itself,
        another one, or None.
        """
        line = self._line(waiting.key, failing)
        if line.failing and len(line.checks) >= self._failing_limit:
            return waiting
        line.checks[waiting] = None
        waiting.line = line
        self._count += 1
        return self._displaced() if self._count > self._limit else None

    def remove(self, waiting: Waiting) -> None:
        """Take *waiting* out, if it waits: its client is gone."""
        line = waiting.line
        if line is None:
            return
        del line.checks[waiting]
        waiting.line = None
        self._count -= 1
        if not line.checks:
            del self._of(line)[line.key]

    def next(self) -> Waiting | None:
        """Take out the check whose turn it is; None if none waits."""
        lines = self._lines
        if self._failing:
            self._turn += 1
            if not lines or self._turn % TURNS == 0:
                lines = self._failing
        if not lines:
            return None
        key, line = lines.popitem(last=False)
        waiting, _ = line.checks.popitem(last=False)
        waiting.line = None
        self._count -= 1
        if line.checks:
            lines[key] = line
        return waiting

    def _line(self, key: str, failing: bool) -> Line:
        """The line of *key*, among those that fail if it is *failing*."""
        line = self._lines.get(key) or self._failing.get(key)
        if line is None:
            line = Line(key, failing)
        elif line.failing == failing:
            return line
        else:
            del self._of(line)[key]
            line.failing = failing
        self._of(line)[key] = line
        return line

    def _of(self, line: Line) -> OrderedDict[str, Line]:
        return self._failing if line.failing else self._lines

    def _displaced(self) -> Waiting:
        """Take out the newest check of the longest line, of the failing ones if there are any."""
        lines = self._failing or self._lines
        longest: Line | None = None
        for line in lines.values():
            if longest is None or len(line.checks) > len(longest.checks):
                longest = line
        assert longest is not None
        newest = next(reversed(longest.checks))
        self.remove(newest)
        return newest
