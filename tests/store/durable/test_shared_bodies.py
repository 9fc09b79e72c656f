# Bodies that many queues refer to: stored once, there as long as a pack refers to them, and gone then.
import itertools
from typing import Any

import pytest

from broker.mqtt.packets import Publish
from broker.reasons import DropReason
from broker.session.message import group_variant
from broker.session.queue import INFLIGHT, MESSAGE
from broker.store.durable.dropped_queues import PACKS, PAUSE_PER_MESSAGE, PAUSE_PER_PACK, is_dropped
from broker.store.durable.group_commit import WIDE
from broker.store.durable.group_queue import GROUP
from broker.store.durable.pack import PACK, PACK_BYTES, Pack, Reference, StoredMessage, decode_pack
from broker.store.durable.recent_bodies import MOST, RecentBodies
from broker.store.durable.shared_bodies import BODIES, BODY_UNITS, COUNT, GROUP_BYTES, READ, RECEIVERS
from tests.session.receiver import message
from tests.store.durable.durable_worker import HOLD, KEYS, WALL, DurableWorker, answered, hold, incarnation
from tests.store.durable.model import ModelRedis

TTL = 600.0  # seconds
BODY = b"%0300d"


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis(), ttl=TTL)


def groups(worker: DurableWorker) -> list[dict[bytes, bytes]]:
    """The groups of bodies in Redis."""
    return [value for key, value in worker.redis.values.items() if b":bodies:" in key]


def received(worker: DurableWorker) -> list[bytes]:
    return [packet.payload for packet in worker.client.take() if isinstance(packet, Publish)]


def store(worker: DurableWorker, *payloads: bytes, apart: bool = False, lasting: float = 0.0) -> None:
    """Have messages with shared bodies stored, in one transaction or *apart*, while the client is away."""
    worker.disconnect()
    for payload in payloads:
        worker.offer(payload, lasting=lasting, wide=True)
        if apart:
            worker.settle()
    worker.settle()


def take_all(worker: DurableWorker) -> list[bytes]:
    """What the client gets and acknowledges, until nothing is left."""
    worker.connect()
    found: list[bytes] = []

    def taken() -> bool:
        for packet in worker.client.take():
            assert isinstance(packet, Publish)
            found.append(packet.payload)
            worker.session.puback(packet.packet_id, worker.now)
        return not worker.queue.count and not worker.session.inflight()

    worker.until(taken)
    worker.settle()
    return found


def stored_in(worker: DurableWorker, client: str) -> list[list[tuple[int, bytes]]]:
    """The positions and payloads, b"" of what is shared, in each pack of *client*."""
    keys = KEYS.sessions(KEYS.slice_of(client.encode()), incarnation(1))
    packs = [decode_pack(data, worker.now, WALL) for data in worker.redis.values[keys.queues + client.encode()]]
    return [[(each.position, each.message.payload) for each in pack.messages] for pack in packs]


@pytest.mark.parametrize("size", [1, 300])
def test_many_queues_have_a_pack_each_with_their_own_positions(worker: DurableWorker, size: int) -> None:
    """Packs whose messages are encoded once, for all of them, would begin with the numbers of another queue."""
    others = worker.more(RECEIVERS + 1)
    for number, other in enumerate(others):
        for _ in range(number):
            other.session.offer(message(b"its own", 1), worker.now)
    worker.settle()
    for payload in (b"%0*d" % (size, number) for number in range(3)):
        wide = message(payload, 1)
        for at, other in enumerate(others):
            if at or payload[-1:] != b"1":  # the first one does not get the second one
                other.session.offer(wide, worker.now)
    worker.settle()

    shown = [b"" if size > 100 else b"%0*d" % (size, number) for number in range(3)]
    for number, other in enumerate(others):
        expected = list(enumerate(shown if number else shown[:1] + shown[2:], number + 1))
        assert expected == stored_in(worker, other.session.client_id)[-1]
    assert [b"%d" % len(others)] * (size > 100) == [group[COUNT] for group in groups(worker)]
    for number, other in enumerate(others):
        other.connect()
        worker.until(lambda session=other.session: not session.waiting())  # type: ignore[misc]
        got = [packet for packet in other.take() if isinstance(packet, Publish)]
        expected_payloads = [b"%0*d" % (size, each) for each in range(3) if number or each != 1]
        assert [b"its own"] * number + expected_payloads == [packet.payload for packet in got]
        for packet in got:
            other.session.puback(packet.packet_id, worker.now)
        worker.settle()
    assert [] == groups(worker)


