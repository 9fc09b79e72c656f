# The peers of this worker: the other workers of the cluster that it has lanes to, in the order in which they joined.
#
# Those of other nodes, which are *distant*, are peers as those of the own node are. What differs is said where it does.
#
# One object that everything reads that has something to tell the peers; only mesh.py adds and removes.
from typing import Final

from broker.cluster.peer import Peer
from broker.worker_id import WorkerId

MOST_LEFT: Final = 1000  # workers of other nodes that are remembered as ended


class Peers:
    def __init__(self) -> None:
        self.all: list[Peer] = []
        self._of_own_node: list[Peer] = []
        self._by_worker: dict[WorkerId, Peer] = {}
        self._by_incarnation: dict[int, Peer] = {}
        self._left: dict[WorkerId, None] = {}
        self.absent = 0  # workers of other nodes that are no peers, and may have durable sessions

    def add(self, peer: Peer) -> None:
        self.all.append(peer)
        self._by_worker[peer.worker] = peer
        self._by_incarnation[peer.worker.incarnation] = peer
        if not peer.distant:
            self._of_own_node.append(peer)

    def remove(self, peer: Peer) -> None:
        self.all.remove(peer)
        if self._by_worker.get(peer.worker) is peer:
            del self._by_worker[peer.worker]
            del self._by_incarnation[peer.worker.incarnation]
        if not peer.distant:
            self._of_own_node.remove(peer)

    def find(self, worker: WorkerId) -> Peer | None:
        return self._by_worker.get(worker)

    def of_incarnation(self, incarnation: int) -> Peer | None:
        return self._by_incarnation.get(incarnation)

    def of_own_node(self) -> list[Peer]:
        """Those of the node of this worker: the list itself, which is not to be changed."""
        return self._of_own_node

    def joins(self, worker: WorkerId) -> None:
        """*worker*, of another node, lives."""
        self._left.pop(worker, None)

    def leaves(self, worker: WorkerId) -> None:
        """*worker*, of another node, has ended, or its node is no part of the cluster any more."""
        self._left[worker] = None
        if len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]

    def has_left(self, worker: WorkerId) -> bool:
        return worker in self._left

    def write(self, chunk: bytes) -> None:
        """Append *chunk* to the data lane of every peer."""
        for peer in self.all:
            peer.write(chunk)

    def tell(self, frame: bytes) -> int:
        """Append *frame* to the control lane of every peer, ahead of messages; returns how many peers there are."""
        for peer in self.all:
            peer.tell(frame)
        return len(self.all)
