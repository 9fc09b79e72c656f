import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.timers import CONNECT_DEADLINE, IDLE, KEEP_ALIVE, SESSION_EXPIRY, STALE, TICK, WILL, Timers
from tests.routing.test_memory import growth

SOON = st.integers(0, 50).map(lambda tenths: 100 + tenths / 10) | st.floats(100, 105)
KIND = st.sampled_from([CONNECT_DEADLINE, KEEP_ALIVE, SESSION_EXPIRY, WILL])


@given(st.lists(st.tuples(SOON, KIND, st.booleans()), max_size=40), st.integers(1, 7))
def test_each_timer_fires_once_in_its_time(timers: list[tuple[float, int, bool]], page: int) -> None:
    """A client would be closed early, late or not at all, or for a timer that was cancelled."""
    wheel = Timers()
    waiting: dict[object, tuple[float, int]] = {}
    for number, (when, kind, cancelled) in enumerate(timers):
        key = wheel.set(when, kind, number)
        if cancelled:
            wheel.cancel(key, number)
        else:
            waiting[number] = (when, kind)

    for step in range(1040):
        now = 99.0 + step * TICK / 13
        while fired := wheel.pop_due(now, page):
            assert len(fired) <= page
            for kind, whom in fired:
                when, wanted = waiting.pop(whom)
                assert kind == wanted
                assert when <= now < when + TICK + TICK / 13 + 1e-9
    assert {} == waiting
    assert (0, 0) == wheel.statistics()


def test_who_sets_two_timers_has_both() -> None:
    """A session's will would take the place of its expiry when both are due at once."""
    wheel = Timers()
    wheel.set(5.0, WILL, "session")
    wheel.set(5.0, SESSION_EXPIRY, "session")

    assert [(SESSION_EXPIRY, "session"), (WILL, "session")] == wheel.pop_due(6.0, 10)


@pytest.mark.no_cover
@pytest.mark.usefixtures("traced")
def test_a_timer_in_a_tick_of_its_own_is_small() -> None:
    """The expiry of each session whose client is away for days would take the memory of a dict."""
    wheel, owners = Timers(), [object() for _ in range(2000)]

    def set_all() -> None:
        for number, owner in enumerate(owners):
            wheel.set(1000.0 + number, SESSION_EXPIRY, owner)

    assert growth(set_all) <= 200 * len(owners)


def test_timers_of_one_tick_fire_or_are_cancelled_one_by_one() -> None:
    """A session would end with another one that was to expire in the same moment, or stay for ever."""
    wheel = Timers()
    for owners in (["a"], ["a", "b"], ["a", "b", "c"], ["a", "a", "b"]):
        for cancelled in ("", *owners):
            keys = {owner: wheel.set(5.0, SESSION_EXPIRY, owner) for owner in owners}
            wheel.cancel(keys["a"], "somebody else")
            if cancelled:
                wheel.cancel(keys[cancelled], cancelled)
            fired = wheel.pop_due(6.0, 1) + wheel.pop_due(6.0, 10)
            assert sorted({*owners} - {cancelled}) == sorted(str(owner) for _, owner in fired)
            assert (0, 0) == wheel.statistics()


def test_a_timer_can_be_set_again_after_it_was_cancelled() -> None:
    """A client that comes and goes within a tick would lose its timer, or have it fire twice."""
    wheel = Timers()
    for _ in range(3):
        wheel.cancel(wheel.set(5.0, WILL, "a"), "a")
    wheel.set(5.0, WILL, "a")

    assert [(WILL, "a")] == wheel.pop_due(6.0, 10)
    assert [] == wheel.pop_due(7.0, 10)


def test_to_cancel_what_is_not_set_is_nothing() -> None:
    """A connection that ends after its timer fired would bring down the worker, or another's timer."""
    wheel = Timers()
    fired = wheel.set(5.0, WILL, "a")
    wheel.pop_due(6.0, 10)
    key = wheel.set(9.0, WILL, "b")

    for old in (0, fired, key):
        wheel.cancel(old, "a")

    assert (1, 1) == wheel.statistics()


def test_timers_that_fall_due_together_come_in_pages() -> None:
    """A thousand sessions that expire at once would hold the loop."""
    wheel = Timers()
    for whom in range(25):
        wheel.set(5.0, SESSION_EXPIRY, whom)

    pages = [len(wheel.pop_due(6.0, 10)) for _ in range(4)]

    assert [10, 10, 5, 0] == pages


def test_the_next_time_to_look_is_that_of_the_first_timer() -> None:
    """The worker would sleep through a deadline, or wake for ever for those of next week."""
    wheel = Timers()
    assert 5.0 + IDLE == wheel.next_due(5.0)
    key = wheel.set(1_000_000.0, WILL, "far")
    assert 5.0 + IDLE == wheel.next_due(5.0)
    wheel.set(7.0, WILL, "near")
    assert 7.0 <= wheel.next_due(5.0) < 7.0 + 1.01 * TICK

    wheel.pop_due(8.0, 10)
    wheel.cancel(key, "far")
    wheel.pop_due(1_000_001.0, 10)

    assert 5.0 + IDLE == wheel.next_due(5.0)


def test_cancelled_timers_of_next_week_cost_no_memory() -> None:
    """Each client that comes back would leave something behind until its session would have expired."""
    wheel = Timers()
    for second in range(10 * STALE):
        key = wheel.set(second + 604_800.0, SESSION_EXPIRY, "flapping")
        wheel.cancel(key, "flapping")
    wheel.set(5.0, WILL, "near")

    assert 1 == wheel.statistics()[0]
    assert wheel.statistics()[1] <= STALE + 2
    assert [(WILL, "near")] == wheel.pop_due(6.0, 10)


def test_timers_keep_their_order_when_cancelled_ones_are_cleared_away() -> None:
    """A deadline would hide behind a later one."""
    wheel = Timers()
    for second in range(50, 0, -1):
        wheel.set(float(second), WILL, second)
    for second in range(2 * STALE):
        wheel.cancel(wheel.set(1000.0 + second, WILL, "cancelled"), "cancelled")

    assert [[(WILL, second)] for second in range(1, 51)] == [wheel.pop_due(n + 1.2, 100) for n in range(50)]


def test_a_time_that_was_served_can_be_set_again() -> None:
    """A deadline that is set late for a time whose timers have fired would never come."""
    wheel = Timers()
    for _ in range(2):
        wheel.set(5.0, WILL, "a")
        assert [(WILL, "a")] == wheel.pop_due(6.0, 10)


@pytest.mark.parametrize("when", [0.0, -5.0, 99.95])
def test_a_time_that_has_passed_is_due_at_once(when: float) -> None:
    """A deadline that is set too late would never come."""
    wheel = Timers()
    wheel.set(when, WILL, "a")

    assert [(WILL, "a")] == wheel.pop_due(100.1, 10)
