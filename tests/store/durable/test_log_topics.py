# The topics of filters that APPLICATION clients share.
import itertools
import string

import pytest

from broker.store.durable.log_topics import SHARED, partition_of, shared_topic_of, topic_of

HASHED = SHARED + "sha256-"
ALLOWED = set(string.ascii_letters + string.digits + "._-")


@pytest.mark.parametrize(
    ("filter", "name"),
    [
        (b"city/1/temperature", "city.1.temperature"),
        (b"city/+/temperature", "city.slw.temperature"),
        (b"city/#", "city.mlw"),
        (b"#", "mlw"),
        (b"/", "."),
    ],
)
def test_a_topic_has_the_name_that_operators_know_from_the_filter(filter: bytes, name: str) -> None:
    """The tools of Kafka would not show whose messages a topic has."""
    assert SHARED + name == shared_topic_of(filter)


@pytest.mark.parametrize("filter", [b"a.b", b"a b", b"slw/a", b"a/mlw", b"\xc3\xa9", b"a" * 201, b"a_b", b"$SYS/a"])
def test_a_filter_with_other_characters_is_hashed(filter: bytes) -> None:
    """Kafka would refuse the name, or two filters have the messages of each other."""
    name = shared_topic_of(filter)

    assert name.startswith(HASHED)
    assert len(name) <= 249 and set(name) <= ALLOWED


def test_no_two_filters_share_a_topic() -> None:
    """A group would be given what was published for another filter."""
    levels = (b"", b"a", b"+", b"slw", b"#", b"mlw", b"a.a", b"sha256")
    filters = {b"/".join(each) for count in (1, 2, 3) for each in itertools.product(levels, repeat=count)}
    names = {shared_topic_of(filter) for filter in filters}

    assert len(filters) == len(names)
    assert topic_of(b"shared") not in names


def test_the_partition_of_a_topic_name_is_the_same_at_every_worker() -> None:
    """Messages of one topic name would come in any order."""
    assert 0xE8B7BE43 % 12 == partition_of(b"a", 12)  # CRC-32 of "a"
    assert set(range(12)) == {partition_of(b"t/%d" % number, 12) for number in range(1000)}
