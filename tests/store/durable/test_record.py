# What is stored of a durable session beside its messages, and who has it after its worker has ended.
from functools import partial

import pytest

from broker.mqtt.packets import PUBCOMP, Ack
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.adoption import FENCED
from broker.store.durable.group_commit import FORGOTTEN
from broker.store.durable.stored_session import DamagedRecord, read_record
from broker.store.redis.keys import FENCED_FOR
from tests.session.receiver import PLENTY, message
from tests.store.durable.durable_worker import CLIENT, EXPIRY, HOLD, KEYS, WALL, DurableWorker, answered, incarnation
from tests.store.durable.model import ModelRedis

LEFT_AT = [b"\0", b"1800000000.5"]
HEAD_ONLY = [b"", b"\x93\x01\xcd\x0e\x10\xc0", *LEFT_AT]


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis())


def subscription(session: Session, key: bytes) -> Subscription:
    share, _, filter = key.removeprefix(b"$share/").partition(b"/") if key.startswith(b"$share/") else (b"", b"", key)
    return Subscription(session, filter, share)


def stored_subscriptions(worker: DurableWorker) -> list[tuple[bytes, int, bool, bool, bytes]]:
    found = worker.owner.found
    assert found is not None
    return [
        (each.key(), each.qos, each.no_local, each.retain_as_published, each.identifiers)
        for each in found.stored.subscriptions(worker.session)
    ]


def test_the_next_worker_has_the_session_as_it_was(worker: DurableWorker) -> None:
    """A client would find no session, or not receive what it has subscribed to."""
    record, session = worker.owner.record, worker.session
    plain, shared = subscription(session, b"a/+"), subscription(session, b"$share/group/b/#")
    plain.qos, plain.no_local, plain.retain_as_published, plain.identifiers = 2, True, True, b"\x0b\x07"
    record.subscribed(plain)
    record.subscribed(shared)
    record.subscribed(subscription(session, b"gone"))
    worker.settle()
    record.unsubscribed(b"gone")
    record.store_head(EXPIRY, b"user", False)
    worker.settle()

    next_one = DurableWorker(worker.redis, 2, worker.now)
    found = next_one.owner.found
    assert found is not None
    assert (EXPIRY, "user") == (found.stored.expiry, found.stored.user)
    assert WALL + worker.now == pytest.approx(found.stored.left, abs=1)
    assert [(b"a/+", 2, True, True, b"\x0b\x07"), (b"$share/group/b/#", 0, False, False, b"")] == stored_subscriptions(
        next_one
    )


def test_who_waits_is_called_when_it_is_stored(worker: DurableWorker) -> None:
    """A SUBACK would leave before the subscription would survive, or never."""
    called: list[str] = []
    record = worker.owner.record
    record.when_stored(lambda: called.append("nothing to store"))
    assert ["nothing to store"] == called
    record.subscribed(subscription(worker.session, b"a"))
    record.when_stored(lambda: called.append("a"))
    worker.tick()
    record.subscribed(subscription(worker.session, b"b"))
    record.when_stored(lambda: called.append("b"))
    assert ["nothing to store"] == called
    worker.redis.execute()
    worker.redis.answer(worker.now)
    assert ["nothing to store", "a"] == called
    worker.tick()
    record.when_stored(lambda: called.append("under way"))
    worker.settle()
    assert ["nothing to store", "a", "under way"] == called


def test_nobody_waits_for_what_is_stored_already(worker: DurableWorker) -> None:
    """A client whose SUBSCRIBE or UNSUBSCRIBE changes nothing would not be answered before something else is stored."""
    called: list[str] = []
    record = worker.owner.record
    record.may_receive(1, False)
    worker.settle()
    record.receive(1, False, message(b"x", 2))
    worker.settle()
    record.release(1)
    record.subscribed(subscription(worker.session, b"a"))
    worker.tick()
    worker.turn(HOLD)
    worker.settle()
    record.when_stored(partial(called.append, "nothing to store"))

    assert ["nothing to store"] == called


