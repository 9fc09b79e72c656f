# What the reactor is for lines to Redis in a worker, small: real sockets, real time, and nothing else to do.
import select
import socket
import time
from collections.abc import Callable
from typing import Final, Protocol

from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, RedisConnection

PATIENCE: Final = 30.0  # seconds for what should take milliseconds
QUANTUM: Final = 1000
STEP: Final = 0.1  # seconds at once


class Ticks(Protocol):
    def tick(self, now: float) -> float: ...


class Loop:
    def __init__(self) -> None:
        self.wires: list[SocketWire] = []
        self.ticking: list[Ticks] = []
        self.log = Lines()
        self._stopped_at: float | None = None

    def stop_clock(self, later: float = 0.0) -> None:
        """No time passes from now on, or some seconds *later*: nothing is late, however busy the machine is."""
        self._stopped_at = self.now() + later

    def pass_seconds(self, seconds: float) -> None:
        """Serve everybody while so much time passes, in steps: no connection is silent for longer than one."""
        for _ in range(round(seconds / STEP)):
            self.stop_clock(STEP)
            self.turn()

    def start_clock(self) -> None:
        """Time passes again."""
        self._stopped_at = None

    def wire(self) -> "SocketWire":
        self.wires.append(SocketWire())
        return self.wires[-1]

    def now(self) -> float:
        return time.monotonic() if self._stopped_at is None else self._stopped_at

    def until(self, done: Callable[[], bool]) -> None:
        """Serve everybody until *done*."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"it does not come: {self.log.events}"
            self.turn()

    def for_seconds(self, seconds: float) -> None:
        """Serve everybody for some time: for what must not happen."""
        end = self.now() + seconds
        while self.now() < end:
            self.turn()

    def turn(self) -> None:
        due = min([self.now() + 0.05, *(one.tick(self.now()) for one in self.ticking)])
        poll = select.poll()
        by_fd = {}
        for wire in self.wires:
            wire.flush(self.now())
            if wire.sock is not None:
                by_fd[wire.sock.fileno()] = wire
                poll.register(wire.sock, select.POLLIN | (select.POLLOUT if wire.unsent else 0))
        more = any(wire.line is not None and wire.line.more_replies for wire in self.wires)
        for fd, _ in poll.poll(0 if more else max(0.0, due - self.now()) * 1000):
            by_fd[fd].receive(self.now())
        for wire in self.wires:
            if wire.line is not None and wire.line.more_replies:
                wire.line.receive(b"", QUANTUM, self.now())

    def ready(self, *lines: RedisConnection) -> None:
        self.until(lambda: all(line.state == READY for line in lines))

    def close(self) -> None:
        for wire in self.wires:
            wire.close()


class SocketWire:
    def __init__(self) -> None:
        self.sock: socket.socket | None = None
        self.line: RedisConnection | None = None
        self.unsent = b""
        self.sends = 0  # system calls

    def open(self, address: RedisAddress, line: RedisConnection) -> str:
        self.line = line
        self.sock = socket.socket(address.family())
        self.sock.setblocking(False)
        try:
            self.sock.connect(address.where())
        except BlockingIOError:
            pass
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def write(self, data: bytes) -> None:
        self.unsent += data

    def unread(self) -> bool:
        return False

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self.unsent = b""

    def flush(self, now: float) -> None:
        if self.sock is None or not self.unsent:
            return
        try:
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
            self.sends += 1
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(str(error), now)

    def receive(self, now: float) -> None:
        assert self.sock is not None and self.line is not None
        try:
            data = self.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(str(error), now)
            return
        if data:
            self.line.receive(data, QUANTUM, now)
        else:
            self._lost("closed", now)

    def _lost(self, why: str, now: float) -> None:
        assert self.line is not None
        self.line.lost(why, now)


class Lines:
    """A log: its events with their facts."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def info(self, event: str, **facts: object) -> None:
        self.events.append((event, facts))

    warning = error = info

    def named(self, event: str) -> list[dict[str, object]]:
        return [facts for name, facts in self.events if name == event]
