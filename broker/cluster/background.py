# The work of a worker for the other workers of its node and for Redis, as the hub drives it.
from broker.cluster.mesh import Mesh
from broker.cluster.node_lanes import NodeLanes
from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.overload_reports import OverloadReports
from broker.cluster.quota_lease_client import QuotaLeaseClient
from broker.cluster.registry_client import RegistryClient
from broker.cluster.session_claims import SessionClaims
from broker.cluster.settlement import Settlement
from broker.protocol.background import Background
from broker.protocol.durable_sessions import DurableSessions
from broker.protocol.inbound_backbone import InboundBackbone
from broker.protocol.internal_errors import InternalErrors
from broker.store.logs.link import CarrierLink


class ClusterBackground(Background):
    def __init__(
        self,
        mesh: Mesh,
        reports: OverloadReports,
        node_lanes: NodeLanes | None,
        registry_client: RegistryClient | None,
        claims: SessionClaims | None,
        orphaned_wills: OrphanedWills | None,
        settlement: Settlement | None,
        quota_leases: QuotaLeaseClient | None,
        durable: DurableSessions | None,
        carrier: CarrierLink | None,
        backbone: InboundBackbone | None,
        internal_errors: InternalErrors,
    ) -> None:
        """*node_lanes*: None if there are no other nodes.

        *registry_client*, *claims*, *orphaned_wills*, *settlement*: None without Redis. *quota_leases*: None unless
        workers share quotas. *durable*: None if sessions are in memory. *carrier*, *backbone*: None if there is none.
        """
        self._mesh = mesh
        self._reports = reports
        self._node_lanes = node_lanes
        self._registry_client = registry_client
        self._claims = claims
        self._orphaned_wills = orphaned_wills
        self._settlement = settlement
        self._quota_leases = quota_leases
        self._durable = durable
        self._carrier = carrier
        self._backbone = backbone
        self._internal_errors = internal_errors

    def tick(self, now: float) -> float:
        due = self._tick(now)
        if self._backbone is not None:
            try:
                due = min(due, self._backbone.tick(now))
            except Exception as error:
                self._internal_errors.report(error)
        return due if self._carrier is None else min(due, self._carrier.tick(now))  # behind those who append

    def _tick(self, now: float) -> float:
        due = self._mesh.tick(now)
        if self._registry_client is None or self._claims is None or self._orphaned_wills is None:
            return due
        try:
            due = min(due, self._claims.tick(now), self._orphaned_wills.tick(now), self._reports.tick(now))
            if self._settlement is not None:
                due = min(due, self._settlement.tick(now))
            due = min(due, self._registry_client.tick(now))  # last: it sends what the others have asked for
            if self._node_lanes is not None:
                due = min(due, self._node_lanes.tick(now))
            if self._durable is not None:
                due = min(due, self._durable.tick(now))
            return due if self._quota_leases is None else min(due, self._quota_leases.tick(now))
        except Exception as error:  # a mistake of ours in what follows when Redis does not answer in time
            self._internal_errors.report(error)
            return now

    def busy(self) -> bool:
        if self._backbone is not None and self._backbone.busy():
            return True
        return self._mesh.busy() or (self._durable is not None and self._durable.may_store())

    def work(self, until: float) -> bool:
        left = self._backbone is not None and self._backbone.work(until)
        if self._durable is not None and self._durable.may_store():
            self._mesh.tick_by(self._durable.store_now())
        return self._mesh.work(until) or left
