# A peer: another worker of the node, at the other end of two lanes.
#
# It is never refused what is for it. How much lies between us, from our outbox to what it has processed, is its gate:
# over SHUT nobody begins a publish that it needs, until it is down to OPEN. The last message before may be a large one,
# and what is no client's publish passes in any case.
from collections import deque
from typing import Final

from broker.delivery.outbox import OutboundBudget, Outbox
from broker.mesh import wire
from broker.mqtt.packets import V5, V311
from broker.net.stream import Stream
from broker.routing.neighbour import Neighbour
from broker.session.message import NEVER, Message
from broker.session.run import Run

SHUT: Final = 2 * 1024 * 1024  # bytes on their way to a peer: tens of milliseconds of work for it
OPEN: Final = 1024 * 1024
ANY: Final = 1 << 40


class Peer(Neighbour):
    def __init__(self, shard: int, incarnation: int, data: Stream, control: Stream) -> None:
        super().__init__(shard)
        self.incarnation = incarnation
        self.data = data
        self.control = control
        self.confirmed = 0  # the last change of interest that it has taken, and we all that it sent before that
        self.taken = 0  # bytes of its data lane that we have processed
        self._promised: deque[tuple[int, int]] = deque()  # (change that it has taken, what it had written until then)
        self.since = 0  # a stamp of ours, greater than any of who had its number before
        self.told_all = False  # we know all that its clients have subscribed to
        self.retained_all = False  # and all that it had retained
        self.waiting: dict[Stream, None] = {}  # held until its gate opens
        self.filters: dict[bytes, None] = {}  # of its subscribers
        self._outbox = data.outbox
        self._written = 0  # bytes, on the data lane
        self._done = 0  # those of them that it has processed
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

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int) -> None:
        self.write(wire.shared(share, filter, hop, message))

    def write(self, chunk: bytes) -> None:
        """Append *chunk* to the data lane."""
        self._written += len(chunk)
        self._outbox.write(chunk)
        if self._written - self._done > SHUT:
            self.open = False

    def tell(self, chunk: bytes) -> None:
        """Append *chunk* to the control lane."""
        self.control.outbox.write(chunk)

    def processed(self, count: int) -> bool:
        """It has processed *count* bytes of the data lane in all; true if its gate opens by that."""
        self._done = count
        if self.open or self._written - count > OPEN:
            return False
        self.open = True
        return True

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


def unbounded(fd: int, dirty: "deque[Outbox]") -> Outbox:
    """An outbox that is always writable: gates bound what it is given."""
    return Outbox(fd, ANY, ANY >> 1, OutboundBudget(ANY), dirty)
