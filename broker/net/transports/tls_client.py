# TLS of a connection that the worker makes, to Redis.
#
# The server's certificate is verified, and has to be for the host name of the URL. The handshake runs in the reactor: a
# worker makes two such connections, and one step costs about a millisecond. `established` is called at its end. Until
# then the outbox has to be empty, because an outbox that the layer takes nothing of would be tried again at once.
# The server is trusted once it is verified, so its records are neither counted nor charged, unlike those of clients
# (tls.py).
import socket
import ssl
from collections.abc import Callable

from broker.net.reactor import Reactor
from broker.net.stream import CLOSED, Stream
from broker.net.transports.encryption import RECORD, EncryptingLayer, in_words
from broker.reasons import CloseReason, ProtocolError, StoreFailure


def client_context(ca: str) -> ssl.SSLContext:
    """The context that trusts the authorities of the system and those in the PEM file *ca*. OSError."""
    context = ssl.create_default_context()
    context.options |= ssl.OP_NO_RENEGOTIATION  # of TLS 1.2: the layer would have to read before it could write
    if ca:
        context.load_verify_locations(cafile=ca)
    return context


class TlsClientLayer(EncryptingLayer):
    def __init__(
        self,
        sock: socket.socket,
        stream: Stream,
        context: ssl.SSLContext,
        name: str,
        reactor: Reactor,
        established: Callable[[], None],
    ) -> None:
        """*name*: the host name or address that the certificate has to be for. ValueError: it can be in none."""
        super().__init__(sock, stream, context, name)
        self.failure = ""  # why TLS has failed
        self.store_failure = StoreFailure.TLS_FAILED  # what that means for the connection to Redis
        self._reactor = reactor
        self._on_established = established
        self._ended = False  # close_notify was received
        self._answered = False  # data was received

    def begin(self) -> None:
        """Send the first message of the handshake, when the kernel takes it. OSError: reset."""
        self._step()
        self._reactor.block_if_unsent(self._stream, self)

    def recv(self, size: int) -> bytes:
        if self.failure:
            self.more = False
            raise ProtocolError(CloseReason.TLS_HANDSHAKE_FAILED, self.failure)
        if self._ended:
            self.more = False
            return b""
        data = self._stream.read(size)
        if not data:
            if not self._established:
                self.failure = "the server closed the connection during the handshake"
            return b""
        self._incoming.write(data)
        if not self._established:
            self._step()
            if not self._established:
                raise BlockingIOError
        return self._decrypt()

    def send(self, data: bytes | memoryview) -> int:
        try:
            return super().send(data)
        except OSError:
            if self._established and not self._answered:
                self._read_refusal()
            raise

    def _step(self) -> None:
        """Take a step of the handshake. ProtocolError: it has failed."""
        try:
            self._ssl.do_handshake()
            self._established = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        try:
            self._answer()
        except OSError:
            if not self.failure:  # else the alert is lost, and why it was sent is known
                raise
        if self.failure:
            raise ProtocolError(CloseReason.TLS_HANDSHAKE_FAILED, self.failure)
        if self._established and self._stream.state != CLOSED:
            self._on_established()

    def _decrypt(self) -> bytes:
        """The data of all complete records that were received. A failure behind them is raised by the next recv()."""
        parts: list[bytes] = []
        try:
            while True:
                part = self._ssl.read(RECORD)
                if not part:
                    self._ended = True
                    break
                self._answered = True
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        try:
            self._answer()
        except OSError:
            if not self.failure and not parts:
                raise
        if self._ended or self.failure:
            self.more = True
        elif not parts:
            raise BlockingIOError
        if self.failure and not parts:
            raise ProtocolError(CloseReason.TLS_RECORD_INVALID, self.failure)
        return b"".join(parts)

    def _read_refusal(self) -> None:
        """The server has reset the connection. An alert before may say why, such as a missing certificate (TLS 1.3)."""
        try:
            self._incoming.write(self._stream.read(RECORD))
            self._ssl.read(RECORD)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._fail(error)
        except OSError:
            pass  # nothing was received

    def _fail(self, error: ssl.SSLError) -> None:
        """Keep the words of *error*; not the exception, which would refer to its frames and make a cycle."""
        if isinstance(error, ssl.SSLCertVerificationError):
            self.store_failure = StoreFailure.CERTIFICATE_REFUSED
            self.failure = error.verify_message.rstrip(".")
        else:
            self.failure = in_words(error)
