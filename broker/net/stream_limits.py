# Limits on streams: what a stream may cost in memory and in time before it is closed.
from typing import Final

from broker.net.reactor import Reactor
from broker.net.service import Service
from broker.net.stream import CLOSED, Stream
from broker.net.unfinished_input import UnfinishedInput
from broker.reasons import CloseReason

SHED_AT_ONCE: Final = 16  # streams closed in a turn that hold too much unfinished input
STALLS_CHECKED_EVERY: Final = 1.0  # seconds


class StreamLimits:
    def __init__(self, reactor: Reactor, service: Service, stall_timeout: float) -> None:
        """*stall_timeout*: seconds in which the reader of a blocked stream must take a byte."""
        self._reactor = reactor
        self._service = service
        self._stall_timeout = stall_timeout
        self._stalls_checked = 0.0
        self._unfinished_input = UnfinishedInput()

    def shed_output(self, now: float) -> None:
        """The outboxes hold too many bytes: of the readers that take none, close the one with the largest outbox."""
        largest: Stream | None = None
        for stream in self._reactor.blocked:
            if largest is None or stream.outbox.size > largest.outbox.size:
                largest = stream
        if largest is not None:
            self._service.lost(largest, CloseReason.OUTBOUND_BUDGET, now)

    def shed_input(self, now: float) -> None:
        """The input is a quarter over its budget: close the streams with the largest packets that are not complete."""
        for _ in range(SHED_AT_ONCE):
            stream = self._unfinished_input.largest(self._reactor.table, now)
            if stream is None:
                break
            self._service.shed(stream, CloseReason.INPUT_BUDGET, now)
            if self._reactor.input.used <= self._reactor.input.most:
                break

    def enforce_deadlines(self, now: float) -> float:
        """Close streams that linger too long or whose readers stall; return the time of the next check."""
        lingering = self._reactor.lingering
        while lingering and (lingering[0][0] <= now or lingering[0][1].state == CLOSED):
            self._reactor.destroy(lingering.popleft()[1])
        due = lingering[0][0] if lingering else now + STALLS_CHECKED_EVERY
        if now - self._stalls_checked >= STALLS_CHECKED_EVERY:
            self._stalls_checked = now
            for stream in list(self._reactor.blocked):
                if stream.made_progress():
                    stream.stalled_at = now
                elif now - stream.stalled_at >= self._stall_timeout:
                    self._service.lost(stream, CloseReason.SLOW_CONSUMER, now)
        return due
