# Connections to Redis on the reactor: made without waiting, and served ahead of clients.
#
# A connection that is still being made is a stream like any other: its first commands wait in the outbox until the
# kernel takes them, and a refusal is an error of the socket. The received bytes are given to the `RedisConnection`
# once. It keeps to its quantum and may leave replies for the next round; until then the stream keeps the bytes.
# With TLS, the first commands wait for the end of its handshake here, and not in the outbox (tls_client.py).
import socket
import ssl
from collections.abc import Callable
from typing import Final

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Handler, Stream
from broker.net.transports.tls_client import TlsClientLayer, client_context
from broker.reasons import CloseReason, ProtocolError
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
        self._waiting: list[bytes] | None = None  # what is sent once TLS is established; None: nothing has to wait
        self._context: ssl.SSLContext | None = None
        self._ca = ""  # the file of authorities that the context has

    def open(self, address: RedisAddress, connection: RedisConnection) -> str:
        try:
            context = self._context_for(address.ca) if address.tls else None
        except OSError as error:
            return f"{address.ca}: {error.strerror or error}"
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
        layer: TlsClientLayer | None = None
        if context is not None:
            name = address.name or address.host
            try:
                layer = TlsClientLayer(sock, stream, context, name, self._reactor, self._established)
            except ValueError as error:
                sock.close()
                return f"no certificate can be for {name}: {error}"
            stream.layer = layer
            self._waiting = []
        self._stream = stream
        self._reactor.attach(stream, RedisHandler(connection, self._failed))
        if layer is not None:
            try:
                layer.begin()
            except OSError as error:  # the connection closes what was opened
                return error.strerror or str(error)
            except ProtocolError as error:
                return error.detail
        return ""

    def write(self, data: bytes) -> None:
        if self._waiting is not None:
            self._waiting.append(data)
        elif self._stream is not None:
            self._stream.outbox.write(data)

    def unread(self) -> bool:
        return self._stream is not None and self._stream.queued

    def close(self) -> None:
        self._waiting = None
        stream = self._stream
        if stream is not None:
            self._stream = None
            self._reactor.destroy(stream)

    def _established(self) -> None:
        waiting = self._waiting
        self._waiting = None
        if waiting and self._stream is not None:
            self._stream.outbox.write(b"".join(waiting))

    def _context_for(self, ca: str) -> ssl.SSLContext:
        """The context that trusts *ca*, which is made once: reading the authorities of the system takes 20 ms."""
        if self._context is None or self._ca != ca:
            self._context = client_context(ca)
            self._ca = ca
        return self._context


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
        layer = stream.layer
        if isinstance(layer, TlsClientLayer) and layer.failure:
            self._connection.lost(layer.failure, now, layer.store_failure)
        else:
            self._connection.lost(reason.label, now)
