# Settings that are valid alone but not together.
from dataclasses import fields
from ipaddress import ip_address

from broker.config.applications import GROUPS
from broker.config.inbound import KAFKA
from broker.config.rate import burst, parse
from broker.config.schema import MEMORY, REPLICATED, Clients, Config, Listeners, Overload, Quotas, QuotaScope, Tls


def contradictions(config: Config) -> list[tuple[str, str]]:
    """(the key to change, what would be right)"""
    found = []
    delivery = config.delivery
    if delivery.low_watermark >= delivery.high_watermark:
        found.append(("delivery.low_watermark", f"less than delivery.high_watermark ({delivery.high_watermark} bytes)"))
    if 0 < delivery.outbound_budget < delivery.high_watermark:
        right = f"0 or at least delivery.high_watermark ({delivery.high_watermark} bytes)"
        found.append(("delivery.outbound_budget", right))
    if 0 < config.limits.queue_bytes < config.limits.packet_bytes:  # else a valid packet could never wait
        right = f"0 or at least limits.packet_bytes ({config.limits.packet_bytes} bytes)"
        found.append(("limits.queue_bytes", right))
    if config.limits.queue_qos0 and config.store.durability != MEMORY:
        # Delivered again after a crash, it would come twice; and no gate would bound what waits for a slow store.
        found.append(("limits.queue_qos0", f'false, as store.durability = "{config.store.durability}" stores no QoS 0'))
    if config.store.durability == REPLICATED and not config.redis.url:
        right = 'the URL of a server with replicas, as store.durability = "replicated": the private server has none'
        found.append(("redis.url", right))
    if config.redis.password_file and not config.redis.url:
        found.append(("redis.url", "the URL of a server, as redis.password_file has the password of one"))
    if config.redis.sentinel_password_file and not config.redis.url.partition(":")[0].endswith("+sentinel"):
        right = "a redis+sentinel:// URL, as redis.sentinel_password_file has the password of sentinels"
        found.append(("redis.url", right))
    if config.application.clients and config.store.durability == MEMORY:
        right = '[], as the sessions of APPLICATION clients are durable, and store.durability = "memory" keeps none'
        found.append(("application.clients", right))
    if config.drain.slowest > config.drain.fastest:
        found.append(("drain.slowest", f"at most drain.fastest ({config.drain.fastest})"))
    if not config.redis.prefix or set(config.redis.prefix) & set("{} "):  # Redis Cluster hashes the part between braces
        found.append(("redis.prefix", "a word without braces or spaces"))
    found += _log_contradictions(config)
    found += _overload_contradictions(config.overload)
    if config.overload.credits_per == "tenant" and not config.quotas.tenant_of:
        found.append(("quotas.tenant_of", 'a rule such as "user", as overload.credits_per = "tenant"'))
    found += _quota_contradictions(config.quotas, config.limits.packet_bytes)
    found += _override_contradictions(config.clients, config.limits.packet_bytes)
    return found + _listener_contradictions(config.listeners, config.tls) + _access_contradictions(config)


def _log_contradictions(config: Config) -> list[tuple[str, str]]:
    kafka = config.kafka
    if config.inbound.enabled() and not kafka.hosts:
        return [("kafka.hosts", f'a list of brokers, as inbound.backbone = "{KAFKA}" has publishes wait in Kafka')]
    if config.application.shared == GROUPS and config.application.clients and not kafka.hosts:
        return [("kafka.hosts", f'a list of brokers, as application.shared = "{GROUPS}" is for logs in Kafka')]
    if not kafka.hosts and (kafka.options or kafka.password_file):
        return [("kafka.hosts", "a list of brokers, as other settings of kafka say how to connect to them")]
    return []


def _overload_contradictions(overload: Overload) -> list[tuple[str, str]]:
    found = []
    refill = overload.refill
    rising = [level for level in range(1, len(refill)) if refill[level] > refill[level - 1]]
    if rising:
        level = rising[0]
        right = (
            f"a table that does not rise: level {level} grants {refill[level]}, level {level - 1} {refill[level - 1]}"
        )
        found.append(("overload.refill", right))
    if overload.cap_least > overload.cap:
        found.append(("overload.cap_least", f"at most overload.cap ({overload.cap})"))
    if overload.contended_until >= overload.contended_from:
        found.append(("overload.contended_until", f"less than overload.contended_from ({overload.contended_from:g})"))
    if overload.gate_idle > overload.gate_room:
        found.append(("overload.gate_idle", f"at most overload.gate_room ({overload.gate_room:g}s)"))
    return found


