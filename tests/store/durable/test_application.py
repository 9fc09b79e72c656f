# The queue of an APPLICATION session: what is in its log comes to its client, whatever ends in between.
import pytest

from broker.delivery.completion import Completion
from broker.mqtt.packets import Ack, Publish
from broker.reasons import DropReason
from broker.session.message import NEVER, Message
from broker.store.durable.application_logs import REFUSALS
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.application_topics import RETRY
from broker.store.durable.index import READ
from broker.store.durable.log_pack import PACK as LOG_PACK
from broker.store.durable.log_pack import PACK_BYTES, decode_log_pack, encode_log_pack
from broker.store.durable.log_topics import topic_of
from broker.store.durable.pack import DamagedPack
from broker.store.durable.stored_session import LOG
from broker.store.durable.tokens import NUMBER, ORIGIN
from broker.store.logs.port import Appender
from broker.store.logs.records import Pack
from tests.session.receiver import message
from tests.store.durable.durable_worker import CLIENT, EXPIRY, KEYS, WALL, DurableWorker, answered, incarnation
from tests.store.durable.model import ModelRedis
from tests.store.durable.model_log import DAMAGED, ModelLog, ModelTopic, refusal

pytestmark = pytest.mark.interpreted

TOPIC = topic_of(CLIENT)
ORIGIN_OF = b"o" * ORIGIN


@pytest.fixture
def log() -> ModelLog:
    return ModelLog()


@pytest.fixture
def worker(log: ModelLog) -> DurableWorker:
    """Its client has connected, and left."""
    made = DurableWorker(ModelRedis(), log=log)
    made.connect()
    made.settle()
    made.disconnect()
    made.settle()
    return made


def queue_of(worker: DurableWorker) -> ApplicationQueue:
    queue = worker.queue
    assert isinstance(queue, ApplicationQueue)
    return queue


def next_worker(worker: DurableWorker, log: ModelLog, passed: int = 200) -> DurableWorker:
    """The one that follows *worker*, which has ended."""
    worker.redis.close()
    return DurableWorker(ModelRedis(worker.redis.server), worker.number + 1, worker.now + 1, log=log, passed=passed)


def received(worker: DurableWorker) -> list[tuple[bytes, int, bool]]:
    """What the client has received since the last call: payloads, packet ids, and whether they are duplicates."""
    return [(each.payload, each.packet_id, each.dup) for each in worker.client.take() if isinstance(each, Publish)]


def offer_token(worker: DurableWorker, payload: bytes, number: int) -> Message:
    """Have the session receive a QoS 2 publish with a token."""
    offered = message(payload, 2)
    offered.completion = Completion()
    offered.completion.token = ORIGIN_OF + number.to_bytes(NUMBER, "big")
    worker.session.offer(offered, worker.now)
    return offered


def read_all(worker: DurableWorker) -> list[bytes]:
    """All that comes to the client, which acknowledges all of it."""
    payloads: list[bytes] = []
    while True:
        worker.settle()
        came = worker.client.acknowledge()
        if not came:
            return payloads
        payloads += came


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Appending.


def test_a_publisher_is_answered_when_the_log_has_its_message(worker: DurableWorker, log: ModelLog) -> None:
    """What is acknowledged would be lost with the worker; or its publisher would wait for the client."""
    published = worker.offer(b"x")
    worker.tick()
    worker.link.store()
    worker.tick()
    assert not answered(published)
    worker.link.tell(worker.now)

    assert answered(published)
    assert 0 == worker.budget.used == worker.queue.size
    assert 1 == len(log.bodies(TOPIC))


