# WebSocket under MQTT: bytes go from the socket to a task that unframes them with trio-websocket, and come back.
#
# This is the reactor's end. It takes from the socket only what the task has asked for, and gives MQTT only what the
# task has unframed; the task waits until that is taken. So a client that is not read fills its socket, as over TCP.
# In the other direction the task has at most one send under way. The task's end is unframing.py.
import socket
from typing import Final, Protocol

from broker.net.layer import Layer, Transport
from broker.net.reactor import Reactor
from broker.net.stream import Stream, receive
from broker.net.tls import TlsLayer, TlsTransport
from broker.reasons import CloseReason, ProtocolError

GIVEN_AT_ONCE: Final = 16 * 1024  # bytes of MQTT that may wait for the reactor, a message more at most
SENT_AT_ONCE: Final = 64 * 1024  # bytes of MQTT in one frame at most


class Task(Protocol):
    """The other end. What it is told takes effect when trio runs it."""

    def arrived(self) -> None:
        """There is something for `WebSocketLayer.take()`."""

    def taken(self) -> None:
        """The reactor has taken what was given."""

    def drained(self) -> None:
        """The kernel has taken all that was pushed."""

    def send(self, data: bytes) -> None:
        """Frame *data* and push it; then `WebSocketLayer.sent()`."""

    def end(self) -> None:
        """Send what is under way, then close as WebSocket does (RFC 6455, 7.1.2)."""

    def cancel(self) -> None:
        """The connection is gone."""


class Start(Protocol):
    def __call__(self, layer: "WebSocketLayer") -> Task: ...


class WebSocketTransport(Transport):
    """WebSocket over TCP, or over TLS if *below* is one; *start* starts the task of a connection."""

    def __init__(self, name: str, reactor: Reactor, below: TlsTransport | None, start: Start) -> None:
        super().__init__(name)
        self._reactor = reactor
        self._below = below
        self._start = start

    def layer(self, sock: socket.socket, stream: Stream) -> "WebSocketLayer":
        below = None if self._below is None else self._below.layer(sock, stream)
        layer = WebSocketLayer(sock, stream, below, self._reactor)
        layer.task = self._start(layer)
        return layer


class WebSocketLayer(Layer):
    def __init__(self, sock: socket.socket, stream: Stream, below: TlsLayer | None, reactor: Reactor) -> None:
        super().__init__()
        self.task: Task | None = None
        self._sock = sock
        self._stream = stream
        self._below = below
        self._reactor = reactor
        self._raw: bytes | None = None  # came from the socket; b"" is the end
        self._message = b""  # of MQTT, unframed
        self._given = 0  # how much of it the reactor has
        self._framed = b""  # pushed, and not with the kernel yet
        self._finished = False
        self._failure: tuple[CloseReason, str] | None = None  # an exception that is raised would keep who raised it
        self._failed = False  # it has been told
        self.deaf = True  # until the task asks

    @property
    def address(self) -> str:
        return self._stream.address

    # The reactor's side.

    def recv(self, size: int) -> bytes:
        message = self._message
        if message:
            data = message[self._given : self._given + size]
            self._given += len(data)
            self.buffered -= len(data)
            if self._given == len(message):
                self._message = b""
                self.more = False
                self._told().taken()
            return data
        if self._failure is not None:
            reason, detail = self._failure
            self._failure = None
            self._failed = True
            self.more = False
            raise ProtocolError(reason, detail)
        if self._finished and not self._failed:
            self.more = False  # said once: the reactor would ask for ever
            return b""
        if self.deaf and not self._finished:
            raise BlockingIOError
        raw = receive(self._sock, size) if self._below is None else self._below.recv(size)
        if self._finished:
            return raw  # to be thrown away
        self.deaf = True
        self.buffered += len(raw)
        self._raw = raw
        self._told().arrived()
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        if self._framed or (self._below is not None and self._below.unsent):
            if not self._push():
                return 0
            self._told().drained()
        if self.busy or not data:
            return 0
        taken = bytes(data[:SENT_AT_ONCE])
        self.busy = True
        self._told().send(taken)
        return len(taken)

    def end(self) -> None:
        if not self._finished:
            self._told().end()
        elif self._below is None:
            self._sock.shutdown(socket.SHUT_WR)
        else:
            self._below.end()

    def close(self) -> None:
        self._told().cancel()
        self.task = None  # it knows its layer

    # The task's side.

    def take(self) -> bytes | None:
        """What came from the socket, b"" at its end. None: nothing yet; the task will be told."""
        raw = self._raw
        if raw is None:
            self.deaf = False
            self._reactor.resume(self._stream)
            if self._below is not None:
                self.identity = self._below.identity
                if self._below.more:
                    self._reactor.readable(self._stream)
        elif raw:
            self._raw = None
        return raw

    def give(self, message: bytes) -> bool:
        """Hand *message* to MQTT. False: there is enough now, and the task will be told when all is taken."""
        self._message = self._message[self._given :] + message
        self._given = 0
        self.buffered = len(self._message)
        self._tell()
        return len(self._message) < GIVEN_AT_ONCE

    def push(self, framed: bytes) -> bool:
        """Send bytes; whether the kernel took them all. If not, the task will be told. OSError: reset."""
        self._framed += framed
        if self._push():
            return True
        self._reactor.blocked(self._stream)
        return False

    def sent(self) -> None:
        """The send under way has ended."""
        self.busy = False
        self._reactor.writable(self._stream)

    def fail(self, reason: CloseReason, detail: str) -> None:
        """The client does not speak WebSocket, or not as MQTT demands. What is to be sent still is."""
        self._failure = reason, detail
        self._tell()

    def finish(self) -> None:
        """The task ends: nothing more comes, and nothing more can be sent."""
        self._finished = True
        self.deaf = False
        self.busy = True
        self._tell()

    def _tell(self) -> None:
        self.more = True
        self._reactor.readable(self._stream)

    def _push(self) -> bool:
        framed = self._framed
        try:
            count = self._sock.send(framed) if self._below is None else self._below.send(framed)
        except BlockingIOError:
            count = 0
        self._framed = framed[count:]
        self.unsent = len(self._framed) > 0 or (self._below is not None and self._below.unsent)
        return not self.unsent

    def _told(self) -> Task:
        assert self.task is not None
        return self.task
