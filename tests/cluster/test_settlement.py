# What a dead node has left goes to a worker of a node that lives: sessions, lists of shared subscriptions, and wills.
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from broker.mqtt.packets import PUBACK, V5, V311, Ack, ConnAck, Connect, Publish, SubAck, Subscribe, Wanted, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.net.pauses import Pause
from broker.protocol.durable_sessions import DurableSessions
from broker.store.durable.store import DurableStore
from broker.store.redis.connection import READY
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from tests.cluster.talk import named_as_owner, payloads, replies_of, send_unreadable_chunk, stored_at, subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

KEYS = Keys("weir")
LONG = 300  # turns: more than anything takes


@pytest.fixture
def names() -> Sequence[str]:
    return ("weir", "other", "third")


@pytest.fixture
def redis(start_redis: Callable[[], RunningRedis]) -> RunningRedis:
    return start_redis()


@pytest.fixture
def node(nodes: Callable[..., Node], redis: RunningRedis) -> Node:
    """The worker 0 of the node weir, and the worker 0 of the node other."""
    return nodes(2, None, redis, durable=True)


def subscriber(broker: Broker, client_id: str, filter: bytes) -> Client:
    client = broker.connect(client_id, V311, clean_start=False)
    client.send(Subscribe(1, [Wanted(filter, 1)]))
    assert [SubAck(1, [1])] == client.receive()
    return client


def publish(broker: Broker, topic: bytes, payload: bytes) -> Client:
    """A publisher that has sent one message, and may wait for the answer."""
    publisher = broker.connect("publisher-" + payload.decode(), V311)
    publisher.send(Publish(topic, payload, 1, packet_id=1))
    return publisher


def is_answered(publisher: Client) -> bool:
    return [PUBACK] == [each.kind for each in publisher.receive() if isinstance(each, Ack)]


def until(broker: Broker, done: Callable[[], bool]) -> None:
    for _ in range(LONG):
        if done():
            return
        broker.advance(0.1)
    raise AssertionError("it does not come to rest")


def come_back(broker: Broker, client_id: str) -> Client:
    """Connect the client of a session that is at a worker that is gone, perhaps."""
    client = broker.open()
    client.send(Connect(V311, client_id, False, 0))
    return welcomed(broker, client)


def welcomed(broker: Broker, client: Client) -> Client:
    """*client*, which has sent CONNECT, with its CONNACK."""
    until(broker, lambda: client.pull() > 0 or len(client.inbox) > 0)
    answer = client.receive()
    assert isinstance(answer[0], ConnAck), answer
    client.connack = answer[0]
    client.inbox.extend(answer[1:])
    return client


def durable_of(broker: Broker) -> DurableSessions:
    durable = broker.worker.protocol.durable
    assert durable is not None
    return durable


def take_turns(node: Node, turns: int) -> None:
    """Each worker that is not stopped turns its loop so many times, after each of which Redis answers."""
    running = [broker for broker in node if not broker.stopped]
    for _ in range(turns):
        for broker in running:
            broker.turn()
        for broker in running:
            broker.waits_for_redis()


def set_nodes(settler: Broker, live: Sequence[Broker], dead: dict[str, list[WorkerId]]) -> None:
    settlement = settler.worker.cluster.settlement
    assert settlement is not None
    settlement.set([each.identity for each in live], dead, settler.clock.now)


def begin_to_settle(settler: Broker, dead: Sequence[Broker]) -> None:
    """The supervisor of *settler* says that the node of *dead* is dead."""
    left = [each.identity for each in dead]
    set_nodes(settler, [], {left[0].node: left})


def settle(settler: Broker, dead: Sequence[Broker]) -> None:
    settlement = settler.worker.cluster.settlement
    assert settlement is not None
    before = settlement.settled
    begin_to_settle(settler, dead)
    until(settler, lambda: settlement.settled - before == len(dead) and settler.orphaned_wills.idle())
    settler.mesh.expect_distant(0)


def owners(redis: RunningRedis, name: str) -> set[bytes]:
    with redis.client() as client:
        return set(client.hkeys(KEYS.durable_owners(name)))


