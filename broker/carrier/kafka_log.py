# The log in Apache Kafka, by kafka-python, whose calls wait and whose clients have threads of their own.
#
# The threads: that of the log, which may wait for nothing; one for topics (kafka_admin.py); one that reads
# (kafka_reader.py); and those of kafka-python's producer and admin client. What they find is put into an inbox and
# handled in the thread of the log. Why threads and no trio: kafka-python 3 has a loop of its own, and offers calls
# that wait for it. That is for a process of its own: beside a busy thread, a system call of a worker would take 1 ms.
#
# `send()` is called in the thread of the log. With `max_block_ms=0` it never waits: it raises an exception for a topic
# that the producer does not know yet, and asks for it meanwhile. Its memory is bounded by Appends: one record of each
# partition is under way.
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from kafka import TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError

from broker.carrier.appends import MOST_BYTES, Appends, Done
from broker.carrier.inbox import Inbox
from broker.carrier.kafka_admin import NOBODY, KafkaAdmin
from broker.carrier.kafka_errors import error_of
from broker.carrier.kafka_groups import KafkaGroups
from broker.carrier.kafka_metrics import MetricsTopic
from broker.carrier.kafka_mirror import KafkaMirror
from broker.carrier.kafka_reader import KafkaReader
from broker.carrier.log import LogStatistics, Reader, Reading
from broker.log import Log as Lines
from broker.reasons import LogFailure
from broker.store.logs.records import Pack, Position
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties

PACE: Final = 0.005  # seconds between two requests to append, which may have records of all partitions
CONNECT_AGAIN: Final = 1.0  # seconds between two attempts
AWAY: Final = (  # failures of all topics alike
    LogFailure.UNREACHABLE,
    LogFailure.TIMEOUT,
    LogFailure.AUTHENTICATION_FAILED,
    LogFailure.CLIENT_REFUSED,
)
LOOK_AGAIN: Final = 1.0  # seconds after which a topic that was made here, and is not known any more, is made again
NO_LEADER: Final = -1
LEADER: Final = 1.0  # seconds between two looks at whether partitions whose records are under way have leaders


