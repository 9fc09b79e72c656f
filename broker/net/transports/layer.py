# A layer: what lies between a socket and the bytes of MQTT. TLS is one, WebSocket is one, wss is the second on the
# first. The reactor asks a layer for bytes and gives it bytes as it would a socket, and goes on watching the socket
# itself: so sessions, fairness, limits and closing are the same on every transport.
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.net.stream import Stream


class Layer:
    def __init__(self) -> None:
        self.more = False  # recv() has something to give, whatever the kernel has
        self.unsent = False  # bytes of its own wait for the kernel; send() takes nothing before they are gone
        self.buffered = 0  # bytes received and not given
        self.cost = 0  # units that the last recv() used, beside what the bytes it gave will cost
        self.identity = ""  # the name in the certificate of the peer, if it showed one that was verified

    def recv(self, size: int) -> bytes:
        """At most about *size* bytes of MQTT; b"" at the end.

        BlockingIOError: nothing now. OSError: reset. ProtocolError: the peer does not keep to the layer's protocol.
        """
        raise NotImplementedError

    def send(self, data: bytes | memoryview) -> int:
        """Take bytes of *data* on their way; how many, 0 for nothing now. OSError: reset.

        Who was told 0, or less than it gave, begins the next call with the byte after those.
        """
        raise NotImplementedError

    def end(self) -> None:
        """Tell the peer that nothing more will come. OSError: reset."""
        raise NotImplementedError

    def close(self) -> None:
        """The socket will be closed at once."""
        raise NotImplementedError


class Transport:
    """What the connections of a listener are: plain TCP, or with a layer on it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def layer(self, sock: socket.socket, stream: "Stream") -> Layer | None:
        """What to put between *sock* and *stream*."""
        return None


TCP = Transport("tcp")