def test_a_session_of_a_dead_node_goes_on_at_another_one(node: Node, redis: RunningRedis) -> None:
    """It would stay where nobody looks until a node of that name comes back."""
    settler, dead = node
    subscriber(dead, "me", b"a").drop()
    assert is_answered(publish(settler, b"a", b"before"))
    node.kill(dead)
    waiting = publish(settler, b"a", b"meanwhile")
    assert not is_answered(waiting)
    settle(settler, [dead])

    assert is_answered(waiting)
    client = come_back(settler, "me")
    assert client.connack.session_present
    assert [b"before", b"meanwhile"] == payloads(client)
    assert not owners(redis, "other")
    until(settler, lambda: len(owners(redis, "weir")) == 1)


def test_sessions_that_are_not_read_are_settled_as_well(node: Node) -> None:
    """Those whose clients had left are most of them, and are in an index only."""
    settler, dead = node
    clients = [subscriber(dead, f"client-{number}", b"a/%d" % number) for number in range(20)]
    for client in clients:
        client.drop()
    node.advance(20)
    assert 20 == durable_of(dead).cold.count()
    node.kill(dead)
    settle(settler, [dead])
    assert 20 == durable_of(settler).cold.count()
    assert all(is_answered(publish(settler, b"a/%d" % number, b"%d" % number)) for number in range(20))

    for number in range(20):
        client = come_back(settler, f"client-{number}")
        assert (True, [b"%d" % number]) == (client.connack.session_present, payloads(client))


def test_a_client_that_comes_before_is_served_and_its_session_is_not_adopted_twice(node: Node) -> None:
    """It would be refused until its node is settled; or another session of it would get its messages."""
    settler, dead = node
    subscriber(dead, "me", b"a").drop()
    subscriber(dead, "other", b"b").drop()
    node.kill(dead)
    began = node.clock.now
    client = come_back(settler, "me")
    assert client.connack.session_present and node.clock.now - began <= 0.5
    settle(settler, [dead])
    publisher = publish(settler, b"a", b"1")
    assert not is_answered(publisher)  # it is stored in a moment, as the client may acknowledge it before
    node.advance(0.1)

    assert is_answered(publisher)
    assert [b"1"] == payloads(client)
    assert 2 == settler.worker.protocol.store.count_here() + durable_of(settler).cold.count() - 1


def test_wills_of_a_dead_node_are_published_once(node: Node) -> None:
    """Nobody would hear that a device is gone; or its listeners would hear it again with each look."""
    settler, dead = node
    listener = settler.connect("listener", V5)
    subscribed(listener, "will")
    for name, delay in (("a", 0), ("b", 5)):
        will = Will(b"will", name.encode(), 1, properties={WILL_DELAY_INTERVAL: delay})
        dead.connect(name, V5, properties={SESSION_EXPIRY_INTERVAL: 0 if delay == 0 else 100}, will=will)
    node.kill(dead)
    settle(settler, [dead])
    found = payloads(listener)
    begin_to_settle(settler, [dead])
    node.advance(6)

    assert [b"a", b"b"] == found + payloads(listener)


def test_a_worker_that_was_only_stopped_acknowledges_nothing_any_more(node: Node) -> None:
    """What it acknowledges would be for sessions that are elsewhere: it would be lost."""
    settler, stopped = node
    told: list[str] = []
    durable_of(stopped).settled = lambda: told.append("fence")
    assert stopped.registry_client is not None
    stopped.registry_client.registry.fenced = lambda: told.append("claims")
    subscriber(stopped, "me", b"a")
    stopped.stopped = True
    settler.mesh.leave(stopped.identity)
    settle(settler, [stopped])
    stopped.stopped = False
    late = publish(stopped, b"a", b"late")
    for _ in range(30):
        node.advance(0.1)

    assert {"fence", "claims"} == set(told)
    assert not is_answered(late)
    client = come_back(settler, "me")
    assert (True, []) == (client.connack.session_present, payloads(client))


def test_a_node_that_has_its_lease_again_is_left_alone(node: Node, redis: RunningRedis) -> None:
    """Its worker would end that has just come back, though nobody has its sessions."""
    settler, dead = node
    subscriber(dead, "me", b"a").drop()
    node.kill(dead)
    with redis.client() as client:
        client.hset(KEYS.nodes, "other", "incarnation 99999999999999 {}")
    begin_to_settle(settler, [dead])
    for _ in range(20):
        node.advance(0.1)
    assert owners(redis, "other") and durable_of(settler).ready()
    with redis.client() as client:
        client.hset(KEYS.nodes, "other", "incarnation 1 {}")
    settle(settler, [dead])

    assert not owners(redis, "other")


