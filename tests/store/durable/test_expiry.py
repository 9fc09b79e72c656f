# Messages that have ended leave a durable queue when their time has come, wherever they are and whoever reads it.
import pytest

from broker.mqtt.packets import PUBREL, Ack, Publish
from broker.reasons import DropReason
from broker.session.expiry import NEVER_DUE, Expiring, ExpirySchedule
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.pack import decode_pack
from broker.store.durable.sweeper import SWEEPS
from tests.session.receiver import message
from tests.store.durable.durable_worker import WALL, DurableWorker, answered
from tests.store.durable.model import ModelRedis

TTL = 600.0  # seconds


@pytest.fixture
def worker() -> DurableWorker:
    return DurableWorker(ModelRedis(), ttl=TTL)


def packs(worker: DurableWorker) -> list[list[bytes]]:
    """The payloads in Redis, by pack."""
    found = [decode_pack(data, 0.0, WALL) for data in worker.redis.values.get(worker.queue.key(), [])]
    return [[each.message.payload for each in pack.messages] for pack in found]


def expired(worker: DurableWorker) -> int:
    return worker.client.dropped(DropReason.EXPIRED)


def received(worker: DurableWorker) -> list[tuple[bytes, int]]:
    return [(packet.payload, packet.packet_id) for packet in worker.client.take() if isinstance(packet, Publish)]


def test_what_nobody_fetches_leaves_redis_and_is_counted(worker: DurableWorker) -> None:
    """The queues of clients that never come back would fill the memory of Redis for as long as their sessions last."""
    worker.session.detach()
    for number in range(300):
        worker.offer(b"%d" % number)
        worker.settle()
    worker.pass_time(TTL - 2)
    assert (300, 0) == (worker.session.waiting(), expired(worker))
    worker.pass_time(6.0)

    assert (0, 300) == (worker.session.waiting(), expired(worker))
    assert worker.queue.key() not in worker.redis.values
    assert 0 == len(worker.store.expiry)


def test_an_expiry_that_is_shorter_or_longer_than_the_time_in_queues(worker: DurableWorker) -> None:
    """A publisher could have Weir keep its messages for 136 years, or its own expiry be ignored."""
    worker.session.detach()
    worker.offer(b"short", lasting=10.0)
    worker.settle()
    worker.offer(b"long", lasting=2 * TTL)
    worker.settle()
    worker.pass_time(13.0)
    assert [[b"long"]] == packs(worker)
    worker.pass_time(TTL - 10)

    assert [] == packs(worker)


def test_a_pack_in_the_middle_leaves_and_the_rest_keeps_its_packet_ids(worker: DurableWorker) -> None:
    """What lasts a minute would stay behind what lasts a week, or messages come under other packet ids."""
    worker.session.detach()
    for number in range(6):
        worker.offer(b"%d" % number, lasting=0.0 if number in (0, 5) else 10.0)
        worker.settle()
    worker.pass_time(13.0)
    assert [[b"0"], [b"5"]] == packs(worker)
    assert 2 == worker.queue.waiting_bytes // len(b"t0")
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)

    assert [(b"0", 1), (b"5", 6)] == received(worker)


def test_a_pack_of_which_some_has_ended_is_written_again(worker: DurableWorker) -> None:
    """One message that lasts would keep a hundred that have ended in memory."""
    worker.session.detach()
    for number in range(100):
        worker.offer(b"%d" % number, lasting=0.0 if number % 50 == 7 else 10.0)
    worker.settle()
    assert 1 == len(packs(worker))
    worker.pass_time(13.0)

    assert [[b"7", b"57"]] == packs(worker)
    assert 98 == expired(worker)
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)
    assert [(b"7", 8), (b"57", 58)] == received(worker)


def test_a_slow_reader_keeps_nothing_that_has_ended(worker: DurableWorker) -> None:
    """What waits in memory and in Redis behind a message that is never acknowledged would stay there."""
    worker.connect(window=1)
    for number in range(1000):
        worker.offer(b"%03d" % number, lasting=10.0)
    worker.settle()
    assert [(b"000", 1)] == received(worker)
    worker.pass_time(20.0)

    assert (0, 0, 999) == (worker.session.waiting(), worker.queue.size, expired(worker))
    assert sum(map(len, packs(worker))) <= 256  # packs that were read stay whole behind what is in flight
    assert worker.session.puback(1, worker.now)
    worker.settle()
    assert [] == packs(worker)