def test_pubcomp_waits_until_the_packet_id_is_not_stored_any_more(worker: DurableWorker) -> None:
    """A crash would have the next publish with that id taken for the former one: it would be acknowledged, and lost."""
    worker.connect()
    client, session, record = worker.client, worker.session, worker.owner.record
    record.may_receive(1, False)
    worker.settle()
    record.receive(1, False, message(b"x", 2))
    session.receive(1)
    worker.settle()

    assert session.pubrel(1)
    worker.tick()
    assert [] == client.take()
    worker.settle()
    assert [Ack(PUBCOMP, 1)] == client.take()
    assert not session.pubrel(1)
    assert [Ack(PUBCOMP, 1)] == client.take()


def test_a_connection_gets_pubcomp_for_its_own_pubrel(worker: DurableWorker) -> None:
    """A client that has come back would get PUBCOMP before it has sent PUBREL, twice, or never."""
    worker.connect()
    session, record = worker.session, worker.owner.record
    record.may_receive(1, False)
    record.may_receive(2, False)
    worker.settle()
    for packet_id in (1, 2):
        record.receive(packet_id, False, message(b"x", 2))
        session.receive(packet_id)
    worker.settle()
    session.pubrel(1)
    session.pubrel(2)
    worker.tick()
    worker.disconnect()
    worker.connect()
    session.pubrel(2)
    worker.settle()

    assert [Ack(PUBCOMP, 2)] == worker.client.take()


def test_who_has_gone_does_not_wait(worker: DurableWorker) -> None:
    """While Redis is away, each connection of a client that subscribes would leave something behind."""
    called: list[str] = []
    record = worker.owner.record
    for connection in ("first", "second", "third"):
        record.subscribed(subscription(worker.session, b"a"))
        record.when_stored(partial(called.append, connection))
    worker.settle()
    assert ["third"] == called


def test_what_does_not_change_is_not_stored_again(worker: DurableWorker) -> None:
    """Each packet of a client that is at rest would cost a transaction."""
    before = worker.store.commit.counters.store_transactions
    worker.owner.record.store_head(EXPIRY, None, True)
    worker.settle()
    assert before == worker.store.commit.counters.store_transactions


def test_a_session_that_follows_one_that_ended_has_nothing_of_it(worker: DurableWorker) -> None:
    """After a clean start a client would receive what its former session had subscribed to."""
    former = worker.owner.record
    former.subscribed(subscription(worker.session, b"former"))
    worker.offer(b"former")
    worker.owner.end()
    worker.owner.adopted(worker.now)
    worker.owner.record.subscribed(subscription(worker.session, b"new"))
    published = worker.offer(b"new")
    worker.settle()
    assert answered(published)

    next_one = DurableWorker(worker.redis, 2, worker.now)
    assert [b"new"] == [each[0] for each in stored_subscriptions(next_one)]
    assert 1 == next_one.session.waiting()


def test_nothing_stays_under_the_keys_of_a_worker_that_has_ended(worker: DurableWorker) -> None:
    """Each start of a node would leave the keys of the one before."""
    worker.offer(b"x")
    worker.settle()
    next_one = DurableWorker(worker.redis, 2, worker.now)
    next_one.until(next_one.store.adoption.finished)

    assert {incarnation(2): b"0"} == next_one.redis.values[KEYS.durable_owners("node")]
    left = [key for key in next_one.redis.values if incarnation(1) in key]
    assert {KEYS.commit_number(incarnation(1)), KEYS.fence(incarnation(1))} == set(left)
    assert dict.fromkeys(left, FENCED_FOR) == next_one.redis.ends


