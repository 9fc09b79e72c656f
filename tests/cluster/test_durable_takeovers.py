# A durable session follows its client to another worker: whole, under the same packet ids, and stored at each moment.
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest

from broker.cluster.owner import read_owner
from broker.cluster.registry import UNCERTAIN_FOR
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    Publish,
    Will,
)
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.net.pauses import Pause
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.store.durable.places import READY
from broker.store.durable.queue import DurableQueue
from broker.store.durable.record import SessionRecord
from broker.store.durable.store import DurableStore
from broker.store.redis.keys import Keys
from tests.cluster.across import names
from tests.cluster.talk import (
    lane,
    named_as_owner,
    replies_of,
    send_unreadable_chunk,
    sessions,
    stored_at,
    subscribed,
)
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

__all__ = ["names"]  # a fixture

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[[int], Node]
LATER = 1_000_000_000  # microseconds, of epochs
PATIENCE = 10.0  # seconds for what should take milliseconds
LASTING: Properties = {SESSION_EXPIRY_INTERVAL: 100}


def arrive(broker: Broker, client_id: str = "me", clean: bool = False) -> Client:
    client = broker.connect(client_id, V5, clean_start=clean, properties=LASTING)
    broker.settle()
    return client


def subscriber(broker: Broker, filter: str = "a") -> Client:
    client = arrive(broker)
    subscribed(client, filter)
    return client


def publish(broker: Broker, *said: bytes, qos: int = 1, topic: bytes = b"a") -> None:
    """Publish, and see the acknowledgements."""
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(topic, payload, qos, packet_id=number + 1) for number, payload in enumerate(said)])
    broker.settle()
    broker.advance(0.2)
    wanted = PUBACK if qos == 1 else PUBREC
    assert [wanted] * len(said) == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
    publisher.drop()
    broker.settle()


def messages(client: Client) -> list[tuple[bytes, int, bool]]:
    return [(each.payload, each.packet_id, each.dup) for each in client.receive() if isinstance(each, Publish)]


def test_it_comes_with_what_waits(start_node: StartNode, redis: RunningRedis) -> None:
    """What was acknowledged to publishers would be lost, or come under other packet ids."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1", b"2", b"3")
    assert ["queue 1", "session 1"] == stored_at(redis)
    client = arrive(node[1])

    assert client.connack.session_present
    assert [(b"1", 1, False), (b"2", 2, False), (b"3", 3, False)] == messages(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert 0 == node[0].queue_budget.used
    client.send(*[Ack(PUBACK, number) for number in (1, 2, 3)])
    node.advance(0.2)
    assert ["session 2"] == stored_at(redis)
    publish(node[0], b"4")
    assert [(b"4", 4, False)] == messages(client)


def test_what_was_sent_comes_again_and_what_was_acknowledged_does_not(start_node: StartNode) -> None:
    """A client would get twice what it has acknowledged, as its pack is stored still; or under another packet id."""
    node = start_node(2)
    client = subscriber(node[0])
    client.drop()
    publish(node[0], b"1", b"2", b"3", b"4")
    client = node[0].connect("me", V5, clean_start=False, properties=LASTING)
    assert 4 == len(messages(client))
    client.send(Ack(PUBACK, 1), Ack(PUBACK, 3))
    node.settle()
    client = arrive(node[1])
    assert [(b"2", 2, True), (b"4", 4, True)] == messages(client)
    publish(node[1], b"5")
    assert [(b"5", 5, False)] == messages(client)
    client = arrive(node[0])
    assert [(b"2", 2, True), (b"4", 4, True), (b"5", 5, True)] == messages(client)


def test_qos_2_goes_on_where_it_was(start_node: StartNode, redis: RunningRedis) -> None:
    """A message would be delivered twice whose PUBREC had come, or a PUBREL be sent again for one that is over."""
    node = start_node(2)
    client = subscriber(node[0])
    publish(node[0], b"1", b"2", b"3", qos=2)
    assert 3 == len(messages(client))
    client.send(Ack(PUBREC, 1), Ack(PUBREC, 2))
    node.settle()
    client.receive()
    client.send(Ack(PUBCOMP, 1))
    node.settle()
    client = arrive(node[1])
    received = client.receive()

    assert [Ack(PUBREL, 2)] == [each for each in received if isinstance(each, Ack)]
    assert [(b"3", 3, True)] == [
        (each.payload, each.packet_id, each.dup) for each in received if isinstance(each, Publish)
    ]
    client.send(Ack(PUBCOMP, 2), Ack(PUBREC, 3))
    node.settle()
    assert [Ack(PUBREL, 3)] == client.receive()
    client.send(Ack(PUBCOMP, 3))
    node.advance(0.2)
    assert ["session 2"] == stored_at(redis)


def test_no_mark_of_an_exchange_that_is_over_moves(start_node: StartNode, redis: RunningRedis) -> None:
    """The client would be sent a PUBREL that it has answered."""
    node = start_node(2)
    client = subscriber(node[0])
    publish(node[0], b"1", qos=2)
    messages(client)
    client.send(Ack(PUBREC, 1))
    node.advance(0.3)
    assert ["released 1", "session 1"] == stored_at(redis)
    client.send(Ack(PUBCOMP, 1))
    node.settle()
    client = arrive(node[1])

    assert [] == client.receive()
    assert ["session 2"] == stored_at(redis)


def presence(client: Client) -> list[bool]:
    """What the CONNACKs said that a client of `coming()` got."""
    return [each.session_present for each in client.inbox if isinstance(each, ConnAck)]


def coming(broker: Broker, client_id: str = "me", clean: bool = False) -> Client:
    """A client whose CONNECT is not answered yet."""
    client = broker.open(V5)
    client.send(Connect(V5, client_id, clean, properties=LASTING))
    return client


def leave_hung(node: Node) -> Client:
    """Worker 0 hangs, and the session goes to the next one with its client, which has read nothing yet."""
    node[0].stopped = True
    client = coming(node[1])
    node[1].advance(2.2)
    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    return client


def test_nobody_is_answered_for_what_is_delivered_while_it_moves(start_node: StartNode, redis: RunningRedis) -> None:
    """A publish would be acknowledged that a crash of either worker loses."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node[2].stopped = True  # the move cannot be completed without it
    client = coming(node[1])
    assert [] == client.receive()
    publisher = node[1].connect("publisher")
    publisher.send(Publish(b"a", b"2", 1, packet_id=1))
    node.advance(0.3)
    assert [] == publisher.receive()
    node[2].stopped = False
    node.advance(0.3)

    assert [Ack(PUBACK, 1)] == publisher.receive()
    assert [(b"1", 1, False), (b"2", 2, False)] == messages(client)


