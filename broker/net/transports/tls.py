# TLS inside the reactor: `ssl.SSLObject` between two buffers in memory, one recv and one send for many records.
#
# Steps of the handshake, the costly part, are done by the offload while the stream is paused; so BIOs and SSLObject are
# never touched by two threads. What the outbox gave counts as sent when all of its ciphertext is with the kernel: the
# outbox stays the only place where a slow reader's bytes wait, and the watermarks mean the same as without TLS.
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

RECORD: Final = 16 * 1024  # the most plaintext in one record (RFC 8446, 5.1)
ENCRYPTED_AT_ONCE: Final = 4 * RECORD  # the most that exists as ciphertext beside what is in the outbox
COMMON_NAME: Final = "commonName"


class TlsTransport(Transport):
    """TLS with the context in force; a reload replaces it, for connections that come after."""

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
        self._shaking = False  # the offload is at work on the handshake
        self._failure = ""  # of the handshake; an exception that is kept and raised keeps who keeps it
        self._failed = False  # it has been told; what still comes means nothing
        self._ciphertext = b""  # that the kernel did not take yet
        self._encrypted = 0  # bytes of the outbox that it holds

    def recv(self, size: int) -> bytes:
        if self._shaking or self._failed:  # and yet asked: the stream is being closed, and this will be thrown away
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
        self._shaking = True
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
        if self._established and not self._ciphertext:  # what the kernel has no room for would come after the end
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # our goodbye is written, theirs may come or not
            self._ciphertext = self._outgoing.read()
            self._push()
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        pass

    def stepped(self, outcome: object) -> None:
        """The offload has done a step of the handshake."""
        self._shaking = False
        if self._stream.state == CLOSED:
            return
        try:
            self._ciphertext += self._outgoing.read()
            self._push()
        except OSError:
            pass  # the reactor hears of it, too
        if outcome is None:
            self._established = True
            self.identity = _common_name(self._ssl)
        elif not isinstance(outcome, ssl.SSLWantReadError):
            self._failure = _explain(outcome)
        if self._failure or self._established:
            self.more = True  # the rest of what came with the handshake, or the failure
            self._reactor.readable(self._stream)
        self._reactor.resume(self._stream, Pause.HANDSHAKE)

    def _decrypt(self) -> bytes:
        """All that the records in the buffer hold."""
        parts: list[bytes] = []
        try:
            while True:
                part = self._ssl.read(RECORD)
                if not part:  # they said goodbye
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
        """Send what reading gave rise to: no to a renegotiation, a key update (RFC 8446, 4.6.3), an alert."""
        if self._outgoing.pending:
            self._ciphertext += self._outgoing.read()
            self._push()

    def _push(self) -> bool:
        """Give the kernel what is encrypted; whether it took it all."""
        ciphertext = self._ciphertext
        if ciphertext:
            try:
                self._ciphertext = ciphertext[self._sock.send(ciphertext) :]
            except BlockingIOError:
                pass
        self.unsent = len(self._ciphertext) > 0
        return not self.unsent


def _stepped(layer: TlsLayer, outcome: object) -> None:
    layer.stepped(outcome)


def _explain(error: object) -> str:
    """What went wrong, in OpenSSL's words."""
    reason = getattr(error, "reason", None)  # "WRONG_VERSION_NUMBER"
    return str(reason or error).lower().replace("_", " ") or "no reason"


def _common_name(connection: ssl.SSLObject) -> str:
    """Of the certificate that the peer showed and we verified; "" without one."""
    certificate = connection.getpeercert() or {}
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
    for part in subject:
        for key, value in part:
            if key == COMMON_NAME:
                return value
    return ""
