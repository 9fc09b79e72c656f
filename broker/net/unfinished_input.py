# Who holds the most of a packet that is not whole yet: to be found when the input of all together is too much.
#
# A packet that is whole is worked on and goes; one that is not may stay as long as its sender likes. To look for the
# largest means to look at all streams, so it is done only while there is too much, not often, and for many at once,
# which are then taken from the list.
import heapq
from typing import Final

from broker.net.stream import OPEN, Stream

FOUND_AT_ONCE: Final = 1024
AGAIN: Final = 0.1  # seconds between two looks at all streams; a hundred thousand take some milliseconds
FD_BITS: Final = 32


class UnfinishedInput:
    def __init__(self) -> None:
        self._found: list[int] = []  # bytes and descriptor in one number, the largest last
        self._looked = -AGAIN

    def largest(self, streams: list[Stream | None], now: float) -> Stream | None:
        """The one of *streams*, which are found by descriptor, that holds the most; None if that is not known now."""
        while True:
            while self._found:
                found = self._found.pop()
                stream = streams[found & (1 << FD_BITS) - 1]
                if stream is not None and _unfinished(stream) and stream.left >= found >> FD_BITS:
                    return stream
            if now - self._looked < AGAIN:
                return None
            self._looked = now
            every = [
                stream.left << FD_BITS | stream.fd for stream in streams if stream is not None and _unfinished(stream)
            ]
            self._found = heapq.nlargest(FOUND_AT_ONCE, every)
            self._found.reverse()


def _unfinished(stream: Stream) -> bool:
    return stream.handler is None and stream.state == OPEN and 0 < stream.left < stream.needs
