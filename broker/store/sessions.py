# Where sessions are found by client id, with a connection or without.
#
# A claim is answered by a call, as the session may be on another machine: nothing waits for the answer, and the worker
# goes on with other connections. In memory the answer comes before `claim()` returns.
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.mqtt.packets import Will
from broker.reasons import CloseReason
from broker.session.principal import may_have
from broker.session.session import Session


class Claimant(Protocol):
    """A CONNECT that claims its session. Exactly one of `found` and `refused` is called, once."""

    client_id: str
    clean_start: bool
    expiry: int  # of the session, in seconds, as granted
    will: Will | None
    user: str | None  # the verified user name, for which the will is published
    owner: str  # the tag of that user, or ANYBODY: see session/principal.py

    def found(self, session: Session | None) -> None:
        """There is a *session* that the claimant may have, and it is in the store; or there is none."""
        ...

    def refused(self, reason: CloseReason) -> None:
        """The session cannot be had, or not now; *reason* says why."""
        ...


class Claims(Protocol):
    """Where a CONNECT gets its session from."""

    def claim(self, claimant: Claimant) -> None:
        """Find the session of *claimant* for it. Claims of one client id are answered in their order."""

    def has_room(self, now: float) -> bool:
        """Whether one more claim would be answered in time."""


class SessionStore(Protocol):
    """The sessions of a worker. One session per client id [MQTT-3.1.3-2], [MQTT-3.1.4-3]."""

    def find(self, client_id: str) -> Session | None:
        """The session of *client_id*, if it is in this worker's memory."""

    def keep(self, session: Session) -> None:
        """Store *session* under its client id, in place of any other."""

    def forget(self, session: Session) -> None:
        """Remove *session*, which has ended or gone to another worker."""

    def may_cool(self, session: Session) -> bool:
        """Whether `cool()` may be called: nobody is about to have *session*, and nobody has to be told of it."""

    def cool(self, session: Session) -> None:
        """Remove *session*, which goes on in its durable store alone."""

    def without_will(self, session: Session) -> None:
        """The will of *session*, which goes on, was published or withdrawn: no other worker may publish it."""

    def sessions(self) -> Iterable[Session]:
        """All sessions of this worker."""

    def count(self) -> int:
        """How many sessions there are, also those that are in their durable store alone."""

    def count_here(self) -> int:
        """Those that are in the memory of this worker, and stored or not."""

    def count_also(self, others: Callable[[], int]) -> None:
        """Have `count()` add what *others* returns."""

    def count_in_memory(self) -> int:
        """Those that end with this worker, as they are in its memory alone."""

    def count_applications(self) -> int:
        """Those of APPLICATION clients."""


class MemorySessions:
    """Sessions in the memory of their worker: they end with it."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._durable = 0  # how many of them are stored elsewhere
        self._applications: dict[Session, None] = {}  # those of APPLICATION clients
        self._others: Callable[[], int] | None = None

    def claim(self, claimant: Claimant) -> None:
        session = self._sessions.get(claimant.client_id)
        if session is not None and not may_have(claimant.owner, session.principal.owner()):
            claimant.refused(CloseReason.CLIENT_ID_OF_OTHER_USER)
        else:
            claimant.found(session)

    def has_room(self, now: float) -> bool:
        return True

    def find(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def keep(self, session: Session) -> None:
        former = self._sessions.get(session.client_id)
        if former is not None and former.storage is not None:
            self._durable -= 1
            self._applications.pop(former, None)
        self._sessions[session.client_id] = session
        if session.storage is not None:
            self._durable += 1
            if session.storage.application:
                self._applications[session] = None

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
            if session.storage is not None:
                self._durable -= 1
                self._applications.pop(session, None)

    def may_cool(self, session: Session) -> bool:
        return True

    def cool(self, session: Session) -> None:
        self.forget(session)

    def without_will(self, session: Session) -> None:
        pass

    def sessions(self) -> Iterable[Session]:
        return self._sessions.values()

    def count(self) -> int:
        return len(self._sessions) + (0 if self._others is None else self._others())

    def count_here(self) -> int:
        return len(self._sessions)

    def count_also(self, others: Callable[[], int]) -> None:
        self._others = others

    def count_in_memory(self) -> int:
        return len(self._sessions) - self._durable

    def count_applications(self) -> int:
        return len(self._applications)