def test_what_was_written_for_sessions_that_had_been_taken_goes_with_their_former_owner(worker: DurableWorker) -> None:
    """It is in no index: each takeover from a worker that stands still and dies might leave a queue for ever."""
    values = worker.redis.values
    clients = [b"taken-%d" % number for number in range(FENCED + 1)]
    for client in clients:
        theirs = KEYS.sessions(KEYS.slice_of(client), incarnation(1))
        values[theirs.records + client] = {b"": b"x"}
        values[theirs.queues + client] = [b"x"]
        values[theirs.released + client] = {b"1"}
    values[KEYS.fence(incarnation(1))] = clients
    next_one = DurableWorker(worker.redis, 2, worker.now)
    next_one.until(next_one.store.adoption.finished)

    left = [key for key in next_one.redis.values if incarnation(1) in key]
    assert {KEYS.commit_number(incarnation(1)), KEYS.fence(incarnation(1))} >= set(left)


def test_what_a_dead_worker_still_writes_changes_nothing(worker: DurableWorker) -> None:
    """A transaction that the server reads late would add to a queue, or replace what the next worker has stored."""
    worker.offer(b"first")
    worker.settle()
    worker.offer(b"late")
    worker.tick()
    worker.redis.hold_back()
    second = DurableWorker(worker.redis, 2, worker.now)
    worker.redis.let_through()
    third = DurableWorker(worker.redis, 3, worker.now)

    assert 1 == second.session.waiting() == third.session.waiting()
    number = KEYS.commit_number(incarnation(1))
    assert (b"3", FENCED_FOR) == (worker.redis.values[number], worker.redis.ends[number])  # written late, and ends


def test_adoption_goes_on_where_the_connection_was_cut() -> None:
    """A worker that starts while Redis restarts would begin without its sessions, or never begin."""
    for step in range(1, 60):
        first = DurableWorker(ModelRedis())
        first.owner.record.subscribed(subscription(first.session, b"a"))
        first.offer(b"x")
        first.settle()
        first.redis.cut_after = step
        second = DurableWorker(first.redis, 2, first.now)
        assert [b"a"] == [each[0] for each in stored_subscriptions(second)], step
        assert 1 == second.session.waiting()
        if first.redis.cut_after:
            return
    raise AssertionError("the connection was cut each time")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ([], "no head"),
        ([*LEFT_AT, b"a", b"\x00"], "no head"),
        (HEAD_ONLY[:2], "not the time"),
        ([b"", HEAD_ONLY[1], b"\0", b"soon"], "cannot be read"),
        ([b"", HEAD_ONLY[1], b"\0", b"nan"], "form 1"),
        ([b"", b"\xc1", *LEFT_AT], "cannot be read"),
        ([b"", b"\x90", *LEFT_AT], "cannot be read"),
        ([b"", b"\x93\x02\x00\xc0", *LEFT_AT], "form 2"),
        ([b"", b"\x93\x01\xa0\xc0", *LEFT_AT], "form 1"),
        ([b"", b"\x93\x01\x00\x05", *LEFT_AT], "cannot be read"),
        ([b"", b"\x93\x01\x00\xc4\x01\xff", *LEFT_AT], "cannot be read"),
        ([*HEAD_ONLY, b"a", b""], "no options"),
        ([*HEAD_ONLY, b"a", b"\x03"], "no options"),
        ([*HEAD_ONLY, b"a", b"\x10"], "no options"),
        ([*HEAD_ONLY, b"a", b"\x00\x26\x01"], "no options"),
        ([*HEAD_ONLY, b"a", b"\x00\x0b"], "no options"),
        ([*HEAD_ONLY, b"a", b"\x00\x0b\x80"], "no options"),
        ([*HEAD_ONLY, b"a", b"\x00\x0b\x01\x01"], "no options"),
        ([*HEAD_ONLY, b"a/#/b", b"\x00"], "a subscription"),
        ([*HEAD_ONLY, b"\xff", b"\x00"], "a subscription"),
    ],
)
def test_a_record_that_cannot_be_read_says_why(fields: list[bytes], why: str) -> None:
    """One damaged value would end the worker, or all sessions be lost with it."""
    with pytest.raises(DamagedRecord, match=why):
        read_record(fields)
    assert EXPIRY == read_record(HEAD_ONLY).expiry


