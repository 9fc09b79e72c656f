# How the sessions of a worker that has ended are adopted: in bounded answers, which may be lost.
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from broker.session.queue import MessageBudget
from broker.store.durable.adoption import RECORDS, SCANNED
from broker.store.durable.dropped_queues import name_of
from broker.store.durable.index import index_value
from broker.store.durable.removals import GIVE_SESSION, SESSIONS
from broker.store.durable.stored_session import FORM, HEAD, LEFT
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import FENCED_FOR
from broker.store.redis.pipeline import CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import RunningRedis
from tests.session.receiver import PLENTY
from tests.store.durable.durable_worker import CLIENT, EXPIRY, KEYS, DurableWorker, OneSession, incarnation, store_of
from tests.store.durable.model import ModelRedis, Reply
from tests.store.loop import Lines

StartRedis = Callable[..., RunningRedis]


@pytest.mark.parametrize("messages", [0, 3])
@pytest.mark.parametrize("commands", range(8, 20))
def test_a_session_is_adopted_whichever_answer_is_lost(commands: int, messages: int) -> None:
    """The session would have been renamed, and read by nobody: its client would begin anew."""
    redis = ModelRedis()
    former = DurableWorker(redis)
    former.disconnect()
    for number in range(messages):
        former.offer(b"%d" % number)
    former.settle()
    redis.cut(former.now)
    redis.cut_after = commands
    worker = DurableWorker(redis, 2, former.now)

    assert worker.owner.found is not None
    assert EXPIRY == worker.owner.found.stored.expiry
    assert messages == worker.session.waiting()
    assert {b"client"} == {each for key, each in indexes(redis, 2)}
    assert [] == indexes(redis, 1)


class TakenMeanwhile(ModelRedis):
    """The session of CLIENT is taken from the worker 2 by the worker 3 before the worker 2 has read it."""

    def _script(self, keys: list[bytes], words: list[bytes]) -> Reply:
        if words[0] == b"read":
            former, taker = (KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(number)) for number in (2, 3))
            theirs, own = ([each.records, each.queues, each.released] for each in (former, taker))
            fence, commits = KEYS.fence(incarnation(2)), KEYS.commit_number(incarnation(3))
            self.values[commits] = b"0"
            super()._script([former.index, taker.index, commits, fence], [b"take", CLIENT, *theirs, *own, b"1.000000"])
        return super()._script(keys, words)


def test_a_session_that_is_taken_before_its_adopter_has_read_it_is_not_damaged() -> None:
    """A damage would be reported that there is not, and what the taker has of the session be put aside."""
    redis = TakenMeanwhile()
    former = DurableWorker(redis)
    former.disconnect()
    former.offer(b"1")
    former.settle()
    redis.cut(former.now)
    worker = DurableWorker(redis, 2, former.now)
    worker.settle()

    assert worker.owner.found is None
    assert {} == worker.owner.damage
    taker = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(3))
    assert {taker.records + CLIENT, taker.queues + CLIENT} <= redis.values.keys()
    assert not [key for key in redis.values if b":damaged:" in key]


@pytest.mark.parametrize("returns", [False, True])
def test_a_session_that_was_taken_is_not_adopted_from_a_worker_that_did_not_learn_of_it(returns: bool) -> None:
    """Two workers would have it: a client could find the one that knows nothing of its subscriptions."""
    redis = ModelRedis()
    former = DurableWorker(redis)
    record = former.owner.record
    if returns:  # the client; else it leaves
        former.disconnect()
        record.store_index(index_value(1.0, [b"a"]))
        former.settle()
    ours, taker = (KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(number)) for number in (1, 3))
    names = [key for each in (ours, taker) for key in (each.records, each.queues, each.released)]
    keys = [ours.index, taker.index, KEYS.commit_number(incarnation(3)), KEYS.fence(incarnation(1))]
    redis.values[keys[2]] = b"0"
    redis._script(keys, [b"take", CLIENT, *names, b"1.000000"])
    record.store_head(77, None, returns)  # another expiry, so this makes a record
    if not returns:
        record.store_index(index_value(1.0, [b"a"]))
    former.tick()
    redis.execute()
    redis.cut(former.now)
    worker = DurableWorker(redis, 2, former.now)

    assert worker.owner.found is None
    assert {} == worker.owner.damage
    assert [(taker.index, CLIENT)] == indexes(redis, 3)


