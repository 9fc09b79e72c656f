# A node of several workers against the reference; see node_conversation.py.
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.node_conversation import NodeConversation
from tests.redis_servers import RunningRedis

pytestmark = pytest.mark.system  # a real Redis

StartRedis = Callable[[], RunningRedis]


@pytest.mark.parametrize("workers", [2, 3])
def test_clients_cannot_tell_how_many_workers_there_are(start_redis: StartRedis, workers: int) -> None:
    """Some client would receive what it should not, or not receive what it should, after some history."""
    run_state_machine_as_test(
        partial(NodeConversation, start_redis(), workers),
        settings=settings(max_examples=100, stateful_step_count=40),
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_nor_after_many_long_conversations(start_redis: StartRedis, workers: int) -> None:
    """The same for what takes longer to come about."""
    run_state_machine_as_test(
        partial(NodeConversation, start_redis(), workers),
        settings=settings(max_examples=1000, stateful_step_count=60),
    )
