# Retained messages: the last one of each topic, for whoever subscribes later [MQTT-3.3.1-5].
#
# A dict answers for a topic; a filter with wildcards walks a tree of levels, only along the branches that can
# match. A replay may be large and its reader slow, so a scan goes in pages. It holds its position in the tree and
# no messages: what is deleted is not delivered any more, what is replaced is delivered as it now is, what was added
# meanwhile may or may not be.
#
# Full means refused: to make room by dropping another topic's message would let one client delete what another
# retained. So that one client cannot fill it all, each has a number of topics: who set a topic last owns it, by its
# client id, until somebody else sets it or its message goes. Owners are counted and not listed: a topic costs a
# pointer, a client an entry while it owns a topic. Who comes with ever new client ids is not held by this, but by
# the limits for all.
#
# Every worker of a node holds all of them. Each write has a stamp, and of two the greater wins: `merge()` takes what
# another worker wrote, unless we know better. What was deleted leaves a tombstone for a while, or an older write that
# comes late would bring it back. What another worker has taken is not refused here: all shall hold the same.
from dataclasses import dataclass
from typing import Final

from broker.reasons import DropReason
from broker.routing.deadlines import Deadlines
from broker.routing.filters import ANY_LEVEL, ANY_LEVELS, is_wildcard
from broker.routing.levels import Level, LevelTree
from broker.session.message import Message

LEVEL_BYTES: Final = 150  # what one level of a topic costs in the tree, about
EXPIRED_PER_PUT: Final = 16  # expired messages a put may drop to make room; bounds what it costs
TOMBSTONE: Final = 60.0  # seconds of local monotonic time after which no older write comes any more


@dataclass(frozen=True)
class RetainedStatistics:
    count: int  # messages, with those that expired and were not dropped yet
    bytes: int  # the sum of their sizes, without levels
    refused: int  # since the start


