# The acceptor: the listening sockets of a worker. It pauses while the process has no descriptor for a new connection.
import errno
import socket
from math import inf
from typing import Final

from broker.net.reactor import IN, Reactor
from broker.net.service import Service
from broker.net.transports.transport import Transport

ACCEPTED_AT_ONCE: Final = 16  # connections from one listener, at 25 us each, for which connected clients wait
RETRY_AFTER: Final = 0.1  # seconds until accepting is tried again
OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    def __init__(self, reactor: Reactor, service: Service) -> None:
        self.retry_at = 0.0  # when accepting is tried again; 0: it is not paused
        self._reactor = reactor
        self._service = service
        self._listeners: dict[int, tuple[socket.socket, Transport]] = {}

    def listen(self, listener: socket.socket, transport: Transport) -> None:
        """Accept connections from *listener*, a non-blocking socket that listens."""
        self._listeners[listener.fileno()] = (listener, transport)
        self._reactor.epoll.register(listener.fileno(), IN)

    def listens_on(self, fd: int) -> bool:
        return fd in self._listeners

    def accept(self, fd: int, now: float) -> None:
        """Accept the connections that wait at the listener *fd*."""
        if self.retry_at:
            return  # reported together with the listener that found no descriptor
        listener, transport = self._listeners[fd]
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in OUT_OF_RESOURCES:
                    continue  # the connection broke before it was accepted (accept(2), "Error handling")
                self.retry_at = now + RETRY_AFTER
                for each in self._listeners:
                    self._reactor.epoll.unregister(each)
                self._service.out_of_descriptors()
                return
            sock.setblocking(False)
            self.adopt(sock, f"{peer[0]}:{peer[1]}", self._reactor.clock(), transport)

    def adopt(self, sock: socket.socket, address: str, now: float, transport: Transport) -> None:
        """Serve *sock*, a connected non-blocking socket, unless the service refuses it."""
        stream = self._service.open(sock, address, self._reactor.dirty, now, transport.handshake)
        if stream is None:
            sock.close()
            return
        self._reactor.register(stream)
        stream.transport = transport.name
        stream.layer = transport.layer(sock, stream)

    def retry(self, now: float) -> float:
        """Accept again if it is time to; return when it will be, infinity if accepting is not paused."""
        if now < self.retry_at:
            return self.retry_at
        self.retry_at = 0.0
        for fd in self._listeners:
            self._reactor.epoll.register(fd, IN)
        return inf

    def close(self) -> None:
        """Close all listeners."""
        for fd, (listener, _) in self._listeners.items():
            if not self.retry_at:
                self._reactor.epoll.unregister(fd)
            listener.close()
        self._listeners.clear()
        self.retry_at = 0.0
