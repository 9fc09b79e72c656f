# Retained messages of workers whose sessions are stored: what outlives the workers, and when publishers are answered.
import time
from collections.abc import Callable

import pytest
import structlog.testing

from broker.config.schema import Config, Retained
from broker.insight.pending_answers import RequestRefused
from broker.mqtt.packets import PUBACK, PUBREC, V5, V311, Ack, Properties, Publish, Will
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, USER_PROPERTY
from broker.reasons import DropReason
from broker.store.durable.retained import CHANGE_BYTES, LEAST_BYTES
from broker.store.redis.keys import SLICES, Keys
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[..., Node]
DAY = 86_400.0
PATIENCE = 10.0  # seconds for what should take milliseconds


def restart(node: Node, wall: Callable[[], float] = time.time) -> Broker:
    """All workers end as if they were killed, and one begins."""
    for broker in list(node):
        node.kill(broker)
    return node.start(wall=wall)


def retain(broker: Broker, *said: tuple[bytes, bytes], version: int = V311) -> None:
    """Have a client retain these payloads of these topics, and see it answered."""
    publisher = broker.connect("publisher", version)
    publisher.send(*[Publish(topic, payload, 1, True, packet_id=n + 1) for n, (topic, payload) in enumerate(said)])
    assert [PUBACK] * len(said) == [packet.kind for packet in publisher.receive() if isinstance(packet, Ack)]
    publisher.drop()
    broker.settle()


def kept(broker: Broker, topic: bytes) -> bytes | None:
    message = broker.retained.get(topic, broker.clock.now)
    return None if message is None else message.payload


def answers(client: Client) -> list[tuple[int, int, int]]:
    return [(each.kind, each.packet_id, each.code) for each in client.receive() if isinstance(each, Ack)]


def full(node: Node, redis: RunningRedis, yes: bool) -> None:
    """The memory of Redis is used up, or there is room again."""
    redis.client().config_set("maxmemory", 1 if yes else 0)
    for broker in node:
        broker.answered = not yes
    if not yes:
        node.advance(0.5)


def test_what_was_acknowledged_outlives_all_workers(start_node: StartNode) -> None:
    """A power switch would delete all that is retained."""
    node = start_node(2)
    publisher = node[0].connect("publisher", V5)
    properties: Properties = {USER_PROPERTY: [("unit", "C")]}
    publisher.send(
        Publish(b"a", b"0", 0, True),
        Publish(b"b", b"1", 1, True, packet_id=1, properties=properties),
        Publish(b"c", b"2", 2, True, packet_id=2),
        Publish(b"d", b"3", 1, True, packet_id=3),
        Publish(b"d", b"", 1, True, packet_id=4),
    )
    assert [(PUBACK, 1), (PUBREC, 2), (PUBACK, 3), (PUBACK, 4)] == [each[:2] for each in answers(publisher)]
    broker = restart(node)
    subscriber = broker.connect("subscriber", V5)
    subscribed(subscriber, "#")
    found = [packet for packet in subscriber.receive() if isinstance(packet, Publish)]

    assert [(b"a", b"0", 0), (b"b", b"1", 1), (b"c", b"2", 2)] == sorted((p.topic, p.payload, p.qos) for p in found)
    assert all(packet.retain for packet in found)
    assert [("unit", "C")] == next(p.properties[USER_PROPERTY] for p in found if p.topic == b"b")


def test_a_publisher_waits_until_its_message_is_stored(start_node: StartNode, redis: RunningRedis) -> None:
    """A message would be acknowledged that the next restart loses; or nobody be served meanwhile."""
    node = start_node(2)
    subscriber = node[1].connect("subscriber")
    subscribed(subscriber, "#")
    publisher, second, third = [node[0].connect(name) for name in ("publisher", "second", "third")]
    full(node, redis, True)
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1), Publish(b"b", b"2", 2, True, packet_id=2))
    publisher.send(Publish(b"c", b"3", 1, packet_id=3))
    second.send(Publish(b"a", b"4", 1, True, packet_id=1), Publish(b"d", b"5", 0, True))
    assert [] == answers(publisher) + answers(second)
    assert [b"1", b"2", b"3", b"4", b"5"] == sorted(payloads(subscriber))
    third.send(Publish(b"c", b"6", 1, packet_id=1))
    assert [(PUBACK, 1, 0)] == answers(third)
    full(node, redis, False)

    assert [(PUBACK, 1, 0), (PUBREC, 2, 0), (PUBACK, 3, 0)] == answers(publisher)
    assert [(PUBACK, 1, 0)] == answers(second)
    broker = restart(node)
    assert [b"4", b"2", b"5"] == [kept(broker, topic) for topic in (b"a", b"b", b"d")]


