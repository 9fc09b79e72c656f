# The inbound backbone of a whole node, in a real Kafka: also while workers, carrier and Kafka are killed.
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import pytest

from broker.insight.explain import explain
from broker.insight.facts import Facts
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, Ack, Properties, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.carrier.conftest import UNCLOSED
from tests.kafka_servers import kafka, kafka_of_the_process, own_kafka, topic_name
from tests.system import node
from tests.system.nodes import Node, StartNode, stop
from tests.system.processes import free_port, packages, refused_start
from tests.system.raw import RawClient
from tests.system.test_durable_node import redis_pid

__all__ = ["kafka", "kafka_of_the_process", "own_kafka"]  # fixtures

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), UNCLOSED]

WORKERS: Final = 2
PUBLISHERS: Final = 4
BURST: Final = 6000  # publishes: more than may be under way to a receiver (protocol/inbound_dispatch.py)
WINDOW: Final = 20
PATIENCE: Final = 60.0
LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}

StartBackbone = Callable[..., Node]


@pytest.fixture
def start(start_node: StartNode, kafka: Any) -> StartBackbone:
    """Starts a node whose publishes go through a topic of its own in the Kafka of the run, or at *address*."""

    def begin(address: str = "", **settings: object) -> Node:
        settings = {"store__durability": "process", **settings}
        settings |= {"inbound__backbone": "kafka", "inbound__topic": topic_name()}
        return start_node(WORKERS, kafka__hosts=address or kafka.address, **settings)

    return begin


class Publisher:
    """Publishes numbers with QoS 1 or 2 until it is stopped, over as many connections as it takes."""

    def __init__(self, weir: Node, name: str, qos: int) -> None:
        self.name = name
        self.acknowledged: list[int] = []  # numbers, in the order of their answers
        self.last = 0  # the number that was sent last
        self._weir = weir
        self._qos = qos
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        unanswered: dict[int, int] = {}  # packet id -> number
        received: set[int] = set()  # packet ids of those that have PUBREC
        while unanswered or not self._stopping.is_set():
            try:
                with contextlib.closing(RawClient(self._weir.port, V5)) as client:
                    client.connect(self.name, clean_start=False, properties=LASTING)
                    for packet_id, number in unanswered.items():
                        if packet_id in received:
                            client.send(Ack(PUBREL, packet_id))
                        else:
                            client.send(self._packet(packet_id, number, dup=True))
                    self._serve(client, unanswered, received)
            except (OSError, AssertionError):
                time.sleep(0.05)  # until the worker that has died is replaced

    def _packet(self, packet_id: int, number: int, dup: bool = False) -> Publish:
        return Publish(b"in/" + self.name.encode(), b"%d" % number, self._qos, packet_id=packet_id, dup=dup)

    def _serve(self, client: RawClient, unanswered: dict[int, int], received: set[int]) -> None:
        while unanswered or not self._stopping.is_set():
            while len(unanswered) < WINDOW and not self._stopping.is_set():
                self.last += 1
                packet_id = self.last % 60_000 + 1
                unanswered[packet_id] = self.last
                client.send(self._packet(packet_id, self.last))
            packet = client.receive()
            assert isinstance(packet, Ack), packet
            if packet.kind == PUBREC:
                if packet.packet_id not in received:
                    self.acknowledged.append(unanswered[packet.packet_id])
                received.add(packet.packet_id)
                client.send(Ack(PUBREL, packet.packet_id))
            elif packet.kind == PUBACK:
                self.acknowledged.append(unanswered.pop(packet.packet_id))
            elif packet.kind == PUBCOMP:
                del unanswered[packet.packet_id]
                received.discard(packet.packet_id)


