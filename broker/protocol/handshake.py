# What a CONNECT asks for, and what its CONNACK grants or refuses. Functions without state.
from dataclasses import dataclass
from typing import Final

from broker.config.schema import Limits
from broker.mqtt.codes import REASON_CODES
from broker.mqtt.encode import encode
from broker.mqtt.packets import CONNACK, V5, ConnAck, Connect, Properties
from broker.mqtt.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    RETAIN_AVAILABLE,
    SERVER_KEEP_ALIVE,
    SERVER_REFERENCE,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from broker.reasons import CloseReason
from broker.routing.route import RESERVED
from broker.session.gap import ASKED
from broker.session.will import will_size
from broker.version import form

UNLIMITED_RECEIVE: Final = 65535  # the receive maximum of a client that names none (3.1.2.11.3), and of 3.x
ANY_SIZE: Final = 0
RETRY_AFTER: Final = "retry-after-ms"  # the user property with the time after which the client may try again
TOO_MANY: Final = "more clients connect than can be let in at once"
ELSEWHERE: Final = "use another server"

# Return codes of 3.x. For every other reason the connection is closed without a CONNACK, 3.1.1 [MQTT-3.2.2-6].
RETURN_CODES: Final = {
    CloseReason.UNSUPPORTED_VERSION: 1,
    CloseReason.CLIENT_ID_INVALID: 2,
    CloseReason.CLIENT_ID_RULE: 2,
    CloseReason.SERVER_UNAVAILABLE: 3,
    CloseReason.LOG_UNAVAILABLE: 3,
    CloseReason.SERVER_BUSY: 3,
    CloseReason.CONNECTS_WAITING: 3,
    CloseReason.CONNECT_DISPLACED: 3,
    CloseReason.CONNECTION_LIMIT: 3,
    CloseReason.CONNECTIONS_PER_ADDRESS: 3,
    CloseReason.CONNECT_RATE: 3,
    CloseReason.GUESSES_OF_USER: 3,
    CloseReason.GUESSES_OF_ADDRESS: 3,
    CloseReason.APPLICATION_LIMIT: 3,
    CloseReason.SESSION_LIMIT: 3,
    CloseReason.WILL_BUDGET: 3,
    CloseReason.SHUTTING_DOWN: 3,
    CloseReason.DRAINING: 3,
    CloseReason.OTHER_NODE_CALMER: 3,
    CloseReason.BAD_CREDENTIALS: 4,
    CloseReason.NOT_AUTHORIZED: 5,
    CloseReason.BANNED: 5,
    CloseReason.CLIENT_ID_OF_OTHER_USER: 5,
}
# Of a CONNECT that waits, bytes of memory beside those on the wire: for its objects, and for each user property.
WAITING: Final = 740 if form() == "compiled" else 965
PAIR: Final = 160


@dataclass
class Terms:
    """What a CONNECT is granted."""

    expiry: int  # seconds the session outlives the connection
    keep_alive: int  # seconds, 0 = off
    receive_maximum: int  # messages that the client takes unacknowledged
    maximum_packet: int  # bytes the client takes
    alias_maximum: int  # topic aliases that the broker may set
    wants_reasons: bool
    wants_marks: bool = False  # properties of the next message tell of a gap


def waiting_memory(packet: Connect, size: int) -> int:
    """Bytes of memory that *packet*, of *size* bytes on the wire, takes while it waits for its turn."""
    pairs = 0
    for properties in (packet.properties, {} if packet.will is None else packet.will.properties):
        found = properties.get(USER_PROPERTY)
        if isinstance(found, list):
            pairs += len(found)
    return WAITING + size + PAIR * pairs


def examine(packet: Connect, limits: Limits) -> CloseReason | None:
    """The reason to refuse *packet* in any state of the broker, or None."""
    if len(packet.client_id.encode()) > limits.client_id_bytes:
        return CloseReason.CLIENT_ID_INVALID  # 3.1.1 [MQTT-3.1.3-9]
    if AUTHENTICATION_METHOD in packet.properties:
        # There is no such method [MQTT-4.12.0-1], [MQTT-4.12.0-4], so no AUTH is sent or awaited [MQTT-3.1.2-30].
        return CloseReason.BAD_AUTHENTICATION_METHOD
    if packet.will is not None:
        if packet.will.qos > limits.qos:
            return CloseReason.QOS_NOT_SUPPORTED  # [MQTT-3.2.2-12]
        if packet.will.retain and not limits.retain:
            return CloseReason.RETAIN_NOT_SUPPORTED  # [MQTT-3.2.2-13]
        if packet.will.topic.startswith(RESERVED):
            return CloseReason.NOT_AUTHORIZED
        if len(packet.will.topic) > limits.topic_bytes:
            return CloseReason.TOPIC_BYTES
        if packet.will.topic.count(b"/") >= limits.topic_levels:  # later, no client could be told of the refusal
            return CloseReason.TOPIC_LEVELS
        if will_size(packet.will) > limits.will_bytes:
            return CloseReason.WILL_BYTES
    return None


