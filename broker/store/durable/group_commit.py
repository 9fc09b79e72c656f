# Group commit: the writes of all durable sessions of a worker, in one transaction a tick.
#
# A transaction of one message costs 43 us, of which the messages are the least: four system calls, and the round trip.
# So writes are gathered while a transaction is under way, and for `store.hold` seconds where a quick client may make
# them needless; then they leave together. A second transaction is not sent before the first is answered: the server
# might refuse the first, for want of memory, and carry the second out, and then messages would change their order.
#
# A queue that gets two messages in one transaction costs hardly more than with one: its command takes the server 1 us,
# and packing it the worker another. So a message for hundreds of queues that comes while a transaction is under way
# waits for the next ones after the answer, too: from when it came for as long as the last transaction took. With a
# publisher that waits for each answer there is nothing to wait for, and nothing under way when it publishes.
#
# A transaction is MULTI, LRANGE of the fence, SET of the commit number, the writes, those of the bodies that the writes
# refer to (shared_bodies.py), EXEC.
# - Whoever takes a session from a worker that does not answer adds its client id to the fence of that worker, in the
#   script that takes it. What the worker writes for the session from then on lands in keys that nobody reads, and the
#   same transaction tells it so: `fenced` is called before anything counts as committed.
# - When the connection ends before the answer comes, nobody knows what the server did. The commit number tells: the
#   transaction is sent again unless its number is there.
#
# What the server refuses (no memory, no disk, still loading) is sent again after a pause, for as long as it takes.
# Nothing is committed meanwhile, so publishers wait, and the gate of the store bounds what they may send.
#
# With `store.durability = "replicated"` a transaction is committed when replicas have it as well (replication.py).
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from hiredis import ReplyError

from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.durable.replication import Replication
from broker.store.durable.shared_bodies import SharedBodies
from broker.store.durable.store_gate import StoreGate
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import Command, CommandPipeline

PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before, and says so
PAUSE: Final = 0.1  # seconds until what was refused is sent again
WIDE: Final = 256  # queues that get a message: half a page of a fan-out
GATHERED: Final = 0.01  # seconds at most that a message for so many waits for others
STALLED: Final = 1.0  # seconds without an answer; one takes milliseconds
MOST_BYTES: Final = 1 << 20  # of one transaction: at 1 GB/s the server is busy with it for a millisecond
UNCERTAIN: Final = (StoreFailure.LOST, StoreFailure.TIMEOUT)

MULTI: Final = packed("MULTI")
EXEC: Final = packed("EXEC")
NO_ERRORS: Final[list[ReplyError]] = []  # never changed
FIRST: Final = 2  # replies in that of EXEC ahead of those to the writes: of the fence and of the commit number

Fenced = Callable[[list[bytes], float], None]  # the client ids that were added to the fence of this worker; now


class Writer(Protocol):
    """Has something to write. GroupCommit keeps track of it by two attributes, which no one else sets."""

    dirty: bool  # it is asked for its writes with the next transaction
    held: bool  # it is asked when the time has come

    def collect(self, now: float, wall: float) -> list[bytes]:
        """The commands that write what is to be written. `committed()` or `collect()` follows, never another."""
        ...

    def committed(self, errors: list[ReplyError], now: float) -> None:
        """What `collect()` returned last is stored, but for single commands with *errors*."""
        ...


