# Adoption: a worker takes over the durable sessions of those that had its shard before, and reads them.
#
# The other workers of its node live, or are being started, and do the same. If the node has fewer workers than before,
# the shards that are gone are spread over those that are left.
#
# 1. It adds itself to the owners of the node, before it stores any session: so whoever comes after it finds it there.
# 2. The commit number of each former owner is to expire: from then on no session can become one of that worker, neither
#    by a worker that gives it, and keeps it then, nor by what the former owner had sent and the server reads late. It
#    would come to a page that was read before.
#    Page by page, the index of that owner is read then; the server reads a page while this worker works on the one
#    before. Then it renames the keys of the sessions. The answers
#    have the records; of sessions with messages only the client ids: they are read, a few at a time. Queues of sessions
#    that have ended come with them (dropped_queues.py). The former owner is removed, once it has nothing left and the
#    other workers know what its sessions wait for: if this worker dies before, the next one tells them. Its fence and
#    its commit number end soon: a worker of this node is followed only after its process has ended
#    (supervisor/child.py), so nobody reads them any more. Those of a worker that is stopped, for however long, stay as
#    it is an owner still: it learns what was taken from it when it goes on.
# 3. If an answer was lost, the server may have renamed what nobody has read: then it looks through its own index. A
#    worker that serves reads the sessions of that call: others in its index come and go.
#
# Sessions of which the index says enough (index.py) may stay unread, with the keys of their former owner: a worker
# serves as soon as it knows what they wait for. Afterwards they get the keys of this worker at a pace, so that former
# owners can be removed. Until then each is read where it is (cold_reads.py).
#
# What a former owner has written for sessions that had been taken from it is in none of its indexes (SET_INDEX). Its
# fence tells which sessions these are, and that goes before the former owner is removed.
#
# Each step may be done twice, so one whose answer is lost is done again. One command is under way at a time.
#
# A worker that serves adopts what a worker of another node has left, too, once that is one of its former owners
# (inheritance.py): `settle()`. It reads as at the start, and puts off what is done at a pace. Sessions come and go
# meanwhile: what is here, or about to be, is left out. A session that does not come after all may have the keys of this
# worker by then, and is in nobody's memory: the claim that it was to come for takes it from there
# (cluster/forced_takeovers.py).
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from hiredis import ReplyError

from broker.reasons import StoreFailure
from broker.routing.group_names import is_shared
from broker.store.durable.dropped_queues import DroppedQueues, is_dropped
from broker.store.durable.group_commit import PAUSE
from broker.store.durable.group_queue import is_session
from broker.store.durable.lease_scripts import LEASE
from broker.store.durable.pack import decode_pack
from broker.store.durable.queue_state import QueueState
from broker.store.durable.record import SessionRecord
from broker.store.durable.stored_session import LOG, StoredSession, read_record
from broker.store.durable.tokens import TakenNumbers
from broker.store.redis.connection import packed
from broker.store.redis.keys import FENCED_FOR, SLICES, Keys
from broker.store.redis.pipeline import WRONG_TYPE, Command, CommandPipeline
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

TIMEOUT: Final = 60.0  # seconds; a server that is busy with a page of the largest packs is not hurried
ADOPTED: Final = 128  # sessions whose keys are renamed in one call: less than a millisecond of the server
RECORDS: Final = 1 << 20  # bytes of records that it returns then, and the last one
READ: Final = 64  # sessions that are read in one call: the ends of their queues may have 128 KiB each
SCANNED: Final = 1000  # of the index in one call, about: 0.3 ms of the server, and a millisecond of this worker
PACE: Final = 0.05  # seconds before each call for sessions that are kept unread: some 2 000 a second
UNREAD: Final = -1  # bytes of records that are returned of those
FENCED: Final = 300  # sessions of the fence in one call, each with three keys

