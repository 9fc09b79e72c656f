# The parts of the queue of a durable session: where each of its messages is, and how it gets from one part to the next.
#
# The messages of a session, in the order of their positions, are in parts that follow each other:
#
#   done        acknowledged, expired or dropped: nothing is left of them, once the packs they were in are removed
#   sent        in flight; the session has them
#   ready       the oldest that wait, in memory: a page and a half at most
#   unread      in packs of Redis only
#   new         not stored yet, in memory
#
# What is sent may be new as well: a message of QoS 1 for a connected client leaves at once (queue.py).
#
# The queue of a client that is not connected keeps nothing in memory that is stored. What was sent is unread again, and
# its session lets go of it: packet ids follow from positions.
#
# What is unread is read a page at a time: the next one when half of the last one has been sent. A client that has taken
# all that was ready before the next page is there gets pages of twice as many messages, up to MOST_READY of them. So
# only a client that is quicker than Redis costs more memory, and an outbox that is full, or a window, ends the reading.
#
# To walk all messages that wait, in order: `waiting_in_memory()` has those ahead of the packs that are unread and those
# behind. Between them are the packs of the list from the index `stored.first_unread()` on, `stored.unread` of them, in
# which `is_done()` tells what a client has already.
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.reasons import DropReason
from broker.session.expiry import NEVER_DUE
from broker.session.message import NEVER, Message
from broker.store.durable.marks import NOT_READ
from broker.store.durable.pack import (
    PACK,
    PACK_BYTES,
    PACKET_IDS,
    Pack,
    StoredMessage,
    StoredPack,
    add_head,
    encode_pack,
    packet_id_of,
    position_of,
)
from broker.store.durable.places import NONE_OVERTAKEN, NONE_READY, READY, QueuePlaces
from broker.store.durable.shared_bodies import RECEIVERS, WidePack
from broker.store.durable.sweep import PAUSE_PER_PAGE, Sweep, rest_of
from broker.store.durable.tokens import is_will

READY_BYTES: Final = 64 * 1024
MOST_READY: Final = 8 * READY  # and of a quick one, as a read takes as long as 100 messages


