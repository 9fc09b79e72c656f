# Makes the parts of a worker that it needs for other workers and for Redis, and hands them to each other.
#
# They are made in two steps, as clients are served by parts that need the links, and takeovers need those parts.
import socket
from collections.abc import Callable
from functools import partial

from broker.cluster.announcements import Announcements
from broker.cluster.backbone_parts import make_backbone
from broker.cluster.background import ClusterBackground
from broker.cluster.barriers import Barriers
from broker.cluster.client_moves import ClientMoves
from broker.cluster.distant_workers import DistantWorkers
from broker.cluster.forced_takeovers import ForcedTakeovers
from broker.cluster.incoming_sessions import IncomingSessions
from broker.cluster.late_confirmations import LateConfirmations
from broker.cluster.mesh import Mesh
from broker.cluster.node_lanes import NodeLanes
from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.outgoing_sessions import OutgoingSessions
from broker.cluster.overload_reports import OverloadReports, RedisReports, ReportReceiver
from broker.cluster.peers import Peers
from broker.cluster.quota_lease_client import QuotaLeaseClient
from broker.cluster.registered_store import RegisteredStore
from broker.cluster.registry_client import RegistryClient
from broker.cluster.seal import Seal
from broker.cluster.session_claims import SessionClaims
from broker.cluster.settlement import Settlement
from broker.cluster.takeover import TakeoverRequests
from broker.cluster.takeovers import RegisteredTakeovers, Takeovers
from broker.config.schema import MEMORY, REPLICATED, ClusterQuota, QuotaScope, needs_carrier
from broker.metrics.interval import RecordLog
from broker.net.dialling import Dialler
from broker.net.log_lane import StreamLane
from broker.overload.gate import Gate
from broker.overload.level import backbone_lag_of, log_of, store_memory_of, store_of
from broker.overload.protection import Protection
from broker.overload.quotas.lease import Leases
from broker.overload.quotas.quotas import Quotas
from broker.overload.throttle import Throttle
from broker.protocol.essentials import Essentials
from broker.protocol.inbound_backbone import InboundBackbone
from broker.protocol.parts import ProtocolParts
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.origin import Origin
from broker.session.queue import MessageBudget
from broker.store.durable.application_logs import log_settings
from broker.store.durable.commit_delays import Holds
from broker.store.durable.forced_owners import ForcedOwners
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.replication import Replication
from broker.store.durable.shared_bodies import SharedBodies
from broker.store.durable.store import DurableStore
from broker.store.durable.store_gate import StoreGate
from broker.store.logs.link import CarrierLink
from broker.store.logs.log_gate import LogGate
from broker.store.logs.record_log import CarrierRecordLog
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline
from broker.store.redis.pubsub import ChannelSubscription
from broker.store.redis.record_log import RedisRecordLog
from broker.store.sessions import Claims, MemorySessions, SessionStore
from broker.worker_id import WorkerId


