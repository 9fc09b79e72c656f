# Routes: which sessions, groups and workers get a message, decided once for a topic and not for each message.
#
# A Route (route.py) is made when a topic is first published to: the topic is checked, all filters are matched,
# overlapping subscriptions of a session are merged, and the receivers are grouped by what makes their packets differ.
# After that a publish costs one dict lookup. What a change of subscriptions does to existing routes:
# - an exact filter that is added or removed patches the route of its topic, at the same cost with twenty receivers as
#   with twenty thousand; only if the session has, or may have, an overlapping filter is that route dropped;
# - a wildcard filter raises the epoch of its first level, so only routes below that level are made again;
# - a filter that begins with a wildcard raises the era, which all routes share. The last RECENT of these filters are
#   remembered: a route that none of those that changed since matches is still right, and is not made again.
# Epochs are kept in a table of fixed size by hash: a collision makes a route once more than needed, nothing else.
#
# What making a route visits is counted in `visits`, and whoever caused it pays for it. A client that may not publish to
# a topic is found out before anything is matched.
#
# The cache has two generations. When it is full, all routes in it become the old generation; a route that is used moves
# to the new one, and for each route that is made, one is dropped from the end of the old generation. So nothing is
# searched and nothing is done for many routes at once: to find the oldest entry of a dict, Python would step over all
# entries that were deleted before it.
#
# Whether a session may read a topic is decided when the route is made or patched, and whether a client may publish to
# it when it first does. Without an authoriser a publish pays nothing for that, with one a lookup in a small dict.
# Sessions that are in Redis only (*cold*, cold_index.py) are one receiver together, if any of them has a filter that
# matches the topic when the route is made.
# Other workers of the cluster are receivers, too: a worker with a matching filter gets the message once and matches it
# again. Their filters are in an index of their own, and a change of them has the routes concerned made again. Why no
# route per (publisher, topic)? Authorisation would be the only thing that depends on the publisher.
from collections.abc import Iterable
from typing import Final, cast

from broker.mqtt.topics import check_topic
from broker.reasons import CloseReason, ProtocolError
from broker.routing.application_group import new_group
from broker.routing.authority import Authoriser
from broker.routing.cold_index import ColdIndex
from broker.routing.filters import FilterIndex, first_level, is_wildcard, matches
from broker.routing.group_names import share_of
from broker.routing.hash_set import HashSet
from broker.routing.neighbour import ColdReceiver, Neighbour, Neighbours
from broker.routing.overlapping import audience, merged, overlaps
from broker.routing.patterns import patterns_of_worker
from broker.routing.remote_interest import RemoteInterest
from broker.routing.route import RECEIVER_BYTES, RESERVED, ColdGroup, Route
from broker.routing.shared import SharedGroup
from broker.routing.shared_backlog import SharedBacklog, WaitingList
from broker.routing.shared_log import SharedLogs
from broker.routing.sizes import GROUP, MEMBER, SUBSCRIPTION
from broker.session.message import Message
from broker.session.principal import Principal
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Subscription

EPOCHS: Final = 4096
RECENT: Final = 64  # filters: to compare a topic with all of them takes as long as to make a small route
PUBLISHERS: Final = 10  # publishers that a route remembers the right of: as many as a dict of its size holds
PUBLISHERS_BYTES: Final = 352  # of that dict
UNLIMITED: Final = 1 << 40  # patterns
RETRIED: Final = 64  # shared subscriptions whose waiting messages are passed on at one confirmation of a worker
COUNTED: Final = 2048  # cold sessions that the price of a publish is for, if there are more: 0.2 ms to count them
MANY_SUBSCRIPTIONS: Final = 100  # of a session: with more, all routes are made again instead of those of each filter


