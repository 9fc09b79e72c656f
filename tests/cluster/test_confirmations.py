# Publishes for durable subscribers at other workers: nobody is told that a message is safe before it is.
import time
from collections.abc import Callable

import pytest

from broker.cluster import wire
from broker.cluster.confirmations import Confirmations
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.overload.level import store_of
from broker.reasons import CloseReason
from broker.session.message import NEVER, Message
from tests.cluster.across import names
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

__all__ = ["names"]  # a fixture

pytestmark = pytest.mark.system  # a real Redis

LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}
PATIENCE = 10.0  # seconds for what should take milliseconds


@pytest.fixture
def node(nodes: Callable[..., Node], redis: RunningRedis) -> Node:
    return nodes(2, None, redis, durable=True)


def durable(broker: Broker, client_id: str, filter: str = "a") -> Client:
    client = broker.connect(client_id, V5, clean_start=False, properties=LASTING)
    subscribed(client, filter)
    return client


def store_is_full(node: Node, redis: RunningRedis, full: bool) -> None:
    """Whether Redis refuses writes. The node settles without waiting for it meanwhile."""
    redis.client().config_set("maxmemory", 1 if full else 0)
    for broker in node:
        broker.answered = not full
    node.advance(0.3)


def waiting(node: Node) -> list[int]:
    """Publishes of each worker that wait for other workers."""
    return [sum(peer.confirming.pending() for peer in broker.mesh.peers) for broker in node]


def test_a_publish_that_comes_to_nothing_leaves_the_gate_of_the_store(node: Node) -> None:
    """The store of the other worker would seem slower and slower, until nothing passed any more."""
    durable(node[1], "reader").socket.close()
    publisher = node[0].connect("publisher", V5, clean_start=False, properties=LASTING)
    publisher.send(Publish(b"a", b"x", 2, packet_id=1))
    node.settle()
    for _ in range(3):
        publisher.send(Publish(b"a", b"x", 2, packet_id=1, dup=True))
        node.settle()
    node.advance(0.3)

    assert [Ack(PUBREC, 1)] * 4 == publisher.receive()
    (store,) = [peer.confirming.store for peer in node[0].mesh.peers]
    assert store is not None
    assert (0, 0, 0.0) == (store.count, store.bytes, store.delay(node[0].clock.now))


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_publish_is_acknowledged_once_it_is_stored_at_another_worker(
    node: Node, redis: RunningRedis, qos: int, retain: bool
) -> None:
    """A publisher would forget what a crash of that worker loses."""
    durable(node[0], "away").drop()
    publisher = node[1].connect("publisher", V311)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", qos, retain, packet_id=1), Publish(b"other", b"2", qos, packet_id=2))
    assert [] == publisher.receive()
    assert [0, 1] == waiting(node)
    store_is_full(node, redis, False)

    kind = PUBACK if qos == 1 else PUBREC
    assert [Ack(kind, 1), Ack(kind, 2)] == publisher.receive()
    assert [0, 0] == waiting(node)


def test_what_its_receiver_acknowledges_needs_no_redis(node: Node, redis: RunningRedis) -> None:
    """Traffic between clients that are there would stand still, and what is behind a message that waits."""
    durable(node[0], "away", "away").drop()
    here = durable(node[0], "here", "here")
    slow, quick = node[1].connect("slow", V311), node[1].connect("quick", V311)
    store_is_full(node, redis, True)
    slow.send(Publish(b"away", b"1", 1, packet_id=1))
    slow.receive()
    quick.send(Publish(b"here", b"2", 1, packet_id=1))
    assert [] == quick.receive()
    (sent,) = [each for each in here.receive() if isinstance(each, Publish)]
    here.send(Ack(PUBACK, sent.packet_id))
    node.settle()

    assert [Ack(PUBACK, 1)] == quick.receive()
    assert [] == slow.receive()
    assert [0, 1] == waiting(node)


def test_nobody_waits_for_receivers_in_memory(node: Node, redis: RunningRedis) -> None:
    """Each publish would cost a round trip; or wait for a subscription that is gone."""
    client = durable(node[0], "durable")
    memory = node[0].connect("memory", V5)
    subscribed(memory, "a")
    client.send(Unsubscribe(2, [b"a"]))
    client.receive()
    node[0].stopped = True
    publisher = node[1].connect("publisher", V311)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))

    assert [Ack(PUBACK, 1)] == publisher.receive()
    node[0].stopped = False
    assert [b"1"] == [each.payload for each in memory.receive() if isinstance(each, Publish)]


