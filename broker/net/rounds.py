# Rounds: reading and serving the ready streams, each once a round and within its quantum.
#
# Unauthenticated streams are served behind the rounds: thousands of them that come at once, each with a handshake,
# would make every client wait for a round of them all.
# The kernel reports input of a stream once (edge-triggered). The stream stays `unread` until a read brings fewer bytes
# than it could. If the kernel reported it with each poll, unauthenticated streams that wait would hide those of clients
# (100 ms beside 10 000 of them), and a paused stream would have to be muted. So every path that takes a stream out of
# the ring puts it back, unless the stream is read to its end or paused.
from typing import Final

from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.sender import Sender
from broker.net.service import Service
from broker.net.stream import CLOSING, LARGE_READ, LINGERING, OPEN, SMALL_READ, Handler, Stream
from broker.overload.quantum import TELLING, Quantum
from broker.reasons import CloseReason, ProtocolError

SERVE: Final = 0.001  # seconds of a slice for serving before sending gets its share
UNAUTHENTICATED_AT_ONCE: Final = 8  # served in a slice at least, at 20 to 100 us each
# Units of a round at least for a stream that is not a client's: another worker's carries what many clients publish.
# With the share of one client, what was accepted would wait there while more is accepted here.
ATTACHED: Final = 5000
READS: Final = 16  # reads of such a stream in a round at most: what a handler has read of a long reply uses no units


