# Listening sockets: their ports, and which are refused.
import select
import socket
from collections.abc import Callable

import pytest

from broker.config.schema import Delivery, Tcp
from broker.net.listeners import ListenError, listen, listen_for_shards
from tests.inprocess import Broker

Brokers = Callable[..., Broker]
HOST = "127.0.0.1"
LOCAL = Tcp(host=(HOST,), port=0)


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
        with pytest.raises(
            ListenError, match=f"cannot listen on {HOST} port {port}: Address already in use"
        ) as refused:
            listen(Tcp(host=("127.0.0.2", HOST), port=port), Delivery())
        assert "port" == refused.value.setting

        with socket.socket() as free:
            free.bind(("127.0.0.2", port))  # the first address was given back


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_of_another_machine_is_refused_by_name(host: str) -> None:
    """The user would not learn which address is wrong."""
    with pytest.raises(ListenError, match=f"cannot listen on {host}") as refused:
        listen(Tcp(host=(host,), port=0), Delivery())
    assert "host" == refused.value.setting


def test_each_shard_has_a_socket_of_its_own_and_the_kernel_spreads_clients() -> None:
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


def test_ports_of_another_process_of_the_same_user_are_not_shared() -> None:
    """A second node of the same user would silently get a part of the first one's clients."""
    dealt = listen_for_shards(LOCAL, Delivery(), 2)
    port = dealt[0][0].getsockname()[1]
    with pytest.raises(ListenError, match=f"{HOST} port {port}"):
        listen_for_shards(Tcp(host=(HOST,), port=port), Delivery(), 2)

    for (door,) in dealt:
        door.close()


@pytest.mark.parametrize("asked", [0, 16 * 1024])
def test_the_receive_buffer_of_a_listener_is_that_of_its_connections(asked: int) -> None:
    """A fleet of 100 000 clients would hold the kernel's default each, whatever the setting says."""
    (listener,) = listen(Tcp(host=(HOST,), port=0, receive_buffer=asked), Delivery())
    with listener, socket.socket() as plain, socket.create_connection(listener.getsockname()):
        default = plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        select.select([listener], [], [], 5.0)
        accepted, _ = listener.accept()
        with accepted:
            held = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
            of_listener = listener.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)

    assert (2 * asked or default) == of_listener  # Linux doubles what was asked for
    assert not asked or 2 * asked == held