def test_a_worker_that_comes_later_waits_too(node: Node, redis: RunningRedis) -> None:
    """It would know the filters and not that they are durable."""
    durable(node[0], "away").drop()
    third = node.start()
    publisher = third.connect("publisher", V311)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    assert [] == publisher.receive()
    store_is_full(node, redis, False)

    assert [Ack(PUBACK, 1)] == publisher.receive()


def test_who_publishes_to_a_worker_that_dies_is_not_answered(node: Node, redis: RunningRedis) -> None:
    """The message is stored nowhere; its publisher would forget it, or wait for ever."""
    durable(node[0], "away").drop()
    publisher, other = node[1].connect("publisher", V5), node[1].connect("other", V5)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    assert [] == publisher.receive()
    node.kill(node[0])
    redis.client().config_set("maxmemory", 0)

    assert [Disconnect(CloseReason.RECEIVER_MOVED.code)] == publisher.receive()
    assert not other.closed
    assert [0] == waiting(node)


def test_a_worker_that_ends_confirms_first_what_was_published_for_it(node: Node, redis: RunningRedis) -> None:
    """With each restart publishers elsewhere would be told to send again what was stored already."""
    durable(node[0], "away").drop()
    node.advance(0.3)
    publisher = node[1].connect("publisher", V5)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    assert [] == publisher.receive()

    node[0].mesh.departure.say_leaving()
    node.settle()
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node.advance(0.3)

    assert [0, 1] == waiting(node)  # the second one was not published
    assert not node[0].mesh.departure.may_leave()
    store_is_full(node, redis, False)
    assert [Ack(PUBACK, 1)] == publisher.receive()
    assert node[0].mesh.departure.may_leave()
    node.kill(node[0])
    node.start(0)
    node.advance(0.3)
    assert [Ack(PUBACK, 2)] == publisher.receive()
    assert [b"1", b"2"] == stored(node)


def test_the_gate_of_a_worker_that_ends_stays_shut(node: Node) -> None:
    """What comes in the meantime would be lost with it, as far as anybody knows."""
    publisher = node[1].connect("publisher", V5)
    publisher.send(*[Publish(b"a", b"x" * 1000, 1, packet_id=number + 1) for number in range(20)])
    (peer,) = node[1].mesh.peers
    subscribed(node[0].connect("here", V5), "a")

    node[0].mesh.departure.say_leaving()
    node.advance(0.3)

    assert not peer.gate.open
    peer.processed(peer.written(), node.clock.now)
    assert not peer.gate.open


@pytest.mark.parametrize("former", [False, True])
def test_peers_with_the_former_lanes_are_not_asked_what_they_cannot_read(node: Node, former: bool) -> None:
    """They would take the lanes for broken, and lose what is on them."""
    asks, other = node
    asks.mesh.former = frozenset([other.identity.node] if former else [])
    if asks.mesh.peers[0].distant:  # those of its own node are of its own build
        asks.mesh.restarted(other.identity)
        node.advance(1.0)

    announcements, heard = other.worker.links.announcements, list[int]()
    before = announcements._sequence
    asks.mesh.when_all_have_heard(lambda: heard.append(1))
    node.settle()

    (seen,) = asks.mesh.peers
    assert (former and seen.distant) == seen.former
    assert (seen.former, [1]) == (announcements._sequence == before, heard)


@pytest.mark.parametrize("sessions", [1, 2])
def test_who_publishes_to_sessions_that_are_taken_is_not_answered(
    node: Node, redis: RunningRedis, sessions: int
) -> None:
    """The worker that has lost them could not say whether the message is stored; or say it twice, and end its peer."""
    names = [f"away{number}" for number in range(sessions)]
    for name in names:
        durable(node[0], name).drop()
    node.advance(0.1)
    publisher = node[1].connect("publisher", V5)
    redis.client().rpush(f"weir:fence:{node[0].identity.incarnation_text}", *names)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.settle()
    node.advance(0.3)

    assert [Disconnect(CloseReason.RECEIVER_MOVED.code)] == publisher.receive()
    assert [0, 0] == waiting(node)


