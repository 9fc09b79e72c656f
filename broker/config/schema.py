# What can be set, with its default and the reason for it.
#
# The values are frozen and grouped by concern, and each part of the broker is handed its group, never the
# whole. Where they come from (a file, the environment, the command line) is config_sources.py; this file
# reads nothing, so whatever needs a group can import it. deploy/weir.toml is the same list for users.
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Final

from broker.config.rate import burst, parse
from broker.config.values import (
    KIB,
    MIB,
    Choice,
    Duration,
    Factor,
    Flag,
    Hosts,
    Kind,
    Name,
    Number,
    Numbers,
    Rates,
    Size,
    Tenants,
    Text,
)

YEAR: Final = 365 * 86400.0
EXABYTE: Final = 1 << 60  # more than any machine has: "as you like"
ANY_NUMBER: Final = 1 << 40

# The largest packet: a remaining length of 268 435 455 and the five bytes before its end (1.5.5).
LARGEST_PACKET: Final = 268_435_460


class ConfigError(Exception):
    """The configuration cannot be used. Its text is one sentence: where, which key, what would be right."""


def _setting(default: Any, kind: Kind) -> Any:
    return field(default=default, metadata={"kind": kind})


def flag(default: bool) -> bool:
    value: bool = _setting(default, Flag())
    return value


def number(default: int, *, least: int = 0, most: int = ANY_NUMBER) -> int:
    value: int = _setting(default, Number(least, most))
    return value


def numbers(*default: int, least: int = 0, most: int = ANY_NUMBER) -> tuple[int, ...]:
    value: tuple[int, ...] = _setting(default, Numbers(len(default), least, most))
    return value


def factor(default: float, *, least: float, most: float) -> float:
    value: float = _setting(default, Factor(least, most))
    return value


def duration(default: float, *, least: float = 0.0, most: float = YEAR) -> float:
    value: float = _setting(default, Duration(least, most))
    return value


def size(default: int, *, least: int = 0, most: int = EXABYTE) -> int:
    value: int = _setting(default, Size(least, most))
    return value


def message_rate(default: str = "") -> str:
    value: str = _setting(default, Rates(sizes=False))
    return value


def byte_rate(default: str = "") -> str:
    value: str = _setting(default, Rates(sizes=True))
    return value


def tenant_rule(default: str = "") -> str:
    value: str = _setting(default, Tenants())
    return value


def choice(default: str, *options: str) -> str:
    value: str = _setting(default, Choice(*options))
    return value


def path(default: str = "") -> str:
    value: str = _setting(default, Text())
    return value


def name(default: str) -> str:
    value: str = _setting(default, Name())
    return value


def hosts(*default: str) -> tuple[str, ...]:
    value: tuple[str, ...] = _setting(default, Hosts())
    return value


