# Work that a worker does again and again, beside its loop.
import time
from collections.abc import Callable

import trio


async def every(seconds: float, job: Callable[[], None]) -> None:
    """Call *job* each *seconds*, the first time after them."""
    while True:
        await trio.sleep(seconds)
        job()


async def as_due(job: Callable[[], float]) -> None:
    """Call *job* now, and again each time after the seconds that it returns."""
    while True:
        await trio.sleep(job())


async def at_once_and_every(seconds: float, job: Callable[[], None]) -> None:
    """Call *job* now, and then each *seconds*."""
    job()
    await every(seconds, job)


async def at_whole(seconds: float, job: Callable[[float], None]) -> None:
    """Call *job* with the Unix time whenever that is a multiple of *seconds*: on all nodes at once, so that a window of
    time has one metrics record of each worker.
    """
    while True:
        left = seconds - time.time() % seconds
        if (
            left < seconds / 2
        ):  # the wall clock is a little slower than the one of sleep(): this time was called already
            left += seconds
        await trio.sleep(left)
        job(time.time())
