# A shared subscription: each message goes to one member of the group (4.8.2).
#
# A message that was sent to a member belongs to the session of the member: it is sent again when the member is back
# [MQTT-4.8.2-4], and is gone with the session [MQTT-4.8.2-5] or with a refusal [MQTT-4.8.2-6]. A message of QoS 1 or 2
# that no member can be sent at once waits in the list of the group (shared_backlog.py) for the first member that can,
# also one that joins later; it gets the QoS of that member then. Messages that come while others wait are put behind
# them, so the messages of one publisher are written in their order. QoS 0 never waits. Clients of 3.x may share, too,
# by the same filters: their specification does not have shared subscriptions, but Mosquitto and HiveMQ offer them.
#
# Members take turns. A *ready* member would be sent the message at once; the others are *slow*, or *absent* if they
# have no connection. So a slow member costs the group nothing while another is ready.
#
# A group may have ten thousand members, most of them slow or absent, and nothing reports when that changes while no
# message waits. So each member is in the ring of the state in which it was last seen. A member found in another state
# moves to that ring, and with every message a few slow and absent members are checked again: a member that is ready
# again waits for its turn for at most as many messages as there are such members, divided by those few. No message
# checks all members, so with more than CHECKS members that are not ready, "at once" means: among those checked. The
# same holds for members that may not read the topic: they are skipped, at most CHECKS of them for one message.
#
# Members may be at other workers. Each worker reports how many members it has and how many of them are ready. A message
# goes to a worker by turns in which each has as many as it has ready members, and that worker chooses the member. The
# report may be a moment old: if no member is ready there after all, the message is passed on, once. If then no member
# lets it wait either, as members at QoS 0 and sessions that end with their connection do not, the message goes round
# the workers until one accepts it.
#
# So a message waits at the worker of its publisher if a member there lets it, or else at the worker with the most
# members; at another one while the gate of that one is closed, which may cost the order of messages. The list stays
# there. Its first messages are passed to another worker with ready members, at most BATCH for each of them whenever it
# reports or confirms what it was passed, so as fast as they are taken there. All of them are passed when the last
# member here has left. When the last member of all workers has left, the list is discarded and counted. A list is in
# the memory of one worker and is lost with it, as the sessions of that worker and their queues are. The roads not
# taken: a list at the publisher's worker alone needs a report for each message that a member elsewhere takes; a list at
# one home of the group has each message cross twice.
from typing import Final, cast

from broker.mqtt.topics import SHARE_PREFIX
from broker.overload.gate import Gate
from broker.reasons import DropReason
from broker.routing.authority import Authoriser
from broker.routing.neighbour import Neighbour
from broker.routing.shared_backlog import SharedBacklog
from broker.session.message import Message
from broker.session.queue import Holder, MemoryQueue
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Subscription

CHECKS: Final = 64  # members of a ring that are checked for one message at most
FEW_CHECKS: Final = 4  # members of a ring that are checked with every message, at no cost that can be measured
HOPS: Final = 2  # workers, beside that of its publisher, that a message may go to for a ready member
MOST_HOPS: Final = 255  # a byte
SKIPS: Final = 16  # waiting messages that are skipped at once, as no ready member may read their topics
BATCH: Final = 16  # waiting messages that another worker is passed at once for each ready member that it reported


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
        self.room = 0  # waiting messages that may be passed to it before it has to report again


