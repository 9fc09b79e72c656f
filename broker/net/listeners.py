# Listening sockets: bound before anything else starts, so that a port in use is one sentence and nothing half begun.
#
# What a listener is set to, the sockets it accepts inherit (Linux): no call is made for each connection.
import socket
from typing import Final

from broker.config import Delivery, Listener

# A peer that vanished without a word is found by the kernel's probes: after two minutes at most.
SILENT: Final = 60  # seconds
PROBE_EVERY: Final = 15  # seconds
PROBES: Final = 4
SECOND: Final = 1000  # milliseconds


class ListenError(Exception):
    """An address cannot be listened on. Its text says which, and why."""


def listen(settings: Listener, delivery: Delivery) -> list[socket.socket]:
    """A socket for each address in *settings*. ListenError: none is open."""
    listeners: list[socket.socket] = []
    port = settings.port
    try:
        for host in settings.host:
            listener = _bind(host, port, delivery)
            listeners.append(listener)
            listener.listen(settings.backlog)
            port = port or listener.getsockname()[1]  # any free one, but the same on each address
    except ListenError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(host: str, port: int, delivery: Delivery) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror}") from None
    _probe(family, address, host, port)
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, delivery.notsent_lowat)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(delivery.user_timeout * SECOND))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for those whose keep alive is 0
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    listener.setblocking(False)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return listener


def _probe(family: int, address: tuple[object, ...], host: str, port: int) -> None:
    """See whether the port is free: with SO_REUSEPORT alone we would share it silently with another process of ours."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind(address)
        except OSError as error:
            why = error.strerror or str(error)
            raise ListenError(f"cannot listen on {host} port {port}: {why}") from None
