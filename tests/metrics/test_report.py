# The report of a worker, and the sum of a node.
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.report import report, with_others
from broker.metrics.rows import GREATEST
from broker.metrics.table import COUNTERS, GAUGES, REASONS


def counted(times: int) -> Counters:
    """Counters of which each has another value, multiplied by *times*."""
    counters = Counters()
    for number, row in enumerate(COUNTERS, 1):
        if not row.computed:
            setattr(counters, row.attribute, number * times)
    for number, by in enumerate(REASONS, 1):
        labels = list(getattr(counters, by.attribute))
        setattr(counters, by.attribute, dict.fromkeys(labels[:2], number * times))
    return counters


def held(times: int) -> Gauges:
    gauges = Gauges()
    for number, row in enumerate(GAUGES, 1):
        setattr(gauges, row.attribute, number * times)
    return gauges


def test_a_report_has_each_counter_and_each_gauge() -> None:
    """The supervisor would not get a counter that the table declares."""
    told = report(counted(1), held(1))

    counters = {row.attribute: number for number, row in enumerate(COUNTERS, 1) if not row.computed}
    assert counters.items() <= told["counters"].items()
    assert counters["publishes_sent"] + counters["answers_sent"] == told["counters"]["packets_sent"]
    assert {row.reported: number for number, row in enumerate(GAUGES, 1)} == told["gauges"]
    assert [2 * [number] for number, _ in enumerate(REASONS, 1)] == [
        list(told["reasons"][row.reported].values()) for row in REASONS
    ]


def test_the_sum_of_a_node_has_each_counter_and_each_gauge() -> None:
    """$SYS would show the value of one worker as that of the node."""
    counters, gauges = with_others(counted(1), held(1), report(counted(10), held(10)))

    expected = counted(11)
    assert [getattr(expected, row.attribute) for row in COUNTERS] == [
        getattr(counters, row.attribute) for row in COUNTERS
    ]
    assert [getattr(expected, row.attribute) for row in REASONS] == [
        getattr(counters, row.attribute) for row in REASONS
    ]
    for number, row in enumerate(GAUGES, 1):
        assert number * (10 if row.node == GREATEST else 11) == getattr(gauges, row.attribute), row.attribute


def test_without_others_a_worker_is_the_node() -> None:
    """The figures of a node with one worker would be missing, or counted twice."""
    counters, gauges = counted(1), held(1)
    assert (counters, gauges) == with_others(counters, gauges, {})
