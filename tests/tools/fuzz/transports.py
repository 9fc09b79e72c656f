# The ways into the broker: which port, and which channels lie on a connection there.
import ssl
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.tools.fuzz.channels import Channel, Tls, WebSocket
from tests.tools.fuzz.mischief import Mischief

NAMES: Final = ("tcp", "tls", "ws", "wss")
PLAIN_INSTEAD: Final = 0.1  # of the misbehaving connections: MQTT, or HTTP, where a TLS handshake is expected


@dataclass(frozen=True)
class Transport:
    name: str
    port: int

    def channel(self) -> Channel:
        """A client that keeps the rules."""
        below = self._below()
        return WebSocket(below) if self._has_websocket() else below

    def misbehaving(self, seed: int) -> Channel:
        """A client that does not; on plain TCP there is nothing below MQTT to break."""
        random = Random(seed)
        below = Channel() if random.random() < PLAIN_INSTEAD else self._below()
        return Mischief(below, random) if self._has_websocket() else below

    def _below(self) -> Channel:
        return Tls(_CONTEXT) if self.name in ("tls", "wss") else Channel()

    def _has_websocket(self) -> bool:
        return self.name in ("ws", "wss")


def trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_CONTEXT: Final = trusting_context()
