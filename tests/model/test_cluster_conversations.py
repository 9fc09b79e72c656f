# Nodes that share a Redis, real processes, against the reference; see cluster_conversation.py.
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.cluster_clients import Observers
from tests.model.cluster_conversation import ClusterConversation
from tests.model.vocabulary import WINDOW
from tests.redis_servers import RunningRedis
from tests.system.cluster import Cluster, start

pytestmark = pytest.mark.system  # real nodes

StartRedis = Callable[[], RunningRedis]


@contextmanager
def observed(folder: Path, redis: RunningRedis, nodes: int, workers: int) -> Iterator[tuple[Cluster, Observers]]:
    with start(folder, redis, nodes, workers=workers, limits__inflight=WINDOW) as cluster:
        observers = Observers(cluster)
        try:
            yield cluster, observers
        finally:
            observers.close()


def talk(folder: Path, redis: RunningRedis, nodes: int, workers: int, conversations: int, steps: int) -> None:
    """Have *conversations*, the same in each run but for what the nodes may choose.

    What clients do next hangs on what they received, so two runs may differ in what can be drawn. Hypothesis refuses
    that within one search. So each conversation is a search of its own, with its number as the seed, and one that fails
    is not made shorter: what was said is in the output.
    """
    with observed(folder, redis, nodes, workers) as (cluster, observers):
        for number in range(conversations):

            @seed(number)
            class OfThese(ClusterConversation):
                def __init__(self) -> None:
                    super().__init__(cluster, observers)

            run_state_machine_as_test(
                OfThese,
                settings=settings(
                    max_examples=1,
                    stateful_step_count=steps,
                    phases=[Phase.generate],
                    database=None,
                    verbosity=Verbosity.debug,
                    suppress_health_check=[HealthCheck.too_slow],
                ),
            )


@pytest.mark.parametrize("workers", [1, 2])
def test_clients_cannot_tell_how_many_nodes_there_are(tmp_path: Path, start_redis: StartRedis, workers: int) -> None:
    """Some client would receive what it should not, or not receive what it should, after some history."""
    talk(tmp_path, start_redis(), 2, workers, 15, 40)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("nodes", "workers"), [(2, 1), (2, 2), (3, 1)])
def test_nor_after_many_long_conversations(tmp_path: Path, start_redis: StartRedis, nodes: int, workers: int) -> None:
    """A client would receive what it should not, or not what it should, after a history that is rare."""
    talk(tmp_path, start_redis(), nodes, workers, 200, 60)
