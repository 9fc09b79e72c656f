# The settings, each with its default and the reason for it.
#
# The values are frozen and grouped by concern, and each part of the broker gets its group, never the whole. Where
# values come from (a file, the environment, the command line) is in sources.py; this module reads nothing, so whatever
# needs a group can import it. deploy/weir.toml is the same list for users.
from dataclasses import dataclass, field
from typing import Final

from broker.config.applications import Application
from broker.config.drain import LONGEST_REFERENCE, Drain
from broker.config.fields import (
    EXABYTE,
    brokers,
    byte_rate,
    choice,
    client_id_rule,
    client_options,
    duration,
    factor,
    flag,
    hosts,
    line,
    message_rate,
    name,
    number,
    numbers,
    path,
    setting,
    size,
    tenant_rule,
)
from broker.config.inbound import Inbound
from broker.config.overrides import ClientOverride, Overrides
from broker.config.values import KIB, MIB, ClientOption

# Values of store.durability.
MEMORY: Final = "memory"
PROCESS: Final = "process"
POWER: Final = "power"
REPLICATED: Final = "replicated"

# The largest packet: five bytes of fixed header and a remaining length of 268 435 455 (1.5.5).
LARGEST_PACKET: Final = 268_435_460


class ConfigError(Exception):
    """The configuration cannot be used. The text is one sentence: where, which key, and what would be right."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One supervisor and its workers, on one machine."""

    name: str = name("weir")  # tells nodes on one machine apart
    folder: str = path()  # "" = /var/lib/weir/NAME for root, else weir/NAME in $XDG_STATE_HOME or ~/.local/state
    workers: int = number(0, most=256)  # processes that share the clients; 0 = one for each usable core
    memory: int = size(0)  # bytes that all processes may use; 0 = what the control group or the machine grants
    reference: str = line(LONGEST_REFERENCE)  # HOST:PORT where clients reach it, for clients that leave other nodes


@dataclass(frozen=True, kw_only=True)
class Listener:
    """The addresses at which one transport is served."""

    enabled: bool = flag(False)  # TLS needs a certificate first, and WebSocket is wanted by few
    host: tuple[str, ...] = hosts("127.0.0.1", "::1")  # loopback: no broker is open to a network by accident
    port: int = number(0, most=65535)  # 0 = any free one
    backlog: int = number(1024, least=1, most=65535)  # connections that the kernel holds until they are accepted
    # SO_RCVBUF, bytes: unread bytes that the kernel holds for one client. 0 = the kernel's default, which it adapts to
    # each connection (net.ipv4.tcp_rmem); a fixed size suits many clients that each publish little.
    receive_buffer: int = size(0, most=1 << 30)


@dataclass(frozen=True, kw_only=True)
class Tcp(Listener):
    enabled: bool = flag(True)
    port: int = number(1883, most=65535)  # registered for MQTT


@dataclass(frozen=True, kw_only=True)
class TlsListener(Listener):
    port: int = number(8883, most=65535)  # registered for MQTT over TLS


@dataclass(frozen=True, kw_only=True)
class WebSocketListener(Listener):
    port: int = number(8083, most=65535)  # as in most brokers; no port is registered


@dataclass(frozen=True, kw_only=True)
class SecureWebSocketListener(Listener):
    port: int = number(8084, most=65535)


@dataclass(frozen=True, kw_only=True)
class Admin(Listener):
    """HTTP: /metrics for Prometheus, /health/live and /health/ready. It asks for no password."""

    host: tuple[str, ...] = hosts("127.0.0.1")
    port: int = number(9883, most=65535)  # no port is registered
    backlog: int = number(64, least=1, most=65535)  # a scraper and some probes


