# Heavy hitters of several workers together: who is named, and how far off the figures may be.
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.heavy_hitters import HeavyHitters
from broker.metrics.latency import Latencies
from broker.metrics.pause_statistics import PauseStatistics
from broker.metrics.record import MEASURES, TOP
from broker.metrics.recorder import Recorder
from broker.worker_id import WorkerId
from cli.heavy_hitters import ORDERS, merged

Publishes = list[tuple[int, int, int, int]]  # who, cost, messages, bytes

publishes = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 1000), st.integers(0, 9), st.integers(0, 5000)), max_size=150
)
# Small tables, so that many have to make way; the larger ones hold more than is told.
sizes = st.sampled_from([(2, 8), (3, 12), (15, 60), (100, 2048)])


def table_of(told: Publishes, kept: int, capacity: int) -> dict[str, Any]:
    """What a worker tells of its clients after these publishes."""
    counters, clients = Counters(), HeavyHitters(kept, capacity)
    for who, cost, messages, size in told:
        clients.add(f"client-{who}", cost, messages, size)
    pauses = PauseStatistics(counters, clients)
    recorder = Recorder(counters, clients, HeavyHitters(), Latencies(), pauses, worker=WorkerId("n", 0, 0), now=0.0)
    table: dict[str, Any] = recorder.record(2.0, 0.0, Gauges(), {})["top"]["clients"]
    return table


@given(st.lists(st.tuples(publishes, sizes), min_size=1, max_size=4), st.sampled_from(ORDERS))
def test_the_truth_is_within_the_error_that_is_told(workers: list[tuple[Publishes, tuple[int, int]]], by: str) -> None:
    """An innocent client would be named, by figures that nobody could doubt."""
    truth: dict[str, dict[str, float]] = {}
    for told, _ in workers:
        for who, *figures in told:
            sums = truth.setdefault(f"client-{who}", {})
            for name, figure in zip(ORDERS, figures, strict=True):
                sums[name] = sums.get(name, 0.0) + figure / 2.0

    found = merged([(table_of(told, *size), 2.0) for told, size in workers], "client", by)

    assert [one.figures[by] for one in found] == sorted([one.figures[by] for one in found], reverse=True)
    for one in found:
        for name in ORDERS:
            true = truth[one.name][name]
            assert one.figures[name] - one.above[name] <= true + 1e-6
            assert true <= one.figures[name] + one.below[name] + 1e-6


def row(client: str, cost: int) -> dict[str, Any]:
    return {"client": client, **dict.fromkeys(MEASURES, 0), "cost": cost}


def table(*rows: dict[str, Any], error: int = 0, others: int = 0) -> dict[str, Any]:
    return {"rows": list(rows), "error": {**dict.fromkeys(MEASURES, 0), "cost": error}, "others": others}


def test_who_publishes_through_several_workers_is_one() -> None:
    """A client that moves between workers, or a topic of all of them, would look harmless in each."""
    one, other = table(row("a", 60), row("b", 100)), table(row("a", 60))
    (first, second) = merged([(one, 1.0), (other, 0.5)], "client", "cost")

    assert [("a", 180.0), ("b", 100.0)] == [(first.name, first.figures["cost"]), (second.name, second.figures["cost"])]
    assert (0.0, 0.0) == (first.above["cost"], second.below["cost"])


def test_who_is_not_among_the_first_may_have_had_as_much_as_the_last_of_them() -> None:
    """A figure would be called exact that lacks what a worker did not tell."""
    full = table(*[row(f"x{n}", 100 - n) for n in range(TOP)], error=5, others=3)
    exact = table(row("a", 50))
    found = {one.name: one for one in merged([(exact, 1.0), (full, 1.0)], "client", "cost")}

    assert (0.0, 91.0) == (found["a"].above["cost"], found["a"].below["cost"])
    assert (5.0, 0.0) == (found["x0"].above["cost"], found["x0"].below["cost"])