class ColdOwner(OneSession):
    """Keeps all sessions unread."""

    def __init__(self) -> None:
        self.cold: list[bytes] = []

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        self.cold += entries[::2]
        return []


@pytest.mark.interpreted
def test_a_page_of_an_index_is_looked_at_while_redis_reads_the_next_one() -> None:
    """Worker and Redis would wait for each other in turn, as the loop waits for the next answer before it ticks."""
    redis, soon = ModelRedis(), list[float]()
    redis.values[KEYS.durable_owners("node")] = {incarnation(1): b"0"}
    index = KEYS.sessions(0, incarnation(1)).index
    redis.values[index] = {b"%d" % number: b"\xff" * 4 for number in range(2 * SCANNED)}
    commands = CommandPipeline(redis, RedisAddress(path="/model"), "test", Lines())
    store = store_of(commands, 2, MessageBudget(PLENTY), lambda: 1000.0, soon=soon.append)
    owner = ColdOwner()
    store.start(1000.0)
    store.serve(owner, 1000.0)
    for _ in range(20):
        if not soon:
            redis.execute()
            redis.answer(1000.0)
    assert [1000.0] == soon
    assert [] == owner.cold  # what has been submitted is sent when the handler has returned
    assert redis.busy()
    store.tick(1000.0)

    assert SCANNED == len(owner.cold)
    assert redis.busy()


def indexes(redis: ModelRedis, number: int) -> list[tuple[bytes, bytes]]:
    """What is in the indexes of a worker: (key, client id)."""
    found = []
    for at in range(16):
        key = KEYS.sessions(at, incarnation(number)).index
        found += [(key, client) for client in redis.values.get(key, [])]
    return found


@pytest.mark.system
def test_an_answer_has_a_bounded_number_of_bytes(start_redis: StartRedis, every_server: RedisServer) -> None:
    """A few hundred sessions with thousands of filters each would stop the worker, and Redis, for a second."""
    former, ours = KEYS.sessions(0, incarnation(1)), KEYS.sessions(0, incarnation(2))
    filters = {b"%04d/" % number + b"x" * 1000: b"\1" for number in range(60)}
    with start_redis(every_server).client() as client:
        for number in range(40):
            client.hset(former.records + b"%d" % number, mapping={**filters, HEAD: b"head"})
            client.hset(former.index, b"%d" % number, b"")
        keys = [former.index, ours.index, KEYS.fence(incarnation(1))]
        own = [ours.records, ours.queues, ours.released]
        words = ["adopt", former.records, former.queues, former.released, *own, b"1.000000", RECORDS, FENCED_FOR]
        answer: Any = client.eval(SESSIONS, 3, *keys, *words, *[b"%d" % number for number in range(40)])

        here = [each for each in answer if isinstance(each, list)]
        assert 40 == len(answer)
        assert RECORDS // 60_600 - 1 <= len(here) <= RECORDS // 60_600 + 1
        assert all(LEFT in record for _, record in here)
        assert 40 == client.hlen(ours.index) == len(client.keys(ours.records + b"*"))


@pytest.mark.system
def test_a_session_whose_client_was_connected_has_left_when_it_is_adopted(
    start_redis: StartRedis, every_server: RedisServer
) -> None:
    """Its expiry would begin anew with each worker: such a session would never end."""
    former, ours = KEYS.sessions(0, incarnation(1)), KEYS.sessions(0, incarnation(2))
    with start_redis(every_server).client() as client:
        for name in (b"connected", b"left"):
            client.hset(former.records + name, HEAD, msgpack.packb((FORM, EXPIRY, None)))
            client.hset(former.index, name, b"")
        client.hset(former.records + b"left", LEFT, b"5.000000")
        keys = [former.index, ours.index, KEYS.fence(incarnation(1))]
        own = [ours.records, ours.queues, ours.released]
        words = ["adopt", former.records, former.queues, former.released, *own, b"9.000000", RECORDS, FENCED_FOR]
        answer: Any = client.eval(SESSIONS, 3, *keys, *words, b"connected", b"left")

        told = {name: dict(zip(fields[::2], fields[1::2], strict=True))[LEFT] for name, fields in answer}
        assert {b"connected": b"9.000000", b"left": b"5.000000"} == told
        assert told == {name: client.hget(ours.records + name, LEFT) for name in told}


