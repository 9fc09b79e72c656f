# A worker: the composition root, where the parts are made and handed to each other.
#
# trio runs what waits: the clock of $SYS, and the reactor's slices, which between them are synchronous.
# As a process (with a supervisor, sockets and a log) it is made by __main__.py.
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog

from broker.auth.authenticator import Authenticator
from broker.auth.files import AccessFiles
from broker.cluster.announcements import Announcements
from broker.cluster.background import ClusterBackground
from broker.cluster.barriers import Barriers
from broker.cluster.incoming_sessions import IncomingSessions
from broker.cluster.mesh import Mesh
from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.outgoing_sessions import OutgoingSessions
from broker.cluster.overload_reports import OverloadReports, RedisReports, ReportReceiver
from broker.cluster.peers import Peers
from broker.cluster.quota_lease_client import QuotaLeaseClient
from broker.cluster.registered_store import RegisteredStore
from broker.cluster.registry_client import RegistryClient
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeover import TakeoverRequests
from broker.cluster.takeovers import RegisteredTakeovers, Takeovers
from broker.config.schema import ClusterQuota, Config, QuotaScope
from broker.config.sources import described
from broker.control.heartbeat import Heartbeat
from broker.control.machine import memory_limit, resident_bytes
from broker.control.periodic import at_once_and_every, at_whole, every
from broker.control.reload import Reload
from broker.control.session_hand_over import SessionHandOver
from broker.control.worker_tasks import WorkerTasks
from broker.delivery.egress_quota import EgressQuota
from broker.delivery.outbox import OutboundBudget
from broker.insight.client_diagnostics import ClientDiagnostics
from broker.insight.logs import ClientLog
from broker.insight.overload_snapshot import OverloadSnapshot
from broker.insight.worker_metrics import WorkerMetrics
from broker.metrics.counters import Counters
from broker.metrics.interval import IntervalMetrics, RecordLog
from broker.net.collector import Collector
from broker.net.dialling import Dialler
from broker.net.loop import Loop
from broker.net.offload import Offload
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.source_pause import StreamPause
from broker.net.transports.enabled import EnabledTransports
from broker.net.transports.upgrade_tasks import UpgradeTasks
from broker.overload.addresses import Addresses
from broker.overload.connects import Connects
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.client_overrides import ClientOverrides
from broker.overload.quotas.lease import Leases
from broker.overload.quotas.quotas import Quotas
from broker.overload.trace.recorder import TraceRecorder
from broker.protocol.connect_attempt import ConnectAttempts
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.housekeeping import Housekeeping
from broker.protocol.hub import Hub
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.lifecycle import REFUSABLE, ConnectionLifecycle
from broker.protocol.publishing import Publishing
from broker.protocol.recent_disconnects import RecentDisconnects
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.session_transfer import SessionTransfer
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import Timers
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.origin import Origin
from broker.session.queue import QueueBudget
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.record_log import RedisRecordLog
from broker.store.sessions import Claims, MemorySessions, SessionStore
from broker.store.trace_file import TraceFile
from broker.worker_id import WorkerId

OWN_DESCRIPTORS: Final = 64 + REFUSABLE  # for listeners, epolls, logs, and connections that are refused with a word
THREADS: Final = 2  # for the offload: one slow hash does not hold up all handshakes
HOUSEKEEPING: Final = 1.0  # seconds between two runs
INPUT_BUDGET_SHARE: Final = 16  # of the memory limit: bytes received and not yet taken


def _tell_nobody(client_id: str, epoch: int) -> None:
    pass


