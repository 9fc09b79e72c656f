# A shared subscription: each message goes to one member of the group (4.8.2).
#
# What a member was sent is its session's: sent again to it when it comes back [MQTT-4.8.2-4], and gone with its
# session [MQTT-4.8.2-5] or its refusal [MQTT-4.8.2-6]; what only waited for it goes to another member. 3.x may share
# as well, by the same filters: its specification knows nothing of it, but Mosquitto and HiveMQ do so.
#
# Members take turns. One that could take the message at once is preferred to one that would let it wait, and
# one that has a connection to one that is away; so a slow member costs the group nothing while another is quick.
#
# A group may have ten thousand members, most of them slow or away, and nobody tells us when that changes. So each
# member is in the ring of what it was when it was last looked at. Whoever is found to be something else moves to
# that ring, and with every message a few of the slow and of the absent are looked at again: who is back waits for
# its turn at most as many messages as there are such members, divided by those few. Nothing looks at all of them,
# so with more than LOOKS members that are not quick, "preferred" means: among those looked at. The same holds for
# members that may not read the topic, where there are such: they are passed over, LOOKS of them for one message.
from typing import Final, cast

from broker.routing.authority import Authoriser
from broker.session.message import Message, SharedMessage
from broker.session.session import Session, Subscription
from broker.session.subscriber import Subscriber

LOOKS: Final = 64  # members of a ring that are looked at for one message at most
PROBES: Final = 4  # the same where there is a quick member: what that costs is not felt


class Member:
    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.ring: Ring | None = None
        self.before: Member | None = None  # of its ring
        self.behind: Member | None = None


class Ring:
    """Members in the order of their turns. Everything but the constructor is O(1)."""

    def __init__(self) -> None:
        self.count = 0
        self.turn: Member | None = None
        self.probe: Member | None = None  # who is looked at next, to see whether it still belongs here

    def add(self, member: Member) -> None:
        """Let *member* wait until all others have had their turn."""
        turn = self.turn
        member.ring = self
        self.count += 1
        if turn is None:
            self.turn = self.probe = member.before = member.behind = member
            return
        last = cast(Member, turn.before)
        member.before, member.behind = last, turn
        last.behind = turn.before = member

    def remove(self, member: Member) -> None:
        before, behind = cast(Member, member.before), cast(Member, member.behind)
        before.behind, behind.before = behind, before
        member.ring = member.before = member.behind = None  # no cycle for the collector
        self.count -= 1
        if self.turn is member:
            self.turn = behind if self.count else None
        if self.probe is member:
            self.probe = behind if self.count else None


class SharedGroup(Subscriber):
    def __init__(self, share: bytes, filter: bytes, authoriser: Authoriser | None = None) -> None:
        self.share = share
        self.filter = filter
        self._authoriser = authoriser
        self._members: dict[Subscription, Member] = {}
        self._quick = Ring()  # can take a message at once
        self._slow = Ring()  # have a connection
        self._away = Ring()

    def __len__(self) -> int:
        return len(self._members)

    def join(self, subscription: Subscription) -> None:
        """A new member, or one that has subscribed again and so is there."""
        member = self._members.get(subscription)
        if member is None:
            member = self._members[subscription] = Member(subscription)
            self._quick.add(member)
        else:
            _move(member, self._quick)

    def leave(self, subscription: Subscription) -> None:
        """KeyError if it is no member."""
        member = self._members.pop(subscription)
        cast(Ring, member.ring).remove(member)

    def choose(self, topic: bytes, qos: int) -> Subscription | None:
        """The member for the next message to *topic* at *qos*; None if none was found that may have it."""
        return self._choose_quick(topic, qos) or self._choose_patient(topic, qos)

    def deliver(self, message: Message, now: float) -> bool:
        """Offer *message* to one member; false if nobody may have it."""
        member = self._choose_quick(message.topic, message.qos)
        if member is not None:
            member.session.offer(_variant_for(member, message), now)
            return True
        member = self._choose_patient(message.topic, message.qos)
        if member is None:
            return False
        member.session.offer(SharedMessage(_variant_for(member, message), message, self), now)
        return True

    def _choose_quick(self, topic: bytes, qos: int) -> Subscription | None:
        self._probe(self._slow, PROBES, qos)
        self._probe(self._away, PROBES, qos)
        chosen = self._next_quick(topic, qos)
        if chosen is None:
            self._probe(self._slow, LOOKS, qos)
            self._probe(self._away, LOOKS, qos)
            chosen = self._next_quick(topic, qos)
        return chosen

    def _choose_patient(self, topic: bytes, qos: int) -> Subscription | None:
        """A member that lets a message wait; QoS 0 never waits."""
        if qos == 0:
            return None
        return self._next_patient(self._slow, topic) or self._next_patient(self._away, topic)

    def _probe(self, ring: Ring, limit: int, qos: int) -> None:
        """Look at up to *limit* members of *ring* and put them where they belong."""
        for _ in range(min(limit, ring.count)):
            member = cast(Member, ring.probe)
            ring.probe = member.behind
            _move(member, self._ring_for(member.subscription, qos))

    def _next_quick(self, topic: bytes, qos: int) -> Subscription | None:
        quick = self._quick
        for _ in range(min(LOOKS, quick.count)):
            member = cast(Member, quick.turn)
            ring = self._ring_for(member.subscription, qos)
            if ring is not quick:
                _move(member, ring)
                continue
            quick.turn = member.behind
            if self._may_receive(member.subscription, topic):
                return member.subscription
        return None

    def _next_patient(self, ring: Ring, topic: bytes) -> Subscription | None:
        """The next member of *ring* that may let a message to *topic* wait at QoS 1 or 2."""
        for _ in range(min(LOOKS, ring.count)):
            member = cast(Member, ring.turn)
            ring.turn = member.behind
            subscription = member.subscription
            session: Session = subscription.session
            if subscription.qos and session.has_room() and (session.outbox is not None or session.expiry):
                if self._may_receive(subscription, topic):
                    return subscription
        return None

    def _may_receive(self, subscription: Subscription, topic: bytes) -> bool:
        authoriser = self._authoriser
        return authoriser is None or authoriser.may_receive(subscription.session.principal, topic)

    def _ring_for(self, subscription: Subscription, qos: int) -> Ring:
        """Where a member belongs that is offered a message at *qos*."""
        session: Session = subscription.session
        if session.outbox is None:
            return self._away
        # QoS 0 needs no place in a window.
        quick = session.ready() if qos and subscription.qos else session.writable()
        return self._quick if quick else self._slow


def _variant_for(member: Subscription, message: Message) -> Message:
    qos = min(message.qos, member.qos)  # [MQTT-4.8.2-3]
    retain = message.retain and member.retain_as_published
    if qos != message.qos or retain != message.retain or member.identifiers:
        return message.variant(qos, retain, member.identifiers)
    return message


def _move(member: Member, ring: Ring) -> None:
    former = cast(Ring, member.ring)
    if former is not ring:
        former.remove(member)
        ring.add(member)
