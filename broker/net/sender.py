# The sender: at the end of each iteration of the loop, one send for each stream that was written to.
#
# A stream with much to send is sent to behind those with little, of whom a few go between two of it. Beside a flood to
# hundreds of readers, with 64 KiB for each, every other message would leave behind megabytes.
import socket
from typing import Final

from broker.delivery.outbox import Outbox
from broker.delivery.ring import Ring
from broker.net.reactor import Reactor
from broker.net.service import Service
from broker.net.stream import CLOSING, OPEN, Stream
from broker.net.transports.layer import Layer
from broker.reasons import CloseReason

BULK: Final = 16 * 1024  # bytes: an outbox with more is sent behind the others
SENDS_BETWEEN_BULK: Final = 8  # sends of less between two of those, at about the price of one
LEAST: Final = 8  # sends of a turn, however long they take: the process that one of them wakes may take this processor


class Sender:
    def __init__(self, reactor: Reactor, service: Service) -> None:
        self.bulk: Ring[Outbox] = Ring()  # dirty outboxes of more than BULK
        self._before_bulk = SENDS_BETWEEN_BULK  # sends before the next of those
        self._reactor = reactor
        self._service = service
        self._clock = reactor.clock
        self._dirty = reactor.dirty
        self._flushing = reactor.flushing
        self._table = reactor.table

    def flush(self, now: float, deadline: float) -> float:
        """Send once to each stream that was written to, until *deadline*; to LEAST in any case. Return the time."""
        dirty = self._dirty
        bulk = self.bulk
        flushing = self._flushing
        sends = 0
        while dirty.count or bulk.count:
            if dirty.count and (self._before_bulk > 0 or not bulk.count):
                outbox = dirty.popleft()
                if outbox.size > BULK and not outbox.first:
                    bulk.append(outbox)
                    continue
                self._before_bulk -= 1
            else:
                outbox = bulk.popleft()
                self._before_bulk = SENDS_BETWEEN_BULK
            outbox.queued = False
            stream = self._table[outbox.fd]
            if outbox.blocked:
                outbox.compact()
            elif stream is not None and stream.outbox is outbox:
                if outbox.strategy and not outbox.pressing and flushing.holds(outbox, now):
                    continue
                if outbox.size:
                    self.send(stream, outbox, now)
                elif stream.layer is not None and stream.layer.unsent:
                    self._send_unsent(stream, stream.layer, now)
            now = self._clock()
            sends += 1
            if now >= deadline and (sends >= LEAST or not dirty.count):
                break
        return now

    def send(self, stream: Stream, outbox: Outbox, now: float) -> None:
        """Give the kernel what is in *outbox*, the outbox of *stream*, up to what one send takes."""
        data = outbox.gather()
        try:
            count = stream.transmit(data)
        except OSError:
            self._lose(stream, now)
            return
        if stream.handler is None:
            reactor = self._reactor
            reactor.bytes_sent += count
            reactor.flushes += 1
            self._flushing.sends(outbox, now)
        else:
            self._reactor.asked = True
        drained = outbox.sent(count, now)
        if outbox.size:
            if count < len(data):
                self._reactor.block(stream, now)
            else:
                outbox.queued = True
                self._dirty.append(outbox)
        elif stream.state == CLOSING:
            self._reactor.shut(stream)
        if drained and stream.state == OPEN:
            if stream.handler is None:
                self._service.drained(stream, now)
            else:
                stream.handler.drained(stream, now)

    def _send_unsent(self, stream: Stream, layer: Layer, now: float) -> None:
        """Have *layer* send bytes of its own, as the outbox of *stream* is empty."""
        try:
            layer.send(b"")
        except OSError:
            self._lose(stream, now)
            return
        if layer.unsent:
            self._reactor.block(stream, now)

    def _lose(self, stream: Stream, now: float) -> None:
        """Sending failed: the peer is gone. What another worker sent is still read: it was acknowledged there."""
        if stream.state != OPEN:
            self._reactor.destroy(stream)
        elif stream.handler is None:
            self._service.lost(stream, CloseReason.PEER_RESET, now)
        else:
            stream.outbox.discard()
            try:
                stream.sock.shutdown(socket.SHUT_RDWR)  # the end follows the received bytes now, whatever failed
            except OSError:
                stream.handler.lost(stream, CloseReason.PEER_RESET, now)
