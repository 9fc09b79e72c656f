# Wills of durable sessions at several workers: each is published whatever dies, and durable receivers get it once.
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgpack
import pytest

from broker.mqtt.packets import PUBACK, V5, Ack, ConnAck, Connect, Properties, Publish, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL, WILL_DELAY_INTERVAL
from broker.store.durable.index import READ
from broker.store.durable.stored_session import WILL
from broker.store.redis.keys import DURABLE_FORMAT, Keys
from supervisor.backup.backup_file import BackupReader, BackupWriter, Head
from supervisor.backup.export import Export
from supervisor.backup.restore import Restore
from tests.cluster.durable_node import StartRedis
from tests.cluster.talk import subscribed
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.insight.operators import Operator
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartNode = Callable[[int], Node]
GONE = Will(b"will", b"gone", 1)


def arrive(
    broker: Broker, client_id: str, will: Will | None = None, expiry: int = 86_400, clean: bool = False
) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: expiry}
    client = broker.connect(client_id, V5, clean_start=clean, will=will, properties=properties)
    broker.settle()
    return client


def watch(broker: Broker) -> None:
    """The client "watcher" subscribes to wills, and leaves."""
    client = arrive(broker, "watcher")
    subscribed(client, "will")
    client.drop()
    broker.settle()
    broker.advance(0.5)


def wills(broker: Broker, client_id: str = "watcher") -> list[bytes]:
    """The wills that have come to the client since the last call."""
    client = arrive(broker, client_id)
    packets = [packet for packet in client.receive() if isinstance(packet, Publish)]
    client.send(*[Ack(PUBACK, packet.packet_id) for packet in packets])
    client.drop()
    broker.settle()
    broker.advance(0.5)
    return [packet.payload for packet in packets]


def restart(node: Node, workers: int = 2) -> None:
    """All workers end as if they were killed, and so many begin."""
    for broker in list(node):
        node.kill(broker)
    for shard in range(workers):
        node.start(shard)
    node.advance(1.0)


def pending(redis: RunningRedis) -> int:
    """Records of wills that are published, and not done."""
    return len(redis.client().keys(b"*:session:*\0w*"))


ENDS = ("dropped", "late", "expired", "taken over", "stopped", "dropped by an operator")


def delayed(how: str) -> Will:
    """The will of a session of 30 seconds that ends as *how* says: see `end()`."""
    return Will(b"will", b"gone", 1, False, {WILL_DELAY_INTERVAL: {"late": 10, "expired": 100}.get(how, 0)})


def end(node: Node, client: Client, how: str) -> None:
    """The session of *client*, at the first worker, publishes its will."""
    if how == "taken over":
        arrive(node[0], "device", clean=True).drop()
    elif how == "stopped":
        node[0].worker.protocol.lifecycle.stop(node.clock.now)
    elif how == "dropped by an operator":
        Operator(node[0]).begin("session_drop", {"client": "device"})
    else:
        client.drop()
    node.settle()
    node.advance({"late": 11.0, "expired": 31.0}.get(how, 0.5))


@pytest.mark.parametrize("how", ENDS)
def test_a_will_whose_receiver_has_no_worker_now_is_published_again(
    start_node: StartNode, redis: RunningRedis, how: str
) -> None:
    """Nobody would hear of a client that is gone, as its will was published while a worker was replaced."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", delayed(how), 30)
    node.advance(0.5)
    node.kill(node[1])
    end(node, device, how)
    assert 1 == pending(redis)

    node.start(1)
    node.advance(1.0)

    assert [b"gone"] == wills(node[1])
    assert 0 == pending(redis)
    restart(node)
    assert [] == wills(node[1])


@pytest.mark.parametrize("how", ENDS)
def test_a_will_outlives_the_worker_that_has_published_it(start_node: StartNode, redis: RunningRedis, how: str) -> None:
    """It was removed from the store before anybody had it."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", delayed(how), 30)
    node.advance(0.5)
    node.kill(node[1])
    end(node, device, how)

    restart(node)

    assert [b"gone"] == wills(node[1])
    assert 0 == pending(redis)


