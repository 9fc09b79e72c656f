# A ring is a queue: the same as a deque, for the few things that it can.
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.ring import FIRST_ROOM, Ring

ACTIONS = st.lists(st.sampled_from(["append", "append", "append", "appendleft", "popleft", "popleft"]), max_size=200)


@given(ACTIONS)
def test_it_gives_what_a_deque_would(actions: list[str]) -> None:
    """A stream would not be served, or twice."""
    ring: Ring[int] = Ring()
    model: deque[int] = deque()
    for number, action in enumerate(actions):
        if action == "append":
            ring.append(number)
            model.append(number)
        elif action == "appendleft":
            ring.appendleft(number)
            model.appendleft(number)
        elif model:
            assert model[0] == ring.first()
            assert model.popleft() == ring.popleft()
        assert len(model) == ring.count
    assert list(model) == [ring.popleft() for _ in range(ring.count)]


@pytest.mark.parametrize("taken", [0, 1, FIRST_ROOM - 1])
def test_it_grows_wherever_its_first_one_is(taken: int) -> None:
    """What goes round its end would be lost, or come first."""
    ring: Ring[int] = Ring()
    for number in range(FIRST_ROOM):
        ring.append(number)
    for number in range(taken):
        assert number == ring.popleft()
    for number in range(FIRST_ROOM, 5 * FIRST_ROOM):
        ring.append(number)
    ring.appendleft(-1)

    assert [-1, *range(taken, 5 * FIRST_ROOM)] == [ring.popleft() for _ in range(ring.count)]


def test_what_is_taken_is_not_kept() -> None:
    """A closed connection would live until its place is used again."""

    class Thing:
        alive = 0

        def __init__(self) -> None:
            Thing.alive += 1

        def __del__(self) -> None:
            Thing.alive -= 1

    ring: Ring[Thing] = Ring()
    ring.append(Thing())
    ring.append(Thing())
    ring.popleft()

    assert 1 == Thing.alive


def test_an_empty_one_has_no_first() -> None:
    """What was taken before would be served once more."""
    ring: Ring[int] = Ring()
    ring.append(1)
    ring.popleft()

    with pytest.raises(IndexError):
        ring.first()
    with pytest.raises(IndexError):
        ring.popleft()
