# TLS of clients, inside the reactor: one recv and one send for many records.
#
# The steps of the handshake, which cost most, run in threads (handshakes.py) while the stream is paused. So no two
# threads touch the BIOs and the SSLObject.
# OpenSSL reads on through records without application data, such as key updates (RFC 8446, 4.6.3), at 26 us each: 2 400
# of them in 64 KiB would take 62 ms of the worker. So it is given few records at a time, and a stream may send few
# records without data. Before CONNECT a stream is read in small pieces.
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import CLOSED, SMALL_READ, Stream
from broker.net.transports.encryption import RECORD, EncryptingLayer, in_words
from broker.net.transports.handshakes import Handshakes, HandshakeStep
from broker.net.transports.transport import Transport
from broker.reasons import CloseReason, ProtocolError

COMMON_NAME: Final = "commonName"
HEADER: Final = 5  # bytes of a record: its type, two of a version, and two of its length
FIRST_TYPE: Final = 20  # of a record: change_cipher_spec
LAST_TYPE: Final = 24  # heartbeat
LONGEST: Final = RECORD + 2048  # bytes: the most behind the header (RFC 5246, 6.2.3)
GIVEN_AT_ONCE: Final = 16  # records given to OpenSSL at a time: 0.4 ms if all are key updates
READ_AT_ONCE: Final = 128  # records that one recv() reads, at 2 us each
HANDSHAKE_RECORDS: Final = 32  # records of one step of the handshake: clients send five at most
RECORD_COST: Final = 10  # units, for each record of a read but the first
EMPTY_COST: Final = 500  # units, for a record without application data
EMPTY_BURST: Final = 16.0  # records without application data at once: libraries update keys after millions of records
EMPTY_RATE: Final = 1.0  # of them a second, beyond


class TlsTransport(Transport):
    """TLS with the current context. A reload replaces the context for new connections."""

    def __init__(self, name: str, context: ssl.SSLContext, reactor: Reactor, handshakes: Handshakes) -> None:
        super().__init__(name, True)
        self.context = context
        self._reactor = reactor
        self._handshakes = handshakes

    def layer(self, sock: socket.socket, stream: Stream) -> "TlsLayer":
        return TlsLayer(sock, stream, self.context, self._reactor, self._handshakes)


