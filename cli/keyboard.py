# Reads single keys from the terminal, without Enter.
import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any


class Keyboard:
    """A context in which keys are not echoed. If the standard input is not a terminal, no key ever arrives."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> "Keyboard":
        if self._descriptor is not None:
            self._before = termios.tcgetattr(self._descriptor)
            tty.setcbreak(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The key pressed within *seconds*, or ""."""
        if self._descriptor is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(self._descriptor, 1)
        if not typed:  # the terminal was closed
            self._descriptor = None
        return typed.decode(errors="replace")
