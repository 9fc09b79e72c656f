# What only the log in Kafka does: errors that only Kafka has, and what its clients leave behind.
import gc
import os
import queue
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock

import pytest
from kafka.errors import KafkaTimeoutError

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_admin import KafkaAdmin
from broker.carrier.kafka_clients import CLIENT, made
from broker.carrier.kafka_log import KafkaLog
from broker.carrier.kafka_reader import KafkaReader
from broker.carrier.kafka_session import FetchSession
from broker.carrier.log import LogStatistics, Reading
from broker.reasons import LogFailure
from broker.store.logs.records import Pack, Position, encode
from broker.store.logs.topics import LogError, Partition, TopicProperties
from tests.carrier.conftest import UNCLOSED
from tests.carrier.logs import PATIENCE, KafkaStage, Pages
from tests.kafka_servers import HOST, KafkaServer, SharedKafka, free_port, topic_name
from tests.tools.faults.durable.proxy import TO_CLIENT, TO_SERVER, Proxy

pytestmark = [pytest.mark.slow, UNCLOSED]

ONE: Final = Pack(1, 1, b"one")
Unconnected = tuple[KafkaReader, Pages, list[Callable[[], None]]]


def test_a_pack_that_kafka_does_not_take_is_refused_alone(kafka_stage: KafkaStage) -> None:
    """One large message would stop an APPLICATION client for ever."""
    partition = topic_with(kafka_stage, "max.message.bytes", "2000")
    told: list[tuple[int, LogError | None]] = []
    for pack in (ONE, Pack(1, 2, bytes(3000)), Pack(1, 3, b"three")):
        assert kafka_stage.log.append(partition, pack, lambda *result: told.append(result))
    kafka_stage.until(lambda: len(told) == 3)
    pages = kafka_stage.read(partition)
    kafka_stage.until(lambda: len(pages.packs) == 2)

    error = told[1][1]
    assert [0, -1, 1] == [offset for offset, _ in told]
    assert error is not None and error.failure is LogFailure.TOO_LARGE
    assert [1, 3] == [pack.sequence for pack in pages.packs]


def test_a_topic_that_was_deleted_is_made_again(kafka_stage: KafkaStage) -> None:
    """Topics are made together: it would be made before it is deleted, and be gone."""
    first, again = topic_name(), topic_name()
    told: list[LogError | None] = []
    for topic, partitions in ((again, 1), (first, 1), ("", 0), (again, 2), (again, 2)):
        if topic:
            kafka_stage.log.create(topic, TopicProperties(partitions=partitions), told.append)
        else:
            kafka_stage.log.delete(again, b"", told.append)
    kafka_stage.until(lambda: len(told) == 5)
    found = kafka_stage.describe(again)

    assert [None] * 5 == told
    assert found is not None and 2 == found.properties.partitions


def test_a_topic_that_kafkas_client_has_not_asked_for_is_asked_for(kafka: Any) -> None:
    """If a new carrier is given two topics at once, what is published for one of them would wait for five minutes."""
    others, stage = KafkaStage(kafka), KafkaStage(kafka)
    partition = others.topic()
    stage.append(stage.topic(), ONE)
    cluster = stage.log._producer._metadata
    stage.until(lambda: not (cluster.need_update or cluster.metadata_refresh_in_progress))
    cluster._topics.add(partition.topic)  # as it is if the answer comes to a question that was under way before

    stored = stage.append(partition, ONE)
    for each in (others, stage):
        each.close()

    assert [0] == stored


@pytest.mark.nightly
def test_a_topic_that_is_compacted_is_refused(kafka_stage: KafkaStage) -> None:
    """Kafka would delete all messages but the last one."""
    topic = topic_name()
    with admin(kafka_stage) as client:
        client.create_topics({topic: {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}}})

    error = kafka_stage.create(topic, TopicProperties())

    assert error is not None and error.failure is LogFailure.OTHER_TOPIC
    assert f"{topic} has cleanup.policy=compact, and not delete" in str(error)


@pytest.mark.nightly
def test_too_many_copies_are_refused(kafka_stage: KafkaStage) -> None:
    """Nobody would be told why there is no topic."""
    error = kafka_stage.create(topic_name(), TopicProperties(replication=3))

    assert error is not None and error.failure is LogFailure.TOO_FEW_REPLICAS


