# The requests of the supervisor that a worker answers: its clients, one client, its overload; and those that
# operator_requests.py makes: sessions, their queues, retained messages.
#
# An answer is made by the loop that serves clients, between two slices. So each answer is bounded, and a list of
# clients comes in pages. A page is a range of positions among the sessions, in the order of their creation: a session
# that begins or ends between two pages may be missing or appear twice. For a person who looks at a list that is enough.
# An answer that needs Redis comes later: see pending_answers.py.
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final, cast

from broker.insight.client_diagnostics import ClientDiagnostics
from broker.insight.overload_snapshot import OverloadSnapshot
from broker.insight.pending_answers import Arguments, RequestRefused
from broker.insight.warm_first import WarmFirst
from broker.metrics.interval import IntervalMetrics
from broker.net.reactor import Reactor
from broker.protocol.client_kinds import kind_of
from broker.protocol.connection import Connection
from broker.protocol.lifecycle import ConnectionLifecycle
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.store.sessions import SessionStore

PAGE: Final = 500  # clients in one answer: about a millisecond
FILTERS: Final = 200  # of one client that are shown


class AdminRequests:
    def __init__(
        self,
        store: SessionStore,
        lifecycle: ConnectionLifecycle,
        reactor: Reactor,
        diagnostics: ClientDiagnostics,
        overload: OverloadSnapshot,
        metrics: IntervalMetrics,
        inject: Callable[[str, float, float], None],
        clock: Callable[[], float],
        others: Mapping[str, Callable[[Arguments], object]],
        warm: WarmFirst,
    ) -> None:
        """*inject*(signal, value, until) sets an overload signal for a test; ValueError: there is no such signal.

        *others*: what answers further requests, by their names. *warm* has sessions read that are in Redis alone.
        """
        self._store = store
        self._lifecycle = lifecycle
        self._reactor = reactor
        self._diagnostics = diagnostics
        self._overload = overload
        self._metrics = metrics
        self._inject_signal = inject
        self._clock = clock
        self._others = others
        self._warm = warm

    def answer(self, what: str, arguments: Arguments) -> object:
        """The answer to the request *what*, as JSON can hold it, or a PendingAnswer. Raises RequestRefused."""
        if what == "clients":
            return self._clients(arguments)
        if what == "client":
            return self._warm.of(self._client)(arguments)
        if what == "why":
            return self._warm.of(self._why)(arguments)
        if what == "kick":
            return self._kick(arguments)
        if what == "inject":
            return self._inject(arguments)
        if what == "overload":
            return self._overload.take(self._clock())
        if what == "record":
            return self._metrics.last
        other = self._others.get(what)
        if other is not None:
            return other(arguments)
        raise RequestRefused(f"A worker does not know the request {what!r}.")

    def _clients(self, arguments: Arguments) -> object:
        """A page of sessions from *position* on whose client id contains *match*, and the position of the next page."""
        position = cast(int, arguments["position"])
        match = cast(str, arguments["match"])
        cold = self._warm.page("clients", arguments, self._summary)
        if cold is not None:
            return cold
        page = list(islice(self._store.sessions(), position, position + PAGE))
        following = position + PAGE if len(page) == PAGE else None
        found = [session for session in page if match in session.client_id]
        return {"clients": [self._summary(session) for session in found], "next": self._warm.after(following)}

    def _client(self, arguments: Arguments) -> object:
        session = self._session(arguments)
        if session is None:
            return None
        facts = self._summary(session)
        facts["filters"] = [
            {"filter": key.decode(), "qos": one.qos} for key, one in islice(session.subscriptions.items(), FILTERS)
        ]
        facts["will_topic"] = None if session.will is None else session.will.topic.decode()
        facts["configured"] = self._diagnostics.configured(session)
        facts["unsent_bytes"] = 0 if session.outbox is None else session.outbox.size
        return facts

    def _why(self, arguments: Arguments) -> object:
        return self._diagnostics.facts(cast(str, arguments["client"]))

    def _kick(self, arguments: Arguments) -> object:
        """Disconnect the client; False if it is not connected."""
        session = self._session(arguments)
        connection = None if session is None else self._connection(session)
        if connection is None:
            return False
        self._lifecycle.close(connection, CloseReason.KICKED, self._clock())
        return True

    def _inject(self, arguments: Arguments) -> object:
        """Set an overload signal to a value for some seconds. Tests use this."""
        seconds = cast(float, arguments["seconds"])
        try:
            self._inject_signal(
                cast(str, arguments["signal"]), cast(float, arguments["value"]), self._clock() + seconds
            )
        except ValueError as error:
            raise RequestRefused(str(error)) from None
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
            "kind": kind_of(session),
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
