# The reactor: all streams of a worker, and what the rest of the worker asks of them.
#
# It is made before the service, which needs it; the loop (loop.py) is made after the service and needs both. The
# reactor says which streams are ready, paused, blocked or closing. Nothing is read or sent here: rounds.py reads and
# serves what is ready, sender.py sends what is dirty.
# Streams that are not clients' (the supervisor's, other workers', Redis') have handlers of their own. They are served
# ahead of clients, whose work may depend on them, and no limit on a client's share or memory applies to them.
import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delivery.flushing import Flushing
from broker.delivery.outbox import Outbox
from broker.delivery.ring import Ring
from broker.metrics.latency import Latencies
from broker.net.stream import CLOSED, CLOSING, LINGERING, OPEN, Handler, Stream
from broker.net.transports.layer import Layer

LINGER: Final = 1.0  # seconds a peer has to read our last packets, unless `Reactor.linger` is set
CALLS_AT_ONCE: Final = 16  # of other threads, at up to 50 us each

# The kernel's numbers, which `select` also has: as literals they cost nothing where they are used.
IN: Final = 0x001
OUT: Final = 0x004
GONE: Final = 0x008 | 0x010  # EPOLLERR, EPOLLHUP
PEER_SHUT: Final = 0x2000  # EPOLLRDHUP
EDGE_TRIGGERED: Final = 1 << 31  # EPOLLET
WATCHED: Final = IN | PEER_SHUT | EDGE_TRIGGERED


class InputBudget:
    """How many bytes all clients together may have sent that are not served yet."""

    def __init__(self, limit: int) -> None:
        self.used = 0
        self.limit = limit  # reads are small from half of it on
        self.most = limit + (limit >> 2)  # above it small reads did not help, and streams are closed


