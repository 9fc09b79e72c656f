# A proxy of bytes between a node and its Redis or Kafka, which harms the connections that pass through it.
#
# It runs in a thread of its own: a node that starts, or is asked something, waits for Redis while the run waits for it.
import select
import socket
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Final

from tests.tools.fuzz.loop import Loop

READ: Final = 65536
TURN: Final = 0.005  # seconds, at most, until a new fault takes effect
TO_SERVER: Final = "requests"
TO_CLIENT: Final = "replies"
Address = Path | tuple[str, int]  # of a unix socket; or host and TCP port


def _socket(address: Address) -> tuple[socket.socket, str | tuple[str, int]]:
    """A socket for *address*, and the address as the socket takes it."""
    if isinstance(address, Path):
        return socket.socket(socket.AF_UNIX), str(address)
    return socket.socket(socket.AF_INET), address


class _Pipe:
    """One direction of a connection."""

    def __init__(self, name: str, source: socket.socket, target: socket.socket) -> None:
        self.name = name
        self.source = source
        self.target = target
        self.waiting = bytearray()  # read, and not yet written
        self.left: int | None = None  # bytes until it is cut
        self.held = False  # it is not read


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.pipes = (_Pipe(TO_SERVER, client, server), _Pipe(TO_CLIENT, server, client))
        self.open = True


class Proxy:
    """Listens on *address* and passes everything to the server at *target*."""

    def __init__(self, address: Address, target: Address) -> None:
        self._target = target
        self._loop = Loop()
        self._connections: list[_Connection] = []
        self._listener, where = _socket(address)
        self._listener.bind(where)
        self._listener.listen(100)
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), select.EPOLLIN, self._accept)
        self._mute = False  # half-open: nothing passes, and nobody is told
        self._delay = 0.0  # seconds
        self._shut = False  # connections are closed as soon as they are accepted
        self._asked: list[tuple[str, int]] = []  # cuts: direction, bytes that still pass
        self._end = False
        self.passed = 0  # bytes
        self.cuts: Counter[str] = Counter()  # by direction, in the middle of what passes
        self.delayed = 0  # pieces of bytes
        self.muted = 0  # times that something was to pass while it is mute
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    # Called from another thread.

    def cut(self, direction: str, after: int) -> None:
        """Close each connection once *after* more bytes have passed in *direction*, or as soon as it is idle then."""
        self._asked.append((direction, after))

    def armed(self) -> bool:
        """Whether all faults that were asked for have begun."""
        return not self._asked

    def delay(self, seconds: float) -> None:
        """Hold each piece of bytes for *seconds* from now on."""
        self._delay = seconds

    def mute(self, mute: bool) -> None:
        """Let nothing pass, in either direction; afterwards all connections are closed."""
        self._mute = mute
        if not mute:
            self._asked.append((TO_SERVER, 0))

    def shut(self, shut: bool) -> None:
        """Close all connections, and each new one at once, until this is called with false."""
        self._shut = shut
        if shut:
            self._asked.append((TO_SERVER, 0))

    def heal(self) -> None:
        self._delay = 0.0
        self._shut = False
        if self._mute:
            self.mute(False)

    def close(self) -> None:
        self._end = True
        self._thread.join()

    # In the thread.

    def _work(self) -> None:
        while not self._end:
            self._loop.turn(TURN)
            while self._asked:
                self._ask(*self._asked.pop())
        for connection in list(self._connections):
            self._close(connection)
        self._loop.forget(self._listener.fileno())
        self._listener.close()
        self._loop.close()

    def _ask(self, direction: str, after: int) -> None:
        for connection in list(self._connections):
            if after == 0:
                self._close(connection)
            else:
                for pipe in connection.pipes:
                    if pipe.name == direction:
                        pipe.left = after

    def _accept(self, mask: int) -> None:
        client, _ = self._listener.accept()
        if self._shut:
            client.close()
            return
        server, where = _socket(self._target)
        try:
            server.connect(where)
        except OSError:
            client.close()
            server.close()
            return
        connection = _Connection(client, server)
        self._connections.append(connection)
        for pipe in connection.pipes:
            pipe.source.setblocking(False)
            self._loop.watch(pipe.source.fileno(), select.EPOLLIN, partial(self._ready, connection, pipe))

    def _ready(self, connection: _Connection, pipe: _Pipe, mask: int) -> None:
        if connection.open:
            self._read(connection, pipe)

    def _read(self, connection: _Connection, pipe: _Pipe) -> None:
        if pipe.held:  # its other end is gone: that is told in any case
            self._close(connection)
            return
        if self._mute:
            self.muted += 1
            self._hold(connection, pipe, 2 * TURN)
            return
        try:
            data = pipe.source.recv(READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        pipe.waiting += data
        if self._delay:
            self.delayed += 1
            self._hold(connection, pipe, self._delay)
        else:
            self._write(connection, pipe)

    def _hold(self, connection: _Connection, pipe: _Pipe, seconds: float) -> None:
        """Read no more of *pipe* for *seconds*, then write what waits."""
        pipe.held = True
        self._loop.change(pipe.source.fileno(), 0)
        self._loop.later(seconds, lambda: self._go_on(connection, pipe))

    def _go_on(self, connection: _Connection, pipe: _Pipe) -> None:
        if not connection.open:
            return
        if self._mute:
            self._hold(connection, pipe, 2 * TURN)
            return
        pipe.held = False
        self._loop.change(pipe.source.fileno(), select.EPOLLIN)
        if pipe.waiting:
            self._write(connection, pipe)

    def _write(self, connection: _Connection, pipe: _Pipe) -> None:
        data = bytes(pipe.waiting)
        pipe.waiting.clear()
        if pipe.left is not None:
            data, pipe.left = data[: pipe.left], max(0, pipe.left - len(data))
        self.passed += len(data)
        try:
            pipe.target.setblocking(True)
            pipe.target.settimeout(1.0)
            pipe.target.sendall(data)
            pipe.target.setblocking(False)
        except OSError:
            self._close(connection)
            return
        if pipe.left == 0:
            self.cuts[pipe.name] += 1
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        if connection.open:
            connection.open = False
            self._connections.remove(connection)
            for pipe in connection.pipes:
                self._loop.forget(pipe.source.fileno())
                pipe.source.close()
