# How many levels of filters a match visits, and what bounds it.
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from broker.routing.filters import FilterIndex
from broker.routing.patterns import Patterns, patterns_of_worker
from broker.session.subscriber import Subscriber
from tests.routing.reference import filters, topics

PLENTY = 1 << 40


def every_combination(levels: int) -> list[bytes]:
    """Filters that match a/a/... of *levels* levels: 2**levels of them."""
    return [b"/".join(names) for names in product((b"a", b"+"), repeat=levels)]


@given(st.lists(filters, max_size=30, unique=True), topics)
def test_a_match_visits_no_more_than_there_are_patterns(wanted: list[bytes], topic: bytes) -> None:
    """The limit would bound nothing: a match that visits too much stops a worker, and patterns are what is limited."""
    index, patterns = FilterIndex(), Patterns(PLENTY, PLENTY)
    for filter in wanted:
        index.add(filter, Subscriber())
        patterns.add(filter, False, "me")
    index.match(topic)

    assert index.visited <= len(patterns) + len(topic.split(b"/")) + 1


@given(
    st.lists(st.tuples(filters, st.booleans(), st.sampled_from(["a", "b"])), max_size=30, unique_by=lambda it: it[:2])
)
def test_nothing_stays_of_filters_that_are_gone(wanted: list[tuple[bytes, bool, str]]) -> None:
    """The limit would fill up while clients come and go, until nobody could subscribe any more."""
    patterns = Patterns(PLENTY, PLENTY)
    for filter, shared, client_id in wanted:
        patterns.add(filter, shared, client_id)
    for filter, shared, _ in wanted[::-1]:
        patterns.remove(filter, shared)

    assert (0, ("", 0)) == (len(patterns), patterns.largest())


def test_filters_in_every_combination_are_refused_and_others_are_not() -> None:
    """A client with 8 192 filters made each match visit 170 000 levels, and stopped every worker of the node."""
    patterns = patterns_of_worker(4096)
    taken = 0
    for filter in every_combination(13):
        whole = filter + b"/+" * 19
        if patterns.fits(whole, False, "attacker"):
            patterns.add(whole, False, "attacker")
            taken += 1

    assert 1024 >= len(patterns) > 900
    assert ("attacker", len(patterns)) == patterns.largest()
    assert 100 > taken
    assert patterns.fits(b"site/+/room/+/temperature", False, "honest")


def test_clients_that_subscribe_alike_share_their_patterns() -> None:
    """A fleet of a hundred thousand clients would meet the limit."""
    patterns = Patterns(4, 4)
    for number in range(1000):
        filter = b"site/%d/+/alarm" % number
        assert patterns.fits(filter, False, f"client {number}")
        patterns.add(filter, False, f"client {number}")

    assert 2 == len(patterns)


def test_a_client_leaves_room_for_others() -> None:
    """One client would use up the limit of a worker, and all others were refused what it wastes."""
    patterns = Patterns(8, 4)
    for filter in (b"+", b"+/a", b"+/+", b"a/+"):
        assert patterns.fits(filter, False, "greedy")
        patterns.add(filter, False, "greedy")

    assert not patterns.fits(b"a/a/+", False, "greedy")
    assert patterns.fits(b"a/a/+", False, "other")
    assert patterns.fits(b"a/#", False, "greedy")  # no pattern: "#" is looked up at each level anyway


def test_a_shared_subscription_has_patterns_of_its_own() -> None:
    """Shared subscriptions are matched in an index of their own: what is in the other one says nothing of it."""
    patterns = Patterns(1, 1)
    patterns.add(b"+", False, "me")

    assert patterns.fits(b"+", False, "me")
    assert not patterns.fits(b"+", True, "me")
