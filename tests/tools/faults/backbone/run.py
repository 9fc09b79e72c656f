# One run: a node whose publishes go through an inbound backbone, with faults; then a judgement.
#
# It is a run with APPLICATION clients, whose logs are in the same Kafka, and with more clients: DEVICE sessions, a
# group of them, sessions that end with their connections, publishers of such sessions, and retained messages. Judged
# is what the backbone promises (README): what was acknowledged reaches the sessions that last, QoS 2 once; QoS 0 comes
# once at most; and the first deliveries are in the order of the publishes. At the end everything is dispatched.
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import redis

from broker.store.logs.records import Position
from tests.tools.faults.applications.plan import KAFKA_LOG
from tests.tools.faults.applications.run import NEVER, ApplicationRun, begins_session
from tests.tools.faults.applications.shared import Group
from tests.tools.faults.backbone.plan import plan
from tests.tools.faults.durable.client import DurableClient
from tests.tools.faults.durable.history import Event, Message
from tests.tools.faults.durable.plan import Planned
from tests.tools.faults.durable.run import DurableRun

TOPIC: Final = "weir.msg.all"
PARTITIONS: Final = 8  # more than there are workers, and each has publishers
POSITIONS: Final = f"weir:backbone:{TOPIC}:*"  # the key in Redis
DISPATCHED: Final = 60.0  # seconds for everything to be dispatched
ASKED: Final = 1.0  # seconds for Redis to answer


class BackboneRun(ApplicationRun):
    AT_LEAST_ONCE = True

    def __init__(
        self, folder: Path, seed: int, workers: int, faults: int, brisk: bool = False, messages: int = 0
    ) -> None:
        """As in `DurableRun`. AssertionError, KafkaError."""
        self._ends: dict[int, int] = {}  # of the partitions of the backbone
        super().__init__(folder, seed, workers, faults, brisk, messages, KAFKA_LOG)

    # The node, and its clients.

    def _make_plan(self, random: Random, workers: int, faults: int, brisk: bool) -> list[Planned]:
        super()._make_plan(random, workers, faults, brisk)
        return plan(random, self._setup, self._durability, workers, faults, brisk)

    def _prepare(self) -> None:
        super()._prepare()
        self._settings |= {"inbound.backbone": "kafka", "inbound.topic": TOPIC, "inbound.partitions": PARTITIONS}

    def _make_clients(self) -> None:
        super()._make_clients()
        run = self._clients
        publishers = [DurableClient(run, f"p{n}", filter=f"own/p{n}", lasting=False) for n in (4, 5)]
        self._publishers += publishers
        self._retainers = [DurableClient(run, f"r{n}", filter=f"own/r{n}") for n in range(2)]
        members = [f"member-{number}" for number in range(2)]
        self._shared.add("three", Group("d/", members, once=False))
        group = [DurableClient(run, each, filter="$share/three/d/#") for each in members]
        receivers = [
            DurableClient(run, "device-z", filter="z/#", qos=2),
            DurableClient(run, "clean-z", filter="z/#", lasting=False),
            DurableClient(run, "clean-1", filter="d/#", lasting=False),
            DurableClient(run, "clean-2", filter="d/#", qos=2, lasting=False),
        ]
        self._roaming += [*publishers, *self._retainers, *group]
        self._subscribers += receivers
        self._returning += receivers
        self._lasting += [*publishers, *self._retainers, *group, *receivers]

    # Afterwards.

    def _note(self, event: Event) -> None:
        super()._note(event)
        if begins_session(event):  # what was acknowledged for the former one may have been dispatched to the next
            self._snapshots = [each for each in self._snapshots if each.client != event.client]

    def _unfinished(self, one: DurableClient) -> list[Message]:
        """What has expired before it was dispatched is in no log."""
        publishes = self._checker.publishes
        return [each for each in super()._unfinished(one) if not publishes[each].expiry]

    def _read_retained(self) -> None:
        assert self._kafka is not None
        self._ends = ends_of(self._kafka.address, TOPIC)
        self._until(lambda: not self._behind(), "everything in the backbone is dispatched", DISPATCHED)
        DurableRun._read_retained(self)

    def _behind(self) -> dict[int, int]:
        """The partitions that are not dispatched to their ends, and how far they have come."""
        with self._ask_redis(ASKED) as server:
            try:
                (key,) = server.keys(POSITIONS)
                found = cast("dict[bytes, bytes]", server.hgetall(key))
            except (redis.RedisError, ValueError):
                return {-1: 0}
        offsets = {number: Position.decode(found[b"position/%d" % number]).offset for number in self._ends}
        return {number: offsets[number] for number, end in self._ends.items() if offsets[number] < end}

    def _judge(self) -> None:
        super()._judge()
        records = sum(self._ends.values())
        self.outcome.figures["records of the backbone"] = records
        if self._ends and not records:
            self.outcome.failures.append(f"{NEVER}: a publish in the backbone")


def ends_of(address: str, topic: str) -> dict[int, int]:
    """The offsets behind the last records of the partitions of *topic*."""
    from kafka import KafkaConsumer, TopicPartition

    consumer: Any = KafkaConsumer(bootstrap_servers=address)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        return {each.partition: end for each, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()
