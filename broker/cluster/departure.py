# Departure: a worker that is about to end confirms first what was published for it.
#
# Once it is gone its peers cannot know what it has stored, and would have to ask publishers to send that again. So it
# says that it is leaving: publishes for its sessions wait at its gate from then on, until others have them, and each
# peer releases it when nothing that was published before is unconfirmed.
#
# If a whole node stops, its workers wait for each other before: other nodes take over what they have stored when all
# have ended, and that must not wait for the slowest client of one of them.
from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.net.reactor import Reactor


class Departure:
    def __init__(self, peers: Peers, reactor: Reactor) -> None:
        self._peers = peers
        self._reactor = reactor

    # Of this worker.

    def say_drained(self) -> None:
        """This node stops, and this worker has no client any more."""
        for peer in self._peers.of_own_node():
            peer.tell(wire.frame(wire.DRAINED))
        self._reactor.wake()

    def drained(self) -> bool:
        """Whether no other worker of this node, which stops, has a client any more."""
        return all(peer.drained for peer in self._peers.of_own_node())

    def say_leaving(self) -> None:
        """This worker is about to end: have nothing more published for it. What was published is confirmed still."""
        for peer in self._peers.all:
            peer.tell(wire.frame(wire.LEAVING))
        self._reactor.wake()

    def may_leave(self) -> bool:
        """Whether no peer waits for this worker, after `say_leaving()`."""
        return all(peer.released for peer in self._peers.all)

    # Of a peer.

    def leaving(self, peer: Peer) -> None:
        """*peer* is about to end."""
        peer.leaving = True
        peer.gate.block()
        self.release(peer)

    def release(self, peer: Peer) -> None:
        """Let *peer* end, if it is leaving and has confirmed all that was published for it."""
        if peer.leaving and not peer.released and not peer.confirming.pending():
            peer.released = True
            peer.tell(wire.frame(wire.RELEASED))