@dataclass(frozen=True, kw_only=True)
class Listeners:
    tcp: Tcp = field(default_factory=Tcp)
    tls: TlsListener = field(default_factory=TlsListener)
    ws: WebSocketListener = field(default_factory=WebSocketListener)
    wss: SecureWebSocketListener = field(default_factory=SecureWebSocketListener)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """TLS of the listeners tls and wss. The files are read again at SIGHUP."""

    certificate: str = path()  # PEM, followed by the intermediate certificates
    key: str = path()  # PEM, not encrypted, as a password could not be asked for
    client_ca: str = path()  # PEM: the authorities that sign certificates of clients
    client_crl: str = path()  # PEM: revocation lists of these authorities; "" = no certificate is revoked
    client_certificate: str = choice("none", "none", "optional", "required")
    minimum: str = choice("1.2", "1.2", "1.3")  # devices that are ten years old speak 1.2; older versions are broken


@dataclass(frozen=True, kw_only=True)
class WebSocket:
    """WebSocket of the listeners ws and wss."""

    path: str = path("/mqtt")  # the default of most client libraries
    # Of a WebSocket message; clients may put many packets into one.
    message_bytes: int = size(16 * MIB, least=KIB, most=EXABYTE)


@dataclass(frozen=True, kw_only=True)
class Access:
    """Which clients may connect, and what they may do."""

    password_file: str = path()  # "" = no password is asked for, which is for loopback listeners only
    acl_file: str = path()  # "" = every client may do anything
    allow_anonymous: bool = flag(False)  # a broker is opened to a network only on purpose
    # The name in a verified client certificate is the user name, and no password is needed.
    certificate_user: bool = flag(False)
    # A client id belongs to the user whose session has it, or any user could take over the clients of all others.
    exclusive_client_ids: bool = flag(True)
    # Wrong passwords at once, of the node; all of them are back after 20 seconds for a user and 10 for an address (IPv4
    # host or IPv6 /64). 0 = no limit. A fleet with the right passwords never meets them.
    wrong_per_user: int = number(20)
    wrong_per_address: int = number(50)
    client_id_rule: str = client_id_rule()  # the ids that a user may have, such as "%u-*"; "" = any


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one client. CONNACK contains those for which MQTT has a property."""

    connect_timeout: float = duration(5.0, least=0.1, most=3600.0)  # MQTT asks for "a reasonable amount of time"
    connections: int = number(0)  # of the node, divided by its workers; 0 = the number of descriptors less a reserve
    connections_per_address: int = number(0)  # of one IPv4 host or IPv6 /64; 0 = no limit, as whole fleets share a NAT
    connects_per_second: int = number(0)  # of one address; 0 = no limit, as after an outage a fleet returns at once
    connect_burst: int = number(100, least=1)  # of one address, before the rate applies
    packet_bytes: int = size(1 * MIB, least=KIB, most=LARGEST_PACKET)  # the wire allows 256 MiB
    receive_maximum: int = number(1024, least=1, most=65535)  # unacknowledged QoS 1 and 2 a client may send us
    # Unacknowledged QoS 1 and 2 towards a client, whose receive maximum may be lower.
    inflight: int = number(1024, least=1, most=65535)
    topic_alias_maximum: int = number(32, most=65535)  # that a client may set; each takes the memory of a topic
    outbound_topic_aliases: int = number(32, most=65535)  # that the broker sets, if the client allows as many
    # The longest; a 3.x session with clean session 0 has it.
    session_expiry: float = duration(7 * 86400.0, most=4_294_967_295.0)
    keep_alive: int = number(0, most=65535)  # seconds; 0 = as the client asks, else the longest allowed
    # Connected or not; each takes about 1 KiB and its queue, and 150 bytes if it is stored and its client away.
    sessions: int = number(1_000_000, least=1)
    client_id_bytes: int = number(1024, least=23, most=65535)  # at least 23 [MQTT-3.1.3-5]
    # Deeper than any naming scheme in use; bounds the work of matching.
    topic_levels: int = number(32, least=1, most=32768)
    topic_bytes: int = size(4 * KIB, least=1, most=65535)  # of a topic or a filter; MQTT allows 65 535
    # Of a shared subscription. Names are words in all fleets we know, and each is kept once for each group.
    share_name_bytes: int = size(256, least=1, most=65535)
    # Topic, payload and properties of a will: a will is a short notice, and each is held twice here and once in Redis.
    will_bytes: int = size(64 * KIB, least=1)
    will_budget: int = size(0)  # bytes that wills take in a worker, each twice its own and 240; 0 = two 32nds
    subscriptions: int = number(10_000, least=1)  # per session; each takes memory and time for matching
    # Memory of a worker for subscriptions, and for the filters of all workers; 0 = ten 32nds. The 32nds are those of
    # config/budget.py.
    subscription_budget: int = size(0)
    # Positions of "+" in filters, of the node; they bound how many levels of filters one match visits.
    wildcard_patterns: int = number(8192, least=1024)
    # Topics of one client; a bridge has thousands; 0 = only [retained] limits them.
    retained_per_client: int = number(100_000)
    pending: int = number(1000)  # QoS 1 and 2 messages that wait for a connected slow reader; 0 = none
    queue: int = number(10_000)  # messages that wait for a disconnected session; beyond it the oldest are dropped
    queue_bytes: int = size(64 * MIB)  # the same in bytes, as 10 000 large messages are gigabytes
    # QoS 0 waits for a disconnected session as well. Off: clients do not expect it, and it pushes QoS 1 and 2 out.
    queue_qos0: bool = flag(False)
    queue_ttl: float = duration(7 * 86400.0, least=1.0)  # the longest wait of a message in a queue; as in TBMQ
    # Bytes of the messages that wait in all sessions of a worker or are in flight; 0 = seven 32nds.
    queue_budget: int = size(0)
    qos: int = number(2, most=2)  # the highest QoS that may be published or granted
    retain: bool = flag(True)


@dataclass(frozen=True, kw_only=True)
class Flush:
    """When the bytes that are written to one kind of client are sent."""

    # always: at the end of each tick. adaptive: so while the worker is calm (busy at most 5 % of the time); else later,
    # if more is written soon. buffered: after buffered_msg_count messages, or delivery.buffered_hold seconds.
    flush: str = choice("adaptive", "adaptive", "always", "buffered")
    buffered_msg_count: int = number(5, least=1, most=10_000)  # the default of TBMQ


@dataclass(frozen=True, kw_only=True)
class ApplicationFlush(Flush):
    buffered_msg_count: int = number(10, least=1, most=10_000)  # the default of TBMQ


@dataclass(frozen=True, kw_only=True)
class Clients:
    """Other limits for single clients. SIGHUP reads them again."""

    overrides: tuple[ClientOverride, ...] = setting((), Overrides())


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """What a slow reader may cost, and when bytes are sent to a quick one."""

    non_persistent: Flush = field(default_factory=Flush)  # sessions that end with their connection
    device: Flush = field(default_factory=Flush)  # sessions that outlive their connection
    # Those of APPLICATION clients; the end of a pack is the end of a tick, so `always` is TBMQ's buffered delivery.
    application: ApplicationFlush = field(default_factory=ApplicationFlush)
    # The longest delay of adaptive flushing; few clients notice 5 ms. It is 1.25 ms at most while messages come from
    # other nodes (delivery/flushing.py).
    adaptive_hold: float = duration(0.005, most=1.0)
    # The longest delay of buffered flushing; the default of TBMQ.
    buffered_hold: float = duration(0.2, least=0.001, most=60.0)
    # Connections whose flush is delayed, of each kind; beyond it the oldest is flushed.
    held: int = number(10_000, least=1)

    # What waited for a client that was away: messages and bytes a second after its return, until nothing waits any
    # more; 0 = any number, as a client with a receive maximum has its own brake.
    replay_messages: int = number(0)
    replay_bytes: int = size(0)
    high_watermark: int = size(1280 * KIB, least=4 * KIB)  # a reader is slow above it; more than the largest packet
    low_watermark: int = size(640 * KIB)  # a slow reader is quick again below it; half, so that it does not flap
    outbound_budget: int = size(0)  # bytes for all readers of the worker; 0 = five 32nds
    # A reader that takes no byte for this time is disconnected.
    slow_consumer_timeout: float = duration(60.0, least=0.1)
    notsent_lowat: int = size(128 * KIB, least=4 * KIB, most=1 << 30)  # else the kernel buffers 4 MB for each reader
    # After which unacknowledged bytes end a connection; 0 = the kernel's default, minutes.
    user_timeout: float = duration(60.0, most=86400.0)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a PUBLISH costs, in credits."""

    publish: int = number(10, least=1, most=1_000_000)  # at least 1, as a free publish would never be throttled
    bytes_per_credit: int = size(128, least=1)  # copying bytes is cheap beside the work for a packet
    delivery: int = number(1, most=1_000_000)  # an append to an outbox costs a tenth of reading a packet
    persistent_delivery: int = number(20, most=1_000_000)  # in addition, for storing and reading back
    retained: int = number(10, most=1_000_000)  # every worker keeps the message
    qos: int = number(5, most=1_000_000)  # times the QoS: each step means two more packets


