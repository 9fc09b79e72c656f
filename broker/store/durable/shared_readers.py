# The members, at this worker, of the groups of APPLICATION clients, and the partitions that they read.
#
# A member that can be sent messages takes its part of the partitions of its group from Redis (leases.lua): each is read
# by one member, of whatever worker, and all have as many. A member that cannot, as its client is not connected, reads
# too slowly, or has not acknowledged in time, releases all of its own; notices of that have the others take them, so a
# member that is stuck holds up what was sent to it already, and nothing else. Notices are not promised to arrive, so
# all members look by themselves from time to time (group_looks.py).
#
# Of a large group, each worker has as many members take part as there are partitions, and looks at the others in turns.
#
# A group begins where its log ends when its first member joins; that SUBACK waits for it. Each further member joins
# what is there. If Redis has lost its data, members restore the leases that they know. What no member had leased is
# read from the beginning of the log: it may come once more, but is not lost.
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from math import inf
from typing import Any, Final, Protocol, cast

from broker.mqtt.topics import split_share
from broker.reasons import LogFailure, StoreFailure
from broker.routing.authority import Authoriser
from broker.routing.group_names import application_key
from broker.session.message import Message, group_tag, group_variant
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.lease_scripts import ASKED, LEASE, LeaseKeys, digest_of
from broker.store.durable.leases import SHARED_ERA, Lease, LeaseReader, first_saved
from broker.store.durable.log_feed import LogFeed
from broker.store.durable.log_topics import shared_group_of
from broker.store.durable.record import SessionRecord
from broker.store.durable.shared_topics import SharedTopic, SharedTopics
from broker.store.logs.port import GroupLink, LogMembership
from broker.store.logs.topics import LogError, TopicDescription

LOOKED_AT: Final = 16  # members that do not take part that are looked at each time
AGAIN: Final = 0.1  # seconds until what failed is asked again
SWEEP_AGAIN: Final = 3.0  # seconds until a sweep that has failed is made again
GRACE: Final = 2.0  # seconds in which members restore what Redis has lost
NOT_STORED: Final = 0
LAST: Final = 2  # what a sweep answers if there is no group of the filter any more
NO_MEMBER: Final = -1
NOT_SUBSCRIBED: Final = -1  # as far as it is stored
RETIRED: Final = -2
CALM: Final = 10.0  # seconds that a member can be sent messages until it joins its group in Kafka again

Replied = Callable[[object, StoreFailure | None], None]


class LeaseStore(Protocol):
    """What the readers need of the store of their worker."""

    @property
    def keys(self) -> LeaseKeys: ...

    @property
    def link(self) -> GroupLink: ...

    @property
    def by_kafka(self) -> bool:
        """Whether Kafka says who is to read which partitions, and not Redis."""
        ...

    def call(self, keys: list[bytes], words: list[str | bytes | int], then: Replied) -> None:
        """Call leases.lua."""
        ...

    def now(self) -> float: ...

    def when_written(self, then: Callable[[], None]) -> None:
        """Call *then* once all that is to be stored by now is."""
        ...

    def later(self, then: Callable[[], None], seconds: float) -> None:
        """Call *then* in so many seconds."""
        ...

    def soon(self, group: "ReadGroup") -> None:
        """Call `look()` of *group* at the end of the slice."""
        ...

    def watch(self, group: "ReadGroup") -> None:
        """Call `look()` of *group* now and then, until it returns false."""
        ...

    def unused(self, filter: bytes) -> None:
        """The last group of *filter* has ended."""
        ...


