# MQTT over WebSocket, on TCP or TLS: one binary frame per send.
from typing import Final

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import RemoteProtocolError

from cli.load.channel import AT_ONCE, Channel, Hangup

READ: Final = 16 * 1024  # bytes of the HTTP response per read


class NoWebSocket(Hangup):
    """The server does not support WebSocket at this URL; the text says what it sent instead."""


class WebSocketChannel(Channel):
    """*carrier* is connected to *host* (as in a URL), *path* is the path of the URL."""

    def __init__(self, carrier: Channel, host: str, path: str) -> None:
        super().__init__(carrier.sock)
        self._carrier = carrier
        self._connection = WSConnection(ConnectionType.CLIENT)
        self._frames = self._connection.send(Request(host=host, target=path, subprotocols=["mqtt"]))
        self._ready = False  # the handshake of the carrier is complete

    def handshake(self) -> bool:
        if not self._ready:
            if not self._carrier.handshake():
                return False
            self._ready = True
        self.flush()
        while True:
            try:
                events = self._read(READ)
            except BlockingIOError:
                return False
            for event in events:
                if isinstance(event, AcceptConnection):
                    return True  # no data follows: in MQTT the client sends first
                if isinstance(event, (RejectConnection, RejectData)):
                    status = f"HTTP status {event.status_code}" if isinstance(event, RejectConnection) else "a page"
                    raise NoWebSocket(status)

    def receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        closed = False
        for event in self._read(size):
            if isinstance(event, BytesMessage):
                parts.append(bytes(event.data))
            elif isinstance(event, Ping):
                self._frames += self._connection.send(event.response())
                self.flush()
            elif isinstance(event, CloseConnection):
                closed = True
            elif isinstance(event, TextMessage):
                raise NoWebSocket("a text frame")  # [MQTT-6.0.0-1]
        if not parts and not closed:
            raise BlockingIOError
        return b"".join(parts)

    def send(self, data: bytes) -> int:
        self.flush()
        if self.unsent:
            raise BlockingIOError
        taken = data[:AT_ONCE]
        self._frames += self._connection.send(BytesMessage(taken))
        self.flush()
        return len(taken)

    def flush(self) -> None:
        self._carrier.flush()
        try:
            while self._frames and not self._carrier.unsent:
                self._frames = self._frames[self._carrier.send(self._frames) :]
        except BlockingIOError:
            pass
        self.unsent = self._carrier.unsent or len(self._frames) > 0

    def _read(self, size: int) -> list[Event]:
        data = self._carrier.receive(size)
        if not data:
            raise Hangup
        try:
            self._connection.receive_data(data)
            return list(self._connection.events())
        except RemoteProtocolError as error:
            raise NoWebSocket(str(error)) from None
