# The durable sessions and the retained messages of a worker, and the connection to Redis that all of them share.
#
# It is a connection of its own: a claim must not wait behind a transaction of a megabyte. For replicas there is another
# one (replication.py), over which nothing is read.
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, Final, Protocol, cast

from broker.log import Log
from broker.overload.gate import Gate
from broker.reasons import StoreFailure
from broker.routing.hybrid_clock import HybridClock
from broker.routing.retained import Retained
from broker.session.expiry import ExpirySchedule
from broker.session.queue import MessageBudget
from broker.store.durable.adoption import (
    Adoption,
    SessionOwner,
    client_id_of,
)
from broker.store.durable.application_logs import ApplicationLogs, LogHooks, LogSettings
from broker.store.durable.application_queue import ApplicationQueue
from broker.store.durable.cold_reads import ColdReads
from broker.store.durable.dropped_queues import DroppedQueues
from broker.store.durable.group_commit import PAUSE, GroupCommit
from broker.store.durable.group_queue import GroupQueue, is_group
from broker.store.durable.lease_scripts import LeaseKeys, digest_of
from broker.store.durable.pack import Pack
from broker.store.durable.queue import DurableQueue
from broker.store.durable.queue_state import decode_state
from broker.store.durable.recent_bodies import RecentBodies
from broker.store.durable.record import SessionRecord
from broker.store.durable.removals import GIVE, SESSIONS, Words
from broker.store.durable.retained import RetainedStore
from broker.store.durable.retained_load import RetainedLoad
from broker.store.durable.shared_bodies import ReadBodies
from broker.store.durable.stored_session import DamagedRecord, StoredSession, read_subscriptions
from broker.store.durable.sweeper import Sweeper
from broker.store.durable.take import Take, Taken
from broker.store.logs.port import GroupLink
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY, packed
from broker.store.redis.keys import SLICES, Keys, SessionKeys
from broker.store.redis.pipeline import WRONG_TYPE, CallbackCommand, Command, CommandPipeline, OnReady
from broker.store.redis.pubsub import ChannelSubscription
from broker.store.redis.script import Script
from broker.worker_id import WorkerId

PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before, and what was lost is read again
PAGES: Final = 64  # of queues that are read at once, 4 MiB or 6 ms of Redis: a transaction waits behind them
MESSAGE_UNITS: Final = 20  # of the reactor's quantum: to read a message, and to send it
Looked = Callable[[StoredSession | None], None]  # its record; None: there is none that can be read


class ReturnTaker(Protocol):
    """Returns what sessions leave to the groups it came from: returned.py."""

    def take(self, keys: SessionKeys, client: bytes, queue: DurableQueue, groups: list[bytes]) -> None:
        """See `QueueMaker.left()`."""
        ...


class SharedLogWork(Protocol):
    """Works with the logs of filters that APPLICATION clients share: shared_logs.py."""

    def has_work(self) -> bool:
        """Whether `tick()` has something to do at once."""
        ...

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        ...

    def heard(self, notice: bytes, now: float) -> None: ...  # a notice about leases


