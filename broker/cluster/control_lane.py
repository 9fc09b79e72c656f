# The control lane from a peer: what its clients want, and how far it has come with what we sent.
from broker.cluster import wire
from broker.cluster.data_lane import Ends, MeshError
from broker.cluster.peer import Peer
from broker.net.stream import Handler, Stream
from broker.overload.quantum import FILTER_COST
from broker.reasons import CloseReason
from broker.routing.routes import Routes


class ControlEnds(Ends):
    """Who is told what concerns more than one peer."""

    def opened(self, peer: Peer, now: float) -> None:
        """The gate of *peer* is open again."""
        raise NotImplementedError

    def passed(self, peer: Peer, barrier: int, now: float) -> None:
        """*peer* has processed all that was written before *barrier*."""
        raise NotImplementedError

    def retell(self, peer: Peer) -> None:
        """*peer* has to be told once more what is retained."""
        raise NotImplementedError

    def all_told(self, peer: Peer) -> None:
        """We know all that the clients of *peer* have subscribed to."""
        raise NotImplementedError

    def reported(self, report: bytes, now: float) -> None:
        """A peer says how overloaded it is."""
        raise NotImplementedError


class ControlLane(Handler):
    def __init__(self, peer: Peer, ends: ControlEnds, routes: Routes) -> None:
        self._peer = peer
        self._ends = ends
        self._routes = routes
        self._sequence = 0  # of the last change that was taken
        self._confirmed = 0

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        data = stream.input
        position = stream.position
        end = len(data)
        spent = 0
        stream.needs = 0
        while spent < quantum and position < end:
            body = position + wire.HEAD
            stop = position + 4 + int.from_bytes(data[position : position + 4], "big")
            if body > end or stop > end:
                stream.needs = max(body, stop) - position if body <= end else body - position
                break
            self._take(data[body - 1], data[body:stop], now)
            spent += FILTER_COST
            position = stop
        stream.position = position
        stream.left = end - position
        if position == end:
            stream.input = b""
            stream.position = 0
        if self._sequence != self._confirmed:
            self._confirmed = self._sequence
            self._peer.tell(wire.confirmed(self._sequence, self._peer.written()))
        return spent

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._ends.lane_lost(self._peer, stream, now)

    def _take(self, kind: int, body: bytes, now: float) -> None:
        peer = self._peer
        if kind == wire.GAINED:
            sequence, filter = wire.read_change(body)
            peer.filters[filter] = None
            self._routes.learn(filter, peer)
            self._taken(sequence)
        elif kind == wire.LOST:
            sequence, filter = wire.read_change(body)
            peer.filters.pop(filter, None)
            self._routes.unlearn(filter, peer)
            self._taken(sequence)
        elif kind == wire.MEMBERS:
            sequence, share, filter, members, quick = wire.read_members(body)
            self._routes.learn_shared(share, filter, peer, members, quick)
            self._taken(sequence)
        elif kind == wire.CONFIRMED:
            peer.promise(*wire.read_confirmed(body))
            self._ends.confirmed(peer)
        elif kind == wire.SYNC:
            self._taken(wire.read_number(body))
        elif kind == wire.DONE:
            if peer.processed(wire.read_number(body), now):
                self._ends.opened(peer, now)
        elif kind == wire.PASSED:
            self._ends.passed(peer, wire.read_number(body), now)
        elif kind == wire.RETELL:
            self._ends.retell(peer)
        elif kind == wire.ALL_TOLD:
            self._ends.all_told(peer)
        elif kind == wire.REPORT:
            if len(body) > wire.LARGEST_REPORT:
                raise MeshError(f"a report of {len(body)} bytes")
            self._ends.reported(body, now)
        elif not self._ends.about_session(peer, kind, body):
            raise MeshError(f"a frame of kind {kind} on the control lane")

    def _taken(self, sequence: int) -> None:
        if sequence:  # 0: a newcomer is told what was there before it, and nobody waits for that
            self._sequence = sequence
