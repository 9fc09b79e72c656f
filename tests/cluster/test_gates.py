# A worker that has enough to do, is stopped, or gone: who waits for it, and who does not.
from collections.abc import Callable

import pytest

from broker.cluster.peer import SHUT
from broker.config.schema import Config, Cost, Overload
from broker.mqtt.packets import V5, Ack, PingReq, PingResp, Publish
from broker.reasons import PauseReason
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node
from tests.inprocess import Client

Nodes = Callable[..., Node]
LARGE = bytes(256 * 1024)  # so large that bytes close the gate, and not their number
MANY = 2 * SHUT // len(LARGE)


def flood(publisher: Client, topic: bytes, count: int = MANY, payload: bytes = LARGE) -> None:
    publisher.post(*[Publish(topic, b"%06d" % n + payload, 1, packet_id=n + 1) for n in range(count)])


def acks(client: Client) -> int:
    return len([packet for packet in client.receive() if isinstance(packet, Ack)])


def test_who_publishes_for_a_stopped_worker_waits(nodes: Nodes) -> None:
    """What it sends would fill the memory."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber", V5), two.connect("publisher", V5)
    subscribed(subscriber, "a")
    (peer,) = two.mesh.peers
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


def test_their_number_closes_a_gate_and_answers_open_it(nodes: Nodes) -> None:
    """A worker that is slow would have thousands of small messages before it, each of which waits for all of them."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber", V5), two.connect("publisher", V5)
    subscribed(subscriber, "a")
    one.stopped = True
    flood(publisher, b"a", 500, b"")
    taken = acks(publisher)
    assert 20 == taken  # overload.gate_floor: it is not known yet how much it does in a second

    one.stopped = False
    taken += acks(publisher)
    assert 500 == taken
    assert [b"%06d" % n for n in range(500)] == payloads(subscriber)


def test_who_floods_a_worker_leaves_room_for_others(nodes: Nodes) -> None:
    """Who publishes little would wait behind all that somebody else could get rid of, until it counts as overload."""
    settings = Overload(gate_room=60.0, gate_idle=0.001, cost=Cost(publish=5000))
    one, two = nodes(2, Config(overload=settings))
    subscriber, busy, modest = one.connect("subscriber", V5), two.connect("busy", V5), two.connect("modest", V5)
    subscribed(subscriber, "a")
    for _ in range(2):  # so much is known of the other worker then that a minute's work may lie before it
        one.stopped = True
        flood(modest, b"a", 20, b"")
        assert 20 == acks(modest)
        two.advance(0.05)
        one.stopped = False
        two.advance(0.1)
    two.advance(1.0)
    one.stopped = True
    flood(busy, b"a", 100, b"")
    assert acks(busy) < 100
    assert 1 == two.counters.pauses_by_reason[PauseReason.CREDITS.label]
    flood(modest, b"a", 5, b"")

    assert 5 == acks(modest)


@pytest.mark.parametrize("full", ["memory", "outbound"])
def test_a_worker_that_is_quick_and_full_throttles_publishes_to_it(nodes: Nodes, full: str) -> None:
    """Its gate is open, so clients of other workers would fill it until it dies, however it calls for help."""
    one, two = nodes(2, Config(overload=Overload(cost=Cost(publish=1000))))
    subscriber, listener = one.connect("subscriber", V5), two.connect("listener", V5)
    to_full, elsewhere = two.connect("to the full", V5), two.connect("elsewhere", V5)
    subscribed(subscriber, "a")
    subscribed(listener, "b")
    one.overload_monitor.inject(full, 2.0, one.clock.now + 60.0)
    for _ in range(10):
        one.advance(0.1)
    assert two.protection.ledger.level > 1.0
    flood(to_full, b"a", 100, b"")
    flood(elsewhere, b"b", 100, b"")

    assert 0 < acks(to_full) < 50
    assert 1 == two.counters.pauses_by_reason[PauseReason.CREDITS.label]
    assert 100 == acks(elsewhere)
    one.overload_monitor.inject(full, 0.0, one.clock.now + 60.0)
    one.advance(0.1)
    two.advance(0.1)
    assert two.protection.ledger.level > 0.0  # and nothing is contended any more
    flood(to_full, b"a", 100, b"")
    assert acks(to_full) > 150


