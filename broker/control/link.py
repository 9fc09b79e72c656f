# The link: a worker's end of the socket that joins it to its supervisor.
#
# The reactor serves it, ahead of clients: so what the supervisor wants is done between two slices, by the loop that
# serves clients, and a worker that answers is one whose loop turns. Its end means that the supervisor is gone.
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from broker.control.link_frames import LARGEST, FrameError, FrameReader, frame
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.net.reactor import Reactor
from broker.net.stream import Handler, Stream
from broker.reasons import CloseReason

Frame = dict[str, Any]
UNITS: Final = 1  # of a round that one frame counts for
MOST_DESCRIPTORS: Final = 64  # in one recv


class LinkStream(Stream):
    """A stream that descriptors come with (unix(7), SCM_RIGHTS): before the frame that they belong to, or with it."""

    def __init__(self, sock: socket.socket, address: str, outbox: Outbox) -> None:
        super().__init__(sock, address, outbox)
        self.descriptors: deque[int] = deque()

    def receive(self, size: int) -> int:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.sock, size, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            self.unread = False
            return 0
        self.descriptors.extend(descriptors)
        if not data:
            self.finished = True
            return 0
        self.input = data  # the handler always takes all
        self.position = 0
        self.left = len(data)
        return self.left


class Link(Handler):
    def __init__(
        self, reactor: Reactor, sock: socket.socket, take: Callable[[Frame], None], ended: Callable[[str], None]
    ) -> None:
        """*take* is called with each frame; *ended* with the reason when no more will come."""
        self._reactor = reactor
        self._sock = sock
        self._reader = FrameReader()
        self._take = take
        self._ended = ended
        budget = OutboundBudget(2 * LARGEST)  # its own: what clients are owed is no reason to be silent
        self._outbox = Outbox(sock.fileno(), LARGEST, LARGEST, budget, reactor.dirty)
        self._stream = LinkStream(sock, "supervisor", self._outbox)
        reactor.attach(self._stream, self)

    def take_descriptors(self, count: int) -> list[int]:
        """The next *count* descriptors that came with frames."""
        received = self._stream.descriptors
        return [received.popleft() for _ in range(count)]

    def send(self, kind: str, facts: Frame) -> None:
        """Tell the supervisor."""
        self._outbox.write(frame(kind, facts))
        self._reactor.wake()

    def send_last(self, kind: str, facts: Frame, patience: float) -> None:
        """The same once the reactor turns no more, for *patience* seconds; the supervisor may have gone."""
        if self._outbox.size:
            return  # it does not listen: a frame of its own would come in the middle of another
        try:
            self._sock.settimeout(patience)
            self._sock.sendall(frame(kind, facts))
        except OSError:
            pass

    def owes(self) -> bool:
        """Something has not left yet."""
        return self._outbox.size > 0

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        data = stream.input[stream.position :]
        stream.input = b""
        stream.position = 0
        stream.left = 0
        try:
            frames = self._reader.feed(data)
        except FrameError as error:
            self._ended(str(error))
            return UNITS
        for found in frames:
            self._take(found)
        return UNITS * len(frames)

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._reactor.destroy(stream)
        self._ended(reason.label)
