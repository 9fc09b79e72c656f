# Why we closed, refused or dropped: every such decision of the broker has a name here.
#
# One member is one counter label, one log event and, where MQTT has one, one wire code. Nobody closes
# a connection or drops a message without a member; two members may share a code, their labels keep
# them apart. A member without a code is an end that the peer cannot be told about.
from enum import Enum


class CloseReason(Enum):
    """Why a connection ended: (label, MQTT 5 reason code of the DISCONNECT or CONNACK; 0 = none is sent)."""

    CLIENT_DISCONNECTED = ("client_disconnected", 0x00)
    PEER_CLOSED = ("peer_closed", 0x00)  # end of the stream without a DISCONNECT
    PEER_RESET = ("peer_reset", 0x00)
    CONNECT_TIMEOUT = ("connect_timeout", 0x00)  # before CONNECT a server may only close [MQTT-3.14.0-1]
    TLS_HANDSHAKE_FAILED = ("tls_handshake_failed", 0x00)
    TLS_RECORD_INVALID = ("tls_record_invalid", 0x00)
    WEBSOCKET_REFUSED = ("websocket_refused", 0x00)  # the HTTP request before it asks for something else
    WEBSOCKET_ERROR = ("websocket_error", 0x00)  # frames that are none, or a message that is too large
    WEBSOCKET_TEXT = ("websocket_text", 0x82)  # MQTT is binary [MQTT-6.0.0-1]
    NOT_MQTT = ("not_mqtt", 0x00)  # the first packet is no CONNECT [MQTT-3.1.0-1]
    MALFORMED_PACKET = ("malformed_packet", 0x81)
    PROTOCOL_ERROR = ("protocol_error", 0x82)
    INTERNAL_ERROR = ("internal_error", 0x83)
    UNSUPPORTED_VERSION = ("unsupported_protocol_version", 0x84)
    CLIENT_ID_INVALID = ("client_identifier_not_valid", 0x85)
    BAD_CREDENTIALS = ("bad_user_name_or_password", 0x86)
    NOT_AUTHORIZED = ("not_authorized", 0x87)
    SERVER_UNAVAILABLE = ("server_unavailable", 0x88)
    SERVER_BUSY = ("server_busy", 0x89)
    CONNECTS_WAITING = ("connects_waiting", 0x89)  # as many CONNECTs wait as may, and all of them have said more since
    CONNECT_DISPLACED = ("connect_displaced", 0x89)  # its CONNECT waited, it said no more, and its place was needed
    SHUTTING_DOWN = ("shutting_down", 0x8B)
    BAD_AUTHENTICATION_METHOD = ("bad_authentication_method", 0x8C)
    KEEP_ALIVE_TIMEOUT = ("keep_alive_timeout", 0x8D)
    SESSION_TAKEN_OVER = ("session_taken_over", 0x8E)
    TOPIC_FILTER_INVALID = ("topic_filter_invalid", 0x8F)
    TOPIC_NAME_INVALID = ("topic_name_invalid", 0x90)
    TOPIC_LEVELS = ("topic_levels", 0x90)  # the topic is one, and deeper than we let it be
    TOPIC_BYTES = ("topic_bytes", 0x90)  # or longer
    RECEIVE_MAXIMUM_EXCEEDED = ("receive_maximum_exceeded", 0x93)
    TOPIC_ALIAS_INVALID = ("topic_alias_invalid", 0x94)
    PACKET_TOO_LARGE = ("packet_too_large", 0x95)
    KICKED = ("kicked", 0x98)  # `weir clients kick`: an administrative action
    CONNECTION_LIMIT = ("connection_limit", 0x97)
    CONNECTIONS_PER_ADDRESS = ("connections_per_address", 0x97)
    CONNECT_RATE = ("connect_rate", 0x9F)  # its address connects too often
    SESSION_LIMIT = ("session_limit", 0x97)  # too many sessions; those who have one may come
    QUOTA_EXCEEDED = ("quota_exceeded", 0x97)
    GATE_TIMEOUT = ("gate_timeout", 0x97)  # its publish waited for a resource, and 3.x has no word for that
    SLOW_CONSUMER = ("slow_consumer", 0x97)
    OUTBOUND_BUDGET = (
        "outbound_budget",
        0x97,
    )  # the worker's outbound bytes are used up, and this buffer was the largest
    INPUT_BUDGET = ("input_budget", 0x97)  # the worker's input bytes are used up, and this unfinished packet was large
    RETAIN_NOT_SUPPORTED = ("retain_not_supported", 0x9A)
    QOS_NOT_SUPPORTED = ("qos_not_supported", 0x9B)

    def __init__(self, label: str, code: int) -> None:
        self.label = label
        self.code = code