def test_it_moves_when_redis_is_back(start_node: StartNode, redis: RunningRedis) -> None:
    """The session would be lost between its workers, or its client be refused for ever."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node[0].reactor.pause(lane(node[0], node[1]), Pause.FANOUT)  # what worker 1 sends is not heard
    client = coming(node[1])
    assert [] == client.receive()
    for broker in node:
        broker.answered = False
    redis.kill()
    node[0].reactor.resume(lane(node[0], node[1]), Pause.FANOUT)
    node.advance(3)
    assert [] == client.receive()
    redis.start()
    deadline = time.monotonic() + PATIENCE
    while not client.inbox and time.monotonic() < deadline:
        node.advance(0.1)
        time.sleep(0.1)  # the server starts in time that passes
    for broker in node:
        broker.answered = True
    node.advance(0.2)

    assert [(b"1", 1, False)] == messages(client)
    assert ["queue 2", "session 2"] == stored_at(redis)


def fill(redis: RunningRedis, full: bool = True) -> None:
    """Redis is *full*, or has memory again."""
    redis.client().config_set("maxmemory", 1 if full else 0)


def eventually(node: Node, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        node.advance(0.1)


@pytest.mark.parametrize("how", ["moves", "moves, unstored", "taken", "adopted"])
def test_it_moves_while_redis_is_full_and_drains_there(start_node: StartNode, redis: RunningRedis, how: str) -> None:
    """A client would not get its messages before an operator raises maxmemory, as it has come to another worker, or as
    its worker has ended; or a publish that was not stored would be lost, or come twice."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1", b"2", b"3")
    fill(redis)
    publisher = node[1].open(V5)
    publisher.send(Connect(V5, "publisher"))
    if how == "moves, unstored":
        publisher.send(Publish(b"a", b"4", 1, packet_id=1))
        node.advance(0.3)
        assert [] == [each for each in publisher.receive() if isinstance(each, Ack)]
    if how in ("taken", "adopted"):
        node.kill(node[0])
    if how == "adopted":
        node.start(0)
    client = coming(node[0] if how == "taken" else node[1])
    arrived: list[Packet] = []

    def all_sent() -> bool:
        arrived.extend(client.receive())
        return len([each for each in arrived if isinstance(each, Publish)]) >= 3

    eventually(node, all_sent)
    assert [b"1", b"2", b"3"] == [each.payload for each in arrived if isinstance(each, Publish)]
    client.send(*[Ack(PUBACK, number) for number in (1, 2, 3)])
    eventually(node, lambda: not any("queue" in key for key in stored_at(redis)))
    refused = node[-1].open(V5)
    refused.send(Connect(V5, "new", False, properties=LASTING))
    codes: list[int] = []

    def is_refused() -> bool:
        codes.extend([each.code for each in refused.receive() if isinstance(each, ConnAck)])
        return len(codes) > 0

    eventually(node, is_refused)
    assert [CloseReason.SERVER_UNAVAILABLE.code] == codes
    if how == "moves, unstored":
        assert publisher.closed
    fill(redis, False)
    node.advance(0.5)
    if how == "taken":
        node.start(0)
    publish(node[-1], b"4")

    assert [b"4"] == [payload for payload, _, _ in messages(client)]


