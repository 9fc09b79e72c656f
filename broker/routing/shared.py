# A shared subscription: each message goes to one member of the group (4.8.2).
#
# A message that was sent to a member belongs to the session of the member: it is sent again when the member is back
# [MQTT-4.8.2-4], and is gone with the session [MQTT-4.8.2-5] or with a refusal [MQTT-4.8.2-6]. If the session is
# durable, what it had of QoS 1 goes to another member then (store/durable/returned.py). A message of QoS 1 or 2 that no
# member can be sent at once waits in the list of the group (shared_backlog.py) for the first member that can, also one
# that joins later; it gets the QoS of that member then. Messages that come while others wait are put behind them, so
# the messages of one publisher are written in their order. QoS 0 never waits. Clients of 3.x may share, too, by the
# same filters: their specification does not have shared subscriptions, but Mosquitto and HiveMQ offer them.
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
# member here has left. When the last member of all workers has left, the list is discarded and counted. The roads not
# taken: a list at the publisher's worker alone needs a report for each message that a member elsewhere takes; a list at
# one home of the group has each message cross twice.
#
# A list in memory is lost with its worker, as the sessions there and their queues are. A group is *durable* if a member
# of it at any worker is: then what begins to wait is stored, and a publish of QoS 1 or 2 is answered when its message
# is stored in a list, or a durable member has stored or acknowledged it, at whichever worker (for that, workers with
# durable members are neighbours that confirm). The worker that follows one that has died adopts its lists: a group may
# have several here, which are drained one after the other. A member without a durable session has what it is sent in
# memory, as all sessions of that kind: what it has not acknowledged is lost with its worker, or with its connection.
from typing import Final, cast

from broker.overload.gate import Gate
from broker.reasons import DropReason
from broker.routing.authority import Authoriser
from broker.routing.group_names import group_key
from broker.routing.member_ring import Member, MemberRing
from broker.routing.neighbour import Neighbour
from broker.routing.shared_backlog import ListHolder, SharedBacklog, WaitingList
from broker.routing.shared_log import FilterLog
from broker.session.message import Message, group_tag, group_variant
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Subscription