def test_a_will_that_was_stored_before_its_publisher_died_comes_once(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """The worker that follows cannot know that it was stored, and publishes it again."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    publisher, receiver = node[0], node[1]
    receiver.stopped = True
    device.drop()
    node.settle()
    assert 1 == pending(redis)
    node.kill(publisher)
    receiver.stopped = False
    receiver.settle()
    receiver.advance(0.5)

    node.start(0)
    node.advance(1.0)

    assert 0 == pending(redis)
    assert [b"gone"] == wills(receiver)


def test_a_client_that_is_back_has_its_next_will_beside_one_that_waits(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """One would replace the other, or be withdrawn with it."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    node.kill(node[1])
    device.drop()
    node.settle()
    device = arrive(node[0], "device", Will(b"will", b"again", 1))
    node.settle()
    device.drop()
    node.settle()
    node.advance(0.5)
    assert 2 == pending(redis)

    restart(node)

    assert [b"again", b"gone"] == sorted(wills(node[1]))
    assert 0 == pending(redis)


def test_a_will_that_is_stored_twice_is_published_once(start_node: StartNode, redis: RunningRedis) -> None:
    """A worker that dies between two transactions leaves it in both records: one would end the other."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    node[1].stopped = True
    device.drop()
    node.settle()
    server = redis.client()
    (key,) = server.keys(b"*:session:*\0w*")
    (of_session,) = server.keys(b"*:session:*:device")
    server.hset(of_session, WILL, server.hget(key, WILL))
    (index,) = [each for each in server.keys(b"*:sessions:*") if server.hexists(each, "device")]
    server.hset(index, "device", READ)  # as long as the will is there

    restart(node)

    assert [b"gone"] == wills(node[1])
    assert 0 == pending(redis)
    assert not server.hexists(server.keys(b"*:session:*:device")[0], WILL)
    assert 0 == sum(broker.worker.base.counters.internal_errors for broker in node)


def stored_wills(redis: RunningRedis) -> list[bytes]:
    """The keys of the records that have a will."""
    client = redis.client()
    return sorted(key for key in cast(list[bytes], client.keys(b"*:session:*")) if client.hexists(key, WILL))


def will_in(redis: RunningRedis, key: bytes) -> bytes:
    payload: bytes = msgpack.unpackb(redis.client().hget(key, WILL))[1]
    return payload


def fill(redis: RunningRedis, full: bool = True) -> None:
    """Redis is *full*, or has memory again."""
    redis.client().config_set("maxmemory", 1 if full else 0)


@pytest.mark.parametrize("how", [*ENDS, "moved"])
def test_a_will_that_is_published_while_redis_is_full_outlives_its_worker(
    start_node: StartNode, redis: RunningRedis, how: str
) -> None:
    """What removes it from the record of its session is carried out then, and nobody has stored it."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", delayed(how), 30)
    node.advance(0.5)
    fill(redis)
    if how == "moved":
        arrive(node[1], "device").drop()
        node.advance(0.5)
    else:
        end(node, device, how)

    (only,) = stored_wills(redis)
    assert b"\0w" in only
    restart(node)
    assert 1 == len(stored_wills(redis))
    fill(redis, False)
    node.advance(1.0)

    assert [b"gone"] == wills(node[1])
    assert [] == stored_wills(redis)
    restart(node)
    assert [] == wills(node[1])


@pytest.mark.parametrize("dies", [True, False])
def test_a_will_that_is_published_while_redis_does_not_answer_comes_once(
    start_node: StartNode, redis: RunningRedis, dies: bool
) -> None:
    """Nothing of it is stored, neither for the receiver nor by itself, or it is stored and nobody knows that."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    redis.pause()
    for broker in node:
        broker.answered = False
    device.drop()
    node.settle()
    node.advance(1.0)
    if dies:
        for broker in list(node):
            node.kill(broker)
    redis.go_on()
    if dies:
        for shard in range(2):
            node.start(shard)
    for broker in node:
        broker.answered = True
    node.advance(1.0)

    assert [b"gone"] == wills(node[1])
    assert [] == stored_wills(redis)


def test_a_will_that_was_never_stored_does_not_bring_back_the_one_before(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A client would be called dead with the words of a connection that it has replaced."""
    node = start_node(2)
    watch(node[1])
    arrive(node[0], "device", GONE)
    node.advance(0.5)
    fill(redis)
    device = arrive(node[0], "device", Will(b"will", b"again", 1, False, {WILL_DELAY_INTERVAL: 5}))
    node.advance(0.5)
    assert [b"gone"] == [will_in(redis, key) for key in stored_wills(redis)]
    device.drop()
    node.advance(6.0)
    fill(redis, False)
    node.advance(1.0)

    assert [b"gone", b"again"] == wills(node[1])
    assert [] == stored_wills(redis)