def test_messages_of_a_slice_share_packs_of_bounded_size(worker: DurableWorker, log: ModelLog) -> None:
    """Each would be a record of its own; or a record be larger than the log takes."""
    for _ in range(LOG_PACK + 1):
        worker.offer(b"x")
    for _ in range(3):
        worker.offer(bytes(PACK_BYTES // 2 - 1))
    worker.offer(bytes(2 * PACK_BYTES))
    worker.settle()

    found = [decode_log_pack(body, queue_of(worker)._era, 0, 0.0, 0.0) for body in log.bodies(TOPIC)]
    assert [LOG_PACK, 2, 2, 1] == [len(each) for each in found]


def test_what_the_log_refuses_is_counted_and_its_publisher_goes_on(worker: DurableWorker) -> None:
    """The publisher would wait for ever, or send it again and again; or the client never hear of it."""
    worker.link.refuse = refusal()
    refused = worker.offer(b"large")
    worker.tick()
    stored = worker.offer(b"small")
    worker.settle()

    assert answered(refused) and answered(stored)
    assert 1 == worker.client.dropped(DropReason.LOG_REFUSED)
    worker.connect()
    assert [b"small"] == read_all(worker)


def test_messages_that_the_log_refuses_are_logged_once_a_minute(worker: DurableWorker) -> None:
    """Who looks at the log would not learn why they are missing; or a publisher could fill it."""
    for pause in (1.0, REFUSALS - 2.0, 2.0):
        worker.link.refuse = refusal()
        worker.offer(b"large")
        worker.tick()
        worker.settle()
        worker.pass_time(pause)
    lines = worker.log.named("application_messages_refused")
    worker.link.refuse = refusal()
    worker.offer(b"large")
    worker.settle()

    assert [{"client": "client", "topic": TOPIC, "count": 1, "why": str(refusal())}] == lines
    assert 2 == len(worker.log.named("application_messages_refused"))


def test_a_pack_that_takes_long_has_its_publishers_wait(worker: DurableWorker) -> None:
    """The gate does not count them any more, so each could have any number of publishes under way."""
    published = worker.offer(b"x")
    worker.tick()
    worker.link.unstored[0].appender.late(worker.now)

    assert published.completion is not None and published.completion.long


@pytest.mark.parametrize("away", [True, False])
def test_publishers_wait_for_a_log_that_is_not_there(log: ModelLog, away: bool) -> None:
    """The gate counts what is appended: each could have any number wait for a topic that cannot be made."""
    worker = DurableWorker(ModelRedis(), log=log)
    worker.link.away = away
    worker.connect()
    worker.settle()
    published = worker.offer(b"x")

    assert published.completion is not None
    assert away is published.completion.long


def test_nothing_is_appended_before_the_era_is_stored(log: ModelLog) -> None:
    """A worker that follows would find another era, and take what is in the log for that of a former session."""
    worker = DurableWorker(ModelRedis(), log=log)
    worker.connect()
    published = worker.offer(b"x")
    worker.link.answer()
    for _ in range(3):
        worker.tick()
        worker.log_turn()
    assert [] == log.bodies(TOPIC)
    assert not answered(published)
    worker.settle()

    assert 1 == len(log.bodies(TOPIC))
    assert answered(published)
    assert [(b"x", 1, False)] == received(worker)


def test_a_topic_that_cannot_be_made_is_tried_again(log: ModelLog) -> None:
    """The session would get nothing for as long as its worker lives."""
    worker = DurableWorker(ModelRedis(), log=log)
    create = worker.link.create
    worker.link.create = lambda topic, properties, then: then(refusal())  # type: ignore[method-assign]
    worker.connect()
    worker.offer(b"x")
    worker.settle()
    worker.pass_time(2 * RETRY + 1)
    logs = worker.store.logs
    assert logs is not None
    assert {TOPIC: str(refusal())} == logs.troubles
    assert str(refusal()) == logs.trouble(TOPIC)
    assert [{"client": "client", "topic": TOPIC, "why": str(refusal())}] == worker.log.named("application_log_failed")
    assert [] == worker.log.named("application_log_recovered")
    worker.link.create = create  # type: ignore[method-assign]
    worker.pass_time(RETRY + 1)

    assert {} == logs.troubles
    assert [{"client": "client", "topic": TOPIC}] == worker.log.named("application_log_recovered")
    assert [b"x"] == read_all(worker)


def test_a_log_that_cannot_be_read_is_told_until_it_can(worker: DurableWorker) -> None:
    """Nobody would know why the client gets nothing; or it would be told for ever, as nothing is published."""
    worker.connect()
    worker.settle()
    logs = worker.store.logs
    assert logs is not None
    (reading,) = worker.link.readings
    reading.reader.failed(refusal(), worker.now)
    worker.pass_time(3.0)
    assert str(refusal()) == logs.trouble(TOPIC)
    assert [{"client": "client", "topic": TOPIC, "why": str(refusal())}] == worker.log.named("application_log_failed")
    reading.reader.failed(None, worker.now)
    worker.pass_time(2.0)
    assert "" == logs.trouble(TOPIC)
    assert [{"client": "client", "topic": TOPIC}] == worker.log.named("application_log_recovered")
    worker.link.trouble = "no leader"
    assert "no leader" == logs.trouble(TOPIC)
    reading.reader.failed(refusal(), worker.now)
    worker.pass_time(2.0)
    worker.disconnect()

    assert {} == logs.troubles


# Passing on.


def test_what_came_while_the_client_was_away_comes_in_order(worker: DurableWorker) -> None:
    for payload in numbers(500):
        worker.offer(payload, 1 + int(payload) % 2)
        worker.tick()
    worker.settle()
    worker.connect()

    assert numbers(500) == read_all(worker)
    assert 0 == worker.budget.used == worker.session.inflight() == worker.session.waiting()
    assert worker.queue.key() not in worker.redis.values


def test_a_message_is_sent_once_it_is_stored(worker: DurableWorker) -> None:
    """After a crash it would be sent under another packet id, and not as a duplicate."""
    worker.connect()
    worker.settle()
    worker.offer(b"x")
    worker.tick()
    worker.log_turn()
    worker.tick()
    assert [] == received(worker)
    worker.redis.execute()
    assert [] == received(worker)
    worker.redis.answer(worker.now)

    assert [(b"x", 1, False)] == received(worker)


def test_what_an_acknowledgement_makes_room_for_is_sent_once_it_is_stored(log: ModelLog) -> None:
    """The same, for a message that the session asks for at once."""
    worker = DurableWorker(ModelRedis(), log=log, passed=1)
    worker.connect()
    worker.offer(b"1")
    worker.offer(b"2")
    worker.settle()
    assert [(b"1", 1, False)] == received(worker)
    assert worker.session.puback(1, worker.now)
    assert [] == received(worker)
    worker.settle()

    assert [(b"2", 2, False)] == received(worker)


def test_no_more_are_passed_on_than_may_be_unfinished(log: ModelLog) -> None:
    """A client that acknowledges nothing would have all of its log in Redis, and in memory."""
    worker = DurableWorker(ModelRedis(), log=log, passed=10)
    worker.connect()
    for payload in numbers(100):
        worker.offer(payload)
        worker.tick()
    worker.settle()
    assert 10 == len(received(worker))
    assert 10 == worker.session.inflight()
    assert 0 == worker.session.waiting()
    for packet_id in (1, 2, 3):
        assert worker.session.puback(packet_id, worker.now)
    worker.settle()

    assert [(b"%d" % number, number + 1, False) for number in (10, 11, 12)] == received(worker)
    (reading,) = worker.link.readings
    assert len(reading.held) <= 3


def test_a_record_is_passed_on_in_part(log: ModelLog) -> None:
    """What follows would come again with each connection, or never."""
    worker = DurableWorker(ModelRedis(), log=log, passed=3)
    worker.connect()
    worker.settle()
    for payload in numbers(8):
        worker.offer(payload)
    worker.tick()
    worker.link.store(together=9)
    worker.settle()
    assert 1 == len(log.topics[TOPIC].records)
    assert numbers(3) == [payload for payload, _, _ in received(worker)]
    worker.disconnect()
    worker.settle()
    assert not worker.link.readings
    worker.connect()
    worker.settle()

    assert numbers(3) == [payload for payload, _, dup in received(worker) if dup]
    for packet_id in (1, 2, 3):
        assert worker.session.puback(packet_id, worker.now)
    assert numbers(8)[3:] == read_all(worker)


def test_a_pack_that_the_log_has_twice_comes_once(worker: DurableWorker) -> None:
    worker.offer(b"1", 2)
    worker.tick()
    worker.offer(b"2", 2)
    worker.tick()
    worker.link.store(1)
    worker.link.restart()
    worker.offer(b"3", 2)
    worker.settle()
    worker.connect()

    assert [b"1", b"2", b"3"] == read_all(worker)


def test_what_has_expired_is_skipped_without_a_packet_id(worker: DurableWorker) -> None:
    worker.offer(b"short", lasting=5.0)
    worker.offer(b"long", lasting=100.0)
    worker.settle()
    worker.pass_time(10.0)
    worker.connect()
    worker.settle()

    assert [(b"long", 1, False)] == received(worker)
    assert 1 == worker.client.dropped(DropReason.EXPIRED)


def test_what_retention_has_deleted_is_counted(worker: DurableWorker, log: ModelLog) -> None:
    """A client would never learn that it has lost something."""
    for payload in numbers(5):
        worker.offer(payload)
        worker.settle()
    log.topics[TOPIC].delete(3)
    worker.connect()

    assert [b"3", b"4"] == read_all(worker)
    assert 3 == worker.client.dropped(DropReason.RETENTION_EXPIRED)
    assert worker.session.losses is not None and 3 == worker.session.losses.untold()


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(worker: DurableWorker, log: ModelLog) -> None:
    """The client would get nothing before the new topic is as long as the former one was."""
    worker.offer(b"1")
    worker.settle()
    worker.offer(b"2")
    worker.connect()
    assert [b"1", b"2"] == read_all(worker)
    worker.disconnect()
    worker.settle()
    log.topics[TOPIC] = ModelTopic()
    worker.offer(b"3")
    worker.settle()
    worker.connect()

    assert [b"3"] == read_all(worker)
    assert 1 == worker.client.dropped(DropReason.RETENTION_EXPIRED)


@pytest.mark.parametrize("whole", [True, False])
def test_a_damaged_record_is_skipped_and_counted(worker: DurableWorker, log: ModelLog, whole: bool) -> None:
    """It would keep the client from all that is behind it. *whole*: the record, or a pack in it."""
    for payload in numbers(3):
        worker.offer(payload)
        worker.settle()
    records = log.topics[TOPIC].records
    records[1] = DAMAGED if whole else [Pack(1, records[1][0].sequence, records[1][0].body[:-1])]
    worker.connect()

    assert [b"0", b"2"] == read_all(worker)
    assert 1 == worker.client.dropped(DropReason.LOG_DAMAGED)


def test_what_the_client_may_no_longer_read_is_not_passed_on(worker: DurableWorker) -> None:
    worker.offer(b"x")
    worker.settle()
    worker.session.withhold(lambda topic: False, worker.now)
    worker.connect()

    assert [] == read_all(worker)
    assert 1 == worker.client.dropped(DropReason.MAY_NOT_READ)


def test_a_new_session_gets_nothing_of_a_former_one(worker: DurableWorker, log: ModelLog) -> None:
    """It would get what it has not subscribed to: also what comes to the log behind its beginning."""
    worker.offer(b"former")
    worker.settle()
    worker.offer(b"late")
    worker.tick()
    worker.link.end(0, 1)
    worker.owner.end()
    worker.until(lambda: worker.store.commit.idle() and not worker.redis.busy())
    other = next_worker(worker, log)
    other.connect()
    other.settle()
    log.store_late(1)
    other.offer(b"new")

    assert [b"new"] == read_all(other)
    assert 2 == len(log.bodies(TOPIC))


def test_the_end_of_a_session_answers_what_it_was_offered(log: ModelLog) -> None:
    """Publishers would wait for ever, and the memory of the messages be lost."""
    worker = DurableWorker(ModelRedis(), log=log)
    worker.link.away = True
    worker.connect()
    published = worker.offer(b"x")
    worker.tick()
    worker.owner.end()

    assert answered(published)
    assert 0 == worker.budget.used


# The topic of a session that has ended.


def ends(worker: DurableWorker) -> None:
    worker.owner.end()
    worker.settle()


def new_session(worker: DurableWorker) -> None:
    """A session of the client begins, while it is connected."""
    worker.owner._serve(worker.store.begin(CLIENT, True))
    worker.connect()


def test_the_topic_of_a_session_that_has_ended_is_deleted(worker: DurableWorker, log: ModelLog) -> None:
    """Topics would pile up, with messages that nobody may read any more."""
    worker.offer(b"x")
    worker.settle()
    ends(worker)

    assert {} == log.topics
    assert [{"topic": TOPIC}] == worker.log.named("application_log_deleted")


def test_it_stays_until_the_session_is_removed(worker: DurableWorker, log: ModelLog) -> None:
    """If the worker dies in between, the session is there again, without what was published for it."""
    worker.owner.end()
    for _ in range(5):
        worker.tick()
        worker.log_turn()
    assert [TOPIC] == list(log.topics)
    worker.settle()

    assert {} == log.topics


def test_it_stays_until_what_is_under_way_has_come(worker: DurableWorker, log: ModelLog) -> None:
    """The carrier would try for ever to append it."""
    published = worker.offer(b"x")
    worker.tick()
    worker.owner.end()
    for _ in range(9):
        worker.redis.execute()
        worker.redis.answer(worker.now)
        worker.link.answer()
        worker.tick()
    assert [TOPIC] == list(log.topics)
    worker.settle()

    assert {} == log.topics
    assert answered(published)


def test_the_topic_of_a_session_that_another_worker_has_taken_stays(worker: DurableWorker, log: ModelLog) -> None:
    """Its messages would be lost: the former worker may learn that it was taken after it has ended it."""
    worker.offer(b"x")
    worker.settle()
    other = DurableWorker(ModelRedis(worker.redis.server), worker.number + 1, worker.now, expects=True, log=log)
    other.owner.take(incarnation(worker.number), b"", other.now)
    other.settle()
    worker.owner.end()
    worker.settle()
    other.connect()

    assert [CLIENT] == worker.fenced
    assert [] == log.deleted
    assert [b"x"] == read_all(other)


def test_a_session_that_was_handed_back_leaves_the_topic(worker: DurableWorker, log: ModelLog) -> None:
    """As above, if the worker has learned it."""
    worker.owner.record.disown()
    ends(worker)

    assert [TOPIC] == list(log.topics)


def test_a_session_that_follows_at_once_has_the_same_topic(worker: DurableWorker, log: ModelLog) -> None:
    """A client that connects with a clean start each time would have a topic deleted and made each time."""
    identity = log.topics[TOPIC].identity
    worker.offer(b"former")
    worker.settle()
    worker.owner.end()
    new_session(worker)
    worker.offer(b"new")

    assert [b"new"] == read_all(worker)
    assert identity == log.topics[TOPIC].identity
    ends(worker)
    assert {} == log.topics


def test_a_session_that_follows_later_has_another_topic(worker: DurableWorker, log: ModelLog) -> None:
    """A deletion that is under way, for the former session, would take its messages."""
    identity = log.topics[TOPIC].identity
    worker.offer(b"former")
    worker.settle()
    worker.link.away = True
    ends(worker)
    new_session(worker)
    worker.offer(b"new")
    worker.tick()
    assert identity == log.topics[TOPIC].identity
    worker.link.away = False

    assert [b"new"] == read_all(worker)
    assert identity != log.topics[TOPIC].identity
    log.delete(TOPIC, identity)
    worker.offer(b"newer")
    assert [b"newer"] == read_all(worker)


def test_a_topic_that_is_found_is_deleted_before_it_could_be_used(worker: DurableWorker, log: ModelLog) -> None:
    """The worker that has left it may have it deleted at any time: it may have ended, or hang."""
    worker.offer(b"former")
    worker.settle()
    log.topics["other"] = log.topics[TOPIC]
    worker.link.end(0, 0)
    log.topics[TOPIC].identity = b"found".ljust(16)
    other = DurableWorker(ModelRedis(), 2, log=log)
    other.connect()
    other.offer(b"new")

    assert [b"new"] == read_all(other)
    assert [TOPIC] == log.deleted
    assert 1 == len(log.bodies(TOPIC))


def test_who_finds_a_topic_deletes_it_only_if_it_has_the_session(log: ModelLog) -> None:
    """A worker that hung for a while would delete the topic that the next owner of the session has made."""
    log.topics[TOPIC] = former = ModelTopic()
    worker = DurableWorker(ModelRedis(), log=log)
    worker.link.away = True  # it hangs before it finds the topic
    worker.connect()
    worker.settle()
    other = DurableWorker(ModelRedis(worker.redis.server), worker.number + 1, worker.now, expects=True, log=log)
    other.owner.take(incarnation(worker.number), b"", other.now)
    other.settle()
    other.connect()
    other.offer(b"x")
    other.settle()
    assert former.identity != log.topics[TOPIC].identity

    def evict(clients: list[bytes], now: float) -> None:
        worker.store.taken(CLIENT)
        worker.owner.record.disown()
        worker.owner.end()

    worker.store.commit.fenced = evict
    worker.link.away = False
    worker.settle()

    assert [b"x"] == read_all(other)
    assert [TOPIC] == log.deleted


def test_a_topic_that_may_not_be_deleted_is_used(worker: DurableWorker, log: ModelLog) -> None:
    """Where Kafka forbids to delete topics, no client could connect a second time."""
    worker.offer(b"former")
    worker.settle()
    worker.link.forbids = True
    ends(worker)
    assert [TOPIC] == [line["topic"] for line in worker.log.named("application_log_left")]
    new_session(worker)
    worker.offer(b"new")

    assert [b"new"] == read_all(worker)
    assert 2 == len(log.bodies(TOPIC))


def test_a_deletion_that_fails_is_tried_again(worker: DurableWorker, log: ModelLog) -> None:
    """The topic would stay for good after a short outage."""
    delete = worker.link.delete
    worker.link.delete = lambda topic, log, then: then(refusal())  # type: ignore[method-assign]
    ends(worker)
    worker.pass_time(RETRY + 1)
    worker.link.delete = delete  # type: ignore[method-assign]
    assert [TOPIC] == list(log.topics)
    worker.pass_time(RETRY + 1)

    assert {} == log.topics


def test_a_session_that_is_damaged_keeps_its_topic(worker: DurableWorker, log: ModelLog) -> None:
    """It is put aside to be looked at, and its messages would be gone."""
    worker.queue.damage("by the test")
    ends(worker)

    assert [TOPIC] == list(log.topics)


# Crashes.


@pytest.mark.parametrize("executed", range(0, 60, 3))
@pytest.mark.parametrize("heard", [True, False])
def test_a_worker_may_die_at_any_command(worker: DurableWorker, log: ModelLog, executed: int, heard: bool) -> None:
    """A message would be lost, come twice at QoS 2, or come again under another packet id, and not as a duplicate.

    The worker dies when Redis has *executed* so many commands; it has *heard* the last answers, or not.
    """
    for payload in numbers(12):
        worker.offer(payload, 1 + int(payload) % 2)
        worker.tick()
    worker.settle()
    worker.connect()
    came: dict[bytes, int] = {}
    acknowledged: set[bytes] = set()
    released: set[int] = set()
    left = executed
    for _ in range(300):
        worker.log_turn()
        worker.tick(0.001)
        most = min(left, 1)
        left -= most
        worker.redis.execute(most)
        if left or heard:
            worker.redis.answer(worker.now)
        for packet in worker.client.take():
            if isinstance(packet, Publish):
                came[packet.payload] = packet.packet_id
                if packet.qos == 1 and packet.packet_id % 3:
                    assert worker.session.puback(packet.packet_id, worker.now)
                    acknowledged.add(packet.payload)
                elif packet.qos == 2 and packet.packet_id % 3:
                    assert worker.session.pubrec(packet.packet_id, 0, worker.now)
            elif isinstance(packet, Ack):
                released.add(packet.packet_id)
    worker.link.end(0, 0)
    other = next_worker(worker, log)
    other.connect()
    other.settle()
    again = received(other)

    assert len(again) == len({payload for payload, _, _ in again})
    for payload, packet_id, dup in again:
        assert came.get(payload, packet_id) == packet_id
        assert dup or payload not in came
        assert int(payload) % 2 == 0 or packet_id not in released
    lost = set(numbers(12)) - {payload for payload, _, _ in again} - acknowledged
    assert all(int(payload) % 2 and came[payload] % 3 for payload in lost), "others than those with PUBREC"


@pytest.mark.parametrize("stored", range(4))
@pytest.mark.parametrize("told", range(4))
def test_what_was_answered_is_in_the_log_whatever_becomes_of_the_worker(
    worker: DurableWorker, log: ModelLog, stored: int, told: int
) -> None:
    published = []
    for payload in numbers(3):
        published.append(worker.offer(payload))
        worker.tick()
    worker.link.store(stored)
    worker.link.tell(worker.now, told)
    answers = [each for each, one in zip(numbers(3), published, strict=True) if answered(one)]
    assert numbers(min(stored, told)) == answers
    worker.link.end(0, 0)
    other = next_worker(worker, log)
    other.connect()

    assert numbers(stored) == read_all(other)


def test_a_qos_2_publish_that_comes_again_after_a_crash_comes_once(worker: DurableWorker, log: ModelLog) -> None:
    """It is in the log twice, of two workers, and neither knows what the other has appended."""
    offer_token(worker, b"1", 1)
    worker.tick()
    offer_token(worker, b"2", 2)
    worker.tick()
    worker.link.end(1, 1)  # the second one is on its way
    other = next_worker(worker, log)
    offer_token(other, b"1", 1)
    offer_token(other, b"2", 2)
    other.settle()
    log.store_late(1)
    other.connect()

    assert [b"1", b"2"] == read_all(other)
    assert 3 == len(log.bodies(TOPIC))


@pytest.mark.parametrize("dies", [True, False])
def test_a_publish_that_comes_behind_a_later_one_is_taken(worker: DurableWorker, log: ModelLog, dies: bool) -> None:
    """What a worker that has died had not appended would be taken for a repetition. *dies*: the next one, too."""
    offer_token(worker, b"1", 1)
    worker.settle()
    worker.link.end(0, 0)
    other = next_worker(worker, log)
    offer_token(other, b"4", 4)
    other.settle()
    if dies:
        other = next_worker(other, log)
        other.connect()
        assert [b"1", b"4"] == read_all(other)
    offer_token(other, b"2", 2)
    offer_token(other, b"4", 4)
    other.settle()
    other.connect()

    assert [b"2"] if dies else [b"1", b"4", b"2"] == read_all(other)


@pytest.mark.parametrize("window", [1, 100])
def test_a_session_moves_to_another_worker(worker: DurableWorker, log: ModelLog, window: int) -> None:
    """Messages would be lost, come twice, or change their order."""
    for payload in numbers(5):
        worker.offer(payload, 2)
        worker.tick()
    worker.connect(window)
    worker.settle()
    assert min(window, 5) == len(received(worker))
    worker.disconnect()
    on_its_way = worker.offer(b"5", 2)
    worker.tick()
    other = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now, expects=True, log=log)
    early = other.offer(b"6", 2)
    other.tick()
    states: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), states.append)
    for _ in range(5):
        worker.redis.execute()
        worker.redis.answer(worker.now)
        worker.tick(0.01)
    assert [] == states, "the next worker would append before this one"
    worker.settle()
    (state,) = states
    assert state is not None and answered(on_its_way)
    late = worker.offer(b"late", 2)
    worker.tick()
    assert [late] == worker.owner.record.disown()
    assert not worker.link.unstored
    other.owner.take(b"", state, other.now)
    other.until(lambda: other.owner.ready)
    other.settle()
    assert answered(early)
    other.connect()
    other.settle()
    came = received(other)

    assert [(payload, int(payload) < min(window, 5)) for payload in numbers(7)] == [(p, dup) for p, _, dup in came]
    for _, packet_id, _ in came:
        assert other.session.pubrec(packet_id, 0, other.now)
    other.settle()
    assert 0 == worker.budget.used


