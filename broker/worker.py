# A worker: makes all parts, and hands them to each other. The process around it is in __main__.py.
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog

from broker.auth.authenticator import Authenticator
from broker.auth.files import AccessFiles
from broker.cluster.overload_reports import OverloadReports, ReportReceiver
from broker.cluster.parts import ClusterLinks, ClusterParts
from broker.cluster.takeover import TakeoverRequests
from broker.config.budget import WorkerBudget
from broker.config.schema import Config
from broker.control.heartbeat import Heartbeat
from broker.control.machine import memory_limit, memory_use, resident_bytes
from broker.control.periodic import as_due, at_once_and_every, at_whole, every
from broker.control.reload import Reload
from broker.control.session_hand_over import SessionHandOver
from broker.control.trace import trace_recorder
from broker.control.worker_tasks import WorkerTasks
from broker.delivery.outbox import OutboundBudget
from broker.insight.client_diagnostics import ClientDiagnostics
from broker.insight.logs import ClientLog
from broker.insight.overload_snapshot import OverloadSnapshot
from broker.insight.worker_metrics import WorkerMetrics
from broker.metrics.counters import Counters
from broker.metrics.interval import IntervalMetrics
from broker.net.collector import Collector
from broker.net.loop import Loop
from broker.net.offload import Offload
from broker.net.reactor import Reactor
from broker.net.transports.enabled import EnabledTransports
from broker.net.transports.handshakes import UNDER_WAY, Handshakes
from broker.net.transports.upgrade_tasks import UpgradeTasks
from broker.overload.addresses import Addresses
from broker.overload.connects import Connects
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.client_overrides import ClientOverrides
from broker.protocol.essentials import Essentials
from broker.protocol.housekeeping import Housekeeping
from broker.protocol.lifecycle import REFUSABLE
from broker.protocol.parts import ProtocolParts, make_routes
from broker.routing.retained import Retained
from broker.session.origin import Origin
from broker.session.queue import MessageBudget
from broker.store.redis.address import RedisAddress
from broker.store.trace_file import TraceFile
from broker.worker_id import WorkerId

OWN_DESCRIPTORS: Final = 64 + REFUSABLE  # for listeners, epolls, logs, and connections that are refused by a CONNACK
THREADS: Final = 2  # that hash passwords: one slow hash does not delay all others
HOUSEKEEPING: Final = 1.0  # seconds between two runs
OFTEN: Final = 0.1  # for what should not wait so long


