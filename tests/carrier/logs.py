# The two logs as the shared tests see them: a server that can be killed and stopped, and a log that is served.
import gc
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.carrier.kafka_log import KafkaLog
from broker.carrier.log import Log, Reading
from broker.carrier.redis_keys import LogKeys
from broker.carrier.redis_log import COMMAND_BYTES, RedisLog
from broker.store.logs.records import Pack, Position, Record
from broker.store.logs.topics import LogError, Partition, TopicDescription, TopicProperties
from broker.store.redis.pipeline import CommandPipeline
from tests.kafka_servers import topic_name
from tests.redis_servers import RunningRedis
from tests.store.loop import Loop

PATIENCE: Final = 60.0  # seconds for what takes milliseconds, or some seconds after a fault
PREFIX: Final = "weir"
SMALL: Final = 1024 * 1024  # bytes that may wait


class Stage(ABC):
    """A log, its server, and what the tests do with both."""

    log: Log
    server: Any  # has kill(), start(), pause() and go_on()

    @abstractmethod
    def turn(self) -> None:
        """Serve the log for a moment."""

    @abstractmethod
    def append_raw(self, partition: Partition, record: bytes) -> None:
        """Append what the log would not write."""

    @abstractmethod
    def delete_before(self, partition: Partition, offset: int) -> None:
        """Delete the records before *offset*, as retention would."""

    @abstractmethod
    def delete_outside(self, topic: str) -> None:
        """Delete *topic* without the log knowing."""

    @abstractmethod
    def close(self) -> None: ...

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"it does not come: {self.log.statistics()}"
            self.turn()

    def topic(self, properties: TopicProperties | None = None) -> Partition:
        """The first partition of a new topic."""
        partition = Partition(topic_name())
        assert self.create(partition.topic, properties or TopicProperties()) is None
        return partition

    def create(self, topic: str, properties: TopicProperties) -> LogError | None:
        told: list[LogError | None] = []
        self.log.create(topic, properties, told.append)
        self.until(lambda: told)
        return told[0]

    def describe(self, topic: str) -> TopicDescription | None:
        told: list[TopicDescription | None] = []

        def then(found: TopicDescription | None, error: LogError | None) -> None:
            assert error is None
            told.append(found)

        self.log.describe(topic, then)
        self.until(lambda: told)
        return told[0]

    def delete(self, topic: str, log: bytes = b"") -> None:
        told: list[LogError | None] = []
        self.log.delete(topic, log, told.append)
        self.until(lambda: told)
        assert told == [None]

    def append(self, partition: Partition, *packs: Pack) -> list[int]:
        """Append *packs* in one turn; their offsets, when all are stored."""
        stored: list[int] = []

        def done(offset: int, error: LogError | None) -> None:
            assert error is None
            stored.append(offset)

        for pack in packs:
            assert self.log.append(partition, pack, done)
        self.log.flush()
        self.until(lambda: len(stored) == len(packs))
        return stored

    def read(self, partition: Partition, position: Position | None = None, reader: "Pages | None" = None) -> "Pages":
        pages = reader or Pages()
        pages.reading = self.log.read(partition, position or Position(), pages)
        return pages


class Pages:
    """A `Reader` that keeps everything."""

    def __init__(self) -> None:
        self.reading: Reading
        self.records: list[Record] = []
        self.jumps: list[tuple[int, int]] = []
        self.broken: list[tuple[int, bytes, str]] = []
        self.errors: list[LogError] = []
        self.recoveries = 0

    @property
    def packs(self) -> list[Pack]:
        return [pack for record in self.records for pack in record.packs]

    def received(self, records: Sequence[Record]) -> None:
        self.records += records

    def jumped(self, expected: int, offset: int) -> None:
        self.jumps.append((expected, offset))

    def damaged(self, offset: int, record: bytes, why: str) -> None:
        self.broken.append((offset, record, why))

    def failed(self, error: LogError | None) -> None:
        if error is None:
            self.recoveries += 1
        else:
            self.errors.append(error)


class RedisStage(Stage):
    def __init__(self, server: RunningRedis, most_bytes: int = SMALL) -> None:
        self.server = server
        self.loop = Loop()
        wire, lines = self.loop.wire(), self.loop.log
        self.commands = CommandPipeline(wire, server.address, "commands", lines, most_bytes=COMMAND_BYTES)
        waits = CommandPipeline(self.loop.wire(), server.address, "waits", self.loop.log)
        self.log = RedisLog(self.commands, waits, PREFIX, "1", self.loop.now, most_bytes)
        self.loop.ticking = [self.commands, waits, self.log]
        for pipeline in (self.commands, waits):
            pipeline.start(self.loop.now())
        self.log.start()

    def turn(self) -> None:
        self.log.flush()
        self.loop.turn()

    def append_raw(self, partition: Partition, record: bytes) -> None:
        keys = LogKeys(PREFIX)
        with self.server.client() as client:
            offset = int(client.hincrby(keys.head(partition), "next", 1))
            client.xadd(keys.records(partition), {"record": record, "at": 0, "before": 0}, id=f"{offset}-0")

    def delete_before(self, partition: Partition, offset: int) -> None:
        with self.server.client() as client:
            client.xtrim(LogKeys(PREFIX).records(partition), minid=f"{offset + 1}-0", approximate=False)

    def delete_outside(self, topic: str) -> None:
        keys = LogKeys(PREFIX)
        with self.server.client() as client:
            client.hdel(keys.topics, topic)
            client.delete(keys.records(Partition(topic)), keys.head(Partition(topic)))

    def close(self) -> None:
        self.log.stop()
        self.loop.close()


class KafkaStage(Stage):
    def __init__(self, server: Any, **options: Any) -> None:
        self.server = server
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        options["bootstrap_servers"] = server.address
        self.log: KafkaLog = KafkaLog(options, time.monotonic, self._calls.put, SMALL)
        self.log.start()

    def turn(self) -> None:
        due = min(self.log.flush(), self.log.tick(time.monotonic()))
        try:
            self._calls.get(timeout=max(0.0, min(0.05, due - time.monotonic())))()
        except queue.Empty:
            pass

    def append_raw(self, partition: Partition, record: bytes) -> None:
        from kafka import KafkaProducer

        with KafkaProducer(bootstrap_servers=self.server.address, metrics_enabled=False) as producer:
            producer.send(partition.topic, value=record, partition=partition.number).get(PATIENCE)

    def delete_before(self, partition: Partition, offset: int) -> None:
        from kafka import KafkaAdminClient, TopicPartition

        with KafkaAdminClient(bootstrap_servers=self.server.address) as admin:
            admin.delete_records({TopicPartition(*partition): offset})

    def delete_outside(self, topic: str) -> None:
        from kafka import KafkaAdminClient

        with KafkaAdminClient(bootstrap_servers=self.server.address) as admin:
            admin.delete_topics([topic])

    def close(self) -> None:
        self.log.stop()
        deadline = time.monotonic() + PATIENCE
        while not self.log.has_ended():
            assert time.monotonic() < deadline
            time.sleep(0.005)  # its threads tell nobody that they end
        gc.collect()  # while what kafka-python has not closed may be ignored