def test_whether_topics_could_be_made_is_known_before_one_is_needed(kafka_stage: KafkaStage) -> None:
    """The node would start with settings or rights with which no client gets a log; or leave a topic behind."""
    told: list[LogError | None] = []
    topic = topic_name()
    for properties in (TopicProperties(replication=3), TopicProperties()):
        kafka_stage.log.try_out(topic, properties, told.append)
    kafka_stage.until(lambda: len(told) == 2)
    existing = kafka_stage.topic().topic
    kafka_stage.log.try_out(existing, TopicProperties(), told.append)
    kafka_stage.until(lambda: len(told) == 3)

    first, *others = told
    assert first is not None and first.failure is LogFailure.TOO_FEW_REPLICAS
    assert [None, None] == others
    assert kafka_stage.describe(topic) is None


def test_who_may_not_make_topics_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator would not know what to allow."""

    class Forbidding:
        def create_topics(self, topics: object, **options: object) -> dict[str, list[dict[str, object]]]:
            return {"topics": [{"error_code": 29, "error_message": "Authorization failed."}]}

    admin = KafkaAdmin({}, Inbox(lambda work: None))
    monkeypatch.setattr(admin, "_connected", Forbidding)
    with pytest.raises(LogError) as caught:
        admin.try_out("weir.msg.app.weir", TopicProperties())
    admin.stop()

    assert LogFailure.FORBIDDEN is caught.value.failure
    assert "weir.msg.app.weir: Authorization failed." in str(caught.value)


def test_a_topic_is_made_when_brokers_know_it_instead_of_one_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """For some milliseconds a broker tells of the one before, which may have fewer partitions: the next is refused."""
    deleted, made = uuid.uuid4(), uuid.uuid4()
    found, asked = [deleted, deleted, made], Mock()

    class Lagging:
        def create_topics(self, topics: object, **options: object) -> dict[str, list[dict[str, object]]]:
            return {"topics": [{"name": "again", "error_code": 0, "error_message": None, "topic_id": made}]}

        def describe_topics(self, topics: list[str]) -> list[dict[str, object]]:
            return [{"name": "again", "topic_id": found.pop(0)}]

        def wait_for_topics(self, topics: object, patience: int) -> None:
            assert not found

    admin = KafkaAdmin({}, Inbox(lambda work: None))
    monkeypatch.setattr(admin, "_connected", Lagging)
    monkeypatch.setattr(admin, "connect", lambda: asked)
    admin.create("again", TopicProperties(partitions=2))
    admin.stop()

    assert not found
    asked.partitions_for.assert_called_once_with("again")


@pytest.mark.parametrize("gone", [True, False])
def test_a_topic_that_is_deleted_while_it_is_looked_at_is_not_forbidden(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    """An administrator would be asked to allow what is allowed, and who waits for the topic be told of a failure."""
    found: list[dict[str, list[object]] | None] = [{"partitions": []}, None if gone else {"partitions": []}]

    class Hiding:
        def describe_configs(self, resources: object, **options: object) -> dict[str, dict[str, dict[str, object]]]:
            return {"topic": {"weir": {}}}

    admin = KafkaAdmin({}, Inbox(lambda work: None))
    monkeypatch.setattr(admin, "_connected", Hiding)
    monkeypatch.setattr(admin, "find", lambda topic: found.pop(0))
    if gone:
        assert admin.describe("weir") is None
    else:
        with pytest.raises(LogError) as caught:
            admin.describe("weir")
        assert LogFailure.FORBIDDEN is caught.value.failure
    admin.stop()


def test_a_kafka_that_is_away_is_known_until_it_is_back(own_kafka: Any) -> None:
    """Clients would be let in for whom no topic can be made; or never again."""
    stage = KafkaStage(own_kafka)
    assert stage.create(topic_name(), TopicProperties()) is None
    assert "" == stage.log.statistics().unusable
    own_kafka.kill()
    assert stage.create(topic_name(), TopicProperties()) is not None
    assert stage.log.statistics().unusable
    own_kafka.start()
    stage.until(lambda: not stage.log.statistics().unusable)
    stage.close()


@pytest.mark.nightly
def test_connections_that_are_cut_or_slow_lose_and_double_nothing(tmp_path: Path) -> None:
    """What was acknowledged would be missing, or come twice, when the network fails in the middle of a request."""
    port = free_port()
    server: Any = KafkaServer(tmp_path, advertised=(HOST, port))
    proxy = Proxy((HOST, port), (HOST, server.port))
    server.start()
    stage = KafkaStage(server)
    chosen = random.Random(1)
    stored: list[int] = []
    try:
        partition = stage.topic()
        pages = stage.read(partition)
        for number in range(1, 401):
            assert stage.log.append(partition, Pack(2, number, b""), lambda offset, _: stored.append(offset))
            stage.turn()
            if number % 20 == 0:
                proxy.cut(chosen.choice([TO_SERVER, TO_CLIENT]), chosen.randrange(200))
                stage.until(proxy.armed)
                proxy.delay(chosen.choice([0.0, 0.02]))
        proxy.heal()
        stage.until(lambda: len(stored) == 400 and len(pages.packs) == 400)
    finally:
        stage.close()
        proxy.close()
        server.kill()

    assert proxy.cuts.total() > 0
    assert [*range(1, 401)] == [pack.sequence for pack in pages.packs]
    assert stored == sorted(stored)


def test_an_attempt_to_connect_leaves_nothing_behind() -> None:
    """Each attempt would leave a thread and four descriptors, and a long outage of Kafka end the process."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    def attempt() -> None:
        with pytest.raises(KafkaError):
            made(KafkaAdminClient, CLIENT, {"bootstrap_servers": f"{HOST}:{free_port()}", "bootstrap_timeout_ms": 100})

    attempt()  # what is imported, or opened, once
    before = held()
    attempt()

    assert before == held()


