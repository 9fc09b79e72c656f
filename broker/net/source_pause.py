# How the core pauses a connection that publishes: the core knows the outbox of a connection and not its stream.
from broker.delivery.outbox import Outbox
from broker.net.reactor import Reactor


class StreamPause:
    """The `SourcePause` for *reason*, one of `Pause`. *reads_ahead*: a paused stream is read ahead."""

    def __init__(self, reactor: Reactor, reason: int, reads_ahead: bool) -> None:
        self._reactor = reactor
        self._reason = reason
        self._reads_ahead = reads_ahead

    def pause(self, source: Outbox) -> None:
        stream = self._reactor.stream_of(source)
        if stream is None:
            return
        if self._reads_ahead:
            self._reactor.pause_reading_ahead(stream, self._reason)
        else:
            self._reactor.pause(stream, self._reason)

    def resume(self, source: Outbox) -> None:
        stream = self._reactor.stream_of(source)
        if stream is not None:
            self._reactor.resume(stream, self._reason)
