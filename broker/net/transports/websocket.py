# WebSocket under MQTT. A connection begins as an HTTP request. When the request is complete, a task answers it with
# trio-websocket (upgrade.py) while the stream is paused, and ends. From then on frames are parsed and built here
# (frames.py), in the calls of the reactor: so reading, fairness and the cost of a slow reader are as on TCP.
#
# Bytes of the outbox count as sent when all of their frame is with the kernel, as with TLS. Pongs for which the kernel
# has no room are replaced by later ones (RFC 6455, 5.5.3): a client that sends pings and does not read costs the pongs
# of one read. The close frame is sent by `end()`, after all else, or by `close()`, after the client's close frame was
# read behind all of its MQTT packets. So the side that closes last has read the close frame of the other (RFC 6455,
# 7.1.1).
# Why no task for each connection, as long as it lives? Measured: with one message a wake-up 160 us each instead of 25,
# and 23 KiB a connection instead of 2.
import socket
from typing import Final, Protocol

from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.net.transports.frames import BINARY, Failure, Frames, close_frame, frame
from broker.net.transports.layer import Layer
from broker.net.transports.tls import TlsLayer, TlsTransport
from broker.net.transports.transport import Transport
from broker.overload.quantum import FRAME_COST, UPGRADE_COST
from broker.reasons import CloseReason, ProtocolError

READ_AT_ONCE: Final = 16 * 1024  # bytes; those not parsed yet, because of FRAMES_AT_ONCE, are outside the input budget
FRAMED_AT_ONCE: Final = 64 * 1024  # bytes of MQTT in one frame at most
REQUEST_BYTES: Final = 16 * 1024  # with all cookies
REQUEST_LINES: Final = 100  # browsers send about 15
LINE_END: Final = b"\r\n"
REQUEST_END: Final = b"\r\n\r\n"
NO_REQUEST: Final = "no WebSocket request"
SPACE: Final = 0x20  # bytes that begin with this or less are no request: those of TLS and MQTT do


class UpgradeTask(Protocol):
    """Answers one request by `WebSocketLayer.push()`, then calls `accept()` or `refuse()`."""

    def cancel(self) -> None:
        """The connection is closed; the answer is not needed any more."""


class StartUpgrade(Protocol):
    def __call__(self, layer: "WebSocketLayer", request: bytes) -> UpgradeTask: ...


class WebSocketTransport(Transport):
    """WebSocket over TCP, or over TLS if *below* is given. *start* starts the task that answers a request."""

    def __init__(
        self, name: str, reactor: Reactor, below: TlsTransport | None, message_bytes: int, start: StartUpgrade
    ) -> None:
        super().__init__(name, True)
        self._reactor = reactor
        self._below = below
        self._message_bytes = message_bytes
        self._start = start

    def layer(self, sock: socket.socket, stream: Stream) -> "WebSocketLayer":
        below = None if self._below is None else self._below.layer(sock, stream)
        return WebSocketLayer(sock, stream, below, self._reactor, self._message_bytes, self._start)


