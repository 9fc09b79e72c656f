import random

from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.heavy_hitters import CAPACITY, HeavyHitters, Hitter

KEPT, SMALL = 3, 14  # kept by each measure, and keys that there is room for

Doing = tuple[int, int, int, int, int]  # key, cost, messages, bytes, microseconds held


def doings_of(seed: int, length: int) -> list[Doing]:
    """A few frequent keys and many rare ones. Drawing as many from Hypothesis would take far longer."""
    chance = random.Random(seed)

    def figure() -> int:
        return chance.choice((0, 1, 1, 10, chance.randrange(1000)))

    keys = (min(chance.randrange(60), chance.randrange(60)) for _ in range(length))
    return [(key, figure(), figure(), figure(), figure()) for key in keys]


DOINGS = st.builds(doings_of, st.integers(), st.integers(0, 200))

Figures = tuple[int, int, int, int]


def figures(hitter: Hitter) -> Figures:
    return hitter.cost, hitter.messages, hitter.bytes, hitter.paused


def done(hitters: HeavyHitters, doings: list[Doing]) -> dict[int, Figures]:
    """The exact figures by key, after *doings*."""
    truth: dict[int, Figures] = {}
    for key, cost, messages, size, paused in doings:
        hitters.add(key, cost, messages, size)
        hitters.add_pause(key, paused)
        before = truth.get(key, (0, 0, 0, 0))
        truth[key] = (before[0] + cost, before[1] + messages, before[2] + size, before[3] + paused)
    return truth


@given(DOINGS)
def test_a_figure_is_never_too_low_and_too_high_by_the_error_at_most(
    doings: list[Doing],
) -> None:
    """A client with low cost would be listed as the heaviest, or a heavy one not at all."""
    hitters = HeavyHitters(KEPT, SMALL)
    truth = done(hitters, doings)
    error = figures(hitters.error())

    for hitter in hitters.top(SMALL):
        assert isinstance(hitter.key, int)
        for told, true, bound in zip(figures(hitter), truth[hitter.key], error, strict=True):
            assert true <= told <= true + bound


@given(DOINGS)
def test_the_error_is_a_small_part_of_the_whole(doings: list[Doing]) -> None:
    """The stated bound would not hold, and nobody could say what a figure is worth."""
    hitters = HeavyHitters(KEPT, SMALL)
    truth = done(hitters, doings)

    for measure, bound in enumerate(figures(hitters.error())):
        assert KEPT * bound <= sum(each[measure] for each in truth.values())


@given(DOINGS)
def test_who_did_more_than_the_error_is_there(doings: list[Doing]) -> None:
    """A heavy client would be evicted by many light clients that come later."""
    hitters = HeavyHitters(KEPT, SMALL)
    truth = done(hitters, doings)
    error = figures(hitters.error())
    there = {hitter.key for hitter in hitters.top(SMALL)}

    for key, true in truth.items():
        if any(figure > bound for figure, bound in zip(true, error, strict=True)):
            assert key in there


@given(DOINGS)
def test_memory_is_fixed(doings: list[Doing]) -> None:
    """A client that publishes to a million topics would take the worker's memory."""
    hitters = HeavyHitters(KEPT, SMALL)
    for doing in doings:
        done(hitters, [doing])
        assert len(hitters) <= SMALL


def test_few_are_counted_exactly() -> None:
    """Figures would be estimates although no key was evicted."""
    hitters = HeavyHitters()
    for round in range(3):
        for key in range(CAPACITY):
            hitters.add(key, key + round, 1, 2 * key)

    assert (0, 0, 0, 0) == figures(hitters.error())
    assert [(CAPACITY - 1, (3 * CAPACITY, 3, 6 * (CAPACITY - 1), 0))] == [
        (hitter.key, figures(hitter)) for hitter in hitters.top(1) if hitter.key == CAPACITY - 1
    ]


def test_each_measure_has_its_own_first() -> None:
    """A client with few huge messages would be hidden by clients with many small messages or long pauses."""
    hitters = HeavyHitters(KEPT, SMALL)
    hitters.add("dear", 1000, 1, 10)
    hitters.add("many", 500, 5000, 50)
    hitters.add("large", 400, 2, 5000)
    hitters.add_pause("held", 9)
    for number in range(1000):
        hitters.add(number, 1, 1, 1)

    assert ["dear", "many", "large", "held"] == [hitter.key for hitter in hitters.top(1)]


def test_nothing_of_a_measure_is_no_place_in_it() -> None:
    """Clients that were never throttled would be listed among those that were throttled longest."""
    hitters = HeavyHitters()
    hitters.add("a", 10, 0, 0)
    hitters.add("b", 20, 0, 0)

    assert ["b"] == [hitter.key for hitter in hitters.top(1)]


def test_what_was_is_forgotten_when_it_is_cleared() -> None:
    """A client that was heavy an hour ago would be listed as heavy now."""
    hitters = HeavyHitters(KEPT, SMALL)
    done(hitters, [(key, 5, 5, 5, 5) for key in range(100)])
    hitters.clear()
    hitters.add("now", 1, 1, 1)

    assert [("now", (1, 1, 1, 0))] == [(hitter.key, figures(hitter)) for hitter in hitters.top(5)]
    assert (0, 0, 0, 0) == figures(hitters.error())
