# The topics of filters that APPLICATION clients share.
import hashlib
import itertools
import string

import pytest

from broker.store.durable.log_topics import (
    SHARED,
    group_of,
    partition_of,
    shared_group_of,
    shared_topic_of,
    topic_of,
)

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


def test_the_tools_of_kafka_know_the_groups_by_the_names_of_clients_and_shares() -> None:
    """Nobody could tell whose lag is shown."""
    topic = shared_topic_of(b"city/#")

    assert "application-persisted-msg-consumer-group-app1" == group_of(topic_of(b"app1"))
    assert "application-shared-msg-consumer-group-g1-weir.msg.app.shared.city.mlw" == shared_group_of(b"g1", topic)


def test_no_two_groups_share_a_name() -> None:
    """The lag of one would be shown as that of another."""
    topics = [shared_topic_of(filter) for filter in (b"a", b"b", b"a/b", b"a.b", b"#")]
    shares = [b"", b"a", b"A", b"a-b", b"a b", b"\xc3\xa9", b"\xff", b"\xfe", b"a" * 201, b"a" * 202]
    shares += [b"x-" + topics[0].encode(), shared_group_of(b"a b", topics[1]).encode()]
    shares += [f"sha256-{'0' * 64}".encode(), f"sha256-{hashlib.sha256(b'a b').hexdigest()}".encode()]
    names = {shared_group_of(share, topic) for share in shares for topic in topics}

    assert len(shares) * len(topics) == len(names)
