# Offsets of groups in a real Kafka, as its tools see them.
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from broker.carrier import kafka_mirror
from broker.carrier.kafka_mirror import CALM, GROUPS, PATIENCE, KafkaMirror
from broker.reasons import LogFailure
from broker.store.durable.log_topics import group_of, topic_of
from broker.store.logs.topics import Partition, TopicProperties
from tests.carrier.conftest import UNCLOSED
from tests.carrier.logs import KafkaStage
from tests.carrier.test_kafka_metrics import AUTHORIZER, _allow, make_stage
from tests.carrier.test_worker_lanes import Lines
from tests.kafka_servers import HOST, KafkaServer, free_port, skip_without_java, topic_name

__all__ = ["make_stage"]  # a fixture
pytestmark = [pytest.mark.slow, UNCLOSED]
LONGEST: Final = 60.0  # seconds for what should take a few


class Mirror:
    def __init__(self, stage: KafkaStage) -> None:
        self.stage = stage
        self.lines = Lines()
        self.now = 0.0
        self.mirror: KafkaMirror = stage.log.mirror(self.lines)
        self.mirror._clock = lambda: self.now
        stage.log._mirror = None  # it has a clock of its own

    def turn(self, seconds: float) -> None:
        """Have *seconds* pass, and what is due be done."""
        self.now += seconds
        self.mirror.tick(self.now)
        self.stage.until(lambda: not self.mirror._busy)

    def until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + LONGEST
        while not done():
            assert time.monotonic() < deadline, f"it does not come: {self.mirror.trouble}"
            self.turn(kafka_mirror.RETRY)
            time.sleep(0.02)  # a Kafka that has just started answers some seconds later


@pytest.fixture
def mirror(kafka_stage: KafkaStage) -> Mirror:
    return Mirror(kafka_stage)


@pytest.fixture
def admin(kafka: Any) -> Iterator[Any]:
    from kafka import KafkaAdminClient

    with KafkaAdminClient(bootstrap_servers=kafka.address) as client:
        yield client


def committed(admin: Any, group: str) -> dict[tuple[str, int], int]:
    return {(one.topic, one.partition): found.offset for one, found in admin.list_group_offsets(group)[group].items()}


def groups(admin: Any) -> set[str]:
    return {one["group_id"] for one in admin.list_groups()}


def test_the_tools_of_kafka_see_how_far_groups_are(mirror: Mirror, admin: Any) -> None:
    """`kafka-consumer-groups.sh` would show no lag."""
    topic = topic_name()
    assert mirror.stage.create(topic, TopicProperties(partitions=3)) is None
    one, other = f"one-{topic}", f"other-{topic}"
    for group, number, offset in ((one, 0, 0), (one, 1, 6), (one, 1, 7), (other, 2, 5)):
        mirror.mirror.done(group, Partition(topic, number), offset)
    mirror.until(lambda: mirror.mirror.committed)

    assert {(topic, 0): 0, (topic, 1): 7} == committed(admin, one)
    assert {(topic, 2): 5} == committed(admin, other)
    assert (3, 0, None) == (mirror.mirror.committed, mirror.mirror.failed, mirror.mirror.trouble)


def test_groups_take_turns(mirror: Mirror) -> None:
    """Ten thousand services that read would take all of a processor, of Kafka's as well."""
    partition = mirror.stage.topic()
    mirror.mirror.done("warm-" + partition.topic, partition, 0)
    mirror.until(lambda: mirror.mirror.committed)
    for number in range(GROUPS + 1):
        mirror.mirror.done(f"{number}-{partition.topic}", partition, 0)
    mirror.turn(kafka_mirror.PACE)
    first = mirror.mirror.committed
    mirror.turn(kafka_mirror.PACE / 2)
    paused = mirror.mirror.committed
    mirror.turn(kafka_mirror.PACE / 2)

    assert (1 + GROUPS, 1 + GROUPS, 2 + GROUPS) == (first, paused, mirror.mirror.committed)


def test_the_group_of_a_client_is_deleted_with_its_topic(mirror: Mirror, admin: Any) -> None:
    """The tools would show groups of clients that have ended, for a week."""
    topic = topic_of(topic_name().replace(".", "").encode())
    group = group_of(topic)
    assert mirror.stage.create(topic, TopicProperties()) is None
    mirror.mirror.done(group, Partition(topic), 1)
    mirror.until(lambda: mirror.mirror.committed)
    assert group in groups(admin)
    mirror.stage.log._mirror = mirror.mirror
    mirror.mirror.done(group, Partition(topic), 2)
    mirror.stage.delete(topic)
    mirror.stage.until(lambda: group not in groups(admin))
    committed_before = mirror.mirror.committed
    mirror.turn(kafka_mirror.RETRY)

    assert group not in groups(admin)
    assert (committed_before, 0) == (mirror.mirror.committed, mirror.mirror._size)


