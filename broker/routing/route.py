# A route: the receivers of one topic, grouped by what makes their packets differ.
#
# A group is what a publish walks over, so it is a plain list. A receiver that leaves leaves a hole, because a fan-out
# in pages keeps its place by position. Adding and removing a receiver costs the same with twenty receivers as with
# twenty thousand, or a storm of subscribes to one topic would take the square of their number. The size of a route in
# bytes is estimated while it changes, so that the cache of routes can bound its memory.
from collections.abc import Callable
from typing import Final

from broker.overload.gate import Gate
from broker.routing.cold_index import ColdIndex
from broker.routing.neighbour import ColdReceiver, Neighbour
from broker.routing.overlapping import EVERYONE, SELF, Kind
from broker.routing.shared import SharedGroup
from broker.routing.shared_log import FilterLog
from broker.routing.sizes import ROUTE
from broker.session.message import Message
from broker.session.principal import Principal
from broker.session.run import Run
from broker.session.session import Session

GROUP_BYTES: Final = 300  # of a group with its list, and its place in a dict of many groups
RECEIVER_BYTES: Final = 9  # a pointer, in a list that grows by an eighth
PLACE_BYTES: Final = 65  # an entry of the dict that finds a receiver in a large group

FEW_GROUPS: Final = 8  # so many groups are searched one by one; more have a dict
FEW_RECEIVERS: Final = 64  # the same for the receivers of a group

# Units of cost for delivering one message, beside one for each receiver:
IDENTIFIERS_PRICE: Final = 5  # a group with subscription identifiers: its packets are made anew for each message
SHARED_PRICE: Final = 8  # a shared group, which looks at some members before it chooses one
CROSSING_PRICE: Final = 2  # another worker: a packet is made for it alone
COLD_PRICE: Final = 20  # a cold session, which is read from Redis

RESERVED: Final = b"$SYS/"  # the beginning of topics that only the broker publishes to


