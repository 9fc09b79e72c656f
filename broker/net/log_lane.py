# A lane between a worker and the carrier on the reactor, at either end: takes the frames out of the stream.
#
# Its outbox has no limit of its own: what is appended is bounded by the gate of the log, and what is read by the
# windows of readings. As both ends always read, and pause only what a log that is full makes wait, no circle of waiting
# can form.
import socket
from typing import Final

from broker.delivery.outbox import unbounded
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Handler, Stream
from broker.overload.quantum import BYTES_PER_UNIT_SHIFT, PUBLISH_COST
from broker.reasons import CloseReason
from broker.store.logs.frames import HEAD, frame_length
from broker.store.logs.lane import LaneUser

FRAME_COST: Final = 5 * PUBLISH_COST  # units, beside those for its bytes


class StreamLane(Handler):
    """A `Lane`."""

    def __init__(self, reactor: Reactor, sock: socket.socket, name: str, user: LaneUser) -> None:
        """*sock* does not block. *name*: of the other end."""
        self._reactor = reactor
        self._user = user
        self._outbox = unbounded(sock.fileno(), reactor.dirty)
        self._stream = Stream(sock, name, self._outbox)
        reactor.attach(self._stream, self)

    # A Lane.

    def write(self, chunk: bytes) -> None:
        if self._stream.state == OPEN:
            self._outbox.write(chunk)

    def pause(self) -> None:
        self._reactor.pause(self._stream, Pause.LOG)

    def resume(self) -> None:
        self._reactor.resume(self._stream, Pause.LOG)

    def close(self) -> None:
        self._reactor.destroy(self._stream)

    def unsent(self) -> int:
        """Bytes that were written and that the kernel has not taken."""
        return self._outbox.size

    # A Handler.

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        """LaneError."""
        data = stream.input
        position = stream.position
        end = len(data)
        spent = 0
        stream.needs = 0
        while spent < quantum and position < end:
            body = position + HEAD
            if body > end:
                stream.needs = body - position
                break
            stop = position + frame_length(data, position)
            if stop > end:
                stream.needs = stop - position
                break
            if not self._user.take(self, data[body - 1], data, body, stop, now):
                break
            if stream.state != OPEN:  # the user has closed it
                return spent
            spent += FRAME_COST + (stop - position >> BYTES_PER_UNIT_SHIFT)
            position = stop
        stream.position = position
        stream.left = end - position
        if position == end:
            stream.input = b""
            stream.position = 0
        return spent

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._reactor.destroy(stream)
        self._user.lost(self, reason.label, now)
