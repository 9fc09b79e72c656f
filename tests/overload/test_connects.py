# The queue of CONNECTs: how fast it lets them go, in which order, and who goes when it is full.
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.overload.connects import SOONEST, SPREAD, TRICKLE, WIDEST, Connects, Waiter

NOW = 1000.0
SLACK = 1e-6  # CONNECTs: what rounding may add


class Waiting:
    def __init__(self, since: float, *, speaks: bool = False) -> None:
        self.since = since
        self.client_id = ""
        self.speaks = speaks

    def silent(self) -> bool:
        return not self.speaks


def wait(connects: Connects, count: int, *, speaks: bool = False) -> list[Waiting]:
    """So many more that wait; there is room for all of them."""
    waiters = [Waiting(NOW, speaks=speaks) for _ in range(count)]
    assert [None] * count == [connects.offer(waiter) for waiter in waiters]
    return waiters


def passing(connects: Connects, now: float) -> list[Waiter]:
    """All those whose turn it is."""
    passed = []
    while (waiter := connects.next(now)) is not None:
        passed.append(waiter)
    return passed


rates = st.floats(0.5, 5000)
bursts = st.floats(1, 500)
steps = st.lists(st.tuples(st.floats(0, 3), st.integers(0, 40), st.floats(0, 10)), max_size=30)


@given(rates, bursts, steps)
def test_never_more_pass_than_the_burst_and_the_rate_allow(
    rate: float, burst: float, moments: list[tuple[float, int, float]]
) -> None:
    """In some window more would come in than the worker was said to bear, at whatever levels."""
    connects = Connects(rate, burst, 10_000)
    now = NOW
    passed: list[float] = []
    for elapsed, newcomers, level in moments:
        now += elapsed
        connects.allow(level, now)
        for _ in range(newcomers):
            if connects.at_once(now):
                passed.append(now)
            else:
                connects.offer(Waiting(now))
        passed += [now for _ in passing(connects, now)]

    for first, began in enumerate(passed):
        for last in range(first, len(passed)):
            assert last - first + 1 <= burst + rate * (passed[last] - began) + SLACK


@given(rates, bursts, st.floats(0, 10), st.integers(1, 30))
def test_who_waits_passes_in_the_end_at_any_level(rate: float, burst: float, level: float, count: int) -> None:
    """At level 10 nobody would ever come in again, and each wait for `due()` would be for nothing."""
    connects = Connects(rate, burst, 100)
    now = NOW
    connects.allow(level, now)
    while connects.at_once(now):
        pass
    waiters = wait(connects, count)
    passed: list[Waiter] = []
    for _ in range(count):
        now = connects.due(now)
        passed += passing(connects, now)

    assert passed == waiters
    assert inf == connects.due(now)
    assert now - NOW <= count / min(rate, TRICKLE) + SLACK


def test_each_level_halves_what_passes() -> None:
    """Overload would be answered with as many newcomers as ever, or be as strict at 1 as at 10."""
    connects = Connects(2048.0, 2048.0, 10_000)
    rates = []
    for level in (0.0, 1.0, 2.0, 5.0, 10.0):
        wait(connects, 1)
        connects.allow(level, NOW)
        while connects.next(NOW) is not None or connects.at_once(NOW):
            pass
        (waiter,) = wait(connects, 1)
        rates.append(round(1.0 / (connects.due(NOW) - NOW)))
        connects.remove(waiter)
    assert [2048, 1024, 512, 64, 2] == rates


def test_a_higher_level_takes_the_savings_of_a_calm_time() -> None:
    """What was saved for a healthy start would come in at level 10, all at once."""
    connects = Connects(1000.0, 512.0, 1000)
    connects.allow(10.0, NOW)
    wait(connects, 100)

    assert 1 == len(passing(connects, NOW))


def test_they_pass_in_their_order_and_nobody_overtakes() -> None:
    """Who has waited longest would be overtaken by whoever comes when there is room again."""
    connects = Connects(1.0, 2.0, 10)
    assert [True, True, False] == [connects.at_once(NOW) for _ in range(3)]
    first, second, third = wait(connects, 3)
    connects.remove(second)

    assert not connects.at_once(NOW + 1.0)
    assert [first] == passing(connects, NOW + 1.0)
    assert [third] == passing(connects, NOW + 2.0)
    assert connects.at_once(NOW + 3.0)