@dataclass(frozen=True, kw_only=True)
class Overload:
    """When clients are throttled, which clients, and how much."""

    enabled: bool = flag(True)  # false: no credits and no rate of CONNECTs; gates remain, as they bound memory
    # honour: a client that is throttled for longer than its keep alive stays connected, as the broker causes its
    # silence. strict: it is disconnected, like any silent client, and as HiveMQ documents it.
    keepalive_while_throttled: str = choice("honour", "honour", "strict")
    # Whose credits they are: of each client id; or of all clients of a user, or of a tenant (quotas.tenant_of), that
    # are connected to the same worker. A user with a hundred client ids has then no more than a user with one.
    credits_per: str = choice("client", "client", "user", "tenant")
    # Credits of a client per 200 ms at the levels 0 to 10. Each level halves them, so that any load can be reached.
    refill: tuple[int, ...] = numbers(
        50_000, 25_000, 12_500, 6_000, 3_000, 1_500, 750, 350, 150, 60, 20, least=1, most=1_000_000_000
    )
    cap: int = number(50_000, least=1)  # credits that a client may save: a burst of 3000 small publishes
    # Refills that a client may save above level 0: one second; more would let a whole fleet burst.
    cap_refills: int = number(5, least=1, most=1000)
    # Credits that a client may save at least, or an expensive publish would wait long at level 10.
    cap_least: int = number(1000, least=1)
    # Levels per 100 ms for a signal that is one target too high.
    position_gain: float = factor(0.1, least=0.001, most=10)
    # Levels for a change of the signal by one target; reacts before the signal is high.
    trend_gain: float = factor(0.3, least=0, most=10)
    # Target: the wait of a ready socket; two and a half rounds of the reactor.
    lag: float = duration(0.05, least=0.001, most=60.0)
    # Target: the delay of a resource beyond its latency without load.
    gate_delay: float = duration(0.05, least=0.001, most=60.0)
    # Target: used part of the outbound budget; leaves room for large packets.
    outbound_percent: int = number(70, least=1, most=100)
    # Target: used part of the memory limit; the rest is for the time that throttling takes.
    memory_percent: int = number(85, least=1, most=100)
    # Target: used part of the maxmemory of Redis, with durable sessions; beyond maxmemory it stores nothing.
    redis_percent: int = number(85, least=1, most=100)
    # Target: the age of the oldest publish that waits in the inbound backbone; what waits there takes no memory.
    backbone_lag: float = duration(10.0, least=0.001, most=86400.0)
    # After a node has joined or left the level is 1 for so long: until workers know each other and clients are back.
    topology: float = duration(5.0, most=60.0)
    # Target: the wait of a CONNECT; clients give up after 5 to 60 s.
    connect_delay: float = duration(1.0, least=0.001, most=3600.0)
    connects_per_second: int = number(4000)  # of the node; two cores can do 5500 and nothing else; 0 = no limit
    connect_burst: int = number(2000, least=1)  # of the node, before the rate applies; a small fleet need not wait
    connects_waiting: int = number(10_000, least=1)  # of each worker, 2 KiB each; others are told when to retry
    # Targets: a resource is contended from here, where the level rises.
    contended_from: float = factor(1.0, least=0.01, most=100)
    contended_until: float = factor(0.4, least=0, most=100)  # targets: until here, well below, so that it does not flap
    # Seconds of work under way at a gate; keeps a resource busy that works in batches.
    gate_room: float = duration(0.1, least=0.001, most=60.0)
    gate_idle: float = duration(0.005, least=0.001, most=60.0)  # of work; with less, clients without credits pass
    # Publishes under way that a gate always allows: it learns its rate from them.
    gate_floor: int = number(20, least=1, most=1_000_000)
    # Bytes under way at one gate: 5 ms of another worker, 12 ms of a fast disk.
    gate_bytes: int = size(2 * MIB, least=KIB)
    wait: float = duration(30.0, least=0.1, most=86400.0)  # the longest wait at a gate; most clients give up by then
    accounts: int = number(65_536)  # disconnected clients whose credits are remembered, about 250 bytes each
    # The size of each worker's trace, a file of its decisions that `weir simulate` plays with other settings; 0 = no
    # trace. A publish takes about 40 bytes, and is judged even while the worker is calm, so tracing costs time.
    trace: int = size(0)
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True)
class QuotaScope:
    """The quotas of one session, one tenant or the cluster; "" = no limit.

    The default is no limit, as no number would be right for all users.
    """

    incoming_messages: str = message_rate()  # publishes from clients; for a session this is TBMQ's incoming-publish
    incoming_bytes: str = byte_rate()  # of these packets
    outgoing_messages: str = message_rate()  # messages to subscribers; for a session this is TBMQ's outgoing
    outgoing_bytes: str = byte_rate()  # of these packets
    subscriptions: str = message_rate()  # filters in SUBSCRIBE packets