class GroupCommit:
    def __init__(
        self,
        commands: CommandPipeline,
        *,
        fence: bytes,
        commit_number: bytes,
        wall: Callable[[], float],
        hold: float,
        gate: StoreGate,
        counters: Counters,
        bodies: SharedBodies,
        replication: Replication | None = None,
    ) -> None:
        """*commands*: a connection that no other part writes to, and that `redis_ready()` follows. *fence*,
        *commit_number*: keys.

        *wall*: Unix time in seconds. *hold*: seconds that the writes of `later()` may wait. *gate* is told of what is
        written. *replication*: says when replicas have it; None: nobody waits for replicas.
        """
        self.now = 0.0  # at the last tick
        self._commands = commands
        self.counters = counters
        self.replication: Final = replication
        self._fence_key = fence
        self._number_key = commit_number
        self._hold = hold
        self.gate: Final = gate
        self.bodies: Final = bodies
        self._wall = wall
        self.fenced: Fenced = _nobody_hears
        self._fence_length = 0  # client ids of it that this worker knows
        self._number = 0
        self._gathers_until = 0.0  # the next transaction is not sent before this time
        self._took = 0.0  # seconds from when the last one was packed to its answer, or GATHERED
        self._dirty: deque[Writer] = deque()
        self._held: deque[tuple[float, Writer]] = deque()  # in the order in which they are due
        self._under_way: Transaction | None = None
        self._begun_at = 0.0  # when it was sent for the first time
        self._parts: list[tuple[Writer, int]] = []  # of it: who wrote how many commands
        self._replies: list[object] = []  # to it, while it waits for replicas
        self.answers_known = True  # for `committed()`: false if the connection ended before the errors came, if any
        self._uncertain = False  # nobody knows whether the server carried it out
        self._look: _Look | None = None  # under way, to learn whether it did
        self._again_at = 0.0  # when it is sent again, if it was refused; 0.0: it was not
        self._failure: StoreFailure | None = None  # why it was not carried out the last time

    def soon(self, writer: Writer) -> None:
        """Ask *writer* for its writes with the next transaction."""
        if not writer.dirty:
            writer.dirty = True
            self._dirty.append(writer)

    def move_last(self, writer: Writer) -> None:
        """Ask *writer*, which has something to write, behind all others that have now."""
        if self._dirty[-1] is not writer:
            self._dirty.remove(writer)
            self._dirty.append(writer)

    def later(self, writer: Writer, now: float) -> None:
        """Ask *writer* for its writes within `store.hold` seconds."""
        if not writer.held and not writer.dirty:
            writer.held = True
            self._held.append((now + self._hold, writer))

    def may_begin(self) -> bool:
        """Whether a transaction could be sent now, or when the hold of its writes is over."""
        return self._under_way is None and bool(self._dirty or self._held)

    def gather(self, now: float) -> None:
        """WIDE queues get a message: let the next transaction wait for further ones, if some come all the time."""
        if self._under_way is not None and not self._gathers_until:
            self._gathers_until = now + self._took

    def tick(self, now: float) -> float:
        """Send a transaction if one is due; return when the next one will be."""
        self.now = now
        held = self._held
        while held and held[0][0] <= now:
            writer = held.popleft()[1]
            writer.held = False
            self.soon(writer)
        due = float("inf")
        if self._under_way is None:
            if now >= self._gathers_until:
                self._send_next(now)
            else:
                due = self._gathers_until
        elif self._again_at and now >= self._again_at:
            self._again_at = 0.0
            self._again(now)
        due = min(due, self._again_at or due)
        return min(due, held[0][0]) if held else due

    def redis_ready(self, now: float) -> None:
        """Redis is (again) connected."""
        if self._uncertain:
            self._look_at_number(now)

    def idle(self) -> bool:
        """Whether everything is committed."""
        return self._under_way is None and not self._dirty and not self._held

    def stalled(self, now: float) -> bool:
        """Whether the server refuses what is to be written, is not there, or takes long; or replicas are missing."""
        if self._under_way is None:
            return False
        return self._again_at > 0 or now - self._begun_at > STALLED or self._unreplicated() is not None

    def trouble(self, now: float) -> StoreFailure | None:
        """Why nothing is stored now; TIMEOUT: the server takes long."""
        return (self._unreplicated() or self._failure or StoreFailure.TIMEOUT) if self.stalled(now) else None

    def _unreplicated(self) -> StoreFailure | None:
        return None if self.replication is None else self.replication.trouble

    def when_written(self, then: Callable[[], None]) -> None:
        """Call *then* once everything is carried out that is to be written by now, but for what is held."""
        if self._under_way is None and not self._dirty:
            then()
        else:
            self.confirm(then)

    def confirm(self, then: Callable[[], None]) -> None:
        """Call *then* after a further transaction: if sessions were taken from this worker, it knows it then."""
        self.soon(_Mark(self._number_key, then))

    def _send_next(self, now: float) -> None:
        self._gathers_until = 0.0
        wall = self._wall()
        writes: list[bytes] = []
        size = 0
        for _ in range(len(self._dirty)):
            writer = self._dirty.popleft()
            writer.dirty = False
            own = writer.collect(now, wall)
            if own:
                writes += own
                for one in own:
                    size += len(one)
                self._parts.append((writer, len(own)))
                if size + self.bodies.size >= MOST_BYTES:
                    break
        own = self.bodies.collect(self._fence_key, self._fence_length)
        writes += own
        size += sum([len(one) for one in own])
        if not writes:
            self.gate.needless(now)
            return
        self.gate.sent(now)
        self._number += 1
        self._begun_at = now
        self.counters.store_transactions += 1
        self.counters.store_commands += len(writes)
        self.counters.store_bytes += size
        self._submit(self._number, writes, now)

    def answered(self, reply: object, now: float) -> None:
        """The server has carried out the transaction under way."""
        assert isinstance(reply, list)
        self._executed(reply[0], reply[FIRST:], now)

    def failed(self, failure: StoreFailure, now: float) -> None:
        """The server has refused the transaction under way, or nobody knows whether it was carried out."""
        self.counters.store_failures_by_reason[failure.label] += 1
        self._failure = failure
        if failure in UNCERTAIN:
            self._uncertain = True
        if failure is not StoreFailure.LOST:  # then `redis_ready()` goes on
            self._again_at = now + PAUSE

    def _executed(self, fence: object, replies: list[object], now: float) -> None:
        """The server has the transaction under way. *replies* to the writes; none if they are not known."""
        if not isinstance(fence, list):  # the key of the fence is damaged: nothing is committed before it can be read
            self._uncertain = True
            self._again_at = now + PAUSE
            return
        if fence:
            self._fence_length += len(fence)
            self.fenced(fence, now)
        if self.replication is None:
            self._committed(replies, now)
            return
        former = self._under_way
        assert former is not None
        self._replies = replies
        self.replication.confirm(former.number, self._replicated, now)

    def _replicated(self, found: bool, now: float) -> None:
        """Replicas have the transaction under way; not *found*: the server does not have it, but the one before."""
        replies, self._replies = self._replies, []
        if found:
            self._committed(replies, now)
        else:
            self._uncertain = True
            self._again_at = now + PAUSE

    def _committed(self, replies: list[object], now: float) -> None:
        """All that was promised for the transaction under way is done. *replies*: see `_executed()`."""
        self._took = min(now - self._begun_at, GATHERED)
        parts, self._parts = self._parts, []
        self._under_way = self._failure = None
        self.answers_known = len(replies) > 0
        at, sound = 0, not _errors(replies)
        for writer, count in parts:
            writer.committed(NO_ERRORS if sound else _errors(replies[at : at + count]), now)
            at += count
        self.gate.carried_out(now)
        if now >= self._gathers_until:
            self._send_next(now)

    def _look_at_number(self, now: float) -> None:
        """Ask whether the transaction under way was carried out, and for the fence."""
        if self._look is None:
            self._look = _Look(self, MULTI + self._fence() + packed("GET", self._number_key) + EXEC)
            self._commands.submit(self._look, now)

    def looked(self, reply: object, now: float) -> None:
        """The reply to `_look_at_number()`."""
        assert isinstance(reply, list)
        former = self._under_way
        assert former is not None
        self._look = None
        self._uncertain = False
        fence, number = reply
        if number == str(former.number).encode():
            self._executed(fence, [], now)
        else:
            self._again(now)

    def look_failed(self, failure: StoreFailure, now: float) -> None:
        """LOST: `redis_ready()` asks again."""
        self._look = None
        if failure is not StoreFailure.LOST:
            self._again_at = now + PAUSE

    def _again(self, now: float) -> None:
        """Send the transaction under way again, or ask again whether it was carried out."""
        if self._uncertain:
            self._look_at_number(now)
            return
        former = self._under_way
        assert former is not None
        self.counters.store_repeated += 1
        self._submit(former.number, former.writes, now)

    def _submit(self, number: int, writes: list[bytes], now: float) -> None:
        head = self._fence() + packed("SET", self._number_key, number, "KEEPTTL")  # see adoption.py
        self._under_way = Transaction(self, number, head, writes)
        self._commands.submit(self._under_way, now)

    def _fence(self) -> bytes:
        return packed("LRANGE", self._fence_key, self._fence_length, -1)


