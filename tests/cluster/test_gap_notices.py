# What a client lost while it was away is told at whichever worker it comes back, and after a restart.
import json
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import PUBACK, V5, Ack, Properties, Publish, Wanted
from broker.mqtt.properties import RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL, USER_PROPERTY
from broker.protocol.gap_notices import STORE_PAUSE
from broker.reasons import DropReason
from broker.session.gap import unpack
from broker.store.durable.stored_session import GAP
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[[int], Node]
QUEUE = 3
SMALL = Config(limits=Limits(queue=QUEUE))
FULL = DropReason.QUEUE_FULL.label
TOPIC = "$SYS/broker/clients/me/gap"
ASKS: Properties = {USER_PROPERTY: [("weir-gap", "1")]}
FILTER = {"notices": [Wanted(TOPIC.encode(), 0)], "properties": []}


@pytest.fixture(params=["in memory", "durable"])
def start_node(nodes: Callable[..., Node], redis: RunningRedis, request: pytest.FixtureRequest) -> StartNode:
    return lambda workers: nodes(workers, SMALL, redis, durable=request.param == "durable")


@pytest.fixture
def durable(nodes: Callable[..., Node], redis: RunningRedis) -> Node:
    """A node of one worker whose sessions are stored."""
    return nodes(1, SMALL, redis, durable=True)


def arrive(broker: Broker, more: Properties | None = None) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 100, **(more or {})}
    client = broker.connect("me", V5, clean_start=False, properties=properties)
    broker.settle()
    return client


def leave(client: Client) -> None:
    client.drop()
    client.broker.advance(0.3)


def publish(broker: Broker, count: int) -> None:
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t", b"%d" % number, 1, packet_id=number) for number in range(1, count + 1)])
    broker.advance(0.3)
    assert [PUBACK] * count == [each.kind for each in publisher.receive() if isinstance(each, Ack)]
    publisher.drop()


def restart(node: Node) -> Broker:
    """The only worker is killed, and another one begins with what is stored."""
    node.kill(node[0])
    return node.start(0)


def told(client: Client) -> list[int]:
    """How many messages were lost, by the notices, and by the properties of messages."""
    counts = []
    for each in client.receive():
        if isinstance(each, Publish):
            pairs: Any = each.properties.get(USER_PROPERTY, [])
            counts += [int(value) for name, value in pairs if name == "weir-gap-count"]
            if each.topic == TOPIC.encode():
                counts.append(json.loads(each.payload)["count"])
    return counts


def stored(redis: RunningRedis) -> bytes:
    """The gap in the record of the session; b"" if there is none."""
    records = [key for key in redis.client().keys("*session:*me") if redis.client().type(key) == b"hash"]
    found = [redis.client().hget(key, GAP) for key in records]
    return b"".join([value for value in found if isinstance(value, bytes)])


@pytest.mark.parametrize("way", ["notices", "properties"])
def test_a_gap_follows_its_session_to_another_worker(start_node: StartNode, way: str) -> None:
    """A client that loses messages and comes back elsewhere would not learn it, or twice."""
    node = start_node(2)
    more = ASKS if way == "properties" else None
    client = arrive(node[0], more)
    subscribed(client, "t", *FILTER[way])
    leave(client)
    publish(node[1], QUEUE + 2)
    for broker in node:
        broker.look_at_gaps()
    client = arrive(node[1], more)
    assert client.connack.session_present
    assert [2] == told(client)
    leave(client)

    assert [] == told(arrive(node[0], more))


def test_losses_while_a_session_moves_are_told(start_node: StartNode) -> None:
    """What is lost last would be forgotten with the former place."""
    node = start_node(2)
    client = arrive(node[0])
    subscribed(client, "t", TOPIC)
    leave(client)
    publish(node[0], QUEUE + 1)
    session = node[0].session("me")
    assert session is not None
    transfer = node[0].transfer
    now = node.clock.now
    exported = transfer.begin_export(session, now)
    assert exported is not None
    session.missed(DropReason.QUEUE_FULL, 1, b"t")
    node[0].advance(2)
    node[0].look_at_gaps()

    gap = session.owed_gap().gap
    assert gap is not None
    assert {FULL: 2} == gap.counts
    transfer.cancel_export(exported, now, lambda: None)
    node.settle()
    assert [2] == told(arrive(node[0]))


def test_a_session_that_stays_is_looked_at_again(start_node: StartNode) -> None:
    """A client whose session was to move, to a worker that died, would never be told of a loss again."""
    node = start_node(2)
    client = arrive(node[0])
    subscribed(client, "t", TOPIC)
    leave(client)
    session = node[0].session("me")
    assert session is not None
    exported = node[0].transfer.begin_export(session, node.clock.now)
    assert exported is not None
    node[0].transfer.cancel_export(exported, node.clock.now, lambda: None)
    client = arrive(node[0])
    session.missed(DropReason.QUEUE_FULL, 3)
    node[0].look_at_gaps()

    assert [3] == told(client)


