# The queue of a durable session: what is stored and what never is, when publishers are answered, and what is bounded.
import pytest

from broker.mqtt.packets import Ack, Publish
from broker.reasons import DropReason
from broker.session.message import Message
from broker.session.queue import INFLIGHT
from broker.store.durable.commit_delays import LONGEST_HOLD, SMOOTHING
from broker.store.durable.group_commit import PATIENCE, PAUSE
from broker.store.durable.pack import PACK, PACKET_IDS, PLAIN, DamagedPack, decode_pack
from broker.store.durable.parts import MOST_READY
from broker.store.durable.places import READY
from broker.store.durable.store import MESSAGE_UNITS, PAGES
from tests.session.receiver import message
from tests.store.durable.durable_worker import HOLD, KEYS, WALL, DurableWorker, answered, incarnation
from tests.store.durable.model import ModelRedis


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis())


def stored(worker: DurableWorker) -> list[bytes]:
    """The payloads in Redis."""
    packs = worker.redis.values.get(worker.queue.key(), [])
    return [each.message.payload for data in packs for each in decode_pack(data, worker.now, WALL).messages]


def received(worker: DurableWorker) -> list[tuple[bytes, int]]:
    """What the client has received since the last call: payloads and packet ids."""
    return [(packet.payload, packet.packet_id) for packet in worker.client.take() if isinstance(packet, Publish)]


def test_a_quick_reader_costs_the_store_nothing(worker: DurableWorker) -> None:
    """Each message would be written and removed, although its client has it within a millisecond."""
    worker.connect()
    before = worker.store.commit.counters.store_transactions
    for number in range(10):
        published = worker.offer(b"%d" % number)
        assert not answered(published)
        worker.tick(HOLD / 4)
        assert worker.session.puback(number + 1, worker.now)
        assert answered(published)
    worker.settle()

    assert before == worker.store.commit.counters.store_transactions
    assert 0 == worker.budget.used


def test_a_slow_readers_message_is_stored_and_removed(worker: DurableWorker) -> None:
    """The publisher would wait for a client that may never acknowledge, or the message stay for ever."""
    worker.connect()
    published = worker.offer(b"slow")
    assert [(b"slow", 1)] == received(worker)
    worker.tick(HOLD / 2)
    worker.redis.execute()
    assert not answered(published)
    assert [] == stored(worker)
    worker.settle()

    assert answered(published)
    assert [b"slow"] == stored(worker)
    assert worker.session.puback(1, worker.now)
    worker.settle()
    assert [] == stored(worker)


def test_what_is_acknowledged_while_it_is_written_is_done_at_once(worker: DurableWorker) -> None:
    """The publisher would wait for a store that is full, although the message has arrived."""
    worker.connect()
    worker.redis.server.full = True
    published = worker.offer(b"x")
    for _ in range(3):
        worker.turn()
    assert not answered(published)
    assert worker.session.puback(1, worker.now)

    assert answered(published)
    worker.redis.server.full = False
    worker.until(lambda: worker.store.commit.idle() and not worker.redis.busy())
    assert [] == stored(worker)


def test_only_what_is_older_than_the_hold_is_written(worker: DurableWorker) -> None:
    """A steady stream to a quick reader would be written in part."""
    worker.connect()
    worker.offer(b"old")
    worker.tick(HOLD * 0.9)
    worker.offer(b"new")
    worker.tick(HOLD * 0.2)
    worker.redis.execute()
    worker.redis.answer(worker.now)

    assert [b"old"] == stored(worker)
    worker.settle()
    assert [b"old", b"new"] == stored(worker)


def test_an_acknowledgement_that_is_not_read_yet_counts_as_in_time(worker: DurableWorker) -> None:
    """A worker that is behind would store, and remove, what its clients have acknowledged before the hold was over."""
    worker.connect()
    worker.settle()
    before = worker.store.commit.counters.store_transactions
    began = worker.now
    worker.store.commit.holds.read_up_to = lambda: began
    published = worker.offer(b"x")
    worker.tick()
    for _ in range(3):
        worker.tick(HOLD)
    assert worker.session.puback(1, worker.now)
    assert answered(published)
    worker.store.commit.holds.read_up_to = lambda: worker.now
    worker.settle()

    assert before == worker.store.commit.counters.store_transactions


