# Retained messages: the last one of each topic, for later subscribers [MQTT-3.3.1-5].
#
# A dict finds the message of a topic; for a filter with wildcards a tree of levels is walked, only along the branches
# that can match. A replay may be large and its reader slow, so a scan goes in pages. A scan keeps its position in the
# tree and no messages: a message that is deleted meanwhile is not delivered, one that is replaced is delivered as it is
# then, one that is added may or may not be delivered.
#
# When the store is full, new topics are refused: if another topic's message were dropped instead, one client could
# delete what another retained. So that one client cannot fill the store, each may own a number of topics: the client
# that set a topic last owns it, by its client id, until another client sets it or its message goes. Owners are counted
# and not listed: a topic costs a pointer, a client an entry while it owns a topic. A client that comes with ever new
# client ids is bounded by the limits for all.
#
# Every worker of a node has all retained messages. Each write has a stamp, and the greater of two wins: `merge()`
# takes a write of another worker unless a later one is known. The deletion of a message leaves a tombstone for a while,
# or an older write that arrives late would undo it. A write that another worker has accepted is never refused, so that
# all have the same.
# A deletion that finds no message leaves no tombstone: otherwise a client could fill the memory with topics that never
# had a message. The write that such a deletion has overtaken is undone by the worker that made the write, which repeats
# the deletion behind it, see cluster/mesh.py. Tombstones take only the room that messages leave.
#
# What is stored outlives the process. A `RetainedStorage` is told by those who make changes; from here it learns what
# is dropped because its time has passed.
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from broker.reasons import DropReason
from broker.routing.deadlines import Deadlines
from broker.routing.filters import ANY_LEVEL, ANY_LEVELS, is_wildcard
from broker.routing.levels import Level, LevelTree, path_size
from broker.routing.sizes import RETAINED
from broker.session.message import Message

EXPIRED_PER_PUT: Final = 16  # expired messages that a put may drop to make room, which bounds its cost
TOMBSTONE_BYTES: Final = 300  # of a tombstone, beside its topic, about
TOMBSTONE: Final = 60.0  # seconds of local monotonic time after which no older write arrives any more


@dataclass(frozen=True)
class RetainedStatistics:
    count: int  # messages; expired ones count until they are dropped
    bytes: int  # the sum of their sizes, without levels
    own: int  # of these, messages of the broker itself, as $SYS
    own_bytes: int
    refused: int  # since the start
    tombstones: int
    tombstone_bytes: int
    tombstones_displaced: int  # since the start: dropped before their time, to make room
    unwritten: int = 0  # topics whose last change is not stored yet


