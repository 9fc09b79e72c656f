# The wire of a line to Redis, on the reactor: dialled without waiting, and served ahead of clients.
#
# A connection that is still being made is a stream like any other: the greeting waits in its outbox until the kernel
# takes it, and a refusal is an error of its socket. What came in is given to the line once. As the line heeds its
# quantum it may not get to all replies: it is called again in the next round; until then the stream holds the bytes.
import socket
from collections.abc import Callable
from typing import Final

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Handler, Stream
from broker.reasons import CloseReason
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RedisConnection

ANY_BYTES: Final = 1 << 40  # the line itself bounds what waits


class Dialler:
    """A `ByteStream`."""

    def __init__(self, reactor: Reactor, failed: Callable[[Exception], None]) -> None:
        """*failed* is told of mistakes of ours in what follows from a reply."""
        self._reactor = reactor
        self._failed = failed
        self._budget = OutboundBudget(ANY_BYTES)
        self._stream: Stream | None = None

    def open(self, address: RedisAddress, line: RedisConnection) -> str:
        sock = socket.socket(address.family(), socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address.where())
        except BlockingIOError:  # it is being made; or a unix socket's queue is full, which the first send will show
            pass
        except OSError as error:
            sock.close()
            return error.strerror or str(error)
        outbox = Outbox(sock.fileno(), ANY_BYTES, ANY_BYTES >> 1, self._budget, self._reactor.dirty)
        stream = Stream(sock, str(address), outbox)
        self._stream = stream
        self._reactor.attach(stream, LineHandler(line, self._failed))
        return ""

    def write(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.outbox.write(data)

    def close(self) -> None:
        stream = self._stream
        if stream is not None:
            self._stream = None
            self._reactor.destroy(stream)


class LineHandler(Handler):
    def __init__(self, line: RedisConnection, failed: Callable[[Exception], None]) -> None:
        self._line = line
        self._failed = failed
        self._given = False  # the line has the bytes that the stream holds

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        data = b"" if self._given else stream.input[stream.position :]
        self._given = True
        units = quantum
        try:
            units = self._line.take(data, quantum, now)
        except Exception as error:
            self._failed(error)
        if stream.state == OPEN and not self._line.more:
            self._given = False
            stream.forget_input()
        return units

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._line.lost(reason.label, now)
