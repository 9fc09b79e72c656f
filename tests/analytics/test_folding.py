# Folding: whatever order and batches seconds come in, the rows are the same, and the state is small.
import copy
import json
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from analytics import folding
from analytics.episodes import HORIZON
from analytics.second import Second
from tests.analytics.seconds import Fold, T, hitter, overloaded, second

LATE = 15  # seconds that a record may come after those that are newer


def load(chance: Random) -> list[Second]:
    """A minute and a half of three workers, with runs of equal levels, holes, and all that is counted."""
    rows = []
    for node, worker in (("a", 1), ("a", 2), ("b", 1)):
        at = 0
        skew = chance.randint(-3, 3)
        while at < 90:
            level, lasts = chance.choice([0, 0, 0, 0, 0, 0, 1, 2, 3, 5, 9]), chance.randint(1, 20)
            said: dict[str, Any] = {"clients": [hitter(chance.choice("xyz"), chance.randint(1, 100), level)]}
            if level:
                said["cause"] = chance.choice(["lag", "memory", "connect"])
                said["paused"] = chance.choice([{}, {}, {"credits": 300}, {"connect": 2000}])
                said["dropped"] = {"expired": level}
            if level or chance.random() < 0.7:
                seconds = range(at + skew, at + skew + lasts)
                rows += [second(each, worker, node, level=level, throttled=level, **said) for each in seconds]
            at += lasts
    return rows


def batches(chance: Random, rows: list[Second]) -> list[list[Second]]:
    """*rows* in an order in which none comes too late; some twice."""
    came = sorted(rows, key=lambda row: row["second"] + chance.randint(0, LATE))
    made = []
    while came:
        size = chance.randint(1, 80)
        batch, came = came[:size], came[size:]
        chance.shuffle(batch)
        made.append(batch + batch[: chance.randint(0, 3)])
    return made


def told(came: list[list[Second]]) -> Fold:
    fold = Fold()
    for batch in came:
        fold.add(*batch)
    return fold.add(second(200, node="z"))  # all is over by then


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_any_order_and_any_batches_of_the_same_seconds_give_the_same(seed: int) -> None:
    """A restart makes other batches: episodes would change under those who look at them."""
    chance = Random(seed)
    rows = load(chance)
    expected = told([rows])

    found = told(batches(chance, rows))
    assert expected.episodes == found.episodes
    assert expected.windows == found.windows
    assert 0 == found.late


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_batch_that_is_folded_again_gives_the_same_and_changes_nothing(seed: int) -> None:
    """A job that is killed after the fold and before its batch is done does it once more."""
    chance = Random(seed)
    state = folding.begin()
    for batch in batches(chance, load(chance)):
        before, given_ = json.dumps(state), copy.deepcopy(batch)
        folded = folding.fold(state, batch, T + 100.0)
        assert before == json.dumps(state)
        assert given_ == batch
        again = folding.fold(json.loads(before), batch, T + 100.0)
        assert again == folded
        state = folded.state


def test_episodes_do_not_overlap_and_are_named_by_their_start() -> None:
    """Two that are open at once, or one name for two, could not be told apart."""
    fold = Fold()
    for at in range(0, 400, 2):
        level = (at // 40) % 2 * 6
        fold.add(*(second(at + late, level=level, cause="lag", sequence=at + late) for late in (1, 0)))

    spans = fold.overloads()
    assert [(40, 80), (120, 160), (200, 240), (280, 320), (360, None)] == spans
    assert [f"{T + start} node a" for start, _ in spans] == sorted(fold.episodes)


def test_the_state_does_not_grow_with_time() -> None:
    """It is saved with each batch, for as long as the job lives."""
    fold = Fold()
    sizes = []
    for at in range(0, 1600, 4):
        rows = [overloaded if (at // 50) % 3 == 0 else second] * 4
        names = [hitter(f"c{at}-{i}", 5) for i in range(10)]
        batch = [make(at + i, worker, clients=names) for i, make in enumerate(rows) for worker in (1, 2)]
        folded = folding.fold(fold.state, batch, T + at + 5.0)
        fold.state = folded.state
        if at >= 1000 and at % 150 == 0:
            sizes.append(len(json.dumps(fold.state)))

    assert max(sizes) < 1.2 * min(sizes)


def test_workers_that_restart_all_the_time_are_forgotten() -> None:
    """Each life has a new name, and names are remembered to know what was seen."""
    fold = Fold()
    for at in range(0, 2000, 20):
        fold.add(second(at, boot=f"boot-{at}"))

    assert len(fold.state["sequences"]) <= (300 + HORIZON) // 20 + 2


def test_the_records_of_more_workers_than_may_be_are_left_out_and_counted() -> None:
    """Whoever can write to the log could make the state as large as it likes."""
    rows = [second(0, boot=f"boot-{i}") for i in range(folding.WORKERS + 7)]

    assert 7 == folding.fold(folding.begin(), rows, T + 1.0).late


def test_an_empty_batch_says_nothing_new() -> None:
    """Spark makes them."""
    folded = folding.fold(folding.begin(), [], T + 0.0)

    assert ([], [], 0) == (folded.windows, folded.episodes, folded.late)
    assert 0.0 == folded.findings["at"]
