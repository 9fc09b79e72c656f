# A stream: one socket, the bytes received from it and not served yet, and the outbox of the bytes to send. If the
# transport has a layer, the layer lies between the socket and both. All transports are TCP [MQTT-4.2.0-1].
#
# A virtual stream has no connection of its own: its layer gets and sends the bytes over something that many such
# streams share (cluster/node_lanes.py). The socket lends its descriptor only, as a place in the table of the reactor.
#
# Rounds fill `input`, and the service or the handler takes packets out of it, from `position` on. It sets `needs` to
# the size of a packet that is not complete yet, so that a large packet is put together once and not with every recv.
import fcntl
import os
import socket
import sys
import termios
from typing import Final, Protocol

from broker.delivery.outbox import Outbox
from broker.net.transports.layer import Layer
from broker.reasons import CloseReason

SIOCOUTQ: Final = termios.TIOCOUTQ  # its name for sockets: bytes sent and not acknowledged (tcp(7))

OPEN: Final = 0
CLOSING: Final = 1  # the outbox is still sent; what is received is discarded
LINGERING: Final = 2  # our side is shut; what is received is still discarded, or a reset would lose our last packet
CLOSED: Final = 3

# What recv() and send() do, without parsing their arguments by a format: 430 instructions less, for each
os_read: Final = os.read
os_write: Final = os.write

LARGE_READ: Final = 64 * 1024  # bytes of one read at most
SMALL_READ: Final = 4 * 1024  # bytes of one read at most while much input waits in the worker
TINY_READ: Final = (
    448  # bytes: with its header such an object comes from Python's own allocator (up to 512), not malloc
)

_received: Final = memoryview(bytearray(LARGE_READ))  # all sockets are read into this buffer


class Handler(Protocol):
    """Serves a stream that is not a client's: the supervisor's, another worker's, Redis'."""

    def serve(self, stream: "Stream", quantum: int, now: float) -> int:
        """Take what *stream* received, for about *quantum* units; return the units used."""
        ...

    def drained(self, stream: "Stream", now: float) -> None:
        """*stream* is writable again."""
        ...

    def lost(self, stream: "Stream", reason: CloseReason, now: float) -> None:
        """The peer of *stream* is gone; the handler has to destroy the stream."""
        ...


class Stream:
    def __init__(self, sock: socket.socket, address: str, outbox: Outbox) -> None:
        self.sock = sock
        self.fd = outbox.fd
        self.address = address
        self.outbox = outbox
        self.handler: Handler | None = None  # None: the stream is a client's
        self.transport = "tcp"
        self.layer: Layer | None = None
        self.virtual = False  # set before the stream is registered, together with `layer`
        self.state = OPEN
        self.input = b""
        self.position = 0
        self.left = 0  # bytes received and not served
        self.needs = 0  # bytes of input without which serving the stream is of no use
        self.accounted = 0  # the part of `left` that the reactor's input budget counts
        self.unread = False  # the kernel has reported input, which it does once, and not all of it is read
        self.end_reported = False  # the kernel has reported the end, which is behind the input
        self.reads_large = False  # the last read brought TINY_READ bytes or more, so the next one may bring many
        self.ready_at = 0.0  # when it was put into the ring of ready streams
        self.read_at = 0.0  # when it was last read
        self.behind_since = 0.0  # since when turns end with input that waits for the next one; 0.0: all was served
        self.acknowledged = 0  # publishes acknowledged whose latency is not counted yet
        self.queued = False  # in the ring of ready streams
        self.unauthenticated = True  # until the service has accepted its CONNECT
        self.paused = 0  # the set of reasons (pauses.py) not to read nor serve it
        self.paused_reading_ahead = 0  # the reasons among them that allow reading ahead
        self.paused_unauthenticated = 0  # the reasons among them during which it is dropped when its peer closes
        self.finished = False  # the end was read: the peer sends no more
        self.debt = 0  # units used beyond its quantum
        self.stalled_at = 0.0  # while it is blocked: when its reader last took a byte
        self.unacknowledged = 0  # bytes that the kernel had sent and the reader's kernel had not acknowledged then
        self._parts: bytearray | None = None  # of an incomplete packet; a list would cost 40 bytes for each byte

    def receive(self, size: int) -> int:
        """Add what was received to `input`, at most *size* bytes; return how many. 0: nothing now, or finished.

        Only TINY_READ bytes, a packet or several, are read from a client that does not send more at a time.
        OSError: reset. ProtocolError: the peer does not keep to the layer's protocol.
        """
        try:
            if self.layer is not None:
                data = self.layer.recv(size)
            else:
                few = size > TINY_READ and not self.reads_large and self.handler is None
                data = self.read(TINY_READ if few else size)
        except BlockingIOError:
            return 0
        count = len(data)
        self.reads_large = count >= TINY_READ
        if count == 0:
            self.finished = True
        elif self.left == 0:
            self.input = data
            self.position = 0
            self.left = count
        else:
            if self._parts is None:
                self._parts = bytearray(self.input[self.position :])
                self.input = b""
                self.position = 0
            self._parts += data
            self.left += count
            if self.left >= self.needs:
                self.input = bytes(self._parts)
                self._parts = None
        return count

    def read(self, size: int) -> bytes:
        """Return what the kernel received, at most *size* bytes and LARGE_READ. OSError: as recv().

        `recv(size)` makes an object of that size and shrinks it: 64 KiB from the heap each time, mostly for ten bytes.
        Objects that live longer end up between those, until no hole of 64 KiB is left and the heap grows: to 41 MiB
        with 11 in use, measured. The copy costs no more than that did; TINY_READ bytes cost less than half of it.
        """
        self.unread = False
        if size <= TINY_READ:
            data = os_read(self.fd, size)
            count = len(data)
        else:
            count = self.sock.recv_into(_received, size)
            data = bytes(_received[:count])
        self.unread = count == size or (self.end_reported and count > 0)  # fewer bytes were all (epoll(7), 9)
        return data

    def has_input(self) -> bool:
        """`receive()` may bring bytes."""
        return self.unread or (self.layer is not None and self.layer.more)

    def waits(self) -> bool:
        """The input is not served before something else happens: it is paused, or begins with a part of a packet."""
        return self.paused != 0 or self.left < self.needs

    def reads_while_paused(self) -> bool:
        """Every reason for which the stream is paused allows reading ahead."""
        return self.paused != 0 and self.paused == self.paused_reading_ahead

    def forget_input(self) -> None:
        """Drop the received bytes."""
        self.input = b""
        self.position = 0
        self.left = 0
        self._parts = None

    def made_progress(self) -> bool:
        """Whether the peer acknowledged bytes since the last call."""
        unacknowledged = int.from_bytes(fcntl.ioctl(self.fd, SIOCOUTQ, bytes(4)), sys.byteorder)
        progress = unacknowledged < self.unacknowledged
        self.unacknowledged = unacknowledged
        return progress

    def transmit(self, data: bytes | memoryview) -> int:
        """Give *data* to the kernel, or to the layer; return how many bytes were taken. OSError: reset."""
        try:
            return os_write(self.fd, data) if self.layer is None else self.layer.send(data)
        except BlockingIOError:
            return 0
