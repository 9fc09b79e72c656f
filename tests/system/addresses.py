# Where a broker listens, and by which transport: what a client has to know before it can say CONNECT.
import ssl
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tests.system.processes import HOST

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

    def url(self) -> str:
        scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(self.transport, self.transport)
        return f"{scheme}://{HOST}:{self.port}{PATH if self.websocket else ''}"
