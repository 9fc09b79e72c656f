# What a durable member of a group had taken and not acknowledged reaches another one when its session ends.
import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from broker.mqtt.packets import (
    PUBACK,
    V5,
    Ack,
    Disconnect,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER
from broker.reasons import DropReason
from broker.store.durable.returned import AT_ONCE
from broker.store.durable.shared_bodies import RECEIVERS
from broker.store.redis.keys import DURABLE_FORMAT, Keys
from supervisor.backup.backup_file import BackupReader, BackupWriter, Head
from supervisor.backup.export import Export
from supervisor.backup.restore import Restore
from tests.cluster.durable_groups import (
    FILTER,
    LASTING,
    LIST,
    NUMBERS,
    RETURNED,
    Fleet,
    absent,
    arrive,
    end,
    expire_at_the_next_start,
    member,
    nothing_is_stored,
    payloads,
    publish,
    restart,
    seeds,
    taken,
)
from tests.cluster.talk import subscribed
from tests.cluster.test_durable_backup import Meanwhile
from tests.garbage import ours
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[..., Node]

CROWD = [f"crowd-{number}" for number in range(RECEIVERS)]
BODIES = [b"%0300d" % number for number in range(30)]
DROPPED = b"*:queue:*\0d*"  # the keys of lists that are taken apart


def leaver(broker: Broker, *said: bytes, qos: int = 1, options: Properties | None = None) -> Client:
    """A durable member that was sent messages, and has acknowledged none."""
    client = arrive(broker, "leaver")
    client.send(Subscribe(1, [Wanted(FILTER.encode(), qos)], options or {}))
    client.receive()
    publish(broker, *said, qos=qos)
    assert list(said) == payloads(client)
    return client


def ends(broker: Broker, client: Client, how: str) -> None:
    """The session of *client* ends."""
    if how == "clean start":
        client.drop()
        broker.settle()
        broker.connect("leaver", V5, clean_start=True)
    else:
        client.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0 if how == "disconnect" else 5}))
        broker.settle()
        broker.advance(6.0)
    broker.advance(0.3)


def send_own(broker: Broker, client: Client) -> None:
    """*client* is sent a message that is for it alone."""
    client.send(Subscribe(2, [Wanted(b"own", 1)]))
    client.receive()
    owner = broker.connect("owner", V5)
    owner.send(Publish(b"own", b"own", 1, packet_id=1))
    broker.advance(0.3)
    assert [b"own"] == payloads(client)


@pytest.mark.parametrize("how", ["clean start", "disconnect", "expiry"])
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_member_did_not_acknowledge_goes_to_another_one_when_its_session_ends(
    start_node: StartNode, redis: RunningRedis, workers: int, how: str
) -> None:
    """Messages that were acknowledged to their publishers would end with a member that was given them and has gone."""
    node = start_node(workers)
    client = leaver(node[0], *NUMBERS)
    absent(node[-1], "other")
    client.send(Ack(PUBACK, 1), Ack(PUBACK, 2))
    ends(node[0], client, how)

    assert NUMBERS[2:] == sorted(taken(arrive(node[-1], "other"), node[-1]), key=int)
    assert nothing_is_stored(redis)
    assert 0 == node[0].queue_budget.used


def test_a_connected_member_is_sent_at_once_what_another_one_leaves(start_node: StartNode) -> None:
    """It would get it when it comes the next time, if at all."""
    node = start_node(1)
    client = leaver(node[0], *NUMBERS[:5], options={SUBSCRIPTION_IDENTIFIER: [300]})
    other = member(node[0], "other")
    ends(node[0], client, "disconnect")
    found = [each for each in other.receive() if isinstance(each, Publish)]

    assert NUMBERS[:5] == [each.payload for each in found]
    assert [{}] * 5 == [each.properties for each in found], "with the subscription identifier of somebody else"


def test_what_a_member_left_the_group_with_goes_back_when_its_session_ends(start_node: StartNode) -> None:
    """It is not sent to others while the member may acknowledge it [MQTT-3.10.4-3], and would be lost after that."""
    node = start_node(1)
    client = leaver(node[0], b"1", b"2")
    other = member(node[0], "other")
    client.send(Unsubscribe(3, [FILTER.encode()]), Ack(PUBACK, 1))
    node.advance(0.3)
    assert [] == payloads(other)
    ends(node[0], client, "clean start")

    assert [b"2"] == payloads(other)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_not_of_the_group_ends_with_the_session(start_node: StartNode, redis: RunningRedis, qos: int) -> None:
    """Others would get messages that are not for them, or one of QoS 2 that the member may have [MQTT-4.8.2-5]."""
    node = start_node(1)
    client = leaver(node[0], *([b"2"] if qos == 2 else []), qos=qos)
    other = member(node[0], "other")
    send_own(node[0], client)
    ends(node[0], client, "disconnect")

    assert [] == payloads(other)
    assert qos == node[0].counters.dropped_by_reason[DropReason.SESSION_ENDED.label]
    assert nothing_is_stored(redis)


