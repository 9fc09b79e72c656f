# The queue of an APPLICATION session: its messages wait in a log of its own, and a few of them in Redis.
#
#   offered   to be appended to the log at the end of the slice, in packs (log_pack.py)
#   appended  under way; their publishers are answered when the log has them, whether the client is connected or not
#   log       what is not passed on; read while the client is connected (log_feed.py)
#   passed    on to the queue of a durable session, which this one is beside that (queue.py): at most `logs.most` at a
#             time are not done. All that concerns the client is there: packet ids, PUBREC, what is sent again
#
# How far the log was passed on is a field of the session's record. It is stored in the transaction in which the
# messages are that were passed on: so each message is passed on once, whatever ends in between. And a message is sent
# when it is stored, of QoS 1 as well: so it has the same packet id after a crash. The road not taken is to send QoS 1
# at once, as other durable queues do: what is sent again after a crash would come under other packet ids, and not as a
# duplicate. Rejected, too: to store no messages here but their places in the log, which give packet ids as well. Each
# part of a durable queue, and each that looks into one, would then be there twice; Redis costs a message 0.5 us.
#
# A QoS 2 publish that is sent again after a crash may be in the log twice, from two workers. It is passed on once, as
# the queue remembers the tokens that it has taken (tokens.py): in the order of the log, not of what is offered.
#
# A session has an era (log_pack.py), and begins at the end of the log as it is then. Nothing is appended before both
# are stored: a worker that follows, and draws another era, would take what is there for that of a former session. When
# the session ends, its topic is deleted (application_topics.py).
#
# A client may change its kind (protocol/kind_changes.py). What waits for a DEVICE stays where it is then, ahead of the
# log. Or the queue parts from its log, once all of it was passed on. Nothing is appended while the last packs come back
# from the log, some milliseconds: what is offered meanwhile is the first that waits in Redis alone.
import os
from collections.abc import Callable
from functools import partial
from math import inf
from struct import Struct
from typing import Final

from hiredis import ReplyError

from broker.reasons import DropReason
from broker.session.expiry import ExpirySchedule
from broker.session.message import Message
from broker.session.queue import MessageBudget
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.held_leases import HeldLeases
from broker.store.durable.leases import Lease
from broker.store.durable.log_feed import STEPS, LogFeed
from broker.store.durable.log_pack import ERA, PACK, PACK_BYTES, LogMessage, encode_log_pack
from broker.store.durable.log_topics import topic_of
from broker.store.durable.pack import Pack
from broker.store.durable.queue import DurableQueue, QueueReader
from broker.store.durable.queue_logs import Appended, QueueLogs
from broker.store.durable.removals import Words
from broker.store.durable.stored_session import LOG
from broker.store.durable.timed_queue import TimedQueue
from broker.store.durable.tokens import TakenNumbers
from broker.store.logs.records import Position
from broker.store.logs.topics import LogError
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys

FORM: Final = 1
SAVED: Final = Struct(">BI8s")  # FORM, messages of the record that were passed on, era; then the position, if any
UNREAD: Final = -1  # an offset
PASSED_BYTES: Final = 1024 * 1024  # of messages that wait in the queue; one more message may exceed it
NEAR: Final = 64  # records before the end of the log from which on nothing is appended, if the log is to be left
CLOSED: Final = 1.0  # seconds of that at most; then the log is used on, and it is tried again PAUSE seconds later
PAUSE: Final = 30.0
OPEN: Final = -1.0  # a time


