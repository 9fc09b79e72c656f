# The lanes to the workers of other nodes: streams of the reactor whose bytes go through Redis pub/sub.
#
# A worker subscribes to one channel of its own, and publishes on those of the others, over two connections that do
# nothing else. To the mesh a lane is a stream like that of a socket pair: served in rounds with a quantum, blocked
# while the other end confirms too little, and ended by an end of input behind everything that was received.
# lane_pair.py has the rules that make two lanes reliable; here they meet the reactor and Redis.
#
# What a tick writes to a peer leaves in one message for both lanes, and all messages of a tick in one write to Redis:
# outboxes of lanes are flushed first, and the virtual stream whose flush composes the messages (`_Composer`) comes
# behind them. What clients publish for the peer may wait a moment for more of it while the worker is busy (BRIEF in
# delivery/flushing.py). Nothing else waits, and a frame on either lane takes it along. While Redis is away the lanes
# wait: WINDOW bytes are kept here, and the rest in the outboxes, which the gates of peers bound. Control frames have no
# gate: beyond MOST_WAITING the lanes fail and are begun anew.
#
# There are lanes to a thousand workers perhaps, of which few have something to do at one time. So those that have are
# in a heap by when, and a tick looks at no others.
import heapq
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.cluster.lane_message import DATA, LaneMessageError, decode
from broker.cluster.lane_pair import BEGUN_ANEW, IGNORED, SETTLING, LanePair, ReceivingLane, SendingLane
from broker.cluster.seal import LANE, Seal
from broker.delivery.outbox import ANY, BRIEF, OutboundBudget, Outbox, unbounded
from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.net.stream import OPEN, Stream
from broker.net.transports.layer import Layer
from broker.reasons import CloseReason
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, ByteStream
from broker.store.redis.keys import Keys
from broker.store.redis.publisher import PublishConnection, Publisher, publish_head
from broker.store.redis.pubsub import ChannelSubscription
from broker.worker_id import WorkerId

MOST_WAITING: Final = 16 * 1024 * 1024  # bytes of control frames that are not sent: the peer is gone or far too slow
MOST_UNSERVED: Final = 16 * 1024 * 1024  # bytes received that are not served; an honest peer's gate lets 2 MiB pass
LOOK: Final = 0.5  # seconds between two looks at the outboxes
SPARE: Final = 64  # entries of ends that are due, beyond four for each
LOG_INTERVAL: Final = 60.0  # seconds between two lines
NEVER: Final = float("inf")
NEVER_CONNECTED: Final = (0, 0)
SOMETHING: Final = b"\0"


class NodeLanesStatistics:
    def __init__(self) -> None:
        self.workers = 0  # to which there are lanes
        self.unpaired = 0  # of them: the other end has not answered yet
        self.unconfirmed = 0  # bytes that were given to lanes and are not confirmed
        self.unsent = 0  # bytes that wait in outboxes
        self.unserved = 0  # bytes that were received and are not served


