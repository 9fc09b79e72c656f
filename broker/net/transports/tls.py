# TLS inside the reactor: `ssl.SSLObject` between two buffers in memory, with one recv and one send for many records.
#
# The steps of the handshake, which cost most, run in the threads of the offload while the stream is paused. So no two
# threads touch the BIOs and the SSLObject. Bytes of the outbox count as sent when all of their ciphertext is with the
# kernel: the outbox stays the only place where a slow reader's bytes wait, and the watermarks mean what they mean
# without TLS.
# Why no SSLSocket? OpenSSL on a socket reads each record with two system calls and writes it with one.
import socket
import ssl
from functools import partial
from typing import Final, cast

from broker.net.offload import Offload
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import CLOSED, Stream
from broker.net.transports.layer import Layer
from broker.net.transports.transport import Transport
from broker.reasons import CloseReason, ProtocolError

RECORD: Final = 16 * 1024  # bytes: the most plaintext in one record (RFC 8446, 5.1)
ENCRYPTED_AT_ONCE: Final = 4 * RECORD  # bytes: the most that exist as ciphertext beside the outbox
COMMON_NAME: Final = "commonName"


class TlsTransport(Transport):
    """TLS with the current context. A reload replaces the context for new connections."""

    def __init__(self, name: str, context: ssl.SSLContext, reactor: Reactor, offload: Offload) -> None:
        super().__init__(name)
        self.context = context
        self._reactor = reactor
        self._offload = offload

    def layer(self, sock: socket.socket, stream: Stream) -> "TlsLayer":
        return TlsLayer(sock, stream, self.context, self._reactor, self._offload)


class TlsLayer(Layer):
    def __init__(
        self, sock: socket.socket, stream: Stream, context: ssl.SSLContext, reactor: Reactor, offload: Offload
    ) -> None:
        super().__init__()
        self._sock = sock
        self._stream = stream
        self._reactor = reactor
        self._offload = offload
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._established = False
        self._in_handshake_step = False  # a thread of the offload works on the handshake
        self._failure = ""  # of the handshake; not an exception, which would refer to its frames and make a cycle
        self._failed = False  # a failure was raised: what is still received is discarded
        self._ciphertext = b""  # not taken by the kernel yet
        self._encrypted = 0  # bytes of the outbox in `_ciphertext`

    def recv(self, size: int) -> bytes:
        if self._in_handshake_step or self._failed:  # the stream is closing: what is read is discarded
            return self._stream.read(size)
        if self._failure:
            self._failed = True
            self.more = False
            raise ProtocolError(CloseReason.TLS_HANDSHAKE_FAILED, self._failure)
        if not self.more:
            data = self._stream.read(size)
            if not data:
                return b""
            self._incoming.write(data)
        self.more = False
        if self._established:
            return self._decrypt()
        self._in_handshake_step = True
        self._reactor.pause(self._stream, Pause.HANDSHAKE)
        self._offload.run(self._ssl.do_handshake, partial(_stepped, self))
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        if not self._push():
            return 0
        count = self._encrypted
        self._encrypted = 0
        while count < len(data):
            encrypted = self._ssl.write(data[count : count + ENCRYPTED_AT_ONCE])
            self._ciphertext = self._outgoing.read()
            if not self._push():
                self._encrypted = encrypted
                break
            count += encrypted
        return count

    def end(self) -> None:
        if self._established and not self._ciphertext:  # else the unsent ciphertext would follow the end
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # our close_notify is written; the peer's may come or not
            self._ciphertext = self._outgoing.read()
            self._push()
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        pass

    def handshake_stepped(self, outcome: object) -> None:
        """A step of the handshake is done: *outcome* is None at its end, or an exception."""
        self._in_handshake_step = False
        if self._stream.state == CLOSED:
            return
        try:
            self._ciphertext += self._outgoing.read()
            self._push()
        except OSError:
            pass  # the kernel reports it to the loop, too
        if outcome is None:
            self._established = True
            self.identity = _common_name(self._ssl)
        elif not isinstance(outcome, ssl.SSLWantReadError):
            self._failure = _explain(outcome)
        if self._failure or self._established:
            self.more = True  # bytes that came with the handshake, or the failure
            self._reactor.readable(self._stream)
        self._reactor.resume(self._stream, Pause.HANDSHAKE)

    def _decrypt(self) -> bytes:
        """Decrypt all records in the buffer."""
        parts: list[bytes] = []
        try:
            while True:
                part = self._ssl.read(RECORD)
                if not part:  # the peer sent close_notify
                    self.more = bool(parts)
                    break
                parts.append(part)
                if not self._incoming.pending and not self._ssl.pending():
                    self._answer()
                    break
        except ssl.SSLWantReadError:
            self._answer()
            if not parts:
                raise BlockingIOError from None
        except ssl.SSLError as error:
            self._answer()
            self._failed = True
            raise ProtocolError(CloseReason.TLS_RECORD_INVALID, _explain(error)) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _answer(self) -> None:
        """Send what reading requires: an alert, a key update (RFC 8446, 4.6.3), the refusal of a renegotiation."""
        if self._outgoing.pending:
            self._ciphertext += self._outgoing.read()
            self._push()

    def _push(self) -> bool:
        """Give the ciphertext to the kernel; return whether it took all of it."""
        ciphertext = self._ciphertext
        if ciphertext:
            try:
                self._ciphertext = ciphertext[self._sock.send(ciphertext) :]
            except BlockingIOError:
                pass
        self.unsent = len(self._ciphertext) > 0
        return not self.unsent


def _stepped(layer: TlsLayer, outcome: object) -> None:
    layer.handshake_stepped(outcome)


def _explain(error: object) -> str:
    """Say in OpenSSL's words what went wrong."""
    reason = getattr(error, "reason", None)  # "WRONG_VERSION_NUMBER"
    return str(reason or error).lower().replace("_", " ") or "no reason"


def _common_name(connection: ssl.SSLObject) -> str:
    """The common name in the verified certificate of the peer; "" without one, and for a blank one: it is no user."""
    certificate = connection.getpeercert() or {}
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
    for part in subject:
        for key, value in part:
            if key == COMMON_NAME:
                return value if value.strip() else ""
    return ""