def test_a_wide_publish_is_acknowledged_after_the_last_one_is_stored(node: Node, redis: RunningRedis) -> None:
    """It is delivered in pages there, and would be confirmed after the first one."""
    for number in range(600):
        durable(node[0], f"away{number}").drop()
    publisher = node[1].connect("publisher", V311)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1), Publish(b"a", b"2", 1, packet_id=2))
    assert [] == publisher.receive()
    store_is_full(node, redis, False)
    node.advance(0.3)

    assert [Ack(PUBACK, 1), Ack(PUBACK, 2)] == publisher.receive()
    assert 1200 == sum(session.waiting() for session in node[0].sessions())


def test_a_qos_2_publish_that_is_sent_again_waits_as_the_first_one(node: Node, redis: RunningRedis) -> None:
    """Its publisher would be told that it is safe because it has connected again; or it be delivered twice."""
    durable(node[0], "away").drop()
    publisher = node[1].connect("publisher", V5, clean_start=False, properties=LASTING)
    node.advance(0.3)
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))
    assert [] == publisher.receive()
    publisher.drop()
    publisher = node[1].open(V5)
    publisher.send(Connect(V5, "publisher", False, properties=LASTING), Publish(b"a", b"1", 2, dup=True, packet_id=1))
    deadline = time.monotonic() + PATIENCE
    while not (came := publisher.receive()):  # a Redis that is full answers the claim of the owner
        assert time.monotonic() < deadline
    node.advance(0.5)
    assert [ConnAck] == [type(each) for each in [*came, *publisher.receive()]]
    store_is_full(node, redis, False)

    assert [Ack(PUBREC, 1)] == publisher.receive()
    publisher.send(Ack(PUBREL, 1))
    assert [Ack(PUBCOMP, 1)] == publisher.receive()
    assert 1 == sum(session.waiting() for session in node[0].sessions())


def test_a_qos_2_publish_whose_receiver_is_lost_is_delivered_again(node: Node, redis: RunningRedis) -> None:
    """It would count as delivered, as its id is known."""
    durable(node[0], "away").drop()
    publisher = node[1].connect("publisher", V5, clean_start=False, properties=LASTING)
    node.advance(0.3)
    publisher.send(Publish(b"a", b"0", 2, packet_id=2))  # the first one waits until Redis knows of it
    node.advance(0.3)
    assert [Ack(PUBREC, 2)] == publisher.receive()
    here = node[1].connect("here", V5)
    subscribed(here, "a")
    store_is_full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))
    node.settle()
    node.kill(node[0])
    assert publisher.receive() and publisher.closed
    store_is_full(node, redis, False)
    node.start(0)
    publisher = node[0].connect("publisher", V5, clean_start=False, properties=LASTING)
    publisher.send(Publish(b"a", b"1", 2, dup=True, packet_id=1))
    node.advance(0.3)

    assert [Ack(PUBREC, 1)] == [each for each in publisher.receive() if isinstance(each, Ack)]
    assert [b"1", b"1"] == [each.payload for each in here.receive() if isinstance(each, Publish)]


def test_publishes_wait_until_the_sessions_of_a_dead_worker_are_adopted(node: Node, redis: RunningRedis) -> None:
    """What is acknowledged between its death and that would reach nobody."""
    durable(node[0], "away").drop()
    node.advance(0.3)
    publisher = node[1].connect("publisher", V5)
    node.kill(node[0])
    publisher.send(Publish(b"a", b"1", 1, packet_id=1), Publish(b"a", b"2", 1, True, packet_id=2))
    other = node[0].connect("other", V5)
    other.send(Publish(b"b", b"0", 1, packet_id=1))
    node.advance(0.3)
    assert [] == publisher.receive()
    assert [PUBACK] == [each.kind for each in other.receive() if isinstance(each, Ack)]
    follower = node.start(0, adopts=False)
    node.advance(0.3)
    assert [] == publisher.receive()
    follower.stopped = False
    node.advance(0.3)

    assert [1, 2] == [each.packet_id for each in publisher.receive() if isinstance(each, Ack)]
    client = node[0].connect("away", V5, clean_start=False, properties=LASTING)
    assert [b"1", b"2"] == [each.payload for each in client.receive() if isinstance(each, Publish)]


# QoS 2 publishes that are sent again, as nobody knows who has stored them.


