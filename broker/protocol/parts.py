# Makes the parts of a worker that serve clients, and hands them to each other.
import random
import uuid
from functools import partial

from broker.auth.acl import Acl
from broker.auth.authenticator import Authenticator
from broker.auth.client_ids import ClientIds
from broker.delivery.catching_up import Paces
from broker.delivery.egress_quota import EgressQuota
from broker.delivery.outbox import OutboundBudget
from broker.metrics.interval import IntervalMetrics
from broker.net.pauses import Pause
from broker.net.source_pause import StreamPause
from broker.overload.addresses import Addresses
from broker.overload.connects import Connects
from broker.overload.level import cold_of, store_rate_of
from broker.overload.monitor import OverloadMonitor
from broker.overload.placement import Placement
from broker.overload.protection import Protection
from broker.overload.store_rate import StoreRate
from broker.protocol.background import Background
from broker.protocol.ban_enforcement import BanEnforcement
from broker.protocol.client_kinds import ClientKinds
from broker.protocol.cold_sessions import ColdSessions
from broker.protocol.configured_limits import ConfiguredLimits
from broker.protocol.connect_attempt import ConnectAttempts
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.durable_sessions import DurableSessions, WhenConfirmed
from broker.protocol.essentials import Essentials
from broker.protocol.gap_notices import GapNotices
from broker.protocol.hub import Hub
from broker.protocol.kind_changes import KindChanges
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.protocol.message_shedding import MessageShedding
from broker.protocol.pack_timeouts import PackTimeouts
from broker.protocol.publishing import Publishing
from broker.protocol.recent_disconnects import RecentDisconnects
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.protocol.session_transfer import SessionTransfer
from broker.protocol.shared_lists import shared_backlog
from broker.protocol.subscribing import Subscribing
from broker.protocol.timers import Timers
from broker.routing.cold_index import ColdIndex
from broker.routing.fanout import Deliveries
from broker.routing.hybrid_clock import HybridClock
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.routing.subscription_budget import SubscriptionBudget
from broker.session.origin import Origin
from broker.session.queue import MessageBudget
from broker.session.reserve import Reserve
from broker.store.durable.shared_lists import SharedLists
from broker.store.durable.shared_logs import DurableSharedLogs
from broker.store.durable.store import DurableStore
from broker.store.sessions import Claims, SessionStore


