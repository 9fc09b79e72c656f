# Makes the parts of the inbound backbone of a worker, and hands them to each other.
from collections.abc import Callable
from functools import partial

from broker.cluster.peers import Peers
from broker.overload.gate import Gate
from broker.overload.level import backbone_lag_of, backbone_of
from broker.overload.protection import Protection
from broker.protocol.essentials import Essentials
from broker.protocol.inbound_backbone import InboundBackbone
from broker.protocol.inbound_dispatch import InboundDispatch
from broker.protocol.parts import ProtocolParts
from broker.protocol.retaining import Retaining
from broker.reasons import CloseReason
from broker.routing.hybrid_clock import HybridClock
from broker.routing.neighbour import Neighbours
from broker.routing.retained import Retained
from broker.routing.routes import Routes
from broker.store.durable.retained import RetainedStore
from broker.store.inbound.log import InboundLog, inbound_properties
from broker.store.inbound.ownership import PartitionOwnership
from broker.store.inbound.positions import PartitionPositions
from broker.store.logs.port import LogLink
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CommandPipeline


def make_backbone(
    base: Essentials,
    link: LogLink,
    log_gate: Gate,
    commands: CommandPipeline,
    peers: Peers,
    neighbours: Neighbours,
    stamps: HybridClock,
    protocol: ProtocolParts,
    protection: Protection,
    routes: Routes,
    retained: Retained,
    retained_store: RetainedStore | None,
) -> InboundBackbone:
    """*link*: to the log, whose publishes pass *log_gate*. *commands*: to Redis, where positions are stored."""
    config, worker, clock, wall = base.config.inbound, base.worker, base.clock, base.wall
    throttle, failed = protection.throttle, base.internal_errors.report
    log = InboundLog(
        link,
        config.topic,
        config.partitions,
        log_gate,
        throttle.add_gate(backbone_of(str(worker)), clock()),
        throttle.opened,
        partial(protocol.lifecycle.abandon, reason=CloseReason.BACKBONE_REFUSED),
        base.counters,
        base.client_log,
        wall,
    )
    protocol.publishing.accept_into(log)
    key = Keys(base.config.redis.prefix).backbone(config.topic, worker.node)
    positions = PartitionPositions(commands, key, worker, clock)
    wake = _waker(base)
    ownership = PartitionOwnership(
        link,
        config.topic,
        config.partitions,
        positions,
        worker,
        base.workers,
        lambda: [peer.worker for peer in peers.of_own_node()],
        wake,
        clock,
        base.log,
    )
    dispatch = InboundDispatch(
        routes,
        protocol.deliveries,
        Retaining(retained, stamps, neighbours, base.counters, base.client_log, retained_store),
        neighbours,
        protocol.store,
        log_gate,
        protocol.store_rate,
        base.counters,
        failed,
        clock,
        wall,
    )
    lag = protection.signals.add("backbone", base.config.overload.backbone_lag, backbone_lag_of(worker.node))
    return InboundBackbone(
        link, log, positions, ownership, dispatch, inbound_properties(config), lag, clock, wall, base.log
    )


def _waker(base: Essentials) -> Callable[[], None]:
    """Has the loop look soon for what is to be dispatched."""
    return lambda: base.reactor.soon(base.clock())
