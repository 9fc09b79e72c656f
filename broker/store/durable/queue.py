# The queue of a durable session, at the worker that owns the session: messages in Redis, in packs (pack.py).
#
# parts.py says where each message is. One of QoS 1 for a connected client leaves at once, and is stored only if its
# client does not acknowledge it within `store.hold`. So a quick reader costs the store nothing. A message of QoS 2 is
# sent when it is stored: a crash in between would give it another packet id, and its client would take it twice.
#
# The publisher of a message is answered when the message is stored or done, whichever comes first.
#
# A pack is removed from the head of the list when all its messages are done (stored_list.py). What is done behind it
# waits for that in memory: after a crash such messages are sent again as duplicates, never lost.
#
# A QoS 2 publish that is sent again after a crash, and was taken before (tokens.py), is not taken twice: its publisher
# is answered once the first one is stored.
#
# A message that has ended leaves when its time has come, wherever it waits: `expire()` drops it from memory, and a
# sweep (sweep.py) from the packs that are unread. The packs that are read stay whole. What may have been sent at QoS 2
# stays until its client is back [MQTT-4.3.3-7], which gets PUBREL for it: the client would remember its packet id for
# ever, and take another message for it. After a crash that is all that is stored. QoS 1 needs no such care.
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from hiredis import ReplyError

from broker.reasons import DropReason
from broker.session.expiry import ExpirySchedule
from broker.session.message import Message
from broker.session.queue import INFLIGHT, QUEUED, Holder, MessageBudget
from broker.store.durable.dropped_queues import dropping, name_of
from broker.store.durable.group_commit import WIDE, GroupCommit
from broker.store.durable.marks import PubrecMarks
from broker.store.durable.pack import DamagedPack, Pack, StoredPack, decode_pack, packet_id_of
from broker.store.durable.parts import QueueParts
from broker.store.durable.places import NONE_READY, READY
from broker.store.durable.queue_state import QueueState
from broker.store.durable.removals import Words
from broker.store.durable.stored_list import StoredList
from broker.store.durable.sweep import Sweep
from broker.store.durable.tokens import TakenNumbers, token_of
from broker.store.durable.writer import Writer
from broker.store.redis.connection import packed, packed_push
from broker.store.redis.keys import SessionKeys

NOTHING: Final[list[Words]] = []  # never changed


class QueueReader(Protocol):
    """Reads packs for queues."""

    def read(self, queue: "DurableQueue") -> None:
        """Read a page of *queue*, soon: see `QueueParts.page()`."""
        ...

    def has_bodies(self, queue: "DurableQueue", packs: list[Pack]) -> bool:
        """Give *packs* shared bodies that were read before; false if there are others: read them."""
        ...

    def read_bodies(self, queue: "DurableQueue", packs: list[Pack]) -> None:
        """Read the shared bodies of *packs*; `DurableQueue.bodies_arrived()` follows."""
        ...

    def dropped(self, keys: SessionKeys, name: bytes) -> None:
        """The list *name* is one of `DroppedQueues` now."""
        ...

    def damaged(self, queue: "DurableQueue", why: str) -> None:
        """What is stored of the session of *queue* cannot be read or written: end the session, but not now."""
        ...


