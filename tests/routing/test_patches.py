# Routes that are changed in place, as receivers come and go.
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.mqtt.packets import Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.overload.gate import Gate
from broker.routing.neighbour import Neighbour
from broker.routing.overlapping import EVERYONE, FEW
from broker.routing.route import FEW_GROUPS, FEW_RECEIVERS, PLACE_BYTES, RECEIVER_BYTES, Route
from broker.routing.sizes import ROUTE
from broker.session.message import NEVER, Message
from broker.session.storage import SessionStorage
from broker.worker_id import WorkerId
from tests.routing.party import Party, receivers
from tests.routing.reference import matches
from tests.session.receiver import NOW, Receiver


def crowd(count: int) -> tuple[Party, Route]:
    """*count* subscribers of one topic, whose names are numbers, and its route."""
    party = Party()
    for number in range(count):
        party.subscribe(f"{number}", b"t")
    return party, party.routes.find(b"t")


@pytest.mark.parametrize("count", [2, FEW_RECEIVERS + 10])
def test_a_receiver_that_leaves_leaves_the_others(count: int) -> None:
    """A client that unsubscribes would still be served, or take others with it, or have the route made again."""
    party, route = crowd(count)
    gone = {"0", f"{count // 2}"}
    for name in gone:
        party.unsubscribe(name, b"t")
    party.subscribe("new", b"t")
    party.unsubscribe("new", b"t")
    party.subscribe("late", b"t")

    assert route is party.routes.find(b"t")
    assert set(party.clients) - gone - {"new"} == set(party.publish(b"t"))
    assert (count - 2 + 1, count - 2 + 1) == (route.receivers, route.price)


def test_a_group_that_grew_after_some_left_still_knows_its_receivers() -> None:
    """A receiver of a large group could not unsubscribe, or another would go in its place."""
    party, _ = crowd(10)
    party.unsubscribe("3", b"t")
    for number in range(10, FEW_RECEIVERS + 10):
        party.subscribe(f"{number}", b"t")
    for name in ("1", "70"):
        party.unsubscribe(name, b"t")

    assert set(party.clients) - {"3", "1", "70"} == set(party.publish(b"t"))


def test_what_finds_the_receivers_of_a_large_group_is_made_once_and_counted() -> None:
    """Each of twenty thousand that leave would cost a look at all of them, or the cache hold more than it knows."""
    few, route = crowd(FEW_RECEIVERS)
    few.unsubscribe("0", b"t")
    assert route.groups[0]._places is None

    party, route = crowd(FEW_RECEIVERS + 1)
    (group,) = route.groups
    before = route.size
    party.unsubscribe("0", b"t")
    places = group._places
    assert places is not None and before + PLACE_BYTES * (FEW_RECEIVERS + 1) == route.size

    party.subscribe("new", b"t")
    party.unsubscribe("1", b"t")

    assert places is group._places
    assert before + PLACE_BYTES * (FEW_RECEIVERS + 2) + RECEIVER_BYTES == route.size


def test_a_fan_out_under_way_keeps_its_place_when_receivers_leave() -> None:
    """A receiver would be skipped, or served twice, because another left."""
    party, route = crowd(10)
    (group,) = route.groups
    sent = Message(b"t", b"", 0, False, b"", NEVER)
    group.deliver(sent, 0, 3, None, NOW)
    for name in "0125":
        party.unsubscribe(name, b"t")
    group.deliver(sent, 3, len(group.sessions), None, NOW)

    served = [name for name, client in party.clients.items() for _ in client.payloads()]
    assert list("012346789") == served


def test_a_group_with_more_holes_than_receivers_is_replaced() -> None:
    """A topic whose subscribers come and go would grow without end; a fan-out under way would lose its place."""
    party, route = crowd(FEW_RECEIVERS + 10)
    (group,) = route.groups
    before = len(group.sessions)
    for number in range(before - 2):
        party.unsubscribe(f"{number}", b"t")

    (successor,) = route.groups
    assert successor is not group
    assert before == len(group.sessions)
    assert len(successor.sessions) <= 4
    assert route is party.routes.find(b"t")
    assert {f"{before - 2}": 1, f"{before - 1}": 1} == party.publish(b"t")
    for number in (before - 2, before - 1):
        party.unsubscribe(f"{number}", b"t")
    assert len(b"t") + ROUTE == route.size


def test_who_comes_after_a_group_was_replaced_joins_the_new_one() -> None:
    """A new receiver would join a group that nobody delivers to."""
    party, _ = crowd(10)
    for number in range(6):
        party.unsubscribe(f"{number}", b"t")
        party.subscribe("late", b"t")
        assert "late" in party.publish(b"t")
        party.unsubscribe("late", b"t")


