# The named reasons for which Weir closes, refuses, drops or throttles. Each decision of the broker has one.
#
# One member is one label of a counter, one value of `reason` in a log event, and one reason code on the wire where MQTT
# has one. Two members may share a code; their labels keep them apart. Code 0x00: the peer is not told.
# `words` say what happened, as a clause that stands on its own. Operators read them in `weir why`, on the dashboard and
# in insight/EVENTS.md, a client in the reason string of a packet. insight/reason_words.py says what an operator can do.
from enum import Enum


class CloseReason(Enum):
    """Why a connection ended: (label, MQTT 5 reason code of the DISCONNECT or CONNACK, words)."""

    CLIENT_DISCONNECTED = ("client_disconnected", 0x00, "the client sent a DISCONNECT")
    PEER_CLOSED = ("peer_closed", 0x00, "the client closed its connection without a DISCONNECT")
    PEER_RESET = ("peer_reset", 0x00, "the client or the network reset the connection")
    # Before a CONNECT a server may only close [MQTT-3.14.0-1].
    CONNECT_TIMEOUT = ("connect_timeout", 0x00, "the client sent no CONNECT in time")
    TLS_HANDSHAKE_FAILED = ("tls_handshake_failed", 0x00, "the TLS handshake failed")
    TLS_RECORD_INVALID = ("tls_record_invalid", 0x00, "the client sent an invalid TLS record")
    TLS_KEY_UPDATES = (
        "tls_key_updates",
        0x00,
        "the client sent too many TLS key updates, or other records without data",
    )
    TLS_HANDSHAKES_WAITING = (
        "tls_handshakes_waiting",
        0x00,
        "too many TLS handshakes wait, and this one gave its place to a newer one",
    )
    WEBSOCKET_REFUSED = ("websocket_refused", 0x00, "the HTTP request does not ask for MQTT over WebSocket")
    WEBSOCKET_ERROR = ("websocket_error", 0x00, "the client broke the WebSocket protocol, or sent too large a message")
    WEBSOCKET_TEXT = (
        "websocket_text",
        0x82,
        "the client sent a WebSocket text message; MQTT is binary",
    )  # [MQTT-6.0.0-1]
    NOT_MQTT = ("not_mqtt", 0x00, "the first packet is not a CONNECT")  # [MQTT-3.1.0-1]
    MALFORMED_PACKET = ("malformed_packet", 0x81, "the client sent a malformed packet")
    PROTOCOL_ERROR = ("protocol_error", 0x82, "the client broke the MQTT protocol")
    INTERNAL_ERROR = ("internal_error", 0x83, "Weir's own code failed")
    RECEIVER_MOVED = (
        "receiver_moved",
        0x83,
        "another worker took the session of a receiver, before what the client had published was stored for it",
    )
    BACKBONE_REFUSED = ("backbone_refused", 0x83, "the inbound backbone does not take what the client has published")
    SESSION_DAMAGED = ("session_damaged", 0x83, "what is stored of the session cannot be read or written")
    UNSUPPORTED_VERSION = ("unsupported_protocol_version", 0x84, "Weir does not support the client's MQTT version")
    CLIENT_ID_INVALID = ("client_identifier_not_valid", 0x85, "the client id is too long, or empty where it may not be")
    CLIENT_ID_RULE = ("client_id_rule", 0x85, "the user may not have that client id")
    CLIENT_ID_OF_OTHER_USER = ("client_id_of_other_user", 0x87, "the client id belongs to a session of another user")
    BAD_CREDENTIALS = ("bad_user_name_or_password", 0x86, "the user name or the password is wrong")
    # "Connection rate exceeded": "bad user name or password" would say that the password was looked at.
    GUESSES_OF_USER = ("guesses_of_user", 0x9F, "too many wrong passwords were given for the user of late")
    GUESSES_OF_ADDRESS = ("guesses_of_address", 0x9F, "too many wrong passwords came from the address of late")
    NOT_AUTHORIZED = ("not_authorized", 0x87, "the user may not do that, or the client has no user and needs one")
    SERVER_UNAVAILABLE = ("server_unavailable", 0x88, "Redis did not answer in time, or cannot store a session now")
    LOG_UNAVAILABLE = ("log_unavailable", 0x88, "the log of the APPLICATION client, which is new, cannot be made now")
    SERVER_BUSY = ("server_busy", 0x89, "too many passwords wait to be checked")
    CONNECTS_WAITING = ("connects_waiting", 0x89, "the queue of waiting CONNECTs is full")
    CONNECT_DISPLACED = (
        "connect_displaced",
        0x89,
        "the queue of waiting CONNECTs is full, and this one gave its place to another",
    )
    BANNED = ("banned", 0x8A, "the client id, the user or the address is banned")
    BANNED_WHILE_CONNECTED = ("banned_while_connected", 0x98, "an administrator banned the client")
    SHUTTING_DOWN = ("shutting_down", 0x8B, "the worker is stopped or replaced")
    BAD_AUTHENTICATION_METHOD = ("bad_authentication_method", 0x8C, "Weir does not support the authentication method")
    KEEP_ALIVE_TIMEOUT = ("keep_alive_timeout", 0x8D, "the client sent nothing for 1.5 times its keep alive")
    SESSION_TAKEN_OVER = ("session_taken_over", 0x8E, "another connection uses the same client id")
    TOPIC_FILTER_INVALID = ("topic_filter_invalid", 0x8F, "the client subscribed to an invalid topic filter")
    TOPIC_NAME_INVALID = ("topic_name_invalid", 0x90, "the client published to an invalid topic name")
    TOPIC_LEVELS = ("topic_levels", 0x90, "the topic has too many levels")
    TOPIC_BYTES = ("topic_bytes", 0x90, "the topic is too long")
    RECEIVE_MAXIMUM_EXCEEDED = (
        "receive_maximum_exceeded",
        0x93,
        "the client sent more QoS 2 publishes at once than it may",
    )
    TOPIC_ALIAS_INVALID = ("topic_alias_invalid", 0x94, "the client used an invalid topic alias")
    PACKET_TOO_LARGE = ("packet_too_large", 0x95, "a packet is larger than its receiver accepts")
    WILL_BYTES = ("will_bytes", 0x95, "the will is larger than a will may be")
    WILL_BUDGET = ("will_budget", 0x97, "the wills of all clients fill the memory that they may have")
    KICKED = ("kicked", 0x98, "an administrator disconnected the client")
    SESSION_DROPPED = ("session_dropped", 0x98, "an administrator ended the session of the client")
    CONNECTION_LIMIT = ("connection_limit", 0x97, "the limit of connections is reached")
    CONNECTIONS_PER_ADDRESS = ("connections_per_address", 0x97, "the limit of connections from one address is reached")
    CONNECT_RATE = ("connect_rate", 0x9F, "the address connects too often")
    APPLICATION_LIMIT = (
        "application_limit",
        0x97,
        "the limit of sessions with logs is reached; APPLICATION clients that have one may connect",
    )
    SESSION_LIMIT = ("session_limit", 0x97, "the limit of sessions is reached; clients that have one may connect")
    QUOTA_EXCEEDED = ("quota_exceeded", 0x97, "a packet has too many filters or user properties")
    # MQTT 3 has no answer that refuses a publish.
    GATE_TIMEOUT = ("gate_timeout", 0x97, "a publish waited too long for a busy resource, and MQTT 3 cannot refuse it")
    SLOW_CONSUMER = ("slow_consumer", 0x97, "the client took none of its waiting bytes for too long")
    PACK_TIMEOUT = ("pack_timeout", 0x97, "the APPLICATION client did not acknowledge messages in time")
    OUTBOUND_BUDGET = ("outbound_budget", 0x97, "the outbound budget is used up, and the client had most of it")
    MESSAGE_BUDGET = (
        "message_budget",
        0x97,
        "the memory for messages is used up, and the client had most of it",
    )
    INPUT_BUDGET = ("input_budget", 0x97, "the input budget is used up, and the client was sending a large packet")
    RETAIN_NOT_SUPPORTED = ("retain_not_supported", 0x9A, "retained messages are switched off")
    QOS_NOT_SUPPORTED = ("qos_not_supported", 0x9B, "the QoS is higher than the maximum")
    DRAINING = ("draining", 0x9C, "an administrator drains the node, and the client is to use another node")
    REBALANCED = ("rebalanced", 0x9C, "the node had clearly more clients than others, and this one is to use another")
    OTHER_NODE_CALMER = (
        "other_node_calmer",
        0x9C,
        "more clients connect than the node can let in soon, and another node has clearly more room",
    )

    def __init__(self, label: str, code: int, words: str) -> None:
        self.label = label
        self.code = code
        self.words = words


