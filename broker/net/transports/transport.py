# The transport of a listener: plain TCP, or a factory of the layers that its connections have on top.
import socket

from broker.net.stream import Stream
from broker.net.transports.layer import Layer


class Transport:
    def __init__(self, name: str, handshake: bool = False) -> None:
        """*handshake*: a TLS handshake or a WebSocket upgrade comes before the first bytes of MQTT."""
        self.name = name
        self.handshake = handshake

    def layer(self, sock: socket.socket, stream: Stream) -> Layer | None:
        """Make the layer between *sock* and *stream*. None: plain TCP has no layer."""
        return None


TCP = Transport("tcp")
