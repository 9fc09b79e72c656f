# The outbox: the bytes that a connection is owed and that are not sent yet.
#
# What is written during a tick leaves in one send at its end. A slow reader costs a fixed number of bytes and delays
# no other client: over the high watermark the connection is not writable, and a message for it is skipped, waits or
# goes to another receiver until the outbox has fallen to the low watermark. write() itself never refuses, because
# acknowledgements and pings must leave; they are bounded by not reading a connection with a `reply_backlog()`. All
# outboxes of a worker share one budget; the fuller it is, the lower the high watermark of each outbox. An outbox with
# an egress limit (egress_limit.py), or the pace of a client that catches up (pace.py), is not writable either, except
# during a delivery that these allow. Nor is one that is `aside`, while something is to be said before or with the next
# message: each delivery takes the same way then.
from typing import Final

from broker.delivery.egress_limit import EgressLimit
from broker.delivery.pace import Pace
from broker.delivery.ring import Ring
from broker.reasons import DropReason

GATHER: Final = 256 * 1024  # bytes of one send at most; twice what the kernel takes at the default TCP_NOTSENT_LOWAT
LEAST: Final = 16 * 1024  # bytes that each connection may be owed, however full the budget is
MANY: Final = 1024  # chunks, which are joined when they are SMALL
SMALL: Final = 512  # bytes of a chunk on average: an object and its place in the list take 41 to 56 more
ANY: Final = 1 << 40  # bytes: no limit
REPLY_ROOM: Final = 256 * 1024  # bytes above the high watermark for replies to the client itself

AT_ONCE: Final = 0  # the strategies, see flushing.py
ADAPTIVE: Final = 1
BUFFERED: Final = 2
BRIEF: Final = 3


