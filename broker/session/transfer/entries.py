# The entries of the pages of a session transfer: subscriptions, messages and wills to fields that msgpack knows, and
# back.
from typing import Final

from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import WILL, decode_properties, encode_properties
from broker.mqtt.topics import split_share
from broker.session.message import Message
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.session.will import Will

QOS: Final = 3  # in all flags
RETAIN: Final = 4  # of a message
NO_LOCAL: Final = 4  # of a subscription
RETAIN_AS_PUBLISHED: Final = 8
OWED: Final = 16  # retained messages

Fields = tuple[object, ...]


def subscription_fields(subscription: Subscription, owed: bool) -> Fields:
    """*owed*: not all retained messages of the subscription were sent."""
    options = subscription_options(subscription)
    return subscription.key(), options | OWED if owed else options, subscription.identifiers


def to_subscription(session: Session, fields: list[object]) -> tuple[Subscription, bool]:
    """A subscription of *session*, which is not added to it yet, and whether retained messages are owed."""
    key = to_bytes(fields[0])
    options = to_int(fields[1])
    return subscription_of(session, key, options, to_bytes(fields[2])), options & OWED != 0


def subscription_options(subscription: Subscription) -> int:
    """The options of a subscription (3.8.3) in one number."""
    options = subscription.qos
    if subscription.no_local:
        options |= NO_LOCAL
    if subscription.retain_as_published:
        options |= RETAIN_AS_PUBLISHED
    return options


def subscription_of(session: Session, key: bytes, options: int, identifiers: bytes) -> Subscription:
    """The subscription of *session* under *key*, to which it is not added yet."""
    share, filter = split_share(key) or (b"", key)
    subscription = Subscription(session, filter, share)
    subscription.qos = options & QOS
    subscription.no_local = options & NO_LOCAL != 0
    subscription.retain_as_published = options & RETAIN_AS_PUBLISHED != 0
    subscription.identifiers = identifiers
    return subscription


def message_fields(message: Message) -> Fields:
    flags = _flags(message.qos, message.retain)
    return message.topic, message.payload, flags, message.properties, message.expires, message.ends


def to_message(fields: list[object], shift: float) -> Message:
    """The message with *fields*, whose times were those of another clock: *shift* is added to each.

    Former versions wrote no time at which it ends, and one of them wrote four more fields for a message of a shared
    subscription that waited: its share name, its filter, and the flags and properties of the message as it was
    published. Such a message stays with its session.
    """
    if len(fields) not in (5, 6, 9):
        raise ValueError(f"a message of {len(fields)} fields")
    flags = to_int(fields[2])
    topic, payload, expires = to_bytes(fields[0]), to_bytes(fields[1]), shifted(to_float(fields[4]), shift)
    message = Message(topic, payload, flags & QOS, flags & RETAIN != 0, to_bytes(fields[3]), expires)
    if len(fields) == 6:
        message.ends = shifted(to_float(fields[5]), shift)
    return message


def shifted(time: float, shift: float) -> float:
    """*time* of another clock as one of the clock here; 0.0, no time at all, stays."""
    return time + shift if time else 0.0


def will_fields(will: Will) -> Fields:
    fields = will.fields()
    flags = _flags(fields.qos, fields.retain)
    return fields.topic, fields.payload, flags, encode_properties(fields.properties), will.token


def to_will(fields: list[object]) -> Will:
    flags = to_int(fields[2])
    section = to_bytes(fields[3])
    properties, _ = decode_properties(section, 0, len(section), WILL)
    will = Will(WillFields(to_bytes(fields[0]), to_bytes(fields[1]), flags & QOS, flags & RETAIN != 0, properties))
    if len(fields) > 4:  # there is none from a worker of an earlier version
        will.token = to_bytes(fields[4])
    return will


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
