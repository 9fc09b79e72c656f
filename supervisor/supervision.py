# When a worker is dead, when it is started again, and when that has no sense any more: pure decisions.
#
# A heartbeat is judged by the time that the supervisor itself was awake: each look adds what had been planned between
# two looks at most, however late the look is. So a node that was stopped as a whole (Ctrl-Z, a frozen container, a
# suspended machine) finds nobody dead when it goes on, and a slow supervisor gives its workers more time, not less.
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from broker.control.heartbeat import DRAINING, STARTING

LOOK_EVERY: Final = 0.1  # seconds between two looks at a heartbeat
SILENCE: Final = 1.0  # seconds without a stamp that mean death; stamps come every 0.1
SILENCE_STARTING: Final = 30.0  # imports, and files of passwords, on a machine that starts a lot of things at once
SILENCE_DRAINING: Final = 5.0  # telling a million clients to go

FIRST_PAUSE: Final = 0.1  # seconds before a worker that died is started again
LONGEST_PAUSE: Final = 5.0
WELL_AGAIN: Final = 30.0  # seconds of service after which an earlier death counts no more
NEVER_READY: Final = 5  # deaths of a shard in a row, without having been ready
NEVER_READY_WITHIN: Final = 30.0  # seconds
TOO_MANY: Final = 10  # deaths of any shards
TOO_MANY_WITHIN: Final = 60.0  # seconds


class Silence:
    """How long a worker has not stamped, in time that we were awake."""

    def __init__(self, now: float) -> None:
        self._stamp = 0.0
        self._looked = now
        self._silent = 0.0

    def look(self, stamp: float, now: float) -> float:
        """The seconds of silence, when the last *stamp* is this one."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._silent = 0.0
        else:
            self._silent += min(now - self._looked, LOOK_EVERY)
        self._looked = now
        return self._silent


def too_silent(silent: float, phase: int, stopped: Callable[[], bool]) -> bool:
    """Whether a worker in *phase* is dead after so many seconds of silence.

    One that is not *stopped* (SIGSTOP) has until the next look: it may have been continued a moment ago, and who is
    killed in its first turn has done what it could tell nobody of. Nobody asks that of one who is not silent.
    """
    most = {STARTING: SILENCE_STARTING, DRAINING: SILENCE_DRAINING}.get(phase, SILENCE)
    return silent > most and (silent - LOOK_EVERY > most or stopped())


@dataclass(frozen=True)
class Again:
    """Start the worker again."""

    pause: float  # seconds from now


@dataclass(frozen=True)
class GiveUp:
    """End the node."""

    why: str


class Deaths:
    """Those of all workers, and what follows from one more."""

    def __init__(self, shards: int) -> None:
        self._pauses = [FIRST_PAUSE] * shards
        self._in_vain: list[list[float]] = [[] for _ in range(shards)]  # when a shard died without having been ready
        self._all: list[float] = []

    def one_more(self, shard: int, served: float | None, now: float) -> Again | GiveUp:
        """A worker of *shard* died at *now*, after *served* seconds of service; None: it never was ready."""
        in_vain = self._in_vain[shard]
        if served is None:
            in_vain.append(now)
        else:
            in_vain.clear()
        if served is not None and served >= WELL_AGAIN:
            self._pauses[shard] = FIRST_PAUSE
        self._all = [when for when in self._all if now - when < TOO_MANY_WITHIN]
        self._all.append(now)
        if len(in_vain) >= NEVER_READY and now - in_vain[-NEVER_READY] < NEVER_READY_WITHIN:
            return GiveUp(f"worker {shard} died {NEVER_READY} times in a row before it was ready")
        if len(self._all) >= TOO_MANY:
            return GiveUp(f"workers died {TOO_MANY} times within {int(TOO_MANY_WITHIN)} seconds")
        pause = self._pauses[shard]
        self._pauses[shard] = min(2 * pause, LONGEST_PAUSE)
        return Again(pause)
