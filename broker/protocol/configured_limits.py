# The overrides of the configuration, applied to all clients and sessions of this worker.
from collections.abc import Callable
from typing import Any

from broker.config.overrides import override_from
from broker.net.reactor import Reactor
from broker.overload.quotas.configured import ConfiguredOverrides
from broker.protocol.connection_protection import ConnectionProtection
from broker.protocol.session_lifecycle import SessionLifecycle
from broker.store.sessions import SessionStore


class ConfiguredLimits:
    def __init__(
        self,
        sessions: SessionLifecycle,
        store: SessionStore,
        clients: ConnectionProtection,
        configured: ConfiguredOverrides,
        reactor: Reactor,
        clock: Callable[[], float],
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._clients = clients
        self._configured = configured
        self._reactor = reactor
        self._clock = clock

    def change(self, described: list[dict[str, Any]]) -> None:
        """Use the overrides *described*, each as `ClientOverride.described()`, in place of all former ones.

        A configuration is reloaded for many reasons: if its overrides are the former ones, no session is looked at.
        """
        tables = [override_from(one) for one in described]
        if tuple(tables) == self._configured.tables:
            return
        self._sessions.configure(tables)
        now = self._clock()
        for session in self._store.sessions():
            self._clients.limit_again(session, now)
        self._reactor.wake()
