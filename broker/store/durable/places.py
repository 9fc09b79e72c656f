# Where the messages of a durable queue are, and what others ask about that: the places, which parts.py explains.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.session.expiry import ExpirySchedule
from broker.session.message import GroupMessage, Message
from broker.session.queue import UNLIMITED, Holder, MessageBudget, MessageQueue
from broker.store.durable.marks import PubrecMarks
from broker.store.durable.pack import StoredMessage, packet_id_of
from broker.store.durable.queue_state import QueueState, encode_state
from broker.store.durable.shared_bodies import SharedBodies
from broker.store.durable.stored_list import StoredList
from broker.store.durable.sweep import Sweep
from broker.store.durable.tokens import TakenNumbers, token_of

READY: Final = 128  # messages of a page, about, and parts.READY_BYTES: what a client gets first, and a slow one always
NONE_OVERTAKEN: Final[dict[int, int]] = {}  # of all queues in which none is: never changed
NONE_READY: Final[deque[StoredMessage]] = deque()  # of all queues in which none is: never changed


class QueuePlaces(MessageQueue):
    """A base class, as the port is one: QueueParts moves messages from one place to the next."""

    def __init__(self, budget: MessageBudget, expiry: ExpirySchedule, bodies: SharedBodies) -> None:
        """*expiry*: its times are Unix time, as a message that is stored outlives the clock of a worker."""
        super().__init__(True)
        self.waiting_bytes = 0  # of messages that wait, wherever they are
        self.exact = True  # `count` and `waiting_bytes` are not more than there are
        self.damaged = ""  # why its session cannot be read or written: what is stored is kept aside when it ends
        self.ended = False
        self.stored = StoredList()
        self._budget = budget
        self._expiry = expiry
        self._bodies = bodies
        self._holder: Holder | None = None
        self._last = 0  # the position of the message that came last
        self._ready_to = 0  # that of the last message that is or was ready
        self._sent_to = 0  # that of the last message that was sent here: packet ids are of positions up to it
        # By packet id, the messages that are not done, and not the last ones up to `_sent_to` with their packet ids.
        self._overtaken: dict[int, int] = NONE_OVERTAKEN
        self._moved_to = 0  # the same, of the worker that had the session before, if that told
        self._due_to = 0  # that of the last message that is to be written with the next transaction
        self._written_to = 0  # that of the last one in the transaction under way, or in one before
        self._stored_to = 0  # that of the last one that is stored, unless it was done before
        self._restored_to = 0  # messages up to here may have been sent before, over another connection
        self._new: dict[int, Message] = {}  # by position
        self._writing: dict[int, Message] = {}  # in the transaction under way
        self._under_way = False  # this queue has a part of the transaction
        self._removing = False  # removals of this queue are under way
        self._most = UNLIMITED  # messages that may wait
        self._most_bytes = UNLIMITED
        self._ready: deque[StoredMessage] = NONE_READY
        self._done_unread: dict[int, None] = {}  # messages that are done, in packs that are unread again
        self._marks = PubrecMarks()
        self._keep: Callable[[Message], bool] | None = None  # what may be delivered of what is unread
        self._reading = False
        self._page = READY  # messages of the next page that is read
        self._starved = False  # the client could have taken more before the last page was there
        self._resting = True  # the client is not connected
        self._unloading = False  # what is stored is to leave the memory, once all is stored
        self._given = False  # another worker has it
        self.gives_stored = False  # another worker is to have it with what is stored, as Redis is full
        self._taken: TakenNumbers | None = None  # until there are some
        self._late = False  # see TakenNumbers
        self._sweep: Sweep | None = None  # under way
        self._overdue = False  # something has ended in a pack that is read
        self.purging = False  # what is unread stays as it is, but for queue_purge.py
        self.of_member = False  # of a shared subscription, now or before
        self.leaves = False  # the session has ended, and the messages are to return to their groups: returned.py
        self.sent_bytes = 0  # of messages that were in flight then

    def restore_log(self, saved: bytes) -> None:
        """Go on with *saved*, which another worker has stored of the log of the session; b"": nothing.

        To be called after `restore()`. ValueError: it cannot be read. Here nothing is done: the session has no log, or
        this worker has none, and what is stored of it stays.
        """

    def restore_leases(self, fields: dict[bytes, bytes], damaged: bool = False) -> None:
        """Release the leases that another worker has stored as *fields*; without a log they stay. ValueError.

        *damaged*: they are released as they are stored, whether they can be read or not.
        """

    def take_places(self, former: "QueuePlaces") -> None:
        """Go on with what *former* has: all of it is stored and unread, and *former* is used no more."""
        self.stored, self._marks, self._taken = former.stored, former._marks, former._taken
        self._overtaken, self._done_unread, self._keep = former._overtaken, former._done_unread, former._keep
        self.count, self.waiting_bytes, self.exact = former.count, former.waiting_bytes, former.exact
        self._last = self._due_to = self._written_to = self._stored_to = former._last
        self._ready_to, self._sent_to, self._moved_to = former._ready_to, former._sent_to, former._moved_to
        self._restored_to, self._late = former._restored_to, former._late
        self.of_member = self.of_member or former.of_member
        self.damaged = former.damaged
        self._expiry.set(self, former.due)
        former._expiry.discard(former)
        former._holder = None

    def waiting_in_memory(self) -> tuple[list[StoredMessage], list[StoredMessage]]:
        """The messages that wait in memory, in order: those ahead of the packs that are unread, and those behind."""
        behind = [StoredMessage(each, message) for each, message in self._new.items() if each > self._ready_to]
        return list(self._ready), behind

    def unstored(self) -> list[StoredMessage]:
        """The messages that wait behind those that are unread: they are not stored yet."""
        writing = [StoredMessage(each, message) for each, message in self._writing.items() if each > self._ready_to]
        _, behind = self.waiting_in_memory()
        return writing + behind

    def is_resting(self) -> bool:
        """Whether the client is not connected."""
        return self._resting

    def newest(self) -> int:
        """The position of the message that came last."""
        return self._last

    def ready_to(self) -> int:
        """The position of the last message that is or was ready: what is unread begins behind it."""
        return self._ready_to

    def sent_to(self) -> int:
        """The position of the last message that was sent, as far as this worker knows."""
        return max(self._sent_to, self._moved_to)

    def given_state(self, read: list[object] | None) -> bytes:
        """What the next owner cannot read in Redis, and what it would *read* there; see `encode_state()`."""
        if not self.gives_stored:
            return encode_state(self._state(), [], read)
        again = [] if self._taken is None else self._taken.again()
        unstored = [*self._new.values(), *self._writing.values()]
        # Of what came through groups, the next owner takes whatever is not stored.
        tokens = [token_of(message) for message in unstored if not self._is_of_group(message)]
        return encode_state(None, again + [token for token in tokens if token])

    def _is_of_group(self, message: Message) -> bool:
        """Whether *message* comes through a group: in any order."""
        return isinstance(message, GroupMessage)

    def _state(self) -> QueueState:
        sent_to, completed = max(self._restored_to, self._sent_to), sorted(self._marks.completed_unread)
        return QueueState(sent_to, self.count, self.waiting_bytes, self.exact, sorted(self._done_unread), completed)

    def released_ids(self) -> list[int]:
        """The packet ids whose PUBREL is to be sent again, in order."""
        return [packet_id_of(position) for position in sorted(self._marks.stored)]

    def was_sent(self, position: int) -> bool:
        """Whether the message at *position* may have been sent, over this connection or one before."""
        return position <= max(self._sent_to, self._restored_to)

    def all_stored(self) -> bool:
        """Whether nothing is known here that is not stored, and nothing is under way."""
        if self._new or self._writing or self._under_way or self._removing or self._reading or self._ready:
            return False
        if self._sweep is not None:
            return False
        if self.ended or self.damaged or self._given or self.purging or self._done_unread or not self._marks.is_empty():
            return False
        return not (self.stored.read or self.stored.removable or self.stored.changing)

    def leave(self) -> None:
        """The session stays in Redis alone."""
        self._holder = None  # no cycle for the collector
        self._expiry.discard(self)

    def nothing_sent(self) -> None:
        """Nothing that waits was sent before: it was stored while the client was away."""
        self._restored_to = self._ready_to

    def nothing_late(self) -> None:
        """What is offered comes in the order of its tokens."""
        self._late = False
        if self._taken is not None:
            self._taken.nothing_late()

    def expects_late(self) -> bool:
        """Whether something may come behind what was published later: see TakenNumbers."""
        return self._late

    def sent_before(self) -> bool:
        """Whether something that waits may have been sent before, over another connection."""
        return self.count > 0 and max(self._sent_to, self._restored_to) > self._ready_to

    def waits(self, stored: StoredMessage) -> bool:
        """Whether a message that is in a pack will be sent when its turn comes."""
        return not self.is_done(stored.position) and (self._keep is None or self._keep(stored.message))

    def at_rest(self) -> bool:
        """Whether no page is being read, and no pack that is unread is about to be written."""
        return not self._reading and not self.stored.changing

    def unloads(self) -> bool:
        """Whether what is stored is to leave the memory, and has not: the client is not connected any more."""
        return self._unloading

    def is_done(self, position: int) -> bool:
        """Whether the message at *position*, which is unread, is done, or was sent and PUBREC has come for it."""
        marks = self._marks
        return position in self._done_unread or position in marks.stored or position in marks.completed_unread
