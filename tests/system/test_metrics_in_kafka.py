# The metrics records of a node in the Kafka topic weir.metrics, also while what publishes them is killed or stopped.
import itertools
import json
import os
import signal
import uuid
from typing import Any, Final

import pytest

from broker.metrics.record import LOG, misfit
from broker.reasons import LogFailure
from broker.store.logs.record_log import MOST
from cli.analytics import find_logs
from tests.carrier.conftest import UNCLOSED
from tests.kafka_servers import kafka, kafka_of_the_process, own_kafka
from tests.system import node
from tests.system.nodes import Node, StartNode

__all__ = ["kafka", "kafka_of_the_process", "own_kafka"]  # fixtures

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), UNCLOSED]

WORKERS: Final = 2
BACKLOG_FULL: Final = LogFailure.BACKLOG_FULL.label


class Published:
    """The records of a node, as any consumer of Kafka reads them."""

    def __init__(self, weir: Node, address: str) -> None:
        self._weir = weir
        self._address = address
        self.name: str = node.status(weir.control)["node"]
        self.records: list[list[dict[str, Any]]] = [[] for _ in range(WORKERS)]

    def read(self, more: int = 3) -> list[int]:
        """Read until each worker has *more* records beyond those that were read before; its newest sequence."""
        from kafka import KafkaConsumer, TopicPartition

        wanted = [number + more for number in self._newest()]
        self.records = [[] for _ in range(WORKERS)]
        with KafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False) as consumer:
            consumer.assign([TopicPartition(LOG, 0)])
            consumer.seek_to_beginning()

            def enough() -> bool:
                for one in itertools.chain(*consumer.poll(timeout_ms=1000).values()):
                    name, _, worker = one.key.decode().rpartition("/")
                    if name == self.name:  # other tests have nodes, too
                        self.records[int(worker)].append(json.loads(one.value))
                return all(one >= least for one, least in zip(self._newest(), wanted, strict=True))

            self._weir.wait_until(enough, "publish records of all workers")
        return self._newest()

    def sequences(self, worker: int) -> list[int]:
        return [record["sequence"] for record in self.records[worker]]

    def _newest(self) -> list[int]:
        return [max(self.sequences(worker), default=-1) for worker in range(WORKERS)]

    def missing(self) -> int:
        """How many there are not, between the first and the last one of each worker."""
        numbers = [self.sequences(worker) for worker in range(WORKERS)]
        return sum(max(of_one) - min(of_one) + 1 - len({*of_one}) for of_one in numbers)


def new_name() -> str:
    """A name of a node that no other test has: they share a Kafka."""
    return f"node-{uuid.uuid4().hex[:12]}"


def dropped(weir: Node) -> dict[str, int]:
    """What the workers have counted, by reason."""
    told: dict[str, int] = node.status(weir.control)["totals"]["reasons"]["kafka_records_dropped"]
    return {reason: count for reason, count in told.items() if count}


def carrier(weir: Node) -> dict[str, Any]:
    told: dict[str, Any] = node.status(weir.control)["carrier"]
    return told


def test_the_records_of_a_node_are_published(start_node: StartNode, kafka: Any) -> None:
    """Consumers of Kafka, and the analysis, would find nothing, or what they cannot read."""
    weir = start_node(WORKERS, kafka__hosts=kafka.address, node__name=new_name(), metrics__interval="200ms")
    published = Published(weir, kafka.address)
    weir.wait_until(lambda: bool(carrier(weir)["report"].get("metrics_written")), "publish records")
    published.read()

    for worker, records in enumerate(published.records):
        assert {(published.name, worker)} == {(record["node"], record["worker"]) for record in records}
        assert [""] * len(records) == [misfit(record) for record in records]
        sequences = published.sequences(worker)
        assert [*range(sequences[0], sequences[0] + len(records))] == sequences
    logs = find_logs(None, None, None, str(weir.folder / "node"), None)
    assert logs.kafka is not None
    assert (kafka.address,) == logs.kafka.hosts
    assert find_logs(None, "", None, str(weir.folder / "node"), None).kafka is None


def test_a_carrier_that_is_killed_costs_records_that_are_counted_and_doubles_none(
    start_node: StartNode, kafka: Any
) -> None:
    """A worker would publish nothing until it is started again, or publish a second time what had come through."""
    weir = start_node(WORKERS, kafka__hosts=kafka.address, node__name=new_name(), metrics__interval="100ms")
    published = Published(weir, kafka.address)
    weir.wait_until(lambda: bool(carrier(weir)["report"].get("metrics_written")), "publish records")
    for deaths in (1, 2):
        published.read()
        os.kill(carrier(weir)["pid"], signal.SIGKILL)
        weir.wait_for("carrier_died", deaths)
    published.read()

    for worker in range(WORKERS):
        assert sorted({*published.sequences(worker)}) == published.sequences(worker)
    weir.wait_until(lambda: sum(dropped(weir).values()) >= published.missing(), "count what is missing")
    assert {LogFailure.CARRIER_AWAY.label, LogFailure.UNREACHABLE.label} >= {*dropped(weir)}
    assert [] == weir.lines("worker_died")


def test_a_kafka_that_hangs_costs_records_and_no_memory_and_no_traffic(start_node: StartNode, own_kafka: Any) -> None:
    """The node would keep records until it has no memory, or its clients wait for them; or none come afterwards."""
    weir = start_node(WORKERS, kafka__hosts=own_kafka.address, node__name=new_name(), metrics__interval="100ms")
    published = Published(weir, own_kafka.address)
    weir.wait_until(lambda: bool(carrier(weir)["report"].get("metrics_written")), "publish records")
    published.read()
    reader, writer = weir.client("reader"), weir.client("writer")
    reader.subscribe("t")
    own_kafka.pause()
    try:
        weir.wait_until(lambda: dropped(weir).get(BACKLOG_FULL, 0) > 2 * MOST, "drop what is too much")
        writer.publish("t", b"meanwhile", 1)
        assert b"meanwhile" == reader.take().payload
    finally:
        own_kafka.go_on()
    published.read()  # it goes on by itself

    weir.wait_until(lambda: sum(dropped(weir).values()) >= published.missing(), "count what is missing")
    assert published.missing() >= 2 * MOST
    assert ([], []) == (weir.lines("worker_died"), weir.lines("carrier_died"))