@dataclass(frozen=True, kw_only=True)
class ClusterQuota(QuotaScope):
    total_messages: str = message_rate()  # in both directions together; TBMQ's total


@dataclass(frozen=True, kw_only=True)
class Quotas:
    """The quotas: of each session, of all clients of a tenant, and of all clients of the cluster."""

    tenant_of: str = tenant_rule()  # the rule that finds the tenant of a client; "" = there are no tenants
    # The part of the quotas of tenants and of the cluster for QoS 1 and 2 alone; half, so that neither starves.
    reserve: float = factor(0.5, least=0.0, most=0.9)
    session: QuotaScope = field(default_factory=QuotaScope)
    tenant: QuotaScope = field(default_factory=QuotaScope)
    cluster: ClusterQuota = field(default_factory=ClusterQuota)


@dataclass(frozen=True, kw_only=True)
class Retained:
    messages: int = number(1_000_000)
    # Memory of a worker for messages and for the levels of their topics, which cost more if messages are short. A new
    # topic is refused when `messages` or `bytes` is reached. Each worker has a copy of all.
    bytes: int = size(0)  # 0 = three 32nds


@dataclass(frozen=True, kw_only=True)
class Routes:
    """The cache of the receivers of topics. A cache that is too small costs time and never a message."""

    topics: int = number(65_536, least=1)
    bytes: int = size(0)  # 0 = one 32nd


