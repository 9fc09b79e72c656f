# Fixtures of real Redis servers, which the store's tests define, and of nodes that store sessions there.
from collections.abc import Callable, Iterator

import pytest

from broker.config.schema import Config
from tests.cluster.durable_node import Durable, StartRedis
from tests.innode import Node
from tests.redis_servers import RunningRedis
from tests.store.conftest import every_server, loop

__all__ = ["every_server", "loop"]


@pytest.fixture
def redis(start_redis: StartRedis) -> RunningRedis:
    return start_redis()


@pytest.fixture
def start_node(nodes: Callable[..., Node], redis: RunningRedis) -> Callable[..., Node]:
    """Starts a node of some workers whose sessions are stored."""
    return lambda workers=1, config=None: nodes(workers, config, redis, durable=True)


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
