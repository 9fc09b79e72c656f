# When a worker counts as hung: decisions on numbers alone.
import pytest

from broker.control.heartbeat import DRAINING, SERVING, STARTING
from supervisor.liveness import CHECK_INTERVAL, LIMIT, Silence, is_hung


def silent_for(checks: list[float], stamp: float = 1.0) -> float:
    """The silence of a worker that does not stamp, checked at the times *checks*."""
    silence = Silence(checks[0])
    silence.check(stamp, checks[0])
    return [silence.check(stamp, now) for now in checks][-1]


@pytest.mark.parametrize(("stopped", "after"), [(True, 1.1), (False, 1.2)])
def test_a_worker_that_does_not_stamp_is_hung_after_a_second(stopped: bool, after: float) -> None:
    """A hung worker would keep its clients for ever, or a worker be killed that was just continued."""
    checks = [100.0 + CHECK_INTERVAL * n for n in range(30)]

    silences = [(now - 100.0, silent_for(checks[: n + 1])) for n, now in enumerate(checks)]

    found = [when for when, silent in silences if is_hung(silent, SERVING, lambda: stopped)]

    assert found[0] == pytest.approx(after)


def test_a_worker_that_stamps_is_not_examined() -> None:
    """The supervisor would read /proc ten times a second for each worker."""
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return True

    assert not is_hung(LIMIT, SERVING, stopped)
    assert 0 == asked
    assert is_hung(LIMIT + CHECK_INTERVAL / 2, SERVING, stopped)
    assert 1 == asked


def test_a_stamp_ends_the_silence() -> None:
    """A worker would be killed for many short pauses."""
    silence = Silence(0.0)
    for n in range(100):
        assert silence.check(float(n // 9), n * CHECK_INTERVAL) < 0.9


@pytest.mark.parametrize("pause", [2.0, 3600.0])
def test_time_in_which_the_supervisor_did_not_run_is_no_silence(pause: float) -> None:
    """After Ctrl-Z and fg, workers that need a moment to continue would be killed."""
    before = [CHECK_INTERVAL * n for n in range(5)]
    after = [before[-1] + pause + CHECK_INTERVAL * n for n in range(5)]

    assert not is_hung(silent_for(before + after), SERVING, lambda: True)


def test_a_worker_that_starts_or_drains_may_be_silent_for_longer() -> None:
    """A worker with a long password file, or a million clients, would be killed at each start or stop."""
    assert [True, False, False] == [is_hung(2.0, phase, lambda: False) for phase in (SERVING, STARTING, DRAINING)]
    late = [is_hung(silent, phase, lambda: False) for silent, phase in ((31.0, STARTING), (5.5, DRAINING))]
    assert [True, True] == late
