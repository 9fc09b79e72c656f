# Replicas that have to have what is acknowledged: what is waited for, and what is sent again.
from collections.abc import Callable

import pytest

from broker.reasons import StoreFailure
from broker.session.queue import MessageBudget
from broker.store.durable.group_commit import PAUSE
from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from supervisor.redis_server import RedisServer
from tests.redis_servers import SERVERS, SYNCS_AT_ONCE, RunningRedis, free_port, replicate
from tests.session.receiver import PLENTY, message
from tests.store.durable.durable_worker import (
    KEYS,
    DurableWorker,
    OneSession,
    answered,
    incarnation,
    replication_of,
    store_of,
)
from tests.store.durable.model import ModelRedis, ModelReplica
from tests.store.loop import Loop

StartRedis = Callable[..., RunningRedis]


@pytest.fixture
def replica() -> ModelReplica:
    return ModelReplica()


@pytest.fixture
def worker(replica: ModelReplica) -> DurableWorker:
    return DurableWorker(ModelRedis(), replica=replica)


def some_turns(worker: DurableWorker, seconds: float = PAUSE) -> None:
    for _ in range(50):
        worker.turn(seconds)


def test_nothing_is_stored_before_a_replica_has_it(worker: DurableWorker, replica: ModelReplica) -> None:
    """What was acknowledged would be lost with the machine of Redis."""
    published = worker.offer(b"x")
    for _ in range(5):  # the transaction is answered, and nobody has asked for the replica
        worker.tick(0.01)
        worker.redis.execute()
        worker.redis.answer(worker.now)
    assert not answered(published)
    assert worker.queue.key() not in replica.values
    worker.settle()

    assert answered(published)
    assert 1 == len(replica.values[worker.queue.key()])


def test_a_replica_that_is_missing_holds_everything_up_until_it_is_back(
    worker: DurableWorker, replica: ModelReplica
) -> None:
    """Publishers would be answered for nothing, or wait for ever; or a message would be stored twice."""
    replica.away = True
    published = [worker.offer(b"x")]
    some_turns(worker)
    published.append(worker.offer(b"y", qos=2))
    some_turns(worker)
    store = worker.store
    assert not any(map(answered, published))
    assert StoreFailure.REPLICAS is store.trouble(worker.now)
    assert (0, 1) == store.missing_replicas()
    assert not store.takes_sessions(worker.now)
    assert 1 == len(worker.redis.values[worker.queue.key()])
    assert [{"replicas": 0, "needed": 1}] == worker.log.named("store_replicas_missing")
    replica.away = False
    worker.settle()

    assert all(map(answered, published))
    assert [None, (0, 0)] == [store.trouble(worker.now), store.missing_replicas()]
    assert store.takes_sessions(worker.now)
    assert [{"replicas": 1, "needed": 1}] == worker.log.named("store_replicated")
    assert worker.redis.values[worker.queue.key()] == replica.values[worker.queue.key()]
    assert 0 == store.commit.counters.store_repeated


@pytest.mark.parametrize("lost", range(6))
def test_a_connection_that_ends_while_replicas_are_asked_changes_nothing(
    worker: DurableWorker, replica: ModelReplica, lost: int
) -> None:
    """A message would be stored twice, or be answered although the new connection has written nothing to wait for."""
    replica.away = True
    published = worker.offer(b"x")
    some_turns(worker)
    asking = worker.connections[1]
    asking.execute(lost)
    asking.cut(worker.now)
    some_turns(worker)
    assert not answered(published)
    replica.away = False
    worker.settle()

    assert answered(published)
    assert 1 == len(replica.values[worker.queue.key()])


def test_an_answer_that_was_lost_does_not_stand_for_replicas(worker: DurableWorker, replica: ModelReplica) -> None:
    """What the server was found to have would count as stored, although no replica has it."""
    replica.away = True
    published = worker.offer(b"x")
    worker.tick()
    worker.redis.execute()
    worker.redis.cut(worker.now)
    some_turns(worker)
    assert not answered(published)
    replica.away = False
    worker.settle()

    assert answered(published)
    assert 1 == len(replica.values[worker.queue.key()])


def test_a_server_that_lacks_what_was_answered_gets_it_again(worker: DurableWorker, replica: ModelReplica) -> None:
    """After a failover the replicas of a server would be counted that has never seen the message."""
    before = dict(worker.redis.values)
    replica.away = True
    published = worker.offer(b"x")
    some_turns(worker)
    worker.redis.values.clear()
    worker.redis.values.update(before)  # a replica was promoted
    replica.away = False
    for redis in worker.connections:
        redis.cut(worker.now)
    worker.settle()

    assert answered(published)
    assert 1 == len(worker.redis.values[worker.queue.key()]) == len(replica.values[worker.queue.key()])
    assert 1 == worker.store.commit.counters.store_repeated


