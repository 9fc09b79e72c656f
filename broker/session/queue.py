# The queue of a session: messages that wait for a place in its window, the oldest first.
#
# MessageQueue is what a session needs of its queue, and MemoryQueue keeps the messages in the memory of the worker. The
# port leaves room for a queue that stores its messages elsewhere, as packs in a list:
# - `append()` may call `message.hold()`: the publish is then acknowledged when the queue settles the Completion,
#   because the message is stored or its receiver is done with it, whichever is first.
# - `pop()` gives None although messages wait, while their page is being read; the queue calls `Session.pump()` when the
#   page is there. Within `append()` the session must not be called.
# - A message that was popped stays stored until `done()`: its client has acknowledged it, or it will never be sent.
# - Such a queue is there while its client is connected, and as long as there is something to remember (`permanent`). A
#   MemoryQueue is made for the first message that waits and forgotten with the last: most sessions of a large fleet are
#   idle, and an empty queue would be most of their cost.
# A session without a queue delivers at once if its window has room; that path never looks at a queue.
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

from broker.reasons import DropReason
from broker.session.expiry import WEEK, Expiring, ExpirySchedule
from broker.session.message import Message
from broker.session.queue_pages import BYTES, MESSAGES, UNKNOWN, PurgedPage, QueuePage, WaitingMessage

UNLIMITED: Final = 1 << 60  # messages
# Bytes beside those that Message.size counts, as tests/session/test_memory.py measures them:
MESSAGE: Final = 273  # of a message: the object and the bytes objects of its parts
QUEUED: Final = 8  # of its place in a queue
INFLIGHT: Final = 75  # of its place in a window: an entry of a dict and its packet id
FIRST_INFLIGHT: Final = INFLIGHT + MESSAGE  # of a message that no other session holds, in a window
WINDOW_SHARE: Final = 4  # one session may have a 16th of what is free in flight,
QUEUE_SHARE: Final = 2  # and a fourth of it waiting; both as powers of 2
FINENESS: Final = 5  # the shares follow when a 32nd of what is free was taken
RETRIED_AT_ONCE: Final = 1_000  # sessions
EXPIRY_PAUSE: Final = 0.0001  # seconds for each message that waits, until all are looked at again: 0.05 % of a worker


class Holder:
    """Who holds messages: a session."""

    def pump(self, now: float) -> None:
        """Go on, as far as the limits allow."""
        raise NotImplementedError

    def queue_dropped(self, reason: DropReason, count: int) -> None:
        """The queue has dropped *count* messages, beside those that `append()` and `remove_unless()` returned.

        None: it is not `permanent` any more.
        """
        raise NotImplementedError

    def lost(self, topic: bytes) -> None:
        """The queue drops a message of *topic*, which is counted separately. The topics of some are not reported."""

    def unloaded(self) -> int:
        """The queue has stored what is in flight: let go of it. Returns the bytes of those messages."""
        raise NotImplementedError

    def released(self, packet_id: int) -> None:
        """The queue has stored what `release()` was called for."""
        raise NotImplementedError


