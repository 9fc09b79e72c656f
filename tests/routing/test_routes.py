from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.packets import Packet, Publish
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.reasons import CloseReason, ProtocolError
from broker.routing.sizes import ROUTE
from broker.session.message import NEVER, Message
from broker.session.principal import Principal
from tests.routing.party import Party, receivers
from tests.routing.reference import matches


def to_t(qos: int, retain: bool = False) -> Message:
    return Message(b"t", b"payload", qos, retain, b"", NEVER)


def published(packets: list[Packet]) -> list[Publish]:
    return [packet for packet in packets if isinstance(packet, Publish)]


# Who gets it.


@pytest.mark.parametrize("granted", list(permutations((0, 1, 2))))
def test_overlapping_subscriptions_deliver_once(granted: tuple[int, ...]) -> None:
    """A client would get a copy for each filter, at a QoS below the highest [MQTT-3.3.4-2], or without some identifier.

    [MQTT-3.3.4-3], [MQTT-3.3.4-4]
    """
    party = Party()
    party.subscribe("a", b"x/y", granted[0], identifier=1)
    party.subscribe("a", b"x/+", granted[1], identifier=2)
    party.subscribe("a", b"#", granted[2])
    route = party.routes.find(b"x/y")

    assert [(2, bytes((SUBSCRIPTION_IDENTIFIER, 1, SUBSCRIPTION_IDENTIFIER, 2)))] == [
        (group.qos, group.identifiers) for group in route.groups
    ]
    assert {"a": 1} == party.publish(b"x/y", 2)


def test_a_message_goes_at_the_lower_qos() -> None:
    """A receiver would get more or less than it was granted [MQTT-3.8.4-8]."""
    party = Party()
    for name, granted in (("zero", 0), ("one", 1), ("two", 2)):
        party.subscribe(name, b"t", granted)
    route = party.routes.find(b"t")

    for qos in (0, 1, 2):
        for group in route.groups:
            group.deliver(to_t(qos), 0, 1, None, 0.0)
        arrived = [packet.qos for client in party.clients.values() for packet in published(client.take())]
        assert [min(qos, granted) for granted in (0, 1, 2)] == arrived


def test_the_retain_flag_goes_on_only_where_it_is_wanted() -> None:
    """A subscriber could not tell a live message from a retained one [MQTT-3.3.1-12], [MQTT-3.3.1-13]."""
    party = Party()
    party.subscribe("plain", b"t")
    party.subscribe("bridge", b"t", as_published=True)
    party.subscribe("both", b"t")
    party.subscribe("both", b"+", as_published=True)
    route = party.routes.find(b"t")

    for retain in (True, False):
        for group in route.groups:
            group.deliver(to_t(1, retain), 0, len(group.sessions), None, 0.0)
        flags = {name: published(client.take())[0].retain for name, client in party.clients.items()}
        assert {"plain": False, "bridge": retain, "both": retain} == flags


def test_receivers_with_the_same_needs_share_a_group() -> None:
    """A fan-out would be encoded for each receiver."""
    party = Party()
    for number in range(50):
        party.subscribe(f"{number}", b"t", 1)
        party.subscribe(f"other {number}", b"t", 1, identifier=7)
    route = party.routes.find(b"t")

    assert [50, 50] == [len(group) for group in receivers(route)]
    assert 100 == route.receivers


def test_groups_differ_in_all_that_makes_packets_differ() -> None:
    """A receiver would get the packet of another's subscription options."""
    party = Party()
    party.subscribe("qos", b"t", 1)
    party.subscribe("retain", b"t", as_published=True)
    party.subscribe("audience", b"t", no_local=True)
    party.subscribe("identifier", b"t", identifier=1)
    party.subscribe("plain", b"t")

    assert 5 == len(party.routes.find(b"t").groups)


@pytest.mark.parametrize("run", [False, True])
def test_no_local_means_all_but_the_publisher(run: bool) -> None:
    """A client would hear its own messages although it asked not to, or others would not hear them [MQTT-3.8.3-3]."""
    party = Party()
    party.subscribe("a", b"t", no_local=True)
    party.subscribe("b", b"t", no_local=True)
    party.subscribe("c", b"t")
    publish = party.publish_run if run else party.publish

    copies = 2 if run else 1
    assert {"b": copies, "c": copies} == publish(b"t", by="a")
    assert {"a": copies, "b": copies, "c": copies} == publish(b"t", by="c")


