# A shared subscription: each message goes to one member of the group (4.8.2).
#
# A message that was sent to a member belongs to the session of the member: it is sent again when the member is back
# [MQTT-4.8.2-4], and is gone with the session [MQTT-4.8.2-5] or with a refusal [MQTT-4.8.2-6]. A message that only
# waited for the member goes to another member. Clients of 3.x may share, too, by the same filters: their
# specification does not have shared subscriptions, but Mosquitto and HiveMQ offer them.
#
# Members take turns. A *ready* member would be sent the message at once; it is preferred to a *slow* one, where the
# message would wait, and that to an *absent* one, which has no connection. So a slow member costs the group nothing
# while another is ready.
#
# A group may have ten thousand members, most of them slow or absent, and nothing reports when that changes. So each
# member is in the ring of the state in which it was last seen. A member found in another state moves to that ring,
# and with every message a few slow and absent members are checked again: a member that is ready again waits for its
# turn for at most as many messages as there are such members, divided by those few. No message checks all members, so
# with more than CHECKS members that are not ready, "preferred" means: among those checked. The same holds for members
# that may not read the topic: they are skipped, at most CHECKS of them for one message.
#
# Members may be at other workers. Each worker reports how many members it has and how many of them are ready. A message
# goes to a worker by turns in which each has as many as it has ready members, and that worker chooses the member. The
# report may be a moment old: if no member is ready there after all, the message is passed on, once. If then no member
# can let it wait either, as members at QoS 0 and sessions that end with their connection do not, the message goes round
# the workers until one accepts it.
from typing import Final, cast

from broker.overload.gate import Gate
from broker.routing.authority import Authoriser
from broker.routing.neighbour import Neighbour
from broker.session.message import Message, SharedMessage
from broker.session.session import Session, Subscription
from broker.session.subscriber import Subscriber

CHECKS: Final = 64  # members of a ring that are checked for one message at most
FEW_CHECKS: Final = 4  # members of a ring that are checked with every message, at no cost that can be measured
HOPS: Final = 2  # workers, beside that of its publisher, that a message may go to for a ready member
MOST_HOPS: Final = 255  # a byte


class Member:
    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.ring: MemberRing | None = None
        self.before: Member | None = None  # in its ring
        self.after: Member | None = None


class MemberRing:
    """A linked list of members in the order of their turns. All operations are O(1)."""

    def __init__(self) -> None:
        self.count = 0
        self.turn: Member | None = None
        self.next_check: Member | None = None  # the member whose state is checked next

    def add(self, member: Member) -> None:
        """Add *member*; all others have their turn before it."""
        turn = self.turn
        member.ring = self
        self.count += 1
        if turn is None:
            self.turn = self.next_check = member.before = member.after = member
            return
        last = cast(Member, turn.before)
        member.before, member.after = last, turn
        last.after = turn.before = member

    def remove(self, member: Member) -> None:
        before, after = cast(Member, member.before), cast(Member, member.after)
        before.after, after.before = after, before
        member.ring = member.before = member.after = None  # no cycle for the collector
        self.count -= 1
        if self.turn is member:
            self.turn = after if self.count else None
        if self.next_check is member:
            self.next_check = after if self.count else None


class RemoteMembers:
    """The members at another worker."""

    def __init__(self) -> None:
        self.members = 0
        self.ready = 0
        self.credit = 0  # grows by `ready` with each message; the worker with the most is chosen next