def test_a_hold_ends_however_far_the_worker_is_behind(worker: DurableWorker) -> None:
    """A publisher would wait for as long as its worker is overloaded, for a client that may never acknowledge."""
    worker.connect()
    worker.settle()
    began = worker.now
    worker.store.commit.holds.read_up_to = lambda: began
    published = worker.offer(b"x")
    worker.tick()
    worker.turn(HOLD + LONGEST_HOLD * 0.9)
    worker.turn()
    assert not answered(published)
    worker.turn(LONGEST_HOLD * 0.2)
    worker.turn()

    assert answered(published)
    assert [b"x"] == stored(worker)


def test_a_message_that_is_acknowledged_after_its_hold_tells_how_long_that_took(worker: DurableWorker) -> None:
    """A busy worker would go on to store and remove what such clients get; see `Holds`."""
    worker.connect()
    worker.offer(b"x")
    worker.tick()
    worker.tick(HOLD)
    worker.turn(0.004)
    assert [b"x"] == stored(worker)
    assert 0.0 == worker.store.commit.holds.answers
    assert worker.session.puback(1, worker.now)

    assert SMOOTHING * 0.004 == pytest.approx(worker.store.commit.holds.answers)


def test_what_was_stored_while_its_client_was_away_tells_nothing_of_acknowledgements(worker: DurableWorker) -> None:
    """A client that comes back after a second would make holds longer, or shorter."""
    worker.offer(b"x")
    worker.settle()
    worker.connect()
    worker.until(lambda: worker.session.inflight() == 1)
    assert worker.session.puback(1, worker.now)
    worker.settle()

    assert [] == stored(worker)
    assert 0.0 == worker.store.commit.holds.answers


def test_what_waits_for_an_absent_client_is_stored_at_once_in_one_pack(worker: DurableWorker) -> None:
    """A publisher would wait for the hold of a client that is not there, or each message cost a transaction."""
    before = worker.store.commit.counters.store_transactions
    published = [worker.offer(b"%d" % number) for number in range(10)]
    worker.tick()
    worker.redis.execute()
    worker.redis.answer(worker.now)

    assert all(map(answered, published))
    assert 1 == len(worker.redis.values[worker.queue.key()])
    assert before + 1 == worker.store.commit.counters.store_transactions


def test_qos_2_is_sent_when_it_is_stored(worker: DurableWorker) -> None:
    """After a crash in between the message would come under another packet id, and count as another message."""
    worker.connect()
    published = worker.offer(b"once", 2)
    worker.offer(b"behind", 1)
    assert [] == received(worker)
    worker.tick()
    worker.redis.execute()
    assert [] == received(worker)
    worker.redis.answer(worker.now)

    assert answered(published)
    assert [(b"once", 1), (b"behind", 2)] == received(worker)


