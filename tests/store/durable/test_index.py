# What the index of a worker says of its sessions, in a model of Redis.
import pytest

from broker.mqtt.packets import Will as WillFields
from broker.routing.interest import interest_of
from broker.session.subscription import Subscription
from broker.session.will import Will
from broker.store.durable.index import MOST_INTEREST, NEVER, READ, deadline_of, index_value
from broker.store.durable.stored_session import LEFT, read_record
from tests.store.durable.durable_worker import EXPIRY, KEYS, WALL, DurableWorker, incarnation
from tests.store.durable.model import ModelRedis

CLIENT = b"client"
OURS = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(1))


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis())


def subscribe(worker: DurableWorker, filter: bytes, qos: int = 1, share: bytes = b"") -> None:
    subscription = Subscription(worker.session, filter, share)
    subscription.qos = qos
    worker.session.subscriptions[subscription.key()] = subscription
    worker.owner.record.subscribed(subscription)


def leave(worker: DurableWorker) -> bytes:
    """The client leaves; what the index says of it then."""
    worker.disconnect()
    wanted = [key for key, each in worker.session.subscriptions.items() if each.qos]
    worker.owner.record.store_index(index_value(WALL + worker.now + EXPIRY, wanted))
    worker.settle()
    return said(worker)


def said(worker: DurableWorker) -> bytes:
    value = worker.redis.values[OURS.index][CLIENT]
    assert isinstance(value, bytes)
    return value


def test_the_index_says_what_an_absent_session_waits_for(worker: DurableWorker) -> None:
    """A publish would be acknowledged that the session should have got: nobody reads its record after a restart."""
    worker.connect()
    subscribe(worker, b"a/b")
    subscribe(worker, b"a/+", qos=2)
    subscribe(worker, b"c", qos=0)
    worker.settle()
    assert READ == said(worker)

    value = leave(worker)

    assert interest_of([b"a/b", b"a/+"]) == value[4:]
    assert EXPIRY <= deadline_of(value) - WALL - 1000.0 <= EXPIRY + 60
    fields = worker.redis.values[OURS.records + CLIENT]
    assert value == read_record([part for field in fields.items() for part in field]).index_value()


def test_a_client_that_is_back_is_read_after_a_crash(worker: DurableWorker) -> None:
    """Its new filters would be missing, and its expiry be that of its last visit."""
    worker.connect()
    subscribe(worker, b"a")
    assert READ != leave(worker)
    worker.connect()
    worker.settle()

    assert READ == said(worker)


def test_a_client_that_is_back_while_redis_is_full_is_read_after_a_crash(worker: DurableWorker) -> None:
    """That it had left is removed at once: the index alone would tell when the session ends, before its time."""
    worker.connect()
    subscribe(worker, b"a")
    assert READ != leave(worker)
    worker.redis.server.full = True
    worker.connect()
    subscribe(worker, b"b")
    for _ in range(10):
        worker.turn()

    assert LEFT not in worker.redis.values[OURS.records + CLIENT]
    assert READ == said(worker)


@pytest.mark.parametrize("reason", ["will", "shared", "filters", "qos 0 alone"])
def test_sessions_that_have_to_be_read(worker: DurableWorker, reason: str) -> None:
    """A will would never be published, or a group have no member."""
    worker.connect()
    record = worker.owner.record
    subscribe(worker, b"a", qos=0)
    if reason == "will":
        record.store_will(Will(WillFields(b"w", b"", 0, False, {})))
    elif reason == "shared":
        subscribe(worker, b"b", share=b"group")
    elif reason == "filters":
        for number in range(MOST_INTEREST // 9 + 1):
            subscribe(worker, b"%d" % number)
    value = leave(worker)

    assert (reason == "qos 0 alone") == (value != READ)
    assert value in (READ, value[:4])
    fields = worker.redis.values[OURS.records + CLIENT]
    assert value == read_record([part for field in fields.items() for part in field]).index_value()


def test_a_session_without_end_has_no_deadline() -> None:
    """The largest expiry of MQTT 5 would be a deadline in the past, or an error."""
    assert NEVER == deadline_of(index_value(WALL + 0xFFFFFFFF, []))
    assert 0 == deadline_of(index_value(-1.0, []))


def test_what_the_index_says_moves_with_the_session(worker: DurableWorker) -> None:
    """A session that was taken from a dead worker, and its client gone, would be read at each start."""
    worker.connect()
    subscribe(worker, b"a")
    value = leave(worker)
    second = DurableWorker(worker.redis, 2, worker.now)

    assert value == second.redis.values[OURS.of(incarnation(2)).index][CLIENT]
    assert OURS.index not in second.redis.values