class ApplicationQueue(TimedQueue):
    def __init__(
        self,
        keys: SessionKeys,
        client: bytes,
        budget: MessageBudget,
        commit: GroupCommit,
        reader: QueueReader,
        expiry: ExpirySchedule,
        logs: QueueLogs,
    ) -> None:
        super().__init__(keys, client, budget, commit, reader, expiry)
        self.topic: Final = topic_of(client)
        self.inherited = logs.begins(self.topic)  # the identity of a topic that it may use, of a session just ended
        self._logs = logs
        self._disowned = False  # another worker has the session, and its topic
        self._leaves_log = False  # the session has ended, and its topic is to be deleted
        self._era = b""  # none yet
        self._position: Position | None = None  # all records before it were passed on; None: it has none yet
        self._passed = 0  # messages of the record there that were, without a feed
        self._end = UNREAD  # the offset behind the last record that this worker knows of
        self._opened = False  # era and position are stored: there may be appended
        self._opening = False  # they will be, when the topic is there
        self._offered: list[Message] = []
        self._offered_bytes = 0
        self._appending = 0  # packs under way
        self._log_due = False  # era and position are to be stored
        self._log_under_way = False
        self._feed: LogFeed | None = None  # while the client is connected
        self._feeding = False
        self.refusals_logged = -inf  # when it was logged last that the log has refused messages
        self._late_source = -1  # that appended what was passed on last, if that was late; -1: it was not
        self.leases: Final = HeldLeases()
        self._former: DurableQueue | None = None  # see `follow()`
        self.parting = False  # its client is a DEVICE now, and the log is left once all of it was passed on
        self.parted = False  # the log was left: this is a queue as others are
        self._asked_for_end = self._end_found = False  # `log_end()` is that of the log, as it is to be left
        self._closed_at = OPEN  # when appending ended, for the last packs to be read
        self._part_at = -inf  # not before that time

    def restore_log(self, saved: bytes) -> None:
        self.inherited = b""
        self._disowned = False
        if self._taken is not None:
            self._taken.nothing_late()  # packs say what is late
        if saved:
            if len(saved) < SAVED.size:
                raise ValueError("what is stored of a log is too short")
            form, self._passed, self._era = SAVED.unpack_from(saved)
            if form != FORM:
                raise ValueError(f"what is stored of a log has form {form}")
            if len(saved) > SAVED.size:
                self._position = Position.decode(saved[SAVED.size :])
                self._opened = True
        if self._offered:
            self._send_soon()

    # The port.

    def limit(self, most_bytes: int) -> None:
        if self.parted:  # else retention limits the log, and `logs.most` the rest
            super().limit(most_bytes)

    def wake(self) -> None:
        super().wake()
        if not (self._opened or self.parted):
            self._open()
        self._read_log()
        self.leases.client_changed()

    def rest(self) -> None:
        self._stop_reading()
        self._open_again()
        if self.leases.release_all():
            self._commit.soon(self)
        super().rest()

    def append(self, message: Message, most: int, now: float) -> int:
        if self.parted:
            return super().append(message, most, now)
        completion = message.hold()
        completion.logged = True
        if not self._opened:  # the gate of the log does not know of it yet
            completion.needs_long(log=True)
        self._offered.append(message)
        self._offered_bytes += message.size
        self.size += message.size
        self._budget.take(message)
        if len(self._offered) == 1:
            self._send_soon()
        return 0

    def keep(self, message: Message, now: float) -> bool:
        return self.parted and super().keep(message, now)  # nothing overtakes a log

    def done(self, packet_id: int, message: Message, now: float) -> None:
        super().done(packet_id, message, now)
        if self._feed is not None or self.leases.all:
            self.go_on(now)

    # Appending.

    def _send_soon(self) -> None:
        if self._opened:
            self._logs.soon(self)
        else:
            self._open()

    def _open(self) -> None:
        """Begin an era, and find the end of the log; not before it is known what is stored."""
        if self.moves() or self._opening or self._position is not None:
            return
        if not self._era:
            self._era = os.urandom(ERA)
            self._save()
        self._opening = True
        self._logs.open(self)

    def not_opened(self) -> None:
        """The session is not here any more, or cannot be stored."""
        self._opening = False

    def opened(self, offset: int, log: bytes) -> None:
        """The log is there, has the identity *log*, and its next record will have *offset*."""
        self._opening = False
        self.log_reaches(offset)
        if self._position is None and not (self.moves() or self.damaged):
            self._position = Position(offset, log)
            self._save()

    def _save(self) -> None:
        self._log_due = True
        self._commit.soon(self)

    def hand_over(self, now: float, wall: float) -> None:
        """Append what was offered."""
        if not self._opened or self.moves() or not self._offered or self._closed_at != OPEN:
            return
        offered, self._offered = self._offered, []
        self._offered_bytes = 0
        self._appending += 1  # until all are: the log may refuse one at once
        messages: list[Message] = []
        size = 0
        for message in offered:
            self.size -= message.size
            self._budget.give_back(message)
            if messages and (len(messages) == PACK or size + message.size > PACK_BYTES):
                self._append_pack(messages, now, wall)
                messages, size = [], 0
            messages.append(message)
            size += message.size
        self._append_pack(messages, now, wall)
        self.appended(now)

    def _append_pack(self, messages: list[Message], now: float, wall: float) -> None:
        body = encode_log_pack(messages, self._era, self._late, now, wall)
        completions = [each for message in messages if (each := message.as_published().completion) is not None]
        self._appending += 1
        self._logs.append(self, body, Appended(self, completions), now)

    def appended(self, now: float) -> None:
        """What was counted as under way is not any more."""
        self._appending -= 1
        self._give_if_stored()
        if self._leaves_log and self.nothing_under_way():
            self._logs.settled(self)
        if self.parting:
            self._logs.soon(self)

    def nothing_under_way(self) -> bool:
        """Whether nothing of it is on its way to the log."""
        return not (self._appending or self._offered)

    def refused(self, count: int, error: LogError, now: float) -> None:
        """The log will never have a pack of *count* messages."""
        if self.ended:  # its topic may be deleted
            return
        self._logs.refused(self, count, error, now)
        self.report(DropReason.LOG_REFUSED, count)

    # Reading.

    def _read_log(self) -> None:
        """Read what was not passed on, if the client is connected."""
        position = self._position
        if self._resting or not self._opened or position is None or self._feed is not None or self.moves():
            return
        feed = self._feed = LogFeed(self._era, position, self._passed, self.go_on)
        feed.reading = self._logs.read(self, position, feed)

    def _stop_reading(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            self._passed = feed.passed
            self._end = max(self._end, feed.end)
            feed.stop()
            self._logs.rests(self)

    def log_trouble(self) -> str:
        """Why the log cannot be read; "": nothing is known to be wrong."""
        return "" if self._feed is None else self._feed.trouble

    def go_on(self, now: float) -> None:
        """Pass on what was read, as far as there are places."""
        if self._feeding or (self._feed is None and not self.leases.all) or not self._has_place():
            return
        if self.stored.unread or self._give is not None or self.damaged or self.purging:
            return  # what waits in Redis goes first
        turns = self.leases.turns(self._feed)
        if not turns:
            return
        self._feeding = True
        more = False
        for feed, lease in turns:
            more = self._pass_on(feed, lease, STEPS // len(turns), now, self._logs.wall()) or more
        self._feeding = False
        if more:
            self._logs.soon(self)
        self._commit.later(self, now)

    def _pass_on(self, feed: LogFeed, lease: Lease | None, most: int, now: float, wall: float) -> bool:
        """Pass on what *feed* has, of *lease* or of the own log, in *most* steps; whether there is more."""
        expired = withheld = 0
        more = True
        for _ in range(most):
            more = feed.has_more() and self._has_place()
            if not more:
                break
            found = feed.step(now, wall)
            if found is None or (self._repeats(found) if lease is None else not lease.is_new(found)):
                continue
            message = found.message if lease is None else lease.for_member(found.message)
            if found.message.expired(now):
                expired += 1
                if self._holder is not None:
                    self._holder.lost(found.message.topic)
            elif message is None or (self._keep is not None and not self._keep(message)):
                withheld += 1
            else:
                self.size += message.size
                self._budget.take(message)
                self._add(message, now)
        if lease is None:
            self._log_due = True
        else:
            lease.due = True
        deleted, damages = feed.take_losses()
        self.report(DropReason.EXPIRED, expired)
        self.report(DropReason.MAY_NOT_READ, withheld)
        self.report(DropReason.RETENTION_EXPIRED, deleted)
        self.report(DropReason.LOG_DAMAGED, damages)
        return more

    def _has_place(self) -> bool:
        """Whether one more message may be passed on."""
        return self.under_way() < self._logs.most and self.size - self._offered_bytes < PASSED_BYTES

    def _repeats(self, found: LogMessage) -> bool:
        """Whether *found* is a publish that was passed on before."""
        if not found.token:
            return False
        taken = self._taken
        if taken is None:
            taken = self._taken = TakenNumbers({}, False, [])
        if found.in_group:
            return not taken.take_in_group(found.token)
        if not found.late:
            if self._late_source != -1:
                self._late_source = -1
                taken.nothing_late()
        elif found.source != self._late_source:
            self._late_source = found.source
            taken.expect_late()
        return not taken.take(found.token)

    # Partitions of shared logs.

    def hold(self, lease: Lease, now: float) -> None:
        """Pass on what the feed of *lease* reads, from now on. To be called while `is_resting()` is false."""
        self.leases.add(lease)
        self.go_on(now)

    def release_lease(self, lease: Lease) -> None:
        """End *lease*, once it is stored how far its partition was read."""
        self.leases.release(lease)
        self._commit.soon(self)

    def restore_leases(self, fields: dict[bytes, bytes], damaged: bool = False) -> None:
        self.leases.restore(fields, damaged)
        self._commit.soon(self)

    def record_key(self) -> bytes:
        """The key of the record of the session."""
        return self._keys.records + self.client

    # For operators.

    def log_reaches(self, offset: int) -> None:
        """The next record of the log will have *offset*."""
        self._end = max(self._end, offset) if self.parting else offset  # an answer may be older than what was appended

    def log_end(self) -> int:
        """The offset behind the last record of the log that this worker knows of; UNREAD: it knows none."""
        return self._end if self._feed is None else max(self._end, self._feed.end)

    def log_position(self) -> int:
        """The offset of the first record that was not passed on as a whole; UNREAD: there is no log yet."""
        return UNREAD if self._position is None else self._position.offset

    def may_go_to(self) -> bool:
        """Whether `go_to()` may be called: the log is there, the client is not, and the session stays."""
        return self._opened and self._feed is None and not (self.moves() or self.damaged)

    def go_to(self, offset: int) -> None:
        """Go on reading at *offset*, if `may_go_to()`; what was passed on stays.

        From there on, what was passed on before comes again, of QoS 2 as well.
        """
        position = self._position
        assert position is not None
        if offset <= position.offset:  # what was appended twice is known from the records between the two
            self._position = Position(offset, position.log)
            if self._taken is not None:
                self._taken.forget()
        else:
            position.offset = offset
        self._passed = 0
        self._save()

    # The client changes its kind.

    def follow(self, former: DurableQueue, then: Callable[[], None]) -> None:
        """Go on with what *former* has, the queue of the session so far, once all of it is stored; then call *then*.

        No client is connected. Nobody is to use *former* any more.
        """
        self._former = former
        self.expect()
        former.give(partial(self._former_is_stored, then))

    def _former_is_stored(self, then: Callable[[], None]) -> None:
        former, self._former = self._former, None
        if former is None:  # the session has ended
            return
        self._early = None
        self.take_places(former)
        if self._taken is not None:
            self._taken.nothing_late()  # packs say what is late
        if self._offered:
            self._send_soon()
        self._give_if_stored()
        then()

    def part(self, parting: bool) -> None:
        """Leave the log once all of it was passed on, if *parting*: `QueueLogs` asks `may_part()`. Else keep it."""
        self.parting = parting
        self._open_again()
        self._logs.soon(self)

    def asks_for_end(self, again: bool) -> bool:
        """Whether the end of the log is to be looked for, to leave it, perhaps *again*; `found_end()` follows."""
        if not self.parting or self._feed is None or self._end_found or (self._asked_for_end and not again):
            return False
        self._asked_for_end = True
        return True

    def found_end(self) -> None:
        """`log_reaches()` was called with the end of the log."""
        self._end_found = True
        self._logs.soon(self)

    def may_part(self, now: float) -> bool:
        """Whether all of the log was passed on, and that is stored. If little is left, nothing more is appended."""
        feed = self._feed
        if not self.parting or feed is None or not self._end_found or self.moves() or self.damaged:
            return False
        left = self.log_end() - feed.position.offset
        if self._closed_at == OPEN:
            if left > NEAR or now < self._part_at or not self._has_place():
                return False
            self._closed_at = now
        elif now - self._closed_at > CLOSED:
            self._part_at = now + PAUSE
            self._open_again()
            return False
        if self._log_due:
            self._commit.soon(self)
        if left > 0 or self._appending or self._log_due or self._log_under_way:
            return False
        return not (feed.has_more() or self.leases.turns(None))

    def _open_again(self) -> None:
        self._asked_for_end = self._end_found = False
        if self._closed_at != OPEN:
            self._closed_at = OPEN
            if self._offered:
                self._send_soon()

    def part_now(self, now: float) -> None:
        """Leave the log, if `may_part()`: it is deleted, and what waits from now on is in Redis only."""
        position = self._position
        self._stop_reading()
        self.parting, self.parted = False, True
        self._opened, self._position, self._passed = False, None, 0
        self._closed_at = OPEN
        self.end_timing()
        if position is not None and position.log:
            self._logs.ended(self, position.log)
        offered, self._offered = self._offered, []
        self._offered_bytes = 0
        for message in offered:  # they count in the budget
            self._append(message, now)

    # What differs from other durable queues.

    def _is_being_stored(self, position: int, message: Message) -> bool:
        if self.parted:
            return super()._is_being_stored(position, message)
        return position not in self.stored.pack_of or position in self._writing

    def _has_room(self) -> bool:
        return not self.parted or super()._has_room()  # else `_has_place()` was asked

    def _is_blank(self) -> bool:
        return self.parted and not self.leases.all and super()._is_blank()  # else it knows what is not passed on

    def _go_on(self, now: float) -> None:
        super()._go_on(now)
        self.go_on(now)

    def bodies_arrived(self, read: list[Pack], why: str, now: float, wall: float) -> None:
        super().bodies_arrived(read, why, now, wall)
        self.go_on(now)

    def end(self, sent: int, sent_bytes: int) -> int:
        log = self.inherited if self._position is None else self._position.log
        gone = self.moves() or self._give is not None or self._disowned
        if log and not (gone or self.damaged):  # what is damaged is to be looked at, with its log
            self._leaves_log = True
            self._logs.ended(self, log)
        return super().end(sent, sent_bytes)

    def disown(self) -> list[Message]:
        self._disowned = True
        messages = super().disown()
        former, self._former = self._former, None
        if former is not None:
            messages += former.disown()
            former.give_stored()  # it writes nothing any more
            former.left = True
        return messages

    def clear(self) -> int:
        former, self._former = self._former, None
        return super().clear() + (0 if former is None else former.clear())

    def _forget(self) -> list[Message]:
        self._stop_reading()
        for lease in self.leases.all.values():
            lease.stop()
        offered, self._offered = self._offered, []
        self._offered_bytes = 0
        for message in offered:
            self.size -= message.size
            self._budget.give_back(message)
        return super()._forget() + offered

    def _give_if_stored(self) -> None:
        if self._give is not None and not self.damaged and self._keeps_something():
            return
        super()._give_if_stored()

    def stay(self) -> None:
        super().stay()
        if self._offered:
            self._send_soon()

    def all_stored(self) -> bool:
        return not self._keeps_something() and super().all_stored()

    def _keeps_something(self) -> bool:
        waits = self._offered or self._appending or self._log_due or self._log_under_way
        return bool(waits or self.leases.all or self._former is not None)

    # What GroupCommit asks for.

    def removes(self, now: float) -> list[Words]:
        ends = (self.ended or self.leaves) and not self._given
        removals = super().removes(now)
        if not self.leases.all or (self._given and not ends):
            return removals
        released = self.leases.removes(self._logs.lease_keys, self.record_key(), self.client, ends)
        if released and not self.ended:
            self._removing = True
        return [*released, *removals]

    def removed(self, errors: list[ReplyError], now: float) -> None:
        for lease in self.leases.removed():
            lease.ended(now)
        super().removed(errors, now)

    def collect(self, now: float, wall: float) -> list[bytes]:
        writes = super().collect(now, wall)
        if self.ended or self._given:
            return writes
        fields = self.leases.fields()
        if self._log_due:
            self._log_due = False
            self._log_under_way = True
            fields += [LOG, self._saved()]
        if fields:
            self._under_way = True
            writes = [*writes, packed("HSET", self._keys.records + self.client, *fields)]
        return writes

    def _saved(self) -> bytes:
        passed = self._passed if self._feed is None else self._feed.passed
        start = SAVED.pack(FORM, passed, self._era)
        return start if self._position is None else start + self._position.encode()

    def committed(self, errors: list[ReplyError], now: float) -> None:
        begins = self._log_under_way and not self._log_due and self._position is not None and not self._opened
        self._log_under_way = False
        if self.parting:
            self._logs.soon(self)
        self.leases.stored()
        if self.leases.waits_to_release():
            self._commit.soon(self)
        super().committed(errors, now)
        if begins and not (self.ended or self.damaged):
            self._opened = True
            self._logs.soon(self)
            self._read_log()
