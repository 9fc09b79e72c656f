from broker.metrics.counters import Counters
from broker.reasons import CloseReason, DropReason


def test_every_reason_is_counted_by_its_label() -> None:
    """A close or a drop would not be seen, or be counted as another."""
    counters = Counters()
    for close in CloseReason:
        counters.closed(close)
    for drop in DropReason:
        counters.dropped(drop, 3)
    counters.closed(CloseReason.SLOW_CONSUMER)

    assert {
        reason.label: 1 + (reason is CloseReason.SLOW_CONSUMER) for reason in CloseReason
    } == counters.closed_by_reason
    assert {reason.label: 3 for reason in DropReason} == counters.dropped_by_reason
    assert 3 * len(DropReason) == counters.publishes_dropped
