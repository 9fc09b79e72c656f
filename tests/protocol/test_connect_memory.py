# The account of CONNECTs that wait for their turn beside what they take, as the allocator says.
import tracemalloc
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Overload
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, Connect, Will
from broker.mqtt.properties import USER_PROPERTY
from tests.inprocess import Broker

Brokers = Callable[..., Broker]
WAITING = 100  # CONNECTs
PAIRS = [(f"name{number}", f"{number}") for number in range(100)]

pytestmark = [
    pytest.mark.no_cover,  # what coverage remembers would count as ours
    pytest.mark.usefixtures("traced"),
]


@pytest.mark.parametrize(
    "packet",
    [
        Connect(V311, "client"),
        Connect(V5, "client", True, 60, "user", b"password"),
        Connect(V5, "client", will=Will(b"devices/17/gone", bytes(3000), 1)),
        Connect(V5, "client", properties={USER_PROPERTY: PAIRS}),
        Connect(V5, "client", will=Will(b"t", b"", properties={USER_PROPERTY: PAIRS})),
    ],
)
def test_the_account_of_waiting_connects_is_what_they_take(brokers: Brokers, packet: Connect) -> None:
    """CONNECTs with many short user properties would take seventeen times what counts."""
    broker = brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1)))
    broker.connect("first")
    early, *clients = [broker.open(packet.version) for _ in range(1 + WAITING)]
    said = []
    for number in range(1 + WAITING):
        packet.client_id = f"client{number}"
        said.append(encode(packet, packet.version))
    early.send_bytes(said.pop())  # what is there for all CONNECTs is made with the first that waits
    broker.settle()
    connects = broker.worker.attempts.connects
    counted, before = connects.bytes, tracemalloc.get_traced_memory()[0]
    for client, data in zip(clients, said, strict=True):
        client.send_bytes(data)
    broker.settle()
    grown, counted = tracemalloc.get_traced_memory()[0] - before, connects.bytes - counted

    assert 1 + WAITING == connects.waiting()
    assert 0.85 * grown < counted < 1.15 * grown, (grown / WAITING, counted / WAITING)