def test_a_client_that_is_back_before_its_will_is_due_withdraws_it(start_node: StartNode, redis: RunningRedis) -> None:
    """It would be called dead, at a worker that has adopted it, although it is back within the delay [MQTT-3.1.3-9]."""
    node = start_node(2)
    watch(node[1])
    arrive(node[0], "device", Will(b"will", b"gone", 1, False, {WILL_DELAY_INTERVAL: 20})).drop()
    node.advance(5.0)
    restart(node)
    node.advance(5.0)
    assert 1 == len(stored_wills(redis))

    arrive(node[1], "device")
    node.advance(30.0)

    assert [] == wills(node[0])
    assert [] == stored_wills(redis)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_will_that_is_overdue_is_published_though_its_client_is_back_first(
    start_node: StartNode, redis: RunningRedis, delay: int
) -> None:
    """A worker serves clients before it knows all receivers, for which wills wait: this one would be withdrawn."""
    node = start_node(2)
    watch(node[1])
    arrive(node[0], "device", Will(b"will", b"gone", 1, False, {WILL_DELAY_INTERVAL: delay}))
    node.advance(0.5)
    for broker in list(node):
        node.kill(broker)
    node.start(0)  # the other one is missing
    node.advance(2.0 * delay)
    device = arrive(node[0], "device", Will(b"will", b"again", 1))
    assert device.connack.session_present
    node.advance(0.5)
    assert [b"again", b"gone"] == sorted(will_in(redis, key) for key in stored_wills(redis))

    node.start(1)
    node.advance(1.0)

    assert [b"gone"] == wills(node[1])
    assert [b"again"] == [will_in(redis, key) for key in stored_wills(redis)]


