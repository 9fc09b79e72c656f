# The destination of a node's log lines: the stderr that the node was started with, or a file when it is detached.
#
# Supervisor and workers append to the same file, each line in one write. A large file is renamed and a new one begun:
# the supervisor's descriptors are switched to the new file, and each worker is told to switch its own.
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

ROTATE_AT: Final = 64 * 1024 * 1024  # bytes
KEPT: Final = 3  # renamed files
CHECK: Final = 10.0  # seconds between two looks at the size


class LogFile:
    """It is stderr until `detach()` is called."""

    def __init__(self) -> None:
        self.path = ""
        self.descriptor = os.dup(sys.stderr.fileno())  # inherited by the workers, whose own stderr is another file

    def detach(self, path: Path) -> None:
        """Write to *path* from now on. OSError."""
        self.path = str(path)
        self._switch()

    def reopen(self) -> None:
        """Open the file again, as logrotate may have renamed it."""
        try:
            if self.path:
                self._switch()
        except OSError as error:
            self._failed(error)

    async def rotate(self, begun: Callable[[], None]) -> None:
        """Begin a new file, and call *begun*, whenever the file is large."""
        while self.path:
            await trio.sleep(CHECK)
            if os.fstat(self.descriptor).st_size >= ROTATE_AT:
                try:
                    self._begin_another()
                except OSError as error:  # such as a full disk or a removed folder: the node goes on
                    self._failed(error)
                begun()

    def _begin_another(self) -> None:
        for number in range(KEPT - 1, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                os.replace(f"{self.path}.{number}", f"{self.path}.{number + 1}")
        os.replace(self.path, f"{self.path}.1")
        self._switch()

    def _failed(self, error: OSError) -> None:
        structlog.get_logger().error("log_file_failed", path=self.path, why=error.strerror)

    def _switch(self) -> None:
        new = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        for descriptor in (sys.stdout.fileno(), sys.stderr.fileno(), self.descriptor):
            os.dup2(new, descriptor)
        os.close(new)
