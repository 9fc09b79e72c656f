# Which worker settles a dead one: the same for all who ask, evenly, and stable as workers come and go.
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.rendezvous import Place, settler_of

PLACES = st.tuples(st.sampled_from([f"n{number}" for number in range(6)]), st.integers(0, 7))


def places(nodes: int, workers: int) -> list[Place]:
    return [(f"n{node}", shard) for node in range(nodes) for shard in range(workers)]


@given(PLACES, st.lists(PLACES, unique=True))
def test_every_worker_comes_to_the_same_answer(dead: Place, live: list[Place]) -> None:
    """Two would settle one worker, or none would, as each has its list in another order."""
    settler = settler_of(dead, live)

    assert settler == settler_of(dead, live[::-1]) == settler_of(dead, sorted(live))
    assert settler in live if live else settler is None


@given(PLACES, st.lists(PLACES, unique=True, min_size=2), st.data())
def test_only_what_has_to_move_moves(dead: Place, live: list[Place], data: st.DataObject) -> None:
    """A worker that leaves would have others stop what they have begun."""
    gone = data.draw(st.sampled_from(live))
    settler = settler_of(dead, live)
    left = [each for each in live if each != gone]

    assert gone == settler or settler == settler_of(dead, left)


def test_dead_workers_are_spread_evenly() -> None:
    """One worker would read the sessions of a whole node, and serve no client well meanwhile."""
    live = places(10, 4)
    settled = Counter(settler_of((f"dead{node}", shard), live) for node in range(500) for shard in range(8))

    assert set(live) == settled.keys()
    assert 50 < min(settled.values()) and max(settled.values()) < 150  # 100 each; the deviation is 10
