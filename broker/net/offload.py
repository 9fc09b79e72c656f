# Threads for work that may take milliseconds and is not Python: hashing a password, a step of a TLS handshake.
#
# Such C code releases the interpreter's lock. What follows from its result runs in the reactor's thread. Nothing else
# belongs here: a thread that runs Python makes each of our system calls a thousand times slower.
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial


class Offload:
    """*threads* do the work; *deliver* calls a function in the reactor's thread."""

    def __init__(self, threads: Executor, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._threads = threads
        self._deliver = deliver

    def run(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Do *work* in a thread, then call *then* in the reactor's thread with the result, or with the exception."""
        self._threads.submit(work).add_done_callback(partial(self._done, then))

    def close(self) -> None:
        """Cancel the work that has not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, then: Callable[[object], None], finished: Future[object]) -> None:
        if not finished.cancelled():
            error = finished.exception()
            self._deliver(partial(then, finished.result() if error is None else error))
