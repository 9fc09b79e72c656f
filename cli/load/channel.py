# The transport of one client: a non-blocking socket, or TLS on one.
#
# TLS is an `ssl.SSLObject` between buffers in memory, as in the broker: one recv and one send for many records.
import socket
import ssl
from typing import Final

RECORD: Final = 16 * 1024  # the maximum plaintext of one record (RFC 8446, 5.1)
AT_ONCE: Final = 64 * 1024  # plaintext bytes that are encrypted before the kernel has accepted the previous ones


class Hangup(Exception):
    """The broker closed the connection without DISCONNECT."""


class Channel:
    """Plain TCP."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent = False  # true: accepted bytes wait for the kernel

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises OSError or Hangup if it failed."""
        return True

    def receive(self, size: int) -> bytes:
        """Return available bytes, at most about *size*; b"" at the end. BlockingIOError: none now; OSError: reset."""
        return self.sock.recv(size)

    def send(self, data: bytes) -> int:
        """Accept bytes of *data* and return their number. BlockingIOError: none now; OSError: reset."""
        return self.sock.send(data)

    def flush(self) -> None:
        """Pass pending bytes to the kernel. OSError: reset."""


class TlsChannel(Channel):
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._ciphertext = b""
        self._closed = False  # the peer has sent close_notify

    def handshake(self) -> bool:
        while True:
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
            else:
                self.flush()
                return True
            try:
                data = self.sock.recv(RECORD)
            except BlockingIOError:
                return False
            if not data:
                raise Hangup
            self._incoming.write(data)

    def receive(self, size: int) -> bytes:
        if self._ssl.pending() or self._incoming.pending:  # received with the handshake
            parts = self._decrypt()
            if parts:
                return parts
        data = self.sock.recv(size)
        if not data:
            return b""
        self._incoming.write(data)
        plain = self._decrypt()
        if not plain and not self._closed:
            raise BlockingIOError
        return plain

    def send(self, data: bytes) -> int:
        self.flush()
        if self.unsent:
            raise BlockingIOError
        taken = self._ssl.write(data[:AT_ONCE])
        self.flush()
        return taken

    def flush(self) -> None:
        self._ciphertext += self._outgoing.read()
        if self._ciphertext:
            try:
                self._ciphertext = self._ciphertext[self.sock.send(self._ciphertext) :]
            except BlockingIOError:
                pass
        self.unsent = len(self._ciphertext) > 0

    def _decrypt(self) -> bytes:
        parts: list[bytes] = []
        try:
            while part := self._ssl.read(RECORD):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._closed = True
        self.flush()  # replies to received records, such as a key update
        return b"".join(parts)
