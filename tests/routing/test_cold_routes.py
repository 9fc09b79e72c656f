# Routes with cold sessions: who is offered a message that is for a session in Redis.
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from broker.config.schema import Overload
from broker.overload.gate import Gate
from broker.routing.cold_index import ColdIndex
from broker.routing.cold_segments import NO_DEADLINE
from broker.routing.fanout import PAGE
from broker.routing.interest import entry_of, interest_of
from broker.routing.neighbour import ColdReceiver, Neighbour
from broker.routing.remote_interest import FILTER_BYTES, LONGEST, REMEMBERED
from broker.routing.route import FEW_GROUPS
from broker.routing.subscription_budget import SubscriptionBudget
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session
from broker.worker_id import WorkerId
from tests.routing.party import Party
from tests.routing.reference import filters, matches, topics
from tests.session.receiver import NOW, message

pytestmark = pytest.mark.interpreted


def gate(name: str = "store") -> Gate:
    return Gate(Overload(), name, 1, 0.0)


class Shelf(ColdReceiver):
    """Notes what it is offered; the sessions stay cold."""

    def __init__(self, index: ColdIndex) -> None:
        super().__init__(gate(), gate())
        self._index = index
        self.taken: list[tuple[bytes, bytes]] = []  # (client, topic)

    def offer(self, message: Message, now: float) -> None:
        assert message.qos
        self.taken += [(client, message.topic) for client in self._index.matching(message.topic)]


class Elsewhere(Neighbour):
    """Another worker, which counts what is sent to it."""

    def __init__(self, shard: int, confirms: bool = True) -> None:
        super().__init__(WorkerId("node", shard, 1), gate(f"peer {shard}"), confirms, gate(f"store {shard}"))
        self.sent = 0

    def offer(self, message: Message, now: float) -> None:
        self.sent += 1

    def offer_run(self, run: Run) -> None:
        self.sent += 1