@dataclass(frozen=True, kw_only=True)
class Node:
    """One supervisor and its workers, on one machine."""

    name: str = name("weir")  # several nodes on one machine are told apart by it
    folder: str = path()  # "" = /var/lib/weir/NAME for root, else weir/NAME in $XDG_STATE_HOME or ~/.local/state
    workers: int = number(0, most=256)  # processes that share the clients; 0 = one for each core we may use


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Where one transport is served."""

    enabled: bool = flag(False)  # TLS needs a certificate first; and who wants WebSocket knows it
    host: tuple[str, ...] = hosts("127.0.0.1", "::1")  # loopback: nobody publishes a broker by accident
    port: int = number(0, most=65535)  # 0 = any free one
    backlog: int = number(1024, least=1, most=65535)  # connections the kernel holds while we are busy


@dataclass(frozen=True, kw_only=True)
class Tcp(Listener):
    enabled: bool = flag(True)
    port: int = number(1883, most=65535)  # registered for MQTT


@dataclass(frozen=True, kw_only=True)
class TlsListener(Listener):
    port: int = number(8883, most=65535)  # registered for MQTT over TLS


@dataclass(frozen=True, kw_only=True)
class WebSocketListener(Listener):
    port: int = number(8083, most=65535)  # what most brokers use; none is registered


@dataclass(frozen=True, kw_only=True)
class SecureWebSocketListener(Listener):
    port: int = number(8084, most=65535)


@dataclass(frozen=True, kw_only=True)
class Admin(Listener):
    """HTTP: /metrics for Prometheus, /health/live and /health/ready. Who may reach it may read it."""

    host: tuple[str, ...] = hosts("127.0.0.1")
    port: int = number(9883, most=65535)  # none is registered for that
    backlog: int = number(64, least=1, most=65535)  # a scraper and some probes


@dataclass(frozen=True, kw_only=True)
class Listeners:
    tcp: Tcp = field(default_factory=Tcp)
    tls: TlsListener = field(default_factory=TlsListener)
    ws: WebSocketListener = field(default_factory=WebSocketListener)
    wss: SecureWebSocketListener = field(default_factory=SecureWebSocketListener)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """For the listeners tls and wss. The files are read again at SIGHUP."""

    certificate: str = path()  # PEM, with the intermediate certificates behind it
    key: str = path()  # PEM, not encrypted: nobody is there to type a password
    client_ca: str = path()  # PEM: who may sign the certificates of clients
    client_certificate: str = choice("none", "none", "optional", "required")
    minimum: str = choice("1.2", "1.2", "1.3")  # devices of ten years speak 1.2; older versions are broken


@dataclass(frozen=True, kw_only=True)
class WebSocket:
    """For the listeners ws and wss."""

    path: str = path("/mqtt")  # what all clients use who are not told otherwise
    message_bytes: int = size(16 * MIB, least=KIB, most=EXABYTE)  # clients put all they have into one message


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may come in, and do what."""

    password_file: str = path()  # "" = nobody is asked, which is for this machine alone
    acl_file: str = path()  # "" = who is in may do anything
    allow_anonymous: bool = flag(False)  # whoever opens a broker to a network should have to say so
    certificate_user: bool = flag(False)  # a verified client certificate names the user, and no password is asked


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask of us. CONNACK tells it those that MQTT has a word for."""

    connect_timeout: float = duration(5.0, least=0.1, most=3600.0)  # MQTT asks for "a reasonable amount of time"
    connections: int = number(
        0
    )  # of the node, dealt to its workers; 0 = as many as there are descriptors, less a reserve
    connections_per_address: int = number(0)  # of one IPv4 host or IPv6 /64; 0 = any: whole fleets share a NAT
    connects_per_second: int = number(0)  # of one address; 0 = any: after an outage the fleet comes back at once
    connect_burst: int = number(100, least=1)  # that many at once, before the rate holds
    packet_bytes: int = size(1 * MIB, least=KIB, most=LARGEST_PACKET)  # the wire allows 256 MiB
    receive_maximum: int = number(1024, least=1, most=65535)  # unacknowledged QoS 1 and 2 a client may send us
    inflight: int = number(1024, least=1, most=65535)  # the same towards the client; its receive maximum may be less
    topic_alias_maximum: int = number(32, most=65535)  # a client may set; each costs us a topic's bytes
    outbound_topic_aliases: int = number(32, most=65535)  # we set, where a client allows as many
    session_expiry: float = duration(7 * 86400.0, most=4_294_967_295.0)  # the longest; 3.x gets it for clean session 0
    keep_alive: int = number(0, most=65535)  # seconds; 0 = as the client asks, else the longest it may ask for
    sessions: int = number(1_000_000, least=1)  # connected or away; each costs about a KiB and its queue
    client_id_bytes: int = number(1024, least=23, most=65535)  # 23 must be allowed [MQTT-3.1.3-5]
    topic_levels: int = number(32, least=1, most=32768)  # deeper than any scheme in use; bounds the work of one match
    topic_bytes: int = size(4 * KIB, least=1, most=65535)  # of a topic or a filter; the wire allows 65 535
    subscriptions: int = number(10_000, least=1)  # per session; each costs memory and matching
    retained_per_client: int = number(100_000)  # topics; a bridge has thousands; 0 = as many as [retained] allows
    pending: int = number(1000)  # QoS 1 and 2 that wait for a connected slow reader; 0 = none waits
    queue: int = number(10_000)  # messages that wait for a session that is away; then the oldest go
    queue_bytes: int = size(64 * MIB)  # the same in bytes, so that 10 000 large messages cost no gigabytes
    queue_budget: int = size(0)  # bytes that wait in all sessions together; 0 = a quarter of the memory limit
    qos: int = number(2, most=2)  # the highest that may be published or granted
    retain: bool = flag(True)


@dataclass(frozen=True, kw_only=True)
class Flush:
    """When what is written to one kind of client is sent to it."""

    # always: at the end of each tick. adaptive: the same while calm, later as the worker gets busy, where more is
    # written soon. buffered: after so many messages, or delivery.buffered_hold after the first of them.
    flush: str = choice("adaptive", "adaptive", "always", "buffered")
    buffered_msg_count: int = number(5, least=1, most=10_000)  # as TBMQ has it


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a slow reader may cost, and when a quick one is sent to."""

    non_persistent: Flush = field(default_factory=Flush)  # sessions that end with their connection
    device: Flush = field(default_factory=Flush)  # sessions that outlive it
    adaptive_hold: float = duration(0.005, most=1.0)  # the longest: no person and few machines notice it
    buffered_hold: float = duration(0.2, least=0.001, most=60.0)  # TBMQ's idle time before a flush
    held: int = number(10_000, least=1)  # connections held at once, of each; then the one held longest is sent to

    high_watermark: int = size(1280 * KIB, least=4 * KIB)  # over it a reader is slow; holds the largest packet and more
    low_watermark: int = size(640 * KIB)  # under it, it is not slow any more; half, so that it does not flap
    outbound_budget: int = size(0)  # for all readers of the worker; 0 = a quarter of the memory limit
    slow_consumer_timeout: float = duration(60.0, least=0.1)  # a reader that takes no byte for so long is closed
    notsent_lowat: int = size(128 * KIB, least=4 * KIB, most=1 << 30)  # or the kernel hides 4 MB a reader from us
    user_timeout: float = duration(60.0, most=86400.0)  # unacknowledged bytes end a dead peer; 0 = the kernel's minutes


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a PUBLISH costs, in credits."""

    publish: int = number(10, least=1, most=1_000_000)  # least 1: who pays nothing is never held back
    bytes_per_credit: int = size(128, least=1)  # copying is cheap beside the work for a packet
    delivery: int = number(1, most=1_000_000)  # an append to an outbox, a tenth of reading a packet
    persistent_delivery: int = number(20, most=1_000_000)  # on top: it is stored and read back
    retained: int = number(10, most=1_000_000)  # kept here, and by every other worker
    qos: int = number(5, most=1_000_000)  # times the QoS: for each there are two more packets


@dataclass(frozen=True, kw_only=True)
class Overload:
    """When clients are slowed down, whom that concerns, and how much."""

    enabled: bool = flag(True)
    # Whether a client that is held back for longer than its keep alive stays connected: it cannot be heard, because of
    # us. strict: it is closed, as the specification has it of a silent client, and as HiveMQ documents it.
    keepalive_while_throttled: str = choice("honour", "honour", "strict")
    # Credits for a client each 200 ms at the levels 0 to 10. They halve from level to level: no load is too far away.
    refill: tuple[int, ...] = numbers(
        50_000, 25_000, 12_500, 6_000, 3_000, 1_500, 750, 350, 150, 60, 20, least=1, most=1_000_000_000
    )
    cap: int = number(50_000, least=1)  # credits a client may save up: a burst of 3000 small publishes
    cap_refills: int = number(5, least=1, most=1000)  # above level 0: a second's worth, or a fleet's savings flood us
    cap_least: int = number(1000, least=1)  # but so many, or a dear publish would wait for long at level 10
    position_gain: float = factor(0.1, least=0.001, most=10)  # levels each 100 ms for a signal one target off
    trend_gain: float = factor(0.3, least=0, most=10)  # the same for a change by one target; brakes before it is late
    lag: float = duration(0.05, least=0.001, most=60.0)  # of a ready socket; two and a half rounds of the reactor
    gate_delay: float = duration(0.05, least=0.001, most=60.0)  # beyond what the resource takes when nothing waits
    outbound_percent: int = number(70, least=1, most=100)  # of the outbound budget; leaves room for large packets
    memory_percent: int = number(85, least=1, most=100)  # of the limit; the rest is the time that slowing down takes
    connect_delay: float = duration(1.0, least=0.001, most=3600.0)  # clients give up after 5 to 60 s
    connects_per_second: int = number(4000)  # of the node; two cores do 5500 and nothing else; 0 = any number
    connect_burst: int = number(2000, least=1)  # of the node, before the rate holds; a small fleet need not wait
    connects_waiting: int = number(10_000, least=1)  # of each worker, 2 KiB each; who comes later is told when to retry
    contended_from: float = factor(1.0, least=0.01, most=100)  # targets: from the point at which the level rises
    contended_until: float = factor(0.4, least=0, most=100)  # well below, so that it does not flap
    gate_room: float = duration(0.1, least=0.001, most=60.0)  # of work before a gate; keeps a batching resource busy
    gate_idle: float = duration(0.005, least=0.001, most=60.0)  # with less before it, nobody has to be held back
    gate_floor: int = number(20, least=1, most=1_000_000)  # publishes under way in any case: from them it learns
    gate_bytes: int = size(16 * MIB, least=KIB)  # before one gate; 100 ms of a fast disk
    wait: float = duration(30.0, least=0.1, most=86400.0)  # at a gate; most clients give up an answer by then
    accounts: int = number(65_536)  # clients that left whose credits are remembered, of about 250 bytes each
    # Of each worker's file of what it decided, for trying another policy on it; 0 = none. A publish is about 40 bytes,
    # and is judged even when all is calm: who does not mean to look at it should not pay for that.
    trace: int = size(0)
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True)
class QuotaScope:
    """What those who share a quota may do in all; "" = as much as they like, which is the default of them all.

    A quota is somebody's decision about somebody's traffic: there is no number that would be right for everybody.
    """

    incoming_messages: str = message_rate()  # that are published; TBMQ's incoming-publish, for a session
    incoming_bytes: str = byte_rate()  # of their packets
    outgoing_messages: str = message_rate()  # that are sent to subscribers; TBMQ's outgoing, for a session
    outgoing_bytes: str = byte_rate()  # of their packets
    subscriptions: str = message_rate()  # filters that are subscribed to


@dataclass(frozen=True, kw_only=True)
class ClusterQuota(QuotaScope):
    total_messages: str = message_rate()  # in both directions together; TBMQ's total


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """How much clients may do: each session, all clients of a tenant, and all there are."""

    tenant_of: str = tenant_rule()  # where the name of a client's tenant is; "" = there are no tenants
    reserve: float = factor(0.5, least=0.0, most=0.9)  # for QoS 1 and 2 alone; half, as neither is to starve
    session: QuotaScope = field(default_factory=QuotaScope)
    tenant: QuotaScope = field(default_factory=QuotaScope)
    cluster: ClusterQuota = field(default_factory=ClusterQuota)


@dataclass(frozen=True, kw_only=True)
class Retained:
    messages: int = number(1_000_000)
    # Topics, payloads and properties, and 150 bytes for each level of a topic: short messages under deep topics cost
    # more in levels. Whichever is reached first; a new topic is then refused.
    bytes: int = size(256 * MIB)


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The cache from a topic to its receivers. Too small costs matching again, never a message."""

    topics: int = number(65_536, least=1)
    bytes: int = size(32 * MIB, least=64 * KIB)