class OutboundBudget:
    """The bytes that all connections of a worker together may be owed, and the number of slow connections."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.non_writable = 0  # connections that are full, see `Outbox.full`
        self.became_non_writable = 0  # how often a connection became full

    def fill(self) -> float:
        """The share of the budget that is used."""
        return self.used / self.limit


class Outbox:
    def __init__(self, fd: int, high: int, low: int, budget: OutboundBudget, dirty: "Ring[Outbox]") -> None:
        self.fd = fd
        self.size = 0  # bytes
        self.writable = True  # it is not full and not aside, and has neither an egress limit nor a pace
        self.aside = False  # something is to be said before, or with, the next message
        self.full = False  # it was over the high watermark, and has not fallen to the low one since
        self.egress_limit: EgressLimit | None = None
        self.pace: Pace | None = None  # while its client catches up
        self.queued = False  # in the ring of outboxes to flush
        self.blocked = False  # the kernel took only a part, and will report when it takes more
        self.high = high
        self.low = low
        self.first = False  # flushed before all others, because many clients wait for its bytes
        self.strategy = AT_ONCE
        self.enough = 0  # BUFFERED: the number of messages that is sent at once
        self.pressing = False  # sent at the end of the tick, whatever its strategy is
        self.held = False  # not sent before `due`, unless it becomes pressing or is large enough
        self.held_at = 0.0
        self.joined = False  # enough messages were written during its last hold
        self.due = 0.0
        self.doubts = 0  # number of sends before it may be held again
        self.sent_at = 0.0
        self.further = 0  # messages beyond one in each chunk
        self._chunks: list[bytes] = []
        self._sent = 0  # bytes of the first chunk that were sent
        self._messages_before = 0  # when the current delivery began
        self._bytes_before = 0
        self._budget = budget
        self._dirty = dirty

    def write(self, chunk: bytes) -> None:
        """Append *chunk*, to be sent at the end of the tick, or later if the strategy says so."""
        n = len(chunk)
        self._chunks.append(chunk)
        size = self.size + n
        self.size = size
        budget = self._budget
        used = budget.used + n
        budget.used = used
        if not self.queued:
            self.queued = True
            if self.first:
                self._dirty.appendleft(self)
            else:
                self._dirty.append(self)
        if size > self.high or size > (budget.limit - used) >> 1:
            if not self.full:
                self.full = True
                self.writable = False
                budget.non_writable += 1
                budget.became_non_writable += 1

    def answer(self, chunk: bytes) -> None:
        """Append *chunk*, which the client waits for: an acknowledgement or another answer. It is never held."""
        self.pressing = True
        self.write(chunk)

    def set_egress_limit(self, limit: EgressLimit) -> None:
        """Ask *limit* before each delivery from now on."""
        self.egress_limit = limit
        self.writable = False

    def end_egress_limit(self) -> None:
        """Ask no limit any more."""
        self.egress_limit = None
        self._open()

    def set_pace(self, pace: Pace) -> None:
        """Ask *pace* before each message that waited."""
        self.pace = pace
        self.writable = False

    def end_pace(self) -> None:
        """Ask no pace any more."""
        self.pace = None
        self._open()

    def begin_aside(self) -> None:
        """Have deliveries begin with `begin_delivery()` until `end_aside()`."""
        self.aside = True
        self.writable = False

    def end_aside(self) -> None:
        """Deliveries need no care any more. To be called during a delivery, whose end makes the outbox writable."""
        self.aside = False

    def _open(self) -> None:
        """Make the outbox writable, outside of a delivery, unless something stands against it."""
        self.writable = not (self.full or self.aside) and self.egress_limit is None and self.pace is None

    def accepts_delivery(self) -> bool:
        """Whether a delivery could begin now, although the outbox may not be writable."""
        return not self.full and (self.egress_limit is None or self.egress_limit.refusal() is None)

    def begin_delivery(self, messages: int) -> DropReason | None:
        """Make an outbox that is not writable writable until `end_delivery()`; or return why that is not possible.

        *messages* is a counter that grows by one with each message written.
        """
        if self.full:
            return DropReason.NOT_WRITABLE
        reason = None if self.egress_limit is None else self.egress_limit.refusal()
        if reason is None:
            self.writable = True
            self._messages_before = messages
            self._bytes_before = self.size
        return reason

    def end_delivery(self, messages: int) -> None:
        """End the delivery, and charge what was written during it."""
        self._open()
        if self.egress_limit is not None:
            self.egress_limit.charge(messages - self._messages_before, self.size - self._bytes_before)

    def begin_queued(self, messages: int) -> bool:
        """`begin_delivery()` of one message that waited; false if it is not possible now."""
        if self.full or (self.pace is not None and not self.pace.allows()):
            return False
        return self.begin_delivery(messages) is None

    def end_queued(self, messages: int, left: int) -> None:
        """End that delivery. *left*: messages that wait still."""
        self.end_delivery(messages)
        pace = self.pace
        if pace is not None:
            pace.charge(messages - self._messages_before, self.size - self._bytes_before)
            if not left:
                pace.over()

    def press(self) -> None:
        """Send it at the end of the tick, whatever its strategy is."""
        self.pressing = True
        if not self.queued:
            self.queued = True
            if self.first:
                self._dirty.appendleft(self)
            else:
                self._dirty.append(self)

    def pieces(self) -> int:
        """The number of chunks."""
        return len(self._chunks)

    def messages(self) -> int:
        """The number of messages, or more: answers count, too."""
        return len(self._chunks) + self.further

    def reply_backlog(self) -> bool:
        """Whether so many bytes wait that the client must not be read, or its replies would pile up."""
        size = self.size
        if size <= LEAST:
            return False
        self.compact()
        return size > self.high + REPLY_ROOM or (self.full and size > (self._budget.limit - self._budget.used) >> 1)

    def compact(self) -> None:
        """Join small chunks. An answer of four bytes takes twelve times as much as an object, and only bytes count."""
        chunks = self._chunks
        if len(chunks) > MANY and self.size < len(chunks) * SMALL:
            if self._sent:
                self._drop_sent(chunks)
            chunks[:] = [b"".join(chunks)]

    def gather(self) -> bytes | memoryview:
        """The next bytes to send, at most about GATHER of them. `sent()` removes those that were sent."""
        chunks = self._chunks
        if self.size > GATHER:
            self._merge_first(chunks)
        elif len(chunks) > 1:
            if self._sent:
                self._drop_sent(chunks)
            joined = b"".join(chunks)
            chunks.clear()
            chunks.append(joined)
        if self._sent:
            return memoryview(chunks[0])[self._sent :]
        return chunks[0]

    def rest(self) -> bytes:
        """All bytes that are not sent yet, before the connection is closed; they stay."""
        return b"".join(self._chunks)[self._sent :]

    def sent(self, count: int, now: float) -> bool:
        """Remove *count* bytes, all that the kernel took; true if the outbox is not full any more because of that."""
        self.pressing = False
        self.held = False
        self.further = 0
        self.sent_at = now
        self.size -= count
        self._budget.used -= count
        at = self._sent + count
        if at == len(self._chunks[0]):
            del self._chunks[0]
            at = 0
        self._sent = at
        if not self.full or self.size > self.low:
            return False
        if self.size and self.size > (self._budget.limit - self._budget.used) >> 1:
            return False
        self.full = False
        self._open()
        self._budget.non_writable -= 1
        return True

    def discard(self) -> int:
        """Drop all bytes, because the connection is closed; return how many. To be called once."""
        owed = self.size
        self._budget.used -= owed
        self.size = 0
        self._sent = 0
        self._chunks.clear()
        if self.full:
            self._budget.non_writable -= 1
        self.full = True
        self.writable = False
        return owed

    def _drop_sent(self, chunks: list[bytes]) -> None:
        """Cut the bytes that were sent off the first chunk before chunks are joined, or it would grow for ever."""
        chunks[0] = chunks[0][self._sent :]
        self._sent = 0

    def _merge_first(self, chunks: list[bytes]) -> None:
        """Make the first chunk about GATHER bytes long, if it is shorter."""
        total = len(chunks[0]) - self._sent
        count = 1
        while count < len(chunks) and total + len(chunks[count]) <= GATHER:
            total += len(chunks[count])
            count += 1
        if count > 1:
            if self._sent:
                self._drop_sent(chunks)
            joined = b"".join(chunks[:count])
            del chunks[1:count]
            chunks[0] = joined


def unbounded(fd: int, dirty: "Ring[Outbox]") -> Outbox:
    """An outbox to another process of the node: always writable, as its users bound its content.

    It is sent before those of clients. Otherwise another worker would start to deliver a publish only after this one
    has sent it to thousands of clients.
    """
    outbox = Outbox(fd, ANY, ANY >> 1, OutboundBudget(ANY), dirty)
    outbox.first = True
    return outbox