@pytest.mark.parametrize("turns", range(12))
def test_each_session_has_one_owner_if_its_node_comes_back_meanwhile(
    node: Node, redis: RunningRedis, turns: int
) -> None:
    """Two workers would have it, and its client find the one that the messages are not at."""
    settler, dead = node
    for number in range(5):
        subscriber(dead, f"client-{number}", b"a").drop()
    assert is_answered(publish(settler, b"a", b"before"))
    node.kill(dead)
    begin_to_settle(settler, [dead])
    take_turns(node, turns)
    with redis.client() as client:
        client.hset(KEYS.nodes, "other", "incarnation 99999999999999 {}")
    back = node.start(1)
    set_nodes(settler, [back], {})
    settler.mesh.expect_distant(0)
    for _ in range(30):
        node.advance(0.1)
    assert is_answered(publish(back, b"a", b"after"))

    with redis.client() as client:
        found = [key.rsplit(b":", 1)[1] for key in client.scan_iter("weir:*:session:*", count=1000)]
    assert [b"client-%d" % number for number in range(5)] == sorted(found)
    for number in range(5):
        assert come_back(node[number % 2], f"client-{number}").connack.session_present


@pytest.mark.parametrize("turns", range(16))
def test_a_settler_that_dies_meanwhile_is_followed(node: Node, turns: int) -> None:
    """What it had made its own would be known to nobody, and publishes would wait for it for ever."""
    settler, dead = node
    for number in range(5):
        subscriber(dead, f"client-{number}", b"a/%d" % number).drop()
    node.kill(dead)
    begin_to_settle(settler, [dead])
    take_turns(node, turns)
    node.workers.remove(settler)
    settler.close()
    node.start(0, adopts=True)
    follower = node[0]
    begin_to_settle(follower, [dead])
    for _ in range(30):
        node.advance(0.1)
    follower.mesh.expect_distant(0)

    for number in range(5):
        assert is_answered(publish(follower, b"a/%d" % number, b"%d" % number))
        client = come_back(follower, f"client-{number}")
        assert (True, [b"%d" % number]) == (client.connack.session_present, payloads(client))


def test_a_damaged_session_is_put_aside_and_the_others_are_settled(node: Node, redis: RunningRedis) -> None:
    """One record that cannot be read would keep all sessions of a dead node from their clients."""
    settler, dead = node
    subscriber(dead, "bad", b"a").drop()
    subscriber(dead, "good", b"a").drop()
    node.kill(dead)
    with redis.client() as client:
        records = KEYS.sessions(KEYS.slice_of(b"bad"), dead.identity.incarnation_text.encode()).records
        client.hset(records + b"bad", "\0h", b"\xff\xff")
        client.hset(records + b"bad", next(iter(client.hkeys(records + b"bad"))), b"\xff")
        index = KEYS.sessions(KEYS.slice_of(b"bad"), dead.identity.incarnation_text.encode()).index
        client.hset(index, b"bad", b"")
    settle(settler, [dead])
    node.advance(1)

    assert 1 == settler.counters.sessions_damaged
    assert come_back(settler, "good").connack.session_present


def test_what_waits_for_a_shared_subscription_goes_to_its_members_elsewhere(node: Node) -> None:
    """The list of a group is in Redis under the name of the dead worker: its messages would never be given."""
    settler, dead = node
    subscriber(dead, "member", b"$share/g/a").drop()
    assert is_answered(publish(dead, b"a", b"1"))
    node.kill(dead)
    settle(settler, [dead])
    node.advance(1)

    client = come_back(settler, "member")
    node.advance(1)
    assert [b"1"] == payloads(client)


@pytest.mark.parametrize("turns", range(16))
def test_publishers_elsewhere_wait_until_a_dead_node_is_settled_and_no_longer(
    nodes: Callable[..., Node], redis: RunningRedis, turns: int
) -> None:
    """What they publish would reach nobody, or never be answered, if the settler dies with what it had made its own."""
    node = nodes(3, None, redis, durable=True)
    settler, dead, witness = node
    subscriber(dead, "me", b"a").drop()
    node.kill(dead)
    waiting = publish(witness, b"a", b"1")
    assert not is_answered(waiting)
    begin_to_settle(settler, [dead])
    take_turns(node, turns)
    node.kill(settler)
    follower = node.start(0)
    begin_to_settle(follower, [dead])
    for _ in range(30):
        node.advance(0.1)
    for broker in (follower, witness):
        broker.mesh.expect_distant(0)
    again = publish(witness, b"a", b"2")
    node.advance(0.1)

    assert is_answered(again)
    client = come_back(follower, "me")
    assert client.connack.session_present
    assert b"2" in payloads(client)