class ProtocolParts:
    def __init__(
        self,
        base: Essentials,
        connections: int,
        store: SessionStore,
        routes: Routes,
        retained: Retained,
        neighbours: Neighbours,
        when_confirmed: WhenConfirmed,
        stamps: HybridClock,
        origin: Origin,
        acl: Acl | None,
        outbound_budget: OutboundBudget,
        queue_budget: MessageBudget,
        wills: int,
        subscription_budget: int,
        addresses: Addresses,
        connects: Connects,
        protection: Protection,
        monitor: OverloadMonitor,
        metrics: IntervalMetrics,
        durable: DurableStore | None,
    ) -> None:
        """*connections*: how many may have a session. *wills*, *subscription_budget*: bytes. *when_confirmed*
        calls back when all workers know what a connection has subscribed to. *durable*: None: sessions are in memory.
        """
        config, reactor, counters, clock, log = base.config, base.reactor, base.counters, base.clock, base.client_log
        limits, timers = config.limits, Timers()
        self.store = store
        self.disconnects = RecentDisconnects()
        self.deliveries = Deliveries(StreamPause(reactor, Pause.FANOUT, False), counters, clock, origin, routes.backlog)
        self.egress_quota = EgressQuota(metrics.pauses, log, clock, reactor.soon)
        rates = config.delivery.replay_messages, config.delivery.replay_bytes
        paces = Paces(*rates, limits.queue_qos0, protection.quotas.configured, clock, reactor.soon)
        self.store_rate: StoreRate | None = None
        if durable is not None and config.store.messages_per_second:
            share = config.store.messages_per_second / base.workers
            self.store_rate = StoreRate(
                share, store_rate_of(str(base.worker)), protection.throttle, clock(), reactor.soon
            )
        self.protection = ConnectionProtection(
            protection, monitor, self.egress_quota, paces, self.store_rate, store, reactor
        )
        self.subscribing = Subscribing(
            routes,
            retained,
            counters,
            log,
            limits,
            clock,
            SubscriptionBudget(routes, subscription_budget),
            when_confirmed,
            StreamPause(reactor, Pause.STORE, False),
            config.application.shared_filters,
            acl,
        )
        self.publishing = Publishing(
            routes,
            retained,
            self.deliveries,
            counters,
            log,
            packet_bytes=limits.packet_bytes,
            receive_maximum=limits.receive_maximum,
            alias_maximum=limits.topic_alias_maximum,
            qos=limits.qos,
            retain=limits.retain,
            neighbours=neighbours,
            stamps=stamps,
            topics=metrics.topics,
            protection=protection,
            latencies=reactor.latencies,
            answer_pause=StreamPause(reactor, Pause.ANSWERS, True),
            clock=clock,
            retained_store=None if durable is None else durable.retained,
            store_rate=self.store_rate,
        )
        self.gaps = GapNotices(acl, limits.topic_bytes, clock, base.wall)
        self.sessions = SessionLifecycle(
            store,
            self.subscribing,
            self.publishing.publish_will,
            timers,
            counters,
            self.disconnects,
            base.internal_errors,
            log,
            limits,
            queue_budget,
            Reserve(wills),
            origin,
            acl,
            protection.quotas.configured,
            durable,
            base.wall,
            self.gaps,
        )
        self.lifecycle = ConnectionLifecycle(
            self.sessions,
            addresses,
            reactor,
            timers,
            counters,
            self.disconnects,
            base.internal_errors,
            log,
            limits,
            config.delivery,
            outbound_budget,
            self.protection,
            connections,
            clock,
        )
        self.bans = BanEnforcement(self.lifecycle, reactor, base.log, clock)
        self.overrides = ConfiguredLimits(
            self.sessions, store, self.protection, protection.quotas.configured, reactor, clock
        )
        self.shedding = MessageShedding(queue_budget, store, self.lifecycle, reactor, counters, base.client_log, clock)
        self.transfer = SessionTransfer(
            self.lifecycle,
            self.sessions,
            self.subscribing,
            store,
            timers,
            clock,
            counters,
            queue_budget,
            protection.accounts,
            durable,
        )
        self.kind_changes = KindChanges(self.sessions, self.subscribing, self.lifecycle, store, base.client_log)
        self.durable: DurableSessions | None = None
        self.cold: ColdSessions | None = None  # None: no session is stored
        if durable is not None:
            shared = SharedLists(
                durable, routes, base.worker, limits.queue_bytes, queue_budget, base.counters, base.log
            )
            routes.backlog.store = shared
            if durable.logs is not None:
                wake = reactor.wake
                routes.logs = DurableSharedLogs(durable, queue_budget, counters, base.log, acl, wake)
            routes.backlog.members_known = False  # until the mesh says so
            timeouts = PackTimeouts(config.application, store, self.lifecycle)
            durable.log_hooks.overdue = timeouts.overdue
            durable.log_hooks.drained = self.kind_changes.drained
            self.cold = ColdSessions(
                durable,
                ColdIndex(),
                store,
                self.sessions,
                self.subscribing,
                routes,
                self.deliveries,
                queue_budget,
                counters,
                self.lifecycle.abandon,
                clock,
                partial(when_confirmed, None),
                protection.throttle.add_gate(cold_of(str(base.worker)), clock()),
                protection.throttle.opened,
            )
            self.durable = DurableSessions(
                durable,
                shared,
                self.sessions,
                self.lifecycle,
                self.subscribing,
                self.transfer,
                store,
                routes,
                counters,
                base.log,
                clock,
                when_confirmed,
                self.cold,
                base.worker.incarnation_text.encode(),
            )
        self._base = base
        self._routes = routes
        self.connects = connects
        self.placement = Placement(base.worker, base.workers, protection.reports)
        self._metrics = metrics
        self._acl = acl

    def attempts(self, authenticator: Authenticator, claims: Claims) -> ConnectAttempts:
        """What answers each CONNECT, with the session that *claims* finds."""
        base = self._base
        return ConnectAttempts(
            self.lifecycle,
            self.sessions,
            authenticator,
            self.bans.bans,
            ClientIds(base.config.access.client_id_rule, base.config.access.exclusive_client_ids),
            ClientKinds(
                base.config.application.clients, -(-base.config.application.sessions // base.workers), base.client_log
            ),
            self.kind_changes,
            claims,
            self.store,
            self.subscribing,
            base.reactor,
            base.counters,
            base.client_log,
            base.config.limits,
            self.connects,
            self.placement,
            self._metrics.pauses,
            _new_client_id,
            random.random,
            base.clock,
            self._acl,
        )

    def hub(self, attempts: ConnectAttempts, background: Background) -> Hub:
        base = self._base
        return Hub(
            attempts,
            self.lifecycle,
            self.subscribing,
            self.publishing,
            self._routes,
            self.deliveries,
            base.reactor,
            base.counters,
            background,
            self.protection,
            base.internal_errors,
            base.clock,
            packet_bytes=base.config.limits.packet_bytes,
            clients=self._metrics.clients,
        )


def make_routes(
    base: Essentials, acl: Acl | None, neighbours: Neighbours, queue_budget: MessageBudget, size: int, workers: int
) -> Routes:
    """The routes of a worker, in about *size* bytes. What waits for shared subscriptions counts in *queue_budget*."""
    limits = base.config.limits
    return Routes(
        base.config.routes.topics,
        size,
        limits.topic_levels,
        limits.topic_bytes,
        shared_backlog(base, queue_budget),
        acl,
        neighbours,
        base.worker.incarnation,
        limits.wildcard_patterns // workers,
    )


def _new_client_id() -> str:
    return f"weir-{uuid.uuid4().hex}"