@pytest.mark.parametrize("kinds", [3, FEW_GROUPS + 4])
def test_a_route_that_shrank_is_like_one_made_anew(kinds: int) -> None:
    """Receivers would be lost in groups that are no longer there, or the cache count what it does not hold."""
    party, fresh = Party(), Party()
    route = party.routes.find(b"t")
    for number in range(10 * kinds):
        party.subscribe(f"{number}", b"t", identifier=number % kinds + 1)
    for number in range(kinds, 7 * kinds):  # four of each kind stay
        party.unsubscribe(f"{number}", b"t")
    for number in [*range(kinds), *range(7 * kinds, 10 * kinds)]:
        fresh.subscribe(f"{number}", b"t", identifier=number % kinds + 1)

    anew = fresh.routes.find(b"t")
    assert route is party.routes.find(b"t")
    assert fresh.publish(b"t") == party.publish(b"t")
    assert (anew.size, anew.price, anew.receivers) == (route.size, route.price, route.receivers)

    for number in [*range(kinds), *range(7 * kinds, 10 * kinds)]:
        party.unsubscribe(f"{number}", b"t")
    for number in range(kinds):
        party.subscribe(f"{number}", b"t", identifier=number % kinds + 1)

    assert {f"{number}": 1 for number in range(kinds)} == party.publish(b"t")
    assert route is party.routes.find(b"t")


def test_the_filter_that_remains_of_two_still_counts() -> None:
    """A client that gives up one of two filters for a topic would get its messages no more."""
    party = Party()
    party.subscribe("a", b"#")
    party.subscribe("a", b"t")
    party.publish(b"t")

    party.unsubscribe("a", b"t")

    assert {"a": 1} == party.publish(b"t")


def test_the_last_receiver_takes_its_group_with_it() -> None:
    """Each subscription identifier that was ever in use would cost at every publish."""
    party = Party()
    route = party.routes.find(b"t")
    for identifier in range(1, 4):
        party.subscribe(f"{identifier}", b"t", identifier=identifier)
    for name in "12":
        party.unsubscribe(name, b"t")
    assert [[party.client("3").session]] == receivers(route)

    party.unsubscribe("3", b"t")

    assert ([], 0, 0) == (route.groups, route.receivers, route.price)
    assert len(b"t") + ROUTE == route.size
    assert route is party.routes.find(b"t")
    party.subscribe("1", b"t", identifier=1)
    assert {"1": 1} == party.publish(b"t")


def test_many_groups_are_found_like_few() -> None:
    """With many subscription identifiers a receiver would be put into a wrong group, or not be found."""
    party = Party()
    route = party.routes.find(b"t")
    count = 2 * FEW_GROUPS
    for number in range(1, 3 * count):
        party.subscribe(f"{number}", b"t", identifier=number % count + 1)
    assert count == len(route.groups)
    left = {f"{number}" for number in range(1, 3 * count) if number % 3 == 0}
    for name in set(party.clients) - left:
        party.unsubscribe(name, b"t")

    assert route is party.routes.find(b"t")
    for group in route.groups:
        group.deliver(Message(b"t", b"", 0, False, b"", NEVER), 0, len(group.sessions), None, NOW)
    told = {
        name: packet.properties[SUBSCRIPTION_IDENTIFIER]
        for name, client in party.clients.items()
        for packet in client.take()
        if isinstance(packet, Publish)
    }
    assert {name: [int(name) % count + 1] for name in left} == told


def test_only_many_groups_have_a_dict() -> None:
    """Each route would hold one for its single group, or a receiver be looked for among thousands of groups."""
    party, route = crowd(1)
    for number in range(1, FEW_GROUPS):
        party.subscribe(f"{number}", b"t", identifier=number)
    assert route._kinds is None

    party.subscribe("last", b"t", identifier=100)

    assert route._kinds == {group.kind(): group for group in route.groups}


def test_a_receiver_that_is_not_there_cannot_leave() -> None:
    """A route that has lost step with the subscriptions would go on unnoticed."""
    with pytest.raises(KeyError):
        Route(b"t", 0, 0, 0).remove(Receiver().session, 1, False, b"", EVERYONE)


def test_what_is_dear_to_deliver_has_its_price() -> None:
    """A client could make the worker busy with publishes that count as cheap."""
    plain, identified, shared = Party(), Party(), Party()
    plain.subscribe("a", b"t")
    identified.subscribe("a", b"t", identifier=1)
    shared.subscribe("a", b"t", share=b"g")

    prices = [party.routes.find(b"t").price for party in (plain, identified, shared)]

    assert 1 == prices[0] < prices[1] and prices[0] < prices[2]


