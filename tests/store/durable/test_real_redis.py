# A durable session and real servers: the model of Redis in the other tests is as they are.
from collections.abc import Callable

import msgpack
import pytest

from broker.mqtt.packets import PUBREL, V311, Ack, Publish
from broker.reasons import DropReason, StoreFailure
from broker.session.message import NEVER, Message
from broker.session.queue import MessageBudget
from broker.session.subscription import Subscription
from broker.store.durable.adoption import ADOPTED, SCANNED, AdoptedSession
from broker.store.durable.queue_state import decode_state
from broker.store.durable.removals import SESSIONS
from broker.store.durable.shared_bodies import RECEIVERS, REDUCE
from broker.store.durable.stored_session import FORM
from broker.store.redis.connection import packed
from broker.store.redis.keys import DURABLE_FORMAT, FENCED_FOR
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.session.receiver import PLENTY, Receiver, message
from tests.store.durable.durable_worker import (
    CLIENT,
    EXPIRY,
    KEYS,
    OneSession,
    answered,
    hold,
    incarnation,
    store_of,
)
from tests.store.loop import Loop

pytestmark = pytest.mark.system  # real servers

StartRedis = Callable[..., RunningRedis]


class Owner:
    """A worker that owns one durable session."""

    def __init__(self, loop: Loop, redis: RunningRedis, number: int) -> None:
        self.loop = loop
        self.budget = MessageBudget(PLENTY)
        self.commands = CommandPipeline(loop.wire(), redis.address, f"owner-{number}", loop.log)
        self.store = store_of(self.commands, number, self.budget, loop.now)
        loop.ticking.append(self.store)
        self.commands.start(loop.now())
        self.session = OneSession(self.store, self.budget)
        self.store.serve(self.session, loop.now())
        loop.until(lambda: self.session.ready)

    @property
    def client(self) -> Receiver:
        return self.session.client

    def offer(self, payload: bytes, qos: int = 1, lasting: float = 0.0, wide: bool = False) -> Message:
        offered = message(payload, qos, expires=self.loop.now() + lasting if lasting else NEVER)
        if wide:
            hold(offered, RECEIVERS)
        self.client.session.offer(offered, self.loop.now())
        return offered

    def die(self) -> None:
        self.loop.ticking.remove(self.store)
        self.commands.stop(self.loop.now())

    def settle(self) -> None:
        self.loop.until(self.store.commit.idle)


def received(owner: Owner) -> list[Publish]:
    return [packet for packet in owner.client.take() if isinstance(packet, Publish)]


def received_once(owner: Owner, count: int) -> list[Publish]:
    """What the client was sent, once it is at least *count* messages."""
    arrived: list[Publish] = []

    def enough() -> bool:
        arrived.extend(received(owner))
        return len(arrived) >= count

    owner.loop.until(enough)
    return arrived


