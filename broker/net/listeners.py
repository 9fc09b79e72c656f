# Listening sockets. They are bound before anything else starts, so that a port in use ends the start with one sentence.
#
# Accepted sockets inherit the options of their listener (Linux), so no call sets them for each connection.
import errno
import socket
from typing import Any, Final

from broker.config.schema import Delivery, Listener

# The kernel's probes find a peer that vanished without closing: after two minutes at most.
PROBE_AFTER: Final = 60  # seconds of silence
PROBE_EVERY: Final = 15  # seconds
PROBES: Final = 4
SECOND: Final = 1000  # milliseconds


class ListenError(Exception):
    """An address cannot be listened on. The text says which address, and why."""

    def __init__(self, text: str, setting: str) -> None:
        """*setting*: what of the listener has to be changed, "host" or "port"."""
        super().__init__(text)
        self.setting = setting


def listen(settings: Listener, delivery: Delivery) -> list[socket.socket]:
    """Open a socket for each address in *settings*. ListenError: no socket is left open."""
    (sockets,) = listen_for_shards(settings, delivery, 1)
    return sockets


def listen_for_shards(settings: Listener, delivery: Delivery, shards: int) -> list[list[socket.socket]]:
    """Open, for each of *shards*, a socket for each address in *settings*; the kernel spreads clients over the shards.

    ListenError: no socket is left open.
    """
    opened: list[list[socket.socket]] = [[] for _ in range(shards)]
    port = settings.port
    try:
        for host in settings.host:
            port = _probe(host, port)  # port 0 becomes a free one, which is then the same for all addresses and shards
            for sockets in opened:
                listener = _bind(host, port, settings.receive_buffer, delivery)
                sockets.append(listener)
                listener.listen(settings.backlog)
    except ListenError:
        for sockets in opened:
            for listener in sockets:
                listener.close()
        raise
    return opened


def _bind(host: str, port: int, receive_buffer: int, delivery: Delivery) -> socket.socket:
    family, address = _resolve(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if receive_buffer:
        # Before listen(), as the window scale of a connection is chosen at its SYN (tcp(7)). Linux doubles the value
        # for its own bookkeeping, limits it to net.core.rmem_max, and no longer adapts the buffer (socket(7)).
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, delivery.notsent_lowat)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(delivery.user_timeout * SECOND))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for clients whose MQTT keep alive is 0
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    listener.setblocking(False)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _refused(host, port, error) from None
    return listener


def shut(listener: socket.socket) -> None:
    """Refuse new and waiting connections. The port stays bound, and `listener.listen()` opens it again (Linux)."""
    listener.shutdown(socket.SHUT_RDWR)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror}", "host") from None
    return found[0], found[4]


def _probe(host: str, port: int) -> int:
    """Check that *port* is free, or find a free one for 0; return its number.

    Without this check SO_REUSEPORT would silently share the port with another process of the same user.
    """
    family, address = _resolve(host, port)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
            free: int = probe.getsockname()[1]
            return free
        except OSError as error:
            raise _refused(host, port, error) from None


def _refused(host: str, port: int, error: OSError) -> ListenError:
    why = error.strerror or str(error)
    setting = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
    return ListenError(f"cannot listen on {host} port {port}: {why}", setting)