@pytest.mark.parametrize("way", ["notices", "properties"])
def test_a_gap_survives_the_worker(durable: Node, way: str) -> None:
    """A client that lost messages before a restart would not learn it."""
    more = ASKS if way == "properties" else None
    client = arrive(durable[0], more)
    subscribed(client, "t", *FILTER[way])
    leave(client)
    publish(durable[0], QUEUE + 1)
    durable[0].look_at_gaps()
    durable[0].advance(0.3)
    broker = restart(durable)
    session = broker.session("me")
    assert session is not None
    session.missed(DropReason.EXPIRED, 2)  # the new worker has to know that the client is to be told
    broker.look_at_gaps()
    broker.advance(0.3)
    broker = restart(durable)
    client = arrive(broker, more)

    assert [3] == told(client)
    leave(client)
    assert [] == told(arrive(restart(durable), more))


def test_a_client_that_asked_is_told_of_losses_after_a_restart(durable: Node) -> None:
    """A worker that has read the session would not know that anybody is to be told."""
    client = arrive(durable[0], ASKS)
    subscribed(client, "t")
    leave(client)
    broker = restart(durable)
    publish(broker, QUEUE + 1)
    broker.look_at_gaps()

    assert [1] == told(arrive(broker, ASKS))


def test_a_gap_is_stored_at_once_and_then_rarely(durable: Node, redis: RunningRedis) -> None:
    """A flood would be written twice: its messages, and how many were lost."""
    client = arrive(durable[0])
    subscribed(client, "t", TOPIC)
    leave(client)
    assert b"" == stored(redis)
    counts = []
    for _ in range(round(STORE_PAUSE) + 2):
        publish(durable[0], QUEUE + 1)
        durable[0].look_at_gaps()
        durable[0].advance(0.7)
        gap = unpack(stored(redis)).gap
        counts.append(0 if gap is None else gap.total())

    assert 2 == len(set(counts))
    assert counts[0] == 1
    durable[0].lifecycle.stop(durable.clock.now)
    durable[0].advance(0.3)
    gap = unpack(stored(redis)).gap
    assert gap is not None
    assert dropped(durable[0]) == gap.total()


def dropped(broker: Broker) -> int:
    return broker.counters.dropped_by_reason[FULL]


def test_nothing_is_stored_for_clients_that_do_not_ask(durable: Node, redis: RunningRedis) -> None:
    """Every full queue would cost Redis memory and commands."""
    client = arrive(durable[0])
    subscribed(client, "t")
    session = durable[0].session("me")
    assert session is not None
    session.missed(DropReason.EXPIRED, 1)
    leave(client)
    publish(durable[0], QUEUE + 1)
    durable[0].look_at_gaps()
    durable[0].advance(STORE_PAUSE + 1)

    assert b"" == stored(redis)


def test_a_gap_that_was_told_is_not_stored(durable: Node, redis: RunningRedis) -> None:
    """A client would be told again after each restart."""
    client = arrive(durable[0])
    subscribed(client, "t", TOPIC)
    leave(client)
    publish(durable[0], QUEUE + 1)
    durable[0].look_at_gaps()
    durable[0].advance(0.3)
    assert stored(redis)
    client = arrive(durable[0])
    assert [1] == told(client)
    durable[0].advance(0.3)

    assert b"" == stored(redis)


@pytest.mark.parametrize("way", ["notices", "properties"])
def test_nothing_is_stored_for_a_client_that_is_told_at_once(durable: Node, redis: RunningRedis, way: str) -> None:
    """A slow reader would cost Redis a write or two each second."""
    client = arrive(durable[0], ASKS if way == "properties" else None)
    subscribed(client, "t", *FILTER[way])
    session = durable[0].session("me")
    assert session is not None
    session.missed(DropReason.EXPIRED, 1)
    durable[0].advance(0.3)
    before = stored(redis)
    durable[0].look_at_gaps()
    durable[0].advance(0.3)
    assert before == stored(redis)
    publish(durable[0], 1)
    assert [1] == told(client)

    assert before == stored(redis)
    leave(client)
    assert before == stored(redis)


def test_a_notice_overtakes_what_is_stored(durable: Node) -> None:
    """A slow reader with a queue in Redis would never be told; or its messages get packet ids of others."""
    client = arrive(durable[0], {RECEIVE_MAXIMUM: 1})
    subscribed(client, "t", TOPIC)
    publish(durable[0], 1 + QUEUE + 2)
    durable[0].look_at_gaps()
    seen: list[Publish] = []
    for _ in range(1 + QUEUE):
        received = [each for each in client.receive() if isinstance(each, Publish)]
        client.send(*[Ack(PUBACK, each.packet_id) for each in received if each.qos])
        seen += received
        durable[0].advance(0.3)

    assert [(b"1", 1), (b"4", 1), (b"5", 1), (b"6", 1)] == [(each.payload, each.qos) for each in seen if each.qos]
    (notice,) = [each for each in seen if each.topic == TOPIC.encode()]
    assert ({FULL: 2}, 0) == (json.loads(notice.payload)["reasons"], notice.qos)
    assert seen.index(notice) <= 2


def test_a_damaged_gap_puts_the_session_aside(durable: Node, redis: RunningRedis) -> None:
    """What a newer version has written would end the worker, or the session be served without it."""
    client = arrive(durable[0])
    subscribed(client, "t")
    leave(client)
    (record,) = [key for key in redis.client().keys("*session:*me") if redis.client().type(key) == b"hash"]
    redis.client().hset(record, GAP, msgpack.packb((2, False, None)))
    broker = restart(durable)

    assert broker.session("me") is None
    assert 1 == broker.counters.sessions_damaged
