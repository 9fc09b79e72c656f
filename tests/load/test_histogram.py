import pickle

from hypothesis import given
from hypothesis import strategies as st

from cli.load.histogram import BUCKETS, GREATEST, LINEAR, Histogram, upper

VALUES = st.lists(st.integers(0, GREATEST), min_size=1)


def filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value, 1)
    return histogram


@given(VALUES, st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_quantile_is_that_of_the_values_to_a_bucket(values: list[int], share: float) -> None:
    """Latencies would be reported that nobody had."""
    wanted = max(1, -int(-share * len(values) // 1))
    exact = sorted(values)[wanted - 1]

    assert exact <= filled(values).quantile(share) <= exact + exact // LINEAR


@given(VALUES, VALUES)
def test_merged_histograms_are_the_histogram_of_all(some: list[int], others: list[int]) -> None:
    """What several processes saw would not add up; one of them is another process's, so it was pickled."""
    merged = filled(some)
    merged.merge(pickle.loads(pickle.dumps(filled(others))))
    whole = filled(some + others)

    assert whole.counts == merged.counts
    assert (whole.count, whole.total, whole.greatest) == (merged.count, merged.total, merged.greatest)


def test_the_buckets_cover_all_values_without_gap() -> None:
    """A value between two buckets would be counted in neither, or be out of all bounds."""
    assert GREATEST == upper(BUCKETS - 1)
    for index in range(BUCKETS):
        histogram = Histogram()
        histogram.add(upper(index), 1)
        if index + 1 < BUCKETS:
            histogram.add(upper(index) + 1, 1)
            assert [1, 1] == histogram.counts[index : index + 2]
        assert 1 == histogram.counts[index]


def test_values_out_of_range_are_counted_at_its_ends() -> None:
    """A clock that jumps would end a measurement in an error."""
    histogram = Histogram()
    histogram.add(-5, 2)
    histogram.add(GREATEST * 3, 1)

    assert (2, 1) == (histogram.counts[0], histogram.counts[-1])
    assert GREATEST * 3 == histogram.greatest == histogram.quantile(1.0) or GREATEST == histogram.quantile(1.0)


def test_an_empty_histogram_has_no_values() -> None:
    """A load without a delivery could not be reported."""
    assert (0, 0.0, []) == (Histogram().quantile(0.5), Histogram().mean(), Histogram().buckets())
