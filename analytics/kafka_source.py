# The Kafka topic `weir.metrics` as a streaming source, through Spark's own Kafka connector (connector.py).
#
# The connector has exact offsets, and reads from the oldest record on when the checkpoint is new. Records that Kafka
# has deleted before they were read (retention) are missing in their batch; the job notices. A topic that was made anew
# is read from the record on that was its next one when the job first saw it: those before count as lost. If it has more
# records than the former one by then, only the sequence numbers of the records reveal the gap.
#
# While Kafka is unavailable the query fails after some attempts, and the job waits until the topic can be read again.
# The clock (clock.py) is joined to the topic, so that there are batches when nobody writes.
from typing import TYPE_CHECKING, Any, Final

from analytics.checkpoint import Checkpoint
from analytics.clock import ticks
from analytics.connector import KafkaAddress, java_options
from analytics.source import IDLE, LAST_MS, LIMIT, LONGEST, Planned
from broker.metrics.record import LOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMEOUT: Final = 10_000  # milliseconds for an answer of Kafka
TIMES: Final = {"request.timeout.ms": str(TIMEOUT), "default.api.timeout.ms": str(TIMEOUT)}
# The names of consumer groups, in which the connector commits nothing, begin so: access rules can name them.
GROUP: Final = "weir-analytics"
STREAM, CLOCK = 0, 1  # the numbers of the streams of the query


class KafkaSource:
    """A `Source`."""

    def __init__(self, address: KafkaAddress, limit: int = LIMIT, topic: str = LOG) -> None:
        """*limit*: entries of a batch. Raises ConnectorUnusable."""
        self.name = f"kafka:{topic}"
        self.shown = f"the Kafka topic {topic} at {', '.join(address.hosts)}"
        self._topic = topic
        self._limit = limit
        self._options = {**java_options(address), **TIMES}

    def entries(self, spark: "SparkSession") -> "DataFrame":
        parts = spark.sparkContext.defaultParallelism
        options: dict[str, Any] = {
            **{f"kafka.{name}": value for name, value in self._options.items()},
            "kafkaConsumer.pollTimeoutMs": TIMEOUT,
            "groupIdPrefix": GROUP,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",  # or the job would end for good
            "maxOffsetsPerTrigger": self._limit,
            "minPartitions": parts,
        }
        records = spark.readStream.format("kafka").options(**options).load()
        entries = records.selectExpr(
            f"concat(least(greatest(unix_millis(timestamp), 0), {LAST_MS}), '-', offset) AS id",
            "timestamp AS at",
            f"make_valid_utf8(string(if(length(value) > {LONGEST}, substring(value, 1, {LONGEST}), value))) AS body",
            f"{parts} AS parts",
        )
        return entries.unionByName(ticks(spark, IDLE))

    def planned(self, checkpoint: Checkpoint, batch: int, newest: float) -> Planned:
        ends = checkpoint.offsets(batch)
        before = checkpoint.offsets(batch - 1)[STREAM] if batch else checkpoint.beginning(STREAM)
        started, ended = before.get(self._topic, {}), ends[STREAM].get(self._topic, {})
        moves = [(started.get(partition, 0), end) for partition, end in ended.items()]
        entries = sum(end - start for start, end in moves if end > start)
        lost = sum(end for start, end in moves if end < start)
        # A batch of a job that is hours behind is not of now, even if all of its entries are dropped.
        idle = 0.0 if entries else ends[CLOCK]["now"] / 1000
        return Planned(entries, lost, newest or idle)

    def trouble(self, spark: "SparkSession") -> str:
        from py4j.protocol import Py4JError, Py4JJavaError

        jvm: Any = spark._jvm
        try:
            properties = jvm.java.util.Properties()
            for name, value in self._options.items():
                properties.setProperty(name, value)
            admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
            try:
                topics = admin.describeTopics(jvm.java.util.Collections.singletonList(self._topic))
                topics.allTopicNames().get()
            finally:
                admin.close(jvm.java.time.Duration.ZERO)
        except Py4JJavaError as error:
            found = error.java_exception.getCause() or error.java_exception
            if found.getClass().getSimpleName() == "UnknownTopicOrPartitionException":
                return "it does not exist"
            return str(found.getMessage())
        except Py4JError:  # Spark itself has ended, which is no matter of Kafka
            return ""
        return ""
