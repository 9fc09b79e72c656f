# The loop: serves all streams of a worker in slices.
#
# trio stays the scheduler: it waits for our epoll and calls `turn()`, which works for about a slice and returns. A
# slice polls, serves the ready streams (rounds.py), continues unfinished work, and sends (sender.py). What is written
# to an outbox while it waits for its send leaves in the same send. Serving gets half of a slice, unfinished work a
# quarter and sending the rest, so that none starves another, and a long fan-out merges with what comes in meanwhile.
# Why not one trio task per connection? It costs twice the CPU at one message per wake-up, measured.
#
# Returning to trio costs about 60 us a wake-up, and to come back from it as much again. So while events come more often
# than once a millisecond, or Redis or another worker was asked for something, the loop waits for the next one in its
# own epoll. When little happens it does not, as that would delay other tasks for nothing. What a tick writes leaves in
# that turn.
# A wait of one millisecond would be enough, but the kernel sets and clears such a timer in hardware: 3 to 15 us of each
# wait on virtual machines. A timer behind the kernel's next tick costs nothing. Whatever is due ends the wait.
# While only held messages leave (delivery/flushing.py), the loop sleeps a little first and finds several events at
# once.
import socket
import time
from typing import Final

from broker.delivery.outbox import OutboundBudget
from broker.net.acceptor import Acceptor
from broker.net.collector import Collector
from broker.net.reactor import GONE, IN, OUT, PEER_SHUT, Reactor
from broker.net.rounds import Rounds
from broker.net.sender import Sender
from broker.net.service import Service
from broker.net.stream_limits import StreamLimits
from broker.net.transports.transport import TCP, Transport
from broker.reasons import CloseReason

SLICE: Final = 0.002  # seconds of work before other tasks get a chance
TURN: Final = 0.01  # seconds of work and waiting before they do, plus one WAIT; 5 ms cost 8% more CPU than 20 ms
SHARE: Final = 0.0005  # seconds of a slice for unfinished work, and at least for sending, however long serving took
EXPECTED_WITHIN: Final = 0.001  # seconds: if the next event is expected so soon, the loop waits for it by itself
WAIT: Final = 0.01  # seconds of such a wait: beyond the kernel's tick, which comes each 4 ms as a rule
WINDOW: Final = 0.010  # seconds over which events are counted, to know how soon to expect the next
EVENTS: Final = 512  # of one poll


class LoopStatistics:
    """How long other tasks of the worker had to wait for the loop; seconds. Waiting for events does not count."""

    def __init__(self) -> None:
        self.slices = 0
        self.longest_slice = 0.0
        self.busy = 0.0


