# The will: the message that a client asked the broker to publish if its connection ends without a DISCONNECT.
#
# It is published when the connection has ended in any way but a DISCONNECT that cancels it, after its delay or when
# the session ends, whichever is first [MQTT-3.1.2-8]. A connection that resumes the session in time cancels it
# [MQTT-3.1.3-9]. A clean start resumes nothing: it ends the session, and so the will is published (3.1.4, the comment
# on takeovers).
from typing import Final

from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5, Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    WILL_DELAY_INTERVAL,
    decode_properties,
    encode_properties,
)
from broker.mqtt.properties import WILL as WILL_PROPERTIES
from broker.session.message import NEVER, Message
from broker.version import form

COPIES: Final = 2  # of a will in memory: of its session, and as the registry stores it
WILL: Final = 240 if form() == "compiled" else 345  # bytes that both take beside topic, payload and properties


def forwardable(properties: Properties) -> bytes:
    """The properties of a publish that are sent on to its receivers, encoded without a length.

    Nearly all are sent on unchanged [MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-17], [MQTT-3.3.2-20], user
    properties in their order [MQTT-3.3.2-18], [MQTT-3.1.3-10]. The others are made for each receiver: the remaining
    expiry, its subscription identifiers, its topic alias.
    """
    own = (MESSAGE_EXPIRY_INTERVAL, TOPIC_ALIAS, SUBSCRIPTION_IDENTIFIER, WILL_DELAY_INTERVAL)
    kept = {identifier: value for identifier, value in properties.items() if identifier not in own}
    if not kept:
        return b""
    section = encode_properties(kept)
    _, start = read_length(section, 0, len(section), V5)
    return section[start:]


def expires_at(properties: Properties, now: float) -> float:
    """When a message with these properties expires; NEVER if it has no expiry [MQTT-3.3.2-5]."""
    interval = properties.get(MESSAGE_EXPIRY_INTERVAL)
    return now + interval if isinstance(interval, int) else NEVER


def will_size(fields: WillFields) -> int:
    """The bytes of a will: topic, payload and encoded properties."""
    return (
        len(fields.topic)
        + len(fields.payload)
        + (len(encode_properties(fields.properties)) if fields.properties else 0)
    )


def will_memory(fields: WillFields) -> int:
    """Bytes of memory that a will takes until it is published or withdrawn."""
    return WILL + COPIES * will_size(fields)


class Will:
    """Keeps properties encoded: as objects, short user properties would take twenty times their bytes."""

    def __init__(self, fields: WillFields) -> None:
        self.topic = fields.topic
        self.held = will_memory(fields)
        delay = fields.properties.get(WILL_DELAY_INTERVAL, 0)
        self.delay = delay if isinstance(delay, int) else 0  # seconds
        self.token = b""  # of a durable session, see store/durable/tokens.py: from when it is to be stored
        self._payload = fields.payload
        self._qos = fields.qos
        self._retain = fields.retain
        self._properties = encode_properties(fields.properties) if fields.properties else b""

    def fields(self) -> WillFields:
        """The will as it was in the CONNECT."""
        properties: Properties = {}
        if self._properties:
            properties, _ = decode_properties(self._properties, 0, len(self._properties), WILL_PROPERTIES)
        return WillFields(self.topic, self._payload, self._qos, self._retain, properties)

    def message(self, now: float) -> Message:
        """The message to publish now, retained or not [MQTT-3.1.2-14], [MQTT-3.1.2-15]; its expiry begins now."""
        properties = self.fields().properties
        expires = expires_at(properties, now)
        return Message(self.topic, self._payload, self._qos, self._retain, forwardable(properties), expires)
