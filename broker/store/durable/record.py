# Writes what is stored of a durable session beside its messages (stored_session.py), by the group commit of its worker.
#
# A subscription is a field of its own, so a SUBSCRIBE costs what it brings, however many a session has. The client id
# is in the index of its worker as long as there is a hash, with a value that tells what an absent session waits for
# (index.py).
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgpack
from hiredis import ReplyError

from broker.delivery.completion import Completion
from broker.overload.gate import Gate
from broker.routing.group_names import application_key, is_shared
from broker.routing.interest import DEADLINE
from broker.session.message import Message
from broker.session.queue import Holder, MessageQueue
from broker.session.storage import SessionStorage
from broker.session.subscription import Subscription
from broker.session.transfer.entries import subscription_options, will_fields
from broker.session.will import Will
from broker.store.durable.group_commit import GroupCommit
from broker.store.durable.index import READ
from broker.store.durable.lease_scripts import digest_of
from broker.store.durable.memberships import Memberships
from broker.store.durable.queue import DurableQueue
from broker.store.durable.removals import INDEX, Words, in_transaction
from broker.store.durable.stored_session import FORM, GAP, HEAD, LEFT, LOG, WILL, StoredSession
from broker.store.durable.tokens import PublishTokens, new_token
from broker.store.durable.writer import Writer
from broker.store.redis.connection import packed
from broker.store.redis.keys import SessionKeys

TAKER_ENDED: Final = "TAKERENDED"  # how an error of `give` begins: the session is still that of this worker
NO_WILL: Final = 0
HAS_WILL: Final = 1
IN_PLACE: Final = 2  # see `SessionRecord.replace()`
NOTHING: Final = 0
WITHOUT_WILL: Final = 1
WITH_WILL: Final = 2


class QueueMaker(Protocol):
    def wall(self) -> float:
        """Unix time in seconds."""
        ...

    def giving(self, keys: SessionKeys, client: bytes, taker: bytes) -> Words:
        """The removal that makes the session of *client* one of the worker with the incarnation *taker*.

        Its error begins with TAKER_ENDED if that worker has ended: then the session stays.
        """
        ...

    def make_queue(self, keys: SessionKeys, client: bytes, application: bool = False) -> DurableQueue:
        """A queue for the session of *client*, of which nothing is stored yet; see `restore()`.

        *application*: the messages of the session wait in a log.
        """
        ...

    def log_gate(self) -> Gate | None:
        """The gate of publishes for sessions whose messages wait in a log; None: there is no log."""
        ...

    def members_key(self, key: bytes) -> bytes:
        """Where the members are stored of the group of APPLICATION clients with the shared subscription *key*.

        b"": there is no log, and no such group.
        """
        ...

    def left(self, keys: SessionKeys, client: bytes, queue: DurableQueue, groups: list[bytes]) -> None:
        """The session of *client* is about to be removed: return what it leaves in *queue* to *groups*, their keys."""
        ...


class Giving:
    """The session goes to the worker with the incarnation *taker*; *then* is called when it has, or has ended."""

    def __init__(self, taker: bytes, then: Callable[[bytes | None], None]) -> None:
        self.taker = taker
        self.then = then


