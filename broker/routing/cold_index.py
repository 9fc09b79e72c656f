# The index of cold sessions: which absent sessions a message is for, when they are in Redis and not here.
#
# A session whose client is away and that has nothing under way need not be in memory. Its worker keeps its client id,
# when it ends, under which incarnation of the worker its keys are, and a hash of each filter of QoS 1 or 2
# (interest.py). There may be millions of such sessions, so nothing here is an object for each:
# - Sessions and their filters have numbers, and are in flat arrays (cold_segments.py). Free numbers are used again.
# - A client id or a hash is found in tables that grow by one bucket at a time (linear_hashing.py).
# - The filters of equal hash are a chain, the latest first; only the first of a chain is in a bucket. A million
#   sessions may share one filter, and each is added and removed at the cost of the first.
# - The text of client ids is in one bytearray a segment, compacted when half of it is of sessions that have left.
# - Deadlines are not sorted. A segment knows the soonest of its deadlines, or a sooner one: when it has come, the
#   segment is looked through, which costs some 50 us. Of a million sessions that live a week, 1 024 end in ten minutes.
#
# A topic may have a million receivers here, so they are found in steps, by a ColdWalk. A walk finds the sessions that
# were cold when it began and still are when it comes to them. Sessions are numbered as they are added (`stamp`), and
# chains are in the order of the stamps, so a walk can say whether it has still to come to a session (`owes`): one that
# becomes warm meanwhile is to have the message, too, and only once.
#
# Memory stays as large as it was for the most sessions, until there are none at all. It is freed in steps then.
from typing import Final

from broker.routing.cold_segments import (
    BITS,
    FIRST,
    LOW,
    NO_DEADLINE,
    NODES_BYTES,
    NONE,
    SEGMENT,
    SESSIONS_BYTES,
    SHAPE,
    Buckets,
    Nodes,
    Sessions,
)
from broker.routing.interest import HASH, TopicHashes, entries_of
from broker.routing.neighbour import Neighbours

SHAPES: Final = 64  # distinct shapes: so many hashes a topic costs at most
NEW_SHAPES: Final = 16  # that one session brings: it takes four clients at least to use up all
NAME: Final = 1024  # bytes of a client id: with a longer one a session is always warm

LOAD: Final = 2  # entries of a bucket on average, at most
GARBAGE: Final = 4096  # bytes of a segment's text that are not worth a compaction
SCANNED: Final = 16  # segments looked through in one call
FREED: Final = 64  # segments

INDEX_BYTES: Final = 2000