def stored(node: Node, client_id: str = "away") -> list[bytes]:
    """What the client gets that was away, wherever its session is."""
    client = node[0].connect(client_id, V5, clean_start=False, properties=LASTING)
    node.advance(0.3)
    return [each.payload for each in client.receive() if isinstance(each, Publish)]


def lasting(broker: Broker, client_id: str) -> Client:
    client = broker.connect(client_id, V5, clean_start=False, properties=LASTING)
    broker.settle()
    broker.advance(0.3)
    return client


@pytest.mark.parametrize("receiver", [0, 1])
@pytest.mark.parametrize("known", [True, False])
def test_a_qos_2_publish_is_stored_once_when_its_worker_dies_before_it_answers(
    node: Node, redis: RunningRedis, receiver: int, known: bool
) -> None:
    """Its publisher sends it again, and a receiver that has it would get it twice.

    *known*: its token was stored before the worker died.
    """
    durable(node[receiver], "away").drop()
    publisher = lasting(node[1], "publisher")
    if not known:
        publisher.send(Publish(b"a", b"0", 2, packet_id=9))  # so that there is something to follow
        node.advance(0.3)
        assert [Ack(PUBREC, 9)] == publisher.receive()
    publisher.send(Publish(b"a", b"1", 2, packet_id=1), Publish(b"a", b"2", 2, packet_id=2))
    if known:
        node.advance(0.3)
    else:
        node[1].turn()  # it is on its way to the other worker, and the store of this one has not answered
        node[1].stopped = True
        node.advance(0.3)
    node.kill(node[1])
    node.start(1)
    node.advance(0.3)
    publisher = lasting(node[1], "publisher")
    publisher.send(*[Publish(b"a", b"%d" % number, 2, dup=True, packet_id=number) for number in (1, 2)])
    node.advance(0.5)

    answers = [each for each in publisher.receive() if isinstance(each, Ack)]
    assert [Ack(PUBREC, 1), Ack(PUBREC, 2)] == answers
    publisher.send(Ack(PUBREL, 1), Ack(PUBREL, 2))
    assert [Ack(PUBCOMP, 1), Ack(PUBCOMP, 2)] == publisher.receive()
    assert ([] if known else [b"0"]) + [b"1", b"2"] == stored(node)


def test_a_new_publish_with_the_same_id_is_stored_though_its_worker_died(node: Node) -> None:
    """A message would be taken for another one that had its packet id, and be lost."""
    durable(node[0], "away").drop()
    publisher = lasting(node[1], "publisher")
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))
    node.advance(0.3)
    publisher.send(Ack(PUBREL, 1))
    assert [Ack(PUBREC, 1), Ack(PUBCOMP, 1)] == publisher.receive()
    node.kill(node[1])  # before it is stored that the id is free
    node.start(1)
    node.advance(0.3)
    publisher = lasting(node[1], "publisher")
    publisher.send(Publish(b"a", b"2", 2, packet_id=1))
    node.advance(0.3)

    assert [Ack(PUBREC, 1)] == [each for each in publisher.receive() if isinstance(each, Ack)]
    assert [b"1", b"2"] == stored(node)


def test_a_receiver_that_was_lost_gets_what_is_sent_again_and_the_others_do_not(
    node: Node, redis: RunningRedis
) -> None:
    """It would come twice to those that have stored it, or never to the one whose worker died."""
    durable(node[0], "away").drop()
    durable(node[1], "there").drop()
    publisher = lasting(node[1], "publisher")
    node[0].stopped = True
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))
    for _ in range(5):
        node[1].advance(0.1)
    assert [] == publisher.receive()
    dead = node[0]
    node.kill(dead)
    assert publisher.receive() and publisher.closed
    node.start(0)
    node.advance(0.3)
    publisher = lasting(node[1], "publisher")
    publisher.send(Publish(b"a", b"1", 2, dup=True, packet_id=1))
    node.advance(0.5)

    assert [Ack(PUBREC, 1)] == [each for each in publisher.receive() if isinstance(each, Ack)]
    assert [b"1"] == stored(node, "away")
    assert [b"1"] == stored(node, "there")


