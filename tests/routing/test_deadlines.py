from hypothesis import given
from hypothesis import strategies as st

from broker.routing.deadlines import Deadlines

keys = st.sampled_from([bytes([letter]) for letter in b"abcdefghijklmnop"])


@given(st.lists(st.tuples(keys, st.none() | st.integers(1, 20)), max_size=80), st.integers(0, 21))
def test_what_is_due_comes_in_order_and_once(steps: list[tuple[bytes, int | None]], now: int) -> None:
    """A message would expire by a deadline it no longer has, too late, or never."""
    deadlines = Deadlines()
    model: dict[bytes, float] = {}
    for key, when in steps:
        if when is None:
            deadlines.discard(key)
            model.pop(key, None)
        else:
            deadlines.set(key, float(when))
            model[key] = float(when)
        assert len(model) == len(deadlines)

    due = []
    while (key_due := deadlines.pop_due(float(now))) is not None:
        due.append(key_due)

    assert sorted((when, key) for key, when in model.items() if when <= now) == [(model[key], key) for key in due]
    assert len(model) - len(due) == len(deadlines)


def test_a_key_that_is_set_again_and_again_is_held_once() -> None:
    """A topic that is often replaced would fill the memory with its former deadlines."""
    deadlines = Deadlines()
    for when in range(1000):
        deadlines.set(b"a", float(when))

    assert 1 == len(deadlines)
    assert [b"a", None] == [deadlines.pop_due(999.0), deadlines.pop_due(999.0)]


def test_many_come_in_order_however_they_were_set() -> None:
    """The deepest of a large heap would be due too early or too late."""
    deadlines = Deadlines()
    for number in range(1000):
        deadlines.set(b"%d" % number, float(number * 7919 % 1000))

    due = [deadlines.pop_due(1000.0) for _ in range(1000)]

    assert list(range(1000)) == [int(key or b"-1") * 7919 % 1000 for key in due]
