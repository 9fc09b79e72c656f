# ClientOverrides: what the supervisor says of the limits of single clients (overload/overrides.py), put in force.
#
# Every worker knows all of them, so a limit holds for its client wherever it is and wherever it comes to. Its end needs
# nobody: quotas and protection look at the time. What is told here afterwards only takes away what is left of it.
from collections.abc import Callable
from typing import Any, cast

from broker.net.reactor import Reactor
from broker.overload.overrides import limit_from
from broker.protocol.connection import Connection
from broker.protocol.protection import Protection
from broker.store.sessions import SessionStore


class ClientOverrides:
    def __init__(
        self, protection: Protection, store: SessionStore, reactor: Reactor, clock: Callable[[], float]
    ) -> None:
        self._protection = protection
        self._store = store
        self._reactor = reactor
        self._clock = clock

    def change(self, holding: list[dict[str, Any]], over: list[str]) -> None:
        """From now on the limits *holding* hold, each as it is `described()` and with `until`; those of *over* do not.

        *over*: client ids.
        """
        limits = self._protection.limits
        for facts in holding:
            limit = limit_from(facts, cast(float, facts["until"]))
            limits[limit.client_id] = limit
            self._apply(limit.client_id)
        for client_id in over:
            limits.pop(client_id, None)
            self._apply(client_id)

    def _apply(self, client_id: str) -> None:
        """If the client is connected here, it feels the change now."""
        session = self._store.find(client_id)
        if session is None or session.outbox is None:
            return
        stream = self._reactor.stream_of(session.outbox)
        if stream is not None:
            self._protection.limit_again(cast(Connection, stream), session, self._clock())