class ClusterLinks:
    """The peers, and the registry of sessions in Redis."""

    def __init__(
        self,
        base: Essentials,
        redis: RedisAddress | None,
        alone: bool,
        will_settled: Callable[[str, int], None],
        cluster_key: bytes,
    ) -> None:
        """*alone*: no other worker registers sessions there. *will_settled*: see `RegisteredStore`.

        *cluster_key*: seals what is left in Redis; b"" for none.
        """
        failed = base.internal_errors.report
        self.peers = Peers()
        self.seal = Seal(cluster_key, base.counters, base.log)
        late = LateConfirmations(base.counters, base.log).late
        self.announcements = Announcements(self.peers, base.reactor, failed, late)
        self.barriers = Barriers(self.peers, base.clock, failed)
        self.stamps = HybridClock(base.worker, base.wall)
        self.memory_sessions = MemorySessions()
        self.store: SessionStore = self.memory_sessions
        self.registry_client: RegistryClient | None = None
        self.registered_store: RegisteredStore | None = None
        self.record_logs: list[RecordLog] = []
        self.quota_leases: QuotaLeaseClient | None = None
        self.node_lanes: NodeLanes | None = None  # None: there are no other nodes
        self.durable_store: DurableStore | None = None
        self.store_gate: Gate | None = None  # of it
        self.carrier: CarrierLink | None = None  # None: the node has none
        self.log_gate: Gate | None = None  # of publishes for logs
        self.backbone: InboundBackbone | None = None  # None: publishes are delivered at once
        self._leases: Leases | None = None
        self._base = base
        self._redis = redis
        self._alone = alone
        self._kafka_records: CarrierRecordLog | None = None
        if redis is not None:
            self._register(redis, will_settled)
        if base.config.kafka.hosts and base.config.metrics.enabled:
            self._kafka_records = CarrierRecordLog(base.counters)
            self.record_logs.append(self._kafka_records)

    def _register(self, redis: RedisAddress, will_settled: Callable[[str, int], None]) -> None:
        base = self._base
        config = base.config
        client = self.registry_client = RegistryClient(
            base.reactor,
            redis,
            base.worker,
            config.redis.prefix,
            self._alone,
            base.clock,
            base.log,
            base.internal_errors.report,
            config.overload,
            base.wall,
            config.store.durability != MEMORY,
        )
        self.store = self.registered_store = RegisteredStore(client.registry, base.clock, will_settled)
        if config.metrics.enabled:
            log = RedisRecordLog(client.commands, client.keys.metrics, config.metrics.length, base.counters)
            self.record_logs.append(log)
        shared = config.quotas.tenant != QuotaScope() or config.quotas.cluster != ClusterQuota()
        if shared and not self._alone:
            self._leases = Leases()
            self.quota_leases = QuotaLeaseClient(client.commands, client.keys, self._leases, base.worker)

    def store_in_redis(
        self, throttle: Throttle, budget: MessageBudget, retained: Retained, most_unwritten: int
    ) -> DurableStore | None:
        """Where sessions that outlive their connections, and *retained*, are stored; None: they are in memory.

        Publishes wait at a gate of *throttle*, messages in memory count in *budget*. *most_unwritten*: bytes of changes
        of *retained* that are not stored yet. To be called once.
        """
        base, redis, reactor = self._base, self._redis, self._base.reactor
        if redis is None or base.config.store.durability == MEMORY:
            return None
        worker, me, keys = base.worker, base.worker.incarnation_text.encode(), Keys(base.config.redis.prefix)
        commands = self._connection(redis, "durable")
        replication: Replication | None = None
        if base.config.store.durability == REPLICATED:
            replication = Replication(
                self._connection(redis, "replicas"),
                commit_number=keys.commit_number(me),
                mark=keys.mark(me),
                replicas=base.config.store.replicas,
                counters=base.counters,
                log=base.log,
            )
        memory = (store_memory_of(str(worker)),)
        self.store_gate = gate = throttle.add_gate(store_of(str(worker)), base.clock(), memory)
        commit = GroupCommit(
            commands,
            fence=keys.fence(me),
            commit_number=keys.commit_number(me),
            wall=base.wall,
            holds=Holds(base.config.store.hold, reactor.read_up_to, reactor.flushing.share, reactor.flushing.hold),
            gate=StoreGate(gate, throttle.opened),
            counters=base.counters,
            bodies=SharedBodies(keys, me, base.config.limits.queue_ttl),
            replication=replication,
            era=bytes.fromhex(redis.era),
        )
        ttl, soon = base.config.limits.queue_ttl, reactor.soon
        self.durable_store = DurableStore(commands, commit, keys, worker, base.workers, budget, base.wall, ttl, soon)
        self.durable_store.store_retained(retained, self.stamps, most_unwritten)
        if self.carrier is not None and self.log_gate is not None:
            settings = log_settings(base.config.application, mirrored=bool(base.config.kafka.hosts))
            self.durable_store.keep_logs(self.carrier, self.log_gate, settings, base.log, redis.db)
            dialler, channel = Dialler(base.reactor, base.internal_errors.report), keys.leases(redis.db)
            name, heard = f"weir-{worker.node}-{worker.shard}-leases", self.durable_store.heard
            self.durable_store.lease_notices = ChannelSubscription(dialler, redis, name, base.log, channel, heard)
        self.durable_store.start(base.clock())
        return self.durable_store

    def link_carrier(self, throttle: Throttle) -> None:
        """Make the link to the carrier, if the node has one; publishes for logs wait at a gate of *throttle*."""
        base = self._base
        if needs_carrier(base.config):
            # Whatever a client publishes into the backbone may have to wait for those who dispatch from it.
            further = (backbone_lag_of(base.worker.node),) if base.config.inbound.enabled() else ()
            self.log_gate = gate = throttle.add_gate(log_of(str(base.worker)), base.clock(), further)
            log_gate = LogGate(gate, throttle.opened)
            failed = base.internal_errors.report
            self.carrier = CarrierLink(base.worker.incarnation, log_gate, failed, self._kafka_records)

    def connect_carrier(self, data: socket.socket, control: socket.socket) -> None:
        """A carrier has started, at the other ends of *data* and *control*, which do not block."""
        link, reactor = self.carrier, self._base.reactor
        assert link is not None
        data_lane, control_lane = (StreamLane(reactor, sock, "carrier", link) for sock in (data, control))
        link.connect(data_lane, control_lane, self._base.clock())
        reactor.wake()

    def _connection(self, redis: RedisAddress, purpose: str) -> CommandPipeline:
        """A connection for durable sessions, which is not started."""
        base, worker = self._base, self._base.worker
        dialler = Dialler(base.reactor, base.internal_errors.report)
        name = f"weir-{worker.node}-{worker.shard}-{purpose}"
        return CommandPipeline(dialler, redis, name, base.log, ends_former=True)

    def reach_nodes(self, restarted: Callable[[WorkerId], None]) -> None:
        """Make the lanes to workers of other nodes, if there can be some. *restarted*: see `NodeLanes`."""
        base, redis = self._base, self._redis
        if redis is None or not base.config.redis.url or base.config.inbound.enabled():
            return  # with the backbone each node dispatches all publishes to its own clients
        self.node_lanes = NodeLanes(
            base.reactor,
            Dialler(base.reactor, base.internal_errors.report),
            Dialler(base.reactor, base.internal_errors.report),
            redis,
            base.config.redis.prefix,
            base.worker,
            base.counters,
            base.log,
            self.seal,
            base.wall,
            restarted,
        )
        self.node_lanes.start(base.clock())

    def redis_db(self) -> int:
        return 0 if self._redis is None else self._redis.db

    def store_fill(self) -> float:
        """How full the store of durable sessions is, as a share; 0.0: not known, or there is none."""
        client = self.registry_client
        return 0.0 if client is None or self.durable_store is None else client.memory.fill()

    def quotas(self) -> Quotas:
        config = self._base.config
        return Quotas(config.quotas, config.limits.packet_bytes, self._leases, self._base.clock())

    def redis_reports(self, receiver: ReportReceiver) -> RedisReports | None:
        """Overload reports by Redis, which a node with one worker publishes, too; None without Redis."""
        base, client = self._base, self.registry_client
        if client is None or self._redis is None:
            return None
        return RedisReports(
            client.commands,
            None if self._alone else Dialler(base.reactor, base.internal_errors.report),
            self._redis,
            base.config.redis.prefix,
            base.worker,
            receiver,
            base.counters,
            base.log,
            self.seal,
            base.clock(),
        )

    def settled(self) -> bool:
        """Whether Redis knows everything that it has to know of this worker."""
        durable = self.durable_store is None or self.durable_store.settled()
        backbone = self.backbone is None or self.backbone.settled()
        return durable and backbone and (self.registry_client is None or self.registry_client.settled())


