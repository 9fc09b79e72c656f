# What this worker announces to all its peers: filters, members of shared subscriptions, and retained messages.
#
# A filter that gains its first subscriber here, or loses its last, is told to every peer under a sequence number, and
# each peer confirms the numbers it has taken. A SUBACK waits for these confirmations, so it means "subscribed in the
# whole node". A confirmation also says what the peer had sent before it: `when_confirmed()` waits until that has been
# taken as well, so a message that any worker retained before is found among the retained messages here.
#
# A retained message is written to every peer by the worker where it was set: all workers hold all of them.
from collections import deque
from collections.abc import Callable

from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.routing.neighbour import Neighbours
from broker.session.message import Message


class Announcements(Neighbours):
    """Without peers every method returns at once."""

    def __init__(self, peers: Peers, reactor: Reactor, failed: Callable[[Exception], None]) -> None:
        """*failed* is called with an exception of a callable that waited for confirmations."""
        self._peers = peers
        self._reactor = reactor
        self._failed = failed
        self._sequence = 0  # of the last change that was told
        self._waiting: deque[tuple[int, Stream, Callable[[], None]]] = deque()

    def gained(self, filter: bytes) -> None:
        self._tell_change(wire.GAINED, filter)

    def lost(self, filter: bytes) -> None:
        self._tell_change(wire.LOST, filter)

    def shared(self, share: bytes, filter: bytes, members: int, ready: int) -> None:
        if self._peers.all:
            self._sequence += 1
            self._peers.tell(wire.members(self._sequence, share, filter, members, ready))

    def _tell_change(self, kind: int, filter: bytes) -> None:
        if self._peers.all:
            self._sequence += 1
            self._peers.tell(wire.change(kind, self._sequence, filter))

    def joined(self, peer: Peer) -> None:
        """*peer* is new: a full synchronisation tells it all changes up to now, so nothing waits for their numbers."""
        peer.confirmed = self._sequence

    def when_confirmed(self, stream: Stream, then: Callable[[], None]) -> None:
        """Call *then* once every peer has confirmed all changes so far; *stream* is not read until then."""
        if not self._peers.all:
            then()
            return
        self._sequence += 1
        self._peers.tell(wire.number(wire.SYNC, self._sequence))
        self._reactor.pause(stream, Pause.SUBSCRIBE)
        self._waiting.append((self._sequence, stream, then))

    def settle(self) -> None:
        """A peer has confirmed changes, or is gone: call what waited for it."""
        waiting = self._waiting
        while waiting and self._confirmed(waiting[0][0]):
            _, stream, then = waiting.popleft()
            self._reactor.resume(stream, Pause.SUBSCRIBE)
            try:
                then()
            except Exception as error:
                self._failed(error)

    def _confirmed(self, sequence: int) -> bool:
        return all(peer.confirmed >= sequence for peer in self._peers.all)

    def waiting(self) -> int:
        return len(self._waiting)

    def gates(self) -> list[Gate]:
        return [peer.gate for peer in self._peers.all]

    def free(self) -> bool:
        return all(peer.gate.free for peer in self._peers.all)

    def retained(self, message: Message, owner: str, stamp: int) -> None:
        if self._peers.all:
            self._peers.write(wire.message(message, wire.KEEP | wire.DELIVER, owner, stamp))

    def not_retained(self, message: Message) -> None:
        if self._peers.all:
            self._peers.write(wire.message(message, wire.DELIVER, "", 0))
