# Calls that other threads want to have made in the thread of the log: those of a moment are made together.
from collections import deque
from collections.abc import Callable


class Inbox:
    def __init__(self, deliver: Callable[[Callable[[], None]], None]) -> None:
        """*deliver* has a callable called in the thread of the log; it may be used in any thread."""
        self._deliver = deliver
        self._calls: deque[Callable[[], None]] = deque()
        self._delivered = False  # `_run()` is about to be called
        self._closed = False

    def put(self, call: Callable[[], None]) -> None:
        """Have *call* called, behind those that were put before; from any thread."""
        self._calls.append(call)
        if not self._delivered:
            self._delivered = True
            self._deliver(self._run)

    def close(self) -> None:
        """Make no more calls."""
        self._closed = True

    def _run(self) -> None:
        self._delivered = False  # before the calls: one that is put from here on is made now, or has us come again
        while self._calls:
            call = self._calls.popleft()
            if not self._closed:
                call()
