# Retained messages in Redis, so that they outlive any process: what this worker writes of them.
#
# A change that a client of this worker makes is written by the group commit (group_commit.py), and its publisher is
# answered when it is stored. The worker notes the topic and not the message: what is written is what the worker has of
# the topic when the transaction leaves, with its stamp. So several changes of a topic are written once, unwritten
# changes take no memory of payloads, and what has been replaced is not written any more.
#
# - Every worker reads all at its start (retained_load.py) and hears of changes over the mesh, so each change is written
#   by the worker that made it and by no other.
# - The greater stamp wins in Redis as it does in memory: retained.lua compares. A late write undoes nothing.
# - A deletion stays in Redis as long as its tombstone stays in the memory of a worker: for TOMBSTONE seconds, or until
#   messages need the room. If an older write comes later still, from a worker that was cut off from Redis for so long,
#   the message is there again, as if it were new. Its publisher waits for the answer at that time, if it wants one.
# - A deletion that finds no message in memory leaves nothing in Redis either, or a client could fill Redis with topics
#   that never had a message. The write that such a deletion has overtaken, on the way to Redis, is undone by the worker
#   that makes the write: it writes the deletion behind it (`superseded()`).
# - A message that has expired, and a deletion whose time has passed, are removed by the worker that gave the stamp and
#   by the one that the topic falls to: one of them may be dead. If both are, the next start of a worker does it.
#
# While Redis is away, full or slow, unwritten changes are kept, a fixed number of bytes for each topic, up to a limit.
# Beyond it changes of further topics are refused, with a reason, at any QoS.
#
# Nodes that share one Redis have one set of retained messages. A node learns what another one has changed when its
# workers start: nodes tell each other nothing of messages.
#
# Not a hash for each worker, which would need no script: a topic would be stored once for each worker that ever set it.
import hashlib
import zlib
from collections import OrderedDict
from importlib.resources import files
from typing import Final

from hiredis import ReplyError

from broker.delivery.completion import Completion
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import Retained, RetainedStorage
from broker.session.message import Message
from broker.store.durable.group_commit import PAUSE, GroupCommit
from broker.store.durable.removals import Words
from broker.store.durable.retained_value import encode_deletion, encode_message, encode_stamp
from broker.store.redis.connection import packed
from broker.store.redis.keys import SLICES, Keys
from broker.worker_id import WorkerId

SCRIPT: Final = files("broker.store.durable").joinpath("retained.lua").read_bytes()
DIGEST: Final = hashlib.sha1(SCRIPT, usedforsecurity=False).hexdigest()
MOST_BYTES: Final = 256 * 1024  # of the changes in one transaction, and one message more: the server is busy for 1 ms
WORDS_BYTES: Final = 64  # of a change in a transaction, beside its topic and its value: the server's work for it
CHANGE_BYTES: Final = 400  # of an unwritten change beside its topic, about
LEAST_BYTES: Final = 128 * 1024  # of unwritten changes: one of the longest topic, at least

PUT: Final = b"put"
DELETE: Final = b"delete"
FORGET: Final = b"forget"
ASIDE: Final = b"aside"


class Change:
    """A topic whose state is to be written, which was changed under *stamp*."""

    def __init__(self, stamp: int) -> None:
        self.stamp = stamp
        self.waiting: list[Completion] = []  # the publishes that made the change


class RetainedStoreStatistics:
    def __init__(self) -> None:
        self.written = 0  # topics
        self.failed = 0  # times that the server refused changes and has carried out the rest of their transaction
        self.not_removed = 0  # what has expired and stays in Redis until a worker starts