class Group:
    """Receivers of one topic whose packets differ at most in version and packet id.

    A group with more holes than receivers is replaced by another object.
    """

    def __init__(self, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        self.qos = qos
        self.retain_as_published = retain_as_published
        self.identifiers = identifiers
        self.audience = audience
        self.sessions: list[Session | None] = []
        self.holes = 0
        self.size = GROUP_BYTES  # bytes, about
        self.place = 0  # its index among the groups of the route
        self._places: dict[Session, int] | None = None  # made when the first receiver leaves a large group

    def add(self, session: Session) -> None:
        """Add a receiver, which must not be in the group."""
        if self._places is not None:
            self._places[session] = len(self.sessions)
            self.size += PLACE_BYTES
        self.sessions.append(session)
        self.size += RECEIVER_BYTES

    def remove(self, session: Session) -> int:
        """Remove a receiver, which must be in the group; the receivers that were visited to find it.

        O(1), except for the first removal from a large group.
        """
        sessions = self.sessions
        places = self._places
        visited = 0
        if places is None and len(sessions) > FEW_RECEIVERS:
            places = self._places = {}
            for at in range(len(sessions)):
                present = sessions[at]
                if present is not None:
                    places[present] = at
            self.size += PLACE_BYTES * len(sessions)
            visited = len(sessions)
        sessions[sessions.index(session) if places is None else places.pop(session)] = None
        self.holes += 1
        return visited

    def compacted(self) -> "Group":
        """A copy of the group without holes."""
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
        """Offer a run of QoS 0 packets, which each receiver gets in one piece, to the receivers start..stop."""
        sessions = self.sessions
        audience = self.audience
        for i in range(start, stop):
            session = sessions[i]
            if session is not None and (audience == EVERYONE or (session is publisher) == (audience == SELF)):
                session.offer_run(run, self.identifiers, now)


class ColdGroup(Group):
    """The cold sessions that messages to one topic are for. They are looked for at each message of QoS 1 or 2.

    It has no places and is of a QoS of its own, so no session is added to it. When it finds that no cold session is
    left, *forget* is called with the topic, and has the route made again.
    """

    def __init__(self, index: ColdIndex, receiver: ColdReceiver, forget: Callable[[bytes], None]) -> None:
        super().__init__(-1, False, b"", EVERYONE)
        self._index = index
        self._receiver = receiver
        self._forget = forget

    def closed_gate(self) -> Gate | None:
        """The gate that a message of QoS 1 or 2 has to wait for; None if it need not."""
        return self._receiver.gate if self._receiver.gate.blocked else None

    def deliver(self, message: Message, start: int, stop: int, publisher: Session | None, now: float) -> None:
        if message.qos == 0:
            return
        if self._index.matches(message.topic):
            self._receiver.offer(message, now)
        else:
            self._forget(message.topic)

    def deliver_run(self, run: Run, start: int, stop: int, publisher: Session | None, now: float) -> None:
        pass


class Route:
    """The receivers of *topic*. *slot*, *epoch* and *era* say whether the route is up to date, see routes.py."""

    def __init__(self, topic: bytes, slot: int, epoch: int, era: int) -> None:
        self.topic = topic
        self.groups: list[Group] = []
        self.shared: list[SharedGroup] = []
        self.logs: list[FilterLog] | None = None  # that messages of QoS 1 and 2 are appended to; then it is `crossing`
        self.neighbours: list[Neighbour] = []
        self.gates: list[Gate] = []  # of `neighbours`
        self.stores: list[Gate] | None = None  # of stores, which publishes of QoS 1 and 2 pass, too
        self.crossing = False  # gates have to be open: of other workers that may receive messages, or of stores
        self.receivers = 0
        self.persistent = 0  # of them, those that store messages of QoS 1 and 2: durable sessions and other workers
        self.price = 0  # units of cost for delivering one message
        self.size = len(topic) + ROUTE  # bytes, about
        self.reserved = topic.startswith(RESERVED)
        self.cold: ColdGroup | None = None  # one of `groups`
        self.guarded = self.reserved  # a publish has to be allowed by `Routes.may_publish()`
        self.publishers: dict[Principal, bool] | None = None  # the remembered verdicts
        self.slot = slot
        self.epoch = epoch
        self.era = era
        self._latest: Group | None = None  # the group that was added to last, to which the next often belongs
        self._kinds: dict[Kind, Group] | None = None  # the groups by kind, when there are many

    def add(self, session: Session, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> None:
        """Add *session* to the group it belongs to. O(1)."""
        group = self._latest
        if group is None or not group.fits(qos, retain_as_published, identifiers, audience):
            group = self._find(qos, retain_as_published, identifiers, audience)
            if group is None:
                group = self._make(qos, retain_as_published, identifiers, audience)
            self._latest = group
        before = group.size
        group.add(session)
        self.size += group.size - before
        storage = session.storage
        if qos and storage is not None:
            self.persistent += 1
            self._add_store(storage.gate)
        self.receivers += 1
        self.price += 1

    def remove(self, session: Session, qos: int, retain_as_published: bool, identifiers: bytes, audience: int) -> int:
        """Remove *session* from its group; how many receivers were visited. O(1) amortised.

        KeyError if there is no such group.
        """
        group = self._find(qos, retain_as_published, identifiers, audience)
        if group is None:
            raise KeyError(session.client_id)
        before = group.size
        visited = group.remove(session)
        if qos and session.storage is not None:
            self.persistent -= 1
        self.receivers -= 1
        self.price -= 1
        self.size += group.size - before
        if group.holes == len(group.sessions):
            self._forget(group)
        elif group.holes * 2 > len(group.sessions):
            visited += len(group.sessions)
            self._replace(group, group.compacted())
        return visited

    def add_neighbour(self, neighbour: Neighbour) -> None:
        """Make *neighbour* a receiver, if its worker is none; one that confirms replaces one that does not."""
        neighbours = self.neighbours
        for at in range(len(neighbours)):
            if neighbours[at].worker is neighbour.worker:
                if neighbour.confirms:
                    self.persistent += 0 if neighbours[at].confirms else 1
                    neighbours[at] = neighbour
                    self._add_store_of(neighbour)
                return
        neighbours.append(neighbour)
        if neighbour.confirms:  # this worker does not know for how many sessions
            self.persistent += 1
        self.gates.append(neighbour.gate)
        self.crossing = True
        self.receivers += 1
        self.price += 1 + CROSSING_PRICE
        self.size += RECEIVER_BYTES
        self._add_store_of(neighbour)

    def _add_store_of(self, neighbour: Neighbour) -> None:
        if neighbour.store is not None:
            self._add_store(neighbour.store)

    def _add_store(self, gate: Gate) -> None:
        """There is a durable receiver, or a durable member of a shared subscription, whose messages are stored behind
        *gate*. It stays while the route is valid.
        """
        if self.stores is None:
            self.stores = []
        if gate not in self.stores:
            self.stores.append(gate)
            self.crossing = True
            self.size += RECEIVER_BYTES

    def add_cold(self, group: ColdGroup, store: Gate, sessions: int) -> None:
        """Deliver messages of QoS 1 and 2 to cold sessions, too, of which there are *sessions* or more."""
        group.place = len(self.groups)
        self.groups.append(group)
        if self._kinds is not None:
            self._kinds[group.kind()] = group
        self.cold = group
        self.persistent += sessions
        self._add_store(store)
        self.receivers += 1
        self.price += sessions * COLD_PRICE
        self.size += group.size

    def gates_of(self, qos: int) -> list[Gate]:
        """The gates that a publish of *qos* has to pass."""
        return self.gates if qos == 0 or self.stores is None else self.gates + self.stores

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

    def closed_for_cold(self, qos: int) -> Gate | None:
        """The gate that a message of *qos* has to wait for, as too many wait for cold sessions; None if it need not."""
        return None if self.cold is None or qos == 0 else self.cold.closed_gate()

    def free(self, qos: int) -> bool:
        """Whether a message of *qos* may go to other workers, and to stores, without being judged."""
        for gate in self.gates_of(qos):
            if not gate.free:
                return False
        if self.closed_for_cold(qos) is not None:
            return False
        return all(group.closed_gate() is None for group in self.shared)

    def add_shared(self, group: SharedGroup) -> None:
        """Deliver each message to one member of *group*, too."""
        self.shared.append(group)
        if group.remote:
            self.crossing = True
        store = group.store_gate()
        if store is not None:
            self._add_store(store)
            self.persistent += 1  # until the route is made anew, when no member is durable any more
        self.receivers += 1
        self.price += 1 + SHARED_PRICE
        self.size += RECEIVER_BYTES

    def add_log(self, log: FilterLog) -> None:
        """Append each message of QoS 1 or 2 to *log*, too, whose groups of APPLICATION clients were added.

        It stays until the route is made anew, when none of these groups has a durable member any more.
        """
        if self.logs is None:
            self.logs = []
        if log not in self.logs:
            self.logs.append(log)
            self.size += RECEIVER_BYTES

    def remove_shared(self, group: SharedGroup) -> None:
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
        if last is not group:  # the last group takes its place, as the order of groups does not matter
            last.place = group.place
            self.groups[last.place] = last
        if self._kinds is not None:
            del self._kinds[group.kind()]
        self._latest = None
        self.size -= group.size
        self.price -= IDENTIFIERS_PRICE if group.identifiers else 0