class DropReason(Enum):
    """Why a message did not reach one receiver, or was not accepted for any: (label, words)."""

    NOT_WRITABLE = ("not_writable", "QoS 0 messages were skipped, as the client reads too slowly")
    PENDING_FULL = ("pending_full", "QoS 1 and 2 messages were dropped, as the slow reader's queue is full")
    QUEUE_FULL = ("queue_full", "the oldest messages were dropped, as the queue of the session is full")
    MESSAGE_BUDGET = (
        "message_budget",
        "the messages of the session were dropped, as the memory for messages is used up and it held the most",
    )
    SHARED_FULL = (
        "shared_full",
        "the oldest messages of a shared subscription were dropped, as too many wait for a writable member",
    )
    OFFLINE_QOS0 = ("offline_qos0", "QoS 0 messages are not kept for a client that is disconnected")
    EXPIRED = ("expired", "messages expired while they were queued")
    TOO_LARGE = ("too_large", "messages are larger than the client's maximum packet size")  # [MQTT-3.1.2-25]
    PURGED = ("purged", "an administrator removed messages from the queue of the session")
    SESSION_ENDED = ("session_ended", "messages were queued when the session ended")
    PACK_TIMEOUT = ("pack_timeout", "the APPLICATION client did not acknowledge the messages in time")
    RETENTION_EXPIRED = (
        "retention_expired",
        "records in the log of the client were deleted, as their retention was over",
    )
    LOG_DAMAGED = ("log_damaged", "records in the log of the client could not be decoded")
    LOG_REFUSED = ("log_refused", "the log of the client did not take the messages")
    BACKBONE_REFUSED = (
        "backbone_refused",
        "the inbound backbone did not take the publishes, which are not acknowledged",
    )
    NO_SHARED_MEMBER = ("no_shared_member", "no member of a shared subscription could take the message")
    NOT_AUTHORIZED = ("not_authorized", "the client may not publish to the topic")
    MAY_NOT_READ = ("may_not_read", "the client may no longer read the topics of queued messages")
    RETAINED_FULL = ("retained_full", "the message was not retained, as the limit of retained messages is reached")
    RETAINED_UNWRITTEN = ("retained_unwritten", "the message was not retained, as too many changes wait for Redis")
    GATE_TIMEOUT = ("gate_timeout", "a publish waited too long for a busy resource")
    RETAINED_PER_CLIENT = ("retained_per_client", "the message was not retained, as the client's limit is reached")
    QUOTA_SESSION_MESSAGES = ("quota_session_messages", "the client published more messages than its quota allows")
    QUOTA_SESSION_BYTES = ("quota_session_bytes", "the client published more bytes than its quota allows")
    QUOTA_TENANT_MESSAGES = ("quota_tenant_messages", "the tenant published more messages than its quota allows")
    QUOTA_TENANT_BYTES = ("quota_tenant_bytes", "the tenant published more bytes than its quota allows")
    QUOTA_CLUSTER_MESSAGES = ("quota_cluster_messages", "all clients published more messages than the quota allows")
    QUOTA_CLUSTER_BYTES = ("quota_cluster_bytes", "all clients published more bytes than the quota allows")
    QUOTA_CLUSTER_TOTAL = ("quota_cluster_total", "more messages passed through the cluster than the quota allows")
    QUOTA_SESSION_OUTGOING = ("quota_session_outgoing", "the client's quota of outgoing messages or bytes is used up")
    QUOTA_TENANT_OUTGOING = ("quota_tenant_outgoing", "the tenant's quota of outgoing messages or bytes is used up")
    QUOTA_CLUSTER_OUTGOING = ("quota_cluster_outgoing", "the cluster's quota of outgoing messages or bytes is used up")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class FilterRefusal(Enum):
    """Why a filter was refused; the connection goes on: (label, MQTT 5 code in the SUBACK, 0x80 in MQTT 3, words).

    The codes are among those that SUBACK has [MQTT-3.9.3-2].
    """

    INVALID = ("topic_filter_invalid", 0x8F, "the topic filter is invalid")
    NOT_AUTHORIZED = ("not_authorized", 0x87, "the client may read nothing that the filter matches")
    LEVELS = ("topic_levels", 0x8F, "the filter has too many levels")
    BYTES = ("topic_bytes", 0x8F, "the filter is too long")
    SHARE_NAME = ("share_name_bytes", 0x8F, "the share name is too long")
    SUBSCRIPTIONS = ("subscriptions_per_session", 0x97, "the session's limit of subscriptions is reached")
    PATTERNS = (
        "wildcard_patterns",
        0x97,
        "the filter has + at positions that no other filter has, and the limit of such patterns is reached",
    )
    BUDGET = ("subscription_budget", 0x97, "the memory for subscriptions, or the session's part of it, is used up")
    SHARED_FILTERS = ("shared_filters", 0x97, "the APPLICATION client has as many shared subscriptions as it may")
    LOG_UNAVAILABLE = ("shared_log_unavailable", 0x83, "the log that the shared subscription needs cannot be used now")
    QUOTA_SESSION_SUBSCRIPTIONS = (
        "quota_session_subscriptions",
        0x97,
        "the client's quota of subscriptions is used up",
    )
    QUOTA_TENANT_SUBSCRIPTIONS = ("quota_tenant_subscriptions", 0x97, "the tenant's quota of subscriptions is used up")
    QUOTA_CLUSTER_SUBSCRIPTIONS = (
        "quota_cluster_subscriptions",
        0x97,
        "the cluster's quota of subscriptions is used up",
    )

    def __init__(self, label: str, code: int, words: str) -> None:
        self.label = label
        self.code = code
        self.words = words


