# The peers of this worker: the other workers of its node that are alive, in the order in which they joined.
#
# One object that everything reads that has something to tell the peers; only mesh.py adds and removes.
from broker.cluster.peer import Peer
from broker.worker_id import WorkerId


class Peers:
    def __init__(self) -> None:
        self.all: list[Peer] = []

    def find(self, worker: WorkerId) -> Peer | None:
        for peer in self.all:
            if peer.worker == worker:
                return peer
        return None

    def write(self, chunk: bytes) -> None:
        """Append *chunk* to the data lane of every peer."""
        for peer in self.all:
            peer.write(chunk)

    def tell(self, frame: bytes) -> int:
        """Append *frame* to the control lane of every peer, ahead of messages; returns how many peers there are."""
        for peer in self.all:
            peer.tell(frame)
        return len(self.all)
