# Where the lines of a node go: to the stderr it was started with, or, detached, to a file in its folder.
#
# Supervisor and workers append to the same file, each line in one write. When it is large it is renamed and a new one
# is begun: the supervisor's descriptors are turned to it, and each worker is told to turn its own.
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

ROTATE_AT: Final = 64 * 1024 * 1024  # bytes
KEPT: Final = 3  # former files
LOOK_EVERY: Final = 10.0  # seconds


class LogFile:
    """stderr, until `detach()`."""

    def __init__(self) -> None:
        self.path = ""
        self.descriptor = os.dup(sys.stderr.fileno())  # that workers inherit; their own stderr is something else

    def detach(self, path: Path) -> None:
        """From now on all goes to *path*. OSError."""
        self.path = str(path)
        self._turn()

    def reopen(self) -> None:
        """Somebody else may have renamed the file."""
        try:
            if self.path:
                self._turn()
        except OSError as error:
            self._failed(error)

    async def rotate(self, begun: Callable[[], None]) -> None:
        """Begin a new file, and call *begun*, whenever this one is large."""
        while self.path:
            await trio.sleep(LOOK_EVERY)
            if os.fstat(self.descriptor).st_size >= ROTATE_AT:
                try:
                    self._begin_another()
                except OSError as error:  # a full disk, a folder that is gone: no reason to end a node
                    self._failed(error)
                begun()

    def _begin_another(self) -> None:
        for number in range(KEPT - 1, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")
        self._turn()

    def _failed(self, error: OSError) -> None:
        structlog.get_logger().error("log_file_failed", path=self.path, why=error.strerror)

    def _turn(self) -> None:
        new = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno(), self.descriptor):
            os.dup2(new, descriptor)
        os.close(new)
