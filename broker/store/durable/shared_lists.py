# The lists of messages that wait for shared subscriptions with durable members, in Redis.
#
# A list is a queue (group_queue.py) and a record (record.py) with a head and one subscription, that of the group: an
# adopting worker finds it as it finds sessions. Its name is NUL, "g", the incarnation of the worker that made it and a
# number, so a worker that adopts the lists of several others has them side by side. The filter is not in the name: it
# may have 64 KiB, and the name is in each command.
#
# A message that was taken and given to a member or to another worker stays stored until the receiver is done with it:
# it has acknowledged it, or stored it itself. Receivers in memory are done at once. For that each message is offered as
# a copy with a Completion of its own: that of the publish waits until the message is stored here. If a receiver may
# have lost the message (its worker has died, or its session was taken), the message waits again, in its place.
#
# A message of QoS 2 must not be given twice. For a durable member here it is marked with the transaction in which the
# member stores it. Of two workers either may die between the moments at which each of them stores what has happened:
# then the message is given once more, as no message may be lost.
from collections.abc import Callable
from typing import Final, cast

from broker.delivery.completion import CompletionListener
from broker.delivery.outbox import Outbox
from broker.log import Log
from broker.metrics.counters import Counters
from broker.reasons import DropReason
from broker.routing.group_names import split_group
from broker.routing.routes import Routes
from broker.routing.shared_backlog import NOBODY, ListHolder, ListStore, WaitingList
from broker.session.message import RELEASED, Message
from broker.session.queue import UNLIMITED, Holder, MessageBudget
from broker.store.durable.adoption import AdoptedSession, set_aside
from broker.store.durable.group_queue import GROUP, RETURNED, GroupQueue
from broker.store.durable.record import SessionRecord
from broker.store.durable.returned import ReturnedLists
from broker.store.durable.store import DurableStore
from broker.worker_id import WorkerId

NOT_OF_A_GROUP: Final = "its record does not have the subscription of one group"


class SharedLists(ListStore):
    """The lists of a worker."""

    def __init__(
        self,
        store: DurableStore,
        routes: Routes,
        worker: WorkerId,
        queue_bytes: int,
        budget: MessageBudget,
        counters: Counters,
        log: Log,
    ) -> None:
        """*worker*: this one. *queue_bytes* of messages may wait in a list. Messages in memory count in *budget*."""
        super().__init__(store.commit.gate.gate)
        self._store = store
        self._routes = routes
        self._prefix = GROUP + worker.incarnation_text.encode()
        self._queue_bytes = queue_bytes
        self._budget = budget
        self._log = log
        self._number = 0  # of the list that was made last
        self._lists: dict[bytes, SharedList] = {}  # by name
        self._returned = ReturnedLists(store, routes, worker, budget, counters)
        store.return_taker = self._returned

    def begin(self, key: bytes) -> WaitingList:
        self._number += 1
        name = b"%b%08x" % (self._prefix, self._number)
        record = self._store.begin(name)
        record.store_head(0, None, False)
        record.store_group(key)
        return self._keep(name, key, record)

    def adopt(self, adopted: AdoptedSession) -> None:
        """Go on with a list that was read, of a worker that has ended."""
        name = adopted.client_id.encode()
        if name.startswith(RETURNED):
            self._returned.adopt(adopted)
            return
        record, groups = adopted.record, adopted.stored.group_keys()
        group = split_group(groups[0]) if len(groups) == 1 else None
        if group is None:
            set_aside(record, NOT_OF_A_GROUP)
            return
        waiting = self._keep(name, groups[0], record)
        waiting.members_have(record.released_ids())
        share, filter = group
        self._routes.adopt_list(share, filter, waiting)

    def has(self, name: bytes) -> bool:
        """Whether the list *name* is here already: it was read, or begun while others were."""
        return name in self._lists or self._returned.has(name)

    def members_known(self) -> None:
        self._returned.go_on(self._store.commit.now)

    def damaged(self, name: bytes, why: str) -> None:
        """What is stored of the list *name* cannot be read or written."""
        waiting = self._lists.get(name)
        filter = "" if waiting is None else waiting.key.decode(errors="replace")
        self._log.error("shared_list_damaged", list=name[len(GROUP) :].decode(errors="replace"), filter=filter, why=why)
        if waiting is not None:
            waiting.holder.damaged()
        self._returned.damaged(name)

    def _keep(self, name: bytes, key: bytes, record: SessionRecord) -> "SharedList":
        queue = cast(GroupQueue, record.queue())
        queue.limit(self._queue_bytes)
        queue.rest()  # nothing is in memory before a member can be sent it
        made = self._lists[name] = SharedList(key, record, queue, self._budget, self._ended)
        return made

    def _ended(self, name: bytes) -> None:
        self._lists.pop(name, None)