def test_what_was_not_stored_was_not_acknowledged(start_node: StartNode, redis: RunningRedis) -> None:
    """A worker that is killed between its memory and Redis would have lied."""
    node = start_node()
    retain(node[0], (b"a", b"1"))
    publisher = node[0].connect("publisher")
    full(node, redis, True)
    publisher.send(Publish(b"a", b"2", 1, True, packet_id=1), Publish(b"b", b"3", 2, True, packet_id=2))
    assert [] == answers(publisher)
    assert [b"2", b"3"] == [kept(node[0], b"a"), kept(node[0], b"b")]
    redis.client().config_set("maxmemory", 0)
    broker = restart(node)

    assert [b"1", None] == [kept(broker, b"a"), kept(broker, b"b")]


def test_publishers_go_on_when_redis_is_back(start_node: StartNode, redis: RunningRedis) -> None:
    """After an outage of Redis publishers would wait for ever."""
    node = start_node()
    retain(node[0], (b"a", b"1"))
    publisher = node[0].connect("publisher")
    redis.kill()
    node[0].answered = False
    publisher.send(Publish(b"a", b"2", 1, True, packet_id=1), Publish(b"b", b"3", 1, True, packet_id=2))
    assert [] == answers(publisher)
    node.advance(1)
    redis.start()
    found: list[tuple[int, int, int]] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < 2 and time.monotonic() < deadline:
        node.advance(0.1)
        found += answers(publisher)

    assert [(PUBACK, 1, 0), (PUBACK, 2, 0)] == found
    node[0].answered = True
    broker = restart(node)
    assert [b"2", b"3"] == [kept(broker, topic) for topic in (b"a", b"b")]


def test_two_workers_that_write_at_once_agree_with_redis(start_node: StartNode) -> None:
    """After a restart another of the two messages would be there than before."""
    node = start_node(2)
    publishers = [broker.connect(f"publisher {n}") for n, broker in enumerate(node)]
    for round in range(20):
        for n, publisher in enumerate(publishers):
            payload = b"" if round % 5 == 4 and n == round % 2 else b"%d of %d" % (round, n)
            publisher.send(Publish(b"%d" % round, payload, 1, True, packet_id=1 + round))
        node.settle()
    assert [20, 20] == [len(answers(publisher)) for publisher in publishers]
    before = [kept(node[0], b"%d" % round) for round in range(20)]
    assert before == [kept(node[1], b"%d" % round) for round in range(20)]

    broker = restart(node)
    assert before == [kept(broker, b"%d" % round) for round in range(20)]


def test_what_another_worker_deletes_stays_deleted(start_node: StartNode) -> None:
    """A deletion would last until the restart."""
    node = start_node(2)
    retain(node[0], (b"a", b"1"), (b"b", b"1"))
    retain(node[1], (b"a", b""))
    broker = restart(node)

    assert [None, b"1"] == [kept(broker, topic) for topic in (b"a", b"b")]