class NodeLanes:
    def __init__(
        self,
        reactor: Reactor,
        publishing: ByteStream,
        subscribing: ByteStream,
        address: RedisAddress,
        prefix: str,
        worker: WorkerId,
        counters: Counters,
        log: Log,
        seal: Seal,
        wall: Callable[[], float],
        restarted: Callable[[WorkerId], None],
    ) -> None:
        """*worker*: this one. *publishing*, *subscribing*: for one connection to Redis at *address* each.

        *wall* returns Unix time in seconds. *restarted* is called with a worker to which lanes have failed, or which
        has begun them anew; they are closed already, and have to be opened again.
        """
        self._reactor = reactor
        self._worker = worker
        self._counters = counters
        self._log = log
        self._seal = seal
        self._wall = wall
        self._keys = Keys(prefix)
        self._db = address.db
        self._channel = self._keys.lane(address.db, worker.incarnation_text)
        name = f"weir-{worker.node}-{worker.shard}"
        self._publish = PublishConnection(publishing, address, f"{name}-lanes-out", log, self._disconnected)
        self._subscription = ChannelSubscription(
            subscribing, address, f"{name}-lanes-in", log, self._channel, self._received
        )
        self._restarted = restarted
        self._ends: dict[int, _Ends] = {}  # by the incarnation of the other end
        self._marked: list[_Ends] = []  # that have something to send
        self._epoch = 0  # the last one
        self._due: list[tuple[float, int, _Ends]] = []  # a heap: when ends have something to do; `_Ends.due` says so
        self._number = 0  # of the last entry
        self._look_at = 0.0  # while Redis is away: when all outboxes are looked at
        self._connected = NEVER_CONNECTED  # `times_ready` of both connections when the ends were told so
        self._restarts = 0  # that the log does not have
        self._logged = -LOG_INTERVAL
        self._lender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        sock = self._lender.dup()
        self._composing = Outbox(sock.fileno(), ANY, ANY >> 1, OutboundBudget(ANY), reactor.dirty)
        composer = _Composer(self)
        reactor.attach(_virtual(sock, "lanes", self._composing, composer), composer)

    def start(self, now: float) -> None:
        self._publish.start(now)
        self._subscription.start(now)

    def stop(self, now: float) -> None:
        """Close both connections to Redis: lanes carry nothing any more, and none can be opened."""
        self._publish.stop(now)
        self._subscription.stop(now)
        self._lender.close()

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is at *address* from now on. What Redis did not pass on is sent again there."""
        self._publish.move(address, now)
        self._subscription.move(address, now)

    def open(self, worker: WorkerId, now: float) -> tuple[Stream, Stream]:
        """Begin lanes to *worker*; return the streams of the data lane and of the control lane, to be attached.

        Lanes to *worker* that are open are closed before. OSError: no descriptors are left.
        """
        self.close(worker)
        self._epoch = max(int(self._wall() * 1_000_000), self._epoch + 1)
        pair = LanePair(self._worker.incarnation, self._epoch)
        channel = self._keys.lane(self._db, worker.incarnation_text)
        ends = _Ends(self, self._reactor, self._lender.dup(), self._lender.dup(), worker, pair, channel)
        self._ends[worker.incarnation] = ends
        self.mark(ends)
        self._reactor.wake()
        return ends.data.stream, ends.control.stream

    def close(self, worker: WorkerId) -> None:
        """End the lanes to *worker*, if there are any. The streams end behind what was received on them."""
        ends = self._ends.pop(worker.incarnation, None)
        if ends is not None:
            ends.closed = True
            ends.data.finish()
            ends.control.finish()
            self._reactor.wake()

    def unreached(self, worker: WorkerId, now: float) -> float:
        """Seconds for which *worker*, to which lanes are open, has had no connection to Redis; 0.0: it has one."""
        ends = self._ends.get(worker.incarnation)
        return 0.0 if ends is None else max(0.0, now - ends.pair.unreached_since)

    def tick(self, now: float) -> float:
        """Do what is due; return the time (s) of the next thing that will be."""
        due = min(self._publish.tick(now), self._subscription.tick(now))
        times = self._times_ready()
        if times != self._connected and self._ready():
            settling = SETTLING if self._connected != NEVER_CONNECTED else 0.0
            self._connected = times
            for ends in self._ends.values():
                ends.pair.connected(now, settling)
                self.mark(ends)
        if self._ready():
            return min(due, self._tick_due(now))
        return min(due, self._look_at_all(now))

    def statistics(self) -> NodeLanesStatistics:
        statistics = NodeLanesStatistics()
        for ends in self._ends.values():
            pair = ends.pair
            statistics.workers += 1
            statistics.unpaired += not pair.paired
            statistics.unconfirmed += pair.data.unconfirmed() + pair.control.unconfirmed()
            statistics.unsent += ends.data.stream.outbox.size + ends.control.stream.outbox.size
            statistics.unserved += ends.data.buffered + ends.control.buffered
        return statistics

    # What the layers and the connections call.

    def mark(self, ends: "_Ends") -> None:
        """*ends* may have something to send: compose it at the end of this tick."""
        if not ends.marked:
            ends.marked = True
            self._marked.append(ends)
            if not self._composing.size:
                self._composing.write(SOMETHING)

    def compose(self) -> None:
        """Publish what all marked ends have to send."""
        if self._connected != self._times_ready() or not self._ready():
            for ends in self._marked:
                ends.marked = False  # all are marked once both connections are READY
            self._marked.clear()
            return
        now = self._reactor.clock()
        counters = self._counters
        marked, self._marked = self._marked, []
        for ends in marked:
            ends.marked = False
            pair = ends.pair
            resent = pair.data.resent + pair.control.resent
            while not ends.closed and (message := pair.next_message(now)) is not None:
                counters.lane_messages_sent += 1
                counters.lane_bytes_sent += len(message)
                self._publish.publish(ends, ends.head, self._seal.seal(LANE, ends.channel, message), now)
            counters.lane_bytes_resent += pair.data.resent + pair.control.resent - resent
            self.due_by(ends, pair.due())

    def published(self, ends: "_Ends", receivers: int, now: float) -> None:
        ends.pair.published(receivers, now)
        self.due_by(ends, ends.pair.due())

    def _ready(self) -> bool:
        return self._publish.state == READY and self._subscription.state == READY

    def _times_ready(self) -> tuple[int, int]:
        return self._publish.times_ready, self._subscription.times_ready

    def _disconnected(self) -> None:
        for ends in self._ends.values():
            ends.pair.disconnected()

    def _received(self, sealed: bytes, now: float) -> None:
        counters = self._counters
        message = self._seal.open(LANE, self._channel, sealed, now)
        if message is None:  # counted and logged there
            return
        try:
            decoded = decode(message)
        except LaneMessageError:
            counters.lane_messages_ignored += 1
            return
        ends = self._ends.get(decoded.sender)
        if ends is None:
            counters.lane_messages_ignored += 1
            return
        counters.lane_messages_received += 1
        counters.lane_bytes_received += len(message)
        pair = ends.pair
        gaps = pair.gaps
        verdict = pair.take(decoded, now)
        if verdict == IGNORED:
            counters.lane_messages_ignored += 1
            return
        if verdict == BEGUN_ANEW:
            self._restart(ends, "the other end has begun anew", now)
            return
        counters.lane_gaps += pair.gaps - gaps
        for part in reversed(pair.arrived):  # the control lane is put before the data lane
            if part.lane == DATA:
                self._reactor.flushing.crossed()
                ends.data.push(part.data)
            else:
                ends.control.push(part.data)
        self._unblock(ends)
        if pair.wants_to_send():
            self.mark(ends)
        self.due_by(ends, pair.due())

    def blocked(self, ends: "_Ends") -> None:
        """Something waits in an outbox of *ends*: look from time to time how much that is."""
        self.due_by(ends, self._reactor.clock() + LOOK)

    def due_by(self, ends: "_Ends", when: float) -> None:
        """*ends* has something to do at *when*."""
        if when < ends.due:
            ends.due = when
            self._number += 1
            heapq.heappush(self._due, (when, self._number, ends))
            if len(self._due) > 4 * len(self._ends) + SPARE:
                self._forget_passed()
            self._reactor.soon(when)

    # Details.

    def _forget_passed(self) -> None:
        """Remove the entries of ends that have become due earlier: they would stay until their time has come."""
        self._due = [(ends.due, number, ends) for number, ends in enumerate(self._ends.values()) if ends.due < NEVER]
        heapq.heapify(self._due)

    def _unblock(self, ends: "_Ends") -> None:
        """Go on with what waits in the outboxes, if the lanes have room."""
        for layer, lane in ((ends.data, ends.pair.data), (ends.control, ends.pair.control)):
            if layer.stream.outbox.blocked and lane.has_room() and layer.stream.state == OPEN:
                self._reactor.unblock(layer.stream)

    def _tick_due(self, now: float) -> float:
        """Tick the ends that are due; the time at which the next ones are."""
        due = self._due
        while due and due[0][0] <= now:
            when, _, ends = heapq.heappop(due)
            if when == ends.due and not ends.closed:  # or it was due earlier, and is in the heap again
                ends.due = NEVER
                self._tick_one(ends, now)
        return due[0][0] if due else NEVER

    def _tick_one(self, ends: "_Ends", now: float) -> None:
        pair = ends.pair
        next_due = pair.tick(now)
        if pair.wants_to_send():
            self.mark(ends)
        if pair.failed:
            self._restart(ends, "the other end receives and confirms nothing", now)
        elif not self._end_if_full(ends, now):
            if ends.control.stream.outbox.size:
                next_due = min(next_due, now + LOOK)
            self.due_by(ends, next_due)

    def _look_at_all(self, now: float) -> float:
        """Redis is away, and all that is written waits: how much that is is looked at from time to time."""
        if now >= self._look_at:
            self._look_at = now + LOOK if self._ends else NEVER
            for ends in [*self._ends.values()]:
                if not ends.closed:
                    self._end_if_full(ends, now)
        return self._look_at

    def _end_if_full(self, ends: "_Ends", now: float) -> bool:
        full = ends.control.stream.outbox.size > MOST_WAITING
        if full:
            self._restart(ends, f"more than {MOST_WAITING} bytes wait", now)
        return full

    def _restart(self, ends: "_Ends", why: str, now: float) -> None:
        worker = ends.worker
        self.close(worker)
        self._counters.lane_restarts += 1
        self._restarts += 1
        if now - self._logged >= LOG_INTERVAL:
            self._log.warning("lanes_restarted", worker=str(worker), why=why, restarts=self._restarts)
            self._logged = now
            self._restarts = 0
        self._restarted(worker)


class _Ends(Publisher):
    """The ends of both lanes to one worker."""

    def __init__(
        self,
        lanes: NodeLanes,
        reactor: Reactor,
        data: socket.socket,
        control: socket.socket,
        worker: WorkerId,
        pair: LanePair,
        channel: bytes,
    ) -> None:
        """*data*, *control*: lend their descriptors. *channel*: of the other end."""
        self.marked = False
        self.closed = False
        self.due = NEVER  # when there is something to do
        self.worker: Final = worker
        self.pair: Final = pair
        self.channel: Final = channel
        self.head: Final = publish_head(channel)
        self._lanes: Final = lanes
        self.data: Final = _LaneLayer(self, reactor, data, pair.data, pair.incoming_data)
        self.data.stream.outbox.strategy = BRIEF
        self.control: Final = _LaneLayer(self, reactor, control, pair.control, pair.incoming_control)

    def mark(self, lane: "_LaneLayer") -> None:
        """*lane* has something to send."""
        held = self.data.stream.outbox
        if held.held and lane is self.control:
            held.press()  # before `mark()`, so that it is in the same message
        self._lanes.mark(self)

    def blocked(self) -> None:
        self._lanes.blocked(self)

    def published(self, receivers: int, now: float) -> None:
        self._lanes.published(self, receivers, now)


class _LaneLayer(Layer):
    """One lane as the layer of its stream."""

    def __init__(
        self, ends: _Ends, reactor: Reactor, sock: socket.socket, sending: SendingLane, receiving: ReceivingLane
    ) -> None:
        super().__init__()
        self.stream: Final = _virtual(sock, f"worker {ends.worker}", unbounded(sock.fileno(), reactor.dirty), self)
        self._ends = ends
        self._reactor = reactor
        self._sending = sending
        self._receiving = receiving
        self._received: deque[bytes] = deque()
        self._over = False

    # A layer.

    def recv(self, size: int) -> bytes:
        received = self._received
        if received:
            data = received.popleft()
            self.buffered -= len(data)
            self._receiving.full = self.buffered > MOST_UNSERVED
            self.more = self._over or len(received) > 0
            return data
        self.more = False
        if self._over:
            return b""
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        if not self._over:
            if not self._sending.has_room():
                self._ends.blocked()
                return 0
            self._sending.write(bytes(data))
            self._ends.mark(self)
        return len(data)

    def end(self) -> None:
        self._over = True

    def close(self) -> None:
        self._over = True
        self._received.clear()
        self.buffered = 0

    # What the lanes call.

    def push(self, data: bytes) -> None:
        """The other end has sent *data*."""
        if not self._over:
            self._received.append(data)
            self.buffered += len(data)
            self._receiving.full = self.buffered > MOST_UNSERVED
            self.more = True
            self._reactor.enqueue_first(self.stream)

    def finish(self) -> None:
        """Nothing is sent or received any more; the stream ends behind what was received."""
        if not self._over:
            self._over = True
            self.more = True
            self._reactor.enqueue_first(self.stream)


class _Composer(Layer):
    """The layer of a stream that is flushed behind all lanes; and its handler, which has nothing to serve."""

    def __init__(self, lanes: NodeLanes) -> None:
        super().__init__()
        self._lanes = lanes

    def recv(self, size: int) -> bytes:
        raise BlockingIOError

    def send(self, data: bytes | memoryview) -> int:
        self._lanes.compose()
        return len(data)

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        return 0

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        pass


def _virtual(sock: socket.socket, name: str, outbox: Outbox, layer: Layer) -> Stream:
    """A stream whose bytes *layer* gets and takes; *sock* lends its descriptor."""
    stream = Stream(sock, name, outbox)
    stream.virtual = True
    stream.layer = layer
    return stream