class SharedGroup(Subscriber):
    def __init__(self, share: bytes, filter: bytes, authoriser: Authoriser | None = None, shard: int = 0) -> None:
        """*shard*: that of this worker."""
        self._shard = shard
        self.share = share
        self.filter = filter
        self._authoriser = authoriser
        self._members: dict[Subscription, Member] = {}
        self._ready = MemberRing()
        self._slow = MemberRing()
        self._absent = MemberRing()
        self.remote: dict[Neighbour, RemoteMembers] = {}
        self.announced = (0, 0)  # what was reported to other workers: members at this worker, ready ones of them
        self._credit = 0  # of this worker, as `RemoteMembers.credit`

    def __len__(self) -> int:
        """The number of members at this worker."""
        return len(self._members)

    def ready(self) -> int:
        """The number of members at this worker that were ready when they were last checked."""
        return self._ready.count

    def check_members(self) -> None:
        """Check some members of each ring, so that the report to other workers is not too old."""
        self._check(self._ready, CHECKS, 1)
        self._check(self._slow, CHECKS, 1)
        self._check(self._absent, CHECKS, 1)

    def set_remote_members(self, neighbour: Neighbour, members: int, ready: int) -> bool:
        """*neighbour* has *members* members, *ready* of them ready; true if it had none, or has none any more."""
        known = self.remote.get(neighbour)
        if members == 0:
            return self.remote.pop(neighbour, None) is not None
        if known is None:
            known = self.remote[neighbour] = RemoteMembers()
        new = known.members == 0
        known.members = members
        known.ready = ready
        return new

    def closed_gate(self) -> Gate | None:
        """The gate that a message has to wait for, as no member of any worker can have it before; None otherwise."""
        if self._members:
            return None
        for neighbour in self.remote:
            if neighbour.gate.open:
                return None
        first = next(iter(self.remote), None)
        return None if first is None else first.gate

    def join(self, subscription: Subscription) -> None:
        """Add a member. A member that has subscribed again is ready until it is checked."""
        member = self._members.get(subscription)
        if member is None:
            member = self._members[subscription] = Member(subscription)
            self._ready.add(member)
        else:
            _move(member, self._ready)

    def leave(self, subscription: Subscription) -> None:
        """KeyError if it is no member."""
        member = self._members.pop(subscription)
        cast(MemberRing, member.ring).remove(member)

    def deliver(self, message: Message, now: float, hop: int = 0) -> bool:
        """Offer *message* to one member; false if there is none for it. *hop*: how many workers have passed it on."""
        if not self.remote or hop >= HOPS:
            return (
                self._offer_to_ready(message, now)
                or self._offer_to_wait(message, now)
                or (hop > 0 and message.qos > 0 and self._pass_round(message, hop, now))
            )
        neighbour = self._next_neighbour() if hop == 0 else None
        if neighbour is None:
            if self._offer_to_ready(message, now):
                return True
            neighbour = self._most_ready()
        if neighbour is None:
            if self._offer_to_wait(message, now):
                return True
            if message.qos or not self._members:  # QoS 0 does not wait, so it is not passed on without a ready member
                neighbour = self._largest()
        if neighbour is None:
            return False
        neighbour.offer_shared(self.share, self.filter, message, hop + 1, now)
        return True

    def _pass_round(self, message: Message, hop: int, now: float) -> bool:
        """Pass *message* to the next worker, where it may wait; false once all workers have had it."""
        if hop - HOPS >= len(self.remote) or hop == MOST_HOPS:
            return False
        following: Neighbour | None = None
        lowest: Neighbour | None = None
        for neighbour in self.remote:
            if lowest is None or neighbour.shard < lowest.shard:
                lowest = neighbour
            if neighbour.shard > self._shard and (following is None or neighbour.shard < following.shard):
                following = neighbour
        following = following or lowest
        if following is None:
            return False
        following.offer_shared(self.share, self.filter, message, hop + 1, now)
        return True

    def _offer_to_ready(self, message: Message, now: float) -> bool:
        member = self._choose_ready(message.topic, message.qos)
        if member is None:
            return False
        member.session.offer(_variant_for(member, message), now)
        return True

    def _offer_to_wait(self, message: Message, now: float) -> bool:
        member = self._choose_to_wait(message.topic, message.qos)
        if member is None:
            return False
        member.session.offer(SharedMessage(_variant_for(member, message), message, self), now)
        return True

    def _next_neighbour(self) -> Neighbour | None:
        """The worker whose turn it is; None if it is this worker, or if no member of any worker is ready."""
        chosen: RemoteMembers | None = None
        found: Neighbour | None = None
        total = self._ready.count
        most = self._credit = self._credit + total
        for neighbour, there in self.remote.items():
            if there.ready and neighbour.gate.open:
                there.credit += there.ready
                total += there.ready
                if there.credit > most:
                    most, chosen, found = there.credit, there, neighbour
        if chosen is None:
            self._credit -= total
        else:
            chosen.credit -= total
        return found

    def _most_ready(self) -> Neighbour | None:
        """The worker with the most ready members, of those whose gate is open."""
        most = 0
        found: Neighbour | None = None
        for neighbour, there in self.remote.items():
            if there.ready > most and neighbour.gate.open:
                most, found = there.ready, neighbour
        return found

    def _largest(self) -> Neighbour | None:
        """The worker with the most members; workers whose gate is open are preferred."""
        most = 0
        found: Neighbour | None = None
        for neighbour, there in self.remote.items():
            members = there.members << 1 | 1 if neighbour.gate.open else 1
            if members > most:
                most, found = members, neighbour
        return found

    def _choose_ready(self, topic: bytes, qos: int) -> Subscription | None:
        self._check(self._slow, FEW_CHECKS, qos)
        self._check(self._absent, FEW_CHECKS, qos)
        chosen = self._next_ready(topic, qos)
        if chosen is None:
            self._check(self._slow, CHECKS, qos)
            self._check(self._absent, CHECKS, qos)
            chosen = self._next_ready(topic, qos)
        return chosen

    def _choose_to_wait(self, topic: bytes, qos: int) -> Subscription | None:
        """A member in whose session a message can wait; QoS 0 never waits."""
        if qos == 0:
            return None
        return self._next_to_wait(self._slow, topic) or self._next_to_wait(self._absent, topic)

    def _check(self, ring: MemberRing, limit: int, qos: int) -> None:
        """Check up to *limit* members of *ring*, and move them to the ring they belong to."""
        for _ in range(min(limit, ring.count)):
            member = cast(Member, ring.next_check)
            ring.next_check = member.after
            _move(member, self._ring_for(member.subscription, qos))

    def _next_ready(self, topic: bytes, qos: int) -> Subscription | None:
        ready = self._ready
        for _ in range(min(CHECKS, ready.count)):
            member = cast(Member, ready.turn)
            ring = self._ring_for(member.subscription, qos)
            if ring is not ready:
                _move(member, ring)
                continue
            ready.turn = member.after
            if self._may_receive(member.subscription, topic):
                return member.subscription
        return None

    def _next_to_wait(self, ring: MemberRing, topic: bytes) -> Subscription | None:
        """The next member of *ring* in whose session a message to *topic* can wait at QoS 1 or 2."""
        for _ in range(min(CHECKS, ring.count)):
            member = cast(Member, ring.turn)
            ring.turn = member.after
            subscription = member.subscription
            session: Session = subscription.session
            if subscription.qos and session.has_room() and (session.outbox is not None or session.expiry):
                if self._may_receive(subscription, topic):
                    return subscription
        return None

    def _may_receive(self, subscription: Subscription, topic: bytes) -> bool:
        authoriser = self._authoriser
        return authoriser is None or authoriser.may_receive(subscription.session.principal, topic)

    def _ring_for(self, subscription: Subscription, qos: int) -> MemberRing:
        """The ring that a member belongs to, for a message at *qos*."""
        session: Session = subscription.session
        if session.outbox is None:
            return self._absent
        ready = session.ready() if qos and subscription.qos else session.writable()  # QoS 0 needs no place in a window
        return self._ready if ready else self._slow


def _variant_for(member: Subscription, message: Message) -> Message:
    qos = min(message.qos, member.qos)  # [MQTT-4.8.2-3]
    retain = message.retain and member.retain_as_published
    if qos != message.qos or retain != message.retain or member.identifiers:
        return message.variant(qos, retain, member.identifiers)
    return message


def _move(member: Member, ring: MemberRing) -> None:
    former = cast(MemberRing, member.ring)
    if former is not ring:
        former.remove(member)
        ring.add(member)
