# The mesh: what a worker knows of the others, and what it tells them.
#
# - A filter that gains its first subscriber here, or loses its last, is told to every peer under a sequence number,
#   and each confirms what it has taken. A SUBACK waits for that, so it means: subscribed in the whole node; and for
#   what a peer had sent before it confirmed, so whatever was retained before is found, wherever it was published.
# - A newcomer is told all that is subscribed to and retained, in pages, and serves nobody before it knows. It comes to
#   its peers by the supervisor, which hands both of them the ends of two pairs of sockets: who is at the other end is
#   known without a word, and there is nothing to dial, to refuse or to clean up.
# - Retained messages are written everywhere: each peer is told by whoever has not told it yet, that is by the worker
#   where it was set, or, when that is gone, by all.
# - The end of a lane is the death of a worker: the kernel tells it as soon as the supervisor has killed one that hangs.
#   Its interest is withdrawn at once, in effect; the filters themselves go in pages.
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.cluster import wire
from broker.cluster.control_lane import ControlEnds, ControlLane
from broker.cluster.data_lane import DataLane
from broker.cluster.peer import Peer, unbounded
from broker.cluster.takeovers import Takeovers
from broker.metrics.counters import Counters
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.overload.throttle import Throttle
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import WRITER_MASK, HybridClock
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.routing.routes import RESERVED, Routes
from broker.routing.shared import SharedGroup
from broker.session.message import NEVER, Message
from broker.session.origin import Origin
from broker.worker_id import WorkerId

PAGE: Final = 256  # filters, or retained messages, between two looks at the clock
LOOKED_AT: Final = 64  # shared subscriptions at once
LOOK: Final = 0.1  # seconds between two looks at who is quick in shared subscriptions
BURIED_AT_ONCE: Final = 1000
NOTHING: Final = 3600.0  # seconds


class Telling:
    """What a newcomer still has to be told."""

    def __init__(self, peer: Peer, filters: list[bytes], groups: list[SharedGroup], topics: list[bytes]) -> None:
        self.peer = peer
        self.filters = filters
        self.groups = groups
        self.topics = topics
        self.told_all = False  # but what is retained


class Barrier:
    """Peers that have not yet processed what was sent to them before it, and what to do when all have."""

    def __init__(self, peers: set[Peer], then: Callable[[float], None]) -> None:
        self.peers = peers
        self.then = then


