# Decisions: the latest decisions of overload protection and quotas about one client, for `weir why`.
#
# A decision that repeats the one before it is counted with it. Otherwise a client that is throttled a hundred times a
# second would show only the last tenth of a second.
from collections import deque
from typing import Final

KEPT: Final = 8


class Decision:
    def __init__(self, kind: int, reason: str, at: float) -> None:
        self.kind = kind  # as in overload/admit.py
        self.reason = reason  # the label of the reason
        self.first = at
        self.last = at
        self.times = 1


class Decisions:
    """The latest decisions about one client, in the order in which they were made."""

    def __init__(self) -> None:
        self.latest: deque[Decision] = deque(maxlen=KEPT)

    def add(self, kind: int, reason: str, now: float) -> bool:
        """Add a decision; false if it repeats the latest one."""
        if self.latest:
            before = self.latest[-1]
            if before.kind == kind and before.reason == reason:
                before.times += 1
                before.last = now
                return False
        self.latest.append(Decision(kind, reason, now))
        return True
