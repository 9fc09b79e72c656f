# A lane between a worker and the carrier, as those see it who use it. net/log_lane.py puts it on the reactor.
from typing import Protocol


class Lane(Protocol):
    """Its methods never wait, and never call the user."""

    def write(self, chunk: bytes) -> None:
        """Send *chunk* behind all that was written before."""
        ...

    def pause(self) -> None:
        """Read no more, from the frame on that was not taken."""
        ...

    def resume(self) -> None:
        """Read again."""
        ...

    def close(self) -> None:
        """End it; `lost()` is not called."""
        ...


class LaneUser(Protocol):
    def take(self, lane: Lane, kind: int, data: bytes, start: int, stop: int, now: float) -> bool:
        """Take a frame, whose body is *data* from *start* to *stop*. LaneError.

        False: not now, as the lane was paused; the frame comes again.
        """
        ...

    def lost(self, lane: Lane, why: str, now: float) -> None:
        """The other process has closed *lane*, or has ended."""
        ...