def test_without_a_rate_all_pass_at_whatever_level() -> None:
    """Who has switched the limit off would still be limited."""
    connects = Connects(0.0, 1.0, 10)
    connects.allow(10.0, NOW)
    assert all(connects.at_once(NOW) for _ in range(1000))
    waiters = wait(connects, 10)  # for something else than the rate

    assert NOW == connects.due(NOW)
    assert waiters == passing(connects, NOW)


def test_a_full_queue_gives_the_place_of_the_oldest_silent_one() -> None:
    """Those who gave up long ago would keep out those who still want to come in, or the queue grow."""
    connects = Connects(1.0, 1.0, 4)
    connects.at_once(NOW)
    talker, *silent = wait(connects, 4)
    talker.speaks = True
    newcomers = [Waiting(NOW + 1.0) for _ in range(2)]

    assert silent[:2] == [connects.offer(newcomer) for newcomer in newcomers]
    assert 4 == connects.waiting()
    assert [talker, silent[2], *newcomers] == passing(connects, NOW + 1.0) + [
        waiter for second in range(2, 5) for waiter in passing(connects, NOW + second)
    ]


def test_a_queue_full_of_those_who_speak_takes_nobody_else() -> None:
    """Who shows that it still waits would lose its place to a newcomer, or the queue grow without a bound."""
    connects = Connects(1.0, 1.0, 3)
    wait(connects, 3, speaks=True)
    newcomers = [Waiting(NOW) for _ in range(2)]

    assert newcomers == [connects.offer(newcomer) for newcomer in newcomers]
    assert 3 == connects.waiting()


def test_long_connects_leave_room_for_short_ones() -> None:
    """Waiting CONNECTs of 256 KiB would fill the memory, or keep out every client with a short one."""
    connects = Connects(1.0, 1.0, 100, 1000)
    connects.at_once(NOW)
    long, longer, short = (Waiting(NOW) for _ in range(3))

    assert (None, longer, None) == (connects.offer(long, 900), connects.offer(longer, 101), connects.offer(short, 10))
    assert 910 == connects.bytes
    connects.remove(long)
    assert (None, 111) == (connects.offer(longer, 101), connects.bytes)


@given(st.lists(st.sampled_from(["offer", "speak", "leave", "pass"]), max_size=60), st.integers(1, 5))
def test_the_queue_keeps_its_bound_and_its_order(steps: list[str], most: int) -> None:
    """Memory would grow with the storm, or somebody be forgotten or let in twice."""
    connects = Connects(1.0, 1.0, most)
    connects.at_once(NOW)
    here: list[Waiting] = []
    now = NOW
    for step in steps:
        if step == "offer":
            newcomer = Waiting(now)
            gone = connects.offer(newcomer)
            oldest = next((one for one in here if one.silent()), newcomer)
            assert gone is (oldest if len(here) == most else None)
            here = [one for one in [*here, newcomer] if one is not gone]
        elif step == "speak" and here:
            here[len(here) // 2].speaks = True
        elif step == "leave" and here:
            connects.remove(here.pop(0))
        elif step == "pass":
            now += 1.0
            assert connects.next(now) is (here.pop(0) if here else None)
        assert len(here) == connects.waiting() <= most


def test_the_oldest_tells_how_long_it_has_waited() -> None:
    """The level would not rise when nobody comes in, or stay up when all are."""
    connects = Connects(1.0, 1.0, 10)
    connects.at_once(NOW)
    assert 0.0 == connects.oldest(NOW)
    wait(connects, 1)
    connects.offer(Waiting(NOW + 5.0))

    assert 7.0 == connects.oldest(NOW + 7.0)
    passing(connects, NOW + 7.0)
    assert 2.0 == connects.oldest(NOW + 7.0)


@pytest.mark.parametrize(("waiting", "rate", "longest"), [(0, 1.0, SPREAD), (40, 2.0, 40.0), (1000, 1.0, WIDEST)])
def test_who_comes_later_is_spread_over_the_time_that_the_others_take(
    waiting: int, rate: float, longest: float
) -> None:
    """A fleet that was refused at once would come back at once."""
    connects = Connects(rate, 1.0, 1000)
    connects.at_once(NOW)
    wait(connects, waiting)

    assert [SOONEST, SOONEST + longest / 2, SOONEST + longest] == [
        connects.retry_after(n / 2, connects.ahead()) for n in range(3)
    ]
