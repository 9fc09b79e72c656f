# Routes that not everybody may use: who is asked when, and what is remembered.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.reasons import DropReason
from broker.routing.routes import MANY_SUBSCRIPTIONS, PUBLISHERS
from broker.routing.shared import CHECKS
from broker.session.principal import Principal
from tests.routing.party import Party
from tests.routing.reference import matches
from tests.session.receiver import NOW, message


class Guard:
    """Lets nobody do what was forbidden to them, and counts the questions."""

    def __init__(self) -> None:
        self.generation = 1
        self.forbidden: set[tuple[bytes, bytes]] = set()  # (user, topic)
        self.asked = 0

    def may_publish(self, principal: Principal, topic: bytes) -> bool:
        return self.may_receive(principal, topic)

    def may_receive(self, principal: Principal, topic: bytes) -> bool:
        self.asked += 1
        return principal.user is not None and (principal.user, topic) not in self.forbidden

    def may_subscribe(self, principal: Principal, filter: bytes) -> bool:
        raise NotImplementedError("routes take what was granted")


def guarded(*forbidden: tuple[str, bytes]) -> tuple[Party, Guard]:
    guard = Guard()
    guard.forbidden = {(user.encode(), topic) for user, topic in forbidden}
    return Party(authoriser=guard), guard


def test_who_may_not_read_a_topic_is_no_receiver() -> None:
    """A message would reach somebody who may not read it."""
    party, _ = guarded(("eve", b"t"))
    for name in ("alice", "eve"):
        party.subscribe(name, b"#")

    assert {"alice": 1} == party.publish(b"t")
    assert 1 == party.routes.find(b"t").receivers
    assert {"alice": 1, "eve": 1} == party.publish(b"u")


def test_a_route_that_is_there_is_patched_by_the_same_rules() -> None:
    """Who subscribes after the first message would be a receiver of everything, or its end take another along."""
    party, _ = guarded(("eve", b"t"))
    route = party.routes.find(b"t")
    for name in ("alice", "eve", "bob"):
        party.subscribe(name, b"t")
    assert {"alice": 1, "bob": 1} == party.publish(b"t")
    for name in ("eve", "alice"):
        party.unsubscribe(name, b"t")

    assert {"bob": 1} == party.publish(b"t")
    assert route is party.routes.find(b"t")
    assert (1, 1) == (route.receivers, route.price)


def test_a_publish_asks_once() -> None:
    """Every message would be held against all lines of the ACL file."""
    party, guard = guarded(("eve", b"t"))
    route = party.routes.find(b"t")
    alice, eve = party.client("alice").session.principal, party.client("eve").session.principal

    assert route.guarded
    assert [True, True, False, False] == [party.routes.may_publish(route, who) for who in (alice, alice, eve, eve)]
    assert [True, False] == [party.routes.may_publish(route, who) for who in (alice, eve)]
    assert 2 == guard.asked


def test_what_a_route_remembers_of_its_publishers_is_bounded_and_right() -> None:
    """A topic that a million devices publish to would grow by each of them."""
    party, _ = guarded(("17", b"t"), ("3", b"t"))
    route = party.routes.find(b"t")
    size = route.size
    verdicts = []
    for number in [*range(40), *range(40)]:
        verdicts.append(party.routes.may_publish(route, party.client(f"{number}").session.principal))
        assert route.publishers is not None
        assert len(route.publishers) <= PUBLISHERS

    assert [n not in (3, 17) for n in [*range(40), *range(40)]] == verdicts
    assert size == route.size


def test_without_an_authoriser_only_the_brokers_own_topics_are_guarded() -> None:
    """Every publish would pay for a question that nobody has an answer to."""
    party = Party()
    alice = party.client("alice").session.principal
    routes = [party.routes.find(topic) for topic in (b"t", b"$SYS/x")]

    assert [False, True] == [route.guarded for route in routes]
    assert [True, False] == [party.routes.may_publish(route, alice) for route in routes]


def test_the_brokers_own_topics_are_nobodys_whoever_decides() -> None:
    """An ACL file that grants everything would let clients forge the broker's statistics."""
    party, guard = guarded()

    assert not party.routes.may_publish(party.routes.find(b"$SYS/x"), party.client("alice").session.principal)
    assert 0 == guard.asked


def test_new_rules_hold_at_once() -> None:
    """After a reload a topic would be open to those who had it before."""
    party, guard = guarded()
    party.subscribe("eve", b"t")
    eve = party.client("eve").session.principal
    assert {"eve": 1} == party.publish(b"t")
    assert party.routes.may_publish(party.routes.find(b"t"), eve)
    guard.forbidden.add((b"eve", b"t"))
    party.routes.invalidate()

    assert {} == party.publish(b"t")
    assert not party.routes.may_publish(party.routes.find(b"t"), eve)
    party.unsubscribe("eve", b"t")


