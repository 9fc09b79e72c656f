# The address of a broker, and the sentence for the user if it cannot be reached.
import errno
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.reasons import ProtocolError
from cli.load.channel import Channel, Hangup, TlsChannel
from cli.load.client import Refused
from cli.reason_words import in_words

PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}  # by scheme; Weir's own listeners
PATH: Final = "/mqtt"  # of WebSocket
PATIENCE: Final = 10.0  # seconds to wait for a host that does not answer


class Unreachable(Exception):
    """The broker cannot be reached. The text is one sentence for the user."""


class BadAddress(ValueError):
    """The address is not [SCHEME://]HOST[:PORT][/PATH]. The text is one sentence for the user."""


@dataclass(frozen=True)
class Address:
    """A broker address as given by the user."""

    host: str
    port: int
    tls: bool
    path: str | None  # of WebSocket; None: plain MQTT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class Endpoint:
    """A resolved broker address; *tls* is None for a plain connection."""

    named: Address
    tls: ssl.SSLContext | None
    family: int
    address: tuple[object, ...]  # as getaddrinfo() gives it

    def __str__(self) -> str:
        return str(self.named)

    def dial(self) -> Channel:
        """Start a non-blocking connection. OSError if this machine cannot."""
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                sock.connect(self.address)
            except BlockingIOError:
                pass
            channel = Channel(sock) if self.tls is None else TlsChannel(sock, self.tls, self.named.host)
            if self.named.path is None:
                return channel
            from cli.load.websocket import WebSocketChannel  # rarely needed, and slow to import

            return WebSocketChannel(channel, str(self), self.named.path)
        except BaseException:
            sock.close()
            raise

    def explain(self, error: Exception, talking: bool = False) -> str:
        """One sentence about the failure of a connection; *talking*: MQTT was already spoken on it."""
        if isinstance(error, Refused) and error.kind == "DISCONNECT":
            return f"{self} ended the connection: {in_words(error.kind, error.code)}"
        if isinstance(error, Refused):
            return f"{self} refused: {error.kind} {in_words(error.kind, error.code)}"
        if isinstance(error, ProtocolError):
            return f"{self} sent something that is not MQTT ({error.detail}){self._doubt(talking)}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"{self} has a certificate that is not trusted ({error.verify_message}): "
                "name its certificate authority with --cafile, or accept any certificate with --insecure."
            )
        if isinstance(error, ssl.SSLError):
            return f"the TLS handshake with {self} failed ({_plain(error)}): is that its TLS port?"
        if isinstance(error, Hangup) and str(error):
            return f"the WebSocket upgrade at {self} {self.named.path} failed ({error}): are port and path right?"
        if isinstance(error, (Hangup, ConnectionResetError, BrokenPipeError)):
            return f"{self} closed the connection{self._doubt(talking)}"
        if isinstance(error, TimeoutError):
            return f"{self} did not answer within {PATIENCE:g} seconds{self._doubt(talking)}"
        if isinstance(error, OSError):
            return self._explain_os(error)
        return f"{self}: {error}."

    def _doubt(self, talking: bool) -> str:
        """The end of a sentence about a server that may not be an MQTT broker."""
        if talking:
            return "."
        return (
            ": is that the right port, and does it want TLS (--tls)?"
            if self.tls is None
            else ": is that the right port?"
        )

    def _explain_os(self, error: OSError) -> str:
        if error.errno == errno.ECONNREFUSED:
            return f"nothing listens on {self}: is the broker running (`weir start`), and is that its port?"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return "no more connections: the limit of file descriptors is reached (`ulimit -n`)."
        if error.errno == errno.EADDRNOTAVAIL:
            return f"no more connections: this machine has no free local port for another connection to {self}."
        what = os.strerror(error.errno) if error.errno else str(error)
        return f"cannot reach {self}: {what}."


def _plain(error: ssl.SSLError) -> str:
    return str(error.reason or error).lower().replace("_", " ")


def read_address(text: str, port: int | None, tls: bool) -> Address:
    """Parse [SCHEME://]HOST[:PORT][/PATH]; HOST may be [IPV6]. *port* and *tls* override the text. BadAddress."""
    scheme, given, rest = text.rpartition("://")
    scheme = scheme.lower() if given else "mqtt"
    if tls and scheme in ("mqtt", "ws"):
        scheme += "s"
    rest, slash, path = rest.partition("/")
    host, colon, digits = rest.rpartition(":")
    if not colon or rest.endswith("]") or (host.count(":") and not host.startswith("[")):
        host, digits = rest, str(PORTS.get(scheme, 0))
    websocket = scheme.startswith("ws")
    if path and not websocket:
        raise BadAddress(f"{text} is not an address: only WebSocket URLs have a path (ws://HOST:PORT/{path}).")
    fine = digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536
    if not fine or scheme not in PORTS or not host.strip("[]"):
        raise BadAddress(
            f"{text} is not an address: it must be HOST or HOST:PORT, with a port from 1 to 65535, "
            f"or a URL that begins with {', '.join(PORTS)}."
        )
    return Address(
        host=host.strip("[]"),
        port=port or int(digits),
        tls=scheme in ("mqtts", "wss"),
        path=(slash + path if path else PATH) if websocket else None,
    )


def find(named: Address, tls: ssl.SSLContext | None) -> Endpoint:
    """The first IP address that accepts a TCP connection, or the only one. Unreachable if none accepts."""
    try:
        found = socket.getaddrinfo(named.host, named.port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise Unreachable(f"there is no host {named.host}: that is not a host name.") from None
    except OSError as error:
        raise Unreachable(f"there is no host {named.host}: {error.strerror or error}.") from None
    refusal: str = ""
    for family, _, _, _, address in found:
        endpoint = Endpoint(named, tls, family, address)
        if len(found) == 1:
            return endpoint
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(PATIENCE)
                probe.connect(endpoint.address)
            return endpoint
        except OSError as error:
            refusal = endpoint.explain(error)
    raise Unreachable(refusal)


def tls_context(cafile: Path | None, insecure: bool) -> ssl.SSLContext:
    """A TLS context that trusts the authorities in *cafile* (None: the system's). OSError: *cafile* is unusable.

    *insecure*: accept any certificate.
    """
    context = ssl.create_default_context(cafile=cafile)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