class _Mark:
    """The place of everything that was to be written, in the order of what is written: a `Writer`."""

    def __init__(self, key: bytes, then: Callable[[], None]) -> None:
        self.dirty = False
        self.held = False
        self._key = key
        self._then = then

    def collect(self, now: float, wall: float) -> list[bytes]:
        return [packed("EXISTS", self._key)]  # a part of a transaction is a command at least

    def committed(self, errors: list[ReplyError], now: float) -> None:
        self._then()


class Transaction(Command):
    def __init__(self, commit: GroupCommit, number: int, head: bytes, writes: list[bytes]) -> None:
        super().__init__(b"".join([MULTI, head, *writes, EXEC]), PATIENCE)
        self.replies_left = len(writes) + FIRST + 2
        self.number = number
        self.writes = writes
        self._commit = commit

    def replied(self, reply: object, now: float) -> None:
        self._commit.answered(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._commit.failed(failure, now)


class _Look(Command):
    def __init__(self, commit: GroupCommit, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self.replies_left = 4
        self._commit = commit

    def replied(self, reply: object, now: float) -> None:
        self._commit.looked(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._commit.look_failed(failure, now)


def _errors(replies: list[object]) -> list[ReplyError]:
    return [reply for reply in replies if isinstance(reply, ReplyError)]


def _nobody_hears(clients: list[bytes], now: float) -> None:
    raise NotImplementedError("a session was taken, and nobody is told")
