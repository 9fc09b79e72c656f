# The wills of a dead worker's clients, on a real Redis: each once, and none of who is back.
from collections.abc import Callable

import pytest

from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.seal import Seal
from broker.cluster.will_record import decode, encode, sealed
from broker.metrics.counters import Counters
from broker.mqtt.packets import Will
from broker.mqtt.properties import CONTENT_TYPE, USER_PROPERTY, WILL_DELAY_INTERVAL
from broker.store.redis.connection import packed
from broker.store.redis.keys import SLICES
from broker.store.redis.pipeline import CallbackCommand
from broker.store.redis.script import Script
from supervisor.redis_server import RedisServer
from tests.cluster.paper import HANDSHAKE_REPLIES, on_paper
from tests.cluster.shard import KEYS, Shard
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]

WILL = Will(b"gone", b"payload \x00\xff", 1, True, {CONTENT_TYPE: "text", USER_PROPERTY: [("a", "b"), ("a", "c")]})


def left(text: str, delay: int = 0) -> bytes:
    return encode(Will(b"gone", text.encode()), delay, None)


def mourned(shard: Shard) -> list[tuple[str, bytes]]:
    shard.loop.until(shard.orphaned_wills.idle)
    return sorted((client_id, will.payload) for client_id, _, will in shard.published)


def test_a_will_comes_back_as_it_was() -> None:
    """A will would be published to another topic, or without its properties, or as nobody's."""
    delayed = Will(WILL.topic, WILL.payload, WILL.qos, WILL.retain, {**WILL.properties, WILL_DELAY_INTERVAL: 5})
    for user in (None, "", "somebody"):
        delay, record = encode(delayed, 5, user).split(b" ", 1)

        assert (b"5", (WILL, user)) == (delay, decode(record))


def test_the_wills_of_a_dead_worker_are_published(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """Nobody would say that the clients of a dead worker are gone [MQTT-3.1.2-8]."""
    server = start_redis(every_server)
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    for number in range(300):
        dead.claim(f"client{number}", left(str(number)) if number % 3 else b"")
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    expected = [(f"client{number}", str(number).encode()) for number in range(300) if number % 3]
    assert sorted(expected) == mourned(mourner)
    with server.client() as client:
        assert [] == client.keys("*:wills:*")


def test_what_a_dead_worker_had_asked_for_is_not_done_any_more(start_redis: StartRedis, loop: Loop) -> None:
    """A Redis that stood still reads it after the mourner: its will would wait, and its owner be nobody, for a day."""
    server = start_redis()
    dead, mourner, other = (Shard(loop, server.address, number) for number in (1, 2, 3))
    dead.claim("known", left("known"))
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    assert [("known", b"known")] == mourned(mourner)

    verdicts = dead.ask("late", will=left("late"))  # what is read now was sent before it died
    loop.until(lambda: bool(verdicts))
    dead.registry.owned.mark_all_stale()
    loop.for_seconds(0.3)

    with server.client() as client:
        assert [] == client.keys("*:owner:*") + client.keys("*:wills:*")
    assert 0 < other.claim("late")


def test_what_the_dead_worker_was_done_with_is_not_published_again(start_redis: StartRedis, loop: Loop) -> None:
    """What it published while Redis was away would be heard twice; or what its client left after that, never."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    done = dead.claim("done", left("done"))
    before = dead.claim("came back", left("before"))
    dead.claim("came back", left("after"))
    dead.claim("gone", left("gone"))
    mourner.orphaned_wills.publish_wills_of(
        dead.identity.incarnation, loop.now(), [("done", done), ("came back", before)]
    )

    assert [("came back", b"after"), ("gone", b"gone")] == mourned(mourner)
    with server.client() as client:
        assert [] == client.keys("*:wills:*")


def test_the_user_of_a_will_is_known_to_the_mourner(start_redis: StartRedis, loop: Loop) -> None:
    """It would be published though its client might not, or not though it might."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    dead.claim("me", encode(WILL, 0, "somebody"))
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    loop.until(mourner.orphaned_wills.idle)

    assert [("me", "somebody", WILL)] == mourner.published


def test_who_is_back_is_spared(start_redis: StartRedis, loop: Loop) -> None:
    """A client that is connected would be said to be gone."""
    server = start_redis()
    dead, mourner, other = (Shard(loop, server.address, number) for number in (1, 2, 3))
    for client_id in ("back here", "back there", "gone"):
        dead.claim(client_id, left(client_id))
    mourner.claim("back here")
    other.claim("back there", left("another"))
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    assert [("gone", b"gone")] == mourned(mourner)


def test_a_delayed_will_waits_and_is_taken_back(start_redis: StartRedis, loop: Loop) -> None:
    """A will delay would mean nothing when a worker dies [MQTT-3.1.3-9]."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    dead.claim("slow", left("slow", 1))
    dead.claim("back", left("back", 1))
    dead.claim("quick", left("quick"))
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    loop.until(lambda: bool(mourner.published))
    loop.for_seconds(0.3)
    assert ["quick"] == [client_id for client_id, _, _ in mourner.published]
    mourner.claim("back")

    assert [("quick", b"quick"), ("slow", b"slow")] == mourned(mourner)


def test_two_mourners_publish_each_will_once(start_redis: StartRedis, loop: Loop) -> None:
    """While workers die, each of two would take itself for the one to mourn, and publish everything twice."""
    server = start_redis()
    dead, one, two = (Shard(loop, server.address, number) for number in (1, 2, 3))
    for number in range(200):
        dead.claim(f"client{number}", left("x"))
    one.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    two.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    one.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    loop.until(lambda: one.orphaned_wills.idle() and two.orphaned_wills.idle())
    published = [client_id for shard in (one, two) for client_id, _, _ in shard.published]

    assert sorted(f"client{number}" for number in range(200)) == sorted(published)


def test_a_will_that_was_published_or_taken_back_is_not_there(start_redis: StartRedis, loop: Loop) -> None:
    """A client that has said goodbye would be said to be gone when its worker dies."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    for client_id in ("goodbye", "ended", "again without", "stays"):
        dead.claim(client_id, left(client_id))
    dead.registry.drop_will("goodbye", loop.now())
    dead.registry.release("ended")
    dead.claim("again without")
    dead.settle()
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    assert [("stays", b"stays")] == mourned(mourner)


def test_a_will_taken_back_in_an_outage_is_not_published_later(start_redis: StartRedis, loop: Loop) -> None:
    """Redis would keep what it was not told of."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    dead.claim("me", left("x"))
    server.kill()
    loop.until(lambda: dead.commands.state == 0)
    dead.registry.drop_will("me", loop.now())
    server.start()
    dead.settle()
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    assert [] == mourned(mourner)


def test_mourning_goes_on_after_an_outage(start_redis: StartRedis, loop: Loop) -> None:
    """Wills would be lost when Redis dies together with a worker."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    for number in range(100):
        dead.claim(f"client{number}", left("x"))
    server.kill()
    loop.until(lambda: mourner.commands.state == 0)
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())
    loop.for_seconds(0.2)
    server.start()

    assert 100 == len(mourned(mourner))


