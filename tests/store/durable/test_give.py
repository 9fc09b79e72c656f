# A session is given to a worker that lives, and to no other; whoever gives it knows what has become of it.
import pytest

from broker.delivery.completion import Completion
from broker.mqtt.packets import Publish
from broker.mqtt.packets import Will as WillFields
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.session.subscription import Subscription
from broker.session.will import Will
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.queue_state import encode_state
from broker.store.durable.stored_session import HEAD, LEFT
from broker.store.durable.tokens import ORIGIN
from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from tests.session.receiver import PLENTY, message
from tests.store.durable.durable_worker import CLIENT, KEYS, DurableWorker, OneSession, answered, incarnation, store_of
from tests.store.durable.model import ModelRedis

pytestmark = pytest.mark.interpreted

NUMBER = KEYS.commit_number(incarnation(2))


@pytest.fixture
def worker() -> DurableWorker:
    made = DurableWorker(ModelRedis())
    made.offer(b"1")
    made.disconnect()
    made.settle()
    return made


def record_of(number: int) -> bytes:
    return KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(number)).records + CLIENT


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("adopted", [True, False])
def test_who_gives_a_session_learns_whether_it_was_given(worker: DurableWorker, heard: bool, adopted: bool) -> None:
    """It would be given to a worker that is adopted, or both would have it, or none, if an answer is lost."""
    redis = worker.redis
    redis.values[NUMBER] = b"0"
    if adopted:
        redis.ends[NUMBER] = 1000
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.tick()
    redis.execute()
    if not heard:
        redis.cut(worker.now)
    worker.settle()

    assert [adopted] == [state is None for state in given]
    assert adopted is (record_of(1) in redis.values)
    assert adopted is (record_of(2) not in redis.values)
    worker.owner.record.store_head(77, None, False)
    worker.settle()
    assert adopted is (record_of(1) in redis.values)
    assert (record_of(1) in redis.values) != (record_of(2) in redis.values)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("adopted", [True, False])
def test_a_session_is_given_or_stays_while_redis_is_full(worker: DurableWorker, adopted: bool, stored: bool) -> None:
    """It would be at no worker; or what it has not stored be lost where it stays, or be written where it was given."""
    give_while_full(worker, adopted, stored, -1, False)


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("has_memory", [True, False])
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("adopted", [True, False])
def test_who_gives_a_session_to_a_full_redis_learns_whether_it_was_given(
    worker: DurableWorker, adopted: bool, stored: bool, has_memory: bool, lost: int
) -> None:
    """The same, if an answer is lost: that to the give, or one before. Then Redis may have memory again."""
    give_while_full(worker, adopted, stored, lost, has_memory)


def give_while_full(worker: DurableWorker, adopted: bool, stored: bool, lost: int, has_memory: bool) -> None:
    """Have the session given to a worker whose sessions are *adopted* already, or not.

    *stored*: all of the session is. *lost*: after so many turns an answer is, and Redis *has_memory* from then on; -1:
    none is.
    """
    redis = worker.redis
    redis.values[NUMBER] = b"0"
    if adopted:
        redis.ends[NUMBER] = 1000
    redis.server.full = True
    late = None if stored else worker.offer(b"2")
    for _ in range(10):
        worker.turn()
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    for _ in range(lost):
        worker.turn()
    if lost >= 0:
        worker.tick()
        redis.execute()
        redis.cut(worker.now)
        redis.server.full = not has_memory
        worker.tick(2 * PAUSE)  # what was refused is due again
    worker.until(lambda: len(given) > 0)

    if adopted:
        assert [None] == given
    elif not (has_memory and stored):  # then it may be given by a transaction
        assert [encode_state(None, [])] == given
    assert adopted is (record_of(1) in redis.values)
    assert adopted is (record_of(2) not in redis.values)
    redis.server.full = False
    worker.settle()
    assert adopted is (record_of(1) in redis.values)
    assert (record_of(1) in redis.values) != (record_of(2) in redis.values)
    if adopted:
        assert late is None or answered(late)
        worker.connect()
        worker.settle()
        assert [b"1"] + [b"2"] * (late is not None) == [
            packet.payload for packet in worker.client.take() if isinstance(packet, Publish)
        ]
    else:
        assert not any(incarnation(1) in key and b"queue" in key for key in redis.values)
        assert late is None or not answered(late)


def test_a_session_is_given_although_what_was_to_be_stored_has_ended(worker: DurableWorker) -> None:
    """Nothing would be written for its queue any more, and the new worker would wait for it for ever."""
    redis = worker.redis
    redis.values[NUMBER] = b"0"
    redis.server.down = True
    redis.cut(worker.now)
    worker.owner.record.store_head(77, None, False)
    worker.tick()  # the transaction under way: the message is to be in the next one
    published = worker.offer(b"2", lasting=1.0)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    for _ in range(3):
        worker.tick(1.0)
    assert answered(published)
    redis.server.down = False
    for _ in range(10):
        worker.turn(1.0)

    assert [False] == [state is None for state in given]
    assert record_of(2) in redis.values


