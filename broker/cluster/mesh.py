# The mesh: every worker of the cluster is joined to every other one by two lanes.
#
# - Within a node each lane is a socket pair. The supervisor makes the socket pairs and hands each end to a worker, so
#   the identity at the other end is known without a handshake, and there is nothing to dial, to refuse or to clean up.
#   Between nodes it is made of messages of Redis. A worker of another node is a *distant* peer, which joins and leaves
#   as its node is listed (distant_peers.py).
# - A peer that joins is told everything (full_sync.py), and tells everything. A worker serves no client before that is
#   complete. Changes after that are announced (announcements.py).
# - Within a node the end of a lane is the death of the worker: the kernel reports it as soon as the supervisor has
#   killed a worker that hangs. Nothing is sent to that peer any more, and nothing waits for it. What it has told of its
#   subscribers is withdrawn, page by page; messages that it sent before are still delivered, as they were acknowledged.
# - The durable sessions of a dead worker are adopted by the one that follows it. Until that has told all its filters,
#   publishes for them wait at the gate of the dead worker: what is acknowledged meanwhile would reach nobody. The same
#   holds for its cold sessions, of which peers know hashes only (routing/remote_interest.py).
# - Another worker may have told what has become of them, and this one not have heard who has one of them now. So
#   publishes go on waiting until every other worker has answered something since (all_heard.py).
# - A distant peer that has died with its node is a peer until the lease of the node ends. Takeovers and what else
#   waits for a peer would stand still for so long. So the lanes to a distant peer that is silent for SILENCE while
#   something waits for it, or has no connection to Redis for UNREACHED, are begun anew, and it is no peer before it is
#   heard again (silent_peers.py).
# - What a distant peer sends is read by this build, and perhaps written by another one: if it cannot be read, the lanes
#   to that peer are begun anew, and this worker goes on.
# - If all workers of a node start at once, nobody remembers anything. So with stored sessions a worker also waits for
#   peers of its node that have not joined yet, and for all workers of other nodes that are listed: it has to know what
#   is subscribed to at each shard before it takes a publish. It waits for as long as that takes, and says so: its
#   supervisor starts a worker of each shard again, or ends the node.
# - The deletion of a retained message may overtake the write that it deletes, on its way to a third worker, which then
#   has nothing to delete and keeps no tombstone. So the worker that made the write repeats the deletion behind it.
import socket
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.cluster import wire
from broker.cluster.all_heard import AllHeard
from broker.cluster.announcements import Announcements
from broker.cluster.barriers import Barriers
from broker.cluster.control_lane import ControlLane
from broker.cluster.data_lane import DataLane
from broker.cluster.departure import Departure
from broker.cluster.distant_peers import DistantPeers, LaneOpener
from broker.cluster.full_sync import FullSync
from broker.cluster.lane_listener import LaneListener
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.shared_members import SharedMembers
from broker.cluster.silent_peers import INTERVAL, SilentPeers
from broker.cluster.takeovers import Takeovers
from broker.cluster.withdrawals import Withdrawals
from broker.delivery.completion import Completion
from broker.delivery.outbox import unbounded
from broker.log import Log
from broker.metrics.counters import Counters
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.overload.level import log_of, store_memory_of, store_of, without_gate
from broker.overload.throttle import Throttle
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import HybridClock, writer_of
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.message import Message
from broker.session.origin import Origin
from broker.session.session import Session
from broker.store.durable.store import DurableStore
from broker.store.sessions import SessionStore
from broker.worker_id import WorkerId

