# The topic of metrics records in a real Kafka.
import gc
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.reasons import LogFailure
from broker.store.logs.topics import LogError, TopicProperties
from tests.carrier.conftest import UNCLOSED
from tests.carrier.logs import PATIENCE, KafkaStage
from tests.carrier.test_worker_lanes import Lines
from tests.kafka_servers import HOST, KafkaServer, SharedKafka, free_port, skip_without_java, topic_name

# Who has no rule may do all: the tests make rules for what they restrict.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
pytestmark = [pytest.mark.slow, UNCLOSED]

RETENTION = TopicProperties(retention=3600, retention_bytes=8 << 20)


class Metrics:
    """A topic of its own, and what became of the records that were appended."""

    def __init__(self, stage: KafkaStage) -> None:
        self.name = topic_name()
        self.lines = Lines()
        self.now = 0.0
        self.told: list[LogFailure | None] = []
        self._stage = stage
        self.topic = stage.log.metrics_topic(RETENTION, self.lines)
        self.topic._topic, self.topic._clock = self.name, lambda: self.now

    def append(self, *records: bytes) -> list[LogFailure | None]:
        """Append them, and return what became of them."""
        self.told = []
        for record in records:
            self.topic.append("node/1", record, self.told.append)
        self._stage.until(lambda: len(self.told) == len(records))
        return self.told

    def made(self) -> None:
        """Wait until the topic was made, or cannot be."""
        self._stage.until(lambda: not self.topic._making)


@pytest.fixture
def metrics(kafka_stage: KafkaStage) -> Metrics:
    return Metrics(kafka_stage)


@pytest.fixture
def admin(kafka: Any) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    with KafkaAdminClient(bootstrap_servers=kafka.address) as client:
        yield client


def read(address: str, topic: str, count: int) -> list[Any]:
    """The first *count* records, as any consumer sees them."""
    from kafka import KafkaConsumer, TopicPartition

    found: list[Any] = []
    with KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(found) < count:
            some = consumer.poll(timeout_ms=int(1000 * PATIENCE))
            assert some, f"only {len(found)} records come"
            found += itertools.chain(*some.values())
    return found


def configuration(admin: Any, topic: str) -> dict[str, str]:
    from kafka.admin import ConfigResource, ConfigResourceType

    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return {name: one["value"] for name, one in found["topic"][topic].items()}


def test_any_consumer_reads_the_records_in_order(metrics: Metrics, kafka: Any, admin: Any) -> None:
    """Records would have a form that only Weir reads, or stay for ever, or have times of clocks that are wrong."""
    metrics.topic.start()
    metrics.made()
    records = [b'{"sequence": %d}' % number for number in range(20)]
    assert [None] * 20 == metrics.append(*records)

    found = read(kafka.address, metrics.name, 20)
    assert [*range(20)] == [json.loads(one.value)["sequence"] for one in found]
    assert {(0, b"node/1", 1)} == {(one.partition, one.key, one.timestamp_type) for one in found}  # 1: of Kafka
    told = configuration(admin, metrics.name)
    assert ("3600000", str(8 << 20), "delete") == (
        told["retention.ms"],
        told["retention.bytes"],
        told["cleanup.policy"],
    )
    assert (20, 0) == (metrics.topic.written, metrics.topic.dropped)
    assert [] == metrics.lines.events


def test_until_the_topic_is_there_records_are_dropped(metrics: Metrics) -> None:
    """They would wait in the carrier, with no limit, for what may never come."""
    assert [LogFailure.UNREACHABLE] * 3 == metrics.append(b"{1}", b"{2}", b"{3}")
    metrics.made()  # the first of them asked for it

    assert [None] == metrics.append(b"{4}")
    assert (1, 3) == (metrics.topic.written, metrics.topic.dropped)


@pytest.mark.parametrize(
    ("partitions", "configs", "sentence"),
    [
        (2, {"message.timestamp.type": "LogAppendTime"}, "has partitions: 2, and not 1"),
        (1, {}, "has message.timestamp.type=CreateTime, and not LogAppendTime"),
    ],
)
def test_a_topic_that_will_not_do_is_told_once(
    metrics: Metrics, admin: Any, partitions: int, configs: dict[str, str], sentence: str
) -> None:
    """The analysis would drop most of what it reads as late, or the log be full of one sentence."""
    admin.create_topics({metrics.name: {"num_partitions": partitions, "configs": configs}})
    for second in range(3):
        metrics.now = 10.0 * second
        metrics.append(b"{}")
        metrics.made()

    assert sentence in str(metrics.topic.trouble)
    assert [LogFailure.OTHER_TOPIC] == metrics.append(b"{}")
    assert ["metrics_topic_failed"] == metrics.lines.events


