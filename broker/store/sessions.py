# Where sessions are found by client id, with a connection or without.
#
# The protocol answers through an object, as a store on another machine would: the hub never waits for a store,
# it goes on with other connections. In memory the answer comes before `claim()` returns.
from collections.abc import Iterable
from typing import Protocol

from broker.mqtt.packets import Will
from broker.reasons import CloseReason
from broker.session.session import Session


class Claimant(Protocol):
    """A CONNECT that wants its session. Exactly one of `found` and `refused` is called, once."""

    client_id: str
    clean_start: bool
    expiry: int  # of the session (s), as it is granted
    will: Will | None
    user: str | None  # the name that was verified, who leaves the will

    def found(self, session: Session | None) -> None:
        """The session that there was, which is in the store; None: there was none."""
        ...

    def refused(self, reason: CloseReason) -> None:
        """It may be somewhere that cannot be asked now."""
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
        """*session* is the one of its client id from now on."""

    def forget(self, session: Session) -> None:
        """*session* ended."""

    def without_will(self, session: Session) -> None:
        """The will of *session*, which goes on, was published or taken back: nobody else has to publish it."""

    def sessions(self) -> Iterable[Session]:
        """All of them."""

    def count(self) -> int:
        """How many."""


class MemorySessions:
    """Sessions in the memory of their worker: they end with it."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def claim(self, claimant: Claimant) -> None:
        claimant.found(self._sessions.get(claimant.client_id))

    def has_room(self, now: float) -> bool:
        return True

    def find(self, client_id: str) -> Session | None:
        return self._sessions.get(client_id)

    def keep(self, session: Session) -> None:
        self._sessions[session.client_id] = session

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def without_will(self, session: Session) -> None:
        pass

    def sessions(self) -> Iterable[Session]:
        return self._sessions.values()

    def count(self) -> int:
        return len(self._sessions)
