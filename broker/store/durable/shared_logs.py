# The logs of filters that APPLICATION clients share, at one worker: what is published here is appended by
# filter_log.py, and what members here read of them is the work of shared_readers.py.
#
# A scheme with lists, as DEVICE clients have it (routing/shared.py), would keep each message in the memory or the list
# of one worker, and have it cross to that of a member; a log has all messages of a filter once, for all groups, and
# what is read of it is bounded by what its members acknowledge.
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from broker.log import Log
from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.reasons import DropReason, StoreFailure
from broker.routing.authority import Authoriser
from broker.routing.shared_log import SharedLogs
from broker.session.queue import MessageBudget
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.application_logs import REFUSALS, ApplicationLogs
from broker.store.durable.filter_log import SharedFilterLog
from broker.store.durable.group_looks import GroupLooks
from broker.store.durable.lease_scripts import SCRIPT, LeaseKeys, digest_of, read_notice
from broker.store.durable.record import SessionRecord
from broker.store.durable.shared_readers import GroupMember, ReadGroup
from broker.store.durable.shared_topics import SharedTopic, SharedTopics
from broker.store.durable.store import DurableStore
from broker.store.durable.unused_topics import UnusedTopics
from broker.store.logs.port import GroupLink
from broker.store.logs.topics import LogError, TopicProperties
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import CallbackCommand

TIMEOUT: Final = 5.0  # seconds for a call of leases.lua
SWEEP: Final = 1.0  # seconds until what is stored of a group is removed, if it has ended

Replied = Callable[[object, StoreFailure | None], None]


