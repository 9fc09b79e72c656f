# The reactor: all sockets of a worker in one place, served in slices.
#
# trio stays the scheduler: it waits for our epoll object and calls `turn()`, which works for at most a slice and
# gives way. A slice polls, serves ready streams in rounds (each once a round, within its quantum), works on what
# was left unfinished, and flushes; what is appended to an outbox while it waits for its flush leaves in the same
# send. Serving gets half of a slice, unfinished work a quarter and flushing the rest, so that none starves another and
# a long fan-out merges with what comes in meanwhile. Strangers, who have not been let in yet, are served behind the
# rounds: thousands that come at once, each with a handshake, would make everybody else wait for a round of them all.
# The kernel tells once what it has for a stream (edge-triggered), which stays `unread` until a read brought less than
# it might: told with each poll, strangers that wait hid who is in (100 ms beside 10 000), and who is held would have to
# be muted. So whoever takes a stream out of a round puts it back, unless it is read to its end or held.
# Why not one trio task per connection? Twice the CPU at one message per wake-up, measured.
# Going through trio costs about 60 us a wake-up, so while events come more often than once a millisecond the reactor
# waits for the next in its own epoll; when little happens it does not, as that would hold up other tasks for nothing.
# It would be enough to wait for a millisecond, but such a timer is set in hardware and cleared there, 3 to 15 us of
# each wait on virtual machines; one behind the kernel's next tick costs nothing. What is due ends the wait.
# While only what was held leaves (delivery/flushing.py), it sleeps a little first, and finds several events at once.
# Who is owed much is sent to behind those who are owed little, of whom a few go between two of the others: beside a
# flood to hundreds of readers, with 64 KiB for each, everybody's messages would leave behind megabytes.
# Streams that are no clients' (the supervisor, other workers, Redis) have handlers of their own and are served ahead
# of clients, whose work may depend on them; what holds a client to its share or ends it does not touch them.
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.delivery.flushing import Flushing
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.metrics.latency import Latencies
from broker.net.collector import Collector
from broker.net.doors import Doors
from broker.net.stream import CLOSED, CLOSING, LINGERING, OPEN, Handler, Stream
from broker.net.transports.layer import TCP, Layer, Transport
from broker.net.unfinished_input import UnfinishedInput
from broker.overload.quantum import TELLING, Quantum
from broker.reasons import CloseReason, ProtocolError

SLICE: Final = 0.002  # seconds of work before other tasks get a chance
TURN: Final = 0.01  # seconds of work and of waiting before they do, and a last WAIT; 5 ms cost 8% more CPU than 20 ms
SERVE: Final = 0.001  # seconds of a slice for serving before flushing gets its share
LEAST: Final = 0.0005  # seconds of a slice for unfinished work, and at least for flushing, however long serving took
LINGER: Final = 1.0  # seconds a peer has to take our last words, unless the service says otherwise
OFTEN: Final = 0.001  # seconds: events that come so often are waited for in our epoll
WAIT: Final = 0.01  # seconds to wait for the next: beyond the kernel's tick, which comes each 4 ms as a rule
WINDOW: Final = 0.010  # seconds over which events are counted, to know how soon to expect the next
EVENTS: Final = 512
LARGE_READ: Final = 64 * 1024
SMALL_READ: Final = 4 * 1024
STRANGERS: Final = 8  # served in a slice at least, at 20 to 100 us each
CALLS: Final = 16  # of other threads served at once, at up to 50 us each
MUCH: Final = 16 * 1024  # bytes: what a connection is owed beyond them is sent behind what others are owed
LITTLE: Final = 8  # sends of less between two of those, at about the price of one
SHED_AT_ONCE: Final = 16  # streams closed in a turn that hold too much unfinished input

# The kernel's numbers, which `select` also has: as literals they cost nothing where they are used.
IN: Final = 0x001
OUT: Final = 0x004
GONE: Final = 0x008 | 0x010  # EPOLLERR, EPOLLHUP
PEER_SHUT: Final = 0x2000  # EPOLLRDHUP
READ: Final = IN | PEER_SHUT
EDGE: Final = 1 << 31  # EPOLLET
WATCHED: Final = READ | EDGE


