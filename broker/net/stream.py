# A stream: one accepted socket with the bytes that came in and the outbox of those that go out.
#
# The reactor fills `input` and the service above takes packets out of it, from `position` on. A packet that is
# not complete yet says how many bytes it `needs`, so that a large one is put together once and not at every recv.
import socket
from typing import Final

from broker.delivery.outbox import Outbox

OPEN: Final = 0
CLOSING: Final = 1  # what it is owed still leaves, nothing more is read as MQTT
LINGERING: Final = 2  # our side is shut; what the peer still sends is thrown away, or a reset would eat our last words
CLOSED: Final = 3


class Stream:
    def __init__(self, sock: socket.socket, address: str, outbox: Outbox) -> None:
        self.sock = sock
        self.fd = outbox.fd
        self.address = address
        self.outbox = outbox
        self.state = OPEN
        self.input = b""
        self.position = 0
        self.needs = 0  # bytes from position on without which serving it is pointless
        self.readable = False  # the kernel has something for us
        self.queued = False  # waits for its turn in the round
        self.held = False  # is not read nor served until it is released
        self.muted = False  # we do not ask the kernel for input
        self.finished = False  # the peer has sent all it will
        self.debt = 0  # units it used beyond its quantum
        self.stalled_at = 0.0  # when its reader last took a byte, if it is blocked
        self._parts: list[bytes] | None = None
        self._parts_bytes = 0

    def receive(self, size: int) -> int:
        """Take what the kernel has, at most *size* bytes; how many. 0: nothing now, or finished. OSError: reset."""
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return 0
        if not data:
            self.finished = True
            return 0
        if self.position == len(self.input) and self._parts is None:
            self.input = data
            self.position = 0
        elif self._parts is None:
            self._parts = [self.input[self.position :], data]
            self._parts_bytes = len(self.input) - self.position + len(data)
            self.input = b""
            self.position = 0
        else:
            self._parts.append(data)
            self._parts_bytes += len(data)
        if self._parts is not None and self._parts_bytes >= self.needs:
            self.input = b"".join(self._parts)
            self._parts = None
            self._parts_bytes = 0
        return len(data)

    def pending(self) -> int:
        """Bytes received and not taken."""
        return len(self.input) - self.position + self._parts_bytes

    def servable(self) -> bool:
        """There is input that may hold a whole packet."""
        left = len(self.input) - self.position
        return left > 0 and left >= self.needs

    def transmit(self, data: bytes | memoryview) -> int:
        """Give *data* to the kernel; how many bytes it took. OSError: reset."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