class SessionRecord(SessionStorage, Writer):
    """It has the queue of the session, if there is one: most sessions are idle, and have none.

    It has at most 30 attributes: with more, each would have a dictionary of its own, of a kilobyte, where it is not
    compiled.
    """

    def __init__(self, keys: SessionKeys, client: bytes, commit: GroupCommit, queues: QueueMaker) -> None:
        super().__init__(commit.gate.gate)
        self.dirty = False
        self.held = False
        self._keys = keys
        self._client = client
        self._commit = commit
        self._queues = queues
        self._queue: DurableQueue | None = None
        self._head = b""  # as it is stored, or will be
        self._left = False  # whether there is a field LEFT, or will be
        self._has_will = NO_WILL  # there is one, or will be
        self._gap = b""  # as it is stored, or will be
        self._tokens: PublishTokens | None = None  # until there are some
        self._groups: Memberships | None = None  # None: the session never was a member of a group
        self._index: bytes | None = None  # what the index says of it, or will; None: that is not known
        self._index_due = True  # the index is to be written
        self._indexed = False  # the session is in the index
        self._changed: dict[bytes, bytes] | None = None  # None: nothing
        self._removed: dict[bytes, None] | None = None
        self._waiting: Callable[[], None] | None = None  # until the next transaction is carried out
        self._writing = NOTHING  # of this record in the transaction that is not carried out
        self._removing = False  # removals are under way
        self._written: Callable[[], None] | None = None  # waits until it is carried out
        self._ended = False
        self._give: Giving | None = None  # to the worker that is to own the session, until it does or has ended
        self._given = False  # to that worker, or removed: nothing is written any more
        self._giving = False  # what is under way gives it
        self._leaves = False  # its messages return to groups: it is removed behind the writes for that

    def become_application(self) -> None:
        """The session is one of an APPLICATION client. To be called before it has messages, or its queue a holder."""
        if self.application:
            return
        self.application = True
        gate = self._queues.log_gate()
        if gate is None:  # without a log it is served as others, and what its log has stays there
            return
        self.gate = gate
        expected, self._queue = self._queue, None
        if expected is not None:
            self.queue().expect()

    def may_have_log(self) -> bool:
        """Whether nothing is to be removed of a log that the session had: else that would be of the next one."""
        return self._removed is None or LOG not in self._removed

    def change_to_application(self) -> DurableQueue | None:
        """The session is one of an APPLICATION client from now on, if `may_have_log()`, and has another queue.

        Returns the one that it had, which that one has to follow.
        """
        former, self._queue = self._queue, None
        self.become_application()
        self.queue()
        return former

    def change_to_device(self) -> None:
        """The session, whose queue parts from its log, is one of an APPLICATION client no more."""
        self.application = False
        self.gate = self._commit.gate.gate
        if self._groups is not None:
            self._groups.parted += self._groups.current
        self._remove(LOG)

    def restore(self, stored: StoredSession) -> None:
        """Go on with a record that was read as *stored*."""
        self._left = self._indexed = True
        self._index_due = False
        self._has_will = NO_WILL if stored.will is None else HAS_WILL
        self._gap = stored.gap
        self.remember_groups(stored.groups())
        self._tokens = stored.tokens.of_publisher(self._commit.era)

    def expect_index(self, value: bytes) -> None:
        """The index has *value* of the session."""
        self._index = value

    def expect_deadline(self, deadline: int) -> None:
        """The deadline that the index has is *deadline*."""
        if self._index:
            self._index = deadline.to_bytes(DEADLINE, "big") + self._index[DEADLINE:]

    def index_known(self) -> bytes:
        """What the index says of the session; READ, too, if that is not known."""
        return self._index or READ

    def all_stored(self) -> bool:
        """Whether nothing is known here that is not stored, and nothing is under way."""
        if self.dirty or self.held or self._writing or self._removing:
            return False
        if self._ended or self._given or self._give is not None:
            return False
        if self._groups is not None and self._groups.all():  # former ones are not stored, and its messages may return
            return False
        queue = self._queue
        return queue is None or (not (queue.dirty or queue.held) and queue.all_stored())

    def leave(self) -> None:
        """The session stays in Redis alone; `all_stored()`. Nothing of its queue stays here."""
        if self._queue is not None:
            self._queue.leave()

    def queue(self) -> DurableQueue:
        """The queue of the session, which is made if there is none."""
        queue = self._queue
        if queue is None:
            queue = self._queue = self._queues.make_queue(self._keys, self._client, self.application)
            queue.of_member = self._groups is not None
        return queue

    def give_queue(self, queue: DurableQueue) -> None:
        """*queue* is that of this record."""
        self._queue = queue

    def _joined(self, key: bytes) -> None:
        """The session has a shared subscription under *key*."""
        if self._groups is None:
            self._groups = Memberships()
        self._groups.add(key)
        if self._queue is not None:
            self._queue.of_member = True

    def remember_groups(self, keys: Iterable[bytes]) -> None:
        """The session has the shared subscriptions *keys*, and is to leave their groups when it ends."""
        for key in keys:
            self._joined(key)

    def present_queue(self) -> DurableQueue | None:
        """The queue of the session, if there is one."""
        return self._queue

    def released_ids(self) -> list[int]:
        """The packet ids whose PUBREL is to be sent again, in order."""
        return [] if self._queue is None else self._queue.released_ids()

    # The port.

    def open_queue(self, holder: Holder, most_bytes: int, connected: bool) -> MessageQueue:
        queue = self.queue()
        queue.bind(holder)
        queue.limit(most_bytes)
        if connected:
            queue.wake()
        return queue

    def forget_queue(self) -> None:
        self._queue = None
        if self._groups is not None:
            self._groups.former = {}

    def store_head(self, expiry: int, user: bytes | None, connected: bool) -> None:
        head = msgpack.packb((FORM, expiry, user))
        if head != self._head:
            self._head = head
            self._put(HEAD, head)
        if self._index != READ:
            self._index_as(READ)
        if not connected:
            self._put(LEFT, b"%.6f" % self._queues.wall())
        elif self._left:
            self._remove(LEFT)
        self._left = not connected

    def store_index(self, value: bytes) -> None:
        unread = not (self._has_will or self.application or (self._groups is not None and self._groups.current))
        wanted = value if unread else READ
        if self._index != wanted:
            self._index_as(wanted)

    def _index_as(self, value: bytes) -> None:
        self._index = value
        self._index_due = True
        self._commit.soon(self)

    def store_will(self, will: Will | None) -> None:
        if self._ended or self._given:
            return
        if will is not None:
            if not will.token:
                will.token = new_token()
            self._put(WILL, msgpack.packb(will_fields(will)))
        elif self._has_will:
            self._remove(WILL)
            self._commit.move_last(self)  # behind the record that the will has by now
        self._has_will = NO_WILL if will is None else HAS_WILL

    def has_stored_will(self) -> bool:
        return self._has_will != NO_WILL and self._writing != WITH_WILL and WILL not in (self._changed or ())

    def replace(self) -> None:
        """What was given to be stored takes the place of what is: it is written as a removal, also if Redis is full."""
        self._has_will = IN_PLACE

    def store_gap(self, gap: bytes) -> None:
        if self._ended or self._given or gap == self._gap:
            return
        if gap:
            self._put(GAP, gap)
        else:
            self._remove(GAP)
        self._gap = gap

    def subscribed(self, subscription: Subscription) -> None:
        key = subscription.key()
        self._put(key, bytes((subscription_options(subscription),)) + subscription.identifiers)
        if subscription.share:
            self._joined(key)

    def unsubscribed(self, key: bytes) -> None:
        self._remove(key)
        if self._groups is not None:
            self._groups.remove(key, self._queue is not None)

    def shared_subscriptions(self) -> int:
        return 0 if self._groups is None else len(self._groups.current)

    def store_group(self, key: bytes) -> None:
        """The record is not that of a session, but of messages for the shared subscription under *key*."""
        self._put(key, bytes(1))

    def may_receive(self, packet_id: int, duplicate: bool) -> bool:
        if self._tokens is None:
            self._tokens = PublishTokens(b"", {}, self._commit.era)
        if self._tokens.may_receive(packet_id, duplicate):
            return True
        self._commit.soon(self)
        return False

    def receive(self, packet_id: int, duplicate: bool, message: Message) -> None:
        assert self._tokens is not None
        completion = message.hold()
        completion.token = self._tokens.receive(packet_id, duplicate)
        self._tokens.due.append(completion)
        self._commit.soon(self)

    def release(self, packet_id: int) -> Completion | None:
        completion = None if self._tokens is None else self._tokens.release(packet_id)
        if completion is not None:
            self._commit.soon(self)
        return completion

    def put_off(self, now: float) -> None:
        self._commit.put_off(self, now)

    def when_stored(self, then: Callable[[], None]) -> None:
        if self.dirty or self.held:
            self._waiting = then
        elif self._writing or self._removing:
            self._written = then
        else:
            then()

    def give(self, incarnation: bytes, then: Callable[[bytes | None], None]) -> None:
        if self._ended:
            then(self.queue().given_state(None))
            return
        self._give = Giving(incarnation, then)
        self.queue().give(self._queue_given)
        if self._give is not None:
            self._commit.when_full(self)

    def give_stored(self) -> None:
        """Redis is full: give what is stored of the session. Nobody has the rest."""
        if self._ended or self._give is None or self.queue().gives_stored:
            return
        self._given = True
        self._giving = False
        self.queue().give_stored()
        self._commit.soon(self)
        self._commit.move_last(self)

    def _queue_given(self) -> None:
        if self._damaged():
            self.end()
        else:
            self._given = True
            self._commit.soon(self)

    def confirm(self, then: Callable[[], None]) -> None:
        self._commit.confirm(then)

    def disown(self) -> list[Message]:
        return [] if self._queue is None else self._queue.disown()

    def end(self) -> None:
        if self._given:
            return
        self._ended = True
        self._changed = self._removed = None
        if self._writing:
            self._commit.withdraw(self, [])
        queue = self._queue
        if queue is not None and queue.leaves and self._groups is not None:
            self._queue = None
            self._leaves = True
            self._commit.order(1)
            self._queues.left(self._keys, self._client, queue, self._group_keys(self._groups.all()))
        elif queue is not None and not queue.ended:  # the session does not have it
            queue.clear()
        self._commit.soon(self)
        self._commit.move_last(self)

    def _group_keys(self, keys: list[bytes]) -> list[bytes]:
        """The keys of the groups that the shared subscriptions *keys* are in."""
        if self.application and self._queues.log_gate() is not None:
            return [application_key(key) for key in keys]
        return keys

    def _leaves_groups(self, fields: Iterable[bytes]) -> list[Words]:
        """Have the session be no member any more of the groups of APPLICATION clients among *fields*, which end."""
        groups = self._groups
        if groups is None:
            return []
        left, groups.parted = groups.parted, []
        if self.application:
            left += [key for key in fields if is_shared(key)]
        member, found = digest_of(self._client), [self._queues.members_key(key) for key in left]
        return [("SREM", key, member) for key in found if key]

    def _damaged(self) -> bool:
        """Whether what is stored of the session, or of its queue, cannot be read or written."""
        return self._queue is not None and self._queue.damaged != ""

    def _put(self, field: bytes, value: bytes) -> None:
        if self._changed is None:
            self._changed = {}
        self._changed[field] = value
        self._commit.soon(self)

    def _remove(self, field: bytes) -> None:
        if self._changed is not None:
            self._changed.pop(field, None)
        if self._removed is None:
            self._removed = {}
        self._removed[field] = None
        self._commit.soon(self)

    # What GroupCommit asks for.

    def removes(self, now: float) -> list[Words]:
        if self._ended:
            return [] if self._leaves else self._end_removes()
        if self._giving or (self._given and self._give is None):  # it is not that of this worker any more, or soon
            return []
        if self._given and self.queue().gives_stored:
            self._giving = self._removing = True
            self.queue().left = True
            taker = b"" if self._give is None else self._give.taker
            return [*self._fields_removed(), self._queues.giving(self._keys, self._client, taker)]
        if self._writing:  # what is to be stored may be of the same fields
            removals = self._will_removed()
        else:
            removals = self._written_in_place() if self._has_will == IN_PLACE else self._fields_removed()
        self._removing = len(removals) > 0
        return removals

    def _written_in_place(self) -> list[Words]:
        if not self._changed:
            return []
        fields, self._changed, self._index_due = self._changed, None, False
        index: Words = ("HSET", self._keys.index, self._client, READ)
        return [index, ("HSET", self._keys.records + self._client, *[part for item in fields.items() for part in item])]

    def _will_removed(self) -> list[Words]:
        if self._writing == WITH_WILL or self._removed is None or WILL not in self._removed:
            return []
        del self._removed[WILL]
        return [("HDEL", self._keys.records + self._client, WILL)]

    def _fields_removed(self) -> list[Words]:
        if self._tokens is not None:
            removed = self._tokens.removes()
            if removed:
                self._removed = {**(self._removed or {}), **dict.fromkeys(removed)}
        if not self._removed:
            return []
        fields = list(self._removed)  # first: what was removed may have been put since
        if not self._writing:  # what is to be stored may be of the same fields: it will not, unless the session stays
            self._removed = None
        removals: list[Words] = [
            ("HDEL", self._keys.records + self._client, *fields),
            *self._leaves_groups(fields),
        ]
        if LEFT in fields and self._index_due and self._indexed:  # what the index says of an absent client is not true
            removals.append((INDEX, self._keys.index, self._client, READ))
            self._index_due = self._index != READ
        return removals

    def removed(self, errors: list[ReplyError], now: float) -> None:
        gave = self._giving and self.queue().gives_stored
        refused = gave and _taker_has_ended(errors)
        if errors and not (refused or self._ended):
            self.queue().damage(str(errors[0]))
        if self._tokens is not None:
            for completion in self._tokens.removed():
                completion.settle(now)
        self._removing = False
        gave = gave and self._give_is_answered()
        if gave and not refused:  # nobody has the rest
            self._changed = self._removed = None
            if self._writing:
                self._commit.withdraw(self, [])
            self.queue().withdraw()
        if (gave and not refused) or (self._ended and self._given):
            self._commit.forget(self)
            if self._queue is not None:
                self._commit.forget(self._queue)
        if gave or not self._writing or self._ended:
            self._carried_out(gave, refused)

    def _end_removes(self) -> list[Words]:
        if self._given:  # asked again for what was held, it must not remove what a later session has stored
            return []
        self._given = self._removing = True
        if self._waiting is not None:
            self._written, self._waiting = self._waiting, None
        keys, client = self._keys, self._client
        key = keys.records + client
        removal: Words = ("RENAME", key, keys.damaged + client) if self._damaged() else ("DEL", key)
        groups = [] if self._groups is None else self._groups.all()
        return [removal, ("HDEL", keys.index, client), *self._leaves_groups(groups)]

    def collect(self, now: float, wall: float) -> list[bytes]:
        keys, client = self._keys, self._client
        key = keys.records + client
        if self._given and (self._ended or self._give is None or self.queue().gives_stored):
            return []  # it is removed, or not that of this worker any more, or given with what is stored
        if self._ended:
            return [packed(*words) for words in self._end_removes()]
        if self._waiting is not None:
            self._written, self._waiting = self._waiting, None
        writes = []
        if self._index_due:
            self._index_due = False
            name = INDEX if self._indexed else "HSET"
            writes.append(in_transaction((name, keys.index, client, self._index or READ)))
        if self._tokens is not None:
            changed = self._tokens.collect()
            if changed:
                self._changed = {**(self._changed or {}), **dict(zip(changed[::2], changed[1::2], strict=True))}
        with_will = self._changed is not None and WILL in self._changed
        if self._changed:
            writes.append(packed("HSET", key, *[part for item in self._changed.items() for part in item]))
            self._changed = None
        if self._given and self._give is not None:
            self._giving = True
            writes.append(in_transaction(self._queues.giving(keys, client, self._give.taker)))
        waits = self._written is not None or (self._tokens is not None and self._tokens.written)
        if waits and not writes:
            writes.append(packed("EXISTS", key))  # or it would not be told that what it has stored before is there
        self._writing = NOTHING if not writes else WITH_WILL if with_will else WITHOUT_WILL  # NOTHING: no `committed()`
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        gave, refused = self._giving and not self.queue().gives_stored, _taker_has_ended(errors)
        others = errors[:-1] if refused else errors
        if others and not self._ended:
            self.queue().damage(str(others[0]))
        self._writing = NOTHING
        self._indexed = True
        if self._leaves:
            self._commit.order(-1)
        if self._tokens is not None:
            for completion in self._tokens.committed():
                completion.settle(now)
        gave = gave and self._give_is_answered()
        self._carried_out(gave, refused, _as_read(self._commit.last_reply()) if gave else None)

    def _give_is_answered(self) -> bool:
        """What gives the session is carried out; false if the answer is lost: then it is given once more."""
        self._giving = False
        if not self._commit.answers_known:
            self._commit.ask_again(self)  # what was given is not found again
        return self._commit.answers_known

    def _carried_out(self, gave: bool, refused: bool, read: list[object] | None = None) -> None:
        """What was under way is carried out. It *gave* the session away, unless that was *refused*.

        *read*: see `encode_state()`.
        """
        then, self._written = self._written, None
        if then is not None:
            then()
        give = self._give
        if give is None or not (gave or self._ended):
            return
        self._give = None
        self._commit.when_full_no_more(self)
        if refused:
            self._given = False
            self.queue().stay()
            self._commit.soon(self)
            give.then(None)
        else:
            give.then(self.queue().given_state(read))


def _as_read(reply: object) -> list[object] | None:
    """What *reply*, to `give`, says of the session for its new owner; None: that has to read it."""
    if not isinstance(reply, list) or any(isinstance(part, ReplyError) for part in reply):
        return None
    return reply


def _taker_has_ended(errors: list[ReplyError]) -> bool:
    return bool(errors) and str(errors[-1]).startswith(TAKER_ENDED)
