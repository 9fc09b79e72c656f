# Routes: who gets a message, decided once for a topic and not once for a message.
#
# A Route is made when a topic is first published to: the topic is checked, all filters are matched, overlapping
# subscriptions of a session are merged, and the receivers are grouped by what makes their packets differ. After
# that a publish costs one dict lookup. What a change of subscriptions does to the routes that exist:
# - an exact filter that comes or goes patches its topic's route, at the same cost with twenty receivers as with
#   twenty thousand; only if the session has, or may have, an overlapping filter is that route dropped;
# - a wildcard filter bumps the epoch of its first level, so only routes below it are made again;
# - only a filter that begins with a wildcard bumps the epoch of all.
# Epochs are kept in a fixed table by hash: a collision makes a route once more than needed, nothing else.
#
# The cache has two generations. When it is full, all it holds becomes the old one; what is used moves to the new one,
# and for each route that comes one goes from the end of the old. So nothing is looked for and nothing is done for many
# at once: "the oldest of a dict" is found behind all entries that were deleted before it.
#
# Who may read a topic is decided when its route is made or patched, and who may publish to it when they first do. Only
# then is anybody asked: without an authoriser a publish pays nothing for it, with one a look into a small dict.
# Other workers of the node are receivers, too: whoever has a matching filter gets the message once and matches again.
# Their filters are in an index of their own; one that comes or goes has the routes it concerns made again.
# Why no route per (publisher, topic)? Authorisation is the only thing that would depend on the publisher.
from collections.abc import Iterable
from typing import Final, cast

from broker.mqtt.topics import check_topic
from broker.overload.gate import Gate
from broker.reasons import CloseReason, ProtocolError
from broker.routing.authority import Authoriser
from broker.routing.filters import FilterIndex, first_level, is_wildcard
from broker.routing.neighbour import Neighbour, Neighbours
from broker.routing.overlapping import EVERYONE, SELF, Kind, audience, merged, overlaps
from broker.routing.shared import SharedGroup
from broker.session.message import Message
from broker.session.principal import Principal
from broker.session.run import Run
from broker.session.session import Session, Subscription

EPOCHS: Final = 4096
ENTRY_BYTES: Final = 320  # what a route costs beside its topic, about
GROUP_BYTES: Final = 300  # a group with its list, and its place in a dict of many groups
RECEIVER_BYTES: Final = 9  # a pointer, in a list that grows by an eighth
PLACE_BYTES: Final = 65  # an entry of the dict that finds a receiver in a large group
PUBLISHERS: Final = 10  # whose right to publish is remembered by a route: as many as a dict of the next size takes
PUBLISHERS_BYTES: Final = 352

FEW_GROUPS: Final = 8  # so many are looked through; more have a dict
FEW_RECEIVERS: Final = 64  # the same

# Units of cost for delivering one message, beside one for each receiver:
IDENTIFIERS_PRICE: Final = 5  # a group with subscription identifiers: its packets are made anew for each message
SHARED_PRICE: Final = 8  # a shared group: some members are looked at, see there
CROSSING_PRICE: Final = 2  # another worker: the packet is made for it, whoever else gets one

MANY_SUBSCRIPTIONS: Final = 100  # of a session: so many are looked at one by one

RESERVED: Final = b"$SYS/"  # topics that only the broker publishes to


