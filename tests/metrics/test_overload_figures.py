import pytest

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures, together
from broker.metrics.report import report, with_others
from broker.reasons import DropReason, PauseReason

CALM = OverloadFigures()
BUSY = OverloadFigures(
    level=6,
    cluster_level=6,
    cause="gate:redis",
    signals={"lag": 0.5, "gate:redis": 3.0},
    credits_per_tick=750,
    using_credits=30,
    average_credits=1000.0,
    throttled=9,
)
BUSIER = OverloadFigures(
    level=7,
    cluster_level=8,
    cause="lag",
    signals={"lag": 4.0},
    credits_per_tick=350,
    using_credits=5,
    average_credits=500.0,
    throttled=1,
)


def test_workers_together_are_as_their_worst_and_have_all_clients() -> None:
    """The figures of a node would be those of one worker, or levels would be added."""
    assert (
        OverloadFigures(
            level=7,
            cluster_level=8,
            cause="lag",
            signals={"lag": 4.0, "gate:redis": 3.0},
            credits_per_tick=350,
            using_credits=35,
            average_credits=(1000.0 * 30 + 500.0 * 10) / 40,
            throttled=10,
        )
        == together([(BUSY, 30), (BUSIER, 10)])
        == together([(BUSIER, 10), (BUSY, 30)])
    )


def test_nobody_is_calm() -> None:
    """A node without running workers would raise, or report an overload."""
    assert CALM == together([]) == together([(CALM, 0)])


def test_a_worker_tells_of_the_whole_node() -> None:
    """$SYS would show one worker's figures, and depend on the worker that the client is connected to."""
    own, other = Counters(), Counters()
    for counters in (own, other):
        counters.paused(PauseReason.GATE)
        counters.paused_ms_by_reason["gate"] = 20
        counters.dropped(DropReason.NOT_WRITABLE, 2)
        counters.became_non_writable = 3
        counters.flushes_by_cause["tick"] = 4
    here = Gauges(clients_connected=30, non_writable=1, paused=2, p50_ms=1.0, p99_ms=9.0, overload=BUSY)
    there = Gauges(clients_connected=10, non_writable=3, paused=4, p50_ms=2.0, p99_ms=8.0, overload=BUSIER)

    counters, gauges = with_others(own, here, report(other, there))

    assert together([(BUSY, 30), (BUSIER, 10)]) == gauges.overload
    assert (40, 4, 6) == (gauges.clients_connected, gauges.non_writable, gauges.paused)
    assert (2.0, 9.0) == (gauges.p50_ms, gauges.p99_ms)
    assert (2, 40) == (counters.pauses_by_reason["gate"], counters.paused_ms_by_reason["gate"])
    assert (6, 8) == (counters.became_non_writable, counters.flushes_by_cause["tick"])
    assert 4 == counters.dropped_by_reason["not_writable"]


@pytest.mark.parametrize("figures", [CALM, BUSY])
def test_alone_a_worker_is_the_node(figures: OverloadFigures) -> None:
    """A node with one worker would have no figures."""
    gauges = Gauges(clients_connected=5, overload=figures)

    assert figures == with_others(Counters(), gauges, {})[1].overload