def test_a_log_that_was_stopped_leaves_nothing_behind(kafka: Any) -> None:
    """A carrier that is told of another Kafka would have the threads and connections of both."""

    def try_out(address: str, read: bool) -> None:
        stage = KafkaStage(SharedKafka(address), bootstrap_timeout_ms=1000)
        if read:
            partition = stage.topic()
            stage.append(partition, ONE)
            pages = stage.read(partition)
            stage.until(lambda: pages.packs)
        stage.close()

    try_out(kafka.address, True)
    before = held()
    try_out(kafka.address, True)
    try_out(f"{HOST}:{free_port()}", False)

    assert before == held()


@pytest.mark.parametrize("option", ["sasl_plain_pasword", "acks"])
def test_options_that_are_unknown_or_change_a_promise_are_told(option: str) -> None:
    """A misspelt option would be ignored, or end the process; acks=1 would lose what was acknowledged."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    log = KafkaLog({"bootstrap_servers": HOST, option: 1}, time.monotonic, calls.put)
    log.start()
    log.append(Partition("t"), ONE, lambda offset, error: None)
    calls.get(timeout=60)()
    log.flush()
    words = log.statistics().failing[Partition("t")]
    log.stop()

    assert words.startswith(LogFailure.CLIENT_REFUSED.words)
    assert option in words


class LeaderlessProducer:
    """A producer that keeps what it is given, and whose cluster has no leader for it."""

    def __init__(self) -> None:
        self.leader = -1
        self._refused: Callable[[], None] | None = None
        self._metadata = self
        self.callbacks: list[Callable[[], None]] = []

    def send(self, topic: str, value: bytes, partition: int) -> "LeaderlessProducer":
        return self

    def leader_for_partition(self, partition: object) -> int:
        return self.leader

    def add_callback(self, stored: Callable[..., None], partition: Partition, number: int) -> None:
        self.callbacks.append(lambda: stored(partition, number, SimpleNamespace(offset=0)))

    def add_errback(self, refused: Callable[..., None], partition: Partition, number: int) -> None:
        self._refused = partial(refused, partition, number, KafkaTimeoutError("it has expired"))

    def expire(self) -> None:
        assert self._refused is not None
        self._refused()


def test_a_partition_without_a_leader_is_known_before_kafkas_client_gives_up() -> None:
    """It does after 12 seconds: until then the gate of the log would be closed to everybody, and the level rise."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    log = KafkaLog({"bootstrap_servers": f"{HOST}:{free_port()}"}, lambda: 0.0, calls.put)
    log._producer = producer = LeaderlessProducer()
    partition, statistics = Partition("t"), log.statistics()
    log.append(partition, ONE, lambda offset, error: None)
    log.flush()
    for now in (1.0, 2.1):
        log.tick(now)
    known = dict(statistics.failing), set(statistics.alone)
    producer.expire()
    calls.get(timeout=60)()
    given_up = dict(statistics.failing), set(statistics.alone)
    log.tick(3.2)
    producer.callbacks[-1]()
    calls.get(timeout=60)()
    log.stop()

    words = LogFailure.NO_LEADER.words
    for failing, alone in (known, given_up):
        assert failing[partition].startswith(words)
        assert {partition} == alone
    assert ({}, set(), 0) == (statistics.failing, statistics.alone, statistics.waiting)


