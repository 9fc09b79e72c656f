# The link: the end of a worker, or of the carrier, of the socket pair that connects it with its supervisor.
#
# The reactor serves the link, before clients. So a frame of the supervisor is handled between two slices, by the loop
# that serves clients, and an answer shows that this loop turns. When the link ends, the supervisor has ended.
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker.control.frame_codec import LARGEST, Frame, FrameDecoder, FrameError, FrameReader, encode
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.net.reactor import Reactor
from broker.net.stream import Handler, Stream
from broker.reasons import CloseReason

UNITS: Final = 1  # of a round's quantum, for one frame
MOST_DESCRIPTORS: Final = 64  # received by one recvmsg()

F = TypeVar("F", bound=Frame)


class LinkStream(Stream):
    """A stream that also receives descriptors (unix(7), SCM_RIGHTS), before or with the frame that they belong to."""

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
        self.input = data  # the handler always consumes all of it
        self.position = 0
        self.left = len(data)
        return self.left


class Link(Handler, Generic[F]):
    def __init__(
        self,
        reactor: Reactor,
        sock: socket.socket,
        decoder: FrameDecoder[F],
        take: Callable[[F], None],
        ended: Callable[[str], None],
    ) -> None:
        """*take* is called with each frame, and *ended* with the reason when the link has ended."""
        self._reactor = reactor
        self._sock = sock
        self._reader: FrameReader[F] = FrameReader(decoder)
        self._take = take
        self._ended = ended
        budget = OutboundBudget(2 * LARGEST)  # not that of the clients, which may be used up
        self._outbox = Outbox(sock.fileno(), LARGEST, LARGEST, budget, reactor.dirty)
        self._stream = LinkStream(sock, "supervisor", self._outbox)
        reactor.attach(self._stream, self)

    def take_descriptors(self, count: int) -> list[int]:
        """The next *count* descriptors that were received."""
        received = self._stream.descriptors
        return [received.popleft() for _ in range(count)]

    def send(self, frame: Frame) -> None:
        self._outbox.write(encode(frame))
        self._reactor.wake()

    def send_last(self, frame: Frame, timeout: float) -> None:
        """Send *frame*, behind what is not sent yet, when the reactor does not run any more.

        Waits at most *timeout* seconds for a supervisor that does not read; the frame is lost then.
        """
        outbox = self._outbox
        outbox.write(encode(frame))
        try:
            self._sock.settimeout(timeout)
            self._sock.sendall(outbox.rest())
        except OSError:  # the supervisor has ended, or does not read
            pass

    def owes(self) -> bool:
        """Whether a frame is not sent yet."""
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