CHECKS: Final = 64  # members of a ring that are checked for one message at most
FEW_CHECKS: Final = 4  # members of a ring that are checked with every message, at no cost that can be measured
HOPS: Final = 2  # workers, beside that of its publisher, that a message may go to for a ready member
MOST_HOPS: Final = 255  # a byte
SKIPS: Final = 16  # waiting messages that are skipped at once, as no ready member may read their topics
BATCH: Final = 16  # waiting messages that another worker is passed at once for each ready member that it reported


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
        here: int = 0,
    ) -> None:
        """*here*: the incarnation of this worker, by which workers are in an order that all of them agree on."""
        self._here = here
        self.share = share
        self.filter = filter
        self._key = group_key(share, filter)
        self._tag = group_tag(self._key)
        self.log: FilterLog | None = None  # None: it is no group of APPLICATION clients
        self._backlog = backlog
        self.durable = False  # a member at any worker is, and lists are stored
        self._durable_here = 0  # durable members at this worker
        self._waiting: WaitingList | None = None  # the oldest list; None: no message waits
        self._newer: list[WaitingList] | None = None  # further ones, in order; None: there is one list at most
        self._authoriser = authoriser
        self._members: dict[Subscription, Member] = {}
        self._ready = MemberRing()
        self._slow = MemberRing()
        self._absent = MemberRing()
        self.remote: dict[Neighbour, RemoteMembers] = {}
        self.announced = (0, 0, False)  # what was reported to other workers: see `here()`
        self._credit = 0  # of this worker, as `RemoteMembers.credit`

    def __len__(self) -> int:
        """The number of members at this worker."""
        return len(self._members)

    def ready(self) -> int:
        """The number of members at this worker that were ready when they were last checked."""
        return self._ready.count

    def here(self) -> tuple[int, int, bool]:
        """Of this worker: members, ready ones of them, and whether any is durable."""
        return len(self._members), self._ready.count, self._durable_here > 0

    def waiting(self) -> int:
        """The number of messages that wait at this worker."""
        return sum([each.count() for each in self._lists()])

    def waits_in_memory(self) -> bool:
        """Whether messages wait that would end with this worker."""
        return any(not each.stored for each in self._lists())

    def waits_stored(self) -> bool:
        """Whether there is a list here that would outlive this worker."""
        return any(each.stored for each in self._lists())

    def _lists(self) -> list[WaitingList]:
        if self._waiting is None:
            return []
        return [self._waiting] if self._newer is None else [self._waiting, *self._newer]

    def check_members(self) -> None:
        """Check some members of each ring, so that the report to other workers is not too old."""
        self._check(self._ready, CHECKS, 1)
        self._check(self._slow, CHECKS, 1)
        self._check(self._absent, CHECKS, 1)

    def set_remote_members(self, neighbour: Neighbour, members: int, ready: int) -> bool:
        """*neighbour* has *members* members, *ready* of them ready; true if it had none, or has none any more."""
        known = self.remote.get(neighbour)
        if members == 0:
            left = self.remote.pop(neighbour, None) is not None
            self._look_whether_durable()
            return left
        if known is None:
            known = self.remote[neighbour] = RemoteMembers()
            self._look_whether_durable()
        new = known.members == 0
        known.members = members
        known.ready = ready
        self.retry_elsewhere()
        return new

    def _look_whether_durable(self) -> None:
        stored = self._backlog.store is not None
        self.durable = stored and (self._durable_here > 0 or any(each.confirms for each in self.remote))

    def store_gate(self) -> Gate | None:
        """The gate of the store that messages for the group may have to wait for; None if nothing of it is stored."""
        store = self._backlog.store
        return store.gate if self.durable and store is not None else None

    def retry(self) -> None:
        """Go on with what waits, soon."""
        if self._waiting is not None:
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
        closed: Gate | None = None
        for neighbour in self.remote:
            gate, store = neighbour.gate, neighbour.store
            if gate.open and store is not None:
                gate = store
            if gate.open:
                return None
            closed = closed or gate
        return closed

    def join(self, subscription: Subscription) -> None:
        """Add a member. A member that has subscribed again is ready until it is checked."""
        member = self._members.get(subscription)
        if member is None:
            member = self._members[subscription] = Member(subscription)
            self._ready.add(member)
            session: Session = subscription.session
            session.backlog = self._backlog
        else:
            _move(member, self._ready)
        self._count_durable(member, self._is_durable(subscription))
        if self._waiting is not None:
            self._backlog.retry(self._key)

    def leave(self, subscription: Subscription) -> None:
        """KeyError if it is no member."""
        member = self._members.pop(subscription)
        cast(MemberRing, member.ring).remove(member)
        self._count_durable(member, False)
        if self._waiting is not None and not self._members:
            self._backlog.retry(self._key)

    def _is_durable(self, subscription: Subscription) -> bool:
        """Whether the session of *subscription* stores what it is offered."""
        session: Session = subscription.session
        return session.storage is not None

    def _count_durable(self, member: Member, durable: bool) -> None:
        if durable != member.durable:
            member.durable = durable
            self._durable_here += 1 if durable else -1
            self._look_whether_durable()

    def may_be_ready(self, subscription: Subscription) -> None:
        """The session of *subscription* may have become writable: it has its turn for what waits."""
        member = self._members.get(subscription)
        if member is not None and self._waiting is not None:
            _move(member, self._ready)
            self._backlog.retry(self._key)

    def discard(self) -> None:
        """Drop what waits: the last member of all workers has left."""
        if self._waiting is not None:
            dropped = sum([each.clear() for each in self._lists()])
            self._backlog.counters.dropped(DropReason.NO_SHARED_MEMBER, dropped)
            self._waiting = self._newer = None
            self._backlog.end(self._key)

    def publish(self, message: Message, now: float) -> bool:
        """Offer *message*, which is published at this worker, to one member; false if there is none for it."""
        return self.deliver(message, now)

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

        Fewer than *most*: no member can be sent more now, or they are being read.
        """
        waiting = next((each for each in self._lists() if each.count()), None)
        if waiting is None:
            self.end_finished_lists()
            return 0
        self._forget_gone()
        self._check(self._slow, FEW_CHECKS, 1)
        self._check(self._absent, FEW_CHECKS, 1)
        if waiting.stored:  # it is not read for nobody
            self._check(self._ready, FEW_CHECKS, 1)
            if not self._ready.count and self._neighbour_for_waiting() is None:
                waiting.rest()
                return 0
        handled = 0
        skipped: list[Message] = []  # no ready member may read their topics
        nobody_ready = False
        while handled < most and len(skipped) < SKIPS and not nobody_ready:
            message = waiting.take()
            if message is None:
                break
            if message.expired(now):
                self._backlog.counters.dropped(DropReason.EXPIRED, 1)  # [MQTT-3.3.2-5]
                waiting.dropped(message, now)
            elif not self._give(waiting, message, now):
                nobody_ready = self._authoriser is None or not self._ready.count
                if nobody_ready or self._readable(message.topic):
                    skipped.append(message)
                    continue
                self._backlog.counters.dropped(DropReason.MAY_NOT_READ, 1)
                waiting.dropped(message, now)
            handled += 1
        waiting.put_back(skipped)
        if nobody_ready:
            waiting.rest()
        self.end_finished_lists()
        return handled

    def _give(self, waiting: WaitingList, message: Message, now: float) -> bool:
        """Send *message*, from *waiting*, to a ready member of this worker, or pass it to another worker."""
        member = self._next_ready(message.topic, message.qos)
        if member is not None:
            member.session.offer(self._variant_for(member, message), now)
            waiting.given(message, True, now)
            return True
        neighbour = self._neighbour_for_waiting()
        if neighbour is None:
            return False
        if self.announced[1] and not self._ready.count and self._backlog.tell_members is not None:
            self._backlog.tell_members(self)  # or that worker, with as little to give, might pass it back at once
        self.remote[neighbour].room -= 1
        neighbour.offer_shared(self.share, self.filter, message, HOPS, now)
        waiting.given(message, False, now)
        return True

    def _neighbour_for_waiting(self) -> Neighbour | None:
        """The worker that is passed a message that waits, as no member here is ready; None: no worker can be now."""
        neighbour = self._next_with_room() if self._members else self._largest()
        if neighbour is not None and neighbour.gate.open:
            return neighbour
        if any(there.ready for there in self.remote.values()):
            self._backlog.hold(self._key)
        return None

    def _forget_gone(self) -> None:
        """Forget workers that have ended: those that remove them from all groups do that in pages."""
        for neighbour in self.remote:
            if neighbour.gone:
                self.remote = {each: there for each, there in self.remote.items() if not each.gone}
                self._look_whether_durable()
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
        lists = self._lists()
        if lists and (lists[-1].stored or not self.durable):
            waiting = lists[-1]
        else:
            waiting = self._backlog.begin_list(self._key, self, self.durable)
            self.add_list(waiting)
        dropped = waiting.append(message, self._backlog.queue, now)
        if dropped:
            self._dropped(waiting, dropped)
        if waiting.count():
            self._backlog.retry(self._key)
        else:
            self.end_finished_lists()

    def add_list(self, waiting: WaitingList) -> None:
        """*waiting* is a list of this group, too: a new one, or that of a worker that has ended."""
        waiting.bind(GroupListHolder(self, waiting))
        if self._waiting is None:
            self._backlog.keep(self._key, self)
            self._waiting = waiting
        elif self._newer is None:
            self._newer = [waiting]
        else:
            self._newer.append(waiting)

    def _dropped(self, waiting: WaitingList, count: int) -> None:
        """Count messages that were dropped as too many wait; a member that is not ready is told the reason."""
        self._backlog.dropped(self, waiting, count)
        ring = self._slow if self._slow.count else self._absent
        member = ring.turn
        if member is not None:
            ring.turn = member.after
            session: Session = member.subscription.session
            session.missed(DropReason.SHARED_FULL, count)

    def list_dropped(self, waiting: WaitingList, reason: DropReason, count: int) -> None:
        """*waiting* has dropped *count* messages by itself: they have ended, or too many wait."""
        if reason is DropReason.QUEUE_FULL:
            self._dropped(waiting, count)
        else:
            self._backlog.counters.dropped(reason, count)
        self.end_finished_lists()

    def end_finished_lists(self) -> None:
        """Forget the lists, from the oldest on, of which no message is left."""
        while self._waiting is not None and self._waiting.finished():
            self._waiting.clear()
            self._waiting = self._newer.pop(0) if self._newer else None
            self._newer = self._newer or None
            if self._waiting is None:
                self._backlog.end(self._key)

    def forget_list(self, waiting: WaitingList) -> None:
        """*waiting* is damaged: what comes from now on waits in another list."""
        lists = [each for each in self._lists() if each is not waiting]
        waiting.clear()
        self._waiting = lists[0] if lists else None
        self._newer = lists[1:] or None
        if self._waiting is None:
            self._backlog.end(self._key)

    def _pass_round(self, message: Message, hop: int, now: float) -> bool:
        """Pass *message* to the next worker, where it may wait; false once all workers have had it."""
        if hop - HOPS >= len(self.remote) or hop == MOST_HOPS:
            return False
        following: Neighbour | None = None
        lowest: Neighbour | None = None
        for neighbour in self.remote:
            number = neighbour.worker.incarnation
            if lowest is None or number < lowest.worker.incarnation:
                lowest = neighbour
            if number > self._here and (following is None or number < following.worker.incarnation):
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
        member.session.offer(self._variant_for(member, message), now)
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

    def _variant_for(self, member: Subscription, message: Message) -> Message:
        qos = min(message.qos, member.qos)  # [MQTT-4.8.2-3]
        retain = message.retain and member.retain_as_published
        session: Session = member.session
        if session.storage is not None and qos:
            return group_variant(message, qos, retain, member.identifiers, self._tag)
        if qos != message.qos or retain != message.retain or member.identifiers:
            return message.variant(qos, retain, member.identifiers)
        return message

    def _ring_for(self, subscription: Subscription, qos: int) -> MemberRing:
        """The ring that a member belongs to, for a message at *qos*."""
        session: Session = subscription.session
        if session.outbox is None:
            return self._absent
        ready = session.ready() if qos and subscription.qos else session.writable()  # QoS 0 needs no place in a window
        return self._ready if ready else self._slow


def _move(member: Member, ring: MemberRing) -> None:
    former = cast(MemberRing, member.ring)
    if former is not ring:
        former.remove(member)
        ring.add(member)


class GroupListHolder(ListHolder):
    """Tells *group* what becomes of the messages of its list *waiting*."""

    def __init__(self, group: SharedGroup, waiting: WaitingList) -> None:
        self._group = group
        self._waiting = waiting

    def pump(self, now: float) -> None:
        self._group.retry()

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        self._group.list_dropped(self._waiting, reason, count)

    def finished(self) -> None:
        self._group.end_finished_lists()

    def damaged(self) -> None:
        self._group.forget_list(self._waiting)
