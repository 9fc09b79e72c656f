# When the reactor waits for the next event by itself, and for how long.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Overload, Quotas, QuotaScope
from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Connect, PingReq, Publish
from broker.net.loop import WAIT
from broker.reasons import PauseReason
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.protocol.talk import subscribe

Brokers = Callable[..., Broker]
Nodes = Callable[..., Node]


def turn(broker: Broker, client: Client) -> float:
    """One slice; when the broker wants its next one, in seconds."""
    left = broker.loop.turn()
    client.pull()
    return left


def ping_often(broker: Broker, client: Client, times: int) -> float:
    """So often that the loop waits for the next one, if nothing is against that; when it wants its next turn."""
    for _ in range(times):
        broker.clock.now += 0.0002
        client.send(PingReq())
        left = turn(broker, client)
    return left


def make_busy(broker: Broker, client: Client) -> None:
    """Have the loop wait for *client*'s next, with nothing due soon."""
    ping_often(broker, client, 500)
    while ping_often(broker, client, 1) < 2 * WAIT:
        pass
    assert broker.kernel.waits
    broker.kernel.waits.clear()


def pinged_after(seconds: float, broker: Broker, client: Client) -> Callable[[], None]:
    """Something to happen while the kernel is asked: *client* pings, once it has waited for so long."""

    def waited() -> None:
        broker.clock.now += seconds
        client.send(PingReq())

    return waited


@pytest.mark.parametrize("urgent", [0, 1])
def test_the_loop_does_not_wait_while_a_task_is_urgent(brokers: Brokers, urgent: int) -> None:
    """The upgrade of a WebSocket takes several passes of trio: beside steady traffic each would come a turn later."""
    broker = brokers()
    client = broker.connect("me")
    broker.reactor.urgent_tasks = urgent
    ping_often(broker, client, 500)
    broker.settle()

    assert 500 == len(client.inbox)
    assert bool(broker.kernel.waits) is not bool(urgent)


def test_waiting_for_more_ends_when_something_is_due(brokers: Brokers) -> None:
    """A client that was throttled for 10 ms would have to wait for the end of the turn."""
    broker = brokers()
    client = broker.connect("me")
    left = ping_often(broker, client, 500)
    while not 0.0031 < left < 0.0039:
        left = ping_often(broker, client, 1)
    broker.kernel.waits.clear()
    broker.kernel.waited = pinged_after(0.001, broker, client)
    client.send(PingReq())
    turn(broker, client)

    assert pytest.approx([left, left - 0.001, left - 0.002, left - 0.003]) == broker.kernel.waits


def test_a_wait_is_longer_than_the_tick_of_the_kernel(brokers: Brokers) -> None:
    """A timer that is due before the kernel's tick, 4 ms as a rule, has to be set in hardware for each wait."""
    broker = brokers()
    client = broker.connect("me")
    make_busy(broker, client)
    client.send(PingReq())
    turn(broker, client)

    assert [WAIT] == broker.kernel.waits
    assert WAIT > 0.004


def test_a_held_message_ends_a_wait(brokers: Brokers) -> None:
    """A held message would be held until the next event."""
    broker = brokers()
    client = broker.connect("me")
    make_busy(broker, client)
    broker.reactor.flushing.due = broker.clock.now + 0.002
    client.send(PingReq())
    turn(broker, client)

    assert pytest.approx([0.002]) == broker.kernel.waits


def test_what_another_worker_was_asked_is_waited_for(nodes: Nodes) -> None:
    """Its answer comes within a millisecond: to go back to trio, and to come from there, would cost as much again."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    two.clock.now += 1.0  # nothing was frequent since
    two.settle()
    two.kernel.waits.clear()
    publisher.send(PingReq())
    turn(two, publisher)
    assert not two.kernel.waits

    publisher.send(Publish(b"a", b"", 1, packet_id=1))
    turn(two, publisher)
    assert two.kernel.waits


THREE = "3:3"  # messages at once, and then one a second


@pytest.mark.parametrize("scope", [QuotaScope(incoming_messages=THREE), QuotaScope(outgoing_messages=THREE)])
def test_a_client_that_begins_to_wait_for_a_quota_ends_waits(brokers: Brokers, scope: QuotaScope) -> None:
    """Its quota is checked each 10 ms, and not when the turn ends in which other clients are served."""
    broker = brokers(Config(quotas=Quotas(reserve=0.0, session=scope)))
    reader, busy, client = broker.connect("reader"), broker.connect("busy"), broker.connect("client", V311)
    subscribe(reader, "t", qos=1)
    make_busy(broker, busy)
    broker.kernel.waited = pinged_after(0.004, broker, busy)
    client.send(*[Publish(b"t", b"", 1, packet_id=n + 1) for n in range(5)])
    turn(broker, client)

    assert pytest.approx([0.01, 0.006, 0.002]) == broker.kernel.waits


def test_a_connect_whose_turn_is_soon_ends_a_wait(brokers: Brokers) -> None:
    """The CONNECT would wait until the next event."""
    broker = brokers(Config(overload=Overload(connects_per_second=500, connect_burst=1)))
    client, newcomer = broker.connect("me"), broker.open()
    make_busy(broker, client)
    another = broker.open()
    for one in (newcomer, another):
        one.socket.send(encode(Connect(V311, ""), V311))
    turn(broker, client)

    assert pytest.approx([0.002]) == broker.kernel.waits


def test_a_confirmation_for_another_worker_leaves_before_a_wait(nodes: Nodes) -> None:
    """The other worker measures the delay of this one by the confirmations, and throttles clients by it."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    make_busy(one, subscriber)
    gate = node.peer(two, one).gate
    under_way: list[int] = []

    def waited() -> None:
        two.turn()
        under_way.append(gate.count)

    one.kernel.waited = waited
    publisher.send(Publish(b"a", b"", 0), Publish(b"a", b"", 1, packet_id=1))
    two.turn()
    assert gate.count
    turn(one, subscriber)

    assert under_way
    assert not any(under_way)


def test_what_a_tick_writes_leaves_in_the_same_turn(nodes: Nodes) -> None:
    """It would leave a pass of trio later, and so would each step of what workers and Redis do together."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    node.settle()
    publisher.send(Publish(b"a", b"", 1, packet_id=1))
    two.turn()
    gate = node.peer(two, one).gate
    assert gate.count
    one.clock.now += 1.0
    one.loop.turn()
    two.turn()

    assert not gate.count


def test_a_gate_that_opens_ends_a_wait(nodes: Nodes) -> None:
    """Clients that wait for the gate would resume only with the next event."""
    one, two = nodes(2)
    subscriber, publisher, busy = one.connect("subscriber"), two.connect("publisher"), two.connect("busy")
    subscribed(subscriber, "a")
    make_busy(two, busy)
    one.stopped = True
    publisher.send(*[Publish(b"a", b"", 1, packet_id=n + 1) for n in range(100)])
    ping_often(two, busy, 100)
    assert 1 == two.counters.pauses_by_reason[PauseReason.GATE.label]
    assert two.kernel.waits
    one.turn()
    two.kernel.waits.clear()
    two.loop.turn()

    assert not two.kernel.waits