class SharedList(WaitingList):
    def __init__(
        self,
        key: bytes,
        record: SessionRecord,
        queue: GroupQueue,
        budget: MessageBudget,
        ended: Callable[[bytes], None],
    ) -> None:
        """*key*: of the subscriptions of its group."""
        super().__init__(True)
        self.key: Final = key
        self.holder = NOBODY  # until `bind()`
        self._record = record
        self._queue = queue
        self._budget = budget
        self._ended = ended
        self._most = UNLIMITED  # messages that may wait
        self._taken: dict[Message, Given] = {}  # by what is offered, until it is given or put back
        self._given: dict[Given, None] = {}  # receivers that are not done
        self._marking: dict[int, Given] = {}  # those whose marks are not stored, by packet id
        self._waits = False  # a message could not be taken: it was being read, or stored, or its id was not free
        self._rests = False  # the memory is to be given back when no receiver is left that is not done
        queue.bind(QueueHolder(self))

    # The port.

    def bind(self, holder: ListHolder) -> None:
        self.holder = holder

    def count(self) -> int:
        return self._queue.count

    def append(self, message: Message, most: int, now: float) -> int:
        self._most = most
        return self._queue.append(message, most, now)

    def take(self) -> Message | None:
        self._rests = False
        self._queue.wake()
        message = self._queue.pop()
        if message is None:
            self._waits = True
            return None
        offered = message if message.completion is None else _copy(message)
        self._taken[offered] = Given(self, self._queue.packet_id, message)
        return offered

    def put_back(self, messages: list[Message]) -> None:
        for message in messages:
            given = self._taken.pop(message)
            self._queue.put_back(given.packet_id, given.message)

    def given(self, message: Message, here: bool, now: float) -> None:
        given = self._taken.pop(message)
        self._budget.release(given.message)
        completion = message.completion
        if completion is None or completion.pending == 0:
            self._queue.done(given.packet_id, given.message, now)
            return
        completion.queue = given
        self._given[given] = None
        if here and message.qos == 2:
            given.marked = given.marking = True
            self._marking[given.packet_id] = given
            self._queue.mark(given.packet_id)

    def dropped(self, message: Message, now: float) -> None:
        given = self._taken.pop(message)
        self._budget.release(given.message)
        self._queue.done(given.packet_id, given.message, now)

    def rest(self) -> None:
        if self._given:
            self._rests = True
        else:
            self._queue.rest()

    def finished(self) -> bool:
        return not (self._queue.count or self._taken or self._given)

    def clear(self) -> int:
        count = self._queue.clear()
        self._record.end()
        self._ended(self._queue.client)
        self._given, self._marking = {}, {}
        self.holder = NOBODY  # no cycle for the collector
        return count

    # What becomes of messages that were given away.

    def members_have(self, packet_ids: list[int]) -> None:
        """Members were given these messages of QoS 2 before the list was adopted."""
        for packet_id in packet_ids:
            self._queue.done(packet_id, RELEASED, 0.0)

    def marked(self, packet_id: int) -> None:
        """It is stored that a member has the message under *packet_id*, or will have stored it now."""
        given = self._marking.pop(packet_id, None)
        if given is not None:
            given.marking = False
            if given.settled:
                self._done(given, self._queue.now())

    def settled(self, given: "Given", now: float) -> None:
        """The receiver of *given* is done with it."""
        given.settled = True
        if not given.marking:
            self._done(given, now)

    def _done(self, given: "Given", now: float) -> None:
        if given in self._given:
            del self._given[given]
            self._queue.done(given.packet_id, given.message, now)
            self._go_on(now)

    def returned(self, given: "Given", now: float) -> None:
        """The receiver of *given* may have lost it."""
        if given not in self._given:
            return
        del self._given[given]
        message = given.message
        if message.completion is not None:  # it was offered itself
            message.completion.queue = None  # no cycle for the collector
        if given.marked:  # for good
            self._marking.pop(given.packet_id, None)
            self._queue.append(_copy(message), self._most, now)
            self._queue.done(given.packet_id, message, now)
        else:
            self._budget.hold(message)
            self._queue.put_back(given.packet_id, message)
        self._waits = True
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self._rests and not self._given:
            self._rests = False
            self._queue.rest()
        if self.finished():
            self.holder.finished()
        elif self._waits:
            self._waits = False
            self.holder.pump(now)


class Given(CompletionListener):
    """A message of *waiting* that was taken, and then given to a receiver: *message* is that of the queue."""

    def __init__(self, waiting: SharedList, packet_id: int, message: Message) -> None:
        self.packet_id = packet_id
        self.message = message
        self.marked = False  # there is a mark of it, or will be
        self.marking = False  # the mark is not stored yet
        self.settled = False  # the receiver is done
        self._waiting = waiting

    def advance(self, now: float) -> None:
        self._waiting.settled(self, now)

    def abandoned(self, now: float) -> Outbox | None:
        self._waiting.returned(self, now)
        return None


class QueueHolder(Holder):
    """Tells *waiting* of its queue."""

    def __init__(self, waiting: SharedList) -> None:
        self._waiting = waiting

    def pump(self, now: float) -> None:
        self._waiting.holder.pump(now)

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        self._waiting.holder.queue_dropped(reason, count)

    def unloaded(self) -> int:
        return 0  # it rests when nothing is given away

    def released(self, packet_id: int) -> None:
        self._waiting.marked(packet_id)


def _copy(message: Message) -> Message:
    """*message* with a Completion of its own: it shares the bytes."""
    copy = Message(message.topic, message.payload, message.qos, message.retain, message.properties, message.expires)
    copy.ends = message.ends
    copy.head3, copy.head5 = message.head3, message.head5
    return copy
