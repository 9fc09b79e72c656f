# The task that gives the loop of a process its slices.
from collections.abc import Callable

import trio

from broker.control.heartbeat import Heartbeat
from broker.net.loop import Loop


def _nothing() -> None:
    pass


async def spin(
    loop: Loop,
    heartbeat: Heartbeat | None,
    clock: Callable[[], float],
    after_slice: Callable[[], None] = _nothing,
) -> None:
    """Give *loop* its slices, and other tasks of trio their turn between them; for ever.

    *after_slice* is called after each of them, also after one that failed.
    """
    while True:
        try:
            wait = loop.turn()
        finally:
            after_slice()
        if heartbeat is not None:
            now = clock()
            if now >= heartbeat.worth_while:
                heartbeat.stamp(now)
            wait = min(wait, heartbeat.due - now)
        if wait > 0.0:
            with trio.move_on_after(wait):
                await trio.lowlevel.wait_readable(loop.fileno())
        else:
            await trio.lowlevel.checkpoint()
