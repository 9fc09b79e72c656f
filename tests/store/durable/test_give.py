# A session is given to a worker that lives, and to no other; whoever gives it knows what has become of it.
from typing import cast

import msgpack
import pytest

from broker.delivery.completion import Completion
from broker.mqtt.packets import Publish
from broker.mqtt.packets import Will as WillFields
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.session.subscription import Subscription
from broker.session.will import Will
from broker.store.durable import pack, parts
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.queue_state import encode_state
from broker.store.durable.stored_session import FORM, HEAD, LEFT
from broker.store.durable.tokens import ORIGIN
from broker.store.redis.address import RedisAddress
from broker.store.redis.pipeline import CommandPipeline
from tests.session.receiver import PLENTY, message
from tests.store.durable.durable_worker import CLIENT, KEYS, DurableWorker, OneSession, answered, incarnation, store_of
from tests.store.durable.model import SHORT, ModelRedis

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


def test_what_the_end_of_a_connection_stores_leaves_with_the_session(worker: DurableWorker) -> None:
    """Each takeover would cost a transaction more, and wait for its answer if that is late."""
    worker.redis.values[NUMBER] = b"0"
    record = worker.owner.record
    given: list[bytes | None] = []
    before = worker.store.commit.counters.store_transactions

    record.store_head(77, None, False)
    record.put_off(worker.now)
    worker.tick()
    record.give(incarnation(2), given.append)
    worker.settle()

    assert before + 1 == worker.store.commit.counters.store_transactions
    assert [False] == [state is None for state in given]
    assert cast(dict[bytes, bytes], worker.redis.values[record_of(2)])[HEAD] == msgpack.packb((FORM, 77, None))


def test_what_is_put_off_is_stored_if_the_session_is_not_given(worker: DurableWorker) -> None:
    """The session would last as long as it did before, or a connection be told that this is stored."""
    record = worker.owner.record
    stored: list[None] = []

    record.store_head(77, None, False)
    record.put_off(worker.now)
    record.when_stored(lambda: stored.append(None))
    assert not stored
    worker.settle()

    assert stored
    assert cast(dict[bytes, bytes], worker.redis.values[record_of(1)])[HEAD] == msgpack.packb((FORM, 77, None))


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


