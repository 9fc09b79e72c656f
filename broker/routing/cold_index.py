# The index of cold sessions: which absent sessions a message is for, when they are in Redis and not here.
#
# A session whose client is away and that has nothing under way need not be in memory. Its worker keeps its client id,
# when it ends, under which incarnation of the worker its keys are, and a hash of each filter of QoS 1 or 2
# (interest.py). There may be millions of such sessions, so nothing here is an object for each:
# - Sessions and their filters have numbers, and are in flat vectors (cold_segments.py). Free numbers are used again.
# - A client id or a hash is found in tables that grow by one bucket at a time (linear_hashing.py).
# - The filters of equal hash are a chain, the latest first; only the first of a chain is in a bucket. A million
#   sessions may share one filter, and each is added and removed at the cost of the first.
# - The text of client ids is in one bytearray a segment, compacted when half of it is of sessions that have left.
# - Deadlines are not sorted. A segment knows the soonest of its deadlines, or a sooner one: when it has come, the
#   segment is looked through. Of a million sessions that live a week, 1 024 end in ten minutes.
#
# A topic may have a million receivers here, so they are found in steps (cold_walk.py).
#
# Memory stays as large as it was for the most sessions, until there are none at all. It is freed in steps then.
from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_le, write_i64_le
from librt.vecs import append, vec
from mypy_extensions import i16, i32, i64, u8

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
from broker.routing.cold_shapes import Shapes
from broker.routing.cold_walk import ColdWalk
from broker.routing.interest import DEADLINE, HASH, TopicHashes
from broker.routing.linear_hashing import HASHED, hashed
from broker.routing.neighbour import Neighbours

NAME: Final = 1024  # bytes of a client id: with a longer one a session is always warm

TOUCHED: Final = 128  # sessions whose buckets are read ahead: some 800 cache lines
LOAD: Final = 1  # entries of a bucket on average, at most
EXPECTED: Final = 2  # filters of a session
GARBAGE: Final = 4096  # bytes of a segment's text that are not worth a compaction
SCANNED: Final = 16  # segments looked through in one call
FREED: Final = 64  # segments

INDEX_BYTES: Final = 2000