class Away(Party):
    """A party whose clients may be away for so long that only Redis has their sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.index = ColdIndex()
        self.shelf = Shelf(self.index)
        self.routes.set_cold(self.index, self.shelf)

    def cool(self, name: str) -> None:
        """In the order in which a session becomes cold: first the index knows it."""
        session = self.client(name).session
        interest = interest_of([each.filter for each in session.subscriptions.values() if each.qos])
        assert interest is not None and self.index.add(name.encode(), NO_DEADLINE, interest, 0)
        for subscription in session.subscriptions.values():
            self.routes.remove(subscription)

    def warm(self, name: str) -> Session:
        session = self.client(name).session
        for subscription in session.subscriptions.values():
            self.routes.add(subscription)
        assert self.index.discard(name.encode())
        return session

    def deliver(self, topic: bytes, qos: int = 1) -> tuple[list[str], dict[str, int]]:
        """Which cold sessions were offered a message, and how many copies each client got that is here."""
        sent = Message(topic, b"payload", qos, False, b"", 0.0)
        self.deliveries.deliver(self.routes.find(topic), sent, None, None, NOW)
        self.settle()
        taken = [client.decode() for client, _topic in self.shelf.taken]
        self.shelf.taken.clear()
        return sorted(taken), self._copies()


@pytest.mark.parametrize("filter", [b"a/b", b"a/+", b"+/b", b"#"])
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("others", [0, 1, 30])
def test_a_session_that_is_cold_is_offered_messages_by_the_index(filter: bytes, used: bool, others: int) -> None:
    """What is published for a client that is away would be lost, or be delivered to a session that is not here."""
    party = Away()
    party.subscribe("one", filter)
    for number in range(others):
        party.subscribe(f"other {number}", b"a/b")
    if used:
        party.deliver(b"a/b")
    party.cool("one")
    everybody = {f"other {number}": 1 for number in range(others)}
    taken, copies = party.deliver(b"a/b")
    assert (["one"], everybody) == (taken, {name: count for name, count in copies.items() if name != "one"})

    party.warm("one")
    taken, copies = party.deliver(b"a/b")
    assert ([], 1) == (taken, copies["one"])


def test_a_route_without_cold_sessions_does_not_ask_for_them() -> None:
    """Each message to a busy topic would look for sessions that have returned long ago."""
    party = Away()
    party.subscribe("one", b"a")
    party.cool("one")
    party.warm("one")
    assert party.routes.find(b"a").cold is None
    party.cool("one")
    assert party.routes.find(b"a").cold is not None
    party.warm("one")
    party.deliver(b"a", 0)  # it waits for the next message that would be stored
    assert party.routes.find(b"a").cold is not None

    party.deliver(b"a")
    assert party.routes.find(b"a").cold is None
    assert party.routes._size == sum(route.size for route in party.routes._routes.values())


def test_no_cold_session_is_no_cost() -> None:
    """Brokers without stored sessions would pay for them with each route."""
    party = Away()
    party.subscribe("one", b"a")
    there = Party()
    there.subscribe("one", b"a")
    route, plain = party.routes.find(b"a"), there.routes.find(b"a")

    assert (route.size, route.price, route.receivers, route.stores) == (plain.size, plain.price, 1, None)
    assert 0 == party.index.size() - ColdIndex().size()


def test_messages_for_cold_sessions_pass_the_gate_of_the_store() -> None:
    """Redis would be asked for sessions without bound when it is slow, and nobody pay for it."""
    party = Away()
    party.subscribe("one", b"a")
    party.subscribe("two", b"+")
    assert [] == party.routes.find(b"a").gates_of(1)
    party.cool("one")
    party.cool("two")
    route = party.routes.find(b"a")

    assert ([party.shelf.store], []) == (route.gates_of(1), route.gates_of(0))
    assert (2, True, 40) == (route.persistent, route.crossing, route.price)


def test_cold_sessions_are_a_group_among_many() -> None:
    """A receiver that joins or leaves would be looked for among them, or they be forgotten with an empty group."""
    party = Away()
    party.subscribe("away", b"a")
    party.cool("away")
    for number in range(FEW_GROUPS + 4):  # each is a group of its own
        party.subscribe(f"{number}", b"a", identifier=number + 1)
        assert ["away"] == party.deliver(b"a")[0]
    route = party.routes.find(b"a")
    assert FEW_GROUPS + 5 == len(route.groups)
    for number in range(FEW_GROUPS + 4):
        party.unsubscribe(f"{number}", b"a")
        assert ["away"] == party.deliver(b"a")[0]

    assert party.routes.find(b"a") is route
    assert [route.cold] == route.groups


def test_qos_0_is_nothing_for_cold_sessions() -> None:
    """Sessions would be read from Redis for messages that they do not wait for."""
    party = Away()
    party.subscribe("one", b"a")
    party.cool("one")

    assert ([], {}) == party.deliver(b"a", 0)
    data = message(b"payload", topic=b"a").whole(5, NOW)
    run = Run(data * 2, 5, 2, b"a", 14, len(data))
    for group in party.routes.find(b"a").groups:
        group.deliver_run(run, 0, len(group.sessions), None, NOW)
    assert [] == party.shelf.taken


@pytest.mark.parametrize("warmed", [False, True])
def test_cold_sessions_come_first_in_a_publish_in_pages(warmed: bool) -> None:
    """A session that is warmed between two pages would be missed: it was not cold any more, and came too late."""
    party = Away()
    for number in range(PAGE + 1):
        party.subscribe(f"{number}", b"a")
    party.subscribe("away", b"a")
    party.cool("away")
    sent = Message(b"a", b"payload", 1, False, b"", 0.0)
    party.deliveries.deliver(party.routes.find(b"a"), sent, None, None, NOW)
    assert [(b"away", b"a")] == party.shelf.taken
    if warmed:
        party.warm("away")
    party.settle()

    assert [(b"away", b"a")] == party.shelf.taken
    assert PAGE + 1 == len(party._copies())


def test_what_crosses_is_offered_to_cold_sessions_too() -> None:
    """A message that was published at another worker would be acknowledged, and lost."""
    party = Away()
    party.subscribe("one", b"a")
    party.cool("one")
    sent = Message(b"a", b"payload", 1, False, b"", 0.0)
    party.deliveries.deliver_crossed(party.routes.find(b"a"), sent, party.client("lane").outbox, NOW)

    assert [(b"one", b"a")] == party.shelf.taken


def test_a_warm_session_is_offered_what_waited_as_a_route_does() -> None:
    """It would get a copy for each filter, at a QoS that it has not asked for, or for a shared subscription."""
    party = Away()
    party.subscribe("one", b"a/#", 1)
    party.subscribe("one", b"a/b", 2)
    party.subscribe("one", b"c", 2, share=b"group")
    session = party.client("one").session
    for topic in (b"a/b", b"c", b"d"):
        party.routes.offer_to(session, Message(topic, b"payload", 2, False, b"", 0.0), NOW)

    assert [b"payload"] == party.client("one").payloads()


# What other workers tell of theirs.


def told(party: Party, worker: Neighbour, *wanted: bytes) -> None:
    assert party.routes.add_cold_elsewhere(b"".join(entry_of(filter) for filter in wanted), worker)


def lost(party: Party, worker: Neighbour, *wanted: bytes) -> None:
    party.routes.remove_cold_elsewhere([entry_of(filter) for filter in wanted], worker)


def sent_to(party: Party, topic: bytes) -> list[int]:
    return sorted(neighbour.shard for neighbour in party.routes.find(topic).neighbours)


def test_a_worker_with_cold_sessions_for_a_topic_is_a_neighbour() -> None:
    """Messages for sessions that are away would not reach the worker that has them."""
    party, one, two = Away(), Elsewhere(1), Elsewhere(2)
    told(party, one, b"a/+", b"b")
    told(party, two, b"b", b"a/#")

    assert ([1, 2], [1, 2], [2], []) == tuple(sent_to(party, topic) for topic in (b"a/b", b"b", b"a", b"c"))
    route = party.routes.find(b"b")
    assert [one.store, two.store] == route.stores
    assert 2 == route.persistent


def test_a_worker_is_one_neighbour_however_it_is_known() -> None:
    """It would get each message twice; or nobody wait until it has stored it."""
    party, peer, confirming = Away(), Elsewhere(1, confirms=False), Elsewhere(1)
    confirming.worker = peer.worker  # type: ignore[misc]
    party.routes.add_neighbour(b"a", peer)
    told(party, confirming, b"a")

    assert [confirming] == party.routes.find(b"a").neighbours


@pytest.mark.parametrize("filter", [b"a/b", b"a/+", b"+/b"])
def test_a_route_forgets_a_worker_whose_cold_sessions_are_gone(filter: bytes) -> None:
    """A busy topic would be sent to a worker for nothing until something else has its route made again."""
    party, one = Away(), Elsewhere(1)
    told(party, one, filter, b"x")
    assert [1] == sent_to(party, b"a/b")
    lost(party, one, filter)

    assert [] == sent_to(party, b"a/b")
    assert [1] == sent_to(party, b"x")
    lost(party, one, b"x", b"unknown")
    assert not party.routes.has_cold_elsewhere(one)


def test_what_is_remembered_of_routes_is_bounded() -> None:
    """Topics that nobody publishes to any more would fill the memory."""
    party, one = Away(), Elsewhere(1)
    told(party, one, b"+", b"#")
    told(party, one, b"x" * (LONGEST + 1))
    sent_to(party, b"x" * (LONGEST + 1))
    for number in range(REMEMBERED + 10):
        told(party, one, b"a/%d" % number)
        sent_to(party, b"a/%d" % number)

    assert len(party.routes.cold_elsewhere._filters) <= REMEMBERED


def test_what_a_dead_worker_wanted_is_not_sent_any_more() -> None:
    """Messages would be written to nobody, for ever."""
    party, one = Away(), Elsewhere(1)
    told(party, one, b"a")
    assert [1] == sent_to(party, b"a")
    one.gone = True
    party.routes.invalidate()
    assert [] == sent_to(party, b"a")
    assert party.routes.forget_cold_elsewhere(one) is not None
    assert party.routes.forget_cold_elsewhere(one) is None
    assert FILTER_BYTES == party.routes.cold_elsewhere.size()  # what a route was made with


def test_hashes_are_charged_to_the_account_of_subscriptions() -> None:
    """Sessions that are away, here or elsewhere, would take memory that nobody has granted."""
    party = Away()
    budget = SubscriptionBudget(party.routes, 1 << 30)
    subscriptions, filters_ = budget.used()
    assert party.index.add(b"one", NO_DEADLINE, interest_of([b"a"]) or b"", 0)
    told(party, Elsewhere(1), b"a")

    assert budget.used()[0] - subscriptions == party.index.size() - ColdIndex().size() > 0
    assert budget.used()[1] - filters_ == party.routes.cold_elsewhere.size() > 0


# A model: a dict of who wants what.

names = st.sampled_from(["one", "two", "three", "four"])


class Model(RuleBasedStateMachine):
    """Sessions that subscribe, leave and return, beside a dict that says what each of them wants."""

    @initialize()
    def begin(self) -> None:
        self.party = Away()
        self.wanted: dict[str, dict[bytes, int]] = {}
        self.cold: set[str] = set()

    @rule(name=names, filter=filters, qos=st.integers(0, 2))
    def subscribe(self, name: str, filter: bytes, qos: int) -> None:
        if name not in self.cold:
            self.party.subscribe(name, filter, qos)
            self.wanted.setdefault(name, {})[filter] = qos

    @rule(name=names, filter=filters)
    def unsubscribe(self, name: str, filter: bytes) -> None:
        if name not in self.cold and filter in self.wanted.get(name, {}):
            self.party.unsubscribe(name, filter)
            del self.wanted[name][filter]

    @rule(name=names)
    def cool(self, name: str) -> None:
        if name not in self.cold:
            self.party.cool(name)
            self.cold.add(name)

    @rule(name=names)
    def warm(self, name: str) -> None:
        if name in self.cold:
            self.party.warm(name)
            self.cold.remove(name)

    @rule(topic=topics, qos=st.integers(0, 2))
    def publish(self, topic: bytes, qos: int) -> None:
        taken, copies = self.party.deliver(topic, qos)
        here: dict[str, int] = {}
        away: list[str] = []
        for name, wanted in self.wanted.items():
            granted = [granted for filter, granted in wanted.items() if matches(filter, topic)]
            if name in self.cold:
                if qos and granted and max(granted):
                    away.append(name)
            elif granted:
                here[name] = 1
        assert (sorted(away), here) == (taken, copies)

    @invariant()
    def sizes(self) -> None:
        if hasattr(self, "party"):
            routes = self.party.routes
            kept = [*routes._routes.values(), *routes._old.values()]
            assert routes._size == sum(route.size for route in kept)


def test_routes_with_cold_sessions_deliver_what_a_dict_says() -> None:
    """A message would be lost when a session becomes cold or warm, or be delivered twice."""
    run_state_machine_as_test(Model, settings=settings(max_examples=80, stateful_step_count=40, deadline=None))
