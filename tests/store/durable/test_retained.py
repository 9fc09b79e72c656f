# Retained messages and real servers: what several workers write, and what the next one reads.
import zlib
from collections.abc import Callable

import pytest
from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import TOMBSTONE, Retained
from broker.session.message import NEVER, Message
from broker.session.queue import MessageBudget
from broker.store.durable.retained import CHANGE_BYTES, LEAST_BYTES
from broker.store.durable.retained_load import FIRST_PAGE, PAGE, PAGE_BYTES
from broker.store.durable.retained_value import encode_message
from broker.store.redis.keys import SLICES
from broker.store.redis.pipeline import CommandPipeline
from broker.worker_id import WorkerId
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.session.receiver import PLENTY
from tests.store.durable.durable_worker import KEYS, WALL, answered, store_of
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Keeper:
    """A worker that keeps retained messages, and has read what is stored."""

    def __init__(
        self,
        loop: Loop,
        redis: RunningRedis,
        number: int,
        ahead: float = 0.0,
        messages: int = PLENTY,
        per_client: int = PLENTY,
        most_bytes: int = PLENTY,
        until_loaded: bool = True,
    ) -> None:
        """*ahead*: seconds by which its wall clock is. *most_bytes*: of unwritten changes."""
        self.loop = loop
        self.ahead = ahead
        self.kept = Retained(messages, PLENTY, per_client)
        self.stamps = HybridClock(WorkerId("node", 0, number), self.wall)
        self.commands = CommandPipeline(loop.wire(), redis.address, f"keeper-{number}", loop.log)
        self.durable = store_of(self.commands, number, MessageBudget(PLENTY), lambda: loop.now() + ahead)
        self.durable.store_retained(self.kept, self.stamps, most_bytes)
        assert self.durable.retained is not None and self.durable.retained_load is not None
        self.store, self.load = self.durable.retained, self.durable.retained_load
        loop.ticking.append(self.durable)
        self.commands.start(loop.now())
        self.load.begin(loop.now())
        if until_loaded:
            loop.until(self.durable.retained_loaded)

    def wall(self) -> float:
        return WALL + self.loop.now() + self.ahead

    def publish(self, topic: bytes, payload: bytes, qos: int = 1, expiry: int = 0, owner: str = "owner") -> Message:
        """What becomes of a publish of *owner* with a retain flag; *expiry* in seconds."""
        now = self.loop.now()
        message = Message(topic, payload, qos, True, b"", now + expiry if expiry else NEVER)
        stamp = self.stamps.stamp(self.kept.stamp_of(topic))
        if payload:
            assert self.kept.put(message, now, owner, stamp) is None
        else:
            self.kept.delete(topic, stamp, now)
        self.store.changed(message, stamp)
        return message

    def hear(self, other: "Keeper", topic: bytes) -> None:
        """What another worker has of *topic* comes over the mesh."""
        kept = other.kept.peek(topic)
        stamp = other.kept.stamp_of(topic)
        message = Message(topic, b"", 0, True, b"", NEVER) if kept is None else kept
        if self.kept.merge(message, self.loop.now(), "", stamp):
            self.store.superseded(topic, stamp)

    def settle(self) -> None:
        self.loop.until(lambda: self.durable.settled() and not self.store.unwritten())

    def die(self) -> None:
        self.loop.ticking.remove(self.durable)
        self.commands.stop(self.loop.now())

    def payload(self, topic: bytes) -> bytes | None:
        message = self.kept.get(topic, self.loop.now())
        return None if message is None else message.payload


def stored_fields(redis: RunningRedis) -> int:
    """Topics with a value in Redis."""
    client = redis.client()
    return sum([client.hlen(KEYS.retained(number)) for number in range(SLICES)])


