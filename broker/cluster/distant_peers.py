# Distant peers: the workers of other nodes. The lanes to them are messages of Redis, which `LaneOpener` makes reliable.
#
# A worker of another node is *listed* as long as the lease of its node runs. To join it, lanes are opened, and each end
# sends a greeting. It becomes a peer when something arrives: a node that has died is listed for some seconds more, and
# nothing here is to wait for a worker that was never heard.
#
# Lanes may fail while the workers at both ends live: the other end has begun its lanes anew, or has sent what no worker
# sends, or was silent while something waited for it. The worker is no peer any more then, as if it had died, and is
# joined again: what was under way is lost or comes again, as after a death, and a full synchronisation tells the rest.
# That costs time, of the other nodes, too. So lanes that fail again soon are opened after a pause, which doubles.
from collections.abc import Callable
from typing import Final, Protocol

from broker.cluster import wire
from broker.net.reactor import Reactor
from broker.net.stream import Handler, Stream
from broker.reasons import CloseReason
from broker.worker_id import WorkerId

FIRST_PAUSE: Final = 0.1  # seconds until lanes are opened again that fail for the second time; for the first time: none
LONGEST_PAUSE: Final = 30.0  # seconds
CALM: Final = 60.0  # seconds that lanes have to last for the next pause to be none
NOTHING_DUE: Final = float("inf")


class LaneOpener(Protocol):
    def open(self, worker: WorkerId, now: float) -> tuple[Stream, Stream]:
        """Begin lanes to *worker*, of another node, which may not have begun its own: (data, control)."""
        ...

    def close(self, worker: WorkerId) -> None:
        """End the lanes to *worker*, if there are some; what they have not sent is lost. Their streams end behind what
        has arrived.
        """
        ...

    def unreached(self, worker: WorkerId, now: float) -> float:
        """Seconds for which it is known that nothing reaches *worker*, to which lanes are open; 0.0: something may."""
        ...


class ListedWorker:
    """A worker of a node whose lease runs."""

    def __init__(self) -> None:
        self.data: Stream | None = None  # None: no lanes are open, until `due`
        self.control: Stream | None = None
        self.heard = False  # the worker is a peer
        self.opened_at = 0.0
        self.pause = 0.0  # seconds until the lanes are opened again if they fail now
        self.due = NOTHING_DUE


class DistantPeers:
    def __init__(
        self, reactor: Reactor, clock: Callable[[], float], heard: Callable[[WorkerId, Stream, Stream], None]
    ) -> None:
        """*heard* is called with a worker and its lanes, data and control, when something has arrived on one of them.

        From then on their handlers are others.
        """
        self.lanes: LaneOpener | None = None  # None: no other node can be reached, and none is waited for
        self._due = NOTHING_DUE  # when lanes are to be opened again, or before
        self._reactor = reactor
        self._clock = clock
        self._heard = heard
        self._listed: dict[WorkerId, ListedWorker] = {}
        self._unheard: dict[WorkerId, None] = {}  # those listed that are no peers

    def join(self, worker: WorkerId) -> None:
        """*worker* is listed: open lanes to it."""
        if self.lanes is not None and worker not in self._listed:
            self._listed[worker] = listed = ListedWorker()
            self._unheard[worker] = None
            self._open(worker, listed, self._clock())

    def leave(self, worker: WorkerId) -> bool:
        """*worker* is not listed any more: end its lanes. False: it was not listed."""
        listed = self._listed.pop(worker, None)
        self._unheard.pop(worker, None)
        if listed is not None:
            self._end(worker, listed)
        return listed is not None

    def withdrawn(self, worker: WorkerId) -> None:
        """*worker* is no peer any more. What it has sent may not be taken yet: `ended()` follows."""
        if worker in self._listed:
            self._unheard[worker] = None

    def end(self, worker: WorkerId) -> None:
        """The lanes to *worker* bring nothing that has not arrived; `ended()` follows when all of that is taken."""
        listed = self._listed.get(worker)
        if listed is not None:
            self._end(worker, listed)

    def ended(self, worker: WorkerId, data: Stream) -> None:
        """All that has arrived on *data*, of lanes that have ended, is taken, or is of no use."""
        listed = self._listed.get(worker)
        if listed is not None and listed.data is data:  # or it has left and is joined again
            self.failed(worker)

    def failed(self, worker: WorkerId) -> None:
        """The lanes to *worker* are of no use any more: destroy them, and open others if it is listed."""
        listed = self._listed.get(worker)
        if listed is None:
            return
        self._end(worker, listed)
        for stream in (listed.data, listed.control):
            if stream is not None:
                self._reactor.destroy(stream)
        now = self._clock()
        if now - listed.opened_at >= CALM:
            listed.pause = 0.0
        listed.due = now + listed.pause
        listed.pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, 2 * listed.pause))
        self._due = min(self._due, listed.due)
        self._reactor.soon(listed.due)

    def unreached(self, worker: WorkerId, now: float) -> float:
        """Seconds for which it is known that nothing reaches *worker*, which is a peer; 0.0: something may."""
        return 0.0 if self.lanes is None else self.lanes.unreached(worker, now)

    def unheard(self) -> list[WorkerId]:
        """Workers that are listed and no peers."""
        return list(self._unheard)

    def count_unheard(self) -> int:
        return len(self._unheard)

    def tick(self, now: float) -> float:
        """Open lanes that are due; the time at which the next ones are."""
        if now < self._due:
            return self._due
        for worker, listed in self._listed.items():
            if listed.due <= now:
                self._open(worker, listed, now)
        self._due = min([listed.due for listed in self._listed.values()], default=NOTHING_DUE)
        return self._due

    def bring(self, worker: WorkerId) -> None:
        """Something has arrived from *worker*."""
        listed = self._listed[worker]
        data, control = listed.data, listed.control
        assert data is not None and control is not None
        listed.heard = True
        self._unheard.pop(worker, None)
        self._heard(worker, data, control)

    def _open(self, worker: WorkerId, listed: ListedWorker, now: float) -> None:
        assert self.lanes is not None
        listed.due = NOTHING_DUE
        listed.opened_at = now
        listed.data, listed.control = self.lanes.open(worker, now)
        for stream in (listed.data, listed.control):
            self._reactor.attach(stream, Greeted(self, worker))
        listed.control.outbox.write(wire.number(wire.SYNC, 0))  # which asks for nothing
        self._reactor.wake()

    def _end(self, worker: WorkerId, listed: ListedWorker) -> None:
        listed.due = NOTHING_DUE
        if not listed.heard:
            for stream in (listed.data, listed.control):
                if stream is not None:
                    self._reactor.destroy(stream)
        listed.heard = False
        if worker in self._listed:
            self._unheard[worker] = None
        if self.lanes is not None:
            self.lanes.close(worker)


class Greeted(Handler):
    """A lane on which nothing has arrived yet from *worker*."""

    def __init__(self, distant: DistantPeers, worker: WorkerId) -> None:
        self._distant = distant
        self._worker = worker

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        if stream.handler is self:
            self._distant.bring(self._worker)
        handler = stream.handler
        assert handler is not None and handler is not self
        return handler.serve(stream, quantum, now)

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self._distant.failed(self._worker)