def _quota_contradictions(quotas: Quotas, packet_bytes: int) -> list[tuple[str, str]]:
    found = []
    for scope, quota in (("session", quotas.session), ("tenant", quotas.tenant), ("cluster", quotas.cluster)):
        text = quota.incoming_bytes
        if text and burst(parse(text, sizes=True)) < packet_bytes:  # else a valid packet could never pass
            right = f'of windows that hold limits.packet_bytes, such as "{packet_bytes}:60"'
            found.append((f"quotas.{scope}.incoming_bytes", right))
    if quotas.tenant != QuotaScope() and not quotas.tenant_of:
        found.append(("quotas.tenant_of", 'a rule such as "user", as [quotas.tenant] says what tenants may do'))
    return found


def _override_contradictions(clients: Clients, packet_bytes: int) -> list[tuple[str, str]]:
    found = []
    for one in clients.overrides:
        if one.queue_bytes and one.queue_bytes < packet_bytes:
            right = f"a list in which queue_bytes of {one.by} {one.name} is 0 or at least limits.packet_bytes"
            found.append(("clients.overrides", f"{right} ({packet_bytes} bytes)"))
        if one.incoming_bytes and burst(parse(one.incoming_bytes, sizes=True)) < packet_bytes:
            right = f"a list in which incoming_bytes of {one.by} {one.name} has windows that hold limits.packet_bytes"
            found.append(("clients.overrides", f'{right}, such as "{packet_bytes}:60"'))
    return found


def _listener_contradictions(listeners: Listeners, tls: Tls) -> list[tuple[str, str]]:
    found = []
    if not (listeners.tcp.enabled or listeners.tls.enabled or listeners.ws.enabled or listeners.wss.enabled):
        found.append(("listeners.tcp.enabled", "true: no other listener is enabled"))
    for transport, listener in (("tls", listeners.tls), ("wss", listeners.wss)):
        if listener.enabled and not tls.certificate:
            found.append(("tls.certificate", f"a PEM file, or listeners.{transport}.enabled = false"))
        elif listener.enabled and not tls.key:
            found.append(("tls.key", f"a PEM file, or listeners.{transport}.enabled = false"))
    if tls.client_certificate != "none" and not tls.client_ca:
        found.append(("tls.client_ca", f'a PEM file, as tls.client_certificate = "{tls.client_certificate}"'))
    if tls.client_crl and not tls.client_ca:
        found.append(("tls.client_ca", "a PEM file, as tls.client_crl revokes certificates of its authorities"))
    return found


def _access_contradictions(config: Config) -> list[tuple[str, str]]:
    access = config.access
    if access.client_id_rule and (access.allow_anonymous or not (access.password_file or access.certificate_user)):
        right = '"", as a rule needs users: access.password_file or access.certificate_user, and no anonymous clients'
        return [("access.client_id_rule", right)]
    if config.access.password_file or config.access.allow_anonymous:
        return []
    ways = "access.password_file names a file that `weir passwd` made, or access.allow_anonymous = true"
    certified = ("listeners.tls.host", "listeners.wss.host") if config.tls.client_certificate == "required" else ()
    return [
        (key, f"loopback addresses only, as anybody could come in at {host}, unless {ways}")
        for key, host in exposed(config)
        if key not in certified  # there the certificates say who may come in
    ]


def exposed(config: Config) -> list[tuple[str, str]]:
    """The addresses that other machines can reach: (the key of the setting, the address)."""
    found = []
    for one in fields(config.listeners):
        listener = getattr(config.listeners, one.name)
        if listener.enabled:
            found += [(f"listeners.{one.name}.host", host) for host in listener.host if not _is_loopback(host)]
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a host name: "localhost" is always this machine (RFC 6761)
        return host == "localhost"