def test_a_worker_that_is_replaced_serves_nobody_before_it_has_all(start_node: StartNode, redis: RunningRedis) -> None:
    """A subscriber that comes at once would not get what is retained."""
    node = start_node(1)
    retain(node[0], (b"0", b"x"))
    keys, writes = Keys("weir"), redis.client().pipeline(transaction=False)
    value = redis.client().hget(keys.retained(keys.slice_of(b"0")), b"0")
    for number in range(20_000):  # more pages than the adoption of sessions takes steps
        writes.hset(keys.retained(keys.slice_of(b"%d" % number)), b"%d" % number, value)
    writes.execute()
    node.kill(node[0])
    broker = node.start(adopts=False)
    served: list[int] = []
    durable = broker.worker.protocol.durable
    assert durable is not None
    durable._before_serving.append(lambda: served.append(broker.retained.statistics().count))
    broker.stopped = False
    while not served:
        broker.settle()

    assert [20_000] == served


def test_the_clock_may_be_set_back(start_node: StartNode) -> None:
    """After a reboot with a wrong clock the messages of before would win."""
    node = start_node()
    retain(node[0], (b"a", b"1"), (b"b", b"1"))
    broker = restart(node, lambda: time.time() - DAY)
    retain(broker, (b"a", b"2"), (b"b", b""))
    broker = restart(node, lambda: time.time() - 2 * DAY)

    assert [b"2", None] == [kept(broker, topic) for topic in (b"a", b"b")]


def test_expiry_goes_on_while_no_worker_is_there(start_node: StartNode, redis: RunningRedis) -> None:
    """A message would live for ever if the node is restarted often, and stay in Redis."""
    node = start_node()
    publisher = node[0].connect("publisher", V5)
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 3600}))
    assert 1 == len(answers(publisher))
    broker = restart(node, lambda: time.time() + 3000)
    message = broker.retained.peek(b"a")
    assert message is not None and 500 < message.expires - broker.clock.now <= 600
    broker = restart(node, lambda: time.time() + 3700)

    assert kept(broker, b"a") is None
    broker.settle()
    assert [] == redis.client().keys("*retained*")


def test_the_will_of_a_dead_worker_is_stored(start_node: StartNode) -> None:
    """The last message of a device would be lost with the worker that published it."""
    node = start_node(2)
    node[0].connect("device", will=Will(b"state", b"gone", 1, True))
    node.settle()
    dead = node[0]
    node.kill(dead)
    node.publish_wills_of(dead, node[0])
    node.settle()
    assert b"gone" == kept(node[0], b"state")

    assert b"gone" == kept(restart(node), b"state")


