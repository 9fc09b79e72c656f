# Workers die or stand still while a durable session moves: it has one owner, all that was acknowledged, in order.
from collections.abc import Callable, Sequence

import pytest

from broker.mqtt.packets import V5, Ack, ConnAck, Disconnect, Publish
from broker.net.pauses import Pause
from broker.reasons import CloseReason
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.store import DurableStore
from tests.cluster.across import names
from tests.cluster.talk import lane, sessions, stored_at, subscribed
from tests.cluster.test_durable_takeovers import (
    StartNode,
    arrive,
    coming,
    first_of_each,
    messages,
    publish,
    publish_again,
    subscriber,
)
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

__all__ = ["names"]  # a fixture

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis


def commit_of(broker: Broker) -> GroupCommit:
    store = broker.worker.links.durable_store
    assert isinstance(store, DurableStore)
    return store.commit


def acknowledged(client: Client) -> list[int]:
    return [each.packet_id for each in client.receive() if isinstance(each, Ack)]


def until(node: Sequence[Broker], done: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if done():
            return
        for broker in node:
            broker.turn()
    raise AssertionError("it does not come")


def test_a_session_is_not_given_to_a_worker_that_has_died(start_node: StartNode, redis: RunningRedis) -> None:
    """Nobody would look for it where it is then, and what is published for it would be acknowledged, and lost."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[2], b"1")
    giver, taker, other = node
    commit_of(giver)._gathering.until = float("inf")  # its transactions wait
    coming(taker)
    node.settle()
    assert commit_of(giver)._dirty
    node.kill(taker)
    node.start(1)  # which has adopted what the dead one had
    publisher = arrive_without_store(other)
    publisher.send(Publish(b"a", b"2", 1, packet_id=1))
    node.advance(0.2)
    assert [] == acknowledged(publisher)
    commit_of(giver)._gathering.until = 0.0
    node.advance(0.3)

    assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
    assert [0] == sessions(node)
    assert ["queue 1", "session 1"] == stored_at(redis)
    publish(other, b"2")
    client = arrive(node[1])
    assert client.connack.session_present
    assert [b"1", b"2"] == [payload for payload, _, _ in messages(client)]
    publish(other, b"3")
    assert [b"3"] == first_of_each(client)
    assert 0 == giver.takeovers.pending()


def arrive_without_store(broker: Broker) -> Client:
    """A publisher of which nothing is stored."""
    return broker.connect("publisher", V5)


def test_a_session_is_found_that_was_given_to_a_worker_that_dies_then(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The worker that gave it would keep it as well; or nobody have it."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[2], b"1")
    giver, taker, _ = node
    coming(taker)
    until(node, lambda: "session 2" in stored_at(redis))
    node.kill(taker)
    follower = node.start(1)
    node.advance(0.3)

    assert [follower] == [broker for broker in node if broker.session("me") is not None]
    assert ["queue 4", "session 4"] == stored_at(redis)
    publish(giver, b"2")
    client = arrive(giver)
    assert client.connack.session_present
    assert [b"1", b"2"] == first_of_each(client)
    assert [0, 0, 0] == [broker.takeovers.pending() for broker in node]


def test_a_session_is_taken_when_all_know_where_it_is(start_node: StartNode, redis: RunningRedis) -> None:
    """Its former owner, or who follows that, would tell that nobody there subscribes, while nobody else is known to."""
    node = start_node(3)
    publishers: list[Client] = []
    subscriber(node[0])
    node[0].stopped = True
    peer = node.peer(node[2], node[1])
    node[2].reactor.pause(peer.control, Pause.FANOUT)  # it does not hear what worker 1 subscribes
    client = coming(node[1])
    if len(node.names) == 1:
        node[1].advance(2.5)
        assert ["session 1"] == stored_at(redis)
        assert [] == client.receive()
    else:  # another node may be dead, and is not waited for
        node[1].advance(0.9)
        assert ["session 2"] == stored_at(redis)
        publishers.append(arrive_without_store(node[2]))
        publishers[0].send(Publish(b"a", b"0", 1, packet_id=1))
        node[2].advance(0.3)
        assert [] == acknowledged(publishers[0])
    node[2].reactor.resume(peer.control, Pause.FANOUT)
    node[1].advance(0.3)

    assert ["session 2"] == stored_at(redis)
    assert [True] == [each.session_present for each in client.receive() if isinstance(each, ConnAck)]
    node[0].stopped = False
    node.advance(0.3)
    publish(node[2], b"1")
    assert [b"1"] == first_of_each(client)
    assert all(each.closed for each in publishers)  # to publish it again


def test_a_worker_that_has_lost_a_session_acknowledges_nothing_for_it(start_node: StartNode) -> None:
    """Its own clients' publishes would reach nobody, until it hears who has the session now."""
    node = start_node(2)
    subscriber(node[0])
    publisher = arrive_without_store(node[0])
    node[0].stopped = True
    client = coming(node[1])
    node[1].advance(2.5)
    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    (peer,) = node[0].mesh.peers
    node[0].reactor.pause(peer.control, Pause.FANOUT)
    node[0].stopped = False
    commit_of(node[0]).confirm(lambda: None)
    node.advance(0.2)
    assert node[0].session("me") is None
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.advance(0.2)
    assert [] == acknowledged(publisher)
    node[0].reactor.resume(peer.control, Pause.FANOUT)
    node.advance(0.3)
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    publish_again(node[0], publisher)

    assert [b"1", b"2"] == first_of_each(client)


def test_a_worker_that_gets_back_a_session_that_it_has_lost_acknowledges_nothing_before(start_node: StartNode) -> None:
    """Its own clients' publishes would reach nobody: it has not heard who has the session, and does not have it yet."""
    node = start_node(2)
    subscriber(node[0])
    publisher = arrive_without_store(node[0])
    node[0].stopped = True
    coming(node[1])
    node[1].advance(2.5)
    (peer,) = node[0].mesh.peers
    node[0].reactor.pause(peer.control, Pause.FANOUT)
    commit_of(node[0])._gathering.until = float("inf")  # its transactions wait
    node[0].stopped = False
    client = coming(node[0])
    node.advance(0.3)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.settle()
    assert [] == acknowledged(publisher)
    commit_of(node[0])._gathering.until = 0.0
    node.advance(0.2)
    node[0].reactor.resume(peer.control, Pause.FANOUT)
    node.advance(0.3)
    assert [Disconnect(CloseReason.RECEIVER_MOVED.code)] == publisher.receive()
    publish(node[0], b"1", b"2")

    assert [b"1", b"2"] == first_of_each(client)
    assert [0] == sessions(node)


def test_messages_on_their_way_to_a_giver_that_dies_keep_their_order(start_node: StartNode) -> None:
    """A later one would reach the session at its new worker, and the earlier one be published again behind it."""
    node = start_node(3)
    subscriber(node[0]).drop()
    subscribed(arrive(node[1], "other"), "a")  # what is published on "a" goes there already
    publisher = arrive(node[2], "publisher")
    node[0].reactor.pause(lane(node[0], node[2]), Pause.FANOUT)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.settle()
    taker = node[1]
    client = coming(taker)
    node.settle()
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node.advance(0.2)
    assert [] == client.receive()
    node.kill(node[0])
    node.advance(0.3)
    node.start(0)
    publish_again(node[1], publisher)

    assert [b"1", b"2"] == first_of_each(client)
    assert 0 == taker.takeovers.pending()


def test_a_session_that_is_adopted_before_it_is_taken_is_found(start_node: StartNode) -> None:
    """A claim that finds nothing at a dead worker would begin a second session, beside the one that was adopted."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[2], b"1")
    _, taker, other = node
    other.stopped = True  # the move needs its mark, and then its confirmation
    client = coming(taker)
    taker.settle()
    node.kill(node[0])
    follower = node.start(0)
    until([taker, follower], lambda: follower.session("me") is not None)
    other.stopped = False
    node.advance(0.5)

    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    assert [taker.number] == sessions(node)
    assert [b"1"] == first_of_each(client)


def test_time_in_which_the_asking_worker_stands_still_does_not_count(start_node: StartNode) -> None:
    """It would give up a session whose worker answers as quickly as it can."""
    node = start_node(2)
    subscriber(node[0])
    node[0].stopped = True
    coming(node[1])
    node[1].settle()
    node.clock.now += 3.0  # nobody's turn comes
    node[1].settle()
    assert 1 == node[1].takeovers.pending()
    node[1].advance(1.8 if len(node.names) == 1 else 0.1)
    assert 1 == node[1].takeovers.pending()
    assert 0 == node[1].worker.protocol.lifecycle.connected
