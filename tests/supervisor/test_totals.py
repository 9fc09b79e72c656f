from typing import Any

from supervisor.totals import Totals


def report(packets: int, connected: int, **dropped: int) -> dict[str, Any]:
    return {
        "counters": {"packets_received": packets},
        "reasons": {"dropped": dropped, "closed": {}, "refused": {}},
        "gauges": {"connected": connected},
    }


def test_a_counter_never_goes_back_when_a_worker_dies() -> None:
    """Prometheus would take a death for a restart of everything, and show a burst that never was."""
    totals = Totals()
    totals.bury(report(100, 7, expired=3))
    totals.bury({})  # died before its first report

    told = totals.with_([report(10, 2, expired=1, too_large=1), report(1, 1)])

    assert {"packets_received": 111} == told["counters"]
    assert {"expired": 4, "too_large": 1} == told["reasons"]["dropped"]
    assert {"connected": 3} == told["gauges"]
    assert told == totals.with_([report(10, 2, expired=1, too_large=1), report(1, 1)])
