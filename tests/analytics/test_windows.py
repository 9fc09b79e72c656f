# Windows: what the longer ones say follows from the seconds, whatever comes late or twice.
from typing import Any

from analytics.episodes import HORIZON
from tests.analytics.seconds import Fold, overloaded, second

CALM = {
    "level": 0,
    "cause": "",
    "cause_worker": "",
    "workers": 1,
    "throttled": 0,
    "connected": 10,
    "non_writable": 0,
    "credits_per_tick": 50_000,
    "average_credits": 50_000.0,
    "paused_ms": 0,
    "messages_in": 100,
    "messages_out": 200,
    "dropped": {},
    "refused": {},
    "p99_ms": 1.5,
}
BUSY: dict[str, Any] = {
    "level": 4,
    "cause": "lag",
    "throttled": 2,
    "connected": 7,
    "non_writable": 1,
    "credits_per_tick": 3000,
    "average_credits": 100.0,
    "paused": {"credits": 300, "gate": 40},
    "dropped": {"not_writable": 5},
    "refused": {"gate_timeout": 2},
    "p99_ms": 60.0,
}


def test_a_second_is_told_of_the_cluster_its_nodes_and_its_workers() -> None:
    """Each figure adds up, or is the worst, as its row promises."""
    fold = Fold().add(second(0), second(0, worker=2, **BUSY), second(0, node="b"))

    both = {
        **CALM,
        "level": 4,
        "cause": "lag",
        "cause_worker": "a/2",
        "workers": 2,
        "throttled": 2,
        "connected": 17,
        "non_writable": 1,
        "credits_per_tick": 3000,
        "average_credits": 100.0,
        "paused_ms": 340,
        "messages_in": 200,
        "messages_out": 400,
        "dropped": {"not_writable": 5},
        "refused": {"gate_timeout": 2},
        "p99_ms": 60.0,
    }
    assert fold.windows[1, 0] == {
        "start": 1_700_000_000,
        "span": 1,
        "cluster": {**both, "workers": 3, "connected": 27, "messages_in": 300, "messages_out": 600},
        "nodes": {"a": both, "b": CALM},
        "worker_levels": {"a/2": 4},
    }


def test_longer_windows_are_sums_of_seconds_and_the_worst_of_what_holds() -> None:
    """Clients that are held for ten seconds are not ten times as many."""
    fold = Fold().add(*(second(at, throttled=at, non_writable=2, dropped={"expired": 1}) for at in range(10)))

    ten = {**CALM, "throttled": 9, "non_writable": 2, "messages_in": 1000, "messages_out": 2000}
    ten["dropped"] = {"expired": 10}
    assert ten == fold.windows[10, 0]["cluster"] == fold.windows[10, 0]["nodes"]["a"]
    assert ten == fold.windows[60, -20]["cluster"]


def test_windows_begin_at_multiples_of_their_span() -> None:
    """Who adds up rows of several nodes has to find the same ones."""
    fold = Fold().add(second(9), second(10), second(39), second(40))

    assert [0, 10, 30, 40] == sorted(start for span, start in fold.windows if span == 10)
    assert [-20, 40] == sorted(start for span, start in fold.windows if span == 60)


def test_only_windows_that_changed_are_told() -> None:
    """The sink writes what it is given, and there are hours of windows."""
    fold = Fold().add(*(second(at) for at in range(25)))
    fold.windows.clear()
    fold.add(second(25))

    assert {(1, 25), (10, 20), (60, -20)} == set(fold.windows)


def test_a_second_that_comes_late_is_added_to_its_windows() -> None:
    """A worker whose records are slow to come would be missing in all sums."""
    rows = [second(at, worker, **(BUSY if at % 3 else {})) for at in range(20) for worker in (1, 2)]
    at_once = Fold().add(*rows)
    late = Fold()
    for worker in (2, 1):
        for row in rows:
            if row["worker"] == worker:
                late.add(row)

    assert at_once.windows == late.windows


def test_two_records_of_a_worker_in_one_second_do_not_make_two_workers() -> None:
    """Records end near the turn of a second sometimes: its clients would seem to double, then to vanish."""
    fold = Fold().add(second(0, throttled=3), second(0, sequence=2000, throttled=2), second(0, worker=2))

    cluster = fold.windows[1, 0]["cluster"]
    assert (2, 20, 3, 300) == (
        cluster["workers"],
        cluster["connected"],
        cluster["throttled"],
        cluster["messages_in"],
    )


def test_clients_are_those_of_the_last_second_that_most_workers_told_of() -> None:
    """While some are yet to tell of a second, half of the clients would seem to be gone."""
    fold = Fold().add(second(0, connected=5), second(0, worker=2, connected=6), second(1, connected=8))
    assert 11 == fold.windows[10, 0]["cluster"]["connected"]

    fold.add(second(1, worker=2, connected=9))
    assert 17 == fold.windows[10, 0]["cluster"]["connected"]


def test_the_cause_is_that_of_the_highest_level() -> None:
    """Of two that are equal it is always the same one, whichever was first to tell."""
    rows = [overloaded(0, 2, level=5, cause="memory"), overloaded(0, 1, level=5), overloaded(0, 3, level=4)]
    for order in (rows, rows[::-1]):
        cluster = Fold().add(*order).windows[10, 0]["cluster"]
        assert (5, "lag", "a/1") == (cluster["level"], cluster["cause"], cluster["cause_worker"])


def test_windows_leave_the_state_when_nothing_can_come_for_them() -> None:
    """The state is read and written with each batch: it must not have the day in it."""

    def kept(fold: Fold) -> dict[str, int]:
        windows: dict[str, dict[str, Any]] = fold.state["windows"]
        return {span: len(found) for span, found in windows.items()}

    fold = Fold()
    for at in range(0, 300, 2):
        fold.add(second(at), second(at + 1))
        assert kept(fold)["1"] <= HORIZON and kept(fold)["10"] <= HORIZON // 10 + 2 and kept(fold)["60"] <= 2
    assert 300 == sum(1 for span, _ in fold.windows if span == 1)