class MessageBudget:
    """The memory of the messages that all sessions of a worker hold, in queues and in windows.

    It is an account of the memory ledger. A message counts once, however many sessions hold it; each place in a queue
    or a window counts.

    What one session may hold is a fraction of what is free (dynamic thresholds: Choudhury and Hahne, "Dynamic Queue
    Length Thresholds for Shared-Memory Packet Switches", 1998). So a few sessions get most of the memory if nobody else
    wants it, and each next one that never acknowledges, or never comes back, gets less of it.
    """

    def __init__(self, limit: int, ttl: float = WEEK) -> None:
        """*limit* in bytes; the last message that is taken may exceed it. *ttl*: seconds that a message may wait."""
        self.limit = limit
        self.expiry = ExpirySchedule(ttl)  # of the queues whose messages end by the clock of the worker
        self.used = 0  # bytes
        self.messages = 0  # that wait, once for each queue
        self.window = 0  # bytes of messages that one session may have in flight before its next one; -1: none
        self.share = 0  # bytes of messages that may wait in one queue
        self.mark = 0  # beyond this, call `adapt()`
        self.high = limit - (limit >> 3)  # beyond it, the largest sessions let go: protocol/message_shedding.py
        self.low = limit - (limit >> 2)  # until no more than this is used
        self._refused: dict[Holder, None] = {}
        self.adapt()

    def adapt(self) -> None:
        """Compute the share of one session from what is free."""
        free = self.limit - self.used
        self.window = free >> WINDOW_SHARE if free > 0 else -1
        self.share = free >> QUEUE_SHARE if free > 0 else -1
        self.mark = self.used + (free >> FINENESS) if free > 0 else self.used

    def allows(self, holder: Holder, inflight: int) -> bool:
        """Whether *holder* may send a message, with *inflight* bytes of others in flight.

        Nobody acknowledges anything to a holder with nothing in flight; if it may not send, `retry()` has it go on.
        """
        self.adapt()
        if inflight <= self.window:
            return True
        if not inflight:
            self._refused[holder] = None
        return False

    def forget(self, holder: Holder) -> None:
        """*holder* has ended."""
        self._refused.pop(holder, None)

    def retry(self, now: float) -> None:
        """Have sessions go on that were refused, if there is memory again."""
        self.adapt()
        for holder in list(islice(self._refused, RETRIED_AT_ONCE)):
            if self.used >= self.limit:
                break
            del self._refused[holder]
            holder.pump(now)

    def permits(self, waiting: int) -> bool:
        """Whether *waiting* bytes of messages may wait in one queue."""
        self.adapt()
        return waiting <= self.share

    # Messages that wait.

    def take(self, message: Message) -> None:
        """Count *message* as waiting in one queue more."""
        self.messages += 1
        self._add(message, QUEUED)

    def give_back(self, message: Message) -> None:
        """Count *message* as waiting in one queue less."""
        self.messages -= 1
        self._remove(message, QUEUED)

    def put_back(self) -> None:
        """A message that was in flight waits again."""
        self.messages += 1
        self.used += QUEUED - INFLIGHT

    # Messages in flight. A session does the same itself, for each message.

    def hold(self, message: Message) -> None:
        """Count *message* as in flight to one session more."""
        self._add(message, INFLIGHT)

    def release(self, message: Message) -> None:
        """Count *message* as in flight to one session less."""
        self._remove(message, INFLIGHT)

    def _add(self, message: Message, place: int) -> None:
        self.used += place if message.holders else place + MESSAGE + message.size
        message.holders += 1
        if self.used > self.mark:
            self.adapt()

    def _remove(self, message: Message, place: int) -> None:
        message.holders -= 1
        self.used -= place if message.holders else place + MESSAGE + message.size


