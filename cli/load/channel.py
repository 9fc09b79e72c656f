# What carries the bytes of one client: a socket that does not block, or TLS on one.
#
# TLS is an `ssl.SSLObject` between buffers in memory, as in the broker: one recv and one send for many records.
import socket
import ssl
from typing import Final

RECORD: Final = 16 * 1024  # the most plaintext in one record (RFC 8446, 5.1)
AT_ONCE: Final = 64 * 1024  # bytes of plaintext that are encrypted before the kernel has taken the last ones


class Hangup(Exception):
    """The broker closed the connection, without a word that MQTT has for it."""


class Channel:
    """Plain TCP."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.unsent = False  # bytes that it took wait for the kernel

    def shake(self) -> bool:
        """Go on with what comes before the first byte of MQTT; whether it is done. OSError, Hangup: it failed."""
        return True

    def receive(self, size: int) -> bytes:
        """What is there, about *size* bytes at most; b"" at the end. BlockingIOError: nothing now; OSError: reset."""
        return self.sock.recv(size)

    def send(self, data: bytes) -> int:
        """Take bytes of *data*, how many; BlockingIOError: none now. OSError: reset."""
        return self.sock.send(data)

    def flush(self) -> None:
        """Hand the kernel what it did not have room for. OSError: reset."""


class TlsChannel(Channel):
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(sock)
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._ciphertext = b""
        self._closed = False  # the other end said that it is done

    def shake(self) -> bool:
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
        if self._ssl.pending() or self._incoming.pending:  # came with the handshake
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
        self.flush()  # what reading gave rise to, such as a key update
        return b"".join(parts)
