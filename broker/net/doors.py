# Doors: the listening sockets of a worker, and what is to be done when nobody else can be let in.
import errno
import select
import socket
from collections.abc import Callable
from typing import Final

from broker.net.transports.layer import Transport

ACCEPTS: Final = 16  # connections taken at once from one listener: who is in waits for that, at 25 us each
CLOSED_FOR: Final = 0.1  # seconds until accepting is tried again
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
IN: Final = 0x001  # EPOLLIN


class Doors:
    """Accepts into *adopt*(socket, address, transport), as long as there are descriptors."""

    def __init__(self, epoll: select.epoll, adopt: Callable[[socket.socket, str, Transport], None]) -> None:
        self.reopens = 0.0  # when accepting is tried again; 0: it goes on
        self._epoll = epoll
        self._adopt = adopt
        self._listeners: dict[int, tuple[socket.socket, Transport]] = {}

    def add(self, listener: socket.socket, transport: Transport) -> None:
        """Accept connections from *listener*, a socket that listens and does not block."""
        self._listeners[listener.fileno()] = (listener, transport)
        self._epoll.register(listener.fileno(), IN)

    def is_one(self, fd: int) -> bool:
        return fd in self._listeners

    def accept(self, fd: int, now: float) -> bool:
        """Take who waits at the door *fd*; false if there was no descriptor left for it."""
        if self.reopens:
            return True  # told together with the listener that found no descriptor left
        listener, transport = self._listeners[fd]
        for _ in range(ACCEPTS):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    continue  # the connection broke before we took it (accept(2), "Error handling")
                self.reopens = now + CLOSED_FOR
                for each in self._listeners:
                    self._epoll.unregister(each)
                return False
            sock.setblocking(False)
            self._adopt(sock, f"{peer[0]}:{peer[1]}", transport)
        return True

    def reopen(self) -> None:
        """Try again to accept."""
        self.reopens = 0.0
        for fd in self._listeners:
            self._epoll.register(fd, IN)

    def close(self) -> None:
        """Accept no more."""
        for fd, (listener, _) in self._listeners.items():
            if not self.reopens:
                self._epoll.unregister(fd)
            listener.close()
        self._listeners.clear()
        self.reopens = 0.0