def test_what_one_worker_stored_another_one_delivers(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A server would not do what the model does, and no other test notice."""
    redis = start_redis(every_server)
    first = Owner(loop, redis, 1)
    published = [first.offer(b"%d" % number, 1 + number % 2) for number in range(1000)]
    loop.until(lambda: all(map(answered, published)))
    first.client.connect(V311, window=2)
    assert [(b"0", 1, 1), (b"1", 2, 2)] == [
        (each.payload, each.qos, each.packet_id) for each in received_once(first, 2)
    ]
    assert first.client.session.pubrec(2, 0, loop.now())
    first.settle()
    assert [Ack(PUBREL, 2)] == first.client.take()
    first.die()

    second = Owner(loop, redis, 2)
    second.client.connect(V311, window=1000)
    arrived: list[bytes] = []

    def all_arrived() -> bool:
        for packet in second.client.take():
            if isinstance(packet, Publish):
                assert packet.dup
                arrived.append(packet.payload)
                session, now = second.client.session, loop.now()
                if packet.qos == 1:
                    assert session.puback(packet.packet_id, now)
                else:
                    assert session.pubrec(packet.packet_id, 0, now)
            else:
                assert isinstance(packet, Ack)
                assert second.client.session.pubcomp(packet.packet_id, loop.now())
        return not second.session.record.queue().count and not second.client.session.inflight()

    loop.until(all_arrived)
    second.settle()
    assert [b"%d" % number for number in range(1000) if number != 1] == arrived
    assert (0, 0) == (second.budget.used, second.budget.messages)
    assert [] == redis.client().keys("*:queue:*")


def test_a_server_without_memory_gets_everything_later_and_once(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """Messages would be stored in part, twice or in another order, when the memory of Redis is used up."""
    redis = start_redis(every_server)
    owner = Owner(loop, redis, 1)
    redis.client().config_set("maxmemory", 1)
    published = [owner.offer(b"%d" % number) for number in range(10)]
    refused = owner.store.commit.counters.store_failures_by_reason
    loop.until(lambda: refused[StoreFailure.MEMORY_FULL.label] > 1)
    published += [owner.offer(b"%d" % number) for number in range(10, 20)]
    assert not any(map(answered, published))
    redis.client().config_set("maxmemory", 0)
    loop.until(lambda: all(map(answered, published)))

    owner.client.connect(V311)
    assert [b"%d" % number for number in range(20)] == [each.payload for each in received_once(owner, 20)]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_server_without_memory_drains(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop, qos: int, wide: bool
) -> None:
    """What clients acknowledge would stay until an operator raises maxmemory; or be sent twice; or the rest be lost."""
    redis = start_redis(every_server)
    owner = Owner(loop, redis, 1)
    payloads = [b"%0100d" % number for number in range(1000)]
    published = [owner.offer(payload, qos, wide=wide) for payload in payloads[:900]]
    loop.until(lambda: all(map(answered, published)))
    redis.client().config_set("maxmemory", 1)
    late = [owner.offer(payload, qos, wide=wide) for payload in payloads[900:]]
    loop.until(lambda: owner.store.commit.full)
    owner.client.connect(V311, window=20)
    arrived: list[bytes] = []

    def take() -> int:
        session, now = owner.client.session, loop.now()
        for packet in owner.client.take():
            if isinstance(packet, Ack):
                assert session.pubcomp(packet.packet_id, now)
                continue
            assert isinstance(packet, Publish)
            arrived.append(packet.payload)
            assert session.puback(packet.packet_id, now) if qos == 1 else session.pubrec(packet.packet_id, 0, now)
        return len(arrived)

    kept = [b"*:queue:*", b"*:released:*", b"*:bodies:*"]
    loop.until(lambda: take() >= 900 and not any(redis.client().keys(kind) for kind in kept))
    assert payloads[:900] == arrived
    assert not any(map(answered, late))
    assert owner.store.trouble(loop.now()) is StoreFailure.MEMORY_FULL
    redis.client().config_set("maxmemory", 0)
    loop.until(lambda: take() == 1000)
    owner.settle()

    assert payloads == arrived
    loop.until(lambda: take() == 1000 and not any(redis.client().keys(kind) for kind in kept))
    assert (0, 0) == (owner.budget.used, owner.budget.messages)


def test_what_was_removed_from_a_full_server_does_not_come_again(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """The next worker would send again what was acknowledged, or miss what was not."""
    redis = start_redis(every_server)
    first = Owner(loop, redis, 1)
    published = [first.offer(b"%d" % number, 2) for number in range(3)]
    loop.until(lambda: all(map(answered, published)))
    redis.client().config_set("maxmemory", 1)
    first.client.connect(V311)
    received_once(first, 3)
    for packet_id in (1, 2):
        assert first.client.session.pubrec(packet_id, 0, loop.now())
    released: list[Ack] = []

    def all_released() -> bool:
        released.extend([packet for packet in first.client.take() if isinstance(packet, Ack)])
        return len(released) == 2

    loop.until(all_released)
    first.die()
    second = Owner(loop, redis, 2)
    second.client.connect(V311)
    arrived: list[object] = []

    def all_arrived() -> bool:
        arrived.extend(second.client.take())
        return len(arrived) == 3

    loop.until(all_arrived)
    assert [Ack(PUBREL, 1), Ack(PUBREL, 2)] == arrived[:2]
    assert isinstance(arrived[2], Publish)
    assert (b"2", 3, True) == (arrived[2].payload, arrived[2].packet_id, arrived[2].dup)


def test_a_server_that_is_killed_comes_back_with_all_that_was_answered(start_redis: StartRedis, loop: Loop) -> None:
    """A message would be lost, or stored twice, when the server ends within a transaction."""
    redis = start_redis()
    owner = Owner(loop, redis, 1)
    published: list[Message] = []
    for _ in range(5):
        for _ in range(200):
            published.append(owner.offer(b"%d" % len(published)))
            loop.turn()
        redis.kill()
        published.append(owner.offer(b"%d" % len(published)))
        loop.for_seconds(0.05)
        redis.start()
    loop.until(lambda: all(map(answered, published)))
    owner.die()

    second = Owner(loop, redis, 2)
    second.client.connect(V311)
    arrived: list[bytes] = []

    def all_arrived() -> bool:
        arrived.extend(each.payload for each in received(second))
        return len(arrived) >= len(published)

    loop.until(all_arrived)
    assert [b"%d" % number for number in range(len(published))] == arrived


def test_a_session_that_is_taken_twice_is_as_it_was(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """When an answer is lost, what the former owner has written since would replace the session."""
    owner = Owner(loop, start_redis(every_server), 1)
    owner.store.commit.fenced = lambda clients, now: None
    owner.offer(b"stored")
    owner.settle()
    theirs = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(1))
    ours = theirs.of(incarnation(2))
    words: list[str | bytes | int] = ["take", CLIENT, theirs.records, theirs.queues, theirs.released]
    words += [ours.records, ours.queues, ours.released, "1800000000.5"]
    fence, number = KEYS.fence(incarnation(1)), KEYS.commit_number(incarnation(2))
    owner.commands.submit(CallbackCommand(packed("SET", number, 0), 5.0, lambda reply, failure: None), loop.now())
    call = packed("EVAL", SESSIONS, 4, theirs.index, ours.index, number, fence, *words)
    replies: list[object] = []

    def take() -> None:
        count = len(replies)
        owner.commands.submit(CallbackCommand(call, 5.0, lambda reply, failure: replies.append(reply)), loop.now())
        loop.until(lambda: len(replies) > count)

    take()
    owner.session.record.store_head(EXPIRY, b"user", False)
    owner.offer(b"for nobody")
    owner.settle()
    take()

    assert isinstance(replies[0], list)
    assert 1 == replies[0][3]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("filters", [9, 109])
def test_a_session_is_given_as_it_will_be_read(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop, filters: int
) -> None:
    """What its new worker is told of it would differ from what is stored. It is told of short ones only."""
    owner = Owner(loop, start_redis(every_server), 1)
    owner.offer(b"stored")
    for number in range(filters):
        owner.session.record.subscribed(Subscription(owner.client.session, b"a/%d" % number, b""))
    owner.settle()
    replies: list[object] = []

    def ask(command: bytes) -> None:
        count = len(replies)
        owner.commands.submit(CallbackCommand(command, 5.0, lambda reply, failure: replies.append(reply)), loop.now())
        loop.until(lambda: len(replies) > count)

    ask(packed("SET", KEYS.commit_number(incarnation(2)), 0))
    given: list[bytes | None] = []
    owner.session.record.give(incarnation(2), given.append)
    loop.until(lambda: len(given) > 0)
    theirs = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(2))
    ask(packed("EVAL", SESSIONS, 0, "read", theirs.records, theirs.queues, theirs.released, CLIENT))

    assert isinstance(replies[1], list)
    (read,) = replies[1]
    assert 1 == read[3]
    assert (read if filters < 100 else None) == decode_state(given[0] or b"")[2]


def test_what_has_ended_leaves_the_middle_of_a_list(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A server would remove other packs than the model, or keep what nobody will ever read."""
    redis = start_redis(every_server)
    owner = Owner(loop, redis, 1)
    loop.stop_clock()
    for number in range(300):
        owner.offer(b"%d" % number, lasting=30.0 if number % 3 else 0.0)
        owner.offer(b"x", lasting=30.0)
        if number % 5 == 0:
            owner.offer(b"%d" % number)
        owner.settle()
    owner.client.session.detach()
    key = owner.session.record.queue().key()
    assert 300 == redis.client().llen(key)
    loop.stop_clock(later=32.0)
    loop.until(lambda: not owner.store.expiry.sweeps and owner.session.record.queue().count == 160)
    owner.settle()

    assert 140 == redis.client().llen(key)
    assert 500 == owner.client.counters.dropped_by_reason[DropReason.EXPIRED.label]
    owner.client.connect(V311)
    arrived: list[bytes] = []

    def all_arrived() -> bool:
        arrived.extend(each.payload for each in received(owner))
        return len(arrived) >= 160

    loop.until(all_arrived)
    expected = [[b"%d" % number] * ((number % 3 == 0) + (number % 5 == 0)) for number in range(300)]
    assert [payload for row in expected for payload in row] == arrived


def test_a_queue_needs_few_bytes_for_a_message_that_many_have(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A publish of 300 bytes to a million absent sessions would take 300 MB of Redis: 40 bytes are promised."""
    redis = start_redis(every_server)
    owner = Owner(loop, redis, 1)
    sizes = []
    for _ in range(2):
        for number in range(100):
            owner.offer(b"%0300d" % number, wide=True)
            owner.settle()
        sizes.append(redis.client().memory_usage(owner.session.record.queue().key(), samples=0) or 0)

    assert 200 == redis.client().llen(owner.session.record.queue().key()) == len(redis.client().keys("*:bodies:*"))
    assert sizes[1] - sizes[0] <= 40 * 100


def test_bodies_are_read_and_let_go_of(start_redis: StartRedis, every_server: RedisServer, loop: Loop) -> None:
    """A server would not do with bodies what the model does, and no other test notice."""
    redis = start_redis(every_server)
    first = Owner(loop, redis, 1)
    for number in range(300):
        first.offer(b"%0300d" % number, wide=True)
        if number % 10 == 9:
            first.settle()
    first.die()
    second = Owner(loop, redis, 2)
    late = packed("EVAL", REDUCE, 2, KEYS.fence(incarnation(1)), KEYS.bodies(incarnation(1)) + b"1", 0, -1)
    replied: list[object] = []
    second.commands.submit(CallbackCommand(late, 1.0, lambda reply, failure: replied.append(failure)), loop.now())
    loop.until(lambda: [None] == replied)
    assert 30 == len(redis.client().keys("*:bodies:*"))  # a worker that has ended lets go of none
    second.client.connect(V311)
    arrived: list[bytes] = []

    def all_arrived() -> bool:
        for packet in received(second):
            arrived.append(packet.payload)
            if len(arrived) <= 100:
                assert second.client.session.puback(packet.packet_id, loop.now())
        return len(arrived) == 300

    loop.until(all_arrived)
    second.settle()
    assert [b"%0300d" % number for number in range(300)] == arrived
    assert 20 == len(redis.client().keys("*:bodies:*"))
    second.session.end()
    loop.until(lambda: not redis.client().keys("*:bodies:*"))
    loop.until(lambda: not redis.client().keys("*:queue:*"))


class ManySessions:
    """A `SessionOwner` of any number of sessions."""

    def __init__(self) -> None:
        self.sessions: dict[str, AdoptedSession] = {}
        self.cold: dict[bytes, bytes] = {}
        self.expected = 0
        self.ready = False

    def has(self, client_id: str) -> bool:
        return client_id in self.sessions

    def adopt(self, session: AdoptedSession, now: float) -> None:
        assert session.client_id not in self.sessions
        self.sessions[session.client_id] = session

    def adopted(self, now: float) -> None:
        self.ready = True

    def expect_cold(self, sessions: int) -> None:
        self.expected = sessions

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        assert not self.ready
        found = dict(zip(entries[::2], entries[1::2], strict=True))
        self.cold |= {client: value for client, value in found.items() if value}
        return [client for client, value in found.items() if not value]

    def renamed(self, clients: list[bytes]) -> None:
        assert self.ready

    def damaged(self, client_id: str, why: str, here: bool, now: float) -> None:
        raise AssertionError(why)


@pytest.mark.parametrize("data_format", [2, DURABLE_FORMAT])
def test_all_sessions_of_a_large_node_are_adopted(start_redis: StartRedis, loop: Loop, data_format: int) -> None:
    """Sessions beyond a page would be left under the keys of a worker that has ended, or never be read.

    Format 2 had sets as indexes.
    """
    redis = start_redis()
    count = 16 * 2 * ADOPTED
    writes = redis.client().pipeline(transaction=False)
    writes.hset(KEYS.durable_owners("node"), incarnation(1), 0)
    for number in range(count):
        client = b"client-%d" % number
        keys = KEYS.sessions(KEYS.slice_of(client), incarnation(1))
        if data_format == 2:
            writes.sadd(keys.index, client)
        else:
            writes.hset(keys.index, client, b"")
        writes.hset(keys.records + client, b"", msgpack.packb((FORM, number, None)))
    writes.execute()
    commands = CommandPipeline(loop.wire(), redis.address, "adopter", loop.log)
    store = store_of(commands, 2, MessageBudget(PLENTY), loop.now)
    loop.ticking.append(store)
    commands.start(loop.now())
    owner = ManySessions()
    store.serve(owner, loop.now())
    loop.until(lambda: owner.ready)

    assert count == len(owner.sessions)
    assert 0.7 * count < owner.expected < 1.4 * count
    assert all(owner.sessions[f"client-{number}"].stored.expiry == number for number in range(count))
    (fence,) = redis.client().keys(f"*{incarnation(1).decode()}*")
    assert KEYS.fence(incarnation(1)) == fence
    assert 0 < redis.client().ttl(fence) <= FENCED_FOR


def test_sessions_that_stay_unread_and_others_are_found_beyond_a_page(start_redis: StartRedis, loop: Loop) -> None:
    """A page that is asked for while the last one is worked on would be lost, or be taken for another answer."""
    redis = start_redis()
    count = 16 * 3 * SCANNED
    writes = redis.client().pipeline(transaction=False)
    for owner in (1, 3):
        writes.hset(KEYS.durable_owners("node"), incarnation(owner), 0)
    for number in range(count):
        client = b"client-%d" % number
        keys = KEYS.sessions(KEYS.slice_of(client), incarnation(1 + number % 4 // 3 * 2))
        writes.hset(keys.index, client, b"%d" % number if number % 5 else b"")
        if not number % 5:
            writes.hset(keys.records + client, b"", msgpack.packb((FORM, number, None)))
    writes.execute()
    commands = CommandPipeline(loop.wire(), redis.address, "adopter", loop.log)
    store = store_of(commands, 2, MessageBudget(PLENTY), loop.now)
    loop.ticking.append(store)
    commands.start(loop.now())
    sessions = ManySessions()
    store.serve(sessions, loop.now())
    loop.until(lambda: sessions.ready)

    assert {f"client-{number}": number for number in range(0, count, 5)} == {
        client: adopted.stored.expiry for client, adopted in sessions.sessions.items()
    }
    assert {b"client-%d" % number: b"%d" % number for number in range(count) if number % 5} == sessions.cold
    assert 0.9 * count < sessions.expected < 1.1 * count


def test_what_tells_of_a_worker_that_has_ended_ends_itself(start_redis: StartRedis, loop: Loop) -> None:
    """Each start of a worker would leave two keys for ever; or a worker would not learn what was taken from it."""
    redis = start_redis()
    client = redis.client()
    told = {number: (KEYS.fence(incarnation(number)), KEYS.commit_number(incarnation(number))) for number in (1, 2, 3)}
    for fence, commit_number in told.values():
        client.rpush(fence, b"taken")
        client.set(commit_number, 7)
    client.hset(KEYS.durable_owners("node"), mapping={incarnation(1): 0, incarnation(3): 1})  # 3 has another shard
    commands = CommandPipeline(loop.wire(), redis.address, "adopter", loop.log)
    store = store_of(commands, 2, MessageBudget(PLENTY), loop.now, workers=2)
    loop.ticking.append(store)
    commands.start(loop.now())
    owner = ManySessions()
    store.serve(owner, loop.now())
    loop.until(store.adoption.finished)

    lives = {number: [client.ttl(key) for key in keys] for number, keys in told.items()}
    assert all(0 < life <= FENCED_FOR for life in lives.pop(1))
    assert {2: [-1, -1], 3: [-1, -1]} == lives
    assert {incarnation(2): b"0", incarnation(3): b"1"} == client.hgetall(KEYS.durable_owners("node"))