def test_a_session_is_given_when_all_of_a_slice_is_appended(worker: DurableWorker) -> None:
    """The next worker would append before this one, as a part of it was refused at once."""
    link = worker.link
    append = link.append

    def refuse_first(topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        link.append = append  # type: ignore[method-assign]
        appender.refused(refusal(), now)

    link.append = refuse_first  # type: ignore[method-assign]
    worker.redis.values[KEYS.commit_number(incarnation(2))] = b"0"
    for _ in range(LOG_PACK + 1):
        worker.offer(b"x")
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    for _ in range(5):
        worker.tick(0.01)
        worker.redis.execute()
        worker.redis.answer(worker.now)
    assert [] == given
    assert 1 == len(link.unstored)
    worker.settle()

    assert 1 == len(given)
    assert LOG_PACK == worker.client.dropped(DropReason.LOG_REFUSED)


def test_a_session_that_stays_appends_what_it_was_offered_meanwhile(worker: DurableWorker) -> None:
    """Its publishers would wait for ever. It was given while Redis was full, to a worker that had ended."""
    redis, number = worker.redis, KEYS.commit_number(incarnation(2))
    redis.values[number] = b"0"
    redis.ends[number] = 1000
    redis.server.full = True
    worker.owner.record.store_head(EXPIRY + 1, None, False)
    worker.until(lambda: worker.store.commit.full)
    given: list[bytes | None] = []
    worker.owner.record.give(incarnation(2), given.append)
    published = worker.offer(b"x")
    worker.until(lambda: len(given) > 0)
    assert [None] == given
    redis.server.full = False
    worker.settle()

    assert answered(published)


def test_a_session_that_was_taken_hands_back_what_was_not_appended(log: ModelLog) -> None:
    """Its publishers would be answered, or wait for ever."""
    worker = DurableWorker(ModelRedis(), log=log)
    worker.link.away = True
    worker.connect()
    published = worker.offer(b"x")
    worker.tick()

    assert [published] == worker.owner.record.disown()
    assert 0 == worker.budget.used
    assert not answered(published)


def test_a_full_redis_loses_nothing(worker: DurableWorker, log: ModelLog) -> None:
    """What was passed on, and could not be stored, would be lost; or the log grow in memory."""
    worker.connect()
    worker.settle()
    worker.redis.server.full = True
    for payload in numbers(20):
        worker.offer(payload, 1 + int(payload) % 2)
        worker.turn()
    worker.turn()
    assert [] == received(worker)
    assert 20 == len(log.bodies(TOPIC))
    worker.redis.server.full = False

    assert numbers(20) == read_all(worker)


# The log alone.


def test_the_index_has_the_session_read(worker: DurableWorker) -> None:
    """A worker that follows would keep it unread, and append nothing."""
    keys = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(1))
    worker.owner.record.store_index(b"\0\0\0\1")
    worker.settle()

    assert READ == worker.redis.values[keys.index][CLIENT]