@pytest.mark.parametrize(("window", "most"), [(20, READY), (1000, MOST_READY)])
def test_a_long_queue_is_in_redis_and_not_in_memory(worker: DurableWorker, window: int, most: int) -> None:
    """A million absent clients would need the memory that Redis is there for, or slow ones what quick ones need."""
    for number in range(30 * PACK):
        worker.offer(b"%05d" % number)
    worker.settle()

    assert 30 * PACK == worker.session.waiting() == len(stored(worker))
    assert 0 == worker.queue.size == worker.session.held_bytes()
    worker.connect(window=window)
    payloads: list[bytes] = []
    largest = 0
    while worker.session.waiting() or worker.session.inflight():
        worker.turn()
        largest = max(largest, worker.queue.size)
        for payload, packet_id in received(worker):
            payloads.append(payload)
            assert worker.session.puback(packet_id, worker.now)
    assert [b"%05d" % number for number in range(30 * PACK)] == payloads
    assert largest <= (most * 3 // 2 + PACK) * 6


def reads(worker: DurableWorker) -> list[list[bytes]]:
    """The reads of queues that Redis has not executed."""
    return [command for command in worker.redis._received if command[0] == b"LRANGE" and b":queue:" in command[1]]


def test_a_quick_client_is_read_ahead_for_in_ever_larger_pages(worker: DurableWorker) -> None:
    """A client would wait for a round trip to Redis after each 128 messages, or all that waits be in memory at once."""
    for number in range(30 * PACK):
        worker.offer(b"%05d" % number)
    worker.settle()
    worker.connect()
    worker.tick()
    asked: list[int] = []
    while worker.session.waiting():
        asked += [int(last) - int(first) + 1 for _, _, first, last in reads(worker)]
        worker.turn()
    assert [1, 2, 4, 8, 8] == asked[:5]
    assert 30 == sum(asked)
    assert 30 * PACK == len(received(worker))

    worker.disconnect()  # nothing was acknowledged
    worker.settle()
    worker.connect()
    worker.tick()
    assert 1 == len(reads(worker))
    assert [b"0", b"0"] == reads(worker)[0][2:]


def test_the_next_page_is_read_while_the_last_one_is_sent(worker: DurableWorker) -> None:
    """Each page would cost a client the round trip to Redis, in which nothing is sent."""
    for number in range(20 * PACK):
        worker.offer(b"%05d" % number)
    worker.settle()
    worker.connect(window=READY * 3 // 4)
    worker.turn()
    worker.turn()

    assert READY // 4 * 6 == worker.queue.size
    worker.tick()
    assert 1 == len(reads(worker))


def test_the_next_page_is_asked_for_in_the_same_slice(worker: DurableWorker) -> None:
    """While events keep coming the loop calls `tick()` each 10 ms only: a client would wait as long for each page."""
    for number in range(20 * PACK):
        worker.offer(b"%05d" % number)
    worker.settle()
    worker.connect()
    worker.tick()
    worker.redis.execute()
    worker.redis.answer(worker.now)
    assert [] == reads(worker)
    assert worker.store.may_send()
    worker.store.send(worker.now)

    assert 1 == len(reads(worker))


def test_pages_are_small_where_memory_is_short(worker: DurableWorker) -> None:
    """The pages of quick clients would have the sessions with the most messages shed."""
    for number in range(30 * PACK):
        worker.offer(b"%05d" % number)
    worker.settle()
    worker.budget.low = 0
    worker.connect()
    while worker.session.waiting():
        worker.tick()
        assert [] == [page for page in reads(worker) if page[2] != page[3]]
        worker.turn()


def test_a_page_counts_as_much_work_as_its_messages(worker: DurableWorker) -> None:
    """The pages of thousands of clients would be taken in one turn of the loop, and other clients wait for seconds."""
    others = worker.more(2)
    for other in others:
        for number in range(PACK):
            other.session.offer(message(b"%d" % number, 1), worker.now)
    worker.settle()
    for other in others:
        other.connect()
    worker.tick()
    worker.redis.execute()

    assert PACK * MESSAGE_UNITS <= worker.commands.receive(b"".join(worker.redis._answers), 100, worker.now)
    assert worker.commands.more_replies
    assert [PACK, 0] == [other.session.inflight() for other in others]


def test_many_clients_that_come_back_do_not_fill_the_connection_to_redis(worker: DurableWorker) -> None:
    """Transactions would wait until the pages of all of them were read."""
    others = worker.more(2 * PAGES + 10)
    for other in others:
        other.session.offer(message(b"x", 1), worker.now)
    worker.settle()
    for other in others:
        other.connect()
    published = worker.offer(b"later")
    worker.tick()
    assert PAGES == len(reads(worker))
    worker.turn()
    assert answered(published)
    worker.redis.cut(worker.now)  # what is under way is read again
    worker.settle()
    for other in others:
        worker.until(lambda session=other.session: not session.waiting())  # type: ignore[misc]
        assert [b"x"] == [packet.payload for packet in other.take() if isinstance(packet, Publish)]


@pytest.mark.parametrize("away", [True, False])
@pytest.mark.parametrize("ready", [True, False])
def test_a_full_queue_drops_its_oldest_messages_wherever_they_are(ready: bool, away: bool) -> None:
    """A queue would grow without end in Redis, or lose its newest messages."""
    most = READY // 2 if ready else 10 * READY
    worker = DurableWorker(ModelRedis(), queue=most)
    if away:
        worker.session.detach()
    for number in range(most + 300):
        worker.offer(b"%05d" % number)
        if number % 10 == 0:
            worker.settle()
    worker.settle()

    assert most == worker.session.waiting() == most + 300 - worker.client.dropped(DropReason.QUEUE_FULL)
    assert most <= len(stored(worker)) <= most + PACK
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)
    assert (b"00300", 301) == received(worker)[0]


def test_an_absent_client_costs_no_memory_and_gets_everything_as_before(worker: DurableWorker) -> None:
    """A million clients that are away would fill the memory with what is stored; or get other packet ids than before.

    Nothing that a client has acknowledged comes again.
    """
    worker.connect(window=8)
    for number in range(20):
        worker.offer(b"%d" % number, 1 + number % 2)
    worker.settle()
    first = received(worker)
    assert [(b"%d" % number, number + 1) for number in range(8)] == first
    assert worker.session.puback(3, worker.now)
    assert worker.session.pubrec(4, 0, worker.now)
    assert worker.session.pubrec(6, 0, worker.now)
    worker.settle()
    assert worker.session.pubcomp(4, worker.now)
    worker.settle()
    assert [(b"8", 9), (b"9", 10)] == received(worker)
    worker.session.detach()
    for _ in range(3):
        worker.offer(b"later")
    worker.settle()

    assert 1 == worker.session.inflight()  # the PUBREL
    assert 20 - 3 + 3 == worker.session.waiting()
    assert (0, 0) == (worker.queue.size, worker.budget.messages)
    assert worker.budget.used == INFLIGHT
    before = [*range(1, 3), 5, *range(7, 21), *range(21, 24)]
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)
    again = worker.client.take()
    assert [6] == [packet.packet_id for packet in again if isinstance(packet, Ack)]
    published = [packet for packet in again if isinstance(packet, Publish)]
    assert before == [packet.packet_id for packet in published]
    assert [packet_id <= 10 for packet_id in before] == [packet.dup for packet in published]
    for packet in published:
        if packet.qos == 1:
            worker.session.puback(packet.packet_id, worker.now)
        else:
            worker.session.pubrec(packet.packet_id, 0, worker.now)
    worker.settle()
    for packet_id in [6, *[packet.packet_id for packet in published if packet.qos == 2]]:
        assert worker.session.pubcomp(packet_id, worker.now)
    worker.settle()
    assert not any(b":queue:" in key or b":released:" in key for key in worker.redis.values)
    assert (0, 0) == (worker.budget.used, worker.budget.messages)


