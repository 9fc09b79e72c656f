# Keys of the terminal that a command was started on, one at a time and without Enter.
import os
import select
import sys
import termios
import time
import tty
from types import TracebackType
from typing import Any


class Keys:
    """While it is entered, keys are not shown. Where the input is no terminal, none ever comes."""

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> "Keys":
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
        """The key that is pressed within *seconds*; "": none is."""
        if self._descriptor is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        if not ready:
            return ""
        typed = os.read(self._descriptor, 1)
        if not typed:  # the terminal is gone
            self._descriptor = None
        return typed.decode(errors="replace")