def _ignore(client_id: str, epoch: int) -> None:
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
        memory: int = 0,
        identity: WorkerId | None = None,
        redis: RedisAddress | None = None,
        alone: bool = False,
        neighbours: TakeoverRequests | None = None,
        wall: Callable[[], float] = time.time,
        trace: str = "",
        will_settled: Callable[[str, int], None] = _ignore,
        cluster_key: bytes = b"",
    ) -> None:
        """One of *workers* that share *memory* bytes, 0: all that there are. AccessFileError, CertificateError.

        *connections*: how many clients may be connected. *threads*: the executor of the offload, if not its own.
        *redis*: where sessions are registered. *alone*: no other worker registers sessions there. *neighbours*:
        replaces the other workers in requests for sessions. *clock* is monotonic and *wall* Unix time, in seconds.
        *trace*: the file of decisions; "" for none. *will_settled*: see `RegisteredStore`. *cluster_key*: see `Seal`.
        """
        worker = identity or WorkerId(config.node.name, 0, 0)
        limits, delivery, overload, files = config.limits, config.delivery, config.overload, AccessFiles(config.access)
        budget = WorkerBudget(config, memory or memory_limit(), workers)
        self.outbound_budget = OutboundBudget(budget.outbound)
        self.queue_budget = MessageBudget(budget.messages, config.limits.queue_ttl)
        self.reactor = Reactor(
            clock,
            input_budget=budget.input,
            adaptive_hold=delivery.adaptive_hold,
            buffered_hold=delivery.buffered_hold,
            most_held=delivery.held,
        )
        self.client_log = ClientLog(config.log.client_events_per_second, clock)
        self.base = base = Essentials(
            config, worker, self.reactor, Counters(), structlog.get_logger(), self.client_log, clock, wall, workers
        )
        self.offload = Offload(threads or ThreadPoolExecutor(THREADS, "offload"), self.reactor.call)
        self.handshakes = Offload(threads or ThreadPoolExecutor(UNDER_WAY, "handshakes"), self.reactor.call)
        self.links = links = ClusterLinks(base, redis, alone, will_settled, cluster_key)
        self.routes = make_routes(base, files.acl, links.announcements, self.queue_budget, budget.routes, workers)
        self.retained = Retained(config.retained.messages, budget.retained, limits.retained_per_client)
        self.interval_metrics = IntervalMetrics(
            base.counters, self.reactor.latencies, links.record_logs, base.log, worker=worker, now=clock()
        )

        # Overload protection.
        addresses = Addresses(limits.connections_per_address, limits.connects_per_second, limits.connect_burst)
        rate = overload.connects_per_second if overload.enabled else 0
        connects = Connects(
            rate / workers, overload.connect_burst / workers, overload.connects_waiting, budget.connects
        )
        recorder = trace_recorder(base, self.interval_metrics, trace) if trace else None
        self.trace_file = None if recorder is None else TraceFile(recorder, self.offload.run)
        self.protection = Protection(
            overload,
            links.quotas(),
            self.interval_metrics.pauses,
            self.client_log,
            recorder,
            self.reactor.soon,
            worker=worker,
            now=clock(),
            tenant_of=config.quotas.tenant_of,
        )
        self.report_receiver = ReportReceiver(self.protection.reports.hear, base.counters)
        self.reports = OverloadReports(links.peers, links.redis_reports(self.report_receiver), base.counters)
        self.overload_monitor = OverloadMonitor(
            overload,
            self.protection,
            connects,
            base.log,
            lag=self.reactor.take_lag,
            outbound=self.outbound_budget.fill,
            memory=partial(memory_use, budget.memory),
            redis=links.store_fill,
            tell=self.reports.tell,
            now=clock(),
        )

        # Clients, and the other workers.
        links.link_carrier(self.protection.throttle)
        origin = Origin(worker)
        self.protocol = protocol = ProtocolParts(
            base,
            connections,
            links.store,
            self.routes,
            self.retained,
            links.announcements,
            links.announcements.when_confirmed,
            links.stamps,
            origin,
            files.acl,
            self.outbound_budget,
            self.queue_budget,
            budget.wills,
            budget.subscriptions,
            addresses,
            connects,
            self.protection,
            self.overload_monitor,
            self.interval_metrics,
            links.store_in_redis(self.protection.throttle, self.queue_budget, self.retained, budget.unwritten),
        )
        self.cluster = cluster = ClusterParts(
            base,
            links,
            protocol,
            self.protection,
            self.routes,
            self.retained,
            origin,
            self.report_receiver,
            self.reports,
            neighbours,
        )
        self.authenticator = Authenticator(
            config.access, files.passwords, base.counters, self.offload.run, self.reactor.call, clock, workers
        )
        self.attempts = protocol.attempts(self.authenticator, cluster.claims)
        self.hub = protocol.hub(self.attempts, cluster.background)
        self.collector = Collector()
        self.loop = Loop(
            self.reactor, self.hub, self.collector, self.outbound_budget, stall_timeout=delivery.slow_consumer_timeout
        )
        upgrades = UpgradeTasks(self.reactor, config.websocket.path, base.internal_errors.report)
        self.transports = EnabledTransports(config, self.reactor, Handshakes(self.handshakes), upgrades.start)

        # What people and the supervisor see and ask for.
        self.client_overrides = ClientOverrides(self.protection, protocol.protection.find, clock)
        self.overload_snapshot = OverloadSnapshot(
            self.protection, self.overload_monitor, self.interval_metrics, connects, base.counters, overload
        )
        self.diagnostics = ClientDiagnostics(
            base, links, protocol.disconnects, connects, self.protection, self.overload_monitor
        )
        self.metrics = WorkerMetrics(
            base,
            protocol,
            self.interval_metrics,
            self.overload_monitor,
            connects,
            self.routes,
            self.retained,
            self.queue_budget,
            self.outbound_budget,
            self.loop,
            links,
            resident_bytes,
        )
        self.reload = Reload(base, files.acl, self.authenticator, self.transports, self.routes, protocol.lifecycle)
        self.hand_over = SessionHandOver(base, links.store, cluster.takeovers, links.peers, self.routes)
        housekeeping = Housekeeping(self.retained, addresses, self.authenticator, self.queue_budget, clock)
        tasks: list[Callable[[], Awaitable[None]]] = [
            upgrades.run,
            partial(every, HOUSEKEEPING, housekeeping.run),
            partial(every, HOUSEKEEPING, self.client_log.flush),
            partial(every, OFTEN, protocol.shedding.run),
            partial(every, OFTEN, protocol.gaps.run),
            partial(as_due, cluster.moves.run),
            partial(at_whole, config.metrics.interval, self.metrics.close_interval),
        ]
        if self.trace_file is not None:
            tasks.append(partial(every, HOUSEKEEPING, self.trace_file.write))
        if config.sys.interval:
            tasks.append(partial(at_once_and_every, config.sys.interval, self.metrics.publish_sys))
        departure, after_slice = cluster.mesh.departure, self.client_log.write_held
        self.tasks = WorkerTasks(
            base, self.loop, protocol.lifecycle, self.hand_over, departure, heartbeat, links.settled, after_slice, tasks
        )

    def close(self) -> None:
        """Close everything that is still open, after the tasks have ended."""
        self.loop.shut_down()
        if self.links.node_lanes is not None:
            self.links.node_lanes.stop(self.base.clock())
        if self.trace_file is not None:
            self.trace_file.close()
        self.offload.close()
        self.handshakes.close()
