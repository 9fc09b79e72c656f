# How the member that leads a consumer group gives out the partitions.
from hypothesis import given
from hypothesis import strategies as st

from broker.carrier.kafka_groups import shares


@given(st.dictionaries(st.text(max_size=3), st.sets(st.integers(0, 15)), min_size=1, max_size=8), st.integers(0, 14))
def test_all_members_have_as_many_and_keep_what_they_have(owned: dict[str, set[int]], partitions: int) -> None:
    """A partition would be read by nobody, or each change of a group move all of them."""
    given = shares(owned, partitions)

    assert list(range(partitions)) == sorted(number for each in given.values() for number in each)
    sizes = [len(each) for each in given.values()]
    assert max(sizes) - min(sizes) <= 1
    assert {name: sorted(each) for name, each in given.items()} == shares(given, partitions), "it is at rest"


def test_who_joins_takes_no_more_than_its_part() -> None:
    """Partitions would change their readers without need."""
    assert {"a": [0, 1, 2], "b": [3, 4], "c": [5, 6]} == {
        name: sorted(each) for name, each in shares({"a": [0, 1, 2, 3], "b": [3, 4], "c": []}, 7).items()
    }