class Mesh(Neighbours):
    """Beside a worker without peers it does nothing. It is the `Ends` of its lanes."""

    def __init__(
        self,
        worker: WorkerId,
        routes: Routes,
        retained: Retained,
        deliveries: Deliveries,
        reactor: Reactor,
        counters: Counters,
        takeovers: Takeovers,
        throttle: Throttle,
        on_report: Callable[[bytes, float], None],
        origin: Origin,
        clock: Callable[[], float],
        wall: Callable[[], float],
        failed: Callable[[Exception], None],
    ) -> None:
        self.takeovers = takeovers
        self._origin = origin
        self.peers: list[Peer] = []
        self._lanes: dict[Peer, DataLane] = {}
        self.throttle = throttle
        self._ends = _Ends(self)
        self.stamps = HybridClock(worker, wall)
        self._routes = routes
        self._retained = retained
        self._deliveries = deliveries
        self._reactor = reactor
        self._counters = counters
        self._clock = clock
        self.fail = failed
        self._sequence = 0
        self._unsettled: deque[tuple[int, Stream, Callable[[], None]]] = deque()
        self._barriers: dict[int, Barrier] = {}
        self._barrier = 0
        self._telling: deque[Telling] = deque()
        self._forgetting: deque[Peer] = deque()
        self._look_at = 0.0
        self._looking: list[SharedGroup] = []
        self.whole = False  # we have been told all there was when we came
        self.on_joined: Callable[[], None] = _nothing  # whenever a peer has told all it had to tell, or is gone
        self.on_report = on_report  # called with each overload report of a peer

    # Coming and going.

    def join(self, worker: WorkerId, data: socket.socket, control: socket.socket) -> None:
        """*worker* is at the other ends of *data* and *control*, which do not block."""
        name = f"worker {worker.shard}"
        data_stream = Stream(data, name, unbounded(data.fileno(), self._reactor.dirty))
        control_stream = Stream(control, name, unbounded(control.fileno(), self._reactor.dirty))
        gate = self.throttle.add_gate(str(worker), self._clock())
        peer = Peer(worker, data_stream, control_stream, gate)
        peer.confirmed = self._sequence
        self.peers.append(peer)
        lane = DataLane(peer, self._ends, self._routes, self._retained, self._deliveries, self._counters, self._origin)
        self._lanes[peer] = lane
        self._reactor.attach(data_stream, lane)
        self._reactor.attach(control_stream, ControlLane(peer, self._ends, self._routes))
        self.takeovers.joined(peer)
        names, groups = self._routes.index.names(), list(self._routes.shared_groups())
        self._telling.append(Telling(peer, names, groups, self._topics()))
        self._reactor.wake()

    def retell(self, peer: Peer) -> None:
        """*peer* joined, and one who was to tell it what he had retained died before he had."""
        self._telling.append(Telling(peer, [], [], self._topics()))
        self._reactor.wake()

    def _topics(self) -> list[bytes]:
        return self._retained.topics() + self._retained.deleted()

    def complete(self) -> bool:
        """All peers have told us all they had to tell."""
        return all(peer.told_all and peer.retained_all for peer in self.peers)

    def lose(self, peer: Peer, stream: Stream) -> None:
        """A lane of *peer* has ended."""
        self._reactor.destroy(stream)
        if not peer.gone:
            self._withdraw(peer)
        if stream is peer.data:
            self.takeovers.lost(peer)

    def _withdraw(self, peer: Peer) -> None:
        """*peer* is gone: nobody waits for it, and nothing is sent to it any more.

        What it has told of its clients is not read any more, or it would bring back what is withdrawn; what they have
        published is: that was acknowledged.
        """
        peer.gone = True
        self._reactor.destroy(peer.control)
        self.peers.remove(peer)
        self._routes.forget_all()
        self._forgetting.append(peer)
        for group in list(self._routes.shared_groups()):
            if peer in group.elsewhere:
                self._routes.learn_shared(group.share, group.filter, peer, 0, 0)
        if not peer.retained_all and not self.whole:
            for other in self.peers:
                other.retained_all = False
                other.tell(wire.frame(wire.RETELL))
        del self._lanes[peer]
        self.throttle.remove_gate(peer.gate, self._clock())
        for number in list(self._barriers):
            self.pass_barrier(peer, number)
        self.settle()
        self.on_joined()

    # What is subscribed to.

    def gained(self, filter: bytes) -> None:
        self._tell_change(wire.GAINED, filter)

    def lost(self, filter: bytes) -> None:
        self._tell_change(wire.LOST, filter)

    def shared(self, share: bytes, filter: bytes, members: int, quick: int) -> None:
        if self.peers:
            self._sequence += 1
            for peer in self.peers:
                peer.tell(wire.members(self._sequence, share, filter, members, quick))

    def _tell_change(self, kind: int, filter: bytes) -> None:
        if self.peers:
            self._sequence += 1
            told = wire.change(kind, self._sequence, filter)
            for peer in self.peers:
                peer.tell(told)

    def when_settled(self, stream: Stream, then: Callable[[], None]) -> None:
        """Call *then* once every peer knows all that has changed so far; until then *stream* is held.

        And what every peer had sent before it knew has come: whatever was retained anywhere before is there then.
        """
        if not self.peers:
            then()
            return
        self._sequence += 1
        for peer in self.peers:
            peer.tell(wire.number(wire.SYNC, self._sequence))
        self._reactor.pause(stream, Pause.SUBSCRIBE)
        self._unsettled.append((self._sequence, stream, then))

    def settle(self) -> None:
        """Somebody has confirmed, or is not there any more: go on with those who waited for it."""
        unsettled = self._unsettled
        while unsettled and self._settled(unsettled[0][0]):
            _, stream, then = unsettled.popleft()
            self._reactor.resume(stream, Pause.SUBSCRIBE)
            try:
                then()
            except Exception as error:
                self.fail(error)

    def _settled(self, sequence: int) -> bool:
        return all(peer.confirmed >= sequence for peer in self.peers)

    # What is retained.

    def free(self) -> bool:
        return all(peer.gate.free for peer in self.peers)

    def retained(self, message: Message, owner: str, stamp: int) -> None:
        self._write(wire.message(message, wire.KEEP | wire.DELIVER, owner, stamp) if self.peers else b"")

    def not_retained(self, message: Message) -> None:
        self._write(wire.message(message, wire.DELIVER, "", 0) if self.peers else b"")

    def _write(self, chunk: bytes) -> None:
        for peer in self.peers:
            peer.write(chunk)

    def report(self, report: bytes) -> int:
        """Tell every peer *report*, of at most `wire.LARGEST_REPORT` bytes, ahead of messages; how many there are."""
        told = wire.frame(wire.REPORT, report)
        for peer in self.peers:
            peer.tell(told)
        return len(self.peers)

    def gates(self) -> list[Gate]:
        return [peer.gate for peer in self.peers]

    # Barriers.

    def when_passed(self, then: Callable[[float], None], now: float) -> None:
        """Call *then* once every peer has processed all that was sent to it so far."""
        if not self.peers:
            then(now)
            return
        self._barrier += 1
        self._barriers[self._barrier] = Barrier(set(self.peers), then)
        self._write(b"\x00" + wire.number(wire.BARRIER, self._barrier))

    def pass_barrier(self, peer: Peer, number: int) -> None:
        barrier = self._barriers.get(number)
        if barrier is None:
            return
        barrier.peers.discard(peer)
        if barrier.peers:
            return
        del self._barriers[number]
        now = self._clock()
        try:
            barrier.then(now)
        except Exception as error:
            self.fail(error)

    # Work in pages, and what is done from time to time.

    def busy(self) -> bool:
        """There is something for `work()`."""
        return bool(self._telling or self._forgetting) or self.takeovers.busy()

    def work(self, until: float) -> bool:
        """Go on with what is unfinished, a page at least, until the time *until*; true if something is left."""
        self.takeovers.work(until)
        while self._telling or self._forgetting:
            if self._forgetting:
                if self._forget(self._forgetting[0]):
                    self._forgetting.popleft()
            elif self._tell(self._telling[0]):
                self._telling.popleft()
            elif not self._telling[0].peer.gate.open:
                self._telling.rotate(-1)
                return len(self._telling) > 1
            if self._clock() >= until:
                break
        return self.busy()

    def _forget(self, peer: Peer) -> bool:
        """Remove a page of the filters of *peer*, which is gone; true if none is left."""
        for _ in range(min(PAGE, len(peer.filters))):
            filter, _nothing = peer.filters.popitem()
            self._routes.unlearn(filter, peer)
        return not peer.filters

    def _tell(self, telling: Telling) -> bool:
        """Tell a newcomer the next page; true if that was all."""
        peer = telling.peer
        if peer.gone:
            return True
        if not telling.told_all:
            self._tell_interest(telling, peer)
            return False
        for _ in range(PAGE):
            if not peer.gate.open or not telling.topics:
                break
            self._tell_retained(peer, telling.topics.pop())
        if telling.topics:
            return False
        peer.write(b"\x00" + wire.frame(wire.ALL_RETAINED))
        return True

    def _tell_interest(self, telling: Telling, peer: Peer) -> None:
        """A page. What went meanwhile was told to be gone, perhaps before it was told to be there: it is left out."""
        for _ in range(min(PAGE, len(telling.filters))):
            filter = telling.filters.pop()
            if self._routes.index.has(filter):
                peer.tell(wire.change(wire.GAINED, 0, filter))
        for _ in range(min(PAGE, len(telling.groups))):
            group = telling.groups.pop()
            if len(group):
                peer.tell(wire.members(0, group.share, group.filter, len(group), group.quick()))
        if not telling.filters and not telling.groups:
            telling.told_all = True
            peer.tell(wire.frame(wire.ALL_TOLD))

    def _tell_retained(self, peer: Peer, topic: bytes) -> None:
        """What is retained there, or that nothing is any more, unless somebody else tells it."""
        kept = self._retained.kept(topic)
        if topic.startswith(RESERVED):
            return  # each worker's own
        if kept is None:
            stamp = self._retained.tombstone(topic)
            if stamp and self._ours(stamp):
                peer.write(wire.message(Message(topic, b"", 0, True, b"", NEVER), wire.KEEP, "", stamp))
        elif self._ours(kept.stamp):
            peer.write(wire.message(kept, wire.KEEP, kept.client_id, kept.stamp))

    def _ours(self, stamp: int) -> bool:
        """Whether no peer tells newcomers of the write with *stamp*: this worker made it, or a worker that is gone."""
        writer = stamp & WRITER_MASK
        return all(peer.writer != writer for peer in self.peers)

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        if not self.peers:
            return now + NOTHING
        for peer in self.peers:
            peer.mark(now)
        if now >= self._look_at:
            self._look_at = now + LOOK
            self.takeovers.tick(now)
            self._look_around()
            self._retained.bury(now, BURIED_AT_ONCE)
        due = self._look_at
        for lane in self._lanes.values():
            due = min(due, lane.tick(now))
        return due

    def tick_by(self, when: float) -> None:
        """A lane wants its tick at *when*, at the latest."""
        self._reactor.soon(when)

    def _look_around(self) -> None:
        """Look at some shared subscriptions, and all of them by turns."""
        for _ in range(LOOKED_AT):
            if not self._looking:
                self._looking = [one for one in self._routes.shared_groups() if len(one)]
                if len(self._looking) <= LOOKED_AT:
                    for group in self._looking:
                        self._look(group)
                    self._looking = []
                    return
            self._look(self._looking.pop())

    def _look(self, group: SharedGroup) -> None:
        """Tell the peers how many members of *group* are quick, if that is another number now."""
        group.look()
        here = (len(group), group.quick())
        if here != group.told:
            group.told = here
            self.shared(group.share, group.filter, *here)