@pytest.mark.parametrize(("count", "size"), [(PACK + 1, 1), (3, PACK_BYTES * 2 // 3)])
def test_what_is_too_much_for_one_pack_is_in_several(worker: DurableWorker, count: int, size: int) -> None:
    """A queue would have a pack of any size, which is read as a whole."""
    others = worker.more(RECEIVERS)
    for number in range(count):
        wide = message(b"%0*d" % (size, number), 1)
        for other in others:
            other.session.offer(wide, worker.now)
    worker.settle()

    for other in others:
        packs = stored_in(worker, other.session.client_id)
        assert 2 == len(packs)
        assert [*range(1, count + 1)] == [position for pack in packs for position, _ in pack]


def test_a_body_of_many_queues_is_stored_once_and_leaves_with_the_last_reference(worker: DurableWorker) -> None:
    """A publish to 1 000 absent sessions would be written 1 000 times, or stay when they have it."""
    bodies = [BODY % number for number in range(5)]
    store(worker, *bodies)

    (group,) = groups(worker)
    assert (6, b"1") == (len(group), group[COUNT])
    assert all(body in value for body, value in zip(bodies, list(group.values())[1:], strict=True))
    (pack,) = worker.redis.values[worker.queue.key()]
    assert len(pack) <= 30 + 5 * 5
    assert bodies == take_all(worker)
    assert [] == groups(worker)


def test_a_queue_grows_by_few_bytes_for_a_message_that_many_have(worker: DurableWorker) -> None:
    """A fan-out to a million sessions would need more memory than is promised: 40 bytes for each."""
    worker.queue.stored.stored_bytes = 1 << 30
    worker.queue._last = 1 << 20
    worker.store.commit.bodies._last = 1 << 24
    store(worker, BODY % 1, BODY % 2, apart=True)

    assert max(map(len, worker.redis.values[worker.queue.key()])) <= 38  # and two or three of the list


@pytest.mark.parametrize(
    ("queues", "size", "shared"),
    [(RECEIVERS - 1, 300, False), (RECEIVERS, 300, True), (RECEIVERS, 50, False), (1000, 13, True), (1000, 12, False)],
)
def test_bodies_of_few_queues_and_small_ones_stay_in_the_packs(
    worker: DurableWorker, queues: int, size: int, shared: bool
) -> None:
    """A group would take more than it saves, or a small message of many queues more than 40 bytes of each."""
    worker.disconnect()
    published = message(b"x" * (size - 1), 1)  # and its topic
    hold(published, queues - 1)
    published.holders = 1000  # sessions in memory, too, which store nothing
    worker.session.offer(published, worker.now)
    worker.settle()

    (pack,) = worker.redis.values[worker.queue.key()]
    assert shared == (len(groups(worker)) > 0)
    assert queues < 1000 or len(pack) <= 36  # and two or three of the list


def test_a_message_that_may_return_to_its_group_keeps_its_body(worker: DurableWorker) -> None:
    """A pack has no reference for such a message: its session would be called damaged, and the message be lost."""
    worker.disconnect()
    published = message(BODY % 1, 1)
    hold(published, RECEIVERS)
    worker.session.offer(group_variant(published, 1, False, b"", 7), worker.now)
    worker.settle()

    assert [] == groups(worker)
    assert [BODY % 1] == take_all(DurableWorker(worker.redis, 2, worker.now, ttl=TTL))


def test_a_group_is_bounded(worker: DurableWorker) -> None:
    """A client that keeps one message would keep a megabyte of others in Redis, or a page be too large to read."""
    store(worker, *[BODY % number for number in range(BODIES + 3)])
    assert [BODIES + 1, 4] == [len(group) for group in groups(worker)]
    store(worker, *[bytes(GROUP_BYTES // 2 + number) for number in range(4)])
    assert [BODIES + 1, 4, 3, 3] == [len(group) for group in groups(worker)]
    assert BODIES + 7 == len(take_all(worker))
    assert [] == groups(worker)


def test_a_reference_is_good_at_each_worker_that_follows(worker: DurableWorker) -> None:
    """The bodies of a worker would end with it, or never."""
    store(worker, BODY % 1, BODY % 2, apart=True)
    second = DurableWorker(worker.redis, 2, worker.now, ttl=TTL)
    store(second, BODY % 3)
    third = DurableWorker(worker.redis, 3, worker.now, ttl=TTL)
    assert [b"1"] * 3 == [group[COUNT] for group in groups(third)]

    assert [BODY % number for number in (1, 2, 3)] == take_all(third)
    assert [] == groups(third)


def test_what_a_dead_worker_still_writes_takes_no_body_from_others(worker: DurableWorker) -> None:
    """Its transaction, which the server reads after the adoption, would count the same pack for a second time."""
    worker.connect()
    worker.offer(BODY % 1, wide=True)
    worker.settle()
    worker.session.puback(1, worker.now)
    worker.tick()
    worker.tick(HOLD)
    worker.redis.hold_back()
    second = DurableWorker(worker.redis, 2, worker.now, ttl=TTL)
    worker.redis.let_through()

    assert [BODY % 1] == take_all(second)
    assert {} == second.owner.damage
    assert [] == groups(second)


def test_what_a_worker_writes_for_a_session_that_was_taken_takes_no_body(worker: DurableWorker) -> None:
    """A worker that was stopped would wake up, and count a pack that is not its own any more."""
    worker.connect()
    worker.offer(BODY % 1, wide=True)
    worker.settle()
    second = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True, ttl=TTL)
    second.owner.take(incarnation(1), b"", second.now)
    second.until(lambda: second.owner.ready)
    worker.session.puback(1, worker.now)
    worker.settle()

    assert [b"client"] == worker.fenced
    assert [BODY % 1] == take_all(second)
    assert [] == groups(second)


def test_a_worker_from_which_a_session_was_taken_lets_go_of_bodies(worker: DurableWorker) -> None:
    """Each further body of such a worker would be in Redis for a week."""
    worker.redis.values[KEYS.fence(incarnation(1))] = [b"other"]
    store(worker, BODY % 1)
    assert [b"other"] == worker.fenced

    assert [BODY % 1] == take_all(worker)
    assert [] == groups(worker)


def test_a_worker_that_reads_while_its_session_is_taken_does_not_miss_bodies(worker: DurableWorker) -> None:
    """A session that is well at another worker would be reported as damaged."""
    worker.store.commit.fenced = lambda clients, now: worker.owner.end()
    store(worker, BODY % 1)
    worker.connect()
    worker.tick()
    worker.redis.execute()
    worker.redis.answer(worker.now)  # with the pack
    second = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True, ttl=TTL)
    second.owner.take(incarnation(1), b"", second.now)
    second.until(lambda: second.owner.ready)
    assert [BODY % 1] == take_all(second)
    worker.tick()
    worker.until(lambda: worker.queue.ended)
    worker.settle()

    assert {} == worker.owner.damage
    assert "" == worker.queue.damaged


def test_a_part_of_a_pack_that_stays_keeps_its_group(worker: DurableWorker) -> None:
    """What ends in a pack would take the bodies of what stays, or a group be there without a reference."""
    worker.disconnect()
    for number in range(6):
        worker.offer(BODY % number, qos=1 + number % 2, lasting=10.0 if number % 2 or number == 2 else 0.0, wide=True)
    worker.settle()
    assert [b"1", b"1"] == [group[COUNT] for group in groups(worker)]  # one for each QoS
    worker.pass_time(13.0)

    assert 4 == worker.client.dropped(DropReason.EXPIRED)
    (_group,) = groups(worker)
    assert [BODY % 0, BODY % 4] == take_all(worker)
    assert [] == groups(worker)


def test_packs_that_end_in_the_middle_of_a_list_let_go_of_their_bodies(worker: DurableWorker) -> None:
    """What nobody fetches would leave the queues, and stay in Redis as bodies."""
    for number in range(6):
        store(worker, BODY % number, lasting=10.0 if number % 2 or not number else 0.0)
    assert 6 == len(groups(worker))
    worker.pass_time(13.0)

    assert 2 == len(groups(worker))
    assert [BODY % 2, BODY % 4] == take_all(worker)
    assert [] == groups(worker)


def test_the_queue_of_a_session_that_ends_is_taken_apart_in_pages(worker: DurableWorker) -> None:
    """Bodies would stay for a week, or a session of 10 000 references hold up Redis and its worker when it ends."""
    store(worker, *[BODY % number for number in range(5 * PACKS + 5)], apart=True)
    published = worker.offer(BODY % 1, wide=True)
    worker.owner.end()
    worker.until(lambda: answered(published))
    key = KEYS.sessions(KEYS.slice_of(b"client"), incarnation(1))

    sizes = [len(groups(worker))]
    while worker.redis.values.get(key.index):
        worker.turn()
        sizes.append(len(groups(worker)))
    assert 5 * PACKS + 5 == sizes[0]
    assert {0, PACKS, 5} == {before - after for before, after in itertools.pairwise(sizes)}
    assert sizes.count(sizes[0] - PACKS) * HOLD >= PACKS * (PAUSE_PER_PACK + PAUSE_PER_MESSAGE)
    assert {KEYS.durable_owners("node"), KEYS.commit_number(incarnation(1))} == worker.redis.values.keys()


def test_a_session_that_ends_while_its_queue_is_written_lets_go_of_its_bodies(worker: DurableWorker) -> None:
    """Its list would be looked for before it has its new name, and be deleted with what nobody has counted."""
    store(worker, BODY % 1)
    worker.offer(BODY % 2, wide=True)
    worker.tick()
    worker.owner.end()  # while the second one is under way
    worker.redis.execute()
    worker.redis.server.down = True  # and what follows is not carried out for a while
    worker.redis.answer(worker.now)
    worker.redis.cut(worker.now)
    for _ in range(5):
        worker.turn()
    assert 2 == len(groups(worker))
    worker.redis.server.down = False
    worker.until(lambda: not groups(worker))
    worker.settle()

    assert {KEYS.durable_owners("node"), KEYS.commit_number(incarnation(1))} == worker.redis.values.keys()


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_session_that_ends_while_redis_is_full_leaves_nothing(worker: DurableWorker, in_flight: bool) -> None:
    """It would stay until there is memory; or then be made anew by what had to wait, and its bodies stay for a week."""
    store(worker, BODY % 1)
    worker.redis.server.full = True
    worker.offer(BODY % 2, wide=True)
    worker.disconnect()  # so the record is written as well
    if in_flight:
        worker.tick()
    else:
        worker.until(lambda: worker.store.commit.full)
    worker.owner.end()
    expected = {KEYS.durable_owners("node"), KEYS.commit_number(incarnation(1))}
    worker.until(lambda: expected == worker.redis.values.keys())
    worker.redis.server.full = False
    worker.settle()

    assert expected == worker.redis.values.keys()


def test_a_session_that_ends_before_it_is_read_lets_go_of_its_bodies(worker: DurableWorker) -> None:
    """Its list would be deleted unread: bodies of what nobody has counted would stay for a week."""
    store(worker, BODY % 1)
    second = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True, ttl=TTL)
    second.owner.take(incarnation(1), b"", second.now)
    second.tick()
    second.owner.end()
    second.until(lambda: not groups(second))


def test_a_queue_that_is_forgotten_has_let_go_of_its_bodies(worker: DurableWorker) -> None:
    """A queue that is gone could not count what it still refers to."""
    store(worker, BODY % 1)
    worker.connect()
    worker.until(lambda: worker.session.inflight() > 0)
    worker.session.puback(1, worker.now)
    worker.disconnect()  # before the pack is removed
    worker.offer(BODY % 2, wide=True)
    worker.settle()
    assert [b"1"] == [group[COUNT] for group in groups(worker)]
    worker.client.take()
    assert [BODY % 2] == take_all(worker)
    worker.disconnect()
    worker.settle()

    assert worker.owner.record.present_queue() is None
    assert [] == groups(worker)
    worker.owner.end()
    worker.settle()
    assert {KEYS.durable_owners("node"), KEYS.commit_number(incarnation(1))} == worker.redis.values.keys()


def test_references_ahead_of_other_packs_are_not_forgotten(worker: DurableWorker) -> None:
    """A worker that has read the ends of a list only would delete it, and nobody count what was in its middle."""
    worker.disconnect()
    for number, wide in enumerate([False, True, False, False]):
        worker.offer(BODY % number, wide=wide)
        worker.settle()
    second = DurableWorker(worker.redis, 2, worker.now, ttl=TTL)
    second.offer(BODY % 4)
    second.settle()
    third = DurableWorker(worker.redis, 3, worker.now, ttl=TTL)
    assert 1 == len(groups(third))
    third.owner.end()
    third.until(lambda: not groups(third))


def test_a_list_without_references_is_deleted_at_once(worker: DurableWorker) -> None:
    """Each queue that ever had one would be read when its session ends."""
    store(worker, BODY % 1)
    take_all(worker)
    worker.disconnect()
    worker.offer(b"small")
    worker.settle()
    worker.owner.end()
    worker.tick()
    worker.redis.execute()

    assert [] == [key for key in worker.redis.values if b":queue:" in key]


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 9])
def test_a_worker_goes_on_with_what_the_one_before_has_begun(worker: DurableWorker, turns: int) -> None:
    """The rest of a list would be in Redis for ever, and its bodies for a week."""
    store(worker, *[BODY % number for number in range(8 * PACKS)], apart=True)
    worker.owner.end()
    worker.until(lambda: worker.queue.key() not in worker.redis.values)
    for _ in range(turns):
        worker.turn()
    worker.redis.cut(worker.now)
    assert len(groups(worker)) > 0
    second = DurableWorker(worker.redis, 2, worker.now, ttl=TTL)
    assert 0 == second.queue.count
    store(second, BODY % 7)
    second.until(lambda: len(groups(second)) == 1)

    assert [b"1"] == [group[COUNT] for group in groups(second)]
    assert [BODY % 7] == take_all(second)
    assert [] == [key for key in second.redis.values if b":bodies:" in key or is_dropped(key.rpartition(b":")[0])]


@pytest.mark.parametrize("wrong", ["missing", "of another message", "another type"])
def test_a_message_without_its_body_is_kept_aside_with_its_session(worker: DurableWorker, wrong: str) -> None:
    """A message that was acknowledged would be dropped without a word, or another one be sent for it."""
    store(worker, BODY % 1)
    (key,) = [key for key in worker.redis.values if b":bodies:" in key]
    values: dict[str, Any] = {"missing": {COUNT: b"1"}, "of another message": {COUNT: b"1", b"1": b"\1t\1x"}}
    worker.redis.values[key] = values.get(wrong, [b""])
    worker.connect()
    worker.until(lambda: bool(worker.owner.damage))
    worker.owner.end()
    worker.settle()

    assert worker.owner.damage["client"]
    assert [] == received(worker)
    assert 2 == len([name for name in worker.redis.values if b":damaged:client" in name])


def test_a_body_that_has_expired_with_its_message_is_not_missed(worker: DurableWorker) -> None:
    """A session that comes back late would be lost, as the body of a message is gone that is not sent anyway."""
    store(worker, BODY % 1, lasting=10.0)
    (key,) = [key for key in worker.redis.values if b":bodies:" in key]
    worker.redis.values[key] = {COUNT: b"1"}
    worker.redis.server.full = True  # nothing is swept
    worker.now += 11.0
    worker.redis.server.full = False

    assert [] == take_all(worker)
    assert {} == worker.owner.damage
    assert [] == groups(worker)


def offer_widely(worker: DurableWorker, payload: bytes) -> None:
    """Have the queue get a message twice, the second time as the one of many queues after which it is wide."""
    published = message(payload, 1)
    worker.session.offer(published, worker.now)
    hold(published, WIDE - 2)
    worker.session.offer(published, worker.now)


def test_messages_of_wide_fan_outs_share_a_transaction(worker: DurableWorker) -> None:
    """Each of 1 000 queues would get each message by a command of its own."""
    worker.disconnect()
    worker.settle()
    worker.offer(b"x")
    worker.tick()
    worker.now += HOLD  # that a transaction takes
    worker.turn()
    offer_widely(worker, b"first")
    worker.tick()
    for _ in range(4):
        offer_widely(worker, b"next")
        worker.redis.execute()
        worker.redis.answer(worker.now)
        worker.tick(HOLD / 5)
    assert 2 == len(worker.redis.values[worker.queue.key()])
    assert worker.now + HOLD / 5 == pytest.approx(worker.store.commit.tick(worker.now))
    worker.settle()

    packs = [decode_pack(data, worker.now, WALL) for data in worker.redis.values[worker.queue.key()]]
    assert [1, 2, 8] == [len(pack.messages) for pack in packs]


def test_publishes_that_follow_the_same_answer_share_a_transaction(worker: DurableWorker) -> None:
    """Of ten publishes to 1 000 queues that follow ten answers, the first one would have a transaction of its own."""
    worker.disconnect()
    worker.settle()
    for _ in range(2):
        offer_widely(worker, b"first")
    worker.tick()
    worker.now += HOLD  # that a transaction takes
    worker.redis.execute()
    worker.redis.answer(worker.now)
    assert worker.store.commit.idle()
    offer_widely(worker, b"next")
    worker.tick(HOLD / 5)
    offer_widely(worker, b"next")
    worker.settle()

    packs = [decode_pack(data, worker.now, WALL) for data in worker.redis.values[worker.queue.key()]]
    assert [4, 4] == [len(pack.messages) for pack in packs]


def test_a_publisher_that_waits_for_its_answers_is_not_held_back(worker: DurableWorker) -> None:
    """Each answer would come later, although there is no other message to wait for."""
    worker.disconnect()
    worker.settle()
    for number in range(1, 4):
        offer_widely(worker, b"x")
        worker.tick()
        worker.now += HOLD
        worker.redis.execute()
        worker.redis.answer(worker.now)
        assert worker.store.commit.idle()
        assert number == len(worker.redis.values[worker.queue.key()])


def test_a_deep_queue_with_bodies_is_read_in_order(worker: DurableWorker) -> None:
    """Pages would mix up bodies, or ask for them one by one."""
    bodies = [BODY % number for number in range(3 * PACK)]
    store(worker, *bodies)
    worker.offer(b"and one without")
    worker.settle()
    worker.disconnect()

    assert [*bodies, b"and one without"] == take_all(worker)


def body_reads(worker: DurableWorker) -> int:
    """How many reads of bodies Redis has not executed."""
    return sum(command[:2] == [b"EVAL", READ] for command in worker.redis._received)


def test_clients_that_come_back_together_read_a_body_once(worker: DurableWorker) -> None:
    """Each client of a fleet would have the same bodies read, and in memory once more."""
    others = worker.more(RECEIVERS)
    for number in range(5):
        wide = message(BODY % number, 1, expires=worker.now + 1000)
        for other in others:
            other.session.offer(wide, worker.now)
    worker.settle()
    reads: list[int] = []
    for other in others:
        other.connect()
        for _ in range(5):
            worker.tick()
            reads.append(body_reads(worker))
            worker.turn(0.01)
        assert [BODY % number for number in range(5)] == [
            packet.payload for packet in other.take() if isinstance(packet, Publish)
        ]

    assert 1 == sum(reads)
    once = 5 * (MESSAGE + len(b"t" + BODY % 1))
    assert once + 5 * RECEIVERS * INFLIGHT == worker.budget.used
    for other in others:
        for packet_id in range(1, 6):
            assert other.session.puback(packet_id, worker.now)
    worker.settle()
    assert 0 == worker.budget.used
    assert [] == groups(worker)


def test_bodies_count_as_much_work_as_their_messages(worker: DurableWorker) -> None:
    """Messages of thousands of clients would be made in one turn of the loop, and other clients wait for seconds."""
    store(worker, *[BODY % number for number in range(10)])
    worker.connect()
    worker.turn()
    worker.turn()
    assert 1 == body_reads(worker)
    worker.redis.execute()
    assert 10 * BODY_UNITS <= worker.commands.receive(b"".join(worker.redis._answers), 1 << 30, worker.now)
    assert 10 == worker.session.inflight()


def test_messages_that_differ_in_more_than_their_queue_are_not_shared(worker: DurableWorker) -> None:
    """A client would get the message of another one: with the retain flag, or for longer than it may wait."""
    store(worker, BODY % 1)
    (data,) = worker.redis.values[worker.queue.key()]
    recent = RecentBodies()
    whole = decode_pack(data, worker.now, WALL)
    whole.messages[0].message = message(BODY % 1, 1)
    whole.messages[0].message.end_by(decode_pack(data, worker.now, WALL).messages[0].message.ends)
    recent.keep([whole])
    assert recent.fill([decode_pack(data, worker.now, WALL)])
    assert recent.fill([decode_pack(data, worker.now + 0.0001, WALL)])  # times are rounded
    assert not recent.fill([decode_pack(data, worker.now + 0.1, WALL)])
    for name, value in (("qos", 2), ("retain", True), ("expires", worker.now), ("size", 1)):
        other = decode_pack(data, worker.now, WALL)
        setattr(other.messages[0].message, name, value)
        assert not recent.fill([other])


@pytest.mark.parametrize("size", [300, 60_000, 10_000_000])
def test_recent_bodies_are_bounded(size: int) -> None:
    """They would be in memory for ever, and count nowhere."""
    recent = RecentBodies()
    for number in range(1, 4000):
        whole = message(b"x" * min(size, MOST), 1)
        whole.size = size
        recent.keep([Pack(0, 0, 0, 0, [StoredMessage(1, whole, Reference(number // 4, number % 4))], b"12345678")])
        assert recent.size <= MOST
    assert (recent.size > MOST * 2 // 3) == (size < MOST)


def test_the_lists_of_groups_have_messages_of_their_own(worker: DurableWorker) -> None:
    """Two groups would give the same message to members: what one of them has stored would count for both."""
    store(worker, BODY % 1)
    worker.connect()
    worker.until(lambda: worker.session.inflight() > 0)
    keys = KEYS.sessions(KEYS.slice_of(b"client"), incarnation(1))
    (data,) = worker.redis.values[keys.queues + b"client"]
    list_of_group = worker.store.make_queue(keys, GROUP + b"list")
    assert not worker.store.has_bodies(list_of_group, [decode_pack(data, worker.now, WALL + worker.now)])
    whole = decode_pack(data, worker.now, WALL + worker.now)
    assert worker.store.has_bodies(worker.queue, [whole])

    other = DurableWorker(ModelRedis(), ttl=TTL)
    other.store.bodies_read(other.store.make_queue(keys, GROUP + b"list"), [whole])
    assert not other.store.has_bodies(other.queue, [decode_pack(data, worker.now, WALL + worker.now)])
