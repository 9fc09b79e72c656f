# Services that share a filter in consumer groups of a real Kafka, as clients and the tools of Kafka see them.
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any, Final, cast

import pytest

from broker.mqtt.packets import PUBACK, V311, Ack, Publish
from broker.store.durable.log_topics import group_of, shared_group_of, shared_topic_of, topic_of
from tests.carrier.conftest import UNCLOSED
from tests.kafka_servers import kafka
from tests.system import node
from tests.system.nodes import Node, StartNode
from tests.system.processes import free_port, packages, refused_start
from tests.system.raw import RawClient
from tests.system.test_applications import SETTINGS

__all__ = ["kafka"]  # a fixture

pytestmark = [pytest.mark.weir_only("a matter of Weir's processes"), UNCLOSED]

PARTITIONS: Final = 4
COUNT: Final = 60
GROUPS: Final = {
    "application__shared": "groups",
    "application__shared_partitions": PARTITIONS,
    "application__pack_timeout": "1s",
    "application__ack_retries": 0,
}


@pytest.fixture
def admin(kafka: Any) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    with KafkaAdminClient(bootstrap_servers=kafka.address) as client:
        yield client


def reads(weir: Node, client_id: str) -> list[int]:
    log = node.ask(weir.control, "why", client=client_id)["log"]
    found: list[int] = log["shared"][0]["reads"] if log["shared"] else []
    return found


def lag(admin: Any, group: str, topic: str) -> int:
    """As `kafka-consumer-groups.sh --describe` shows it; of partitions without an offset all is."""
    from kafka import TopicPartition
    from kafka.admin import OffsetSpec

    partitions = [
        TopicPartition(topic, one["partition_index"]) for one in admin.describe_topics([topic])[0]["partitions"]
    ]
    ends = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    committed = admin.list_group_offsets(group)[group]
    return sum(ends[one].offset - (committed[one].offset if one in committed else 0) for one in partitions)


class Reader:
    """Acknowledges whatever comes, until it is closed."""

    def __init__(self, client: RawClient) -> None:
        self.got: list[int] = []
        self._client = client
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                packet = self._client.expect(Publish)
                self.got.append(int(packet.payload))
                self._client.send(Ack(PUBACK, packet.packet_id))
        except (AssertionError, OSError):  # it is closed
            pass

    def close(self) -> None:
        cast(socket.socket, self._client.socket).shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._client.close()


def test_the_partitions_of_a_stuck_member_go_to_the_other_until_it_is_calm(
    start_node: StartNode, kafka: Any, admin: Any
) -> None:
    """What it has not got would wait for it; or Kafka's tools show members that do not read."""
    name = uuid.uuid4().hex
    stuck, other = f"service{name}a", f"service{name}b"
    topic = shared_topic_of(f"{name}/#".encode())
    group = shared_group_of(b"g", topic)
    weir = start_node(2, kafka__hosts=kafka.address, **SETTINGS, **GROUPS)

    def members() -> int:
        return len(admin.describe_groups([group])[group]["members"])

    clients: dict[str, RawClient] = {}
    for each in (stuck, other):
        clients[each] = weir.stranger(V311)
        clients[each].connect(each, clean_start=False)
        clients[each].subscribe(f"$share/g/{name}/#", qos=1)
    weir.wait_until(lambda: len(reads(weir, stuck)) == len(reads(weir, other)) == PARTITIONS // 2, "share")
    assert 2 == members()
    reader = Reader(clients[other])
    publisher = weir.client("publisher")
    for number in range(COUNT):
        publisher.publish(f"{name}/{number}", b"%d" % number, qos=1)
    weir.wait_until(lambda: len(reads(weir, other)) == PARTITIONS, "have the other one read all")
    assert 1 == members()
    for number in range(COUNT, 2 * COUNT):
        publisher.publish(f"{name}/{number}", b"%d" % number, qos=1)
    weir.wait_until(lambda: set(range(COUNT, 2 * COUNT)) <= set(reader.got), "get all")
    late = Reader(clients[stuck])
    weir.wait_until(lambda: len(reads(weir, stuck)) == PARTITIONS // 2, "share again")
    assert 2 == members()
    assert set(range(2 * COUNT)) == {*late.got} | {*reader.got}
    assert set() == {*late.got} & {*reader.got}
    weir.wait_until(lambda: lag(admin, group, topic) == 0, "have no lag")
    weir.wait_until(
        lambda: group_of(topic_of(stuck.encode())) in {one["group_id"] for one in admin.list_groups()}, "tell"
    )
    for one in (late, reader):
        one.close()
    publisher.close()


def test_groups_without_kafka_are_refused(tmp_path: Any) -> None:
    """The node would start, and services get nothing."""
    settings = {"application.clients": '[{client = "a"}]', "store.durability": "process"}
    settings |= {"application.shared": "groups"}
    said = refused_start(free_port(), tmp_path, settings, packages())

    assert "kafka.hosts" in said and 'application.shared = "groups"' in said
