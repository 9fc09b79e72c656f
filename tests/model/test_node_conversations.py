# A node of several workers against the reference; see node_conversation.py.
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.node_conversation import NodeConversation
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartRedis = Callable[[], RunningRedis]


def talk(redis: RunningRedis, workers: int, examples: int, steps: int) -> None:
    class OfSoMany(NodeConversation):
        def __init__(self) -> None:
            super().__init__(redis, workers)

    # The same conversations in each run: a change must not fail by a conversation that has nothing to do with it.
    chosen = settings(max_examples=examples, stateful_step_count=steps, derandomize=True)
    run_state_machine_as_test(OfSoMany, settings=chosen)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_clients_cannot_tell_how_many_workers_there_are(start_redis: StartRedis, workers: int) -> None:
    """Some client would receive what it should not, or not receive what it should, after some history."""
    talk(start_redis(), workers, 60, 40)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("workers", [2, 3])
def test_nor_after_many_long_conversations(start_redis: StartRedis, workers: int) -> None:
    """A client would receive what it should not, or not what it should, after a history that is rare."""
    talk(start_redis(), workers, 150, 60)
