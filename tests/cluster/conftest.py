# Fixtures of real Redis servers, which the store's tests define, and of nodes that store sessions there.
from collections.abc import Callable, Iterator

import pytest

from broker.config.schema import Config
from tests.cluster.durable_node import Durable, StartRedis
from tests.store.conftest import every_server, loop

__all__ = ["every_server", "loop"]


@pytest.fixture
def nodes_of(start_redis: StartRedis) -> Iterator[Callable[..., Durable]]:
    """Makes nodes with one worker, `nodes_of(Config(...))`, and closes them at the end."""
    made: list[Durable] = []

    def make(config: Config | None = None) -> Durable:
        made.append(Durable(start_redis(), config))
        return made[-1]

    yield make
    for one in made:
        one.worker.close()


@pytest.fixture
def node(nodes_of: Callable[..., Durable]) -> Durable:
    return nodes_of()