def agree(packet: Connect, limits: Limits) -> Terms:
    """What *packet* is granted if it is accepted."""
    asked = packet.properties
    longest = int(limits.session_expiry)
    if packet.version == V5:
        expiry = min(_number(asked, SESSION_EXPIRY_INTERVAL, 0), longest)
    else:
        expiry = 0 if packet.clean_start else longest  # 3.1.1 [MQTT-3.1.2-6], 3.1.1 [MQTT-3.1.2-4]
    return Terms(
        expiry=expiry,
        keep_alive=_keep_alive(packet, limits),
        receive_maximum=_number(asked, RECEIVE_MAXIMUM, UNLIMITED_RECEIVE),  # never 0 [MQTT-4.9.0-1]
        maximum_packet=_number(asked, MAXIMUM_PACKET_SIZE, ANY_SIZE),
        # [MQTT-3.1.2-26], [MQTT-3.1.2-27]
        alias_maximum=min(_number(asked, TOPIC_ALIAS_MAXIMUM, 0), limits.outbound_topic_aliases),
        wants_reasons=_number(asked, REQUEST_PROBLEM_INFORMATION, 1) == 1,
        wants_marks=_asks(asked, ASKED, "1"),
    )


def accept(packet: Connect, terms: Terms, session_present: bool, assigned: str, limits: Limits) -> ConnAck:
    """The CONNACK that grants *terms*. It names each limit of the broker that has a property.

    It has no other properties: no response information [MQTT-3.1.2-28], no reason string [MQTT-3.2.2-19], no user
    properties [MQTT-3.2.2-20], no authentication method [MQTT-4.12.0-6].
    """
    properties: Properties = {}
    if packet.version == V5:
        if terms.expiry != _number(packet.properties, SESSION_EXPIRY_INTERVAL, 0):
            properties[SESSION_EXPIRY_INTERVAL] = terms.expiry  # 3.2.2.3.2
        if limits.receive_maximum != UNLIMITED_RECEIVE:
            properties[RECEIVE_MAXIMUM] = limits.receive_maximum
        if limits.qos < 2:
            properties[MAXIMUM_QOS] = limits.qos  # [MQTT-3.2.2-9]
        if not limits.retain:
            properties[RETAIN_AVAILABLE] = 0
        properties[MAXIMUM_PACKET_SIZE] = limits.packet_bytes
        if assigned:
            properties[ASSIGNED_CLIENT_IDENTIFIER] = assigned  # [MQTT-3.2.2-16]
        if limits.topic_alias_maximum:
            properties[TOPIC_ALIAS_MAXIMUM] = limits.topic_alias_maximum
        if terms.keep_alive != packet.keep_alive:
            properties[SERVER_KEEP_ALIVE] = terms.keep_alive  # [MQTT-3.2.2-21], [MQTT-3.1.2-21]
    return ConnAck(session_present, 0, properties)


def refuse(version: int, reason: CloseReason) -> ConnAck | None:
    """The CONNACK that refuses, with session present 0 [MQTT-3.2.2-6]; None if *version* has no code for *reason*."""
    if version == V5:
        if reason.code and reason.code not in REASON_CODES[CONNACK]:  # [MQTT-3.2.2-8]
            reason = CloseReason.SERVER_UNAVAILABLE  # "shutting down" is a code of DISCONNECT only (table 2-6)
        return ConnAck(False, reason.code) if reason.code else None
    code = RETURN_CODES.get(reason, 0)
    return ConnAck(False, code) if code else None


def busy(packet: Connect, reason: CloseReason, retry_after: float) -> ConnAck | None:
    """The CONNACK that refuses a client which may try again in *retry_after* seconds. 5.0 has properties that say so,
    if the client accepts them.
    """
    if not _number(packet.properties, REQUEST_PROBLEM_INFORMATION, 1):
        return refuse(packet.version, reason)
    retry: Properties = {USER_PROPERTY: [(RETRY_AFTER, str(int(retry_after * 1e3)))]}
    explained: Properties = {REASON_STRING: TOO_MANY, **retry}
    return _refuse_with(packet, reason, [explained, retry])


def elsewhere(packet: Connect, reason: CloseReason, reference: str) -> ConnAck | None:
    """The CONNACK that refuses a client which is to use another server. 5.0 has a property that says how to reach it,
    if the *reference* is known: not "".
    """
    where: Properties = {SERVER_REFERENCE: reference} if reference else {}
    if not _number(packet.properties, REQUEST_PROBLEM_INFORMATION, 1):  # it is about reason strings (3.1.2.11.7)
        return _refuse_with(packet, reason, [where])
    return _refuse_with(packet, reason, [{REASON_STRING: ELSEWHERE, **where}, where])


def _refuse_with(packet: Connect, reason: CloseReason, choices: list[Properties]) -> ConnAck | None:
    """The CONNACK that refuses, with the first of the *choices* of properties that the client has room for."""
    connack = refuse(packet.version, reason)
    if connack is None or packet.version != V5:
        return connack
    most = _number(packet.properties, MAXIMUM_PACKET_SIZE, ANY_SIZE)
    for properties in choices:
        fuller = ConnAck(False, connack.code, properties)
        if most == ANY_SIZE or len(encode(fuller, V5)) <= most:  # [MQTT-3.2.2-19], [MQTT-3.2.2-20]
            return fuller
    return connack


def _keep_alive(packet: Connect, limits: Limits) -> int:
    """The limit, if the client asks for more and CONNACK can say so; otherwise what it asks for [MQTT-3.2.2-22]."""
    most = limits.keep_alive
    if packet.version == V5 and most and (packet.keep_alive == 0 or packet.keep_alive > most):
        return most
    return packet.keep_alive


def _asks(properties: Properties, name: str, value: str) -> bool:
    """Whether one of the user properties is *name* = *value*."""
    pairs = properties.get(USER_PROPERTY)
    return isinstance(pairs, list) and (name, value) in pairs


def _number(properties: Properties, identifier: int, default: int) -> int:
    value = properties.get(identifier, default)
    return value if isinstance(value, int) else default