class DropReason(Enum):
    """Why a message did not reach one receiver, or nobody at all: (label,)."""

    NOT_WRITABLE = "not_writable"  # QoS 0, and the reader is over its high watermark
    PENDING_FULL = "pending_full"  # QoS 1 or 2, and the list of what waits for a slow reader is full
    QUEUE_FULL = "queue_full"  # the queue of a session that is away is full: its oldest message went
    OFFLINE_QOS0 = "offline_qos0"  # QoS 0 is not kept for a session that is away
    EXPIRED = "expired"  # its message expiry interval passed while it waited
    TOO_LARGE = "too_large"  # larger than the receiver's maximum packet size [MQTT-3.1.2-25]
    SESSION_ENDED = "session_ended"  # it waited for a session that ended
    NO_SHARED_MEMBER = "no_shared_member"  # no member of a shared subscription could take it
    NOT_AUTHORIZED = "not_authorized"  # the publisher may not publish to that topic
    MAY_NOT_READ = "may_not_read"  # it waited for a client that may not read its topic any more
    RETAINED_FULL = "retained_full"  # the limit of retained messages is reached
    GATE_TIMEOUT = "gate_timeout"  # QoS 0, and a resource that it needs was not to be had in time
    RETAINED_PER_CLIENT = "retained_per_client"  # its client has retained messages under as many topics as it may
    # QoS 0 over a quota, named by who shares it and what it counts.
    QUOTA_SESSION_MESSAGES = "quota_session_messages"
    QUOTA_SESSION_BYTES = "quota_session_bytes"
    QUOTA_TENANT_MESSAGES = "quota_tenant_messages"
    QUOTA_TENANT_BYTES = "quota_tenant_bytes"
    QUOTA_CLUSTER_MESSAGES = "quota_cluster_messages"
    QUOTA_CLUSTER_BYTES = "quota_cluster_bytes"
    QUOTA_CLUSTER_TOTAL = "quota_cluster_total"  # of messages in both directions
    QUOTA_SESSION_OUTGOING = "quota_session_outgoing"  # what goes to clients, in messages or bytes
    QUOTA_TENANT_OUTGOING = "quota_tenant_outgoing"
    QUOTA_CLUSTER_OUTGOING = "quota_cluster_outgoing"

    def __init__(self, label: str) -> None:
        self.label = label


class FilterRefusal(Enum):
    """Why a filter was not subscribed to; the connection goes on: (label, MQTT 5 code in the SUBACK, else 0x80).

    The codes are among those that SUBACK has [MQTT-3.9.3-2].
    """

    INVALID = ("topic_filter_invalid", 0x8F)
    NOT_AUTHORIZED = ("not_authorized", 0x87)  # nothing that the filter matches may be read
    LEVELS = ("topic_levels", 0x8F)  # the filter is one, and deeper than we let it be
    BYTES = ("topic_bytes", 0x8F)  # or longer
    SUBSCRIPTIONS = ("subscriptions_per_session", 0x97)
    QUOTA_SESSION_SUBSCRIPTIONS = ("quota_session_subscriptions", 0x97)  # filters that it may subscribe to in a time
    QUOTA_TENANT_SUBSCRIPTIONS = ("quota_tenant_subscriptions", 0x97)
    QUOTA_CLUSTER_SUBSCRIPTIONS = ("quota_cluster_subscriptions", 0x97)

    def __init__(self, label: str, code: int) -> None:
        self.label = label
        self.code = code


class PublishRefusal(Enum):
    """Why a QoS 1 or 2 publish of MQTT 5 was not taken; the connection goes on: (label, code of the answer, words).

    The codes are among those that PUBACK and PUBREC have [MQTT-3.4.2-1], [MQTT-3.5.2-1].
    """

    GATE_TIMEOUT = ("gate_timeout", 0x97, "a resource that it needs was not to be had in time")
    QUOTA_SESSION_MESSAGES = ("quota_session_messages", 0x97, "too many messages from this client")
    QUOTA_SESSION_BYTES = ("quota_session_bytes", 0x97, "too many bytes from this client")
    QUOTA_TENANT_MESSAGES = ("quota_tenant_messages", 0x97, "too many messages from its tenant")
    QUOTA_TENANT_BYTES = ("quota_tenant_bytes", 0x97, "too many bytes from its tenant")
    QUOTA_CLUSTER_MESSAGES = ("quota_cluster_messages", 0x97, "too many messages from all clients")
    QUOTA_CLUSTER_BYTES = ("quota_cluster_bytes", 0x97, "too many bytes from all clients")
    QUOTA_CLUSTER_TOTAL = ("quota_cluster_total", 0x97, "too many messages from and to all clients")

    def __init__(self, label: str, code: int, words: str) -> None:
        self.label = label
        self.code = code
        self.words = words


