# Messages that return to their groups: those of QoS 1 that a durable member of a shared subscription was given, and had
# not acknowledged when its session ended (4.8.2).
#
# The list of packs of such a session gets another name in the transaction that removes the session, so nothing is lost
# in between, and its client may begin a new session at once. The name is NUL, "r", the incarnation of the worker and a
# number; its record (record.py) has a head, and the shared subscriptions that the messages came through. Then the list
# is read as a member reads it: what came through a shared subscription is offered to its group, as a new message is,
# and is done when its next receiver is done with it. All else is dropped, as it was the session's own: also QoS 2,
# which must not be sent to another client once it may have been sent to one [MQTT-4.8.2-5].
#
# A worker that adopts such a list goes on with it. What was given and not removed by then is given once more.
#
# When thousands of sessions expire at once, AT_ONCE of their lists are returned at a time, GIVEN messages of each.
#
# The road not taken: a list of the group that keeps each message until the member has acknowledged it. All messages of
# a durable group would be stored twice, and after each crash those of all sessions would be delivered twice.
import zlib
from collections import deque
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from broker.delivery.completion import CompletionListener
from broker.delivery.outbox import Outbox
from broker.metrics.counters import Counters
from broker.reasons import DropReason
from broker.routing.filters import matches
from broker.routing.group_names import split_group
from broker.routing.routes import Routes
from broker.session.message import GroupMessage, Message, group_tag
from broker.session.queue import Holder, MessageBudget
from broker.store.durable.adoption import AdoptedSession
from broker.store.durable.group_queue import RETURNED
from broker.store.durable.queue import DurableQueue
from broker.store.durable.record import SessionRecord
from broker.store.durable.removals import Words
from broker.store.durable.store import DurableStore
from broker.store.redis.connection import packed
from broker.store.redis.keys import SLICES, SessionKeys
from broker.worker_id import WorkerId

AT_ONCE: Final = 16  # lists: their messages in memory have 64 KiB each
GIVEN: Final = 64  # messages of a list whose next receivers are not done


class ReturnedLists:
    """Those of a worker."""

    def __init__(
        self, store: DurableStore, routes: Routes, worker: WorkerId, budget: MessageBudget, counters: Counters
    ) -> None:
        """*worker*: this one. Messages in memory count in *budget*."""
        self._store = store
        self._routes = routes
        self._prefix = RETURNED + worker.incarnation_text.encode()
        self._budget = budget
        self._counters = counters
        self._number = 0  # of the list that was made last
        self._lists: dict[bytes, ReturnedList] = {}  # by name
        self._waiting: deque[ReturnedList] = deque()  # for their turn
        self._active = 0

    def take(self, keys: SessionKeys, client: bytes, queue: DurableQueue, groups: list[bytes]) -> None:
        """The session of *client*, which is about to be removed, leaves *queue*, with messages of *groups*: their keys.

        What is called next has its writes behind those that are made here.
        """
        name = self._name_for(client)
        record = self._store.begin(name)
        record.store_head(0, None, False)
        for key in groups:
            record.store_group(key)
        record.give_queue(queue)
        made = self._keep(name, record, queue, groups)
        commit = self._store.commit
        commit.soon(queue)  # what was sent and is not stored yet
        commit.soon(_Renaming(keys, queue, name, made))
        commit.confirm(made.stored)

    def _name_for(self, client: bytes) -> bytes:
        """A new name with the slice of *client*, as keys of one slice only may be renamed together."""
        number = zlib.crc32(client) % SLICES
        while True:
            self._number += 1
            name = b"%b%08x" % (self._prefix, self._number)
            if zlib.crc32(name) % SLICES == number:
                return name

    def adopt(self, adopted: AdoptedSession) -> None:
        """Go on with a list that was read, of a worker that has ended."""
        record = adopted.record
        queue = record.queue()
        queue.purging = True  # until its turn comes
        self._keep(adopted.client_id.encode(), record, queue, adopted.stored.group_keys()).stored()

    def _keep(self, name: bytes, record: SessionRecord, queue: DurableQueue, groups: list[bytes]) -> "ReturnedList":
        by_tag: dict[int, tuple[bytes, bytes]] = {}
        for key in groups:
            share = split_group(key)
            if share is not None:
                by_tag[group_tag(key)] = share
        made = self._lists[name] = ReturnedList(self, name, record, queue, by_tag)
        return made

    def has(self, name: bytes) -> bool:
        """Whether the list *name* is here."""
        return name in self._lists

    def damaged(self, name: bytes) -> None:
        """What is stored of the list *name* cannot be read or written."""
        found = self._lists.get(name)
        if found is not None:
            found.end(self._store.commit.now)

    def wait_for_turn(self, waiting: "ReturnedList") -> None:
        self._waiting.append(waiting)
        self.go_on(self._store.commit.now)

    def go_on(self, now: float) -> None:
        """Begin with further lists, if it is their turn, and all members of the node are known."""
        while self._waiting and self._active < AT_ONCE and self._routes.backlog.members_known:
            following = self._waiting.popleft()
            if not following.ended:
                self._active += 1
                following.begin()

    def ended(self, name: bytes, active: bool, now: float) -> None:
        del self._lists[name]
        if active:
            self._active -= 1
            self.go_on(now)

    def give(self, message: Message, share: tuple[bytes, bytes], now: float) -> bool:
        """Offer *message* to the group *share*; false if it has no member any more, which is counted."""
        found = self._routes.shared_group(*share).deliver(message, now)
        if not found:
            self._counters.dropped(DropReason.NO_SHARED_MEMBER, 1)
        return found

    def once_more(self, then: Callable[[], None]) -> None:
        """Call *then* after a further transaction."""
        self._store.commit.confirm(then)

    def now(self) -> float:
        return self._store.commit.now

    def taken(self, message: Message) -> None:
        """*message* was taken from its queue."""
        self._budget.release(message)

    def dropped(self, reason: DropReason, count: int) -> None:
        self._counters.dropped(reason, count)


