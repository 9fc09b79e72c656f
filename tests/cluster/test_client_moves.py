# Clients of one worker that are sent to other nodes, of which it has only heard.
from collections.abc import Callable

import pytest

from broker.config.drain import Drain
from broker.config.schema import Config, Overload
from broker.mqtt.packets import V5, V311, ConnAck, Connect, Disconnect, Packet, Properties
from broker.mqtt.properties import MAXIMUM_PACKET_SIZE, REASON_STRING, REQUEST_PROBLEM_INFORMATION, SERVER_REFERENCE
from broker.overload.placement import Place
from broker.overload.reports import Report
from broker.worker_id import WorkerId
from tests.inprocess import Broker, Client
from tests.protocol.reasons.connections import other_node

Brokers = Callable[..., Broker]

USE_ANOTHER_SERVER = 0x9C
UNAVAILABLE = 3  # of MQTT 3
ELSEWHERE = "other.example.com:1883"
TEN = Config(drain=Drain(fastest=100, slowest=1))  # a second at first


def drain(broker: Broker, forced: bool = False) -> None:
    broker.worker.cluster.moves.drain(True, forced)
    broker.settle()


def after(broker: Broker, seconds: float) -> None:
    """Let time pass, and those leave who may."""
    for _ in range(round(10 * seconds)):
        broker.clock.now += 0.1
        broker.worker.cluster.moves.run()
    broker.settle()


def left(clients: list[Client]) -> int:
    """How many of them were disconnected."""
    for client in clients:
        client.receive()
    return sum(client.closed for client in clients)


def hear(broker: Broker, sequence: int, level: float) -> None:
    report = Report(WorkerId("other", 0, 1), sequence, level, "", 0.0, ())
    assert broker.protection.reports.hear(report.encode(), broker.clock.now)


def refusal(broker: Broker, version: int, properties: Properties | None = None) -> Packet:
    client = broker.open(version)
    client.send(Connect(version, "new", properties=properties or {}))
    (said,) = client.receive()
    assert client.closed
    return said


def test_clients_stay_while_no_other_node_takes_them(brokers: Brokers) -> None:
    """A drain would disconnect everybody just as the other node dies; or could not be forced."""
    broker = brokers(TEN)
    clients = [broker.connect(f"{number}", V5) for number in range(5)]
    drain(broker)
    broker.worker.protocol.placement.set([Place("other", ELSEWHERE, draining=True)])
    after(broker, 10.0)
    assert 0 == left(clients)

    broker.worker.cluster.moves.drain(True, True)
    after(broker, 1.0)

    assert 5 == left(clients)


def test_clients_leave_as_slowly_as_the_others_need_it(brokers: Brokers) -> None:
    """A drain would drive an overloaded node further up; a node that is silent would count as calm."""
    broker = brokers(TEN)
    clients = [broker.connect(f"{number}", V5) for number in range(30)]
    other_node(broker)
    drain(broker)
    after(broker, 1.0)
    calm = left(clients)
    hear(broker, 2, 10.0)
    after(broker, 1.0)
    busy = left(clients) - calm
    after(broker, 3.0)  # nobody is heard any more
    silent = left(clients) - calm - busy

    assert (True, True, True) == (9 <= calm <= 20, busy <= 2, 2 <= silent <= 3)


def test_clients_leave_in_no_particular_order(brokers: Brokers) -> None:
    """Of clients that connect after all of another kind, these would all be elsewhere half of the way."""
    broker = brokers(TEN)
    publishers = [broker.connect(f"publisher-{number}", V5) for number in range(60)]
    subscribers = [broker.connect(f"subscriber-{number}", V5) for number in range(60)]
    drain(broker, True)
    while left(publishers) + left(subscribers) < 60:
        after(broker, 0.1)

    assert (True, True) == (left(publishers) > 10, left(subscribers) > 10)


def test_a_drain_that_ends_lets_clients_stay_and_come(brokers: Brokers) -> None:
    """An operator could not take a drain back."""
    broker = brokers(TEN)
    clients = [broker.connect(f"{number}", V5) for number in range(30)]
    other_node(broker)
    drain(broker)
    after(broker, 0.5)
    gone = left(clients)
    broker.worker.cluster.moves.drain(False, False)
    after(broker, 5.0)

    assert (True, gone) == (0 < gone < 10, left(clients))
    broker.connect("new", V5)


def test_who_comes_to_a_drained_node_is_told_where_to_go(brokers: Brokers) -> None:
    """A client would take the node for broken, or get a packet that is larger than it takes."""
    broker = brokers(TEN)
    other_node(broker)
    drain(broker)
    full = refusal(broker, V5)
    quiet = refusal(broker, V5, {REQUEST_PROBLEM_INFORMATION: 0})
    small = refusal(broker, V5, {MAXIMUM_PACKET_SIZE: 32})
    tiny = refusal(broker, V5, {MAXIMUM_PACKET_SIZE: 10})
    old = refusal(broker, V311)

    refusals = [full, quiet, small, tiny]
    assert all(isinstance(one, ConnAck) and USE_ANOTHER_SERVER == one.code for one in refusals)
    assert [ELSEWHERE, ELSEWHERE, ELSEWHERE, None] == [
        one.properties.get(SERVER_REFERENCE) for one in refusals if isinstance(one, ConnAck)
    ]
    assert [True, False, False, False] == [
        REASON_STRING in one.properties for one in refusals if isinstance(one, ConnAck)
    ]
    assert isinstance(old, ConnAck) and UNAVAILABLE == old.code


@pytest.mark.parametrize(("most", "place"), [(0, ELSEWHERE), (30, ELSEWHERE), (28, None)])
def test_a_goodbye_says_as_much_as_the_client_takes(brokers: Brokers, most: int, place: str | None) -> None:
    """The client would have to close the connection as malformed, and not know where to go [MQTT-3.14.2-3]."""
    broker = brokers(TEN)
    client = broker.connect("phone", V5, properties={MAXIMUM_PACKET_SIZE: most} if most else {})
    other_node(broker)
    drain(broker)
    after(broker, 0.5)

    (said,) = client.receive()
    assert isinstance(said, Disconnect) and USE_ANOTHER_SERVER == said.code
    assert place == said.properties.get(SERVER_REFERENCE)


def test_an_old_client_waits_for_its_turn_and_is_sent_nowhere(brokers: Brokers) -> None:
    """MQTT 3 cannot say where to go: the client would only be refused."""
    broker = brokers(Config(overload=Overload(connects_per_second=1, connect_burst=1)))
    for number in range(8):
        broker.open(V311).send(Connect(V311, f"{number}"))
    broker.settle()
    broker.worker.cluster.moves.run()
    other_node(broker)
    old = broker.open(V311)
    old.send(Connect(V311, "old"))

    assert ([], False) == (old.receive(), old.closed)
