# The offload: work in threads, its result in the thread of the reactor.
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from broker.net.offload import Offload
from tests.inprocess import AtOnce

PATIENCE = 10.0  # seconds


class Delivered:
    """Calls that wait for the thread of the reactor."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()


def test_the_result_is_handled_in_the_thread_of_the_reactor() -> None:
    """Two threads would change the same stream."""
    delivered = Delivered()
    results: list[object] = []
    Offload(AtOnce(), delivered.waiting.append).run(lambda: 6 * 7, results.append)

    assert [] == results
    delivered.run()
    assert [42] == results


def test_an_exception_is_a_result() -> None:
    """A handshake that fails would never end, and its connection stay paused until its deadline."""
    delivered = Delivered()
    results: list[object] = []
    error = ValueError("wrong key")

    def fail() -> None:
        raise error

    Offload(AtOnce(), delivered.waiting.append).run(fail, results.append)
    delivered.run()

    assert [error] == results


def test_work_that_has_not_begun_is_cancelled_at_the_end() -> None:
    """The broker could not stop before a thousand passwords are checked."""
    delivered = Delivered()
    threads = ThreadPoolExecutor(1)
    offload = Offload(threads, delivered.waiting.append)
    begun, end = threading.Event(), threading.Event()
    done: list[str] = []
    results: list[object] = []

    def first() -> None:
        begun.set()
        end.wait(PATIENCE)
        done.append("first")

    offload.run(first, results.append)
    offload.run(lambda: done.append("second"), results.append)
    assert begun.wait(PATIENCE)
    offload.close()
    end.set()
    threads.shutdown(wait=True)
    delivered.run()

    assert ["first"] == done
    assert [None] == results