class Published:
    def __init__(self) -> None:
        self.client_ids: list[str] = []

    def publish_will(self, client_id: str, user: str | None, will: Will, now: float) -> None:
        self.client_ids.append(client_id)


def test_what_redis_carried_out_late_is_published_all_the_same(loop: Loop) -> None:
    """A slow Redis would eat the wills that it has taken out."""
    commands, paper = on_paper(loop)
    commands.receive(HANDSHAKE_REPLIES, 1000, 0.0)
    published = Published()
    wills = OrphanedWills(
        commands, KEYS, Script(commands, b"script"), published.publish_will, Seal(b"", Counters(), loop.log)
    )
    wills.publish_wills_of(0xDEAD, 0.0)
    wills.tick(0.0)
    commands.receive(b":1\r\n" * SLICES, 1000, 0.0)  # it is marked as dead
    will = b"$%d\r\n%b\r\n" % (len(left("x")) + 2, b"7 " + left("x"))
    for page in range(SLICES):
        wills.tick(0.0)
        found = b"*2\r\n$2\r\nme\r\n" + will if page == 0 else b"*0\r\n"
        commands.receive(b"*2\r\n$1\r\n0\r\n" + found, 1000, 0.0)
    for _ in range(2):  # asked before, and answered so slowly that the line counts as alive
        commands.submit(CallbackCommand(packed("PING"), 9.0, lambda reply, failure: None), 0.0)
    wills.tick(0.0)
    assert b"take_wills" in paper.written
    for now in (2.0, 4.0):
        commands.receive(b"+PONG\r\n", 1000, now)
    commands.tick(6.0)
    assert not wills.idle()
    commands.receive(b"*1\r\n" + will, 1000, 6.0)

    assert ["me"] == published.client_ids


def test_a_damaged_record_costs_itself(start_redis: StartRedis, loop: Loop) -> None:
    """One will that cannot be read would keep all others from being published."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1), Shard(loop, server.address, 2)
    for number, record in enumerate((b"", b"x", b"0", b"0 ", b"0 \xff\xff", b"0 \x00\x05abc", b"-1 x", left("fine"))):
        dead.claim(f"client{number}", record)
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    assert [("client7", b"fine")] == mourned(mourner)
    assert 6 == mourner.orphaned_wills.statistics.damaged


def test_a_will_without_the_seal_of_the_cluster_is_not_published(start_redis: StartRedis, loop: Loop) -> None:
    """Whoever can write to Redis could publish any message as any user, to all clients."""
    server = start_redis()
    dead, mourner = Shard(loop, server.address, 1, key=b"k" * 32), Shard(loop, server.address, 2, key=b"k" * 32)
    other = Seal(b"other key", Counters(), loop.log)
    dead.claim("honest", sealed(dead.seal, "honest", left("mine")))
    dead.claim("moved", sealed(dead.seal, "somebody", left("of another client")))
    dead.claim("plain", left("without a seal"))
    dead.claim("wrong", sealed(other, "wrong", left("with another key")))
    mourner.orphaned_wills.publish_wills_of(dead.identity.incarnation, loop.now())

    assert [("honest", b"mine")] == mourned(mourner)
    assert 3 == mourner.orphaned_wills.statistics.forged
