# The entries of the pages of a session transfer: subscriptions, messages and wills to fields that msgpack knows, and
# back.
from typing import Final

from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import WILL, decode_properties, encode_properties
from broker.mqtt.topics import split_share
from broker.session.message import Message, SharedMessage
from broker.session.session import Session, Subscription
from broker.session.subscriber import Subscriber
from broker.session.will import Will

QOS: Final = 3  # in all flags
RETAIN: Final = 4  # of a message
NO_LOCAL: Final = 4  # of a subscription
RETAIN_AS_PUBLISHED: Final = 8
OWED: Final = 16  # retained messages
PLAIN: Final = 5  # fields of a message; one that waits for a group has more

Fields = tuple[object, ...]


class Named(Subscriber):
    """Stands for the group of a shared subscription until the import is finished."""

    def __init__(self, share: bytes, filter: bytes) -> None:
        self.share = share
        self.filter = filter


def subscription_fields(subscription: Subscription, owed: bool) -> Fields:
    """*owed*: not all retained messages of the subscription were sent."""
    options = subscription.qos
    if subscription.no_local:
        options |= NO_LOCAL
    if subscription.retain_as_published:
        options |= RETAIN_AS_PUBLISHED
    if owed:
        options |= OWED
    return subscription.key(), options, subscription.identifiers


def to_subscription(session: Session, fields: list[object]) -> tuple[Subscription, bool]:
    """A subscription of *session*, which is not added to it yet, and whether retained messages are owed."""
    key = to_bytes(fields[0])
    options = to_int(fields[1])
    share, filter = split_share(key) or (b"", key)
    subscription = Subscription(session, filter, share)
    subscription.qos = options & QOS
    subscription.no_local = options & NO_LOCAL != 0
    subscription.retain_as_published = options & RETAIN_AS_PUBLISHED != 0
    subscription.identifiers = to_bytes(fields[2])
    return subscription, options & OWED != 0


def plain_fields(message: Message) -> Fields:
    """The fields of *message* for its client alone."""
    return message.topic, message.payload, _flags(message.qos, message.retain), message.properties, message.expires


def message_fields(message: Message) -> Fields:
    """The fields of *message*, which waits; a message for a shared subscription may yet go to another member."""
    plain = plain_fields(message)
    if not isinstance(message, SharedMessage):
        return plain
    original = message.as_published()
    flags = _flags(original.qos, original.retain)
    return *plain, message.group.share, message.group.filter, flags, original.properties


def to_message(fields: list[object]) -> Message:
    flags = to_int(fields[2])
    topic, payload, expires = to_bytes(fields[0]), to_bytes(fields[1]), to_float(fields[4])
    message = Message(topic, payload, flags & QOS, flags & RETAIN != 0, to_bytes(fields[3]), expires)
    if len(fields) == PLAIN:
        return message
    group = Named(to_bytes(fields[5]), to_bytes(fields[6]))
    flags = to_int(fields[7])
    original = Message(topic, payload, flags & QOS, flags & RETAIN != 0, to_bytes(fields[8]), expires)
    return SharedMessage(message, original, group)


def will_fields(will: WillFields) -> Fields:
    return will.topic, will.payload, _flags(will.qos, will.retain), encode_properties(will.properties)


def to_will(fields: list[object]) -> Will:
    flags = to_int(fields[2])
    section = to_bytes(fields[3])
    properties, _ = decode_properties(section, 0, len(section), WILL)
    return Will(WillFields(to_bytes(fields[0]), to_bytes(fields[1]), flags & QOS, flags & RETAIN != 0, properties))


def _flags(qos: int, retain: bool) -> int:
    return qos | RETAIN if retain else qos


# Each field is checked for its type, so that a mistake is reported where it came in.


def to_int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} where a number should be")
    return value


def to_float(value: object) -> float:
    if not isinstance(value, float):
        raise TypeError(f"{type(value).__name__} where a time should be")
    return value


def to_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} where bytes should be")
    return value


def to_str(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where text should be")
    return value


def to_list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{type(value).__name__} where a list should be")
    return value
