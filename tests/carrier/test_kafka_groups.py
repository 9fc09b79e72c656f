# Members of consumer groups of a real Kafka.
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.carrier import kafka_groups
from broker.carrier.kafka_groups import GroupMember, KafkaGroups
from broker.carrier.kafka_mirror import KafkaMirror
from broker.store.logs.topics import Partition, TopicProperties
from tests.carrier.conftest import UNCLOSED
from tests.carrier.logs import KafkaStage
from tests.carrier.test_kafka_metrics import AUTHORIZER, _allow, make_stage
from tests.carrier.test_worker_lanes import Lines
from tests.kafka_servers import KafkaServer, SharedKafka, skip_without_java, topic_name

__all__ = ["make_stage"]  # a fixture
pytestmark = [pytest.mark.slow, UNCLOSED]
PARTITIONS: Final = 6


class Groups:
    """What members of a group were told."""

    def __init__(self, stage: KafkaStage) -> None:
        self.stage = stage
        self.lines = Lines()
        self.groups: KafkaGroups = stage.log.groups(self.lines)
        self.topic = topic_name()
        self.group = f"group-{self.topic}"
        assert stage.create(self.topic, TopicProperties(partitions=PARTITIONS)) is None
        self.has: dict[str, list[int]] = {}
        self.why: dict[str, str] = {}
        self.members: dict[str, GroupMember] = {}

    def join(self, *names: str) -> None:
        for name in names:
            self.has[name], self.why[name] = [], ""

            def told(partitions: list[int], why: str, name: str = name) -> None:
                self.has[name], self.why[name] = partitions, why

            self.members[name] = self.groups.join(self.group, self.topic, PARTITIONS, told)

    def leave(self, name: str) -> None:
        self.members.pop(name).leave()
        del self.has[name], self.why[name]

    def shared(self) -> bool:
        """Whether the members have all partitions, each one, and as many."""
        sizes = [len(each) for each in self.has.values()]
        numbers = sorted(number for each in self.has.values() for number in each)
        return numbers == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    def until(self, done: Callable[[], object]) -> float:
        """How long it takes."""
        began = time.monotonic()
        self.stage.until(done)
        return time.monotonic() - began


@pytest.fixture
def groups(kafka_stage: KafkaStage) -> Groups:
    return Groups(kafka_stage)


@pytest.fixture
def admin(kafka: Any) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    with KafkaAdminClient(bootstrap_servers=kafka.address) as client:
        yield client


def test_members_share_the_partitions_and_who_leaves_gives_its_part_to_others(groups: Groups, admin: Any) -> None:
    """Nobody would read what a stuck member has."""
    groups.join("a", "b")
    groups.until(groups.shared)
    found = admin.describe_groups([groups.group])[groups.group]
    assert ("Stable", 2) == (found["group_state"], len(found["members"]))
    groups.join("c")
    groups.until(groups.shared)
    before = dict(groups.has)
    groups.leave("a")
    took = groups.until(groups.shared)
    kept = {name: set(before[name]) <= set(groups.has[name]) for name in groups.has}

    assert {"b": True, "c": True} == kept
    assert took < 5.0


def test_a_member_of_another_process_takes_part(
    groups: Groups, make_stage: Callable[[str], KafkaStage], kafka: SharedKafka
) -> None:
    """Each node would read all of the partitions."""
    other = Groups(make_stage(kafka.address))
    other.topic, other.group = groups.topic, groups.group
    groups.join("a")
    other.join("b")

    def shared() -> bool:
        other.stage.turn()
        sizes = [len(groups.has["a"]), len(other.has["b"])]
        return sizes == [3, 3] and set(groups.has["a"]).isdisjoint(other.has["b"])

    groups.until(shared)
    other.leave("b")
    groups.until(lambda: len(groups.has["a"]) == PARTITIONS)


def test_a_member_that_dies_is_followed(
    groups: Groups, make_stage: Callable[[str], KafkaStage], kafka: SharedKafka
) -> None:
    """Its partitions would be read by nobody."""
    other = Groups(make_stage(kafka.address))
    other.topic, other.group = groups.topic, groups.group
    groups.join("a")
    other.join("b")

    def shared() -> bool:
        other.stage.turn()
        return len(groups.has["a"]) == 3

    groups.until(shared)
    other.groups._net.call_soon_threadsafe(other.groups._close)  # it says nothing

    groups.until(lambda: len(groups.has["a"]) == PARTITIONS)


def test_more_members_than_may_be_wait(kafka_stage: KafkaStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the carrier a connection, and heartbeats."""
    monkeypatch.setattr(kafka_groups.KafkaGroups.__init__, "__defaults__", (2,))
    groups = Groups(kafka_stage)
    groups.join("a", "b", "c")
    groups.until(lambda: len(groups.has["a"]) == len(groups.has["b"]) == 3)
    assert f"{kafka_groups.FULL} (2)" == groups.why["c"]
    groups.leave("a")
    groups.until(groups.shared)

    assert {"b": "", "c": ""} == groups.why
    assert ["consumer_groups_full"] == groups.lines.events


def test_who_leaves_before_it_has_joined_holds_up_nobody(groups: Groups) -> None:
    """Kafka would wait for it each time."""
    groups.join("a")
    groups.until(groups.shared)
    for _ in range(5):
        groups.join("b")
        groups.leave("b")
        for _ in range(3):
            groups.stage.turn()
    groups.join("c")

    assert groups.until(groups.shared) < kafka_groups.SESSION / 2


def test_offsets_are_committed_by_members(groups: Groups, admin: Any) -> None:
    """Kafka takes offsets of a group with members from nobody else: its tools would show no lag."""
    from kafka import TopicPartition

    mirror: KafkaMirror = groups.stage.log.mirror(Lines())
    groups.join("a", "b")
    groups.until(groups.shared)
    mirror.done(groups.group, Partition(groups.topic, 5), 7)
    groups.until(lambda: mirror.committed)
    found = admin.list_group_offsets(groups.group)[groups.group]

    assert 7 == found[TopicPartition(groups.topic, 5)].offset
    assert (0, None) == (mirror.failed, mirror.trouble)


def test_a_group_that_is_refused_is_told(tmp_path: Path, make_stage: Callable[[str], KafkaStage]) -> None:
    """Nobody would know why services get nothing."""
    from kafka import KafkaAdminClient
    from kafka.admin import ResourceType

    skip_without_java()
    server = KafkaServer(tmp_path, more=AUTHORIZER)
    server.start()
    try:
        groups = Groups(make_stage(server.address))
        with KafkaAdminClient(bootstrap_servers=server.address) as client:
            _allow(client, ResourceType.GROUP, groups.group, "DESCRIBE")
        groups.join("a")
        groups.until(lambda: groups.why["a"])

        assert "GroupAuthorizationFailed" in groups.why["a"]
        assert ["consumer_group_failed"] == groups.lines.events
        groups.leave("a")
    finally:
        server.kill()


def test_while_kafka_is_away_members_lose_what_they_have_and_get_it_back(own_kafka: Any) -> None:
    """Others may have it by then, and would wait for ever; or nobody read again."""
    groups = Groups(KafkaStage(own_kafka))
    groups.join("a", "b")
    groups.until(groups.shared)
    own_kafka.kill()
    groups.until(lambda: not groups.has["a"] and not groups.has["b"])
    assert groups.why["a"]
    own_kafka.start()
    groups.until(groups.shared)
    groups.stage.close()

    assert {"a": "", "b": ""} == groups.why
    assert ["consumer_group_failed", "consumer_group_recovered"] == groups.lines.events
