# The broker as a whole against the reference; see conversation.py and worker_conversation.py.
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from broker.mqtt.packets import Wanted
from tests.model.sessions import FOREVER
from tests.model.vocabulary import Asked, Parting
from tests.model.worker_conversation import WorkerConversation


@pytest.mark.parametrize("share", [0.2, pytest.param(2, marks=pytest.mark.slow)])
def test_conversations_go_as_the_reference_says(share: float) -> None:
    """Some client would receive what it should not, or not receive what it should, after some history."""
    examples = int(share * settings().max_examples)
    run_state_machine_as_test(WorkerConversation, settings=settings(max_examples=examples, stateful_step_count=40))


@pytest.mark.slow
@pytest.mark.nightly
def test_many_long_conversations_go_as_the_reference_says() -> None:
    """A client would receive what it should not, or not what it should, after a history that is rare."""
    run_state_machine_as_test(WorkerConversation, settings=settings(max_examples=1000, stateful_step_count=60))


@pytest.mark.parametrize("names", [("anna", "bert"), ("bert", "anna")])
def test_a_will_does_not_go_to_the_session_that_ends(names: tuple[str, str]) -> None:
    """A will that a group of absent members shares would be lost with the one that it is the will of."""
    talk = WorkerConversation()
    try:
        for name in names:
            parting = Parting(qos=1, retain=False, delay=20, lifetime=FOREVER, properties={})
            talk.connect(name, True, Asked(expiry=10, parting=parting) if name == "anna" else Asked(expiry=30))
            talk.subscribe(name, [Wanted(b"$share/g/will/#", 1)], 0)
            talk.everybody_has_what_it_is_owed()
        talk.drop("anna")
        talk.drop("bert")
        talk.wait(2)
        talk.come_back("bert", Asked())
        talk.everybody_has_what_it_is_owed()
    finally:
        talk.teardown()
