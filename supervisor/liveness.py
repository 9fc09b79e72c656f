# Decides from its heartbeat whether a worker hangs.
#
# Silence is counted in time that the supervisor itself was awake: each check adds at most the planned time between two
# checks, however late it is. So if the whole node was stopped (Ctrl-Z, a frozen container, a suspended machine), no
# worker is killed when the node continues, and a supervisor that runs late gives its workers more time, not less.
from collections.abc import Callable
from typing import Final

from broker.control.heartbeat import DRAINING, STARTING

CHECK_INTERVAL: Final = 0.1  # seconds between two checks of a heartbeat
LIMIT: Final = 1.0  # seconds without a stamp until a worker counts as hung; stamps come every 0.1
LIMIT_STARTING: Final = 30.0  # imports and password files take long when a machine starts many programs at once
LIMIT_DRAINING: Final = 5.0  # disconnecting a million clients


class Silence:
    """The time since a worker's last stamp, as far as the supervisor was awake."""

    def __init__(self, now: float) -> None:
        self._stamp = 0.0
        self._checked = now
        self._silent = 0.0

    def check(self, stamp: float, now: float) -> float:
        """The seconds of silence, given the last *stamp*."""
        if stamp != self._stamp:
            self._stamp = stamp
            self._silent = 0.0
        else:
            self._silent += min(now - self._checked, CHECK_INTERVAL)
        self._checked = now
        return self._silent


def is_hung(silent: float, phase: int, stopped: Callable[[], bool]) -> bool:
    """Whether a worker in *phase* hangs, after *silent* seconds of silence.

    If the worker is not *stopped* (SIGSTOP), it has until the next check: it may have been continued just now, and
    would be killed in the middle of its first turn. *stopped* is called for silent workers only, as it costs a read of
    /proc.
    """
    limit = {STARTING: LIMIT_STARTING, DRAINING: LIMIT_DRAINING}.get(phase, LIMIT)
    return silent > limit and (silent - CHECK_INTERVAL > limit or stopped())