class RetainedStore(RetainedStorage):
    """A `Writer` of *commit*."""

    def __init__(
        self,
        retained: Retained,
        stamps: HybridClock,
        commit: GroupCommit,
        keys: Keys,
        worker: WorkerId,
        workers: int,
        most_bytes: int,
    ) -> None:
        """*worker* is one of *workers* of its node. *most_bytes*: of unwritten changes."""
        self.dirty = False
        self.held = False
        self.statistics = RetainedStoreStatistics()
        self._retained = retained
        self._stamps = stamps
        self._commit = commit
        self._slices = [(keys.retained(number), keys.unreadable(number)) for number in range(SLICES)]
        self._shard = worker.shard
        self._workers = workers
        self._most_bytes = max(most_bytes, LEAST_BYTES)
        self._bytes = 0  # of _unwritten, _writing and _forgotten
        self._unwritten: OrderedDict[bytes, Change] = OrderedDict()
        self._forgotten: OrderedDict[bytes, int] = OrderedDict()  # topics whose value with this stamp is to be removed
        self._writing: dict[bytes, Change] = {}  # in the transaction under way
        self._removing = 0  # bytes of what the transaction under way removes
        self._again_at = 0.0  # when changes are written again that were refused; 0.0: none was
        retained.storage = self

    def takes(self, topic: bytes) -> bool:
        """Whether there is room for a change of *topic*: there is if it replaces one that is not stored yet."""
        if topic in self._unwritten or topic in self._writing:
            return True
        return self._bytes + CHANGE_BYTES + len(topic) <= self._most_bytes

    def changed(self, message: Message, stamp: int) -> None:
        """A client here has published *message*, which is retained now, or deletes what was, under *stamp*.

        The publish is not done before the change is stored. To be called before the message is delivered.
        """
        change = self._note(message.topic, stamp)
        if message.qos:
            change.waiting.append(message.hold())

    def superseded(self, topic: bytes, stamp: int) -> None:
        """Another worker has made a later change of *topic*, under *stamp*: write it behind what is under way."""
        if topic in self._writing:
            self._note(topic, stamp)

    def forget(self, topic: bytes, stamp: int) -> None:
        if topic in self._unwritten or not self._removes(topic, stamp):
            return
        size = CHANGE_BYTES + len(topic)
        if topic in self._forgotten:
            size = 0
        if self._bytes + size > self._most_bytes:
            self.statistics.not_removed += 1
            return
        self._bytes += size
        self._forgotten[topic] = stamp
        self._commit.soon(self)

    def unwritten(self) -> int:
        return len(self._unwritten) + len(self._writing)

    def unwritten_bytes(self) -> int:
        return self._bytes

    def tick(self, now: float) -> float:
        """Write again what was refused; the time at which that is due."""
        if not self._again_at:
            return float("inf")
        if now < self._again_at:
            return self._again_at
        self._again_at = 0.0
        self._commit.soon(self)
        return float("inf")

    # What GroupCommit asks for.

    def removes(self, now: float) -> list[Words]:
        return []

    def removed(self, errors: list[ReplyError], now: float) -> None:
        pass

    def collect(self, now: float, wall: float) -> list[bytes]:
        if self._again_at:
            return []
        by_slice: dict[int, list[bytes]] = {}
        size = 0
        while self._unwritten and size < MOST_BYTES:
            topic, change = self._unwritten.popitem(last=False)
            self._writing[topic] = change
            size += self._add(by_slice, topic, change, now, wall)
        while self._forgotten and size < MOST_BYTES:
            topic, stamp = self._forgotten.popitem(last=False)
            self._removing += CHANGE_BYTES + len(topic)
            size += _append(by_slice, topic, FORGET, encode_stamp(stamp))
        if self._unwritten or self._forgotten:
            self._commit.soon(self)
        # The server learns the text of the script in each transaction: if a call failed for want of it, the others
        # would be carried out, and after a lost answer nobody would know.
        writes: list[bytes] = []
        for number, words in by_slice.items():
            slice, unreadable = self._slices[number]
            if writes:
                writes.append(packed("EVALSHA", DIGEST, 2, slice, unreadable, *words))
            else:
                writes.append(packed("EVAL", SCRIPT, 2, slice, unreadable, *words))
        return writes

    def committed(self, errors: list[ReplyError], now: float) -> None:
        self._bytes -= self._removing
        self._removing = 0
        writing, self._writing = self._writing, {}
        if errors:
            self.statistics.failed += 1
            self._again_at = now + PAUSE
            self._put_back(writing)
            return
        self.statistics.written += len(writing)
        for topic, change in writing.items():
            self._bytes -= CHANGE_BYTES + len(topic)
            for completion in change.waiting:
                completion.settle(now)

    def _note(self, topic: bytes, stamp: int) -> Change:
        change = self._unwritten.get(topic)
        if change is None:
            change = self._unwritten[topic] = Change(stamp)
            self._bytes += CHANGE_BYTES + len(topic)
            self._commit.soon(self)
        else:
            change.stamp = stamp
        return change

    def _removes(self, topic: bytes, stamp: int) -> bool:
        """Whether it is this worker that removes what is stored of *topic* with *stamp*; two workers may."""
        return self._stamps.gave(stamp) or zlib.crc32(topic) % self._workers == self._shard

    def _add(self, by_slice: dict[int, list[bytes]], topic: bytes, change: Change, now: float, wall: float) -> int:
        """Write the state of *topic*; return the bytes of it."""
        kept = self._retained.peek(topic)
        if kept is not None:
            return _append(by_slice, topic, PUT, encode_message(kept, kept.client_id, kept.stamp, now, wall))
        tombstone = self._retained.tombstone(topic)
        if tombstone:
            return _append(by_slice, topic, PUT, encode_deletion(tombstone))
        return _append(by_slice, topic, DELETE, encode_stamp(change.stamp))

    def _put_back(self, writing: dict[bytes, Change]) -> None:
        """Changes that were not written are to be written again, with those that have been made since."""
        for topic, change in writing.items():
            later = self._unwritten.get(topic)
            if later is None:
                self._unwritten[topic] = change
            else:
                later.waiting[:0] = change.waiting
                self._bytes -= CHANGE_BYTES + len(topic)


def _append(by_slice: dict[int, list[bytes]], topic: bytes, operation: bytes, word: bytes) -> int:
    """Add a change to those of its slice; return the bytes of it."""
    number = zlib.crc32(topic) % SLICES
    words = by_slice.get(number)
    if words is None:
        words = by_slice[number] = []
    words += (operation, topic, word)
    return WORDS_BYTES + len(topic) + len(word)
