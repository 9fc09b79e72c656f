# Topics of filters that no service shares any more, of whole workers: with a real Redis, and a model of the log.
from collections.abc import Callable
from typing import Any

import pytest

from broker.mqtt.packets import Unsubscribe
from broker.store.durable import unused_topics
from broker.store.durable.lease_scripts import digest_of
from broker.store.durable.log_topics import shared_topic_of
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.redis.keys import Keys
from tests.cluster.test_shared_applications import CONFIG, FILTER, GROUP, PARTITIONS, Services, numbers
from tests.innode import Node
from tests.redis_servers import RunningRedis

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis

TOPIC = shared_topic_of(FILTER)
KEY = Keys("weir").group_filter(digest_of(FILTER))
OTHER_GROUP = b"$share/other/" + FILTER


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_topics, "LINGER", 5.0)


@pytest.fixture
def services(nodes: Callable[..., Node], redis: RunningRedis) -> Callable[..., Services]:
    return lambda workers=2: Services(nodes, redis, workers, CONFIG)


def unsubscribe(node: Services, name: str, group: bytes = GROUP) -> None:
    node.clients[name].send(Unsubscribe(9, [group]))
    node.go_on()


def wait(node: Services, seconds: float) -> None:
    end = node.node.clock.now + seconds
    while node.node.clock.now < end:
        node.go_on()


def logged(node: Services, worker: int) -> DurableSharedLogs:
    durable = node.node[worker].worker.links.durable_store
    assert durable is not None and isinstance(durable.shared_logs, DurableSharedLogs)
    return durable.shared_logs


def test_a_topic_without_a_group_is_deleted(services: Callable[..., Services]) -> None:
    """A client that subscribes to ever new filters would make topics without end."""
    node = services()
    node.subscribe(0, "service1")
    node.subscribe(1, "service2", OTHER_GROUP)
    node.until(lambda: node.balanced("service1") and node.balanced("service2"))
    unsubscribe(node, "service1")
    wait(node, 20)
    assert [] == node.log.deleted, "another group reads it"
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service2"]) == 10)
    unsubscribe(node, "service2", OTHER_GROUP)
    node.go_on()
    assert [] == node.log.deleted, "it may be needed again soon"
    wait(node, 20)
    assert [TOPIC] == node.log.deleted
    assert not any(name.startswith(TOPIC) for name in node.log.topics)
    stored: Any = node.redis.client()
    assert [b"retired"] == stored.hkeys(KEY)
    node.subscribe(1, "service3")
    node.until(lambda: node.balanced("service3"))
    node.publish(0, *numbers(10, 30))
    node.until(lambda: len(node.got["service3"]) == 20)

    assert sorted(numbers(10, 30)) == sorted(node.got["service3"])
    assert b"retired" not in stored.hkeys(KEY)


def test_a_topic_that_is_needed_again_is_not_deleted(services: Callable[..., Services]) -> None:
    """What was published since would be lost."""
    node = services()
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    unsubscribe(node, "service1")
    node.wait(2)  # it is known that the last group has ended
    node.subscribe(1, "service2", OTHER_GROUP)
    node.publish(0, *numbers(0, 10))
    wait(node, 20)
    node.until(lambda: len(node.got["service2"]) == 10)

    assert [] == node.log.deleted


@pytest.mark.parametrize("late", [False, True])
def test_a_group_begins_in_no_topic_that_is_being_deleted(services: Callable[..., Services], late: bool) -> None:
    """A deletion that is carried out late would take its messages."""
    node = services()
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    former = node.log.topics[TOPIC].identity
    unsubscribe(node, "service1")
    node.wait(2)
    stored: Any = node.redis.client()
    node.until(lambda: not stored.exists(KEY))
    stored.hset(KEY, "retired", former)  # the worker has retired it, and ends
    if late:
        node.log.late_deletions.append((TOPIC, former))
    node.subscribe(1, "service2", OTHER_GROUP)
    assert former != node.log.topics[TOPIC].identity
    node.publish(0, *numbers(0, 10))
    node.log.store_late(1)
    node.publish(0, *numbers(10, 20))
    node.until(lambda: len(node.got["service2"]) >= 20)

    assert sorted(numbers(0, 20)) == sorted(node.got["service2"])
    assert [TOPIC] == node.log.deleted
    assert PARTITIONS == len([name for name in node.log.topics if name.startswith(TOPIC)])


def test_a_topic_that_may_not_be_deleted_is_used(services: Callable[..., Services]) -> None:
    """Nobody could subscribe to the filter any more."""
    node = services(1)
    node.links[node.node[0]][0].forbids = True
    node.subscribe(0, "service1")
    node.until(lambda: node.balanced("service1"))
    unsubscribe(node, "service1")
    wait(node, 20)
    assert 1 == logged(node, 0)._unused.left
    stored: Any = node.redis.client()
    assert not stored.exists(KEY)
    stored.hset(KEY, "retired", node.log.topics[TOPIC].identity)  # as if `keep` had been lost
    node.subscribe(0, "service2")
    node.publish(0, *numbers(0, 10))
    node.until(lambda: len(node.got["service2"]) == 10)

    assert [] == node.log.deleted


def test_topics_are_deleted_one_after_the_other_whatever_fails(
    services: Callable[..., Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that fails would hold up all others; or thousands linger."""
    monkeypatch.setattr(unused_topics, "MOST", 1)
    node = services(1)
    client = node.subscribe(0, "service1", b"$share/g/a", b"$share/g/b", b"$share/g/c")
    node.until(lambda: bool(node.leases().get("service1")))
    link, _ = node.links[node.node[0]]
    client.send(Unsubscribe(9, [b"$share/g/a", b"$share/g/b", b"$share/g/c"]))
    node.node.settle()
    node.wait(1.2)
    link.away = True
    node.wait(1)
    link.away = False
    node.wait(0.1)
    for _ in range(4):
        node.go_on()
    assert 2 == len(node.log.deleted), "there are more than may linger"
    wait(node, 20)

    assert {shared_topic_of(name) for name in (b"a", b"b", b"c")} == set(node.log.deleted)
