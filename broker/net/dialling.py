# Connections to Redis on the reactor: made without waiting, and served ahead of clients.
#
# A connection that is still being made is a stream like any other: its first commands wait in the outbox until the
# kernel takes them, and a refusal is an error of the socket. The received bytes are given to the `RedisConnection`
# once. It keeps to its quantum and may leave replies for the next round; until then the stream keeps the bytes.
import socket
from collections.abc import Callable
from typing import Final

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Handler, Stream
from broker.reasons import CloseReason
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import RedisConnection

ANY_BYTES: Final = 1 << 40  # the connection itself bounds what waits


class Dialler:
    """A `ByteStream`."""

    def __init__(self, reactor: Reactor, failed: Callable[[Exception], None]) -> None:
        """*failed* is called with exceptions of the code that handles replies."""
        self._reactor = reactor
        self._failed = failed
        self._budget = OutboundBudget(ANY_BYTES)
        self._stream: Stream | None = None

    def open(self, address: RedisAddress, connection: RedisConnection) -> str:
        sock = socket.socket(address.family(), socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address.where())
        except BlockingIOError:  # being made; or the queue of a unix socket is full, and the first send will fail
            pass
        except OSError as error:
            sock.close()
            return error.strerror or str(error)
        outbox = Outbox(sock.fileno(), ANY_BYTES, ANY_BYTES >> 1, self._budget, self._reactor.dirty)
        stream = Stream(sock, str(address), outbox)
        self._stream = stream
        self._reactor.attach(stream, RedisHandler(connection, self._failed))
        return ""

    def write(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.outbox.write(data)

    def close(self) -> None:
        stream = self._stream
        if stream is not None:
            self._stream = None
            self._reactor.destroy(stream)


class RedisHandler(Handler):
    def __init__(self, connection: RedisConnection, failed: Callable[[Exception], None]) -> None:
        self._connection = connection
        self._failed = failed
        self._given = False  # the connection has the bytes that the stream holds

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        data = b"" if self._given else stream.input[stream.position :]
        self._given = True
        units = quantum
        try:
            units = self._connection.receive(data, quantum, now)
        except Exception as error:
            self._failed(error)
        if stream.state == OPEN and not self._connection.more_replies:
            self._given = False
            stream.forget_input()
        return units

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._connection.lost(reason.label, now)