class SharedGroup(Subscriber):
    def __init__(
        self,
        share: bytes,
        filter: bytes,
        backlog: SharedBacklog,
        authoriser: Authoriser | None = None,
        shard: int = 0,
    ) -> None:
        """*shard*: that of this worker."""
        self._shard = shard
        self.share = share
        self.filter = filter
        self._key = b"%b%b/%b" % (SHARE_PREFIX, share, filter)  # of subscriptions in their sessions
        self._backlog = backlog
        self._waiting: MemoryQueue | None = None  # None: no message waits
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

    def waiting(self) -> int:
        """The number of messages that wait at this worker."""
        return 0 if self._waiting is None else self._waiting.count

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
        self.retry_elsewhere()
        return new

    def retry(self) -> None:
        """Go on with what waits, soon."""
        self._backlog.retry(self._key)

    def retry_elsewhere(self) -> None:
        """Pass some of what waits to workers whose last report has ready members, soon."""
        if self._waiting is None:
            return
        for there in self.remote.values():
            there.room = there.ready * BATCH
        if self.remote:
            self._backlog.retry(self._key)

    def closed_gate(self) -> Gate | None:
        """The gate that a message has to wait for, as no member of any worker can have it before; None otherwise."""
        if self._members:
            return None
        self._forget_gone()
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
            subscription.session.backlog = self._backlog
        else:
            _move(member, self._ready)
        if self._waiting is not None:
            self._backlog.retry(self._key)

    def leave(self, subscription: Subscription) -> None:
        """KeyError if it is no member."""
        member = self._members.pop(subscription)
        cast(MemberRing, member.ring).remove(member)
        if self._waiting is not None and not self._members:
            self._backlog.retry(self._key)

    def may_be_ready(self, subscription: Subscription) -> None:
        """The session of *subscription* may have become writable: it has its turn for what waits."""
        member = self._members.get(subscription)
        if member is not None and self._waiting is not None:
            _move(member, self._ready)
            self._backlog.retry(self._key)

    def discard(self) -> None:
        """Drop what waits: the last member of all workers has left."""
        waiting = self._waiting
        if waiting is not None:
            self._backlog.counters.dropped(DropReason.NO_SHARED_MEMBER, waiting.clear())
            self._end_list()

    def deliver(self, message: Message, now: float, hop: int = 0) -> bool:
        """Offer *message* to one member; false if there is none for it. *hop*: how many workers have passed it on."""
        if self._waiting is not None and message.qos:
            self._wait(message, now)
            return True
        self._forget_gone()
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

    def deliver_waiting(self, most: int, now: float) -> int:
        """Give up to *most* of the messages that wait to members that can be sent them; return how many were handled.

        Fewer than *most*: no member can be sent more now.
        """
        waiting = self._waiting
        if waiting is None:
            return 0
        self._forget_gone()
        self._check(self._slow, FEW_CHECKS, 1)
        self._check(self._absent, FEW_CHECKS, 1)
        handled = 0
        skipped: list[Message] = []  # no ready member may read their topics
        while handled < most and len(skipped) < SKIPS:
            message = waiting.pop()
            if message is None:
                break
            if message.expired(now):
                self._backlog.counters.dropped(DropReason.EXPIRED, 1)  # [MQTT-3.3.2-5]
            elif not self._give(message, now):
                if self._authoriser is None or not self._ready.count:
                    skipped.append(message)
                    break
                if self._readable(message.topic):
                    skipped.append(message)
                    continue
                self._backlog.counters.dropped(DropReason.MAY_NOT_READ, 1)
            self._backlog.budget.release(message)
            handled += 1
        waiting.put_back(skipped)
        if not waiting.count:
            self._end_list()
        return handled

    def _give(self, message: Message, now: float) -> bool:
        """Send *message*, which has waited, to a ready member of this worker, or pass it to another worker."""
        member = self._next_ready(message.topic, message.qos)
        if member is not None:
            member.session.offer(_variant_for(member, message), now)
            return True
        neighbour = self._next_with_room() if self._members else self._largest()
        if neighbour is None or not neighbour.gate.open:
            if any(there.ready for there in self.remote.values()):
                self._backlog.hold(self._key)
            return False
        self.remote[neighbour].room -= 1
        neighbour.offer_shared(self.share, self.filter, message, HOPS, now)
        return True

    def _forget_gone(self) -> None:
        """Forget workers that have ended: those that remove them from all groups do that in pages."""
        for neighbour in self.remote:
            if neighbour.gone:
                self.remote = {each: there for each, there in self.remote.items() if not each.gone}
                return

    def _next_with_room(self) -> Neighbour | None:
        """The worker that has reported the most ready members for what waits, of those whose gate is open."""
        most = 0
        found: Neighbour | None = None
        for neighbour, there in self.remote.items():
            if there.room > most and neighbour.gate.open:
                most, found = there.room, neighbour
        return found

    def _readable(self, topic: bytes) -> bool:
        """Whether a member may read *topic*; true also if not all members were asked."""
        if self.remote or len(self._members) > CHECKS:
            return True
        return any(self._may_receive(subscription, topic) for subscription in self._members)

    def _wait(self, message: Message, now: float) -> None:
        """Have *message* wait for the first member that can be sent it."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = self._backlog.begin_list(self._key, self)
            waiting.bind(ListHolder(self))
        dropped = waiting.append(message, self._backlog.queue, now)
        if dropped:
            self._dropped(waiting, dropped)
        if waiting.count:
            self._backlog.retry(self._key)
        else:
            self._end_list()

    def _dropped(self, waiting: MemoryQueue, count: int) -> None:
        """Count messages that were dropped as too many wait; a member that is not ready is told the reason."""
        self._backlog.dropped(self, waiting, count)
        ring = self._slow if self._slow.count else self._absent
        member = ring.turn
        if member is not None:
            ring.turn = member.after
            session: Session = member.subscription.session
            session.missed(DropReason.SHARED_FULL, count)

    def list_expired(self, count: int) -> None:
        """*count* messages of the list have ended."""
        self._backlog.counters.dropped(DropReason.EXPIRED, count)
        if self._waiting is not None and not self._waiting.count:
            self._end_list()

    def _end_list(self) -> None:
        self._waiting = None
        self._backlog.end(self._key)

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
        """Have *message* wait here, if a member at this worker lets it."""
        if message.qos == 0:
            return False
        if not self._lets_wait(self._slow, message.topic) and not self._lets_wait(self._absent, message.topic):
            return False
        self._wait(message, now)
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

    def _lets_wait(self, ring: MemberRing, topic: bytes) -> bool:
        """Whether a member of *ring* subscribed with QoS 1 or 2, may read *topic* and does not end just now."""
        for _ in range(min(CHECKS, ring.count)):
            member = cast(Member, ring.turn)
            subscription = member.subscription
            session: Session = subscription.session
            if subscription.qos and not session.ended and (session.outbox is not None or session.expiry):
                if self._may_receive(subscription, topic):
                    return True
            ring.turn = member.after
        return False

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


class ListHolder(Holder):
    """Is told of messages in the list of *group* that have ended."""

    def __init__(self, group: SharedGroup) -> None:
        self._group = group

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        self._group.list_expired(count)