class PauseReason(Enum):
    """Why a client is not read for a while: (label, what to tell a person)."""

    CREDITS = ("credits", "it has used up its credits, and its publishes need something that has much to do")
    CONNECT = ("connect", "more clients connect than can be let in at once, and it waits for its turn")
    GATE = ("gate", "its publishes need something that has as much work before it as it can do in time")
    QUOTA_SESSION_MESSAGES = ("quota_session_messages", "it has published as many messages as it may")
    QUOTA_SESSION_BYTES = ("quota_session_bytes", "it has published as many bytes as it may")
    QUOTA_TENANT_MESSAGES = ("quota_tenant_messages", "its tenant has published as many messages as it may")
    QUOTA_TENANT_BYTES = ("quota_tenant_bytes", "its tenant has published as many bytes as it may")
    QUOTA_CLUSTER_MESSAGES = ("quota_cluster_messages", "all clients have published as many messages as they may")
    QUOTA_CLUSTER_BYTES = ("quota_cluster_bytes", "all clients have published as many bytes as they may")
    QUOTA_CLUSTER_TOTAL = ("quota_cluster_total", "as many messages have come and gone as may in the whole cluster")
    QUOTA_SESSION_OUTGOING = ("quota_session_outgoing", "it has been sent as much as it may")
    QUOTA_TENANT_OUTGOING = ("quota_tenant_outgoing", "its tenant has been sent as much as it may")
    QUOTA_CLUSTER_OUTGOING = ("quota_cluster_outgoing", "all clients have been sent as much as they may")
    QUOTA_SESSION_SUBSCRIPTIONS = ("quota_session_subscriptions", "it has subscribed as often as it may")
    QUOTA_TENANT_SUBSCRIPTIONS = ("quota_tenant_subscriptions", "its tenant has subscribed as often as it may")
    QUOTA_CLUSTER_SUBSCRIPTIONS = ("quota_cluster_subscriptions", "all clients have subscribed as often as they may")
    QUOTA_ASKED = ("quota_asked", "Redis is being asked what is left of a quota that is shared")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class ReportFailure(Enum):
    """Why a report of load was ignored: (label,)."""

    MALFORMED = "malformed"  # it could not be read
    STALE = "stale"  # a later one of the same worker is here
    OUT_OF_RANGE = "out_of_range"  # its level is none, or its number cannot be
    ECHO = "echo"  # it is our own

    def __init__(self, label: str) -> None:
        self.label = label


class FlushCause(Enum):
    """Why a client was sent what it was owed, at that moment: (label,)."""

    TICK = "tick"  # the end of a tick: what it appended leaves in one send
    FILLED = "filled"  # it was held, and has enough now
    WAITED = "waited"  # it was held for as long as it may be
    EVICTED = "evicted"  # it was held longest when too many were

    def __init__(self, label: str) -> None:
        self.label = label


class StoreFailure(Enum):
    """Why Redis did not do what it was asked: (label, what to tell a person)."""

    UNREACHABLE = ("unreachable", "it cannot be reached")
    LOST = ("connection_lost", "its connection ended before it answered")
    TIMEOUT = ("timeout", "it did not answer in time")
    BACKLOG_FULL = ("backlog_full", "too much waits for it already")
    LOADING = ("loading", "it is still loading its data")
    SCRIPT_BUSY = ("script_busy", "somebody's script keeps it busy")
    READ_ONLY = ("read_only", "it is a replica that takes no writes")
    MOVED = ("moved", "it is a node of a Redis Cluster, which Weir does not use yet")
    AUTHENTICATION_FAILED = ("authentication_failed", "it does not accept our user name or password")
    FORBIDDEN = ("forbidden", "its access rules forbid what Weir needs")
    MEMORY_FULL = ("memory_full", "it has reached its maxmemory")
    CANNOT_WRITE = ("cannot_write", "it cannot write its append-only file: look at its disk")
    SCRIPT_UNKNOWN = ("script_unknown", "it has forgotten our script")
    REFUSED = ("refused", "it answered with an error")
    MALFORMED_REPLY = ("malformed_reply", "what it answered is not the protocol of Redis")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class ProtocolError(Exception):
    """The peer broke MQTT. Carries the reason to close with and, for the log, what exactly was wrong."""

    def __init__(self, reason: CloseReason, detail: str) -> None:
        super().__init__(f"{reason.label}: {detail}")
        self.reason = reason
        self.detail = detail
