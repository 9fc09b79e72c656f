# The outbox: the bytes one connection is still owed.
#
# What a tick appends leaves in one send at its end. A slow reader costs a fixed number of bytes and nobody
# else any time: over the high watermark the connection is not writable, and whoever wants to deliver to it
# must skip, wait or go elsewhere until it has fallen to the low one. write() itself never refuses, because
# acknowledgements and pings must get out; they are bounded by not reading a connection with a `reply_backlog()`.
# All outboxes of a worker share one budget; the fuller it is, the lower everybody's high watermark.
# One that stands behind a toll (toll.py) is not writable either, but for the batches that are let pass.
from typing import Final

from broker.delivery.egress_limit import EgressLimit
from broker.delivery.ring import Ring
from broker.reasons import DropReason

GATHER: Final = 256 * 1024  # the most handed to the kernel in one send; twice what it takes at the default low-at mark
LEAST: Final = 16 * 1024  # bytes anybody may be owed, however full the budget is
MANY: Final = 1024  # chunks
SMALL: Final = 64  # bytes
REPLY_ROOM: Final = 256 * 1024  # bytes above the high watermark for replies to the client itself

AT_ONCE: Final = 0  # the strategies: when it is sent, see flushing.py
ADAPTIVE: Final = 1
BUFFERED: Final = 2


class OutboundBudget:
    """The bytes that all connections of a worker together may be owed, and how many of these are slow."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.non_writable = 0  # connections over their high watermark, or that were and are not below the low one
        self.became_non_writable = 0  # times that one did

    def fill(self) -> float:
        """The share of the budget that is used."""
        return self.used / self.limit


class Outbox:
    def __init__(self, fd: int, high: int, low: int, budget: OutboundBudget, dirty: "Ring[Outbox]") -> None:
        self.fd = fd
        self.size = 0  # bytes
        self.writable = True  # it is not full, and nobody has to be asked
        self.full = False  # it was over the high watermark, and not down at the low one since
        self.egress_limit: EgressLimit | None = None
        self.queued = False  # in the list of those to flush
        self.blocked = False  # the kernel took less than we had; it tells when there is room
        self.high = high
        self.low = low
        self.first = False  # flushed before all others: many wait for what it brings
        self.strategy = AT_ONCE
        self.enough = 0  # messages, if it is BUFFERED
        self.pressing = False  # goes out at the end of the tick, whatever its strategy is
        self.held = False  # until `due`, unless something is to be sent before
        self.held_at = 0.0
        self.joined = False  # enough was written during its last hold
        self.due = 0.0
        self.doubts = 0  # sends until it may be held again
        self.sent_at = 0.0
        self.further = 0  # messages beyond one in each chunk
        self._chunks: list[bytes] = []
        self._sent = 0  # bytes of the first chunk that are gone
        self._messages_before = 0  # when the batch that is open began
        self._bytes_before = 0
        self._budget = budget
        self._dirty = dirty

    def write(self, chunk: bytes) -> None:
        """Append *chunk*, to leave at the end of the tick, or later if the strategy says so."""
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
        """Append *chunk*, which the client waits for: an acknowledgement, an answer, a ping."""
        self.pressing = True
        self.write(chunk)

    def set_egress_limit(self, limit: EgressLimit) -> None:
        """Ask *limit* before each delivery from now on."""
        self.egress_limit = limit
        self.writable = False

    def accepts_delivery(self) -> bool:
        """Something could be delivered now, though it may not be writable."""
        return not self.full and (self.egress_limit is None or self.egress_limit.refusal() is None)

    def begin_delivery(self, messages: int) -> DropReason | None:
        """It is not writable, and something is to be delivered: None, and it is until `end_delivery()`; or why not.

        *messages*: a count that grows by one with each that is written.
        """
        if self.full or self.egress_limit is None:
            return DropReason.NOT_WRITABLE
        reason = self.egress_limit.refusal()
        if reason is None:
            self.writable = True
            self._messages_before = messages
            self._bytes_before = self.size
        return reason

    def end_delivery(self, messages: int) -> None:
        """What was written since is charged."""
        self.writable = False
        if self.egress_limit is not None:
            self.egress_limit.charge(messages - self._messages_before, self.size - self._bytes_before)

    def press(self) -> None:
        """Send it at the end of the tick, whatever its strategy is."""
        self.pressing = True
        if not self.queued:
            self.queued = True
            self._dirty.append(self)

    def pieces(self) -> int:
        """In how many it was written."""
        return len(self._chunks)

    def messages(self) -> int:
        """How many it was written, at least: answers count, too."""
        return len(self._chunks) + self.further

    def reply_backlog(self) -> bool:
        """So many bytes wait that the client must not be read either, or its replies would pile up."""
        size = self.size
        if size <= LEAST:
            return False
        chunks = self._chunks
        if len(chunks) > MANY and size < len(chunks) * SMALL:  # answers: each costs ten times its bytes as an object
            chunks[:] = [b"".join(chunks)]
        return size > self.high + REPLY_ROOM or (self.full and size > (self._budget.limit - self._budget.used) >> 1)

    def gather(self) -> bytes | memoryview:
        """The next bytes to send, at most about GATHER of them; say how many went with `sent()`."""
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

    def sent(self, count: int) -> bool:
        """*count* bytes of what was gathered are gone; true if it is full no longer by that."""
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
        self.writable = self.egress_limit is None
        self._budget.non_writable -= 1
        return True

    def flushed(self, now: float) -> None:
        """It was sent, as far as the kernel took it."""
        self.pressing = False
        self.held = False
        self.further = 0
        self.sent_at = now

    def discard(self) -> int:
        """Forget all of it, as the connection is gone, once; the bytes that never left."""
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
        """Before chunks are joined: with what is gone they would grow, for as long as never all is gone at once."""
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
