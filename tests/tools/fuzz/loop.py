# One thread that drives everything the fuzzer does at once: sockets and timers, nothing else.
#
# Not trio: a run opens a thousand connections a second, most of which live for a few milliseconds, and what a task
# for each of them costs would be the larger part of the run.
import heapq
import select
import time
from collections.abc import Callable
from itertools import count
from typing import Final

EVENTS: Final = 512  # taken in one turn


class Loop:
    def __init__(self) -> None:
        self.now = time.monotonic()
        self.longest_pause = 0.0  # seconds that a turn came later than it was to come
        self._epoll = select.epoll()
        self._ready: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()  # two timers of the same time fire in the order in which they were set

    def watch(self, fd: int, mask: int, ready: Callable[[int], None]) -> None:
        """Call *ready* with what happened to *fd*, whenever something of *mask* does."""
        self._epoll.register(fd, mask)
        self._ready[fd] = ready

    def change(self, fd: int, mask: int) -> None:
        self._epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """Call it before *fd* is closed."""
        self._epoll.unregister(fd)
        del self._ready[fd]

    def later(self, seconds: float, due: Callable[[], None]) -> None:
        """Call *due* once, after *seconds*; in a later turn, even if that is no time at all."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._order), due))

    def turn(self, longest: float) -> None:
        """Do what there is to do; wait for it for at most *longest* seconds."""
        wait = longest
        if self._timers:
            wait = min(wait, max(0.0, self._timers[0][0] - time.monotonic()))
        events = self._epoll.poll(wait, EVENTS)
        before, self.now = self.now, time.monotonic()
        self.longest_pause = max(self.longest_pause, self.now - before - wait)
        for fd, mask in events:
            ready = self._ready.get(fd)  # None: an earlier event of this turn ended it
            if ready is not None:
                ready(mask)
        due = []
        while self._timers and self._timers[0][0] <= self.now:
            due.append(heapq.heappop(self._timers)[2])
        for call in due:
            call()

    def close(self) -> None:
        self._epoll.close()
