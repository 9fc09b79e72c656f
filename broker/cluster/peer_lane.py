# A lane from a peer, as its stream has it: what both lanes do with what a peer sends that cannot be read.
from broker.cluster.lane_listener import LaneListener
from broker.cluster.peer import Peer
from broker.net.stream import Handler, Stream
from broker.reasons import CloseReason


class PeerLane(Handler):
    def __init__(self, peer: Peer, listener: LaneListener) -> None:
        self._peer = peer
        self._listener = listener

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        peer = self._peer
        if not peer.distant:
            return self.take_input(stream, quantum, now)
        peer.heard_at = now
        try:
            return self.take_input(stream, quantum, now)
        except Exception as error:  # perhaps of another build: see lane_listener.py
            self._listener.malformed(peer, error)
            return quantum

    def take_input(self, stream: Stream, quantum: int, now: float) -> int:
        """Take what the stream has read, as `serve()`. MeshError: it is what no worker sends."""
        raise NotImplementedError

    def drained(self, stream: Stream, now: float) -> None:
        pass  # nothing waits for the outbox: gates bound its content

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._listener.lane_lost(self._peer, stream)
