# The control lane from a peer: the filters of its subscribers, and how much of what was sent to it it has processed.
#
# It is a lane of its own, so that it never waits behind messages.
from typing import Final

from broker.cluster import wire
from broker.cluster.lane_listener import LaneListener, MeshError
from broker.cluster.peer import Peer
from broker.cluster.peer_lane import PeerLane
from broker.net.stream import Stream
from broker.overload.quantum import FILTER_COST
from broker.routing.interest import entries_of
from broker.routing.routes import Routes

ENTRY_COST: Final = 1  # for each byte of entries of cold sessions: one has some 10 bytes and takes 0.3 us


class ControlLane(PeerLane):
    def __init__(self, peer: Peer, listener: LaneListener, routes: Routes) -> None:
        super().__init__(peer, listener)
        self._routes = routes
        self._sequence = 0  # of the last change of the peer that was taken
        self._confirmed = 0

    def take_input(self, stream: Stream, quantum: int, now: float) -> int:
        data = stream.input
        position = stream.position
        end = len(data)
        spent = 0
        stream.needs = 0
        while spent < quantum and position < end:
            body = position + wire.HEAD
            length = int.from_bytes(data[position : position + 4], "big")
            stop = position + 4 + length
            if body <= end and not 0 < length <= wire.LONGEST:
                raise MeshError(f"a frame of {length} bytes on the control lane")
            if body > end or stop > end:
                stream.needs = max(body, stop) - position if body <= end else body - position
                break
            kind = data[body - 1]
            self._take(kind, data[body:stop], now)
            spent += FILTER_COST
            if kind == wire.COLD_GAINED or kind == wire.COLD_LOST:
                spent += ENTRY_COST * (stop - body)
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

    def _take(self, kind: int, body: bytes, now: float) -> None:
        peer = self._peer
        if kind == wire.GAINED:
            sequence, filter = wire.read_change(body)
            peer.filters[filter] = None
            self._routes.add_neighbour(filter, peer)
            self._taken(sequence)
        elif kind == wire.LOST:
            sequence, filter = wire.read_change(body)
            peer.filters.pop(filter, None)
            self._routes.remove_neighbour(filter, peer)
            self._taken(sequence)
        elif kind == wire.GAINED_DURABLE:
            sequence, filter = wire.read_change(body)
            peer.confirming.filters[filter] = None
            self._routes.add_neighbour(filter, peer.confirming)
            self._taken(sequence)
        elif kind == wire.LOST_DURABLE:
            sequence, filter = wire.read_change(body)
            peer.confirming.filters.pop(filter, None)
            self._routes.remove_neighbour(filter, peer.confirming)
            self._taken(sequence)
        elif kind == wire.COLD_GAINED or kind == wire.COLD_LOST:
            self._take_cold(kind, *wire.read_change(body))
        elif kind == wire.SETTLED:
            peer.confirming.settled(wire.read_settled(body), now)
            self._listener.stored(peer, now)
        elif kind == wire.UNSETTLED:
            for completion in peer.confirming.take(wire.read_settled(body), now):
                self._listener.abandoned(completion, now)
            self._listener.stored(peer, now)
        elif kind == wire.LONG:
            peer.confirming.need_long(wire.read_settled(body), now)
            self._listener.stored(peer, now)
        elif kind == wire.LOGGED:
            peer.confirming.are_logged(wire.read_settled(body), now)
            self._listener.stored(peer, now)
        elif kind == wire.MEMBERS:
            self._take_members(*wire.read_members(body))
        elif kind == wire.CONFIRMED:
            peer.promise(*wire.read_confirmed(body))
            self._listener.confirmed(peer)
        elif kind == wire.SYNC:
            self._taken(wire.read_number(body))
        elif kind == wire.DONE:
            if peer.processed(wire.read_number(body), now):
                self._listener.opened(peer, now)
        elif kind == wire.PASSED:
            self._listener.passed(peer, wire.read_number(body))
        elif kind == wire.RETELL:
            self._listener.retell(peer, wire.read_number(body))
        elif kind == wire.ALL_TOLD:
            self._listener.all_told(peer)
        elif kind == wire.INHERITS:
            self._listener.inherits(peer, wire.read_number(body))
        elif kind == wire.NOT_INHERITED:
            self._listener.not_inherited(peer, wire.read_number(body))
        elif kind == wire.ADOPTED:
            self._listener.adopted(peer, wire.read_number(body))
        elif kind == wire.LEAVING:
            self._listener.leaving(peer)
        elif kind == wire.RELEASED:
            self._listener.released(peer)
        elif kind == wire.HEAR_ALL:
            self._listener.asked_to_hear(peer, wire.read_number(body))
        elif kind == wire.HEARD_ALL:
            self._listener.has_heard(peer, wire.read_number(body))
        elif kind == wire.DRAINED:
            peer.drained = True
        elif kind == wire.REPORT:
            if len(body) > wire.LARGEST_REPORT:
                raise MeshError(f"a report of {len(body)} bytes")
            self._listener.reported(body, now)
        elif not self._listener.about_session(peer, kind, body):
            raise MeshError(f"a frame of kind {kind} on the control lane")

    def _take_members(
        self, sequence: int, share: bytes, filter: bytes, members: int, quick: int, durable: bool
    ) -> None:
        """Members are those of the peer, or if any is durable, those of the neighbour that confirms."""
        peer, routes = self._peer, self._routes
        neighbour, other = (peer.confirming, peer) if durable else (peer, peer.confirming)
        if durable:
            peer.confirming.shared[share, filter] = None
        else:
            peer.confirming.shared.pop((share, filter), None)
        routes.set_remote_members(share, filter, neighbour, members, quick)
        if routes.has_remote_members(share, filter, other):
            routes.set_remote_members(share, filter, other, 0, 0)
        self._taken(sequence)

    def _take_cold(self, kind: int, sequence: int, told: bytes) -> None:
        if kind == wire.COLD_GAINED:
            known = self._routes.add_cold_elsewhere(told, self._peer.confirming)
        else:
            entries = entries_of(told, len(told))
            known = entries is not None
            self._routes.remove_cold_elsewhere(entries or [], self._peer.confirming)
        if not known:
            raise MeshError("malformed entries of cold sessions")
        self._taken(sequence)

    def _taken(self, sequence: int) -> None:
        if sequence:  # 0: part of a full synchronisation, which nothing waits for
            self._sequence = sequence