def test_a_worker_is_not_complete_while_another_one_has_sessions_to_adopt(nodes: Callable[..., Node]) -> None:
    """It would serve, and acknowledge what is for sessions that nobody has told of."""
    node = nodes(3)
    mesh, settler = node[2].mesh, node.peer(node[2], node[0])
    assert mesh.complete()
    mesh.inherits(settler, 77)
    mesh.inherits(settler, 78)
    assert not mesh.complete()
    mesh.adopted(settler, 77)
    assert not mesh.complete()
    mesh.not_inherited(settler, 78)

    assert mesh.complete()


def test_a_worker_is_not_complete_while_it_has_sessions_of_a_dead_node_to_adopt(
    node: Node, redis: RunningRedis
) -> None:
    """One that starts would serve as soon as it owns them in Redis, and acknowledge what is for them."""
    settler, dead = node
    subscriber(dead, "me", b"a").drop()
    node.kill(dead)
    settler.mesh.expect_distant(1)
    serves: list[int] = []
    settler.mesh.when_complete(partial(serves.append, 1))
    begin_to_settle(settler, [dead])
    while owners(redis, "other"):
        take_turns(node, 1)
    settler.mesh.expect_distant(0)
    assert [] == serves
    settlement = settler.worker.cluster.settlement
    assert settlement is not None
    until(settler, lambda: settlement.settled == 1)

    assert [1] == serves


def test_a_worker_is_complete_if_another_one_has_settled_the_dead_node(
    nodes: Callable[..., Node], redis: RunningRedis
) -> None:
    """It would never serve."""
    node = nodes(3, None, redis, durable=True)
    settler, dead, third = node
    subscriber(dead, "me", b"a").drop()
    node.kill(dead)
    settler.mesh.expect_distant(1)
    serves: list[int] = []
    settler.mesh.when_complete(partial(serves.append, 1))
    third.stopped = True  # the settler waits for its answer
    begin_to_settle(settler, [dead])
    until(settler, lambda: not durable_of(settler).ready())
    with redis.client() as client:
        client.hdel(KEYS.durable_owners("other"), dead.identity.incarnation_text)
    third.stopped = False
    settler.mesh.expect_distant(0)
    assert [] == serves
    until(settler, lambda: durable_of(settler).ready())

    assert [1] == serves