class Reader:
    """A durable subscriber that keeps what it gets, over as many connections as it takes."""

    def __init__(self, weir: Node, name: str = "reader") -> None:
        self.got: dict[str, list[int]] = {}  # numbers by publisher
        self._weir = weir
        self._name = name
        self._stopping = threading.Event()
        self._received: set[int] = set()  # packet ids of QoS 2 that are not released
        with contextlib.closing(RawClient(weir.port, V5)) as client:
            client.connect(name, clean_start=False, properties=LASTING)
            client.subscribe("in/#", qos=2)
        self._client = client  # that of the connection
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):  # it is between two connections
            self._client.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(RawClient(self._weir.port, V5)) as client:
                    client.connect(self._name, clean_start=False, properties=LASTING)
                    self._client = client
                    self._serve(client)
            except (OSError, AssertionError):
                time.sleep(0.05)

    def _serve(self, client: RawClient) -> None:
        while not self._stopping.is_set():
            packet = client.receive()
            if isinstance(packet, Publish):
                self._take(client, packet)
            elif isinstance(packet, Ack) and packet.kind == PUBREL:
                self._received.discard(packet.packet_id)
                client.send(Ack(PUBCOMP, packet.packet_id))

    def _take(self, client: RawClient, packet: Publish) -> None:
        again = packet.qos == 2 and packet.packet_id in self._received
        if not again:
            publisher = packet.topic.decode().removeprefix("in/")
            self.got.setdefault(publisher, []).append(int(packet.payload))
        if packet.qos == 2:
            self._received.add(packet.packet_id)
        if packet.qos:
            client.send(Ack(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id))


@pytest.fixture
def running() -> Iterator[list[Any]]:
    """What is stopped at the end of the test."""
    threads: list[Any] = []
    yield threads
    for one in threads:
        one.stop()


def backbone(weir: Node) -> dict[str, float]:
    gauges: dict[str, float] = node.status(weir.control)["totals"]["gauges"]
    return gauges


def check(weir: Node, publishers: list[Publisher], reader: Reader, qos: int) -> None:
    """All that was acknowledged has come in its order; QoS 2 once."""

    def complete() -> bool:
        return all({*one.acknowledged} <= {*reader.got.get(one.name, [])} for one in publishers)

    weir.wait_until(complete, "deliver what it has acknowledged")
    for one in publishers:
        got = reader.got[one.name]
        first = [*dict.fromkeys(got)]
        assert first == sorted(first), f"{one.name}: in another order"
        if qos == 2:
            assert len(got) == len(first), f"{one.name}: some came twice"
        assert len(one.acknowledged) > WINDOW


def progress(weir: Node, publishers: list[Publisher]) -> None:
    """Wait until each of *publishers* has some more answers."""
    seen = [len(one.acknowledged) + 3 * WINDOW for one in publishers]

    def enough() -> bool:
        return all(len(one.acknowledged) > least for one, least in zip(publishers, seen, strict=True))

    weir.wait_until(enough, "acknowledge")


def test_what_is_published_goes_through_kafka_in_order(start: StartBackbone, running: list[Any]) -> None:
    """Publishes would be delivered directly, and nothing wait in Kafka; or they would overtake each other."""
    weir = start()
    reader = Reader(weir)
    publishers = [Publisher(weir, f"p{number}", 1 + number % 2) for number in range(PUBLISHERS)]
    running += [*publishers, reader]
    weir.wait_until(lambda: all(len(one.acknowledged) > 200 for one in publishers), "acknowledge")
    for one in publishers:
        one.stop()
    check(weir, publishers, reader, 2)

    def counted() -> bool:  # once a second
        counters = node.status(weir.control)["totals"]["counters"]
        return bool(counters.get("backbone_appended") == sum(one.last for one in publishers))

    weir.wait_until(counted, "count what it has appended")
    weir.wait_until(
        lambda: backbone(weir)["backbone_partitions"] == 16, "have all partitions"
    )  # told once a second, too


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("fault", ["worker", "carrier"])
def test_what_is_acknowledged_outlives_a_process(
    start: StartBackbone, running: list[Any], fault: str, qos: int
) -> None:
    """It would be lost with the process that had it, come twice at QoS 2, or in another order."""
    weir = start()
    reader = Reader(weir)
    publishers = [Publisher(weir, f"p{number}", qos) for number in range(PUBLISHERS)]
    running += [*publishers, reader]
    for round_ in range(3):
        progress(weir, publishers)
        if fault == "worker":
            os.kill(weir.pids[round_ % WORKERS], signal.SIGKILL)
            weir.wait_for("worker_died", round_ + 1)
            weir.wait_until(lambda: node.serves(weir.control), "serve again")
        else:
            os.kill(node.status(weir.control)["carrier"]["pid"], signal.SIGKILL)
            weir.wait_for("carrier_died", round_ + 1)
    for one in publishers:
        one.stop()

    check(weir, publishers, reader, qos)


