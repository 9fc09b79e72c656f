# Taking a session that another worker had: it is here once what is stored of it is read (sessions.lua), or known.
from collections.abc import Callable
from typing import Any, Protocol, cast

from broker.reasons import StoreFailure
from broker.store.durable.adoption import AdoptedSession, client_id_of, restore, set_aside
from broker.store.durable.group_commit import PATIENCE
from broker.store.durable.queue_state import QueueState
from broker.store.durable.record import SessionRecord
from broker.store.redis.pipeline import Command

Taken = Callable[[AdoptedSession | None, float], None]  # the session; None: there is none, or it is damaged. Now


class Store(Protocol):
    def wall(self) -> float:
        """Unix time in seconds."""
        ...

    def submit(self, command: Command, now: float) -> None: ...

    def not_read(self, read: "Take", failure: StoreFailure, now: float) -> None:
        """Send *read* again, later."""
        ...


class Take:
    """A session that another worker had is here once it is read."""

    def __init__(
        self,
        store: Store,
        record: SessionRecord,
        client: bytes,
        state: QueueState | None,
        again: list[bytes],
        then: Taken,
    ) -> None:
        """*state*, *again*: see `encode_state()`."""
        self.store = store
        self._record = record
        self._client = client
        self._state = state
        self._again = again
        self._then = then
        self._command = b""
        self._one_of_many = False

    def read(self, command: bytes, one_of_many: bool, now: float) -> None:
        """Read it by *command*. *one_of_many*: the reply is a list of sessions, with one."""
        self._command, self._one_of_many = command, one_of_many
        self.send(now)

    def send(self, now: float) -> None:
        self.store.submit(_Read(self, self._command), now)

    def replied(self, reply: list[Any], now: float) -> None:
        self.arrived(reply[0] if self._one_of_many else reply, now)

    def arrived(self, parts: list[Any], now: float) -> None:
        """*parts*: what sessions.lua reads of it."""
        record = self._record
        if parts[0] == []:
            self._then(None, now)
            return
        try:
            stored = restore(parts, record, self._state, self._again, now, self.store.wall())
        except ValueError as error:
            set_aside(record, str(error))
            self._then(None, now)
        else:
            self._then(AdoptedSession(client_id_of(self._client), stored, record), now)


class _Read(Command):
    def __init__(self, take: Take, command: bytes) -> None:
        super().__init__(command, PATIENCE)
        self._take = take

    def replied(self, reply: object, now: float) -> None:
        self._take.replied(cast(list[Any], reply), now)

    def failed(self, failure: StoreFailure, detail: str, now: float) -> None:
        self._take.store.not_read(self._take, failure, now)