def test_a_client_that_is_back_at_once_gets_what_is_in_memory(worker: DurableWorker) -> None:
    """What was sent would come twice, from memory and from the store."""
    worker.connect()
    worker.offer(b"a")
    worker.session.detach()
    worker.connect()
    worker.settle()

    assert [(b"a", 1)] == received(worker)
    assert 1 == worker.session.inflight()


@pytest.mark.parametrize("where", ["new", "ready", "unread"])
def test_what_a_client_may_not_have_any_more_is_dropped_wherever_it_is(worker: DurableWorker, where: str) -> None:
    """After a change of the access rules a client would get what it had no right to."""
    if where == "ready":
        worker.connect(window=1)
    published = [worker.offer(b"%03d" % number) for number in range(300)]
    if where != "new":
        worker.settle()
    worker.session.detach()
    if where == "unread":
        worker.settle()
    worker.session.withhold(lambda topic: False, worker.now)
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)
    worker.settle()

    assert all(map(answered, published))
    assert 300 == worker.client.dropped(DropReason.MAY_NOT_READ)
    assert [] == [each for each in received(worker) if where != "ready" or each != (b"000", 1)]
    assert not any(b":queue:" in key for key in worker.redis.values)
    assert (0, 0) == (worker.budget.used, worker.budget.messages)


