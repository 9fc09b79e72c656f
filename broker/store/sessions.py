# Where sessions are found by client id, with a connection or without.
#
# The protocol answers through a callable, as a store on another machine would: the hub never waits for a store,
# it goes on with other connections. In memory the answer comes before `claim()` returns.
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.session.session import Session


class SessionStore(Protocol):
    """The sessions of a worker. One session per client id [MQTT-3.1.3-2], [MQTT-3.1.4-3]."""

    def claim(self, client_id: str, then: Callable[[Session | None], None]) -> None:
        """Find the session of *client_id* for a connection that wants it, and call *then* with it."""

    def keep(self, session: Session) -> None:
        """*session* is the one of its client id from now on."""

    def forget(self, session: Session) -> None:
        """*session* ended."""

    def sessions(self) -> Iterable[Session]:
        """All of them."""

    def count(self) -> int:
        """How many."""


class MemorySessions:
    """Sessions in the memory of their worker: they end with it."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def claim(self, client_id: str, then: Callable[[Session | None], None]) -> None:
        then(self._sessions.get(client_id))

    def get(self, client_id: str) -> Session | None:
        """The session of *client_id*, if it is here."""
        return self._sessions.get(client_id)

    def keep(self, session: Session) -> None:
        self._sessions[session.client_id] = session

    def forget(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    def sessions(self) -> Iterable[Session]:
        return self._sessions.values()

    def count(self) -> int:
        return len(self._sessions)
