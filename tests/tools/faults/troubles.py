# When which process was in trouble, and what that excuses.
from collections.abc import Callable
from typing import Final

from tests.tools.faults.relay import Ring
from tests.tools.fuzz.loop import Loop

GAP: Final = 0.2  # seconds that a message may take between clients of workers that are well
OUTAGE: Final = 2.0  # seconds after a trouble within which those who needed the process are served again
AFTER: Final = 0.5  # seconds after it went on, in which it works off what had waited
REDIS: Final = -1  # in place of a process id
MOST: Final = 20  # failures that are told


class Trouble:
    def __init__(self, pid: int, begin: float) -> None:
        self.pid = pid
        self.begin = begin
        self.end = float("inf")  # it went on, or its clients saw that it is gone


class Troubles:
    def __init__(self, loop: Loop, ring: Ring, waited: Callable[[float], float]) -> None:
        """*waited*: how long those who replaced others since then had to wait for a processor."""
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.worst = 0.0  # seconds, of what may take GAP, without what the machine was late
        self.worst_raw = 0.0
        self.worst_late = 0.0  # of the machine
        self.worst_needing = 0.0  # seconds after the end of a trouble
        self.worst_outage = 0.0  # seconds from the last trouble until a pair that had lost a process was served again
        self.messages = 0
        self.killed: set[int] = set()  # processes, which may take a moment to be gone
        self.began = loop.now
        self._waited = waited
        self._loop = loop
        self._ring = ring
        self._all: list[Trouble] = []

    def begin(self, pid: int) -> Trouble:
        self._all.append(Trouble(pid, self._loop.now))
        return self._all[-1]

    def over(self, trouble: Trouble) -> None:
        trouble.end = min(trouble.end, self._loop.now)

    def died(self, pid: int) -> None:
        """Its clients see that it is gone."""
        for trouble in self._all:
            if trouble.pid == pid:
                self.over(trouble)

    def end_of(self, pids: set[int], since: float, until: float, after: float = AFTER) -> float:
        """When the last trouble of any of *pids* between *since* and *until* was over; 0 if there was none."""
        return max(
            (
                min(one.end, until)
                for one in self._all
                if (one.pid in pids or 0 in pids) and one.begin <= until and one.end + after >= since
            ),
            default=0.0,
        )

    def in_trouble(self, pid: int, since: float, until: float) -> bool:
        return self.end_of({pid}, since, until) > 0.0

    def took(self, what: str, pids: set[int], since: float, until: float, after: float = AFTER) -> None:
        """A message, or a step, that needs the processes *pids* took from *since* to *until*."""
        self.messages += 1
        seconds = until - since
        late = self._ring.late(since, until) if seconds > GAP / 4 else 0.0
        self.worst_late = max(self.worst_late, late)
        over = self.end_of(pids, since, until, after)
        if over:
            needing = until - max(over, since) - late
            if needing > OUTAGE:
                needing -= self._waited(since)
            self.worst_needing = max(self.worst_needing, needing)
            if needing > OUTAGE:
                self.fail(f"{what} took {needing:.2f} s after what it needed had gone on, or was gone")
            return
        self.worst_raw = max(self.worst_raw, seconds)
        self.worst = max(self.worst, seconds - late)
        if seconds - late > GAP:
            self.fail(f"{what} through {pids} took {seconds * 1e3:.0f} ms, of which the machine {late * 1e3:.0f} ms")

    def served_again(self, what: str, broken: float, now: float) -> None:
        """*what* had lost a process at *broken*. It may have to wait for any worker, so the last trouble counts."""
        since = max(broken, self.end_of({0}, broken, now))
        outage = now - since - max(self._ring.late(since, now), self._waited(since))
        self.worst_outage = max(self.worst_outage, outage)
        if outage > OUTAGE:
            self.fail(f"{what} was out for {outage:.2f} s")

    def fail(self, what: str) -> None:
        if len(self.failures) < MOST:
            self.failures.append(f"{self._loop.now - self.began:.2f} s: {what}")
