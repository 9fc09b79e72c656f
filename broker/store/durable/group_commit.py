# Group commit: the writes of all durable sessions of a worker, in one transaction a tick.
#
# A transaction of one message costs 43 us, of which the messages are the least: four system calls, and the round trip.
# So writes are gathered while a transaction is under way, and for `store.hold` seconds where a quick client may make
# them needless; then they leave together (commit_delays.py). A second transaction is not sent before the first is
# answered: the server might refuse the first, for want of memory, and carry the second out, and then messages would
# change their order.
#
# A transaction is MULTI, LRANGE of the fence, SET of the commit number, the writes, those of the bodies that the writes
# refer to (shared_bodies.py), EXEC.
# - Whoever takes a session from a worker that does not answer adds its client id to the fence of that worker, in the
#   script that takes it. What the worker writes for the session from then on lands in keys that nobody reads, and the
#   same transaction tells it so: `fenced` is called before anything counts as committed.
# - When the connection ends before the answer comes, nobody knows what the server did. The commit number tells: the
#   transaction is sent again unless its number is there.
#
# What the server refuses (no disk, still loading) is sent again after a pause, for as long as it takes. Nothing is
# committed meanwhile, so publishers wait, and the gate of the store bounds what they may send.
#
# A server that is full refuses each transaction. Then the removals of the refused one (removals.py) are sent by
# themselves, and after them what else there is to remove; the rest of it is sent again after each pause. One of the two
# is under way at a time. Of a session that has ended, nothing is left in the rest: its keys are removed, and are not to
# be made anew.
#
# A worker of a node that was taken for dead is told by its fence, too (inheritance.py). What it has written may have
# been read by the worker that has its sessions now, or not: nothing is committed any more, and it has to end.
#
# With `store.durability = "replicated"` a transaction is committed when replicas have it as well (replication.py).
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from hiredis import ReplyError

from broker.metrics.counters import Counters
from broker.reasons import StoreFailure
from broker.store.durable.commit_delays import Gathering, Holds
from broker.store.durable.pack import Groups
from broker.store.durable.removals import REDUCED, Words, call_of, in_transaction
from broker.store.durable.replication import Replication
from broker.store.durable.shared_bodies import SharedBodies
from broker.store.durable.store_gate import StoreGate
from broker.store.durable.writer import Giver, Mark, Part, Writer
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import Command, CommandPipeline

PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before, and says so
PAUSE: Final = 0.1  # seconds until what was refused is sent again
WIDE: Final = 256  # queues that get a message: half a page of a fan-out
STALLED: Final = 1.0  # seconds without an answer; one takes milliseconds
MOST_BYTES: Final = 1 << 20  # of one transaction: at 1 GB/s the server is busy with it for a millisecond
FORGOTTEN: Final = 100  # writers, and half of all that wait: then those are looked through that do
SETTLED: Final = b""  # in the fence: all sessions of this worker are adopted
UNCERTAIN: Final = (StoreFailure.LOST, StoreFailure.TIMEOUT)

# KEYS fence, commit number; ARGV client ids of the fence that the worker knows. No transaction: a server that is full
# refuses any.
LOOK: Final = "return {redis.call('LRANGE', KEYS[1], ARGV[1], -1), redis.call('GET', KEYS[2])}"

MULTI: Final = packed("MULTI")
EXEC: Final = packed("EXEC")
NO_ERRORS: Final[list[ReplyError]] = []  # never changed
FIRST: Final = 2  # replies in that of EXEC ahead of those to the writes: of the fence and of the commit number

Fenced = Callable[[list[bytes], float], None]  # the client ids that were added to the fence of this worker; now


