# What can be set, with its default and the reason for it.
#
# The values are frozen and grouped by concern, and each part of the broker is handed its group, never the
# whole. Where they come from (a file, the environment, the command line) is config_sources.py; this file
# reads nothing, so whatever needs a group can import it. deploy/weir.toml is the same list for users.
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from typing import Any, Final

from broker.config_values import KIB, MIB, Choice, Duration, Flag, Hosts, Kind, Name, Number, Size, Text

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


def duration(default: float, *, least: float = 0.0, most: float = YEAR) -> float:
    value: float = _setting(default, Duration(least, most))
    return value


def size(default: int, *, least: int = 0, most: int = EXABYTE) -> int:
    value: int = _setting(default, Size(least, most))
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
class Delivery:
    """What a slow reader may cost."""

    high_watermark: int = size(1280 * KIB, least=4 * KIB)  # over it a reader is slow; holds the largest packet and more
    low_watermark: int = size(640 * KIB)  # under it, it is not slow any more; half, so that it does not flap
    outbound_budget: int = size(0)  # for all readers of the worker; 0 = a quarter of the memory limit
    slow_consumer_timeout: float = duration(60.0, least=0.1)  # a reader that takes no byte for so long is closed
    notsent_lowat: int = size(128 * KIB, least=4 * KIB, most=1 << 30)  # or the kernel hides 4 MB a reader from us
    user_timeout: float = duration(60.0, most=86400.0)  # unacknowledged bytes end a dead peer; 0 = the kernel's minutes


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
    retained: Retained = field(default_factory=Retained)
    routes: Routes = field(default_factory=Routes)
    redis: Redis = field(default_factory=Redis)
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
    return found + _listener_contradictions(config.listeners, config.tls) + _access_contradictions(config)


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
