# Inspection: what a worker answers when its supervisor asks about its clients.
#
# An answer is made between two slices, by the loop that serves clients: so each is bounded, and a list of clients
# comes in pages. A page is by position among the sessions, in the order they began: who comes and goes meanwhile may
# be missed or told twice, which does for a person who looks.
from collections.abc import Callable
from itertools import islice
from typing import Any, Final, cast

from broker.insight.explaining import Explaining
from broker.insight.overview import Overview
from broker.net.reactor import Reactor
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.store.sessions import SessionStore

PAGE: Final = 500  # clients in one answer: about a millisecond
FILTERS: Final = 200  # of one client that are shown

Arguments = dict[str, Any]


class Unanswerable(Exception):
    """What was asked cannot be answered. Its text is one sentence."""


class Inspection:
    def __init__(
        self, store: SessionStore, lifecycle: ConnectionLifecycle, reactor: Reactor, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._reactor = reactor
        self._clock = clock
        # Called with a signal's name, the value it shall have and until when (s); ValueError: why it cannot.
        self.inject: Callable[[str, float, float], None] = _inject_nothing
        self.explaining: Explaining | None = None
        self.overview: Overview | None = None

    def answer(self, what: str, arguments: Arguments) -> object:
        """What *what* asks for; Unanswerable."""
        if what == "clients":
            return self._clients(arguments)
        if what == "client":
            return self._client(arguments)
        if what == "why" and self.explaining is not None:
            return self.explaining.facts(cast(str, arguments["client"]))
        if what == "kick":
            return self._kick(arguments)
        if what == "inject":
            return self._inject(arguments)
        if what == "overload" and self.overview is not None:
            return self.overview.overload(self._clock())
        if what == "record" and self.overview is not None:
            return self.overview.record()
        raise Unanswerable(f"A worker does not know what {what!r} means.")

    def _clients(self, arguments: Arguments) -> object:
        """A page from *position* on, of those with *match* in their id; the next position, None at the end."""
        position = cast(int, arguments["position"])
        match = cast(str, arguments["match"])
        page = list(islice(self._store.sessions(), position, position + PAGE))
        following = position + PAGE if len(page) == PAGE else None
        found = [session for session in page if match in session.client_id]
        return {"clients": [self._summary(session) for session in found], "next": following}

    def _client(self, arguments: Arguments) -> object:
        session = self._session(arguments)
        if session is None:
            return None
        facts = self._summary(session)
        facts["filters"] = [
            {"filter": key.decode(), "qos": one.qos} for key, one in islice(session.subscriptions.items(), FILTERS)
        ]
        facts["will_topic"] = None if session.will is None else session.will.topic.decode()
        facts["unsent_bytes"] = 0 if session.outbox is None else session.outbox.size
        return facts

    def _kick(self, arguments: Arguments) -> object:
        """Whether the client was connected; now it is not."""
        session = self._session(arguments)
        connection = None if session is None else self._connection(session)
        if connection is None:
            return False
        self._lifecycle.close(connection, CloseReason.KICKED, self._clock())
        return True

    def _inject(self, arguments: Arguments) -> object:
        """A test says what a signal of overload is, for some time."""
        seconds = cast(float, arguments["seconds"])
        try:
            self.inject(cast(str, arguments["signal"]), cast(float, arguments["value"]), self._clock() + seconds)
        except ValueError as error:
            raise Unanswerable(str(error)) from None
        return {}

    def _session(self, arguments: Arguments) -> Session | None:
        return self._store.find(cast(str, arguments["client"]))

    def _connection(self, session: Session) -> Connection | None:
        outbox = session.outbox
        return None if outbox is None else cast(Connection | None, self._reactor.stream_of(outbox))

    def _summary(self, session: Session) -> dict[str, Any]:
        connection = self._connection(session)
        return {
            "client": session.client_id,
            "connected": connection is not None,
            "address": "" if connection is None else connection.address,
            "transport": "" if connection is None else connection.transport,
            "version": session.version,
            "user": "" if connection is None or connection.user is None else connection.user,
            "expiry": session.expiry,
            "subscriptions": len(session.subscriptions),
            "inflight": session.inflight(),
            "waiting": session.waiting(),
            "writable": session.writable(),
        }


def _inject_nothing(signal: str, value: float, until: float) -> None:
    raise ValueError(f"There is no signal {signal!r} here.")