def test_a_reading_that_is_added_or_resumed_does_not_wait_for_those_that_are_idle(
    kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes back would wait half a second for its first message."""
    monkeypatch.setattr("broker.carrier.kafka_reader.IDLE_WAIT", 600_000)  # it has no end by itself
    monkeypatch.setattr("broker.carrier.kafka_reader.CLIENT", {**CLIENT, "request_timeout_ms": 700_000})
    stage = KafkaStage(kafka)
    quiet, full = stage.topic(), stage.topic()
    waiting = stage.read(quiet)
    stage.append(full, ONE)
    stage.until(lambda: any(lane.under_way for lane in stage.log._reader._idle.values()))

    added = stage.read(full)
    stage.until(lambda: added.packs)
    added.reading.pause()
    stage.append(full, Pack(1, 2, b"two"))
    added.reading.resume()
    stage.until(lambda: len(added.packs) == 2)
    stage.append(quiet, ONE)  # and those that are idle are not forgotten
    stage.until(lambda: waiting.packs)
    stage.close()


def test_a_page_behind_one_that_was_dropped_is_dropped(kafka_stage: KafkaStage) -> None:
    """A client that was slow for a moment would be told of a gap, and never get what was dropped."""
    partition = kafka_stage.topic()
    pages = kafka_stage.read(partition)
    fetched = kafka_stage.log._inbox._calls
    kafka_stage.until(lambda: pages.reading.position.log)
    for number in (1, 2):
        kafka_stage.append_raw(partition, encode([Pack(1, number, b"")]))
        deadline = time.monotonic() + PATIENCE
        while len(fetched) < number:
            assert time.monotonic() < deadline
            time.sleep(0.005)  # the thread that reads tells only the log, which is not to look yet
    pages.reading.pause()
    fetched.insert(1, pages.reading.resume)
    kafka_stage.until(lambda: len(pages.packs) == 2)

    assert [1, 2] == [pack.sequence for pack in pages.packs]
    assert [] == pages.jumps


def test_what_is_appended_here_is_given_to_its_reader_unfetched(
    kafka_stage: KafkaStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record would cost Kafka and its client a request more, a millisecond of CPU each."""
    partition = kafka_stage.topic()
    pages = kafka_stage.read(partition)
    kafka_stage.until(lambda: pages.reading.position.log)
    fetches: list[FetchSession] = []
    request = FetchSession.request

    def counted(self: FetchSession) -> Any:
        fetches.append(self)
        return request(self)

    monkeypatch.setattr(FetchSession, "request", counted)
    monkeypatch.setattr("broker.carrier.kafka_reader.FED", PATIENCE)  # a busy machine is slow
    for number in range(1, 101):
        kafka_stage.append(partition, Pack(1, number, b""))
        kafka_stage.until(lambda number=number: len(pages.packs) == number)  # type: ignore[misc]

    assert list(range(1, 101)) == [pack.sequence for pack in pages.packs]
    assert len(fetches) < 50
    assert [] == pages.jumps


def test_what_only_others_append_is_fetched_again(kafka_stage: KafkaStage) -> None:
    """A service would get nothing from other nodes once its own one has published for it."""
    partition = kafka_stage.topic()
    pages = kafka_stage.read(partition)
    for number in range(1, 11):
        kafka_stage.append(partition, Pack(1, number, b""))
    kafka_stage.until(lambda: len(pages.packs) == 10)
    kafka_stage.append_raw(partition, encode([Pack(2, 1, b"")]))
    kafka_stage.until(lambda: len(pages.packs) == 11)

    assert [*range(1, 11), 1] == [pack.sequence for pack in pages.packs]
    assert [] == pages.jumps


def test_what_others_append_between_comes_in_the_order_of_the_log(kafka: Any) -> None:
    """With two nodes, messages for a group of services would be lost, or come out of order."""
    here, elsewhere = KafkaStage(kafka), KafkaStage(kafka)
    partition = here.topic()
    pages = here.read(partition)
    slow = here.read(partition)
    offsets: dict[int, tuple[int, int]] = {}
    random_ = random.Random(1)
    for number in range(1, 201):
        stage, source = (elsewhere, 2) if random_.random() < 0.1 else (here, 1)
        (offset,) = stage.append(partition, Pack(source, number, b""))
        offsets[offset] = (source, number)
        if random_.random() < 0.05:
            slow.reading.resume() if slow.reading.paused else slow.reading.pause()
    slow.reading.resume()
    for one in (pages, slow):
        here.until(lambda one=one: len(one.packs) == len(offsets))  # type: ignore[misc]
        assert [offsets[number] for number in sorted(offsets)] == [(pack.source, pack.sequence) for pack in one.packs]
        assert [] == one.jumps
    for stage in (here, elsewhere):
        stage.close()


@pytest.fixture
def unconnected() -> Iterator[Unconnected]:
    """A reader with a reading at offset 10 that thinks it knows the leader, and what it has to tell."""
    told: list[Callable[[], None]] = []
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        reader = KafkaReader({"bootstrap_servers": f"{HOST}:{port}"}, Inbox(told.append))
        pages = Pages()
        position = Position(10, bytes(range(16)))
        pages.reading = Reading(Partition("topic"), position, pages, LogStatistics(), reader.change)
        reader.add(pages.reading)
        source = reader._sources[pages.reading]
        source.leader, source.located = 1, True
        yield reader, pages, told
        reader.stop()
        deadline = time.monotonic() + PATIENCE
        while reader.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.005)  # its thread tells nobody that it ends