def test_no_local_holds_for_its_own_filter_alone() -> None:
    """A client would not hear its own messages by a filter for which it did not ask that, or hear them twice."""
    party = Party()
    party.subscribe("a", b"t", 2, no_local=True, identifier=1)
    party.subscribe("a", b"+", 1, identifier=2)

    assert {"a": 1} == party.publish(b"t", 2, by="a")
    assert {"a": 1} == party.publish(b"t", 2, by="b")

    def deliver(by: str) -> tuple[int, object]:
        for group in party.routes.find(b"t").groups:
            group.deliver(to_t(2), 0, 1, party.client(by).session, 0.0)
        (packet,) = published(party.client("a").take())
        return packet.qos, packet.properties[SUBSCRIPTION_IDENTIFIER]

    assert (1, [2]) == deliver(by="a")
    assert (2, [1, 2]) == deliver(by="b")


def test_a_broker_s_own_message_goes_to_everybody() -> None:
    """$SYS and wills would not reach those who asked for no local."""
    party = Party()
    party.subscribe("a", b"t", no_local=True)

    assert {"a": 1} == party.publish(b"t")


def test_a_part_of_a_group_can_be_served() -> None:
    """A large fan-out that goes in pages would leave some out, or serve some twice."""
    party = Party()
    for name in "abcde":
        party.subscribe(name, b"t")
    (group,) = party.routes.find(b"t").groups

    group.deliver(to_t(0), 1, 3, None, 0.0)

    assert ["b", "c"] == [name for name, client in party.clients.items() if client.take()]


# What is no topic.


@pytest.mark.parametrize("topic", [b"", b"a/+", b"#", b"a\0", b"\xff"])
def test_what_is_no_topic_has_no_route(topic: bytes) -> None:
    """A publisher could send a wildcard to its receivers [MQTT-3.3.2-2]."""
    with pytest.raises(ProtocolError):
        Party().routes.find(topic)


def test_the_depth_of_a_topic_is_bounded() -> None:
    """One publish could cost tens of thousands of steps."""
    routes = Party(levels=3).routes
    routes.find(b"a/b/c")

    with pytest.raises(ProtocolError) as error:
        routes.find(b"a/b/c/d")
    assert CloseReason.TOPIC_LEVELS is error.value.reason


def test_the_length_of_a_topic_is_bounded() -> None:
    """A client could have each of its messages carry 64 KiB more."""
    routes = Party(topic_bytes=3).routes
    routes.find(b"a/b")

    with pytest.raises(ProtocolError) as error:
        routes.find(b"a/bc")
    assert CloseReason.TOPIC_BYTES is error.value.reason


def test_what_the_broker_alone_publishes_is_reserved() -> None:
    """A client could forge $SYS, or not publish to topics of its own that begin alike."""
    routes = Party().routes

    assert [True, False, False] == [routes.find(topic).reserved for topic in (b"$SYS/x", b"$SYSTEM/x", b"a/$SYS/x")]


# What a change of subscriptions does to the routes that exist.


def test_a_route_is_made_once() -> None:
    """Every publish would be matched against all filters."""
    party = Party()
    party.subscribe("a", b"t")

    assert party.routes.find(b"t") is party.routes.find(b"t")


def test_a_new_exact_filter_is_added_in_place() -> None:
    """A storm of subscribes to a busy topic would have its route made again for each."""
    party = Party()
    route = party.routes.find(b"t")
    party.subscribe("a", b"t", 1, identifier=3)
    party.subscribe("b", b"t", no_local=True)

    assert route is party.routes.find(b"t")
    assert {"a": 1} == party.publish(b"t", by="b")
    assert {"a": 1, "b": 1} == party.publish(b"t", by="a")


def test_an_exact_filter_beside_others_of_its_session_makes_the_route_again() -> None:
    """A client whose filters overlap would get two copies."""
    party = Party()
    party.subscribe("a", b"#")
    route = party.routes.find(b"t")
    party.subscribe("a", b"t")

    assert route is not party.routes.find(b"t")
    assert {"a": 1} == party.publish(b"t")