def test_publishers_do_not_wait_for_what_has_ended(worker: DurableWorker) -> None:
    """While the store is full, a publisher would wait for messages that nobody will ever get."""
    worker.session.detach()
    worker.offer(b"under way")
    worker.redis.server.full = True
    worker.tick()
    published = [worker.offer(b"%d" % number, lasting=2.0) for number in range(3)]
    for _ in range(50):
        worker.turn(PAUSE)

    assert all(map(answered, published))
    assert (3, 1) == (expired(worker), worker.session.waiting())
    worker.redis.server.full = False
    worker.settle()
    assert [[b"under way"]] == packs(worker)


def test_the_next_worker_knows_when_messages_end(worker: DurableWorker) -> None:
    """After each restart messages would stay until somebody reads them; or all queues had to be read for it."""
    worker.session.detach()
    for lasting in (0.0, 10.0, 0.0):
        worker.offer(b"%d" % lasting, lasting=lasting)
        worker.settle()
    worker.redis.cut(worker.now)
    other = DurableWorker(worker.redis, 2, worker.now)
    other.session.detach()
    assert 3 == len(packs(other))
    other.pass_time(13.0)

    assert [[b"0"], [b"0"]] == packs(other)
    assert (1, 2) == (expired(other), other.session.waiting())


def test_limits_do_not_take_what_has_ended_for_messages_after_a_crash(worker: DurableWorker) -> None:
    """The next worker knows positions only: it would drop messages from a queue that is nearly empty."""
    worker.session.detach()
    for _ in range(300):
        worker.offer(b"long")
    worker.settle()
    for _ in range(1000):
        worker.offer(b"short", lasting=5.0)
    worker.settle()
    worker.pass_time(10.0)
    worker.offer(b"last")
    worker.settle()
    worker.redis.cut(worker.now)
    other = DurableWorker(worker.redis, 2, worker.now, queue=400)
    other.session.detach()
    assert 1301 == other.session.waiting()
    other.offer(b"new")
    other.pass_time(5.0)

    assert [b"long"] * 300 + [b"last", b"new"] == [payload for pack in packs(other) for payload in pack]
    assert 302 == other.session.waiting()
    for number in range(200):
        other.offer(b"%d" % number)
    other.settle()
    assert (400, 102) == (other.session.waiting(), other.client.dropped(DropReason.QUEUE_FULL))


def test_a_message_with_pubrec_is_not_counted_as_waiting_after_a_sweep(worker: DurableWorker) -> None:
    """The count of a queue would become less than what is there."""
    worker.connect(window=3)
    for number in range(500):
        worker.offer(b"%03d" % number, 2)
        if number % 100 == 0:
            worker.settle()
    worker.settle()
    assert worker.session.pubrec(2, 0, worker.now)
    worker.settle()
    worker.redis.cut(worker.now)
    other = DurableWorker(worker.redis, 2, worker.now)
    other.session.detach()
    other.store.expiry.set(other.queue, 0.0)
    other.pass_time(2.0)
    assert (True, 499) == (other.queue.exact, other.session.waiting())
    other.connect(window=3)
    other.settle()

    assert 499 == other.session.waiting() + len(received(other))


def test_what_ended_in_flight_leaves_when_its_client_has_gone(worker: DurableWorker) -> None:
    """It would stay until its client is back, as its time has passed already."""
    worker.connect()
    worker.offer(b"x", lasting=5.0)
    worker.pass_time(10.0)
    assert (1, [[b"x"]]) == (worker.session.inflight(), packs(worker))
    worker.session.detach()
    worker.pass_time(3.0)

    assert (1, []) == (expired(worker), packs(worker))


def test_what_may_have_been_sent_at_qos_2_ends_by_a_pubrel(worker: DurableWorker) -> None:
    """It would be sent late [MQTT-3.3.2-5]; or its client keep the packet id, and take another message for it."""
    worker.connect()
    worker.offer(b"x", 2, lasting=10.0)
    worker.settle()
    assert [(b"x", 1)] == received(worker)
    worker.redis.cut(worker.now)
    other = DurableWorker(worker.redis, 2, worker.now)
    other.session.detach()
    other.pass_time(13.0)
    other.connect()
    other.settle()

    assert [Ack(PUBREL, 1)] == other.client.take()
    assert 1 == expired(other)
    assert other.session.pubcomp(1, other.now)
    other.settle()
    assert not any(b":queue:" in key or b":released:" in key for key in other.redis.values)
    assert (0, 0) == (other.budget.used, other.budget.messages)