class Routes:
    """The subscriptions of the worker, and the routes made from them: at most *topics*, in about *size* bytes.

    A topic of more than *levels* levels is refused: they bound what a match costs.
    """

    def __init__(
        self,
        topics: int,
        size: int,
        levels: int,
        topic_bytes: int,
        backlog: SharedBacklog,
        authoriser: Authoriser | None = None,
        neighbours: Neighbours | None = None,
        here: int = 0,
        patterns: int = UNLIMITED,
    ) -> None:
        """*backlog*: messages that wait for members of shared subscriptions. *neighbours* are told what is subscribed
        to here. *here*: the incarnation of this worker, *patterns* its limit.
        """
        self.index = FilterIndex()  # of subscriptions at this worker
        self.durable: dict[bytes, int] = {}  # how many of them are durable, by filter; shared ones are not counted
        self.patterns = patterns_of_worker(patterns)
        self.visits = 0  # levels and receivers that were visited and not charged yet, see take_visits()
        self.backlog = backlog
        backlog.tell_members = self._tell_members
        self.logs: SharedLogs | None = None  # None: there are none; to be set before there are subscriptions
        self.cold: ColdIndex | None = None  # None: no session of this worker is ever cold
        self.cold_elsewhere = RemoteInterest()
        self._cold_receiver: ColdReceiver | None = None
        self._neighbours = neighbours
        self._here = here
        self._groups = FilterIndex()
        self._neighbour_filters = FilterIndex()
        self._authoriser = authoriser
        self._topics = topics
        self._limit = size
        self._levels = levels
        self._topic_bytes = topic_bytes
        self._size = 0
        self._routes: dict[bytes, Route] = {}
        self._old: dict[bytes, Route] = {}
        self._shared: dict[tuple[bytes, bytes], SharedGroup] = {}
        self._shared_here = 0  # the number of those with members at this worker
        self._shared_text = 0  # bytes of the names and filters of all of them
        self._members = 0  # of them, at this worker
        self._epochs: list[int] = [0] * EPOCHS
        self._era = 0
        self._recent: list[bytes] = [b""] * RECENT  # the filter that raised the era to n is at n % RECENT

    def find(self, topic: bytes, publisher: Principal | None = None) -> Route:
        """The route of *topic*. ProtocolError if *topic* is not a topic name, or exceeds a limit.

        If *publisher* may not publish to *topic*, and there is no route of it yet, it is one without receivers.
        """
        route = self._routes.get(topic)
        if route is not None and route.era == self._era and route.epoch == self._epochs[route.slot]:
            return route
        return self._find_old(topic, publisher)

    def add(self, subscription: Subscription) -> None:
        """Add *subscription*, which the `subscriptions` of its session contain already."""
        filter = subscription.filter
        if subscription.share:
            self._join(subscription)
            return
        if self.index.add(filter, subscription):
            self.patterns.add(filter, False, subscription.session.client_id)
            if self._neighbours is not None:
                self._neighbours.gained(filter, False)
        if subscription.session.storage is not None:
            self._count_durable(filter, 1)
        route = self._current(filter)
        if route is None or overlaps(subscription):
            self._changed(filter)
            return
        if not self._may_receive(subscription, filter):
            return
        before = route.size
        _add_one(route, subscription)
        self._size += route.size - before
        self._shrink(self._limit, self._topics)

    def _count_durable(self, filter: bytes, more: int) -> None:
        """Publishers at other workers wait for durable subscribers: report the first of *filter*, and the last one."""
        before = self.durable.get(filter, 0)
        if before + more:
            self.durable[filter] = before + more
        else:
            del self.durable[filter]
        if self._neighbours is not None:
            if before == 0:
                self._neighbours.gained(filter, True)
            elif before + more == 0:
                self._neighbours.lost(filter, True)

    def changed(self, subscription: Subscription) -> None:
        """Take note that the options of *subscription* have changed."""
        if subscription.share:
            self._join(subscription)
        else:
            self._changed(subscription.filter)

    def remove(self, subscription: Subscription) -> None:
        """Remove *subscription*, which the `subscriptions` of its session do not contain any more."""
        filter = subscription.filter
        if subscription.share:
            self._leave(subscription)
            return
        if self.index.remove(filter, subscription):
            self.patterns.remove(filter, False)
            if self._neighbours is not None:
                self._neighbours.lost(filter, False)
        if subscription.session.storage is not None:
            self._count_durable(filter, -1)
        route = self._current(filter)
        if route is None or overlaps(subscription):
            self._changed(filter)
            return
        if not self._may_receive(subscription, filter):
            return  # it never was a receiver
        before = route.size
        self.visits += route.remove(
            subscription.session,
            subscription.qos,
            subscription.retain_as_published,
            subscription.identifiers,
            audience(subscription),
        )
        if route.cold is None:  # the session may be cold now
            self._add_cold(route)
        self._size += route.size - before
        self._shrink(self._limit, self._topics)

    def may_publish(self, route: Route, principal: Principal) -> bool:
        """Whether *principal* may publish to the topic of *route*, which must be up to date."""
        if route.reserved:
            return False
        authoriser = self._authoriser
        if authoriser is None:
            return True
        publishers = route.publishers
        if publishers is None:
            publishers = route.publishers = {}
        allowed = publishers.get(principal)
        if allowed is None:
            if len(publishers) >= PUBLISHERS:
                publishers.clear()
            allowed = publishers[principal] = authoriser.may_publish(principal, route.topic)
        return allowed

    def invalidate(self) -> None:
        """Have all routes made again: the access rules have changed, or another worker has joined or gone."""
        self._era += RECENT

    def invalidate_session(self, session: Session) -> None:
        """Have the routes made again that *session* may be in, because it acts for another user now."""
        if len(session.subscriptions) > MANY_SUBSCRIPTIONS:
            self.invalidate()
            return
        for subscription in session.subscriptions.values():
            if not subscription.share:  # a group asks the authoriser for each message
                self._changed(subscription.filter)

    def take_visits(self) -> int:
        """The levels of trees, receivers and changed filters that were visited since the last call."""
        visits = self.visits
        self.visits = 0
        return visits

    # Sessions that are in Redis only.

    def set_cold(self, index: ColdIndex, receiver: ColdReceiver) -> None:
        """*index* has the cold sessions of this worker, and *receiver* is offered messages for them.

        A session that becomes cold is added to *index* before its subscriptions are removed here, and one that becomes
        warm is discarded there after they were added here, in the same turn: so no worker ever misses it. Whoever adds
        others to *index* calls `invalidate()` behind them.
        """
        self.cold = index
        self._cold_receiver = receiver

    def announce_cold(self) -> None:
        """Tell changes of the index from now on: before, other workers wait until they are told all that is in it."""
        if self.cold is not None:
            self.cold.neighbours = self._neighbours

    def offer_to(self, session: Session, message: Message, now: float) -> None:
        """Offer *message* to *session* alone, as the route of its topic does if the session has subscribed to it."""
        topic = message.topic
        subscriptions: list[Subscription] = []
        for subscription in session.subscriptions.values():
            if (
                not subscription.share
                and matches(subscription.filter, topic)
                and self._may_receive(subscription, topic)
            ):
                subscriptions.append(subscription)
        if subscriptions:
            route = Route(topic, 0, 0, 0)
            _add_merged(route, subscriptions)
            for group in route.groups:
                group.deliver(message, 0, len(group.sessions), None, now)

    def _add_cold(self, route: Route) -> None:
        """Make the cold sessions a receiver of *route*, if one of them has a filter that matches its topic."""
        index, receiver = self.cold, self._cold_receiver
        if index is not None and receiver is not None and len(index):
            sessions = index.count(route.topic, COUNTED)
            if sessions:
                route.add_cold(ColdGroup(index, receiver, self._drop), receiver.store, sessions)

    # What other workers report.

    def add_cold_elsewhere(self, entries: bytes, neighbour: Neighbour) -> bool:
        """*neighbour* has cold sessions with these *entries*: those that have been told by their filters so far.

        Otherwise `invalidate()` is to be called, before the filters of other workers are forgotten for them. False:
        they are malformed.
        """
        return self.cold_elsewhere.gained(entries, neighbour)

    def remove_cold_elsewhere(self, entries: list[bytes], neighbour: Neighbour) -> None:
        """*neighbour* has no cold session with any of these *entries*."""
        for entry in entries:
            filter = self.cold_elsewhere.lost(entry, neighbour)
            if filter:
                self._changed(filter)

    def forget_cold_elsewhere(self, neighbour: Neighbour) -> HashSet | None:
        """*neighbour* is gone, with its cold sessions. Returns what is to be freed in steps."""
        return self.cold_elsewhere.forget(neighbour)

    def has_cold_elsewhere(self, neighbour: Neighbour) -> bool:
        return neighbour in self.cold_elsewhere.sets

    def add_neighbour(self, filter: bytes, neighbour: Neighbour) -> None:
        """*neighbour* has its first subscriber for *filter*."""
        self._neighbour_filters.add(filter, neighbour)
        self._changed(filter)

    def remove_neighbour(self, filter: bytes, neighbour: Neighbour) -> None:
        """*neighbour* has lost its last subscriber for *filter*."""
        self._neighbour_filters.remove(filter, neighbour)
        self._changed(filter)

    def set_remote_members(self, share: bytes, filter: bytes, neighbour: Neighbour, members: int, ready: int) -> None:
        """*neighbour* has *members* members of a shared subscription, *ready* of which would take a message at once."""
        group = self._group(share, filter)
        durable = group.durable
        if group.set_remote_members(neighbour, members, ready) or group.durable != durable:
            self._changed(filter)  # the route knows whether messages cross to other workers, or may be stored
        self._forget_empty(group)

    def has_remote_members(self, share: bytes, filter: bytes, neighbour: Neighbour) -> bool:
        """Whether *neighbour* has reported members of a shared subscription."""
        group = self._shared.get((share, filter))
        return group is not None and neighbour in group.remote

    def adopt_list(self, share: bytes, filter: bytes, waiting: WaitingList) -> None:
        """*waiting*, of a worker that has ended, is a list of messages for a shared subscription at this worker."""
        group = self._group(share, filter)
        group.add_list(waiting)
        group.retry()

    def waits_in_memory(self) -> bool:
        """Whether messages wait for members of shared subscriptions that would end with this worker."""
        return any(cast(SharedGroup, group).waits_in_memory() for group in self.backlog.groups())

    def set_members_known(self, known: bool) -> None:
        """Whether all workers of the cluster have told their members: a group without any is gone then, with its list.

        Otherwise its members may be those of a worker that has died, or that did not begin yet.
        """
        became_known = known and not self.backlog.members_known
        self.backlog.members_known = known
        if became_known:
            for group in self.backlog.groups():
                self._forget_empty(cast(SharedGroup, group))
            if self.backlog.store is not None:
                self.backlog.store.members_known()

    def shared_group(self, share: bytes, filter: bytes) -> SharedGroup:
        """The group of a shared subscription; an empty one that is not kept, if there is none."""
        group = self._shared.get((share, filter))
        return SharedGroup(share, filter, self.backlog, self._authoriser) if group is None else group

    def retry_shared(self) -> None:
        """Another worker has less to do: pass on more of what waits for members of shared subscriptions there."""
        for group in self.backlog.take_held(RETRIED):
            cast(SharedGroup, group).retry_elsewhere()

    def shared_groups(self) -> Iterable[SharedGroup]:
        """The groups with a member at any worker."""
        return self._shared.values()

    def has(self, filter: bytes, share: bytes) -> bool:
        """Whether this worker knows *filter*, or its group with the name *share*, already."""
        return (share, filter) in self._shared if share else self.index.has(filter)

    def subscription_bytes(self) -> int:
        """The memory of the subscriptions at this worker, without their filters."""
        subscriptions = self.index.subscribers() + self._members
        cold = 0 if self.cold is None else self.cold.size()
        return SUBSCRIPTION * subscriptions + MEMBER * self._members + self.index.crowd_size() + cold

    def filter_bytes(self) -> int:
        """The memory, at this worker, of the filters and groups of all workers."""
        there, groups = self._neighbour_filters, self._groups
        filters = self.index.size() + there.size() + there.crowd_size() + groups.size() + groups.crowd_size()
        return filters + GROUP * len(self._shared) + self._shared_text + self.cold_elsewhere.size()

    def statistics(self) -> tuple[int, int, int]:
        """(routes, subscriptions, shared groups) at this worker; all members of a group count as one subscription."""
        shared = self._shared_here
        return len(self._routes) + len(self._old), self.index.subscribers() + shared, shared

    def _join(self, subscription: Subscription) -> None:
        group = self._group(share_of(subscription, self.logs is not None), subscription.filter)
        if len(group) == 0:
            self._shared_here += 1
            self.patterns.add(group.filter, True, subscription.session.client_id)
        members, durable = len(group), group.durable
        group.join(subscription)
        self._members += len(group) - members
        if group.durable != durable:
            self._changed(group.filter)
        self._announce(group)

    def _leave(self, subscription: Subscription) -> None:
        group = self._shared[share_of(subscription, self.logs is not None), subscription.filter]
        durable = group.durable
        group.leave(subscription)
        self._members -= 1
        if group.durable != durable:
            self._changed(group.filter)
        self._announce(group)
        if len(group) == 0:
            self._shared_here -= 1
            self.patterns.remove(group.filter, True)
        self._forget_empty(group)

    def _tell_members(self, group: Subscriber) -> None:
        self._announce(cast(SharedGroup, group))

    def _announce(self, group: SharedGroup) -> None:
        """Tell the other workers how many members of *group* are at this worker."""
        if self._neighbours is not None:
            group.announced = members, ready, durable = group.here()
            self._neighbours.shared(group.share, group.filter, members, ready, durable)

    def _group(self, share: bytes, filter: bytes) -> SharedGroup:
        """The group of a shared subscription, made if there is none."""
        key = (share, filter)
        group = self._shared.get(key)
        if group is not None:
            return group
        group = self._shared[key] = new_group(share, filter, self.backlog, self._authoriser, self._here, self.logs)
        self._groups.add(filter, group)
        self._shared_text += len(share) + len(filter)
        route = self._current(filter)
        if route is None:
            self._changed(filter)
        else:
            route.add_shared(group)
            self._size += RECEIVER_BYTES
            self._shrink(self._limit, self._topics)
        return group

    def _forget_empty(self, group: SharedGroup) -> None:
        """Remove *group* if it has no member at any worker."""
        if len(group) or group.remote or (not self.backlog.members_known and group.waits_stored()):
            return
        group.discard()
        filter = group.filter
        del self._shared[group.share, filter]
        self._groups.remove(filter, group)
        self._shared_text -= len(group.share) + len(filter)
        route = self._current(filter)
        if route is None:
            self._changed(filter)
        else:
            route.remove_shared(group)
            self._size -= RECEIVER_BYTES

    def _current(self, topic: bytes) -> Route | None:
        """The route of *topic*, if there is one and it is up to date."""
        route = self._routes.get(topic) or self._old.get(topic)
        if route is not None and route.epoch == self._epochs[route.slot] and self._survives(route):
            return route
        return None

    def _survives(self, route: Route) -> bool:
        """Whether none of the filters that raised the era since *route* was made matches its topic."""
        era = self._era
        if era - route.era >= RECENT:
            return False
        self.visits += era - route.era
        for number in range(route.era + 1, era + 1):
            if matches(self._recent[number % RECENT], route.topic):
                return False
        route.era = era
        return True

    def _may_receive(self, subscription: Subscription, topic: bytes) -> bool:
        authoriser = self._authoriser
        return authoriser is None or authoriser.may_receive(subscription.session.principal, topic)

    def _changed(self, filter: bytes) -> None:
        if not is_wildcard(filter):
            self._drop(filter)
            return
        first = first_level(filter)
        if first == b"+" or first == b"#":
            self._era += 1
            self._recent[self._era % RECENT] = filter
        else:
            self._epochs[hash(first) % EPOCHS] += 1

    def _drop(self, topic: bytes) -> None:
        route = self._routes.pop(topic, None) or self._old.pop(topic, None)
        if route is not None:
            self._size -= route.size

    def _find_old(self, topic: bytes, publisher: Principal | None) -> Route:
        route = self._current(topic)
        if route is None:
            self._check(topic)
            if publisher is not None and self._forbidden(topic, publisher):
                return _without_receivers(topic, publisher)
        self._drop(topic)
        if route is None:
            route = self._make(topic)
        if route.size <= self._limit >> 1:  # a larger one is not kept, or all others would have to be made again
            self._shrink(self._limit - route.size, self._topics - 1)
            self._size += route.size
            self._routes[topic] = route
        return route

    def _forbidden(self, topic: bytes, publisher: Principal) -> bool:
        if topic.startswith(RESERVED):
            return True
        authoriser = self._authoriser
        return authoriser is not None and not authoriser.may_publish(publisher, topic)

    def _check(self, topic: bytes) -> None:
        check_topic(topic)
        if topic.count(b"/") >= self._levels:
            raise ProtocolError(CloseReason.TOPIC_LEVELS, f"more than {self._levels} levels")
        if len(topic) > self._topic_bytes:
            raise ProtocolError(CloseReason.TOPIC_BYTES, f"more than {self._topic_bytes} bytes")

    def _make(self, topic: bytes) -> Route:
        slot = hash(first_level(topic)) % EPOCHS
        route = Route(topic, slot, self._epochs[slot], self._era)
        if self._authoriser is not None:
            route.guarded = True
            route.size += PUBLISHERS_BYTES
        if self._neighbour_filters.filters():
            for subscriber in self._neighbour_filters.match(topic):
                if not cast(Neighbour, subscriber).gone:
                    route.add_neighbour(cast(Neighbour, subscriber))
            self.visits += self._neighbour_filters.visited
        if self.cold_elsewhere.sets:
            for neighbour in self.cold_elsewhere.matching(topic):
                if not neighbour.gone:
                    route.add_neighbour(neighbour)
        if self._shared:
            for subscriber in self._groups.match(topic):
                group = cast(SharedGroup, subscriber)
                route.add_shared(group)
                if group.log is not None and group.durable:
                    route.add_log(group.log)
            self.visits += self._groups.visited
        subscriptions: list[Subscription] = []
        for subscriber in self.index.match(topic):
            subscription = cast(Subscription, subscriber)
            if self._may_receive(subscription, topic):
                subscriptions.append(subscription)
        self.visits += self.index.visited + len(subscriptions)
        # Subscriptions come filter by filter, and a session has each filter once: of one filter, none has to be merged.
        if subscriptions and subscriptions[0].filter == subscriptions[-1].filter:
            for subscription in subscriptions:
                _add_one(route, subscription)
        else:
            _add_merged(route, subscriptions)
        if self.cold is not None:
            self._add_cold(route)
        return route

    def _shrink(self, size: int, topics: int) -> None:
        """Drop routes until there are at most *topics* in *size* bytes."""
        while self._size > size or len(self._routes) + len(self._old) > topics:
            if not self._old:
                self._old = self._routes
                self._routes = {}
            _, route = self._old.popitem()
            self._size -= route.size


def _without_receivers(topic: bytes, publisher: Principal) -> Route:
    """A route that is not kept, for a publish of *publisher* that will be refused."""
    route = Route(topic, 0, 0, 0)
    route.guarded = True
    route.publishers = {publisher: False}
    return route


def _add_one(route: Route, subscription: Subscription) -> None:
    route.add(
        subscription.session,
        subscription.qos,
        subscription.retain_as_published,
        subscription.identifiers,
        audience(subscription),
    )


def _add_merged(route: Route, subscriptions: list[Subscription]) -> None:
    """Add *subscriptions*, merging those of one session."""
    alone: dict[Session, Subscription] = {}
    several: dict[Session, list[Subscription]] = {}
    for subscription in subscriptions:
        session = subscription.session
        same = several.get(session)
        if same is not None:
            same.append(subscription)
        elif session in alone:
            several[session] = [alone.pop(session), subscription]
        else:
            alone[session] = subscription
    for subscription in alone.values():
        _add_one(route, subscription)
    for session, same in several.items():
        for qos, retain_as_published, identifiers, whom in merged(same):
            route.add(session, qos, retain_as_published, identifiers, whom)
