# Decides when a child is started again after its death, and when that is pointless. Nothing here waits or acts.
from dataclasses import dataclass
from typing import Final

FIRST_PAUSE: Final = 0.1  # seconds: the first death is followed by a start at once, the second by this pause,
LONGEST_PAUSE: Final = 5.0  # doubled with each death up to this
RECOVERED: Final = 30.0  # seconds of service after which a death counts as the first one again
NEVER_READY: Final = 5  # deaths of one child in a row, none of whose processes was ready,
NEVER_READY_WITHIN: Final = 30.0  # in so many seconds
TOO_MANY: Final = 10  # deaths of all children of a group,
TOO_MANY_WITHIN: Final = 60.0  # in so many seconds


@dataclass(frozen=True)
class Restart:
    """Start the child again."""

    pause: float  # seconds from now


@dataclass(frozen=True)
class GiveUp:
    """Do not start the child again."""

    why: str


class CrashLoop:
    """The recent deaths of a group of children, such as the workers of a node."""

    def __init__(self) -> None:
        self._deaths: list[float] = []

    def add(self, now: float) -> bool:
        """Count one death; whether there are too many."""
        self._deaths = [when for when in self._deaths if now - when < TOO_MANY_WITHIN]
        self._deaths.append(now)
        return len(self._deaths) >= TOO_MANY


class RestartPolicy:
    def __init__(self, name: str = "", crash_loop: CrashLoop | None = None) -> None:
        """*name*: the child's. *crash_loop*: its group's; None: the child is always started again."""
        self._name = name
        self._crash_loop = crash_loop
        self._pause = 0.0
        self._never_ready: list[float] = []  # the last deaths in a row without having been ready

    def after_death(self, served: float | None, now: float) -> Restart | GiveUp:
        """A process has died at *now*, after *served* seconds of service; None: it never was ready."""
        if served is None:
            self._never_ready = [*self._never_ready, now][-NEVER_READY:]
        else:
            self._never_ready = []
            if served >= RECOVERED:
                self._pause = 0.0
        if self._crash_loop is not None:
            too_many = self._crash_loop.add(now)
            if len(self._never_ready) == NEVER_READY and now - self._never_ready[0] < NEVER_READY_WITHIN:
                return GiveUp(f"{self._name} died {NEVER_READY} times in a row before it was ready")
            if too_many:
                return GiveUp(f"workers died {TOO_MANY} times within {int(TOO_MANY_WITHIN)} seconds")
        pause = self._pause
        self._pause = min(2 * pause, LONGEST_PAUSE) or FIRST_PAUSE
        return Restart(pause)
