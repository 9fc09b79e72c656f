# A node whose workers have an inbound backbone, in the test process: real Redis, and a model of the log.
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from broker.config.inbound import KAFKA, Inbound
from broker.config.schema import Config
from broker.config.schema import Kafka as KafkaSettings
from broker.overload.gate import Gate
from broker.protocol.inbound_backbone import InboundBackbone
from broker.store.logs.port import Appender, LogReader
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError, TopicDescription, TopicProperties
from tests.innode import Node
from tests.inprocess import Broker
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import ModelLink, ModelLog, ModelReading, ModelTopic

PARTITIONS: Final = 4
TOPIC: Final = "weir.msg.all"
INBOUND: Final = Inbound(backbone=KAFKA, partitions=PARTITIONS)


def with_backbone(config: Config | None = None) -> Config:
    return replace(config or Config(), inbound=INBOUND, kafka=KafkaSettings(hosts=("kafka:9092",)))


def name_of(partition: int) -> str:
    """The topic of the model that is one partition."""
    return f"{TOPIC}/{partition}"


class PartitionedLink(ModelLink):
    """A link to a topic of several partitions, each of which the model has as a topic of its own."""

    failure: LogError | None = None  # why no topic can be made

    def append(self, topic: str, partition: int, body: bytes, appender: Appender, now: float) -> None:
        super().append(f"{topic}/{partition}", 0, body, appender, now)

    def read(self, topic: str, partition: int, position: Position, reader: LogReader) -> ModelReading:
        return super().read(f"{topic}/{partition}", 0, position, reader)

    def create(self, topic: str, properties: TopicProperties, then: Callable[[LogError | None], None]) -> None:
        def answer() -> None:
            if self.failure is None:
                for number in range(properties.partitions):
                    self.log.topics.setdefault(f"{topic}/{number}", ModelTopic())
            then(self.failure)

        self.requests.append(answer)

    def describe(self, topic: str, then: Callable[[TopicDescription | None, LogError | None], None]) -> None:
        def answer() -> None:
            found = [self.log.topics[f"{topic}/{number}"] for number in range(PARTITIONS)]
            properties = TopicProperties(partitions=PARTITIONS)
            firsts, ends = [one.first for one in found], [one.end for one in found]
            then(TopicDescription(properties=properties, first=firsts, next=ends), None)

        self.requests.append(answer)


class BackboneNode:
    """A node of some workers, and its log, which is served by `settle()` unless the test says otherwise."""

    def __init__(
        self,
        redis: RunningRedis,
        workers: int,
        config: Config | None = None,
        durable: bool = True,
        log: ModelLog | None = None,
    ) -> None:
        self.redis = redis
        self.log = log or ModelLog()
        self.links: dict[Broker, PartitionedLink] = {}
        self.stores = True  # the log stores what is appended
        self.gives = True  # and gives it to those who read
        self.failure: LogError | None = None  # why no topic can be made
        self.node = Node(workers, with_backbone(config), redis.address, durable=durable, prepare=self._prepare)
        for worker in self.node:
            self.serve(worker)

    def _prepare(self, broker: Broker) -> None:
        links = broker.worker.links
        backbone, gate = links.backbone, links.log_gate
        assert backbone is not None and gate is not None
        link = self.links[broker] = PartitionedLink(self.log, broker.identity.incarnation)
        for part in (backbone, backbone.log, backbone._ownership):
            part._link = link  # in place of that to a carrier
        gate.unblock()

    def serve(self, broker: Broker) -> None:
        self.backbone(broker).serve()

    def start(self, shard: int) -> Broker:
        broker = self.node.start(shard)
        self.serve(broker)
        return broker

    def kill(self, broker: Broker) -> None:
        del self.links[broker]
        self.node.kill(broker)

    def backbone(self, broker: Broker) -> InboundBackbone:
        backbone = broker.worker.links.backbone
        assert backbone is not None
        return backbone

    def gate(self, broker: Broker) -> Gate:
        gate = broker.worker.links.log_gate
        assert gate is not None
        return gate

    def settle(self) -> None:
        """Have all workers and the log do all there is to do."""
        quiet = 0
        while quiet < 4:
            quiet += 1
            self.node.advance(0.1)
            for broker in self.node:
                link, now = self.links[broker], broker.clock.now
                link.failure = self.failure
                link.answer()
                if self.stores:
                    quiet = quiet if not link.unstored else 0
                    link.store()
                    link.tell(now)
                if self.gives:
                    quiet = quiet if not link._to_give() else 0
                    link.give(now)
                gate = self.gate(broker)
                if gate.count and self.stores:
                    gate.done(gate.count, gate.bytes, 0.001, now)
                    broker.worker.protection.throttle.opened(gate, now)
            self.node.settle()

    def key(self) -> str:
        """Of positions, in Redis."""
        return f"weir:backbone:{TOPIC}:weir"

    def owners(self) -> dict[int, int]:
        """The shard that dispatches each partition."""
        found: dict[int, int] = {}
        for broker in self.node:
            for number in self.backbone(broker)._ownership.feeds:
                assert number not in found, "two workers dispatch it"
                found[number] = broker.shard
        return found

    def packs(self) -> int:
        """That are in the log."""
        return sum(len(self.log.bodies(name_of(number))) for number in range(PARTITIONS))

    def close(self) -> None:
        pass  # the fixture of nodes closes it
