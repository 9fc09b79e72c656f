# The queue of a durable session, at the worker that owns the session: messages in Redis, in packs (pack.py).
#
# The messages of a session, in the order of their positions, are in parts that follow each other:
#
#   done        acknowledged, expired or dropped: nothing is left of them, once the packs they were in are removed
#   sent        in flight; the session has them
#   ready       the oldest that wait, in memory: READY messages at most
#   unread      in packs of Redis only
#   new         not stored yet, in memory
#
# What is sent may be new as well: a message of QoS 1 for a connected client leaves at once, and is stored only if its
# client does not acknowledge it within `store.hold`. So a quick reader costs the store nothing. A message of QoS 2 is
# sent when it is stored: a crash in between would give it another packet id, and its client would take it twice.
#
# The publisher of a message is answered when the message is stored or done, whichever comes first.
#
# A pack is removed from the head of the list when all its messages are done. What is done behind it waits for that in
# memory: after a crash such messages are sent again as duplicates, never lost.
#
# The queue of a client that is not connected keeps nothing in memory that is stored. What was sent is unread again, and
# its session lets go of it: packet ids follow from positions.
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from hiredis import ReplyError

from broker.reasons import DropReason
from broker.session.message import Message
from broker.session.queue import INFLIGHT, QUEUED, UNLIMITED, Holder, MessageBudget, MessageQueue
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.marks import PubrecMarks
from broker.store.durable.pack import (
    PACKET_IDS,
    DamagedPack,
    Pack,
    StoredMessage,
    StoredPack,
    decode_pack,
    encode_pack,
    packet_id_of,
    position_of,
)
from broker.store.durable.queue_state import QueueState
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys

READY: Final = 128  # messages that wait in memory, about: some milliseconds of a quick client
READY_BYTES: Final = 64 * 1024
PACK: Final = 128  # messages of a pack
PACK_BYTES: Final = 64 * 1024


class QueueReader(Protocol):
    """Reads packs for queues."""

    def read(self, queue: "DurableQueue") -> None:
        """Read a page of *queue*, soon: see `DurableQueue.page()`."""
        ...

    def damaged(self, queue: "DurableQueue", why: str) -> None:
        """What is stored of the session of *queue* cannot be read or written: end the session, but not now."""
        ...