def test_what_is_appended_to_a_topic_that_was_made_anew_is_not_given_to_who_reads_the_former_one(
    unconnected: Unconnected,
) -> None:
    """It would be at the offset that was reached there, and what is before it would be lost."""
    reader, pages, _ = unconnected
    for leader, offset, sequence in ((1, 10, 11), (1, 10, 11), (1, 11, 12), (2, 12, 13), (1, 0, 13), (1, 12, 14)):
        reader.appended(pages.reading.partition, leader, offset, encode([Pack(1, sequence, b"")]))

    assert [11, 12] == [pack.sequence for pack in pages.packs]
    assert 12 == pages.reading.position.offset


def test_a_log_that_has_lost_what_was_given_unfetched_is_read_from_its_end(unconnected: Unconnected) -> None:
    """The thread that fetches is not told of each such record: its word would be taken for an old one."""
    reader, pages, told = unconnected
    reader.appended(pages.reading.partition, 1, 10, encode([Pack(1, 1, b"")]))
    reader._go_on_at(reader._sources[pages.reading], 8)
    for call in told:
        call()

    assert [(11, 8)] == pages.jumps


def test_a_missing_topic_keeps_nobody_waiting(kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client whose topic was deleted would slow all that connect."""
    stage = KafkaStage(kafka)
    full = stage.topic()
    stage.append(full, ONE)
    monkeypatch.setattr("broker.carrier.kafka_reader.FIRST_PAUSE", 600)  # until it is looked for again
    monkeypatch.setattr("broker.carrier.kafka_reader.AGAIN", 600)
    missing = stage.read(Partition(topic_name()))
    stage.until(lambda: missing.errors)

    pages = stage.read(full)
    stage.until(lambda: pages.packs)
    monkeypatch.undo()
    late = Partition(topic_name())
    made_later = stage.read(late)
    stage.until(lambda: made_later.errors)
    assert stage.create(late.topic, TopicProperties()) is None
    stage.append(late, ONE)
    stage.until(lambda: made_later.packs)
    stage.close()

    assert [LogFailure.UNKNOWN_TOPIC] == [error.failure for error in missing.errors]


def test_a_topic_that_cannot_be_read_stops_no_other(kafka_stage: KafkaStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator who compresses one topic would stop all clients, or have its messages skipped as damaged."""
    compressed, plain = topic_with(kafka_stage, "compression.type", "gzip"), kafka_stage.topic()
    for partition in (compressed, plain):
        kafka_stage.append(partition, ONE)
    monkeypatch.setattr("kafka.codec.has_gzip", lambda: False)
    unreadable, readable = kafka_stage.read(compressed), kafka_stage.read(plain)
    kafka_stage.until(lambda: unreadable.errors and readable.packs)
    words = str(unreadable.errors[0])
    monkeypatch.undo()
    kafka_stage.until(lambda: unreadable.packs)

    assert LogFailure.OTHER_TOPIC is unreadable.errors[0].failure
    assert compressed.topic in words and "gzip" in words
    assert [] == unreadable.broken


@pytest.mark.nightly
def test_what_kafka_has_is_what_was_encoded(kafka_stage: KafkaStage) -> None:
    """Kafka's own tools would see something else than what records.py says."""
    from kafka import KafkaConsumer, TopicPartition

    partition = kafka_stage.topic()
    kafka_stage.append(partition, ONE)
    with KafkaConsumer(bootstrap_servers=kafka_stage.server.address, metrics_enabled=False) as consumer:
        key = TopicPartition(*partition)
        consumer.assign([key])
        consumer.seek(key, 0)
        found = consumer.poll(60_000)

    assert [encode([ONE])] == [record.value for record in found[key]]


@pytest.mark.nightly
def test_a_log_that_has_lost_its_end_is_read_from_there(own_kafka: Any) -> None:
    """What is stored after a power loss, at the offsets of what was lost, would never be read."""
    stage = KafkaStage(own_kafka)
    partition = stage.topic()
    pages = stage.read(partition)
    for number in range(1, 6):
        stage.append(partition, Pack(1, number, b""))
    stage.until(lambda: len(pages.packs) == 5)
    own_kafka.kill()
    (segment,) = (own_kafka.folder / "data" / f"{partition.topic}-0").glob("*.log")
    os.truncate(segment, segment.stat().st_size // 5 * 3)
    own_kafka.start()
    for number in range(6, 10):
        stage.append(partition, Pack(1, number, b""))
    stage.until(lambda: len(pages.packs) == 9)
    stage.close()

    assert [(5, 3)] == pages.jumps
    assert [*range(1, 10)] == [pack.sequence for pack in pages.packs]


@pytest.mark.nightly
def test_a_topic_takes_little_more_than_it_keeps(kafka_stage: KafkaStage) -> None:
    """A topic of 1 GB would take two, and messages of a week be kept for two."""
    from kafka.admin import ConfigResource

    topic = topic_name()
    assert kafka_stage.create(topic, TopicProperties(retention=86_400, retention_bytes=80_000_000)) is None
    with admin(kafka_stage) as client:
        configs = client.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")["topic"][topic]

    assert ("10000000", "10800000") == (configs["segment.bytes"]["value"], configs["segment.ms"]["value"])


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def topic_with(stage: KafkaStage, name: str, value: str) -> Partition:
    """The partition of a topic that an administrator has made."""
    topic = topic_name()
    with admin(stage) as client:
        client.create_topics({topic: {"num_partitions": 1, "configs": {name: value}}})
    assert stage.create(topic, TopicProperties()) is None
    return Partition(topic)


def admin(stage: KafkaStage) -> Any:
    from kafka import KafkaAdminClient

    return KafkaAdminClient(bootstrap_servers=stage.server.address)


def test_many_readings_go_on_after_kafka_was_away_for_a_while(own_kafka: Any) -> None:
    """Each that was put off would ask for the leaders of all others, one within the other; nobody would ask again."""
    stage = KafkaStage(own_kafka)
    topic = topic_name()
    partitions = [Partition(topic, number) for number in range(16)]
    assert stage.create(topic, TopicProperties(partitions=len(partitions))) is None
    pages = [stage.read(partition) for partition in partitions]
    for sequence, partition in enumerate(partitions, 1):
        stage.append(partition, Pack(1, sequence, b"before"))
    stage.until(lambda: all(len(one.packs) == 1 for one in pages))
    own_kafka.kill()
    stage.until(lambda: all(one.errors for one in pages))  # after some attempts
    own_kafka.start()
    for sequence, partition in enumerate(partitions, 101):
        stage.append(partition, Pack(1, sequence, b"after"))
    stage.until(lambda: all(len(one.packs) == 2 for one in pages))

    assert {LogFailure.UNREACHABLE} == {error.failure for one in pages for error in one.errors}
    stage.close()