class ColdIndex:
    """The cold sessions of a worker. `neighbours` are told the first and the last session of an entry."""

    def __init__(self) -> None:
        self.neighbours: Neighbours | None = None
        self._stamp = 0  # of the last session that was added
        self._hashes = TopicHashes(b"")  # of the last topic
        self._walks: list[ColdWalk] = []  # that have not come to their end
        self._shapes: list[bytes] = []  # by number
        self._numbers: dict[bytes, int] = {}  # of the shapes that are used
        self._chains: list[int] = []  # by number of the shape
        self._unused: list[Sessions | Nodes] = []  # segments of an index that has become empty, to be freed in steps
        self._sessions: list[Sessions] = []
        self._nodes: list[Nodes] = []
        self._clear()

    def _clear(self) -> None:
        self._unused.extend(self._sessions)
        self._unused.extend(self._nodes)
        self._sessions = []
        self._nodes = []
        self._count = 0
        self._filters = 0  # distinct ones
        self._text = 0  # bytes of client ids, with those of sessions that have left
        self._next_deadline = NO_DEADLINE
        self._session_numbers = 0  # those that were ever used are smaller
        self._node_numbers = 0
        self._free_session = NONE
        self._free_node = NONE
        self._clients = Buckets()
        self._heads = Buckets()

    def __len__(self) -> int:
        return self._count

    def filters(self) -> int:
        """The number of distinct entries."""
        return self._filters

    def size(self) -> int:
        """Bytes of memory."""
        size = INDEX_BYTES + SESSIONS_BYTES * len(self._unused)
        if not self._count:
            return size
        text = self._text + (self._text >> 3)
        buckets = 4 * (self._clients.count + self._heads.count)
        return size + SESSIONS_BYTES * len(self._sessions) + NODES_BYTES * len(self._nodes) + text + buckets

    # Changes.

    def add(self, client: bytes, deadline: int, interest: bytes, owner: int) -> bool:
        """Add the session of *client*, or replace it; O(filters).

        *deadline*: when it ends, as Unix time in seconds, or NO_DEADLINE. *owner*: a number from 0 to 65535. False: it
        is not added, as *interest* is malformed, or has a shape for which there is no room, or *client* is too long:
        the session has to be warm. Walks that have not come to the session that is replaced do not find the new one.
        """
        entries = entries_of(interest)
        if entries is None or len(client) > NAME or not self._has_room(entries):
            return False
        if self._count >= LOAD * self._clients.count:
            self._split_clients()
        key = len(client).to_bytes(2, "big") + client
        number = self._clients.number(client)
        former = self._find_in(number, key)
        session = self._new_session(key, number, deadline, owner)
        segment = self._sessions[session >> BITS]
        first = NONE
        for entry in entries:
            first = self._add_node(session, entry, first)
        segment.node[session & LOW] = first
        if former != NONE:  # not before: neighbours are always told of what both have
            self._remove(former)
        return True

    def expect(self, sessions: int) -> None:
        """About so many are to be added to an empty index: it grows at once what would grow with each of them.

        That takes half of the time of an addition otherwise. 4 bytes a session are taken.
        """
        if not self._count:
            self._clients.expect(sessions // LOAD)
            self._heads.expect(sessions // LOAD)

    def discard(self, client: bytes) -> bool:
        """Remove the session of *client*; false if it is not cold. O(filters)."""
        session = self._find(client)
        if session == NONE:
            return False
        self._remove(session)
        return True

    def set_owner(self, client: bytes, owner: int) -> bool:
        """The session of *client* has another owner; false if it is not cold."""
        session = self._find(client)
        if session == NONE:
            return False
        self._sessions[session >> BITS].owner[session & LOW] = owner
        return True

    # Questions.

    def find(self, client: bytes) -> int:
        """The owner of the session of *client*; -1 if it is not cold."""
        session = self._find(client)
        return -1 if session == NONE else int(self._sessions[session >> BITS].owner[session & LOW])

    def deadline(self, client: bytes) -> int:
        """The deadline of the session of *client*; NO_DEADLINE if it is not cold, or was returned by `expired()`."""
        session = self._find(client)
        return NO_DEADLINE if session == NONE else int(self._sessions[session >> BITS].deadline[session & LOW])

    def matches(self, topic: bytes) -> bool:
        """Whether a session has a filter that matches *topic*, or has the hash of one. O(shapes)."""
        return self.count(topic, 1) > 0

    def count(self, topic: bytes, most: int) -> int:
        """How many sessions `matching()` would find, or *most* if there are more. A session counts for each filter."""
        found = 0
        if self._count:
            hashes = self.hashes(topic)
            for shape in self._numbers:
                wanted = hashes.of(shape)
                node = self._head(wanted) if wanted else NONE
                while node != NONE and found < most:
                    found += 1
                    node = self._nodes[node >> BITS].later[node & LOW]
        return found

    def matching(self, topic: bytes) -> list[bytes]:
        """The clients whose sessions have such a filter, each once."""
        walk = self.walk(topic)
        found: list[bytes] = []
        while not walk.done:
            found += walk.take(SEGMENT)
        return found

    def walk(self, topic: bytes) -> "ColdWalk":
        """A walk over these clients in steps."""
        wanted: list[bytes] = []
        if self._count:
            hashes = self.hashes(topic)
            for shape in self._numbers:
                digest = hashes.of(shape)
                if digest and self._head(digest) != NONE:
                    wanted.append(digest)
        return ColdWalk(self, wanted, self._stamp)

    def expired(self, now: float, most: int) -> list[bytes]:
        """Up to *most* clients whose deadline has passed. Each is returned once, and stays here until `discard()`.

        There may be more of them, as the work of one call is bounded: then `next_deadline()` is not later than *now*.
        To be called from time to time, also when no deadline has passed: memory that is not used is freed in steps.
        """
        found: list[bytes] = []
        if self._unused:
            del self._unused[-FREED:]
        if now < self._next_deadline:
            return found
        scanned = 0
        soonest = NO_DEADLINE
        for segment in self._sessions:
            if segment.soonest <= now and scanned < SCANNED and len(found) < most:
                scanned += 1
                self._expire(segment, now, most, found)
            soonest = min(soonest, segment.soonest)
        self._next_deadline = soonest
        return found

    def _expire(self, segment: Sessions, now: float, most: int, found: list[bytes]) -> None:
        deadline = segment.deadline
        for at in range(SEGMENT):
            if deadline[at] <= now:
                if len(found) == most:
                    return  # `soonest` stays, so the rest is found by the next call
                deadline[at] = NO_DEADLINE
                found.append(segment.name(at))
        segment.soonest = min(deadline)

    def next_deadline(self) -> float:
        """When `expired()` has something to do, as Unix time; infinity if it never has."""
        return float("inf") if self._next_deadline == NO_DEADLINE else float(self._next_deadline)

    def names(self, start: int, most: int) -> tuple[list[bytes], int]:
        """Up to *most* client ids from the place *start* on, and the place of the next; -1 if there are no more."""
        found: list[bytes] = []
        for session in range(start, min(start + 4 * most, self._session_numbers)):
            segment = self._sessions[session >> BITS]
            if segment.offset[session & LOW] != NONE:
                if len(found) == most:
                    return found, session
                found.append(segment.name(session & LOW))
        after = start + 4 * most
        return found, after if after < self._session_numbers else -1

    def entries(self, start: int, most: int) -> tuple[list[bytes], int]:
        """The distinct entries in the next *most* buckets, from *start* on, and where to go on; -1 if it is the end.

        An entry that is there all the time is returned once or twice, whatever is added and removed between two calls.
        """
        found: list[bytes] = []
        if not self._count:
            return found, -1
        stop = min(start + most, self._heads.count)
        for number in range(start, stop):
            node = self._heads.get(number)
            while node != NONE:
                segment = self._nodes[node >> BITS]
                found.append(self._entry(segment, node & LOW))
                node = segment.before[node & LOW]
        return found, stop if stop < self._heads.count else -1

    def hashes(self, topic: bytes) -> TopicHashes:
        """The hashes of *topic*, which are kept until the next topic: a topic is often looked for several times."""
        if self._hashes.topic != topic:
            self._hashes = TopicHashes(topic)
        return self._hashes

    # Sessions.

    def _find(self, client: bytes) -> int:
        if not self._count:
            return NONE
        if len(client) > NAME:
            return NONE
        return self._find_in(self._clients.number(client), len(client).to_bytes(2, "big") + client)

    def _find_in(self, number: int, key: bytes) -> int:
        """The session in the bucket *number* whose text is *key*."""
        session = self._clients.get(number)
        while session != NONE:
            segment = self._sessions[session >> BITS]
            at = session & LOW
            if segment.text.startswith(key, segment.offset[at]):
                return session
            session = segment.link[at]
        return NONE

    def _new_session(self, key: bytes, number: int, deadline: int, owner: int) -> int:
        session = self._free_session
        if session != NONE:
            self._free_session = self._sessions[session >> BITS].link[session & LOW]
        else:
            session = self._session_numbers
            self._session_numbers += 1
            if not session & LOW:
                self._sessions.append(Sessions())
        segment = self._sessions[session >> BITS]
        at = session & LOW
        segment.offset[at] = len(segment.text)
        segment.text += key
        self._text += len(key)
        segment.deadline[at] = deadline
        segment.soonest = min(segment.soonest, deadline)
        self._next_deadline = min(self._next_deadline, deadline)
        segment.owner[at] = owner
        self._stamp += 1
        segment.stamp[at] = self._stamp
        self._count += 1
        segment.link[at] = self._clients.get(number)
        self._clients.set(number, session)
        return session

    def _split_clients(self) -> None:
        clients = self._clients
        split = clients.grow()
        session = clients.get(split)
        clients.set(split, NONE)
        while session != NONE:
            segment = self._sessions[session >> BITS]
            at = session & LOW
            following = segment.link[at]
            number = clients.number(segment.name(at))
            segment.link[at] = clients.get(number)
            clients.set(number, session)
            session = following

    def _remove(self, session: int) -> None:
        segment = self._sessions[session >> BITS]
        at = session & LOW
        client = segment.name(at)
        node = segment.node[at]
        while node != NONE:
            node = self._remove_node(node)
        self._unlink_client(session, segment.link[at], client)
        segment.offset[at] = NONE
        segment.node[at] = NONE
        segment.deadline[at] = NO_DEADLINE
        segment.link[at] = self._free_session
        self._free_session = session
        segment.garbage += 2 + len(client)
        if segment.garbage > GARBAGE and 2 * segment.garbage > len(segment.text):
            self._text -= segment.garbage
            segment.compact()
        self._count -= 1
        if not self._count:
            self._clear()

    def _unlink_client(self, session: int, following: int, client: bytes) -> None:
        number = self._clients.number(client)
        before = self._clients.get(number)
        if before == session:
            self._clients.set(number, following)
            return
        while True:
            segment = self._sessions[before >> BITS]
            behind = segment.link[before & LOW]
            if behind == session:
                segment.link[before & LOW] = following
                return
            before = behind

    # Filters.

    def _has_room(self, entries: list[bytes]) -> bool:
        """Whether the shapes of *entries* are known, or may be added."""
        added: dict[bytes, None] | None = None
        for entry in entries:
            shape = entry[1:-HASH]
            if shape not in self._numbers:
                if added is None:
                    added = {}
                added[shape] = None
        if added is None:
            return True
        return len(added) <= NEW_SHAPES and len(self._numbers) + len(added) <= SHAPES

    def _head(self, wanted: bytes) -> int:
        """The first node of the chain with the hash *wanted*."""
        return self._head_in(self._heads.number(wanted), wanted)

    def _head_in(self, number: int, wanted: bytes) -> int:
        node = self._heads.get(number)
        while node != NONE:
            segment = self._nodes[node >> BITS]
            at = node & LOW
            if segment.hash.startswith(wanted, at * HASH):
                return node
            node = segment.before[at]
        return NONE

    def _add_node(self, session: int, entry: bytes, sibling: int) -> int:
        """A new node, the first of its chain."""
        if self._filters >= LOAD * self._heads.count:
            self._split_heads()
        node = self._free_node
        if node != NONE:
            self._free_node = self._nodes[node >> BITS].sibling[node & LOW]
        else:
            node = self._node_numbers
            self._node_numbers += 1
            if not node & LOW:
                self._nodes.append(Nodes())
        segment = self._nodes[node >> BITS]
        at = node & LOW
        digest = entry[-HASH:]
        segment.session[at] = session
        segment.sibling[at] = sibling
        if at * HASH == len(segment.hash):
            segment.hash += digest
        else:
            segment.hash[at * HASH : at * HASH + HASH] = digest
        number = self._heads.number(digest)
        former = self._head_in(number, digest)
        segment.later[at] = former
        if former == NONE:
            segment.shape[at] = FIRST | self._shape_number(entry[1:-HASH])
            self._filters += 1
            segment.before[at] = self._heads.get(number)
            self._heads.set(number, node)
            if self.neighbours is not None:
                self.neighbours.cold_gained(entry)
            return node
        there = self._nodes[former >> BITS]
        segment.shape[at] = there.shape[former & LOW]
        there.shape[former & LOW] &= SHAPE
        segment.before[at] = there.before[former & LOW]
        self._replace_head(digest, former, node)
        there.before[former & LOW] = node
        return node

    def _remove_node(self, node: int) -> int:
        """Remove *node* from its chain; the next filter of the same session."""
        segment = self._nodes[node >> BITS]
        at = node & LOW
        later = segment.later[at]
        before = segment.before[at]
        sibling = segment.sibling[at]
        for walk in self._walks:
            if walk.node == node:
                walk.node = later
        if not segment.shape[at] & FIRST:
            self._nodes[before >> BITS].later[before & LOW] = later
            if later != NONE:
                self._nodes[later >> BITS].before[later & LOW] = before
        elif later != NONE:
            there = self._nodes[later >> BITS]
            there.shape[later & LOW] |= FIRST
            there.before[later & LOW] = before
            self._replace_head(self._digest(segment, at), node, later)
        else:
            entry = self._entry(segment, at)
            self._replace_head(entry[-HASH:], node, before)
            self._filters -= 1
            self._forget_shape(segment.shape[at] & SHAPE)
            if self.neighbours is not None:
                self.neighbours.cold_lost(entry)
        segment.sibling[at] = self._free_node
        self._free_node = node
        return sibling

    def _replace_head(self, digest: bytes, node: int, by: int) -> None:
        """In the bucket of *digest*, put *by* where *node* is; what follows *by* there is known to it."""
        number = self._heads.number(digest)
        before = self._heads.get(number)
        if before == node:
            self._heads.set(number, by)
            return
        while True:
            segment = self._nodes[before >> BITS]
            behind = segment.before[before & LOW]
            if behind == node:
                segment.before[before & LOW] = by
                return
            before = behind

    def _split_heads(self) -> None:
        heads = self._heads
        split = heads.grow()
        node = heads.get(split)
        heads.set(split, NONE)
        while node != NONE:
            segment = self._nodes[node >> BITS]
            at = node & LOW
            following = segment.before[at]
            number = heads.number(self._digest(segment, at))
            segment.before[at] = heads.get(number)
            heads.set(number, node)
            node = following

    def _digest(self, segment: Nodes, at: int) -> bytes:
        return bytes(segment.hash[at * HASH : at * HASH + HASH])

    def _entry(self, segment: Nodes, at: int) -> bytes:
        shape = self._shapes[segment.shape[at] & SHAPE]
        return bytes((len(shape),)) + shape + self._digest(segment, at)

    def _shape_number(self, shape: bytes) -> int:
        """The number of *shape*, which has one more chain."""
        number = self._numbers.get(shape, -1)
        if number < 0:
            number = self._chains.index(0) if 0 in self._chains else len(self._chains)
            if number == len(self._chains):
                self._chains.append(0)
                self._shapes.append(b"")
            self._shapes[number] = shape
            self._numbers[shape] = number
        self._chains[number] += 1
        return number

    def _forget_shape(self, number: int) -> None:
        self._chains[number] -= 1
        if not self._chains[number]:
            del self._numbers[self._shapes[number]]


class ColdWalk:
    """The clients for a topic, found in steps: those of sessions that were cold when it began, and still are.

    A session that is warmed before the walk has come to it is not found any more; `owes()` says so before.
    """

    def __init__(self, index: ColdIndex, wanted: list[bytes], stamp: int) -> None:
        """*wanted*: the hashes of the filters that match the topic. Sessions behind *stamp* were added later."""
        self.node = NONE  # the next one; the index moves it when it removes that node
        self.done = not wanted
        self._index = index
        self._wanted = wanted
        self._stamp = stamp
        self._chain = -1  # its place in `wanted`
        if wanted:
            index._walks.append(self)
            self._next_chain()

    def take(self, most: int) -> list[bytes]:
        """The next clients, for *most* steps. There may be none although the walk is not done."""
        index = self._index
        single = len(self._wanted) == 1
        found: list[bytes] = []
        for _ in range(most):
            while self.node == NONE and not self.done:
                self._next_chain()
            if self.done:
                break
            nodes = index._nodes[self.node >> BITS]
            session = nodes.session[self.node & LOW]
            sessions = index._sessions[session >> BITS]
            if sessions.stamp[session & LOW] <= self._stamp and (single or self._place(session) == self._chain):
                found.append(sessions.name(session & LOW))
            self.node = nodes.later[self.node & LOW]
        while self.node == NONE and not self.done:
            self._next_chain()
        return found

    def owes(self, client: bytes) -> bool:
        """Whether `take()` has still to return *client*."""
        if self.done:
            return False
        index = self._index
        session = index._find(client)
        if session == NONE:
            return False
        stamp = index._sessions[session >> BITS].stamp[session & LOW]
        place = self._place(session)
        if place < self._chain or stamp > self._stamp:
            return False
        if place > self._chain:
            return place < len(self._wanted)
        if self.node == NONE:  # the rest of the chain has left
            return False
        there = index._nodes[self.node >> BITS].session[self.node & LOW]
        return bool(stamp <= index._sessions[there >> BITS].stamp[there & LOW])

    def stop(self) -> None:
        """End the walk."""
        if not self.done:
            self.done = True
            self._index._walks.remove(self)

    def _next_chain(self) -> None:
        self._chain += 1
        if self._chain == len(self._wanted):
            self.stop()
        else:
            self.node = self._index._head(self._wanted[self._chain])

    def _place(self, session: int) -> int:
        """The first chain of the walk that *session* is in; the number of chains if it is in none. O(filters)."""
        wanted = self._wanted
        index = self._index
        place = len(wanted)
        node = index._sessions[session >> BITS].node[session & LOW]
        while node != NONE and place:
            nodes = index._nodes[node >> BITS]
            digest = index._digest(nodes, node & LOW)
            if digest in wanted:
                place = min(place, wanted.index(digest))
            node = nodes.sibling[node & LOW]
        return place
