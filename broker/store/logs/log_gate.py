# The gate of the log: publishes for receivers whose messages are appended to a log pass it, so that no more of them
# wait for the log than it stores in time.
#
# A publish counts as under way from when it is accepted until the log has all packs that were appended up to the next
# mark, which is made between two publishes. Packs are stored in any order, as each partition has its own pace. So one
# partition without a leader would close the gate to everybody, and raise the level by its delay. Two things tell such
# a partition from a log that is slow: others have overtaken a pack for LATE seconds; or the carrier says that the
# partition fails while the log answers (`LogStatus.alone`), also if nothing else is published. The pack is waited for
# no longer: the link tells who has appended it, for the publisher itself to be made to wait. What is appended to such a
# partition later is not waited for at all.
#
# A partition whose broker hangs, and answers nothing, is not told from a log that does, unless others overtake.
#
# While there is no carrier the gate is closed, and also while unstored packs have more than MOST bytes, late ones
# included: a publish may be for a thousand topics, and gates count it once.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.config.budget import UNSTORED_BYTES
from broker.overload.gate import Gate

LATE: Final = 0.5  # seconds
MOST: Final = UNSTORED_BYTES
ENOUGH: Final = MOST // 2  # bytes from which on it opens again


class Mark:
    """How much had been taken at the gate when *sequence* was the last pack."""

    def __init__(self, sequence: int, count: int, size: int, at: float) -> None:
        self.sequence = sequence
        self.count = count
        self.size = size
        self.at = at


class LogGate:
    def __init__(self, gate: Gate, opened: Callable[[Gate, float], None]) -> None:
        """*opened* is called when there is room again."""
        self.gate = gate
        self._opened = opened
        self._marks: deque[Mark] = deque()
        self._reached = Mark(0, 0, 0, 0.0)
        self._connected = False
        self._full = False
        gate.block()

    def connected(self, connected: bool, now: float) -> None:
        """Whether there is a carrier."""
        self._connected = connected
        self._look(now)

    def holds(self, size: int, now: float) -> None:
        """Unstored packs take *size* bytes."""
        if size > MOST:
            full = True
        elif size <= ENOUGH:
            full = False
        else:
            return
        if full != self._full:
            self._full = full
            self._look(now)

    def mark(self, sequence: int, now: float) -> None:
        """What is to be appended of the publishes taken so far is in packs up to *sequence*."""
        gate = self.gate
        latest = self._marks[-1] if self._marks else self._reached
        if gate.taken != latest.count:
            self._marks.append(Mark(sequence, gate.taken, gate.taken_bytes, gate.latest() if gate.count else now))

    def reach(self, sequence: int, now: float) -> None:
        """No pack up to *sequence* is waited for any more."""
        marks, before = self._marks, self._reached
        while marks and marks[0].sequence <= sequence:
            self._reached = marks.popleft()
        reached = self._reached
        if reached is not before:
            self.gate.done(reached.count - before.count, reached.size - before.size, now - reached.at, now)
            if self.gate.open:
                self._opened(self.gate, now)

    def _look(self, now: float) -> None:
        if not self._connected or self._full:
            self.gate.block()
        else:
            self.gate.unblock()
            if self.gate.open:
                self._opened(self.gate, now)