def test_the_last_member_leaves_nothing(start_node: StartNode, redis: RunningRedis) -> None:
    """Redis would keep what nobody can get."""
    node = start_node(2)
    client = leaver(node[0], b"1", b"2")
    ends(node[0], client, "disconnect")

    assert nothing_is_stored(redis)
    assert 2 == sum(broker.counters.dropped_by_reason[DropReason.NO_SHARED_MEMBER.label] for broker in node)


def test_what_a_session_leaves_that_expires_at_the_start_is_kept_for_members_elsewhere(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A worker would look for members before others have told theirs, find none, and drop it."""
    node = start_node(2)
    client = leaver(node[0], b"1", b"2")
    absent(node[1], "other")
    client.drop()
    node.settle()
    expire_at_the_next_start(node[0], "leaver")
    restart(node, 2)
    node.advance(0.5)

    assert [b"1", b"2"] == taken(arrive(node[0], "other"), node[0])
    assert nothing_is_stored(redis)


def test_what_a_session_has_left_is_returned_after_a_crash(start_node: StartNode, redis: RunningRedis) -> None:
    """It would be lost with a worker that ends before it has given all of it to others."""
    node = start_node(1)
    client = leaver(node[0], *NUMBERS)
    send_own(node[0], client)
    absent(node[0], "other")
    node[0].routes.backlog.members_known = False  # as if another worker had just died
    ends(node[0], client, "clean start")
    assert 1 == len(redis.client().keys(b"*:queue:*\0r*"))
    restart(node, 1)
    node.advance(0.5)

    assert NUMBERS == taken(arrive(node[0], "other"), node[0])
    assert nothing_is_stored(redis)


def test_many_sessions_leave_at_once(start_node: StartNode, redis: RunningRedis) -> None:
    """Those that have to wait for their turn would wait for ever."""
    node = start_node(1)
    names = [f"leaver{number}" for number in range(3 * AT_ONCE)]
    clients = [arrive(node[0], name) for name in names]
    for client in clients:
        subscribed(client, FILTER)
    publish(node[0], *NUMBERS[: len(names)])
    absent(node[0], "other")
    for client in clients:
        client.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0}))
    node.advance(1.0)

    assert NUMBERS[: len(names)] == sorted(taken(arrive(node[0], "other"), node[0]), key=int)
    assert nothing_is_stored(redis)


@pytest.mark.parametrize("deaths", [False, True])
@pytest.mark.parametrize("seed", [0, *seeds(1, 20)])
def test_members_that_leave_lose_nothing_for_their_group(
    start_node: StartNode, redis: RunningRedis, seed: int, deaths: bool
) -> None:
    """A publisher would be told that a message is safe that no member ever gets."""
    fleet = Fleet(start_node(3), 1, seed, leaves=True)
    for _ in range(60):
        fleet.step(deaths)
    fleet.end()

    assert len(fleet.answered) > 50
    assert set() == fleet.answered - set(fleet.received)
    assert nothing_is_stored(redis)


def references(redis: RunningRedis) -> set[int]:
    """How many packs refer to the bodies that are stored once, for each group of them."""
    client = redis.client()
    return {int(client.hget(key, "") or 0) for key in client.keys("*:bodies:*")}


def waiting_widely(node: Node, redis: RunningRedis) -> None:
    """A list of a group, a member that has left, and one session of CROWD that has ended, all with shared bodies.

    The list that the member has left has messages of its own as well. Nothing has been given to anybody yet.
    """
    for name in CROWD:
        client = arrive(node[0], name)
        subscribed(client, "a")
        client.drop()
    client = leaver(node[0], *BODIES[:10])
    subscribed(client, "a")
    client.drop()
    absent(node[0], "other")
    publish(node[0], *BODIES[10:])
    node[0].routes.backlog.members_known = False  # as if another worker had just died
    assert {RECEIVERS, RECEIVERS + 2} == references(redis)
    for name in ("leaver", CROWD[0]):
        node[0].connect(name, V5, clean_start=True).drop()
    node.settle()


def crowd_takes_all(broker: Broker) -> None:
    for name in CROWD[1:]:
        client = arrive(broker, name)
        assert BODIES == taken(client, broker)
        client.drop()
    broker.settle()
    broker.advance(0.3)


@pytest.mark.parametrize("crash", [False, True])
def test_lists_of_groups_let_go_of_bodies_that_others_have(
    start_node: StartNode, redis: RunningRedis, crash: bool
) -> None:
    """A body would be in Redis for a week although nobody waits for it, or be gone while somebody does; and a worker
    would take apart what waits for a group as if it were what a session has left for nobody.
    """
    node = start_node(1)
    waiting_widely(node, redis)
    if crash:
        restart(node, 1)
    else:
        node[0].routes.set_members_known(True)
    node.advance(0.5)
    assert [] == redis.client().keys(RETURNED % b"queue") + redis.client().keys(DROPPED)
    assert [1] == [len(redis.client().keys(LIST % b"queue"))]

    assert BODIES == sorted(taken(arrive(node[0], "other"), node[0]))
    node.advance(0.3)
    assert nothing_is_stored(redis)
    assert {RECEIVERS - 1} == references(redis)
    crowd_takes_all(node[0])
    assert set() == references(redis)
    assert [] == redis.client().keys("*:queue:*")


def test_a_list_whose_group_has_no_member_any_more_lets_go_of_bodies(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Whoever joins groups and leaves them would fill Redis with what nobody can get."""
    node = start_node(1)
    waiting_widely(node, redis)
    restart(node, 1)
    arrive(node[0], "other", clean=True).drop()
    node.advance(1.0)

    assert nothing_is_stored(redis)
    assert [] == redis.client().keys(DROPPED)
    assert {RECEIVERS - 1} == references(redis)
    crowd_takes_all(node[0])
    assert set() == references(redis)


def test_what_was_returned_leaves_no_cycle(start_node: StartNode, garbage: list[object]) -> None:
    """With the collector off between pauses, memory would grow with each session that leaves something (DESIGN 2.9)."""
    node = start_node(2)
    absent(node[1], "other")
    gc.collect()
    garbage.clear()  # of the start
    for _ in range(3):
        client = leaver(node[0], *NUMBERS[:20])
        ends(node[0], client, "disconnect")
        assert NUMBERS[:20] == taken(arrive(node[1], "other"), node[1])
        absent(node[1], "other")

    assert [] == ours(garbage)


def test_a_session_gets_a_message_through_each_of_its_subscriptions(start_node: StartNode) -> None:
    """Of QoS 2 it would get one copy instead of two: shared and other subscriptions are independent (4.8.2)."""
    node = start_node(1)
    client = member(node[0])
    client.send(Subscribe(2, [Wanted(b"a", 2), Wanted(b"$share/other/a", 2)]))
    client.receive()
    durable = node[0].connect("publisher", V5, properties=LASTING)
    durable.send(Publish(b"a", b"1", 2, packet_id=1))
    node.advance(0.3)

    assert [b"1"] * 3 == payloads(client)


def test_a_backup_has_what_waits_for_groups(
    start_node: StartNode,
    redis: RunningRedis,
    start_redis: Callable[[], RunningRedis],
    nodes: Callable[..., Node],
    tmp_path: Path,
) -> None:
    """It would be lost with the machine; or restored for nobody."""
    node = start_node(2)
    client = leaver(node[0], *NUMBERS[:10])
    absent(node[0], "other")
    client.drop()
    node.settle()
    publish(node[0], *NUMBERS[10:100])
    back_up(redis.client(), tmp_path / "backup")
    end(node)
    server = start_redis()
    put_back(server, tmp_path / "backup")
    assert [] == server.client().keys(b"*:owner:\0*")
    other = nodes(2, None, server, durable=True)

    assert NUMBERS[10:100] == taken(arrive(other[1], "other"), other[1])
    assert nothing_is_stored(server)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_backup_has_the_bodies_of_what_waits_for_groups(
    start_node: StartNode,
    redis: RunningRedis,
    start_redis: Callable[[], RunningRedis],
    nodes: Callable[..., Node],
    tmp_path: Path,
    meanwhile: bool,
) -> None:
    """It would have references to bodies that it has not; or lack what returns to its group *meanwhile*."""
    node = start_node(1)
    waiting_widely(node, redis)

    def returns() -> None:
        if meanwhile:
            node[0].routes.set_members_known(True)
            node[0].advance(0.5)
            assert [] == redis.client().keys(RETURNED % b"session")

    back_up(Meanwhile(redis, returns, after=True), tmp_path / "backup")
    end(node)
    server = start_redis()
    put_back(server, tmp_path / "backup")
    other = nodes(1, None, server, durable=True)

    assert set() == references(server)
    found = taken(arrive(other[0], "other"), other[0])
    assert BODIES == (sorted(set(found)) if meanwhile else sorted(found))
    assert nothing_is_stored(server)
    crowd_takes_all(other[0])


def back_up(server: Redis, path: Path) -> None:
    with BackupWriter(path, Head("weir", "0.1.0", DURABLE_FORMAT, time.time(), False)) as backup:
        taken_now = Export(server, Keys("weir"), backup)
        taken_now.run()
        assert [] == taken_now.unreadable
        backup.finish()


def put_back(server: RunningRedis, path: Path) -> None:
    with BackupReader(path) as found:
        Restore(server.client(), "weir", "weir", found).run()