def test_a_will_is_published_again_that_a_worker_has_published_which_dies_as_it_gives_the_session_away(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """It is in the record of a session that has come without it, and its client would replace it there."""
    giver, taker, receiver = node = start_node(3)
    watch(receiver)
    arrive(giver, "device", GONE)
    node.advance(0.5)
    node.kill(receiver)
    server = redis.client()
    (of_session,) = stored_wills(redis)
    stored = server.hget(of_session, WILL)
    device = taker.open(V5)
    device.send(Connect(V5, "device", False, properties={SESSION_EXPIRY_INTERVAL: 3600}))
    while server.hexists(of_session, WILL):
        taker.turn()
        giver.turn()
    (of_will,) = stored_wills(redis)  # nothing of the publish was stored
    server.delete(of_will)
    for index in server.keys(b"*:sessions:*"):
        server.hdel(index, of_will.split(b":")[-1])
    server.hset(of_session, WILL, cast(bytes, stored))
    node.kill(giver)
    node.start(0)
    node.start(2)
    node.advance(1.0)

    assert [True] == [each.session_present for each in device.receive() if isinstance(each, ConnAck)]
    assert [b"gone"] == wills(node[2])
    assert [] == stored_wills(redis)


def test_a_client_that_is_back_at_another_worker_does_not_withdraw_its_will(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """Its connection has ended with its worker, and there is no delay: nobody would hear of that."""
    node = start_node(2)
    watch(node[1])
    arrive(node[0], "device", GONE)
    node.advance(0.5)
    node.kill(node[0])

    device = arrive(node[0], "device")
    node.start(0)
    node.advance(3.0)

    assert device.connack.session_present
    assert [b"gone"] == wills(node[0])
    assert [] == stored_wills(redis)


def test_a_connected_client_is_sent_a_will_when_it_is_stored(start_node: StartNode, redis: RunningRedis) -> None:
    """It would get the will again from the worker that follows, as one that it has not seen."""
    node = start_node(1)
    device = arrive(node[0], "device", GONE)
    watcher = arrive(node[0], "watcher")
    subscribed(watcher, "will")
    arrive(node[0], "other").send(Publish(b"will", b"before", 1, packet_id=1))
    (before,) = watcher.receive()
    assert isinstance(before, Publish)
    node.advance(0.5)
    fill(redis)
    node[0].answered = False
    device.drop()
    node.settle()
    watcher.send(Ack(PUBACK, before.packet_id))  # there is room for the next one
    assert [] == watcher.receive()

    fill(redis, False)
    node[0].answered = True
    node.advance(1.0)

    assert [b"gone"] == [packet.payload for packet in watcher.receive() if isinstance(packet, Publish)]


def test_what_was_retained_later_stays_when_a_will_is_published_again(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """A device that is back would be called dead for ever."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", Will(b"will", b"gone", 1, True))
    node.advance(0.5)
    node[1].stopped = True
    device.drop()
    node.settle()
    node.advance(0.5)
    assert 1 == pending(redis)
    device = arrive(node[0], "device")
    time.sleep(0.002)  # stamps come from wall time
    device.send(Publish(b"will", b"here", 0, True))
    node.settle()
    node.advance(0.5)

    restart(node)

    kept = node[0].retained.get(b"will", node.clock.now)
    assert kept is not None
    assert b"here" == kept.payload
    assert b"gone" in wills(node[1])
    assert 0 == pending(redis)


def test_a_will_that_was_published_is_retained_by_the_worker_that_follows(
    start_node: StartNode, redis: RunningRedis
) -> None:
    """What new subscribers are told would be lost with the worker, as nothing else was retained."""
    node = start_node(1)
    device = arrive(node[0], "device", Will(b"will", b"gone", 1, True))
    node.advance(0.5)
    device.drop()
    node.settle()

    restart(node, 1)

    kept = node[0].retained.get(b"will", node.clock.now)
    assert kept is not None
    assert b"gone" == kept.payload
    assert 0 == pending(redis)


def test_wills_that_are_done_leave_nothing(start_node: StartNode, redis: RunningRedis) -> None:
    """The account of wills, or Redis, would fill with those of clients that come and go."""
    node = start_node(1)
    watch(node[0])
    before = node[0].worker.protocol.sessions.wills.used
    for will in (GONE, Will(b"will", b"gone", 0), Will(b"nobody", b"gone", 1), Will(b"will", b"gone", 2)):
        arrive(node[0], "device", will).drop()
        node.settle()
        node.advance(0.5)

    assert before == node[0].worker.protocol.sessions.wills.used
    assert 0 == pending(redis)
    assert not [
        name for index in redis.client().keys("*:sessions:*") for name in redis.client().hkeys(index) if b"\0w" in name
    ]


def test_a_will_that_waits_for_its_receivers_is_in_a_backup(
    start_node: StartNode, nodes: Callable[..., Node], redis: RunningRedis, start_redis: StartRedis, tmp_path: Path
) -> None:
    """A backup would have neither the session, which has ended, nor its will."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    node[1].stopped = True
    device.drop()
    node.settle()
    assert 1 == pending(redis)
    file = tmp_path / "backup"
    with BackupWriter(file, Head("weir", "0.1.0", DURABLE_FORMAT, time.time(), False)) as backup:
        Export(redis.client(), Keys("weir"), backup).run()
        backup.finish()
    server = start_redis()
    with BackupReader(file) as read:
        Restore(server.client(), "weir", "weir", read).run()

    restored = nodes(1, None, server, durable=True)
    restored.advance(0.5)

    assert [b"gone"] == wills(restored[0])
    assert 0 == pending(server)


@pytest.mark.parametrize("damage", [b"no will", None])
def test_a_will_that_waits_and_cannot_be_read_is_put_aside(
    start_node: StartNode, redis: RunningRedis, damage: bytes | None
) -> None:
    """One damaged value would stop all sessions of a worker."""
    node = start_node(2)
    watch(node[1])
    device = arrive(node[0], "device", GONE)
    node.advance(0.5)
    node[1].stopped = True
    device.drop()
    node.settle()
    (key,) = redis.client().keys(b"*:session:*\0w*")
    if damage is None:
        redis.client().hdel(key, WILL)
    else:
        redis.client().hset(key, WILL, damage)
    node.kill(node[1])

    restart(node)

    assert [] == wills(node[1])
    assert 0 == pending(redis)
    assert 1 == sum(broker.worker.base.counters.sessions_damaged for broker in node)
