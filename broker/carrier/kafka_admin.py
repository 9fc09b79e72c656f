# What a Kafka log asks for seldom and waits for: its producer, and topics. In a thread, one after another.
#
# A topic is ready when its partitions have leaders and the producer knows them: the first `send()` to it would wait for
# that otherwise, and with it the lanes of all workers.
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaTimeoutError, NoError, TopicAlreadyExistsError, UnknownTopicOrPartitionError, for_code

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_clients import CLIENT, PRODUCER, REQUEST, made
from broker.carrier.kafka_errors import error_of
from broker.reasons import LogFailure
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties

WARM: Final = 10.0  # seconds until the producer has to know a new topic
CLOSE: Final = 1.0  # seconds for what the producer still has
ALL_CONFIGS: Final = "all"
# Kafka deletes whole segments. Its own are 1 GiB, or a week: a topic would take twice of what it is to keep.
SEGMENTS: Final = 8  # of what a topic keeps, at least
LEAST_SEGMENT: Final = 1024 * 1024  # bytes; Kafka 4 allows no less
MOST_SEGMENT: Final = 64 * 1024 * 1024
LEAST_SEGMENT_TIME: Final = 60_000  # milliseconds


@dataclass(frozen=True, kw_only=True)
class KafkaSurvey:
    """What Kafka gives to logs."""

    partitions: int  # of all topics
    brokers: int
    replication: int  # copies of a topic as clients have it
    in_sync: int  # of them, that have a record when it is acknowledged


