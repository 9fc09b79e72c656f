# Routes: who gets a message, decided once for a topic and not once for a message.
#
# A Route is made when a topic is first published to: the topic is checked, all filters are matched, overlapping
# subscriptions of a session are merged, and the receivers are grouped by what makes their packets differ. After
# that a publish costs one dict lookup. What a change of subscriptions does to the routes that exist:
# - a new exact filter is added to its topic's route in place; one that goes drops that route;
# - a wildcard filter bumps the epoch of its first level, so only routes below it are made again;
# - only a filter that begins with a wildcard bumps the epoch of all.
# Epochs are kept in a fixed table by hash: a collision makes a route once more than needed, nothing else.
# Why no route per (publisher, topic)? Authorisation is the only thing that would depend on the publisher.
from typing import Final, cast

from broker.mqtt.topics import check_topic
from broker.reasons import CloseReason, ProtocolError
from broker.routing.filters import FilterIndex, first_level, is_wildcard
from broker.routing.shared import SharedGroup
from broker.session.message import Message
from broker.session.run import Run
from broker.session.session import Session, Subscription

EPOCHS: Final = 4096
ENTRY_BYTES: Final = 400  # what a route costs beside its topic, about

EVERYONE: Final = 0
OTHERS: Final = 1  # not the publisher itself: no local [MQTT-3.8.3-3]
SELF: Final = 2  # the publisher alone: what is left of overlapping subscriptions of which some are no local

RESERVED: Final = b"$SYS/"  # topics that only the broker publishes to


