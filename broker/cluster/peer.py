# A peer: another worker of the node, at the other end of two lanes.
#
# It is never refused what is for it. Publishes are put to its gate before they are offered; how many of them it has
# processed follows from how much of the lane it has, by marks that are made as the lane is written. Over SHUT bytes on
# the lane, of whatever kind, nobody begins a publish that it needs, until it is down to OPEN.
from collections import deque
from typing import Final

from broker.cluster import wire
from broker.delivery.outbox import OutboundBudget, Outbox
from broker.delivery.ring import Ring
from broker.mqtt.packets import V5, V311
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.routing.hybrid_clock import writer_of
from broker.routing.neighbour import Neighbour
from broker.session.message import NEVER, Message
from broker.session.run import Run
from broker.worker_id import WorkerId

SHUT: Final = 2 * 1024 * 1024  # bytes on their way to a peer: tens of milliseconds of work for it
MARK: Final = 0.001  # seconds between two marks
OPEN: Final = 1024 * 1024
ANY: Final = 1 << 40


class Mark:
    """What had been put to the gate when the lane was *written* bytes long."""

    def __init__(self, written: int, count: int, size: int, at: float) -> None:
        self.written = written
        self.count = count
        self.size = size
        self.at = at


class Peer(Neighbour):
    def __init__(self, worker: WorkerId, data: Stream, control: Stream, gate: Gate) -> None:
        super().__init__(worker, gate)
        self.data = data
        self.control = control
        self.confirmed = 0  # the last change of interest that it has taken, and we all that it sent before that
        self.taken = 0  # bytes of its data lane that we have processed
        self._promised: deque[tuple[int, int]] = deque()  # (change that it has taken, what it had written until then)
        self.writer: Final = writer_of(worker)  # in the stamps of what it retains
        self.told_all = False  # we know all that its clients have subscribed to
        self.retained_all = False  # and all that it had retained
        self.filters: dict[bytes, None] = {}  # of its subscribers
        self._outbox = data.outbox
        self._written = 0  # bytes, on the data lane
        self._done = 0  # those of them that it has processed
        self._marks: deque[Mark] = deque()
        self._mark = Mark(0, 0, 0, 0.0)  # the last that was reached
        self._format = V311

    def offer(self, message: Message, now: float) -> None:
        if message.retain:
            return  # it has crossed already: everybody keeps it, subscribed or not
        if message.expires != NEVER:
            self.write(wire.message(message, wire.DELIVER, "", 0))
            return
        version = V5 if message.properties or (message.head5 and not message.head3) else V311
        if version != self._format:
            self._format = version
            self.write(bytes((version,)))
        self.write(message.packet(version, 1, now) if message.qos else message.whole(version, now))

    def offer_run(self, run: Run) -> None:
        self.write(wire.run(run))

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        self.gate.take(1, message.size, now)
        self.write(wire.shared(share, filter, hop, message))

    def write(self, chunk: bytes) -> None:
        """Append *chunk* to the data lane."""
        self._written += len(chunk)
        self._outbox.write(chunk)
        if self._written - self._done > SHUT and not self.gate.blocked:
            self.gate.block()

    def tell(self, chunk: bytes) -> None:
        """Append *chunk* to the control lane."""
        self.control.outbox.write(chunk)

    def mark(self, now: float) -> None:
        """Between two publishes, each slice at least: all that was put to the gate until now has been offered."""
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
        if self._written <= self._done:  # nothing of it came to be sent, as when its publisher might not publish it
            self._reach(now)

    def processed(self, count: int, now: float) -> bool:
        """It has processed *count* bytes of the data lane in all; true if its gate is open now."""
        self.mark(now)  # it may be so quick that it answers within the slice in which it was written to
        self._done = count
        if self.gate.blocked and self._written - count <= OPEN:
            self.gate.unblock()
        self._reach(now)
        return self.gate.open

    def _reach(self, now: float) -> None:
        """What lies before the byte up to which it has processed the lane is done."""
        reached = self._mark
        marks = self._marks
        while marks and marks[0].written <= self._done:
            reached = marks.popleft()
        before = self._mark
        if reached is not before:
            self._mark = reached
            self.gate.done(reached.count - before.count, reached.size - before.size, now - reached.at, now)

    def promise(self, sequence: int, written: int) -> None:
        """It has taken our changes up to *sequence*, and had written *written* bytes to its data lane until then."""
        self._promised.append((sequence, written))

    def promised(self) -> bool:
        return bool(self._promised)

    def confirm(self) -> None:
        """What it had written before it took a change is here by now, or is not."""
        promised = self._promised
        while promised and promised[0][1] <= self.taken:
            self.confirmed = promised.popleft()[0]

    def written(self) -> int:
        """Bytes, on the data lane to it."""
        return self._written

    def backlog(self) -> int:
        """Bytes on their way to it, as far as we know."""
        return self._written - self._done


def unbounded(fd: int, dirty: "Ring[Outbox]") -> Outbox:
    """An outbox that is always writable, as gates bound what it is given, and goes before those of clients.

    Behind a pass over thousands of readers the others would begin theirs when ours ends.
    """
    outbox = Outbox(fd, ANY, ANY >> 1, OutboundBudget(ANY), dirty)
    outbox.first = True
    return outbox