def test_an_exact_filter_changes_no_other_route() -> None:
    """Every SUBSCRIBE would take down the routes of other topics."""
    party = Party()
    party.subscribe("b", b"other")
    route = party.routes.find(b"a/b")
    party.subscribe("a", b"a/c")
    party.subscribe("b", b"a/d")
    party.unsubscribe("a", b"a/c")

    assert route is party.routes.find(b"a/b")


def test_a_wildcard_changes_only_the_routes_below_its_first_level() -> None:
    """Every wildcard filter would take down the routes of the whole worker."""
    party = Party()
    near, far = party.routes.find(b"a/b"), party.routes.find(b"z/b")
    party.subscribe("a", b"a/+")

    assert far is party.routes.find(b"z/b")
    assert near is not party.routes.find(b"a/b")
    assert {"a": 1} == party.publish(b"a/b")


@pytest.mark.parametrize("filter", [b"+/b", b"#"])
def test_a_wildcard_at_the_first_level_changes_all_routes(filter: bytes) -> None:
    """A subscriber of "#" would not get what was published before to anybody."""
    party = Party()
    party.publish(b"a/b")
    party.subscribe("a", filter)
    assert {"a": 1} == party.publish(b"a/b")

    party.unsubscribe("a", filter)
    assert {} == party.publish(b"a/b")


def test_other_options_hold_at_once() -> None:
    """A client that subscribes again would keep its former QoS [MQTT-3.8.4-3]."""
    party = Party()
    for filter in (b"t", b"w/+"):
        party.subscribe("a", filter, 0)
        topic = filter.replace(b"+", b"x")
        assert 0 == party.routes.find(topic).groups[0].qos

        party.subscribe("a", filter, 1)

        assert [1] == [group.qos for group in party.routes.find(topic).groups]


FILTERS = st.sampled_from([b"a", b"a/b", b"a/+", b"a/#", b"+/b", b"#", b"b/+", b"$s/+", b"$s/b"])
NAMES = st.sampled_from(["x", "y", "z"])
TOPICS = st.sampled_from([b"a", b"a/b", b"b/b", b"$s/b"])


@given(st.lists(st.tuples(NAMES, FILTERS, st.booleans(), TOPICS), max_size=30), st.sampled_from([1, 2, 1000]))
def test_whatever_changes_routes_lead_to_those_who_want_it(
    steps: list[tuple[str, bytes, bool, bytes]], topics: int
) -> None:
    """A route that is out of date would send messages to those who left, or not to those who came."""
    party = Party(topics=topics)
    held: set[tuple[str, bytes]] = set()
    for name, filter, subscribes, topic in steps:
        if subscribes:
            party.subscribe(name, filter)
            held.add((name, filter))
        elif (name, filter) in held:
            party.unsubscribe(name, filter)
            held.remove((name, filter))

        wanting = {name for name, filter in held if matches(filter, topic)}
        assert dict.fromkeys(wanting, 1) == party.publish(topic)
        assert (len(held), 0) == party.routes.statistics()[1:]


# Bounds.


def test_the_number_of_routes_is_bounded() -> None:
    """A publisher of ever new topics would fill the memory."""
    routes = Party(topics=2).routes
    for number in range(100):
        route = routes.find(b"%d" % number)
        assert min(number + 1, 2) == routes.statistics()[0]
        assert route is routes.find(b"%d" % number)


def test_the_size_of_routes_is_bounded() -> None:
    """A publisher of long topics would fill the memory."""
    party = Party(size=2 * (ROUTE + 10))
    for _ in range(3):
        for number in range(10):
            party.routes.find(b"%010d" % number)
        party.subscribe("a", b"0000000009")
        party.unsubscribe("a", b"0000000009")
        assert 1 == party.routes.statistics()[0]


def test_a_route_that_is_made_again_takes_no_further_room() -> None:
    """Wildcards that come and go would shrink the cache until it holds nothing."""
    party = Party(size=3 * (ROUTE + 3))
    other = party.routes.find(b"b/b")
    for _ in range(5):
        party.subscribe("a", b"a/+")
        party.routes.find(b"a/b")
        party.unsubscribe("a", b"a/+")
        party.routes.find(b"a/b")

    assert other is party.routes.find(b"b/b")


