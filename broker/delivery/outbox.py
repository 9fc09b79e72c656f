# The outbox: the bytes one connection is still owed.
#
# What a tick appends leaves in one send at its end. A slow reader costs a fixed number of bytes and nobody
# else any time: over the high watermark the connection is not writable, and whoever wants to deliver to it
# must skip, wait or go elsewhere until it has fallen to the low one. write() itself never refuses, because
# acknowledgements and pings must get out; they are bounded by not reading a connection that is `stuffed`.
# All outboxes of a worker share one budget; the fuller it is, the lower everybody's high watermark.
from collections import deque
from typing import Final

GATHER: Final = 256 * 1024  # the most handed to the kernel in one send; twice what it takes at the default low-at mark
LEAST: Final = 16 * 1024  # bytes anybody may be owed, however full the budget is
MANY: Final = 1024  # chunks
SMALL: Final = 64  # bytes
STUFFED: Final = 256 * 1024  # room above the high watermark for what answers the client itself


class OutboundBudget:
    """The bytes that all connections of a worker together may be owed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0


class Outbox:
    def __init__(self, fd: int, high: int, low: int, budget: OutboundBudget, dirty: "deque[Outbox]") -> None:
        self.fd = fd
        self.size = 0  # bytes
        self.writable = True
        self.queued = False  # in the list of those to flush
        self.blocked = False  # the kernel took less than we had; it tells when there is room
        self.high = high
        self.low = low
        self._chunks: list[bytes] = []
        self._sent = 0  # bytes of the first chunk that are gone
        self._budget = budget
        self._dirty = dirty

    def write(self, chunk: bytes) -> None:
        """Append *chunk*, to leave at the end of the tick."""
        n = len(chunk)
        self._chunks.append(chunk)
        size = self.size + n
        self.size = size
        budget = self._budget
        used = budget.used + n
        budget.used = used
        if not self.queued:
            self.queued = True
            self._dirty.append(self)
        if size > self.high or size > (budget.limit - used) >> 1:
            self.writable = False

    def stuffed(self) -> bool:
        """It owes so much that its client must not be read either, or the answers would pile up."""
        size = self.size
        if size <= LEAST:
            return False
        chunks = self._chunks
        if len(chunks) > MANY and size < len(chunks) * SMALL:  # answers: each costs ten times its bytes as an object
            chunks[:] = [b"".join(chunks)]
        return size > self.high + STUFFED or (
            not self.writable and size > (self._budget.limit - self._budget.used) >> 1
        )

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
        """*count* bytes of what was gathered are gone; true if the connection became writable by that."""
        self.size -= count
        self._budget.used -= count
        at = self._sent + count
        if at == len(self._chunks[0]):
            del self._chunks[0]
            at = 0
        self._sent = at
        if self.writable or self.size > self.low:
            return False
        if self.size and self.size > (self._budget.limit - self._budget.used) >> 1:
            return False
        self.writable = True
        return True

    def discard(self) -> int:
        """Forget all of it, as the connection is gone; the bytes that never left."""
        owed = self.size
        self._budget.used -= owed
        self.size = 0
        self._sent = 0
        self._chunks.clear()
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