def test_a_topic_that_is_gone_is_no_trouble(mirror: Mirror, admin: Any) -> None:
    """The rest of its group would never be told, or be tried again and again."""
    partition, gone = mirror.stage.topic(), Partition(topic_name())
    mirror.mirror.done(partition.topic, gone, 1)
    mirror.mirror.done(partition.topic, partition, 2)
    mirror.until(lambda: mirror.mirror.committed)

    assert {tuple(partition): 2} == committed(admin, partition.topic)
    assert mirror.mirror.trouble is None


def test_a_group_that_is_refused_holds_up_no_other_and_is_told_once(
    tmp_path: Path, make_stage: Callable[[str], KafkaStage]
) -> None:
    """Access rules that were not made for groups would fill the log, or stop what they allow."""
    from kafka import KafkaAdminClient
    from kafka.admin import ResourceType

    skip_without_java()
    server = KafkaServer(tmp_path, more=AUTHORIZER)
    server.start()
    try:
        mirror = Mirror(make_stage(server.address))
        partition = mirror.stage.topic()
        with KafkaAdminClient(bootstrap_servers=server.address) as admin:
            _allow(admin, ResourceType.GROUP, "secret", "DESCRIBE")
            offset = 0
            while mirror.now < 3 * PATIENCE + CALM:
                offset += 1
                mirror.mirror.done("secret", partition, offset)
                mirror.mirror.done("open", partition, offset)
                mirror.turn(kafka_mirror.RETRY)
            assert {tuple(partition): offset} == committed(admin, "open")

        assert ["group_offsets_failed"] == mirror.lines.events
        assert mirror.mirror.trouble is not None
        assert LogFailure.FORBIDDEN is mirror.mirror.trouble.failure
        assert mirror.mirror.committed > 0 and mirror.mirror.failed > 0
    finally:
        server.kill()


def test_while_kafka_is_away_the_newest_offsets_wait(own_kafka: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done meanwhile would not be told until something else is; or the carrier keep all of it."""
    from kafka import KafkaAdminClient

    monkeypatch.setattr(kafka_mirror, "PATIENCE", 0.0)
    stage = KafkaStage(own_kafka)
    mirror = Mirror(stage)
    partition = stage.topic()
    mirror.mirror.done("g", partition, 1)
    mirror.until(lambda: mirror.mirror.committed)
    mirror.lines.events.clear()
    own_kafka.kill()
    mirror.mirror.done("g", partition, 2)
    mirror.now += kafka_mirror.RETRY
    mirror.mirror.tick(mirror.now)
    mirror.mirror.done("g", partition, 3)  # while Kafka is asked
    mirror.stage.until(lambda: not mirror.mirror._busy)
    assert (1, 1) == (mirror.mirror.committed, mirror.mirror._size)
    own_kafka.start()
    mirror.until(lambda: mirror.mirror.committed > 1)
    with KafkaAdminClient(bootstrap_servers=own_kafka.address) as admin:
        assert {tuple(partition): 3} == committed(admin, "g")
    stage.close()

    assert ["group_offsets_failed", "group_offsets_recovered"] == mirror.lines.events
    assert mirror.mirror.trouble is None


def test_what_waits_is_bounded(make_stage: Callable[[str], KafkaStage], monkeypatch: pytest.MonkeyPatch) -> None:
    """The carrier would keep an offset of each partition that ever was, while Kafka is away."""
    monkeypatch.setattr(kafka_mirror, "MOST", 2)
    scene = Mirror(make_stage(f"{HOST}:{free_port()}"))
    mirror = scene.mirror
    for number, offset in ((0, 1), (1, 1), (2, 1), (0, 2), (3, 1)):
        mirror.done(f"g{number}", Partition("t", number), offset)

    assert {"g0": {Partition("t", 0): 2}, "g1": {Partition("t", 1): 1}} == mirror._waiting
    assert (2, 2) == (mirror._size, mirror.failed)
    assert ["group_offsets_dropped"] == scene.lines.events
