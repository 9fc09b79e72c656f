# What is stored of a durable session beside its messages: a hash, which record.py writes.
#
#   field ""      HEAD: msgpack of FORM, expiry in seconds, user name
#   field "\0"    LEFT: Unix time in seconds at which its client left; there is none while the client is connected
#   field "\0will"  the will: msgpack of its fields and its token, see session/transfer/entries.py
#   field "\0gap"   messages that its client lost and was not told of, see session/gap.py; none, if there are none
#   field "\0log"   of an APPLICATION session: how far its log was passed on, see application_queue.py
#   fields "\0lease..."  of partitions of shared logs that it reads for its groups, see lease_scripts.py
#   fields "\0i...", "\0n", "\0o...", "\0g...": see tokens.py
#   field FILTER  a subscription under its filter, with `$share/` if it is shared: options, and the subscription
#                 identifier as an encoded property
#
# No filter is empty or has a NUL, so the names of the others are none. A client that was connected to a worker
# that has ended left when its session was adopted: sessions.lua stores that, so its expiry does not begin anew each
# time.
import math
from typing import Final

import msgpack

from broker.mqtt.fields import read_length
from broker.mqtt.packets import V5
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.mqtt.topics import SHARE_PREFIX, check_filter, check_topic
from broker.reasons import ProtocolError
from broker.routing.group_names import is_group_key
from broker.session.gap import OwedGap, unpack
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.session.transfer.entries import NO_LOCAL, QOS, RETAIN_AS_PUBLISHED, subscription_of, to_list, to_will
from broker.session.will import Will
from broker.store.durable.index import READ, SUBSCRIPTIONS, index_value
from broker.store.durable.lease_scripts import LEASE
from broker.store.durable.tokens import TOKEN, StoredTokens, read_tokens

FORM: Final = 1
HEAD: Final = b""
LEFT: Final = b"\0"
WILL: Final = b"\0will"
GAP: Final = b"\0gap"
LOG: Final = b"\0log"
OPTIONS: Final = QOS | NO_LOCAL | RETAIN_AS_PUBLISHED


class DamagedRecord(ValueError):
    """The hash is no record: it was damaged, or written by a newer version."""


class StoredSession:
    """A record that was read. *left*: Unix time at which its client left."""

    def __init__(
        self,
        expiry: int,
        left: float,
        user: str | None,
        will: Will | None,
        gap: bytes,
        log: bytes,
        leases: dict[bytes, bytes],
        tokens: StoredTokens,
        subscriptions: dict[bytes, bytes],
    ) -> None:
        self.expiry = expiry
        self.left = left
        self.user = user
        self.will = will
        self.gap = gap
        self.log = log  # b"": it is none of an APPLICATION client
        self.leases = leases  # of partitions of shared logs: see lease_scripts.py
        self.owed: OwedGap = unpack(gap)
        self.tokens = tokens
        self._subscriptions = subscriptions

    def groups(self) -> list[bytes]:
        """The keys of the shared subscriptions."""
        return [key for key in self._subscriptions if key.startswith(SHARE_PREFIX)]

    def group_keys(self) -> list[bytes]:
        """The keys of the groups that the messages of a list are for; no session has a record of that kind."""
        return [key for key in self._subscriptions if is_group_key(key)]

    def index_value(self) -> bytes:
        """What an index says of it; see index.py."""
        if (
            self.will is not None
            or self.log
            or self.leases
            or self.groups()
            or len(self._subscriptions) > SUBSCRIPTIONS
        ):
            return READ
        wanted = [key for key, value in self._subscriptions.items() if value[0] & QOS]
        return index_value(self.left + self.expiry, wanted)

    def subscriptions(self, session: Session) -> list[Subscription]:
        """Its subscriptions, for *session*, to which they are not added yet."""
        return [subscription_of(session, key, value[0], value[1:]) for key, value in self._subscriptions.items()]


def read_record(fields: list[bytes]) -> StoredSession:
    """The record of a session without a client, in the reply to HGETALL. DamagedRecord: it is none."""
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    head, left, will = values.pop(HEAD, None), values.pop(LEFT, None), values.pop(WILL, None)
    gap, log = values.pop(GAP, b""), values.pop(LOG, b"")
    leases = {field: values.pop(field) for field in list(values) if field.startswith(LEASE)}
    if head is None or left is None:
        raise DamagedRecord("the record has no head, or not the time at which its client left")
    try:
        form, expiry, user = msgpack.unpackb(head)
        left_at = float(left)
        user_name = None if user is None else user.decode()
    except Exception as error:  # msgpack has six kinds of it
        raise DamagedRecord("the head of the record cannot be read") from error
    if form != FORM or not isinstance(expiry, int) or not math.isfinite(left_at):
        raise DamagedRecord(f"the head of the record has form {form!r}")
    tokens = read_tokens(values)
    for filter, value in values.items():
        _check_subscription(filter, value)
    last_will = None if will is None else _read_will(will)
    try:
        return StoredSession(expiry, left_at, user_name, last_will, gap, log, leases, tokens, values)
    except ValueError as error:
        raise DamagedRecord("the gap in the record cannot be read") from error


def read_subscriptions(fields: list[bytes]) -> StoredSession:
    """As `read_record()`, also if the client of the session is connected."""
    return read_record(fields if LEFT in fields[::2] else [*fields, LEFT, b"0"])


def _read_will(value: bytes) -> Will:
    try:
        will = to_will(to_list(msgpack.unpackb(value)))
        check_topic(will.topic)
        will.message(0.0)
        if len(will.token) not in (0, TOKEN):
            raise ValueError("the token of a will")
    except Exception as error:  # of msgpack, of our own checks, or a ProtocolError
        raise DamagedRecord("the will in the record cannot be read") from error
    return will


def _check_subscription(filter: bytes, value: bytes) -> None:
    """Raise DamagedRecord unless the field *filter* with *value* is a subscription."""
    try:
        check_filter(filter)
        valid = 0 < len(value) and value[0] & QOS < 3 and value[0] <= OPTIONS
        if valid and len(value) > 1:
            identifier, end = read_length(value, 2, len(value), V5)
            valid = value[1] == SUBSCRIPTION_IDENTIFIER and identifier > 0 and end == len(value)
    except ProtocolError as error:
        raise DamagedRecord("a subscription in the record cannot be read") from error
    if not valid:
        raise DamagedRecord("the options of a subscription in the record are no options")
