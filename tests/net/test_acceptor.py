# The acceptor: connections that break before they are accepted, descriptors that run out, and the end of listening.
import errno
import os
import resource
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import structlog.testing

from broker.config.schema import Delivery, Tcp
from broker.mqtt.packets import V311, ConnAck, Connect
from broker.net.acceptor import ACCEPTED_AT_ONCE
from broker.net.listeners import listen
from tests.inprocess import Broker, Client

Brokers = Callable[..., Broker]
HOST = "127.0.0.1"
LOCAL = Tcp(host=(HOST,), port=0)


class Unlucky(socket.socket):
    """A listener whose first connections break before they are accepted."""

    def __init__(self, listener: socket.socket, *errors: int) -> None:
        super().__init__(fileno=listener.detach())
        self.setblocking(False)
        self.errors = list(errors)

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        if self.errors:
            raise OSError(self.errors.pop(0), "broken")
        return super().accept()


def unlucky(broker: Broker, *errors: int) -> tuple[str, int]:
    """Listen by an `Unlucky`; return its address."""
    (listener,) = listen(Tcp(host=("127.0.0.1",), port=0), Delivery())
    listener = Unlucky(listener, *errors)
    broker.loop.listen(listener)
    host, port = listener.getsockname()
    return host, port


@pytest.mark.parametrize(
    "error", [errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EINTR]
)
def test_a_connection_that_broke_is_skipped(brokers: Brokers, error: int) -> None:
    """A packet filter's refusal, or a peer that was quick to go, would end the broker (accept(2), "Error handling")."""
    broker = brokers()
    client = broker.dial(unlucky(broker, error, error))
    client.send(Connect(V311, "me"))
    while not client.inbox:
        waiting = [broker.loop.fileno(), client.socket.fileno()]
        assert select.select(waiting, [], [], 5.0)[0]
        broker.settle()

    assert [ConnAck(False)] == client.inbox
    assert 1 == broker.counters.sockets_opened


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The limit of the process allows no further descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(broker: Broker, *clients: Client) -> bool:
    """Wait until all *clients* have their CONNACK. Even the loopback interface may take a moment."""
    while not all(client.inbox for client in clients) and not any(client.closed for client in clients):
        waiting = [client.socket.fileno() for client in clients if not client.inbox]
        if not select.select([broker.loop.fileno(), *waiting], [], [], 5.0)[0]:
            return False
        broker.settle()
    return all(client.inbox == [ConnAck(False)] for client in clients)


def test_accepted_sockets_are_set_up_for_small_packets_and_dead_peers(brokers: Brokers) -> None:
    """Acknowledgements would wait 40 ms, the kernel hide megabytes, a dead peer stay for a quarter of an hour."""
    broker = brokers()
    (listener,) = listen(LOCAL, Delivery(notsent_lowat=65536, user_timeout=7.0))
    broker.loop.listen(listener)
    client = broker.dial(listener.getsockname())
    client.send(Connect(V311, "me"))
    assert connected(broker, client)
    (stream,) = broker.streams()
    options = (socket.TCP_NODELAY, socket.TCP_NOTSENT_LOWAT, socket.TCP_USER_TIMEOUT)
    values = [stream.sock.getsockopt(socket.IPPROTO_TCP, option) for option in options]

    assert values[0]
    assert [65536, 7000] == values[1:]
    assert not stream.sock.getblocking()
    assert f"{HOST}:{client.socket.getsockname()[1]}" == stream.address


def test_more_connections_than_are_accepted_at_once_are_all_accepted(brokers: Brokers) -> None:
    """Some connections of a storm would wait for the next one."""
    broker = brokers()
    address = broker.listen()
    clients = [broker.dial(address) for _ in range(ACCEPTED_AT_ONCE + 10)]
    for n, client in enumerate(clients):
        client.send(Connect(V311, f"me{n}"))

    assert connected(broker, *clients)
    assert ACCEPTED_AT_ONCE + 10 == broker.counters.sockets_opened


def test_running_out_of_descriptors_is_logged_and_survived(brokers: Brokers) -> None:
    """One connection too many would end the broker, or the loop would spin, or nothing be accepted any more."""
    broker = brokers()
    one, two = broker.listen(), broker.listen()
    inside = broker.dial(one)
    inside.send(Connect(V311, "inside"))
    assert connected(broker, inside)
    outside = [broker.dial(one), broker.dial(two)]
    for n, client in enumerate(outside):
        client.send(Connect(V311, f"outside{n}"))
    with structlog.testing.capture_logs() as log, no_descriptor_left():
        broker.settle()
        assert [] == select.select([broker.loop.fileno()], [], [], 0)[0]  # it waits and does not spin
        broker.advance(0.3)

    assert {"out_of_descriptors"} == {line["event"] for line in log}
    assert len(log) <= 4  # once for each time it tried
    assert not any(client.inbox for client in outside)
    broker.advance(0.2)
    assert connected(broker, *outside)
    assert not inside.closed


def test_listening_stops_while_out_of_descriptors(brokers: Brokers) -> None:
    """The broker could not stop after it ran out of descriptors."""
    broker = brokers()
    address = broker.listen()
    broker.dial(address)
    with no_descriptor_left():
        broker.settle()
    broker.loop.stop_listening()
    broker.advance(0.5)

    assert 0 == broker.counters.sockets_opened
    with pytest.raises(ConnectionRefusedError):
        broker.dial(address)


def test_connections_stay_when_listening_stops(brokers: Brokers) -> None:
    """Clients would lose their connection at the start of the drain time instead of receiving DISCONNECT."""
    broker = brokers()
    address = broker.listen()
    client = broker.dial(address)
    client.send(Connect(V311, "me"))
    assert connected(broker, client)
    broker.loop.stop_listening()

    with pytest.raises(ConnectionRefusedError):
        broker.dial(address)
    assert not client.closed
