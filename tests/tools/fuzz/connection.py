# One socket with a channel on it, driven by the loop.
import errno
import select
import socket
import struct
from itertools import count
from typing import Final, Protocol

from tests.system.processes import HOST
from tests.tools.fuzz.channels import Channel, ChannelEnded
from tests.tools.fuzz.loop import Loop

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
GONE: Final = select.EPOLLERR | select.EPOLLHUP
BY_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds
SOURCES: Final = 200  # addresses of the loopback network we come from: the ports of one would soon be used up
SMALL_BUFFER: Final = 4096  # bytes, for who does not read
READ: Final = 65536
_SOURCE: Final = count()


class Owner(Protocol):
    def heard(self, data: bytes) -> None:
        """The other side said *data*."""

    def ended(self, why: str) -> None:
        """The other side ended the connection; it is closed."""


class Connection:
    """Connects at once. *deaf*: never reads; *cut* bytes of the wire are sent and no more; *flip* one of them.

    *source*: the address it comes from; "": one of many.
    """

    def __init__(
        self,
        loop: Loop,
        port: int,
        channel: Channel,
        owner: Owner,
        *,
        deaf: bool = False,
        cut: int = -1,
        flip: int = -1,
        source: str = "",
    ) -> None:
        self.open = True
        self._loop = loop
        self._channel = channel
        self._owner = owner
        self._deaf = deaf
        self._cut = cut
        self._flip = flip
        self._sent = 0  # bytes of the wire that were made, and those of them that were sent
        self._out = bytearray()
        self._connecting = True
        self._mask = IN | OUT
        self._sock = socket.socket()
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        if deaf:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        self._sock.bind((source or f"127.0.0.{2 + next(_SOURCE) % SOURCES}", 0))
        found = self._sock.connect_ex((HOST, port))
        if found not in (0, errno.EINPROGRESS):
            self._sock.close()
            raise OSError(found, "connect")
        address, number = self._sock.getsockname()
        self.address = f"{address}:{number}"  # as the broker names it in its log
        loop.watch(self._sock.fileno(), self._mask, self._ready)

    def say(self, data: bytes) -> None:
        if not self.open:
            return
        try:
            self._channel.say(data)
        except ChannelEnded as error:
            self._end(str(error))
            return
        self._flush()

    def waits(self) -> bool:
        """Whether something that was said is not sent yet."""
        return self.open and (self._channel.waits() or len(self._out) > 0)

    def shut(self) -> None:
        """Say no more, and still listen."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._end("reset")

    def reset(self) -> None:
        if self.open:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BY_RESET)
            self.close()

    def close(self) -> None:
        """End it; ended() is not called."""
        if self.open:
            self.open = False
            self._loop.forget(self._sock.fileno())
            self._sock.close()

    def _end(self, why: str) -> None:
        if self.open:
            self.close()
            self._owner.ended(why)

    def _ready(self, mask: int) -> None:
        if mask & OUT:
            self._connecting = False
        if self._deaf:
            if mask & GONE:
                self._end("gone")
        elif mask & (IN | GONE):
            self._receive()
        if self.open:
            self._flush()

    def _receive(self) -> None:
        try:
            wire = self._sock.recv(READ)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(error.strerror or "error")
            return
        if not wire:
            self._end("closed")
            return
        try:
            said = self._channel.heard(wire)
        except ChannelEnded as error:
            self._end(str(error))
            return
        if said:
            self._owner.heard(said)

    def _flush(self) -> None:
        wire = self._channel.outgoing()
        if wire:
            self._out += self._spoilt(wire)
        if self._out and not self._connecting:
            try:
                del self._out[: self._sock.send(self._out)]
            except BlockingIOError:
                pass
            except OSError:  # what it said before it went may still be there to read
                self._out.clear()
        self._watch()

    def _watch(self) -> None:
        wanted = (OUT if self._out or self._connecting else 0) | (0 if self._deaf else IN)
        if wanted != self._mask:
            self._mask = wanted
            self._loop.change(self._sock.fileno(), wanted)

    def _spoilt(self, wire: bytes) -> bytes:
        """*wire* with its bit flipped, up to where it is cut."""
        begin, self._sent = self._sent, self._sent + len(wire)
        if begin <= self._flip < self._sent:
            spoilt = bytearray(wire)
            spoilt[self._flip - begin] ^= 1 << self._flip % 8
            wire = bytes(spoilt)
        return wire if self._cut < 0 else wire[: max(0, self._cut - begin)]


_IP_BIND_ADDRESS_NO_PORT: Final = 24  # <linux/in.h>: the port is chosen with the destination, so many more are free