class Group:
    """Receivers of one topic whose packets differ at most in version and packet id."""

    def __init__(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        self.qos = qos
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.audience = audience
        self.sessions: list[Session] = []

    def deliver(self, message: Message, start: int, stop: int, publisher: Session | None, now: float) -> None:
        """Offer *message* to the receivers start..stop."""
        qos = min(self.qos, message.qos)
        retain = message.retain and self.retain_as_published  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        if qos != message.qos or retain != message.retain or self.identifiers:
            message = message.variant(qos, retain, self.identifiers)
        sessions = self.sessions
        if self.audience == EVERYONE:
            for i in range(start, stop):
                sessions[i].offer(message, now)
            return
        for i in range(start, stop):
            session = sessions[i]
            if (session is publisher) == (self.audience == SELF):
                session.offer(message, now)

    def deliver_run(self, run: Run, start: int, stop: int, publisher: Session | None, now: float) -> None:
        """The same for a run of QoS 0 packets, which each receiver gets in one piece."""
        sessions = self.sessions
        audience = self.audience
        for i in range(start, stop):
            session = sessions[i]
            if audience == EVERYONE or (session is publisher) == (audience == SELF):
                session.offer_run(run, self.identifiers, now)


class Route:
    def __init__(self, topic: bytes, slot: int, epoch: int, era: int) -> None:
        self.topic = topic
        self.groups: list[Group] = []
        self.shared: list[SharedGroup] = []
        self.receivers = 0
        self.reserved = topic.startswith(RESERVED)
        self.slot = slot
        self.epoch = epoch
        self.era = era

    def add(self, session: Session, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        """Put *session* into the group it belongs to."""
        self.receivers += 1
        for group in self.groups:
            if (
                group.qos == qos
                and group.retain_as_published == retain_as_published
                and group.audience == audience
                and group.identifiers == identifiers
            ):
                group.sessions.append(session)
                return
        group = Group(qos, retain_as_published, identifiers, audience)
        group.sessions.append(session)
        self.groups.append(group)


class Routes:
    """The subscriptions of the worker, and the routes made from them: at most *topics*, in about *size* bytes.

    A topic of more than *levels* levels is refused: they bound what a match costs.
    """

    def __init__(self, topics: int, size: int, levels: int) -> None:
        self.index = FilterIndex()
        self._topics = topics
        self._limit = size
        self._levels = levels
        self._size = 0
        self._routes: dict[bytes, Route] = {}
        self._shared: dict[tuple[bytes, bytes], SharedGroup] = {}
        self._epochs: list[int] = [0] * EPOCHS
        self._era = 0

    def find(self, topic: bytes) -> Route:
        """The route of *topic*. ProtocolError if it is no topic name."""
        route = self._routes.get(topic)
        if route is not None and route.era == self._era and route.epoch == self._epochs[route.slot]:
            return route
        return self._make(topic)

    def add(self, subscription: Subscription) -> None:
        """A session has subscribed."""
        filter = subscription.filter
        if subscription.share:
            key = (subscription.share, filter)
            group = self._shared.get(key)
            if group is None:
                group = self._shared[key] = SharedGroup(subscription.share, filter)
                self.index.add(filter, group)
                self._changed(filter)
            group.members.append(subscription)
            return
        self.index.add(filter, subscription)
        route = self._routes.get(filter)
        session = subscription.session
        if route is not None and len(session.subscriptions) == 1:
            audience = OTHERS if subscription.no_local else EVERYONE
            route.add(session, subscription.qos, subscription.retain_as_published, subscription.identifiers, audience)
        else:
            self._changed(filter)

    def changed(self, subscription: Subscription) -> None:
        """The options of a subscription are others now."""
        self._changed(subscription.filter)

    def remove(self, subscription: Subscription) -> None:
        """A session has unsubscribed, or ended."""
        filter = subscription.filter
        if subscription.share:
            key = (subscription.share, filter)
            group = self._shared[key]
            group.members.remove(subscription)
            if group.members:
                return
            del self._shared[key]
            self.index.remove(filter, group)
        else:
            self.index.remove(filter, subscription)
        self._changed(filter)

    def statistics(self) -> tuple[int, int, int]:
        """(routes, subscriptions, shared groups)."""
        return len(self._routes), self.index.subscribers(), len(self._shared)

    def _changed(self, filter: bytes) -> None:
        if not is_wildcard(filter):
            self._drop(filter)
            return
        first = first_level(filter)
        if first == b"+" or first == b"#":
            self._era += 1
        else:
            self._epochs[hash(first) % EPOCHS] += 1

    def _drop(self, topic: bytes) -> None:
        if self._routes.pop(topic, None) is not None:
            self._size -= len(topic) + ENTRY_BYTES

    def _make(self, topic: bytes) -> Route:
        check_topic(topic)
        if topic.count(b"/") >= self._levels:
            raise ProtocolError(CloseReason.TOPIC_NAME_INVALID, f"more than {self._levels} levels")
        self._drop(topic)
        slot = hash(first_level(topic)) % EPOCHS
        route = Route(topic, slot, self._epochs[slot], self._era)
        found: dict[Session, list[Subscription]] = {}
        for subscriber in self.index.match(topic):
            if isinstance(subscriber, SharedGroup):
                route.shared.append(subscriber)
                route.receivers += 1
                continue
            subscription = cast(Subscription, subscriber)
            same = found.get(subscription.session)
            if same is None:
                found[subscription.session] = [subscription]
            else:
                same.append(subscription)
        for session, subscriptions in found.items():
            _merge(route, session, subscriptions)
        self._size += len(topic) + ENTRY_BYTES
        self._routes[topic] = route
        while self._size > self._limit or len(self._routes) > self._topics:  # the oldest goes first
            self._drop(next(iter(self._routes)))
        return route


def _merge(route: Route, session: Session, subscriptions: list[Subscription]) -> None:
    """Overlapping subscriptions: one copy, at the highest QoS, with all identifiers [MQTT-3.3.4-2], [MQTT-3.3.5-1]."""
    foreign = [s for s in subscriptions if not s.no_local]
    if foreign and len(foreign) < len(subscriptions):
        _add(route, session, foreign, SELF)
        _add(route, session, subscriptions, OTHERS)
    else:
        _add(route, session, subscriptions, EVERYONE if foreign else OTHERS)


def _add(route: Route, session: Session, subscriptions: list[Subscription], audience: int) -> None:
    qos = 0
    retain_as_published = False
    identifiers = b""
    for subscription in subscriptions:
        qos = max(qos, subscription.qos)
        retain_as_published = retain_as_published or subscription.retain_as_published
        identifiers += subscription.identifiers
    route.add(session, qos, retain_as_published, identifiers, audience)
