# Errors of accept(): a connection that broke is not the listener's end.
import errno
import select
import socket
from collections.abc import Callable

import pytest

from broker.config.schema import Delivery, Tcp
from broker.mqtt.packets import V311, ConnAck, Connect
from broker.net.listeners import listen
from tests.inprocess import Broker

Brokers = Callable[..., Broker]


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
    """The address where such a listener waits."""
    (listener,) = listen(Tcp(host=("127.0.0.1",), port=0), Delivery())
    listener = Unlucky(listener, *errors)
    broker.loop.listen(listener)
    host, port = listener.getsockname()
    return host, port


@pytest.mark.parametrize(
    "error", [errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.EINTR]
)
def test_a_connection_that_broke_is_passed_over(brokers: Brokers, error: int) -> None:
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