class SubscribeNotice(Enum):
    """What is to be known of a SUBSCRIBE that was answered: (label, words)."""

    NOT_CONFIRMED = (
        "subscription_not_confirmed",
        "workers of other nodes did not confirm in time that they know the subscriptions: until they do, what is "
        "published there may not reach the client",
    )

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class PublishRefusal(Enum):
    """Why a QoS 1 or 2 publish of MQTT 5 was refused; the connection goes on: (label, code, words).

    The codes are among those that PUBACK and PUBREC have [MQTT-3.4.2-1], [MQTT-3.5.2-1].
    """

    GATE_TIMEOUT = ("gate_timeout", 0x97, "the publish waited too long for a busy resource")
    QUOTA_SESSION_MESSAGES = (
        "quota_session_messages",
        0x97,
        "the client published more messages than its quota allows",
    )
    QUOTA_SESSION_BYTES = ("quota_session_bytes", 0x97, "the client published more bytes than its quota allows")
    QUOTA_TENANT_MESSAGES = ("quota_tenant_messages", 0x97, "the tenant published more messages than its quota allows")
    QUOTA_TENANT_BYTES = ("quota_tenant_bytes", 0x97, "the tenant published more bytes than its quota allows")
    QUOTA_CLUSTER_MESSAGES = (
        "quota_cluster_messages",
        0x97,
        "all clients published more messages than the quota allows",
    )
    QUOTA_CLUSTER_BYTES = ("quota_cluster_bytes", 0x97, "all clients published more bytes than the quota allows")
    QUOTA_CLUSTER_TOTAL = (
        "quota_cluster_total",
        0x97,
        "more messages passed through the cluster than the quota allows",
    )

    def __init__(self, label: str, code: int, words: str) -> None:
        self.label = label
        self.code = code
        self.words = words


