# Shared subscriptions of APPLICATION clients whose partitions Kafka gives out, of whole workers: with a real Redis, and
# a model of the log and its consumer groups.
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from broker.config.applications import GROUPS
from broker.config.schema import Config
from broker.mqtt.packets import PUBACK, V311, Ack
from broker.store.durable.log_topics import shared_group_of, shared_topic_of
from broker.store.durable.shared_readers import CALM
from tests.cluster.test_shared_applications import FILTER, PARTITIONS, SERVICES, Services, numbers
from tests.innode import Node
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import ModelMembership

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

CONFIG: Final = Config(application=replace(SERVICES, shared=GROUPS))
KAFKA_GROUP: Final = shared_group_of(b"g", shared_topic_of(FILTER))


class KafkaServices(Services):
    def members(self) -> list[ModelMembership]:
        return self.log.groups.get(KAFKA_GROUP, [])

    def as_given(self, *names: str) -> bool:
        """Whether Kafka has given all partitions to the services *names*, and each reads what it was given."""
        given = sorted(each.share() for each in self.members())
        held = sorted(sorted(partitions) for partitions in self.leases().values())
        return given == held and len(given) == len(names) and set(self.leases()) == set(names)


@pytest.fixture
def services(nodes: Callable[..., Node], redis: RunningRedis) -> Callable[..., KafkaServices]:
    return lambda workers=2: KafkaServices(nodes, redis, workers, CONFIG)


def test_members_read_what_kafka_has_given_them(services: Callable[..., KafkaServices]) -> None:
    """The tools of Kafka would show others than those that read; or two read one partition."""
    node = services()
    for number, name in enumerate(("service1", "service2", "service3")):
        node.subscribe(number % 2, name)
    node.until(lambda: node.as_given("service1", "service2", "service3"))
    node.publish(0, *numbers(0, 30), qos=2)
    node.publish(1, *numbers(30, 60), qos=2)
    got = [node.got[name] for name in node.clients]
    node.until(lambda: sum(map(len, got)) == 60)

    assert sorted(numbers(0, 60)) == sorted(payload for each in got for payload in each)
    assert all(got)


def test_a_member_that_is_stuck_leaves_its_group_until_it_is_calm(services: Callable[..., KafkaServices]) -> None:
    """What comes behind its messages would wait for it; or the group change whenever it takes a breath."""
    node = services()
    node.subscribe(0, "service1", version=V311)
    node.subscribe(1, "service2")
    node.until(lambda: node.as_given("service1", "service2"))
    node.silent.add("service1")
    node.publish(0, *numbers(0, 30))
    node.until(lambda: node.as_given("service2"))
    stuck = set(node.got["service1"])
    assert stuck
    node.publish(1, *numbers(30, 60))
    node.until(lambda: len(node.got["service2"]) == 60 - len(stuck))
    node.silent.clear()
    for packet_id in range(1, len(stuck) + 1):
        node.clients["service1"].send(Ack(PUBACK, packet_id))
    node.go_on()
    began = node.node.clock.now
    while len(node.members()) == 1:
        assert node.node.clock.now < began + 2 * CALM
        node.go_on()
    waited = node.node.clock.now - began

    assert waited > CALM - 2.0  # until it is looked at again
    node.until(lambda: node.as_given("service1", "service2"))


def test_a_member_that_comes_back_joins_at_once(services: Callable[..., KafkaServices]) -> None:
    """A group of one would get nothing for ten seconds, whenever its client connects again."""
    node = services(1)
    node.subscribe(0, "service1")
    node.until(lambda: node.as_given("service1"))
    left = node.node.clock.now
    node.leave("service1")
    node.until(lambda: not node.members())
    node.connect(0, "service1")
    node.until(lambda: node.as_given("service1"))

    assert node.node.clock.now - left < CALM


@pytest.mark.parametrize("qos", [1, 2])
def test_messages_come_once_while_members_come_and_go(services: Callable[..., KafkaServices], qos: int) -> None:
    """Members learn of a change one after the other: two would read one partition, or leave out what the other had."""
    node = services()
    names = ["service1", "service2", "service3"]
    for number, name in enumerate(names):
        node.subscribe(number % 2, name)
    for first in range(0, 60, 10):
        name = names[first // 10 % 3]
        if name in node.clients:
            node.leave(name)
        else:
            node.connect(first // 10 % 2, name)
        node.publish(first // 10 % 2, *numbers(first, first + 10), qos=qos)
    for number, name in enumerate(names):
        if name not in node.clients:
            node.connect(number % 2, name)
    node.until(lambda: node.as_given(*names))
    node.until(lambda: len({payload for each in node.got.values() for payload in each}) == 60)
    got = [payload for each in node.got.values() for payload in each]

    assert sorted(numbers(0, 60)) == sorted(got)


def test_partitions_of_a_worker_that_dies_go_to_others(services: Callable[..., KafkaServices]) -> None:
    """The member that Kafka has given them would wait for ever."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2")
    node.until(lambda: node.as_given("service1", "service2"))
    dead = node.node[0]
    del node.clients["service1"]
    node.node.kill(dead)
    node.links[dead][0].end(most=0, late=0)
    node.node.start(0)
    node.until(lambda: node.as_given("service2"))
    node.publish(0, *numbers(0, 20), qos=2)
    node.until(lambda: len(node.got["service2"]) == 20)

    assert list(range(PARTITIONS)) == sorted(node.leases()["service2"])


def test_operators_are_told_that_kafka_gives_nothing(services: Callable[..., KafkaServices]) -> None:
    """Nobody would know why a service gets nothing."""
    node = services(1)
    node.subscribe(0, "service1")
    node.until(lambda: node.as_given("service1"))

    def waits() -> object:
        log = node.node[0].diagnostics.facts("service1")["log"]
        assert log is not None
        (one,) = log["shared"]
        return one["waits"]

    assert "" == waits()
    (member,) = node.members()
    for why in ("the broker has refused it", ""):
        member.told([], why)
        node.node.settle()
        assert (why or "Kafka has given it no partition yet, or others have all") == waits()
    member.tell()
    node.until(lambda: node.as_given("service1"))

    assert "" == waits()