@dataclass(frozen=True, kw_only=True)
class Redis:
    """The Redis or Valkey server that has the registry of sessions."""

    url: str = path()  # "" = the node starts a private server
    ca: str = path()  # PEM: authorities for rediss:// URLs, beside those of the system
    memory: int = size(0)  # of the data of the private server; 0 = an eighth of the node's memory
    password_file: str = path()  # read at each look-up of `url`, so that a new password needs no new start
    sentinel_password_file: str = path()  # the same for the sentinels of `url`, which have a password of their own
    key_file: str = path()  # seals reports and wills, the same on all nodes; "" = none at `url`
    prefix: str = path("weir")  # of all keys, so that several clusters can share one server


@dataclass(frozen=True, kw_only=True)
class Store:
    """Sessions that outlive their connection: where they are kept, with their subscriptions and messages."""

    # What they survive. "memory": nothing that ends their worker; "process": kill -9 of any process; "power": also loss
    # of power, for a sync of the disk before each answer; "replicated": also loss of the machine of Redis, as replicas
    # have it before each answer. The last three keep them in Redis.
    durability: str = choice(MEMORY, MEMORY, PROCESS, POWER, REPLICATED)
    replicas: int = number(1, least=1, most=100)  # with "replicated": all that may become the primary, to lose nothing
    # How long storing a message for a connected client may wait for its acknowledgement, which makes it needless. A
    # worker that is busy, or behind with reading, waits longer, for 50 ms more at most.
    hold: float = duration(0.002, most=1.0)
    # Messages that the node's clients may have stored, one for each receiver; 0 = no limit, as gates follow the store.
    messages_per_second: int = number(0)


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """The Apache Kafka that has the logs, and how to connect to it. It needs Weir's extra `kafka`."""

    hosts: tuple[str, ...] = brokers()  # HOST:PORT of some brokers; none = logs are streams of Redis
    options: tuple[ClientOption, ...] = client_options()  # for kafka-python, about SASL and TLS, by its own names
    password_file: str = path()  # a file with the password of SASL; "" = none


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The metrics records, one per worker and second, for the analysis. Prometheus and $SYS do not need them."""

    enabled: bool = flag(True)  # a few KiB a second for each worker; what explains an episode is recorded before it
    interval: float = duration(1.0, least=0.1, most=60.0)  # overload comes and goes within seconds
    length: int = number(10_000, least=100)  # of all workers, that Redis keeps: some 30 MB, 40 min of four workers
    # Of the topic `weir.metrics`, if there is a Kafka; set when the topic is made.
    retention: float = duration(7 * 86400.0, least=60.0)
    retention_bytes: int = size(1_048_576_000, least=MIB)  # some four days of one worker


@dataclass(frozen=True, kw_only=True)
class Sys:
    interval: float = duration(10.0)  # between two publications of $SYS/broker/..., as in Mosquitto; 0 = never


@dataclass(frozen=True, kw_only=True)
class Log:
    level: str = choice("info", "debug", "info", "warning", "error")
    format: str = choice("auto", "auto", "text", "json")  # auto: text on a terminal, else JSON lines
    client_events_per_second: int = number(20)  # log lines of each event that clients cause; further events are counted


@dataclass(frozen=True, kw_only=True)
class Config:
    node: Node = field(default_factory=Node)
    listeners: Listeners = field(default_factory=Listeners)
    tls: Tls = field(default_factory=Tls)
    websocket: WebSocket = field(default_factory=WebSocket)
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    clients: Clients = field(default_factory=Clients)
    delivery: Delivery = field(default_factory=Delivery)
    overload: Overload = field(default_factory=Overload)
    quotas: Quotas = field(default_factory=Quotas)
    retained: Retained = field(default_factory=Retained)
    routes: Routes = field(default_factory=Routes)
    redis: Redis = field(default_factory=Redis)
    store: Store = field(default_factory=Store)
    kafka: Kafka = field(default_factory=Kafka)
    application: Application = field(default_factory=Application)
    inbound: Inbound = field(default_factory=Inbound)
    metrics: Metrics = field(default_factory=Metrics)
    sys: Sys = field(default_factory=Sys)
    log: Log = field(default_factory=Log)
    admin: Admin = field(default_factory=Admin)
    drain: Drain = field(default_factory=Drain)


def needs_carrier(config: Config) -> bool:
    """Whether the node has a carrier."""
    return bool(config.application.clients or config.kafka.hosts)
