# Work that may take milliseconds and is not Python: hashing a password, a step of a TLS handshake.
#
# It runs in a thread, as such C code releases the interpreter's lock; what follows from it runs in the reactor's
# thread. Nothing else belongs here: a thread that runs Python makes each of our system calls a thousand times slower.
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

THREADS: Final = 2  # so that one slow hash does not hold up all handshakes


class Offload:
    """Runs *work* elsewhere and hands each result to *deliver*, which brings it back to the reactor's thread."""

    def __init__(self, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._deliver = deliver
        self._threads = ThreadPoolExecutor(THREADS, "offload")

    def run(self, work: Callable[[], object], then: Callable[[object], None]) -> None:
        """Do *work*, then call *then* with its result, or with the exception that it ended with."""
        self._threads.submit(work).add_done_callback(partial(self._done, then))

    def close(self) -> None:
        """What has not begun is not done any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _done(self, then: Callable[[object], None], finished: Future[object]) -> None:
        if not finished.cancelled():
            error = finished.exception()
            self._deliver(partial(then, finished.result() if error is None else error))