class DurableQueue(MessageQueue):
    def __init__(
        self,
        keys: SessionKeys,
        client: bytes,
        budget: MessageBudget,
        commit: GroupCommit,
        reader: QueueReader,
    ) -> None:
        super().__init__(True)
        self.dirty = False
        self.held = False
        self.client = client
        self.packet_id = 0  # of the message that `pop()` returned last, or that `keep()` took
        self.waiting_bytes = 0  # of messages that wait, wherever they are
        self.damaged = ""  # why its session cannot be read or written: what is stored is kept aside when it ends
        self._most = UNLIMITED
        self._most_bytes = UNLIMITED
        self._budget = budget
        self._commit = commit
        self._holder: Holder | None = None
        self._keys = keys
        self._reader = reader
        self._last = 0  # the position of the message that came last
        self._ready_to = 0  # that of the last message that is or was ready
        self._sent_to = 0  # that of the last message that was sent
        self._due_to = 0  # that of the last message that is to be written with the next transaction
        self._held_to = 0  # that of the last message that is to be written when the hold is over
        self._new: dict[int, Message] = {}  # by position
        self._writing: dict[int, Message] = {}  # in the transaction under way
        self._under_way = False  # this queue has a part of the transaction
        self._ready: deque[StoredMessage] = deque()
        self._packs: deque[StoredPack] = deque()  # at the head of the list
        self._pack_of: dict[int, StoredPack] = {}  # by the positions of messages that are sent or ready
        self._unread = 0  # packs behind those
        self._removable = 0  # packs before those
        self._stored_bytes = 0  # of all messages that were ever stored
        self._reading = False
        self.ended = False
        self._resting = False  # the client is not connected
        self._unloading = False  # what is stored is to leave the memory, once all is stored
        self._early: list[Message] | None = None  # what comes before it is known what is stored
        self._give: Callable[[], None] | None = None  # to be called when all is stored
        self._given = False  # another worker has it
        self._keep: Callable[[Message], bool] | None = None  # what may be delivered of what is unread
        self._restored_to = 0  # messages up to here may have been sent before, over another connection
        self._done_unread: set[int] = set()  # messages that are done, in packs that are unread again
        self._marks = PubrecMarks()

    def expect(self) -> None:
        """What is stored will be known later: `restore()` follows."""
        self._early = []

    def restore(
        self, first: Pack | None, last: Pack | None, length: int, released: list[int], state: QueueState | None = None
    ) -> None:
        """Go on with what another worker has stored, or this one before it was started anew.

        *first*, *last*: packs of a list of *length* packs, None if it is empty. *released*: positions of the set.
        *state*: of that worker, which lives.
        """
        self._last = self._ready_to = max([0, *released])
        if first is not None and last is not None:
            self._ready_to = first.messages[0].position - 1
            self._last = last.messages[-1].position
            self._unread = length
            self._stored_bytes = last.bytes_before + sum([stored.message.size for stored in last.messages])
        self._resting = True
        self._due_to = self._last
        self._sent_to = max([self._ready_to, *released])
        if state is None:
            self._restored_to = self._last
            self.count = self._last - self._ready_to  # a few more than there are, until all packs were read
            self.waiting_bytes = 0 if first is None else self._stored_bytes - first.bytes_before
        else:
            self._restored_to = state.sent_to
            self._sent_to = max(self._sent_to, state.sent_to)
            self._done_unread = set(state.done)
            self.count, self.waiting_bytes = state.count, state.waiting_bytes
        self._marks.restore(released, [] if state is None else state.completed)
        early, self._early = self._early, None
        for message in early or []:  # it counts in the budget
            self._add(message)

    def released_ids(self) -> list[int]:
        """The packet ids whose PUBREL is to be sent again, in order."""
        return [packet_id_of(position) for position in sorted(self._marks.stored)]

    # The port.

    def bind(self, holder: Holder) -> None:
        self._holder = holder

    def limit(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def rest(self) -> None:
        self._resting = self._unloading = True
        self._unload()

    def wake(self) -> None:
        self._resting = self._unloading = False

    def append(self, message: Message, most: int, now: float) -> int:
        message.hold()
        self._most = most
        self.size += message.size
        self._budget.take(message)
        if self._early is not None:
            self._early.append(message)
            return 0
        self._add(message)
        return self._apply_limits(now)

    def keep(self, message: Message, now: float) -> bool:
        position = self._last + 1
        if self.count or not self._id_is_free(position):
            return False
        message.hold()
        self._last = self._ready_to = self._sent_to = position
        self._new[position] = message
        self.packet_id = packet_id_of(position)
        self.duplicate = False
        if not self.held:
            self._held_to = position
            self._commit.later(self, now)
        return True

    def pop(self) -> Message | None:
        if not self._ready:
            self._refill()
            if not self._ready:
                return None
        stored = self._ready[0]
        position, message = stored.position, stored.message
        being_stored = position not in self._pack_of or position in self._writing
        if not self._id_is_free(position) or (message.qos == 2 and being_stored):
            return None
        self._ready.popleft()
        self.count -= 1
        self.waiting_bytes -= message.size
        self.size -= message.size
        self._budget.messages -= 1
        self._budget.used += INFLIGHT - QUEUED
        self.packet_id = packet_id_of(position)
        self.duplicate = position <= self._restored_to
        self._sent_to = max(self._sent_to, position)
        return message

    def done(self, packet_id: int, message: Message, now: float) -> None:
        position = position_of(packet_id, self._sent_to)
        if not self._marks.complete(position, self._ready_to):
            self._done(position, now)
        if self._marks.completed:
            self._commit.later(self, now)

    def release(self, packet_id: int) -> bool:
        position = position_of(packet_id, self._sent_to)
        if position in self._marks.stored:
            return True
        if self._marks.ask(position):
            self._commit.soon(self)
        return False

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        """Also what is unread, when it is read: *keep* is asked then."""
        self._keep = keep
        kept: deque[StoredMessage] = deque()
        early = [message for message in self._early or [] if not keep(message)]
        if early:
            self._early = [message for message in self._early or [] if keep(message)]
        for message in early:
            self.size -= message.size
            self._budget.give_back(message)
            message.settle(self._commit.now)
        removed = len(early)
        for stored in self._ready:
            if keep(stored.message):
                kept.append(stored)
            else:
                self._remove(stored, self._commit.now)
                removed += 1
        self._ready = kept
        for position, message in [*self._new.items()]:
            if position > self._ready_to and not keep(message):
                del self._new[position]
                self.count -= 1
                self.waiting_bytes -= message.size
                self.size -= message.size
                self._budget.give_back(message)
                message.settle(self._commit.now)
                removed += 1
        return removed

    def clear(self) -> int:
        waited = 0 if self._given else self.count
        for message in self._forget():
            message.settle(self._commit.now)
        self._packs, self._pack_of, self._marks = deque(), {}, PubrecMarks()
        self.count = self.size = self.waiting_bytes = self._unread = 0
        self._holder = None
        self.ended = True
        if not self._given:
            self._commit.soon(self)
        return waited

    def _forget(self) -> list[Message]:
        """Give the places of all messages in the budget back; returns those that no one is answered for."""
        for position, message in [*self._new.items(), *self._writing.items()]:
            if position > self._ready_to:
                self._budget.give_back(message)
        for stored in self._ready:
            self._budget.give_back(stored.message)
        for message in self._early or []:
            self._budget.give_back(message)
        unanswered = [*self._new.values(), *self._writing.values(), *(self._early or [])]
        self._new, self._writing, self._ready, self._early = {}, {}, deque(), None
        return unanswered

    # Another worker takes the session.

    def disown(self) -> list[Message]:
        """It has been taken; returns the messages that were not stored for certain."""
        self.count = 0  # those that wait are not lost
        return self._forget()

    def give(self, then: Callable[[], None]) -> None:
        """Store everything, call *then*, and write nothing any more. No message comes, and no client is connected."""
        self._give = then
        self._unloading = True
        self._due_to = self._last
        self._commit.soon(self)
        self._unload()
        self._give_if_stored()

    def state(self) -> QueueState:
        """What the next owner cannot read in Redis, once all is stored."""
        sent_to, completed = max(self._restored_to, self._sent_to), sorted(self._marks.completed_unread)
        return QueueState(sent_to, self.count, self.waiting_bytes, sorted(self._done_unread), completed)

    def _give_if_stored(self) -> None:
        then = self._give
        left = self._unloading or self._removable or self._marks.completed or self._under_way
        if then is None or (left and not self.damaged):
            return
        self._give = None
        self._given = not self.damaged
        then()

    # What GroupCommit asks for.

    def collect(self, now: float, wall: float) -> list[bytes]:
        key, released_key = self.key(), self._keys.released + self.client
        if self.ended:
            if self.damaged:
                aside = self._keys.damaged + self.client + b":queue"
                return [packed("RENAME", key, aside), packed("DEL", released_key)]
            return [packed("DEL", key, released_key)]
        writes: list[bytes] = []
        if self._removable:
            writes.append(packed("LPOP", key, self._removable))
            self._removable = 0
        writes += self._marks.collect(released_key)
        due = max(self._due_to, self._held_to)
        packs: list[bytes] = []
        messages: list[StoredMessage] = []
        size = 0
        for position, message in self._new.items():
            if position > due:
                break
            apart = messages and (messages[-1].position <= self._ready_to) != (position <= self._ready_to)
            if apart or len(messages) == PACK or size >= PACK_BYTES:
                packs.append(self._pack(messages, now, wall))
                messages, size = [], 0
            messages.append(StoredMessage(position, message))
            size += message.size
        if messages:
            packs.append(self._pack(messages, now, wall))
        if packs:
            writes.append(packed("RPUSH", key, *packs))
            for position in self._writing:
                del self._new[position]
        if self._new:
            self._held_to = self._last
            self._commit.later(self, now)
        self._under_way = len(writes) > 0
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        self._under_way = False
        if self.ended:
            return
        if errors:
            self.damage(str(errors[0]))
            return
        written, self._writing = self._writing, {}
        for position, message in written.items():
            if position > self._ready_to:  # it is read again when its turn comes
                self.size -= message.size
                self._budget.give_back(message)
            message.settle(now)
        released = self._marks.committed(self._pack_of)
        for position in released:
            self._done(position, now)
        holder = self._holder
        if holder is not None:
            for position in released:
                holder.released(packet_id_of(position))
        if self._unloading:
            self._unload()
        self._give_if_stored()
        self._drop_excess(now)
        if not self._resting:
            self._refill()
            if holder is not None and self._ready:
                holder.pump(now)

    def key(self) -> bytes:
        """The key of the list."""
        return self._keys.queues + self.client

    def damage(self, why: str) -> None:
        """What is stored of its session cannot be read or written, and *why*."""
        if not self.damaged:
            self.damaged = why
            self._reader.damaged(self, why)
            self._give_if_stored()

    # Reading.

    def page(self) -> tuple[int, int]:
        """Which packs of the list are to be read: (index of the first, how many); (0, 0): none now.

        `arrived()` follows, when the server has answered.
        """
        if self._under_way or self.ended or not self._unread:
            self._reading = False  # `committed()` has them read: those of the transaction might not be there yet
            return 0, 0
        unread = self._unread
        count = min(unread, READY * unread // (self.count + 1), READY_BYTES * unread // (self.waiting_bytes + 1))
        return self._removable + len(self._packs), max(1, count)

    def arrived(self, packs: list[bytes], now: float, wall: float) -> None:
        """The packs that were read, in their order; none if the list has none there."""
        self._reading = False
        if self.ended:
            return
        if not packs:
            self.damage(f"{self._unread} packs are missing")
            return
        withheld = 0
        for data in packs:
            try:
                pack = decode_pack(data, now, wall)
                if pack.messages[0].position <= self._ready_to:
                    raise DamagedPack("packs are not in order")
            except DamagedPack as error:
                self.damage(str(error))
                return
            self._unread -= 1
            withheld += self._take(pack)
        self._remove_done(now)
        if self._unread == 0:
            self.count = len(self._ready) + len(self._new)
            self.waiting_bytes = sum([each.message.size for each in self._ready])
            self.waiting_bytes += sum([message.size for message in self._new.values()])
        self._drop_excess(now)
        if self._holder is not None:
            if withheld:
                self._holder.queue_dropped(DropReason.MAY_NOT_READ, withheld)
            self._holder.pump(now)
        if self._unloading:
            self._unload()
        self._give_if_stored()

    def _take(self, pack: Pack) -> int:
        """Have the messages of *pack* ready that are not done; return how many the client may not have."""
        stored_pack = StoredPack(pack.messages[0].position, pack.messages[-1].position, len(pack.messages))
        self._packs.append(stored_pack)
        withheld = 0
        for stored in pack.messages:
            position = stored.position
            if self._marks.read(position, stored_pack) or position in self._done_unread:
                pass
            elif self._keep is not None and not self._keep(stored.message):
                withheld += 1
            else:
                self._ready.append(stored)
                self._pack_of[position] = stored_pack
                self.size += stored.message.size
                self._budget.take(stored.message)
                continue
            stored_pack.left -= 1
            if position in self._done_unread:
                self._done_unread.discard(position)
            else:
                self.count -= 1
                self.waiting_bytes -= stored.message.size
        self._ready_to = pack.messages[-1].position
        return withheld

    def _unload(self) -> None:
        """Have the memory forget what is stored, if all is: it is unread again."""
        busy = self._new or self._writing or self._under_way or self._marks.asked or self._reading
        if busy or self.ended or self.damaged:
            return
        self._unloading = False
        if not self._packs:
            return
        for pack in self._packs:
            self._done_unread.update([each for each in range(pack.first, pack.last + 1) if each not in self._pack_of])
            self._marks.completed_unread.update(pack.completed)
        sent = len(self._pack_of) - len(self._ready)
        for stored in self._ready:
            self.size -= stored.message.size
            self._budget.give_back(stored.message)
        if self._holder is not None:
            self.waiting_bytes += self._holder.unloaded()
        self.count += sent
        self._unread += len(self._packs)
        self._ready_to = self._packs[0].first - 1
        self._restored_to = max(self._restored_to, self._sent_to)
        self._packs = deque()
        self._pack_of = {}
        self._ready = deque()

    def _refill(self) -> None:
        """Have messages ready, if some wait elsewhere: at once if they are in memory."""
        if self._ready or self._reading or self.damaged or self._given or self._ready_to == self._last:
            return
        if not self._unread:
            for position, message in self._new.items():
                if position > self._ready_to:
                    if not self._has_room():
                        break
                    self._ready.append(StoredMessage(position, message))
                    self._ready_to = position
        else:
            self._reading = True
            self._reader.read(self)

    # The parts of the queue.

    def _has_room(self) -> bool:
        """Whether one more message may be ready."""
        return len(self._ready) < READY and (not self._ready or self.size < READY_BYTES)

    def _id_is_free(self, position: int) -> bool:
        """Whether no message that is not done has the packet id of *position*."""
        if position - PACKET_IDS in self._marks.stored:
            return False
        if position < PACKET_IDS or (self._packs and position - self._packs[0].first < PACKET_IDS):
            return True
        oldest = next(iter(self._pack_of or self._writing or self._new), position)
        return position - oldest < PACKET_IDS

    def _add(self, message: Message) -> None:
        """Give *message* its position."""
        position = self._last = self._last + 1
        self._new[position] = message
        self._due_to = position
        self.count += 1
        self.waiting_bytes += message.size
        if position == self._ready_to + 1 and not self._resting and self._has_room():
            self._ready.append(StoredMessage(position, message))
            self._ready_to = position
        self._commit.soon(self)

    def _apply_limits(self, now: float) -> int:
        """Drop the oldest messages that wait while there are too many; return how many. Others may have to be read."""
        dropped = 0
        while self.count > self._most or self.waiting_bytes > self._most_bytes:
            if not self._ready:
                self._refill()
                if not self._ready:
                    break
            self._remove(self._ready.popleft(), now)
            dropped += 1
        return dropped

    def _drop_excess(self, now: float) -> None:
        dropped = self._apply_limits(now)
        if self._holder is not None and dropped:
            self._holder.queue_dropped(DropReason.QUEUE_FULL, dropped)

    def _remove(self, stored: StoredMessage, now: float) -> None:
        """Drop a message that was ready."""
        size = stored.message.size
        self.count -= 1
        self.waiting_bytes -= size
        self.size -= size
        self._budget.give_back(stored.message)
        self._done(stored.position, now)

    def _done(self, position: int, now: float) -> None:
        message = self._new.pop(position, None)
        if message is not None:
            message.settle(now)
            return  # it never was stored
        message = self._writing.pop(position, None)
        if message is not None:
            message.settle(now)
        pack = self._pack_of.pop(position, None)
        if pack is None:
            return
        pack.left -= 1
        self._remove_done(now)

    def _remove_done(self, now: float) -> None:
        """Have the packs at the head of the list removed whose messages are all done."""
        packs = self._packs
        while packs and packs[0].left == 0:
            pack = packs.popleft()
            pack.removed = True
            self._marks.completed += pack.completed
            self._removable += 1
            self._commit.later(self, now)

    def _pack(self, messages: list[StoredMessage], now: float, wall: float) -> bytes:
        """The pack of *messages*, which are new, and about to be written."""
        data = encode_pack(self._stored_bytes, messages, now, wall)
        ready = messages[0].position <= self._ready_to
        pack = StoredPack(messages[0].position, messages[-1].position, len(messages))
        if ready:
            self._packs.append(pack)
        else:
            self._unread += 1
        for stored in messages:
            self._writing[stored.position] = stored.message
            self._stored_bytes += stored.message.size
            if ready:
                self._pack_of[stored.position] = pack
        return data
