# Peers without a mesh: what is written to their lanes stays in the outboxes, where tests read it.
import socket

from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.config.schema import Overload
from broker.delivery.outbox import unbounded
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.worker_id import WorkerId


class Lanes:
    """The peers of a worker, by `join()`."""

    def __init__(self) -> None:
        self.peers = Peers()
        self.now = 0.0
        self.reactor = Reactor(lambda: self.now, input_budget=1 << 20)
        self.failures: list[Exception] = []
        self.late: list[list[Peer]] = []  # the peers that a SUBACK has not waited for
        self._sockets: list[socket.socket] = []

    def join(self, shard: int, incarnation: int = 0, node: str = "node") -> Peer:
        worker = WorkerId(node, shard, incarnation or shard)
        peer = Peer(
            worker, self._stream(), self._stream(), Gate(Overload(), str(worker), 1, 0.0), None, distant=node != "node"
        )
        self.peers.add(peer)
        return peer

    def note_late(self, stream: Stream, peers: list[Peer], now: float) -> None:
        self.late.append(peers)

    def stream(self) -> Stream:
        """A stream that something may wait for."""
        return self._stream()

    def close(self) -> None:
        for one in self._sockets:
            one.close()

    def _stream(self) -> Stream:
        ours, theirs = socket.socketpair()
        self._sockets += [ours, theirs]
        return Stream(ours, "test", unbounded(ours.fileno(), self.reactor.dirty))


def frames(written: bytes, data_lane: bool = False) -> list[tuple[int, bytes]]:
    """The frames in *written*: (kind, body)."""
    found: list[tuple[int, bytes]] = []
    position = 0
    while position < len(written):
        if data_lane:
            assert wire.FRAME == written[position]
            position += 1
        stop = position + 4 + int.from_bytes(written[position : position + 4], "big")
        found.append((written[position + 4], written[position + wire.HEAD : stop]))
        position = stop
    return found


def told(peer: Peer) -> list[tuple[int, bytes]]:
    """The frames on the control lane to *peer*."""
    return frames(_taken(peer.control))


def written(peer: Peer) -> list[tuple[int, bytes]]:
    """The frames on the data lane to *peer*."""
    return frames(_taken(peer.data), data_lane=True)


def _taken(stream: Stream) -> bytes:
    """What waits to be sent on *stream*, which is removed."""
    outbox = stream.outbox
    if not outbox.size:
        return b""
    data = bytes(outbox.gather())
    outbox.sent(len(data), 0.0)
    return data
