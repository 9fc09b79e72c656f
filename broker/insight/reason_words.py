# What reasons mean, for a person, and what to change: by the label of the reason, (what happened, what helps).
#
# PauseReason and PublishRefusal have their words in reasons.py, as those go to clients; what helps is here for all.
# What helps names a setting or a command. "": nothing has to be changed, or only the client can.
from typing import Final

Words = tuple[str, str]

CLIENT_ERROR: Final = "This is a mistake of the client program: its log and its MQTT library are where to look."
OTHER_VERSION: Final = "Have it speak MQTT 3.1, 3.1.1 or 5.0."
ACCESS: Final = "Give it a user that may, or change the rules in access.acl_file; `weir reload` has them read again."

CLOSED: Final[dict[str, Words]] = {
    "client_disconnected": ("it went by itself, with a DISCONNECT", ""),
    "peer_closed": ("it closed its connection without a DISCONNECT", "Its own log says why, or the network's."),
    "peer_reset": ("its connection was reset, by itself or by the network", "Its own log says why, or the network's."),
    "connect_timeout": (
        "it sent no CONNECT in time",
        "limits.connect_timeout says how long it has. If it is slow to connect, allow it more.",
    ),
    "tls_handshake_failed": (
        "its TLS handshake failed",
        "Look whether it trusts our certificate, and has one itself if tls.client_certificate asks for it.",
    ),
    "tls_record_invalid": ("it sent what is no TLS", CLIENT_ERROR),
    "websocket_refused": (
        "its HTTP request asked for something else than MQTT over WebSocket",
        "It has to ask for websocket.path and the subprotocol mqtt.",
    ),
    "websocket_error": (
        "it broke the WebSocket protocol, or sent too large a message",
        "websocket.message_bytes is the most that one message may have.",
    ),
    "websocket_text": ("it sent text where MQTT over WebSocket has binary messages", CLIENT_ERROR),
    "not_mqtt": ("what it sent first was no CONNECT", "Look whether it has the right port and transport."),
    "malformed_packet": ("it sent a packet that cannot be read", CLIENT_ERROR),
    "protocol_error": ("it sent what MQTT forbids", CLIENT_ERROR),
    "internal_error": ("we made a mistake", "`weir logs` has it under internal_error: please report it."),
    "unsupported_protocol_version": ("it speaks a version of MQTT that we do not", OTHER_VERSION),
    "client_identifier_not_valid": (
        "its client id is too long, or empty where it may not be",
        "limits.client_id_bytes says how long it may be.",
    ),
    "bad_user_name_or_password": (
        "its user name or its password is wrong",
        "Give it the right one, or set it with `weir passwd FILE USER` and have it read with `weir reload`.",
    ),
    "not_authorized": ("its user may not do that, or it has none and needs one", ACCESS),
    "server_unavailable": (
        "we could not say whether it has a session, as Redis did not answer",
        "`weir logs` says what is wrong with Redis; it can come back when that is well.",
    ),
    "server_busy": ("too many passwords were waiting to be checked", "It can come back; fewer should at once."),
    "connects_waiting": (
        "as many CONNECTs were waiting as may",
        "overload.connects_waiting and overload.connects_per_second say how many; it was told when to come again.",
    ),
    "connect_displaced": (
        "its CONNECT waited, it said no more, and its place was needed",
        "overload.connects_waiting says how many may wait; it was told when to come again.",
    ),
    "shutting_down": ("its worker was stopped or replaced", ""),
    "bad_authentication_method": ("it wants an authentication method, and we have none", CLIENT_ERROR),
    "keep_alive_timeout": (
        "it was silent for longer than one and a half times its keep alive",
        "Look whether it is stuck or its network is; a longer keep alive lets it be silent for longer.",
    ),
    "session_taken_over": (
        "another connection came with the same client id",
        "If that was not itself coming back, two programs use one id: give each its own.",
    ),
    "topic_filter_invalid": ("it subscribed to what is no filter", CLIENT_ERROR),
    "topic_name_invalid": ("it published to what is no topic", CLIENT_ERROR),
    "topic_levels": ("its topic had too many levels", "limits.topic_levels says how many it may have."),
    "topic_bytes": ("its topic was too long", "limits.topic_bytes says how long it may be."),
    "receive_maximum_exceeded": (
        "it sent more QoS 2 publishes than it had been told that we take at once",
        "limits.receive_maximum is what it is told. It has to keep to it.",
    ),
    "topic_alias_invalid": ("it used a topic alias that is none", CLIENT_ERROR),
    "packet_too_large": (
        "a packet was larger than may be",
        "limits.packet_bytes is the most that we take; a client says itself what it takes.",
    ),
    "kicked": ("an administrator disconnected it with `weir clients kick`", ""),
    "connection_limit": ("as many clients were connected as may", "limits.connections says how many."),
    "connections_per_address": (
        "as many came from its address as may",
        "limits.connections_per_address says how many.",
    ),
    "connect_rate": ("its address connected too often", "limits.connects_per_second says how often it may."),
    "session_limit": ("there were as many sessions as may be", "limits.sessions says how many."),
    "quota_exceeded": ("one packet of it had more filters or user properties than one may have", CLIENT_ERROR),
    "gate_timeout": (
        "its publish waited for a resource for as long as one may, and MQTT 3 has no word for that",
        "overload.wait says how long. `weir top` shows what is overloaded.",
    ),
    "slow_consumer": (
        "it took no byte of what it was owed for too long",
        "delivery.slow_consumer_timeout says how long. Look whether it reads, or have it subscribe to less.",
    ),
    "outbound_budget": (
        "all readers together were owed more than may be, and it was owed the most",
        "delivery.outbound_budget says how much. Have it read faster or subscribe to less.",
    ),
    "input_budget": (
        "all clients together had sent more than we had room for, and it was in the middle of a large packet",
        "limits.packet_bytes bounds packets; more memory gives more room.",
    ),
    "retain_not_supported": (
        "it wanted a message retained, and that is switched off",
        "limits.retain = true allows it.",
    ),
    "qos_not_supported": ("it used a QoS that is not allowed", "limits.qos is the highest that is."),
}

