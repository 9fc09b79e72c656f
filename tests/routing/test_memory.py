# The accounts of subscriptions, routes and retained messages beside what they really take, as the allocator says.
import gc
import tracemalloc
from collections.abc import Callable

import pytest

from broker.routing.cold_index import ColdIndex
from broker.routing.cold_segments import NO_DEADLINE
from broker.routing.filters import FilterIndex
from broker.routing.hash_set import HashSet
from broker.routing.interest import entry_of
from broker.routing.retained import Retained
from broker.routing.subscription_budget import SubscriptionBudget
from broker.session.message import NEVER, Message
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Subscription
from tests.routing.party import Party
from tests.session.receiver import Receiver

SUBSCRIPTIONS = 1000  # as many as fill a dict by half: its size is a power of two
SESSIONS = 16

Name = Callable[[int], bytes]
NAMES: dict[str, Name] = {
    "exact": lambda number: b"devices/%05d/state" % number,
    "wildcard": lambda number: b"devices/%05d/k/+/set" % number,
    "deep": lambda number: b"%05d/" % number + b"/".join([b"a"] * 30) + b"/+",
    "long": lambda number: b"%05d/" % number + b"x" * 3900 + b"/+",
    "leading wildcard": lambda number: b"+/%05d" % number,
}


pytestmark = [
    pytest.mark.no_cover,  # what coverage remembers would count as ours
    pytest.mark.usefixtures("traced"),
]


class Account:
    """The subscriptions of a worker, and what they count."""

    def __init__(self) -> None:
        self.routes = Party().routes
        self.budget = SubscriptionBudget(self.routes, 1 << 40)

    def subscribe(self, session: Session, filter: bytes, share: bytes = b"") -> None:
        subscription = Subscription(session, filter, share)
        session.subscriptions[subscription.key()] = subscription
        self.budget.take(subscription)
        self.routes.add(subscription)

    def used(self) -> int:
        return sum(self.budget.used())


def growth(work: Callable[[], None]) -> int:
    gc.collect()
    before = allocated()
    work()
    return allocated() - before


def allocated() -> int:
    """Bytes that the broker and its tests have allocated since the test began, without what pytest does beside them."""
    ours = [tracemalloc.Filter(True, "*/broker/*"), tracemalloc.Filter(True, "*/tests/*")]
    return sum([trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces])


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_account_is_what_filters_take(name: Name) -> None:
    """Filters would take a multiple of what they may, or a fleet be refused what there is memory for."""
    account, sessions = Account(), [Receiver(f"{number}").session for number in range(SESSIONS)]

    def work() -> None:
        for number in range(SUBSCRIPTIONS):
            account.subscribe(sessions[number % SESSIONS], name(number))

    grown = growth(work)

    assert 0.85 * grown < account.used() < 1.15 * grown, (grown, account.used())


@pytest.mark.parametrize("crowd", [1, 2, 40, 1000])
def test_the_account_is_what_single_subscriptions_of_a_fleet_take(crowd: int) -> None:
    """A fleet of devices with one filter each, or with one for all of them, would be counted wrongly."""
    account, sessions = Account(), [Receiver(f"{number}").session for number in range(1000)]

    def work() -> None:
        for number, session in enumerate(sessions):
            account.subscribe(session, b"fleet/%04d/set" % (number // crowd))

    grown = growth(work)

    assert 0.85 * grown < account.used() < 1.15 * grown, (grown, account.used())


@pytest.mark.parametrize("members", [1, 2, 40, 1000])
def test_the_account_is_what_groups_take(members: int) -> None:
    """Shared subscriptions would take memory that nothing bounds."""
    account, sessions = Account(), [Receiver(f"{number}").session for number in range(1000)]

    def work() -> None:
        for number, session in enumerate(sessions):
            account.subscribe(session, b"jobs/%04d" % (number // members), b"workers")

    grown = growth(work)

    assert 0.85 * grown < account.used() < 1.15 * grown, (grown, account.used())


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_the_account_is_what_filters_of_other_workers_take(name: Name) -> None:
    """Each worker knows the filters of all others, and would be filled by them."""
    index, neighbour = FilterIndex(), Subscriber()

    def work() -> None:
        for number in range(SUBSCRIPTIONS):
            index.add(name(number), neighbour)

    grown = growth(work)

    assert 0.85 * grown < index.size() < 1.15 * grown, (grown, index.size())


@pytest.mark.parametrize("payload", [1, 100, 1000])
@pytest.mark.parametrize(
    "name", [NAMES["exact"], NAMES["deep"], lambda number: b"%05d" % number], ids=["exact", "deep", "flat"]
)
def test_the_account_is_what_retained_messages_take(name: Name, payload: int) -> None:
    """Short retained messages would take a multiple of what they may."""
    retained = Retained(1 << 40, 1 << 40, 1 << 40)

    def work() -> None:
        for number in range(SUBSCRIPTIONS):
            message = Message(name(number), bytes(payload), 1, True, b"", NEVER)
            retained.put(message, 0.0, "client", number + 1)

    grown = growth(work)

    assert 0.85 * grown < retained.held() < 1.15 * grown, (grown / SUBSCRIPTIONS, retained.held() / SUBSCRIPTIONS)


def test_the_account_is_what_tombstones_take() -> None:
    """Deletions would take a multiple of what they may."""
    retained = Retained(1 << 40, 1 << 40, 1 << 40)

    def work() -> None:
        for number in range(SUBSCRIPTIONS):
            retained.delete(b"devices/%05d" % number, number + 1, 0.0, deleted_before=True)

    grown = growth(work)
    counted = retained.statistics().tombstone_bytes

    # More than they take, in the compiled form: they are gone in a minute.
    assert 0.85 * grown < counted < 1.8 * grown, (grown / SUBSCRIPTIONS, counted / SUBSCRIPTIONS)


def test_the_account_is_what_routes_take() -> None:
    """A client that publishes to ever new topics would fill more than routes.bytes."""
    routes = Party().routes

    def work() -> None:
        for number in range(SUBSCRIPTIONS):
            routes.find(NAMES["exact"](number))

    grown = growth(work)

    assert 0.85 * grown < routes._size < 1.15 * grown, (grown / SUBSCRIPTIONS, routes._size / SUBSCRIPTIONS)


@pytest.mark.parametrize("crowd", [1, 3000])
@pytest.mark.parametrize("expected", [0, 3000])
def test_the_account_is_what_cold_sessions_take(crowd: int, expected: int) -> None:
    """Sessions in Redis would take a multiple of what they are thought to, here and at all other workers."""
    interests = [entry_of(b"devices/%d" % (n // crowd)) + entry_of(b"k/%d/+" % (n // crowd)) for n in range(3000)]
    names = [b"device-%013d" % number for number in range(3000)]
    indexes: list[ColdIndex] = []
    sets: list[HashSet] = []

    def add() -> None:
        indexes.append(index := ColdIndex())
        index.expect(expected)
        for name, interest in zip(names, interests, strict=True):
            assert index.add(name, NO_DEADLINE, interest, 0)

    def tell() -> None:
        sets.append(known := HashSet())
        for interest in interests:
            assert known.add_all(interest)

    # What other threads of the test runner allocate meanwhile counts, too: hence the least of three.
    grown, told = (min(growth(work) for _ in range(3)) for work in (add, tell))
    index, known = indexes[0], sets[0]

    assert 0.85 * grown < index.size() < 1.15 * grown, (grown, index.size())
    if crowd == 1:  # else it has two entries
        assert 0.85 * told < known.size() < 1.15 * told, (told, known.size())
        assert grown < 140 * 3000, grown
        assert told < 16 * 6000
