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
#
# WaitingList is what a group needs of its list, and MemoryList keeps the messages in the memory of the worker. The list
# of a group with durable members is stored (store/durable/shared_list.py): a message that was taken from it stays
# stored until whoever it was given to has stored or acknowledged it.
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from broker.metrics.counters import Counters
from broker.overload.gate import Gate
from broker.reasons import DropReason
from broker.routing.group_names import application_key
from broker.session.message import Message
from broker.session.queue import Holder, MemoryQueue, MessageBudget
from broker.session.session import Session
from broker.session.subscriber import Subscriber
from broker.session.subscription import Backlog, Subscription


class WaitingList:
    """The port: messages of QoS 1 and 2 that wait for one group, in order."""

    def __init__(self, stored: bool) -> None:
        """*stored*: the messages outlive the worker, and a publish is answered when its message is stored."""
        self.stored: Final = stored
        self.full = False  # messages were dropped: for whoever reports it once

    def bind(self, holder: "ListHolder") -> None:
        """The list is that of the group of *holder*."""
        raise NotImplementedError

    def count(self) -> int:
        """How many messages wait; of a stored list, perhaps fewer than that."""
        raise NotImplementedError

    def append(self, message: Message, most: int, now: float) -> int:
        """Add *message*; drop the oldest while there are more than *most*, or more bytes than allowed: how many."""
        raise NotImplementedError

    def take(self) -> Message | None:
        """Take the oldest message; None if there is none now. `put_back()` or `given()` follows."""
        raise NotImplementedError

    def put_back(self, messages: list[Message]) -> None:
        """Put *messages*, which were taken just now, before all other messages; no limit applies."""
        raise NotImplementedError

    def given(self, message: Message, here: bool, now: float) -> None:
        """*message*, which was taken, was offered to a member at this worker or, unless *here*, to another worker."""
        raise NotImplementedError

    def dropped(self, message: Message, now: float) -> None:
        """*message*, which was taken, was dropped."""
        raise NotImplementedError

    def rest(self) -> None:
        """No member can be sent a message: what is stored need not be in memory."""

    def finished(self) -> bool:
        """Whether no message is left."""
        raise NotImplementedError

    def clear(self) -> int:
        """Remove all messages: the list has ended. Returns how many waited."""
        raise NotImplementedError


class ListHolder(Holder):
    """Is told what has become of the messages of a list."""

    def finished(self) -> None:
        """No message of the list is left."""
        raise NotImplementedError

    def damaged(self) -> None:
        """What is stored of the list cannot be read or written: end it."""
        raise NotImplementedError


NOBODY: Final = ListHolder()  # hears of a list that has ended


class ListStore:
    """Where the lists of groups with durable members are stored: the port."""

    def __init__(self, gate: Gate) -> None:
        """*gate*: publishes of QoS 1 and 2 for such groups have to pass it."""
        self.gate: Final = gate

    def begin(self, key: bytes) -> WaitingList:
        """A list for the group whose members have their subscriptions under *key*."""
        raise NotImplementedError

    def members_known(self) -> None:
        """All members of the node are known: go on with what waits for that."""
        raise NotImplementedError


class MemoryList(WaitingList):
    def __init__(self, queue_bytes: int, budget: MessageBudget) -> None:
        super().__init__(False)
        self._queue = MemoryQueue(queue_bytes, budget)
        self._budget = budget

    def bind(self, holder: ListHolder) -> None:
        self._queue.bind(holder)

    def count(self) -> int:
        return self._queue.count

    def append(self, message: Message, most: int, now: float) -> int:
        return self._queue.append(message, most, now)

    def take(self) -> Message | None:
        return self._queue.pop()

    def put_back(self, messages: list[Message]) -> None:
        self._queue.put_back(messages)

    def given(self, message: Message, here: bool, now: float) -> None:
        self._budget.release(message)

    def dropped(self, message: Message, now: float) -> None:
        self._budget.release(message)

    def finished(self) -> bool:
        return self._queue.count == 0

    def clear(self) -> int:
        cleared = self._queue.clear()
        self._queue.bind(NOBODY)  # no cycle for the collector
        return cleared


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
        self.tell_members: Callable[[Subscriber], None] | None = None  # tells other workers of a group now
        self.counters = counters
        self.queue = queue  # messages that may wait for one group
        self.store: ListStore | None = None  # None: nothing is stored
        self.members_known = True  # all members of the node are: a group that has none can be forgotten with its list
        self._queue_bytes = queue_bytes
        self._budget = budget
        self._wake = wake
        self._full = full
        self._lists: dict[bytes, Subscriber] = {}  # groups for which messages wait, by the key of their subscriptions
        self._due: dict[bytes, None] = {}  # keys of those that may have a writable member
        self._writable: dict[Session, None] = {}  # sessions that have reported
        self._held: dict[bytes, None] = {}  # keys of groups that could pass on no more to other workers

    def begin_list(self, key: bytes, group: Subscriber, stored: bool) -> WaitingList:
        """A list of *group*, for which a message begins to wait."""
        self.keep(key, group)
        if stored and self.store is not None:
            return self.store.begin(key)
        return MemoryList(self._queue_bytes, self._budget)

    def keep(self, key: bytes, group: Subscriber) -> None:
        """Messages wait for *group*, until `end()`."""
        self._lists[key] = group
        self.lists = len(self._lists)

    def groups(self) -> list[Subscriber]:
        """Those for which messages wait."""
        return list(self._lists.values())

    def dropped(self, group: Subscriber, waiting: WaitingList, count: int) -> None:
        """*waiting*, a list of *group*, was full, and its *count* oldest messages were dropped."""
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
        if session.storage is not None and session.storage.application:
            for subscription in list(subscriptions.values()):
                key = subscription.key()
                group = (lists.get(application_key(key)) or lists.get(key)) if subscription.share else None
                if group is not None:
                    yield group, subscription
            return
        for key in list(lists if len(lists) < len(subscriptions) else subscriptions):
            group, member = lists.get(key), subscriptions.get(key)
            if group is not None and member is not None:
                yield group, member

    def _schedule(self) -> None:
        if not self.scheduled and self.begin is not None:
            self.scheduled = True
            self.begin()
            self._wake()
