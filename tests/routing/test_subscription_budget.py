# What subscriptions may take of a worker's memory: who is refused, and that nothing stays.
from hypothesis import given
from hypothesis import strategies as st

from broker.routing.subscription_budget import SubscriptionBudget
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Subscription
from tests.routing.party import Party
from tests.routing.reference import filters
from tests.session.receiver import Receiver

LIMIT = 100_000


class Worker:
    def __init__(self, limit: int = LIMIT) -> None:
        self.routes = Party().routes
        self.budget = SubscriptionBudget(self.routes, limit)
        self.sessions = [Receiver(str(number)).session for number in range(20)]

    def subscribe(self, session: Session, filter: bytes, share: bytes = b"") -> bool:
        """Whether there was room."""
        if not self.budget.fits(session, filter, share):
            return False
        subscription = Subscription(session, filter, share)
        if subscription.key() not in session.subscriptions:
            session.subscriptions[subscription.key()] = subscription
            self.budget.take(subscription)
            self.routes.add(subscription)
        return True

    def unsubscribe(self, session: Session, key: bytes) -> None:
        subscription = session.subscriptions.pop(key)
        self.budget.give_back(subscription)
        self.routes.remove(subscription)

    def fill(self, session: Session, share: bytes = b"") -> int:
        """Subscribe until there is no room; how often."""
        count = 0
        while self.subscribe(session, b"%s/%d/+" % (session.client_id.encode(), count), share):
            count += 1
        return count


def test_one_session_leaves_room_for_others() -> None:
    """One client would use up the memory for subscriptions, and all others be refused theirs."""
    worker = Worker()
    assert worker.fill(worker.sessions[0])

    assert sum(worker.budget.used()) < 0.3 * LIMIT
    assert worker.subscribe(worker.sessions[1], b"a/+")


def test_all_sessions_together_stay_within_the_limit() -> None:
    """Many clients, each within its own limit, would fill the memory of the worker."""
    worker = Worker()
    for session in worker.sessions:
        worker.fill(session)
        worker.fill(session, b"share")

    subscriptions, others = worker.budget.used()
    assert 0.65 * LIMIT < subscriptions + others < 1.02 * LIMIT
    assert subscriptions < 0.31 * LIMIT


def test_filters_of_other_workers_count_and_a_known_filter_takes_no_room() -> None:
    """The clients of other workers would fill this one; or a fleet be refused the filter that all of it has."""
    worker = Worker()
    assert worker.subscribe(worker.sessions[0], b"fleet/+")
    assert worker.subscribe(worker.sessions[0], b"jobs", b"share")
    neighbour = Subscriber()
    for number in range(300):
        worker.routes._neighbour_filters.add(b"there/%d/+" % number, neighbour)

    assert not worker.subscribe(worker.sessions[1], b"mine/+")
    assert not worker.subscribe(worker.sessions[1], b"jobs", b"other")
    assert worker.subscribe(worker.sessions[1], b"fleet/+")
    assert worker.subscribe(worker.sessions[1], b"jobs", b"share")


@given(
    st.lists(
        st.tuples(st.integers(0, 2), filters, st.sampled_from([b"", b"a", b"b"])),
        max_size=30,
    )
)
def test_nothing_stays_of_subscriptions_that_are_gone(wanted: list[tuple[int, bytes, bytes]]) -> None:
    """The account would fill up while clients come and go, until nobody could subscribe any more."""
    worker = Worker(1 << 40)
    for at, filter, share in wanted:
        assert worker.subscribe(worker.sessions[at], filter, share)
    assert (sum(worker.budget.used()) > 0) == bool(wanted)
    for session in worker.sessions:
        for key in list(session.subscriptions):
            worker.unsubscribe(session, key)

    assert (0, 0) == worker.budget.used()
    assert {} == worker.budget._held