class TlsLayer(EncryptingLayer):
    def __init__(
        self, sock: socket.socket, stream: Stream, context: ssl.SSLContext, reactor: Reactor, handshakes: Handshakes
    ) -> None:
        super().__init__(sock, stream, context, None)
        self._reactor = reactor
        self._handshakes = handshakes
        self._in_handshake_step = False  # a thread works on the handshake, or will
        self._step: _Step | None = None  # meanwhile
        self._begun = False  # a step of the handshake was taken
        self._failure = ""  # of the handshake; not an exception, which would refer to its frames and make a cycle
        self._failure_reason = CloseReason.TLS_HANDSHAKE_FAILED
        self._failed = False  # a failure was raised: what is still received is discarded
        self._received = b""  # ciphertext that OpenSSL has not been given yet
        self._empty = 0.0  # records without application data, less those that time has forgiven
        self._counted = 0.0  # when they were counted

    def recv(self, size: int) -> bytes:
        self.cost = 0
        if self._in_handshake_step or self._failed:  # the stream is closing: what is read is discarded
            return self._stream.read(size)
        if self._failure:
            self._failed = True
            self.more = False
            raise ProtocolError(self._failure_reason, self._failure)
        if not self.more:
            data = self._stream.read(min(size, SMALL_READ) if self._stream.unauthenticated else size)
            if not data:
                return b""
            self._received = self._received + data if self._received else data
        self.more = False
        if self._established:
            return self._decrypt()
        if not self._give(HANDSHAKE_RECORDS):
            raise BlockingIOError
        self._in_handshake_step = True
        if self._begun:
            self._reactor.pause(self._stream, Pause.HANDSHAKE)
        else:  # a client that closes before it is answered is gone
            self._reactor.pause_unauthenticated(self._stream, Pause.HANDSHAKE)
        self._step = _Step(self, self._ssl.do_handshake, not self._begun)
        self._begun = True
        self._handshakes.offer(self._step)
        raise BlockingIOError

    def end(self) -> None:
        self._forget_step()
        super().end()

    def close(self) -> None:
        self._forget_step()

    def handshake_displaced(self) -> None:
        """The handshake does not begin: too many others wait."""
        self._step = None
        self._in_handshake_step = False
        self._failure = "displaced by a newer handshake"
        self._failure_reason = CloseReason.TLS_HANDSHAKES_WAITING
        self.more = True
        self._reactor.readable(self._stream)
        self._reactor.resume(self._stream, Pause.HANDSHAKE)

    def handshake_stepped(self, outcome: object) -> None:
        """A step of the handshake is done: *outcome* is None at its end, or an exception."""
        self._step = None
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
            self._failure = in_words(outcome)
        if self._failure or self._established or self._record_end(0):
            self.more = True  # bytes that came with the handshake, or the failure
            self._reactor.readable(self._stream)
        self._reactor.resume(self._stream, Pause.HANDSHAKE)

    def _forget_step(self) -> None:
        """The connection ends: its handshake does not wait any more."""
        if self._step is not None:
            self._handshakes.forget(self._step)
            self._step = None  # it refers to this layer

    def _decrypt(self) -> bytes:
        """Decrypt the records that were received, READ_AT_ONCE at most."""
        parts: list[bytes] = []
        records = 0
        while True:
            given = self._give(GIVEN_AT_ONCE)
            before = len(parts)
            if self._read_records(parts):
                self.more = len(parts) > 0
                return b"".join(parts)
            empty = given - (len(parts) - before)
            if empty > 0:
                self._count_empty(empty)
            records += given
            if not self._received or not given or records >= READ_AT_ONCE:
                break
        self.more = len(self._received) > 0 and self._record_end(0) > 0
        if records > 1:
            self.cost += RECORD_COST * (records - 1)
        self._answer()
        if not parts:
            raise BlockingIOError
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_records(self, parts: list[bytes]) -> bool:
        """Add the data of the records that OpenSSL has to *parts*; return whether close_notify was among them."""
        try:
            while True:
                part = self._ssl.read(RECORD)
                if not part:
                    return True
                parts.append(part)
                if not self._incoming.pending and not self._ssl.pending():
                    return False
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            self._answer()
            self._failed = True
            raise ProtocolError(CloseReason.TLS_RECORD_INVALID, in_words(error)) from None

    def _give(self, most: int) -> int:
        """Give OpenSSL at most *most* complete records of those received; return how many."""
        data = self._received
        at = 0
        count = 0
        while count < most:
            end = self._record_end(at)
            if end == 0:
                break
            at = end
            count += 1
        if at == len(data):
            if at:
                self._incoming.write(data)
                self._received = b""
        elif count:
            self._incoming.write(data[:at])
            self._received = data[at:]
        return count

    def _record_end(self, at: int) -> int:
        """Where the received record at *at* ends; 0 if it is not complete. What is no record is for OpenSSL to say."""
        data = self._received
        size = len(data)
        if size - at < HEADER:
            return 0
        length = data[at + 3] << 8 | data[at + 4]
        if length > LONGEST or data[at] < FIRST_TYPE or data[at] > LAST_TYPE:
            return size
        end = at + HEADER + length
        return end if end <= size else 0

    def _count_empty(self, records: int) -> None:
        """Charge *records* without application data. ProtocolError: there are too many of them."""
        now = self._reactor.clock()
        self.cost += EMPTY_COST * records
        self._empty = max(0.0, self._empty - EMPTY_RATE * (now - self._counted)) + records
        self._counted = now
        if self._empty > EMPTY_BURST:
            self._failed = True
            raise ProtocolError(CloseReason.TLS_KEY_UPDATES, f"{records} records without data")


class _Step(HandshakeStep):
    def __init__(self, layer: TlsLayer, work: Callable[[], object], first: bool) -> None:
        super().__init__(work, first)
        self._layer = layer

    def done(self, outcome: object) -> None:
        self._layer.handshake_stepped(outcome)

    def displaced(self) -> None:
        self._layer.handshake_displaced()


def _common_name(connection: ssl.SSLObject) -> str:
    """The common name in the verified certificate of the peer; "" without one, and for a blank one: it is no user."""
    certificate = connection.getpeercert() or {}
    subject = cast(tuple[tuple[tuple[str, str], ...], ...], certificate.get("subject", ()))
    for part in subject:
        for key, value in part:
            if key == COMMON_NAME:
                return value if value.strip() else ""
    return ""
