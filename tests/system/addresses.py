# Where a broker listens, and by which transport: what a client has to know before it can say CONNECT.
import socket
import ssl
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tests.system.processes import HOST, PATIENCE

Transport = Literal["tcp", "tls", "ws", "wss"]

TRANSPORTS: Final[tuple[Transport, ...]] = ("tcp", "tls", "ws", "wss")
PATH: Final = "/mqtt"


class Address(NamedTuple):
    transport: Transport
    port: int
    authority: Path  # the certificate of whoever signed the broker's

    @property
    def encrypted(self) -> bool:
        return self.transport in ("tls", "wss")

    @property
    def websocket(self) -> bool:
        return self.transport in ("ws", "wss")

    def context(self) -> ssl.SSLContext | None:
        """What a Python client checks the broker's certificate with; None where there is none."""
        return ssl.create_default_context(cafile=self.authority) if self.encrypted else None

    def plain(self) -> socket.socket:
        """A TCP connection to it, whatever is spoken there."""
        connection = socket.create_connection((HOST, self.port), timeout=PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def open(self, context: ssl.SSLContext | None = None) -> socket.socket:
        """A connection through TLS where there is TLS, with *context* instead of its own if it is given."""
        context = context or self.context()
        return self.plain() if context is None else context.wrap_socket(self.plain(), server_hostname=HOST)

    def url(self) -> str:
        scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(self.transport, self.transport)
        return f"{scheme}://{HOST}:{self.port}{PATH if self.websocket else ''}"