class DurableSharedLogs(SharedLogs):
    """Also the `LeaseStore` of its groups."""

    def __init__(
        self,
        durable: DurableStore,
        budget: MessageBudget,
        counters: Counters,
        log: Log,
        authoriser: Authoriser | None,
        wake: Callable[[], None],
    ) -> None:
        """*durable* has logs. *wake* has the store ticked soon."""
        self._durable = durable
        self._budget = budget
        self._counters = counters
        self._log = log
        self._authoriser = authoriser
        self._wake = wake
        self._script = durable.script(SCRIPT)
        self._topics = SharedTopics(self._link_now, self._properties, log)
        self._unused = UnusedTopics(self._link_now, self._call_of_filter, self.now, wake, log)
        self._logs: dict[bytes, SharedFilterLog] = {}  # by filter
        self._offered: dict[SharedFilterLog, None] = {}
        self._ready: dict[SharedFilterLog, None] = {}  # of these, those whose topics are
        self._groups: dict[bytes, ReadGroup] = {}  # by digest
        self._looks = GroupLooks()
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._refusals_logged: dict[SharedTopic, float] = {}
        durable.shared_logs = self

    # The port of routes.

    def publish_gate(self) -> Gate:
        return self._of_clients().gate

    def log_of(self, filter: bytes) -> SharedFilterLog:
        log = self._logs.get(filter)
        if log is None:
            topic = self._topics.find(filter)
            log = self._logs[filter] = SharedFilterLog(topic, self._budget, self._append_soon, self._refused)
            self._topics.when_ready(topic, _nothing)
        log.groups += 1
        return log

    def forget(self, filter: bytes) -> None:
        log = self._logs[filter]
        log.groups -= 1
        self._forget_unused(log)

    def joined(self, subscription: Subscription) -> None:
        session: Session = subscription.session
        if not isinstance(session.storage, SessionRecord):  # it stands in for one at another worker
            return
        key = subscription.key()
        digest = digest_of(key)
        group = self._groups.get(digest)
        if group is None:
            topic = self._topics.find(subscription.filter)
            timeout = self._of_clients().timeout
            group = self._groups[digest] = ReadGroup(key, topic, self._topics, self, self._authoriser, timeout)
        group.join(subscription)

    def left(self, subscription: Subscription) -> None:
        group = self._groups.get(digest_of(subscription.key()))
        if group is None or subscription not in group.members:
            return
        group.leave(subscription)
        if not group.members:
            del self._groups[group.digest]
            self._looks.forget(group)
            self.later(group.sweep, SWEEP)

    def when_joined(self, session: Session, then: Callable[[], None]) -> None:
        waits = [member for member in self.members_of(session) if not member.joined]
        if not waits:
            then()
            return
        waiting = _Waiting(len(waits), then)
        for member in waits:
            member.waiting.append(waiting.one_less)

    def unusable(self) -> str:
        return self._of_clients().unusable()

    # What DurableStore calls.

    def has_work(self) -> bool:
        """Whether `tick()` has something to do at once."""
        return len(self._ready) > 0 or self._looks.has_work()

    def tick(self, now: float) -> float:
        """Append what was offered, and do what is due; when the next thing will be."""
        if self._ready:
            ready, self._ready = self._ready, {}
            link, wall = self._link_now(), self._durable.wall()
            for log in ready:
                del self._offered[log]
                if log.topic.partitions:
                    log.hand_over(link, now, wall)
                    self._forget_unused(log)
                else:  # the topic was deleted since
                    self._append_soon(log)
        due = min(self._topics.tick(now), self._unused.tick(now))
        if self._timers:
            passed = [then for at, then in self._timers if at <= now]
            self._timers = [each for each in self._timers if each[0] > now]
            for then in passed:
                then()
            due = min([due, *[at for at, _ in self._timers]])
        return min(due, self._looks.tick(self._groups, now))

    def heard(self, notice: bytes, now: float) -> None:
        """A notice has come by the channel of leases."""
        found = read_notice(notice)
        group = None if found is None else self._groups.get(found[1])
        if found is not None and group is not None:
            group.heard(found[0], found[2], found[3])

    # What groups need.

    @property
    def keys(self) -> LeaseKeys:
        return self._of_clients().lease_keys

    @property
    def link(self) -> GroupLink:
        return self._link_now()

    @property
    def by_kafka(self) -> bool:
        return self._of_clients().groups

    def call(self, keys: list[bytes], words: list[str | bytes | int], then: Replied) -> None:
        command = CallbackCommand(self._script.call(keys, words), TIMEOUT, partial(self._replied, keys, words, then))
        self._durable.submit(command, self.now())

    def _call_of_filter(self, filter: bytes, words: list[bytes], then: Replied) -> None:
        key = self.keys.of_filter(filter)
        self.call([key] * 4, [words[0], b"", b"", *words[1:]], then)

    def _replied(
        self,
        keys: list[bytes],
        words: list[str | bytes | int],
        then: Replied,
        reply: object,
        failure: StoreFailure | None,
    ) -> None:
        if failure is StoreFailure.SCRIPT_UNKNOWN:
            self._script.load(self.now())
            self.call(keys, words, then)
        else:
            then(reply, failure)

    def now(self) -> float:
        return self._durable.commit.now

    def when_written(self, then: Callable[[], None]) -> None:
        self._durable.commit.when_written(then)

    def later(self, then: Callable[[], None], seconds: float) -> None:
        self._timers.append((self.now() + seconds, then))
        self._wake()

    def soon(self, group: ReadGroup) -> None:
        if self._groups.get(group.digest) is group:
            self._looks.soon(group)
            self._wake()

    def watch(self, group: ReadGroup) -> None:
        if self._groups.get(group.digest) is group and self._looks.watch(group):
            self._wake()

    def unused(self, filter: bytes) -> None:
        self._unused.add(filter)

    # Operators.

    def members_of(self, session: Session) -> list[GroupMember]:
        """The members of groups that *session* is."""
        found: list[GroupMember] = []
        for subscription in session.subscriptions.values():
            group = self._groups.get(digest_of(subscription.key())) if subscription.share else None
            member = None if group is None else group.members.get(subscription)
            if member is not None:
                found.append(member)
        return found

    def groups(self) -> list[ReadGroup]:
        """Those with members at this worker."""
        return list(self._groups.values())

    def move(self, group: ReadGroup, saved: list[bytes], then: Replied) -> None:
        """Have *group* go on elsewhere, as is *saved* of each partition: see `move` in leases.lua."""
        keys = self.keys.of(group.digest, b"", group.topic.filter)
        self.call(keys, ["move", b"", b"", *saved], then)

    def read_state(self, group: ReadGroup, then: Callable[[dict[bytes, bytes] | None], None]) -> None:
        """Tell *then* what Redis has of the partitions of *group* (lease_scripts.py); None: it does not answer."""
        key = self.keys.state(group.digest)
        self._durable.submit(CallbackCommand(packed("HGETALL", key), TIMEOUT, partial(_state, then)), self.now())

    # Appending.

    def _append_soon(self, log: SharedFilterLog) -> None:
        self._offered[log] = None
        self._topics.when_ready(log.topic, partial(self._is_ready, log))

    def _is_ready(self, log: SharedFilterLog) -> None:
        if log in self._offered:
            self._ready[log] = None
            self._wake()

    def _refused(self, topic: SharedTopic, count: int, error: LogError, now: float) -> None:
        self._counters.dropped(DropReason.LOG_REFUSED, count)
        if now >= self._refusals_logged.get(topic, -inf) + REFUSALS:
            self._refusals_logged[topic] = now
            filter = topic.filter.decode(errors="replace")
            self._log.warning("shared_messages_refused", filter=filter, topic=topic.name, count=count, why=str(error))

    def _forget_unused(self, log: SharedFilterLog) -> None:
        filter = log.topic.filter
        if not log.groups and not log.waits() and self._logs.get(filter) is log:
            del self._logs[filter]
            self._refusals_logged.pop(log.topic, None)
            self._topics.forget(log.topic)

    def _of_clients(self) -> ApplicationLogs:
        logs = self._durable.logs
        assert logs is not None
        return logs

    def _link_now(self) -> GroupLink:
        return self._of_clients().link

    def _properties(self) -> TopicProperties:
        return self._of_clients().shared_properties


class _Waiting:
    """Waits until *count* members have joined."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count = count
        self._then = then

    def one_less(self) -> None:
        self._count -= 1
        if not self._count:
            self._then()


def _state(then: Callable[[dict[bytes, bytes] | None], None], reply: object, failure: StoreFailure | None) -> None:
    words = reply if isinstance(reply, list) else []
    then(None if failure is not None else dict(zip(words[::2], words[1::2], strict=True)))


def _nothing() -> None:
    pass
