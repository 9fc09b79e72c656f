# The hand-over of all sessions of a worker that stops, to the other workers of its node.
from typing import Final

import trio

from broker.cluster.peers import Peers
from broker.cluster.takeovers import Takeovers
from broker.protocol.essentials import Essentials
from broker.routing.routes import Routes
from broker.store.sessions import SessionStore

OFFERED_AT_ONCE: Final = 100  # sessions on their way to other workers
PAUSE: Final = 0.005  # seconds between two looks at how many have gone


class SessionHandOver:
    def __init__(
        self, base: Essentials, store: SessionStore, takeovers: Takeovers, peers: Peers, routes: Routes
    ) -> None:
        self._store = store
        self._takeovers = takeovers
        self._peers = peers
        self._routes = routes
        self._reactor = base.reactor
        self._log = base.log

    def sessions_here(self) -> int:
        """Sessions that no other worker has whole yet, without those in Redis alone: they stay for the next worker."""
        return self._store.count_here() + self._takeovers.leaving()

    def sessions_lost(self) -> int:
        """Those that end with this worker: in its memory alone."""
        return sum([session.storage is None for session in self._store.sessions()]) + self._takeovers.leaving()

    async def run(self) -> None:
        """Offer each session to the other workers, until they have all of them or there is no other worker."""
        sessions = list(self._store.sessions())
        for number, session in enumerate(sessions):
            while self._peers.all and number - (len(sessions) - self.sessions_here()) >= OFFERED_AT_ONCE:
                await trio.sleep(PAUSE)
            self._takeovers.offer(session)
            self._reactor.wake()
        # What waits in memory for shared subscriptions follows the last members.
        while self._peers.all and (self.sessions_here() or self._routes.waits_in_memory()):
            await trio.sleep(PAUSE)
        self._log.info("sessions_handed_over", sessions=len(sessions) - self.sessions_here())