class QueueParts(QueuePlaces):
    """A base class, too: DurableQueue says what is done with the parts."""

    def _write_soon(self) -> None:
        """Have what is to be written written with the next transaction."""
        raise NotImplementedError

    def _remove_later(self, pack: StoredPack, now: float) -> None:
        """Have *pack* removed, with what else is to be written, within `store.hold`."""
        raise NotImplementedError

    def _read_page(self) -> None:
        """Have a page of what is unread read."""
        raise NotImplementedError

    def drop(
        self, packs: list[Pack], index: int, keep: Callable[[StoredMessage], bool], now: float, wall: float
    ) -> tuple[int, int]:
        """Drop the messages that wait for which *keep* is false, in memory and in *packs*; how many, and their bytes.

        *packs*, *index*: as for `_filter_unread()`.
        """
        count, size = self.count, self.waiting_bytes
        self._filter(keep, now)
        self._filter_unread(packs, index, keep, now, wall)
        return count - self.count, size - self.waiting_bytes

    def _filter(self, keep: Callable[[StoredMessage], bool], now: float) -> int:
        """Drop the messages that wait in memory for which *keep* is false; return how many."""
        ahead, behind = self.waiting_in_memory()
        kept = deque([stored for stored in ahead if keep(stored)])
        dropped = [stored for stored in behind if not keep(stored)]
        if len(kept) < len(ahead):
            dropped += [stored for stored in ahead if not keep(stored)]
            self._ready = kept or NONE_READY
        for stored in dropped:
            self._remove(stored, now)
        return len(dropped)

    def _filter_unread(
        self, packs: list[Pack], index: int, keep: Callable[[StoredMessage], bool], now: float, wall: float
    ) -> int:
        """Drop from *packs* what is done, and the messages that wait for which *keep* is false.

        They are unread, the first one has the *index*, and no others are being read. Returns how many packs are, or
        will be, no more in what is unread.
        """
        removed = 0
        for pack in packs:
            left = [stored for stored in pack.messages if self._stays(stored, keep)]
            if not left:
                removed += 1
                if self.stored.remove(index, pack):
                    continue
            elif len(left) < len(pack.messages):
                self.stored.replace(index, pack, rest_of(pack, left), now, wall)
            index += 1
        if removed or self.stored.changing or self._marks.completed:
            self._write_soon()
        return removed

    def _stays(self, stored: StoredMessage, keep: Callable[[StoredMessage], bool]) -> bool:
        """Whether the message, which is unread, stays in its pack."""
        position = stored.position
        if position in self._marks.stored:
            return True
        if position in self._marks.completed_unread:
            del self._marks.completed_unread[position]
            self._marks.completed.append(position)
        elif position not in self._done_unread:
            if keep(stored):
                return True
            self.count -= 1
            self.waiting_bytes -= stored.message.size
        self._done_unread.pop(position, None)
        return False

    def recount(self) -> None:
        """If all that waits is in memory, the queue knows how much it is, also if a worker before this one did not."""
        if self.stored.unread:
            return
        ahead, behind = self.waiting_in_memory()
        waiting = [each.message for each in [*ahead, *behind]]
        waiting += [message for position, message in self._writing.items() if position > self._ready_to]
        self.exact = True
        self.count = len(waiting)
        self.waiting_bytes = sum([message.size for message in waiting])

    def _is_low(self) -> bool:
        """Whether the next page is to be read: half of the last one has been sent, and there is one."""
        return len(self._ready) < self._page >> 1 and self.stored.unread > self.stored.coming_unread

    def _has_room(self) -> bool:
        """Whether one more message may be ready."""
        return len(self._ready) < READY and (not self._ready or self.size < READY_BYTES)

    def _ready_to_fill(self) -> deque[StoredMessage]:
        if self._ready is NONE_READY:
            self._ready = deque()
        return self._ready

    def _apply_limits(self, now: float) -> int:
        """Drop the oldest messages that wait while there are too many; return how many. Others may have to be read."""
        dropped = 0
        while self.count > self._most or self.waiting_bytes > self._most_bytes:
            if not self.exact and self.stored.unread:
                if self._sweep is None:  # it counts: there may be fewer
                    self._expiry.set(self, now + self._expiry.offset)
                break
            if not self._ready:
                self._refill()
                if not self._ready:
                    break
            oldest = self._ready.popleft()
            if self._holder is not None:
                self._holder.lost(oldest.message.topic)
            self._remove(oldest, now)
            dropped += 1
        return dropped

    def _drop_excess(self, now: float) -> None:
        if self.count > self._most or self.waiting_bytes > self._most_bytes:
            self.report(DropReason.QUEUE_FULL, self._apply_limits(now))

    def _id_is_free(self, position: int) -> bool:
        """Whether no message that is not done, or would not be after a crash, has the packet id of *position*."""
        if position <= PACKET_IDS:
            return True
        if self._marks.has(position - PACKET_IDS) or (self._overtaken and packet_id_of(position) in self._overtaken):
            return self._overtaken.get(packet_id_of(position)) == position
        for pack in self.stored.read:
            if pack.left:  # what is done of it comes again after a crash, unless all of it is
                if position <= pack.last:
                    break
                return position - pack.first < PACKET_IDS
        oldest = next(iter(self.stored.pack_of or self._writing or self._new), position)
        return position - oldest < PACKET_IDS

    def _position_of(self, packet_id: int) -> int:
        """The position of the message that the client was sent under *packet_id*."""
        if self._overtaken and packet_id in self._overtaken:
            return self._overtaken[packet_id]
        return position_of(packet_id, self._sent_to)

    def _take_position(self, packet_id: int) -> int:
        """The same, if the message is done: the packet id is that of the next one."""
        if self._overtaken and packet_id in self._overtaken:
            return self._overtaken.pop(packet_id)
        return position_of(packet_id, self._sent_to)

    def _sends(self, position: int) -> None:
        """The message at *position* is sent."""
        sent_to = self._sent_to
        if position == sent_to + 1:
            self._sent_to = position
        elif position > sent_to:
            self._sent_to = position
            if position > PACKET_IDS:  # what is between was dropped, perhaps as it waited for the packet id of another
                for each in (*self.stored.pack_of, *self._new, *self._writing, *self._marks.open()):
                    if each <= sent_to:
                        self._look_whether_overtaken(each)
        else:
            self._look_whether_overtaken(position)

    def _restore_marks(self, stored: list[int], completed: list[int]) -> None:
        self._marks.restore(stored, completed)
        for position in self._marks.stored:
            self._look_whether_overtaken(position)

    def _look_whether_overtaken(self, position: int) -> None:
        packet_id = packet_id_of(position)
        if position_of(packet_id, self._sent_to) != position:
            if self._overtaken is NONE_OVERTAKEN:
                self._overtaken = {}
            self._overtaken[packet_id] = position

    def under_way(self) -> int:
        """How many messages are in memory or were sent, and are not done."""
        return len(self.stored.pack_of) + len(self._new) + len(self._marks.stored)

    def _is_being_stored(self, position: int, message: Message) -> bool:
        """Whether *message* has to be stored before it is sent, and is not yet."""
        if message.qos < 2 and not is_will(message):
            return False
        return position > self._stored_to

    def _add(self, message: Message, now: float) -> None:
        """Give *message* its position."""
        position = self._last = self._last + 1
        self._new[position] = message
        self._due_to = position
        expiry = self._expiry
        end = message.end_by(now + expiry.ttl) + expiry.offset
        if end < self.due:
            expiry.set(self, end)
        self.count += 1
        self.waiting_bytes += message.size
        if position == self._ready_to + 1 and not self._resting and self._has_room():
            self._ready_to_fill().append(StoredMessage(position, message))
            self._ready_to = position
        self._write_soon()

    def _has_ended(self, stored: StoredMessage, now: float) -> bool:
        may_be_at_client = stored.message.qos == 2 and stored.position <= self._restored_to
        return stored.message.expired(now) and not may_be_at_client

    def _swept_over(self, sweep: Sweep, now: float, stored: StoredMessage) -> bool:
        """Whether the message, which is unread and not done, has not ended."""
        if self._has_ended(stored, now):
            sweep.end(stored.message)
            return False
        sweep.keep(stored.message, now, self._expiry.offset)
        return True

    def _complete(self, sweep: Sweep, wall: float) -> None:
        """The sweep has seen everything, or is given up: the client has gone, or an operator removes messages."""
        earliest = wall
        if not sweep.left:
            excess, excess_bytes = sweep.excess()
            self.count -= excess
            self.waiting_bytes -= excess_bytes
            self.exact = True
            self._done_unread = {}  # what is left of it was between the messages of packs
            earliest = sweep.earliest
        self._expiry.set(self, max(earliest, wall + PAUSE_PER_PAGE * sweep.pages))
        self._end_sweep()

    def _end_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep = None
            self._reading = False
            self._expiry.sweeps -= 1

    def _not_read(self, wall: float) -> None:
        """What has arrived is that of another worker, perhaps. It is read again if the session stays."""
        self._reading = False
        if self._sweep is not None:
            self._complete(self._sweep, wall)

    def report(self, reason: DropReason, count: int) -> None:
        """Tell the session that *count* messages were dropped, and why."""
        if self._holder is not None and count:
            self._holder.queue_dropped(reason, count)

    def _remove(self, stored: StoredMessage, now: float) -> None:
        """Drop a message that waited in memory."""
        size = stored.message.size
        self.count -= 1
        self.waiting_bytes -= size
        self.size -= size
        self._budget.give_back(stored.message)
        self._done(stored.position, now)

    def _done(self, position: int, now: float) -> None:
        message = self._new.get(position)
        if message is not None:
            del self._new[position]
            message.settle(now)
            return  # it never was stored
        message = self._writing.get(position)
        if message is not None:
            del self._writing[position]
            message.settle(now)
        pack_of = self.stored.pack_of
        pack = pack_of.get(position)
        if pack is None:
            return
        del pack_of[position]
        pack.left -= 1
        if pack.left == 0:
            self._remove_done(now)

    def _remove_done(self, now: float) -> None:
        """Have the packs at the head of the list removed whose messages are all done."""
        while (pack := self.stored.take_done()) is not None:
            self._marks.completed += pack.completed
            self._remove_later(pack, now)

    def _marked(self, now: float) -> None:
        """The marks are stored that were asked for: of messages that were stored, or they would not have been sent."""
        marked, pack_of = self._marks.stored, self.stored.pack_of
        released = self._marks.added()
        ends = False
        for position in released:
            pack = pack_of.get(position)
            marked[position] = NOT_READ if pack is None else pack
            if pack is not None:
                del pack_of[position]
                pack.left -= 1
                ends = ends or not pack.left
        if ends:
            self._remove_done(now)
        holder = self._holder
        if holder is not None:
            for position in released:
                holder.released(packet_id_of(position))

    def _take(self, pack: Pack, now: float, wall: float) -> int:
        """Have the messages of *pack* ready that are not done; return how many the client may not have."""
        first, last, ends = pack.messages[0].position, pack.messages[-1].position, pack.messages[0].message.ends
        for stored in pack.messages:
            ends = min(ends, stored.message.ends)
        stored_pack = StoredPack(first, last, len(pack.messages), ends - now + wall, pack.groups())
        self._ready_to = last
        marks = self._marks
        if self._keep is None and not (marks.stored or marks.completed_unread or self._done_unread):
            self.stored.add_read(stored_pack, pack.messages)
            self._ready_to_fill().extend(pack.messages)
            for stored in pack.messages:
                self.size += stored.message.size
                self._budget.take(stored.message)
            return 0
        self.stored.add_read(stored_pack, [])
        withheld = 0
        for stored in pack.messages:
            position = stored.position
            counted = True  # in `count` so far
            if marks.read(position, stored_pack) or position in self._done_unread:
                counted = not self.exact and position not in self._done_unread
            elif self._keep is not None and not self._keep(stored.message):
                withheld += 1
            else:
                self._ready_to_fill().append(stored)
                self.stored.pack_of[position] = stored_pack
                self.size += stored.message.size
                self._budget.take(stored.message)
                continue
            stored_pack.left -= 1
            self._done_unread.pop(position, None)
            if counted:
                self.count -= 1
                self.waiting_bytes -= stored.message.size
        return withheld

    def _unload(self) -> None:
        """Have the memory forget what is stored, if all is: it is unread again."""
        busy = self._new or self._writing or self._under_way or self._marks.asked or self._reading
        busy = busy or self._removing or self.stored.changing or self.purging
        if busy or self.ended or self.damaged:
            return
        self._unloading = False
        packs = self.stored.read
        if not packs:
            return
        self._done_unread.update(dict.fromkeys(self.stored.done_positions()))
        for pack in packs:
            self._marks.completed_unread.update(dict.fromkeys(pack.completed))
            self._expiry.set(self, pack.ends)
        self._overdue = False
        sent = len(self.stored.pack_of) - len(self._ready)
        for stored in self._ready:
            self.size -= stored.message.size
            self._budget.give_back(stored.message)
        if self._holder is not None:
            self.waiting_bytes += self._holder.unloaded()
        self.count += sent
        self._ready_to = packs[0].first - 1
        self._restored_to = max(self._restored_to, self._sent_to)
        self.stored.forget_read()
        self._ready = NONE_READY

    def tidy(self) -> None:
        """Nobody is connected, and what is stored is to say everything: forget what was read, and have removed what is
        done in packs that have other messages. That takes a sweep.
        """
        if self.stored.read:
            self._unload()
        elif (self._done_unread or self._marks.completed_unread) and self._sweep is None:
            self._expiry.set(self, 0.0)

    def _refill(self) -> None:
        """Have messages ready, if few are and some wait elsewhere: at once if they are in memory."""
        if self._ready and not self._is_low():
            return
        if self._reading:
            self._starved = self._starved or not self._ready
            return
        if self.purging or self.damaged or self._given or self._ready_to == self._last:
            return
        if not self.stored.unread:
            for position, message in self._new.items():
                if position > self._ready_to:
                    if not self._has_room():
                        break
                    self._ready_to_fill().append(StoredMessage(position, message))
                    self._ready_to = position
        else:
            self._reading = True
            self._read_page()

    def page(self) -> tuple[int, int]:
        """Which packs of the list are to be read: (index of the first, how many); (0, 0): none now.

        `DurableQueue.arrived()` follows, when the server has answered.
        """
        sweep, unread = self._sweep, self.stored.unread
        if sweep is not None:
            sweep.waits = self._removing or self.stored.changing
            if sweep.waits:
                return 0, 0
            return self.stored.first_unread() + sweep.index, min(sweep.left, self._page_of(unread, READY))
        there = unread - self.stored.coming_unread
        if self._removing or self.ended or not there or self.stored.changing:
            self._reading = False  # `removed()` or `committed()` has them read
            return 0, 0
        if self._budget.used > self._budget.low:
            self._page = READY
        elif self._starved:
            self._page = min(2 * self._page, MOST_READY)
        self._starved = False
        return self.stored.first_unread(), min(there, self._page_of(unread, self._page))

    def _page_of(self, unread: int, page: int) -> int:
        """How many of *unread* packs are a page of *page* messages, by what they have on average."""
        size = page // READY * READY_BYTES
        by_count, by_size = page * unread // max(1, self.count), size * unread // max(1, self.waiting_bytes)
        return max(1, min(unread, by_count, by_size))

    def _pack_new(self, due: int, now: float, wall: float) -> list[bytes]:
        """The packs of what is new up to the position *due*, which is about to be written."""
        new, ready_to = self._new, self._ready_to
        first = next(iter(new), 0)
        if first > ready_to and self._last <= due and self._last - first < len(new) and new[first].is_wide(RECEIVERS):
            wide = self._bodies.wide(tuple(new.values()), now, wall)
            if wide is not None:
                self._writing, self._new = new, {}
                self._written_to = self._last
                return [self._pack_wide(first, wide, now, wall)]
        packs: list[bytes] = []
        messages: list[StoredMessage] = []
        size = 0
        for position, message in new.items():
            if position > due:
                break
            apart = messages and (messages[-1].position <= ready_to) != (position <= ready_to)
            if apart or len(messages) == PACK or size >= PACK_BYTES:
                packs.append(self._pack(messages, now, wall))
                messages, size = [], 0
            messages.append(StoredMessage(position, message))
            size += message.size
        if messages:
            self._written_to = messages[-1].position
            packs.append(self._pack(messages, now, wall))
        for position in self._writing:
            del new[position]
        return packs

    def _pack_wide(self, first: int, wide: WidePack, now: float, wall: float) -> bytes:
        """The pack of *wide*, whose first message is at the position *first*; as for `_pack()`."""
        wide.count()
        refers = len(wide.writer) > 0
        stored_at, end, due = self._times(wide.earliest, wide.latest, now, wall)
        listed = self.stored
        listed.refers = refers or (listed.refers and (listed.unread > 0 or len(listed.read) > 0))
        before = listed.stored_bytes
        listed.unread += 1
        listed.coming_unread += 1
        listed.comes(wide.groups)
        listed.stored_bytes += wide.size
        return add_head(wide.messages, first, before, stored_at, end, due, wide.writer, listed.refers)

    def _times(self, earliest: float, latest: float, now: float, wall: float) -> tuple[int, int, int]:
        """When a pack is stored, ends and is due, whose messages end from *earliest* to *latest*."""
        stored_at, end, ends = int(wall), int(latest - now + wall) + 1, earliest - now + wall
        if ends < self.due:
            self._expiry.set(self, ends)
        due = stored_at if self._overdue or self._sweep is not None else min(end, int(self.due))
        return stored_at, end, due

    def _pack(self, messages: list[StoredMessage], now: float, wall: float) -> bytes:
        """The pack of *messages*, which are new, and about to be written."""
        latest, earliest, size = 0.0, NEVER_DUE, 0
        writing, bodies = self._writing, self._bodies
        refers = False
        for stored in messages:
            message = stored.message
            ends = message.ends
            if ends == NEVER:  # it was sent at once
                ends = message.end_by(now + self._expiry.ttl)
            if ends > latest:
                latest = ends
            if ends < earliest:
                earliest = ends
            size += message.size
            writing[stored.position] = message
            stored.body = bodies.refer(message)
            refers = refers or stored.body is not None
        stored_at, end, due = self._times(earliest, latest, now, wall)
        listed = self.stored
        listed.refers = refers or (listed.refers and (listed.unread > 0 or len(listed.read) > 0))
        writer = bodies.writer if refers else b""
        data = encode_pack(Pack(listed.stored_bytes, stored_at, end, due, messages, writer, listed.refers), now, wall)
        groups = bodies.refers(messages) if refers else None
        if messages[0].position <= self._ready_to:
            first, last, ends = messages[0].position, messages[-1].position, earliest - now + wall
            stored_pack = StoredPack(first, last, len(messages), ends, groups)
            stored_pack.unanswered_at = now if first <= self._sent_to else 0.0
            listed.add_read(stored_pack, messages)
        else:
            listed.unread += 1
            listed.coming_unread += 1
        listed.comes(groups)
        listed.stored_bytes += size
        return data
