# A stream: one accepted socket with the bytes that came in and the outbox of those that go out, and between them and
# the socket a layer, if the transport has one. All of them are TCP [MQTT-4.2.0-1].
#
# The reactor fills `input` and the service above takes packets out of it, from `position` on. A packet that is
# not complete yet says how many bytes it `needs`, so that a large one is put together once and not at every recv.
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
CLOSING: Final = 1  # what it is owed still leaves, nothing more is read as MQTT
LINGERING: Final = 2  # our side is shut; what the peer still sends is thrown away, or a reset would eat our last words
CLOSED: Final = 3


# What recv() and send() do, without parsing their arguments by a format: 430 instructions less, for each
os_read: Final = os.read
os_write: Final = os.write

FEW: Final = 448  # bytes of an object that, with its header, Python's own allocator has (up to 512), not the heap

_received: Final = memoryview(bytearray(64 * 1024))  # the one place where all sockets are read into


class Handler(Protocol):
    """Who serves a stream that is no client's: the link to the supervisor, another worker, Redis."""

    def serve(self, stream: "Stream", quantum: int, now: float) -> int:
        """Take what *stream* has, for about *quantum* units; the units used."""
        ...

    def drained(self, stream: "Stream", now: float) -> None:
        """*stream* is writable again."""
        ...

    def lost(self, stream: "Stream", reason: CloseReason, now: float) -> None:
        """The peer of *stream* is gone: to be destroyed."""
        ...


class Stream:
    def __init__(self, sock: socket.socket, address: str, outbox: Outbox) -> None:
        self.sock = sock
        self.fd = outbox.fd
        self.address = address
        self.outbox = outbox
        self.handler: Handler | None = None  # of one that is no client's
        self.transport = "tcp"
        self.layer: Layer | None = None
        self.state = OPEN
        self.input = b""
        self.position = 0
        self.left = 0  # bytes received and not taken
        self.needs = 0  # bytes that must be left to make serving it worth while
        self.accounted = 0  # what of `left` is in the reactor's sum
        self.unread = False  # the kernel has told of input, once, and we have not read it all
        self.ends = False  # it has told of the end, too: that is to be read behind the input
        self.flows = False  # the last read brought as much as FEW, so the next one may bring a lot
        self.ready_at = 0.0  # when its turn came up
        self.read_at = 0.0  # when it was last read
        self.acknowledged = 0  # publishes, since that was last counted
        self.queued = False  # waits for its turn in the round
        self.stranger = True  # until the service has let it in
        self.paused = 0  # the set of reasons (pauses.py) not to read nor serve it
        self.paused_reading_ahead = 0  # those of them that allow reading ahead
        self.paused_unauthenticated = 0  # those of them during which it is dropped at once when the peer closes
        self.finished = False  # the peer has sent all it will
        self.debt = 0  # units it used beyond its quantum
        self.stalled_at = 0.0  # when its reader was last seen to take a byte, if it is blocked
        self.untaken = 0  # bytes that the kernel held for it then
        self._parts: bytearray | None = None  # of a packet that is not whole; a list would cost 40 bytes for each byte

    def receive(self, size: int) -> int:
        """Take what is there, at most *size* bytes; how many. 0: nothing now, or finished.

        A client is asked for FEW as long as it does not send more at a time: that is a packet or several.
        OSError: reset. ProtocolError: the layer refuses what came.
        """
        try:
            if self.layer is not None:
                data = self.layer.recv(size)
            else:
                data = self.read(size if self.flows or self.handler is not None else min(size, FEW))
        except BlockingIOError:
            return 0
        count = len(data)
        self.flows = count >= FEW
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
        """What the kernel has, at most *size* bytes and 64 KiB. OSError as recv().

        `recv(size)` makes an object of that size and shrinks it: 64 KiB from the heap each time, for ten bytes mostly.
        What lives longer comes to lie in between, until there is no hole of 64 KiB left and the heap grows: to 41 MiB
        with 11 in use, measured. A copy costs no more than that did; FEW cost less than half of it.
        """
        self.unread = False
        if size <= FEW:
            data = os_read(self.fd, size)
            count = len(data)
        else:
            count = self.sock.recv_into(_received, size)
            data = bytes(_received[:count])
        self.unread = count == size or (self.ends and count > 0)  # fewer: that was all (epoll(7), question 9)
        return data

    def has_input(self) -> bool:
        """There may be something to receive."""
        return self.unread or (self.layer is not None and self.layer.more)

    def reads_while_paused(self) -> bool:
        """Every reason for which the stream is paused allows reading ahead."""
        return self.paused != 0 and self.paused == self.paused_reading_ahead

    def forget_input(self) -> None:
        """Nothing that was received matters any more."""
        self.input = b""
        self.position = 0
        self.left = 0
        self._parts = None

    def took_something(self) -> bool:
        """Whether its reader acknowledged bytes since this was last asked."""
        untaken = int.from_bytes(fcntl.ioctl(self.fd, SIOCOUTQ, bytes(4)), sys.byteorder)
        less = untaken < self.untaken
        self.untaken = untaken
        return less

    def transmit(self, data: bytes | memoryview) -> int:
        """Give *data* to the kernel, or to the layer; how many bytes it took. OSError: reset."""
        try:
            return os_write(self.fd, data) if self.layer is None else self.layer.send(data)
        except BlockingIOError:
            return 0