class GroupCommit:
    def __init__(
        self,
        commands: CommandPipeline,
        *,
        fence: bytes,
        commit_number: bytes,
        wall: Callable[[], float],
        holds: Holds,
        gate: StoreGate,
        counters: Counters,
        bodies: SharedBodies,
        replication: Replication | None = None,
        era: bytes = b"",
    ) -> None:
        """*commands*: a connection that no other part writes to, and that `redis_ready()` follows. *fence*,
        *commit_number*: keys.

        *wall*: Unix time in seconds. *holds*: of the writes of `later()`. *gate* is told of what is written.
        *replication*: says when replicas have it; None: nobody waits for replicas. *era*: of what is stored, which its
        writers may note (tokens.py).
        """
        self.now = 0.0  # at the last tick
        self._commands = commands
        self.counters = counters
        self.replication: Final = replication
        self.era: Final = era
        self._fence_key = fence
        self._number_key = commit_number
        self.holds: Final = holds
        self.gate: Final = gate
        self.bodies: Final = bodies
        self._wall = wall
        self.fenced: Fenced = _nobody_hears
        self._fence_length = 0  # client ids of it that this worker knows
        self._number = 0
        self._gathering = Gathering()
        self._dirty: deque[Writer] = deque()
        self._under_way: Transaction | None = None
        self._begun_at = 0.0  # when it was sent for the first time
        self._replies: list[object] = []  # to it, while it waits for replicas
        self.full = False  # Redis has no memory, as far as this worker knows
        self._removers: dict[Writer, None] = {}  # that have removals, while it is full
        self._removers_first = False  # those go ahead of what was refused
        self._refused: list[Part] = []  # what it has no memory for, of one transaction
        self._refused_again_at = 0.0  # when that is sent again
        self._withdrawn: dict[Writer, list[Groups]] = {}  # see `withdraw()`
        self._unreferred: list[Groups] = []  # of packs that were left out, while the rest is refused
        self._givers: dict[Giver, None] = {}
        self._forgotten = 0  # writers in _dirty that have nothing to write
        self._ordered = 0  # writers that have to be behind all that was to be written before
        self._replies_to: list[object] = []  # for `last_reply()`: to the transaction that is told to its writers,
        self._told = 0  # and how many of them were to writers up to this one
        self.answers_known = True  # for `committed()`: false if the connection ended before the errors came, if any
        self._uncertain = False  # nobody knows whether the server carried it out
        self._look: _Look | None = None  # under way, to learn whether it did
        self._again_at = 0.0  # when it is sent again, if it was refused; 0.0: it was not
        self._failure: StoreFailure | None = None  # why it was not carried out the last time

    def soon(self, writer: Writer) -> None:
        """Ask *writer* for its writes with the next transaction."""
        if self.full:
            self._removers[writer] = None
        if not writer.dirty:
            writer.dirty = True
            self._dirty.append(writer)

    def ask_again(self, writer: Writer) -> None:
        """Ask *writer* once more, as the errors of what it has written are lost; before what was refused is sent again.

        Otherwise that could be carried out where the session of *writer* has another owner by now.
        """
        self._removers_first = True
        self.soon(writer)

    def move_last(self, writer: Writer) -> None:
        """Ask *writer*, which has something to write, behind all others that have now."""
        if writer in self._removers:
            del self._removers[writer]
            self._removers[writer] = None
        if self._dirty[-1] is not writer:
            self._dirty.remove(writer)
            self._dirty.append(writer)

    def later(self, writer: Writer, now: float) -> None:
        """Ask *writer* for its writes within `store.hold` seconds."""
        if not writer.held and not writer.dirty:
            self.holds.add(writer, now)
        elif self.full:
            self._removers[writer] = None

    def put_off(self, writer: Writer, now: float) -> None:
        """As `later()`, if the first thing that *writer* has to write was given to it just now: more of it follows."""
        if self._dirty and self._dirty[-1] is writer and writer.dirty and not (writer.held or self.full):
            self._dirty.pop()
            writer.dirty = False
            self.holds.add(writer, now)

    def remove_later(self, writer: Writer, stored_at: float, now: float) -> None:
        """As `later()`: *writer* has something to remove that was stored at *stored_at* for want of an acknowledgement.

        0.0: it was stored for another reason.
        """
        if stored_at:
            self.holds.removed(now - stored_at)
        self.later(writer, now)

    def forget(self, writer: Writer) -> None:
        """*writer* has nothing to write any more. While Redis is full, sessions that come and go would pile up."""
        self._removers.pop(writer, None)
        if writer.dirty:
            writer.dirty = False
            self._forgotten += 1
            if self._forgotten > FORGOTTEN and self._forgotten > len(self._dirty) // 2:
                self._forgotten = 0
                self._dirty = deque([each for each in self._dirty if each.dirty])

    def withdraw(self, writer: Writer, groups: list[Groups]) -> None:
        """What *writer* has in the transaction that is not carried out is to be left out: its session has ended.

        *groups*: of bodies that packs in it refer to.
        """
        if self._refused or self._under_way is not None:
            self._withdrawn[writer] = groups
            self._leave_out()

    def _leave_out(self) -> None:
        """Leave out what was withdrawn, unless the transaction is under way: then what becomes of it is not known."""
        if self._under_way is not None and not self._under_way.removes:
            return
        withdrawn = self._withdrawn
        if withdrawn:
            refused, self._refused, self._withdrawn = self._refused, [], {}
            for part in refused:
                if part.writer is not None and part.writer in withdrawn:
                    self._unreferred += withdrawn[part.writer]
                else:
                    self._refused.append(part)

    def when_full(self, giver: Giver) -> None:
        """Call *giver* when Redis is full, at once if it is now; see `when_full_no_more()`."""
        self._givers[giver] = None
        if self.full:
            giver.give_stored()

    def when_full_no_more(self, giver: Giver) -> None:
        self._givers.pop(giver, None)

    def last_reply(self) -> object:
        """For a writer in its `committed()`: the reply to the last of its commands; None: it is not known."""
        return self._replies_to[self._told - 1] if self._told <= len(self._replies_to) else None

    def may_begin(self) -> bool:
        """Whether a transaction could be sent now, or when the hold of its writes is over."""
        waiting = self._removers if self.full else self._dirty
        return self._under_way is None and (bool(waiting) or not self.holds.is_empty())

    def gather(self, now: float) -> None:
        """WIDE queues get a message: let the next transaction wait for further ones, if some come all the time."""
        self._gathering.message(self._under_way is not None, now)

    def tick(self, now: float) -> float:
        """Send a transaction if one is due; return when the next one will be."""
        self.now = now
        for writer in self.holds.take_due(now):
            self.soon(writer)
        due = float("inf")
        if self._under_way is None:
            if self.full:
                due = self._send_while_full(now)
            elif now >= self._gathering.until:
                self._send_next(now)
            else:
                due = self._gathering.until
        elif self._again_at and now >= self._again_at:
            self._again_at = 0.0
            self._again(now)
        return min(due, self._again_at or due, self.holds.due())

    def redis_ready(self, now: float) -> None:
        """Redis is (again) connected."""
        if self._uncertain:
            self._look_at_number(now)

    def idle(self) -> bool:
        """Whether everything is committed."""
        return self._nothing_to_write() and self.holds.is_empty()

    def stalled(self, now: float) -> bool:
        """Whether the server refuses what is to be written, is not there, or takes long; or replicas are missing."""
        if self._refused:
            return True
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
        if self._nothing_to_write():
            then()
        else:
            self.soon(Mark(self._number_key, then, True))

    def when_removed(self, then: Callable[[], None]) -> None:
        """Call *then* once the keys of all sessions are removed that have ended by now, and nothing makes them anew."""
        if self._ordered or self._nothing_to_write():
            self.when_written(then)
        else:
            self.confirm(then)

    def _nothing_to_write(self) -> bool:
        return self._under_way is None and not self._dirty and not self._refused

    def confirm(self, then: Callable[[], None]) -> None:
        """Call *then* after a further transaction: if sessions were taken from this worker, it knows it then."""
        mark = Mark(self._number_key, then, False)
        if self.full:
            self._removers[mark] = None
        else:
            self.soon(mark)

    def order(self, writers: int) -> None:
        """So many more, or below 0 less, writers make keys of other sessions anew when they have their turn."""
        self._ordered += writers

    def _send_next(self, now: float) -> None:
        self._gathering.until = 0.0
        wall = self._wall()
        parts: list[Part] = []
        size = 0
        for _ in range(len(self._dirty)):
            writer = self._dirty.popleft()
            if not writer.dirty:
                continue
            writer.dirty = False
            self._removers.pop(writer, None)
            removals = writer.removes(now)
            own = writer.collect(now, wall)
            if removals or own:
                part = Part(writer, removals, own)
                parts.append(part)
                size += part.size
                if size + self.bodies.size >= MOST_BYTES:
                    break
        reduced, own = self._reduced(), self.bodies.collect()
        if reduced or own:
            parts.append(Part(None, reduced, own))
        if not parts:
            self.gate.needless(now)
            return
        self._gathering.sent()
        self.gate.sent(now)
        self._begin(parts, now)
        self._send_transaction(parts, now)

    def _reduced(self) -> list[Words]:
        words = self.bodies.removes()
        return [(REDUCED, *words)] if words else []

    def _begin(self, parts: list[Part], now: float) -> None:
        """*parts* are sent for the first time."""
        self._begun_at = now
        counters = self.counters
        counters.store_transactions += 1
        for part in parts:
            counters.store_commands += len(part.removals) + len(part.writes)
            counters.store_bytes += part.size

    # While Redis is full.

    def _send_while_full(self, now: float) -> float:
        """Send removals, if there are some, or what was refused, if it is time; when it will be."""
        refused_due = len(self._refused) > 0 and now >= self._refused_again_at
        if not refused_due or self._removers_first:
            parts = self._removals(now)
            if parts:
                self._begin(parts, now)
                self._send_removals(parts, now)
                return float("inf")
        if refused_due:
            parts, self._refused = self._refused, []
            self.counters.store_repeated += 1
            self._send_transaction(parts, now)
            return float("inf")
        if self._refused:
            return self._refused_again_at
        self._send_next(now)
        return float("inf")

    def _removals(self, now: float) -> list[Part]:
        parts: list[Part] = []
        size = 0
        removers, self._removers = self._removers, {}
        for writer in removers:
            if size + self.bodies.size >= MOST_BYTES:
                self._removers[writer] = None
                continue
            removals = writer.removes(now)
            if removals:
                part = Part(writer, removals, [])
                parts.append(part)
                size += part.size
        self._removers_first = self._removers_first and len(self._removers) > 0
        reduced = self._reduced()
        if reduced:
            parts.append(Part(None, reduced, []))
        return parts

    def _refuse(self, parts: list[Part], now: float) -> None:
        """Redis has no memory for *parts*: nothing of them was carried out. Send the removals, and keep the rest."""
        if not self.full:
            self.full = True
            self._removers = dict.fromkeys(self._dirty)
        self._under_way = None
        self._refused = [Part(part.writer, [], part.writes) for part in parts if part.writes]
        self._refused_again_at = now + PAUSE
        self._leave_out()
        removals = [Part(part.writer, part.removals, []) for part in parts if part.removals]
        if removals:
            self._send_removals(removals, now)
        for giver in list(self._givers):
            giver.give_stored()

    def _has_memory(self, now: float) -> None:
        """A transaction was carried out."""
        self.full = False
        removers, self._removers = self._removers, {}
        for writer in removers:
            self.soon(writer)

    def answered(self, reply: object, now: float) -> None:
        """The server has carried out the transaction under way."""
        assert isinstance(reply, list)
        former = self._under_way
        assert former is not None
        if former.removes:
            self._executed(reply[0], cast(list[object], reply[1]), now)
        else:
            self._executed(reply[0], reply[FIRST:], now)

    def failed(self, failure: StoreFailure, now: float) -> None:
        """The server has refused the transaction under way, or nobody knows whether it was carried out."""
        self.counters.store_failures_by_reason[failure.label] += 1
        self._failure = failure
        former = self._under_way
        assert former is not None
        if failure is StoreFailure.MEMORY_FULL and not former.removes:
            self._refuse(former.parts, now)
            return
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
            if SETTLED in fence:
                return
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
        self._gathering.answered(now - self._begun_at, now)
        former, self._under_way = self._under_way, None
        assert former is not None
        self.answers_known = len(replies) > 0
        if former.removes:
            self._leave_out()
        else:
            self._withdrawn = {}
            self._failure = None
            if self._unreferred:
                self.bodies.reduce(self._unreferred)
                self._unreferred = []
                self.confirm(_nothing)
            if self.full:
                self._has_memory(now)
        at, sound = 0, not _errors(replies)
        self._replies_to = replies
        for part in former.parts:
            removed, stored = len(part.removals), len(part.writes)
            writer = part.writer
            if writer is not None and removed:
                writer.removed(NO_ERRORS if sound else _errors(replies[at : at + removed]), now)
            at += removed
            self._told = at + stored
            if writer is not None and stored:
                writer.committed(NO_ERRORS if sound else _errors(replies[at : at + stored]), now)
            at += stored
        self._replies_to = []
        if not self._refused:
            self.gate.carried_out(now)
        self._gathering.go_on()
        if not self.full and now >= self._gathering.until and self._under_way is None:
            self._send_next(now)

    def _look_at_number(self, now: float) -> None:
        """Ask whether the transaction under way was carried out, and for the fence."""
        if self._look is None:
            words = packed("EVAL", LOOK, 2, self._fence_key, self._number_key, self._fence_length)
            self._look = _Look(self, words)
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
        if former.removes:
            self._send_removals(former.parts, now)
        else:
            self._send_transaction(former.parts, now)

    def _send_transaction(self, parts: list[Part], now: float) -> None:
        fence, known = self._fence_key, self._fence_length
        self._number += 1
        commands = [MULTI, packed("LRANGE", fence, known, -1), packed("SET", self._number_key, self._number, "KEEPTTL")]
        for part in parts:  # KEEPTTL: see adoption.py
            if part.removals:
                commands += [in_transaction(words, fence, known) for words in part.removals]
            commands += part.writes
        commands.append(EXEC)
        self._under_way = Transaction(self, self._number, parts, b"".join(commands), False)
        self._under_way.replies_left = len(commands)
        self._commands.submit(self._under_way, now)

    def _send_removals(self, parts: list[Part], now: float) -> None:
        self._number += 1
        removals = [words for part in parts for words in part.removals]
        call = call_of(removals, self._fence_key, self._fence_length, self._number_key, self._number)
        self._under_way = Transaction(self, self._number, parts, call, True)
        self._commands.submit(self._under_way, now)


def _errors(replies: list[object]) -> list[ReplyError]:
    return [reply for reply in replies if isinstance(reply, ReplyError)]


class Transaction(Command):
    def __init__(self, commit: GroupCommit, number: int, parts: list[Part], command: bytes, removes: bool) -> None:
        """*removes*: it has removals only, and is a call of full.lua."""
        super().__init__(command, PATIENCE)
        self.number = number
        self.parts = parts
        self.removes = removes
        self._commit = commit

    def replied(self, reply: object, now: float) -> None:
        self._commit.answered(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._commit.failed(failure, now)


class _Look(Command):
    def __init__(self, commit: GroupCommit, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._commit = commit

    def replied(self, reply: object, now: float) -> None:
        self._commit.looked(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._commit.look_failed(failure, now)


def _nothing() -> None:
    pass


def _nobody_hears(clients: list[bytes], now: float) -> None:
    raise NotImplementedError("a session was taken, and nobody is told")