def test_those_who_wait_for_a_worker_take_turns(nodes: Nodes) -> None:
    """Who floods would fill all the room that there is again, each time, and others would wait until it has done."""
    node = nodes(2)
    one, two = node
    subscriber = one.connect("subscriber", V5)
    flooding, modest = two.connect("flooding", V5), two.connect("modest", V5)
    subscribed(subscriber, "a")
    one.stopped = True
    flood(flooding, b"a", 900, b" of the flood")
    assert 20 == acks(flooding)
    flood(modest, b"a", 50, b" of the modest")
    assert 0 == acks(modest)

    one.stopped = False
    found = payloads(subscriber)

    assert 950 == len(found)
    modest_of = [number for number, payload in enumerate(found) if payload.endswith(b"modest")]
    assert max(modest_of) < 200


def test_an_answer_within_the_slice_counts(nodes: Nodes) -> None:
    """A peer that is quick would keep its gate closed for ever: what it has done was not marked when it said so."""
    _, two = nodes(2)
    (peer,) = two.mesh.peers
    peer.gate.take(20, 740, two.clock.now)
    assert not peer.gate.open
    peer.write(bytes(740))

    assert peer.processed(peer.written(), two.clock.now + 0.003)
    assert 0 == peer.gate.count


def test_what_was_taken_and_not_sent_is_done(nodes: Nodes) -> None:
    """Publishes that their client may not make would fill the gate, with nobody to answer them."""
    _, two = nodes(2)
    (peer,) = two.mesh.peers
    peer.gate.take(20, 740, two.clock.now)
    peer.mark(two.clock.now + 0.003)

    assert peer.gate.open
    assert 0 == peer.gate.count


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


def test_who_waits_is_not_asked_again_before_there_is_room(nodes: Nodes) -> None:
    """Thousands that wait for a worker that hangs would be tried a hundred times a second, just when time is short."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    one.stopped = True
    flood(publisher, b"a")
    acks(publisher)
    pauses = two.counters.pauses_by_reason
    assert 1 == pauses[PauseReason.GATE.label]
    two.advance(1.0)

    assert 1 == pauses[PauseReason.GATE.label]


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


def test_a_wait_that_a_death_has_ended_is_over(nodes: Nodes) -> None:
    """Its client would count as throttled until its next wait, and be closed at once then, as it waited for so long."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    one.stopped = True
    flood(publisher, b"a")
    before = acks(publisher)
    assert 1 == two.overload_monitor.figures(two.clock.now).throttled
    node.kill(one)
    assert MANY == before + acks(publisher)
    assert 0 == two.overload_monitor.figures(two.clock.now).throttled
    two.advance(Overload().wait)

    three = node.start()
    subscribed(three.connect("subscriber"), "a")
    three.stopped = True
    flood(publisher, b"a")
    assert 0 < acks(publisher) < MANY
    assert 1 == two.overload_monitor.figures(two.clock.now).throttled
    assert 1 == two.connected


def test_a_worker_is_replaced_before_its_end_is_heard(nodes: Nodes) -> None:
    """The load of its successor would be unseen, and the end of that one an error that ends this worker as well."""
    node = nodes(2)
    one, two = node
    one.stopped = True
    node.workers.remove(two)
    two.close()
    three = node.start(1)
    one.stopped = False
    node.settle()
    signals = one.protection.signals
    assert [1] == [peer.shard for peer in one.mesh.peers]
    assert ["weir/1"] == [name for name in signals.values() if "/" in name]

    node.kill(three)
    assert [] == [name for name in signals.values() if "/" in name]
    client = one.connect("me", V5)
    client.send(PingReq())
    assert [PingResp()] == client.receive()


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

    assert 0 == two.counters.internal_errors
    assert 1 == one.connected + two.connected


def test_retained_messages_wait_for_everybody(nodes: Nodes) -> None:
    """They go to every worker, wanted or not: they would fill the memory just so."""
    one, two = nodes(2)
    publisher = two.connect("publisher", V5)
    (peer,) = two.mesh.peers
    one.stopped = True
    publisher.post(*[Publish(b"r/%d" % n, LARGE, 1, True, packet_id=n + 1) for n in range(MANY)])
    taken = acks(publisher)
    assert taken < MANY
    assert peer.backlog() < SHUT + 2 * len(LARGE)

    one.stopped = False
    assert MANY == taken + acks(publisher)
    assert MANY == one.retained.statistics().count


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


def test_what_a_dead_worker_had_sent_comes_though_we_had_something_for_it(nodes: Nodes) -> None:
    """Sending says that it is gone before all is read that it had acknowledged."""
    node = nodes(2)
    one, two = node
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a")
    subscribed(two.connect("other"), "b")
    answering = one.connect("answering")
    one.stopped = True
    flood(publisher, b"a", 2, bytes(64 * 1024))
    assert 2 == acks(publisher)
    answering.send(Publish(b"b", b"for the dead"))
    one.stopped = False
    node.kill(two)

    assert 2 == len(payloads(subscriber))
