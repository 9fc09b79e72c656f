# The backlog: messages that wait at this worker for members of shared subscriptions.
#
# A message of QoS 1 or 2 that no member of its group can be sent at once waits in the list of the group, not in the
# session of a member: it is bound to a member when it is written to it. Each list has the limits of the queue of a
# session (limits.queue, limits.queue_bytes), and all of them count in the budget of the worker (limits.queue_budget).
# A list that is full drops its oldest messages.
#
# The session of a member reports when it may have become writable (`Backlog.writable()`); nothing polls. It is noted
# here and served by paged work (SharedDelivery in fanout.py), as a list may be long and a session is in the middle of
# an acknowledgement when it reports. A session that is no member of a group with a list pays one comparison.
from collections.abc import Callable, Iterator
from itertools import islice

from broker.metrics.counters import Counters
from broker.reasons import DropReason
from broker.session.queue import MemoryQueue, MessageBudget
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Backlog, Subscription


class SharedBacklog(Backlog):
    def __init__(
        self,
        queue: int,
        queue_bytes: int,
        budget: MessageBudget,
        counters: Counters,
        wake: Callable[[], None],
        full: Callable[[bytes, bytes], None],
    ) -> None:
        """*queue* messages of *queue_bytes* bytes may wait for one group.

        *wake*: has the loop of the worker do its paged work soon. *full* is called with a share name and a filter when
        the list of that group begins to drop messages.
        """
        super().__init__()
        self.scheduled = False  # there is paged work that serves the backlog
        self.begin: Callable[[], None] | None = None  # begins that work
        self.counters = counters
        self.queue = queue  # messages that may wait for one group
        self._queue_bytes = queue_bytes
        self.budget = budget
        self._wake = wake
        self._full = full
        self._lists: dict[bytes, Subscriber] = {}  # groups for which messages wait, by the key of their subscriptions
        self._due: dict[bytes, None] = {}  # keys of those that may have a writable member
        self._writable: dict[Session, None] = {}  # sessions that have reported
        self._held: dict[bytes, None] = {}  # keys of groups that could pass on no more to other workers

    def begin_list(self, key: bytes, group: Subscriber) -> MemoryQueue:
        """The list of *group*, for which a message begins to wait."""
        self._lists[key] = group
        self.lists = len(self._lists)
        return MemoryQueue(self._queue_bytes, self.budget)

    def dropped(self, group: Subscriber, waiting: MemoryQueue, count: int) -> None:
        """*waiting*, the list of *group*, was full, and its *count* oldest messages were dropped."""
        self.counters.dropped(DropReason.SHARED_FULL, count)
        if not waiting.full:
            waiting.full = True
            self._full(group.share, group.filter)

    def end(self, key: bytes) -> None:
        """No message waits for the group with *key* any more."""
        del self._lists[key]
        self._due.pop(key, None)
        self._held.pop(key, None)
        self.lists = len(self._lists)

    def retry(self, key: bytes) -> None:
        """Offer the messages of the group with *key*, soon: it may have a writable member."""
        self._due[key] = None
        self._schedule()

    def hold(self, key: bytes) -> None:
        """The group with *key* can pass on no more now: another worker has enough to do."""
        self._held[key] = None

    def take_held(self, most: int) -> list[Subscriber]:
        """Up to *most* groups that could pass on no more, as another worker has less to do now."""
        keys = list(islice(self._held, most))
        for key in keys:
            del self._held[key]
        return [self._lists[key] for key in keys]

    def writable(self, session: Session) -> None:
        self._writable[session] = None
        self._schedule()

    def next_session(self) -> Session | None:
        """A session that has reported since it was last returned here."""
        return self._writable.popitem()[0] if self._writable else None

    def next_group(self) -> Subscriber | None:
        """The group that has been due for longest."""
        for key in self._due:
            del self._due[key]
            return self._lists[key]
        return None

    def memberships(self, session: Session) -> Iterator[tuple[Subscriber, Subscription]]:
        """The groups for which messages wait and of which *session* is a member, each with its subscription."""
        lists, subscriptions = self._lists, session.subscriptions
        for key in list(lists if len(lists) < len(subscriptions) else subscriptions):
            group, subscription = lists.get(key), subscriptions.get(key)
            if group is not None and subscription is not None:
                yield group, subscription

    def _schedule(self) -> None:
        if not self.scheduled and self.begin is not None:
            self.scheduled = True
            self.begin()
            self._wake()