class Worker:
    def __init__(
        self,
        config: Config,
        connections: int,
        clock: Callable[[], float] = time.monotonic,
        threads: Executor | None = None,
        heartbeat: Heartbeat | None = None,
        workers: int = 1,
        identity: WorkerId | None = None,
        redis: RedisAddress | None = None,
        alone: bool = False,
        neighbours: TakeoverRequests | None = None,
        wall: Callable[[], float] = time.time,
        trace: str = "",
        will_settled: Callable[[str, int], None] = _tell_nobody,
    ) -> None:
        """One of *workers* that share the machine; AccessFileError.

        *threads*: the executor of the offload, if it is not to make its own. *redis*: where sessions are registered.
        *alone*: no other worker registers sessions there. *neighbours*: replaces the mesh in requests for sessions.
        *clock* is monotonic and *wall* Unix time, both in seconds. *trace*: the file in which the decisions of overload
        protection are recorded; "" for none. *will_settled*: see `RegisteredStore`.
        """
        worker = identity or WorkerId(config.node.name, 0, 0)
        self.config = config
        self.identity = worker
        self.shard = worker.shard
        self.clock = clock
        self.log = structlog.get_logger()
        self.client_log = ClientLog(config.log.client_events_per_second, clock)
        self.counters = Counters()
        self.internal_errors = InternalErrors(self.counters, self.client_log)
        self.collector = Collector()
        files = AccessFiles(config.access)
        self.acl = files.acl
        memory = self._memory = memory_limit() // workers
        self.budget = OutboundBudget(config.delivery.outbound_budget or memory // 4)
        self.queue_budget = QueueBudget(config.limits.queue_budget or memory // 4)
        self.reactor = Reactor(
            clock,
            input_budget=max(memory // INPUT_BUDGET_SHARE, config.limits.packet_bytes),  # who is alone may send any
            adaptive_hold=config.delivery.adaptive_hold,
            buffered_hold=config.delivery.buffered_hold,
            most_held=config.delivery.held,
        )
        self.peers = Peers()
        announcements = Announcements(self.peers, self.reactor, self.internal_errors.report)
        barriers = Barriers(self.peers, clock, self.internal_errors.report)
        stamps = HybridClock(worker, wall)
        self.routes = Routes(
            config.routes.topics,
            config.routes.bytes,
            config.limits.topic_levels,
            config.limits.topic_bytes,
            self.acl,
            announcements,
            worker.shard,
        )
        self.retained = Retained(config.retained.messages, config.retained.bytes, config.limits.retained_per_client)
        self.addresses = Addresses(
            config.limits.connections_per_address, config.limits.connects_per_second, config.limits.connect_burst
        )
        overload = config.overload
        connects = overload.connects_per_second if overload.enabled else 0
        self.connects = Connects(connects / workers, overload.connect_burst / workers, overload.connects_waiting)
        self.offload = Offload(threads or ThreadPoolExecutor(THREADS, "offload"), self.reactor.call)
        memory_sessions = MemorySessions()
        self.store: SessionStore = memory_sessions
        registered_store: RegisteredStore | None = None
        self.registration: RegistryClient | None = None
        records: RecordLog | None = None
        if redis is not None:
            self.registration = RegistryClient(
                self.reactor,
                redis,
                worker,
                config.redis.prefix,
                alone,
                clock,
                self.log,
                self.internal_errors.report,
                config.overload,
                wall,
            )
            registered_store = RegisteredStore(self.registration.registry, clock, will_settled)
            self.store = registered_store
            if config.metrics.enabled:
                key = Keys(config.redis.prefix).metrics
                commands = self.registration.commands
                records = RedisRecordLog(commands, key, config.metrics.length, self.counters)
        self.interval_metrics = IntervalMetrics(
            self.counters,
            self.reactor.latencies,
            records,
            self.log,
            worker=worker,
            now=clock(),
        )
        origin = Origin(worker)
        self.deliveries = Deliveries(StreamPause(self.reactor, Pause.FANOUT, False), self.counters, clock, origin)
        quotas, quota_leases = self._quotas(alone)
        pauses = self.interval_metrics.pauses
        recorder = self._recorder(trace) if trace else None
        self.trace_file = None if recorder is None else TraceFile(recorder, self.offload.run)
        self.protection = Protection(
            overload,
            quotas,
            pauses,
            self.client_log,
            recorder,
            self.reactor.soon,
            worker=worker,
            now=clock(),
        )
        self.report_receiver = ReportReceiver(self.protection.reports.hear, self.counters)
        redis_reports: RedisReports | None = None
        if self.registration is not None and redis is not None and not alone:
            redis_reports = RedisReports(
                self.registration.commands,
                Dialler(self.reactor, self.internal_errors.report),
                redis,
                config.redis.prefix,
                worker,
                self.report_receiver,
                self.counters,
                self.log,
                clock(),
            )
        self.reports = OverloadReports(self.peers, redis_reports, self.counters)
        self.overload_monitor = OverloadMonitor(
            overload,
            self.protection,
            self.connects,
            self.log,
            lag=self.reactor.take_lag,
            outbound=self.budget.fill,
            memory=self._memory_used,
            tell=self.reports.tell,
            now=clock(),
        )
        self.egress_quota = EgressQuota(pauses, self.client_log, clock, self.reactor.soon)
        self.connection_protection = ConnectionProtection(
            self.protection, self.overload_monitor, self.egress_quota, self.store, self.reactor
        )
        self.overload_snapshot = OverloadSnapshot(
            self.protection, self.overload_monitor, self.interval_metrics, self.connects, self.counters, overload
        )
        subscribing = Subscribing(
            self.routes,
            self.retained,
            self.counters,
            self.client_log,
            config.limits,
            clock,
            announcements.when_confirmed,
            self.acl,
        )
        self.publishing = Publishing(
            self.routes,
            self.retained,
            self.deliveries,
            self.counters,
            self.client_log,
            packet_bytes=config.limits.packet_bytes,
            receive_maximum=config.limits.receive_maximum,
            alias_maximum=config.limits.topic_alias_maximum,
            qos=config.limits.qos,
            retain=config.limits.retain,
            neighbours=announcements,
            stamps=stamps,
            topics=self.interval_metrics.topics,
            protection=self.protection,
            latencies=self.reactor.latencies,
            answer_pause=StreamPause(self.reactor, Pause.ANSWERS, True),
        )
        timers = Timers()
        disconnects = RecentDisconnects()
        self.sessions = SessionLifecycle(
            self.store,
            subscribing,
            self.deliveries,
            self.publishing.publish,
            timers,
            self.counters,
            disconnects,
            self.internal_errors,
            self.client_log,
            config.limits,
            self.queue_budget,
            origin,
            self.acl,
        )
        self.lifecycle = ConnectionLifecycle(
            self.sessions,
            self.addresses,
            self.reactor,
            timers,
            self.counters,
            disconnects,
            self.internal_errors,
            self.client_log,
            config.limits,
            config.delivery,
            self.budget,
            self.connection_protection,
            connections,
            clock,
        )
        self.transfer = SessionTransfer(
            self.lifecycle,
            self.sessions,
            subscribing,
            self.routes,
            self.store,
            timers,
            self.counters,
            self.queue_budget,
            self.protection.accounts,
        )
        self.takeovers = Takeovers()
        claims: Claims = memory_sessions
        session_claims: SessionClaims | None = None
        self.orphaned_wills: OrphanedWills | None = None
        if self.registration is not None and registered_store is not None:
            registry = self.registration.registry
            incoming = IncomingSessions(worker, self.peers, self.transfer, clock, self.internal_errors.report)
            claims = session_claims = SessionClaims(
                registered_store, registry, neighbours or incoming, clock, self.lifecycle.evict
            )
            outgoing = OutgoingSessions(worker, self.peers, barriers, self.transfer, session_claims, clock)
            self.takeovers = RegisteredTakeovers(worker, self.peers, incoming, outgoing, session_claims)
            self.orphaned_wills = OrphanedWills(
                self.registration.commands,
                self.registration.keys,
                registry.script,
                self.sessions.publish_orphaned_will,
            )
        self.claims = session_claims
        self.mesh = Mesh(
            self.peers,
            announcements,
            barriers,
            self.takeovers,
            self.protection.throttle,
            self.routes,
            self.retained,
            self.deliveries,
            self.reactor,
            self.counters,
            origin,
            stamps,
            self.report_receiver.over_mesh,
            clock,
            self.internal_errors.report,
        )
        self.authenticator = Authenticator(
            self.offload.run,
            files.passwords,
            anonymous=config.access.allow_anonymous,
            certificate_user=config.access.certificate_user,
        )
        self.attempts = ConnectAttempts(
            self.lifecycle,
            self.sessions,
            self.authenticator,
            claims,
            self.store,
            subscribing,
            self.reactor,
            self.counters,
            self.client_log,
            config.limits,
            self.connects,
            self.interval_metrics.pauses,
            _new_client_id,
            random.random,
            clock,
            self.acl,
        )
        self.hub = Hub(
            self.attempts,
            self.lifecycle,
            subscribing,
            self.publishing,
            self.deliveries,
            self.reactor,
            self.counters,
            ClusterBackground(
                self.mesh,
                self.reports,
                self.registration,
                session_claims,
                self.orphaned_wills,
                quota_leases,
                self.internal_errors,
            ),
            self.connection_protection,
            self.internal_errors,
            clock,
            packet_bytes=config.limits.packet_bytes,
            clients=self.interval_metrics.clients,
        )
        self.loop = Loop(
            self.reactor,
            self.hub,
            self.collector,
            self.budget,
            stall_timeout=config.delivery.slow_consumer_timeout,
        )
        self.client_overrides = ClientOverrides(self.protection, self.connection_protection.find, clock)
        self.diagnostics = ClientDiagnostics(
            self.store,
            self.reactor,
            disconnects,
            self.connects,
            self.protection,
            self.overload_monitor,
            config,
            clock,
            worker=worker,
        )
        redis_commands = None if self.registration is None else self.registration.commands
        self.metrics = WorkerMetrics(
            self.counters,
            self.interval_metrics,
            self.overload_monitor,
            self.lifecycle,
            self.connects,
            self.store,
            self.routes,
            self.retained,
            config.retained.bytes,
            self.queue_budget,
            self.budget,
            self.reactor,
            self.loop,
            redis_commands,
            self.publishing.publish_here,
            resident_bytes,
            self.internal_errors.report,
            clock,
            self.log,
        )
        upgrades = UpgradeTasks(self.reactor, config.websocket.path, self.internal_errors.report)
        self.transports = EnabledTransports(config, self.reactor, self.offload, upgrades.start)
        self.reload = Reload(
            config,
            self.acl,
            self.authenticator,
            self.transports,
            self.routes,
            self.lifecycle,
            self.reactor,
            self.log,
            clock,
        )
        self.hand_over = SessionHandOver(self.store, self.takeovers, self.peers, self.reactor, self.log)
        self.housekeeping = Housekeeping(self.retained, self.addresses, self.authenticator.failures, clock)
        self.tasks = WorkerTasks(
            self.loop,
            self.reactor,
            self.lifecycle,
            self.hand_over,
            heartbeat,
            clock,
            self._settled,
            config.drain.timeout,
            [upgrades.run, *self._periodic_tasks()],
        )

    def _periodic_tasks(self) -> list[Callable[[], Awaitable[None]]]:
        config = self.config
        tasks: list[Callable[[], Awaitable[None]]] = [
            partial(every, HOUSEKEEPING, self.housekeeping.run),
            partial(every, HOUSEKEEPING, self.client_log.flush),
            partial(at_whole, config.metrics.interval, self.metrics.close_interval),
        ]
        if self.trace_file is not None:
            tasks.append(partial(every, HOUSEKEEPING, self.trace_file.write))
        if config.sys.interval:
            tasks.append(partial(at_once_and_every, config.sys.interval, self.metrics.publish_sys))
        return tasks

    def _memory_used(self) -> float:
        """The share of its memory limit that this process uses."""
        return resident_bytes() / self._memory

    def _recorder(self, file: str) -> TraceRecorder:
        """Of the decisions of overload protection, for the trace *file*."""
        settings = {key: value for key, value in described(self.config).items() if key.startswith("overload.")}
        about = {
            **self.interval_metrics.recorder.about,
            "began": self.clock(),
            "wall": time.time(),
            "settings": settings,
        }
        return TraceRecorder(file, self.config.overload.trace, self.log, about)

    def _quotas(self, alone: bool) -> tuple[Quotas, QuotaLeaseClient | None]:
        """All quotas, and who asks Redis for what they share, if they do."""
        settings = self.config.quotas
        registration = self.registration
        shares = settings.tenant != QuotaScope() or settings.cluster != ClusterQuota()
        if registration is None or alone or not shares:  # who is alone shares with nobody
            return Quotas(settings, self.config.limits.packet_bytes, None, self.clock()), None
        leases = Leases()
        leasing = QuotaLeaseClient(registration.commands, Keys(self.config.redis.prefix), leases, self.identity)
        return Quotas(settings, self.config.limits.packet_bytes, leases, self.clock()), leasing

    def _settled(self) -> bool:
        """Whether Redis knows everything that it has to know of this worker."""
        return self.registration is None or self.registration.settled()

    def close(self) -> None:
        """Close everything that is still open, after the tasks have ended."""
        self.loop.shut_down()
        if self.trace_file is not None:
            self.trace_file.close()
        self.offload.close()


def _new_client_id() -> str:
    return f"weir-{uuid.uuid4().hex}"