class ReturnedList(Holder):
    def __init__(
        self,
        lists: ReturnedLists,
        name: bytes,
        record: SessionRecord,
        queue: DurableQueue,
        groups: dict[int, tuple[bytes, bytes]],
    ) -> None:
        """*groups*: (share name, filter) by tag."""
        self.ended = False
        self._lists = lists
        self._name = name
        self._record = record
        self._queue = queue
        self._groups = groups
        self._active = False  # it is its turn
        self._reading = False
        self._given: dict[Given, None] = {}  # whose receivers are not done
        queue.bind(self)

    def stored(self) -> None:
        """All messages are stored, under its name."""
        if not self.ended:
            self._lists.wait_for_turn(self)

    def begin(self) -> None:
        """Return the messages: it is its turn."""
        self._active = True
        self._queue.end_purge(self._lists.now())
        self._go_on()

    def _go_on(self) -> None:
        """Go on once what was sent is unread again: a page that was being read has to arrive before."""
        if self.ended:
            return
        if self._queue.unloads():
            self._lists.once_more(self._go_on)
            return
        self._reading = True
        self._queue.wake()
        self.pump(self._lists.now())

    def pump(self, now: float) -> None:
        queue = self._queue
        while self._reading and len(self._given) < GIVEN:
            message = queue.pop()
            if message is None:
                break
            self._lists.taken(message)
            self._give(queue.packet_id, message, now)
        if self._reading and not self._given and not queue.count:
            self.end(now)

    def _give(self, packet_id: int, message: Message, now: float) -> None:
        share = self._groups.get(message.group) if isinstance(message, GroupMessage) and message.qos == 1 else None
        if share is None or not matches(share[1], message.topic):
            self._lists.dropped(DropReason.SESSION_ENDED, 1)
            self._queue.done(packet_id, message, now)
        else:
            self.give(Given(self, packet_id, message, share), now)

    def give(self, given: "Given", now: float) -> None:
        """Offer the message of *given* to its group."""
        message = given.message
        assert isinstance(message, GroupMessage)
        other = message.for_other()
        found = not other.expired(now) and self._lists.give(other, given.share, now)
        if found and other.completion is not None and other.completion.pending:
            other.completion.queue = given
            self._given[given] = None
        else:
            self._given.pop(given, None)
            self._queue.done(given.packet_id, message, now)

    def settled(self, given: "Given", now: float) -> None:
        """The next receiver of *given* is done with it."""
        if given in self._given:
            del self._given[given]
            self._queue.done(given.packet_id, given.message, now)
            self.pump(now)

    def returned(self, given: "Given", now: float) -> None:
        """The next receiver of *given* may have lost it."""
        if given in self._given:
            self.give(given, now)
            self.pump(now)

    def end(self, now: float) -> None:
        """Nothing is left, or what is left cannot be read."""
        if not self.ended:
            self.ended = True
            self._queue.clear()
            self._record.end()
            self._given = {}
            active, self._active, self._reading = self._active, False, False
            self._lists.ended(self._name, active, now)

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        self._lists.dropped(reason, count)

    def unloaded(self) -> int:
        return self._queue.sent_bytes

    def released(self, packet_id: int) -> None:
        pass


class Given(CompletionListener):
    """A message of *returned* that its group was offered."""

    def __init__(self, returned: ReturnedList, packet_id: int, message: Message, share: tuple[bytes, bytes]) -> None:
        self.packet_id = packet_id
        self.message = message
        self.share = share
        self._returned = returned

    def advance(self, now: float) -> None:
        self._returned.settled(self, now)

    def abandoned(self, now: float) -> Outbox | None:
        self._returned.returned(self, now)
        return None


class _Renaming:
    """A `Writer`: gives the list of a session that ends its new name."""

    def __init__(self, keys: SessionKeys, queue: DurableQueue, name: bytes, returned: ReturnedList) -> None:
        self.dirty = False
        self.held = False
        self._keys = keys
        self._queue = queue
        self._name = name
        self._returned = returned

    def removes(self, now: float) -> list[Words]:
        return []

    def removed(self, errors: list[ReplyError], now: float) -> None:
        pass

    def collect(self, now: float, wall: float) -> list[bytes]:
        keys, queue = self._keys, self._queue
        former, queue.client = queue.client, self._name
        writes = [packed("DEL", keys.released + former)]
        if queue.stored.is_listed():
            writes.append(packed("RENAME", keys.queues + former, keys.queues + self._name))
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        if errors:  # another worker had taken the session before, and has its messages
            self._returned.end(now)