class KafkaAdmin:
    """The thread, and what it does. *options*: of all clients of kafka-python."""

    def __init__(self, options: Mapping[str, Any], inbox: Inbox) -> None:
        self._options = options
        self._inbox = inbox
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._admin: Any = None
        self._producer: Any = None
        self._thread = threading.Thread(target=self._work, name="kafka-admin", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], object], then: Callable[[object, LogError | None], None]) -> None:
        """Do *work* in the thread; *then* is told its result, or its failure, in the thread of the log."""

        def task() -> None:
            result: object = None
            failure: LogError | None = None
            try:
                result = work()
            except LogError as error:
                failure = error
            except Exception as exception:
                failure = error_of(exception)
            self._inbox.put(partial(then, result, failure))

        self._tasks.put(task)

    def stop(self) -> None:
        """End when what is under way has ended."""
        self._tasks.put(None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # In the thread.

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
        if self._admin is not None:
            self._admin.close()
        if self._producer is not None:
            try:
                self._producer.close(CLOSE)
            except KafkaTimeoutError:  # Kafka is away; its thread ends with the process
                pass

    def connect(self) -> Any:
        """The producer, when Kafka can be reached. KafkaError."""
        self._connected()  # it refuses options of producers and consumers, which would change what is promised
        if self._producer is None:
            self._producer = made(KafkaProducer, PRODUCER, self._options)
        return self._producer

    def _connected(self) -> Any:
        if self._admin is None:
            self._admin = made(KafkaAdminClient, CLIENT, self._options)
        return self._admin

    def create(self, topic: str, wanted: TopicProperties) -> None:
        """Make *topic* unless it is there, and have the producer know it. LogError."""
        admin = self._connected()
        kind, words = self._ask_for(topic, wanted, False)
        if kind is TopicAlreadyExistsError:
            found = self.describe(topic)
            if found is not None and found.properties.partitions != wanted.partitions:
                detail = f"{topic} has partitions: {found.properties.partitions}, and not {wanted.partitions}"
                raise LogError(LogFailure.OTHER_TOPIC, detail)
        elif kind is not NoError:
            raise error_of(kind(f"{topic}: {words}"))
        admin.wait_for_topics([topic], REQUEST)
        self._warm(topic)

    def try_out(self, topic: str, wanted: TopicProperties) -> None:
        """Find out whether Kafka would make *topic*. LogError: it would not."""
        kind, words = self._ask_for(topic, wanted, True)
        if kind not in (NoError, TopicAlreadyExistsError):
            raise error_of(kind(f"{topic}: {words}"))

    def survey(self, topic: str, wanted: TopicProperties) -> KafkaSurvey:
        """What Kafka gives to logs such as *topic*, which may exist. LogError: it would not make it."""
        self.try_out(topic, wanted)
        admin = self._connected()
        metadata = admin.describe_cluster()
        unknown = f"{topic}.{uuid.uuid4().hex}"
        answer = self._answer_for(unknown, wanted, True)
        in_sync = answer["configs"]["min.insync.replicas"]
        return KafkaSurvey(
            partitions=sum(len(one["partitions"]) for one in admin.describe_topics()),
            brokers=len(metadata["brokers"]),
            replication=answer["replication_factor"],
            in_sync=int(in_sync["value"] if isinstance(in_sync, dict) else in_sync),
        )

    def _ask_for(self, topic: str, wanted: TopicProperties, only_validate: bool) -> tuple[Any, str]:
        """Ask Kafka to make *topic*; the class of its error, or NoError, and the words of its message."""
        answer = self._answer_for(topic, wanted, only_validate)
        return for_code(answer["error_code"]), str(answer["error_message"])

    def _answer_for(self, topic: str, wanted: TopicProperties, only_validate: bool) -> Any:
        configs = {
            "cleanup.policy": "delete",
            "retention.ms": str(1000 * wanted.retention),
            "retention.bytes": str(wanted.retention_bytes),
            "segment.bytes": str(min(max(wanted.retention_bytes // SEGMENTS, LEAST_SEGMENT), MOST_SEGMENT)),
            "segment.ms": str(max(1000 * wanted.retention // SEGMENTS, LEAST_SEGMENT_TIME)),
        }
        described = {"num_partitions": wanted.partitions, "replication_factor": wanted.replication, "configs": configs}
        return self._connected().create_topics(
            {topic: described}, timeout_ms=REQUEST, validate_only=only_validate, raise_errors=False
        )["topics"][0]

    def _warm(self, topic: str) -> None:
        producer = self.connect()
        deadline = time.monotonic() + WARM
        while True:
            try:
                producer.partitions_for(topic)
                return
            except KafkaTimeoutError:  # it has asked for it
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def delete(self, topic: str) -> None:
        answer = self._connected().delete_topics([topic], timeout_ms=REQUEST, raise_errors=False)["topics"][0]
        kind = for_code(answer["error_code"])
        if kind not in (NoError, UnknownTopicOrPartitionError):
            raise error_of(kind(topic))

    def find(self, topic: str) -> Any:
        """The metadata of *topic*; None: it does not exist. LogError."""
        found = self._connected().describe_topics([topic])[0]
        kind = for_code(found["error_code"])
        if kind is UnknownTopicOrPartitionError:
            return None
        if kind is not NoError:
            raise error_of(kind(topic))
        return found

    def describe(self, topic: str) -> TopicDescription | None:
        """What is known of *topic*; None: it does not exist. LogError: Weir cannot use it."""
        admin = self._connected()
        found = self.find(topic)
        if found is None:
            return None
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        configs = admin.describe_configs([resource], config_filter=ALL_CONFIGS)["topic"][topic]
        values = {name: config["value"] for name, config in configs.items()}
        if values["cleanup.policy"] != "delete":
            detail = f"{topic} has cleanup.policy={values['cleanup.policy']}, and not delete"
            raise LogError(LogFailure.OTHER_TOPIC, detail)
        partitions = [TopicPartition(topic, number) for number in range(len(found["partitions"]))]
        first = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.EARLIEST))
        following = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
        return TopicDescription(
            properties=TopicProperties(
                partitions=len(partitions),
                retention=int(values["retention.ms"]) // 1000,
                retention_bytes=int(values["retention.bytes"]),
                replication=len(found["partitions"][0]["replica_nodes"]),
            ),
            first=[first[one].offset for one in partitions],
            next=[following[one].offset for one in partitions],
        )
