# The durable sessions of a worker: their queues, and the connection to Redis that all of them share.
#
# It is a connection of its own: a claim must not wait behind a transaction of a megabyte.
from collections.abc import Callable
from typing import Any, Final, cast

from broker.reasons import StoreFailure
from broker.session.queue import MessageBudget
from broker.store.durable.group_commit import EXEC, MULTI, Fenced, GroupCommit
from broker.store.durable.pack import decode_pack
from broker.store.durable.queue import DurableQueue
from broker.store.redis.connection import packed
from broker.store.redis.pipeline import Command, CommandPipeline, OnReady

PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before, and what was lost is read again
PAUSE: Final = 0.1  # seconds until what the server refused is read again

Loaded = Callable[[DurableQueue | None, str, float], None]  # the queue, or why it cannot be read, or neither; now


class DurableStore(OnReady):
    def __init__(
        self,
        commands: CommandPipeline,
        *,
        fence: bytes,
        commit_number: bytes,
        hold: float,
        wall: Callable[[], float],
        fenced: Fenced,
    ) -> None:
        """*commands*: a connection that nobody else uses, and that is not started. The rest is as for GroupCommit."""
        self.commit = GroupCommit(
            commands, fence=fence, commit_number=commit_number, hold=hold, wall=wall, fenced=fenced
        )
        self._commands = commands
        self._wall = wall
        self._reads: list[_Read] = []  # those that are to be sent
        self._reads_at = 0.0  # not before this time
        commands.on_ready(self)

    def begin(self, key: bytes, most_bytes: int, budget: MessageBudget) -> DurableQueue:
        """An empty queue under *key*, which is not in use."""
        return DurableQueue(key, most_bytes, budget, self.commit, self._read)

    def load(self, key: bytes, most_bytes: int, budget: MessageBudget, then: Loaded) -> None:
        """Call *then* with the queue that is stored under *key*; with none if there is none, or it is damaged."""
        self._reads.append(_Load(self, self.begin(key, most_bytes, budget), then))

    def tick(self, now: float) -> float:
        """Send what is due; return the time of the next thing that will be. To be called at the end of each slice."""
        due = self.commit.tick(now)
        if self._reads:
            if now < self._reads_at:
                return min(due, self._reads_at)
            reads, self._reads = self._reads, []
            for read in reads:
                read.send(now)
        return due

    def redis_ready(self, now: float) -> None:
        self.commit.redis_ready(now)

    def _read(self, queue: DurableQueue) -> None:
        self._reads.append(_ReadPage(self, queue))

    def submit(self, command: Command, now: float) -> None:
        self._commands.submit(command, now)

    def wall(self) -> float:
        return self._wall()

    def failed(self, read: "_Read", failure: StoreFailure, now: float) -> None:
        """Have *read* tried again: a server that was full or away will be there again."""
        self._reads.append(read)
        self._reads_at = now + PAUSE


class _Read:
    """Something that is to be read."""

    def __init__(self, store: DurableStore, queue: DurableQueue) -> None:
        self.store = store
        self.queue = queue

    def send(self, now: float) -> None:
        raise NotImplementedError

    def replied(self, reply: object, now: float) -> None:
        raise NotImplementedError


class _ReadPage(_Read):
    def send(self, now: float) -> None:
        first, count = self.queue.page()
        if count:
            self.store.submit(_Reading(self, packed("LRANGE", self.queue.key, first, first + count - 1)), now)

    def replied(self, reply: object, now: float) -> None:
        self.queue.arrived(cast(list[bytes], reply), now, self.store.wall())


class _Load(_Read):
    """Reads the ends of the list: they say where it begins, and how much it has."""

    def __init__(self, store: DurableStore, queue: DurableQueue, then: Loaded) -> None:
        super().__init__(store, queue)
        self._then = then

    def send(self, now: float) -> None:
        key = self.queue.key
        ends = packed("LINDEX", key, 0) + packed("LINDEX", key, -1) + packed("LLEN", key)
        reading = _Reading(self, MULTI + ends + packed("SMEMBERS", self.queue.released_key) + EXEC)
        reading.replies_left = 6
        self.store.submit(reading, now)

    def replied(self, reply: object, now: float) -> None:
        first, last, length, released = cast(list[Any], reply)
        if not length and not released:
            self._then(None, "", now)
            return
        wall = self.store.wall()
        try:
            ends = [None if each is None else decode_pack(each, now, wall) for each in (first, last)]
            self.queue.restore(ends[0], ends[1], length, [int(position) for position in released])
        except ValueError as error:  # a DamagedPack, or what is no position
            self._then(None, str(error), now)
            return
        self._then(self.queue, "", now)


class _Reading(Command):
    def __init__(self, read: _Read, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._read = read

    def replied(self, reply: object, now: float) -> None:
        self._read.replied(reply, now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._read.store.failed(self._read, failure, now)
