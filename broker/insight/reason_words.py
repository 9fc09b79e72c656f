# What an operator can do about a reason, and the meaning of signals and MQTT codes. What happened is said by the reason
# itself (`words`, in broker/reasons.py).
#
# Advice names a setting or a command. A reason is not listed if nothing has to be changed.
from collections.abc import Iterable
from shlex import quote
from typing import Final, NamedTuple

from broker.overload.admit import CLOSE, DROP, FILTER, PAUSE, REFUSE, SUBACK
from broker.reasons import CloseReason, DropReason, FilterRefusal, PauseReason, PublishRefusal, SubscribeNotice

CLIENT_ERROR: Final = "This is an error of the client program: see its log and its MQTT library."
OWN_LOG: Final = "See the log of the client, or of the network."
ACCESS: Final = "Use a user with that right, or change the rules in access.acl_file and run `weir reload`."
SLOW: Final = "Make the client read faster or subscribe to less."
BAN: Final = "`weir ban list` shows until when and why, and `weir ban remove` ends a ban."
QUOTA: Final = "quota_"

Reason = CloseReason | DropReason | FilterRefusal | PublishRefusal | PauseReason | SubscribeNotice

ADVICE: Final[dict[Reason, str]] = {
    CloseReason.PEER_CLOSED: OWN_LOG,
    CloseReason.PEER_RESET: OWN_LOG,
    CloseReason.CONNECT_TIMEOUT: "limits.connect_timeout sets the time. Raise it for clients that are slow to connect.",
    CloseReason.TLS_HANDSHAKE_FAILED: (
        "Check that the client trusts the server's certificate, and that the client has a certificate of its own if "
        "tls.client_certificate asks for one."
    ),
    CloseReason.TLS_RECORD_INVALID: CLIENT_ERROR,
    CloseReason.TLS_KEY_UPDATES: CLIENT_ERROR,
    CloseReason.TLS_HANDSHAKES_WAITING: (
        "More clients connect over TLS than the CPU can serve. Add workers, use an ECDSA certificate, or limit the "
        "addresses with limits.connects_per_second."
    ),
    CloseReason.WEBSOCKET_REFUSED: "The client has to request websocket.path with the subprotocol mqtt.",
    CloseReason.WEBSOCKET_ERROR: "websocket.message_bytes is the maximum size of one message.",
    CloseReason.WEBSOCKET_TEXT: CLIENT_ERROR,
    CloseReason.NOT_MQTT: "Check that the client uses the right port and transport.",
    CloseReason.MALFORMED_PACKET: CLIENT_ERROR,
    CloseReason.PROTOCOL_ERROR: CLIENT_ERROR,
    CloseReason.INTERNAL_ERROR: "`weir logs` shows the failure as internal_error: please report it.",
    CloseReason.RECEIVER_MOVED: "The client connects again and publishes what was not acknowledged. A worker was slow.",
    CloseReason.BACKBONE_REFUSED: "`weir logs` shows the error: as a rule, max.message.bytes of its topic is too low.",
    CloseReason.SESSION_DAMAGED: "The client may connect again, to an empty session. What Redis has is kept aside.",
    CloseReason.UNSUPPORTED_VERSION: "Use MQTT 3.1, 3.1.1 or 5.0.",
    CloseReason.CLIENT_ID_INVALID: "limits.client_id_bytes is the maximum length.",
    CloseReason.CLIENT_ID_RULE: "access.client_id_rule says which client ids a user may have.",
    CloseReason.CLIENT_ID_OF_OTHER_USER: (
        "Give the client an id of its own, or connect as the user of that session. The id is free when its session has "
        "ended. access.exclusive_client_ids = false lets all users share client ids."
    ),
    CloseReason.BAD_CREDENTIALS: (
        "Use the right password, or set another with `weir passwd FILE USER` and run `weir reload`."
    ),
    CloseReason.GUESSES_OF_USER: (
        "access.wrong_per_user is the limit, which recovers within 20 seconds. An address from which the user gave the "
        "right password before has a limit of its own. `weir logs` shows where the wrong ones come from, and "
        "`weir ban add --address ADDRESS --for 1h` keeps an address out."
    ),
    CloseReason.GUESSES_OF_ADDRESS: (
        "access.wrong_per_address is the limit, which recovers within 10 seconds. Raise it for a proxy or a NAT with "
        "many clients behind it. Users that gave the right password from there before are not affected."
    ),
    CloseReason.NOT_AUTHORIZED: ACCESS,
    CloseReason.SERVER_UNAVAILABLE: "`weir logs` shows the state of Redis. The client can connect when Redis answers.",
    CloseReason.LOG_UNAVAILABLE: (
        "`weir status` and `weir logs` show what is wrong with the log. The client can connect when that is over, and "
        "clients with a session can at any time."
    ),
    CloseReason.SERVER_BUSY: "The client can connect again later. Let fewer clients connect at one time.",
    CloseReason.CONNECTS_WAITING: (
        "overload.connects_waiting and overload.connects_per_second are the limits, and a 32nd of the worker's memory "
        "is that of long CONNECTs. The client was told when to return."
    ),
    CloseReason.CONNECT_DISPLACED: (
        "overload.connects_waiting is the size of the queue. The client was told when to return."
    ),
    CloseReason.BANNED: BAN,
    CloseReason.BANNED_WHILE_CONNECTED: BAN,
    CloseReason.BAD_AUTHENTICATION_METHOD: CLIENT_ERROR,
    CloseReason.KEEP_ALIVE_TIMEOUT: "Check the client and its network. A longer keep alive allows longer silence.",
    CloseReason.SESSION_TAKEN_OVER: (
        "If this was not the client itself that connected again, two programs use one client id: give each its own."
    ),
    CloseReason.SESSION_DROPPED: "The audit log says who used `weir sessions drop`. The client may connect again.",
    CloseReason.TOPIC_FILTER_INVALID: CLIENT_ERROR,
    CloseReason.TOPIC_NAME_INVALID: CLIENT_ERROR,
    CloseReason.TOPIC_LEVELS: "limits.topic_levels is the maximum.",
    CloseReason.TOPIC_BYTES: "limits.topic_bytes is the maximum length.",
    CloseReason.RECEIVE_MAXIMUM_EXCEEDED: (
        "limits.receive_maximum is the limit, which the server tells each client. The client has to keep to it."
    ),
    CloseReason.TOPIC_ALIAS_INVALID: CLIENT_ERROR,
    CloseReason.PACKET_TOO_LARGE: (
        "limits.packet_bytes is the maximum size for the server. A client sets its own maximum in its CONNECT."
    ),
    CloseReason.WILL_BYTES: "limits.will_bytes is the maximum, with topic and properties.",
    CloseReason.WILL_BUDGET: "limits.will_budget is the limit, of each worker. Smaller wills leave room for others.",
    CloseReason.CONNECTION_LIMIT: "limits.connections is the limit.",
    CloseReason.CONNECTIONS_PER_ADDRESS: "limits.connections_per_address is the limit.",
    CloseReason.CONNECT_RATE: (
        "limits.connects_per_second is the limit. Clients behind one NAT or load balancer have one address. Over TLS "
        "and WebSocket the connection is closed without an answer, and the event connection_refused names the address."
    ),
    CloseReason.APPLICATION_LIMIT: (
        "application.sessions is the limit, of which each worker has an equal part. `weir applications list` shows who "
        "has such a session, and `weir sessions drop CLIENT` ends one, with its log. A table of application.clients "
        "that names too many clients should name fewer."
    ),
    CloseReason.SESSION_LIMIT: "limits.sessions is the limit.",
    CloseReason.QUOTA_EXCEEDED: CLIENT_ERROR,
    CloseReason.GATE_TIMEOUT: "overload.wait is the time a publish may wait. `weir top` shows what is overloaded.",
    CloseReason.SLOW_CONSUMER: f"delivery.slow_consumer_timeout is the time. {SLOW}",
    CloseReason.MESSAGE_BUDGET: "limits.queue_budget is the memory. A client that acknowledges its messages frees it.",
    CloseReason.PACK_TIMEOUT: (
        "Its next connection gets the messages again. application.pack_timeout is the time; a client that needs longer "
        "can ask for a smaller receive maximum."
    ),
    CloseReason.OUTBOUND_BUDGET: f"delivery.outbound_budget is the limit. {SLOW}",
    CloseReason.INPUT_BUDGET: "limits.packet_bytes is the maximum size of a packet. The budget grows with the memory.",
    CloseReason.RETAIN_NOT_SUPPORTED: "limits.retain = true allows retained messages.",
    CloseReason.QOS_NOT_SUPPORTED: "limits.qos is the maximum QoS.",
    CloseReason.DRAINING: (
        "`weir undrain NODE` has the node take clients again. node.reference of the other nodes tells MQTT 5.0 clients "
        "where to go; for others, a load balancer should look at /health/ready."
    ),
    CloseReason.OTHER_NODE_CALMER: (
        "The client was told which. overload.connects_per_second is the number of CONNECTs that a node lets in."
    ),
    DropReason.NOT_WRITABLE: f"{SLOW} delivery.high_watermark is the number of bytes that may wait for a client.",
    DropReason.PENDING_FULL: (
        f"{SLOW} limits.pending is the size of the queue; it is limits.queue if the session outlives its connection."
    ),
    DropReason.MESSAGE_BUDGET: "limits.queue_budget is the memory. A client that acknowledges what it gets keeps it.",
    DropReason.QUEUE_FULL: "limits.queue, limits.queue_bytes and limits.queue_budget set the size of queues.",
    DropReason.SHARED_FULL: (
        "Add members or faster ones. limits.queue, limits.queue_bytes and limits.queue_budget set how much may wait."
    ),
    DropReason.OFFLINE_QOS0: "Subscribe with QoS 1 to have messages kept, or set limits.queue_qos0.",
    DropReason.EXPIRED: "The publisher sets the expiry of a message; limits.queue_ttl is the longest.",
    DropReason.TOO_LARGE: "The client sets its maximum packet size in its CONNECT.",
    DropReason.SESSION_ENDED: "A longer session expiry keeps queued messages.",
    DropReason.PACK_TIMEOUT: "application.pack_timeout is the time, and application.ack_strategy says what follows.",
    DropReason.RETENTION_EXPIRED: "Raise the retention of its topic, in time or bytes. Each count is a record.",
    DropReason.LOG_DAMAGED: "Another program wrote to its topic, or a disk is damaged. Each count is a record.",
    DropReason.BACKBONE_REFUSED: "`weir logs` shows the error: as a rule, max.message.bytes of its topic is too low.",
    DropReason.LOG_REFUSED: "The most common cause is max.message.bytes of its topic. `weir logs` shows the error.",
    DropReason.PURGED: "The audit log says who used `weir queue purge`.",
    DropReason.NO_SHARED_MEMBER: (
        "Add members or faster ones, or give members sessions that outlive their connections and QoS 1 or 2."
    ),
    DropReason.NOT_AUTHORIZED: ACCESS,
    DropReason.MAY_NOT_READ: ACCESS,
    DropReason.RETAINED_FULL: "retained.messages and retained.bytes are the limits.",
    DropReason.RETAINED_UNWRITTEN: "`weir logs` shows the state of Redis. An eighth of retained.bytes is the limit.",
    DropReason.GATE_TIMEOUT: "overload.wait is the time a publish may wait. `weir top` shows what is overloaded.",
    DropReason.RETAINED_PER_CLIENT: "limits.retained_per_client is the limit.",
    PublishRefusal.GATE_TIMEOUT: "overload.wait is the time a publish may wait. `weir top` shows what is overloaded.",
    FilterRefusal.INVALID: CLIENT_ERROR,
    FilterRefusal.NOT_AUTHORIZED: ACCESS,
    FilterRefusal.LEVELS: "limits.topic_levels is the maximum.",
    FilterRefusal.BYTES: "limits.topic_bytes is the maximum length.",
    FilterRefusal.SHARE_NAME: "limits.share_name_bytes is the maximum length.",
    FilterRefusal.SUBSCRIPTIONS: "limits.subscriptions is the limit.",
    FilterRefusal.PATTERNS: (
        "limits.wildcard_patterns is the limit of the node. A client adds at most a quarter of a worker's share."
    ),
    FilterRefusal.BUDGET: (
        "limits.subscription_budget is the limit of a worker; a filter counts at all workers. "
        "One session has at most a quarter."
    ),
    FilterRefusal.SHARED_FILTERS: "application.shared_filters is the limit, as each may need a log of its own.",
    FilterRefusal.LOG_UNAVAILABLE: "`weir status` and `weir logs` show what is wrong with the log.",
    SubscribeNotice.NOT_CONFIRMED: "The log names the workers; `weir nodes` shows whether their nodes live.",
    PauseReason.CREDITS: (
        "A client that publishes less, smaller messages or to fewer subscribers pays fewer credits. "
        "`weir limit set CLIENT --no-protection --ttl 1h --reason TEXT` exempts the client at the cost of others."
    ),
    PauseReason.CONNECT: "overload.connects_per_second and overload.connect_burst set how fast a node accepts clients.",
    PauseReason.GATE: "`weir top` shows what keeps that worker busy. node.workers is the number of workers.",
    PauseReason.STORE: "Storing it takes milliseconds. If this lasts, `weir logs` shows the state of Redis.",
    PauseReason.QUOTA_ASKED: "An answer takes milliseconds. If this lasts, `weir logs` shows the state of Redis.",
}
QUOTA_SETTINGS: Final = {
    "messages": "incoming_messages",
    "bytes": "incoming_bytes",
    "outgoing": "outgoing_messages or outgoing_bytes",
    "subscriptions": "subscriptions",
    "total": "total_messages",
}
REASONS: Final[dict[int, Iterable[Reason]]] = {
    DROP: DropReason,
    PAUSE: PauseReason,
    REFUSE: PublishRefusal,
    CLOSE: CloseReason,
    FILTER: FilterRefusal,
    SUBACK: SubscribeNotice,
}


