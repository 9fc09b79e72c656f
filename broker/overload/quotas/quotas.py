# All quotas of a worker: made from the configuration, found by client and tenant, and kept for clients that return.
#
# What a session has left stays with its client id, so reconnecting gains nothing. Of the clients and tenants without a
# connection the last to leave are remembered. To push its own entry out, a client would have to be a fleet. (A tenant's
# quota that is leased loses only what this worker held of it.)
#
# Only quotas that clients share reserve a part for QoS 1 and 2: there the QoS 0 messages of one client would use up
# what the QoS 1 and 2 messages of another need. A client decides itself what it uses its own quota for.
#
# If no other worker uses the same Redis, nothing is shared, and the buckets of tenants and of the cluster are here.
from typing import Final

from broker.config.rate import Meter, Rate, Windows, parse
from broker.config.schema import ClusterQuota, QuotaScope
from broker.config.schema import Quotas as QuotaSettings
from broker.config.tenants import TenantRule
from broker.overload.quotas.bounded_registry import BoundedRegistry
from broker.overload.quotas.configured import ConfiguredOverrides, Override
from broker.overload.quotas.lease import Lease, Leases
from broker.overload.quotas.overrides import Limit
from broker.overload.quotas.quota import NO_QUOTAS, Allowance, Quota, Scope, SessionScope

ABSENT_CLIENTS: Final = 65_536  # remembered without a connection, about a KiB each
ABSENT_TENANTS: Final = 4096

# What a scope can limit: (key of the setting, suffix of the names of its reasons, whether it counts bytes).
LIMITS: Final = (
    ("incoming_messages", "MESSAGES", False),
    ("incoming_bytes", "BYTES", True),
    ("outgoing_messages", "OUTGOING", False),
    ("outgoing_bytes", "OUTGOING", True),
    ("subscriptions", "SUBSCRIPTIONS", False),
)