def test_changes_beyond_the_limit_are_refused_while_redis_is_away(start_node: StartNode, redis: RunningRedis) -> None:
    """A client would fill the memory with changes that cannot be stored; or lose one without a word."""
    node = start_node(1, Config(retained=Retained(bytes=LEAST_BYTES)))
    room = LEAST_BYTES // (CHANGE_BYTES + 2) - 1
    publisher, old = node[0].connect("publisher", V5), node[0].connect("old")
    subscriber = node[0].connect("subscriber")
    subscribed(subscriber, "new/#")
    full(node, redis, True)
    topics = [b"%02x" % (number % 256) + b"x" * (number // 256) for number in range(room)]
    for topic in topics:
        publisher.send(Publish(topic, b"", 0, True))
    publisher.send(Publish(b"new/1", b"1", 1, True, packet_id=1), Publish(topics[0], b"", 1, True, packet_id=2))
    old.send(Publish(b"new/2", b"2", 1, True, packet_id=1), Publish(b"new/3", b"3", 0, True))
    assert [(PUBACK, 1, 0x97)] == answers(publisher)
    assert [(PUBACK, 1, 0)] == answers(old)
    assert [b"2", b"3"] == payloads(subscriber)
    assert 3 == node[0].counters.dropped_by_reason[DropReason.RETAINED_UNWRITTEN.label]
    full(node, redis, False)

    assert [(PUBACK, 2)] == [each[:2] for each in answers(publisher)]
    retain(node[0], (b"new/1", b"1"))
    assert [b"1", None] == [kept(node[0], topic) for topic in (b"new/1", b"new/2")]


def test_what_cannot_be_read_is_counted_and_logged_once(start_node: StartNode, redis: RunningRedis) -> None:
    """A node would not start, or nobody learn what is missing."""
    node = start_node(1, Config(retained=Retained(messages=20)))
    retain(node[0], *[(b"%d" % number, b"x") for number in range(20)])
    keys, client = Keys("weir"), redis.client()
    for number in range(10):
        topic = b"damaged/%d" % number
        client.hset(keys.retained(keys.slice_of(topic)), topic, "?")
    for name in (b"20", b"21"):
        client.hset(keys.retained(keys.slice_of(name)), name, client.hget(keys.retained(keys.slice_of(b"0")), b"0"))
    with structlog.testing.capture_logs() as log:
        broker = restart(node)
    found = {line["event"]: line for line in log if line["event"].startswith("retained")}

    assert {"retained_loaded": 20, "retained_left": 2, "retained_damaged": 10} == {
        event: line["messages"] for event, line in found.items()
    }
    assert found["retained_damaged"]["topic"].startswith("damaged/") and found["retained_damaged"]["why"]
    assert (10, 2) == (broker.counters.retained_damaged, broker.counters.retained_left)
    broker.settle()
    assert 10 == sum([client.hlen(keys.unreadable(number)) for number in range(SLICES)])


def test_a_deletion_that_is_ahead_of_the_start_is_remembered(start_node: StartNode) -> None:
    """What was read from Redis before the deletion was stored would be there again at the new worker."""
    node = start_node(2)
    retain(node[0], (b"a", b"1"))
    store = node[1].worker.links.durable_store
    assert store is not None and store.retained_load is not None
    store.retained_load.done = False
    node[1].retained.delete(b"a")  # it was not read yet
    retain(node[0], (b"a", b""))

    assert node[1].retained.tombstone(b"a")


def test_nothing_is_stored_of_messages_in_memory(nodes: Callable[..., Node], redis: RunningRedis) -> None:
    """Redis would be filled, and publishers wait, on nodes that want neither."""
    node = nodes(1, None, redis)
    publisher = node[0].connect("publisher")
    redis.pause()
    node[0].answered = False
    publisher.send(Publish(b"a", b"1", 1, True, packet_id=1))
    assert [(PUBACK, 1, 0)] == answers(publisher)
    redis.go_on()
    node[0].answered = True
    node.settle()

    assert [] == redis.client().keys("*retained*")


def test_topics_of_the_broker_are_not_stored(start_node: StartNode, redis: RunningRedis) -> None:
    """Figures of a former life would be told after a restart."""
    node = start_node()
    node[0].worker.metrics.publish_sys()
    node.settle()
    assert 0 < node[0].retained.statistics().count

    assert [] == redis.client().keys("*retained*")


def test_what_an_operator_clears_stays_cleared(start_node: StartNode, redis: RunningRedis) -> None:
    """The operator would be told that a value is gone which the next restart brings back."""
    node = start_node()
    retain(node[0], (b"a", b"1"), (b"b", b"2"))
    full(node, redis, True)
    said = Operator(node[0]).begin("retained_clear", {"filter": "a", "scan": 0})
    node.settle()
    assert [] == said
    full(node, redis, False)

    assert [({"messages": 1, "scan": 0}, "")] == said
    broker = restart(node)
    assert [None, b"2"] == [kept(broker, topic) for topic in (b"a", b"b")]


def test_what_cannot_be_stored_is_not_cleared(start_node: StartNode, redis: RunningRedis) -> None:
    """A value would be counted as cleared that is still there."""
    node = start_node(1, Config(retained=Retained(bytes=LEAST_BYTES)))
    retain(node[0], (b"kept", b"1"))
    publisher, subscriber = node[0].connect("publisher", V5), node[0].connect("subscriber")
    subscribed(subscriber, "kept")
    assert [b"1"] == payloads(subscriber)
    full(node, redis, True)
    for number in range(LEAST_BYTES // CHANGE_BYTES):
        publisher.send(Publish(b"%04x" % number, b"", 0, True))
    publisher.receive()

    with pytest.raises(RequestRefused, match="Of the last 1 messages, 0 were cleared"):
        Operator(node[0]).ask("retained_clear", {"filter": "kept", "scan": 0})

    assert b"1" == kept(node[0], b"kept")
    assert [] == payloads(subscriber)
