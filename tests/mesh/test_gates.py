# A worker that has enough to do, is stopped, or gone: who waits for it, and who does not.
from collections.abc import Callable

from broker.mesh.peer import SHUT
from broker.mqtt.packets import V5, Ack, PingReq, PingResp, Publish
from tests.innode import Node
from tests.inprocess import Client
from tests.mesh.talk import payloads, subscribed

Nodes = Callable[..., Node]
LARGE = bytes(64 * 1024)
MANY = 2 * SHUT // len(LARGE)


def flood(publisher: Client, topic: bytes, count: int = MANY) -> None:
    publisher.post(*[Publish(topic, b"%06d" % n + LARGE, 1, packet_id=n + 1) for n in range(count)])


def acks(client: Client) -> int:
    return len([packet for packet in client.receive() if isinstance(packet, Ack)])


def test_who_publishes_for_a_stopped_worker_waits(nodes: Nodes) -> None:
    """What it sends would fill the memory."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber", V5), two.connect("publisher", V5)
    subscribed(subscriber, "a")
    (peer,) = two.worker.mesh.peers
    one.stopped = True
    flood(publisher, b"a")
    taken = acks(publisher)
    assert 0 < taken < MANY
    assert SHUT < peer.backlog() < SHUT + 2 * len(LARGE)

    one.stopped = False
    taken += acks(publisher)
    subscriber_has = payloads(subscriber)
    assert MANY == taken
    assert [b"%06d" % n for n in range(MANY)] == [payload[:6] for payload in subscriber_has]


def test_who_does_not_need_it_goes_on(nodes: Nodes) -> None:
    """One worker that hangs would stop the whole node."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    other, listener = two.connect("other"), two.connect("listener")
    subscribed(subscriber, "a")
    subscribed(listener, "b")
    one.stopped = True
    flood(publisher, b"a")
    other.send(Publish(b"b", b"hello"), PingReq())

    assert [b"hello"] == payloads(listener)
    assert [PingResp()] == other.receive()


def test_a_death_lets_go_on_who_waited(nodes: Nodes) -> None:
    """Publishers would be held for ever by who is gone."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    one.stopped = True
    flood(publisher, b"a")
    before = acks(publisher)
    node.kill(one)

    assert MANY == before + acks(publisher)


def test_who_waited_and_went_is_forgotten(nodes: Nodes) -> None:
    """A closed connection would be served when the gate opens."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    one.stopped = True
    flood(publisher, b"a")
    two.settle()
    publisher.drop()
    one.stopped = False
    two.settle()

    assert 0 == two.worker.counters.internal_errors
    assert 1 == one.worker.reception.connected + two.worker.reception.connected


def test_retained_messages_wait_for_everybody(nodes: Nodes) -> None:
    """They go to every worker, wanted or not: they would fill the memory just so."""
    one, two = nodes(2)
    publisher = two.connect("publisher", V5)
    (peer,) = two.worker.mesh.peers
    one.stopped = True
    publisher.post(*[Publish(b"r/%d" % n, LARGE, 1, True, packet_id=n + 1) for n in range(MANY)])
    taken = acks(publisher)
    assert taken < MANY
    assert peer.backlog() < SHUT + 2 * len(LARGE)

    one.stopped = False
    assert MANY == taken + acks(publisher)
    assert MANY == one.worker.retained.statistics().count


def test_what_a_dead_worker_had_sent_still_comes(nodes: Nodes) -> None:
    """It was acknowledged: it lies in our socket, and would be thrown away."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    one.stopped = True
    publisher.send(Publish(b"a", b"last words", 1, packet_id=1))
    assert 1 == acks(publisher)
    one.stopped = False
    node.kill(two)

    assert [b"last words"] == payloads(subscriber)