def test_what_was_not_stored_is_taken_once_wherever_its_session_moves_while_redis_is_full(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A QoS 2 publish would be taken for one that came before, as a later one has come again before it."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publisher = arrive(node[0], "publisher")

    def publish(*numbers: int, dup: bool = True) -> None:
        publisher.send(*[Publish(b"a", b"%d" % number, 2, False, dup, number) for number in numbers])
        node.advance(0.3)

    def parted() -> bool:
        return publisher.closed

    publish(1, dup=False)
    assert [PUBREC] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
    publisher.send(Ack(PUBREL, 1))
    node.advance(0.1)
    fill(redis)
    publish(2, 3, 4, dup=False)
    client = coming(node[1])
    for owner in node[::-1]:  # without what was published
        eventually(node, parted)
        assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
        publisher = arrive(node[0], "publisher")
        publish(2, 4)  # not all, as a client should
        if owner is node[1]:
            client.drop()
            client = coming(node[0])
    fill(redis, False)
    publish(3)

    assert [PUBREC] * 3 == [each.kind for each in publisher.receive() if isinstance(each, Ack) and each.kind == PUBREC]
    assert [b"1", b"2", b"4", b"3"] == [payload for payload, _, _ in messages(client)]


def give_without_hearing(node: Node, redis: RunningRedis) -> None:
    """Have Redis carry out that worker 0 gives the session, of which that worker has not heard."""
    store = node[0].worker.links.durable_store
    assert isinstance(store, DurableStore)
    store.commit._gathering.until = float("inf")  # its transactions wait
    node.settle()
    redis.pause()
    store.commit._gathering.until = 0.0
    session = node[0].transfer.leaving["me"]
    assert isinstance(session.storage, SessionRecord)
    deadline = time.monotonic() + PATIENCE
    while not session.storage._giving:
        assert time.monotonic() < deadline
        node[0].turn()
    redis.go_on()
    while "queue 1" in stored_at(redis):
        assert time.monotonic() < deadline


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_former_owner_dies_around_the_moment_at_which_it_gives_it(
    start_node: StartNode, redis: RunningRedis, when: str
) -> None:
    """Each of the two would believe that the other one has it."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[2], b"1")
    if when == "before":
        node[2].stopped = True  # worker 0 waits for its mark
    client = coming(node[1])
    if when == "before":
        assert [] == client.receive()
    else:
        give_without_hearing(node, redis)
    assert (["queue 1", "session 1"] if when == "before" else ["queue 2", "session 2"]) == stored_at(redis)
    publisher = node[1].open(V5)
    publisher.send(Connect(V5, "publisher"), Publish(b"a", b"2", 1, packet_id=1))
    if when == "before":
        node.settle()
    node.kill(node[0])
    node[1].stopped = False
    node.advance(0.3)

    # Before the session is here for certain, nobody is answered; and then for all that the dead worker may have.
    assert [] == [each for each in publisher.receive() if isinstance(each, Ack)]
    publisher.drop()
    node.start(0)
    publish(node[1], b"2")
    assert [(b"1", 1, True), (b"2", 2, False)] == messages(client)
    assert ["queue 2", "session 2"] == stored_at(redis)


def test_who_has_it_dies_and_the_next_one_takes_it_with_its_messages(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A session would be lost with its worker, until that is started anew."""
    node = start_node(3)
    client = subscriber(node[0])
    publish(node[1], b"1", b"2")
    client.send(Ack(PUBACK, 1))
    node.settle()
    node.kill(node[0])
    client = arrive(node[0])

    assert client.connack.session_present
    assert [(b"2", 2, True)] == [each for each in messages(client) if each[0] != b"1"]
    node.start(0)  # until then publishes wait for what else the dead worker had
    publish(node[1], b"3")
    assert [(b"3", 3, False)] == messages(client)
    assert ["queue 2", "session 2"] == stored_at(redis)


@pytest.mark.parametrize("adopts", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_session_is_found_after_the_lease_of_its_claim(
    start_node: StartNode, redis: RunningRedis, adopts: bool, clean: bool
) -> None:
    """After a worker's death, a client that is away until the lease ends would get an empty session, beside its own."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[1], b"1")
    node.kill(node[0])
    node.advance(2 * UNCERTAIN_FOR)
    node.start(0, adopts=adopts)
    assert 1 == redis.client().delete(Keys("weir").owner(b"me"))  # as the end of the lease does
    client = coming(node[0], clean=clean)
    node[1].stopped = False  # if it adopts later, the client waits for that
    node.advance(0.3)

    (connack,) = [each for each in client.inbox if isinstance(each, ConnAck)]
    assert connack.session_present is not clean
    assert ([] if clean else [(b"1", 1, True)]) == messages(client)
    assert (["session 2"] if clean else ["queue 2", "session 2"]) == stored_at(redis)


def test_who_does_not_answer_acknowledges_nothing_afterwards(start_node: StartNode, redis: RunningRedis) -> None:
    """What it accepts for a session that was taken from it would be lost."""
    node = start_node(2)
    first = subscriber(node[0])
    publish(node[0], b"1")
    publisher = node[0].connect("publisher", V5)
    client = leave_hung(node)
    assert [(b"1", 1, True)] == messages(client)
    publisher.send(Publish(b"a", b"2", 1, packet_id=1))
    redis.pause()  # so that worker 0 accepts the publish before it learns what has happened
    node[0].stopped = node[0].answered = node[1].answered = False
    node.settle()
    redis.go_on()
    node[0].answered = node[1].answered = True
    node.advance(0.3)

    assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
    assert Disconnect(CloseReason.SESSION_TAKEN_OVER.code) == first.receive()[-1]
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    publish(node[0], b"3")
    assert b"3" == messages(client)[-1][0]


@pytest.mark.parametrize("alive", [True, False])
def test_a_clean_start_leaves_nothing_of_it(start_node: StartNode, redis: RunningRedis, alive: bool) -> None:
    """What the client has parted from would come back with the next worker that adopts."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    if not alive:
        node.kill(node[0])
    client = arrive(node[-1], clean=True)
    node.advance(0.3)

    assert not client.connack.session_present
    assert ["session 2"] == stored_at(redis)
    assert [] == messages(client)


def test_a_session_that_is_taken_while_it_is_read_is_not_damaged(start_node: StartNode, redis: RunningRedis) -> None:
    """Its former worker would report a damage that there is not, and answer publishers for what it had not stored."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], *[b"%d" % number for number in range(2 * READY)])
    few: Properties = {SESSION_EXPIRY_INTERVAL: 100, RECEIVE_MAXIMUM: 1}
    first = node[0].connect("me", V5, clean_start=False, properties=few)
    session = node[0].session("me")
    queue = None if session is None else session.queue()
    assert isinstance(queue, DurableQueue)
    ((_, packet_id, _),) = messages(first)
    while len(queue.waiting_in_memory()[0]) > READY // 2:  # with one less, the next page is read
        first.send(Ack(PUBACK, packet_id))
        ((_, packet_id, _),) = messages(first)
    assert queue.stored.unread
    node.advance(0.2)  # it has nothing more to write
    client = leave_hung(node)
    assert b"%d" % (2 * READY - 1) == first_of_each(client)[-1]
    first.send(Ack(PUBACK, packet_id), Ack(PUBACK, packet_id + 1))
    (peer,) = node[0].mesh.peers
    node[0].reactor.pause(peer.control, Pause.FANOUT)  # nobody tells it
    node[0].stopped = False
    node.settle()  # it reads the next pack, which is not there
    node.advance(0.3)

    assert Disconnect(CloseReason.SESSION_TAKEN_OVER.code) == first.receive()[-1]
    assert 0 == sum(broker.counters.sessions_damaged for broker in node)
    assert [] == redis.client().keys("*:damaged:*")
    assert ["queue 2", "session 2"] == stored_at(redis)


def test_a_session_that_comes_in_chunks_that_cannot_be_read_is_taken_in_the_store(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would begin another one, although all of it is stored."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    third.stopped = True  # the move cannot be completed without it
    client = coming(taker)
    assert [] == client.receive()
    send_unreadable_chunk(node, giver, taker)
    third.stopped = False
    node.advance(1)
    publish(third, b"2")

    assert [True] == presence(client)
    assert [b"1", b"2"] == first_of_each(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)


def test_a_damaged_session_is_not_moved(start_node: StartNode, redis: RunningRedis) -> None:
    """Its client would wait for ever, or what is left of it be mixed with the next one."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    (queue,) = redis.client().keys("*:queue:*:me")
    redis.client().delete(queue)
    redis.client().rpush(queue, b"?")
    client = arrive(node[1])
    node.advance(0.3)

    assert not client.connack.session_present
    assert 1 == sum(broker.counters.sessions_damaged for broker in node)
    assert ["session 2"] == stored_at(redis)
    assert 2 == len(redis.client().keys("*:damaged:*"))
    subscribed(client, "a")
    publish(node[0], b"2")
    assert [(b"2", 1, False)] == messages(client)


def test_who_follows_has_what_its_predecessor_had_and_no_more(start_node: StartNode, redis: RunningRedis) -> None:
    """It would take the sessions of workers that live; or leave those of the dead one to nobody."""
    node = start_node(3)
    subscriber(node[0]).drop()
    other = arrive(node[1], "other")
    subscribed(other, "a")
    publish(node[2], b"1")
    node.kill(node[0])
    follower = node.start(0)

    assert [0] == sessions(node)
    assert ["queue 4", "session 4"] == stored_at(redis)
    assert not other.closed
    publish(node[0], b"2")
    assert [(b"1", 1, True), (b"2", 2, False)] == messages(arrive(follower))
    assert [(b"1", 1, False), (b"2", 2, False)] == messages(other)


def test_a_session_is_not_begun_anew_while_it_is_adopted(start_node: StartNode, redis: RunningRedis) -> None:
    """Its client would have two: one that nobody finds, with its messages."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node.kill(node[0])
    follower = node.start(0, adopts=False)
    client = coming(node[0])
    assert [] == client.receive()
    follower.stopped = False
    node.settle()

    assert [(b"1", 1, True)] == messages(client)
    assert [1] == sessions(node)


def test_a_session_is_taken_from_the_worker_that_has_adopted_it_and_does_not_answer(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would be told that it has none, and find it later; or be refused for as long as that worker hangs."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node.kill(node[0])
    follower = node.start(0)
    node.advance(1.0)
    follower.stopped = True  # it has adopted the session, of which Redis says that a dead worker owns it
    client = coming(node[0])
    assert [] == client.receive()
    node[0].advance(2.2)
    assert [(b"1", 1, True)] == messages(client)
    follower.stopped = False
    node.advance(0.3)
    publish(follower, b"2")

    assert [(b"2", 2, False)] == messages(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)


def test_a_session_is_taken_from_a_dead_worker_although_redis_names_another_one(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its session would be begun anew, and the one with its messages be adopted a moment later."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node.kill(node[0])
    named_as_owner(redis, node[0])
    client = coming(node[0])
    node.settle()

    assert [True] == presence(client)
    assert [(b"1", 1, True)] == messages(client)
    assert ["queue 2", "session 2"] == stored_at(redis)


@pytest.mark.parametrize("clean", [True, False])
def test_a_session_is_taken_from_a_worker_that_hangs_although_redis_names_another_one(
    start_node: StartNode, redis: RunningRedis, clean: bool
) -> None:
    """Its client would be refused, or a clean start leave the session to whoever asks for it next."""
    node = start_node(3)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    named_as_owner(redis, node[1])
    node[0].stopped = True
    client = coming(node[2], clean=clean)
    node[2].advance(2.2)
    node[0].stopped = False
    node.advance(0.3)

    assert [not clean] == presence(client)
    assert ([] if clean else [(b"1", 1, True)]) == messages(client)
    assert [2] == sessions(node)
    assert (["session 3"] if clean else ["queue 3", "session 3"]) == stored_at(redis)


def test_a_worker_whose_index_names_a_session_without_a_record_has_none(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The session would be looked for there again and again, and be begun anew while another worker has it."""
    node = start_node(3)
    subscriber(node[1]).drop()
    publish(node[1], b"1")
    keys = Keys("weir").sessions(Keys("weir").slice_of(b"me"), node[0].identity.incarnation_text.encode())
    redis.client().hset(keys.index, b"me", b"")
    named_as_owner(redis, node[0])
    node[1].stopped = True
    client = coming(node[2])
    node[2].advance(2.2)
    node[1].stopped = False
    node.advance(0.3)

    assert [True] == presence(client)
    assert [(b"1", 1, True)] == messages(client)
    assert ["queue 3", "session 3"] == stored_at(redis)


def test_a_session_is_not_begun_anew_if_the_next_worker_adopts_it_while_it_moves(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would have two: an empty one, and one with what was acknowledged to publishers."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    third.stopped = True  # the move cannot be completed without it
    client = coming(taker)
    assert [] == client.receive()
    node.kill(giver)
    follower = node.start(0)
    deadline = time.monotonic() + PATIENCE
    while "session 4" not in stored_at(redis) and time.monotonic() < deadline:
        follower.turn()
    third.stopped = False
    node.advance(3)
    if True not in presence(client):  # it was refused, as a worker was missing
        client = arrive(taker)

    assert [(b"1", 1, True)] == messages(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)


def test_a_session_is_taken_from_the_worker_that_was_giving_it_to_another_one(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would get an empty session, as the worker that Redis names waits for one that does not answer."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    giver.reactor.pause(lane(giver, third), Pause.FANOUT)  # it cannot complete the move
    assert [] == coming(taker).receive()
    giver.stopped = True
    client = coming(third)
    third.advance(2.2)  # the taker does not answer, as it waits for the giver
    giver.reactor.resume(lane(giver, third), Pause.FANOUT)
    giver.stopped = False
    node.advance(1)
    publish(taker, b"2")

    assert [True] == presence(client)
    assert [b"1", b"2"] == first_of_each(client)
    assert [2] == sessions(node)
    assert ["queue 3", "session 3"] == stored_at(redis)


@pytest.mark.parametrize("taker_dies", [True, False])
def test_a_session_that_is_on_its_way_is_not_taken_back_a_second_time(
    start_node: StartNode, redis: RunningRedis, taker_dies: bool
) -> None:
    """Its worker would have it twice, under the same keys: what ends the one removes what is stored of the other."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    third.stopped = True  # the move cannot be completed without it
    first = coming(taker)
    assert [] == first.receive()
    taker.stopped = True
    client = coming(giver)
    giver.advance(2.2 if len(node.names) == 1 else 0.9)  # the giver does not hear from the new owner
    assert [] == client.receive()
    third.stopped = taker.stopped = False
    if taker_dies:
        node.kill(taker)
        node.start(1)  # until then publishes wait
    node.advance(1)
    publish(third, b"2")

    assert [True] == presence(client)
    assert [b"1", b"2"] == first_of_each(client)
    assert [0] == sessions(node)
    assert ["queue 1", "session 1"] == stored_at(redis)


class EarlierClaim:
    """A `TakingClaim` that has waited for a worker that did not answer."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def is_followed(self) -> bool:
        return False

    def taken(self) -> None:
        self.told.append("taken")


def test_a_session_that_is_taken_while_it_is_given_to_another_worker_is_found(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would get an empty session, and the one with its messages would end, with its log."""
    node = start_node(3)
    giver, taker, third = node
    first = subscriber(giver)
    first.drop()
    publish(third, b"1")
    giver.reactor.pause(lane(giver, third), Pause.FANOUT)  # it cannot complete the move
    client = coming(taker)
    assert [] == client.receive()
    forced = third.claims.forced
    assert forced is not None
    claim = EarlierClaim()
    forced.take("me", giver.identity, claim, partial(claim.told.append, "known"))
    while "session 3" not in stored_at(redis):
        node.settle()
    giver.reactor.resume(lane(giver, third), Pause.FANOUT)
    node.advance(1)
    publish(third, b"2")

    assert ["taken", "known"] == claim.told
    assert [True] == presence(client)
    assert [b"1", b"2"] == first_of_each(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)


def scripts_run(redis: RunningRedis) -> int:
    """Calls of scripts that Redis has carried out, with all that was sent before."""
    server = redis.client()
    server.ping()  # what arrives together with this is carried out before the next command
    return int(server.info("commandstats")["cmdstat_evalsha"]["calls"])


def test_a_session_that_comes_late_to_the_worker_it_is_taken_from_is_found(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its client would get an empty session, and the one with its messages would end."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    giver.reactor.pause(lane(giver, third), Pause.FANOUT)  # it cannot complete the move
    assert [] == coming(taker).receive()
    forced = third.claims.forced
    assert forced is not None
    claim = EarlierClaim()
    before = scripts_run(redis)
    forced.take("me", taker.identity, claim, partial(claim.told.append, "known"))
    while scripts_run(redis) == before:  # the taker does not have it yet
        third.turn()
    giver.reactor.resume(lane(giver, third), Pause.FANOUT)
    while "session 2" not in stored_at(redis):
        giver.turn()
        taker.turn()
    node.advance(1)
    publish(third, b"2")

    assert ["taken", "known"] == claim.told
    assert [2] == sessions(node)
    assert ["queue 3", "session 3"] == stored_at(redis)
    assert [(b"1", 1, True), (b"2", 2, False)] == messages(arrive(third))


def test_a_session_that_is_taken_from_a_worker_before_it_has_arrived_there_does_not_arrive(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Two workers would have it, and the one that it was taken from would have it ended at the other one."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publish(third, b"1")
    taker.reactor.pause(lane(taker, third), Pause.FANOUT)  # it waits for a mark
    client = coming(taker)
    while "session 2" not in stored_at(redis):
        node.settle()
    assert [] == client.receive()
    forced = third.claims.forced
    assert forced is not None
    claim = EarlierClaim()
    forced.take("me", taker.identity, claim, partial(claim.told.append, "known"))
    while "session 3" not in stored_at(redis):
        node.settle()
    taker.reactor.resume(lane(taker, third), Pause.FANOUT)
    node.advance(1)
    publish(third, b"2")

    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert [True] == presence(client)
    assert [b"1", b"2"] == first_of_each(client)


@pytest.mark.parametrize("names", [("weir",)])  # for a worker of another node the early one does not wait so long
def test_an_earlier_claim_leaves_a_session_that_has_moved_to_the_later_one(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """It would take the session, for a client that is gone, from the worker that has it by the later claim."""
    node = start_node(4)
    former, early, late, other = node
    subscriber(former).drop()
    publish(other, b"1")
    former.stopped = True
    first = coming(early)
    node.advance(1)
    second = coming(late)  # asks the early one, which waits for the former one
    node.settle()
    forced = other.claims.forced
    assert forced is not None
    claim = EarlierClaim()
    forced.take("me", former.identity, claim, partial(claim.told.append, "known"))
    while "session 4" not in stored_at(redis):
        node.settle()
    early.advance(1.2)
    former.stopped = False
    node.advance(1)
    publish(other, b"2")

    assert [CloseReason.SERVER_UNAVAILABLE.code] == [each.code for each in first.inbox if isinstance(each, ConnAck)]
    assert [True] == presence(second)
    assert [b"1", b"2"] == first_of_each(second)
    assert [2] == sessions(node)
    assert ["queue 3", "session 3"] == stored_at(redis)


@pytest.mark.parametrize("names", [("weir",)])  # workers of another node are not waited for so long
def test_a_session_that_a_later_claim_takes_before_the_earlier_one_is_answered_is_not_begun_anew(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The first of two connections of a client whose worker hangs would be told that its session is lost."""
    node = start_node(4)
    former, early, late, other = node
    subscriber(former).drop()
    publish(late, b"1")
    former.stopped = True
    control = node.peer(other, early).control
    first = coming(early)
    early.advance(1.9)
    turns = cycle((early, late, other))
    while "session 2" not in stored_at(redis):
        node.clock.now += 0.01
        next(turns).turn()
    other.reactor.pause(control, Pause.FANOUT)  # the early one waits for it before it is answered
    node.kill(former)
    second = coming(late)
    late.advance(2.5)
    assert ["queue 3", "session 3"] == stored_at(redis)
    other.reactor.resume(control, Pause.FANOUT)
    node.advance(1)

    assert [CloseReason.SERVER_UNAVAILABLE.code] == [each.code for each in first.inbox if isinstance(each, ConnAck)]
    assert [True] == presence(second)
    assert [b"1"] == first_of_each(second)
    assert ["queue 3", "session 3"] == stored_at(redis)


def test_a_session_that_two_workers_ask_for_while_it_is_read_stays_one(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The second to ask would hear that there is no session, and begin another one."""
    node = start_node(3)
    former, one, other = node
    subscriber(former).drop()
    publish(one, b"1")
    node.kill(former)
    giver = node.start(0)  # it has the session unread, and Redis names a worker that has ended
    node.advance(0.5)
    giver.answered = False
    giver.reactor.pause(replies_of(giver), Pause.FANOUT)
    first, second = coming(one), coming(other)
    node.settle()
    giver.reactor.resume(replies_of(giver), Pause.FANOUT)
    giver.answered = True
    node.advance(1)
    found = [each for client in (first, second) for each in client.inbox if isinstance(each, ConnAck) and not each.code]

    # Both, if the one that was first to be given it is answered before the other one takes it over.
    assert {True} == {each.session_present for each in found}
    assert 1 == len(sessions(node)) == len([each for each in stored_at(redis) if each.startswith("session")])
    assert {(b"1", 1, True)} == {*messages(first), *messages(second)}


def test_who_keeps_a_session_that_is_taken_a_moment_later_does_not_end_it(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """It would own the session with a later epoch than the worker that has it, and have it ended there."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    other = arrive(node[1], "other")
    subscribed(other, "b")
    publisher = node[1].connect("publisher")
    node[0].stopped = True
    client = coming(node[1])
    several = len(node.names) > 1  # which do not wait for each other as long
    node[1].advance(0.1 if several else 1)
    node[1].answered = False
    node[1].reactor.pause(replies_of(node[1]), Pause.FANOUT)  # its transaction is under way: it can take no session
    publisher.send(Publish(b"b", b"", 1, packet_id=1))
    node[1].advance(0.3 if several else 1.2)  # it has waited long enough, and is about to take the session
    node[0].stopped = False
    node.advance(0.5)  # the other one has heard that it is not waited for any more, and owns the session again
    text = redis.client().get(Keys("weir").owner(b"me"))
    assert isinstance(text, bytes)
    owner = read_owner(text)
    assert owner is not None and owner.worker == node[0].identity
    node[1].reactor.resume(replies_of(node[1]), Pause.FANOUT)
    node[1].answered = True
    node.advance(0.5)

    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    assert [(b"1", 1, True)] == messages(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert [(b"1", 1, True)] == messages(arrive(node[0]))


def claim_again(broker: Broker) -> None:
    """As after a time without Redis."""
    broker.claims.registry.owned.mark_all_stale()


def test_a_session_stays_although_redis_names_a_worker_that_cannot_be_asked(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A claim at a node that is cut off, carried out after it was given up, would delete the session and its queue."""
    node = start_node(2)
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    gone = node[1]
    named_as_owner(redis, gone, LATER)
    node.kill(gone, heard=False)
    claim_again(node[0])
    node.advance(2.5)

    assert [0] == sessions(node)
    assert ["queue 1", "session 1"] == stored_at(redis)
    assert [b"1"] == [payload for payload, _, _ in messages(arrive(node[0]))]


def taken_while_stopped(node: Node) -> Client:
    """The session, which is at the second worker now. The first one does not know."""
    subscriber(node[0]).drop()
    publish(node[0], b"1")
    node[0].stopped = True
    client = coming(node[1])
    node[1].advance(2.2)
    assert [True] == presence(client)
    if len(node.names) > 1:
        node[1].mesh.restarted(node[0].identity)  # what was asked meanwhile is lost with the lanes
    return client


def taken_while_cut_off(node: Node) -> Client:
    """As `taken_while_stopped()`; the first worker goes on, and the part of it that stores is told nothing by Redis."""
    client = taken_while_stopped(node)
    node[0].answered = False
    node[0].reactor.pause(replies_of(node[0]), Pause.FANOUT)
    node[0].stopped = False
    node.advance(0.5)
    return client


def tell(node: Node) -> None:
    """Redis tells the first worker as well."""
    node.advance(0.5)
    node[0].reactor.resume(replies_of(node[0]), Pause.FANOUT)
    node[0].answered = True
    node.advance(0.5)


def test_a_worker_says_that_it_has_a_session_once_the_store_has_said_so(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A worker that was cut off would have the session ended by the one that has taken it meanwhile."""
    node = start_node(2)
    client = taken_while_cut_off(node)
    named_as_owner(redis, node[0], LATER)
    claim_again(node[1])
    tell(node)

    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert [(b"1", 1, True)] == messages(client)


def test_a_worker_that_is_cut_off_gives_nobody_what_may_have_been_taken_from_it(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Two clients would have one session, and its packet ids and QoS 2 exchanges would go on at two places."""
    node = start_node(2)
    client = taken_while_stopped(node)
    lanes = [each for peer in node[0].mesh.peers for each in (peer.control, peer.data)]
    redis.pause()
    for each in lanes:
        node[0].reactor.pause(each, Pause.FANOUT)
    node[0].answered = node[1].answered = node[0].stopped = False
    back = coming(node[0])
    node[0].advance(2.5)
    refused = [each.code for each in back.receive() if isinstance(each, ConnAck)]
    redis.go_on()
    for each in lanes:
        node[0].reactor.resume(each, Pause.FANOUT)
    node[0].answered = node[1].answered = True
    node.advance(0.5)

    assert [CloseReason.SERVER_UNAVAILABLE.code] == refused
    assert [1] == sessions(node)
    assert [(b"1", 1, True)] == messages(client)


def test_a_worker_has_a_session_ended_elsewhere_only_if_the_store_says_that_it_is_here(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A worker that was cut off, and had its client back meanwhile, would end what was taken from it."""
    node = start_node(2)
    client = taken_while_cut_off(node)
    owner = named_as_owner(redis, node[1])
    node[0].claims.registry.hold_locally("me", owner.epoch + LATER, owner.user, b"")
    tell(node)

    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert [(b"1", 1, True)] == messages(client)


def test_a_stored_session_is_not_replaced_by_what_its_former_worker_has_still(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A client that comes back after its node was suspended would have the end of its session asked for by itself."""
    node = start_node(2)
    client = taken_while_cut_off(node)
    client.drop()
    node[1].advance(0.3)
    named_as_owner(redis, node[0])  # as after a settlement, or by a claim that was given up
    client = coming(node[1])
    tell(node)
    node.advance(2.0)

    assert [True] == presence(client)
    assert [1] == sessions(node)
    assert ["queue 2", "session 2"] == stored_at(redis)
    assert [(b"1", 1, True)] == messages(client)


# Wills and publishers, when a worker dies or hangs.


def watched(broker: Broker) -> Client:
    """A client in memory that hears of the will."""
    watcher = broker.connect("watcher", V5)
    subscribed(watcher, "will")
    return watcher


def mortal(broker: Broker, delay: int = 0) -> Client:
    """The client, with a will."""
    will = Will(b"will", b"gone", 1, False, {WILL_DELAY_INTERVAL: delay})
    client = broker.connect("me", V5, clean_start=False, will=will, properties=LASTING)
    broker.settle()
    broker.advance(0.2)
    return client


def test_a_will_is_published_once_that_is_stored_with_its_session(start_node: StartNode) -> None:
    """Who publishes the wills of dead workers would publish it, and who adopts the session a second time."""
    node = start_node(2)
    watcher = watched(node[1])
    mortal(node[0])
    dead = node[0]
    node.kill(dead)
    node.publish_wills_of(dead, node[0])
    node.start(0)
    node.advance(1)

    assert [b"gone"] == [payload for payload, _, _ in messages(watcher)]


@pytest.mark.parametrize("delay", [0, 60])
def test_a_worker_that_wakes_up_publishes_no_will_of_a_session_that_was_taken(
    start_node: StartNode, delay: int
) -> None:
    """A client would be called dead that is connected elsewhere, or be called so twice."""
    node = start_node(2)
    watcher = watched(node[1])
    mortal(node[0], delay)
    hanging = node[0]
    hanging.stopped = True
    client = node[1].open(V5)
    client.send(Connect(V5, "me", False, 0, properties=LASTING))
    for _ in range(20):
        node[1].advance(0.2)
    assert [True] == [each.session_present for each in client.receive() if isinstance(each, ConnAck)]
    hanging.stopped = False
    node.advance(5)

    assert [1] == sessions(node)
    assert ([b"gone"] if delay == 0 else []) == [payload for payload, _, _ in messages(watcher)]
    node.advance(100)
    assert [] == messages(watcher)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("wakes", [False, True])
def test_a_session_is_taken_from_a_worker_that_hangs_and_its_will_is_published_once(
    start_node: StartNode, wakes: bool, left: bool, clean: bool
) -> None:
    """It would be lost with that worker, which its supervisor kills, or come from both if that goes on.

    *left*: the connection that the client had there is closed. *clean*: the client does not want its session.
    """
    node = start_node(3)
    watcher = watched(node[1])
    former = mortal(node[0])
    hanging = node[0]
    hanging.stopped = True
    if left:
        former.drop()
    client = coming(node[2], clean=clean)
    for _ in range(20):
        node[2].advance(0.2)
    assert [not clean] == [each.session_present for each in client.receive() if isinstance(each, ConnAck)]
    assert [] == messages(watcher)
    if wakes:
        hanging.stopped = False
    else:
        node.kill(hanging)
        node.start(0)
    node.advance(5)

    assert [b"gone"] == [payload for payload, _, _ in messages(watcher)]
    assert [2] == sessions(node)
    node.kill(client.broker)
    node.start(2)
    node.advance(5)
    assert [] == messages(watcher)


def test_a_worker_that_wakes_up_does_not_end_again_what_a_clean_start_has_ended(start_node: StartNode) -> None:
    """The will of a client would be published a second time, by the worker that had not answered."""
    node = start_node(2)
    watcher = watched(node[1])
    mortal(node[0])
    node[0].stopped = True
    client = coming(node[1], clean=True)
    node[1].advance(2.3)
    assert [False] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    node[0].stopped = False
    node.advance(1)

    assert [b"gone"] == [payload for payload, _, _ in messages(watcher)]
    assert [1] == sessions(node)
    assert not client.closed


def test_a_move_takes_the_will_along(start_node: StartNode) -> None:
    """The next worker would not know it when the client leaves, or find the one that was withdrawn in Redis."""
    node = start_node(2)
    watcher = watched(node[1])
    mortal(node[0], 60).drop()
    node.settle()
    arrive(node[1])
    node[1].advance(0.2)
    node.kill(node[1])
    watcher = watched(node[0])
    node.start(1)
    node.advance(100)

    assert [] == messages(watcher)


def test_who_starts_first_serves_when_all_stored_subscriptions_are_known(start_node: StartNode) -> None:
    """After the death of a whole node, its first worker would acknowledge what it has stored for nobody."""
    node = start_node(2)
    subscriber(node[1], "a").drop()
    node.settle()
    for broker in list(node):
        node.kill(broker)
    first = node.start(0)
    serves: list[bool] = []
    first.mesh.when_complete(lambda: serves.append(True))
    first.settle()
    assert not serves
    second = node.start(1)

    assert [True] == serves
    publish(first, b"said")
    assert [b"said"] == [payload for payload, _, _ in messages(arrive(second))]


def test_who_starts_again_waits_for_the_dead_worker_beside_it(start_node: StartNode) -> None:
    """What a client of it publishes for a session of the dead one would be acknowledged, and reach nobody."""
    node = start_node(3)
    subscriber(node[1], "a").drop()
    node.settle()
    for broker in (node[2], node[1]):
        node.kill(broker)
    starting = node.start(2)
    serves: list[bool] = []
    starting.mesh.when_complete(lambda: serves.append(True))
    starting.advance(1)
    assert not serves
    assert (["weir/1"] if len(node.names) == 1 else []) == starting.mesh.untold()
    third = node.start(1)

    assert [True] == serves
    assert [] == starting.mesh.untold()
    publish(starting, b"said")
    assert [b"said"] == [payload for payload, _, _ in messages(arrive(third))]


def test_a_worker_that_dies_before_it_has_told_all_is_waited_for(start_node: StartNode) -> None:
    """Its peer would take the part of its subscriptions that it has told for all of them."""
    node = start_node(2)
    for broker in list(node):
        node.kill(broker)
    first = node.start(0)
    second = node.start(1, adopts=False)
    serves: list[bool] = []
    first.mesh.when_complete(lambda: serves.append(True))
    node.kill(second)
    first.settle()
    assert not serves
    node.start(1)

    assert [True] == serves


def test_what_a_worker_that_does_not_answer_has_not_stored_is_stored_behind_later_messages(
    start_node: StartNode,
) -> None:
    """A QoS 2 publish would be taken for one that came before, as later ones of its publisher were quicker."""
    node = start_node(2)
    subscriber(node[1])
    node.settle()
    publisher = arrive(node[0], "publisher")
    node[1].stopped = True
    publisher.send(Publish(b"a", b"1", 2, packet_id=1))  # it waits in the lane
    client = coming(node[0])
    node[0].advance(2.2)
    publisher = arrive(node[0], "publisher")
    publisher.send(Publish(b"a", b"2", 2, packet_id=2))  # not in order, as a client should
    node[0].advance(0.1)
    assert [b"2"] == [payload for payload, _, _ in messages(client)]
    node[1].stopped = False
    node.settle()
    node.advance(0.3)
    publisher = arrive(node[0], "publisher")
    for number in (1, 2):
        publisher.send(Publish(b"a", b"%d" % number, 2, False, True, number))
    node.advance(0.2)

    assert [(PUBREC, 1), (PUBREC, 2)] == [
        (each.kind, each.packet_id) for each in publisher.receive() if isinstance(each, Ack)
    ]
    assert [b"1"] == [payload for payload, _, _ in messages(client)]


def first_of_each(client: Client) -> list[bytes]:
    """The payloads that came, in the order in which each came first."""
    return list(dict.fromkeys(payload for payload, _, _ in messages(client)))


def publish_again(broker: Broker, publisher: Client) -> None:
    """*publisher* was told that a receiver had moved: it sends both of its publishes again, in their order."""
    assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
    publisher = arrive(broker, "publisher")
    publisher.send(*[Publish(b"a", b"%d" % number, 1, False, True, number) for number in (1, 2)])
    broker.settle()
    broker.advance(0.3)
    assert [(PUBACK, 1), (PUBACK, 2)] == [
        (each.kind, each.packet_id) for each in publisher.receive() if isinstance(each, Ack)
    ]


def test_messages_on_their_way_to_a_worker_that_does_not_answer_keep_their_order(start_node: StartNode) -> None:
    """A later one would reach the session where it is now, and the earlier one be published again behind it."""
    node = start_node(3)
    subscriber(node[0])
    subscribed(arrive(node[1], "other"), "a")  # what is published on "a" goes there already
    publisher = arrive(node[2], "publisher")
    node[0].stopped = True
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    client = coming(node[1])
    node[1].advance(2.2)
    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node[1].advance(0.1)
    node[0].stopped = False
    node.advance(0.3)
    publish_again(node[2], publisher)

    assert [b"1", b"2"] == first_of_each(client)
    publish(node[0], b"3")
    assert [b"3"] == first_of_each(client)


def test_messages_on_their_way_to_a_worker_that_does_not_get_the_session_keep_their_order(
    start_node: StartNode,
) -> None:
    """A later one would reach the session at a third worker, and the earlier one be published again behind it."""
    node = start_node(3)
    giver, taker, third = node
    subscriber(giver).drop()
    publisher = arrive(giver, "publisher")
    giver.reactor.pause(lane(giver, third), Pause.FANOUT)  # it cannot complete the move
    assert [] == coming(taker).receive()
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))  # it is for the session at the taker
    node.settle()
    taker.reactor.pause(lane(taker, giver), Pause.FANOUT)  # which does not hear that it does not get the session
    client = coming(third)
    third.advance(2.2)
    assert [True] == presence(client)
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node.settle()
    taker.reactor.resume(lane(taker, giver), Pause.FANOUT)
    giver.reactor.resume(lane(giver, third), Pause.FANOUT)
    node.advance(0.3)
    publish_again(giver, publisher)

    assert [b"1", b"2"] == first_of_each(client)
    assert [2] == sessions(node)


@pytest.mark.interpreted
def test_what_reaches_a_stand_in_late_is_published_again(
    start_node: StartNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher would wait for ever. The filters of a stand-in are removed in pages if they are many."""
    node = start_node(2)
    subscriber(node[0])
    subscribing = node[1].worker.protocol.subscribing
    held: list[tuple[Session, Callable[[], None] | None]] = []
    monkeypatch.setattr(subscribing, "withdraw", lambda session, then=None: held.append((session, then)))
    client = leave_hung(node)
    node[0].stopped = False
    node.advance(1)
    assert 0 == node[1].takeovers.pending()
    publisher = arrive(node[1], "publisher")
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.advance(0.3)
    assert [] == publisher.receive()
    monkeypatch.undo()
    for session, then in held:
        subscribing.withdraw(session, then)
    node.advance(0.3)

    assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
    assert [b"1"] == first_of_each(client)


def test_a_session_that_was_taken_waits_for_no_worker_that_has_ended(start_node: StartNode) -> None:
    """Each of its messages would be judged for ever, and those of the next worker be refused."""
    node = start_node(3)
    subscriber(node[0])
    client, taker = leave_hung(node), node[1]
    assert 1 == taker.takeovers.pending()
    node.kill(node[0])
    follower = node.start(0)

    assert 0 == taker.takeovers.pending()
    publish(follower, b"1")
    publish(taker, b"2")
    assert [b"1", b"2"] == first_of_each(client)


def test_messages_that_a_worker_accepts_when_it_wakes_up_keep_their_order(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The worker would have its first message for the session that it has lost, and send the next to the new owner."""
    node = start_node(2)
    subscriber(node[0])
    publisher = arrive(node[0], "publisher")
    client = leave_hung(node)
    redis.pause()  # worker 0 does not learn yet what has happened
    node[0].stopped = node[0].answered = node[1].answered = False
    (peer,) = node[0].mesh.peers
    node[0].reactor.pause(peer.control, Pause.FANOUT)
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.settle()
    node[0].reactor.resume(peer.control, Pause.FANOUT)
    node.settle()
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node.settle()
    redis.go_on()
    node[0].answered = node[1].answered = True
    node.advance(0.3)
    publish_again(node[0], publisher)

    assert [b"1", b"2"] == first_of_each(client)
    publish(node[0], b"3")
    assert [b"3"] == first_of_each(client)


def test_a_worker_that_lets_go_sends_nothing_behind_what_was_refused(start_node: StartNode) -> None:
    """Its next message would be taken by the session, while the one before is published again."""
    node = start_node(2)
    subscriber(node[0])
    subscribed(arrive(node[1], "other"), "a")
    publisher = arrive(node[0], "publisher")
    client = leave_hung(node)
    (peer,) = node[0].mesh.peers
    node[0].reactor.pause(peer.control, Pause.FANOUT)  # it finds its session taken, and is not asked to let go yet
    node[0].stopped = False
    publisher.send(Publish(b"a", b"1", 1, packet_id=1))
    node.advance(0.2)
    assert Disconnect(CloseReason.RECEIVER_MOVED.code) == publisher.receive()[-1]
    publisher = arrive(node[0], "publisher")
    publisher.send(Publish(b"a", b"1", 1, False, True, 1))
    node.settle()
    node[1].stopped = True
    node[0].reactor.resume(peer.control, Pause.FANOUT)
    node.settle()
    publisher.send(Publish(b"a", b"2", 1, packet_id=2))
    node.settle()
    node[1].stopped = False
    node.advance(0.3)
    publish_again(node[0], publisher)

    assert [True] == [each.session_present for each in client.inbox if isinstance(each, ConnAck)]
    assert [b"1", b"2"] == first_of_each(client)