class Owner:
    """A client, while it owns topics."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.topics = 0


class Kept(Message):
    """*message* as it is retained since *stamp*."""

    def __init__(self, message: Message, owner: Owner | None, stamp: int) -> None:
        super().__init__(message.topic, message.payload, message.qos, True, message.properties, message.expires)
        self.owner = owner
        self.stamp = stamp

    @property
    def client_id(self) -> str:
        """Of who set it, if that is known."""
        return "" if self.owner is None else self.owner.client_id


class Tombstone:
    """A deletion with *stamp*, which this worker took at the monotonic time *since*."""

    def __init__(self, stamp: int, since: float) -> None:
        self.stamp = stamp
        self.since = since


class Retained:
    """At most *messages* messages of together at most *bytes* bytes; at most *per_client* of one client, 0 = any.

    A message counts with its Message.size, and the levels of all topics with LEVEL_BYTES each; what topics share at
    their beginning is there once.
    """

    _messages: dict[bytes, Kept]  # declared here: in there, bytes is a number
    _tombstones: dict[bytes, Tombstone]  # in the order in which this worker took the deletions

    def __init__(self, messages: int, bytes: int, per_client: int = 0) -> None:
        self._most_messages = messages
        self._most_bytes = bytes
        self._most_per_client = per_client
        self._messages = {}
        self._owners: dict[str, Owner] = {}
        self._topics = LevelTree()
        self._deadlines = Deadlines()
        self._bytes = 0
        self._refused = 0
        self._tombstones = {}

    def put(self, message: Message, now: float, client_id: str = "", stamp: int = 0) -> DropReason | None:
        """Keep *message* instead of its topic's former one; for *client_id*, or for the broker itself.

        *stamp* is the greatest there is, 0 where there is one worker. None, or which limit forbids it: then nothing
        changed. An empty payload is the caller's to turn into delete() [MQTT-3.3.1-6].
        """
        refusal = self._refusal(message, client_id)
        if refusal is not None and self.expire(now, EXPIRED_PER_PUT):
            refusal = self._refusal(message, client_id)
        if refusal is not None:
            self._refused += 1
            return refusal
        self._put(message, client_id, stamp)
        return None

    def merge(self, message: Message, now: float, client_id: str, stamp: int) -> bool:
        """Another worker kept *message* for *client_id*, or deleted it if it is empty; false if that is out of date."""
        topic = message.topic
        if stamp <= self.stamp_of(topic):
            return False
        if message.payload:
            self._put(message, client_id, stamp)
        else:
            self.delete(topic, stamp, now)
        return True

    def _put(self, message: Message, client_id: str, stamp: int) -> None:
        topic = message.topic
        if self._tombstones:
            self._tombstones.pop(topic, None)
        former = self._messages.get(topic)
        if former is None:
            self._topics.add(topic)
        else:
            self._bytes -= former.size
            self._disown(former)
        self._messages[topic] = Kept(message, self._own(client_id), stamp)
        self._bytes += message.size
        if message.expires:
            self._deadlines.set(topic, message.expires)
        else:
            self._deadlines.discard(topic)

    def _refusal(self, message: Message, client_id: str) -> DropReason | None:
        former = self._messages.get(message.topic)
        owner = self._owners.get(client_id)
        if owner is not None and owner.topics >= self._most_per_client:
            if former is None or former.owner is not owner:
                return DropReason.RETAINED_PER_CLIENT
        return None if self._has_room(message, former) else DropReason.RETAINED_FULL

    def _has_room(self, message: Message, former: Message | None) -> bool:
        room = self._most_bytes - self._bytes - LEVEL_BYTES * self._topics.levels
        if former is not None:
            return message.size - former.size <= max(0, room)
        levels = message.topic.count(b"/") + 1  # taken as new, all of them
        return len(self._messages) < self._most_messages and message.size + LEVEL_BYTES * levels <= room

    def _own(self, client_id: str) -> Owner | None:
        """One more topic for *client_id*; None if nobody counts it."""
        if not self._most_per_client or not client_id:
            return None
        owner = self._owners.get(client_id)
        if owner is None:
            owner = self._owners[client_id] = Owner(client_id)
        owner.topics += 1
        return owner

    def _disown(self, message: Kept) -> None:
        owner = message.owner
        if owner is not None:
            owner.topics -= 1
            if not owner.topics:
                del self._owners[owner.client_id]

    def delete(self, topic: bytes, stamp: int = 0, now: float = 0.0) -> bool:
        """False if nothing is retained there. *stamp*: as for `put()`."""
        if stamp:
            self._tombstones.pop(topic, None)
            self._tombstones[topic] = Tombstone(stamp, now)
        former = self._messages.pop(topic, None)
        if former is None:
            return False
        self._bytes -= former.size
        self._disown(former)
        self._topics.remove(topic)
        self._deadlines.discard(topic)
        return True

    def get(self, topic: bytes, now: float) -> Message | None:
        """The message of *topic*, unless it has expired at *now* [MQTT-3.3.2-5]."""
        message = self._messages.get(topic)
        return None if message is None or message.expired(now) else message

    def match(self, filter: bytes) -> "RetainedScan":
        """A scan of what matches *filter*."""
        return RetainedScan(self, self._topics.root, filter)

    def expire(self, now: float, limit: int) -> int:
        """Drop up to *limit* messages that have expired; returns how many."""
        dropped = 0
        while dropped < limit:
            topic = self._deadlines.pop_due(now)
            if topic is None:
                break
            self.delete(topic)
            dropped += 1
        return dropped

    def forget_tombstones(self, now: float, limit: int) -> None:
        """Forget up to *limit* deletions that are older than any write that may still come."""
        for _ in range(limit):
            topic = next(iter(self._tombstones), None)
            if topic is None or now - self._tombstones[topic].since < TOMBSTONE:
                break
            del self._tombstones[topic]

    def topics(self) -> "list[bytes]":
        """Those with a message, perhaps one that has expired."""
        return list(self._messages)

    def kept(self, topic: bytes) -> Kept | None:
        """What is retained for *topic*, even if it has expired."""
        return self._messages.get(topic)

    def deleted(self) -> list[bytes]:
        """The topics of what was deleted a short while ago."""
        return list(self._tombstones)

    def tombstone(self, topic: bytes) -> int:
        """The stamp of the deletion of *topic*, 0 if there was none."""
        tombstone = self._tombstones.get(topic)
        return 0 if tombstone is None else tombstone.stamp

    def stamp_of(self, topic: bytes) -> int:
        """The stamp of the last write to *topic*, a deletion included; 0 if no write is known."""
        kept = self._messages.get(topic)
        return self.tombstone(topic) if kept is None else kept.stamp

    def statistics(self) -> RetainedStatistics:
        return RetainedStatistics(len(self._messages), self._bytes, self._refused)


class Branch:
    """The children of *parent* after *at*: where a scan goes on. They fit *depth* levels of its filter."""

    def __init__(self, parent: Level, depth: int) -> None:
        self.parent = parent
        self.depth = depth
        self.at: Level | None = None


class RetainedScan:
    """A walk over the retained messages of one filter, in pages; made by Retained.match().

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
        self._branches: list[Branch] = []  # from the root to where the walk stands
        self._found: list[Message] = []
        self._visited = 0

    @property
    def done(self) -> bool:
        return self._begun and not self._branches

    def next_page(self, limit: int, now: float) -> list[Message]:
        """1 to *limit* further messages, empty when the scan is done. Looks for the first one as long as it takes."""
        page = self.step(limit, limit, now)
        while not page and not self.done:
            page = self.step(limit, limit, now)
        return page

    def step(self, messages: int, levels: int, now: float) -> list[Message]:
        """Up to *messages* further messages, perhaps none, for a visit of about *levels* levels; see `done`.

        None that has expired at *now* [MQTT-3.3.2-5]: the subscriber may have made us wait since it subscribed.
        About: the levels that the filter names in a row are followed in one go.
        """
        self._now = now
        self._visited = 0
        self._found = []
        if not self._begun:
            self._begin()
        while self._branches and self._visited < levels and len(self._found) < messages:
            branch = self._branches[-1]
            child = branch.parent.after(branch.at)
            self._visited += 1
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
        """Visit *level*, which fits the first *depth* levels of the filter, and what the filter names below it."""
        while depth < len(self._wanted) and self._wanted[depth] != ANY_LEVEL:
            below = level.child(self._wanted[depth])
            if below is None:
                return
            level = below
            depth += 1
            self._visited += 1
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
