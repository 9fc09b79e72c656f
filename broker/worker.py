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
from typing import Any, Final

import structlog
import trio

from broker.auth.authenticator import Authenticator
from broker.auth.files import AccessFileError, AccessFiles
from broker.cluster.announcements import Announcements
from broker.cluster.background import ClusterBackground
from broker.cluster.barriers import Barriers
from broker.cluster.mesh import Mesh
from broker.cluster.overload_reports import OverloadReports, RedisReports, ReportReceiver
from broker.cluster.peers import Peers
from broker.cluster.quota_lease_client import QuotaLeaseClient
from broker.cluster.registry_client import RegistryClient
from broker.cluster.takeover import TakeoverRequests
from broker.cluster.takeovers import Takeovers
from broker.config.schema import ClusterQuota, Config, QuotaScope
from broker.config.sources import described
from broker.control.heartbeat import DRAINING, Heartbeat
from broker.control.machine import memory_limit, resident_bytes
from broker.delivery.egress_quota import EgressQuota
from broker.delivery.outbox import OutboundBudget
from broker.insight.client_diagnostics import ClientDiagnostics
from broker.insight.logs import ClientLog
from broker.insight.overload_snapshot import OverloadSnapshot
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.interval import IntervalMetrics, RecordLog
from broker.metrics.recorder import Store
from broker.metrics.report import Report, report, with_others
from broker.metrics.sys_topics import SysTopics
from broker.mqtt.packets import Will
from broker.net.collector import Collector
from broker.net.dialling import Dialler
from broker.net.loop import Loop
from broker.net.offload import Offload
from broker.net.pauses import Pause
from broker.net.reactor import LINGER, Reactor
from broker.net.source_pause import StreamPause
from broker.net.transports.certificates import CertificateError, make_context
from broker.net.transports.tls import TlsTransport
from broker.net.transports.transport import TCP, Transport
from broker.net.transports.websocket import UpgradeTask, WebSocketLayer, WebSocketTransport
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
from broker.protocol.hub import Hub
from broker.protocol.internal_errors import InternalErrors
from broker.protocol.lifecycle import REFUSABLE, ConnectionLifecycle
from broker.protocol.publishing import Publishing
from broker.protocol.recent_disconnects import RecentDisconnects
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.session_transfer import SessionTransfer
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import Timers
from broker.reasons import FlushCause
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.origin import Origin
from broker.session.session import QueueBudget, Session
from broker.store.redis.address import RedisAddress
from broker.store.redis.keys import Keys
from broker.store.redis.record_log import RedisRecordLog
from broker.store.sessions import MemorySessions, SessionStore
from broker.store.trace_file import TraceFile
from broker.version import VERSION
from broker.worker_id import WorkerId