def test_a_taken_session_is_known_before_replicas_are(worker: DurableWorker, replica: ModelReplica) -> None:
    """Two workers would have one session for as long as a replica is missing."""
    replica.away = True
    worker.redis.values[KEYS.fence(incarnation(1))] = [b"client"]
    published = worker.offer(b"x")
    some_turns(worker)

    assert [b"client"] == worker.fenced
    assert not answered(published)


def test_a_server_that_moves_is_followed(worker: DurableWorker) -> None:
    """Sessions would be stored at the former address, or its replicas be counted."""
    moved = RedisAddress(path="/moved")
    worker.store.move(moved, worker.now)
    published = worker.offer(b"x")
    worker.settle()

    assert answered(published)
    assert [moved, moved] == [redis.address for redis in worker.connections]


# Real servers.


class Owner:
    """A worker that owns one durable session, and waits for *replicas* replicas."""

    def __init__(self, loop: Loop, redis: RunningRedis, replicas: int) -> None:
        self.loop = loop
        budget = MessageBudget(PLENTY)
        commands = CommandPipeline(loop.wire(), redis.address, "owner", loop.log)
        replication = replication_of(
            CommandPipeline(loop.wire(), redis.address, "asking", loop.log), 1, replicas, loop.log
        )
        self.store = store_of(commands, 1, budget, loop.now, replication=replication)
        loop.ticking.append(self.store)
        self.store.start(loop.now())
        self.session = OneSession(self.store, budget)
        self.store.serve(self.session, loop.now())
        loop.until(lambda: self.session.ready)

    def offer(self, payload: bytes) -> Callable[[], bool]:
        """Publish *payload*; returns whether the publisher has its answer."""
        offered = message(payload, 1)
        self.session.client.session.offer(offered, self.loop.now())
        return lambda: answered(offered)


def length(redis: RunningRedis, owner: Owner) -> int:
    with redis.client() as client:
        found: int = client.llen(owner.session.record.queue().key())
        return found


@pytest.mark.system
def test_real_replicas_have_what_was_acknowledged(
    start_redis: StartRedis, every_server: RedisServer, loop: Loop
) -> None:
    """A server would count replicas in another way than the model, or a worker not notice that one is missing."""
    primary = start_redis(every_server, more=SYNCS_AT_ONCE, port=free_port())
    replicas = [start_redis(every_server) for _ in range(2)]
    replicate(primary, *replicas)
    owner = Owner(loop, primary, 2)
    loop.until(owner.store.commit.idle)
    for number in range(20):
        loop.until(owner.offer(b"%d" % number))
        stored = length(replicas[0], owner)
        assert stored == length(replicas[1], owner) == length(primary, owner) > 0
    replicas[1].pause()
    done = owner.offer(b"x")
    loop.until(lambda: owner.store.trouble(loop.now()) is StoreFailure.REPLICAS)
    assert (1, 2) == owner.store.missing_replicas()
    assert not done()
    replicas[1].go_on()
    loop.until(done)

    assert length(replicas[0], owner) == length(replicas[1], owner) == length(primary, owner)
    missing = loop.log.named("store_replicas_missing")  # more than once where servers get no time of a processor
    assert {"replicas": 1, "needed": 2} in missing
    assert len(missing) == len(loop.log.named("store_replicated"))


@pytest.mark.system
def test_a_server_that_refuses_writes_without_replicas_says_why(start_redis: StartRedis, loop: Loop) -> None:
    """With min-replicas-to-write an operator would read of an error, and not of replicas."""
    primary = start_redis(SERVERS[-1], more=SYNCS_AT_ONCE, port=free_port())
    replica = start_redis(SERVERS[-1])
    replicate(primary, replica)
    owner = Owner(loop, primary, 1)
    loop.until(owner.store.commit.idle)
    with primary.client() as client, replica.client() as other:
        client.config_set("min-replicas-to-write", 1)
        other.replicaof("NO", "ONE")
        done = owner.offer(b"x")
        loop.until(lambda: owner.store.trouble(loop.now()) is StoreFailure.REPLICAS)
        assert not done()
        client.config_set("min-replicas-to-write", 0)
    replicate(primary, replica)
    loop.until(done)
    assert 1 == length(replica, owner)
