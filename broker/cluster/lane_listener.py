# What the two lanes of a peer report beside messages and interest. The mesh implements it.
from broker.cluster.peer import Peer
from broker.delivery.completion import Completion
from broker.net.stream import Stream
from broker.session.message import Message
from broker.session.session import Session


class MeshError(Exception):
    """A peer sent what no worker sends, after which nothing on the lane can be trusted.

    From a peer of this node it is a mistake in our own code, and ends the worker. A peer of another node may be of
    another build: its lanes are begun anew.
    """


class LaneListener:
    def lane_lost(self, peer: Peer, stream: Stream) -> None:
        """The lane *stream* has ended: *peer* is gone."""
        raise NotImplementedError

    def malformed(self, peer: Peer, error: Exception) -> None:
        """What *peer*, of another node, has sent cannot be read: *error* says why. Its lanes are of no use any more."""
        raise NotImplementedError

    def confirmed(self, peer: Peer) -> None:
        """*peer* has confirmed changes, or this worker has processed what the peer sent before it confirmed them."""
        raise NotImplementedError

    def all_told(self, peer: Peer) -> None:
        """*peer* has told all filters of its subscribers."""
        raise NotImplementedError

    def inherits(self, peer: Peer, incarnation: int) -> None:
        """*peer* is to adopt the durable sessions of the dead worker *incarnation*: it has more to tell."""
        raise NotImplementedError

    def not_inherited(self, peer: Peer, incarnation: int) -> None:
        """It does not: another worker was first."""
        raise NotImplementedError

    def adopted(self, peer: Peer, incarnation: int) -> None:
        """*peer* has adopted them, and has told what they wait for."""
        raise NotImplementedError

    def all_retained(self, peer: Peer) -> None:
        """*peer* has told all retained messages that it had to tell."""
        raise NotImplementedError

    def retell(self, peer: Peer, writer: int) -> None:
        """*peer* asks for the retained messages again, with those of the worker that has *writer* in its stamps."""
        raise NotImplementedError

    def leaving(self, peer: Peer) -> None:
        """*peer* is about to end."""
        raise NotImplementedError

    def released(self, peer: Peer) -> None:
        """*peer* waits for nothing that this worker, which is about to end, has to confirm."""
        raise NotImplementedError

    def asked_to_hear(self, peer: Peer, number: int) -> None:
        """*peer* asks, with a *number*, to be told when this worker has heard all others."""
        raise NotImplementedError

    def has_heard(self, peer: Peer, number: int) -> None:
        """*peer* has heard all others since it was asked with *number*."""
        raise NotImplementedError

    def opened(self, peer: Peer, now: float) -> None:
        """The gate of *peer* has opened."""
        raise NotImplementedError

    def stored(self, peer: Peer, now: float) -> None:
        """*peer* has confirmed publishes for durable sessions: its store has room, perhaps."""
        raise NotImplementedError

    def passed(self, peer: Peer, barrier: int) -> None:
        """*peer* has processed all that was sent before the barrier with this number."""
        raise NotImplementedError

    def reported(self, report: bytes, now: float) -> None:
        """*report* says how overloaded a peer is."""
        raise NotImplementedError

    def abandoned(self, completion: Completion, now: float) -> None:
        """A peer had not stored a publish for a session that was taken from it."""
        raise NotImplementedError

    def retained(self, peer: Peer, message: Message, owner: str, stamp: int, now: float) -> None:
        """*peer* tells that *owner* has set a retained message, or deleted it if it is empty, under *stamp*."""
        raise NotImplementedError

    def about_session(self, peer: Peer, kind: int, body: bytes) -> bool:
        """Take a frame about a session that goes from one worker to another; false if *kind* is no such frame."""
        raise NotImplementedError

    def session(self, client_id: str) -> Session | None:
        """The session of *client_id*, if it is at this worker."""
        raise NotImplementedError

    def lane_due(self, peer: Peer, when: float) -> None:
        """The data lane of *peer* needs its tick at *when*, at the latest."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Our own code failed on one message; the message is lost, and the lane goes on."""
        raise NotImplementedError