def test_without_a_log_the_session_is_served_as_others(worker: DurableWorker, log: ModelLog) -> None:
    """A node whose configuration has changed could not serve it, or would forget what is in its log."""
    worker.offer(b"logged")
    worker.settle()
    worker.redis.close()
    without = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now + 1)
    without.connect()
    without.offer(b"stored")
    assert [b"stored"] == read_all(without)
    without.disconnect()
    without.settle()
    other = next_worker(without, log)
    other.connect()

    assert [b"logged"] == read_all(other)


@pytest.mark.parametrize("value", [b"?", b"\2" + bytes(12), b"\1" + bytes(13)])
def test_what_is_stored_of_a_log_and_cannot_be_read_ends_the_session(
    worker: DurableWorker, log: ModelLog, value: bytes
) -> None:
    """It would be read from its beginning, or the worker not start."""
    keys = KEYS.sessions(KEYS.slice_of(CLIENT), incarnation(1))
    record = keys.records + CLIENT
    worker.redis.values[record] = {**worker.redis.values[record], LOG: value}
    worker.redis.close()
    worker.redis.server.strict = False
    other = DurableWorker(ModelRedis(worker.redis.server), 2, worker.now + 1, log=log)

    assert [CLIENT.decode()] == list(other.owner.damage)


@pytest.mark.parametrize(
    ("client", "topic"),
    [
        (b"abcXYZ019", "weir.msg.app.abcXYZ019"),
        (b"a" * 200, "weir.msg.app." + "a" * 200),
        (b"a" * 201, "weir.msg.app.sha256-"),
        (b"a-b", "weir.msg.app.sha256-"),
        ("é".encode(), "weir.msg.app.sha256-"),
        ("٣".encode(), "weir.msg.app.sha256-"),
        (b"\xff", "weir.msg.app.sha256-"),
    ],
)
def test_two_clients_have_two_topics(client: bytes, topic: str) -> None:
    """One would get the messages of the other; or the log not have a topic of that name."""
    found = topic_of(client)

    assert found.startswith(topic)
    assert len(found) == len(topic) or len(found) == len(topic) + 64
    assert found.isascii() and len(found) <= 249


