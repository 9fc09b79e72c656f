# Requests about sessions that may be in Redis alone: they are read first (protocol/cold_sessions.py).
#
# A list has the sessions in memory first, and then pages of the others. Those are cold again soon, so that a list of a
# million sessions does not fill the memory of the worker.
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from broker.insight.pending_answers import Arguments, PendingAnswer, PendingAnswers, RequestRefused
from broker.protocol.cold_sessions import ColdSessions
from broker.session.session import Session
from broker.store.durable.adoption import client_id_of
from broker.store.sessions import SessionStore

COLD_PAGE: Final = 50  # sessions in one answer that are read for it; as many are cooled meanwhile
COLD: Final = 1 << 40  # positions in a list from here on are of sessions in Redis alone
LATE: Final = "Redis did not give the session in time; try again."
UNREAD: Final = "Redis did not give the sessions in time; try again."

Request = Callable[[Arguments], object]
Summary = Callable[[Session], dict[str, Any]]


class WarmFirst:
    def __init__(self, cold: ColdSessions | None, store: SessionStore, pending: PendingAnswers) -> None:
        """*cold*: None: no session is ever in Redis alone."""
        self._cold = cold
        self._store = store
        self._pending = pending

    def of(self, request: Request) -> Request:
        """*request*, which looks for the session of `client` in memory."""
        return partial(self._answer, request)

    def after(self, following: int | None) -> int | None:
        """The position of the page after one of sessions in memory, behind which there is the position *following*."""
        return COLD if following is None and self._cold is not None and self._cold.count() else following

    def page(self, what: str, arguments: Arguments, summary: Summary) -> object:
        """The page of sessions in Redis alone at `position`, with `match` in their client ids; None: it is of others.

        The answer has the summaries as *what*.
        """
        cold, position = self._cold, cast(int, arguments["position"])
        if position < COLD or cold is None:
            return None
        names, after = cold.index.names(position - COLD, COLD_PAGE)
        clients = [client for name in names if cast(str, arguments["match"]) in (client := client_id_of(name))]
        page = ColdPage(what, clients, None if after < 0 else COLD + after, self._store, summary)
        if not clients:
            return page.result()
        answer = self._pending.begin(UNREAD)
        for client in clients:
            if not cold.warm(client, partial(page.read, client, answer), hot=True):
                page.read(client, answer, True)
        return answer

    def _answer(self, request: Request, arguments: Arguments) -> object:
        client = cast(str, arguments["client"])
        if self._cold is None or not self._cold.has(client):
            return request(arguments)
        answer = self._pending.begin(LATE)
        self._cold.warm(client, partial(self._warmed, request, arguments, answer))
        return answer

    def _warmed(self, request: Request, arguments: Arguments, answer: PendingAnswer, warm: bool) -> None:
        if answer.done:  # nobody waits for it any more
            return
        try:
            result = request(arguments)
        except RequestRefused as error:
            answer.refuse(str(error))
            return
        if isinstance(result, PendingAnswer):
            result.deliver_to(partial(_pass_on, answer))
        else:
            answer.reply(result)


class ColdPage:
    """A page of a list that is being read."""

    def __init__(
        self, what: str, clients: list[str], following: int | None, store: SessionStore, summary: Summary
    ) -> None:
        self.clients = clients
        self.reading = set(clients)
        self._what = what
        self._following = following
        self._store = store
        self._summary = summary

    def read(self, client: str, answer: PendingAnswer, warm: bool) -> None:
        """The session of *client* is in memory, if there is one."""
        self.reading.discard(client)
        if not self.reading:
            answer.reply(self.result())

    def result(self) -> dict[str, Any]:
        found = [session for client in self.clients if (session := self._store.find(client)) is not None]
        return {self._what: [self._summary(session) for session in found], "next": self._following}


def _pass_on(answer: PendingAnswer, result: object, why: str) -> None:
    if why:
        answer.refuse(why)
    else:
        answer.reply(result)
