# The mesh: every worker of a node is joined to every other one by two lanes, each a socket pair.
#
# - The supervisor makes the socket pairs and hands each end to a worker, so the identity at the other end is known
#   without a handshake, and there is nothing to dial, to refuse or to clean up.
# - A peer that joins is told everything (full_sync.py), and tells everything. A worker serves no client before that is
#   complete. Changes after that are announced (announcements.py).
# - The end of a lane is the death of the worker: the kernel reports it as soon as the supervisor has killed a worker
#   that hangs. Nothing is sent to that peer any more, and nothing waits for it. What it has told of its subscribers is
#   withdrawn, page by page; messages that it sent before are still delivered, as they were acknowledged.
# - The durable sessions of a dead worker are adopted by the one that follows it. Until that has told all its filters,
#   publishes for them wait at the gate of the dead worker: what is acknowledged meanwhile would reach nobody. The same
#   holds for its cold sessions, of which peers know hashes only (routing/remote_interest.py).
# - If all workers of a node start at once, nobody remembers anything. So with stored sessions a worker also waits for
#   peers that have not joined yet: it has to know what is subscribed to at each shard before it takes a publish. It
#   waits for as long as that takes, and says so: its supervisor starts a worker of each shard again, or ends the node.
# - The deletion of a retained message may overtake the write that it deletes, on its way to a third worker, which then
#   has nothing to delete and keeps no tombstone. So the worker that made the write repeats the deletion behind it.
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from broker.cluster import wire
from broker.cluster.announcements import Announcements
from broker.cluster.barriers import Barriers
from broker.cluster.control_lane import ControlLane
from broker.cluster.data_lane import DataLane
from broker.cluster.full_sync import PAGE, FullSync
from broker.cluster.lane_listener import LaneListener
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.shared_members import SharedMembers
from broker.cluster.takeovers import Takeovers
from broker.delivery.completion import Completion
from broker.delivery.outbox import unbounded
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.overload.level import log_of, store_memory_of, store_of, without_gate
from broker.overload.throttle import Throttle
from broker.routing.fanout import Deliveries
from broker.routing.hash_set import HashSet
from broker.routing.hybrid_clock import HybridClock
from broker.routing.neighbour import Neighbour
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.routing.shared import SharedGroup
from broker.session.message import Message
from broker.session.origin import Origin
from broker.session.session import Session
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore
from broker.worker_id import WorkerId

HOUSEKEEPING: Final = 0.1  # seconds
NOTHING_DUE: Final = 3600.0  # seconds


class Withdrawal:
    """What *neighbour*, which is gone, has left in the routes: members of *groups*, and *filters*.

    *cold*: what its cold sessions wanted, which is not in the routes any more.
    """

    def __init__(
        self,
        neighbour: Neighbour,
        filters: dict[bytes, None],
        groups: list[SharedGroup],
        cold: HashSet | None = None,
    ) -> None:
        self.neighbour = neighbour
        self.filters = filters
        self.groups = groups
        self.cold = cold


