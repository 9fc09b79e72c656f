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
#
# Members may be at other workers. Each says how many it has and how many of them are quick; a message goes to a worker
# by turns in which each has as many as it has quick members, and that one chooses the member. What it said may be a
# moment old: where nobody is quick after all, the message is passed on, once. Where then nobody lets it wait either, as
# members at QoS 0 and sessions that end with their connection do not, it goes round the workers until somebody does.
from typing import Final, cast

from broker.overload.gate import Gate
from broker.routing.authority import Authoriser
from broker.routing.neighbour import Neighbour
from broker.session.message import Message, SharedMessage
from broker.session.session import Session, Subscription
from broker.session.subscriber import Subscriber

LOOKS: Final = 64  # members of a ring that are looked at for one message at most
HOPS: Final = 2  # workers that a message may come to, beside the one of its publisher, for a quick member
MOST_HOPS: Final = 255  # a byte
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


class Elsewhere:
    """The members at another worker."""

    def __init__(self) -> None:
        self.members = 0
        self.quick = 0
        self.turn = 0  # how long it waits for its turn: the one with the most has it


class SharedGroup(Subscriber):
    def __init__(self, share: bytes, filter: bytes, authoriser: Authoriser | None = None, shard: int = 0) -> None:
        """*shard*: the number of this worker."""
        self._shard = shard
        self.share = share
        self.filter = filter
        self._authoriser = authoriser
        self._members: dict[Subscription, Member] = {}
        self._quick = Ring()  # can take a message at once
        self._slow = Ring()  # have a connection
        self._away = Ring()
        self.elsewhere: dict[Neighbour, Elsewhere] = {}
        self.told = (0, 0)  # what the neighbours know: members here, quick ones of them
        self._turn = 0

    def __len__(self) -> int:
        """Members here."""
        return len(self._members)

    def quick(self) -> int:
        """Members here that could take a message at once when they were last looked at."""
        return self._quick.count

    def look(self) -> None:
        """Look at some members of each kind: other workers go by what they were when they were last looked at."""
        self._probe(self._quick, LOOKS, 1)
        self._probe(self._slow, LOOKS, 1)
        self._probe(self._away, LOOKS, 1)

    def learn(self, neighbour: Neighbour, members: int, quick: int) -> bool:
        """*neighbour* has so many members now; true if it had none, or has none any more."""
        known = self.elsewhere.get(neighbour)
        if members == 0:
            return self.elsewhere.pop(neighbour, None) is not None
        if known is None:
            known = self.elsewhere[neighbour] = Elsewhere()
        new = known.members == 0
        known.members = members
        known.quick = quick
        return new

    def closed_gate(self) -> Gate | None:
        """The gate that a message has to wait for, as no member of any worker can have it before; None otherwise."""
        if self._members:
            return None
        for neighbour in self.elsewhere:
            if neighbour.gate.open:
                return None
        first = next(iter(self.elsewhere), None)
        return None if first is None else first.gate

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

    def deliver(self, message: Message, now: float, hop: int = 0) -> bool:
        """Offer *message* to one member; false if nobody may have it. *hop*: how many workers have passed it on."""
        if not self.elsewhere or hop >= HOPS:
            return (
                self._offer_quick(message, now)
                or self._offer_patient(message, now)
                or (hop > 0 and message.qos > 0 and self._pass_round(message, hop, now))
            )
        neighbour = self._whose_turn() if hop == 0 else None
        if neighbour is None:
            if self._offer_quick(message, now):
                return True
            neighbour = self._quickest()
        if neighbour is None:
            if self._offer_patient(message, now):
                return True
            if message.qos or not self._members:  # QoS 0 does not wait: where nobody is quick it is not sought for long
                neighbour = self._largest()
        if neighbour is None:
            return False
        neighbour.offer_shared(self.share, self.filter, message, hop + 1, now)
        return True

    def _pass_round(self, message: Message, hop: int, now: float) -> bool:
        """Have the next worker look whether *message* may wait there; false once all have."""
        if hop - HOPS >= len(self.elsewhere) or hop == MOST_HOPS:
            return False
        following: Neighbour | None = None
        lowest: Neighbour | None = None
        for neighbour in self.elsewhere:
            if lowest is None or neighbour.shard < lowest.shard:
                lowest = neighbour
            if neighbour.shard > self._shard and (following is None or neighbour.shard < following.shard):
                following = neighbour
        following = following or lowest
        if following is None:
            return False
        following.offer_shared(self.share, self.filter, message, hop + 1, now)
        return True

    def _offer_quick(self, message: Message, now: float) -> bool:
        member = self._choose_quick(message.topic, message.qos)
        if member is None:
            return False
        member.session.offer(_variant_for(member, message), now)
        return True

    def _offer_patient(self, message: Message, now: float) -> bool:
        member = self._choose_patient(message.topic, message.qos)
        if member is None:
            return False
        member.session.offer(SharedMessage(_variant_for(member, message), message, self), now)
        return True

    def _whose_turn(self) -> Neighbour | None:
        """The worker whose turn it is; None if it is this one, or if nobody is quick anywhere."""
        chosen: Elsewhere | None = None
        who: Neighbour | None = None
        total = self._quick.count
        most = self._turn = self._turn + total
        for neighbour, there in self.elsewhere.items():
            if there.quick and neighbour.gate.open:
                there.turn += there.quick
                total += there.quick
                if there.turn > most:
                    most, chosen, who = there.turn, there, neighbour
        if chosen is None:
            self._turn -= total
        else:
            chosen.turn -= total
        return who

    def _quickest(self) -> Neighbour | None:
        """The worker with the most quick members whose gate is open."""
        most = 0
        found: Neighbour | None = None
        for neighbour, there in self.elsewhere.items():
            if there.quick > most and neighbour.gate.open:
                most, found = there.quick, neighbour
        return found

    def _largest(self) -> Neighbour | None:
        """The worker with the most members, one whose gate is open rather than another."""
        most = 0
        found: Neighbour | None = None
        for neighbour, there in self.elsewhere.items():
            members = there.members << 1 | 1 if neighbour.gate.open else 1
            if members > most:
                most, found = members, neighbour
        return found

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
