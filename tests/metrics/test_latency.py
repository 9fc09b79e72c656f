from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from broker.metrics.latency import GREATEST, LINEAR, Latencies

DURATIONS = st.lists(st.floats(0, 200) | st.floats(0, 0.001), min_size=1, max_size=60)
MICROSECOND = 1e-6


@given(DURATIONS, st.floats(0.01, 1))
def test_a_quantile_is_never_too_low_and_hardly_too_high(durations: list[float], share: float) -> None:
    """Quantiles would be too low, or further above the truth than stated."""
    latencies = Latencies()
    for duration in durations:
        latencies.add(duration, 1)
    rank = max(1, ceil(share * len(durations)))
    true = sorted(durations)[rank - 1]

    told = latencies.quantile(share)

    assert true <= told * (1 + 1e-9)
    assert told <= (true + MICROSECOND) * (1 + 1 / LINEAR) + 1e-9


def test_so_many_at_once_count_as_so_many() -> None:
    """The acknowledgements of a whole slice would count as one."""
    latencies = Latencies()
    latencies.add(0.001, 98)
    latencies.add(1.0, 2)

    assert 100 == latencies.count
    assert latencies.quantile(0.98) < 0.0011 < 1.0 <= latencies.quantile(0.99)


def test_no_duration_is_out_of_range() -> None:
    """A negative time, or one of an hour, would fail the worker."""
    latencies = Latencies()
    latencies.add(-0.5, 1)
    latencies.add(3600.0, 1)

    assert latencies.quantile(0.5) <= MICROSECOND * 1.01
    assert GREATEST * MICROSECOND <= latencies.quantile(1.0) <= (GREATEST + 1) * MICROSECOND


def test_nothing_took_no_time() -> None:
    """The first record, or one of a quiet second, could not be made."""
    latencies = Latencies()
    assert 0.0 == latencies.quantile(0.99)
    latencies.add(1.0, 5)
    latencies.clear()

    assert (0, 0.0) == (latencies.count, latencies.quantile(0.99))