@pytest.mark.parametrize("others", [0, MANY_SUBSCRIPTIONS])
@pytest.mark.parametrize("filter", [b"t", b"t/#", b"+", b"#"])
def test_a_session_that_acts_for_another_is_routed_anew(others: int, filter: bytes) -> None:
    """Who comes back under another name would keep what the former might read."""
    party, _ = guarded(("mallory", b"t"))
    party.subscribe("bob", b"t")
    party.subscribe("alice", filter)
    for number in range(others):
        party.subscribe("alice", b"other/%d" % number)
    assert {"alice": 1, "bob": 1} == party.publish(b"t")
    session = party.client("alice").session
    session.principal = Principal("alice", "mallory", 0)
    party.routes.invalidate_session(session)

    assert {"bob": 1} == party.publish(b"t")
    party.unsubscribe("alice", filter)
    session.principal = Principal("alice", "alice", 0)
    party.routes.invalidate_session(session)
    party.subscribe("alice", filter)
    assert {"alice": 1, "bob": 1} == party.publish(b"t")


@pytest.mark.parametrize("qos", [0, 1])
def test_members_of_a_group_who_may_not_read_are_passed_over(qos: int) -> None:
    """A shared message would go to somebody who may not read it, or be lost with them."""
    party, _ = guarded(("eve", b"t"), ("mallory", b"t"))
    for name in ("alice", "eve", "bob", "mallory"):
        party.subscribe(name, b"+", qos, share=b"g")
    counts: dict[str, int] = {}
    for _ in range(6):
        for name, copies in party.publish(b"t", qos).items():
            counts[name] = counts.get(name, 0) + copies
            party.client(name).acknowledge()

    assert {"alice": 3, "bob": 3} == counts
    assert {"eve"} <= set().union(*[party.publish(b"u") for _ in range(4)])


def test_a_member_who_may_read_is_found_behind_others_who_may_not() -> None:
    """The quick members would keep a slow one from what is only its own to read."""
    party, _ = guarded(("eve", b"t"))
    party.subscribe("eve", b"t", 1, share=b"g")
    away = party.client("away", expiry=100)
    party.subscribe("away", b"t", 1, share=b"g")
    away.session.detach()
    party.publish(b"t", 1)
    (group,) = party.routes.find(b"t").shared

    assert 1 == group.waiting()


def test_what_a_ready_member_may_not_read_holds_up_nothing_else() -> None:
    """A member would wait for messages that it may read behind one that is for others."""
    party, _ = guarded(("eve", b"t"))
    away = party.client("away", expiry=100)
    party.subscribe("away", b"+", 1, share=b"g")
    away.session.detach()
    party.subscribe("eve", b"+", 1, share=b"g")
    (group,) = party.routes.find(b"t").shared
    for topic in (b"t", b"u", b"v"):
        assert group.deliver(message(topic, 1, topic=topic), NOW)
    party.settle()
    assert ([b"u", b"v"], 1) == (party.client("eve").payloads(), group.waiting())

    party.unsubscribe("away", b"$share/g/+")
    party.client("eve").acknowledge()
    assert group.deliver(message(b"w", 1, topic=b"w"), NOW)
    party.settle()

    assert ([b"w"], 0) == (party.client("eve").payloads(), group.waiting())
    assert 1 == party.counters.dropped_by_reason[DropReason.MAY_NOT_READ.label]


def test_nobody_gets_a_shared_message_that_no_member_may_read() -> None:
    """It would go to whoever is next."""
    party, _ = guarded(*[(f"{number}", b"t") for number in range(CHECKS + 5)])
    for number in range(CHECKS + 5):
        party.subscribe(f"{number}", b"t", 1, share=b"g")
    (group,) = party.routes.find(b"t").shared

    assert [False, False] == [group.deliver(message(b"x", topic=b"t", qos=qos), 1000.0) for qos in (0, 1)]


def test_a_message_does_not_wait_for_a_member_who_may_not_read_it() -> None:
    """It would be delivered as soon as that one is back, or be lost with it."""
    party, _ = guarded(("eve", b"t"))
    eve = party.client("eve", expiry=100)
    party.subscribe("eve", b"+", 1, share=b"g")
    eve.session.detach()
    (group,) = party.routes.find(b"t").shared

    assert [False, True] == [group.deliver(message(b"x", 1, topic=topic), NOW) for topic in (b"t", b"u")]


NAMES = ("alice", "bob", "eve")
FILTERS = (b"a", b"a/b", b"a/#", b"+/b", b"#", b"c")
TOPICS = (b"a", b"a/b", b"c", b"x/b")


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(FILTERS)), max_size=12),
    st.sets(st.tuples(st.sampled_from(NAMES), st.sampled_from(TOPICS))),
    st.integers(0, 12),
)
def test_whatever_comes_and_goes_only_those_who_may_are_served(
    steps: list[tuple[str, bytes]], forbidden: set[tuple[str, bytes]], published_after: int
) -> None:
    """A patch would let somebody in, or out, whom a route made anew would not."""
    party, _ = guarded(*forbidden)
    held: set[tuple[str, bytes]] = set()
    for number, step in enumerate(steps):
        if number == published_after:
            for topic in TOPICS:
                party.publish(topic)
        if step in held:
            party.unsubscribe(*step)
        else:
            party.subscribe(*step)
        held ^= {step}

    for topic in TOPICS:
        expected = {name for name, filter in held if matches(filter, topic) and (name, topic) not in forbidden}
        assert expected == set(party.publish(topic))
