# What TLS of a client and TLS to a server share: an `ssl.SSLObject` between two buffers in memory, and its output.
#
# Bytes of the outbox count as sent when all of their ciphertext is with the kernel: the outbox stays the only place
# where a slow reader's bytes wait, and the watermarks mean what they mean without TLS.
# Why no SSLSocket? OpenSSL on a socket reads each record with two system calls and writes it with one.
import socket
import ssl
from typing import Final

from broker.net.stream import Stream
from broker.net.transports.layer import Layer

RECORD: Final = 16 * 1024  # bytes: the most plaintext in one record (RFC 8446, 5.1)
ENCRYPTED_AT_ONCE: Final = 4 * RECORD  # bytes: the most that exist as ciphertext beside the outbox


class EncryptingLayer(Layer):
    def __init__(self, sock: socket.socket, stream: Stream, context: ssl.SSLContext, server: str | None) -> None:
        """*server*: the host name or address that the peer's certificate has to be for; None: the peer is a client.

        ValueError: no certificate can be for *server*.
        """
        super().__init__()
        self._sock = sock
        self._stream = stream
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server is None, server)
        self._established = False
        self._ciphertext = b""  # not taken by the kernel yet
        self._encrypted = 0  # bytes of the outbox in `_ciphertext`

    def send(self, data: bytes | memoryview) -> int:
        if not self._push() or not self._established:
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
            self._answer()
        self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        """Send what OpenSSL has to say: the handshake, an alert, a key update (RFC 8446, 4.6.3), close_notify."""
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


def in_words(error: object) -> str:
    """Say in OpenSSL's words what went wrong."""
    reason = getattr(error, "reason", None)  # "WRONG_VERSION_NUMBER"
    return str(reason or error).lower().replace("_", " ") or "no reason"
