# The topic `weir.metrics` in Kafka, to which the metrics records of all nodes are published, one record each.
#
# Any consumer of Kafka can read it: the value is the JSON object that metrics/record.py describes, the key the name of
# its worker, NODE/NUMBER. Times are of Kafka (LogAppendTime), so that readers know of a node whose clock is wrong.
#
# The topic has one partition. Its order is then that of time, whatever a reader has missed. With several, a reader that
# was away for an hour would read the last minute of some workers before the first one of others, and the analysis,
# whose watermark is the newest time that it has seen, would drop most of the rest as late. One partition takes ten
# thousands of these records a second.
#
# Nothing waits here. While the topic cannot be used, records are dropped, and each second one of them has it looked for
# again. What the producer has not sent is bounded by the workers (store/logs/record_log.py), and given up after
# DELIVERY. A record that the producer repeats may be there twice: its (boot, sequence) says so.
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kafka.errors import KafkaError, KafkaTimeoutError

from broker.carrier.inbox import Inbox
from broker.carrier.kafka_admin import FIXED, KafkaAdmin
from broker.carrier.kafka_errors import error_of
from broker.log import Log as Lines
from broker.metrics.record import LOG
from broker.reasons import LogFailure
from broker.store.logs.topics import LogError, TopicProperties

PARTITION: Final = 0
AGAIN: Final = 1.0  # seconds between two attempts to make the topic, or to find it
TIMES: Final = {**FIXED, "message.timestamp.type": "LogAppendTime"}

Done = Callable[[LogFailure | None], None]


class MetricsTopic:
    """A `RecordTopic`."""

    def __init__(
        self,
        admin: KafkaAdmin,
        inbox: Inbox,
        properties: TopicProperties,
        clock: Callable[[], float],
        lines: Lines,
    ) -> None:
        """*properties* are those of a topic that is made; the retention of one that exists stays."""
        self.written = 0
        self.dropped = 0
        self.trouble: LogError | None = None  # why it cannot be used
        self._admin = admin
        self._inbox = inbox
        self._properties = properties
        self._clock = clock
        self._lines = lines
        self._topic = LOG
        self._producer: Any = None  # None: the topic is not known to be there
        self._making = False
        self._make_next = 0.0

    def start(self) -> None:
        self._make()

    def append(self, worker: str, record: bytes, done: Done) -> None:
        if self._producer is None:
            self._make()
            why = self.trouble
            self._answer(done, LogFailure.UNREACHABLE if why is None else why.failure)
            return
        try:
            future = self._producer.send(self._topic, key=worker.encode(), value=record, partition=PARTITION)
        except KafkaTimeoutError:  # it has been deleted
            self._answer(done, LogFailure.UNKNOWN_TOPIC)
        except KafkaError as error:
            self._answer(done, error_of(error).failure)
        else:
            future.add_callback(self._sent, done)
            future.add_errback(self._failed, done)

    def _sent(self, done: Done, metadata: object) -> None:
        self._inbox.put(partial(self._answer, done, None))

    def _failed(self, done: Done, exception: BaseException) -> None:
        self._inbox.put(partial(self._answer, done, error_of(exception).failure))

    def _answer(self, done: Done, failure: LogFailure | None) -> None:
        if failure is None:
            self.written += 1
        else:
            self.dropped += 1
            if failure is LogFailure.UNKNOWN_TOPIC:
                self._producer = None
        done(failure)

    def _make(self) -> None:
        now = self._clock()
        if not self._making and now >= self._make_next:
            self._making = True
            self._admin.run(self._made_topic, self._made)

    def _made_topic(self) -> object:
        """In the thread: find the topic as it is to be, or make it; the producer, which knows it then. LogError."""
        self._admin.find_or_create(self._topic, self._properties, TIMES)
        return self._admin.connect()

    def _made(self, producer: object, error: LogError | None) -> None:
        self._making = False
        self._make_next = self._clock() + AGAIN
        if error is None:
            if self.trouble is not None:
                self._lines.info("metrics_topic_ready", topic=self._topic)
        elif self.trouble is None or error.failure is not self.trouble.failure:
            self._lines.warning("metrics_topic_failed", topic=self._topic, why=str(error))
        self.trouble = error
        self._producer = producer if error is None else None