HELD: Final[dict[str, str]] = {
    "credits": (
        "To be held back less, it has to publish less, smaller messages, or to fewer subscribers: that is the cost. "
        "`weir limit set CLIENT --no-protection --ttl 1h --reason TEXT` lets it go on, and others pay for it."
    ),
    "connect": "overload.connects_per_second and overload.connect_burst say how fast a node lets clients in.",
    "gate": "`weir top` shows what keeps that worker so busy; node.workers says how many there are.",
    "quota_asked": "An answer takes milliseconds: if it stays so, look at Redis with `weir logs`.",
}

DROPPED: Final[dict[str, Words]] = {
    "not_writable": (
        "QoS 0 messages for it were skipped, as it reads too slowly",
        "Have it read faster or subscribe to less; delivery.high_watermark says how much may wait for it.",
    ),
    "pending_full": (
        "QoS 1 and 2 messages for it were dropped, as it reads too slowly and as many waited as may",
        "limits.pending says how many; a session that outlives its connection may have limits.queue.",
    ),
    "queue_full": (
        "the oldest messages that waited for it were dropped",
        "limits.queue, limits.queue_bytes and limits.queue_budget say how much may wait.",
    ),
    "offline_qos0": ("QoS 0 messages came while it was away", "Subscribe with QoS 1 to have them kept."),
    "expired": ("messages expired while they waited for it", "Their publishers say how long they are good for."),
    "too_large": ("messages were larger than it takes", "Its CONNECT says how large a packet it takes."),
    "session_ended": ("messages waited for it when its session ended", "A longer session expiry keeps them."),
    "no_shared_member": (
        "no member of a shared subscription could take what it published",
        "More members, or quicker ones, help; so do a higher limits.pending and sessions that last.",
    ),
    "not_authorized": ("it may not publish to that topic", ACCESS),
    "may_not_read": ("what waited for it, it may not read any more", ACCESS),
    "retained_full": (
        "what it published was not retained, as no more is",
        "retained.messages and retained.bytes say how much is.",
    ),
    "retained_per_client": (
        "what it published was not retained, as it retains as many topics as it may",
        "limits.retained_per_client says how many.",
    ),
    "gate_timeout": (
        "a publish waited for a resource for as long as one may",
        "overload.wait says how long. `weir top` shows what is overloaded.",
    ),
}

FILTERS: Final[dict[str, Words]] = {
    "topic_filter_invalid": ("it subscribed to what is no filter", CLIENT_ERROR),
    "not_authorized": ("it subscribed to what it may not read", ACCESS),
    "topic_levels": ("a filter of it had too many levels", "limits.topic_levels says how many it may have."),
    "topic_bytes": ("a filter of it was too long", "limits.topic_bytes says how long it may be."),
    "subscriptions_per_session": (
        "it has as many subscriptions as it may",
        "limits.subscriptions says how many.",
    ),
}

QUOTA: Final = "quota_"
_SETTINGS: Final = {
    "messages": "incoming_messages",
    "bytes": "incoming_bytes",
    "outgoing": "outgoing_messages or outgoing_bytes",
    "subscriptions": "subscriptions",
    "total": "total_messages",
}


def quota_helps(label: str, client: str) -> str:
    """What helps *client*, as a shell has it, against the quota with *label*, such as "quota_session_messages"."""
    _, scope, what = label.split("_")
    helps = f"The setting is quotas.{scope}.{_SETTINGS[what]}."
    if scope == "session" and what == "messages":
        helps += f" `weir limit set {client} --rate 100/s --ttl 1h --reason TEXT` gives it another rate for an hour."
    return helps
