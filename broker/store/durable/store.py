# The durable sessions of a worker, and the connection to Redis that all of them share.
#
# It is a connection of its own: a claim must not wait behind a transaction of a megabyte.
import zlib
from collections.abc import Callable
from typing import Final, cast

from broker.reasons import StoreFailure
from broker.session.queue import MessageBudget
from broker.store.durable.adoption import Adoption, SessionOwner, client_id_of
from broker.store.durable.group_commit import PAUSE, GroupCommit
from broker.store.durable.queue import DurableQueue
from broker.store.durable.record import SessionRecord
from broker.store.redis.connection import READY, packed
from broker.store.redis.keys import SLICES, Keys
from broker.store.redis.pipeline import Command, CommandPipeline, OnReady

PATIENCE: Final = 3600.0  # seconds: a connection that is silent ends long before, and what was lost is read again
WRONG_TYPE: Final = "WRONGTYPE"  # how Redis' error begins for a key of another type


class DurableStore(OnReady):
    """Also the `QueueReader` of its queues."""

    def __init__(
        self,
        commands: CommandPipeline,
        commit: GroupCommit,
        keys: Keys,
        node: str,
        incarnation: bytes,
        budget: MessageBudget,
        wall: Callable[[], float],
    ) -> None:
        """*commands*: a connection that nobody else uses, that *commit* writes to, and that is not started.

        *budget*: in which messages in memory count. *wall*: Unix time in seconds.
        """
        self.commit = commit
        self.adoption = Adoption(commands, keys, node, incarnation, self.begin, wall)
        self._commands = commands
        self._slices = [keys.sessions(number, incarnation) for number in range(SLICES)]
        self._budget = budget
        self._wall = wall
        self._owner: SessionOwner | None = None
        self._pages: list[_Page] = []  # that are to be read
        self._pages_at = 0.0  # not before this time
        self._damaged: list[tuple[bytes, str]] = []  # client ids, and why
        commands.on_ready(self)

    def serve(self, owner: SessionOwner, now: float) -> None:
        """Give *owner* the sessions of this node, no worker of which lives; then tell it what concerns them."""
        self._owner = owner
        self.adoption.begin(owner, now)

    def takes_sessions(self, now: float) -> bool:
        """Whether a new session would be stored now, or soon."""
        return self._commands.state == READY and not self.commit.stalled(now)

    def begin(self, client: bytes) -> tuple[SessionRecord, DurableQueue]:
        """What stores the session of *client*, of which nothing is stored yet; see `restore()` of both."""
        keys = self._slices[zlib.crc32(client) % SLICES]
        queue = DurableQueue(keys, client, self._budget, self.commit, self)
        return SessionRecord(keys, client, self.commit, queue, self._wall), queue

    def tick(self, now: float) -> float:
        """Send what is to be sent now; return the time of the next thing. To be called at the end of each slice."""
        if self._damaged:
            damaged, self._damaged = self._damaged, []
            for client, why in damaged:
                assert self._owner is not None
                self._owner.damaged(client_id_of(client), why, now)
        due = min(self.commit.tick(now), self.adoption.tick(now))
        if self._pages:
            if now < self._pages_at:
                due = min(due, self._pages_at)
            else:
                pages, self._pages = self._pages, []
                for page in pages:
                    page.send(now)
        return min(due, self._commands.tick(now))

    def settled(self) -> bool:
        """Whether everything is stored and read, or cannot be now."""
        return self._commands.state != READY or (self.commit.idle() and not self.waits())

    def waits(self) -> bool:
        """Whether a reply of the server is still to come."""
        return self._commands.statistics.waiting > 0

    def redis_ready(self, now: float) -> None:
        self.commit.redis_ready(now)

    def wall(self) -> float:
        """Unix time in seconds."""
        return self._wall()

    def read(self, queue: DurableQueue) -> None:
        self._pages.append(_Page(self, queue))

    def damaged(self, client: bytes, why: str) -> None:
        self._damaged.append((client, why))

    def submit(self, command: Command, now: float) -> None:
        self._commands.submit(command, now)

    def not_read(self, page: "_Page", now: float) -> None:
        """Have *page* read again: a server that was full or away will be there again."""
        self._pages.append(page)
        self._pages_at = now + PAUSE


class _Page:
    """A page of a queue that is to be read."""

    def __init__(self, store: DurableStore, queue: DurableQueue) -> None:
        self.store = store
        self._queue = queue

    def send(self, now: float) -> None:
        first, count = self._queue.page()
        if count:
            key = self._queue.key()
            self.store.submit(_ReadPage(self, packed("LRANGE", key, first, first + count - 1)), now)

    def arrived(self, packs: list[bytes], now: float) -> None:
        self._queue.arrived(packs, now, self.store.wall())

    def refused(self, why: str) -> None:
        """The server will never give it."""
        self._queue.damage(why)


class _ReadPage(Command):
    def __init__(self, page: _Page, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._page = page

    def replied(self, reply: object, now: float) -> None:
        self._page.arrived(cast(list[bytes], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        if detail.startswith(WRONG_TYPE):  # no access rule and no proxy: it will never be a list
            self._page.refused(detail)
        else:
            self._page.store.not_read(self._page, now)
