from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.routing.filters import FilterIndex, first_level, is_wildcard
from broker.routing.filters import matches as quickly_matches
from broker.session.subscriber import Subscriber
from tests.routing.reference import filters, matches, topics

people = [Subscriber() for _ in range(3)]
subscriptions = st.tuples(filters, st.sampled_from(people))


def index_of(*wanted: bytes) -> tuple[FilterIndex, dict[Subscriber, bytes]]:
    """An index with one subscriber for each filter, and the filter of each."""
    index = FilterIndex()
    owner = {Subscriber(): filter for filter in wanted}
    for subscriber, filter in owner.items():
        index.add(filter, subscriber)
    return index, owner


def found(topic: bytes, *wanted: bytes) -> list[bytes]:
    index, owner = index_of(*wanted)
    return sorted(owner[subscriber] for subscriber in index.match(topic))


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        (b"a", [b"#", b"+", b"a", b"a/#"]),  # 4.7.1.2: "a/#" is for "a" as well
        (b"a/b", [b"#", b"+/+", b"+/b", b"a/#", b"a/+"]),
        (b"a/", [b"#", b"+/+", b"a/#", b"a/+"]),
        (b"/", [b"#", b"+/+"]),
        (b"/a", [b"#", b"+/+", b"/a"]),
        (b"$SYS/a", [b"$SYS/#", b"$SYS/+", b"$SYS/a"]),
        (b"$SYS", [b"$SYS/#"]),
    ],
)
def test_the_examples_of_the_specification(topic: bytes, expected: list[bytes]) -> None:
    """Wildcards, the parent of "#", empty levels and "$" topics would be matched wrongly."""
    wanted = [b"#", b"+", b"+/+", b"+/b", b"/a", b"a", b"a/#", b"a/+", b"$SYS/#", b"$SYS/+", b"$SYS/a"]
    assert expected == found(topic, *wanted)


@given(st.lists(subscriptions, max_size=12), topics)
def test_a_match_is_what_the_rules_say(wanted: list[tuple[bytes, Subscriber]], topic: bytes) -> None:
    """Somebody would miss a message, or get it who should not [MQTT-3.3.2-3], or twice for one filter."""
    index = FilterIndex()
    for filter, subscriber in wanted:
        index.add(filter, subscriber)

    expected = Counter(subscriber for filter, subscriber in set(wanted) if matches(filter, topic))

    assert expected == Counter(index.match(topic))


@given(st.lists(st.tuples(st.booleans(), subscriptions), max_size=40), topics)
def test_add_and_remove_keep_exactly_what_is_subscribed(
    steps: list[tuple[bool, tuple[bytes, Subscriber]]], topic: bytes
) -> None:
    """Peers would hear a wrong first or last of a filter, counts would drift, or nodes would leak."""
    index = FilterIndex()
    model: dict[bytes, set[Subscriber]] = {}
    for adding, (filter, subscriber) in steps:
        present = model.setdefault(filter, set())
        if adding:
            assert (not present) == index.add(filter, subscriber)
            present.add(subscriber)
        else:
            assert (present == {subscriber}) == index.remove(filter, subscriber)
            present.discard(subscriber)
        pairs = [(filter, subscriber) for filter, present in model.items() for subscriber in present]
        assert (len({filter for filter, _ in pairs}), len(pairs)) == (index.filters(), index.subscribers())
        assert {filter for filter, _ in pairs} == set(index.names())
        assert Counter(s for filter, s in pairs if matches(filter, topic)) == Counter(index.match(topic))

    for filter, present in model.items():
        for subscriber in present:
            index.remove(filter, subscriber)

    assert (0, 0, 0) == (index.filters(), index.subscribers(), index._wildcards.levels)
    assert index._wildcards.root.first is None


def test_many_subscribers_of_one_filter_keep_their_order() -> None:
    """Fan-out would lose or reorder receivers when the container is made, shrinks and goes."""
    index = FilterIndex()
    crowd = [Subscriber() for _ in range(20_000)]
    assert [True] + [False] * 19_999 == [index.add(b"a/+", subscriber) for subscriber in crowd]
    assert crowd == index.match(b"a/b")

    assert [False] * 19_999 + [True] == [index.remove(b"a/+", subscriber) for subscriber in crowd]

    assert [] == index.match(b"a/b")


@pytest.mark.parametrize("end", [b"a", b"+", b"#"])
def test_ten_thousand_levels(end: bytes) -> None:
    """One filter of a hostile client would overflow the stack: adding, matching, removing, or freeing it."""
    filter = b"+/" * 10_000 + end
    index, owner = index_of(filter)

    assert [filter] == [owner[subscriber] for subscriber in index.match(b"b/" * 10_000 + b"a")]
    assert [] == index.match(b"b/" * 5_000)

    other, _ = index_of(filter)
    del other
    assert index.remove(filter, next(iter(owner)))
    assert 0 == index._wildcards.levels


def test_nested_wildcards_visit_a_level_once() -> None:
    """A filter with "+" and "#" at each of thirty levels would take 2**30 steps to match."""
    wanted = [b"+/" * depth + b"#" for depth in range(30)] + [b"a/" * depth + b"+/#" for depth in range(30)]

    assert sorted(set(wanted)) == sorted(set(found(b"/".join([b"a"] * 30), *wanted)))


def test_a_wildcard_is_seen() -> None:
    """An exact filter would cost a walk, or a wildcard filter would never match."""
    assert [False, False, True, True] == [is_wildcard(filter) for filter in (b"a", b"/", b"a/+/b", b"#")]


def test_the_first_level() -> None:
    """A change of a filter would leave routes of its topics standing."""
    assert [b"a", b"a", b"", b"$SYS"] == [first_level(name) for name in (b"a", b"a/b/c", b"/a", b"$SYS/a")]


def test_removing_what_is_not_there_changes_nothing() -> None:
    """An UNSUBSCRIBE that fits nothing would take another's subscription."""
    index, stranger = FilterIndex(), Subscriber()
    present = [Subscriber() for _ in range(3)]
    for count, subscriber in enumerate(present):
        assert not index.remove(b"a", stranger)
        index.add(b"a", subscriber)
        index.add(b"a", subscriber)
        assert count + 1 == index.subscribers()

    assert not index.remove(b"a", stranger)
    assert present == index.match(b"a")


@example(b"a/b", b"a/b")
@example(b"+", b"$a")
@example(b"#", b"$a/b")
@example(b"a/b/#", b"a")
@given(filters, topics)
def test_one_filter_matches_as_the_rules_say(filter: bytes, topic: bytes) -> None:
    """A client whose filters overlap would get two copies of a message, or none."""
    assert matches(filter, topic) == quickly_matches(filter, topic)