class WebSocketLayer(Layer):
    """A request until a task has accepted it, then frames until both sides have sent a close frame."""

    def __init__(
        self,
        sock: socket.socket,
        stream: Stream,
        below: TlsLayer | None,
        reactor: Reactor,
        message_bytes: int,
        start: StartUpgrade,
    ) -> None:
        super().__init__()
        self._sock = sock
        self._stream = stream
        self._below = below
        self._reactor = reactor
        self._message_bytes = message_bytes
        self._start = start
        self._request = b""  # the part received so far; once it is complete, the bytes behind it
        self._task: UpgradeTask | None = None  # answers the request
        self._frames: Frames | None = None  # once the request is accepted
        self._failure: Failure | None = None  # not raised yet
        self._framed = b""  # frames not taken by the kernel yet
        self._carried = 0  # bytes of the outbox in `_framed`
        self._control = b""  # control frames to send behind `_framed`
        self._ended = False  # our close frame was sent

    def recv(self, size: int) -> bytes:
        self.more = False
        self.cost = 0
        failure = self._failure
        if failure is not None and not self._ended:
            self._failure = None
            raise ProtocolError(failure[0], failure[1])
        frames = self._frames
        if frames is None:
            return self._recv_request(size)
        if frames.over:
            return b"" if frames.close_reply else self._read(size)  # what is read is discarded
        received = b""
        if not frames.more:
            received = self._read(min(size, READ_AT_ONCE))
            if not received:
                return b""
        payload = frames.feed(received)
        self.cost += frames.count * FRAME_COST
        self.buffered = frames.waiting
        self._failure = frames.failure
        self.more = frames.more or frames.over or self._more_below()
        if frames.answers and not self._ended:
            self._send_control(frames.answers)
        if payload:
            return payload
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        if not self._push():
            return 0
        count = self._carried
        self._carried = 0
        while count < len(data):
            part = bytes(data[count : count + FRAMED_AT_ONCE])
            self._framed = frame(BINARY, part)
            if not self._push():
                self._carried = len(part)
                break
            count += len(part)
        return count

    def end(self) -> None:
        self._ended = True
        self._cancel()
        frames = self._frames
        if frames is not None:
            self._send_control(frames.close_reply or close_frame(frames.code))
            if self.unsent or not frames.over:
                return  # the client answers it, then the socket is shut (RFC 6455, 7.1.1)
        self._shut()

    def close(self) -> None:
        self._cancel()
        if self._frames is None or not self._frames.close_reply:
            return
        try:
            if not self._ended:
                self._send_control(self._frames.close_reply)
            self._shut()
        except OSError:
            pass  # the client did not wait for it

    # What the task calls.

    def push(self, data: bytes) -> None:
        """Send *data*, a part of the answer to the request."""
        self._control += data
        try:
            self._push()
        except OSError:
            pass  # the kernel reports it to the loop, too

    def accept(self) -> None:
        """The request was accepted: frames follow it."""
        self._task = None
        self._frames = Frames(self._message_bytes, self._request)
        self._request = b""
        if self._below is not None:
            self.identity = self._below.identity
        self.more = self._frames.more or self._more_below()
        self._resume()

    def refuse(self, reason: CloseReason, detail: str) -> None:
        """The request was refused."""
        self._task = None
        self._failure = reason, detail
        self.more = True
        self._resume()

    # The socket, or TLS.

    def _recv_request(self, size: int) -> bytes:
        """Collect the request, and start the task that answers it."""
        received = self._read(size)
        if not received or self._ended:
            return received  # the end, or bytes to discard
        self._request += received
        self.buffered = len(self._request)
        end = self._request.find(REQUEST_END)
        if end >= 0:
            request = self._request[: end + len(REQUEST_END)]
            self._request = self._request[len(request) :]
            if request.count(LINE_END) > REQUEST_LINES:
                raise ProtocolError(CloseReason.WEBSOCKET_ERROR, f"a request of more than {REQUEST_LINES} lines")
            self.cost += UPGRADE_COST
            self._reactor.pause(self._stream, Pause.UPGRADE)
            self._task = self._start(self, request)
        elif self._request[0] <= SPACE or len(self._request) > REQUEST_BYTES:
            raise ProtocolError(CloseReason.WEBSOCKET_ERROR, NO_REQUEST)
        raise BlockingIOError

    def _resume(self) -> None:
        self._reactor.readable(self._stream)
        self._reactor.resume(self._stream, Pause.UPGRADE)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None  # it refers to this layer

    def _read(self, size: int) -> bytes:
        below = self._below
        if below is None:
            return self._stream.read(size)
        try:
            return below.recv(size)
        finally:  # also if the records had no data
            self.cost += below.cost
            self.more = below.more

    def _more_below(self) -> bool:
        return self._below is not None and self._below.more

    def _send_control(self, control: bytes) -> None:
        """Send control frames, as soon as the kernel has room."""
        self._control = control
        self._push()

    def _push(self) -> bool:
        """Give all frames to the kernel; return whether it took all of them."""
        while True:
            if not self._framed:
                self._framed = self._control
                self._control = b""
            if self._has_unsent():
                self._framed = self._framed[self._transmit(self._framed) :]
            self.unsent = self._has_unsent()
            if self.unsent or not self._control:
                return not self.unsent

    def _has_unsent(self) -> bool:
        return len(self._framed) > 0 or (self._below is not None and self._below.unsent)

    def _transmit(self, data: bytes) -> int:
        try:
            return self._sock.send(data) if self._below is None else self._below.send(data)
        except BlockingIOError:
            return 0

    def _shut(self) -> None:
        """Shut our side of the connection."""
        if self._below is None:
            self._sock.shutdown(socket.SHUT_WR)
        else:
            self._below.end()
