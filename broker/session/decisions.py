# Decisions: what overload protection and quotas did with one client lately, for whoever asks why.
#
# The same decision as before is counted with it, or a client that is held back a hundred times a second would show
# nothing but its last tenth of one.
from collections import deque
from typing import Final

KEPT: Final = 8


class Decision:
    def __init__(self, kind: int, reason: str, at: float) -> None:
        self.kind = kind  # as in overload/admit.py
        self.reason = reason  # its label
        self.first = at
        self.last = at
        self.times = 1


class Decisions:
    """The latest of one client, the latest last."""

    def __init__(self) -> None:
        self.latest: deque[Decision] = deque(maxlen=KEPT)

    def add(self, kind: int, reason: str, now: float) -> bool:
        """Whether it is another one than the latest."""
        if self.latest:
            before = self.latest[-1]
            if before.kind == kind and before.reason == reason:
                before.times += 1
                before.last = now
                return False
        self.latest.append(Decision(kind, reason, now))
        return True
