# What the loop serves the streams of clients with. Other streams have a `Handler` (stream.py) of their own each.
import socket

from broker.delivery.outbox import Outbox
from broker.delivery.ring import Ring
from broker.net.stream import Stream
from broker.reasons import CloseReason, ProtocolError


class Service:
    """Serves the clients. The loop calls it with the bytes of streams; it never touches a socket."""

    def open(
        self, sock: socket.socket, address: str, dirty: Ring[Outbox], now: float, handshake: bool
    ) -> Stream | None:
        """Make the stream of an accepted connection. None: the connection is closed at once.

        *handshake*: the transport does a handshake before the service gets bytes.
        """
        raise NotImplementedError

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        """Take packets from *stream* for about *quantum* units; return the units used."""
        raise NotImplementedError

    def serve_while_paused(self, stream: Stream, now: float) -> int:
        """Take what must not wait from the input of *stream*, which is paused; return the units used."""
        raise NotImplementedError

    def refuse(self, stream: Stream, error: ProtocolError, now: float) -> None:
        """The peer of *stream* does not keep to the protocol of its transport."""
        raise NotImplementedError

    def drained(self, stream: Stream, now: float) -> None:
        """*stream* is writable again."""
        raise NotImplementedError

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        """Nothing can be sent to *stream* any more: its peer is gone, or it has to be closed at once."""
        raise NotImplementedError

    def shed(self, stream: Stream, reason: CloseReason, now: float) -> None:
        """Close *stream* after sending its peer the reason."""
        raise NotImplementedError

    def tick(self, now: float) -> float:
        """Do what is due; return the time of the next thing to do, at least a slice away."""
        raise NotImplementedError

    def work(self, until: float) -> bool:
        """Continue unfinished work until the time *until*; return whether some is left."""
        raise NotImplementedError

    def out_of_descriptors(self) -> None:
        """A connection could not be accepted."""
        raise NotImplementedError