class Mesh(LaneListener):
    """Beside a worker without peers it does nothing."""

    def __init__(
        self,
        peers: Peers,
        announcements: Announcements,
        barriers: Barriers,
        takeovers: Takeovers,
        throttle: Throttle,
        routes: Routes,
        retained: Retained,
        deliveries: Deliveries,
        reactor: Reactor,
        counters: Counters,
        origin: Origin,
        stamps: HybridClock,
        report_received: Callable[[bytes, float], None],
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
        abandon: Callable[[Completion, float], None],
        adopted: Callable[[], bool],
        durable: DurableStore | None,
        sessions: SessionStore,
    ) -> None:
        """*report_received* is called with each overload report of a peer; *failed* with exceptions of our own code;
        *abandon* with publishes that a peer may have lost. *adopted*: see `FullSync`. *durable*: stores sessions and
        retained messages; None: they are in memory only.
        """
        self._durable = durable
        self._sessions = sessions
        self._peers = peers
        self._announcements = announcements
        self._barriers = barriers
        self._takeovers = takeovers
        self._throttle = throttle
        self._routes = routes
        self._retained = retained
        self._deliveries = deliveries
        self._reactor = reactor
        self._counters = counters
        self._origin = origin
        self._stamps = stamps
        self._report_received = report_received
        self._clock = clock
        self._failed = failed
        self._abandon = abandon
        self._adopted = adopted
        self._full_sync = FullSync(peers, routes, retained, adopted)
        self._shared_members = SharedMembers(routes, announcements)
        self._lanes: dict[Peer, DataLane] = {}
        self._withdrawing: deque[Withdrawal] = deque()  # of peers that are gone
        self._orphaned: list[Peer] = []  # peers that are gone, and whose durable sessions nobody has adopted yet
        self._housekeeping_at = 0.0
        self._told: set[int] = set()  # shards whose worker, or a former one, has told all its filters
        self._was_complete = False  # everything that there was when this worker joined has been received
        self._when_complete: list[Callable[[], None]] = []

    @property
    def peers(self) -> list[Peer]:
        return self._peers.all

    # Coming and going.

    def join(self, worker: WorkerId, data: socket.socket, control: socket.socket) -> None:
        """*worker* is at the other ends of *data* and *control*, which do not block."""
        name = f"worker {worker.shard}"
        data_stream = Stream(data, name, unbounded(data.fileno(), self._reactor.dirty))
        control_stream = Stream(control, name, unbounded(control.fileno(), self._reactor.dirty))
        now, resource = self._clock(), str(worker)
        gate = self._throttle.add_gate(resource, now, without_gate(resource))
        store: Gate | None = None
        log: Gate | None = None
        if self._durable is not None:
            store = self._throttle.add_gate(store_of(resource), now, (store_memory_of(resource),))
            if self._durable.log_gate() is not None:
                log = self._throttle.add_gate(log_of(resource), now)
        peer = Peer(worker, data_stream, control_stream, gate, store, log)
        self._announcements.joined(peer)
        self._peers.all.append(peer)
        lane = DataLane(peer, self, self._routes, self._deliveries, self._counters, self._origin)
        self._lanes[peer] = lane
        self._reactor.attach(data_stream, lane)
        self._reactor.attach(control_stream, ControlLane(peer, self, self._routes))
        self._takeovers.joined(peer)
        self._full_sync.begin(peer)
        self._reactor.wake()

    def untold(self) -> list[int]:
        """With stored sessions: the shards whose filters nobody has told yet, as their workers have yet to come."""
        if self._durable is None:
            return []
        me = self._origin.here.shard
        return [shard for shard in range(self._durable.workers) if shard != me and shard not in self._told]

    def complete(self) -> bool:
        """Whether every peer has told everything that it had to tell; with stored sessions, also those to come."""
        if self._durable is not None and len(self._told) < self._durable.workers - 1:
            return False
        return all(peer.told_all and peer.retained_all for peer in self._peers.all)

    def when_complete(self, then: Callable[[], None]) -> None:
        """Call *then* once, as soon as `complete()` holds."""
        self._when_complete.append(then)
        self._check_complete()

    def _check_complete(self) -> None:
        if self._durable is not None:
            all_here = len(self._peers.all) + 1 >= self._durable.workers and not self._orphaned
            self._routes.set_members_known(all_here and self._adopted() and self.complete())
        if self._when_complete and self.complete():
            waiting, self._when_complete = self._when_complete, []
            for then in waiting:
                then()

    def _withdraw(self, peer: Peer) -> None:
        """*peer* is gone: nothing waits for it, and nothing is sent to it any more.

        Its control lane is not read to the end, or interest would come back that is withdrawn here. Its data lane is:
        the messages on it were acknowledged.
        """
        now = self._clock()
        peer.gone = True
        self._reactor.destroy(peer.control)
        self._peers.all.remove(peer)
        self._routes.invalidate()
        self._withdrawing.append(Withdrawal(peer, peer.filters, list(self._routes.shared_groups())))
        if not peer.retained_all and not self._was_complete:
            for other in self._peers.all:
                other.retained_all = False
                other.tell(wire.frame(wire.RETELL))
        peer.confirming.orphaned = True
        self._abandon_all(peer, now)
        del self._lanes[peer]
        confirming = peer.confirming
        if confirming.filters or confirming.shared or self._routes.has_cold_elsewhere(confirming):
            peer.gate.reset(now)
            peer.gate.block()
            self._orphaned.append(peer)
        else:
            self._withdraw_durable(peer, now)
        self._barriers.remove(peer)
        self._announcements.settle()
        self._check_complete()

    def _withdraw_durable(self, peer: Peer, now: float) -> None:
        """Nobody waits any more for the durable sessions of *peer*, which is gone."""
        peer.confirming.gone = True
        cold = self._routes.forget_cold_elsewhere(peer.confirming)
        self._routes.invalidate()
        self._abandon_all(peer, now)
        groups = [self._routes.shared_group(*key) for key in peer.confirming.shared]
        self._withdrawing.append(Withdrawal(peer.confirming, peer.confirming.filters, groups, cold))
        self._throttle.remove_gate(peer.gate, now)
        for store in (peer.confirming.store, peer.confirming.log):
            if store is not None:
                self._throttle.remove_gate(store, now)

    def _abandon_all(self, peer: Peer, now: float) -> None:
        for completion in peer.confirming.take_all():
            self._abandon(completion, now)

    # What the lanes report.

    def lane_lost(self, peer: Peer, stream: Stream) -> None:
        self._reactor.destroy(stream)
        if not peer.gone:
            self._withdraw(peer)
        if stream is peer.data:
            self._takeovers.lost(peer)

    def all_told(self, peer: Peer) -> None:
        peer.told_all = True
        self._told.add(peer.shard)
        if self._routes.has_cold_elsewhere(peer.confirming):
            self._routes.invalidate()  # its cold sessions were never told by their filters
        for orphaned in [each for each in self._orphaned if each.shard == peer.shard]:
            self._orphaned.remove(orphaned)
            self._withdraw_durable(orphaned, self._clock())
        self._check_complete()

    def all_retained(self, peer: Peer) -> None:
        peer.retained_all = True
        self._was_complete = self._was_complete or self.complete()
        self._check_complete()

    def retell(self, peer: Peer) -> None:
        self._full_sync.repeat_retained(peer)
        self._reactor.wake()

    def confirmed(self, peer: Peer) -> None:
        peer.confirm()
        self._announcements.settle()

    def passed(self, peer: Peer, barrier: int) -> None:
        self._barriers.passed(peer, barrier)

    def opened(self, peer: Peer, now: float) -> None:
        self._throttle.opened(peer.gate, now)
        self._routes.retry_shared()

    def stored(self, peer: Peer, now: float) -> None:
        store = peer.confirming.store
        if store is not None and store.open:
            self._throttle.opened(store, now)

    def about_session(self, peer: Peer, kind: int, body: bytes) -> bool:
        return self._takeovers.take(peer, kind, body)

    def retained(self, peer: Peer, message: Message, owner: str, stamp: int, now: float) -> None:
        self._stamps.follow(stamp)
        former = self._retained.peek(message.topic)
        durable = self._durable
        # A deletion may be ahead of what it deletes, which this peer is to tell, or which is to be read from Redis.
        ahead = not peer.retained_all or (durable is not None and not durable.retained_loaded())
        taken = self._retained.merge(message, now, owner, stamp, ahead)
        if taken and durable is not None and durable.retained is not None:
            durable.retained.superseded(message.topic, stamp)
        if taken and former is not None and not message.payload and self._stamps.gave(former.stamp):
            self._peers.write(wire.message(message, wire.KEEP, owner, stamp))

    def reported(self, report: bytes, now: float) -> None:
        try:
            self._report_received(report, now)
        except Exception as error:
            self._failed(error)

    def failed(self, error: Exception) -> None:
        self._failed(error)

    def abandoned(self, completion: Completion, now: float) -> None:
        self._abandon(completion, now)

    def session(self, client_id: str) -> Session | None:
        return self._sessions.find(client_id)

    def tick_by(self, when: float) -> None:
        self._reactor.soon(when)

    def pending(self) -> int:
        """How much waits: barriers, confirmations, peers that are told everything, filters of peers that are gone."""
        waiting = self._barriers.pending() + self._announcements.waiting()
        return waiting + len(self._full_sync.pending) + len(self._withdrawing)

    # Work in pages, and what is done from time to time.

    def busy(self) -> bool:
        """Whether `work()` has something to do."""
        return bool(self._full_sync.pending or self._withdrawing) or self._takeovers.busy()

    def work(self, until: float) -> bool:
        """Go on with unfinished work until the time *until*, by a page at least; true if some can go on at once."""
        self._takeovers.work(until)
        while self._withdrawing or self._full_sync.pending:
            if self._withdrawing:
                if self._withdraw_page(self._withdrawing[0]):
                    self._withdrawing.popleft()
            elif not self._full_sync.step():
                return self._takeovers.busy()
            if self._clock() >= until:
                break
        return self.busy()

    def _withdraw_page(self, withdrawal: Withdrawal) -> bool:
        """Remove a page of what a peer had told from the routes; true if nothing is left."""
        neighbour, filters, groups = withdrawal.neighbour, withdrawal.filters, withdrawal.groups
        for _ in range(min(PAGE, len(groups))):
            group = groups.pop()
            # Or the group has forgotten the peer itself.
            if neighbour in group.remote or not (len(group) or group.remote):
                self._routes.set_remote_members(group.share, group.filter, neighbour, 0, 0)
        for _ in range(min(PAGE, len(filters))):
            filter, _nothing = filters.popitem()
            self._routes.remove_neighbour(filter, neighbour)
        cold = withdrawal.cold
        if cold is not None and cold.forget(PAGE):
            withdrawal.cold = None
        return not (filters or groups or withdrawal.cold is not None)

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        peers = self._peers.all
        if not peers:
            return now + NOTHING_DUE
        for peer in peers:
            peer.mark(now)
            if peer.confirming.pass_undelivered(now):
                self.stored(peer, now)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING
            self._takeovers.tick(now)
            self._shared_members.look()
        due = self._housekeeping_at
        for lane in self._lanes.values():
            due = min(due, lane.tick(now))
        return due
