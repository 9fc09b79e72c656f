# How operators have a group of services go on elsewhere in the log that it shares.
from collections.abc import Callable
from typing import Any

import pytest

from broker.insight.shared_log_reset import LEASED
from broker.store.durable.log_topics import shared_topic_of
from tests.cluster.test_shared_applications import FILTER, PARTITIONS, Services, numbers
from tests.innode import Node
from tests.insight.operators import Operator
from tests.redis_servers import RunningRedis
from tests.store.durable.model_log import name_of

pytestmark = [pytest.mark.system, pytest.mark.interpreted]  # a real Redis


@pytest.fixture
def node(nodes: Callable[..., Node], redis: RunningRedis) -> Services:
    """A group whose members have read everything, and are away."""
    made = Services(nodes, redis, 2)
    made.subscribe(0, "service1")
    made.subscribe(1, "service2")
    made.until(lambda: made.balanced("service1", "service2"))
    made.publish(0, *numbers(0, 20))
    made.node.advance(60)
    made.publish(1, *numbers(20, 40))
    made.until(lambda: len(made.got["service1"] + made.got["service2"]) == 40)
    made.leave("service1")
    made.leave("service2")
    made.go_on()
    return made


def reset(node: Services, to: str = "", time: float = 0.0, name: str = "$share/g/t/#", worker: int = 0) -> Any:
    """The answer, or the sentence that says why there is none."""
    arguments = {"name": name, "to": to, "time": time}
    outcomes = Operator(node.node[worker]).begin("shared_log_reset", arguments)
    for _ in range(10):
        node.go_on()
    ((answer, error),) = outcomes
    return error or answer


def again(node: Services, expected: int) -> list[bytes]:
    """What the services get that come back."""
    node.got["service1"], node.got["service2"] = [], []
    node.connect(1, "service1")
    node.connect(0, "service2")
    node.until(lambda: len(node.got["service1"] + node.got["service2"]) >= expected)
    node.until(lambda: node.balanced("service1", "service2"))
    return sorted(node.got["service1"] + node.got["service2"])


def test_a_group_reads_its_log_again(node: Services) -> None:
    """What services had lost would be lost, although it is there."""
    records = sum(len(node.log.topics[name_of(shared_topic_of(FILTER), each)].records) for each in range(PARTITIONS))
    assert {"partitions": PARTITIONS, "lag": records} == reset(node, "earliest")

    assert sorted(numbers(0, 40)) == again(node, 40)


def test_a_group_goes_on_at_a_time(node: Services) -> None:
    """All of a day would have to be read for what a minute has."""
    time = node.node[0].worker.base.wall() - 30
    answer = reset(node, time=time, worker=1)
    assert 0 < answer["lag"] <= 20

    assert sorted(numbers(20, 40)) == again(node, 20)


def test_a_group_skips_what_it_has_not_read(node: Services) -> None:
    """A group could not get rid of messages that its services cannot bear."""
    node.publish(0, *numbers(40, 60))
    assert 0 == reset(node, "latest")["lag"]
    node.publish(0, *numbers(60, 80))

    assert sorted(numbers(60, 80)) == again(node, 20)


def test_a_group_that_reads_is_left_alone(node: Services) -> None:
    """A member would go on where it is, and write that; or messages come to two members."""
    node.connect(0, "service1")
    node.until(lambda: node.balanced("service1"))
    assert LEASED == reset(node, "earliest")
    assert None is reset(node, "earliest", name="$share/none/t/#")
    node.links[node.node[0]][0].away = True
    outcomes = Operator(node.node[0]).begin("shared_log_reset", {"name": "$share/g/t/#", "to": "latest", "time": 0.0})
    node.go_on()

    assert [] == outcomes
