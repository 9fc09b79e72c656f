# The transports of the listeners that the configuration enables.
import ssl

from broker.config.schema import Config
from broker.net.reactor import Reactor
from broker.net.transports.certificates import make_context
from broker.net.transports.handshakes import Handshakes
from broker.net.transports.tls import TlsTransport
from broker.net.transports.transport import TCP, Transport
from broker.net.transports.websocket import StartUpgrade, WebSocketTransport


class EnabledTransports:
    def __init__(self, config: Config, reactor: Reactor, handshakes: Handshakes, upgrade: StartUpgrade) -> None:
        """*upgrade* starts the task that answers a WebSocket request. CertificateError."""
        listeners = config.listeners
        self.by_name: dict[str, Transport] = {}
        self._settings = config.tls
        self._tls: TlsTransport | None = None
        message_bytes = config.websocket.message_bytes
        if listeners.tcp.enabled:
            self.by_name["tcp"] = TCP
        if listeners.tls.enabled or listeners.wss.enabled:
            self._tls = TlsTransport("tls", make_context(config.tls), reactor, handshakes)
        if listeners.tls.enabled and self._tls is not None:
            self.by_name["tls"] = self._tls
        if listeners.ws.enabled:
            self.by_name["ws"] = WebSocketTransport("ws", reactor, None, message_bytes, upgrade)
        if listeners.wss.enabled:
            self.by_name["wss"] = WebSocketTransport("wss", reactor, self._tls, message_bytes, upgrade)

    def read_certificate(self) -> ssl.SSLContext | None:
        """What the certificate files contain now; None without TLS. CertificateError."""
        return None if self._tls is None else make_context(self._settings)

    def use(self, context: ssl.SSLContext) -> None:
        """Use *context* for each TLS handshake from now on."""
        if self._tls is not None:
            self._tls.context = context