def test_a_topic_that_fits_no_cache_is_still_delivered() -> None:
    """A bound on memory would lose messages."""
    party = Party(size=ROUTE)
    party.subscribe("a", b"#")

    assert {"a": 1} == party.publish(b"x" * 1000)
    assert 0 == party.routes.statistics()[0]


def test_a_route_as_large_as_the_cache_pushes_nobody_out() -> None:
    """Each publish to one crowded topic would have the routes of all others made again."""
    party = Party(size=4 * (ROUTE + 500))
    other = party.routes.find(b"other")
    for number in range(300):
        party.subscribe(f"{number}", b"crowded")

    assert dict.fromkeys(party.clients, 1) == party.publish(b"crowded")
    assert other is party.routes.find(b"other")


# What a change of filters costs that begin with a wildcard.


def test_a_route_outlives_changes_that_do_not_concern_it() -> None:
    """One client that subscribes to +/x again and again would have all routes of the worker made again each time."""
    party = Party()
    party.subscribe("a", b"home/lamp", 1)
    route = party.routes.find(b"home/lamp")
    for _ in range(20):
        party.subscribe("churn", b"+/x", 1)
        party.unsubscribe("churn", b"+/x")

    assert route is party.routes.find(b"home/lamp")
    assert {"a": 1} == party.publish(b"home/lamp", 1)


@given(st.lists(st.sampled_from([b"#", b"+", b"+/x", b"+/+", b"+/y", b"home/x", b"home/+"]), max_size=150))
def test_a_route_that_outlived_changes_is_right(changes: list[bytes]) -> None:
    """Somebody would miss messages, or get those of a filter that is gone: each change adds a filter or removes it."""
    party = Party()
    here: set[bytes] = set()
    for filter in changes:
        if filter in here:
            party.unsubscribe("churn", filter)
        else:
            party.subscribe("churn", filter)
        here ^= {filter}
        expected = {"churn": 1} if any(matches(each, b"home/x") for each in here) else {}
        assert expected == party.publish(b"home/x")


def test_a_route_that_was_not_looked_at_for_long_is_right() -> None:
    """The filters that changed are remembered in a ring: what it has forgotten might have matched."""
    party = Party()
    assert {} == party.publish(b"home/x")
    party.subscribe("reader", b"+/x")
    for number in range(100):
        party.subscribe("churn", b"+/%d" % number)

    assert {"reader": 1} == party.publish(b"home/x")


def test_what_was_visited_is_counted_once() -> None:
    """A client could have thousands of routes made and pay for as many dict lookups."""
    party = Party()
    for name in range(50):
        party.subscribe(str(name), b"+/x")
    party.routes.find(b"home/x")
    visits = party.routes.take_visits()
    party.routes.find(b"home/x")

    assert 50 <= visits
    assert 0 == party.routes.take_visits()


class Nobody:
    """Nobody may publish; each question is remembered."""

    def __init__(self) -> None:
        self.generation = 0
        self.asked: list[bytes] = []

    def may_publish(self, principal: Principal, topic: bytes) -> bool:
        self.asked.append(topic)
        return False

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        return True

    def may_receive(self, principal: Principal, topic: bytes) -> bool:
        return True


@pytest.mark.parametrize(("topic", "asked"), [(b"home/x", [b"home/x"]), (b"$SYS/x", [])])
def test_a_client_that_may_not_publish_has_nothing_matched(topic: bytes, asked: list[bytes]) -> None:
    """A client without any right could have the worker match as many filters as it likes."""
    authoriser = Nobody()
    party = Party(authoriser=authoriser)
    party.subscribe("reader", b"#")
    publisher = party.client("publisher").session.principal
    route = party.routes.find(topic, publisher)

    assert 0 == party.routes.take_visits()
    assert 0 == route.receivers
    assert not party.routes.may_publish(route, publisher)
    assert asked == authoriser.asked
    assert 0 == party.routes.statistics()[0]


def test_a_route_that_outlives_new_filters_pays_for_looking_at_them() -> None:
    """A client that changes `+/x` all the time would have each route compared with it for nothing."""
    party = Party()
    party.routes.find(b"home/x")
    for number in range(3):
        party.subscribe("churn", b"+/%d" % number)
    party.routes.take_visits()
    route = party.routes.find(b"home/x")

    assert 3 == party.routes.take_visits()
    assert route is party.routes.find(b"home/x")
    assert 0 == party.routes.take_visits()