FIRST_CURSOR: Final = b"0"  # also what follows the last page
# KEYS owners of the node, commit number of the worker, which those look at that give it a session; ARGV incarnation,
# shard. HDEL is first for a server that is full: see full.lua.
JOIN: Final = b"""
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], 0, 'NX')
return redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
"""


class AdoptedSession:
    """A session as it is stored, and what goes on storing it."""

    def __init__(self, client_id: str, stored: StoredSession, record: SessionRecord) -> None:
        self.client_id = client_id
        self.stored = stored
        self.record = record


class SessionOwner(Protocol):
    """Who has the sessions that are stored."""

    def has(self, client_id: str) -> bool:
        """Whether the session of *client_id* is here already, or about to be: then it is not read."""
        ...

    def expect_cold(self, sessions: int) -> None:
        """About so many have former owners."""
        ...

    def keep_cold(self, entries: list[bytes], incarnation: bytes) -> list[bytes]:
        """*entries* of the index of *incarnation*: client ids, each before its value, perhaps known already.

        Returns the clients whose sessions are to be read: of each other one, its value says enough.
        """
        ...

    def renamed(self, clients: list[bytes]) -> None:
        """The sessions of *clients*, which were kept unread, have the incarnation of this worker now, or none."""
        ...

    def adopt(self, session: AdoptedSession, now: float) -> None:
        """*session* was read, and goes on here. It may be none: `is_session()`."""
        ...

    def adopted(self, now: float) -> None:
        """All sessions were read."""
        ...

    def damaged(self, client_id: str, why: str, here: bool, now: float) -> None:
        """What is stored of the session of *client_id* cannot be read or written: end the session, if it is *here*.

        It is kept aside, under `SessionKeys.damaged`. *client_id* may be none, see `client_id_of()`.
        """
        ...


def client_id_of(client: bytes) -> str:
    """The client id in a key. Bytes that are no UTF-8 (no worker writes such keys) become an id that no client has."""
    return client.decode(errors="surrogateescape")


def restore(
    parts: list[Any], record: SessionRecord, state: QueueState | None, again: list[bytes], now: float, wall: float
) -> StoredSession:
    """Have *record* go on with a session that sessions.lua has read. ValueError: it is damaged.

    It gets a queue only if something is stored in it.

    *state*, *again*: of the worker that had it, if that lives: see `encode_state()`. *now*: the worker's time; *wall*:
    the same in Unix time.
    """
    for part in parts:
        if isinstance(part, ReplyError):  # a key of another type
            raise ValueError(str(part))
    try:
        return _restored(parts, record, state, again, now, wall)
    except ValueError:
        _leave_groups(record, parts[0])
        raise


def _restored(
    parts: list[Any], record: SessionRecord, state: QueueState | None, again: list[bytes], now: float, wall: float
) -> StoredSession:
    fields, first, last, length, released = parts
    stored = read_record(fields)
    if stored.log or stored.leases:
        record.become_application()
    ends = [None if each is None else decode_pack(each, now, wall) for each in (first, last)]
    numbers = bool(stored.tokens.taken or stored.tokens.in_groups)
    taken = None
    if numbers or again:
        taken = TakenNumbers(stored.tokens.taken, state is None, again, stored.tokens.in_groups)
    if length or released or numbers or state is not None or record.application or record.present_queue() is not None:
        positions = [int(position) for position in released]
        record.queue().restore(ends[0], ends[1], length, positions, taken, state)
        record.queue().restore_log(stored.log)
        record.queue().restore_leases(stored.leases)
    record.restore(stored)
    return stored


def _leave_groups(record: SessionRecord, fields: list[bytes]) -> None:
    """The session with *fields* is damaged: it is to leave groups that share a log, with its leases, when it ends."""
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    leases = {field: value for field, value in values.items() if field.startswith(LEASE)}
    if leases or LOG in values:
        record.become_application()
        record.remember_groups([field for field in values if is_shared(field)])
        record.queue().restore_leases(leases, damaged=True)


def set_aside(record: SessionRecord, why: str) -> None:
    """What is stored of a session cannot be read: end it, and keep that under `SessionKeys.damaged`."""
    record.queue().damage(why)
    record.end()