@dataclass(frozen=True, kw_only=True)
class Redis:
    """Where the registry of sessions is kept."""

    url: str = path()  # "" = a private server of the node's own, that nobody has to install or name
    memory: int = size(0)  # for the data of that server; 0 = a quarter of the memory limit
    prefix: str = path("weir")  # of all keys: several clusters may share one Redis


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The log of what each worker says of each second, for the analysis; Prometheus and $SYS do not need it."""

    enabled: bool = flag(True)  # a few KiB a second of each worker; an episode is explained by what was before it
    interval: float = duration(1.0, least=0.1, most=60.0)  # what overload does, it does within seconds
    length: int = number(10_000, least=100)  # records that Redis keeps, of all workers: some 30 MB, and 40 min of four


@dataclass(frozen=True, kw_only=True)
class Sys:
    interval: float = duration(10.0)  # how often $SYS/broker/... is published, as Mosquitto does; 0 = never


@dataclass(frozen=True, kw_only=True)
class Log:
    level: str = choice("info", "debug", "info", "warning", "error")
    format: str = choice("auto", "auto", "text", "json")  # auto: text on a terminal, else JSON lines
    client_events_per_second: int = number(20)  # of each kind that clients can cause; the rest is counted


@dataclass(frozen=True, kw_only=True)
class Drain:
    timeout: float = duration(
        5.0, most=3600.0
    )  # after SIGTERM clients have so long to leave; most supervisors kill at 10


@dataclass(frozen=True, kw_only=True)
class Config:
    node: Node = field(default_factory=Node)
    listeners: Listeners = field(default_factory=Listeners)
    tls: Tls = field(default_factory=Tls)
    websocket: WebSocket = field(default_factory=WebSocket)
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    delivery: Delivery = field(default_factory=Delivery)
    overload: Overload = field(default_factory=Overload)
    quotas: Quotas = field(default_factory=Quotas)
    retained: Retained = field(default_factory=Retained)
    routes: Routes = field(default_factory=Routes)
    redis: Redis = field(default_factory=Redis)
    metrics: Metrics = field(default_factory=Metrics)
    sys: Sys = field(default_factory=Sys)
    log: Log = field(default_factory=Log)
    admin: Admin = field(default_factory=Admin)
    drain: Drain = field(default_factory=Drain)


def contradictions(config: Config) -> list[tuple[str, str]]:
    """Settings that are fine alone and not together: (the key to change, what would be right)."""
    found = []
    delivery = config.delivery
    if delivery.low_watermark >= delivery.high_watermark:
        found.append(("delivery.low_watermark", f"less than delivery.high_watermark ({delivery.high_watermark} bytes)"))
    if 0 < delivery.outbound_budget < delivery.high_watermark:
        right = f"0 or at least delivery.high_watermark ({delivery.high_watermark} bytes)"
        found.append(("delivery.outbound_budget", right))
    if 0 < config.limits.queue_bytes < config.limits.packet_bytes:  # or a lawful packet could never wait
        right = f"0 or at least limits.packet_bytes ({config.limits.packet_bytes} bytes)"
        found.append(("limits.queue_bytes", right))
    if not config.redis.prefix or set(config.redis.prefix) & set("{} "):  # braces mark what Redis Cluster hashes
        found.append(("redis.prefix", "a word without braces or spaces"))
    found += _overload_contradictions(config.overload)
    found += _quota_contradictions(config.quotas, config.limits.packet_bytes)
    return found + _listener_contradictions(config.listeners, config.tls) + _access_contradictions(config)


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
        if text and burst(parse(text, sizes=True)) < packet_bytes:  # or a lawful packet could never pass
            right = f'of windows that hold limits.packet_bytes, such as "{packet_bytes}:60"'
            found.append((f"quotas.{scope}.incoming_bytes", right))
    if quotas.tenant != QuotaScope() and not quotas.tenant_of:
        found.append(("quotas.tenant_of", 'a rule such as "user", as [quotas.tenant] says what tenants may do'))
    return found


def _listener_contradictions(listeners: Listeners, tls: Tls) -> list[tuple[str, str]]:
    found = []
    if not (listeners.tcp.enabled or listeners.tls.enabled or listeners.ws.enabled or listeners.wss.enabled):
        found.append(("listeners.tcp.enabled", "true: no other listener is enabled"))
    for name, listener in (("tls", listeners.tls), ("wss", listeners.wss)):
        if listener.enabled and not tls.certificate:
            found.append(("tls.certificate", f"a PEM file, or listeners.{name}.enabled = false"))
        elif listener.enabled and not tls.key:
            found.append(("tls.key", f"a PEM file, or listeners.{name}.enabled = false"))
    if tls.client_certificate != "none" and not tls.client_ca:
        found.append(("tls.client_ca", f'a PEM file, as tls.client_certificate = "{tls.client_certificate}"'))
    return found


def _access_contradictions(config: Config) -> list[tuple[str, str]]:
    if config.access.password_file or config.access.allow_anonymous:
        return []
    ways = "access.password_file names a file that `weir passwd` made, or access.allow_anonymous = true"
    return [
        (key, f"loopback addresses only, as anybody could come in at {host}, unless {ways}")
        for key, host in exposed(config)
    ]


def exposed(config: Config) -> list[tuple[str, str]]:
    """The addresses at which others than this machine can reach us: (the key of the listener's, the address)."""
    found = []
    for one in fields(config.listeners):
        listener = getattr(config.listeners, one.name)
        if listener.enabled:
            found += [(f"listeners.{one.name}.host", host) for host in listener.host if not _is_loopback(host)]
    return found


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name: only one has to be of this machine (RFC 6761)
        return host == "localhost"
