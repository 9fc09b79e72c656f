# When a child is started again after a death: decisions on numbers alone.
import pytest

from supervisor.restarts import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    NEVER_READY,
    RECOVERED,
    TOO_MANY,
    CrashLoop,
    GiveUp,
    Restart,
    RestartPolicy,
)


def policies(count: int = 1) -> list[RestartPolicy]:
    """Those of the workers of one node."""
    crash_loop = CrashLoop()
    return [RestartPolicy(f"worker {number}", crash_loop) for number in range(count)]


def test_the_pause_doubles_and_there_is_none_after_good_service() -> None:
    """A worker that dies at once would take the processor; one that died a week ago would come back late."""
    (policy,) = policies()

    verdicts = [policy.after_death(10.0, 100.0 * n) for n in range(9)]
    pauses = [verdict.pause for verdict in verdicts if isinstance(verdict, Restart)]

    assert [0.0, *(FIRST_PAUSE * 2**n for n in range(6))] == pytest.approx(pauses[:7])
    assert [LONGEST_PAUSE] * 2 == pauses[7:]
    assert Restart(0.0) == policy.after_death(RECOVERED, 1000.0)


def test_a_worker_that_is_never_ready_ends_the_node() -> None:
    """The node would start workers for ever that cannot start."""
    _, policy = policies(2)

    verdicts = [policy.after_death(None, float(n)) for n in range(NEVER_READY)]

    assert all(isinstance(verdict, Restart) for verdict in verdicts[:-1])
    assert GiveUp("worker 1 died 5 times in a row before it was ready") == verdicts[-1]


@pytest.mark.parametrize(("served", "seconds_apart"), [(0.5, 6.7), (None, 8.0)])
def test_deaths_that_are_no_loop_do_not_end_the_node(served: float | None, seconds_apart: float) -> None:
    """Deaths with some service in between, or far apart, would end a node that goes on to serve."""
    (policy,) = policies()

    verdicts = [policy.after_death(served, seconds_apart * n) for n in range(2 * TOO_MANY)]

    assert all(isinstance(verdict, Restart) for verdict in verdicts)


def test_being_ready_once_begins_the_count_anew() -> None:
    """A worker that serves now and then would count as one that cannot start."""
    (policy,) = policies()

    verdicts = [policy.after_death(1.0 if n == 3 else None, float(n)) for n in range(NEVER_READY + 1)]

    assert all(isinstance(verdict, Restart) for verdict in verdicts)


def test_too_many_deaths_in_a_minute_end_the_node() -> None:
    """A node whose workers all die after a few seconds of service would continue for ever, and look healthy."""
    workers = policies(4)

    verdicts = [workers[n % 4].after_death(2.0, 5.0 * n) for n in range(TOO_MANY)]

    assert [Restart] * (TOO_MANY - 1) + [GiveUp] == [type(verdict) for verdict in verdicts]
    assert GiveUp("workers died 10 times within 60 seconds") == verdicts[-1]


def test_a_child_without_a_crash_loop_is_always_started_again() -> None:
    """The workers continue without Redis, and the node would end because Redis does not start."""
    policy = RestartPolicy()

    verdicts = [policy.after_death(None, 0.1 * n) for n in range(10 * TOO_MANY)]

    assert Restart(LONGEST_PAUSE) == verdicts[-1]
