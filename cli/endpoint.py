# Where a broker is, and what to say when it is not there: the one sentence that tells users what to do next.
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

PORT: Final = 1883
TLS_PORT: Final = 8883
PATIENCE: Final = 10.0  # seconds for a host that does not answer


class Unreachable(Exception):
    """There is no broker to talk to; its text is one sentence for the user."""


class BadAddress(ValueError):
    """Not HOST[:PORT]; its text says so."""


@dataclass
class Endpoint:
    """A broker's address, resolved; *tls*: how to speak TLS with it."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    family: int
    address: tuple[object, ...]  # as getaddrinfo() gives it

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def dial(self) -> Channel:
        """Begin a connection that does not block. OSError: this machine cannot."""
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                sock.connect(self.address)
            except BlockingIOError:
                pass
            return Channel(sock) if self.tls is None else TlsChannel(sock, self.tls, self.host)
        except BaseException:
            sock.close()
            raise

    def explain(self, error: Exception, talking: bool = False) -> str:
        """One sentence about what went wrong with a connection to it; *talking*: it was up before."""
        if isinstance(error, Refused) and error.kind == "DISCONNECT":
            return f"{self} ended the connection: {in_words(error.kind, error.code)}"
        if isinstance(error, Refused):
            return f"{self} refused: {error.kind} {in_words(error.kind, error.code)}"
        if isinstance(error, ProtocolError):
            return f"{self} does not speak MQTT as we do ({error.detail}){self._doubt(talking)}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"{self} shows a certificate that we do not trust ({error.verify_message}): "
                "name its authority with --cafile, or trust it blindly with --insecure."
            )
        if isinstance(error, ssl.SSLError):
            return f"{self} does not speak TLS as we do ({_plain(error)}): is that its TLS port?"
        if isinstance(error, (Hangup, ConnectionResetError, BrokenPipeError)):
            return f"{self} closed the connection{self._doubt(talking)}"
        if isinstance(error, TimeoutError):
            return f"{self} does not answer within {PATIENCE:g} seconds{self._doubt(talking)}"
        if isinstance(error, OSError):
            return self._explain_os(error)
        return f"{self}: {error}."

    def _doubt(self, talking: bool) -> str:
        """The end of a sentence about somebody who may be no broker."""
        if talking:
            return "."
        return (
            ": is that the right port, and does it want TLS (--tls)?"
            if self.tls is None
            else ": is that the right port?"
        )

    def _explain_os(self, error: OSError) -> str:
        if error.errno == errno.ECONNREFUSED:
            return f"nobody listens on {self}: is the broker running (`weir start`), and is that its port?"
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return "no more connections: the limit of descriptors is reached (`ulimit -n`)."
        if error.errno == errno.EADDRNOTAVAIL:
            return f"no more connections: this machine has no port left for one more to {self}."
        what = os.strerror(error.errno) if error.errno else str(error)
        return f"cannot reach {self}: {what}."


def _plain(error: ssl.SSLError) -> str:
    return str(error.reason or error).lower().replace("_", " ")


def split_address(text: str, default: int) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, [IPV6] or [IPV6]:PORT; BadAddress."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (host.count(":") and not host.startswith("[")):
        host, port = text, str(default)
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536 or not host.strip("[]"):
        raise BadAddress(f"{text} is no address: it must be HOST or HOST:PORT, with a port from 1 to 65535.")
    return host.strip("[]"), int(port)


def find(host: str, port: int, tls: ssl.SSLContext | None) -> Endpoint:
    """The first address of *host* that takes a TCP connection. Unreachable if none does."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise Unreachable(f"there is no host {host}: that is no host name.") from None
    except OSError as error:
        raise Unreachable(f"there is no host {host}: {error.strerror or error}.") from None
    refusal: str = ""
    for family, _, _, _, address in found:
        endpoint = Endpoint(host, port, tls, family, address)
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(PATIENCE)
                probe.connect(endpoint.address)
            return endpoint
        except OSError as error:
            refusal = endpoint.explain(error)
    raise Unreachable(refusal)


def tls_context(cafile: Path | None, insecure: bool) -> ssl.SSLContext:
    """TLS that trusts the authorities in *cafile* (None: the system's), or anybody. OSError: *cafile* is no use."""
    context = ssl.create_default_context(cafile=cafile)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
