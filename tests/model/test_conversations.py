# The broker as a whole against the reference; see conversation.py.
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.conversation import Conversation


def test_conversations_go_as_the_reference_says() -> None:
    """Some client would receive what it should not, or not receive what it should, after some history."""
    run_state_machine_as_test(Conversation, settings=settings(max_examples=60, stateful_step_count=30))


@pytest.mark.slow
def test_many_long_conversations_go_as_the_reference_says() -> None:
    """The same for what takes longer to come about."""
    run_state_machine_as_test(Conversation, settings=settings(max_examples=1000, stateful_step_count=60))
