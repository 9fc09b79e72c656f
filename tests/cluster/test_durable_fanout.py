# Messages for many absent sessions, whose bodies are shared: with a real Redis, and workers that end.
from collections.abc import Callable, Iterator

import pytest

from broker.mqtt.packets import PUBACK, V5, Ack, Publish
from broker.store.durable.shared_bodies import RECEIVERS
from tests.cluster.durable_node import Durable
from tests.cluster.talk import subscribed
from tests.cluster.test_durable_takeovers import LASTING, arrive, messages, publish
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.insight.test_queue_requests import exported, purge
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # real servers

OTHERS = [f"other-{number}" for number in range(RECEIVERS)]
BODY = b"%0300d"
BODIES = [BODY % number for number in range(30)]


@pytest.fixture
def node(start_redis: Callable[..., RunningRedis]) -> Iterator[Durable]:
    """A node with one worker and RECEIVERS + 1 sessions that are away, one of them the reader."""
    node = Durable(start_redis())
    for client_id in ["reader", *OTHERS]:
        node.subscriber(client_id, b"#").socket.close()
    yield node
    node.worker.close()


def bodies(redis: RunningRedis) -> list[int]:
    """How many packs refer to each group of bodies."""
    client = redis.client()
    return [int(client.hget(key, "") or 0) for key in client.keys("*:bodies:*")]


def take_all(broker: Broker, client: Client) -> list[bytes]:
    """What *client* gets and acknowledges, until nothing comes."""
    found: list[bytes] = []
    while packets := [each for each in client.receive() if isinstance(each, Publish)]:
        found += [each.payload for each in packets]
        client.send(*[Ack(PUBACK, each.packet_id) for each in packets])
        broker.settle()
        broker.advance(0.1)
    return found


def test_all_get_what_is_stored_once_and_nothing_is_left(node: Durable) -> None:
    """A publish to many would be lost with a worker, or for all but the first who read it, or stay in Redis."""
    node.publish(b"t", *BODIES)
    found = bodies(node.redis)
    assert 0 < sum(found) < len(BODIES) * len(OTHERS)
    assert {len(OTHERS) + 1} == set(found)
    (ttl,) = {node.redis.client().ttl(key) > 7 * 86_400 for key in node.redis.client().keys("*:bodies:*")}
    assert ttl

    for number, client_id in enumerate(["reader", *OTHERS]):
        if number % 5 == 0:
            node.kill()
        assert BODIES == take_all(node.worker, node.connect(client_id))
    assert [] == bodies(node.redis)
    assert [] == node.redis.client().keys("*:queue:*")


def test_operators_see_copy_and_remove_what_is_stored_once(node: Durable) -> None:
    """A queue would be shown without its messages, or the removal take them from all others."""
    node.publish(b"good", *BODIES[:10])
    node.publish(b"bad", *BODIES[10:20])
    node.publish(b"good", *BODIES[20:])
    operator = Operator(node.worker)
    good = [*BODIES[:10], *BODIES[20:]]

    assert BODIES == [each["payload"] for each in exported(operator)]
    assert 10 == purge(operator, "bad")
    assert good == [each["payload"] for each in exported(operator)]
    assert good == take_all(node.worker, node.connect("reader"))
    assert {len(OTHERS)} == set(bodies(node.redis))
    assert BODIES == take_all(node.worker, node.connect(OTHERS[0]))


def test_bodies_leave_with_the_sessions_that_end(node: Durable) -> None:
    """A client could fill Redis with what nobody will read, as it begins anew each time."""
    node.publish(b"t", *BODIES)
    groups = len(bodies(node.redis))
    node.connect("reader", clean=True)
    node.worker.advance(0.5)
    assert [len(OTHERS)] * groups == bodies(node.redis)
    for number, client_id in enumerate(OTHERS):
        node.connect(client_id, clean=True)
        if number == 3:
            node.kill()
    node.worker.advance(2.0)

    assert [] == bodies(node.redis)
    assert [] == node.redis.client().keys("*:queue:*")


def test_a_session_takes_its_references_to_another_worker(
    nodes: Callable[..., Node], start_redis: Callable[..., RunningRedis]
) -> None:
    """The bodies would be those of a worker that the session has left, or counted by none."""
    redis = start_redis()
    node = nodes(2, None, redis, durable=True)
    for client_id in ["me", *OTHERS]:
        client = arrive(node[0], client_id)
        subscribed(client, "a")
        client.drop()
    node.settle()
    publish(node[0], BODY % 1, BODY % 2)
    before = bodies(redis)
    client = arrive(node[1])
    assert [(BODY % 1, 1, False), (BODY % 2, 2, False)] == messages(client)
    client.send(Ack(PUBACK, 1), Ack(PUBACK, 2))
    node.advance(0.2)

    assert [count - 1 for count in before] == bodies(redis)
    for client_id in OTHERS:
        client = node[1].connect(client_id, V5, clean_start=False, properties=LASTING)
        node.settle()
        assert 2 == len(take_all(node[1], client))
    node.advance(0.2)
    assert [] == bodies(redis)