class PauseReason(Enum):
    """Why a client is throttled: not read, not let in or not sent more for a while: (label, words)."""

    CREDITS = ("credits", "the client's credits are used up, and its publishes need a busy resource")
    CONNECT = ("connect", "more clients connect than can be accepted at once, and the CONNECT waits for its turn")
    GATE = ("gate", "the client's publishes need a resource that already has as much work as it can do in time")
    STORE = ("store", "its publish of QoS 2 needs an entry in the store first, which is not stored yet")
    QUOTA_SESSION_MESSAGES = ("quota_session_messages", "the client published as many messages as its quota allows")
    QUOTA_SESSION_BYTES = ("quota_session_bytes", "the client published as many bytes as its quota allows")
    QUOTA_TENANT_MESSAGES = ("quota_tenant_messages", "the tenant published as many messages as its quota allows")
    QUOTA_TENANT_BYTES = ("quota_tenant_bytes", "the tenant published as many bytes as its quota allows")
    QUOTA_CLUSTER_MESSAGES = ("quota_cluster_messages", "all clients published as many messages as the quota allows")
    QUOTA_CLUSTER_BYTES = ("quota_cluster_bytes", "all clients published as many bytes as the quota allows")
    QUOTA_CLUSTER_TOTAL = ("quota_cluster_total", "as many messages passed through the cluster as the quota allows")
    QUOTA_SESSION_OUTGOING = ("quota_session_outgoing", "the client was sent as much as its quota allows")
    QUOTA_TENANT_OUTGOING = ("quota_tenant_outgoing", "the tenant was sent as much as its quota allows")
    QUOTA_CLUSTER_OUTGOING = ("quota_cluster_outgoing", "all clients were sent as much as the quota allows")
    QUOTA_SESSION_SUBSCRIPTIONS = ("quota_session_subscriptions", "the client subscribed as often as its quota allows")
    QUOTA_TENANT_SUBSCRIPTIONS = ("quota_tenant_subscriptions", "the tenant subscribed as often as its quota allows")
    QUOTA_CLUSTER_SUBSCRIPTIONS = ("quota_cluster_subscriptions", "all clients subscribed as often as the quota allows")
    QUOTA_ASKED = ("quota_asked", "Redis is being asked how much of a shared quota is left")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class ReportFailure(Enum):
    """Why an overload report was ignored: (label, words)."""

    MALFORMED = ("malformed", "the report could not be read")
    STALE = ("stale", "a newer report of the same worker has arrived")
    OUT_OF_RANGE = ("out_of_range", "the report has an impossible level or sequence number")
    ECHO = ("echo", "the report is the worker's own")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class FlushCause(Enum):
    """Why a client's outbox was flushed at that moment: (label, words)."""

    TICK = ("tick", "the tick ended")
    FILLED = ("filled", "the outbox was delayed, and has enough bytes now")
    WAITED = ("waited", "the outbox was delayed for as long as it may be")
    EVICTED = ("evicted", "the outbox was delayed longest when too many were")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class StoreFailure(Enum):
    """Why Redis did not do what it was asked: (label, words)."""

    UNREACHABLE = ("unreachable", "Redis cannot be reached")
    CERTIFICATE_REFUSED = ("certificate_refused", "the certificate of Redis is not trusted or is for another name")
    TLS_FAILED = ("tls_failed", "the TLS connection to Redis failed")
    LOST = ("connection_lost", "the connection ended before Redis answered")
    TIMEOUT = ("timeout", "Redis did not answer in time")
    BACKLOG_FULL = ("backlog_full", "too many commands wait for Redis already")
    LOADING = ("loading", "Redis is still loading its data")
    SCRIPT_BUSY = ("script_busy", "a script of another client keeps Redis busy")
    READ_ONLY = ("read_only", "the Redis server is a replica that takes no writes")
    MOVED = ("moved", "the Redis server is a node of a Redis Cluster, which Weir does not support")
    AUTHENTICATION_FAILED = ("authentication_failed", "Redis does not accept Weir's user name or password")
    FORBIDDEN = ("forbidden", "the access rules of Redis forbid a command that Weir needs")
    MEMORY_FULL = ("memory_full", "Redis has reached its maxmemory")
    CANNOT_WRITE = ("cannot_write", "Redis cannot write its append-only file: look at its disk")
    REPLICAS = ("replicas", "too few replicas of Redis have what is stored")
    SCRIPT_UNKNOWN = ("script_unknown", "Redis does not have Weir's script any more")
    REFUSED = ("refused", "Redis answered with an error")
    MALFORMED_REPLY = ("malformed_reply", "the answer is not in the protocol of Redis")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class LogFailure(Enum):
    """Why a log did not do what it was asked: (label, words), which say what to do if people have to do something."""

    CARRIER_AWAY = ("carrier_away", "the carrier, the process that works with the log, is being started")
    APPENDING_FAILS = ("appending_fails", "nothing can be appended to parts of the log")
    UNREACHABLE = ("unreachable", "the log cannot be reached")
    TIMEOUT = ("timeout", "the log did not answer in time")
    BACKLOG_FULL = ("backlog_full", "too much waits for the log already")
    CLIENT_REFUSED = ("client_refused", "the options of the Kafka client are wrong")
    AUTHENTICATION_FAILED = ("authentication_failed", "Kafka does not accept Weir's credentials")
    FORBIDDEN = ("forbidden", "the access rules of the log forbid what Weir needs: allow it")
    UNKNOWN_TOPIC = ("unknown_topic", "the topic does not exist")
    NO_LEADER = ("no_leader", "the partition has no leader: look at the brokers of Kafka")
    TOO_FEW_REPLICAS = ("too_few_replicas", "fewer replicas are in sync than min.insync.replicas asks for")
    TOO_LARGE = ("too_large", "the message is larger than the log takes: raise max.message.bytes of its topic")
    OTHER_TOPIC = ("other_topic", "a topic of this name is not as Weir makes it: rename or delete it")
    CANNOT_STORE = ("cannot_store", "the log cannot store more: look at its memory and its disk")
    REFUSED = ("refused", "the log answered with an error")

    def __init__(self, label: str, words: str) -> None:
        self.label = label
        self.words = words


class ProtocolError(Exception):
    """The peer broke MQTT. Carries the reason to close with and, for the log, a detail of what was wrong."""

    def __init__(self, reason: CloseReason, detail: str) -> None:
        super().__init__(f"{reason.label}: {detail}")
        self.reason = reason
        self.detail = detail
