# Counts what a worker does, as lines of its code that are executed: a loop over all peers counts once for each of them.
#
# A count is the same on every machine, and says more than a time: what a test claims of it holds or does not.
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import broker

SOURCES = str(Path(next(iter(broker.__path__))))


class Lines:
    """Lines of Weir's code, as far as they are executed within `counted()`."""

    def __init__(self) -> None:
        self.lines = 0
        self.seconds = 0.0  # of CPU, without the counting only if it is not `exact`
        self.exact = True

    @contextmanager
    def counted(self) -> Iterator[None]:
        began = time.process_time()
        if self.exact:
            sys.settrace(self._called)
        try:
            yield
        finally:
            if self.exact:
                sys.settrace(None)
            self.seconds += time.process_time() - began

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._executed if frame.f_code.co_filename.startswith(SOURCES) else None

    def _executed(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
        return self._executed
