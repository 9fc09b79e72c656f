# Silent peers: workers of other nodes that something waits for and that say nothing, see mesh.py.
#
# Who waits says for whom. Peers that nobody waits for are not looked at, as there may be a thousand of them.
#
# A peer whose process has died has no connection to Redis any more, which Redis says at once. A peer that is slow has
# one: it is waited for longer, as lanes that are begun anew cost all who use them. So clients of a node whose processes
# have died, and those that go to another worker then, wait for UNREACHED. After the death of a whole machine, whose
# connections Redis still has, they wait for SILENCE. If one worker of a node is unreached, the others are asked for a
# sign of life, and given up with it if Redis says the same of them: a claim that has lost one of them asks all others.
#
# A SUBACK waits for half a second at most (announcements.py), so no peer is given up for being silent to it. If nothing
# reaches the peer it is given up: else each client that subscribes would wait, until the lease of a dead node ends.
from typing import Final

from broker.cluster.announcements import Announcements
from broker.cluster.barriers import Barriers
from broker.cluster.distant_peers import DistantPeers
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.takeovers import Takeovers

INTERVAL: Final = 0.1  # seconds between two looks
UNREACHED: Final = 0.25  # seconds, in which a worker whose connection to Redis was cut makes two attempts
SILENCE: Final = 1.0  # seconds, after which a supervisor ends a worker that hangs, too
LONG_TURN: Final = 0.25  # seconds by which a look is late: this worker stood still, and has not read what came


class SilentPeers:
    def __init__(
        self,
        peers: Peers,
        distant: DistantPeers,
        announcements: Announcements,
        barriers: Barriers,
        takeovers: Takeovers,
        now: float,
    ) -> None:
        self._peers = peers
        self._distant = distant
        self._announcements = announcements
        self._barriers = barriers
        self._takeovers = takeovers
        self._looked_at = now
        self._waited_for: set[Peer] = set()

    def look(self, now: float) -> list[Peer]:
        """The distant peers that were silent for SILENCE while something waited for them, or unreached for UNREACHED.
        Others are asked for a sign of life. Time in which this worker stood still does not count.
        """
        late = now - self._looked_at - INTERVAL
        self._looked_at = now
        waited_for = self._announcements.waited_for() | self._barriers.waited_for() | self._takeovers.waited_for()
        for peer in self._waited_for - waited_for:
            peer.waited_since = 0.0
        self._waited_for = waited_for
        silent: list[Peer] = []
        unreached: dict[str, bool] = {}  # nodes of which a worker is, by whether it is given up
        for peer in waited_for:
            if not peer.distant or peer.gone:
                continue
            if not peer.waited_since or late > LONG_TURN:
                peer.waited_since = now
            seconds = 0.0 if late > LONG_TURN else self._distant.unreached(peer.worker, now)
            if seconds > 0.0:
                unreached[peer.worker.node] = unreached.get(peer.worker.node, False) or seconds >= UNREACHED
            if seconds >= UNREACHED or now - max(peer.heard_at, peer.waited_since) >= SILENCE:
                silent.append(peer)
            elif now - peer.heard_at >= INTERVAL:
                self._announcements.probe(peer)
        for peer in self._announcements.answers_wait_for() - waited_for if late <= LONG_TURN else ():
            if self._distant.unreached(peer.worker, now) >= UNREACHED:
                silent.append(peer)
        if unreached:
            silent += self._look_beside(unreached, waited_for, silent, now)
        return silent

    def _look_beside(
        self, unreached: dict[str, bool], waited_for: set[Peer], silent: list[Peer], now: float
    ) -> list[Peer]:
        """The workers of the nodes *unreached* that are to be given up with one of their node."""
        found: list[Peer] = []
        for peer in self._peers.all:
            if not peer.distant or peer.worker.node not in unreached or peer in silent:
                continue
            if unreached[peer.worker.node] and self._distant.unreached(peer.worker, now) > 0.0:
                found.append(peer)
            elif peer not in waited_for and now - peer.heard_at >= INTERVAL:
                self._announcements.probe(peer)
        return found