def test_a_message_that_is_not_completed_keeps_its_packet_id(worker: DurableWorker) -> None:
    """A client would take the message 65 535 later for one that it has."""
    worker.connect(window=100)
    worker.offer(b"not completed", 2)
    worker.settle()
    assert worker.session.pubrec(1, 0, worker.now)
    worker.settle()
    for number in range(PACKET_IDS):
        worker.offer(b"x")
        if worker.session.inflight() > 1:
            worker.session.puback(number + 2, worker.now)
    worker.settle()

    assert (1, 1) == (worker.session.inflight(), worker.session.waiting())
    assert worker.session.pubcomp(1, worker.now)
    worker.settle()
    assert (b"x", 1) == received(worker)[-1]


def test_no_packet_id_is_used_twice_at_once(worker: DurableWorker) -> None:
    """The acknowledgement of one message would remove another one [MQTT-2.2.1-4]."""
    worker.connect()
    worker.offer(b"stuck")
    for number in range(2, PACKET_IDS + 1):
        worker.offer(b"")
        assert worker.session.puback(number, worker.now)
    assert PACKET_IDS == len(received(worker))
    worker.offer(b"next")
    worker.settle()

    assert [] == received(worker)
    assert worker.session.puback(1, worker.now)
    worker.settle()
    assert [(b"next", 1)] == received(worker)


def test_the_end_of_a_session_removes_all_that_is_stored(worker: DurableWorker) -> None:
    """Each session that ever was would stay in Redis."""
    published = [worker.offer(b"x") for _ in range(3)]
    worker.settle()
    unsent = worker.offer(b"y")

    waiting = worker.session.waiting()
    worker.owner.end()
    assert 4 == waiting
    assert all(map(answered, [*published, unsent]))
    worker.settle()
    assert {KEYS.durable_owners("node"), KEYS.commit_number(incarnation(1))} == worker.redis.values.keys()
    assert (0, 0) == (worker.budget.used, worker.budget.messages)


def test_a_damaged_queue_is_named_and_kept(worker: DurableWorker) -> None:
    """A value that cannot be read would end the worker, be delivered in part, or be overwritten."""
    damage = [bytes((PLAIN, 0xFF))]
    worker.redis.values[worker.queue.key()] = damage
    other = DurableWorker(worker.redis, 2)

    assert "it ends in its head" == other.owner.damage["client"]
    with pytest.raises(DamagedPack):
        decode_pack(damage[0], 0.0, 0.0)
    other.offer(b"of the next session")
    other.settle()
    assert damage in other.redis.values.values()
    assert [b"of the next session"] == stored(other)


@pytest.mark.parametrize("wrong", ["another type", "damaged", "missing"])
def test_a_queue_that_becomes_damaged_is_kept_aside(worker: DurableWorker, wrong: str) -> None:
    """Its publishers would wait for ever, or be told that their messages are stored."""
    for number in range(3 * READY):
        worker.offer(b"%d" % number)
    worker.settle()
    packs = worker.redis.values[worker.queue.key()]
    found = {
        "another type": {b"a": b"b"},
        "damaged": [packs[0], bytes((PLAIN, 0xFF)), *packs[1:]],
        "missing": packs[:1],
    }
    worker.redis.values[worker.queue.key()] = found[wrong]
    worker.connect(window=1)
    for packet_id in range(1, 3 * READY):
        worker.until(lambda: worker.session.inflight() == 1 or bool(worker.owner.damage))
        worker.session.puback(packet_id, worker.now)
    published = worker.offer(b"x")
    worker.owner.end()

    assert worker.owner.damage
    worker.until(lambda: answered(published))
    worker.settle()
    assert worker.queue.key() not in worker.redis.values
    kept = [key for key in worker.redis.values if b":damaged:client" in key]
    assert (2 if wrong != "missing" else 1) == len(kept)
    assert (0, 0) == (worker.budget.used, worker.budget.messages)


# Transactions.


