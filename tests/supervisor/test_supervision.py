# When a worker is dead, and what follows: decisions on numbers alone.
import pytest

from broker.control.heartbeat import DRAINING, SERVING, STARTING
from supervisor.supervision import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    LOOK_EVERY,
    NEVER_READY,
    SILENCE,
    TOO_MANY,
    WELL_AGAIN,
    Again,
    Deaths,
    GiveUp,
    Silence,
    too_silent,
)


def silent_for(looks: list[float], stamp: float = 1.0) -> float:
    """What a supervisor makes of one and the same stamp at the times *looks*."""
    silence = Silence(looks[0])
    silence.look(stamp, looks[0])
    return [silence.look(stamp, now) for now in looks][-1]


@pytest.mark.parametrize(("stopped", "after"), [(True, 1.1), (False, 1.2)])
def test_a_worker_that_does_not_stamp_is_dead_after_a_second(stopped: bool, after: float) -> None:
    """A wedged loop would hold its clients for ever, or one be killed that was just continued."""
    looks = [100.0 + LOOK_EVERY * n for n in range(30)]

    silences = [(now - 100.0, silent_for(looks[: n + 1])) for n, now in enumerate(looks)]

    found = [when for when, silent in silences if too_silent(silent, SERVING, lambda: stopped)]

    assert found[0] == pytest.approx(after)


def test_nobody_asks_whether_a_worker_is_stopped_that_stamps() -> None:
    """Ten times a second for each worker, the kernel would be asked for what cannot matter."""
    asked = 0

    def stopped() -> bool:
        nonlocal asked
        asked += 1
        return True

    assert not too_silent(SILENCE, SERVING, stopped)
    assert 0 == asked
    assert too_silent(SILENCE + LOOK_EVERY / 2, SERVING, stopped)
    assert 1 == asked


def test_a_stamp_ends_the_silence() -> None:
    """Short pauses would add up to a death."""
    silence = Silence(0.0)
    for n in range(100):
        assert silence.look(float(n // 9), n * LOOK_EVERY) < 0.9


@pytest.mark.parametrize("pause", [2.0, 3600.0])
def test_time_in_which_the_supervisor_did_not_look_is_no_silence(pause: float) -> None:
    """Ctrl-Z and fg would kill every worker, also those that need a moment to go on."""
    before = [LOOK_EVERY * n for n in range(5)]
    after = [before[-1] + pause + LOOK_EVERY * n for n in range(5)]

    assert not too_silent(silent_for(before + after), SERVING, lambda: True)


def test_who_starts_or_drains_may_be_silent_for_longer() -> None:
    """A worker with a long password file, or a million clients, would be killed at each start or stop."""
    assert [True, False, False] == [too_silent(2.0, phase, lambda: False) for phase in (SERVING, STARTING, DRAINING)]
    late = [too_silent(silent, phase, lambda: False) for silent, phase in ((31.0, STARTING), (5.5, DRAINING))]
    assert [True, True] == late


def test_the_pause_doubles_and_is_short_again_after_good_service() -> None:
    """A worker that dies at once would take the processor; one that died a week ago would come back late."""
    deaths = Deaths(1)

    verdicts = [deaths.one_more(0, 10.0, 100.0 * n) for n in range(8)]
    pauses = [verdict.pause for verdict in verdicts if isinstance(verdict, Again)]

    assert [FIRST_PAUSE * 2**n for n in range(6)] == pytest.approx(pauses[:6])
    assert [LONGEST_PAUSE] * 2 == pauses[6:]
    assert Again(FIRST_PAUSE) == deaths.one_more(0, WELL_AGAIN, 900.0)


def test_a_shard_that_is_never_ready_ends_the_node() -> None:
    """The node would start workers for ever that cannot start."""
    deaths = Deaths(2)

    verdicts = [deaths.one_more(1, None, float(n)) for n in range(NEVER_READY)]

    assert all(isinstance(verdict, Again) for verdict in verdicts[:-1])
    assert isinstance(verdicts[-1], GiveUp)
    assert "worker 1" in verdicts[-1].why


@pytest.mark.parametrize(("served", "seconds_apart"), [(0.5, 5.9), (None, 8.0)])
def test_deaths_that_are_no_loop_do_not_end_it(served: float | None, seconds_apart: float) -> None:
    """Four bad starts and a good one, or bad starts far apart, would end a node that would come to serve."""
    deaths = Deaths(1)

    verdicts = [deaths.one_more(0, served, seconds_apart * n) for n in range(NEVER_READY)]

    assert all(isinstance(verdict, Again) for verdict in verdicts)


def test_being_ready_once_begins_the_count_anew() -> None:
    """A worker that serves now and then would count as one that cannot start."""
    deaths = Deaths(1)

    verdicts = [deaths.one_more(0, 1.0 if n == 3 else None, float(n)) for n in range(NEVER_READY + 1)]

    assert all(isinstance(verdict, Again) for verdict in verdicts)


def test_too_many_deaths_in_a_minute_end_the_node() -> None:
    """A node whose workers all die after a few seconds of service would go on for ever, and look alive."""
    deaths = Deaths(4)

    verdicts = [deaths.one_more(n % 4, 2.0, 5.0 * n) for n in range(TOO_MANY)]

    assert [Again] * (TOO_MANY - 1) + [GiveUp] == [type(verdict) for verdict in verdicts]
    assert isinstance(Deaths(1).one_more(0, 2.0, 0.0), Again)


def test_deaths_of_long_ago_do_not_count() -> None:
    """A node that loses a worker now and then would end some day for no reason."""
    deaths = Deaths(1)

    verdicts = [deaths.one_more(0, 2.0, 7.0 * n) for n in range(3 * TOO_MANY)]

    assert all(isinstance(verdict, Again) for verdict in verdicts)