def publish(worker: DurableWorker, number: int) -> Message:
    """A publish of QoS 2, which has the *number* as its token and its payload."""
    published = message(b"%d" % number, 2)
    completion = published.completion = Completion()
    completion.token = bytes(ORIGIN) + number.to_bytes(8, "big")
    worker.session.offer(published, worker.now)
    return published


@pytest.mark.parametrize("moves", [True, False])
def test_what_was_not_stored_when_redis_was_full_is_stored_when_it_comes_again(
    worker: DurableWorker, moves: bool
) -> None:
    """It would be taken for a repetition: publishes behind it have come again before, as others had lost them.

    The session *moves* on before it comes, or its new worker dies.
    """
    server = worker.redis.server
    server.full = True
    for number in (1, 2, 3):
        publish(worker, number)
    for _ in range(10):
        worker.turn()
    new = DurableWorker(ModelRedis(server), 2, worker.now, expects=True)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.until(lambda: len(given) > 0)
    for number in (1, 3):
        publish(new, number)
    new.owner.take(b"", given[0] or b"", new.now)
    new.until(lambda: new.owner.ready)
    server.full = moves
    for _ in range(10):
        new.turn()
    last = DurableWorker(ModelRedis(server), 3, new.now, expects=True)
    if moves:
        new.owner.record.give(incarnation(3), given.append)
        new.until(lambda: len(given) > 1)
        server.full = False
        last.owner.take(b"", given[1] or b"", last.now)
    else:
        last.owner.take(incarnation(2), b"", last.now)
    last.until(lambda: last.owner.ready)
    last.connect()
    published = [publish(last, number) for number in ((1, 3, 2, 2) if moves else (2, 2, 3))]
    last.settle()

    assert all(map(answered, published))
    came = [packet.payload for packet in last.client.take() if isinstance(packet, Publish)]
    assert [b"1", b"1", b"3", b"2"] == came


@pytest.mark.parametrize("full", [False, True])
def test_what_was_removed_of_a_session_is_removed_before_it_is_given(worker: DurableWorker, full: bool) -> None:
    """Its next worker would find a will that was published, or a subscription that has ended, and have it for ever."""
    redis, record = worker.redis, worker.owner.record
    redis.values[NUMBER] = b"0"
    record.store_will(Will(WillFields(b"t", b"gone", 1)))
    subscription = Subscription(worker.session, b"filter", b"")
    record.subscribed(subscription)
    worker.settle()
    redis.server.full = full
    record.unsubscribed(subscription.key())
    record.store_will(None)
    given: list[bytes | None] = []
    record.give(incarnation(2), given.append)
    for _ in range(20):
        worker.turn()

    assert [None] != given != []
    assert {HEAD, LEFT} == redis.values[record_of(2)].keys()


def test_a_worker_that_never_was_there_is_given_nothing(worker: DurableWorker) -> None:
    """Redis may have lost that it owns sessions: whoever follows it would not look for them."""
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.settle()

    assert [None] == given


def test_a_session_that_is_given_during_an_adoption_is_read_or_stays() -> None:
    """It would come to a page of the former owner that was read before, and nobody would have it."""
    outcomes = [given_after(steps) for steps in range(60)]

    assert {(True, False), (False, True)} == set(outcomes)
    assert sorted(outcomes) == outcomes[::-1]  # first it is read; from some step on it stays


def given_after(steps: int) -> tuple[bool, bool]:
    """Whether a session is read by the worker that adopts its new owner, and whether it stays at its former one.

    It is given after that worker has had the server execute as many commands as *steps*.
    """
    giver = DurableWorker(ModelRedis())
    giver.disconnect()
    giver.settle()
    server = giver.redis.server
    server.keep(NUMBER, b"0")
    server.values[KEYS.durable_owners("node")] = {incarnation(1): b"1", incarnation(2): b"0"}
    wire, budget = ModelRedis(server), MessageBudget(PLENTY)
    commands = CommandPipeline(wire, RedisAddress(path="/model"), "adopts", giver.log)
    store = store_of(commands, 3, budget, lambda: giver.now, workers=2)
    follower = OneSession(store, budget)
    store.start(giver.now)
    store.serve(follower, giver.now)
    for _ in range(steps):
        wire.execute(1)
        wire.answer(giver.now)
        store.tick(giver.now)
    given: list[bytes | None] = []
    giver.owner.record.give(incarnation(2), given.append)
    giver.settle()
    while not follower.ready:
        wire.execute()
        wire.answer(giver.now)
        store.tick(giver.now)
    return follower.found is not None, given == [None]