def test_a_clock_that_is_set_forward_ends_messages(worker: DurableWorker) -> None:
    """A machine that slept for a week would keep for another week what has ended."""
    worker.session.detach()
    worker.offer(b"x")
    worker.settle()
    worker.jump = TTL + 2
    worker.pass_time(2.0)

    assert [] == packs(worker)
    assert 1 == expired(worker)


def test_a_clock_that_is_set_back_keeps_messages_and_the_worker_busy_once(worker: DurableWorker) -> None:
    """Each tick would look through a queue in which nothing has ended."""
    worker.session.detach()
    worker.offer(b"x")
    worker.settle()
    worker.pass_time(TTL - 10)
    worker.jump = -100.0
    commands = worker.commands.statistics.sent
    worker.pass_time(30.0)

    assert [[b"x"]] == packs(worker)
    assert worker.commands.statistics.sent - commands <= 2


def test_a_message_that_comes_while_a_sweep_is_under_way_stays(worker: DurableWorker) -> None:
    """It would be dropped with those before it, or be forgotten when it ends."""
    worker.session.detach()
    worker.offer(b"old", lasting=5.0)
    worker.settle()
    worker.tick(6.5)
    assert 1 == worker.store.expiry.sweeps
    worker.offer(b"new", lasting=5.0)
    worker.settle()
    worker.pass_time(1.0)
    assert [[b"new"]] == packs(worker)
    assert 1 == worker.session.waiting()
    worker.pass_time(8.0)

    assert [] == packs(worker)
    assert 2 == expired(worker)


def test_a_client_that_comes_back_during_a_sweep_gets_what_is_left(worker: DurableWorker) -> None:
    """It would get nothing before its next message, or what has ended."""
    worker.session.detach()
    for number in range(300):
        worker.offer(b"%d" % number, lasting=5.0 if number % 2 else 0.0)
    worker.settle()
    worker.tick(6.5)
    worker.connect()
    worker.until(lambda: worker.session.waiting() == 0)

    assert [b"%d" % number for number in range(0, 300, 2)] == [payload for payload, _ in received(worker)]


def test_many_queues_that_end_together_are_looked_through_a_few_at_a_time(worker: DurableWorker) -> None:
    """A million sessions with the same deadline would stop the worker."""
    queues = [worker.store.begin(b"client-%d" % number).queue() for number in range(200)]
    for queue in queues:
        queue.rest()
        queue.append(message(b"x", 1, expires=worker.now + 5.0), 10, worker.now)
    worker.settle()
    worker.tick(6.5)
    most = 0
    for _ in range(300):
        worker.tick(0.01)
        most = max(most, worker.store.expiry.sweeps)
        worker.turn()

    assert SWEEPS == most
    assert [] == [queue for queue in queues if queue.count or queue.key() in worker.redis.values]
    assert (0, 0) == (worker.store.expiry.sweeps, len(worker.store.expiry))


def test_a_queue_that_fills_and_drains_is_known_once() -> None:
    """A client could fill the memory with places in the schedule."""
    schedule = ExpirySchedule()
    queues = [Expiring() for _ in range(50)]
    for number in range(5000):
        schedule.set(queues[number * 7 % 50], float(number * 31 % 997))
        if number % 11 == 0:
            schedule.discard(queues[number % 50])
    assert len(schedule) == sum(queue.place >= 0 for queue in queues) <= 50

    dues = []
    while (due := schedule.next_due()) != NEVER_DUE:
        dues.append(due)
        assert schedule.pop_due(due - 0.1) is None
        queue = schedule.pop_due(due)
        assert queue is not None
        assert (-1, NEVER_DUE) == (queue.place, queue.due)
    assert sorted(dues) == dues


def test_the_end_of_a_session_leaves_the_schedule(worker: DurableWorker) -> None:
    """Sessions that have ended would take memory until their last message would have."""
    worker.offer(b"x")
    worker.settle()
    worker.owner.end()
    worker.settle()

    assert 0 == len(worker.store.expiry)