class Rounds:
    def __init__(self, reactor: Reactor, sender: Sender, service: Service) -> None:
        self._reactor = reactor
        self._sender = sender
        self._service = service
        self._clock = reactor.clock
        self._input = reactor.input
        self._ready = reactor.ready
        self._unauthenticated = reactor.unauthenticated
        self._quantum = Quantum()

    def serve(self, now: float) -> float:
        """Serve the ready streams in rounds until none is left or the time for serving is used up; return the time.

        Unauthenticated streams follow.
        """
        ready = self._ready
        until = now + SERVE
        clients = False  # streams of clients have their turn: the time that handlers used before does not count
        while ready.count:
            quantum = self._quantum.of_round(ready.count)
            began = now
            units = 0
            for _ in range(ready.count):
                stream = ready.popleft()
                if stream.unauthenticated:
                    self._unauthenticated.append(stream)
                    continue
                stream.queued = False
                if not clients and stream.handler is None:
                    clients = True
                    until = now + SERVE
                units += self._serve_one(stream, quantum, now)
                now = self._clock()
                if stream.acknowledged:
                    self._add_latency(stream, now)
                if clients and now >= until:
                    break
            if units >= TELLING:
                self._quantum.measured(units, now - began)
            if now >= until:
                break
        return self._serve_unauthenticated(now, until) if self._unauthenticated.count else now

    def _serve_unauthenticated(self, now: float, until: float) -> float:
        """Serve a few unauthenticated streams, and more of them until the time *until*; return the time."""
        waiting = self._unauthenticated
        quantum = self._quantum.of_round(waiting.count)
        least = UNAUTHENTICATED_AT_ONCE
        while waiting.count and (least > 0 or now < until):
            stream = waiting.popleft()
            stream.queued = False
            self._serve_one(stream, quantum, now)
            now = self._clock()
            if stream.acknowledged:
                self._add_latency(stream, now)
            least -= 1
        return now

    def _add_latency(self, stream: Stream, now: float) -> None:
        """Publishes of *stream* were acknowledged. Pauses and waiting since they were read count."""
        self._reactor.latencies.add(now - stream.read_at, stream.acknowledged)
        stream.acknowledged = 0

    def _serve_one(self, stream: Stream, quantum: int, now: float) -> int:
        """Read and serve *stream* for its share of the round; return the units used."""
        if stream.paused or stream.state != OPEN:
            if stream.state == CLOSING or stream.state == LINGERING:
                self._discard_input(stream)
            elif stream.state == OPEN and stream.has_input() and stream.reads_while_paused():
                return self._read_ahead(stream, now)
            return 0
        if stream.debt >= quantum:  # it pays with its turn for what it used before
            stream.debt -= quantum
            self._reactor.enqueue(stream)
            return 0
        if stream.handler is not None:
            return self._serve_attached(stream, stream.handler, max(quantum, ATTACHED) - stream.debt, now)
        quantum -= stream.debt
        units = 0
        left = stream.left
        if (left == 0 or left < stream.needs) and (stream.unread or stream.has_input()):
            stream.read_at = now
            size = LARGE_READ if self._input.used < self._input.limit >> 1 else SMALL_READ
            try:
                self._reactor.bytes_received += stream.receive(size)
            except OSError:
                self._service.lost(stream, CloseReason.PEER_RESET, now)
                return 1
            except ProtocolError as error:
                self._service.refuse(stream, error, now)
                return 1
            left = stream.left
            if stream.layer is not None:
                self._reactor.block_if_unsent(stream, stream.layer)
                units = stream.layer.cost
        if units < quantum and left > 0 and left >= stream.needs:
            units += self._service.serve(stream, quantum - units, now)
            if stream.state != OPEN:
                return units
            left = stream.left
        stream.debt = units - quantum if units > quantum else 0
        if left != stream.accounted:
            self._input.used += left - stream.accounted
            stream.accounted = left
        if stream.paused:
            if stream.paused_unauthenticated and stream.end_reported:
                self.drop_if_ended(stream, now)
            return units
        if left == 0 or left < stream.needs:
            if stream.finished:
                self._finish(stream, now)
                return units
            if not stream.has_input():
                stream.behind_since = 0.0
                return units
        if not stream.behind_since:
            stream.behind_since = now
        stream.queued = True
        stream.ready_at = now
        self._ready.append(stream)
        return units

    def _finish(self, stream: Stream, now: float) -> None:
        """The peer of *stream* sends no more. It may still read the replies to what it sent before."""
        outbox = stream.outbox
        if outbox.size and not outbox.blocked:
            self._sender.send(stream, outbox, now)
        if stream.state == OPEN:
            self._service.lost(stream, CloseReason.PEER_CLOSED, now)

    def _read_ahead(self, stream: Stream, now: float) -> int:
        """Read what *stream*, which is paused, receives meanwhile; return the units used.

        Reading ahead ends when as much is buffered as one read may bring.
        """
        full = stream.left >= LARGE_READ or self._input.used >= self._input.limit >> 1
        if full or stream.finished or stream.outbox.reply_backlog():
            return 0
        try:
            count = stream.receive(SMALL_READ)
        except OSError:
            self._service.lost(stream, CloseReason.PEER_RESET, now)
            return 1
        except ProtocolError as error:
            self._service.refuse(stream, error, now)
            return 1
        self._reactor.bytes_received += count
        units = 1
        if stream.layer is not None:
            self._reactor.block_if_unsent(stream, stream.layer)
            units += stream.layer.cost
        if count and stream.left >= stream.needs:
            units += self._service.serve_while_paused(stream, now)
        if stream.state != OPEN:
            return units
        self._input.used += stream.left - stream.accounted
        stream.accounted = stream.left
        if stream.has_input():
            self._reactor.enqueue(stream)
        return units

    def _serve_attached(self, stream: Stream, handler: Handler, quantum: int, now: float) -> int:
        """Read and serve *stream*, which is not a client's, by *handler*; return the units used."""
        units = reads = 0
        while True:
            if stream.has_input() and (stream.left == 0 or stream.left < stream.needs):
                try:
                    stream.receive(LARGE_READ)
                except OSError:
                    handler.lost(stream, CloseReason.PEER_RESET, now)
                    return units + 1
                except ProtocolError as error:
                    handler.lost(stream, error.reason, now)
                    return units + 1
                if stream.layer is not None:
                    self._reactor.block_if_unsent(stream, stream.layer)
            if stream.left > 0 and stream.left >= stream.needs:
                units += handler.serve(stream, quantum - units, now)
                if stream.state != OPEN:
                    return units
            else:
                units += 1
            reads += 1
            served = stream.left == 0 or stream.left < stream.needs
            if not served or units >= quantum or reads == READS or not stream.has_input():
                break
        stream.debt = units - quantum if units > quantum else 0
        if not served:
            self._reactor.enqueue(stream)
        elif stream.finished:
            handler.lost(stream, CloseReason.PEER_CLOSED, now)
        elif stream.has_input():
            self._reactor.enqueue(stream)
        return units

    def _discard_input(self, stream: Stream) -> None:
        """Read and discard what the peer of *stream*, which is closing, still sends."""
        layer = stream.layer
        try:
            if not (stream.read(LARGE_READ) if layer is None else layer.recv(LARGE_READ)):
                stream.finished = True
                if stream.state == LINGERING:
                    self._reactor.destroy(stream)
                return  # a CLOSING stream has bytes to send yet
        except BlockingIOError:
            pass
        except (OSError, ProtocolError):
            self._reactor.destroy(stream)
            return
        if layer is not None:
            self._reactor.block_if_unsent(stream, layer)
        if stream.has_input():
            self._reactor.enqueue(stream)

    def drop_if_ended(self, stream: Stream, now: float) -> None:
        """Drop *stream*, paused and unauthenticated, if its peer has closed and no input is left to serve."""
        if stream.left:
            return
        if stream.paused & Pause.HANDSHAKE:  # its first step waits, and nobody would read the answer
            self._service.lost(stream, CloseReason.PEER_CLOSED, now)
            return
        try:
            self._reactor.bytes_received += stream.receive(SMALL_READ)
        except (OSError, ProtocolError):
            stream.finished = True
        if stream.finished:
            self._service.lost(stream, CloseReason.PEER_CLOSED, now)
            return
        if stream.layer is not None:
            self._reactor.block_if_unsent(stream, stream.layer)
        self._input.used += stream.left - stream.accounted
        stream.accounted = stream.left
