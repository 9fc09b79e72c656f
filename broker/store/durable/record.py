# What is stored of a durable session beside its messages: a hash, written by the group commit of its worker.
#
#   field ""      HEAD: msgpack of FORM, expiry in seconds, the end of the session in Unix time (0.0: its client is
#                 connected), user name
#   field FILTER  a subscription under its filter, with `$share/` if it is shared: options, and the subscription
#                 identifier as an encoded property
#
# A subscription is a field of its own, so a SUBSCRIBE costs what it brings, however many a session has. The client id
# is in the index of its worker as long as there is a hash.
from collections.abc import Callable
from typing import Final

import msgpack
from hiredis import ReplyError

from broker.session.session import Session
from broker.session.storage import SessionStorage
from broker.session.subscription import Subscription
from broker.session.transfer.entries import subscription_of, subscription_options
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.queue import DurableQueue
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys

FORM: Final = 1
HEAD: Final = b""
CONNECTED: Final = 0.0


class DamagedRecord(ValueError):
    """The hash is no record: it was damaged, or written by a newer version."""


class StoredSession:
    """A record that was read. *ends*: Unix time, or CONNECTED."""

    def __init__(self, expiry: int, ends: float, user: bytes | None, subscriptions: dict[bytes, bytes]) -> None:
        self.expiry = expiry
        self.ends = ends
        self.user = user
        self._subscriptions = subscriptions

    def subscriptions(self, session: Session) -> list[Subscription]:
        """Its subscriptions, for *session*, to which they are not added yet."""
        return [subscription_of(session, key, value[0], value[1:]) for key, value in self._subscriptions.items()]


def read_record(fields: list[bytes]) -> StoredSession:
    """The record in the reply to HGETALL. DamagedRecord: it is none."""
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    head = values.pop(HEAD, None)
    if head is None:
        raise DamagedRecord("the record has no head")
    try:
        form, expiry, ends, user = msgpack.unpackb(head)
    except Exception as error:  # msgpack has six kinds of it
        raise DamagedRecord("the head of the record cannot be read") from error
    if form != FORM or not isinstance(expiry, int) or not isinstance(ends, float):
        raise DamagedRecord(f"the head of the record has form {form!r}")
    if not (user is None or isinstance(user, bytes)):
        raise DamagedRecord("the user in the record is no name")
    if not all(values.values()):
        raise DamagedRecord("a subscription in the record has no options")
    return StoredSession(expiry, ends, user, values)


class SessionRecord(SessionStorage):
    """A `Writer`."""

    def __init__(
        self,
        keys: SessionKeys,
        client: bytes,
        commit: GroupCommit,
        queue: DurableQueue,
        wall: Callable[[], float],
    ) -> None:
        """*queue*: of the same session. *wall*: Unix time in seconds."""
        self.dirty = False
        self.held = False
        self._keys = keys
        self._client = client
        self._commit = commit
        self._queue = queue
        self._wall = wall
        self._head = b""  # as it is stored, or will be
        self._indexed = False
        self._changed: dict[bytes, bytes] = {}
        self._removed: dict[bytes, None] = {}
        self._waiting: list[Callable[[], None]] = []  # until the next transaction is carried out
        self._written: list[Callable[[], None]] | None = None  # until the one under way is; None: there is none
        self._ended = False

    def restore(self) -> None:
        """Go on with a record that is stored."""
        self._indexed = True

    # The port.

    def keep(self, expiry: int, user: bytes | None, ends_in: float | None, now: float) -> None:
        ends = CONNECTED if ends_in is None else self._wall() + ends_in
        head = msgpack.packb((FORM, expiry, ends, user))
        if head != self._head:
            self._head = head
            self._put(HEAD, head)

    def subscribed(self, subscription: Subscription) -> None:
        self._put(subscription.key(), bytes((subscription_options(subscription),)) + subscription.identifiers)

    def unsubscribed(self, key: bytes) -> None:
        self._changed.pop(key, None)
        self._removed[key] = None
        self._commit.soon(self)

    def when_stored(self, then: Callable[[], None]) -> None:
        if self.dirty:
            self._waiting.append(then)
        elif self._written is not None:
            self._written.append(then)
        else:
            then()

    def end(self) -> None:
        self._ended = True
        self._changed = {}
        self._removed = {}
        self._commit.soon(self)

    def _put(self, field: bytes, value: bytes) -> None:
        self._changed[field] = value
        self._commit.soon(self)

    # What GroupCommit asks for.

    def collect(self, now: float, wall: float) -> list[bytes]:
        keys, client = self._keys, self._client
        key = keys.records + client
        self._written, self._waiting = self._waiting, []
        if self._ended:
            removal = packed("RENAME", key, keys.damaged + client) if self._queue.damaged else packed("DEL", key)
            return [removal, packed("SREM", keys.index, client)]
        writes = []
        if not self._indexed:
            self._indexed = True
            writes.append(packed("SADD", keys.index, client))
        if self._removed:  # first: what was removed may have been put since
            writes.append(packed("HDEL", key, *self._removed))
            self._removed = {}
        if self._changed:
            writes.append(packed("HSET", key, *[part for item in self._changed.items() for part in item]))
            self._changed = {}
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        if errors and not self._ended:
            self._queue.damage(str(errors[0]))
        written, self._written = self._written or [], None
        for then in written:
            then()