OWN_DESCRIPTORS: Final = 64 + REFUSABLE  # for listeners, epolls, logs, and connections that are refused with a word
THREADS: Final = 2  # for the offload: one slow hash does not hold up all handshakes
OFFERED_AT_ONCE: Final = 100  # sessions on their way to other workers
OFFER_PAUSE: Final = 0.005  # seconds between two looks at how many have gone
HOUSEKEEPING: Final = 1.0  # seconds
EXPIRED_AT_ONCE: Final = 1_000  # retained messages dropped in one go
FORGOTTEN_AT_ONCE: Final = 1_000  # addresses looked at, whether there is still something to know about them
INPUT_BUDGET_SHARE: Final = 16  # of the memory limit: bytes received and not yet taken


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
    ) -> None:
        """One of *workers* that share the machine; AccessFileError.

        *threads*: the executor of the offload, if it is not to make its own. *redis*: where sessions are registered.
        *alone*: no other worker registers sessions there. *neighbours*: replaces the mesh in requests for sessions.
        *clock* is monotonic and *wall* Unix time, both in seconds. *trace*: the file in which the decisions of overload
        protection are recorded; "" for none.
        """
        worker = identity or WorkerId(config.node.name, 0, 0)
        self.config = config
        self.heartbeat = heartbeat
        self.identity = worker
        self.shard = worker.shard
        self.others: Report = {}  # the sum of what the other workers count, and those who are no more
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
        self.takeovers = Takeovers(worker, self.peers, barriers, clock, self.internal_errors.report)
        self.registration: RegistryClient | None = None
        self.store: SessionStore = MemorySessions()
        records: RecordLog | None = None
        if redis is not None:
            self.registration = RegistryClient(
                self.reactor,
                redis,
                worker,
                config.redis.prefix,
                alone,
                neighbours or self.takeovers,
                clock,
                self.log,
                self.internal_errors.report,
                config.overload,
                self._evict,
                self._publish_orphaned_will,
                wall,
            )
            self.store = self.registration.store
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
            self.store,
            subscribing,
            self.reactor,
            self.counters,
            self.client_log,
            config.limits,
            self.connects,
            self.interval_metrics.pauses,
            partial(_new_client_id, "weir-"),
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
            ClusterBackground(self.mesh, self.reports, self.registration, quota_leases, self.internal_errors),
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
        self.takeovers.moving = self.transfer
        if self.registration is not None and redis is not None:
            self.takeovers.sessions = self.registration.store
        self.sys_topics = SysTopics(f"weir version {VERSION}", clock())
        self.hands_over = False  # at its end the other workers get its sessions
        self._tls: TlsTransport | None = None
        self._nursery: trio.Nursery | None = None  # of the tasks of connections that need one

    # Called by parts that have to be made before those that they call.

    def _evict(self, session: Session) -> None:
        self.lifecycle.evict(session)

    def _publish_orphaned_will(self, client_id: str, user: str | None, will: Will, now: float) -> None:
        self.sessions.publish_orphaned_will(client_id, user, will, now)

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

    async def serve(self, stopping: trio.Event) -> None:
        """Serve until *stopping*; then the clients have the drain time to take what they are owed."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._spin)
            nursery.start_soon(self._housekeeping)
            nursery.start_soon(self._keep_record)
            if self.config.sys.interval:
                nursery.start_soon(self._publish_sys)
            await stopping.wait()
            if self.heartbeat is not None:
                self.heartbeat.enter(DRAINING, self.clock())
            self.loop.stop_listening()
            self.reactor.linger = max(LINGER, self.config.drain.timeout)
            self.lifecycle.stop(self.clock())
            self.reactor.wake()
            with trio.move_on_after(self.config.drain.timeout):
                if self.hands_over:
                    await self._hand_over()
                while self.reactor.streams() or not (self.registration is None or self.registration.settled()):
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def _hand_over(self) -> None:
        """Let the other workers have our sessions."""
        sessions = list(self.store.sessions())
        for number, session in enumerate(sessions):
            while self.mesh.peers and number - (len(sessions) - self.sessions_here()) >= OFFERED_AT_ONCE:
                await trio.sleep(OFFER_PAUSE)
            self.takeovers.offer(session)
            self.reactor.wake()
        while self.mesh.peers and self.sessions_here():
            await trio.sleep(OFFER_PAUSE)
        self.log.info("sessions_handed_over", sessions=len(sessions) - self.sessions_here())

    def sessions_here(self) -> int:
        """Sessions that no other worker has whole yet."""
        return self.store.count() + self.takeovers.departing()

    def close(self) -> None:
        """End whatever is still open, after `serve()`."""
        self.loop.shut_down()
        if self.trace_file is not None:
            self.trace_file.close()
        self.offload.close()

    def transports(self) -> dict[str, Transport]:
        """What each enabled listener needs. CertificateError."""
        listeners = self.config.listeners
        found: dict[str, Transport] = {}
        if listeners.tcp.enabled:
            found["tcp"] = TCP
        if listeners.tls.enabled or listeners.wss.enabled:
            self._tls = TlsTransport("tls", make_context(self.config.tls), self.reactor, self.offload)
            if listeners.tls.enabled:
                found["tls"] = self._tls
        message_bytes = self.config.websocket.message_bytes
        if listeners.ws.enabled:
            found["ws"] = WebSocketTransport("ws", self.reactor, None, message_bytes, self._start_upgrade)
        if listeners.wss.enabled:
            found["wss"] = WebSocketTransport("wss", self.reactor, self._tls, message_bytes, self._start_upgrade)
        return found

    def reload(self) -> str:
        """Read again what can change without a restart; if any of it cannot be used, all stays as it was: why."""
        try:
            files = AccessFiles(self.config.access)
            context = None if self._tls is None else make_context(self.config.tls)
        except (AccessFileError, CertificateError) as error:
            self.log.error("reload_failed", why=str(error))
            return str(error)
        if self._tls is not None and context is not None:
            self._tls.context = context
        self._let_in_by(files)
        settings = self.config
        named = (settings.tls.certificate, settings.access.password_file, settings.access.acl_file)
        self.log.info("reloaded", files=[file for file in named if file])
        return ""

    def _let_in_by(self, files: AccessFiles) -> None:
        """*files* are in force from now on, also for those who are in."""
        if self.acl is not None and files.acl is not None:
            self.acl.replace(files.acl)
            self.routes.judge_again()
        if files.passwords is not None:
            former = self.authenticator.replace(files.passwords)
            if former is not None:
                self.lifecycle.dismiss(partial(former.lost, files.passwords), self.clock())
                self.reactor.wake()

    def _start_upgrade(self, layer: WebSocketLayer, request: bytes) -> UpgradeTask:
        from broker.net.transports.upgrade import Upgrade  # trio-websocket costs memory that only its users should pay

        assert self._nursery is not None
        task = Upgrade(layer, request, self.config.websocket.path, self.internal_errors.report)
        self._nursery.start_soon(self._upgrade, task.run)
        self.reactor.urgent_tasks += (
            1  # it takes several passes of trio's, which are not to be a turn of the reactor apart
        )
        return task

    async def _upgrade(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        finally:
            self.reactor.urgent_tasks -= 1

    async def _spin(self) -> None:
        """Give the loop its slices, and trio its turn between them."""
        loop, heartbeat = self.loop, self.heartbeat
        while True:
            wait = loop.turn()
            if heartbeat is not None:
                now = self.clock()
                if now >= heartbeat.worth_while:
                    heartbeat.stamp(now)
                wait = min(wait, heartbeat.due - now)
            if wait > 0.0:
                with trio.move_on_after(wait):
                    await trio.lowlevel.wait_readable(loop.fileno())
            else:
                await trio.lowlevel.checkpoint()

    async def _housekeeping(self) -> None:
        while True:
            await trio.sleep(HOUSEKEEPING)
            self.retained.expire(self.clock(), EXPIRED_AT_ONCE)
            self.addresses.forget(self.clock(), FORGOTTEN_AT_ONCE)
            self.client_log.flush()
            self.authenticator.failures.forget(self.clock())
            if self.trace_file is not None:
                self.trace_file.write()

    async def _keep_record(self) -> None:
        """At whole seconds, or what the interval is, by the clock that all nodes share: so windows get one of each."""
        interval = self.config.metrics.interval
        while True:
            left = interval - time.time() % interval
            await trio.sleep(left if left > interval / 2 else left + interval)  # the wall's clock may go otherwise
            self.record(time.time())

    def record(self, wall: float) -> None:
        """An interval ends, at *wall*, Unix time."""
        try:
            self.interval_metrics.close_interval(self.gauges(), self._stores(), wall, self.clock())
        except Exception as error:  # our mistake: it costs this record and not the worker
            self.internal_errors.report(error)
        self.reactor.wake()

    def _stores(self) -> dict[str, Store]:
        counters = self.counters
        changes = counters.retained_set + counters.retained_deleted
        found = {"retained": Store(self.retained.statistics().bytes, self.config.retained.bytes, changes)}
        if self.registration is not None:
            found["redis"] = Store(0, 0, self.registration.commands.statistics.sent)
        return found

    async def _publish_sys(self) -> None:
        while True:
            now = self.clock()
            summed = with_others(self.counters, self.gauges(), self.others)
            for topic, payload in self.sys_topics.sample(now, *summed):
                self.publishing.publish_here(Message(topic, payload, 0, True, b"", NEVER), now)
            self.reactor.wake()
            await trio.sleep(self.config.sys.interval)

    def gauges(self) -> Gauges:
        """What is held now; the counters are up to date afterwards."""
        _, subscriptions, shared = self.routes.statistics()
        retained = self.retained.statistics()
        self.counters.bytes_received = self.reactor.bytes_received
        self.counters.bytes_sent = self.reactor.bytes_sent
        self.counters.became_non_writable = self.budget.became_non_writable
        self._count_flushes()
        self.interval_metrics.pauses.settle(self.clock())
        return Gauges(
            clients_connected=self.lifecycle.connected,
            clients_total=self.store.count(),
            connects_waiting=self.connects.waiting(),
            subscriptions=subscriptions,
            shared_subscriptions=shared,
            retained=retained.count,
            retained_bytes=retained.bytes,
            queued=self.queue_budget.messages,
            queued_bytes=self.queue_budget.used,
            queued_limit=self.queue_budget.limit,
            heap_bytes=resident_bytes(),
            non_writable=self.budget.non_writable,
            paused=len(self.interval_metrics.pauses),
            outbound_bytes=self.budget.used,
            outbound_limit=self.budget.limit,
            p50_ms=self.interval_metrics.recorder.p50_ms,
            p99_ms=self.interval_metrics.recorder.p99_ms,
            overload=self.overload_monitor.figures(self.clock()),
        )

    def _count_flushes(self) -> None:
        flushing = self.reactor.flushing
        later = flushing.filled + flushing.waited + flushing.evicted
        counted = self.counters.flushes_by_cause
        counted[FlushCause.FILLED.label] = flushing.filled
        counted[FlushCause.WAITED.label] = flushing.waited
        counted[FlushCause.EVICTED.label] = flushing.evicted
        counted[FlushCause.TICK.label] = max(0, self.reactor.flushes - later)

    def statistics(self) -> dict[str, Any]:
        """What the supervisor is told each second: metrics/report.py."""
        told = report(self.counters, self.gauges())
        told["loop"] = {"busy": self.loop.statistics.busy, "longest_slice": self.loop.statistics.longest_slice}
        return told

    def log_statistics(self) -> None:
        """What the loop did, for whoever wants to know how long it was held."""
        statistics = self.loop.statistics
        self.log.info(
            "loop_statistics",
            slices=statistics.slices,
            busy_s=round(statistics.busy, 3),
            longest_slice_ms=round(statistics.longest_slice * 1e3, 3),
            collections=self.collector.collections,
            longest_collection_ms=round(self.collector.longest * 1e3, 3),
        )


def _new_client_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