def test_a_worker_at_the_place_of_a_dead_one_does_not_follow_it_if_another_one_does(
    nodes: Callable[..., Node], redis: RunningRedis
) -> None:
    """Publishes would be answered, though nobody has told yet what the sessions wait for: they would be lost."""
    node = nodes(3, None, redis, durable=True)
    settler, dead, witness = node
    subscriber(dead, "me", b"a").drop()
    node.kill(dead)
    former, peer = dead.identity.incarnation, node.peer(witness, settler)
    witness.mesh.inherits(peer, former)
    with redis.client() as client:
        client.hdel(KEYS.durable_owners("other"), dead.identity.incarnation_text)
        client.hset(KEYS.durable_owners("weir"), dead.identity.incarnation_text, 0)
    node.start(1)
    waiting = publish(witness, b"a", b"1")
    node.advance(1)
    assert not is_answered(waiting)
    witness.mesh.adopted(peer, former)
    node.advance(0.1)

    assert is_answered(waiting)


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("turns", range(-12, 12))
def test_a_client_that_comes_meanwhile_finds_its_session_once(node: Node, turns: int, cold: bool) -> None:
    """The session would be adopted beside the one that its client has, and get each message, too, for ever."""
    settler, dead = node
    for name in ("me", "other"):
        subscriber(dead, name, b"a").drop()
    assert is_answered(publish(dead, b"a", b"before"))
    if cold:
        node.advance(20)
    node.kill(dead)
    client = settler.open()
    if turns >= 0:
        begin_to_settle(settler, [dead])
        take_turns(node, turns)
    client.send(Connect(V311, "me", False, 0))
    if turns < 0:
        take_turns(node, -turns)
        begin_to_settle(settler, [dead])
    client = welcomed(settler, client)
    settlement = settler.worker.cluster.settlement
    assert settlement is not None
    until(settler, lambda: settlement.settled == 1)
    settler.mesh.expect_distant(0)
    publish(settler, b"a", b"after")
    node.advance(1)

    assert client.connack.session_present
    assert [b"before", b"after"] == payloads(client)
    assert not durable_of(settler).cold.has("me")
    assert {"me", "other"} == {each.client_id for each in settler.worker.protocol.store.sessions() if each.storage}


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("turns", [0, 2, 4, 8, 16, 100])
def test_a_session_that_a_dead_node_was_giving_is_not_adopted_as_well(
    nodes: Callable[..., Node], redis: RunningRedis, turns: int, cold: bool
) -> None:
    """Two would be subscribed, and both store what they get under the same keys: who reads that finds it damaged."""
    node = nodes(3, None, redis, durable=True)
    settler, dead, third = node
    for name in ("me", "other"):
        subscriber(dead, name, b"a").drop()
    assert is_answered(publish(third, b"a", b"before"))
    if cold:
        node.advance(20)
    third.stopped = True  # the session cannot be given before this worker has marked what it sends
    client = settler.open()
    client.send(Connect(V311, "me", False, 0))
    node.settle()
    assert 1 == settler.takeovers.pending()
    node.kill(dead)
    store = settler.worker.links.durable_store
    assert isinstance(store, DurableStore)
    store.commit._gathering.until = float("inf")  # its transactions wait
    third.stopped = False
    take_turns(node, 20)
    store.commit._gathering.until = 0.0
    while store.commit._under_way is None:
        settler.turn()
    redis.client().ping()  # what it has sent is carried out: it may know what its fence says
    redis.pause()
    take_turns(node, 20)
    redis.kill()
    take_turns(node, 1)
    assert store._reads  # the session cannot be taken from the dead worker: that is tried again some time later
    store._reads_at = float("inf")
    redis.start()
    until(settler, lambda: store.commands.state == READY)
    begin_to_settle(settler, [dead])
    take_turns(node, turns)
    store._reads_at = 0.0
    client = welcomed(settler, client)
    settlement = settler.worker.cluster.settlement
    assert settlement is not None
    until(settler, lambda: settlement.settled == 1)
    for each in (settler, third):
        each.mesh.expect_distant(0)
    publish(settler, b"a", b"after")
    node.advance(1)

    assert client.connack.session_present
    assert [b"before", b"after"] == payloads(client)
    assert not durable_of(settler).cold.has("me")
    client.drop()
    node.advance(1)
    again = come_back(third, "me")  # which reads what is stored
    assert again.connack.session_present
    assert [b"before", b"after"] == payloads(again)


@pytest.mark.parametrize("names", [("weir", "other", "third", "fourth")])
@pytest.mark.parametrize("named", [2, 3])
def test_a_session_that_was_adopted_while_it_came_from_another_worker_is_found_if_it_does_not_come(
    nodes: Callable[..., Node], redis: RunningRedis, named: int
) -> None:
    """It would have the keys of a worker that does not know it, and its client would begin another one beside it.

    Redis names the worker that it comes from, or one that has nothing.
    """
    node = nodes(4, None, redis, durable=True)
    settler, dead, third, _ = node
    subscriber(third, "me", b"a").drop()
    assert is_answered(publish(settler, b"a", b"before"))
    third.stopped = True
    come_back(dead, "me").drop()  # which takes it from a worker that learns nothing of that
    dead.mesh.restarted(third.identity)
    node.settle()
    named_as_owner(redis, node[named], 1)
    node.kill(dead)
    third.answered = False
    third.reactor.pause(replies_of(third), Pause.FANOUT)
    third.stopped = False
    client = settler.open()
    client.send(Connect(V311, "me", False, 0))
    node.settle()
    assert 1 == settler.takeovers.pending()
    settle(settler, [dead])
    until(settler, lambda: ["queue 1", "session 1"] == stored_at(redis))
    for each in node:
        each.mesh.expect_distant(0)
    assert 1 == settler.takeovers.pending() and not durable_of(settler).cold.has("me")
    send_unreadable_chunk(node, third, settler)
    client = welcomed(settler, client)
    third.reactor.resume(replies_of(third), Pause.FANOUT)
    third.answered = True
    node.advance(1)
    publish(settler, b"a", b"after")
    node.advance(1)

    assert client.connack.session_present
    assert [b"before", b"after"] == payloads(client)
    assert [settler] == [each for each in node if each.session("me")]
    client.drop()
    node.advance(1)
    again = come_back(third, "me")  # which reads what is stored
    assert again.connack.session_present
    assert [b"before", b"after"] == payloads(again)