def test_packs_of_a_log_have_all_of_a_message() -> None:
    offered = [
        Message(b"t", b"1", 1, True, b"", NEVER),
        Message(b"t", b"2", 2, False, b"\x26\0\1a\0\1b", 1100.0),
        Message(b"u", b"", 2, False, b"", NEVER),
    ]
    offered[2].completion = Completion()
    offered[2].completion.token = b"t" * 16
    data = encode_log_pack(offered, b"e" * 8, True, 1000.0, WALL)
    found = decode_log_pack(data, b"e" * 8, 7, 2000.0, WALL + 60)

    assert [(b"t", b"1", 1, True, b""), (b"t", b"2", 2, False, b"\x26\0\1a\0\1b"), (b"u", b"", 2, False, b"")] == [
        (each.message.topic, each.message.payload, each.message.qos, each.message.retain, each.message.properties)
        for each in found
    ]
    assert [b"", b"", b"t" * 16] == [each.token for each in found]
    assert 2040.0 == pytest.approx(found[1].message.expires, abs=1.0)
    assert [(True, 7)] * 3 == [(each.late, each.source) for each in found]
    assert not found[0].message.expired(2000.0) and found[1].message.expired(2041.5)
    assert [] == decode_log_pack(data, b"f" * 8, 7, 2000.0, WALL)
    for end in range(len(data)):
        if end != len(data) - 1:
            with pytest.raises(DamagedPack):
                decode_log_pack(data[:end], b"e" * 8, 7, 2000.0, WALL)
