# Partitions of shared logs that a session reads for its group: what it was passed on and how far the group has read
# agree, whatever ends in between.
from typing import Final

import pytest

from broker.mqtt.packets import Publish
from broker.session.message import Message, group_variant
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.lease_scripts import digest_of, lease_field
from broker.store.durable.leases import EPOCH, SHARED_ERA, Lease, LeaseReader, first_saved
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.log_mirror import EVERY
from broker.store.durable.log_pack import decode_log_pack, encode_log_pack
from broker.store.durable.log_topics import shared_topic_of
from broker.store.durable.pack import decode_pack
from broker.store.logs.records import Pack
from tests.session.receiver import message
from tests.store.durable.durable_worker import CLIENT, KEYS, WALL, DurableWorker, incarnation
from tests.store.durable.model import ModelRedis
from tests.store.durable.model_log import ModelLog, ModelTopic

pytestmark = pytest.mark.interpreted

GROUP: Final = digest_of(b"$share/g/t/#")
STATE: Final = KEYS.group_state(GROUP)
TOPIC: Final = shared_topic_of(b"t/#")
FIRST: Final = b"0" * EPOCH
FIELD: Final = lease_field(GROUP, 0)
COUNT: Final = 12
RECORD: Final = 3  # messages of each record
SOURCE: Final = 99


