# What a worker tells of itself in figures: the metrics record of each interval, $SYS, and its report to the supervisor.
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from broker.cluster.parts import ClusterLinks
from broker.delivery.outbox import OutboundBudget
from broker.metrics.gauges import Gauges
from broker.metrics.interval import IntervalMetrics
from broker.metrics.recorder import Store
from broker.metrics.report import Report, report, with_others
from broker.metrics.sys_topics import SysTopics
from broker.net.loop import Loop
from broker.overload.connects import Connects
from broker.overload.gate import Gate
from broker.overload.monitor import OverloadMonitor
from broker.protocol.essentials import Essentials
from broker.protocol.parts import ProtocolParts
from broker.reasons import FlushCause
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.session.message import NEVER, Message
from broker.session.queue import MessageBudget
from broker.version import VERSION

LOGS: Final = 20  # that cannot be used, and are named in a report


class WorkerMetrics:
    def __init__(
        self,
        base: Essentials,
        protocol: ProtocolParts,
        interval_metrics: IntervalMetrics,
        overload_monitor: OverloadMonitor,
        connects: Connects,
        routes: Routes,
        retained: Retained,
        queue_budget: MessageBudget,
        outbound_budget: OutboundBudget,
        loop: Loop,
        links: ClusterLinks,
        resident_bytes: Callable[[], int],
    ) -> None:
        self._counters = base.counters
        self._interval_metrics = interval_metrics
        self._overload_monitor = overload_monitor
        self._lifecycle = protocol.lifecycle
        self._connects = connects
        self._store = protocol.store
        self._cold = protocol.cold
        self._routes = routes
        self._retained = retained
        self._retained_limit = retained.most_bytes
        self._queue_budget = queue_budget
        self._outbound_budget = outbound_budget
        self._reactor = base.reactor
        self._loop = loop
        self._redis = links.registry_client
        self._store_gate = links.store_gate
        self._durable = links.durable_store
        self._carrier = links.carrier
        self._log_gate = links.log_gate
        self._backbone = links.backbone
        self._publishing = protocol.publishing
        self._resident_bytes = resident_bytes
        self._internal_errors = base.internal_errors
        self._clock = base.clock
        self._log = base.log
        self._sys_topics = SysTopics(f"weir version {VERSION}", base.clock())
        self._others: Report = {}

    def set_others(self, others: Report) -> None:
        """Have $SYS add *others* to the figures of this worker: the sum over all other workers, also ended ones."""
        self._others = others

    def gauges(self) -> Gauges:
        """What the worker holds now. The counters that others count are up to date afterwards."""
        _, subscriptions, shared = self._routes.statistics()
        retained = self._retained.statistics()
        now = self._clock()
        gate = self._store_gate
        log, gate_of_log = None if self._carrier is None else self._carrier.statistics(), self._log_gate
        backbone = None if self._backbone is None else self._backbone.statistics()
        logs = None if self._durable is None else self._durable.logs
        self._update_counters()
        self._interval_metrics.pauses.settle(now)
        return Gauges(
            clients_connected=self._lifecycle.connected,
            clients_total=self._store.count(),
            sessions_cold=0 if self._cold is None else self._cold.count(),
            sessions_in_memory=self._store.count_in_memory(),
            connects_waiting=self._connects.waiting(),
            subscriptions=subscriptions,
            shared_subscriptions=shared,
            store_waiting=0 if gate is None else gate.count,
            store_ms=0.0 if gate is None else _milliseconds(gate, now),
            log_waiting=0 if log is None else log.unstored,
            log_waiting_bytes=0 if log is None else log.unstored_bytes,
            log_held_bytes=0 if log is None else log.held_bytes,
            log_readings=0 if log is None else log.readings,
            log_failing=0 if logs is None else len(logs.troubles),
            log_ms=0.0 if gate_of_log is None else _milliseconds(gate_of_log, now),
            backbone_lag_ms=0.0 if backbone is None else round(1e3 * backbone.lag, 3),
            backbone_behind=0 if backbone is None else backbone.behind,
            backbone_unfinished=0 if backbone is None else backbone.unfinished,
            backbone_partitions=0 if backbone is None else backbone.partitions,
            store_fill=0.0 if self._redis is None else self._redis.memory.fill(),
            retained=retained.count - retained.own,
            retained_bytes=retained.bytes - retained.own_bytes,
            retained_unwritten=retained.unwritten,
            queued=self._queue_budget.messages,
            queued_bytes=self._queue_budget.used,
            queued_limit=self._queue_budget.limit,
            heap_bytes=self._resident_bytes(),
            non_writable=self._outbound_budget.non_writable,
            paused=len(self._interval_metrics.pauses),
            outbound_bytes=self._outbound_budget.used,
            outbound_limit=self._outbound_budget.limit,
            p50_ms=self._interval_metrics.recorder.p50_ms,
            p99_ms=self._interval_metrics.recorder.p99_ms,
            overload=self._overload_monitor.figures(now),
        )

    def _update_counters(self) -> None:
        counters, reactor = self._counters, self._reactor
        counters.bytes_received = reactor.bytes_received
        counters.bytes_sent = reactor.bytes_sent
        counters.became_non_writable = self._outbound_budget.became_non_writable
        carrier = self._carrier
        if carrier is not None:
            counters.log_packs = carrier.stored_packs
            counters.log_bytes = carrier.stored_bytes
            counters.log_carriers = carrier.carriers
            counters.log_refusals_by_reason.update(carrier.refused_packs)
        if self._backbone is not None:
            backbone = self._backbone.statistics()
            counters.backbone_appended = backbone.appended
            counters.backbone_dispatched = backbone.dispatched
            counters.backbone_left_out = backbone.left_out
            counters.backbone_deleted = backbone.deleted
            counters.backbone_damaged = backbone.damaged
        flushing = reactor.flushing
        later = flushing.filled + flushing.waited + flushing.evicted
        counted = counters.flushes_by_cause
        counted[FlushCause.FILLED.label] = flushing.filled
        counted[FlushCause.WAITED.label] = flushing.waited
        counted[FlushCause.EVICTED.label] = flushing.evicted
        counted[FlushCause.TICK.label] = max(0, reactor.flushes - later)

    def close_interval(self, wall: float) -> None:
        """End the interval of the metrics record at *wall*, Unix time."""
        try:
            self._interval_metrics.close_interval(self.gauges(), self._stores(), wall, self._clock())
        except Exception as error:  # a bug costs this record, and not the worker
            self._internal_errors.report(error)
        self._reactor.wake()

    def _stores(self) -> dict[str, Store]:
        changes = self._counters.retained_set + self._counters.retained_deleted
        found = {"retained": Store(self._retained.statistics().bytes, self._retained_limit, changes)}
        if self._redis is not None:
            memory = self._redis.memory
            found["redis"] = Store(memory.used, memory.limit, self._redis.commands.statistics.sent)
        if self._store_gate is not None:
            found["sessions"] = Store(0, 0, self._counters.store_commands)
        return found

    def publish_sys(self) -> None:
        """Publish the topics of $SYS whose values have changed."""
        now = self._clock()
        counters, gauges = with_others(self._counters, self.gauges(), self._others)
        for topic, payload in self._sys_topics.sample(now, counters, gauges):
            self._publishing.publish_here(Message(topic, payload, 0, True, b"", NEVER), now)
        self._reactor.wake()

    def report(self) -> dict[str, Any]:
        """The report to the supervisor."""
        told = report(self._counters, self.gauges())
        loop = self._loop.statistics
        told["loop"] = {"busy": loop.busy, "longest_slice": loop.longest_slice}
        logs = None if self._durable is None else self._durable.logs
        if logs is not None:
            told["logs"] = {"failing": len(logs.troubles), "named": [*islice(logs.troubles.items(), LOGS)]}
        if self._backbone is not None:
            told["backbone"] = {"trouble": self._backbone.trouble(), "unread": self._backbone.unread()}
        return told

    def log_loop(self, collections: int, longest_collection: float) -> None:
        """Log how long the loop was held. *longest_collection* in seconds."""
        loop = self._loop.statistics
        self._log.info(
            "loop_statistics",
            slices=loop.slices,
            busy_s=round(loop.busy, 3),
            longest_slice_ms=round(loop.longest_slice * 1e3, 3),
            collections=collections,
            longest_collection_ms=round(longest_collection * 1e3, 3),
        )


def _milliseconds(gate: Gate, now: float) -> float:
    """How long publishes wait for the resource of *gate*."""
    return (gate.capacity()[1] + gate.delay(now)) * 1e3