class _Ends(ControlEnds):
    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def lane_lost(self, peer: Peer, stream: Stream, now: float) -> None:
        self._mesh.lose(peer, stream)

    def about_session(self, peer: Peer, kind: int, body: bytes) -> bool:
        return self._mesh.takeovers.take(peer, kind, body)

    def tick_by(self, when: float) -> None:
        self._mesh.tick_by(when)

    def stamp_seen(self, stamp: int) -> None:
        self._mesh.stamps.follow(stamp)

    def all_retained(self, peer: Peer) -> None:
        peer.retained_all = True
        self._mesh.whole = self._mesh.whole or self._mesh.complete()
        self._mesh.on_joined()

    def retell(self, peer: Peer) -> None:
        self._mesh.retell(peer)

    def all_told(self, peer: Peer) -> None:
        peer.told_all = True
        self._mesh.on_joined()

    def reported(self, report: bytes, now: float) -> None:
        try:
            self._mesh.on_report(report, now)
        except Exception as error:
            self._mesh.fail(error)

    def failed(self, error: Exception, now: float) -> None:
        self._mesh.fail(error)

    def confirmed(self, peer: Peer) -> None:
        peer.confirm()
        self._mesh.settle()

    def opened(self, peer: Peer, now: float) -> None:
        self._mesh.throttle.opened(peer.gate, now)

    def passed(self, peer: Peer, barrier: int, now: float) -> None:
        self._mesh.pass_barrier(peer, barrier)


def _nothing() -> None:
    pass
