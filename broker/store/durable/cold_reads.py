# Reads of cold sessions: those whose worker keeps no more of them than an index says (index.py).
#
# The keys of a session may still have the incarnation of a worker that has ended: then it is taken from that worker, in
# the call that reads it. Each read is one command, and the connection is that of all durable sessions: what was sent
# before is carried out before.
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from broker.reasons import StoreFailure
from broker.store.durable.adoption import AdoptedSession, client_id_of, restore, set_aside
from broker.store.durable.record import SessionRecord
from broker.store.redis.keys import SLICES, Keys, SessionKeys
from broker.store.redis.pipeline import Command
from broker.store.redis.script import Script

PATIENCE: Final = 3600.0  # seconds, as for other reads: what was lost is read again

FOUND: Final = 0
MISSING: Final = 1  # it has ended, or another worker has taken it
DAMAGED: Final = 2  # it was put aside

Arrived = Callable[[int, AdoptedSession | None, float], None]  # FOUND with the session, or else why not; now


class ColdReadTarget(Protocol):
    """What reads need of the store."""

    def begin(self, client: bytes) -> SessionRecord: ...

    def submit(self, command: Command, now: float) -> None: ...

    def not_read(self, read: "ColdRead", failure: StoreFailure, now: float) -> None:
        """Send *read* again, later."""
        ...

    def wall(self) -> float: ...


class ColdReads:
    def __init__(self, store: ColdReadTarget, script: Script, keys: Keys, me: bytes, slices: list[SessionKeys]) -> None:
        """*me*: the incarnation of this worker; *slices*: its keys."""
        self._store = store
        self._script = script
        self._keys = keys
        self._me = me
        self._slices = slices

    def load(self, client: bytes, former: bytes, unsent: bool, late: bool, then: Arrived, now: float) -> None:
        """Read the session of *client*, whose keys are those of this worker, or of *former*: its incarnation.

        *unsent*: nothing that waits for it was sent to its client before. *late*: see `QueuePlaces.expects_late()`.
        """
        ours = self._slices[zlib.crc32(client) % SLICES]
        words: list[str | bytes | int] = ["read", ours.records, ours.queues, ours.released, client]
        keys: list[bytes] = []
        if former:
            theirs = ours.of(former)
            words = ["take", client, theirs.records, theirs.queues, theirs.released]
            words += [ours.records, ours.queues, ours.released, b"%.6f" % self._store.wall()]
            keys = [theirs.index, ours.index, self._keys.commit_number(self._me), self._keys.fence(former)]
        ColdRead(self._store, self._script, keys, words, client, unsent, late, then).send(now)


class ColdRead:
    """A session that is being read."""

    def __init__(
        self,
        store: ColdReadTarget,
        script: Script,
        keys: list[bytes],
        words: list[str | bytes | int],
        client: bytes,
        unsent: bool,
        late: bool,
        then: Arrived,
    ) -> None:
        self.store = store
        self._script = script
        self._keys = keys
        self._words = words
        self._client = client
        self._unsent = unsent
        self._late = late
        self._then = then

    def send(self, now: float) -> None:
        self.store.submit(_Answer(self, self._script.call(self._keys, self._words)), now)

    def arrived(self, reply: list[Any], now: float) -> None:
        parts = reply if self._keys else reply[0]
        if parts[0] == []:
            self._then(MISSING, None, now)
            return
        record = self.store.begin(self._client)
        try:
            stored = restore(parts, record, None, [], now, self.store.wall())
        except ValueError as error:
            set_aside(record, str(error))
            self._then(DAMAGED, None, now)
            return
        record.expect_index(stored.index_value())
        queue = record.present_queue()
        if queue is not None and self._unsent:
            queue.nothing_sent()
        if queue is not None and not self._late:
            queue.nothing_late()
        self._then(FOUND, AdoptedSession(client_id_of(self._client), stored, record), now)


class _Answer(Command):
    def __init__(self, read: ColdRead, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._read = read

    def replied(self, reply: object, now: float) -> None:
        self._read.arrived(cast(list[Any], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._read.store.not_read(self._read, failure, now)