class Group:
    """Receivers of one topic whose packets differ at most in version and packet id.

    A receiver that leaves leaves a hole, so that a fan-out under way keeps its place; a group with more holes than
    receivers is replaced by another object.
    """

    def __init__(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        self.qos = qos
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.audience = audience
        self.sessions: list[Session | None] = []
        self.holes = 0
        self.size = GROUP_BYTES  # bytes, about
        self.place = 0  # among the groups of its route
        self._places: dict[Session, int] | None = None  # made when the first receiver leaves a large group

    def add(self, session: Session) -> None:
        """Add a receiver, which must not be there."""
        if self._places is not None:
            self._places[session] = len(self.sessions)
            self.size += PLACE_BYTES
        self.sessions.append(session)
        self.size += RECEIVER_BYTES

    def remove(self, session: Session) -> None:
        """Remove a receiver, which must be there. O(1), but for the first of a large group."""
        sessions = self.sessions
        places = self._places
        if places is None and len(sessions) > FEW_RECEIVERS:
            places = self._places = {}
            for at in range(len(sessions)):
                present = sessions[at]
                if present is not None:
                    places[present] = at
            self.size += PLACE_BYTES * len(sessions)
        sessions[sessions.index(session) if places is None else places.pop(session)] = None
        self.holes += 1

    def compacted(self) -> "Group":
        """The same group without holes."""
        group = Group(self.qos, self.retain_as_published, self.identifiers, self.audience)
        group.place = self.place
        group.sessions = [session for session in self.sessions if session is not None]
        group.size += RECEIVER_BYTES * len(group.sessions)
        return group

    def kind(self) -> Kind:
        return self.qos, self.retain_as_published, self.identifiers, self.audience

    def fits(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> bool:
        return (
            self.qos == qos
            and self.retain_as_published == retain_as_published
            and self.audience == audience
            and self.identifiers == identifiers
        )

    def deliver(self, message: Message, start: int, stop: int, publisher: Session | None, now: float) -> None:
        """Offer *message* to the receivers start..stop."""
        qos = min(self.qos, message.qos)  # [MQTT-3.8.4-8]
        retain = message.retain and self.retain_as_published  # [MQTT-3.3.1-12], [MQTT-3.3.1-13]
        if qos != message.qos or retain != message.retain or self.identifiers:
            message = message.variant(qos, retain, self.identifiers)
        sessions = self.sessions
        audience = self.audience
        for i in range(start, stop):
            session = sessions[i]
            if session is not None and (audience == EVERYONE or (session is publisher) == (audience == SELF)):
                session.offer(message, now)

    def deliver_run(self, run: Run, start: int, stop: int, publisher: Session | None, now: float) -> None:
        """The same for a run of QoS 0 packets, which each receiver gets in one piece."""
        sessions = self.sessions
        audience = self.audience
        for i in range(start, stop):
            session = sessions[i]
            if session is not None and (audience == EVERYONE or (session is publisher) == (audience == SELF)):
                session.offer_run(run, self.identifiers, now)


class Route:
    def __init__(self, topic: bytes, slot: int, epoch: int, era: int) -> None:
        self.topic = topic
        self.groups: list[Group] = []
        self.shared: list[SharedGroup] = []
        self.neighbours: list[Neighbour] = []
        self.gates: list[Gate] = []  # of `neighbours`
        self.crossing = False  # some of it goes to other workers, whose gates have to be open
        self.receivers = 0
        self.price = 0  # units of cost for delivering one message
        self.size = len(topic) + ENTRY_BYTES  # bytes, about
        self.reserved = topic.startswith(RESERVED)
        self.guarded = self.reserved  # a publish has to ask `Routes.may_publish()`
        self.publishers: dict[Principal, bool] | None = None  # whether they may
        self.slot = slot
        self.epoch = epoch
        self.era = era
        self._latest: Group | None = None  # the group that was added to: often the right one again
        self._kinds: dict[Kind, Group] | None = None  # when there are many groups

    def add(self, session: Session, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        """Put *session* into the group it belongs to. O(1)."""
        group = self._latest
        if group is None or not group.fits(qos, retain_as_published, identifiers, audience):
            group = self._find(qos, retain_as_published, identifiers, audience)
            if group is None:
                group = self._make(qos, retain_as_published, identifiers, audience)
            self._latest = group
        before = group.size
        group.add(session)
        self.size += group.size - before
        self.receivers += 1
        self.price += 1

    def remove(self, session: Session, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        """Take *session* out of its group. O(1) amortised. KeyError if there is no such group."""
        group = self._find(qos, retain_as_published, identifiers, audience)
        if group is None:
            raise KeyError(session.client_id)
        before = group.size
        group.remove(session)
        self.receivers -= 1
        self.price -= 1
        self.size += group.size - before
        if group.holes == len(group.sessions):
            self._forget(group)
        elif group.holes * 2 > len(group.sessions):
            self._replace(group, group.compacted())

    def cross(self, neighbour: Neighbour) -> None:
        """*neighbour* is a receiver; adding it twice is adding it once."""
        if neighbour not in self.neighbours:
            self.neighbours.append(neighbour)
            self.gates.append(neighbour.gate)
            self.crossing = True
            self.receivers += 1
            self.price += 1 + CROSSING_PRICE
            self.size += RECEIVER_BYTES

    def closed_gate(self) -> Gate | None:
        """A gate that a message of the topic has to wait for; None if there is none."""
        for gate in self.gates:
            if not gate.open:
                return gate
        for group in self.shared:
            gate_of_group = group.closed_gate()
            if gate_of_group is not None:
                return gate_of_group
        return None

    def free(self) -> bool:
        """Whether a message may go to other workers without being judged."""
        for gate in self.gates:
            if not gate.free:
                return False
        return all(group.closed_gate() is None for group in self.shared)

    def share(self, group: SharedGroup) -> None:
        """One member of *group* is a receiver."""
        self.shared.append(group)
        if group.elsewhere:
            self.crossing = True
        self.receivers += 1
        self.price += 1 + SHARED_PRICE
        self.size += RECEIVER_BYTES

    def unshare(self, group: SharedGroup) -> None:
        self.shared.remove(group)
        self.receivers -= 1
        self.price -= 1 + SHARED_PRICE
        self.size -= RECEIVER_BYTES

    def _find(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> Group | None:
        if self._kinds is not None:
            return self._kinds.get((qos, retain_as_published, identifiers, audience))
        for group in self.groups:
            if group.fits(qos, retain_as_published, identifiers, audience):
                return group
        return None

    def _make(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> Group:
        group = Group(qos, retain_as_published, identifiers, audience)
        group.place = len(self.groups)
        self.groups.append(group)
        if self._kinds is not None:
            self._kinds[group.kind()] = group
        elif len(self.groups) > FEW_GROUPS:
            self._kinds = {each.kind(): each for each in self.groups}
        self.size += group.size
        self.price += IDENTIFIERS_PRICE if identifiers else 0
        return group

    def _replace(self, group: Group, successor: Group) -> None:
        self.groups[group.place] = successor
        if self._kinds is not None:
            self._kinds[group.kind()] = successor
        self._latest = None
        self.size += successor.size - group.size

    def _forget(self, group: Group) -> None:
        last = self.groups.pop()
        if last is not group:  # the last one takes its place: the order of groups means nothing
            last.place = group.place
            self.groups[last.place] = last
        if self._kinds is not None:
            del self._kinds[group.kind()]
        self._latest = None
        self.size -= group.size
        self.price -= IDENTIFIERS_PRICE if group.identifiers else 0


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
        authoriser: Authoriser | None = None,
        neighbours: Neighbours | None = None,
        shard: int = 0,
    ) -> None:
        """*neighbours* are told what is subscribed to here; *shard*: of this worker."""
        self.index = FilterIndex()  # of subscriptions here
        self._neighbours = neighbours
        self._shard = shard
        self._groups = FilterIndex()
        self._elsewhere = FilterIndex()  # of neighbours
        self._authoriser = authoriser
        self._topics = topics
        self._limit = size
        self._levels = levels
        self._topic_bytes = topic_bytes
        self._size = 0
        self._routes: dict[bytes, Route] = {}
        self._old: dict[bytes, Route] = {}
        self._shared: dict[tuple[bytes, bytes], SharedGroup] = {}
        self._shared_here = 0  # those of them with members here
        self._epochs: list[int] = [0] * EPOCHS
        self._era = 0

    def find(self, topic: bytes) -> Route:
        """The route of *topic*. ProtocolError if it is no topic name."""
        route = self._routes.get(topic)
        if route is not None and route.era == self._era and route.epoch == self._epochs[route.slot]:
            return route
        return self._find_old(topic)

    def add(self, subscription: Subscription) -> None:
        """A session has subscribed. Its `subscriptions` hold the new one."""
        filter = subscription.filter
        if subscription.share:
            self._join(subscription)
            return
        if self.index.add(filter, subscription) and self._neighbours is not None:
            self._neighbours.gained(filter)
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

    def changed(self, subscription: Subscription) -> None:
        """The options of a subscription are others now."""
        if subscription.share:  # a route does not know them
            self._shared[subscription.share, subscription.filter].join(subscription)
        else:
            self._changed(subscription.filter)

    def remove(self, subscription: Subscription) -> None:
        """A session has unsubscribed, or ended. Its `subscriptions` do not hold this one any more."""
        filter = subscription.filter
        if subscription.share:
            self._leave(subscription)
            return
        if self.index.remove(filter, subscription) and self._neighbours is not None:
            self._neighbours.lost(filter)
        route = self._current(filter)
        if route is None or overlaps(subscription):
            self._changed(filter)
            return
        if not self._may_receive(subscription, filter):
            return  # it never was in there
        before = route.size
        route.remove(
            subscription.session,
            subscription.qos,
            subscription.retain_as_published,
            subscription.identifiers,
            audience(subscription),
        )
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

    def judge_again(self) -> None:
        """The authoriser would answer otherwise than before: no route is right any more."""
        self._era += 1

    def judge_session_again(self, session: Session) -> None:
        """*session* acts for somebody else now: no route that it is in is right any more."""
        if len(session.subscriptions) > MANY_SUBSCRIPTIONS:
            self._era += 1
            return
        for subscription in session.subscriptions.values():
            if not subscription.share:  # a group asks for each message
                self._changed(subscription.filter)

    # What other workers tell of themselves.

    def learn(self, filter: bytes, neighbour: Neighbour) -> None:
        """*neighbour* has subscribers for *filter*."""
        self._elsewhere.add(filter, neighbour)
        self._changed(filter)

    def unlearn(self, filter: bytes, neighbour: Neighbour) -> None:
        """*neighbour* has no subscriber for *filter* any more."""
        self._elsewhere.remove(filter, neighbour)
        self._changed(filter)

    def learn_shared(self, share: bytes, filter: bytes, neighbour: Neighbour, members: int, quick: int) -> None:
        """*neighbour* has so many members of a shared subscription now."""
        group = self._group(share, filter)
        if group.learn(neighbour, members, quick):
            self._changed(filter)  # whether it crosses is the route's to know
        self._forget_empty(group)

    def forget_all(self) -> None:
        """A neighbour is gone, or was there never: whatever it was a receiver of is another route now."""
        self._era += 1

    def shared_group(self, share: bytes, filter: bytes) -> SharedGroup:
        """The group of those who share *filter* as *share*; one that nobody is in, if there is none."""
        group = self._shared.get((share, filter))
        return SharedGroup(share, filter, self._authoriser) if group is None else group

    def shared_groups(self) -> Iterable[SharedGroup]:
        """Those with a member anywhere."""
        return self._shared.values()

    def statistics(self) -> tuple[int, int, int]:
        """(routes, subscriptions, shared groups) here; the members of a group together are one subscription."""
        shared = self._shared_here
        return len(self._routes) + len(self._old), self.index.subscribers() + shared, shared

    def _join(self, subscription: Subscription) -> None:
        group = self._group(subscription.share, subscription.filter)
        self._shared_here += 0 if len(group) else 1
        group.join(subscription)
        self._tell(group)

    def _leave(self, subscription: Subscription) -> None:
        group = self._shared[subscription.share, subscription.filter]
        group.leave(subscription)
        self._tell(group)
        self._shared_here -= 0 if len(group) else 1
        self._forget_empty(group)

    def _tell(self, group: SharedGroup) -> None:
        """The neighbours are to know how many members are here."""
        if self._neighbours is not None:
            group.told = (len(group), group.quick())
            self._neighbours.shared(group.share, group.filter, len(group), group.quick())

    def _group(self, share: bytes, filter: bytes) -> SharedGroup:
        """The group of that name, perhaps a new one without a member."""
        key = (share, filter)
        group = self._shared.get(key)
        if group is not None:
            return group
        group = self._shared[key] = SharedGroup(share, filter, self._authoriser, self._shard)
        self._groups.add(filter, group)
        route = self._current(filter)
        if route is None:
            self._changed(filter)
        else:
            route.share(group)
            self._size += RECEIVER_BYTES
            self._shrink(self._limit, self._topics)
        return group

    def _forget_empty(self, group: SharedGroup) -> None:
        """If *group* has no member anywhere there is none."""
        if len(group) or group.elsewhere:
            return
        filter = group.filter
        del self._shared[group.share, filter]
        self._groups.remove(filter, group)
        route = self._current(filter)
        if route is None:
            self._changed(filter)
        else:
            route.unshare(group)
            self._size -= RECEIVER_BYTES

    def _current(self, topic: bytes) -> Route | None:
        """The route of *topic* if it is there and up to date."""
        route = self._routes.get(topic) or self._old.get(topic)
        if route is not None and route.era == self._era and route.epoch == self._epochs[route.slot]:
            return route
        return None

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
        else:
            self._epochs[hash(first) % EPOCHS] += 1

    def _drop(self, topic: bytes) -> None:
        route = self._routes.pop(topic, None) or self._old.pop(topic, None)
        if route is not None:
            self._size -= route.size

    def _find_old(self, topic: bytes) -> Route:
        route = self._current(topic)
        self._drop(topic)
        if route is None:
            route = self._make(topic)
        if route.size <= self._limit >> 1:  # or it would have all others made again, too
            self._shrink(self._limit - route.size, self._topics - 1)
            self._size += route.size
            self._routes[topic] = route
        return route

    def _make(self, topic: bytes) -> Route:
        check_topic(topic)
        if topic.count(b"/") >= self._levels:
            raise ProtocolError(CloseReason.TOPIC_LEVELS, f"more than {self._levels} levels")
        if len(topic) > self._topic_bytes:
            raise ProtocolError(CloseReason.TOPIC_BYTES, f"more than {self._topic_bytes} bytes")
        slot = hash(first_level(topic)) % EPOCHS
        route = Route(topic, slot, self._epochs[slot], self._era)
        if self._authoriser is not None:
            route.guarded = True
            route.size += PUBLISHERS_BYTES
        for neighbour in self._elsewhere.match(topic) if self._elsewhere.filters() else ():
            if not cast(Neighbour, neighbour).gone:
                route.cross(cast(Neighbour, neighbour))
        for group in self._groups.match(topic) if self._shared else ():
            route.share(cast(SharedGroup, group))
        subscriptions: list[Subscription] = []
        for subscriber in self.index.match(topic):
            subscription = cast(Subscription, subscriber)
            if self._may_receive(subscription, topic):
                subscriptions.append(subscription)
        # They come filter by filter, and a session has each filter once: with one filter there is nothing to merge.
        if subscriptions and subscriptions[0].filter == subscriptions[-1].filter:
            for subscription in subscriptions:
                _add_one(route, subscription)
        else:
            _add_merged(route, subscriptions)
        return route

    def _shrink(self, size: int, topics: int) -> None:
        """Drop routes until there are at most *topics* in *size* bytes."""
        while self._size > size or len(self._routes) + len(self._old) > topics:
            if not self._old:
                self._old = self._routes
                self._routes = {}
            _, route = self._old.popitem()
            self._size -= route.size


def _add_one(route: Route, subscription: Subscription) -> None:
    route.add(
        subscription.session,
        subscription.qos,
        subscription.retain_as_published,
        subscription.identifiers,
        audience(subscription),
    )


def _add_merged(route: Route, subscriptions: list[Subscription]) -> None:
    """Add *subscriptions*, those of the same session as one."""
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
