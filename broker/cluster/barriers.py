# Barriers: a callable runs once every peer has processed all that was sent to it before.
#
# A barrier is a numbered frame on each data lane. A peer sends the number back when it reaches the frame; a peer that
# is gone counts as one that has.
from collections.abc import Callable

from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers


class Barrier:
    """*then* is called when none of *peers* is left."""

    def __init__(self, peers: set[Peer], then: Callable[[float], None]) -> None:
        self.peers = peers
        self.then = then


class Barriers:
    def __init__(self, peers: Peers, clock: Callable[[], float], failed: Callable[[Exception], None]) -> None:
        """*failed* is called with an exception of a callable that a barrier ran."""
        self._peers = peers
        self._clock = clock
        self._failed = failed
        self._pending: dict[int, Barrier] = {}
        self._number = 0

    def when_passed(self, then: Callable[[float], None], now: float) -> None:
        """Call *then* with the time once every peer has processed all that was sent to it so far."""
        if not self._peers.all:
            then(now)
            return
        self._number += 1
        self._pending[self._number] = Barrier(set(self._peers.all), then)
        self._peers.write(wire.DATA_HEAD + wire.number(wire.BARRIER, self._number))

    def passed(self, peer: Peer, number: int) -> None:
        """*peer* has processed all that was sent before the barrier *number*."""
        barrier = self._pending.get(number)
        if barrier is None:
            return
        barrier.peers.discard(peer)
        if barrier.peers:
            return
        del self._pending[number]
        try:
            barrier.then(self._clock())
        except Exception as error:
            self._failed(error)

    def remove(self, peer: Peer) -> None:
        """*peer* is gone: no barrier waits for it."""
        for number in list(self._pending):
            self.passed(peer, number)

    def waited_for(self) -> set[Peer]:
        """The peers that a barrier waits for."""
        return {peer for barrier in self._pending.values() for peer in barrier.peers}

    def pending(self) -> int:
        return len(self._pending)