@pytest.mark.system
def test_queues_that_are_to_be_taken_apart_come_with_the_sessions(
    start_redis: StartRedis, every_server: RedisServer
) -> None:
    """Bodies of a session that had ended would stay for a week, or the fence grow with each page of a million."""
    former, ours = KEYS.sessions(0, incarnation(1)), KEYS.sessions(0, incarnation(2))
    fence = KEYS.fence(incarnation(1))
    names = [name_of(b"client"), name_of(b"client"), name_of(b"other")]
    with start_redis(every_server).client() as client:
        for name in names:
            client.rpush(former.queues + name, b"pack")
            client.hset(former.index, name, b"")
        own = [ours.records, ours.queues, ours.released]
        words = ["adopt", former.records, former.queues, former.released, *own, b"9.000000", RECORDS, FENCED_FOR]
        pages = (names[:2], names[2:])
        keys = [former.index, ours.index, fence]
        answers: list[Any] = [client.eval(SESSIONS, 3, *keys, *words, *page) for page in pages]

        assert [2, 1] == [len(answer) for answer in answers]
        assert set(names) == {name for answer in answers for name in answer} == set(client.hkeys(ours.index))
        assert not client.exists(former.index)
        assert 3 == client.exists(*[ours.queues + name for name in names])
        assert [b""] == client.lrange(fence, 0, -1)
        assert 0 < client.ttl(fence) <= FENCED_FOR


@pytest.mark.system
@pytest.mark.parametrize("adopts", [True, False])
def test_what_a_dead_worker_had_sent_gives_nothing_away_when_it_arrives_late(
    start_redis: StartRedis, every_server: RedisServer, adopts: bool
) -> None:
    """Its last transaction may wait in a socket: a part of a record would replace the session where it is by then."""
    former, heir, taker = (KEYS.sessions(0, incarnation(number)) for number in (1, 2, 3))
    fence, commits = KEYS.fence(incarnation(1)), KEYS.commit_number(incarnation(3))
    head = msgpack.packb((FORM, EXPIRY, None))
    with start_redis(every_server).client() as client:
        client.hset(former.records + b"me", mapping={HEAD: head, b"a": b"\1"})
        client.rpush(former.queues + b"me", b"pack")
        client.hset(former.index, b"me", b"")
        client.set(commits, 0)  # the taker lives
        theirs = [former.records, former.queues, former.released]
        if adopts:
            own = [heir.records, heir.queues, heir.released]
            words = [*theirs, *own, b"9.0", RECORDS, 60, b"me"]
            client.eval(SESSIONS, 3, former.index, heir.index, fence, "adopt", *words)
        else:
            heir = taker
            own = [heir.records, heir.queues, heir.released]
            keys = [former.index, heir.index, commits, fence]
            client.eval(SESSIONS, len(keys), *keys, "take", b"me", *theirs, *own, b"9.0")
        client.hset(former.records + b"me", LEFT, b"8.0")
        client.rpush(former.queues + b"me", b"late")
        given = [taker.records, taker.queues, taker.released]

        assert 0 == client.eval(
            GIVE_SESSION, 3, former.index, taker.index, commits, "give", b"me", *theirs, *given, b"9.0"
        )
        assert {HEAD: head, b"a": b"\1", LEFT: b"9.0"} == client.hgetall(heir.records + b"me")
        assert [b"pack"] == client.lrange(heir.queues + b"me", 0, -1)
        assert adopts is not client.hexists(taker.index, b"me")
