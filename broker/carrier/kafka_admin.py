# What a Kafka log asks for seldom and waits for: its producer, and topics. In a thread, one after another.
#
# A topic is ready when its partitions have leaders and the producer knows them: the first `send()` to it would wait for
# that otherwise, and with it the lanes of all workers.
import queue
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from kafka import KafkaAdminClient, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import (
    IllegalGenerationError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    RebalanceInProgressError,
    TopicAlreadyExistsError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.metadata import CoordinatorType

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_clients import CLIENT, PRODUCER, REQUEST, made
from broker.carrier.kafka_errors import error_of
from broker.reasons import LogFailure
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties

WARM: Final = 10.0  # seconds until the producer has to know a new topic
TOGETHER: Final = 100  # topics that are made at once
LAG: Final = 0.02  # seconds until Kafka is asked again whether its brokers know a topic that it has made
CLOSE: Final = 1.0  # seconds for what the producer still has
ALL_CONFIGS: Final = "all"
IN_SYNC: Final = "min.insync.replicas"
NOBODY: Final = ("", -1)  # commits offsets of a group that has no members
MEMBERSHIP: Final = {UnknownMemberIdError, IllegalGenerationError, RebalanceInProgressError}  # who commits is no member
FIXED: Final = {"cleanup.policy": "delete"}  # configuration that a topic has to have
# Kafka deletes whole segments. Its own are 1 GiB, or a week: a topic would take twice of what it is to keep.
SEGMENTS: Final = 8  # of what a topic keeps, at least
LEAST_SEGMENT: Final = 1024 * 1024  # bytes; Kafka 4 allows no less
MOST_SEGMENT: Final = 64 * 1024 * 1024
LEAST_SEGMENT_TIME: Final = 60_000  # milliseconds


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What Kafka keeps of a topic."""

    replication: int  # copies of a record
    in_sync: int  # of them, at least, when it is acknowledged
    present: int  # of them that are in sync now, in the partition with the fewest


@dataclass(frozen=True, kw_only=True)
class KafkaSize:
    partitions: int  # of all topics
    brokers: int


class Creation(NamedTuple):
    """A topic that is to be made, and who is told."""

    topic: str
    wanted: TopicProperties
    then: Callable[[LogError | None], None]


class KafkaAdmin:
    """The thread, and what it does. *options*: of all clients of kafka-python."""

    def __init__(self, options: Mapping[str, Any], inbox: Inbox) -> None:
        self._options = options
        self._inbox = inbox
        self._tasks: queue.SimpleQueue[Callable[[], None] | Creation | None] = queue.SimpleQueue()
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

    def make(self, topic: str, wanted: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        """Make *topic* unless it is there, and have the producer know it.

        Topics that are asked for one after the other are made together: for each by itself the producer would ask
        Kafka once more, and a thousand services that connect at once would wait for minutes.
        """
        self._tasks.put(Creation(topic, wanted, then))

    def stop(self) -> None:
        """End when what is under way has ended."""
        self._tasks.put(None)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    # In the thread.

    def _work(self) -> None:
        waiting: deque[Callable[[], None] | Creation | None] = deque([self._tasks.get()])
        while (task := waiting.popleft()) is not None:
            while len(waiting) < TOGETHER and not self._tasks.empty():
                waiting.append(self._tasks.get())
            if isinstance(task, Creation):
                creations = {task.topic: task}
                while waiting and isinstance(also := waiting[0], Creation) and also.topic not in creations:
                    creations[also.topic] = also
                    waiting.popleft()
                self._create_all(creations)
            else:
                task()
            if not waiting:
                waiting.append(self._tasks.get())
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

    def _create_all(self, creations: Mapping[str, Creation]) -> None:
        topics = {topic: creation.wanted for topic, creation in creations.items()}
        failures: dict[str, LogError] = {}
        try:
            self._create(topics, FIXED, failures)
        except Exception as exception:
            error = exception if isinstance(exception, LogError) else error_of(exception)
            failures = {**dict.fromkeys(topics, error), **failures}
        for topic, creation in creations.items():
            self._inbox.put(partial(creation.then, failures.get(topic)))

    def create(self, topic: str, wanted: TopicProperties, fixed: Mapping[str, str] = FIXED) -> None:
        """Make *topic* unless it is there, and have the producer know it. LogError, also if it is not as *fixed*."""
        failures: dict[str, LogError] = {}
        self._create({topic: wanted}, fixed, failures)
        if failures:
            raise failures[topic]

    def _create(
        self, topics: Mapping[str, TopicProperties], fixed: Mapping[str, str], failures: dict[str, LogError]
    ) -> None:
        """Make *topics*; what fails for one of them is put into *failures*, and an exception is for all others."""
        made: dict[str, uuid.UUID | None] = {}
        for answer in self._answers_for(topics, False, fixed):
            topic, kind = answer["name"], for_code(answer["error_code"])
            try:
                if kind is TopicAlreadyExistsError:
                    self.find_as(topic, topics[topic], fixed)
                elif kind is not NoError:
                    raise error_of(kind(f"{topic}: {answer['error_message']}"))
            except LogError as error:
                failures[topic] = error
            else:
                made[topic] = answer.get("topic_id") if kind is NoError else None
        if made:
            self._make_known(made)

    def find_or_create(self, topic: str, wanted: TopicProperties, fixed: Mapping[str, str]) -> None:
        """As `create`, but a topic that is there can be used without the right to create topics. LogError."""
        if self.find_as(topic, wanted, fixed) is None:
            self.create(topic, wanted, fixed)
        else:
            self._make_known({topic: None})

    def find_as(self, topic: str, wanted: TopicProperties, fixed: Mapping[str, str]) -> TopicDescription | None:
        """What is known of *topic*; None: it does not exist. LogError: its partitions, or *fixed*, are others."""
        found = self.describe(topic, fixed)
        if found is not None and found.properties.partitions != wanted.partitions:
            detail = f"{topic} has partitions: {found.properties.partitions}, and not {wanted.partitions}"
            raise LogError(LogFailure.OTHER_TOPIC, detail)
        return found

    def try_out(self, topic: str, wanted: TopicProperties) -> None:
        """Find out whether Kafka would make *topic*. LogError: it would not."""
        answer = self._answer_for(topic, wanted)
        kind = for_code(answer["error_code"])
        if kind not in (NoError, TopicAlreadyExistsError):
            raise error_of(kind(f"{topic}: {answer['error_message']}"))

    def size(self) -> KafkaSize:
        admin = self._connected()
        partitions = sum(len(one["partitions"]) for one in admin.describe_topics())
        return KafkaSize(partitions=partitions, brokers=len(admin.describe_cluster()["brokers"]))

    def copies(self, topic: str, wanted: TopicProperties, fixed: Mapping[str, str] = FIXED) -> Copies:
        """What Kafka keeps of *topic*, or would if it were made. LogError: Weir cannot use it, or make it."""
        found = self.find_as(topic, wanted, fixed)
        if found is not None:
            in_sync = int(self._configuration(topic)[IN_SYNC])
            present = min(len(one["isr_nodes"]) for one in self.find(topic)["partitions"])
            return Copies(replication=found.properties.replication, in_sync=in_sync, present=present)
        answer = self._answer_for(topic, wanted, fixed)
        kind = for_code(answer["error_code"])
        if kind is not NoError:
            raise error_of(kind(f"{topic}: {answer['error_message']}"))
        given = answer["configs"][IN_SYNC]
        in_sync = int(given["value"] if isinstance(given, dict) else given)
        replication = answer["replication_factor"]
        return Copies(replication=replication, in_sync=in_sync, present=replication)

    def _answer_for(self, topic: str, wanted: TopicProperties, fixed: Mapping[str, str] = FIXED) -> Any:
        """What Kafka answers when it is asked whether it would make *topic*."""
        return self._answers_for({topic: wanted}, True, fixed)[0]

    def _answers_for(self, topics: Mapping[str, TopicProperties], only_validate: bool, fixed: Mapping[str, str]) -> Any:
        """Ask Kafka to make *topics*; its answer for each."""
        described = {topic: _described(wanted, fixed) for topic, wanted in topics.items()}
        return self._connected().create_topics(
            described, timeout_ms=REQUEST, validate_only=only_validate, raise_errors=False
        )["topics"]

    def _make_known(self, topics: Mapping[str, uuid.UUID | None]) -> None:
        """Wait until *topics* have leaders and the producer knows them: all of them are in its next question to Kafka.

        Each by its identity; None: it was there before, or Kafka is older than 2.8 and does not say. For some
        milliseconds a broker still tells of a topic of the same name that was deleted before.
        `partitions_for()` waits for nothing, as PRODUCER says, and does not ask again for a topic that is not in the
        answer to a question that was under way.
        """
        admin = self._connected()
        deadline = time.monotonic() + REQUEST / 1000
        made = {topic: identity for topic, identity in topics.items() if identity is not None}
        while made and any(one["topic_id"] != made[one["name"]] for one in admin.describe_topics(list(made))):
            if time.monotonic() > deadline:
                raise LogError(LogFailure.TIMEOUT, f"Kafka does not tell of new topics, as {next(iter(made))}")
            time.sleep(LAG)
        admin.wait_for_topics(topics, REQUEST)
        producer = self.connect()
        for topic in topics:
            with suppress(KafkaTimeoutError):
                producer.partitions_for(topic)
        deadline = time.monotonic() + WARM
        for topic in topics:
            producer._wait_on_metadata(topic, 1000 * max(0.001, deadline - time.monotonic()))

    def delete(self, topic: str, log: bytes = b"") -> bool:
        """Delete *topic*, if its identity is *log*; b"": whichever it has. LogError.

        False: there is a topic of this name, which has another identity.
        """
        which = uuid.UUID(bytes=log) if log else topic
        answer = self._connected().delete_topics([which], timeout_ms=REQUEST, raise_errors=False)["topics"][0]
        kind = for_code(answer["error_code"])
        if kind is UnknownTopicIdError:
            return self.find(topic) is None
        if kind not in (NoError, UnknownTopicOrPartitionError):
            raise error_of(kind(topic))
        return True

    def find(self, topic: str) -> Any:
        """The metadata of *topic*; None: it does not exist. LogError."""
        found = self._connected().describe_topics([topic])[0]
        kind = for_code(found["error_code"])
        if kind is UnknownTopicOrPartitionError:
            return None
        if kind is not NoError:
            raise error_of(kind(topic))
        return found

    def describe(self, topic: str, fixed: Mapping[str, str] = FIXED) -> TopicDescription | None:
        """What is known of *topic*; None: it does not exist. LogError: Weir cannot use it, as it is not as *fixed*."""
        admin = self._connected()
        found = self.find(topic)
        if found is None:
            return None
        try:
            values = self._configuration(topic)
        except LogError:
            if self.find(topic) is None:
                return None  # it was deleted meanwhile
            raise
        for name, value in fixed.items():
            if values[name] != value:
                raise LogError(LogFailure.OTHER_TOPIC, f"{topic} has {name}={values[name]}, and not {value}")
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
            log=uuid.UUID(str(found["topic_id"])).bytes,
            first=[first[one].offset for one in partitions],
            next=[following[one].offset for one in partitions],
        )

    # Consumer groups.

    def commit(self, group: str, offsets: Mapping[Partition, int], who: tuple[str, int] = NOBODY) -> bool:
        """Have Kafka keep *offsets* of *group*, but for topics that do not exist any more.

        *who*: id and generation of a member. False: the group does not have it, or has others while this is NOBODY.
        LogError: it refuses them. KafkaError: it cannot be asked now.
        """
        given = {TopicPartition(*one): OffsetAndMetadata(offset, "", -1) for one, offset in offsets.items()}
        try:
            admin = self._connected()
            request = admin._alter_group_offsets_request(group, given)
            request.member_id, request.generation_id_or_member_epoch = who
            answers = admin._manager.run(self._commit, admin, group, request)
            kinds = {*answers.values()} - {NoError, UnknownTopicOrPartitionError}
            if kinds & MEMBERSHIP:
                return False
            for kind in kinds:
                raise kind(group)
        except KafkaError as error:
            self._forget_coordinator(group)
            if error.retriable:
                raise
            raise error_of(error) from None
        return True

    async def _commit(self, admin: Any, group: str, request: Any) -> Any:
        """In the thread of the admin client."""
        node = await admin._find_coordinator_id(group)
        return admin._alter_group_offsets_process_response(await admin._manager.send(request, node_id=node))

    def delete_group(self, group: str) -> None:
        """Delete *group*, unless it has members or is not known. KafkaError."""
        self._connected().delete_groups([group])
        self._forget_coordinator(group)

    def _forget_coordinator(self, group: str) -> None:
        """Have kafka-python ask which broker has *group*: it never asks again by itself."""
        if self._admin is not None:
            self._admin._manager.cluster._coordinators.pop((CoordinatorType.GROUP, group), None)

    def _configuration(self, topic: str) -> dict[str, str]:
        """The values by name. LogError."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._connected().describe_configs([resource], config_filter=ALL_CONFIGS)["topic"][topic]
        if not found:  # kafka-python keeps the error to itself, which is that of access rules: the topic is there
            raise LogError(LogFailure.FORBIDDEN, f"DescribeConfigs of the topic {topic}")
        return {name: one["value"] for name, one in found.items()}


def _described(wanted: TopicProperties, fixed: Mapping[str, str]) -> dict[str, Any]:
    configs = {
        **fixed,
        "retention.ms": str(1000 * wanted.retention),
        "retention.bytes": str(wanted.retention_bytes),
        "segment.bytes": str(min(max(wanted.retention_bytes // SEGMENTS, LEAST_SEGMENT), MOST_SEGMENT)),
        "segment.ms": str(max(1000 * wanted.retention // SEGMENTS, LEAST_SEGMENT_TIME)),
    }
    return {"num_partitions": wanted.partitions, "replication_factor": wanted.replication, "configs": configs}
