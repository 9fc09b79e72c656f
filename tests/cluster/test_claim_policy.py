# What is decided when Redis does not answer.
import pytest

from broker.cluster.claim_policy import (
    ASK_AGAIN,
    CLAIM_PATIENCE,
    LASTING_PATIENCE,
    PAUSE,
    REFUSE,
    WITHIN_NODE,
    after_failure,
    before_asking,
    patience,
)
from broker.reasons import StoreFailure


@pytest.mark.parametrize("failure", StoreFailure)
def test_a_lasting_session_is_asked_for_until_its_time_is_up(failure: StoreFailure) -> None:
    """A restart of Redis would turn clients away, or hand out a second session that hides the first."""
    assert ASK_AGAIN == after_failure(failure, True, 0.0)
    assert ASK_AGAIN == after_failure(failure, True, LASTING_PATIENCE - 2 * PAUSE)
    assert REFUSE == after_failure(failure, True, LASTING_PATIENCE)


@pytest.mark.parametrize("failure", StoreFailure)
def test_a_session_that_ends_with_its_connection_never_waits_longer_than_a_claim(failure: StoreFailure) -> None:
    """The node would be of no use while Redis is away."""
    assert after_failure(failure, False, 0.0) in (ASK_AGAIN, WITHIN_NODE)
    assert WITHIN_NODE == after_failure(failure, False, CLAIM_PATIENCE)


def test_a_claim_that_failed_at_once_is_tried_again_if_that_can_help() -> None:
    """A connection that ends would cost the claims on it their answer, though the next one is there at once."""
    assert ASK_AGAIN == after_failure(StoreFailure.LOST, False, 0.01)
    assert WITHIN_NODE == after_failure(StoreFailure.MEMORY_FULL, False, 0.01)
    assert WITHIN_NODE == after_failure(StoreFailure.TIMEOUT, False, 0.01)


def test_who_need_not_ask_does_not_wait_for_a_server_that_is_known_to_be_away() -> None:
    """Each CONNECT in an outage would take 300 ms."""
    assert WITHIN_NODE == before_asking(False, CLAIM_PATIENCE)
    assert ASK_AGAIN == before_asking(False, CLAIM_PATIENCE / 2)
    assert ASK_AGAIN == before_asking(True, 1000.0)


def test_no_try_outlasts_its_client() -> None:
    """A client would wait longer than it was promised, or each try have a patience of its own."""
    assert CLAIM_PATIENCE == pytest.approx(patience(False, 0.0)) == pytest.approx(patience(True, 0.0))
    waits = [number / 1000 for number in range(int((LASTING_PATIENCE - PAUSE) * 1000))]
    for lasting, most in ((False, CLAIM_PATIENCE), (True, LASTING_PATIENCE)):
        tried = [patience(lasting, waited) for waited in waits if waited + PAUSE < most]
        assert all(PAUSE <= one <= CLAIM_PATIENCE + 1e-9 for one in tried)
        assert all(waited + one <= most + 1e-3 for waited, one in zip(waits, tried, strict=False))
        assert len(set(tried)) <= 3
    assert PAUSE == patience(False, 5.0)  # for who asks late, as its loop was held
