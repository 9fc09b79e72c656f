# What only the log in Kafka does: errors that only Kafka has, and what its clients leave behind.
import gc
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from broker.carrier.kafka_clients import CONSUMER, made
from broker.carrier.kafka_log import KafkaLog
from broker.carrier.log import LogError, Partition, TopicProperties
from broker.carrier.records import Pack, encode
from broker.reasons import LogFailure
from tests.carrier.conftest import UNCLOSED
from tests.carrier.logs import KafkaStage
from tests.kafka_servers import HOST, KafkaServer, free_port, topic_name
from tests.tools.faults.durable.proxy import TO_CLIENT, TO_SERVER, Proxy

pytestmark = [pytest.mark.slow, UNCLOSED]

ONE: Final = Pack(1, 1, b"one")


def test_a_pack_that_kafka_does_not_take_is_refused_alone(kafka_stage: KafkaStage) -> None:
    """One large message would stop an APPLICATION client for ever."""
    partition = kafka_stage.topic()
    told: list[tuple[int, LogError | None]] = []
    with admin(kafka_stage) as client:
        from kafka.admin import ConfigResource

        client.alter_configs([ConfigResource("TOPIC", partition.topic, {"max.message.bytes": "2000"})])
    for pack in (ONE, Pack(1, 2, bytes(3000)), Pack(1, 3, b"three")):
        assert kafka_stage.log.append(partition, pack, lambda *result: told.append(result))
    kafka_stage.until(lambda: len(told) == 3)
    pages = kafka_stage.read(partition)
    kafka_stage.until(lambda: len(pages.packs) == 2)

    error = told[1][1]
    assert [0, -1, 1] == [offset for offset, _ in told]
    assert error is not None and error.failure is LogFailure.TOO_LARGE
    assert [1, 3] == [pack.sequence for pack in pages.packs]


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

    assert proxy.cuts > 0
    assert [*range(1, 401)] == [pack.sequence for pack in pages.packs]
    assert stored == sorted(stored)


def test_an_attempt_to_connect_leaves_nothing_behind() -> None:
    """Each attempt would leave a thread and four descriptors, and a long outage of Kafka end the process."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    def has() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def attempt() -> None:
        with pytest.raises(KafkaError):
            made(KafkaConsumer, CONSUMER, {"bootstrap_servers": f"{HOST}:{free_port()}", "bootstrap_timeout_ms": 100})

    attempt()  # what is imported, or opened, once
    before = has()
    attempt()

    assert before == has()


def test_options_that_kafka_python_does_not_know_are_told() -> None:
    """A misspelt option would be ignored, or end the process."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    log = KafkaLog({"bootstrap_servers": HOST, "sasl_plain_pasword": ""}, time.monotonic, calls.put)
    log.start()
    log.append(Partition("t"), ONE, lambda offset, error: None)
    calls.get(timeout=60)()
    log.flush()
    words = log.statistics().failing[Partition("t")]
    log.stop()

    assert words.startswith(LogFailure.CLIENT_REFUSED.words)
    assert "sasl_plain_pasword" in words


def test_a_reading_that_is_added_does_not_wait_for_one_that_rests(
    kafka_stage: KafkaStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes back would wait half a second for its first message."""
    monkeypatch.setattr("broker.carrier.kafka_consumer.POLL", 600_000)  # a rest has no end by itself
    quiet, full = kafka_stage.topic(), kafka_stage.topic()
    kafka_stage.append(full, ONE)
    kafka_stage.read(quiet)
    for _ in range(2):
        pages = kafka_stage.read(full)
        kafka_stage.until(lambda pages=pages: pages.packs)  # type: ignore[misc]
        pages.reading.stop()


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


def admin(stage: KafkaStage) -> Any:
    from kafka import KafkaAdminClient

    return KafkaAdminClient(bootstrap_servers=stage.server.address)