HOUSEKEEPING: Final = INTERVAL  # seconds
NOTHING_DUE: Final = 3600.0  # seconds
NEVER: Final = float("inf")


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
        log: Log,
    ) -> None:
        """*report_received* is called with each overload report of a peer; *failed* with exceptions of our own code;
        *abandon* with publishes that a peer may have lost. *adopted*: see `FullSync`. *durable*: stores sessions and
        retained messages; None: they are in memory only.
        """
        self._durable = durable
        self._sessions = sessions
        self._log = log
        self._peers = peers
        self._distant = DistantPeers(reactor, clock, self._heard)
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
        self.departure = Departure(peers, reactor)
        self._full_sync = FullSync(peers, routes, retained, stamps, adopted, self._told_all_to)
        self._all_heard = AllHeard(peers, self._distant, announcements, self._all_peers_told, failed)
        self._shared_members = SharedMembers(routes, announcements)
        self._silent_peers = SilentPeers(peers, self._distant, announcements, barriers, takeovers, clock())
        self._lanes: dict[Peer, DataLane] = {}
        # There may be a thousand peers: a tick looks at those with something to do.
        self._due_lanes: dict[Peer, None] = {}
        self._by_gate: dict[Gate, Peer] = {}  # the gates of a peer that `mark()` and `pass_undelivered()` are about
        self._incomplete: dict[Peer, None] = {}  # that have something to tell before `complete()`
        self._withdrawals = Withdrawals(routes)  # of peers that are gone
        self._orphaned: list[Peer] = []  # peers that are gone, and for whose durable sessions publishes wait
        self._expected = 0  # workers of other nodes that may have durable sessions, and that cannot be joined yet
        self._housekeeping_at = 0.0
        self._told: set[int] = set()  # shards of this node whose worker, or a former one, has told all its filters
        self.former: frozenset[str] = frozenset()  # nodes whose lanes have the format before this one: lane_format.py
        self._shifts: Mapping[str, float] = {}  # by node, see `Peer.shift`
        self._was_complete = False  # everything that there was when this worker joined has been received
        self._when_complete: list[Callable[[], None]] = []

    @property
    def peers(self) -> list[Peer]:
        return self._peers.all

    # Coming and going.

    def join(self, worker: WorkerId, data: socket.socket, control: socket.socket) -> None:
        """*worker* is at the other ends of *data* and *control*, which do not block."""
        name, reactor = f"worker {worker.shard}", self._reactor
        data_stream, control_stream = (
            Stream(each, name, unbounded(each.fileno(), reactor.dirty)) for each in (data, control)
        )
        data_lane, control_lane = self._add(worker, data_stream, control_stream, False)
        reactor.attach(data_stream, data_lane)
        reactor.attach(control_stream, control_lane)
        reactor.wake()

    def connect_nodes(self, lanes: LaneOpener) -> None:
        """Reach workers of other nodes by *lanes*, which calls `restarted()`. To be called before one is joined."""
        self._distant.lanes = lanes

    def join_distant(self, worker: WorkerId) -> None:
        """The lease of another node says that *worker* lives: have it as a peer. A second call does nothing, nor does
        the first one without `connect_nodes()`.
        """
        self._peers.joins(worker)
        self._distant.join(worker)
        self._check_complete()

    def leave(self, worker: WorkerId) -> None:
        """*worker*, of another node, has ended, or the lease of its node has; *worker* may be joined again later.

        Its durable sessions are waited for until its follower has told all filters, or `adopted_elsewhere()` is called.
        """
        self._peers.leaves(worker)
        self._takeovers.left(worker)
        if self._distant.leave(worker) and self._peers.find(worker) is None:
            self._ask_for_retained_of(writer_of(worker))
        self._withdraw_distant(worker)
        self._check_complete()

    def expect_distant(self, workers: int) -> None:
        """So many workers of other nodes may have durable sessions and cannot be joined: they have not begun yet, or
        have died with their node and nobody has settled it. Nothing is complete before all can be or are settled."""
        self._expected = 0 if self._distant.lanes is None else workers
        self._takeovers.expect(self._expected)
        self._check_complete()

    def adopted_elsewhere(self, worker: WorkerId) -> None:
        """A peer has adopted all durable sessions of *worker*, and has told all their filters."""
        self._let_go([each for each in self._orphaned if each.worker == worker])
        peer = self._peers.find(worker)
        if peer is not None and peer.distant:  # it was taken for dead: what it had told before is not true any more
            peer.adopted = True
            self.restarted(worker)
        self._check_complete()

    def tell_adopted(self, workers: list[WorkerId]) -> None:
        """This worker has adopted all durable sessions of *workers*, and every peer knows their filters."""
        for worker in workers:
            for peer in self._peers.all:
                if peer.knows_all:  # the others are told behind all filters
                    peer.tell(wire.number(wire.ADOPTED, worker.incarnation))
            self.adopted_elsewhere(worker)
        self._check_complete()
        self._reactor.wake()

    def _told_all_to(self, peer: Peer) -> None:
        """*peer* was told all filters: tell it whose sessions are among them. It may wait for one of these."""
        if self._durable is not None:
            for former in self._durable.adoption.adopted:
                peer.tell(wire.number(wire.ADOPTED, int(former, 16)))
        self._takeovers.told(peer)

    def restarted(self, worker: WorkerId) -> None:
        """The lanes to *worker*, of another node, end: its end has begun anew, or they have failed.

        What has arrived is taken, as it was acknowledged; then the worker is joined again.
        """
        if self._withdraw_distant(worker):
            self._distant.end(worker)
        else:
            self._distant.failed(worker)
        self._check_complete()

    def _heard(self, worker: WorkerId, data: Stream, control: Stream) -> None:
        """A worker of another node has greeted this one."""
        data.handler, control.handler = self._add(worker, data, control, True)

    def _withdraw_distant(self, worker: WorkerId) -> bool:
        """Withdraw *worker*, of another node; false if it is no peer. `lane_lost()` follows, for its data lane."""
        peer = self._peers.find(worker)
        if peer is None or not peer.distant:
            return False
        self._withdraw(peer)
        return True

    def _drop_distant(self, peer: Peer) -> None:
        """The lanes of *peer* are of no use any more, nor what is on them."""
        if not peer.gone:
            self._withdraw(peer)
        self._reactor.destroy(peer.data)
        self._takeovers.lost(peer)
        self._distant.ended(peer.worker, peer.data)
        self._check_complete()

    def _add(self, worker: WorkerId, data: Stream, control: Stream, distant: bool) -> tuple[DataLane, ControlLane]:
        """Have *worker* as a peer; what serves its lanes."""
        now, resource = self._clock(), str(worker)
        gate = self._throttle.add_gate(resource, now, without_gate(resource))
        store: Gate | None = None
        log: Gate | None = None
        if self._durable is not None:
            store = self._throttle.add_gate(store_of(resource), now, (store_memory_of(resource),))
            if self._durable.log_gate() is not None:
                log = self._throttle.add_gate(log_of(resource), now)
        peer = Peer(worker, data, control, gate, store, log, distant, distant and worker.node in self.former)
        peer.heard_at = now
        peer.shift = self._shifts.get(worker.node, 0.0)
        self._announcements.joined(peer)
        self._peers.add(peer)
        for each in (gate, store):
            if each is not None:
                self._by_gate[each] = peer
        self._note_told(peer)
        lane = self._lanes[peer] = DataLane(peer, self, self._routes, self._deliveries, self._counters, self._origin)
        self._takeovers.joined(peer)
        self._full_sync.begin(peer)
        return lane, ControlLane(peer, self, self._routes)

    def set_clocks(self, shifts: Mapping[str, float]) -> None:
        """*shifts*: by the name of another node, see `Peer.shift`; 0.0 for all others."""
        self._shifts = shifts
        for peer in self._peers.all:
            peer.shift = shifts.get(peer.worker.node, 0.0)

    def untold(self) -> list[str]:
        """The workers that have not told all their filters yet, as NODE/SHARD.

        Those of this node that have not begun yet count with stored sessions only.
        """
        here = self._origin.here
        shards = range(0 if self._durable is None else self._durable.workers)
        missing = [f"{here.node}/{shard}" for shard in shards if shard != here.shard and shard not in self._told]
        distant = [str(peer.worker) for peer in self._peers.all if peer.distant and not peer.told_all]
        return missing + distant + [str(worker) for worker in self._distant.unheard()]

    def expected(self) -> int:
        """Workers of other nodes that are waited for as `expect_distant()` says."""
        return self._expected

    def complete(self) -> bool:
        """All workers that are listed, or to come with stored sessions, have told all, and this one adopts none now."""
        return self._adopted() and self._all_have_told()

    def _all_have_told(self) -> bool:
        return not self._distant.count_unheard() and self._all_peers_told()

    def _all_peers_told(self) -> bool:
        if self._durable is not None and (len(self._told) < self._durable.workers - 1 or self._expected):
            return False
        return not self._incomplete

    def _note_told(self, peer: Peer) -> None:
        """What *peer* has told has changed, or what it has to tell."""
        if peer.gone or (peer.told_all and peer.retained_all and not peer.inherits):
            self._incomplete.pop(peer, None)
        else:
            self._incomplete[peer] = None

    def when_complete(self, then: Callable[[], None]) -> None:
        """Call *then* once, as soon as `complete()` holds."""
        self._when_complete.append(then)
        self._check_complete()

    def _check_complete(self) -> None:
        orphaned = [peer for peer in self._orphaned if peer.distant]
        self._peers.absent = len(orphaned) + self._expected + self._distant.count_unheard()
        if self._durable is not None:
            all_here = len(self._peers.of_own_node()) + 1 >= self._durable.workers and not self._orphaned
            self._routes.set_members_known(all_here and self.complete())
        if self._when_complete and self.complete():
            waiting, self._when_complete = self._when_complete, []
            for then in waiting:
                then()
        self._all_heard.check()

    def _withdraw(self, peer: Peer) -> None:
        """*peer* is gone: nothing waits for it, and nothing is sent to it any more.

        Its control lane is not read to the end, or interest would come back that is withdrawn here. Its data lane is:
        the messages on it were acknowledged.
        """
        now = self._clock()
        peer.gone = True
        self._all_heard.lost(peer)
        if peer.distant:
            self._distant.withdrawn(peer.worker)
        self._reactor.destroy(peer.control)
        self._peers.remove(peer)
        for each in (peer.gate, peer.confirming.store):
            if each is not None:
                del self._by_gate[each]
        self._note_told(peer)
        self._routes.invalidate()
        self._withdrawals.add(peer, peer.filters, list(self._routes.shared_groups()))
        if not peer.retained_all:
            self._ask_for_retained_of(peer.writer)
        peer.confirming.orphaned = True
        self._abandon_all(peer, now)
        del self._lanes[peer]
        confirming = peer.confirming
        durable = confirming.filters or confirming.shared or self._routes.has_cold_elsewhere(confirming)
        if durable:
            peer.gate.reset(now)
            peer.gate.block()
            self._orphaned.append(peer)
            if peer.adopted:
                self._let_go([peer])
        else:
            self._withdraw_durable(peer, now)
        self._barriers.remove(peer)
        self._announcements.settle(peer)
        self._check_complete()

    def _ask_for_retained_of(self, writer: int) -> None:
        """The worker with these lower bits in its stamps is gone, and had not told all that it has retained."""
        if not self._was_complete:
            for peer in self._peers.all:
                peer.retained_all = False
                self._note_told(peer)
                peer.tell(wire.number(wire.RETELL, writer))

    def when_all_have_heard(self, then: Callable[[], None]) -> None:
        """Call *then* as soon as every worker that is listed has been heard since, here and there, see `AllHeard`."""
        self._all_heard.when_all_have(then)

    def asked_to_hear(self, peer: Peer, number: int) -> None:
        self._all_heard.asked_to_hear(peer, number)

    def has_heard(self, peer: Peer, number: int) -> None:
        self._all_heard.has_heard(peer, number)

    def _let_go(self, orphaned: list[Peer]) -> None:
        """Another worker has told what has become of the durable sessions of *orphaned*."""
        for peer in orphaned:
            self._all_heard.when_heard(partial(self._has_let_go, peer), peer.worker)

    def _has_let_go(self, peer: Peer) -> None:
        if peer in self._orphaned:  # or it was told of twice
            self._orphaned.remove(peer)
            self._withdraw_durable(peer, self._clock())
            self._check_complete()

    def _withdraw_durable(self, peer: Peer, now: float) -> None:
        """Nobody waits any more for the durable sessions of *peer*, which is gone."""
        peer.confirming.gone = True
        cold = self._routes.forget_cold_elsewhere(peer.confirming)
        self._routes.invalidate()
        self._abandon_all(peer, now)
        groups = [self._routes.shared_group(*key) for key in peer.confirming.shared]
        self._withdrawals.add(peer.confirming, peer.confirming.filters, groups, cold)
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
            if peer.distant:
                self._distant.ended(peer.worker, stream)
                self._check_complete()

    def all_told(self, peer: Peer) -> None:
        peer.told_all = True
        self._note_told(peer)
        if not peer.distant:
            self._told.add(peer.shard)
        if self._routes.has_cold_elsewhere(peer.confirming):
            self._routes.invalidate()  # its cold sessions were never told by their filters
        here = [each for each in self._orphaned if each.worker.same_place(peer.worker)]
        self._let_go([each for each in here if not each.inherited])
        self._check_complete()

    def inherits(self, peer: Peer, incarnation: int) -> None:
        peer.inherits.add(incarnation)
        self._note_told(peer)
        self._mark_inherited(incarnation, True)
        self._check_complete()

    def not_inherited(self, peer: Peer, incarnation: int) -> None:
        peer.inherits.discard(incarnation)
        self._note_told(peer)
        if not any(incarnation in each.inherits for each in self._peers.all):
            self._mark_inherited(incarnation, False)
        self._check_complete()

    def _mark_inherited(self, incarnation: int, inherited: bool) -> None:
        for each in self._orphaned + self._peers.all:
            if each.worker.incarnation == incarnation:
                each.inherited = inherited

    def adopted(self, peer: Peer, incarnation: int) -> None:
        peer.inherits.discard(incarnation)
        self._note_told(peer)
        for each in self._orphaned + self._peers.all:
            if each.worker.incarnation == incarnation:
                self.adopted_elsewhere(each.worker)
                return
        self._check_complete()

    def all_retained(self, peer: Peer) -> None:
        peer.retained_all = True
        self._note_told(peer)
        self._was_complete = self._was_complete or self._all_have_told()
        self._check_complete()

    def malformed(self, peer: Peer, error: Exception) -> None:
        self._origin.worker = self._origin.here  # a data lane may have ended in the middle of a message
        self._counters.lanes_malformed += 1
        self._log.error("lanes_malformed", peer=str(peer.worker), why=str(error) or type(error).__name__)
        self._drop_distant(peer)

    def retell(self, peer: Peer, writer: int) -> None:
        self._full_sync.repeat_retained(peer, writer)
        self._reactor.wake()

    def confirmed(self, peer: Peer) -> None:
        peer.confirm()
        self._announcements.settle(peer)

    def passed(self, peer: Peer, barrier: int) -> None:
        self._barriers.passed(peer, barrier)

    def opened(self, peer: Peer, now: float) -> None:
        self._throttle.opened(peer.gate, now)
        self._routes.retry_shared()

    def leaving(self, peer: Peer) -> None:
        self.departure.leaving(peer)

    def released(self, peer: Peer) -> None:
        peer.released = True

    def stored(self, peer: Peer, now: float) -> None:
        self.departure.release(peer)
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

    def lane_due(self, peer: Peer, when: float) -> None:
        self._due_lanes[peer] = None
        self._reactor.soon(when)

    def tick_by(self, when: float) -> None:
        """Have `tick()` called at *when*, at the latest."""
        self._reactor.soon(when)

    def pending(self) -> int:
        """How much waits: barriers, confirmations, what is to be heard, peers that are told everything, and filters of
        peers that are gone.
        """
        waiting = self._barriers.pending() + self._announcements.waiting()
        return waiting + self._all_heard.pending() + len(self._full_sync.pending) + len(self._withdrawals.pending)

    # Work in pages, and what is done from time to time.

    def busy(self) -> bool:
        """Whether `work()` has something to do."""
        return bool(self._full_sync.pending or self._withdrawals.pending) or self._takeovers.busy()

    def work(self, until: float) -> bool:
        """Go on with unfinished work until the time *until*, by a page at least; true if some can go on at once."""
        self._takeovers.work(until)
        while self._withdrawals.pending or self._full_sync.pending:
            if self._withdrawals.pending:
                self._withdrawals.step()
            elif not self._full_sync.step():
                return self._takeovers.busy()
            if self._clock() >= until:
                break
        return self.busy()

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        joining = self._distant.tick(now)
        if not self._peers.all:
            return min(joining, now + NOTHING_DUE)
        for gate in list(self._throttle.busy):
            peer = self._by_gate.get(gate)
            if peer is not None:
                peer.mark(now)
                if peer.confirming.pass_undelivered(now):
                    self.stored(peer, now)
        if now >= self._housekeeping_at:
            self._housekeeping_at = now + HOUSEKEEPING
            self._takeovers.tick(now)
            self._shared_members.look()
            self._end_silent(now)
        due = min(self._housekeeping_at, joining, self._announcements.tick(now))
        for peer in list(self._due_lanes):
            lane = self._lanes.get(peer)
            due_then = NEVER if lane is None else lane.tick(now)
            if due_then == NEVER:
                del self._due_lanes[peer]
            due = min(due, due_then)
        return due

    def _end_silent(self, now: float) -> None:
        """Begin the lanes of distant peers anew that are silent while something waits for them."""
        for peer in self._silent_peers.look(now):
            self._counters.lanes_silent += 1
            self._log.warning("lanes_silent", peer=str(peer.worker))
            self._drop_distant(peer)