class KafkaLog:
    """A `Log`."""

    def __init__(
        self,
        options: Mapping[str, Any],
        clock: Callable[[], float],
        deliver: Callable[[Callable[[], None]], None],
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """*options*: of all clients of kafka-python, such as `bootstrap_servers`.

        *deliver* has a callable called in the thread of the log; it is used in other threads.
        """
        self._clock = clock
        self._statistics = LogStatistics()
        self._appends = Appends(self._send, clock, self._statistics, most_bytes, pace=PACE)
        self._options = options
        self._inbox = Inbox(deliver)
        self._admin = KafkaAdmin(options, self._inbox)
        self._other_admins: list[KafkaAdmin] = []  # for what must not keep the topics of the log waiting
        self._mirror: KafkaMirror | None = None
        self._groups: KafkaGroups | None = None
        self._reader = KafkaReader(options, self._inbox)
        self._producer: Any = None
        self._connecting = False
        self._connect_next = 0.0
        self._unconnected = LogError(LogFailure.UNREACHABLE, "it has not been reached yet")
        self._made: dict[str, TopicProperties] = {}  # topics that were made, or found, by this process
        self._looked: dict[str, float] = {}  # topics that the producer does not know, and when they were looked for
        self._under_way: dict[Partition, int] = {}  # the attempts that the producer has, by number
        self._seen: dict[Partition, int] = {}  # those that it had at the last look
        self._look_at = 0.0

    def start(self) -> None:
        self._connect()

    def stop(self) -> None:
        self._inbox.close()
        self._reader.stop()
        self._admin.stop()
        for admin in self._other_admins:
            admin.stop()
        if self._groups is not None:
            self._groups.stop()

    def has_ended(self) -> bool:
        """Whether the threads of a log that was stopped have ended."""
        threads: list[KafkaReader | KafkaAdmin | KafkaGroups] = [self._reader, self._admin, *self._other_admins]
        if self._groups is not None:
            threads.append(self._groups)
        return not any(thread.is_alive() for thread in threads)

    def statistics(self) -> LogStatistics:
        return self._statistics

    def tick(self, now: float) -> float:
        due = self._appends.tick(now)
        if self._mirror is not None:
            due = min(due, self._mirror.tick(now))
        if now >= self._look_at:
            self._look_at = now + LEADER
            self._look_for_leaders()
        if (self._producer is None or self._statistics.unusable) and not self._connecting:
            if now < self._connect_next:
                due = min(due, self._connect_next)
            elif self._producer is None:
                self._connect()
            else:
                self._look_whether_it_is_back()
        return due

    def _connect(self) -> None:
        self._connecting = True
        self._admin.run(self._admin.connect, self._connected)

    def _connected(self, producer: object, error: LogError | None) -> None:
        self._connecting = False
        self._note(error)
        if error is None:
            self._producer = producer
        else:
            self._unconnected = error

    def _note(self, error: LogError | None) -> None:
        """What was asked about a topic has this *error*, or none."""
        away = error is not None and error.failure in AWAY
        self._statistics.unusable = str(error) if away else ""
        self._connect_next = self._clock() + CONNECT_AGAIN

    def _look_whether_it_is_back(self) -> None:
        def described(result: object, error: LogError | None) -> None:
            self._connecting = False
            self._note(error)

        self._connecting = True
        self._admin.run(partial(self._admin.describe, "weir"), described)

    # Appending.

    def append(self, partition: Partition, pack: Pack, done: Done) -> bool:
        return self._appends.append(partition, pack, done)

    def flush(self) -> float:
        return self._appends.flush()

    def _send(self, partition: Partition, record: bytes, number: int) -> None:
        if self._producer is None:
            self._appends.failed(partition, number, self._unconnected)
            return
        try:
            future = self._producer.send(partition.topic, value=record, partition=partition.number)
        except KafkaTimeoutError:
            self._look_for(partition.topic)
            self._appends.failed(partition, number, LogError(LogFailure.UNKNOWN_TOPIC, partition.topic))
        except ValueError as error:  # it has no such partition, or Kafka allows no such name
            self._appends.failed(partition, number, LogError(LogFailure.OTHER_TOPIC, str(error)))
        except KafkaError as error:
            self._appends.failed(partition, number, error_of(error))
        else:
            self._under_way[partition] = number
            future.add_callback(self._stored, partition, number)
            future.add_errback(self._refused, partition, number)

    def _stored(self, partition: Partition, number: int, metadata: Any) -> None:
        self._inbox.put(partial(self._ended, partition, number, metadata.offset, None))

    def _refused(self, partition: Partition, number: int, exception: BaseException) -> None:
        self._inbox.put(partial(self._ended, partition, number, -1, error_of(exception)))

    def _ended(self, partition: Partition, number: int, offset: int, error: LogError | None) -> None:
        """The producer does not have the attempt *number* any more."""
        if self._under_way.get(partition) == number:
            del self._under_way[partition]
        if error is None:
            record = self._appends.stored(partition, number, offset)
            if record:
                self._reader.appended(partition, self._leader_of(partition), offset, record)
        elif error.failure is LogFailure.TIMEOUT and self._leader_of(partition) == NO_LEADER:
            self._appends.failed(partition, number, LogError(LogFailure.NO_LEADER, error.detail))
        else:
            self._appends.failed(partition, number, error)

    def _look_for_leaders(self) -> None:
        """Tell which records the producer keeps because their partitions have no leaders: it tries for DELIVERY."""
        for partition, number in self._under_way.items():
            if self._seen.get(partition) == number and self._leader_of(partition) == NO_LEADER:
                self._appends.stuck(partition, LogError(LogFailure.NO_LEADER, partition.topic))
        self._seen = dict(self._under_way)

    def _leader_of(self, partition: Partition) -> int | None:
        """The broker that Kafka named when the producer asked last, or NO_LEADER; None: it is not known now."""
        cluster = self._producer._metadata
        try:
            leader = cluster.leader_for_partition(TopicPartition(partition.topic, partition.number))
        except KeyError:  # a thread of the producer has just replaced what is known
            return None
        return cast("int | None", leader)

    def _look_for(self, topic: str) -> None:
        """The producer does not know *topic*: have it ask again; or make it, if it was made here and has been deleted.

        The producer asks once when it is given a topic that is new to it. If a question is under way then, it takes the
        answer to that for one to both, and asks no more for minutes.
        """
        now = self._clock()
        properties = self._made.get(topic)
        if properties is None:
            if topic in self._looked:  # else it may ask still, and this might be the question that is under way
                self._producer._metadata.request_update()
            self._looked[topic] = now
        elif now >= self._looked.get(topic, 0.0) + LOOK_AGAIN:
            self._looked[topic] = now
            self.create(topic, properties, lambda error: None)

    # Reading.

    def read(self, partition: Partition, position: Position, reader: Reader) -> Reading:
        reading = Reading(partition, position, reader, self._statistics, self._reader.change)
        self._reader.add(reading)
        return reading

    def metrics_topic(self, properties: TopicProperties, lines: Lines) -> MetricsTopic:
        """The topic of metrics records, which is made with *properties*; once."""
        admin = self._other_admin()
        return MetricsTopic(admin, self._inbox, properties, self._clock, lines)

    def mirror(self, lines: Lines) -> KafkaMirror:
        """Where is told how far groups have read; once."""
        groups = self._groups
        who = _nobody if groups is None else groups.membership
        self._mirror = mirror = KafkaMirror(self._other_admin(), who, self._clock, lines)
        return mirror

    def groups(self, lines: Lines) -> KafkaGroups:
        """Members of consumer groups; once, and before `mirror()`."""
        self._groups = groups = KafkaGroups(self._options, self._inbox, lines)
        return groups

    def _other_admin(self) -> KafkaAdmin:
        """One with clients and a thread of its own."""
        admin = KafkaAdmin(self._options, self._inbox)
        self._other_admins.append(admin)
        return admin

    # Topics.

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        def made(error: LogError | None) -> None:
            self._note(error)
            if error is None:
                self._made[topic] = properties
                self._looked.pop(topic, None)
            then(error)

        self._admin.make(topic, properties, made)

    def try_out(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        self._admin.run(partial(self._admin.try_out, topic, properties), lambda result, error: then(error))

    def reach(self, then: Callable[[LogError | None], None]) -> None:
        self._admin.run(self._admin.connect, lambda result, error: then(error))

    def delete(self, topic: str, log: bytes, then: Callable[[LogError | None], None]) -> None:
        made = self._made.pop(topic, None)

        def deleted(result: object, error: LogError | None) -> None:
            if error is None and result:
                self._appends.drop(topic, LogError(LogFailure.UNKNOWN_TOPIC, topic))
                if self._mirror is not None:
                    self._mirror.forget(topic)
            elif made is not None:
                self._made.setdefault(topic, made)
            then(error)

        self._admin.run(partial(self._admin.delete, topic, log), deleted)

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        work = partial(self._admin.describe, topic)
        self._admin.run(work, lambda result, error: then(cast("TopicDescription | None", result), error))


def _nobody(group: str) -> tuple[str, int]:
    """Who commits offsets of *group*, which has no members."""
    return NOBODY