class Signal(NamedTuple):
    """What the overload signal of a worker measures."""

    words: str
    setting: str  # of its target
    share: bool  # its value is a share of a limit, else a time
    counted: str = ""  # its value is a number of these, such as "node"


SIGNALS: Final = {
    "lag": Signal("clients wait too long to be served", "overload.lag", False),
    "outbound": Signal("too many bytes wait to be sent to clients", "overload.outbound_percent", True),
    "memory": Signal("the memory is nearly used up", "overload.memory_percent", True),
    "redis": Signal("the memory of Redis is nearly used up", "overload.redis_percent", True),
    "connect": Signal("CONNECTs wait too long for their turn", "overload.connect_delay", False),
    "topology": Signal("nodes have joined or left the cluster", "overload.topology", False, "node"),
    "backbone": Signal("publishes wait too long in the inbound backbone", "overload.backbone_lag", False),
}
GATE_SETTING: Final = "overload.gate_delay"  # of the signals that are named after a gate

# MQTT 3.1.1, section 3.2.2.3.
RETURN_CODES: Final = {
    1: "unsupported protocol version",
    2: "client id not accepted",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}
# MQTT 5.0, section 2.4.
REASON_CODES: Final = {
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client id not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x93: "receive maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}


def words_of(kind: int, label: str, client: str) -> tuple[str, str]:
    """What happened, and what an operator can do, for a decision of *kind* about *client* with the reason *label*."""
    reason = _member(REASONS[kind], label)
    return reason.words, advice(reason, client)


def advice(reason: Reason, client: str) -> str:
    """What an operator can do about *reason* for *client*, in sentences; "" if nothing."""
    if reason in ADVICE:
        return ADVICE[reason].replace("CLIENT", quote(client))  # the command is copied, and clients choose their ids
    return _quota_advice(reason.label, quote(client)) if reason.label.startswith(QUOTA) else ""


def meaning(label: str) -> str:
    """What the reason *label* means, whatever it is a reason for; "" if there is none."""
    ordered: tuple[Iterable[Reason], ...] = (DropReason, FilterRefusal, CloseReason, PauseReason, SubscribeNotice)
    for reasons in ordered:
        for reason in reasons:
            if reason.label == label:
                return reason.words
    return ""


def _member(reasons: Iterable[Reason], label: str) -> Reason:
    return next(reason for reason in reasons if reason.label == label)


def _quota_advice(label: str, client: str) -> str:
    """About the quota *label*, such as "quota_session_messages"."""
    _, scope, what = label.split("_")
    text = f"The setting is quotas.{scope}.{QUOTA_SETTINGS[what]}."
    if scope == "session" and what == "messages":
        text += f" `weir limit set {client} --rate 100/s --ttl 1h --reason TEXT` sets another rate for an hour."
    return text