class DurableStore(OnReady):
    """Also the `QueueReader` of its queues, and the `QueueMaker` of its records."""

    def __init__(
        self,
        commands: CommandPipeline,
        commit: GroupCommit,
        keys: Keys,
        worker: WorkerId,
        workers: int,
        budget: MessageBudget,
        wall: Callable[[], float],
        ttl: float,
        soon: Callable[[float], None],
    ) -> None:
        """*worker* is one of *workers* of its node. *commands*: a connection that nobody else uses, that *commit*
        writes to, and that is not started.

        *budget*: in which messages in memory count. *wall*: Unix time in seconds. *ttl*: seconds that a message may
        wait. *soon* has `tick()` called at a time.
        """
        self.commit = commit
        self._script = Script(commands, SESSIONS)
        self._dropped = DroppedQueues(commit, commands)
        self.adoption = Adoption(commands, self._script, keys, worker, workers, self.begin, self._dropped, wall, soon)
        self.commands: Final = commands
        self._commands = commands
        self._keys = keys
        self._me = worker.incarnation_text.encode()
        self._slices = [keys.sessions(number, self._me) for number in range(SLICES)]
        self.cold_reads = ColdReads(self, self._script, keys, self._me, self._slices)
        self._budget = budget
        self._wall = wall
        self.expiry = ExpirySchedule(ttl)
        self._sweeper = Sweeper(self.expiry, wall)
        self._owner: SessionOwner | None = None
        self._expected: dict[bytes, SessionRecord] = {}  # that come from other workers
        self._doubted: set[bytes] = set()  # of these, those that the fence has named meanwhile
        self._reads: list[Read] = []  # that are to be sent
        self._pages: deque[_Page] = deque()  # behind them, as long as there is room
        self._pages_left = PAGES  # that may be sent
        self._recent = RecentBodies()
        self._reads_at = 0.0  # not before this time
        self._damaged: list[tuple[DurableQueue, str]] = []  # and why
        self.retained: RetainedStore | None = None
        self.retained_load: RetainedLoad | None = None
        self.return_taker: ReturnTaker | None = None
        self.logs: ApplicationLogs | None = None
        self.log_hooks: Final = LogHooks()
        self.shared_logs: SharedLogWork | None = None
        self.lease_notices: ChannelSubscription | None = None  # which tells `heard()`
        self._worker = worker
        self.workers: Final = workers  # of the node
        commands.on_ready(self)

    def store_retained(self, retained: Retained, stamps: HybridClock, most_bytes: int) -> None:
        """Store changes of *retained*, and have `serve()` read what is stored. *most_bytes*: of unwritten changes."""
        keys, commit = self._keys, self.commit
        self.retained = RetainedStore(retained, stamps, commit, keys, self._worker, self.workers, most_bytes)
        self.retained_load = RetainedLoad(self._commands, keys, retained, stamps, self._wall)

    def keep_logs(
        self, link: GroupLink, gate: Gate, settings: LogSettings, log: Log | None = None, db: int = 0
    ) -> None:
        """Have the messages of APPLICATION sessions wait in logs, by *link*. To be called before `serve()`.

        *gate*: of publishes for such sessions, which is that of the link. *log* hears which logs fail. *db*: of Redis.
        """
        leases = LeaseKeys(self._keys, self._keys.leases(db))
        commit, hooks, wall = self.commit, self.log_hooks, self._wall
        self.logs = ApplicationLogs(link, gate, settings, wall, hooks, commit.confirm, commit.when_removed, leases, log)

    def taken(self, client: bytes) -> None:
        """Another worker has taken the session of *client*, as the fence of this worker says."""
        if client in self._expected:
            self._doubted.add(client)
        if self.logs is not None:
            self.logs.topics.taken(client)

    def serve(self, owner: SessionOwner, now: float) -> None:
        """Give *owner* the sessions of this shard, whose former workers have ended; then tell it what concerns them."""
        self._owner = owner
        self.expiry.offset = self._wall() - now
        self.adoption.begin(owner, now)
        if self.retained_load is not None:
            self.retained_load.begin(now)

    def retained_loaded(self) -> bool:
        """Whether all retained messages have been read."""
        return self.retained_load is None or self.retained_load.done

    def takes_sessions(self, now: float) -> bool:
        """Whether a new session would be stored now, or soon."""
        return self._commands.state == READY and not self.commit.stalled(now)

    def answers(self, now: float) -> bool:
        """Whether `GroupCommit.confirm()` is answered now, or soon: also by a server that is full."""
        return self._commands.state == READY and (self.commit.full or not self.commit.stalled(now))

    def trouble(self, now: float) -> StoreFailure | None:
        """Why nothing is stored now."""
        return StoreFailure.UNREACHABLE if self._commands.state != READY else self.commit.trouble(now)

    def missing_replicas(self) -> tuple[int, int]:
        """How many replicas have what was stored last, and how many have to; (0, 0): none is missing."""
        replication = self.commit.replication
        if replication is None or not replication.missing():
            return 0, 0
        return replication.have, replication.needed

    def start(self, now: float) -> None:
        """Connect to Redis."""
        self._commands.start(now)
        if self.lease_notices is not None:
            self.lease_notices.start(now)
        if self.commit.replication is not None:
            self.commit.replication.commands.start(now)

    def move(self, address: RedisAddress, now: float) -> None:
        """Redis is at *address* from now on."""
        self._commands.move(address, now)
        if self.lease_notices is not None:
            self.lease_notices.move(address, now)
        if self.commit.replication is not None:
            self.commit.replication.commands.move(address, now)

    def begin(self, client: bytes, application: bool = False) -> SessionRecord:
        """What stores the session of *client*, of which nothing is stored yet; see `restore()`.

        *client* may be the name of a list of messages that wait for a shared subscription (shared_lists.py).
        *application*: the client is of that kind; its session has a queue from the beginning.
        """
        keys = self._slices[zlib.crc32(client) % SLICES]
        record = SessionRecord(keys, client, self.commit, self)
        if application:
            record.become_application()
        return record

    def giving(self, keys: SessionKeys, client: bytes, taker: bytes) -> Words:
        theirs = keys.of(taker)
        names: Words = (keys.index, theirs.index, self._keys.commit_number(taker))
        words: Words = ("give", client, keys.records, keys.queues, keys.released)
        return (GIVE, *names, *words, theirs.records, theirs.queues, theirs.released, b"%.6f" % self._wall())

    def make_queue(self, keys: SessionKeys, client: bytes, application: bool = False) -> DurableQueue:
        if application and self.logs is not None:
            return ApplicationQueue(keys, client, self._budget, self.commit, self, self.expiry, self.logs)
        kind = GroupQueue if is_group(client) else DurableQueue
        return kind(keys, client, self._budget, self.commit, self, self.expiry)

    def log_gate(self) -> Gate | None:
        return None if self.logs is None else self.logs.gate

    def members_key(self, key: bytes) -> bytes:
        return b"" if self.logs is None else self.logs.lease_keys.members(digest_of(key))

    def left(self, keys: SessionKeys, client: bytes, queue: DurableQueue, groups: list[bytes]) -> None:
        if self.return_taker is None:
            queue.clear()
        else:
            self.return_taker.take(keys, client, queue, groups)

    def expect(self, client: bytes, application: bool = False) -> tuple[SessionRecord, DurableQueue]:
        """What stores the session of *client*, which another worker has still. `take()` follows, or its end.

        *application*: that worker says so; else `take()` finds it out, and the session must not have the queue before.
        """
        self._expected[client] = record = self.begin(client, application)
        queue = record.queue()
        queue.expect()
        return record, queue

    def forget(self, client: bytes) -> None:
        """The session of *client* does not come."""
        self._expected.pop(client, None)
        self._doubted.discard(client)

    def expect_again(self, client: bytes) -> None:
        """What has been delivered meanwhile to the session of *client*, which is expected, was dropped."""
        self._expected[client].queue().expect()

    def look(self, client: bytes, former: bytes, then: Looked, now: float) -> None:
        """Read the record of the session of *client*, and call *then*.

        *former*: the incarnation of the worker that may have it; it may also have given it to this one.
        """
        ours = self._slices[zlib.crc32(client) % SLICES]
        reads = [packed("HGETALL", each.records + client) for each in (ours.of(former), ours)]
        _LookAtRecord(self, b"".join([packed("MULTI"), *reads, packed("EXEC")]), then).send(now)

    def take(self, client: bytes, former: bytes, state: bytes, then: Taken, now: float) -> None:
        """Read the session of *client*, which is expected, and call *then*.

        *former*: the incarnation of the worker that has it and has ended, or of this one; b"": a worker that lives has
        given it to this one, with *state*.

        Another worker may have taken the session from this one already, before it was read here; then the fence names
        it. A session that was given and that the fence has named meanwhile is looked for in Redis. Before this worker
        takes a session from *former*, it reads its fence to the end: an entry of an earlier loss, read later, would end
        the session that it has by then.
        """
        record = self._expected.pop(client)
        doubted = client in self._doubted
        self._doubted.discard(client)
        former = b"" if former == self._me else former
        known, again, read = decode_state(state)
        take = Take(self, record, client, known, again, then)
        ours = self._slices[zlib.crc32(client) % SLICES]
        if former:
            self.commit.confirm(partial(self._take_from, take, client, ours, former))
        elif doubted:
            self.commit.confirm(partial(self._read_given, take, client, ours))
        elif read is None:
            self._read_given(take, client, ours)
        else:
            take.arrived(read, now)

    def _read_given(self, take: Take, client: bytes, ours: SessionKeys) -> None:
        command = self._script.call([], ["read", ours.records, ours.queues, ours.released, client])
        take.read(command, True, self.commit.now)

    def _take_from(self, take: Take, client: bytes, ours: SessionKeys, former: bytes) -> None:
        theirs = ours.of(former)
        words: list[str | bytes | int] = ["take", client, theirs.records, theirs.queues, theirs.released]
        words += [ours.records, ours.queues, ours.released, b"%.6f" % self._wall()]
        keys = [theirs.index, ours.index, self._keys.commit_number(self._me), self._keys.fence(former)]
        take.read(self._script.call(keys, words), False, self.commit.now)

    def find(self, client: bytes, then: Callable[[WorkerId | None], None], now: float) -> None:
        """Call *then* with the worker of any node that has the session of *client* stored, maybe this one, or None."""
        keys, slice = self._keys, self._keys.slice_of(client)
        words: list[str | bytes | int] = ["find", client, self._worker.node]
        words += [keys.durable_owners(""), keys.indexes(slice), keys.records(slice)]
        _Find(self, self._script.call([keys.nodes], words), then).send(now)

    def tick(self, now: float) -> float:
        """Send what is to be sent now; return the time of the next thing. To be called at the end of each slice."""
        if self._damaged:
            damaged, self._damaged = self._damaged, []
            for queue, why in damaged:
                assert self._owner is not None
                self._owner.damaged(client_id_of(queue.client), why, not queue.ended, now)
        due = min(self.adoption.tick(now), self._sweeper.tick(now, self._commands.state == READY))
        if self.retained is not None and self.retained_load is not None:
            due = min(due, self.retained.tick(now), self.retained_load.tick(now))
        if self.logs is not None:
            due = min(due, self.logs.tick(now))
        if self.shared_logs is not None:
            due = min(due, self.shared_logs.tick(now))
        if self.lease_notices is not None:
            due = min(due, self.lease_notices.tick(now))
        due = min(due, self._dropped.tick(now))
        due = min(due, self.commit.tick(now))
        replication = self.commit.replication
        if replication is not None:
            due = min(due, replication.tick(now))
        if self._reads or self._pages:
            if now < self._reads_at:
                due = min(due, self._reads_at)
            else:
                self._send_reads(now)
        return min(due, self._commands.tick(now))

    def may_send(self) -> bool:
        """Whether `send()` has something to do, or will have."""
        if self.shared_logs is not None and self.shared_logs.has_work():
            return True
        if self.logs is not None and self.logs.has_work():
            return True
        return self.commit.may_begin() or bool(self._pages or self._reads)

    def send(self, now: float) -> float:
        """Send a transaction, if one is due, and what is to be read; return when the next transaction will be due."""
        due = inf if self.logs is None else self.logs.tick(now)
        if self.shared_logs is not None:
            due = min(due, self.shared_logs.tick(now))
        due = min(due, self.commit.tick(now))
        if (self._pages or self._reads) and now >= self._reads_at:
            self._send_reads(now)
        return due

    def _send_reads(self, now: float) -> None:
        reads, self._reads = self._reads, []
        for read in reads:
            read.send(now)
        while self._pages and self._pages_left and now >= self._reads_at:
            self._pages_left -= 1
            if not self._pages.popleft().send(now):
                self._pages_left += 1

    def settled(self) -> bool:
        """Whether everything is stored and read, or cannot be now."""
        unwritten = self.retained is not None and self.retained.unwritten()
        return self._commands.state != READY or (self.commit.idle() and not self.waits() and not unwritten)

    def waits(self) -> bool:
        """Whether a reply of the server is still to come."""
        replication = self.commit.replication
        waiting = 0 if replication is None else replication.commands.statistics.waiting
        return self._commands.statistics.waiting + waiting > 0

    def redis_ready(self, now: float) -> None:
        self.commit.redis_ready(now)

    def wall(self) -> float:
        """Unix time in seconds."""
        return self._wall()

    def read(self, queue: DurableQueue) -> None:
        self._pages.append(_Page(self, queue))

    def has_bodies(self, queue: DurableQueue, packs: list[Pack]) -> bool:
        return not isinstance(queue, GroupQueue) and self._recent.fill(packs)

    def read_bodies(self, queue: DurableQueue, packs: list[Pack]) -> None:
        self._reads.append(_Bodies(self, queue, packs))

    def bodies_read(self, queue: DurableQueue, packs: list[Pack]) -> None:
        """The bodies of *packs* were read."""
        if not isinstance(queue, GroupQueue):  # its messages are given to members, each with its own receivers
            self._recent.keep(packs)

    def dropped(self, keys: SessionKeys, name: bytes) -> None:
        self._dropped.add(keys, name)

    def damaged(self, queue: DurableQueue, why: str) -> None:
        self._damaged.append((queue, why))

    def heard(self, notice: bytes, now: float) -> None:
        if self.shared_logs is not None:
            self.shared_logs.heard(notice, now)

    def script(self, text: bytes) -> Script:
        """A script that is called by `submit()`."""
        return Script(self._commands, text)

    def submit(self, command: Command, now: float) -> None:
        self._commands.submit(command, now)

    def page_done(self) -> None:
        """A page of a queue has arrived, or was not read: there is room for another one."""
        self._pages_left += 1

    def page_not_read(self, page: "_Page", failure: StoreFailure, now: float) -> None:
        """Send *page* again, as `not_read()`."""
        self._script.failed(failure, now)
        self._pages.append(page)
        self._reads_at = now + PAUSE

    def not_read(self, read: "Read", failure: StoreFailure, now: float) -> None:
        """Send *read* again: a server that was full or away will be there again."""
        self._script.failed(failure, now)
        self._reads.append(read)
        self._reads_at = now + PAUSE


