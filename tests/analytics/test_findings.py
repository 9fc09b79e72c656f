# Findings: what is about to go wrong, and who does more than their share.
import pytest

from analytics.findings import ALARM, FORGOTTEN, seconds_left
from broker.config.schema import Overload
from broker.overload.level import STEP, Level
from tests.analytics.seconds import Fold, T, hitter, second


def rising(start: float, slope: float, seconds: int = 10, noise: float = 0.0) -> Fold:
    fold = Fold()
    for at in range(seconds):
        value = start + slope * at + noise * (-1) ** at
        fold.add(second(at, signals={"memory": value, "lag": 0.3}), second(at, worker=2, signals={"lag": 0.2}))
    return fold


def test_a_signal_that_rises_is_warned_of_before_it_is_an_overload() -> None:
    """There is time to do something, and nobody is told."""
    assert rising(0.5, 0.02).findings["warnings"] == [
        {
            "node": "a",
            "worker": 1,
            "signal": "memory",
            "value": pytest.approx(0.68),
            "slope": 0.02,
            "seconds_left": 38.1,
            "said": "The signal memory of worker a/1 is at 0.68 of its target and rises by 0.02 per second: "
            "level 5 in about 38 s if the trend continues.",
        }
    ]


@pytest.mark.parametrize(
    "fold",
    [
        rising(0.9, 0.0),
        rising(0.9, -0.02),
        rising(0.5, 0.02, noise=0.2),  # it may as well be level
        rising(0.5, 0.02, seconds=4),  # too short to say
        rising(0.1, 0.011),  # more than a minute
    ],
)
def test_what_does_not_clearly_rise_is_not_warned_of(fold: Fold) -> None:
    """Who is warned of nothing every day does not look any more."""
    assert [] == fold.findings["warnings"]


def test_who_is_at_the_level_already_is_not_warned_of() -> None:
    """It is an episode by then."""
    fold = Fold()
    for at in range(10):
        fold.add(second(at, level=ALARM, cause="memory", signals={"memory": 1 + 0.1 * at}))

    assert [] == fold.findings["warnings"]


@pytest.mark.parametrize(("value", "slope"), [(0.5, 0.05), (0.2, 0.3), (0.99, 0.02), (1.2, 0.1), (0.0, 1.0)])
def test_the_time_that_is_left_is_that_of_the_brokers_own_rule(value: float, slope: float) -> None:
    """A warning of another rule than the broker has would be wrong by any factor."""
    level = Level(Overload())
    level.step(value)
    level.value = 0.0
    steps = 0
    while level.value < ALARM:
        steps += 1
        level.step(value + slope * STEP * steps, "memory")

    assert steps * STEP == pytest.approx(seconds_left(0, value, slope), abs=0.5)


def test_a_worker_that_does_more_than_its_share_is_named() -> None:
    """Three quarters of a node stand idle while it is overloaded."""
    rows = [second(0, worker, cost_in=20_000 if worker == 3 else 2000) for worker in range(4)]

    assert [
        {
            "of": "workers of a",
            "busiest": "a/3",
            "ratio": 3.08,
            "said": "a/3 has 3.1 times the mean load of the 4 workers of a.",
        }
    ] == Fold().add(*rows).findings["skew"]


def test_a_node_that_does_more_than_its_share_is_named() -> None:
    """A load balancer that sends all to one node is found nowhere else."""
    fold = Fold().add(second(0, cost_in=30_000), second(0, node="b", cost_in=3000), second(0, node="c"))

    assert [("nodes", "a", 2.65)] == [(each["of"], each["busiest"], each["ratio"]) for each in fold.findings["skew"]]


def test_who_does_little_is_not_compared() -> None:
    """One message against none is infinitely uneven, and nobody minds."""
    assert [] == Fold().add(second(0, cost_in=900), second(0, worker=2, cost_in=0)).findings["skew"]


def test_slow_readers_are_told_since_when() -> None:
    """A reader that was slow for a moment is nothing; for an hour, it is broken."""
    fold = Fold().add(second(0), second(1, non_writable=2)).add(second(2, non_writable=1, outbound_bytes=250))
    assert [{"node": "a", "worker": 1, "non_writable": 1, "outbound_share": 0.25, "since": T + 1.0}] == (
        fold.findings["slow_readers"]
    )

    assert [] == fold.add(second(3)).findings["slow_readers"]


def test_credit_pressure_is_of_a_node_whose_clients_are_granted_less() -> None:
    """At level 0 every client that publishes has used some: that is no pressure."""
    fold = Fold().add(
        second(0, using_credits=5, connected=10, average_credits=100.0, credits_per_tick=350),
        second(0, worker=2, using_credits=1, connected=30, average_credits=500.0, credits_per_tick=750),
        second(0, node="b", using_credits=9),
    )

    assert [
        {"node": "a", "using_credits": 6, "connected": 40, "average_credits": 400.0, "credits_per_tick": 350}
    ] == fold.findings["credit_pressure"]


def test_who_cost_most_is_told_over_ten_seconds_and_a_minute() -> None:
    """Who was loud a minute ago, and who is now, are two questions."""
    fold = Fold()
    for at in range(70):
        clients = [hitter("early", 100 if at < 40 else 0), hitter("now", 30)]
        fold.add(second(at, clients=clients, topics=[hitter("t", 7)]))

    found = fold.findings
    assert [("now", 300)] == [(each["name"], each["cost"]) for each in found["clients"]["10"]]
    assert [("early", 3000), ("now", 1800)] == [(each["name"], each["cost"]) for each in found["clients"]["60"]]
    assert [("t", 420)] == [(each["name"], each["cost"]) for each in found["topics"]["60"]]


def test_a_worker_that_says_nothing_any_more_is_not_spoken_of() -> None:
    """It is stopped, and would have slow readers for ever."""
    fold = Fold().add(second(0, worker=2, non_writable=3), second(0))
    for at in range(1, FORGOTTEN + 5):
        fold.add(second(at))

    assert [] == fold.findings["slow_readers"]
    assert ["a/1"] == list(fold.state["findings"]["workers"])