def test_a_connected_receiver_of_qos_1_gets_once_what_is_sent_again(node: Node) -> None:
    """It takes what it is offered at once, and would not look whether it has had it."""
    receiver = node[0].connect("there", V5, clean_start=False, properties=LASTING)
    subscribed(receiver, Wanted(b"a", 1))
    publisher = lasting(node[1], "publisher")
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))
    node.advance(0.3)
    assert [Ack(PUBREC, 1)] == publisher.receive()
    (message,) = [each for each in receiver.receive() if isinstance(each, Publish)]
    receiver.send(Ack(PUBACK, message.packet_id))
    node.kill(node[1])
    node.start(1)
    node.advance(0.3)
    publisher = lasting(node[1], "publisher")
    publisher.send(Publish(b"a", b"1", 2, dup=True, packet_id=1))
    node.advance(0.3)

    assert [Ack(PUBREC, 1)] == [each for each in publisher.receive() if isinstance(each, Ack)]
    assert [] == receiver.receive()


# The gates of stores.


def under_way(broker: Broker, there: Broker) -> int:
    """Publishes that count at the gate that *broker* has for the store of the worker *there*."""
    resource = store_of(str(there.identity))
    (gate,) = [each for each in broker.worker.protection.throttle._queues if each.resource == resource]
    return gate.count


@pytest.mark.parametrize("shard", [0, 1])
def test_publishes_wait_at_the_gate_of_a_store_that_stores_nothing(node: Node, redis: RunningRedis, shard: int) -> None:
    """Each of many publishers would have as much in memory as it may send without an answer."""
    durable(node[shard], "away").drop()
    node.advance(0.3)
    publisher, other = node[1].connect("publisher", V311), node[1].connect("other", V311)
    store_is_full(node, redis, True)
    publisher.send(*[Publish(b"a", b"1", 1, packet_id=number) for number in range(1, 301)])
    node.advance(0.3)
    assert 0 < under_way(node[1], node[shard]) < 100
    assert [] == publisher.receive()
    other.send(Publish(b"a", b"0", 0), Publish(b"b", b"1", 1, packet_id=1))  # which need no store
    node.advance(0.1)
    assert [Ack(PUBACK, 1)] == other.receive()
    store_is_full(node, redis, False)
    for _ in range(30):
        node.advance(0.1)

    assert [Ack(PUBACK, number) for number in range(1, 301)] == publisher.receive()
    assert 0 == under_way(node[1], node[shard])


@pytest.mark.parametrize("shard", [0, 1])
def test_what_is_acknowledged_at_once_is_not_under_way_to_a_store(node: Node, shard: int) -> None:
    """The gate would fill with publishes that nobody stores, and close for ever."""
    receiver = node[shard].connect("there", V5, clean_start=False, properties=LASTING)
    subscribed(receiver, Wanted(b"a", 1))
    publisher = node[1].connect("publisher", V311)
    for number in range(1, 201):
        publisher.send(Publish(b"a", b"1", 1, packet_id=number))
        node.settle()
        receiver.send(*[Ack(PUBACK, each.packet_id) for each in receiver.receive() if isinstance(each, Publish)])
        node.settle()
    node.advance(0.1)

    assert 200 == len(publisher.receive())
    assert 0 == under_way(node[1], node[shard])


def test_a_publish_that_was_told_as_lost_is_not_told_as_done_later() -> None:
    """The worker that it came from would end with an error: nobody waits for it there any more.

    So it is if this worker had passed it on to a member at a third one, whose sessions were taken while it was stopped:
    it stores what it has when it goes on.
    """
    confirmations = Confirmations(lambda: None)
    completion = Message(b"a", b"x", 1, False, b"", NEVER).hold()
    confirmations.add(completion)
    assert completion.queue is not None
    completion.abandoned = True
    completion.queue.abandoned(0.0)
    lost = confirmations.take()
    completion.settle(1.0)

    assert wire.settled(wire.UNSETTLED, [1]) == lost
    assert b"" == confirmations.take()


def test_a_publish_that_is_lost_before_it_is_to_be_confirmed_is_told_as_lost() -> None:
    """Nobody would be told: its publisher, or a partition of the inbound backbone, would wait for ever.

    A slice may end between the two, as a message costs something, and CONFIRM nothing.
    """
    confirmations = Confirmations(lambda: None)
    completion = Message(b"a", b"x", 1, False, b"", NEVER).hold()
    completion.abandoned = True
    confirmations.add(completion)

    assert wire.settled(wire.UNSETTLED, [1]) == confirmations.take()
    completion.settle(0.0)
    assert b"" == confirmations.take()