class DurableQueue(QueueParts, Writer):
    def __init__(
        self,
        keys: SessionKeys,
        client: bytes,
        budget: MessageBudget,
        commit: GroupCommit,
        reader: QueueReader,
        expiry: ExpirySchedule,
    ) -> None:
        super().__init__(budget, expiry, commit.bodies)
        self.dirty = False
        self.held = False
        self.client = client
        self._commit = commit
        self._keys = keys
        self._reader = reader
        self._held_to = 0  # the position of the last message that is to be written when the hold is over
        self._early: list[Message] | None = None  # what comes before it is known what is stored
        self._give: Callable[[], None] | None = None  # to be called when all is stored
        self.left = False  # another worker has it, or will when what is under way is carried out
        self._dropped_as = b""  # the name that the list gets when the session ends, if it has to be taken apart

    def _write_soon(self) -> None:
        self._commit.soon(self)

    def _remove_later(self, pack: StoredPack, now: float) -> None:
        self._commit.remove_later(self, pack.unanswered_at, now)

    def _read_page(self) -> None:
        self._reader.read(self)

    def expect(self) -> None:
        """What is stored will be known later: `restore()` follows."""
        self._early = []

    def restore(
        self,
        first: Pack | None,
        last: Pack | None,
        length: int,
        released: list[int],
        taken: TakenNumbers | None,
        state: QueueState | None = None,
    ) -> None:
        """Go on with what another worker has stored, or this one before it was started anew.

        *first*, *last*: packs of a list of *length* packs, None if it is empty. *released*: positions of the set.
        *taken*: None: no numbers. *state*: of that worker, which lives, and has stored everything.
        """
        self._late = state is None
        self._taken = taken
        if taken is not None and taken.unstored():
            self._commit.soon(self)
        # Positions go on behind all that were sent: they may be done, and nothing of them be stored.
        self._last = self._ready_to = max([0 if state is None else state.sent_to, *released])
        if first is not None and last is not None:
            self._ready_to = first.messages[0].position - 1
            self._last = max(self._last, last.messages[-1].position)
            self.stored.unread = length
            self.stored.refers = last.may_refer()
            self.stored.stored_bytes = last.bytes_before + sum([stored.message.size for stored in last.messages])
            self._expiry.set(self, last.due)
        self._due_to = self._written_to = self._stored_to = self._last
        self._sent_to = max([self._ready_to, *released])
        if state is None:
            self._restored_to = self._last
            self.count = self._last - self._ready_to
            self.waiting_bytes = 0 if first is None else self.stored.stored_bytes - first.bytes_before
            self.exact = first is None
        else:
            self._restored_to = self._moved_to = state.sent_to
            self._done_unread = dict.fromkeys(state.done)
            self.count, self.waiting_bytes, self.exact = state.count, state.waiting_bytes, state.exact
        self._restore_marks(released, [] if state is None else state.completed)
        early, self._early = self._early, None
        for message in early or []:  # it counts in the budget
            self._append(message, self._commit.now)

    # The port.

    def bind(self, holder: Holder) -> None:
        self._holder = holder
        self.permanent = True

    def limit(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def rest(self) -> None:
        self._resting = self._unloading = True
        self._page = READY
        self._unload()
        self._end_if_blank()

    def _end_if_blank(self) -> None:
        """If no client is connected, and there is nothing to remember, the session may forget the queue."""
        if self._resting and self._is_blank():
            self._expiry.discard(self)
            self.permanent = False

    def _is_blank(self) -> bool:
        """Whether a new queue would be as this one. Positions begin anew: nobody has a message with any of them."""
        busy = self._writing or self._under_way or self._removing or self._reading
        if busy or self.count or self._new or self.ended or self.damaged:
            return False
        if self._early is not None or self._give is not None or self._given or self.purging or self._done_unread:
            return False
        return self._taken is None and self.stored.is_empty() and self._marks.is_empty()

    def wake(self) -> None:
        self._resting = self._unloading = False

    def append(self, message: Message, most: int, now: float) -> int:
        completion = message.hold()
        self._most = most
        self.size += message.size
        self._budget.take(message)
        if completion.pending == WIDE:
            self._commit.gather(now)
        if self._early is not None:
            self._early.append(message)
            return 0
        self._append(message, now)
        return self._apply_limits(now) if self.count > self._most or self.waiting_bytes > self._most_bytes else 0

    def _append(self, message: Message, now: float) -> None:
        """Take *message*, which counts in the budget, unless it was taken before."""
        if self._was_taken(message):
            self.size -= message.size
            self._budget.give_back(message)
        else:
            self._add(message, now)

    def _was_taken(self, message: Message) -> bool:
        token = token_of(message)
        if not token:
            return False
        if self._taken is None:
            self._taken = TakenNumbers({}, self._late, [])
        if self._taken.take_in_group(token) if self._is_of_group(message) else self._taken.take(token):
            return False
        self._taken.repeated.append(message)
        self._commit.soon(self)
        return True

    def keep(self, message: Message, now: float) -> bool:
        position = self._last + 1
        completion = message.as_published().completion
        if self.count or not self._id_is_free(position) or (completion is not None and completion.token):
            return False
        message.hold()
        self._sends(position)
        self._last = self._ready_to = position
        self._new[position] = message
        self.packet_id = packet_id_of(position)
        self.duplicate = False
        if not self.held:
            self._held_to = position
            self._commit.later(self, now)
        return True

    def pop(self) -> Message | None:
        ready = self._ready
        if not ready or self._is_low():
            self._refill()
            ready = self._ready
            if not ready:
                return None
        stored = ready[0]
        position, message = stored.position, stored.message
        if not self._id_is_free(position) or self._is_being_stored(position, message):
            return None
        ready.popleft()
        self.count -= 1
        self.waiting_bytes -= message.size
        self.size -= message.size
        self._budget.messages -= 1
        self._budget.used += INFLIGHT - QUEUED
        self.packet_id = packet_id_of(position)
        self.duplicate = position <= self._restored_to
        self._sends(position)
        return message

    def done(self, packet_id: int, message: Message, now: float) -> None:
        position = self._take_position(packet_id)
        if not self._marks.complete(position, self._ready_to):
            self._done(position, now)
        if self._marks.completed:
            self._commit.later(self, now)

    def release(self, packet_id: int) -> bool:
        position = self._position_of(packet_id)
        if position in self._marks.stored:
            return True
        if self._marks.ask(position):
            self._commit.soon(self)
        return False

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        """Also what is unread, when it is read: *keep* is asked then."""
        self._keep = keep
        early = [message for message in self._early or [] if not keep(message)]
        if early:
            self._early = [message for message in self._early or [] if keep(message)]
        for message in early:
            self.size -= message.size
            self._budget.give_back(message)
            message.settle(self._commit.now)
        removed = len(early) + self._filter(lambda stored: keep(stored.message), self._commit.now)
        self._rest_if_stored()
        return removed

    def clear(self) -> int:
        waited = 0 if self._given else self.count
        self.withdraw()
        unknown = self._early is not None  # what is stored: a reply is still to come
        if unknown or (self.stored.refers and not self.stored.is_empty()):
            self._dropped_as = name_of(self.client)
        for message in self._forget():
            message.settle(self._commit.now)
        self.stored, self._marks = StoredList(), PubrecMarks()
        self.count = self.size = self.waiting_bytes = 0
        self._end_sweep()
        self._expiry.discard(self)
        self._holder = None
        self.ended = True
        if not self._given:
            self._commit.soon(self)
        return waited

    def end(self, sent: int, sent_bytes: int) -> int:
        if not self.of_member or self.moves() or self.damaged or not (sent or self.count):
            return sent + self.clear()
        self.leaves = self.purging = True
        self.sent_bytes = sent_bytes
        self._due_to = self._last
        return 0

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
        if self._taken is not None:
            unanswered += self._taken.repeated + self._taken.repeated_due
            self._taken = None
        self._new, self._writing, self._ready, self._early = {}, {}, NONE_READY, None
        return unanswered

    def moves(self) -> bool:
        """Whether its session comes from another worker, or is not of this one any more."""
        return self._early is not None or self.ended or self._given

    def end_purge(self, now: float) -> None:
        """What is unread may be read again."""
        self.purging = False
        if not self.ended:
            self._go_on(now)

    # Another worker takes the session.

    def disown(self) -> list[Message]:
        """It has been taken; returns the messages that were not stored for certain."""
        self.count = 0  # those that wait are not lost
        self.of_member = False
        return self._forget()

    def give(self, then: Callable[[], None]) -> None:
        """Store everything, call *then*, and write nothing any more. No message comes, and no client is connected."""
        self._give = then
        self._unloading = True
        self._due_to = self._last
        self._commit.soon(self)
        self._rest_if_stored()

    def _rest_if_stored(self) -> None:
        """If all is stored, let go of what is to be unloaded, and give the queue, if another worker is to have it."""
        if self._unloading:
            self._unload()
        self._give_if_stored()

    def _give_if_stored(self) -> None:
        then = self._give
        if then is None:
            return
        numbers = self._taken is not None and self._taken.unstored()
        changes = self.stored.removable or self.stored.changing or self._marks.completed or numbers
        if (self._unloading or changes or self._under_way or self._removing) and not self.damaged:
            return
        self._give = None
        self._given = not self.damaged
        then()

    def give_stored(self) -> None:
        """Write nothing but removals, until it has `left`. `withdraw()` and `disown()` follow, or `stay()`."""
        self._give = None
        self._given = self.gives_stored = True
        self._commit.soon(self)

    def stay(self) -> None:
        """The worker that it was given to has ended before."""
        self._given = self.gives_stored = self.left = False
        self._commit.soon(self)

    def withdraw(self) -> None:
        """What is to be stored of the queue will not be, if that can be."""
        if self._under_way:
            self._commit.withdraw(self, self.stored.coming_groups)

    # What GroupCommit asks for.

    def removes(self, now: float) -> list[Words]:
        stored, marks = self.stored, self._marks
        if not (stored.removable or stored.changing or marks.asked or marks.completed or self.ended):
            return NOTHING
        key, released_key = self.key(), self._keys.released + self.client
        if self.ended:
            if self._given:
                return NOTHING
            self._given = True  # asked again for what was held, it must not remove what a later session has stored
            if self.damaged:
                return [("RENAME", key, self._keys.damaged + self.client + b":queue"), ("DEL", released_key)]
            if self._dropped_as:
                return dropping(self._keys, self.client, self._dropped_as)
            return [("DEL", key, released_key)]
        if self.left:
            return NOTHING
        removals = stored.removes(key, self._bodies) if stored.removable or stored.changing else []
        removals += marks.removes(released_key)
        if not self._marks_wait():
            removals += marks.adds(released_key)
        self._removing = len(removals) > 0
        return removals

    def removed(self, errors: list[ReplyError], now: float) -> None:
        of_session, self._removing = self._removing, False  # else what was carried out is its end
        if self.ended:
            if self._dropped_as and not (of_session or self.damaged):
                self._reader.dropped(self._keys, self._dropped_as)
            return
        if errors:
            self.damage(str(errors[0]))
            return
        if not self._marks_wait():
            self._marked(now)
        if self._sweep is not None and self._sweep.waits:
            self._sweep.waits = False
            self._reader.read(self)
        if self._under_way:  # what is to be stored may have to wait
            self._go_on(now)
        else:
            self._carried_out(now)

    def _marks_wait(self) -> bool:
        """Whether marks are written with what is stored, and not while Redis is full."""
        return False

    def _carried_out(self, now: float) -> None:
        """Nothing of the queue is under way."""
        self._go_on(now)
        self._end_if_blank()
        if not self.permanent and self._holder is not None:
            self._holder.queue_dropped(DropReason.EXPIRED, 0)

    def collect(self, now: float, wall: float) -> list[bytes]:
        if self.ended or self._given:
            return []
        adds = self._marks.adds(self._keys.released + self.client) if self._marks_wait() else NOTHING
        writes = [packed(*words) for words in adds]
        packs = self._pack_new(max(self._due_to, self._held_to), now, wall)
        if packs:
            writes.append(packed_push(self.key(), packs))
        if self._new:
            self._held_to = self._last
            self._commit.later(self, now)
        if self._taken is not None:
            writes += self._taken.writes(self._keys.records + self.client, not writes)
        self._under_way = len(writes) > 0
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        self._under_way = False
        if self.ended:
            return
        if errors:
            self.damage(str(errors[0]))
            return
        self.stored.arrived()
        if self._taken is not None:
            repeated, self._taken.repeated_due = self._taken.repeated_due, []
            for message in repeated:
                message.settle(now)
        written, self._writing, self._stored_to = self._writing, {}, self._written_to
        for position, message in written.items():
            if position > self._ready_to:  # it is read again when its turn comes
                self.size -= message.size
                self._budget.give_back(message)
            message.settle(now)
        if self._marks_wait():
            self._marked(now)
        self._remove_done(now)
        self._carried_out(now)

    def _go_on(self, now: float) -> None:
        """Do what has waited for a transaction or a sweep."""
        self._rest_if_stored()
        self._drop_excess(now)
        if not self._resting:
            self._refill()
            if self._holder is not None and self._ready:
                self._holder.pump(now)

    def key(self) -> bytes:
        """The key of the list."""
        return self._keys.queues + self.client

    def damage(self, why: str) -> None:
        """What is stored of its session cannot be read or written, and *why*."""
        if not self.damaged:
            self.damaged = why
            self._end_sweep()
            self._reader.damaged(self, why)
            self._give_if_stored()

    # Expiry.

    def expire(self, now: float, wall: float, reads: bool) -> None:
        """Drop what has ended, as something may have: from memory now, and in a sweep from what is unread.

        *reads*: Redis is there, for a sweep.
        """
        if self.ended or self.damaged or self._given or self._early is not None:
            return
        ended = self._filter(lambda stored: not self._has_ended(stored, now), now)
        ahead, behind = self.waiting_in_memory()
        here = [*ahead, *behind]
        for stored in here:
            if not stored.message.expired(now):
                self._expiry.set(self, stored.message.ends + self._expiry.offset)
        self._overdue = False
        for pack in self.stored.read:
            if pack.ends > wall:
                self._expiry.set(self, pack.ends)
            else:
                self._overdue = True
        busy = self._reading or self._under_way or self._removing or self.stored.changing
        busy = busy or self.purging or self._give is not None
        if self.stored.unread and (busy or not reads):
            self._expiry.set(self, wall)  # once more, in a second
        elif self.stored.unread:
            size = sum([stored.message.size for stored in here])
            self._sweep = Sweep(self.stored.unread, self.count - len(here), self.waiting_bytes - size)
            self._expiry.sweeps += 1
            self._reading = True
            self._reader.read(self)
        self.report(DropReason.EXPIRED, ended)
        self._rest_if_stored()  # nothing may be left to be stored

    def _swept(self, sweep: Sweep, packs: list[Pack], now: float, wall: float) -> None:
        """Remove what has ended, or is done, from the next *packs* of the sweep."""
        before = sweep.ended
        keep = partial(self._swept_over, sweep, now)
        removed = self._filter_unread(packs, sweep.index, keep, now, wall)
        sweep.page_done(len(packs), removed)
        ended = sweep.ended - before
        if sweep.left and not (self._unloading or self.purging):
            self._reader.read(self)
        else:
            self._complete(sweep, wall)
        self.report(DropReason.EXPIRED, ended)
        if self._sweep is None:
            self._go_on(now)

    # Reading.

    def arrived(self, packs: list[bytes], now: float, wall: float) -> int:
        """The packs that were read, in their order; none if the list has none there. Returns how many messages."""
        if self.ended or self.damaged:
            return 0
        if self._given:
            self._not_read(wall)
            return 0
        if not packs:
            self.damage(f"{self.stored.unread} packs are missing")
            return 0
        read: list[Pack] = []
        position = self._ready_to
        for data in packs:
            try:
                pack = decode_pack(data, now, wall)
                if pack.messages[0].position <= position:
                    raise DamagedPack("packs are not in order")
            except DamagedPack as error:
                self.damage(str(error))
                return 0
            position = pack.messages[-1].position
            read.append(pack)
        if self._sweep is not None:
            self._swept(self._sweep, read, now, wall)
        elif any(pack.writer for pack in read) and not self._reader.has_bodies(self, read):
            self._reader.read_bodies(self, read)
        else:
            self.bodies_arrived(read, "", now, wall)
        return sum([len(pack.messages) for pack in read])

    def bodies_arrived(self, read: list[Pack], why: str, now: float, wall: float) -> None:
        """The packs that `read_bodies()` was called for are whole, or *why* they never will be."""
        if why and not self.ended:
            self.damage(why)
        if self.ended or self.damaged:
            return
        self._reading = False
        if self._given:  # see `_not_read()`
            return
        withheld = 0
        for pack in read:
            self.stored.unread -= 1
            withheld += self._take(pack, now, wall)
        self._remove_done(now)
        self.recount()
        self._drop_excess(now)
        self.report(DropReason.MAY_NOT_READ, withheld)
        if self._holder is not None:
            self._holder.pump(now)
        self._rest_if_stored()