class GroupMember(LeaseReader):
    """*subscription*, of a session at this worker, in *group*."""

    def __init__(self, group: "ReadGroup", subscription: Subscription) -> None:
        session: Session = subscription.session
        record = cast(SessionRecord, session.storage)
        self.group: Final = group
        self.subscription: Final = subscription
        self.session: Final = session
        self.queue: Final = cast(ApplicationQueue, record.queue())
        self.digest: Final = digest_of(self.queue.client)
        self.joined = False
        self.waiting: list[Callable[[], None]] = []  # until it has
        self.left = False
        self.takes_part = False
        self.taking = False  # a call has no reply yet
        self.again = False  # take once more behind it
        self.membership: LogMembership | None = None  # of the consumer group in Kafka, while it takes part
        self.assigned: list[int] = []  # the partitions that Kafka has given it
        self.unassigned = ""  # why it is no member there
        self.stuck_at = -inf  # when it was seen last that its client was connected, and could not be sent messages

    def can_read(self, now: float, timeout: float) -> bool:
        """Whether the client could be sent a message, and has acknowledged in time."""
        queue = self.queue
        if not self.subscription.qos or queue.is_resting() or queue.ended or queue.moves() or queue.damaged:
            return False
        return self.session.writable() and not queue.is_overdue(now, timeout)

    def for_member(self, message: Message) -> Message | None:
        subscription, authoriser = self.subscription, self.group.authoriser
        if authoriser is not None and not authoriser.may_receive(self.session.principal, message.topic):
            return None
        qos = min(message.qos, subscription.qos)  # [MQTT-4.8.2-3]
        retain = message.retain and subscription.retain_as_published
        return group_variant(message, qos, retain, subscription.identifiers, self.group.tag)

    def mirrored_as(self) -> tuple[str, str]:
        return self.group.consumer_group, self.group.topic.name

    def lease_ended(self, lease: Lease, now: float) -> None:
        self.group.look_soon()

    def client_changed(self) -> None:
        self.group.client_changed()

    def passes_on(self) -> None:
        self.group.watch()

    def may_recover(self) -> bool:
        """Whether it may take part some time, without its client connecting anew or another notice."""
        return self.joined and self.subscription.qos > 0 and not self.queue.is_resting()

    def is_busy(self) -> bool:
        """Whether its client has something to do, and may become stuck."""
        return self.queue.count > 0 or self.queue.under_way() > 0