class ClusterParts:
    """Takeovers of sessions, clients that are sent to other nodes, and the mesh."""

    def __init__(
        self,
        base: Essentials,
        links: ClusterLinks,
        protocol: ProtocolParts,
        protection: Protection,
        routes: Routes,
        retained: Retained,
        origin: Origin,
        report_receiver: ReportReceiver,
        reports: OverloadReports,
        requests: TakeoverRequests | None,
    ) -> None:
        """*requests*: replaces the mesh in requests for sessions."""
        worker, clock, failed, peers = base.worker, base.clock, base.internal_errors.report, links.peers
        self.takeovers = Takeovers()
        self.claims: Claims = links.memory_sessions
        self.session_claims: SessionClaims | None = None
        self.orphaned_wills: OrphanedWills | None = None
        client, store = links.registry_client, links.registered_store
        if client is not None and store is not None:
            others = 0 if protocol.durable is None else base.workers - 1
            forced: ForcedTakeovers | None = None
            if protocol.durable is not None and links.durable_store is not None:
                abandon = protocol.lifecycle.abandon
                owners = ForcedOwners(links.durable_store, client.keys, worker.incarnation_text.encode(), clock)
                forced = ForcedTakeovers(worker, peers, links.announcements, protocol.durable, owners, clock, abandon)
            incoming = IncomingSessions(worker, peers, protocol.transfer, clock, failed, others, forced)
            self.claims = self.session_claims = claims = SessionClaims(
                store,
                client.registry,
                requests or incoming,
                clock,
                protocol.lifecycle.evict,
                links.seal,
                protocol.durable,
                forced,
            )
            abandon = protocol.lifecycle.abandon
            outgoing = OutgoingSessions(worker, peers, links.barriers, protocol.transfer, claims, clock, abandon)
            self.takeovers = RegisteredTakeovers(worker, peers, incoming, outgoing, claims, forced)
            self.orphaned_wills = OrphanedWills(
                client.commands,
                client.keys,
                client.registry.script,
                protocol.sessions.publish_orphaned_will,
                links.seal,
            )
        self.moves = ClientMoves(
            protocol.lifecycle,
            links.store,
            protocol.sessions,
            base.reactor,
            self.takeovers,
            peers,
            protocol.placement,
            protection.reports,
            protocol.connects,
            base.config.drain,
            base.workers,
            base.log,
            clock,
        )
        self.mesh = Mesh(
            peers,
            links.announcements,
            links.barriers,
            self.takeovers,
            protection.throttle,
            routes,
            retained,
            protocol.deliveries,
            base.reactor,
            base.counters,
            origin,
            links.stamps,
            report_receiver.over_mesh,
            clock,
            failed,
            protocol.lifecycle.abandon,
            _nothing_to_adopt if protocol.durable is None else protocol.durable.ready,
            links.durable_store,
            protocol.store,
            base.log,
        )
        self.distant: DistantWorkers | None = None
        links.reach_nodes(self.mesh.restarted)
        if links.node_lanes is not None:
            self.mesh.connect_nodes(links.node_lanes)
            self.distant = DistantWorkers(self.mesh, protection.topology.changed, clock)
        self.settlement: Settlement | None = None  # None without Redis
        if client is not None and self.orphaned_wills is not None:
            durable_store = links.durable_store
            self.settlement = Settlement(
                worker,
                base.workers,
                client.commands if durable_store is None else durable_store.commands,
                client.keys,
                client.keys.node_notices(links.redis_db()),
                self.orphaned_wills,
                peers,
                links.announcements,
                protocol.durable,
                self.mesh.tell_adopted,
                clock,
                base.reactor.soon,
                base.log,
            )
        if protocol.durable is not None:
            protocol.durable.when_heard = protocol.durable.cold.when_heard = self.mesh.when_all_have_heard
            protocol.durable.when_adopted(base.reactor.wake)  # the mesh tells the other workers
            protocol.durable.when_adopted(partial(self.mesh.when_complete, protocol.durable.all_known))
        if base.config.inbound.enabled():
            assert links.carrier is not None and links.log_gate is not None and client is not None
            durable = links.durable_store
            links.backbone = make_backbone(
                base,
                links.carrier,
                links.log_gate,
                client.commands,
                peers,
                links.announcements,
                links.stamps,
                protocol,
                protection,
                routes,
                retained,
                None if durable is None else durable.retained,
            )
        self.background = ClusterBackground(
            self.mesh,
            reports,
            links.node_lanes,
            client,
            self.session_claims,
            self.orphaned_wills,
            self.settlement,
            links.quota_leases,
            protocol.durable,
            links.carrier,
            links.backbone,
            base.internal_errors,
        )


def _nothing_to_adopt() -> bool:
    return True