class Reactor:
    def __init__(
        self,
        clock: Callable[[], float],
        *,
        input_budget: int,
        adaptive_hold: float = 0.0,
        buffered_hold: float = 0.0,
        most_held: int = 0,
    ) -> None:
        """*adaptive_hold*, *buffered_hold*, seconds, and *most_held*, connections: see delivery/flushing.py."""
        self.clock = clock
        self.dirty: Ring[Outbox] = Ring()
        self.flushing = Flushing(self.dirty, longest=adaptive_hold, buffered=buffered_hold, most=most_held)
        self.linger = LINGER
        self.bytes_received = 0  # from clients
        self.bytes_sent = 0  # to clients
        self.flushes = 0  # sends to clients
        self.latencies = Latencies()  # of publishes, from being read to their acknowledgement
        self.asked = False  # in this turn something was sent to a stream that is not a client's, which may answer soon
        self.urgent_tasks = 0  # trio tasks that have to run soon; while there are any, the loop does not wait by itself
        # What follows belongs to the pieces of the loop.
        self.epoll = select.epoll()
        self.table: list[Stream | None] = []  # by descriptor
        self.ready: Ring[Stream] = Ring()
        self.unauthenticated: Ring[Stream] = Ring()  # ready streams that are served behind all others
        self.drained: deque[Stream] = deque()  # streams that are reported to the service as drained
        self.blocked: dict[Stream, None] = {}  # of clients: the kernel takes no more bytes
        self.lingering: deque[tuple[float, Stream]] = deque()  # with deadlines, which ascend as all linger equally long
        self.input = InputBudget(input_budget)
        self.lag = 0.0  # seconds: see take_lag()
        self.due = 0.0  # when the service wants its next tick
        self.polled_at = 0.0  # when the kernel was last asked for input
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self._calls: deque[Callable[[], None]] = deque()  # from other threads
        self.epoll.register(self.wakeup, IN)

    # Streams.

    def attach(self, stream: Stream, handler: Handler) -> None:
        """Serve *stream*, which is not a client's, by *handler*. Its socket does not block and may still be connecting.

        Its outbox belongs to a budget of its own. The layer of a virtual stream calls `enqueue_first()` when it has
        bytes to give, and `unblock()` when it takes bytes again.
        """
        stream.handler = handler
        stream.unauthenticated = False
        self.register(stream)

    def register(self, stream: Stream) -> None:
        """Watch *stream*, which is new."""
        while len(self.table) <= stream.fd:
            self.table.append(None)
        self.table[stream.fd] = stream
        if not stream.virtual:
            self.epoll.register(stream.fd, WATCHED)

    def stream_of(self, outbox: Outbox) -> Stream | None:
        """The stream that *outbox* belongs to; None once the stream is destroyed."""
        stream = self.table[outbox.fd]
        return stream if stream is not None and stream.outbox is outbox else None

    def streams(self) -> list[Stream]:
        """The streams of clients that are not destroyed."""
        return [stream for stream in self.table if stream is not None and stream.handler is None]

    def closing(self) -> int:
        """At most so many streams linger. Some of them may be destroyed already."""
        return len(self.lingering)

    def mark_authenticated(self, stream: Stream) -> None:
        """Serve *stream* before unauthenticated streams from now on."""
        stream.unauthenticated = False

    def shut_down(self) -> None:
        """Destroy all streams; the reactor is of no use any more."""
        for stream in self.table:
            if stream is not None:
                self.destroy(stream)
        self.epoll.close()
        os.close(self.wakeup)

    # Requests to the loop.

    def wake(self) -> None:
        """End the wait for events, because outboxes were written to outside of a turn or a stream has input."""
        if not self._woken:
            self._woken = True
            os.eventfd_write(self.wakeup, 1)

    def soon(self, when: float) -> None:
        """Call the service's tick at *when*, if that is before the time that its last tick returned."""
        if when < self.due:
            self.due = when

    def call(self, what: Callable[[], None]) -> None:
        """Call *what* in the reactor's thread. Any thread may ask. Nothing happens once the reactor is shut down."""
        self._calls.append(what)
        try:
            os.eventfd_write(self.wakeup, 1)
        except OSError:
            pass

    def woken(self) -> None:
        """Handle `wake()` and `call()`."""
        os.eventfd_read(self.wakeup)
        self._woken = False
        for _ in range(min(CALLS_AT_ONCE, len(self._calls))):
            self._calls.popleft()()
        if self._calls:
            os.eventfd_write(self.wakeup, 1)

    def report_drained(self, stream: Stream) -> None:
        """Tell the service at the end of this turn that *stream* is writable again, as if its outbox had drained."""
        self.drained.append(stream)

    def take_lag(self) -> float:
        """Return the longest time, in seconds, that a ready client waited since the last call."""
        lag, self.lag = self.lag, 0.0
        return lag

    def read_up_to(self) -> float:
        """The time up to which all that clients sent has been read, but for streams that are paused."""
        if self.ready.count and self.ready.first().ready_at < self.polled_at:
            return self.ready.first().ready_at
        return self.polled_at

    # Reading: a stream is ready, or paused.

    def enqueue(self, stream: Stream) -> None:
        """Serve *stream* in the next round."""
        if not stream.queued:
            stream.queued = True
            stream.ready_at = self.clock()
            self.ready.append(stream)

    def enqueue_first(self, stream: Stream) -> None:
        """Serve *stream*, which is not a client's, before all that are ready now."""
        if not stream.queued:
            stream.queued = True
            stream.ready_at = self.clock()
            self.ready.appendleft(stream)

    def readable(self, stream: Stream) -> None:
        """A layer of *stream* has bytes to give."""
        stream.unread = True
        self.enqueue(stream)
        self.wake()

    def pause(self, stream: Stream, reason: int) -> None:
        """Neither read nor serve *stream* until `resume()` with this *reason*, one of `Pause`."""
        stream.paused |= reason
        stream.paused_reading_ahead &= ~reason
        stream.paused_unauthenticated &= ~reason

    def pause_reading_ahead(self, stream: Stream, reason: int) -> None:
        """Pause *stream*, but read what it receives meanwhile for `Service.serve_while_paused()`.

        Nothing is read ahead while the stream is also paused for a reason that does not allow it.
        """
        stream.paused |= reason
        stream.paused_reading_ahead |= reason
        if stream.has_input() and stream.reads_while_paused():
            self.enqueue(stream)

    def pause_unauthenticated(self, stream: Stream, reason: int) -> None:
        """Pause reading from an unauthenticated stream. If the peer closes meanwhile, the stream is dropped at once."""
        stream.paused |= reason
        stream.paused_unauthenticated |= reason

    def resume(self, stream: Stream, reason: int) -> None:
        """Lift the pause of *stream* for *reason*, if there is one. *stream* is read again when no reason is left."""
        if stream.paused & reason:
            stream.paused &= ~reason
            stream.paused_reading_ahead &= ~reason
            stream.paused_unauthenticated &= ~reason
            if stream.paused == 0 or (stream.has_input() and stream.reads_while_paused()):
                self.enqueue(stream)

    def forget_input(self, stream: Stream) -> None:
        """Drop the input of *stream* that is not served yet."""
        self.input.used -= stream.accounted
        stream.accounted = 0
        stream.forget_input()

    # Sending: a stream is writable, or blocked.

    def block(self, stream: Stream, now: float) -> None:
        """Send nothing to *stream* until the kernel reports that it takes bytes again."""
        stream.outbox.blocked = True
        stream.stalled_at = now
        if stream.handler is None:
            self.blocked[stream] = None
        if not stream.virtual:
            self.epoll.modify(stream.fd, WATCHED | OUT)

    def unblock(self, stream: Stream) -> None:
        """The kernel takes bytes of *stream* again."""
        outbox = stream.outbox
        if outbox.blocked:
            outbox.blocked = False
            self.blocked.pop(stream, None)
            if not stream.virtual:
                self.epoll.modify(stream.fd, WATCHED)
        if not outbox.queued and (outbox.size or stream.layer is not None):
            outbox.queued = True
            self.dirty.append(outbox)

    def block_if_unsent(self, stream: Stream, layer: Layer) -> None:
        """Block *stream* if *layer* has bytes of its own that the kernel did not take."""
        if layer.unsent and not stream.outbox.blocked:
            self.block(stream, self.clock())

    # Closing.

    def close(self, stream: Stream, now: float) -> None:
        """Send what is in the outbox of *stream*, then close it in a way that lets the peer read all of it."""
        if stream.state != OPEN:
            return
        stream.state = CLOSING
        # All pauses end: what the peer still sends is read and discarded. Otherwise a peer that is sending could not
        # read our last packet.
        stream.paused = 0
        stream.paused_reading_ahead = 0
        stream.paused_unauthenticated = 0
        self.forget_input(stream)
        self.lingering.append((now + self.linger, stream))
        if stream.has_input():
            self.enqueue(stream)
        if stream.outbox.size == 0:
            self.shut(stream)
        else:
            stream.outbox.press()

    def shut(self, stream: Stream) -> None:
        """Shut our side of *stream*, whose outbox is empty, and wait for the peer to close its own side."""
        stream.state = LINGERING
        try:
            if stream.layer is None:
                stream.sock.shutdown(socket.SHUT_WR)
            else:
                stream.layer.end()
                self.block_if_unsent(stream, stream.layer)
        except OSError:
            self.destroy(stream)
            return
        if stream.finished:
            self.destroy(stream)

    def destroy(self, stream: Stream) -> None:
        """Close *stream* at once; what was not sent is lost."""
        if stream.state == CLOSED:
            return
        stream.state = CLOSED
        self.forget_input(stream)
        self.table[stream.fd] = None
        self.blocked.pop(stream, None)
        stream.outbox.discard()
        if stream.layer is not None:
            stream.layer.close()
            stream.layer = None  # it refers to its stream: each connection would be a cycle for the garbage collector
        stream.sock.close()  # the epoll forgets a closed socket by itself