def test_who_may_not_create_topics_uses_one_that_somebody_made(
    tmp_path: Path, make_stage: Callable[[str], KafkaStage]
) -> None:
    """In a company whose Kafka has an administrator there would be no records."""
    from kafka import KafkaAdminClient
    from kafka.admin import ResourceType

    skip_without_java()
    server = KafkaServer(tmp_path, more=AUTHORIZER)
    server.start()
    try:
        with KafkaAdminClient(bootstrap_servers=server.address) as admin:
            made, missing, secret = (Metrics(make_stage(server.address)) for _ in range(3))
            topic = {"num_partitions": 1, "configs": {"message.timestamp.type": "LogAppendTime"}}
            admin.create_topics({made.name: topic, secret.name: topic})
            _allow(admin, ResourceType.CLUSTER, "kafka-cluster", "CLUSTER_ACTION", "ALTER", "DESCRIBE")
            for one in (made, missing):
                _allow(admin, ResourceType.TOPIC, one.name, "WRITE", "DESCRIBE_CONFIGS")
            _allow(admin, ResourceType.TOPIC, secret.name, "WRITE")
        told: list[LogError | None] = []
        made._stage.log.reach(told.append)  # with which a node begins that has no other use of Kafka
        made._stage.until(lambda: told)
        assert [None] == told
        for one in (made, missing, secret):
            one.topic.start()
            one.made()

        assert [None] == made.append(b"{1}")
        assert [LogFailure.FORBIDDEN] == missing.append(b"{1}")
        assert [LogFailure.FORBIDDEN] == secret.append(b"{1}")
        assert f"DescribeConfigs of the topic {secret.name}" in str(secret.topic.trouble)
    finally:
        server.kill()


def _allow(admin: Any, kind: Any, name: str, *operations: str) -> None:
    """Allow everybody *operations* only."""
    from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern

    pattern = ResourcePattern(kind, name)
    rules = [ACL("User:*", "*", ACLOperation[one], ACLPermissionType.ALLOW, pattern) for one in operations]
    assert not admin.create_acls(rules)["failed"]


def test_a_topic_that_was_deleted_is_made_again(metrics: Metrics, kafka_stage: KafkaStage, kafka: Any) -> None:
    """There would be no records until somebody starts the node again."""
    metrics.topic.start()
    metrics.made()
    assert [None] == metrics.append(b"{1}")
    kafka_stage.delete_outside(metrics.name)
    kafka_stage.until(lambda: metrics.append(b"{2}") != [None])  # Kafka may take some before it has deleted it

    def again() -> bool:
        metrics.now += 1.0
        metrics.made()
        return metrics.append(b"{3}") == [None]

    kafka_stage.until(again)

    assert b"{3}" == read(kafka.address, metrics.name, 1)[-1].value


def test_while_kafka_is_away_records_are_dropped_and_it_is_told_once(
    make_stage: Callable[[str], KafkaStage],
) -> None:
    """The carrier would keep them until it has no memory, or write a line for each."""
    metrics = Metrics(make_stage(f"{HOST}:{free_port()}"))
    for second in range(2):
        metrics.now = 10.0 * second
        assert [None] != metrics.append(b"{}")
        metrics.made()

    assert ["metrics_topic_failed"] == metrics.lines.events
    assert (0, 2) == (metrics.topic.written, metrics.topic.dropped)


@pytest.fixture
def make_stage() -> Iterator[Callable[[str], KafkaStage]]:
    made: list[KafkaStage] = []
    before = {*threading.enumerate()}

    def make(address: str) -> KafkaStage:
        made.append(KafkaStage(SharedKafka(address), bootstrap_timeout_ms=500))
        return made[-1]

    yield make
    while made:
        made.pop().close()
    for thread in {*threading.enumerate()} - before:  # of kafka-python, with sockets that it does not close
        thread.join(PATIENCE)
    gc.collect()
