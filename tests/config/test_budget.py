# How the memory of a node is shared out.
import pytest

from broker.config.applications import Application, ApplicationRule
from broker.config.budget import (
    DISPATCHED_BYTES,
    HELD_BYTES,
    SUPERVISOR_BYTES,
    UNSTORED_BYTES,
    WorkerBudget,
    describe,
    redis_memory,
)
from broker.config.inbound import Inbound
from broker.config.schema import Config, Kafka, Redis, Retained

MIB = 1 << 20


def test_accounts_follow_the_memory_and_the_settings() -> None:
    """The budget that is printed would not be the one that a worker keeps."""
    small, large = (WorkerBudget(Config(), memory * MIB, 2) for memory in (512, 1024))

    assert small.total() < large.total()
    assert all(one.limit <= other.limit for one, other in zip(small.accounts, large.accounts, strict=True))
    assert {"retained": 5 * MIB}.items() <= {
        one.name: one.limit for one in WorkerBudget(Config(retained=Retained(bytes=5 * MIB)), MIB, 1).accounts
    }.items()


@pytest.mark.parametrize(("memory", "workers"), [(512, 1), (1024, 2), (4096, 4), (65_536, 16)])
@pytest.mark.parametrize("url", ["", "redis://elsewhere"])
def test_the_defaults_fit_into_the_memory(memory: int, workers: int, url: str) -> None:
    """Clients that are within every limit would together use more memory than there is, and the node be killed."""
    config = Config(redis=Redis(url=url))
    budget = WorkerBudget(config, memory * MIB, workers)
    others = SUPERVISOR_BYTES + (0 if url else redis_memory(config, memory * MIB))

    assert 0.95 * memory * MIB < others + workers * budget.total() <= memory * MIB


def test_it_is_said_whether_the_worst_case_fits() -> None:
    """A node would be killed for its memory although `weir config check --budget` found it fine."""
    roomy = describe(Config(), 1024 * MIB, 2)
    crowded = describe(Config(retained=Retained(bytes=256 * MIB)), 1024 * MIB, 2)

    assert crowded[-1].startswith("The worst case exceeds the memory by ")
    assert "The worst case of these fits into the memory." == roomy[-1]


@pytest.mark.parametrize("workers", [1, 4])
def test_what_logs_take_has_its_part(workers: int) -> None:
    """What waits for a log would come on top of all that a node may use, when Kafka is away."""
    logs = Config(application=Application(clients=(ApplicationRule(client="service"),)))
    with_logs, without = (WorkerBudget(config, 2048 * MIB, workers) for config in (logs, Config()))

    assert {"logs": UNSTORED_BYTES + HELD_BYTES} == {
        one.name: one.limit for one in with_logs.accounts if one.name not in {each.name for each in without.accounts}
    }
    assert with_logs.total() <= with_logs.memory < without.memory
    assert "the carrier " in describe(logs, 2048 * MIB, workers)[-2]
    assert "the carrier " not in describe(Config(), 2048 * MIB, workers)[-2]


def test_what_is_dispatched_from_the_backbone_has_its_part() -> None:
    """Publishes that are on their way from Kafka would come on top of all that a node may use."""
    kafka = Kafka(hosts=("kafka:9092",))
    without, with_backbone = (
        WorkerBudget(Config(kafka=kafka, inbound=Inbound(backbone=backbone)), 2048 * MIB, 2)
        for backbone in ("none", "kafka")
    )

    assert DISPATCHED_BYTES == with_backbone.log - without.log
    assert with_backbone.total() <= with_backbone.memory
