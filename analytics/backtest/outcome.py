# The outcome of the publishes of one or several traces: as recorded, or as estimated for a policy.
#
# Outcomes can be added, so traces may be played anywhere and their outcomes combined in any order.
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Final, TypeVar

from broker.overload.admit import CLOSE, DROP, REFUSE, Verdict

LEVELS: Final = 11
BUCKETS_A_DOUBLING: Final = 4  # of times: a quantile is accurate to a fifth
FINEST: Final = 1e-4  # seconds
K = TypeVar("K", str, int)
N = TypeVar("N", int, float)
KINDS: Final = {DROP: "dropped", REFUSE: "refused", CLOSE: "closed"}


@dataclass
class Outcome:
    seconds: float = 0.0  # duration of the traces, summed over workers
    publishes: int = 0  # that arrived
    accepted: int = 0
    dropped: dict[str, int] = field(default_factory=dict)  # by reason
    refused: dict[str, int] = field(default_factory=dict)
    closed: dict[str, int] = field(default_factory=dict)
    lost: int = 0  # publishes behind one for which the connection was closed
    waiting: int = 0  # publishes that wait at the end
    held_s: dict[str, float] = field(default_factory=dict)  # throttled time by reason, summed over clients
    held_times: int = 0
    clients: dict[str, float] = field(default_factory=dict)  # throttled time by client, in seconds
    level_peak: float = 0.0
    level_s: list[float] = field(default_factory=lambda: [0.0] * LEVELS)  # by level, rounded up
    cause_s: dict[str, float] = field(default_factory=dict)  # time above level 0, by the signal that raised the level
    waits: dict[int, int] = field(default_factory=dict)  # accepted publishes by waiting time (bucket)
    longest_wait_s: float = 0.0
    delays_s: dict[str, float] = field(default_factory=dict)  # the longest delay of each signal that measures one

    def add(self, other: "Outcome") -> None:
        """Add the outcome of another trace."""
        self.seconds += other.seconds
        self.publishes += other.publishes
        self.accepted += other.accepted
        self.lost += other.lost
        self.waiting += other.waiting
        self.held_times += other.held_times
        _add(self.dropped, other.dropped)
        _add(self.refused, other.refused)
        _add(self.closed, other.closed)
        _add(self.waits, other.waits)
        _add(self.held_s, other.held_s)
        _add(self.cause_s, other.cause_s)
        _add(self.clients, other.clients)
        self.level_peak = max(self.level_peak, other.level_peak)
        self.level_s = [one + two for one, two in zip(self.level_s, other.level_s, strict=True)]
        self.longest_wait_s = max(self.longest_wait_s, other.longest_wait_s)
        for name, seconds in other.delays_s.items():
            self.delays_s[name] = max(seconds, self.delays_s.get(name, 0.0))

    def wait_of(self, share: float) -> float:
        """Return the approximate quantile *share* of the waiting times of accepted publishes, in seconds."""
        left = math.ceil(share * sum(self.waits.values()))
        for bucket in sorted(self.waits):
            left -= self.waits[bucket]
            if left <= 0:
                return (
                    0.0 if bucket < 0 else min(self.longest_wait_s, FINEST * 2 ** ((bucket + 1) / BUCKETS_A_DOUBLING))
                )
        return 0.0

    def throttled(self) -> float:
        """Return the throttled time in seconds, summed over clients."""
        return sum(self.held_s.values())

    def packed(self) -> dict[str, Any]:
        """Return a form for JSON and pickle; `unpacked()` is the inverse."""
        packed = asdict(self)
        packed["waits"] = sorted(self.waits.items())
        return packed


def _add(mine: dict[K, N], theirs: dict[K, N]) -> None:
    for key, number in theirs.items():
        mine[key] = mine[key] + number if key in mine else number


def unpacked(packed: dict[str, Any]) -> Outcome:
    return Outcome(**{**packed, "waits": dict(packed["waits"])})


class Tally:
    """Counts an outcome while a trace is played, from the time *since* on."""

    def __init__(self, since: float) -> None:
        self.outcome = Outcome()
        self._since = since
        self._begun = math.inf
        self._now = -math.inf
        self._level = 0.0
        self._cause = ""
        self._level_since = 0.0
        self._throttled: dict[int, tuple[str, str, float]] = {}  # by account: client, reason, since

    def pass_time(self, now: float) -> None:
        if self._begun == math.inf:
            self._begun = self._level_since = now
        self._now = now

    def arrived(self, count: int) -> None:
        if self._now >= self._since:
            self.outcome.publishes += count

    def accepted(self, count: int, waited: float) -> None:
        if self._now < self._since or not count:
            return
        outcome = self.outcome
        outcome.accepted += count
        bucket = -1 if waited < FINEST else int(math.log2(waited / FINEST) * BUCKETS_A_DOUBLING)
        outcome.waits[bucket] = outcome.waits.get(bucket, 0) + count
        outcome.longest_wait_s = max(outcome.longest_wait_s, waited)

    def refused_or_dropped(self, verdict: Verdict) -> None:
        if self._now >= self._since and verdict.reason is not None:
            counts: dict[str, int] = getattr(self.outcome, KINDS[verdict.kind])
            counts[verdict.reason.label] = counts.get(verdict.reason.label, 0) + 1

    def lost(self, count: int) -> None:
        if self._now >= self._since:
            self.outcome.lost += count

    def throttled(self, number: int, client: str, reason: str) -> None:
        """Count the client as throttled from now on, for *reason*."""
        before = self._throttled.get(number)
        if before is not None and before[1] == reason:
            return
        self.resume(number)
        self._throttled[number] = (client, reason, self._now)
        if self._now >= self._since:
            self.outcome.held_times += 1

    def is_throttled(self, number: int) -> bool:
        return number in self._throttled

    def resume(self, number: int) -> None:
        """End the throttling of the client."""
        throttled = self._throttled.pop(number, None)
        if throttled is None:
            return
        client, reason, since = throttled
        seconds = self._now - max(since, self._since)
        if seconds >= 0.0:
            outcome = self.outcome
            outcome.held_s[reason] = outcome.held_s.get(reason, 0.0) + seconds
            outcome.clients[client] = outcome.clients.get(client, 0.0) + seconds

    def level(self, level: float, cause: str) -> None:
        """Set the level that is in force from now on, and its cause; "" if another worker raised it."""
        self._count_level()
        self._level, self._cause = level, cause

    def delay(self, name: str, seconds: float) -> None:
        if self._now >= self._since and seconds > self.outcome.delays_s.get(name, 0.0):
            self.outcome.delays_s[name] = seconds

    def close(self, waiting: int) -> Outcome:
        """Finish the outcome; *waiting* publishes still wait."""
        for number in list(self._throttled):
            self.resume(number)
        self._count_level()
        if self._begun != math.inf:
            self.outcome.seconds = max(0.0, self._now - max(self._begun, self._since))
        self.outcome.waiting = waiting
        return self.outcome

    def _count_level(self) -> None:
        seconds = self._now - max(self._level_since, self._since)
        self._level_since = self._now
        if seconds > 0.0:
            self.outcome.level_s[math.ceil(self._level)] += seconds
            if self._cause:
                self.outcome.cause_s[self._cause] = self.outcome.cause_s.get(self._cause, 0.0) + seconds
            self.outcome.level_peak = max(self.outcome.level_peak, self._level)