@pytest.mark.parametrize("filters", [0, SHORT])
def test_a_short_session_needs_not_be_read_by_its_new_worker(worker: DurableWorker, filters: int) -> None:
    """A client that comes back to another worker would wait once more for Redis, or a long session would go twice."""
    for number in range(filters):
        worker.owner.record.subscribed(Subscription(worker.session, b"a/%d" % number, b""))
    worker.settle()
    new = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.until(lambda: len(given) > 0)
    new.owner.take(b"", given[0] or b"", new.now)

    assert new.owner.ready is (filters == 0)
    new.until(lambda: new.owner.ready)
    assert new.owner.found is not None


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So few packet ids are used."""
    for module in (pack, parts):
        monkeypatch.setattr(module, "PACKET_IDS", 8)
    return 8


def moved(worker: DurableWorker) -> DurableWorker:
    """The worker to which the session has moved, which *worker* had without a connection; its client is there."""
    new = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.until(lambda: len(given) > 0)
    new.owner.take(b"", given[0] or b"", new.now)
    new.until(lambda: new.owner.ready)
    new.connect()
    return new


def sent(worker: DurableWorker) -> list[tuple[int, bool]]:
    """The packet ids of what the client was sent since the last call, and whether it is marked as a duplicate."""
    return [(packet.packet_id, packet.dup) for packet in worker.client.take() if isinstance(packet, Publish)]


def complete(worker: DurableWorker, packet_id: int) -> None:
    """The client is sent a message under *packet_id* for the first time, and completes it."""
    worker.settle()
    assert [(packet_id, False)] == sent(worker)
    assert worker.session.pubrec(packet_id, 0, worker.now)
    worker.settle()
    assert worker.session.pubcomp(packet_id, worker.now)
    worker.settle()


def test_packet_ids_go_on_where_a_session_moves_of_which_nothing_is_stored(few: int) -> None:
    """What its client acknowledges would be another message than the one that it got, which would come for ever."""
    former = DurableWorker(ModelRedis())
    former.connect()
    for number in range(few + 3):  # of QoS 2: that their tokens were taken keeps the queue
        publish(former, number)
        complete(former, number % few + 1)
    former.disconnect()
    former.settle()
    new = moved(former)

    publish(new, few + 3)
    complete(new, 4)
    assert not any(b":queue:" in key or b":released:" in key for key in new.redis.values)


def test_a_packet_id_is_not_used_of_a_message_that_would_come_again(few: int) -> None:
    """After a crash the client would have two messages under one packet id, one of which it could not acknowledge."""
    worker = DurableWorker(ModelRedis())
    worker.disconnect()
    for _ in range(3):  # stored together, so all of them are until none is needed
        worker.offer(b"")
    worker.settle()
    worker.connect()
    worker.settle()
    assert [1, 2, 3] == [packet_id for packet_id, _ in sent(worker)]
    for packet_id in (1, 3):
        assert worker.session.puback(packet_id, worker.now)
    for number in range(4, few + 1):
        worker.offer(b"")
        assert worker.session.puback(number, worker.now)
    sent(worker)
    publish(worker, 1)
    worker.settle()
    assert [] == sent(worker)

    assert worker.session.puback(2, worker.now)
    complete(worker, 1)


def test_what_waits_where_a_session_moves_is_known_by_what_was_sent_there(few: int) -> None:
    """After a crash all that waits may have been sent; acknowledgements would be taken for those of the last of it."""
    first = DurableWorker(ModelRedis())
    for _ in range(few + 3):
        first.offer(b"")
    first.settle()
    second = DurableWorker(ModelRedis(first.redis.server), 2, first.now + 1)
    new = DurableWorker(ModelRedis(first.redis.server), 3, second.now, expects=True)
    given: list[bytes | None] = []
    second.owner.record.give(incarnation(3), given.append)
    second.until(lambda: len(given) > 0)
    new.owner.take(b"", given[0] or b"", new.now)
    new.until(lambda: new.owner.ready)
    new.connect(window=1)
    ids = []
    for _ in range(few + 3):
        new.settle()
        ((packet_id, _),) = sent(new)
        ids.append(packet_id)
        assert new.session.puback(packet_id, new.now)
    new.settle()

    assert [number % few + 1 for number in range(few + 3)] == ids
    assert not any(b":queue:" in key for key in new.redis.values)


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


def test_a_session_that_was_taken_from_a_worker_and_comes_back_stays(worker: DurableWorker) -> None:
    """It would end, with all that is stored of it, when the worker reads that it was taken from there before."""
    other = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True)
    other.redis.values[KEYS.fence(incarnation(2))] = [CLIENT]
    other.owner.take(incarnation(1), b"", other.now)
    other.until(lambda: other.owner.ready)
    before = list(other.fenced)
    other.offer(b"2")
    other.settle()

    assert other.owner.found is not None
    assert [CLIENT] == before == other.fenced
    assert record_of(2) in other.redis.values


def test_a_session_that_was_given_and_is_taken_before_it_was_read_is_not_there(worker: DurableWorker) -> None:
    """Two workers would have it."""
    other = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    worker.settle()
    (state,) = given
    assert state is not None
    third = DurableWorker(ModelRedis(worker.redis.server), 3, worker.now, expects=True)
    third.owner.take(incarnation(2), b"", third.now)
    third.until(lambda: third.owner.ready)
    assert third.owner.found is not None
    other.store.commit.confirm(lambda: None)
    other.settle()
    assert [CLIENT] == other.fenced
    other.owner.take(b"", state, other.now)
    other.until(lambda: other.owner.ready)

    assert other.owner.found is None
