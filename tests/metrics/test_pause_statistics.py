import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.pause_statistics import REPORTED, PauseStatistics
from broker.reasons import PauseReason

CREDITS, GATE = PauseReason.CREDITS, PauseReason.GATE


class Watched:
    def __init__(self) -> None:
        self.counters = Counters()
        self.clients = HeavyHitters()
        self.pauses = PauseStatistics(self.counters, self.clients)

    def counted(self, reason: PauseReason) -> tuple[int, int]:
        """(pauses, their ms)."""
        return self.counters.pauses_by_reason[reason.label], self.counters.paused_ms_by_reason[reason.label]

    def by_client(self) -> dict[object, int]:
        """Milliseconds by client, of the heavy hitters, which are cleared."""
        told = {hitter.key: round(hitter.paused / 1000) for hitter in self.clients.top(1000)}
        self.clients.clear()
        return told


def test_time_is_counted_by_reason() -> None:
    """Time of overload protection would be counted as time of a quota."""
    watched = Watched()
    pauses = watched.pauses
    pauses.begin("a", CREDITS, 10.0)
    pauses.begin("b", CREDITS, 10.5)
    pauses.begin("c", GATE, 10.5)
    pauses.end("a", 11.0)
    pauses.settle(12.0)

    assert (2, 2500) == watched.counted(CREDITS)
    assert (1, 1500) == watched.counted(GATE)
    assert 2 == len(pauses)


def test_who_has_no_name_is_counted_and_nobody_is_blamed() -> None:
    """A CONNECT is not authenticated yet: its wait would be counted for a client that may not have sent it."""
    watched = Watched()
    pauses = watched.pauses
    pauses.begin("a", GATE, 10.0)
    pauses.begin_unnamed(CREDITS, 10.0)
    pauses.begin_unnamed(CREDITS, 10.5)
    pauses.end_unnamed(CREDITS, 11.0)

    assert {"credits": 2, "gate": 1} == pauses.close_interval(12.0)
    assert (2, 2500) == watched.counted(CREDITS)
    assert {"a": 2000} == watched.by_client()
    assert {"credits": 1, "gate": 1} == pauses.close_interval(13.0)


def test_an_interval_has_the_time_that_lies_in_it() -> None:
    """A pause of a minute would be in the record of its last second only."""
    watched = Watched()
    pauses = watched.pauses
    pauses.begin("a", CREDITS, 10.0)
    assert {"credits": 1} == pauses.close_interval(11.0)
    assert {"a": 1000} == watched.by_client()
    assert {"credits": 1} == pauses.close_interval(12.0)
    assert {"a": 1000} == watched.by_client()

    pauses.begin("b", CREDITS, 12.0)
    pauses.end("a", 12.25)
    pauses.end("b", 12.5)
    assert {"credits": 2} == pauses.close_interval(13.0)
    assert {"a": 250, "b": 500} == watched.by_client()
    assert (2, 2750) == watched.counted(CREDITS)

    assert {"credits": 0} == pauses.close_interval(14.0)
    assert {} == watched.by_client()


def test_a_client_is_held_for_one_reason_at_a_time() -> None:
    """The time would count twice, or the second reason would not count."""
    watched = Watched()
    pauses = watched.pauses
    pauses.begin("a", CREDITS, 10.0)
    pauses.begin("a", CREDITS, 10.5)
    pauses.begin("a", GATE, 11.0)
    pauses.end("a", 13.0)
    pauses.end("a", 14.0)

    assert ((1, 1000), (1, 2000)) == (watched.counted(CREDITS), watched.counted(GATE))
    assert {"a": 3000} == watched.by_client()
    assert 0 == len(pauses)


def test_of_very_many_held_the_longest_are_told_of_first() -> None:
    """Closing an interval would block the loop for the time that a million clients take."""
    watched = Watched()
    pauses = watched.pauses
    for number in range(REPORTED):
        pauses.begin(f"early {number}", CREDITS, 10.0)
    pauses.begin("late", CREDITS, 10.5)
    pauses.close_interval(11.0)
    assert "late" not in watched.by_client()
    pauses.end("late", 12.0)

    assert {"late": 1500} == watched.by_client()
    assert 1000 * REPORTED + REPORTED * 1000 + 1500 == watched.counted(CREDITS)[1]


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([CREDITS, GATE, None]), st.integers(0, 5000)))


@given(STEPS)
def test_no_time_is_lost_or_counted_twice(steps: list[tuple[str, PauseReason | None, int]]) -> None:
    """The sum over records would differ from the time that clients waited."""
    watched = Watched()
    pauses = watched.pauses
    now, true, held = 1000.0, 0, set[str]()
    for client, reason, milliseconds in steps:
        if reason is None:
            pauses.end(client, now)
            held.discard(client)
        else:
            pauses.begin(client, reason, now)
            held.add(client)
        now += milliseconds / 1000
        true += milliseconds * len(held)
        if milliseconds % 2:
            pauses.close_interval(now)
    pauses.close_interval(now)

    assert true == pytest.approx(watched.counted(CREDITS)[1] + watched.counted(GATE)[1], abs=2)
    assert true == pytest.approx(sum(watched.by_client().values()), abs=3)
