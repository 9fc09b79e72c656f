# A peer: another worker of the cluster, at the other end of two lanes.
#
# Nothing that is for a peer is dropped. A publish takes room at the gate of the peer before it is written to the data
# lane. The peer reports how many bytes of the lane it has processed; marks, which are made as the lane is written, say
# how many publishes that is. Above SHUT bytes on the lane, of whatever kind, the gate is closed until OPEN are left.
from collections import deque
from typing import Final

from broker.cluster import wire
from broker.cluster.confirmations import ConfirmingPeer
from broker.mqtt.packets import V5, V311
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.routing.hybrid_clock import writer_of
from broker.routing.neighbour import Neighbour
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.worker_id import WorkerId

SHUT: Final = 2 * 1024 * 1024  # bytes on their way to a peer: tens of milliseconds of its work
MARK: Final = 0.001  # seconds between two marks
OPEN: Final = 1024 * 1024


class Mark:
    """How much had been taken at the gate when *written* bytes had been written to the lane."""

    def __init__(self, written: int, count: int, size: int, at: float) -> None:
        self.written = written
        self.count = count
        self.size = size
        self.at = at


class Peer(Neighbour):
    def __init__(
        self,
        worker: WorkerId,
        data: Stream,
        control: Stream,
        gate: Gate,
        store: Gate | None,
        log: Gate | None = None,
        distant: bool = False,
        former: bool = False,
    ) -> None:
        """*store*: the gate of publishes for durable sessions there. *log*: of those that are appended to a log.

        *distant*: the worker is of another node. *former*: its lanes have the format before that of this worker.
        """
        super().__init__(worker, gate, False)
        self.distant: Final = distant
        self.former: Final = former
        self.shift = 0.0  # seconds to add to a time of its monotonic clock for one of ours
        self.drained = False  # its node stops, and it has no client any more
        self.leaving = False  # it is about to end, and nothing more is to be published for it
        self.released = False  # it was told that nothing it has to confirm is waited for, or has told so
        self.confirming = ConfirmingPeer(self, self.write, store, log)
        self.data = data
        self.control = control
        self.confirmed = 0  # the last change that the peer has taken, all that it sent before being processed here
        self.owed = 0  # the last change that was waited for in vain: it is still to be confirmed
        self.taken = 0  # bytes of the data lane from the peer that are processed here
        self._promised: deque[tuple[int, int]] = (
            deque()
        )  # (change that the peer has taken, bytes it had written before)
        self.writer: Final = writer_of(worker)  # the lower bits of its stamps
        self.knows_all = False  # it was told all filters of the subscribers here, when it had joined
        self.told_all = False  # it has told all filters of its subscribers
        self.inherits: set[int] = set()  # incarnations of dead workers whose sessions it is to adopt, and to tell of
        self.inherited = False  # another worker is to adopt its sessions: none at its place is waited for
        self.retained_all = False  # it has told all its retained messages
        self.filters: dict[bytes, None] = {}  # of its subscribers
        # Of a distant peer: when a lane of it last brought something, and since when something waits for it, or 0.0.
        self.heard_at = 0.0
        self.waited_since = 0.0
        self.adopted = False  # another worker has its durable sessions: nobody waits for them when it is gone
        self._outbox = data.outbox
        self._written = 0  # bytes, to the data lane
        self._done = 0  # bytes of them that the peer has processed
        self._marks: deque[Mark] = deque()
        self._mark = Mark(0, 0, 0, 0.0)  # the last one that the peer has reached
        self._format = V311

    def offer(self, message: Message, now: float) -> None:
        if message.retain:
            return  # it was written to every peer already: all workers retain it
        if message.expires != NEVER:
            self._append(wire.message(message, wire.DELIVER, "", 0))
            return
        version = V5 if message.properties or (message.head5 and not message.head3) else V311
        if version != self._format:
            self._format = version
            self._append(bytes((version,)))
        self._append(message.packet(version, 1, now) if message.qos else message.whole(version, now))

    def offer_run(self, run: Run) -> None:
        self._append(wire.run(run))

    def offer_from(self, client_id: str) -> None:
        self._append(wire.publisher(client_id))

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        self.gate.take(1, message.size, now)
        self._append(wire.shared(share, filter, hop, message))

    def write(self, chunk: bytes) -> None:
        """Append *chunk* to the data lane, which is flushed at the end of the tick."""
        self._append(chunk)
        self._outbox.pressing = True

    def _append(self, chunk: bytes) -> None:
        self._written += len(chunk)
        self._outbox.write(chunk)
        if self._written - self._done > SHUT and not self.gate.blocked:
            self.gate.block()

    def tell(self, chunk: bytes) -> None:
        """Append *chunk* to the control lane."""
        self.control.outbox.write(chunk)

    def mark(self, now: float) -> None:
        """Mark the lane: all publishes taken at the gate so far are written. To be called between two publishes."""
        marks = self._marks
        last = marks[-1] if marks else self._mark
        gate = self.gate
        if gate.taken == last.count:
            return
        if marks and now - last.at < MARK:
            last.written = self._written
            last.count = gate.taken
            last.size = gate.taken_bytes
        else:
            marks.append(Mark(self._written, gate.taken, gate.taken_bytes, gate.latest()))
        if self._written <= self._done:  # they were not written, as when their publishers were not authorised
            self._reach(now)

    def processed(self, count: int, now: float) -> bool:
        """The peer has processed *count* bytes of the data lane in all; true if its gate is open now."""
        self.mark(now)  # it may answer within the slice in which it was written to
        self._done = count
        if self.gate.blocked and self._written - count <= OPEN and not self.leaving:
            self.gate.unblock()
        self._reach(now)
        return self.gate.open

    def _reach(self, now: float) -> None:
        """Tell the gate that the publishes before the last mark that the peer has reached are done."""
        reached = self._mark
        marks = self._marks
        while marks and marks[0].written <= self._done:
            reached = marks.popleft()
        before = self._mark
        if reached is not before:
            self._mark = reached
            self.gate.done(reached.count - before.count, reached.size - before.size, now - reached.at, now)

    def promise(self, sequence: int, written: int) -> None:
        """The peer has taken changes up to *sequence*, before which it had written *written* bytes to its data lane."""
        self._promised.append((sequence, written))

    def promised(self) -> bool:
        return bool(self._promised)

    def confirm(self) -> None:
        """Note the changes that the peer took, as far as what it had written before is processed here."""
        promised = self._promised
        while promised and promised[0][1] <= self.taken:
            self.confirmed = promised.popleft()[0]

    def written(self) -> int:
        """Bytes written to the data lane so far."""
        return self._written

    def backlog(self) -> int:
        """Bytes of the data lane that the peer has not reported as processed."""
        return self._written - self._done