def test_a_client_id_in_the_index_that_is_none_is_kept_aside(worker: DurableWorker) -> None:
    """What another program writes would keep all sessions from being adopted."""
    keys = KEYS.sessions(KEYS.slice_of(b"\xff"), incarnation(1))
    worker.redis.values[keys.index] = {b"\xff": b""}
    worker.redis.values[keys.records + b"\xff"] = dict([HEAD_ONLY[:2], HEAD_ONLY[2:]])
    second = DurableWorker(worker.redis, 2, worker.now)
    second.settle()

    assert {"\udcff": "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"} == second.owner.damage
    assert [keys.damaged + b"\xff"] == [key for key in second.redis.values if b":damaged:" in key]
    assert EXPIRY == second.owner.client.session.expiry


def test_a_damaged_record_is_kept_aside_with_its_queue(worker: DurableWorker) -> None:
    """The session that its client begins next would be mixed with it, or nobody could repair it."""
    worker.offer(b"x")
    worker.settle()
    record = next(key for key in worker.redis.values if b":session:" in key)
    worker.redis.values[record] = {b"": b"?"}
    second = DurableWorker(worker.redis, 2, worker.now)
    second.settle()

    assert "cannot be read" in second.owner.damage["client"]
    assert 2 == len([key for key in second.redis.values if b":damaged:" + CLIENT in key])
    assert 0 == second.session.waiting()


def test_a_record_of_another_type_ends_its_session_alone(worker: DurableWorker) -> None:
    """A SUBSCRIBE would wait for ever, or everybody's."""
    record = next(key for key in worker.redis.values if b":session:" in key)
    worker.redis.values[record] = [b"x"]
    called: list[int] = []
    worker.owner.record.subscribed(subscription(worker.session, b"a"))
    worker.owner.record.when_stored(lambda: called.append(1))
    worker.settle()
    worker.tick()

    assert [1] == called
    assert "WRONGTYPE" in worker.owner.damage["client"]


def test_the_end_of_a_session_is_stored_once(worker: DurableWorker) -> None:
    """A client that begins a new session at once would lose it: what was held would remove it from the store."""
    record = worker.owner.record
    worker.connect()
    worker.offer(b"held, as the client may acknowledge it")
    worker.store.commit.later(record, worker.now)  # as after PUBREL
    worker.owner.end()
    worker.owner.record = after = worker.store.begin(CLIENT)
    after.store_head(EXPIRY, None, False)
    after.queue().append(message(b"for the next session", 1), PLENTY, worker.now)
    stored = []
    for _ in range(10):
        worker.turn(HOLD / 2)
        stored.append(sorted(key.split(b":")[2] for key in worker.redis.values if key.endswith(CLIENT)))

    assert [b"queue", b"session"] == stored[-1]


def test_sessions_that_end_while_redis_is_full_are_forgotten(worker: DurableWorker) -> None:
    """They would stay in memory until Redis has memory: clients that come and go could use up that of the worker."""
    for number in range(1000):
        worker.store.begin(b"%d" % number).store_head(EXPIRY, None, False)
    worker.settle()
    worker.redis.server.full = True
    worker.offer(b"1")
    worker.until(lambda: worker.store.commit.full)
    for number in range(1000):
        record = worker.store.begin(b"%d" % number)
        record.queue()
        record.end()
        if number % 100 == 99:
            for _ in range(5):
                worker.turn()

    assert [] == [key for key in worker.redis.values if b":session:" in key and not key.endswith(CLIENT)]
    assert len(worker.store.commit._dirty) <= 2 * FORGOTTEN + 2
    worker.redis.server.full = False
    worker.settle()
    assert not worker.store.commit._dirty