class Quotas:
    def __init__(self, settings: QuotaSettings, packet_bytes: int, leases: Leases | None, now: float) -> None:
        """*packet_bytes*: of the largest packet. *leases*: of the shared quotas; None: no other worker shares them."""
        self.configured = ConfiguredOverrides(settings.session)
        self._settings = settings
        self._packet_bytes = packet_bytes
        self._leases = leases
        self._rule = TenantRule(settings.tenant_of) if settings.tenant != QuotaScope() else None
        self._cluster = self._shared_scope("cluster", settings.cluster, "", now)
        self._shares_cluster = settings.cluster != ClusterQuota()
        self._own: BoundedRegistry[SessionScope] = BoundedRegistry(ABSENT_CLIENTS)
        self._tenants: BoundedRegistry[Scope] = BoundedRegistry(ABSENT_TENANTS)
        self._present: dict[str, str] = {}  # the tenant of each client with a quota

    def arrive(
        self, client_id: str, user: str | None, limit: Limit | None, now: float, override: Override | None = None
    ) -> Quota | None:
        """The quota of a client that has connected, or whose limits have changed; None if no limit concerns it.

        *limit* and *override*: those that an administrator and the configuration have for the client.

        A client that was here before has what it had left. A client that is here already is treated as if it had left
        first, perhaps from another tenant.
        """
        self.leave(client_id)
        settings = self._settings.session if override is None else override.session
        if not self._concern(limit, settings, now):
            return None
        tenant = "" if self._rule is None else self._rule.tenant(client_id, user)
        self._present[client_id] = tenant
        own = self._enter(client_id, tenant, settings, now)
        quota = self._quota(own, tenant)
        quota.override(limit, now)
        return quota

    def leave(self, client_id: str) -> None:
        """The client has disconnected. Does nothing if it has no quota."""
        tenant = self._present.pop(client_id, None)
        if tenant is not None:
            self._leave(client_id, tenant)

    def of_absent(self, client_id: str, user: str | None, limit: Limit | None, now: float) -> Quota | None:
        """The quota of a client that has disconnected, for its will; None if no limit concerns it.

        *user* decides about its tenant only if the client is not remembered.
        """
        override = self.configured.find(client_id, user)
        settings = self._settings.session if override is None else override.session
        if not self._concern(limit, settings, now):
            return None
        known = self._own.find(client_id)
        if known is not None:
            tenant = known.tenant
        else:
            tenant = "" if self._rule is None else self._rule.tenant(client_id, user)
        own = self._enter(client_id, tenant, settings, now)
        quota = self._quota(own, tenant)
        if limit is not None and limit.until != own.until:
            quota.override(limit, now)
        self._leave(client_id, tenant)
        return quota

    def _concern(self, limit: Limit | None, settings: QuotaScope, now: float) -> bool:
        """Whether any quota, *limit* or the *settings* of its session concern a client."""
        limited = limit is not None and limit.rate != "" and now < limit.until
        return limited or settings != NO_QUOTAS or self._rule is not None or self._shares_cluster

    def _enter(self, client_id: str, tenant: str, settings: QuotaScope, now: float) -> SessionScope:
        """Count one more user of the scopes of a client, and return its own, which has the limits of *settings*."""
        own = self._own.find(client_id)
        if own is None:
            own = SessionScope()
            self._own.keep(client_id, own)
        if own.settings is not settings and own.settings != settings:
            self._configure(own, settings, now)
        own.tenant = tenant
        self._own.arrive(client_id)
        if self._rule is not None:
            if self._tenants.find(tenant) is None:
                self._tenants.keep(tenant, self._shared_scope("tenant", self._settings.tenant, tenant, now))
            self._tenants.arrive(tenant)
        return own

    def _leave(self, client_id: str, tenant: str) -> None:
        self._own.leave(client_id)
        if self._rule is not None:
            self._tenants.leave(tenant)

    def _quota(self, own: SessionScope, tenant: str) -> Quota:
        shared = [self._cluster] if self._shares_cluster else []
        of_tenant = self._tenants.find(tenant)
        if of_tenant is not None:
            shared.insert(0, of_tenant)
        return Quota(own, shared)

    def statistics(self) -> tuple[int, int]:
        """(connected clients with a quota, their tenants)."""
        return len(self._present), self._tenants.statistics()[0]

    def _configure(self, own: SessionScope, settings: QuotaScope, now: float) -> None:
        """Give *own* the limits of *settings*. Each begins with at most what its former limit had left."""
        former = {(one.name, one.by_bytes): one.meter for one in [*own.incoming, *own.outgoing, *own.filters]}
        own.begin(settings)
        for key, suffix, by_bytes in LIMITS:
            text = getattr(settings, key)
            if text:
                name = f"QUOTA_SESSION_{suffix}"
                rate = parse(text, by_bytes)
                meter = Windows(rate, 0.0, self._unit(by_bytes), now, former.get((name, by_bytes)))
                own.add(key, Allowance(name, text, by_bytes, meter))

    def _shared_scope(self, name: str, settings: QuotaScope, tenant: str, now: float) -> Scope:
        """The limits that all clients of the cluster, or of *tenant*, share. *name*: "cluster" or "tenant"."""
        scope = Scope()
        for key, suffix, by_bytes in LIMITS:
            text = getattr(settings, key)
            if text:
                meter = self._shared_meter(f"{name}:{key}:{tenant}", parse(text, by_bytes), self._unit(by_bytes), now)
                scope.add(key, Allowance(f"QUOTA_{name.upper()}_{suffix}", text, by_bytes, meter))
        if isinstance(settings, ClusterQuota) and settings.total_messages:
            text = settings.total_messages
            total = Allowance(
                "QUOTA_CLUSTER_TOTAL", text, False, self._shared_meter(f"{name}:total", parse(text), 1.0, now)
            )
            scope.incoming.append(total)
            scope.outgoing.append(total)
        return scope

    def _shared_meter(self, bucket: str, rate: Rate, unit: float, now: float) -> Meter:
        """*bucket*: the name that all workers use."""
        if self._leases is None:
            return Windows(rate, self._settings.reserve, unit, now)
        return Lease(bucket.encode(), rate, self._settings.reserve, unit, self._leases)

    def _unit(self, by_bytes: bool) -> float:
        """The largest amount that one message takes."""
        return float(self._packet_bytes) if by_bytes else 1.0