class ReadGroup:
    def __init__(
        self,
        key: bytes,
        topic: SharedTopic,
        topics: SharedTopics,
        store: LeaseStore,
        authoriser: Authoriser | None,
        timeout: float,
    ) -> None:
        """*key*: of the shared subscriptions of its members. *timeout*: seconds in which they have to acknowledge."""
        self.digest: Final = digest_of(key)
        self._key: Final = key
        self.tag: Final = group_tag(application_key(key))
        self.topic: Final = topic
        found = split_share(key)
        self.consumer_group: Final = shared_group_of(found[0] if found else key, topic.name)
        self.authoriser: Final = authoriser
        self.members: dict[Subscription, GroupMember] = {}
        self.due = False  # members are to take what they can
        self._topics = topics
        self._store = store
        self._timeout = timeout
        self._parts: dict[GroupMember, None] = {}  # members that take part
        self._others: deque[GroupMember] = deque()
        self._unable = 0  # members in a row that do not take part, and will not without something that is told
        self._again_at = inf
        self._joining = False  # the group begins
        self._to_join: list[GroupMember] = []  # when it has

    def share_and_filter(self) -> tuple[str, str]:
        subscription = next(iter(self.members))
        return subscription.share.decode(errors="replace"), subscription.filter.decode(errors="replace")

    def name(self) -> str:
        """For people: as its members have subscribed. It has members."""
        share, filter = self.share_and_filter()
        return f"$share/{share}/{filter}"

    def reading(self) -> list[tuple[GroupMember, list[Lease]]]:
        """The members that take part, and the leases that they have."""
        return [(member, member.queue.leases.of_group(self.digest)) for member in self._parts]

    def waits(self, member: GroupMember) -> str:
        """Why *member* reads no partition, for people; "": it takes part."""
        if member.takes_part:
            if not self._store.by_kafka or member.assigned:
                return ""
            return member.unassigned or "Kafka has given it no partition yet, or others have all"
        queue = member.queue
        if not member.joined:
            return "its group, or the log of that, is not known to Redis yet"
        if not member.subscription.qos:
            return "it has subscribed with QoS 0"
        if queue.is_resting() or queue.moves():
            return "it is not connected"
        if queue.is_overdue(self._store.now(), self._timeout):
            return f"it has not acknowledged for {self._timeout:g} s"
        if not member.session.writable():
            return "it reads too slowly"
        if self._store.by_kafka and self._store.now() - member.stuck_at < CALM:
            return f"it read too slowly, or did not acknowledge, less than {CALM:g} s ago"
        return "other members have their turn"

    # Members.

    def join(self, subscription: Subscription) -> None:
        """*subscription* is new, or has changed."""
        member = self.members.get(subscription)
        if member is None:
            member = self.members[subscription] = GroupMember(self, subscription)
            member.queue.leases.readers[member] = None
            self._others.appendleft(member)
            self._unable = 0
            self._tell_rest(member)  # a former worker may not have
            self._store.when_written(partial(self._join, member))  # behind the end of a former subscription
        elif not subscription.qos and member.takes_part:
            self._rest(member)
        else:
            self.client_changed()

    def leave(self, subscription: Subscription) -> None:
        member = self.members.pop(subscription)
        member.left = True
        member.queue.leases.readers.pop(member, None)
        if member.takes_part:
            self._rest(member)
        self._others = deque([each for each in self._others if each is not member])
        self._joined(member)

    def sweep(self) -> None:
        """Have what is stored of the group removed, if it has no member anywhere; its topic may go with it."""
        keys = self._store.keys.of(self.digest, b"", self.topic.filter)
        self._store.call(keys, ["sweep", b"", LEASE + self.digest], self._swept)

    def _swept(self, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._store.later(self.sweep, SWEEP_AGAIN)
        elif reply == LAST:
            self._store.unused(self.topic.filter)

    def _join(self, member: GroupMember) -> None:
        if not member.left:
            self._call_join(member, [])

    def _call_join(self, member: GroupMember, saved: list[bytes]) -> None:
        """*saved*: the identity of the topic, and what is saved of each partition, if the group is new."""
        log = saved[0] if saved else b""
        self._call(member, "join", [self._key, *saved], partial(self._join_replied, member, log))

    def _join_replied(self, member: GroupMember, log: bytes, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None or reply == NOT_SUBSCRIBED:
            self._store.later(partial(self._join, member), AGAIN)
        elif reply == RETIRED:
            self._topics.replace(self.topic, log, partial(self._replaced, member))
        elif reply == 1:
            self._joined(member)
        elif not member.left:
            self._begin(member)

    def _replaced(self, member: GroupMember, error: LogError | None) -> None:
        """The topic, which was being deleted, is gone; or not, and *error* says why."""
        if error is not None and error.failure is LogFailure.FORBIDDEN:
            self._call(member, "keep", [], _ignored)
        self._store.later(partial(self._join, member), AGAIN)

    def _begin(self, member: GroupMember) -> None:
        """The group is new: it begins where the log ends now."""
        self._to_join.append(member)
        if not self._joining:
            self._joining = True
            self._topics.look(self.topic, self._found_end)

    def _found_end(self, found: TopicDescription) -> None:
        self._joining = False
        members, self._to_join = self._to_join, []
        saved = [found.log, *[first_saved(offset, found.log) for offset in found.next]]
        for member in members:
            if not member.left:
                self._call_join(member, saved)

    def _joined(self, member: GroupMember) -> None:
        member.joined = True
        self._unable = 0
        waiting, member.waiting = member.waiting, []
        for then in waiting:
            then()
        self.look_soon()

    # Partitions.

    def look_soon(self) -> None:
        """Look at the members at the end of the slice, and have them take what they can."""
        self.due = True
        self._store.soon(self)

    def client_changed(self) -> None:
        """What keeps a member from taking part may be over, or have begun."""
        self._unable = 0
        self._store.soon(self)

    def watch(self) -> None:
        """A member is sent messages."""
        self._store.watch(self)

    def look(self, now: float) -> bool:
        """Find who takes part, and who cannot any more; whether to look again soon, also if nothing is heard."""
        for member in list(self._parts):
            if not member.can_read(now, self._timeout):
                self._rest(member)
        for _ in range(min(LOOKED_AT, len(self._others))):
            if not self._has_room():
                break
            member = self._others.popleft()
            if self._may_take_part(member, now):
                member.takes_part = True
                self._parts[member] = None
                self._take(member)
            else:
                self._others.append(member)
                self._unable = 0 if member.may_recover() else self._unable + 1
        if now >= self._again_at:
            self._again_at = inf
            self.due = True
        if self.due:
            self.take_all()
        return self._may_change()

    def _has_room(self) -> bool:
        """Whether one more member may take part."""
        return not self.topic.partitions or len(self._parts) < self.topic.partitions

    def _may_change(self) -> bool:
        if self._again_at != inf or (self._unable < len(self._others) and self._has_room()):
            return True
        return any(member.is_busy() for member in self._parts)

    def _may_take_part(self, member: GroupMember, now: float) -> bool:
        if member.joined and member.can_read(now, self._timeout):
            return not self._store.by_kafka or (self.topic.partitions > 0 and now - member.stuck_at >= CALM)
        if member.joined and not member.queue.is_resting():
            member.stuck_at = now
        return False

    def take_all(self) -> None:
        """Have all members that take part take what they can."""
        self.due = False
        for member in list(self._parts):
            self._take(member)

    def heard(self, kind: bytes, member: bytes, partitions: list[int]) -> None:
        """A notice about the group has come."""
        if kind == ASKED and self._store.by_kafka:
            return  # by a node with another setting
        if kind != ASKED:
            self.look_soon()
            return
        for each in self._parts:
            if each.digest == member:
                for partition in partitions:
                    lease = each.queue.leases.find(self.digest, partition)
                    if lease is not None and not lease.releasing:
                        each.queue.release_lease(lease)

    def _rest(self, member: GroupMember) -> None:
        """*member* cannot be sent messages, or has left: others are to read its partitions."""
        member.takes_part = False
        del self._parts[member]
        self._leave_group(member)
        if not member.left:
            self._others.append(member)
            self._unable = 0
        self._tell_rest(member)
        if not member.queue.moves():
            for lease in member.queue.leases.of_group(self.digest):
                member.queue.release_lease(lease)

    def _tell_rest(self, member: GroupMember) -> None:
        if not member.takes_part:
            self._call(member, "rest", [self._store.keys.channel, self.digest], partial(self._told_rest, member))

    def _told_rest(self, member: GroupMember, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._store.later(partial(self._tell_rest, member), AGAIN)

    def _free(self, member: GroupMember, leases: list[bytes | int]) -> None:
        """Give *leases* back, which came too late: partitions, and the value of each."""
        words = [self._store.keys.channel, self.digest, *leases]
        self._call(member, "free", words, partial(self._freed, member, leases))

    def _freed(
        self, member: GroupMember, leases: list[bytes | int], reply: object, failure: StoreFailure | None
    ) -> None:
        if failure is not None:
            self._store.later(partial(self._free, member, leases), AGAIN)

    def _take(self, member: GroupMember) -> None:
        words: list[bytes | int] = [self._store.keys.channel, self.digest]
        if self._store.by_kafka:
            self._join_group(member)
            if not member.assigned:
                return
            words += member.assigned
        if member.taking:
            member.again = True
            return
        member.taking = True
        self._call(member, "take", words, partial(self._took, member))

    def _took(self, member: GroupMember, reply: object, failure: StoreFailure | None) -> None:
        member.taking = False
        now = self._store.now()
        again, member.again = member.again and member.takes_part, False
        if failure is not None:
            self._ask_again(now)
            return
        code, *found = cast(list[Any], reply)
        if code == NO_MEMBER and member.takes_part:
            self._restore(member, member.queue.leases.of_group(self.digest), True)
        elif code == NOT_STORED:
            self._ask_again(now)
        else:
            self._took_leases(member, dict(zip(found[::2], found[1::2], strict=True)), now)
            if again:
                self._take(member)

    def _ask_again(self, now: float) -> None:
        self._again_at = min(self._again_at, now + AGAIN)
        self._store.watch(self)

    def _took_leases(self, member: GroupMember, found: dict[int, bytes], now: float) -> None:
        queue = member.queue
        unwanted: list[bytes | int] = []
        for partition, value in found.items():
            if queue.leases.find(self.digest, partition) is not None:
                continue
            wanted = not self._store.by_kafka or partition in member.assigned
            if wanted and member.takes_part and member.can_read(now, self._timeout):
                self._hold(member, partition, value, now)
            else:
                unwanted += [partition, value]
        if unwanted:
            self._free(member, unwanted)
        if member.takes_part:
            lost = [lease for lease in queue.leases.of_group(self.digest) if lease.partition not in found]
            if lost:
                self._restore(member, lost, False)

    def _hold(self, member: GroupMember, partition: int, value: bytes, now: float) -> None:
        try:
            lease = Lease(self.digest, partition, value)
        except ValueError:  # it begins anew, as nobody knows where the group was
            lease = Lease(self.digest, partition, value[:16] + first_saved(0))
        lease.reader = member
        feed = lease.feed = LogFeed(SHARED_ERA, lease.position, lease.passed, member.queue.go_on)
        feed.reading = self._store.link.read(self.topic.name, partition, lease.position, feed)
        member.queue.hold(lease, now)

    # Kafka says who is to read what. Leases keep two members from reading one partition, as members learn of a change
    # one after the other: a member goes on with what it keeps, and waits until the former reader has released the rest.

    def _join_group(self, member: GroupMember) -> None:
        """Have *member* join its consumer group, unless it has."""
        if member.membership is None:
            told = partial(self._assigned, member)
            partitions = self.topic.partitions
            member.membership = self._store.link.join(self.consumer_group, self.topic.name, partitions, told)

    def _leave_group(self, member: GroupMember) -> None:
        membership, member.membership = member.membership, None
        member.assigned, member.unassigned = [], ""
        if membership is not None:
            membership.leave()
            if not member.queue.is_resting():
                member.stuck_at = self._store.now()

    def _assigned(self, member: GroupMember, partitions: list[int], why: str) -> None:
        """Kafka has given *member* these partitions; *why* it is no member there now, or ""."""
        member.assigned, member.unassigned = partitions, why
        if not member.queue.moves():
            for lease in member.queue.leases.of_group(self.digest):
                if lease.partition not in partitions:
                    member.queue.release_lease(lease)
        self._take(member)

    # What Redis has lost.

    def _restore(self, member: GroupMember, leases: Iterable[Lease], all_lost: bool) -> None:
        words: list[bytes | int] = []
        for lease in leases:
            words += [lease.partition, lease.value()]
        self._call(member, "restore", words, partial(self._restored, member))
        if all_lost and not self._joining:
            self._joining = True
            self._store.later(partial(self._topics.look, self.topic, self._found_beginning), GRACE)

    def _restored(self, member: GroupMember, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            return  # the next look finds it again
        for partition in cast(list[bytes], reply):  # another member has it by now
            lease = member.queue.leases.find(self.digest, int(partition))
            if lease is not None:
                member.queue.release_lease(lease)

    def _found_beginning(self, found: TopicDescription) -> None:
        self._joining = False
        members, self._to_join = self._to_join, []
        saved = [found.log, *[first_saved(offset, found.log) for offset in found.first]]
        for member in [*members, *self.members.values()]:
            if not member.left:
                self._call_join(member, saved)

    def _call(self, member: GroupMember, op: str, words: list[bytes | int], then: Replied) -> None:
        keys = self._store.keys.of(self.digest, member.queue.record_key(), self.topic.filter)
        self._store.call(keys, [op, member.digest, LEASE + self.digest, *words], then)


def _ignored(reply: object, failure: StoreFailure | None) -> None:
    pass