def test_who_stores_messages_is_counted_as_they_come_and_go() -> None:
    """Publishes for durable sessions would cost what those cost that nobody stores; or go on costing it for ever."""
    party = Party()
    gate = Gate(Overload(), "weir/0 store", 1, NOW)
    for name in ("first", "second", "clean", "best effort"):
        if name != "clean":
            party.client(name).session.storage = SessionStorage(gate)
        party.subscribe(name, b"t", 0 if name == "best effort" else 1)
    route = party.routes.find(b"t")
    assert (4, 2) == (route.receivers, route.persistent)
    other = WorkerId("weir", 1, 1)
    for confirms in (False, True, True):
        route.add_neighbour(Neighbour(other, gate, confirms))
    assert (5, 3) == (route.receivers, route.persistent)
    for name in ("clean", "best effort", "second"):
        party.unsubscribe(name, b"t")

    assert route is party.routes.find(b"t")
    assert (2, 2) == (route.receivers, route.persistent)


def test_a_shared_group_comes_and_goes_in_place() -> None:
    """Workers that join a busy topic would have its route made again for each."""
    party, route = crowd(1)
    before = (route.receivers, route.price, route.size)
    party.subscribe("a", b"t", share=b"g")
    party.subscribe("b", b"t", share=b"g")
    assert {"0": 1, "a": 1} == party.publish(b"t")
    for name in "ab":
        party.unsubscribe(name, b"$share/g/t")

    assert route is party.routes.find(b"t")
    assert {"0": 1} == party.publish(b"t")
    assert before == (route.receivers, route.price, route.size)
    assert [] == route.shared


def test_shared_groups_that_come_and_go_leave_the_cache_as_it_was() -> None:
    """The cache would count a little less with each of them, and at last hold more than it may."""
    party = Party(size=4 * (ROUTE + 2))
    for _ in range(200):
        party.routes.find(b"00")
        party.subscribe("a", b"00", share=b"g")
        party.unsubscribe("a", b"$share/g/00")
    for number in range(10):
        party.routes.find(b"%02d" % number)

    assert 4 == party.routes.statistics()[0]


@pytest.mark.parametrize("others", [1, FEW + 5])
def test_filters_that_do_not_overlap_do_not_cost_a_route(others: int) -> None:
    """A client with a few filters would have the route made again; one with many would get two copies."""
    party = Party()
    for number in range(others):
        party.subscribe("a", b"other/%d" % number)
    party.subscribe("a", b"t", share=b"g")
    route = party.routes.find(b"t")
    party.subscribe("a", b"t")
    kept = party.routes.find(b"t")
    party.unsubscribe("a", b"t")

    assert (others <= FEW) == (kept is route)
    assert {"a": 1} == party.publish(b"t")


@pytest.mark.parametrize("crowded", [False, True])
def test_routes_that_grow_in_place_stay_within_the_bound(crowded: bool) -> None:
    """Subscribers of topics that are in the cache would fill the memory."""
    party = Party(size=20 * (ROUTE + 500))
    topics = [b"%02d" % number for number in range(20)]
    for topic in topics:
        party.routes.find(topic)
    for number in range(30):
        party.subscribe("a" if crowded else f"{number}", topics[-1], identifier=number + 1)
        for topic in topics:
            party.subscribe(f"{number}", topic, share=b"%d" % number)

    assert 0 < party.routes.statistics()[0] < 20


@pytest.mark.parametrize("share", [b"", b"g%d"])
def test_no_change_of_a_route_leads_beyond_the_bound(share: bytes) -> None:
    """Receivers, or shared groups, that come to topics in the cache would fill the memory."""
    limit = 5 * (ROUTE + RECEIVER_BYTES)
    party = Party(size=limit)
    for number in range(150):
        for topic in (b"t", b"u"):
            party.routes.find(topic)
        party.subscribe(f"{number}", b"t", share=share and share % number)
        assert party.routes._size <= limit


def test_leaving_a_large_group_leads_not_beyond_the_bound() -> None:
    """What finds the receivers of a large group is larger than the group, and comes when the first of them leaves."""
    party = Party(size=4000)
    party.routes.find(b"t")
    for number in range(FEW_RECEIVERS + 10):
        party.subscribe(f"{number}", b"t")
    assert 1 == party.routes.statistics()[0]

    party.unsubscribe("0", b"t")

    assert party.routes._size <= 4000


