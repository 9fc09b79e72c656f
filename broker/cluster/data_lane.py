# The data lane from a peer: messages that its clients published, for subscribers of this worker.
#
# The peer has checked, authorised, counted and acknowledged them. Here they are matched again and delivered to the
# subscribers here, and go on to another worker only for a shared subscription. A peer is always read, so no circle of
# waiting can form; only while a publish with thousands of receivers is under way the lane is paused, so that messages
# keep their order.
from broker.cluster import wire
from broker.cluster.confirmations import Confirmations
from broker.cluster.lane_listener import LaneListener, MeshError
from broker.cluster.peer import Peer
from broker.cluster.peer_lane import PeerLane
from broker.delivery.completion import Completion
from broker.metrics.counters import Counters
from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5, V311
from broker.mqtt.scanner import read_header
from broker.net.stream import Stream
from broker.overload.quantum import BYTES_PER_UNIT_SHIFT, PUBLISH_COST, VISIT_COST
from broker.reasons import DropReason
from broker.routing.fanout import Deliveries
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.origin import Origin
from broker.session.session import Session

TELL_EVERY = 64 * 1024  # bytes processed between two DONE frames, or
TELL_EACH = 8  # packets and frames (fewer than a gate lets pass without an answer), or
TELL_AFTER = 0.01  # seconds: gates measure delays by these frames
NOTHING_DUE = float("inf")