class Loop:
    def __init__(
        self,
        reactor: Reactor,
        service: Service,
        collector: Collector,
        budget: OutboundBudget,
        *,
        stall_timeout: float,
    ) -> None:
        """*budget*: of the outboxes of all clients; *stall_timeout*: see `StreamLimits`."""
        self.statistics = LoopStatistics()
        self._reactor = reactor
        self._service = service
        self._collector = collector
        self._budget = budget
        self._clock = reactor.clock
        self._input = reactor.input
        self._flushing = reactor.flushing
        self._ready = reactor.ready
        self._unauthenticated = reactor.unauthenticated
        self._dirty = reactor.dirty
        self._acceptor = Acceptor(reactor, service)
        self._sender = Sender(reactor, service)
        self._bulk = self._sender.bulk
        self._rounds = Rounds(reactor, self._sender, service)
        self._limits = StreamLimits(reactor, service, stall_timeout)
        self._window_began = 0.0
        self._seen = 0  # events in the current window
        self._expected = 0.0  # events a second in the last window

    def fileno(self) -> int:
        """A descriptor that is readable when `turn()` has something to do."""
        return self._reactor.epoll.fileno()

    def listen(self, listener: socket.socket, transport: Transport = TCP) -> None:
        """Accept connections from *listener*, a non-blocking socket that listens."""
        self._acceptor.listen(listener, transport)

    def stop_listening(self) -> None:
        """Accept no more connections."""
        self._acceptor.close()

    def adopt(self, sock: socket.socket, address: str, now: float, transport: Transport = TCP) -> None:
        """Serve *sock*, a connected non-blocking socket, unless the service refuses it."""
        self._acceptor.adopt(sock, address, now, transport)

    def shut_down(self) -> None:
        """Close all listeners and streams at once; the loop and its reactor are of no use any more."""
        self._acceptor.close()
        self._reactor.shut_down()

    def turn(self) -> float:
        """Work for about a slice; return the seconds until there will be something to do, 0 if there is now."""
        began = now = self._clock()
        deadline = began + SLICE
        latest = began + TURN
        seen = 0
        waited = 0.0
        timeout = due = 0.0
        reactor = self._reactor
        reactor.asked = False
        while True:
            ticked = False
            waits = timeout > 0.0
            if waits:
                pause = self._flushing.pause(now)
                if pause > 0.0:
                    time.sleep(pause)
                    timeout = 0.0
            events = reactor.epoll.poll(timeout, EVENTS)
            if waits:
                after = self._clock()
                waited += after - now
                deadline += after - now
                if deadline > latest:
                    deadline = latest
                now = after
            reactor.polled_at = now
            if events:
                seen += len(events)
                now = self._take(events, now)
            now = self._rounds.serve(now)
            if now >= self._flushing.due:
                self._flushing.release(now)
            more = self._service.work(now + SHARE)
            if more:
                now = self._clock()  # its time is used up, perhaps without anything to send
            now = self._sender.flush(now, deadline if deadline - now > SHARE else now + SHARE)
            if now >= deadline:
                break
            if more or self._ready.count or self._unauthenticated.count or self._dirty.count or self._bulk.count:
                timeout = 0.0
            elif (
                events
                and (self._frequent(seen, now) or reactor.asked)
                and not reactor.urgent_tasks
                and now < reactor.due
            ):
                timeout = self._patience(now)
            elif events:
                timeout = 0.0
                now = self._clock()  # accepting alone does not read the clock
                if now >= deadline:
                    break
            else:
                now = self._clock()
                due = reactor.due = self._service.tick(now)
                ticked = True
                if reactor.urgent_tasks:
                    break
                if self._dirty.count:  # it leaves now, and not a pass of trio's later
                    timeout = 0.0
                elif reactor.asked and due > now and not waits and not reactor.drained:
                    timeout = self._patience(now)
                else:
                    break
        self._seen += seen
        if (
            self._ready.count
            and now - self._ready.first().ready_at > reactor.lag
            and self._ready.first().handler is None
        ):
            reactor.lag = now - self._ready.first().ready_at
        if not ticked:
            due = reactor.due = self._service.tick(now)
        while reactor.drained:
            self._service.drained(reactor.drained.popleft(), now)
        if self._budget.used > self._budget.limit:
            self._limits.shed_output(now)
        if self._input.used > self._input.most:
            self._limits.shed_input(now)
        if reactor.lingering or reactor.blocked:
            due = min(due, self._limits.enforce_deadlines(now))
        if self._acceptor.retry_at:
            due = min(due, self._acceptor.retry(now))
        spent = now - began - waited
        self._flushing.worked(spent, now)
        if self._flushing.due < due:
            due = self._flushing.due
        statistics = self.statistics
        statistics.slices += 1
        statistics.busy += spent
        if spent > statistics.longest_slice:
            statistics.longest_slice = spent
        busy = bool(more or self._ready.count or self._unauthenticated.count or self._dirty.count or self._bulk.count)
        self._collector.collect_if_due(not busy and seen == 0, now)
        return 0.0 if busy or now >= deadline else max(0.0, due - now)

    def _patience(self, now: float) -> float:
        """Seconds to wait for the next event: until something is due, at most WAIT."""
        due = self._reactor.due if self._reactor.due < self._flushing.due else self._flushing.due
        if due - now > WAIT:
            return WAIT
        return due - now if due > now else 0.0

    def _frequent(self, seen: int, now: float) -> bool:
        """Whether the next event is expected within EXPECTED_WITHIN; *seen*: the events of this slice."""
        if now - self._window_began >= WINDOW:
            self._expected = (self._seen + seen) / (now - self._window_began)
            self._window_began = now
            self._seen = -seen  # the slice adds them to the window that ended
        return self._expected * EXPECTED_WITHIN >= 1.0

    def _take(self, events: list[tuple[int, int]], now: float) -> float:
        """Act on what the kernel reports; return the time."""
        reactor = self._reactor
        table = reactor.table
        for fd, mask in events:
            stream = table[fd] if fd < len(table) else None
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
                if self._acceptor.listens_on(fd):
                    self._acceptor.accept(fd, now)
                    now = self._clock()  # so that connected clients do not lose the time that accepting took
                elif fd == reactor.wakeup:
                    reactor.woken()
                    self._seen -= 1  # it does not say how soon a socket will have input
                continue
            if mask & OUT and stream.outbox.blocked:
                reactor.unblock(stream)
            if mask & GONE and stream.paused and stream.handler is None:
                self._service.lost(stream, CloseReason.PEER_RESET, now)
            elif mask & ~OUT:
                stream.unread = True
                if mask & (PEER_SHUT | GONE):
                    stream.end_reported = True
                if not stream.paused or stream.reads_while_paused():
                    reactor.enqueue(stream)
                elif stream.paused_unauthenticated and stream.end_reported:
                    self._rounds.drop_if_ended(stream, now)
        return now