class Adoption:
    def __init__(
        self,
        commands: CommandPipeline,
        script: Script,
        keys: Keys,
        worker: WorkerId,
        workers: int,
        begin: Callable[[bytes], SessionRecord],
        dropped: DroppedQueues,
        wall: Callable[[], float],
        soon: Callable[[float], None],
    ) -> None:
        """*worker* is one of *workers*. *script*: `SESSIONS`. *begin* makes what stores the session of a client id.

        *dropped* takes queues apart whose sessions have ended. *wall*: Unix time in seconds. *soon* has `tick()` called
        at a time.
        """
        self.sessions = 0  # that were read
        self.done = False
        self._script = script
        self._commands = commands
        self._keys = keys
        self._owners = keys.durable_owners(worker.node)
        self._me = worker.incarnation_text.encode()
        self._shard = worker.shard
        self._workers = workers
        self._begin = begin
        self._dropped = dropped
        self._wall = wall
        self._soon = soon
        self._owner: SessionOwner | None = None
        self.adopted: list[bytes] = []  # the former owners so far
        self.held = False  # they stay what they are, until the other workers know what their sessions wait for
        self._former: list[bytes] = []  # owners that have sessions left, perhaps
        self._to_settle: list[bytes] = []  # further ones, see `settle()`
        self._settling = False  # this worker serves
        self._to_measure: list[bytes] = []  # former owners whose sessions are not counted yet
        self._expected = 0  # sessions of a slice
        self._fenced = 0  # client ids in the fence of the last of them that were looked at
        self._slice = 0
        self._cursor = FIRST_CURSOR  # of the index, where the next page of it begins
        self._page: list[bytes] = []  # of the index of a former owner, that is to be looked at
        self._unadopted: list[bytes] = []  # client ids of a former owner, in the slice
        self._unread: list[bytes] = []  # client ids that are to be read
        self._scanning = False  # its own index
        self._asks_index = False  # the command under way does
        self._is_set = False  # the index of the former owner is a set
        self._lost = False  # an answer was
        self._failed = False  # a command has, since this index was begun
        self._reading: list[bytes] = []  # those of the page under way
        self._adopting: list[bytes] = []  # client ids in the call under way
        self._doubtful: list[bytes] = []  # in one whose answer was lost, while this worker serves
        self._read_owners: list[bytes] = []  # former owners whose sessions were read, or stay unread
        self._to_rename: list[bytes] = []  # client ids of such sessions, in the next call
        self._renaming: list[bytes] = []  # and in the call under way
        self._command: _Step | None = None  # under way
        self._then: Callable[[object, float], None] = self._joined
        self._again_at = 0.0

    def begin(self, owner: SessionOwner, now: float) -> None:
        """Take over the sessions of all that had this shard, none of which lives, and give them to *owner*."""
        self._owner = owner
        self._script.load(now)
        self._join(now)

    def tick(self, now: float) -> float:
        """Look at a page, as the next one is asked for; or go on after a failure, at the time that is returned."""
        if self._page:
            self._look_at_page(now)
        if self._to_settle and self._may_settle():
            self._begin_to_settle(now)
        command = self._command
        if command is None or not self._again_at or (self.done and self.held):
            return float("inf")
        if now < self._again_at:
            return self._again_at
        self._again_at = 0.0
        self._submit(command.words, command.replies, now)
        return float("inf")

    def settle(self, formers: list[bytes]) -> None:
        """Adopt what *formers* have left, too, which are former owners of this shard by now, while this worker serves.

        `SessionOwner.adopted()` is called once all of it is read.
        """
        self._to_settle += formers

    def _may_settle(self) -> bool:
        """Whether nothing is under way but a step that may be put off."""
        if not self.done or self._renaming or self._reading or self._unread:
            return False
        return self._command is None or self._again_at > 0

    def _begin_to_settle(self, now: float) -> None:
        self._command = None  # what is left of former owners is looked for anew afterwards
        self._again_at = 0.0
        self._unadopted, self._to_rename = [], []
        self._read_owners, self._former = self._former, self._to_settle
        self._to_settle = []
        self.adopted += self._former
        self._settling = True
        self.done = self._lost = False
        self._follow_next(now)

    def finished(self) -> bool:
        """Whether no session has the keys of a former owner any more."""
        return self.done and self._command is None

    def renames(self, client: bytes) -> bool:
        """Whether the keys of the session of *client*, which is kept unread, are being renamed now."""
        return client in self._renaming

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        if self._asks_index and not self._is_set and detail.startswith(WRONG_TYPE):
            self._is_set = True
            self._scan(now)
            return
        self._script.failed(failure, now)
        self._lost = self._failed = True
        if self._settling and self._adopting:
            self._doubtful = self._adopting
        self._again_at = now + PAUSE

    def replied(self, reply: object, now: float) -> None:
        self._command = None
        self._asks_index = False
        self._then(reply, now)

    # The steps.

    def _join(self, now: float) -> None:
        keys = [self._owners, self._keys.commit_number(self._me)]
        self._send(packed("EVAL", JOIN, 2, *keys, self._me, self._shard), self._joined, now)

    def _joined(self, reply: object, now: float) -> None:
        self._send(packed("HGETALL", self._owners), self._found_owners, now)

    def _found_owners(self, reply: object, now: float) -> None:
        fields = cast(list[bytes], reply)
        owners = zip(fields[::2], fields[1::2], strict=True)
        self._former = [owner for owner, shard in owners if owner != self._me and self._follows(shard)]
        self.adopted = self._former[:]
        self._to_measure = self._former[:]
        self._measure(now)

    def _measure(self, now: float) -> None:
        """Ask how many sessions there may be, so that there is room for them. One slice stands for all."""
        if self._to_measure:
            index = self._keys.sessions(0, self._to_measure.pop()).index
            self._send(self._script.call([index], ["count"]), self._measured, now)
            return
        assert self._owner is not None
        self._owner.expect_cold(SLICES * self._expected)
        self._follow_next(now)

    def _measured(self, reply: object, now: float) -> None:
        self._expected += cast(int, reply)
        self._measure(now)

    def _follows(self, shard: bytes) -> bool:
        """Whether this worker has what was *shard*; the first one has what nobody can say of."""
        return (int(shard) if shard.isdigit() else 0) % self._workers == self._shard

    def _follow_next(self, now: float) -> None:
        """Have no session become one of the next former owner any more, and adopt those that it has.

        Without another former owner, go on with the own index, or end.
        """
        self._slice = 0
        self._cursor = FIRST_CURSOR
        self._failed = self._is_set = False
        if self._former:
            number = self._keys.commit_number(self._former[-1])
            self._send(packed("EXPIRE", number, FENCED_FOR), self._ended_former, now)
        elif self.done:
            pass  # no session has the keys of a former owner any more
        elif self._lost and not self._settling:
            self._scanning = True
            self._scan(now)
        else:
            self._all_read(now)

    def _ended_former(self, reply: object, now: float) -> None:
        self._scan(now)

    def _scan(self, now: float) -> None:
        incarnation = self._me if self._scanning else self._former[-1]
        index = self._keys.sessions(self._slice, incarnation).index
        if self._is_set:
            words = self._script.call([index], ["scan", self._cursor, SCANNED])
        else:
            words = packed("HSCAN", index, self._cursor, "COUNT", SCANNED)
        self._asks_index = True
        self._send(words, self._scanned, now)

    def _scanned(self, reply: object, now: float) -> None:
        owner = self._owner
        assert owner is not None
        self._cursor, entries = cast(list[Any], reply)
        if self._scanning:
            found = dict(zip(entries[::2], entries[1::2], strict=True))  # a scan may repeat some
            new = [each for each in found if not self._is_dropped(each) and not owner.has(client_id_of(each))]
            self._unread = owner.keep_cold([part for each in new for part in (each, found[each])], self._me)
            self._read_page(now)
        elif self.done:
            self._unadopted = list(dict.fromkeys(entries[::2]))
            self._adopt_page(now)
        else:
            self._keep_page_cold()
            self._page = entries
            if self._cursor != FIRST_CURSOR:
                self._scan(now)
                self._soon(now)  # or the loop would wait for the next page before it looks at this one
            else:
                self._look_at_page(now)

    def _look_at_page(self, now: float) -> None:
        self._keep_page_cold()
        if self._cursor == FIRST_CURSOR:
            self._unadopted = list(dict.fromkeys(self._unadopted))
            self._adopt_page(now)

    def _keep_page_cold(self) -> None:
        """Have sessions stay unread of which a page of the index says enough."""
        page, self._page = self._page, []
        if page:
            assert self._owner is not None
            if self._settling:
                page = self._without_present(page)
            self._unadopted += self._owner.keep_cold(page, self._former[-1])

    def _without_present(self, page: list[bytes]) -> list[bytes]:
        """*page* of an index without the sessions that are here, or about to be."""
        owner = self._owner
        assert owner is not None
        left: list[bytes] = []
        for at in range(0, len(page), 2):
            if not owner.has(client_id_of(page[at])):
                left += page[at : at + 2]
        return left

    def _adopt_page(self, now: float) -> None:
        clients, self._unadopted = self._unadopted[:ADOPTED], self._unadopted[ADOPTED:]
        if not clients:
            self._page_is_read(now)
            return
        former = self._keys.sessions(self._slice, self._former[-1])
        ours = self._keys.sessions(self._slice, self._me)
        words: list[str | bytes | int] = ["adopt", former.records, former.queues, former.released]
        most = UNREAD if self.done else RECORDS
        words += [ours.records, ours.queues, ours.released, b"%.6f" % self._wall(), most, FENCED_FOR]
        if self.done:
            self._to_rename = clients
        self._adopting = clients
        keys = [former.index, ours.index, self._keys.fence(self._former[-1])]
        self._send(self._script.call(keys, [*words, *clients]), self._adopted, now)

    def _adopted(self, reply: object, now: float) -> None:
        owner = self._owner
        assert owner is not None
        wall = self._wall()
        if self._doubtful:  # the server may have renamed them before: then the answer has others only
            told = {answer[0] if isinstance(answer, list) else answer for answer in cast(list[Any], reply)}
            self._unread += [each for each in self._doubtful if each not in told and not self._is_dropped(each)]
        self._adopting, self._doubtful = [], []
        for answer in cast(list[Any], reply):
            if isinstance(answer, list):
                client, fields = answer
                self._restore(owner, client, [fields, None, None, 0, []], now, wall)
            elif not (self._is_dropped(answer) or (self.done and owner.has(client_id_of(answer)))):
                self._unread.append(answer)
        if self._renaming:
            renamed, self._renaming = self._renaming, []
            owner.renamed(renamed)
        self._read_page(now)

    def _page_is_read(self, now: float) -> None:
        """Go on with the next page of an index, or with the next index."""
        if self._failed:  # perhaps the server was started anew: then its cursors mean other places
            self._failed = False
            self._cursor = FIRST_CURSOR
        elif self._cursor == FIRST_CURSOR:
            self._slice += 1
        if self._slice < SLICES:
            self._scan(now)
        elif self._scanning:
            self._all_read(now)
        elif not self.done:
            self._read_owners.append(self._former.pop())
            self._follow_next(now)
        else:
            self._fenced = 0
            self._read_fence(now)

    def _read_fence(self, now: float) -> None:
        fence = self._keys.fence(self._former[-1])
        self._send(packed("LRANGE", fence, self._fenced, self._fenced + FENCED - 1), self._found_fenced, now)

    def _found_fenced(self, reply: object, now: float) -> None:
        """Remove what the former owner has written for sessions that were taken from it."""
        keys, former, clients = self._keys, self._former[-1], cast(list[bytes], reply)
        self._fenced += len(clients)
        if not clients:
            # Not deleted: a transaction that the server reads later would make the commit number anew, without end.
            ends = [packed("EXPIRE", key, FENCED_FOR) for key in (keys.fence(former), keys.commit_number(former))]
            steps = [*ends, packed("HDEL", self._owners, former)]  # no transaction: a server that is full refuses any
            self._send(b"".join(steps), self._removed_owner, now, len(steps))
            return
        written: list[bytes] = []
        for client in clients:
            theirs = keys.sessions(keys.slice_of(client), former)
            written += [theirs.records + client, theirs.queues + client, theirs.released + client]
        self._send(packed("DEL", *written), self._removed_fenced, now)

    def _removed_fenced(self, reply: object, now: float) -> None:
        self._read_fence(now)

    def _removed_owner(self, reply: object, now: float) -> None:
        self._former.pop()
        self._follow_next(now)

    def _is_dropped(self, name: bytes) -> bool:
        """Whether *name*, from an index, is that of a dropped queue: then it is taken apart. Twice does no harm."""
        if not is_dropped(name):
            return False
        self._dropped.add(self._keys.sessions(self._slice, self._me), name)
        return True

    def _read_page(self, now: float) -> None:
        self._reading, self._unread = self._unread[:READ], self._unread[READ:]
        if self._reading:
            ours = self._keys.sessions(self._slice, self._me)
            words: list[str | bytes | int] = ["read", ours.records, ours.queues, ours.released, *self._reading]
            self._send(self._script.call([], words), self._read, now)
            return
        if self._scanning:
            self._page_is_read(now)
        else:
            self._adopt_page(now)

    def _all_read(self, now: float) -> None:
        self.done = True
        self._scanning = False
        assert self._owner is not None
        self._owner.adopted(now)
        self._former = self._read_owners
        self._follow_next(now)

    def _read(self, reply: object, now: float) -> None:
        owner = self._owner
        assert owner is not None
        wall = self._wall()
        for client, parts in zip(self._reading, cast(list[list[Any]], reply), strict=True):
            self._restore(owner, client, parts, now, wall)
        self._read_page(now)

    def _restore(self, owner: SessionOwner, client: bytes, parts: list[Any], now: float, wall: float) -> None:
        """Give *owner* the session that was read as *parts*."""
        if parts[0] == []:  # another worker has taken it meanwhile: the fence tells
            return
        if self._settling and owner.has(client_id_of(client)):  # this worker has, for its client
            return
        record = self._begin(client)
        try:
            client_id = client.decode()
            stored = restore(parts, record, None, [], now, wall)
        except ValueError as error:  # also no UTF-8
            set_aside(record, str(error))
            return
        self.sessions += is_session(client)
        owner.adopt(AdoptedSession(client_id, stored, record), now)

    def _send(self, words: bytes, then: Callable[[object, float], None], now: float, replies: int = 1) -> None:
        """Send *words*, which the server answers by so many *replies*; *then* gets the last one.

        Once all sessions are adopted there is time: they are sent later.
        """
        self._then = then
        if self.done:
            self._command = _Step(self, words, replies)
            self._again_at = now + PACE
        else:
            self._submit(words, replies, now)

    def _submit(self, words: bytes, replies: int, now: float) -> None:
        if self._to_rename:
            self._renaming, self._to_rename = self._to_rename, []
        self._command = _Step(self, words, replies)
        self._commands.submit(self._command, now)


class _Step(Command):
    def __init__(self, adoption: Adoption, words: bytes, replies: int) -> None:
        super().__init__(words, TIMEOUT)
        self.words = words  # `packed` is not kept
        self.replies = self.replies_left = replies
        self._adoption = adoption

    def replied(self, reply: object, now: float) -> None:
        self._adoption.replied(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._adoption.failed(failure, detail, now)
