# Listening sockets, the connections that come through them, and descriptors that run out.
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
from broker.net.listeners import ListenError, listen, listen_for_shards
from tests.inprocess import Broker, Client

Brokers = Callable[..., Broker]
HOST = "127.0.0.1"
LOCAL = Tcp(host=(HOST,), port=0)


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """The lowest free descriptor is over the limit of the process, until the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(broker: Broker, *clients: Client) -> bool:
    """They all have their CONNACK. The kernel may take a moment even on the way to itself."""
    while not all(client.inbox for client in clients) and not any(client.closed for client in clients):
        waiting = [client.socket.fileno() for client in clients if not client.inbox]
        if not select.select([broker.loop.fileno(), *waiting], [], [], 5.0)[0]:
            return False
        broker.settle()
    return all(client.inbox == [ConnAck(False)] for client in clients)


def test_a_free_port_is_the_same_on_every_address() -> None:
    """Port 0 would give each address a port of its own, and nobody could say where the broker listens."""
    listeners = listen(Tcp(host=(HOST, "127.0.0.2"), port=0), Delivery())
    names = [listener.getsockname() for listener in listeners]
    for listener in listeners:
        listener.close()

    assert [HOST, "127.0.0.2"] == [name[0] for name in names]
    assert 1 == len({name[1] for name in names})


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_in_use_is_refused_by_name_and_nothing_stays_open(shared: bool) -> None:
    """A second broker would silently take half of the clients, or a failed start keep ports."""
    with socket.socket() as other:
        if shared:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on {HOST} port {port}: Address already in use"):
            listen(Tcp(host=("127.0.0.2", HOST), port=port), Delivery())

        with socket.socket() as free:
            free.bind(("127.0.0.2", port))  # the first address was given back


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused_by_name(host: str) -> None:
    """The user would not learn which address is wrong."""
    with pytest.raises(ListenError, match=f"cannot listen on {host}"):
        listen(Tcp(host=(host,), port=0), Delivery())


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


def test_more_connections_than_one_look_takes_are_all_taken(brokers: Brokers) -> None:
    """A crowd would leave some at the door."""
    broker = brokers()
    address = broker.listen()
    clients = [broker.dial(address) for _ in range(ACCEPTED_AT_ONCE + 10)]
    for n, client in enumerate(clients):
        client.send(Connect(V311, f"me{n}"))

    assert connected(broker, *clients)
    assert ACCEPTED_AT_ONCE + 10 == broker.counters.sockets_opened


def test_out_of_descriptors_is_told_and_survived(brokers: Brokers) -> None:
    """One connection too many would end the broker, or have it turn in circles, or deaf for good."""
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


def test_who_stops_listening_while_out_of_descriptors_stops(brokers: Brokers) -> None:
    """The end of the broker would fail where descriptors have failed before."""
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


def test_who_stops_listening_keeps_the_connections(brokers: Brokers) -> None:
    """A drain would cut off those who should be told good-bye."""
    broker = brokers()
    address = broker.listen()
    client = broker.dial(address)
    client.send(Connect(V311, "me"))
    assert connected(broker, client)
    broker.loop.stop_listening()

    with pytest.raises(ConnectionRefusedError):
        broker.dial(address)
    assert not client.closed


def test_each_shard_has_a_door_of_its_own_and_the_kernel_deals_out() -> None:
    """One worker would get all clients, or a shard's queue not survive its worker."""
    dealt = listen_for_shards(LOCAL, Delivery(), 3)
    doors = [door for (door,) in dealt]
    address = doors[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(60)]
    accepted = []
    for door in doors:
        accepted.append(0)
        while select.select([door], [], [], 0)[0]:
            door.accept()[0].close()
            accepted[-1] += 1
    for one in [*doors, *clients]:
        one.close()

    assert 60 == sum(accepted)
    assert 0 not in accepted  # with a probability of 1 in 10 billion


def test_doors_of_another_process_of_ours_are_not_shared() -> None:
    """A second node of the same user would silently get a part of the first one's clients."""
    dealt = listen_for_shards(LOCAL, Delivery(), 2)
    port = dealt[0][0].getsockname()[1]
    with pytest.raises(ListenError, match=f"{HOST} port {port}"):
        listen_for_shards(Tcp(host=(HOST,), port=port), Delivery(), 2)

    for (door,) in dealt:
        door.close()