def test_the_next_worker_has_what_was_answered(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """A restart would lose retained messages, or their owner, their QoS or their expiry."""
    redis = start_redis(every_server)
    first = Keeper(loop, redis, 1)
    published = [first.publish(b"t/%d" % number, b"%d" % number, number % 3, owner="o") for number in range(1000)]
    published += [first.publish(b"t/1", b"again", 2), first.publish(b"t/2", b""), first.publish(b"x", b"x", expiry=50)]
    loop.until(lambda: all(map(answered, published)))
    first.settle()
    first.die()

    second = Keeper(loop, redis, 2, ahead=20)
    assert 1000 == second.load.messages == second.kept.statistics().count
    assert [b"0", b"again", None] == [second.payload(topic) for topic in (b"t/0", b"t/1", b"t/2")]
    one, other = second.kept.peek(b"t/1"), second.kept.peek(b"t/4")
    assert one is not None and other is not None
    assert (2, "owner", 1, "o") == (one.qos, one.client_id, other.qos, other.client_id)
    expiring = second.kept.peek(b"x")
    assert expiring is not None and 0 < expiring.expires - loop.now() <= 30


def test_changes_of_a_topic_within_a_tick_are_written_once(start_redis: StartRedis, loop: Loop) -> None:
    """A topic that changes a thousand times a second would cost Redis as much as a thousand topics."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    published = [keeper.publish(b"a", b"%d" % number) for number in range(100)]
    assert 1 == keeper.store.unwritten()
    loop.until(lambda: all(map(answered, published)))

    assert 1 == keeper.durable.commit.counters.store_commands == keeper.store.statistics.written
    assert 0 == keeper.store.unwritten_bytes()


def test_of_two_workers_the_later_one_wins(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """The worker that is written last would win, and after a restart the older message be there."""
    redis = start_redis(every_server)
    first, second = Keeper(loop, redis, 1), Keeper(loop, redis, 2, ahead=5)
    loop.ticking.remove(first.durable)  # it is slow
    older, newer = first.publish(b"a", b"older"), second.publish(b"a", b"newer")
    loop.until(lambda: answered(newer))
    loop.ticking.append(first.durable)
    loop.until(lambda: answered(older))

    assert b"newer" == Keeper(loop, redis, 3).payload(b"a")


def test_what_was_replaced_meanwhile_is_not_written(start_redis: StartRedis, loop: Loop) -> None:
    """A publisher would be answered although neither its message nor a later one is stored."""
    redis = start_redis()
    first, second = Keeper(loop, redis, 1), Keeper(loop, redis, 2, ahead=5)
    older, _ = first.publish(b"a", b"older"), second.publish(b"a", b"newer")
    first.hear(second, b"a")
    second.die()
    loop.until(lambda: answered(older))

    assert b"newer" == Keeper(loop, redis, 3).payload(b"a")


def test_a_deletion_wins_against_an_older_write_and_goes(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """What was deleted would come back with a write that was late; or Redis would keep each deletion for ever."""
    redis = start_redis(every_server)
    first, second = Keeper(loop, redis, 1), Keeper(loop, redis, 2, ahead=5)
    first.publish(b"a", b"1")
    first.settle()
    second.hear(first, b"a")
    loop.ticking.remove(first.durable)
    older, deletion = first.publish(b"a", b"2"), second.publish(b"a", b"")
    loop.until(lambda: answered(deletion))
    loop.ticking.append(first.durable)
    loop.until(lambda: answered(older))
    assert Keeper(loop, redis, 3).payload(b"a") is None
    assert 1 == stored_fields(redis)

    loop.stop_clock(TOMBSTONE + 1)
    second.kept.forget_tombstones(loop.now(), 10)
    loop.until(lambda: stored_fields(redis) == 0)


def test_a_deletion_that_has_overtaken_a_write_is_repeated(start_redis: StartRedis, loop: Loop) -> None:
    """A message that was deleted before its write reached Redis would come back with the next start."""
    redis = start_redis()
    first, second = Keeper(loop, redis, 1), Keeper(loop, redis, 2, ahead=5)
    first.publish(b"a", b"1")
    first.durable.tick(loop.now())  # it is on its way, and does not arrive
    wire = loop.wires.pop(0)
    deletion = second.publish(b"a", b"")  # this worker has not heard of the message: Redis remembers nothing
    loop.until(lambda: answered(deletion))
    stamp = second.stamps.stamp()
    assert first.kept.merge(Message(b"a", b"", 0, True, b"", NEVER), loop.now(), "", stamp)
    first.store.superseded(b"a", stamp)
    loop.wires.append(wire)
    first.settle()

    assert Keeper(loop, redis, 3).payload(b"a") is None


def test_a_deletion_of_nothing_leaves_nothing(start_redis: StartRedis, loop: Loop) -> None:
    """A client could fill Redis with topics that never had a message."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    published = [keeper.publish(b"%d" % number, b"") for number in range(100)]
    loop.until(lambda: all(map(answered, published)))

    assert [] == redis.client().keys("*retained*")


def test_old_deletions_are_removed_by_the_next_worker(start_redis: StartRedis, loop: Loop) -> None:
    """Deletions of workers that have ended would stay for ever; those of a moment ago must not be forgotten."""
    redis = start_redis()
    first = Keeper(loop, redis, 1)
    first.publish(b"a", b"1")
    first.settle()
    first.publish(b"a", b"")
    first.settle()
    first.die()
    second = Keeper(loop, redis, 2, ahead=1)
    assert second.kept.tombstone(b"a")
    second.die()
    Keeper(loop, redis, 3, ahead=TOMBSTONE + 1)

    loop.until(lambda: stored_fields(redis) == 0)


@pytest.mark.parametrize("seen", [True, False])
def test_what_is_written_after_the_clock_was_set_back_is_newer(start_redis: StartRedis, loop: Loop, seen: bool) -> None:
    """After a reboot with a wrong clock everything that is published would be lost in Redis."""
    redis = start_redis()
    first = Keeper(loop, redis, 1)
    first.publish(b"a", b"1")
    first.publish(b"b", b"1")
    first.settle()
    first.die()
    second = Keeper(loop, redis, 2, ahead=-86_400, messages=1)
    there, left = (b"a", b"b") if second.payload(b"a") else (b"b", b"a")
    topic = there if seen else left
    second.publish(there, b"")  # makes room for the other one
    second.publish(topic, b"2")
    second.settle()
    second.die()
    third = Keeper(loop, redis, 3, ahead=-86_400)
    assert b"2" == third.payload(topic)
    third.publish(topic, b"")
    third.settle()
    third.die()

    assert Keeper(loop, redis, 4, ahead=-86_400).payload(topic) is None


def test_a_full_server_gets_everything_later(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """Changes would be lost, or answered before they are stored, when the memory of Redis is used up."""
    redis = start_redis(every_server)
    keeper = Keeper(loop, redis, 1)
    keeper.publish(b"gone", b"x")
    keeper.settle()
    redis.client().config_set("maxmemory", 1)
    published = [keeper.publish(b"%d" % number, b"1") for number in range(100)]
    refused = keeper.durable.commit.counters.store_failures_by_reason
    loop.until(lambda: refused[StoreFailure.MEMORY_FULL.label] > 1)
    published += [keeper.publish(b"%d" % number, b"2") for number in range(50)]
    published += [keeper.publish(b"gone", b"")]
    assert not any(map(answered, published))
    redis.client().config_set("maxmemory", 0)
    loop.until(lambda: all(map(answered, published)))

    assert 0 == keeper.store.unwritten_bytes()
    found = Keeper(loop, redis, 2)
    assert [b"2", b"1", None] == [found.payload(topic) for topic in (b"0", b"99", b"gone")]


def test_a_server_that_is_killed_has_all_that_was_answered(start_redis: StartRedis, loop: Loop) -> None:
    """A message would be answered that the server has lost, or never be answered."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    published: list[Message] = []
    for _ in range(5):
        for _ in range(100):
            published.append(keeper.publish(b"%d" % len(published), b"x"))
            loop.turn()
        redis.kill()
        published.append(keeper.publish(b"%d" % len(published), b"x"))
        loop.for_seconds(0.05)
        redis.start()
    loop.until(lambda: all(map(answered, published)))

    assert len(published) == Keeper(loop, redis, 2).load.messages


def test_unwritten_changes_are_bounded(start_redis: StartRedis, loop: Loop) -> None:
    """While Redis is away a client with ever new topics would use up the memory."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1, most_bytes=0)
    redis.kill()
    loop.until(lambda: keeper.commands.state != 2)
    count = 0
    while keeper.store.takes(b"%04d" % count):
        keeper.publish(b"%04d" % count, b"x", 0, expiry=1)
        count += 1
    assert LEAST_BYTES // (CHANGE_BYTES + 4) == count
    assert keeper.store.takes(b"0000")  # what is to be written anyway
    loop.stop_clock(2)
    keeper.kept.expire(loop.now(), 10_000)
    assert not keeper.store.takes(b"%04d" % count)
    loop.start_clock()
    redis.start()
    keeper.settle()

    assert (0, 0) == (keeper.store.unwritten_bytes(), stored_fields(redis))


def test_what_has_expired_is_removed_from_redis(start_redis: StartRedis, loop: Loop) -> None:
    """Messages with an expiry and ever new topics would fill Redis."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    for number in range(100):
        keeper.publish(b"%d" % number, b"x", expiry=60)
    keeper.publish(b"stays", b"x")
    keeper.settle()
    loop.stop_clock(61)
    keeper.kept.expire(loop.now(), 1000)
    keeper.settle()
    assert 1 == stored_fields(redis)
    keeper.publish(b"later", b"x", expiry=60)
    keeper.settle()
    keeper.die()

    assert 1 == Keeper(loop, redis, 2, ahead=61).load.messages
    loop.until(lambda: stored_fields(redis) == 1)


def test_a_value_that_cannot_be_read_is_set_aside(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """One damaged value would keep the node from starting, or be there again at each start."""
    redis = start_redis(every_server)
    first = Keeper(loop, redis, 1)
    published = [first.publish(b"%d" % number, b"x") for number in range(100)]
    loop.until(lambda: all(map(answered, published)))
    first.die()
    client = redis.client()
    damaged = {b"0": b"", b"1": b"?", b"2": bytes(12) + b"\x00x"}
    for topic, value in damaged.items():
        client.hset(KEYS.retained(zlib.crc32(topic) % SLICES), topic, value)
    number = zlib.crc32(b"3") % SLICES
    alone = [b"%d" % each for each in range(100) if zlib.crc32(b"%d" % each) % SLICES == number]
    client.delete(KEYS.retained(number))
    client.set(KEYS.retained(number), "?")
    lost = set(alone) | set(damaged)

    second = Keeper(loop, redis, 2)
    second.settle()
    assert 100 - len(lost) == second.load.messages
    assert 1 + len(set(damaged) - set(alone)) == second.load.damaged
    assert second.load.damaged_why
    assert b"?" == client.get(KEYS.unreadable(number) + b":key")
    aside = {topic: client.hget(KEYS.unreadable(zlib.crc32(topic) % SLICES), topic) for topic in damaged}
    assert {topic: value for topic, value in damaged.items() if topic not in alone} == {
        topic: value for topic, value in aside.items() if value is not None
    }
    second.publish(b"3", b"new")
    second.settle()
    third = Keeper(loop, redis, 3)
    assert (0, b"new") == (third.load.damaged, third.payload(b"3"))


def test_a_slice_that_is_damaged_under_way_holds_nobody_up(start_redis: StartRedis, loop: Loop) -> None:
    """Its publishers would wait for ever."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    redis.client().set(KEYS.retained(zlib.crc32(b"a") % SLICES), "?")
    published = keeper.publish(b"a", b"1")
    loop.until(lambda: answered(published))

    assert b"1" == Keeper(loop, redis, 2).payload(b"a")


def test_what_does_not_fit_stays_in_redis(start_redis: StartRedis, loop: Loop) -> None:
    """Lower limits would delete messages, or be exceeded."""
    redis = start_redis()
    first = Keeper(loop, redis, 1)
    for number in range(300):
        first.publish(b"%d" % number, b"x")
    first.settle()
    first.die()
    second = Keeper(loop, redis, 2, messages=100)
    assert (100, 200) == (second.load.messages, second.load.left)
    (left, *_) = [topic for number in range(300) if second.kept.peek(topic := b"%d" % number) is None]
    second.publish(left, b"")
    second.settle()
    second.die()

    third = Keeper(loop, redis, 3)
    assert (299, 0) == (third.load.messages, third.load.left)
    assert third.payload(left) is None


def fill(redis: RunningRedis, count: int, payload: bytes) -> None:
    client = redis.client()
    writes = client.pipeline(transaction=False)
    for number in range(count):
        topic = b"site/%d/%06d" % (number % 17, number)
        message = Message(topic, payload, 1, True, b"", NEVER)
        value = encode_message(message, "owner", number + 1 << 42, 0.0, WALL)
        writes.hset(KEYS.retained(zlib.crc32(topic) % SLICES), topic, value)
    writes.execute()


def test_many_messages_are_read_in_pages(start_redis: StartRedis, loop: Loop) -> None:
    """A start would hold the worker for seconds, in which the supervisor takes it for dead."""
    redis = start_redis()
    fill(redis, 100_000, b"x" * 50)
    keeper = Keeper(loop, redis, 1)

    assert 100_000 == keeper.load.messages == keeper.kept.statistics().count
    assert keeper.load.largest_page <= 2 * PAGE


def test_pages_of_large_messages_are_small(start_redis: StartRedis, loop: Loop) -> None:
    """A page would have as many bytes as messages allow, of which each may be as long as a packet."""
    redis = start_redis()
    fill(redis, 1_000, bytes(PAGE_BYTES // 16))
    keeper = Keeper(loop, redis, 1)

    assert 1_000 == keeper.load.messages
    assert keeper.load.largest_page <= 2 * FIRST_PAGE


def test_a_server_that_starts_again_is_read_again(start_redis: StartRedis, loop: Loop) -> None:
    """Messages would be missing: the cursor of a scan means nothing to another process."""
    redis = start_redis()
    fill(redis, 20_000, b"x")
    keeper = Keeper(loop, redis, 1, until_loaded=False)
    for part in (3_000, 9_000, 15_000):
        while keeper.load.messages < part:
            loop.turn()
        redis.kill()
        loop.for_seconds(0.02)
        redis.start()
    loop.until(keeper.durable.retained_loaded)

    assert 20_000 == keeper.load.messages == keeper.kept.statistics().count


def test_changes_that_were_refused_alone_are_written_again(start_redis: StartRedis, loop: Loop) -> None:
    """A script that fails in a transaction that is carried out would lose changes, or their publishers would wait."""
    redis = start_redis()
    keeper = Keeper(loop, redis, 1)
    published = [keeper.publish(b"a", b"1"), keeper.publish(b"b", b"1")]
    now = loop.now()
    assert 1 <= len(keeper.store.collect(now, keeper.wall()))
    published.append(keeper.publish(b"a", b"2"))
    keeper.store.committed([ReplyError("ERR refused")], now)
    assert not any(map(answered, published))
    assert [] == keeper.store.collect(now, keeper.wall())
    assert now < keeper.store.tick(now) < now + 1
    loop.until(lambda: all(map(answered, published)))

    assert (0, 1) == (keeper.store.unwritten_bytes(), keeper.store.statistics.failed)
    found = Keeper(loop, redis, 2)
    assert [b"2", b"1"] == [found.payload(b"a"), found.payload(b"b")]