class DataLane(PeerLane):
    def __init__(
        self,
        peer: Peer,
        listener: LaneListener,
        routes: Routes,
        deliveries: Deliveries,
        counters: Counters,
        origin: Origin,
    ) -> None:
        self._origin = origin
        super().__init__(peer, listener)
        self._routes = routes
        self._deliveries = deliveries
        self._counters = counters
        self._format = V311
        self._latest: Completion | None = None  # of the publish that was taken last
        self._token = b""  # of the publish that comes next
        self._publisher = ""  # the client that has published it, if that matters
        self._confirmations = Confirmations(self._confirm_soon)
        self._unconfirmed = False  # there is something to confirm
        self._processed = 0
        self._told = 0
        self._told_at = 0.0
        self._untold = 0  # packets and frames since the last DONE

    def take_input(self, stream: Stream, quantum: int, now: float) -> int:
        data = stream.input
        position = begun = stream.position
        end = len(data)
        spent = 0
        taken = 0
        stream.needs = 0
        self._origin.worker = self._peer.worker
        while spent < quantum and position < end and not stream.paused:
            first = data[position]
            if first >= 0x30:
                body, stop = read_header(data, position, end, V311)
                if stop > end:
                    stream.needs = stop - position
                    break
                try:
                    spent += self._take_publish(stream, data, first, position, body, stop, now)
                except Exception as error:
                    self._listener.failed(error)
                    spent += PUBLISH_COST
            elif first == wire.FRAME:
                body = position + 1 + wire.HEAD
                if body > end:
                    stream.needs = body - position
                    break
                length = int.from_bytes(data[position + 1 : position + 5], "big")
                if not 0 < length <= wire.LONGEST:
                    raise MeshError(f"a frame of {length} bytes on the data lane")
                stop = position + 5 + length
                if stop > end:
                    stream.needs = stop - position
                    break
                try:
                    spent += self._take_frame(stream, data, data[body - 1], body, stop, now)
                except MeshError:
                    raise
                except Exception as error:
                    self._listener.failed(error)
                    spent += PUBLISH_COST
            elif first == wire.CONFIRM:
                self._confirmations.add(self._latest)
                stop = position + 1
            elif first == wire.TOKEN:
                stop = position + 1 + wire.TOKEN_BYTES
                if stop > end:
                    stream.needs = stop - position
                    break
                self._token = data[position + 1 : stop]
            elif first == wire.FORMAT_3 or first == wire.FORMAT_5:
                self._format = first
                stop = position + 1
            else:
                raise MeshError(f"byte {first:#04x} on the data lane")
            position = stop
            taken += 1
        self._origin.worker = self._origin.here
        self._processed += position - begun
        self._peer.taken = self._processed
        stream.position = position
        stream.left = end - position
        if position == end:
            stream.input = b""
            stream.position = 0
        if self._peer.promised():
            self._listener.confirmed(self._peer)
        self._untold += taken
        if self._untold >= TELL_EACH or self._processed - self._told >= TELL_EVERY:
            self._tell(now)
        elif taken:
            self._listener.lane_due(self._peer, self._told_at + TELL_AFTER)
        return spent

    def _confirm_soon(self) -> None:
        if not self._unconfirmed:
            self._unconfirmed = True
            self._listener.lane_due(self._peer, 0.0)

    def tick(self, now: float) -> float:
        """Send what is due; return the time at which the next thing will be."""
        if self._unconfirmed:
            self._unconfirmed = False
            self._peer.tell(self._confirmations.take())
        if self._told == self._processed:
            return NOTHING_DUE
        if now < self._told_at + TELL_AFTER:
            return self._told_at + TELL_AFTER
        self._tell(now)
        return NOTHING_DUE

    def _tell(self, now: float) -> None:
        self._untold = 0
        self._told = self._processed
        self._told_at = now
        self._peer.tell(wire.number(wire.DONE, self._processed))

    def _take_publish(
        self, stream: Stream, data: bytes, first: int, position: int, body: int, stop: int, now: float
    ) -> int:
        """Take a PUBLISH packet, which has no retain flag and no expiry; return the units used."""
        after = body + 2 + (data[body] << 8 | data[body + 1])
        qos = first >> 1 & 3
        section = after + 2 if qos else after
        topic = data[body + 2 : after]
        if self._format == V5:
            length, inside = read_length(data, section, stop, V5)
            properties = data[inside : inside + length]
            message = Message(topic, data[inside + length : stop], qos, False, properties, NEVER)
            message.head5 = data[position:after]
        else:
            message = Message(topic, data[section:stop], qos, False, b"", NEVER)
            message.head3 = data[position:after]
        return self._deliver(stream, message, now)

    def _deliver(self, stream: Stream, message: Message, now: float) -> int:
        self._latest = None
        if self._token:
            completion = message.completion = Completion()
            completion.token, self._token = self._token, b""
        publisher: Session | None = None
        if self._publisher:
            publisher, self._publisher = self._listener.session(self._publisher), ""
        route = self._routes.find(message.topic)
        self._latest = self._deliveries.deliver_crossed(route, message, stream.outbox, now, publisher)
        return PUBLISH_COST + route.price + (message.size >> BYTES_PER_UNIT_SHIFT) + self._visits()

    def _visits(self) -> int:
        """The units for what was visited to find the route."""
        return VISIT_COST * self._routes.take_visits() if self._routes.visits else 0

    def _take_frame(self, stream: Stream, data: bytes, kind: int, start: int, stop: int, now: float) -> int:
        """Take a frame; return the units used."""
        if kind == wire.RUN:
            run = wire.read_run(data, start, stop)
            route = self._routes.find(run.topic)
            self._deliveries.deliver_crossed_run(route, run, stream.outbox, now)
            return run.count * (PUBLISH_COST + route.price) + (stop - start >> BYTES_PER_UNIT_SHIFT) + self._visits()
        if kind == wire.MESSAGE:
            message, flags, owner, stamp = wire.read_message(data, start, stop, self._peer.shift)
            if flags & wire.KEEP:
                self._listener.retained(self._peer, message, owner, stamp, now)
            return self._deliver(stream, message, now) if flags & wire.DELIVER else PUBLISH_COST
        if kind == wire.SHARED:
            share, filter, hop, message = wire.read_shared(data, start, stop, self._peer.shift)
            self._latest = None
            if not self._routes.shared_group(share, filter).deliver(message, now, hop):
                self._counters.dropped(DropReason.NO_SHARED_MEMBER, 1)
            self._latest = message.completion
            return PUBLISH_COST + (message.size >> BYTES_PER_UNIT_SHIFT)
        if kind == wire.PUBLISHER:
            self._publisher = data[start:stop].decode(errors="surrogateescape")
            return 1
        if kind == wire.BARRIER:
            self._peer.tell(wire.frame(wire.PASSED, data[start:stop]))
            return 1
        if kind == wire.ALL_RETAINED:
            self._listener.all_retained(self._peer)
            return 1
        self._origin.worker = (
            self._origin.here
        )  # what follows from the frame, such as a will, is published by this worker
        try:
            if self._listener.about_session(self._peer, kind, data[start:stop]):
                return PUBLISH_COST
        finally:
            self._origin.worker = self._peer.worker
        raise MeshError(f"a frame of kind {kind} on the data lane")
