# Finds the streams with the largest incomplete packets, for when the input of all clients together is too much.
#
# A complete packet is served soon and gone; an incomplete one stays as long as its sender likes. All streams have to be
# examined to find the largest, so this is done only while there is too much input, not often, and for many at once.
import heapq
from typing import Final

from broker.net.stream import OPEN, Stream

FOUND_AT_ONCE: Final = 1024
SCAN_EVERY: Final = 0.1  # seconds; a scan of a hundred thousand streams takes some milliseconds
FD_BITS: Final = 32


class UnfinishedInput:
    def __init__(self) -> None:
        self._found: list[int] = []  # bytes and descriptor of each in one number, the largest last
        self._scanned_at = -SCAN_EVERY

    def largest(self, streams: list[Stream | None], now: float) -> Stream | None:
        """Return the stream with the most incomplete input; None until the next scan. *streams*: by descriptor."""
        while True:
            while self._found:
                found = self._found.pop()
                stream = streams[found & (1 << FD_BITS) - 1]
                if stream is not None and _unfinished(stream) and stream.left >= found >> FD_BITS:
                    return stream
            if now - self._scanned_at < SCAN_EVERY:
                return None
            self._scanned_at = now
            every = [
                stream.left << FD_BITS | stream.fd for stream in streams if stream is not None and _unfinished(stream)
            ]
            self._found = heapq.nlargest(FOUND_AT_ONCE, every)
            self._found.reverse()


def _unfinished(stream: Stream) -> bool:
    return stream.handler is None and stream.state == OPEN and 0 < stream.left < stream.needs