class MessageQueue(Expiring):
    """The port."""

    def __init__(self, permanent: bool) -> None:
        super().__init__()
        self.count = 0  # messages that wait
        self.size = 0  # bytes of them that count in the memory of this worker
        self.permanent = permanent  # the session keeps it although it is empty
        self.packet_id = 0  # for the message that `pop()` or `keep()` took last; 0: the session chooses one
        self.duplicate = False  # that message may have been sent before, by a worker that has ended

    def bind(self, holder: Holder) -> None:
        """The queue is that of *holder*."""
        raise NotImplementedError

    def limit(self, most_bytes: int) -> None:
        """Let at most *most_bytes* wait, from the next message on."""
        raise NotImplementedError

    def rest(self) -> None:
        """The client is not connected any more."""
        raise NotImplementedError

    def wake(self) -> None:
        """The client is connected again."""
        raise NotImplementedError

    def append(self, message: Message, most: int, now: float) -> int:
        """Add *message* as the last one; drop the oldest while there are more than *most*, or more bytes than allowed.

        Returns how many messages were dropped.
        """
        raise NotImplementedError

    def keep(self, message: Message, now: float) -> bool:
        """Take *message* of QoS 1, which is sent at once as none waits; false if it has to wait.

        Only for a permanent queue. The message does not count in the budget here, as it is in flight.
        """
        raise NotImplementedError

    def prepend(self, earlier: deque[Message], most: int) -> int:
        """Put *earlier*, which count in the budget already, before all other messages; limits as for `append()`."""
        raise NotImplementedError

    def pop(self) -> Message | None:
        """Take the oldest message; None if there is none now. It counts in the budget as in flight from now on."""
        raise NotImplementedError

    def done(self, packet_id: int, message: Message, now: float) -> None:
        """The session is done with *message*, which was taken under *packet_id*.

        It was acknowledged, has expired, is too large for the client, or must not be sent any more. Of QoS 2 it is done
        with PUBCOMP, or with a PUBREC that refuses it.
        """
        raise NotImplementedError

    def release(self, packet_id: int) -> bool:
        """Store that the client has sent PUBREC for *packet_id*. False: `Holder.released()` follows, and then PUBREL.

        A message whose PUBREL was sent must never be sent again [MQTT-4.3.3-6], whatever ends in between.
        """
        raise NotImplementedError

    def take_all(self) -> deque[Message]:
        """Take all messages, in order. They count in the budget until the caller gives their places back."""
        raise NotImplementedError

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        """Remove all messages for which *keep* is false; return how many."""
        raise NotImplementedError

    def clear(self) -> int:
        """Remove all messages, as the session has ended; return how many waited."""
        raise NotImplementedError

    def end(self, sent: int, sent_bytes: int) -> int:
        """The session has ended, with *sent* messages in flight; return how many will not be delivered.

        A queue of a member of shared subscriptions may have messages for other members: it says later how many.
        """
        return sent + self.clear()