def test_what_the_server_refuses_is_written_later_in_its_order(worker: DurableWorker) -> None:
    """A message that fits would overtake one that did not, or none ever be written again."""
    worker.redis.server.full = True
    published = [worker.offer(b"%d" % number) for number in range(3)]
    for _ in range(10):
        worker.turn()
        published.append(worker.offer(b"%d" % len(published)))
    assert not any(map(answered, published))
    worker.redis.server.full = False
    worker.settle()

    assert all(map(answered, published))
    assert [b"%d" % number for number in range(13)] == stored(worker)
    assert 1 == sum(worker.store.commit.counters.store_failures_by_reason.values())


@pytest.mark.parametrize("executed", [True, False])
def test_a_transaction_without_an_answer_is_carried_out_once(worker: DurableWorker, executed: bool) -> None:
    """Messages would be stored twice, or not at all, when the connection to Redis ends."""
    published = worker.offer(b"x")
    worker.tick()
    if executed:
        worker.redis.execute()
    worker.redis.cut(worker.now)
    assert not answered(published)
    worker.settle()

    assert answered(published)
    assert [b"x"] == stored(worker)


def test_whose_session_was_taken_hears_of_it_before_anything_counts_as_stored(worker: DurableWorker) -> None:
    """A worker that was thought dead would acknowledge what nobody will ever read."""
    published = worker.offer(b"x")
    worker.redis.values[KEYS.fence(incarnation(1))] = [b"client", b"another"]
    worker.fenced = heard = Heard(published)
    worker.settle()

    assert [b"client", b"another"] == heard
    assert not heard.too_late
    worker.offer(b"y")
    worker.settle()
    assert 2 == len(heard)


def test_a_fence_that_cannot_be_read_keeps_everything_back(worker: DurableWorker) -> None:
    """Nobody would know whether the sessions are still here, and publishers be answered all the same."""
    fence = KEYS.fence(incarnation(1))
    worker.redis.values[fence] = b"no list"
    published = worker.offer(b"x")
    for _ in range(200):
        worker.turn()
    assert not answered(published)
    del worker.redis.values[fence]
    worker.settle()

    assert answered(published)
    assert [b"x"] == stored(worker)


def test_a_transaction_that_is_never_answered_is_asked_about(worker: DurableWorker) -> None:
    """One reply that is lost would keep everything back until the connection ends."""
    published = worker.offer(b"x")
    worker.tick()
    worker.redis.execute()
    worker.tick(PATIENCE + 1)
    worker.settle()

    assert answered(published)
    assert [b"x"] == stored(worker)


def test_only_one_question_is_under_way(worker: DurableWorker) -> None:
    """A second answer would be taken for one about the next transaction, which would be carried out twice."""
    published = [worker.offer(b"x")]
    worker.tick(PAUSE)
    worker.redis.values[KEYS.fence(incarnation(1))] = b"no list"
    worker.redis.execute()
    worker.redis.answer(worker.now)
    del worker.redis.values[KEYS.fence(incarnation(1))]
    worker.redis.cut(worker.now)
    worker.tick(PAUSE)  # it is to be asked, and once more when the connection is there again
    published.append(worker.offer(b"y"))
    for _ in range(100):
        worker.turn(PAUSE)
    worker.settle()

    assert all(map(answered, published))
    assert [b"x", b"y"] == stored(worker)


class Heard(list[bytes]):
    """The client ids that the fence named, and whether the publisher was answered before."""

    def __init__(self, published: Message) -> None:
        self._published = published
        self.too_late = False

    def extend(self, clients: object) -> None:
        self.too_late = answered(self._published)
        super().extend(clients)  # type: ignore[arg-type]  # as DurableWorker calls it


def test_what_is_acknowledged_twice_changes_nothing(worker: DurableWorker) -> None:
    """A client could have messages removed that it never had."""
    worker.connect(window=1)
    worker.offer(b"a")
    worker.offer(b"b")
    worker.settle()
    assert worker.session.puback(1, worker.now)
    assert not worker.session.puback(1, worker.now)
    worker.settle()

    assert [(b"a", 1), (b"b", 2)] == received(worker)
    assert 1 == worker.session.inflight()
    assert worker.session.puback(2, worker.now)
    worker.settle()
    assert [] == stored(worker)
