# The account of subscriptions: what they and their filters may take of a worker's memory.
#
# There are two limits, as two things grow. A subscription takes memory at its own worker. A filter takes memory at all
# workers of the node, since each worker finds the receivers of its publishes by itself: so the filters of all of them
# are one account, which all workers keep alike, and whoever adds a filter is refused when it is full.
#
# What the account holds is worked out from what the indexes count, so it cannot drift from what is there. One session
# may have a quarter of it, judged as if nobody shared its filters: that share is taken and given back.
from typing import Final

from broker.routing.filters import filter_size
from broker.routing.routes import Routes
from broker.routing.sizes import CROWD, ENTRY, GROUP, MEMBER, SUBSCRIBER, SUBSCRIPTION
from broker.session.session import Session
from broker.session.subscription import Subscription

SUBSCRIPTIONS: Final = 3  # tenths of the limit for subscriptions; the rest is for filters
SESSIONS: Final = 4  # sessions that it takes at least to fill the account
MOST: Final = (
    SUBSCRIPTION + SUBSCRIBER + MEMBER + CROWD + 2 * ENTRY
)  # bytes that a subscription adds, beside its filter


class SubscriptionBudget:
    """The subscriptions and filters of one worker, whose *routes* know them: at most *limit* bytes."""

    def __init__(self, routes: Routes, limit: int) -> None:
        self._routes = routes
        self._subscriptions = limit * SUBSCRIPTIONS // 10
        self._filters = limit - self._subscriptions
        self._share = limit // SESSIONS
        # Of each session with a subscription. Not an attribute of the session: interpreted, Python finds the attributes
        # of an object with 30 of them a tenth slower, and a session has 28.
        self._held: dict[Session, int] = {}

    def used(self) -> tuple[int, int]:
        """Bytes of (subscriptions, filters)."""
        routes = self._routes
        return routes.subscription_bytes() + SUBSCRIBER * len(self._held), routes.filter_bytes()

    def fits(self, session: Session, filter: bytes, share: bytes) -> bool:
        """Whether *session* may add a subscription to *filter*. O(levels)."""
        size = _size(filter, share)
        if self._held.get(session, 0) + size > self._share:
            return False
        subscriptions, filters = self.used()
        if subscriptions + MOST > self._subscriptions:
            return False
        return filters + size <= self._filters or self._routes.has(filter, share)

    def take(self, subscription: Subscription) -> None:
        """*subscription* was added to its session."""
        session = subscription.session
        self._held[session] = self._held.get(session, 0) + _size(subscription.filter, subscription.share)

    def give_back(self, subscription: Subscription) -> None:
        """*subscription* was removed from its session."""
        session = subscription.session
        left = self._held[session] - _size(subscription.filter, subscription.share)
        if left:
            self._held[session] = left
        else:
            del self._held[session]


def _size(filter: bytes, share: bytes) -> int:
    """The bytes of a subscription to *filter* that shares nothing with others."""
    group = MEMBER + GROUP + len(share) + len(filter) if share else 0
    return SUBSCRIPTION + filter_size(filter) + group