class Service:
    """What the reactor works for. It is called for the bytes of streams and never touches a socket."""

    def open(self, sock: socket.socket, address: str, dirty: Ring[Outbox], now: float) -> Stream | None:
        """A connection was accepted; None to have it closed at once."""
        raise NotImplementedError

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        """Take packets from *stream* for about *quantum* units; the units used."""
        raise NotImplementedError

    def serve_while_paused(self, stream: Stream, count: int, now: float) -> int:
        """Take what must not wait from the last *count* bytes of *stream*, which is paused; the units used."""
        raise NotImplementedError

    def refuse(self, stream: Stream, error: ProtocolError, now: float) -> None:
        """What *stream* received is not what its transport demands."""
        raise NotImplementedError

    def drained(self, stream: Stream, now: float) -> None:
        """*stream* is writable again."""
        raise NotImplementedError

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        """The peer of *stream* is gone, or has to go; nothing can be sent to it any more."""
        raise NotImplementedError

    def shed(self, stream: Stream, reason: CloseReason, now: float) -> None:
        """*stream* has to go, and may be told so."""
        raise NotImplementedError

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be, at least a slice away."""
        raise NotImplementedError

    def work(self, until: float) -> bool:
        """Go on with unfinished work up to the time *until*; true if some is left."""
        raise NotImplementedError

    def out_of_descriptors(self) -> None:
        """A connection could not be accepted."""
        raise NotImplementedError


class LoopStatistics:
    """How long the loop was held; seconds. Waiting for events does not count."""

    def __init__(self) -> None:
        self.slices = 0
        self.longest_slice = 0.0
        self.busy = 0.0


class Reactor:
    def __init__(
        self,
        clock: Callable[[], float],
        collector: Collector,
        budget: OutboundBudget,
        *,
        stall_timeout: float,
        input_budget: int,
        adaptive_hold: float = 0.0,
        buffered_hold: float = 0.0,
        most_held: int = 0,
    ) -> None:
        """*adaptive_hold*, *buffered_hold*, seconds, and *most_held*, connections: see delivery/flushing.py."""
        self.dirty: Ring[Outbox] = Ring()
        self.flushing = Flushing(self.dirty, longest=adaptive_hold, buffered=buffered_hold, most=most_held)
        self.statistics = LoopStatistics()
        self.linger = LINGER  # seconds a closing peer has to take our last words
        self.bytes_received = 0
        self.bytes_sent = 0
        self.flushes = 0  # sends to clients
        self.guests = 0  # trio's tasks that should go on soon: as long as there are some, trio waits for events, not we
        self.latencies = Latencies()  # from when a publish was read to its acknowledgement
        self.service: Service = Service()  # set when the worker is composed
        self._clock = clock
        self._collector = collector
        self._budget = budget
        self._epoll = select.epoll()
        self._streams: list[Stream | None] = []
        self._doors = Doors(self._epoll, self._enter)
        self._calls: deque[Callable[[], None]] = deque()  # from other threads
        self._ready: Ring[Stream] = Ring()
        self._strangers: Ring[Stream] = Ring()  # the same, behind all others
        self._bulk: Ring[Outbox] = Ring()  # of those to flush, who are owed MUCH
        self._before_bulk = LITTLE  # sends of less before the next of those
        self._closing: deque[tuple[float, Stream]] = deque()  # by deadline, as all linger equally long
        self._blocked: dict[Stream, None] = {}  # clients' that do not take what they are owed
        self._quantum = Quantum()
        self._lag = 0.0  # seconds: the longest that a ready client was seen to wait, since it was asked
        self._stall_timeout = stall_timeout
        self._stalls_checked = 0.0
        self._input_budget = input_budget
        self._most_input = input_budget + (input_budget >> 2)  # over it, small reads did not help
        self._input_bytes = 0  # received and not yet taken, over all streams
        self._unfinished_input = UnfinishedInput()
        self._window_began = 0.0
        self._seen = 0  # events in the current window
        self._expected = 0.0  # events a second in the last one
        self._due = 0.0  # when the service wants its next tick
        self._woken = False
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup, IN)

    def fileno(self) -> int:
        """To wait for: readable when `turn()` has something to do."""
        return self._epoll.fileno()

    def listen(self, listener: socket.socket, transport: Transport = TCP) -> None:
        """Accept connections from *listener*, a socket that listens and does not block."""
        self._doors.add(listener, transport)

    def adopt(self, sock: socket.socket, address: str, now: float, transport: Transport = TCP) -> None:
        """Serve *sock*, a connected socket that does not block, if the service wants it."""
        stream = self.service.open(sock, address, self.dirty, now)
        if stream is None:
            sock.close()
            return
        self._register(stream)
        stream.transport = transport.name
        stream.layer = transport.layer(sock, stream)

    def attach(self, stream: Stream, handler: Handler) -> None:
        """Serve *stream*, which is no client's, by *handler*. Its socket does not block; it may still be connecting.

        Its outbox belongs to a budget of its own.
        """
        stream.handler = handler
        stream.stranger = False
        self._register(stream)

    def _register(self, stream: Stream) -> None:
        while len(self._streams) <= stream.fd:
            self._streams.append(None)
        self._streams[stream.fd] = stream
        self._epoll.register(stream.fd, WATCHED)

    def stop_listening(self) -> None:
        """Accept no more."""
        self._doors.close()

    def shut_down(self) -> None:
        """Close everything at once; the reactor is of no use any more."""
        self.stop_listening()
        for stream in self._streams:
            if stream is not None:
                self.destroy(stream)
        self._epoll.close()
        os.close(self._wakeup)

    def wake(self) -> None:
        """Have `turn()` called soon, as somebody else wrote to outboxes or has something for a stream."""
        if not self._woken:
            self._woken = True
            os.eventfd_write(self._wakeup, 1)

    def soon(self, when: float) -> None:
        """The service wants its next tick at *when*, if that is before what it said last."""
        if when < self._due:
            self._due = when

    def call(self, what: Callable[[], None]) -> None:
        """From any thread: have *what* called in the reactor's own. Nothing happens once it is shut down."""
        self._calls.append(what)
        try:
            os.eventfd_write(self._wakeup, 1)
        except OSError:
            pass

    def stream_of(self, outbox: Outbox) -> Stream | None:
        """The stream that *outbox* belongs to, while it is there."""
        stream = self._streams[outbox.fd]
        return stream if stream is not None and stream.outbox is outbox else None

    def streams(self) -> list[Stream]:
        """The clients' that are not closed."""
        return [stream for stream in self._streams if stream is not None and stream.handler is None]

    def closing(self) -> int:
        """How many linger, at most: for some nobody waits any more."""
        return len(self._closing)

    def let_in(self, stream: Stream) -> None:
        """*stream* is no stranger any more: it is served before those who are."""
        stream.stranger = False

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
            self._enqueue(stream)

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
                self._enqueue(stream)

    def take_lag(self) -> float:
        """The longest, in seconds, that a client with something to say was seen to wait since this was last asked."""
        lag, self._lag = self._lag, 0.0
        return lag

    # What layers tell of their streams.

    def readable(self, stream: Stream) -> None:
        """The layer has something to give, or one below it."""
        stream.unread = True
        self._enqueue(stream)
        self.wake()

    # Ends.

    def close(self, stream: Stream, now: float) -> None:
        """Send what *stream* is owed, then close it so that the peer can read it all."""
        if stream.state != OPEN:
            return
        stream.state = CLOSING
        # All pauses end: what the peer still sends is read and discarded. Otherwise a peer that is sending could not
        # read our last packet.
        stream.paused = 0
        stream.paused_reading_ahead = 0
        stream.paused_unauthenticated = 0
        self._forget_input(stream)
        self._closing.append((now + self.linger, stream))
        if stream.has_input():
            self._enqueue(stream)
        if stream.outbox.size == 0:
            self._shut(stream)
        else:
            stream.outbox.press()

    def destroy(self, stream: Stream) -> None:
        """Close *stream* at once."""
        if stream.state == CLOSED:
            return
        stream.state = CLOSED
        self._forget_input(stream)
        self._streams[stream.fd] = None
        self._blocked.pop(stream, None)
        stream.outbox.discard()
        if stream.layer is not None:
            stream.layer.close()
            stream.layer = None  # it knows its stream: each connection would be a cycle, for the collector to find
        stream.sock.close()  # leaves the epoll by itself

    def turn(self) -> float:
        """Work for about a slice; seconds until there will be something to do, 0 if there is now."""
        began = now = self._clock()
        deadline = began + SLICE
        latest = began + TURN
        seen = 0
        waited = 0.0
        timeout = 0.0
        while True:
            waits = timeout > 0.0
            if waits:
                pause = self.flushing.pause(now)
                if pause > 0.0:
                    time.sleep(pause)
                    timeout = 0.0
            events = self._epoll.poll(timeout, EVENTS)
            if waits:
                after = self._clock()
                waited += after - now
                deadline += after - now
                if deadline > latest:
                    deadline = latest
                now = after
            if events:
                seen += len(events)
                now = self._take(events, now)
            now = self._serve(now)
            if now >= self.flushing.due:
                self.flushing.release(now)
            more = self.service.work(now + LEAST)
            if more:
                now = self._clock()  # it used its time up, perhaps without anything to flush
            now = self._flush(now, deadline if deadline - now > LEAST else now + LEAST)
            if now >= deadline:
                break
            if more or self._ready.count or self._strangers.count or self.dirty.count or self._bulk.count:
                timeout = 0.0
            elif events and self._frequent(seen, now) and not self.guests and now < self._due:
                timeout = self._patience(now)
            elif events:
                timeout = 0.0
                now = self._clock()  # accepting alone looks at no clock
                if now >= deadline:
                    break
            else:
                break
        self._seen += seen
        if self._ready.count and now - self._ready.first().ready_at > self._lag and self._ready.first().handler is None:
            self._lag = now - self._ready.first().ready_at
        due = self._due = self.service.tick(now)
        if self._budget.used > self._budget.limit:
            self._shed(now)
        if self._input_bytes > self._most_input:
            self._shed_input(now)
        if self._closing or self._blocked or self._doors.reopens:
            due = min(due, self._housekeeping(now))
        spent = now - began - waited
        self.flushing.worked(spent, now)
        if self.flushing.due < due:
            due = self.flushing.due
        statistics = self.statistics
        statistics.slices += 1
        statistics.busy += spent
        if spent > statistics.longest_slice:
            statistics.longest_slice = spent
        busy = bool(more or self._ready.count or self._strangers.count or self.dirty.count or self._bulk.count)
        self._collector.look(not busy and seen == 0, now)
        return 0.0 if busy or now >= deadline else max(0.0, due - now)

    def _patience(self, now: float) -> float:
        """Seconds to wait for the next event: until something is due, or WAIT."""
        due = self._due if self._due < self.flushing.due else self.flushing.due
        if due - now > WAIT:
            return WAIT
        return due - now if due > now else 0.0

    def _frequent(self, seen: int, now: float) -> bool:
        """Events come so often that the next one is likely within OFTEN; *seen*: those of this slice."""
        if now - self._window_began >= WINDOW:
            self._expected = (self._seen + seen) / (now - self._window_began)
            self._window_began = now
            self._seen = -seen  # the slice adds them to the window that ended
        return self._expected * OFTEN >= 1.0

    def _take(self, events: list[tuple[int, int]], now: float) -> float:
        """Sort out what the kernel told; the time."""
        streams = self._streams
        for fd, mask in events:
            stream = streams[fd] if fd < len(streams) else None
            if mask == IN and stream is not None and not stream.paused:
                stream.unread = True
                if not stream.queued:
                    stream.queued = True
                    stream.ready_at = now
                    if stream.handler is None:
                        self._ready.append(stream)
                    else:
                        self._ready.appendleft(stream)
                continue
            if stream is None:
                if self._doors.is_one(fd):
                    if not self._doors.accept(fd, now):
                        self.service.out_of_descriptors()
                    now = self._clock()  # what it took is not to be missing when those who are in are served
                elif fd == self._wakeup:
                    self._wake_up()
                continue
            if mask & OUT and stream.outbox.blocked:
                self._unblock(stream)
            if mask & GONE and stream.paused and stream.handler is None:
                self.service.lost(stream, CloseReason.PEER_RESET, now)
            elif mask & ~OUT:
                stream.unread = True
                if mask & (PEER_SHUT | GONE):
                    stream.ends = True
                if not stream.paused or stream.reads_while_paused():
                    self._enqueue(stream)
                elif stream.paused_unauthenticated and stream.ends:
                    self._look_for_end(stream, now)
        return now

    def _look_for_end(self, stream: Stream, now: float) -> None:
        """Drop *stream*, paused and unauthenticated, if its peer has closed and no input is left to serve."""
        if stream.left:
            return
        try:
            self.bytes_received += stream.receive(SMALL_READ)
        except (OSError, ProtocolError):
            stream.finished = True
        if stream.finished:
            self.service.lost(stream, CloseReason.PEER_CLOSED, now)
            return
        if stream.layer is not None:
            self._heed(stream, stream.layer)
        self._input_bytes += stream.left - stream.accounted
        stream.accounted = stream.left

    def _enter(self, sock: socket.socket, address: str, transport: Transport) -> None:
        self.adopt(sock, address, self._clock(), transport)

    def _wake_up(self) -> None:
        """Somebody called `wake()` or `call()`."""
        os.eventfd_read(self._wakeup)
        self._woken = False
        self._seen -= 1  # it does not tell how soon a socket will have something
        for _ in range(min(CALLS, len(self._calls))):
            self._calls.popleft()()
        if self._calls:
            os.eventfd_write(self._wakeup, 1)

    def _enqueue(self, stream: Stream) -> None:
        if not stream.queued:
            stream.queued = True
            stream.ready_at = self._clock()
            self._ready.append(stream)

    def _serve(self, now: float) -> float:
        """Rounds over the ready streams until none is left or serving had its share, then strangers; the time."""
        ready = self._ready
        until = now + SERVE
        clients = False  # it is their turn; what those before them took is not to be missing
        while ready.count:
            quantum = self._quantum.of_round(ready.count)
            began = now
            units = 0
            for _ in range(ready.count):
                stream = ready.popleft()
                if stream.stranger:
                    self._strangers.append(stream)
                    continue
                stream.queued = False
                if not clients and stream.handler is None:
                    clients = True
                    until = now + SERVE
                units += self._serve_one(stream, quantum, now)
                now = self._clock()
                if stream.acknowledged:
                    self._time(stream, now)
                if clients and now >= until:
                    break
            if units >= TELLING:
                self._quantum.measured(units, now - began)
            if now >= until:
                break
        return self._serve_strangers(now, until) if self._strangers.count else now

    def _serve_strangers(self, now: float, until: float) -> float:
        """Serve a few, and more while nobody else needs the time; the time."""
        strangers = self._strangers
        quantum = self._quantum.of_round(strangers.count)
        few = STRANGERS
        while strangers.count and (few > 0 or now < until):
            stream = strangers.popleft()
            stream.queued = False
            self._serve_one(stream, quantum, now)
            now = self._clock()
            if stream.acknowledged:
                self._time(stream, now)
            few -= 1
        return now

    def _time(self, stream: Stream, now: float) -> None:
        """Publishes of *stream* have been acknowledged: since they were read it may have been held, or out of turn."""
        self.latencies.add(now - stream.read_at, stream.acknowledged)
        stream.acknowledged = 0

    def _serve_one(self, stream: Stream, quantum: int, now: float) -> int:
        """One stream's share of the round; the units it used."""
        if stream.paused or stream.state != OPEN:
            if stream.state == CLOSING or stream.state == LINGERING:
                self._discard_input(stream)
            elif stream.state == OPEN and stream.has_input() and stream.reads_while_paused():
                return self._read_ahead(stream, now)
            return 0
        if stream.debt >= quantum:  # it pays with its turn
            stream.debt -= quantum
            self._enqueue(stream)
            return 0
        quantum -= stream.debt
        if stream.handler is not None:
            return self._serve_attached(stream, stream.handler, quantum, now)
        units = 0
        left = stream.left
        if (left == 0 or left < stream.needs) and stream.has_input():
            stream.read_at = now
            size = LARGE_READ if self._input_bytes < self._input_budget >> 1 else SMALL_READ
            try:
                self.bytes_received += stream.receive(size)
            except OSError:
                self.service.lost(stream, CloseReason.PEER_RESET, now)
                return 1
            except ProtocolError as error:
                self.service.refuse(stream, error, now)
                return 1
            left = stream.left
            if stream.layer is not None:
                units = self._heed(stream, stream.layer)
        if units < quantum and left > 0 and left >= stream.needs:
            units += self.service.serve(stream, quantum - units, now)
            if stream.state != OPEN:
                return units
            left = stream.left
        stream.debt = units - quantum if units > quantum else 0
        if left != stream.accounted:
            self._input_bytes += left - stream.accounted
            stream.accounted = left
        if stream.paused:
            if stream.paused_unauthenticated and stream.ends:
                self._look_for_end(stream, now)
            return units
        if left == 0 or left < stream.needs:
            if stream.finished:
                self._finish(stream, now)
                return units
            if not stream.has_input():
                return units
        stream.queued = True
        stream.ready_at = now
        self._ready.append(stream)
        return units

    def _finish(self, stream: Stream, now: float) -> None:
        """The peer of *stream* sends no more; what it has asked for before it may read yet."""
        outbox = stream.outbox
        if outbox.size and not outbox.blocked:
            self._send(stream, outbox, now)
        if stream.state == OPEN:
            self.service.lost(stream, CloseReason.PEER_CLOSED, now)

    def _read_ahead(self, stream: Stream, now: float) -> int:
        """Read what *stream*, which is paused, receives meanwhile; return the units used.

        Reading ahead ends when as much is buffered as one read may bring.
        """
        full = stream.left >= LARGE_READ or self._input_bytes >= self._input_budget >> 1
        if full or stream.finished or stream.outbox.reply_backlog():
            return 0
        try:
            count = stream.receive(SMALL_READ)
        except OSError:
            self.service.lost(stream, CloseReason.PEER_RESET, now)
            return 1
        except ProtocolError as error:
            self.service.refuse(stream, error, now)
            return 1
        self.bytes_received += count
        units = 1
        if stream.layer is not None:
            units += self._heed(stream, stream.layer)
        if count:
            units += self.service.serve_while_paused(stream, count, now)
        if stream.state != OPEN:
            return units
        self._input_bytes += stream.left - stream.accounted
        stream.accounted = stream.left
        if stream.has_input():
            self._enqueue(stream)
        return units

    def _serve_attached(self, stream: Stream, handler: Handler, quantum: int, now: float) -> int:
        """The same for a stream that is no client's."""
        if stream.unread and (stream.left == 0 or stream.left < stream.needs):
            try:
                stream.receive(LARGE_READ)
            except OSError:
                handler.lost(stream, CloseReason.PEER_RESET, now)
                return 1
        units = 1
        if stream.left > 0 and stream.left >= stream.needs:
            units = handler.serve(stream, quantum, now)
            if stream.state != OPEN:
                return units
        stream.debt = units - quantum if units > quantum else 0
        if stream.left > 0 and stream.left >= stream.needs:
            self._enqueue(stream)
        elif stream.finished:
            handler.lost(stream, CloseReason.PEER_CLOSED, now)
        elif stream.unread:
            self._enqueue(stream)
        return units

    def _heed(self, stream: Stream, layer: Layer) -> int:
        """What *layer* has to say after it was read; the units that it used."""
        if layer.unsent and not stream.outbox.blocked:
            self._block(stream, self._clock())
        return layer.cost

    def _flush(self, now: float, deadline: float) -> float:
        """One send for each touched connection, until the slice ends; the time."""
        dirty = self.dirty
        bulk = self._bulk
        flushing = self.flushing
        while dirty.count or bulk.count:
            if dirty.count and (self._before_bulk > 0 or not bulk.count):
                outbox = dirty.popleft()
                if outbox.size > MUCH and not outbox.first:
                    bulk.append(outbox)
                    continue
                self._before_bulk -= 1
            else:
                outbox = bulk.popleft()
                self._before_bulk = LITTLE
            outbox.queued = False
            stream = self._streams[outbox.fd]
            if stream is not None and stream.outbox is outbox and not outbox.blocked:
                if outbox.strategy and not outbox.pressing and flushing.holds(outbox, now):
                    continue
                if outbox.size:
                    self._send(stream, outbox, now)
                elif stream.layer is not None and stream.layer.unsent:
                    self._send_own(stream, stream.layer, now)
            now = self._clock()
            if now >= deadline:
                break
        return now

    def _send(self, stream: Stream, outbox: Outbox, now: float) -> None:
        data = outbox.gather()
        try:
            count = stream.transmit(data)
        except OSError:
            self._lose(stream, now)
            return
        if stream.handler is None:
            self.bytes_sent += count
            self.flushes += 1
            self.flushing.sends(outbox, now)
        outbox.flushed(now)
        drained = outbox.sent(count)
        if outbox.size:
            if count < len(data):
                self._block(stream, now)
            else:
                outbox.queued = True
                self.dirty.append(outbox)
        elif stream.state == CLOSING:
            self._shut(stream)
        if drained and stream.state == OPEN:
            if stream.handler is None:
                self.service.drained(stream, now)
            else:
                stream.handler.drained(stream, now)

    def _send_own(self, stream: Stream, layer: Layer, now: float) -> None:
        """Have *layer* send what is not the outbox's."""
        try:
            layer.send(b"")
        except OSError:
            self._lose(stream, now)
            return
        if layer.unsent:
            self._block(stream, now)

    def _lose(self, stream: Stream, now: float) -> None:
        """Sending said that the peer is gone. What another worker had sent is read yet: it was acknowledged there."""
        if stream.state != OPEN:
            self.destroy(stream)
        elif stream.handler is None:
            self.service.lost(stream, CloseReason.PEER_RESET, now)
        else:
            stream.outbox.discard()
            try:
                stream.sock.shutdown(socket.SHUT_RDWR)  # behind what has come there is the end now, whatever failed
            except OSError:
                stream.handler.lost(stream, CloseReason.PEER_RESET, now)

    def _block(self, stream: Stream, now: float) -> None:
        """Nothing can be sent to *stream* until the kernel, or the layer, says so."""
        stream.outbox.blocked = True
        stream.stalled_at = now
        if stream.handler is None:
            self._blocked[stream] = None
        self._watch(stream)

    def _unblock(self, stream: Stream) -> None:
        outbox = stream.outbox
        if outbox.blocked:
            outbox.blocked = False
            self._blocked.pop(stream, None)
            self._watch(stream)
        if not outbox.queued and (outbox.size or stream.layer is not None):
            outbox.queued = True
            self.dirty.append(outbox)

    def _watch(self, stream: Stream) -> None:
        """Tell the kernel what we want to know of *stream*."""
        self._epoll.modify(stream.fd, WATCHED | OUT if stream.outbox.blocked else WATCHED)

    def _shut(self, stream: Stream) -> None:
        """All it was owed is with the kernel: close our side, and wait for the peer to close its own."""
        stream.state = LINGERING
        try:
            if stream.layer is None:
                stream.sock.shutdown(socket.SHUT_WR)
            else:
                stream.layer.end()
                if stream.layer.unsent:
                    self._block(stream, self._clock())
        except OSError:
            self.destroy(stream)
            return
        if stream.finished:
            self.destroy(stream)

    def _forget_input(self, stream: Stream) -> None:
        self._input_bytes -= stream.accounted
        stream.accounted = 0
        stream.forget_input()

    def _discard_input(self, stream: Stream) -> None:
        """Read and forget what a peer sends whom we are leaving."""
        layer = stream.layer
        try:
            if not (stream.read(LARGE_READ) if layer is None else layer.recv(LARGE_READ)):
                stream.finished = True
                if stream.state == LINGERING:
                    self.destroy(stream)
                return  # else it has said all it will, and has not taken all yet
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            self.destroy(stream)
            return
        if layer is not None:
            self._heed(stream, layer)
        if stream.has_input():
            self._enqueue(stream)

    def _shed(self, now: float) -> None:
        """The worker owes more than it may: the reader that is owed the most, of those who do not take it, goes."""
        largest: Stream | None = None
        for stream in self._blocked:
            if largest is None or stream.outbox.size > largest.outbox.size:
                largest = stream
        if largest is not None:
            self.service.lost(largest, CloseReason.OUTBOUND_BUDGET, now)

    def _shed_input(self, now: float) -> None:
        """The worker holds a quarter more input than it may: the largest packets that are not whole yet go."""
        for _ in range(SHED_AT_ONCE):
            stream = self._unfinished_input.largest(self._streams, now)
            if stream is None:
                break
            self.service.shed(stream, CloseReason.INPUT_BUDGET, now)
            if self._input_bytes <= self._most_input:
                break

    def _housekeeping(self, now: float) -> float:
        """Ends what lingers or stalls too long, and tries again to accept; the time of the next such thing."""
        closing = self._closing
        while closing and (closing[0][0] <= now or closing[0][1].state == CLOSED):
            self.destroy(closing.popleft()[1])
        due = closing[0][0] if closing else now + 1.0
        if self._doors.reopens:
            if now >= self._doors.reopens:
                self._doors.reopen()
            else:
                due = min(due, self._doors.reopens)
        if now - self._stalls_checked >= 1.0:
            self._stalls_checked = now
            for stream in list(self._blocked):
                if stream.took_something():
                    stream.stalled_at = now
                elif now - stream.stalled_at >= self._stall_timeout:
                    self.service.lost(stream, CloseReason.SLOW_CONSUMER, now)
        return due