def test_a_route_is_in_the_cache_once() -> None:
    """Topics that are used again would take the room of two."""
    routes = Party(topics=4).routes
    made = [routes.find(topic) for topic in (b"a", b"b", b"c", b"d", b"e")]  # "d" went for "e"

    assert [made[0], made[1], made[2], made[4]] == [routes.find(topic) for topic in (b"a", b"b", b"c", b"e")]
    assert 4 == routes.statistics()[0]


def test_what_is_used_outlives_what_is_not() -> None:
    """A stream of new topics would push out the route of the busiest one."""
    party = Party(topics=10)
    busy = party.routes.find(b"busy")
    for number in range(50):
        party.routes.find(b"%d" % number)
        if number % 3 == 0:
            assert busy is party.routes.find(b"busy")
    assert 10 == party.routes.statistics()[0]


@dataclass(frozen=True)
class Options:
    qos: int
    no_local: bool
    as_published: bool
    identifier: int


NAMES = st.sampled_from("xyz")
FILTERS = st.sampled_from([b"a", b"b", b"a/b", b"a/+", b"a/#", b"+", b"#"])
OPTIONS = st.builds(Options, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2))
TOPICS = st.sampled_from([b"a", b"b", b"a/b"])


@given(st.lists(st.tuples(NAMES, FILTERS, st.none() | OPTIONS, TOPICS, NAMES), max_size=40))
def test_however_routes_are_patched_each_gets_what_it_subscribed_to(
    steps: list[tuple[str, bytes, Options | None, bytes, str]],
) -> None:
    """A client would get a message at a wrong QoS, with wrong identifiers, twice, or not at all."""
    party = Party(size=3 * (ROUTE + 500))
    held: dict[tuple[str, bytes], Options] = {}
    for name, filter, options, topic, publisher in steps:
        if options is not None:
            party.subscribe(
                name,
                filter,
                options.qos,
                no_local=options.no_local,
                as_published=options.as_published,
                identifier=options.identifier,
            )
            held[name, filter] = options
        elif held.pop((name, filter), None):
            party.unsubscribe(name, filter)

        route = party.routes.find(topic)
        sent = Message(topic, b"", 2, True, b"", NEVER)
        for group in route.groups:
            group.deliver(sent, 0, len(group.sessions), party.client(publisher).session, NOW)

        for each, client in party.clients.items():
            wanted = [
                one
                for (holder, held_filter), one in held.items()
                if holder == each and matches(held_filter, topic) and not (one.no_local and each == publisher)
            ]
            packets = [packet for packet in client.take() if isinstance(packet, Publish)]
            identifiers = sorted(one.identifier for one in wanted if one.identifier)
            assert len(packets) == (1 if wanted else 0)
            for packet in packets:
                assert max(one.qos for one in wanted) == packet.qos
                assert any(one.as_published for one in wanted) == packet.retain
                told = packet.properties.get(SUBSCRIPTION_IDENTIFIER, [])
                assert isinstance(told, list) and identifiers == sorted(map(int, map(str, told)))


@given(st.lists(st.tuples(NAMES, FILTERS, st.none() | OPTIONS, TOPICS, NAMES), max_size=40))
def test_the_cache_knows_how_full_it_is(steps: list[tuple[str, bytes, Options | None, bytes, str]]) -> None:
    """The bound of the cache would drift, until it holds nothing or everything."""
    party = Party(size=6 * (ROUTE + 2))
    held: set[tuple[str, bytes, bool]] = set()
    for name, filter, options, topic, _ in steps:
        party.routes.find(topic)
        shared = options is not None and options.no_local
        if options is not None:
            party.subscribe(name, filter, options.qos, share=b"g" if shared else b"", identifier=options.identifier)
            held.add((name, filter, shared))
        else:
            for one in [one for one in held if one[:2] == (name, filter)]:
                party.unsubscribe(name, b"$share/g/" + filter if one[2] else filter)
                held.remove(one)
    for name, filter, shared in held:
        party.unsubscribe(name, b"$share/g/" + filter if shared else filter)

    for number in range(20):
        party.routes.find(b"%02d" % number)

    assert (6, 0, 0) == party.routes.statistics()


def test_the_look_at_all_receivers_of_a_group_is_counted() -> None:
    """A client that leaves sixteen topics with twenty thousand receivers each would pay for no look at them."""
    count = FEW_RECEIVERS + 2
    party, _ = crowd(count)
    party.routes.take_visits()
    party.unsubscribe("0", b"t")
    assert count == party.routes.take_visits()
    party.unsubscribe("1", b"t")
    assert 0 == party.routes.take_visits()
    for number in range(2, count // 2 + 1):  # more holes than receivers: the group is replaced by one without holes
        party.unsubscribe(f"{number}", b"t")

    assert count == party.routes.take_visits()