class ColdIndex:
    """The cold sessions of a worker. `neighbours` are told the first and the last session of an entry."""

    def __init__(self) -> None:
        self.neighbours: Neighbours | None = None
        self.walks: list[ColdWalk] = []  # that have not come to their end
        self.sessions: list[Sessions] = []  # these three are for walks
        self.nodes: list[Nodes] = []
        self._stamp: i64 = 0  # of the last session that was added
        self._hashes = TopicHashes(b"")  # of the last topic
        self._shapes = Shapes()  # each is used once by a chain
        self._unused: list[Sessions | Nodes] = []  # segments of an index that has become empty, to be freed in steps
        self._touched: i64 = 0  # what was read ahead, so that the compiler leaves that in
        self._clear()

    def _clear(self) -> None:
        self._unused.extend(self.sessions)
        self._unused.extend(self.nodes)
        self.sessions = []
        self.nodes = []
        self._count: i64 = 0
        self._filters: i64 = 0  # distinct ones
        self._text: i64 = 0  # bytes of client ids, with those of sessions that have left
        self._next_deadline: i64 = NO_DEADLINE
        self._session_numbers: i64 = 0  # those that were ever used are smaller
        self._node_numbers: i64 = 0
        self._free_session: i64 = NONE
        self._free_node: i64 = NONE
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
        return size + SESSIONS_BYTES * len(self.sessions) + NODES_BYTES * len(self.nodes) + text + buckets

    # Changes.

    def add(self, client: bytes, deadline: int, interest: bytes, owner: int) -> bool:
        """Add the session of *client*, or replace it; O(filters).

        *deadline*: when it ends, as Unix time in seconds, or NO_DEADLINE. *owner*: a number from 0 to 65535. False: it
        is not added, as *interest* is malformed, or has a shape for which there is no room, or *client* is too long:
        the session has to be warm. Walks that have not come to the session that is replaced do not find the new one.
        """
        return self._add(client, deadline, interest, 0, owner)

    def _add(self, client: bytes, deadline: i64, interest: bytes, start: i64, owner: i64) -> bool:
        """See `add()`. What is before *start* in *interest* is none."""
        if len(client) > NAME or not self._shapes.has_room(interest, start):
            return False
        if self._count >= LOAD * self._clients.count:
            self._split_clients()
        key = _hashed_client(client)
        number = self._clients.number(key)
        former = self._find_in(number, key, client)
        session = self._new_session(client, key, number, deadline, owner)
        first: i64 = NONE
        at = start
        end: i64 = len(interest)
        while at < end:
            first = self._add_node(session, interest, at, first)
            at += 1 + i64(interest[at]) + HASH
        self.sessions[session >> BITS].node[session & LOW] = i32(first)
        if former != NONE:  # not before: neighbours are always told of what both have
            self._remove(former)
        return True

    def load(self, entries: list[bytes], owner: int) -> list[bytes]:
        """Add what is stored of sessions: client ids, each before its deadline and its interest.

        Returns the clients whose sessions have to be warm: see `add()`; or nothing is stored but the client id.
        """
        warm: list[bytes] = []
        for at in range(0, len(entries) - 1, 2):
            if not at % (2 * TOUCHED):
                self._touch(entries, at)
            client, value = entries[at], entries[at + 1]
            if len(value) < DEADLINE or not self._add(client, _deadline_of(value), value, DEADLINE, owner):
                warm.append(client)
        return warm

    def _touch(self, entries: list[bytes], start: i64) -> None:
        """Read the buckets that the next of *entries* belong to, and what is first in them.

        The processor fetches all of them from memory at the same time then. Otherwise it waits for one after the other.
        """
        clients, heads = vec[i64](), vec[i64]()
        for at in range(start, min(start + 2 * TOUCHED, len(entries) - 1), 2):
            clients = append(clients, self._clients.number(_hashed_client(entries[at])))
            value = entries[at + 1]
            end: i64 = len(value) - HASH
            place: i64 = DEADLINE
            while place < end:
                place += 1 + i64(value[place])
                if place <= end:
                    heads = append(heads, self._heads.number(hashed(read_i64_le(value, place))))
                place += HASH
        for session in self._clients.firsts(clients):
            if session != NONE:
                self._touched ^= i64(self.sessions[session >> BITS].hashed[session & LOW])
        for node in self._heads.firsts(heads):
            if node != NONE:
                self._touched ^= self.nodes[node >> BITS].digest[node & LOW]

    def expect(self, sessions: int) -> None:
        """About so many are to be added to an empty index: it grows at once what would grow with each of them.

        That takes half of the time of an addition otherwise. It is for EXPECTED filters each; more cost that time.
        """
        if not self._count:
            self._clients.expect(sessions // LOAD)
            self._heads.expect(EXPECTED * sessions // LOAD)

    def discard(self, client: bytes) -> bool:
        """Remove the session of *client*; false if it is not cold. O(filters)."""
        session = self.session_of(client)
        if session == NONE:
            return False
        self._remove(session)
        return True

    def set_owner(self, client: bytes, owner: int) -> bool:
        """The session of *client* has another owner; false if it is not cold."""
        session = self.session_of(client)
        if session == NONE:
            return False
        self.sessions[session >> BITS].owner[session & LOW] = i32(owner)
        return True

    # Questions.

    def find(self, client: bytes) -> int:
        """The owner of the session of *client*; -1 if it is not cold."""
        session = self.session_of(client)
        return -1 if session == NONE else self.sessions[session >> BITS].owner[session & LOW]

    def deadline(self, client: bytes) -> int:
        """The deadline of the session of *client*; NO_DEADLINE if it is not cold, or was returned by `expired()`."""
        session = self.session_of(client)
        return NO_DEADLINE if session == NONE else self.sessions[session >> BITS].deadline[session & LOW]

    def matches(self, topic: bytes) -> bool:
        """Whether a session has a filter that matches *topic*, or has the hash of one. O(shapes)."""
        return bool(self._wanted(topic))

    def count(self, topic: bytes, most: int) -> int:
        """How many sessions `matching()` would find, or *most* if there are more. A session counts for each filter."""
        found = 0
        for wanted in self._wanted(topic):
            node = self.head(wanted)
            while node != NONE and found < most:
                found += 1
                node = i64(self.nodes[node >> BITS].later[node & LOW])
        return found

    def matching(self, topic: bytes) -> list[bytes]:
        """The clients whose sessions have such a filter, each once."""
        walk = self.walk(topic)
        found: list[bytes] = []
        while not walk.done:
            found += walk.take(SEGMENT)
        return found

    def walk(self, topic: bytes) -> ColdWalk:
        """A walk over these clients in steps."""
        return ColdWalk(self, self._wanted(topic), self._stamp)

    def _wanted(self, topic: bytes) -> list[int]:
        """The hashes of filters that match *topic*. O(shapes)."""
        wanted: list[int] = []
        if self._count:
            hashes = self.hashes(topic)
            for shape in self._shapes.numbers:
                found = hashes.of(shape)
                if found:
                    digest = read_i64_le(found, 0)
                    if self.head(digest) != NONE:
                        wanted.append(digest)
        return wanted

    def expired(self, now: float, most: int) -> list[bytes]:
        """Up to *most* clients whose deadline has passed. Each is returned once, and stays here until `discard()`.

        There may be more of them, as the work of one call is bounded: then `next_deadline()` is not later than *now*.
        To be called from time to time, also when no deadline has passed: memory that is not used is freed in steps.
        """
        found: list[bytes] = []
        if self._unused:
            del self._unused[-FREED:]
        if now < float(self._next_deadline):
            return found
        scanned = 0
        soonest = NO_DEADLINE
        for segment in self.sessions:
            if segment.soonest <= now and scanned < SCANNED and len(found) < most:
                scanned += 1
                self._expire(segment, now, most, found)
            soonest = min(soonest, segment.soonest)
        self._next_deadline = soonest
        return found

    def _expire(self, segment: Sessions, now: float, most: int, found: list[bytes]) -> None:
        deadlines = segment.deadline
        soonest = NO_DEADLINE
        for at in range(SEGMENT):
            deadline: int = deadlines[at]
            if deadline <= now:
                if len(found) == most:
                    return  # `soonest` stays, so the rest is found by the next call
                deadlines[at] = deadline = NO_DEADLINE
                found.append(segment.name(at))
            soonest = min(soonest, deadline)
        segment.soonest = soonest

    def next_deadline(self) -> float:
        """When `expired()` has something to do, as Unix time; infinity if it never has."""
        return float("inf") if self._next_deadline == NO_DEADLINE else float(self._next_deadline)

    def names(self, start: int, most: int) -> tuple[list[bytes], int]:
        """Up to *most* client ids from the place *start* on, and the place of the next; -1 if there are no more."""
        found: list[bytes] = []
        for session in range(start, min(start + 4 * most, self._session_numbers)):
            segment = self.sessions[session >> BITS]
            if segment.offset[session & LOW] != NONE:
                if len(found) == most:
                    return found, session
                found.append(segment.name(session & LOW))
        after = start + 4 * most
        return found, after if after < self._session_numbers else -1

    def entries(self, start: int, most: int) -> tuple[bytes, int]:
        """The distinct entries in the next *most* buckets, from *start* on, and where to go on; -1 if it is the end.

        An entry that is there all the time is returned once or twice, whatever is added and removed between two calls.
        """
        if not self._count:
            return b"", -1
        found = BytesWriter()
        stop: i64 = min(start + most, self._heads.count)
        number: i64 = start
        while number < stop:
            node = self._heads.get(number)
            while node != NONE:
                segment = self.nodes[node >> BITS]
                self._write_entry(found, segment, node & LOW)
                node = i64(segment.before[node & LOW])
            number += 1
        return found.getvalue(), stop if stop < self._heads.count else -1

    def hashes(self, topic: bytes) -> TopicHashes:
        """The hashes of *topic*, which are kept until the next topic: a topic is often looked for several times."""
        if self._hashes.topic != topic:
            self._hashes = TopicHashes(topic)
        return self._hashes

    # Sessions.

    def session_of(self, client: bytes) -> i64:
        """The number of the session of *client*."""
        if not self._count or len(client) > NAME:
            return NONE
        key = _hashed_client(client)
        return self._find_in(self._clients.number(key), key, client)

    def _find_in(self, number: i64, key: i64, client: bytes) -> i64:
        """The session of *client* in the bucket *number*."""
        session = self._clients.get(number)
        while session != NONE:
            segment = self.sessions[session >> BITS]
            at = session & LOW
            if i64(segment.hashed[at]) == key and segment.name(at) == client:
                return session
            session = i64(segment.link[at])
        return NONE

    def _new_session(self, client: bytes, key: i64, number: i64, deadline: i64, owner: i64) -> i64:
        session = self._free_session
        if session != NONE:
            self._free_session = i64(self.sessions[session >> BITS].link[session & LOW])
        else:
            session = self._session_numbers
            self._session_numbers += 1
            if not session & LOW:
                self.sessions.append(Sessions())
        segment = self.sessions[session >> BITS]
        at = session & LOW
        length: i64 = len(client)
        text = segment.text
        segment.offset[at] = i32(len(text))
        segment.length[at] = i16(length)
        text += client
        self._text += length
        segment.deadline[at] = deadline
        if deadline < segment.soonest:
            segment.soonest = deadline
            self._next_deadline = min(self._next_deadline, deadline)
        segment.owner[at] = i32(owner)
        self._stamp += 1
        segment.stamp[at] = self._stamp
        self._count += 1
        segment.hashed[at] = i32(key)
        segment.link[at] = i32(self._clients.get(number))
        self._clients.set(number, session)
        return session

    def _split_clients(self) -> None:
        clients = self._clients
        split = clients.grow()
        session = clients.get(split)
        clients.set(split, NONE)
        while session != NONE:
            segment = self.sessions[session >> BITS]
            at = session & LOW
            following = i64(segment.link[at])
            number = clients.number(i64(segment.hashed[at]))
            segment.link[at] = i32(clients.get(number))
            clients.set(number, session)
            session = following

    def _remove(self, session: i64) -> None:
        segment = self.sessions[session >> BITS]
        at = session & LOW
        node = i64(segment.node[at])
        while node != NONE:
            node = self._remove_node(node)
        self._unlink_client(session, segment, at)
        segment.offset[at] = NONE
        segment.node[at] = NONE
        segment.deadline[at] = NO_DEADLINE
        segment.link[at] = i32(self._free_session)
        self._free_session = session
        segment.garbage += i64(segment.length[at])
        if segment.garbage > GARBAGE and 2 * segment.garbage > len(segment.text):
            self._text -= segment.garbage
            segment.compact()
        self._count -= 1
        if not self._count:
            self._clear()

    def _unlink_client(self, session: i64, segment: Sessions, at: i64) -> None:
        number = self._clients.number(i64(segment.hashed[at]))
        following = i64(segment.link[at])
        before = self._clients.get(number)
        if before == session:
            self._clients.set(number, following)
            return
        while True:
            other = self.sessions[before >> BITS]
            behind = i64(other.link[before & LOW])
            if behind == session:
                other.link[before & LOW] = i32(following)
                return
            before = behind

    # Filters.

    def head(self, digest: i64) -> i64:
        """The first node of the chain of the filters with the hash *digest*."""
        return self._head_in(self._heads.number(hashed(digest)), digest)

    def _head_in(self, number: i64, digest: i64) -> i64:
        node = self._heads.get(number)
        while node != NONE:
            segment = self.nodes[node >> BITS]
            at = node & LOW
            if segment.digest[at] == digest:
                return node
            node = i64(segment.before[at])
        return NONE

    def _add_node(self, session: i64, interest: bytes, start: i64, sibling: i64) -> i64:
        """A new node for the entry at *start* in *interest*, the first of its chain.

        *sibling*, if the session has that filter already.
        """
        digest = read_i64_le(interest, start + 1 + i64(interest[start]))
        if self._filters >= LOAD * self._heads.count:
            self._split_heads()
        number = self._heads.number(hashed(digest))
        former = self._head_in(number, digest)
        if former != NONE and i64(self.nodes[former >> BITS].session[former & LOW]) == session:
            return sibling
        node = self._free_node
        if node != NONE:
            self._free_node = i64(self.nodes[node >> BITS].sibling[node & LOW])
        else:
            node = self._node_numbers
            self._node_numbers += 1
            if not node & LOW:
                self.nodes.append(Nodes())
        segment = self.nodes[node >> BITS]
        at = node & LOW
        segment.session[at] = i32(session)
        segment.sibling[at] = i32(sibling)
        segment.digest[at] = digest
        segment.later[at] = i32(former)
        if former == NONE:
            segment.shape[at] = u8(FIRST | self._shapes.use(interest, start))
            self._filters += 1
            segment.before[at] = i32(self._heads.get(number))
            self._heads.set(number, node)
            if self.neighbours is not None:
                self.neighbours.cold_gained(self._entry(segment, at))
            return node
        there = self.nodes[former >> BITS]
        known = there.shape[former & LOW]
        segment.shape[at] = known
        there.shape[former & LOW] = known & SHAPE
        segment.before[at] = there.before[former & LOW]
        self._replace_head(number, former, node)
        there.before[former & LOW] = i32(node)
        return node

    def _remove_node(self, node: i64) -> i64:
        """Remove *node* from its chain; the next filter of the same session."""
        segment = self.nodes[node >> BITS]
        at = node & LOW
        later = i64(segment.later[at])
        before = i64(segment.before[at])
        sibling = i64(segment.sibling[at])
        shape = segment.shape[at]
        for walk in self.walks:
            if walk.node == node:
                walk.node = later
        if not shape & FIRST:
            self.nodes[before >> BITS].later[before & LOW] = i32(later)
            if later != NONE:
                self.nodes[later >> BITS].before[later & LOW] = i32(before)
        else:
            number = self._heads.number(hashed(segment.digest[at]))
            if later != NONE:
                there = self.nodes[later >> BITS]
                there.shape[later & LOW] = shape
                there.before[later & LOW] = i32(before)
                self._replace_head(number, node, later)
            else:
                entry = self._entry(segment, at)
                self._replace_head(number, node, before)
                self._filters -= 1
                self._shapes.leave(i64(shape & SHAPE))
                if self.neighbours is not None:
                    self.neighbours.cold_lost(entry)
        segment.sibling[at] = i32(self._free_node)
        self._free_node = node
        return sibling

    def _replace_head(self, number: i64, node: i64, by: i64) -> None:
        """In the bucket *number*, put *by* where *node* is; what follows *by* there is known to it."""
        before = self._heads.get(number)
        if before == node:
            self._heads.set(number, by)
            return
        while True:
            segment = self.nodes[before >> BITS]
            behind = i64(segment.before[before & LOW])
            if behind == node:
                segment.before[before & LOW] = i32(by)
                return
            before = behind

    def _split_heads(self) -> None:
        heads = self._heads
        split = heads.grow()
        node = heads.get(split)
        heads.set(split, NONE)
        while node != NONE:
            segment = self.nodes[node >> BITS]
            at = node & LOW
            following = i64(segment.before[at])
            number = heads.number(hashed(segment.digest[at]))
            segment.before[at] = i32(heads.get(number))
            heads.set(number, node)
            node = following

    def _entry(self, segment: Nodes, at: i64) -> bytes:
        found = BytesWriter()
        self._write_entry(found, segment, at)
        return found.getvalue()

    def _write_entry(self, found: BytesWriter, segment: Nodes, at: i64) -> None:
        found.write(self._shapes.prefix(i64(segment.shape[at] & SHAPE)))
        write_i64_le(found, segment.digest[at])


def _deadline_of(value: bytes) -> i64:
    return i64(read_i32_be(value, 0)) & NO_DEADLINE


def _hashed_client(client: bytes) -> i64:
    key: i64 = hash(client)
    return key & HASHED