class MemoryQueue(MessageQueue):
    """At most *most_bytes* bytes of messages in memory. They share *budget* with all other queues of the worker."""

    def __init__(self, most_bytes: int, budget: MessageBudget, holder: Holder | None = None) -> None:
        """*holder*: is told of messages that have ended."""
        super().__init__(False)
        self.full = False  # messages were dropped: for whoever reports it once
        self.taken = 0  # messages that were before the first: its position, less one, in pages
        self._messages: deque[Message] = deque()
        self._most_bytes = most_bytes
        self._budget = budget
        self._holder = holder

    def bind(self, holder: Holder) -> None:
        self._holder = holder

    def limit(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes

    def rest(self) -> None:
        pass

    def wake(self) -> None:
        pass

    def append(self, message: Message, most: int, now: float) -> int:
        budget = self._budget
        size = message.size
        self._messages.append(message)
        self.count += 1
        self.size += size
        budget.messages += 1
        budget.used += QUEUED if message.holders else QUEUED + MESSAGE + size
        message.holders += 1
        if budget.used > budget.mark:
            budget.adapt()
        ends = message.end_by(now + budget.expiry.ttl)
        if ends < self.due:
            budget.expiry.set(self, ends)
        if self.size > self._most_bytes or self.size > budget.share or self.count > most:
            return self._apply_limits(most)
        return 0

    def prepend(self, earlier: deque[Message], most: int) -> int:
        for message in earlier:
            self.size += message.size
            self._budget.expiry.set(self, message.ends)
        self.count += len(earlier)
        self.taken -= len(earlier)
        earlier.extend(self._messages)
        self._messages = earlier
        return self._apply_limits(most)

    def pop(self) -> Message | None:
        if self.count == 0:
            return None
        message = self._messages.popleft()
        budget = self._budget
        self.taken += 1
        self.count -= 1
        self.size -= message.size
        budget.messages -= 1
        budget.used += INFLIGHT - QUEUED
        if not self.count:
            budget.expiry.discard(self)
        return message

    def put_back(self, messages: list[Message]) -> None:
        """Put *messages*, which were popped just now, before all other messages; no limit applies."""
        for message in reversed(messages):
            self._messages.appendleft(message)
            self.taken -= 1
            self.count += 1
            self.size += message.size
            self._budget.put_back()
            self._budget.expiry.set(self, message.ends)

    def done(self, packet_id: int, message: Message, now: float) -> None:
        pass  # nothing of it is left here

    def release(self, packet_id: int) -> bool:
        return True

    def take_all(self) -> deque[Message]:
        messages = self._messages
        self._messages = deque()
        self.taken += self.count
        self.count = 0
        self.size = 0
        self._budget.expiry.discard(self)
        return messages

    def remove_unless(self, keep: Callable[[Message], bool]) -> int:
        kept: deque[Message] = deque()
        for message in self._messages:
            if keep(message):
                kept.append(message)
            else:
                self.size -= message.size
                self._budget.give_back(message)
        removed = self.count - len(kept)
        self._messages = kept
        self.taken += removed  # a message may be on two pages, and none on no page
        self.count -= removed
        if not self.count:
            self._budget.expiry.discard(self)
        return removed

    def expire(self, now: float) -> int:
        """Drop what has ended, as something has; return how many messages were looked at."""
        count, expiry = self.count, self._budget.expiry
        ended = self.remove_unless(lambda message: self._stays(message, now))
        if self._messages:
            latest = now + expiry.ttl
            earliest = min([message.end_by(latest) for message in self._messages])
            expiry.set(self, max(earliest, now + EXPIRY_PAUSE * count))
        if ended and self._holder is not None:
            self._holder.queue_dropped(DropReason.EXPIRED, ended)
        return count

    def _stays(self, message: Message, now: float) -> bool:
        """Whether *message* has not ended; if it has, it is lost."""
        ended = message.expired(now)
        if ended and self._holder is not None:
            self._holder.lost(message.topic)
        return not ended

    def page(self, after: int, last: int) -> QueuePage:
        """The messages behind the position *after*, up to *last*, as far as a page goes; *last* 0: up to the newest."""
        last = last or self.taken + self.count
        start = max(0, after - self.taken)
        found: list[WaitingMessage] = []
        size = 0
        for message in islice(self._messages, start, max(start, min(start + MESSAGES, last - self.taken))):
            if size >= BYTES:
                break
            size += message.size
            found.append(WaitingMessage(self.taken + start + len(found) + 1, message, UNKNOWN, False))
        reached = self.taken + start + len(found)
        return QueuePage(found, reached if found and reached < last else 0, last)

    def purge(self, unwanted: Callable[[Message], bool], after: int, last: int) -> PurgedPage:
        """Remove those messages of a page that are *unwanted*; *after*, *last* as for `page()`."""
        last = last or self.taken + self.count
        start = max(0, after - self.taken)
        length = max(0, min(MESSAGES, self.count - start, last - self.taken - start))
        messages = self._messages
        messages.rotate(-start)
        page = [messages.popleft() for _ in range(length)]
        kept: list[Message] = []
        size = 0
        for message in page:
            if unwanted(message):
                size += message.size
                self._budget.give_back(message)
            else:
                kept.append(message)
        messages.extendleft(reversed(kept))
        messages.rotate(start)
        reached = self.taken + start + length
        removed = length - len(kept)
        self.taken += removed
        self.count -= removed
        self.size -= size
        if not self.count:
            self._budget.expiry.discard(self)
        return PurgedPage(removed, size, reached if length and reached < last else 0, last)

    def clear(self) -> int:
        cleared = self.count
        for message in self.take_all():
            self._budget.give_back(message)
        return cleared

    def _apply_limits(self, most: int) -> int:
        budget = self._budget
        dropped = 0
        while self.count and (self.size > self._most_bytes or self.count > most or not budget.permits(self.size)):
            message = self._messages.popleft()
            self.taken += 1
            self.count -= 1
            self.size -= message.size
            budget.give_back(message)
            if self._holder is not None:
                self._holder.lost(message.topic)
            dropped += 1
        if not self.count:
            budget.expiry.discard(self)
        return dropped