def test_bursts_wait_in_kafka_and_are_explained(start: StartBackbone, running: list[Any]) -> None:
    """While Redis stands still, publishers would wait for receivers; or nobody could say why messages come late."""
    weir = start()
    with contextlib.closing(RawClient(weir.port, V5)) as away:  # what it is to get has to be stored
        away.connect("away", clean_start=False, properties=LASTING)
        away.subscribe("in/#", qos=1)
    reader = Reader(weir)
    running.append(reader)
    publisher = weir.client("burst")
    publisher.publish("in/burst", b"0", qos=1)
    weir.wait_until(lambda: backbone(weir).get("backbone_partitions") == 16, "dispatch all partitions")
    redis = redis_pid(weir)
    stop(redis)
    try:
        for number in range(1, BURST):
            publisher.send(Publish(b"in/burst", b"%d" % number, 1, packet_id=number))
        for number in range(1, BURST):
            publisher.expect_ack(PUBACK, number)
        weir.wait_until(lambda: backbone(weir)["backbone_lag_ms"] > 1000, "be behind")
        assert backbone(weir)["backbone_behind"] > 0
        said = " ".join(explain(cast(Facts, node.ask(weir.control, "why", client="burst"))))
        assert "in the inbound backbone the oldest publish has waited for" in said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(redis, signal.SIGCONT)
    weir.wait_until(lambda: len({*reader.got.get("burst", [])}) == BURST, "deliver the burst")

    assert [*range(BURST)] == [*dict.fromkeys(reader.got["burst"])]
    weir.wait_until(lambda: backbone(weir)["backbone_lag_ms"] == 0, "be done")


def test_without_kafka_publishers_wait_and_go_on_by_themselves(
    start: StartBackbone, running: list[Any], own_kafka: Any
) -> None:
    """They would be told that something is safe which is nowhere; or somebody would have to start the node again."""
    weir = start(own_kafka.address)
    reader = Reader(weir)
    publishers = [Publisher(weir, f"p{number}", 1 + number % 2) for number in range(PUBLISHERS)]
    running += [*publishers, reader]
    weir.wait_until(lambda: all(len(one.acknowledged) > WINDOW for one in publishers), "acknowledge")
    own_kafka.kill()
    weir.wait_for("log_partition_failed")
    own_kafka.start()
    progress(weir, publishers)
    for one in publishers:
        one.stop()

    check(weir, publishers, reader, 2)


def test_a_topic_of_other_partitions_is_one_sentence(start_node: StartNode, kafka: Any) -> None:
    """Publishers would wait, and nobody know why."""
    topic = topic_name()
    settings = {"kafka__hosts": kafka.address, "inbound__backbone": "kafka", "inbound__topic": topic}
    first = start_node(1, **settings, inbound__partitions=2)
    first.wait_for("backbone_partitions_taken")
    first.end()
    second = start_node(1, **settings, inbound__partitions=3)
    line = second.wait_for("backbone_unusable")

    assert (topic, True) == (line["topic"], "2, and not 3" in line["why"])


def test_a_backbone_without_kafka_is_refused(tmp_path: Any) -> None:
    """The node would start, and acknowledge what is nowhere."""
    said = refused_start(free_port(), tmp_path, {"inbound.backbone": "kafka"}, packages())

    assert "kafka.hosts" in said and 'inbound.backbone = "kafka"' in said


def test_without_a_backbone_nothing_is_appended(start_node: StartNode, kafka: Any) -> None:
    """Who has Kafka for other things would pay for what was not asked for."""
    weir = start_node(1, kafka__hosts=kafka.address)
    publisher = weir.client("p")
    publisher.publish("t", b"x", qos=1)

    def counted() -> bool:
        counters = node.status(weir.control)["totals"]["counters"]
        return bool(counters.get("publishes_received"))

    weir.wait_until(counted, "count the publish")
    assert 0 == node.status(weir.control)["totals"]["counters"]["backbone_appended"]
    assert 0 == backbone(weir)["backbone_partitions"]
