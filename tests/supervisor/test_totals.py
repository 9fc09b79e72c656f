from typing import Any

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.overload_figures import OverloadFigures
from broker.metrics.report import Report
from broker.metrics.report import report as report_of
from broker.reasons import PauseReason
from supervisor.totals import Totals


def report(packets: int, connected: int, **dropped: int) -> dict[str, Any]:
    return {
        "counters": {"packets_received": packets},
        "reasons": {"dropped": dropped, "closed": {}, "refused": {}},
        "gauges": {"connected": connected, "retained": 8 - connected},
        "overload": {},
    }


def test_a_counter_never_goes_back_when_a_worker_dies() -> None:
    """Prometheus takes a lower counter for a restart, and would show a burst of traffic that did not happen."""
    totals = Totals()
    totals.add_ended(report(100, 7, expired=3))
    totals.add_ended({})  # died before its first report

    told = totals.sum([report(10, 2, expired=1, too_large=1), report(1, 1)])

    assert {"packets_received": 111} == told["counters"]
    assert {"expired": 4, "too_large": 1} == told["reasons"]["dropped"]
    gauges = {"connected": 3, "retained": 7}  # each worker has all of those
    assert gauges == {name: told["gauges"][name] for name in gauges}
    assert told == totals.sum([report(10, 2, expired=1, too_large=1), report(1, 1)])


def busy(level: int, throttled: int, p99_ms: float) -> Report:
    counters = Counters()
    counters.paused(PauseReason.CREDITS)
    counters.paused_ms_by_reason["credits"] = 100
    overload = OverloadFigures(level=level, cause=f"cause {level}", signals={"lag": level / 2}, throttled=throttled)
    return report_of(counters, Gauges(clients_connected=4, non_writable=1, p99_ms=p99_ms, overload=overload))


def test_the_overload_of_a_node_is_that_of_its_running_workers() -> None:
    """Levels and latencies would be added up, or an ended worker count as overloaded for ever."""
    totals = Totals()
    totals.add_ended(busy(9, 7, 900.0))

    told = totals.sum([busy(3, 2, 5.0), {}, busy(4, 1, 3.0)])

    overload = told["overload"]
    assert (4, "cause 4", 3, {"lag": 2.0}) == tuple(overload[key] for key in ("level", "cause", "throttled", "signals"))
    assert (5.0, 2) == (told["gauges"]["p99_ms"], told["gauges"]["non_writable"])
    assert {"credits": 3} == told["reasons"]["pauses"]  # those of the dead happened, too
    assert {"credits": 300} == told["reasons"]["paused_ms"]
    assert 0 == totals.sum([])["overload"]["level"]