class Owner:
    """A client, while it owns topics."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.topics = 0


class RetainedMessage(Message):
    """*message* as it is retained since *stamp*."""

    def __init__(self, message: Message, owner: Owner | None, stamp: int) -> None:
        super().__init__(message.topic, message.payload, message.qos, True, message.properties, message.expires)
        self.owner = owner
        self.stamp = stamp

    @property
    def client_id(self) -> str:
        """The client that set the message, or an empty string."""
        return "" if self.owner is None else self.owner.client_id


class Tombstone:
    """A deletion with *stamp* that reached this worker at the monotonic time *since*."""

    def __init__(self, stamp: int, since: float) -> None:
        self.stamp = stamp
        self.since = since


class RetainedStorage:
    """Where retained messages are stored."""

    def forget(self, topic: bytes, stamp: int) -> None:
        """What is kept of *topic* with *stamp*, a message that has expired or a tombstone, is dropped from memory."""
        raise NotImplementedError

    def unwritten(self) -> int:
        """Topics whose last change is not stored yet."""
        raise NotImplementedError


class Retained:
    """At most *messages* messages of together at most *bytes* bytes; at most *per_client* of one client, 0 = any.

    A message counts with its Message.size and RETAINED, and the levels of its topic count; topics share the levels of a
    common beginning. Tombstones count with TOMBSTONE_BYTES and their topics: they are within *bytes*, too, and the
    oldest are dropped when messages need the room.
    """

    _messages: dict[bytes, RetainedMessage]  # declared here, because *bytes* is a number in __init__()
    # In the order in which the deletions reached this worker. An OrderedDict finds the oldest entry in one step; a dict
    # steps over all entries that were removed before it.
    _tombstones: OrderedDict[bytes, Tombstone]

    def __init__(self, messages: int, bytes: int, per_client: int = 0) -> None:
        self._most_messages = messages
        self.most_bytes = bytes
        self._most_per_client = per_client
        self._messages = {}
        self.storage: RetainedStorage | None = None
        self._owners: dict[str, Owner] = {}
        self._topics = LevelTree()
        self._deadlines = Deadlines()
        self._bytes = 0
        self._own = 0  # messages of the broker itself
        self._own_bytes = 0
        self._refused = 0
        self._tombstones = OrderedDict()
        self._tombstone_bytes = 0
        self._displaced = 0

    def put(self, message: Message, now: float, client_id: str = "", stamp: int = 0) -> DropReason | None:
        """Retain *message* for *client_id* (empty: the broker itself) in place of the former message of its topic.

        *stamp* is greater than all before; 0 for a message of the broker itself. Returns None, or the limit that
        forbids it: then nothing has changed. For an empty payload the caller uses delete() [MQTT-3.3.1-6].
        """
        refusal = self._refusal(message, client_id)
        if refusal is not None and self.expire(now, EXPIRED_PER_PUT):
            refusal = self._refusal(message, client_id)
        if refusal is not None:
            self._refused += 1
            return refusal
        self._put(message, client_id, stamp)
        return None

    def merge(self, message: Message, now: float, client_id: str, stamp: int, deleted_before: bool = False) -> bool:
        """Take the write of another worker, a deletion if *message* is empty; false if a later write is known.

        *deleted_before*: a deletion leaves a tombstone although this worker never had the message.
        """
        topic = message.topic
        if stamp <= self.stamp_of(topic):
            return False
        if message.payload:
            self._put(message, client_id, stamp)
        else:
            self.delete(topic, stamp, now, deleted_before)
        return True

    def _put(self, message: Message, client_id: str, stamp: int) -> None:
        topic = message.topic
        former = self._messages.get(topic)
        if former is None:
            self._topics.add(topic)
        else:
            self._count(former, -1)
            self._disown(former)
        kept = self._messages[topic] = RetainedMessage(message, self._owner(client_id), stamp)
        self._count(kept, 1)
        if message.expires:
            self._deadlines.set(topic, message.expires)
        else:
            self._deadlines.discard(topic)
        if self._tombstones:
            self._forget_tombstone(topic)
            self._fit_tombstones()

    def _count(self, message: RetainedMessage, by: int) -> None:
        """*message* has come (*by* 1) or gone (-1)."""
        size = by * message.size
        self._bytes += size
        if not message.stamp:
            self._own += by
            self._own_bytes += size

    def _refusal(self, message: Message, client_id: str) -> DropReason | None:
        former = self._messages.get(message.topic)
        owner = self._owners.get(client_id)
        if owner is not None and owner.topics >= self._most_per_client:
            if former is None or former.owner is not owner:
                return DropReason.RETAINED_PER_CLIENT
        return None if self._has_room(message, former) else DropReason.RETAINED_FULL

    def has_room(self, message: Message) -> bool:
        """Whether the limits for all clients allow *message* in place of the former one of its topic."""
        return self._has_room(message, self._messages.get(message.topic))

    def _has_room(self, message: Message, former: Message | None) -> bool:
        room = self.most_bytes - self.held()
        if former is not None:
            return message.size - former.size <= max(0, room)
        size = RETAINED + message.size + path_size(message.topic)  # its levels are taken as new, all of them
        return len(self._messages) < self._most_messages and size <= room

    def _owner(self, client_id: str) -> Owner | None:
        """Count one more topic of *client_id*; None if topics are not counted by client."""
        if not self._most_per_client or not client_id:
            return None
        owner = self._owners.get(client_id)
        if owner is None:
            owner = self._owners[client_id] = Owner(client_id)
        owner.topics += 1
        return owner

    def _disown(self, message: RetainedMessage) -> None:
        owner = message.owner
        if owner is not None:
            owner.topics -= 1
            if not owner.topics:
                del self._owners[owner.client_id]

    def delete(self, topic: bytes, stamp: int = 0, now: float = 0.0, deleted_before: bool = False) -> bool:
        """Delete the message of *topic*; false if there is none.

        *stamp*: as for `put()`. *deleted_before*: as for `merge()`.
        """
        former = self._messages.pop(topic, None)
        if stamp and (deleted_before or former is not None or topic in self._tombstones):
            self._forget_tombstone(topic)
            self._tombstones[topic] = Tombstone(stamp, now)
            self._tombstone_bytes += TOMBSTONE_BYTES + len(topic)
        if former is None:
            self._fit_tombstones()
            return False
        self._count(former, -1)
        self._disown(former)
        self._topics.remove(topic)
        self._deadlines.discard(topic)
        self._fit_tombstones()
        return True

    def get(self, topic: bytes, now: float) -> Message | None:
        """The message of *topic*, if it has not expired at *now* [MQTT-3.3.2-5]."""
        message = self._messages.get(topic)
        return None if message is None or message.expired(now) else message

    def match(self, filter: bytes) -> "RetainedScan":
        """A scan of the messages whose topics match *filter*."""
        return RetainedScan(self, self._topics.root, filter)

    def expire(self, now: float, limit: int) -> int:
        """Drop up to *limit* messages that have expired; return how many."""
        dropped = 0
        while dropped < limit:
            topic = self._deadlines.pop_due(now)
            if topic is None:
                break
            expired = self._messages.get(topic)
            self.delete(topic)
            dropped += 1
            if self.storage is not None and expired is not None:
                self.storage.forget(topic, expired.stamp)
        return dropped

    def forget_tombstones(self, now: float, limit: int) -> None:
        """Forget up to *limit* deletions that are older than any write that may still arrive."""
        for _ in range(limit):
            topic = next(iter(self._tombstones), None)
            if topic is None or now - self._tombstones[topic].since < TOMBSTONE:
                break
            self._drop_tombstone(topic)

    def _drop_tombstone(self, topic: "bytes") -> None:
        """Forget the deletion of *topic*, as its time has passed or there is no room for it."""
        stamp = self.tombstone(topic)
        self._forget_tombstone(topic)
        if self.storage is not None:
            self.storage.forget(topic, stamp)

    def _forget_tombstone(self, topic: "bytes") -> None:
        """Forget the deletion of *topic*, if it is known."""
        if self._tombstones.pop(topic, None) is not None:
            self._tombstone_bytes -= TOMBSTONE_BYTES + len(topic)

    def _fit_tombstones(self) -> None:
        """Drop the oldest tombstones if messages and tombstones together do not fit."""
        room = self.most_bytes - self.held()
        while self._tombstones and self._tombstone_bytes > room:
            self._drop_tombstone(next(iter(self._tombstones)))
            self._displaced += 1

    def topics(self) -> "list[bytes]":
        """The topics with a message, which may have expired."""
        return list(self._messages)

    def peek(self, topic: bytes) -> RetainedMessage | None:
        """The message of *topic*, even if it has expired."""
        return self._messages.get(topic)

    def deleted(self) -> list[bytes]:
        """The topics that have a tombstone."""
        return list(self._tombstones)

    def tombstone(self, topic: bytes) -> int:
        """The stamp of the deletion of *topic*, 0 if there is no tombstone."""
        tombstone = self._tombstones.get(topic)
        return 0 if tombstone is None else tombstone.stamp

    def stamp_of(self, topic: bytes) -> int:
        """The stamp of the last write to *topic*, a deletion included; 0 if no write is known."""
        kept = self._messages.get(topic)
        return self.tombstone(topic) if kept is None else kept.stamp

    def held(self) -> int:
        """The memory that messages and their topics take, in bytes."""
        return self._bytes + RETAINED * len(self._messages) + self._topics.size()

    def statistics(self) -> RetainedStatistics:
        return RetainedStatistics(
            len(self._messages),
            self._bytes,
            self._own,
            self._own_bytes,
            self._refused,
            len(self._tombstones),
            self._tombstone_bytes,
            self._displaced,
            0 if self.storage is None else self.storage.unwritten(),
        )


class Branch:
    """Where a scan goes on: with the children of *parent* after *at*, which match *depth* levels of the filter."""

    def __init__(self, parent: Level, depth: int) -> None:
        self.parent = parent
        self.depth = depth
        self.at: Level | None = None


class RetainedScan:
    """A walk over the retained messages that match one filter, in pages. Made by Retained.match().

    A level of the tree is visited at most once, whatever wildcards the filter has.
    """

    def __init__(self, retained: Retained, root: Level, filter: bytes) -> None:
        self._retained = retained
        self._root = root
        self._filter = filter
        self._now = 0.0
        self._wanted = filter.split(b"/")
        self._whole_branches = self._wanted[-1] == ANY_LEVELS
        if self._whole_branches:
            self._wanted.pop()
        self._begun = False
        self._branches: list[Branch] = []  # from the root to the position of the walk
        self._found: list[Message] = []
        self.visited = 0  # levels, by the last page

    @property
    def done(self) -> bool:
        return self._begun and not self._branches

    def next_page(self, messages: int, levels: int, now: float) -> list[Message]:
        """Up to *messages* further messages, perhaps none, from a visit of about *levels* levels; see `done`.

        Messages that have expired at *now* are left out [MQTT-3.3.2-5]: time has passed since the subscriber
        subscribed. Levels that the filter names one after the other are followed in one step, hence "about".
        """
        self._now = now
        self.visited = 0
        self._found = []
        if not self._begun:
            self._begin()
        while self._branches and self.visited < levels and len(self._found) < messages:
            branch = self._branches[-1]
            child = branch.parent.after(branch.at)
            self.visited += 1
            if child is None:
                self._branches.pop()
                continue
            branch.at = child
            # Wildcards at the first level do not match a topic that begins with "$" [MQTT-4.7.2-1].
            if branch.parent is not self._root or not child.name.startswith(b"$"):
                self._enter(child, branch.depth)
        return self._found

    def _begin(self) -> None:
        self._begun = True
        if is_wildcard(self._filter):
            self._enter(self._root, 0)
        else:
            self._take(self._filter)

    def _enter(self, level: Level, depth: int) -> None:
        """Visit *level*, which matches the first *depth* levels of the filter, and the levels that are named next."""
        while depth < len(self._wanted) and self._wanted[depth] != ANY_LEVEL:
            below = level.child(self._wanted[depth])
            if below is None:
                return
            level = below
            depth += 1
            self.visited += 1
        if depth < len(self._wanted):
            self._branches.append(Branch(level, depth + 1))
            return
        if level.path:
            self._take(level.path)
        if self._whole_branches and level.first is not None:
            self._branches.append(Branch(level, depth))

    def _take(self, topic: bytes) -> None:
        message = self._retained.get(topic, self._now)
        if message is not None:
            self._found.append(message)