class Reader(LeaseReader):
    def __init__(self) -> None:
        self.ended = 0

    def for_member(self, message: Message) -> Message | None:
        return group_variant(message, message.qos, False, b"", 7)

    def mirrored_as(self) -> tuple[str, str]:
        return "group", TOPIC

    def lease_ended(self, lease: Lease, now: float) -> None:
        self.ended += 1


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@pytest.fixture
def log() -> ModelLog:
    """The partition has messages of QoS 1 and 2."""
    made = ModelLog()
    topic = made.topics[TOPIC] = ModelTopic()
    for first in range(0, COUNT, RECORD):
        messages = [message(payload, 1 + int(payload) % 2) for payload in numbers(first, first + RECORD)]
        body = encode_log_pack(messages, SHARED_ERA, False, 0.0, WALL)
        topic.records.append([Pack(SOURCE, 1 + first // RECORD, body)])
    return made


@pytest.fixture
def worker(log: ModelLog) -> DurableWorker:
    made = DurableWorker(ModelRedis(), log=log)
    made.connect()
    made.settle()
    return made


def queue_of(worker: DurableWorker) -> ApplicationQueue:
    queue = worker.queue
    assert isinstance(queue, ApplicationQueue)
    return queue


def record_of(worker: DurableWorker) -> bytes:
    return KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(worker.number)).records + CLIENT


def hold(worker: DurableWorker) -> Reader:
    """The client has leased the partition."""
    values, reader, queue = worker.redis.server.values, Reader(), queue_of(worker)
    value = FIRST + first_saved(0)
    values[STATE] = {b"p0": b"L" + FIRST + digest_of(CLIENT) + first_saved(0)}
    values[record_of(worker)] = values[record_of(worker)] | {FIELD: value}
    lease = Lease(GROUP, 0, value)
    lease.reader = reader
    feed = lease.feed = LogFeed(SHARED_ERA, lease.position, lease.passed, queue.go_on)
    feed.reading = worker.link.read(TOPIC, 0, lease.position, feed)
    queue.hold(lease, worker.now)
    return reader


def left_in_the_log(worker: DurableWorker, log: ModelLog) -> list[bytes]:
    """What the next member that leases the partition is passed on."""
    state = worker.redis.server.values[STATE][b"p0"]
    assert state[:1] == b"F", "it is still leased"
    lease = Lease(GROUP, 0, FIRST + state[1:])
    found: list[bytes] = []
    for record in log.topics[TOPIC].records[lease.position.offset :]:
        for pack in record:
            found += [each.message.payload for each in decode_log_pack(pack.body, SHARED_ERA, SOURCE, 0.0, WALL)]
    return found[lease.passed :]


def stored(worker: DurableWorker) -> list[bytes]:
    """What is stored in the queue of the session, in packs."""
    key = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(worker.number)).queues + CLIENT
    packs = worker.redis.server.values.get(key, [])
    return [each.message.payload for pack in packs for each in decode_pack(pack, 0.0, WALL).messages]


def payloads(worker: DurableWorker) -> list[bytes]:
    return [each.payload for each in worker.client.take() if isinstance(each, Publish)]


def test_what_is_passed_on_is_stored_with_how_far_the_group_has_read(worker: DurableWorker, log: ModelLog) -> None:
    """It would come to another member as well, or to nobody."""
    reader = hold(worker)
    worker.settle()
    assert numbers(0, COUNT) == payloads(worker) == stored(worker)
    worker.disconnect()
    worker.settle()

    assert [] == left_in_the_log(worker, log)
    assert 1 == reader.ended
    assert FIELD not in worker.redis.server.values[record_of(worker)]


@pytest.mark.parametrize("executed", range(45))
@pytest.mark.parametrize("leaves", [True, False])
def test_a_worker_may_die_at_any_command(worker: DurableWorker, log: ModelLog, executed: int, leaves: bool) -> None:
    """Messages would be lost, or come to two members, of QoS 2 as well.

    The worker dies when Redis has *executed* so many commands; the client *leaves* meanwhile, or not.
    """
    queue_of(worker)._logs.most = 5
    hold(worker)
    left = executed
    for turn in range(60):
        worker.log_turn()
        worker.tick(0.001)
        most = min(left, 1)
        left -= most
        worker.redis.execute(most)
        worker.redis.answer(worker.now)
        worker.client.take()
        if leaves and turn == 20:
            worker.disconnect()
    worker.link.end(0, 0)
    worker.redis.close()
    other = DurableWorker(ModelRedis(worker.redis.server), worker.number + 1, worker.now + 1, log=log)
    other.settle()

    assert numbers(0, COUNT) == stored(other) + left_in_the_log(other, log)


@pytest.mark.parametrize("ends", [True, False])
def test_a_full_redis_loses_nothing(worker: DurableWorker, log: ModelLog, ends: bool) -> None:
    """The group would go on behind what was never stored."""
    queue_of(worker)._logs.most = 5
    hold(worker)
    worker.settle()
    payloads(worker)
    before = stored(worker)
    assert numbers(0, 5) == before
    worker.redis.server.full = True
    for packet_id in (1, 3, 5):
        worker.session.puback(packet_id, worker.now)
    for _ in range(20):
        worker.turn()
    if ends:
        worker.owner.end()
    else:
        worker.disconnect()
    for _ in range(20):
        worker.turn()
    worker.redis.server.full = False
    worker.settle()
    waits = [] if ends else stored(worker)

    if ends:
        assert numbers(5, COUNT) == left_in_the_log(worker, log), "what was stored went with the session"
    else:
        assert set(numbers(0, COUNT)) - set(waits + left_in_the_log(worker, log)) <= {b"0", b"2", b"4"}
        assert len(waits + left_in_the_log(worker, log)) == len(set(waits + left_in_the_log(worker, log)))


def test_a_former_owner_changes_nothing(worker: DurableWorker, log: ModelLog) -> None:
    """It would pass on what another worker passes on, and give the partition to a third one."""
    queue_of(worker)._logs.most = 5
    hold(worker)
    worker.settle()
    payloads(worker)
    worker.disconnect()
    worker.tick()
    worker.redis.hold_back()  # the release is on its way
    other = DurableWorker(ModelRedis(worker.redis.server), worker.number + 1, worker.now + 1, log=log)
    other.settle()
    state = worker.redis.server.values[STATE]
    assert state[b"p0"][:1] == b"F"
    worker.redis.let_through()

    assert state == worker.redis.server.values[STATE]
    assert numbers(0, COUNT) == stored(other) + left_in_the_log(other, log)


def told(worker: DurableWorker) -> list[int]:
    """The offsets of the partition that the tools of Kafka were told since the last call."""
    reached, worker.link.reached = worker.link.reached, []
    return [offset for group, topic, partition, offset in reached if (group, topic, partition) == ("group", TOPIC, 0)]


def test_the_tools_of_kafka_are_told_what_a_member_has_acknowledged(worker: DurableWorker) -> None:
    """They would show no lag, or one that passes what is not acknowledged."""
    hold(worker)
    worker.settle()
    worker.pass_time(2 * EVERY)
    assert [] == told(worker)
    worker.client.acknowledge()
    worker.pass_time(2 * EVERY)

    assert [COUNT // RECORD] == told(worker)


def test_who_has_left_a_partition_tells_nothing_of_it(worker: DurableWorker) -> None:
    """The offset would go back behind that of the next member."""
    hold(worker)
    worker.settle()
    worker.pass_time(2 * EVERY)
    queue = queue_of(worker)
    for lease in queue.leases.of_group(GROUP):
        queue.release_lease(lease)
    worker.settle()
    worker.client.acknowledge()
    worker.pass_time(2 * EVERY)

    assert [] == told(worker)