class Read(Protocol):
    """Something that is to be read, for as long as it takes."""

    def send(self, now: float) -> None: ...


class _Page:
    """A page of a queue that is to be read."""

    def __init__(self, store: DurableStore, queue: DurableQueue) -> None:
        self.store = store
        self._queue = queue

    def send(self, now: float) -> bool:
        """False if there is nothing to read now."""
        first, count = self._queue.page()
        if count:
            key = self._queue.key()
            self.store.submit(_ReadPage(self, packed("LRANGE", key, first, first + count - 1)), now)
        return count > 0

    def arrived(self, packs: list[bytes], now: float) -> int:
        """The *packs* of the page; returns how many messages they have."""
        if packs:
            return self._queue.arrived(packs, now, self.store.wall())
        self.store.commit.confirm(self._missing)  # unless another worker has taken the session: then it has ended
        return 0

    def _missing(self) -> None:
        self._queue.arrived([], self.store.commit.now, self.store.wall())

    def refused(self, why: str) -> None:
        """The server will never give it."""
        self._queue.damage(why)


class _ReadPage(Command):
    def __init__(self, page: _Page, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._page = page

    def replied(self, reply: object, now: float) -> None:
        self._page.store.page_done()
        self.units += MESSAGE_UNITS * self._page.arrived(cast(list[bytes], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._page.store.page_done()
        if detail.startswith(WRONG_TYPE):  # no access rule and no proxy: it will never be a list
            self._page.refused(detail)
        else:
            self._page.store.page_not_read(self._page, failure, now)


class _Bodies:
    """The bodies of a page of a queue, that are to be read."""

    def __init__(self, store: DurableStore, queue: DurableQueue, packs: list[Pack]) -> None:
        self._store = store
        self._queue = queue
        self._packs = packs
        self._why = ""

    def send(self, now: float) -> None:
        self._store.submit(ReadBodies(self._store.commit.bodies, self._packs, PATIENCE, self._arrived), now)

    def _arrived(self, missing: int, why: str, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._store.not_read(self, failure, self._store.commit.now)
        elif missing or why:
            self._why = why or f"{missing} bodies are missing"
            self._store.commit.confirm(self._missing)  # the queue may be that of another worker, which has read them
        else:
            self._store.bodies_read(self._queue, self._packs)
            self._queue.bodies_arrived(self._packs, "", self._store.commit.now, self._store.wall())

    def _missing(self) -> None:
        self._queue.bodies_arrived(self._packs, self._why, self._store.commit.now, self._store.wall())


class _LookAtRecord:
    """The record of a session that another worker has, or has given to this one."""

    def __init__(self, store: DurableStore, commands: bytes, then: Looked) -> None:
        self._store = store
        self._commands = commands
        self._then = then

    def send(self, now: float) -> None:
        command = CallbackCommand(self._commands, PATIENCE, self._read)
        command.replies_left = 4
        self._store.submit(command, now)

    def _read(self, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._store.not_read(self, failure, self._store.commit.now)
            return
        stored: StoredSession | None = None
        for fields in cast(list[Any], reply):
            if isinstance(fields, list) and fields and stored is None:
                with suppress(DamagedRecord):  # whoever takes it will see that
                    stored = read_subscriptions(fields)
        self._then(stored)


class _Find:
    """Which worker has a session is to be looked up."""

    def __init__(self, store: DurableStore, command: bytes, then: Callable[[WorkerId | None], None]) -> None:
        self._store = store
        self._command = command
        self._then = then

    def send(self, now: float) -> None:
        self._store.submit(CallbackCommand(self._command, PATIENCE, self._replied), now)

    def _replied(self, reply: object, failure: StoreFailure | None) -> None:
        if failure is not None:
            self._store.not_read(self, failure, self._store.commit.now)
            return
        found = cast(list[bytes], reply)
        self._then(WorkerId(found[2].decode(), int(found[1]), int(found[0], 16)) if found else None)
