# Neighbours: the other workers of the node, as routing sees them.
#
# A neighbour with a subscriber for a topic is one more receiver of its route. It gets the message once, whatever the
# number of its subscribers, and matches it again. What it wants to know of us (which filters somebody here has, what
# is retained) it is told by `Neighbours`.
from typing import Final

from broker.overload.gate import Gate
from broker.session.message import Message
from broker.session.run import Run
from broker.session.subscriber import Subscriber
from broker.worker_id import WorkerId


class Neighbour(Subscriber):
    """Another worker. It never drops what it is offered: whoever has much for it looks at `gate.open` first."""

    def __init__(self, worker: WorkerId, gate: Gate) -> None:
        self.worker: Final = worker
        self.shard: Final = worker.shard
        self.gate = gate  # of publishes for it
        self.gone = False

    def offer(self, message: Message, now: float) -> None:
        """*message*, which is not to be retained, for whoever has subscribed there."""
        raise NotImplementedError

    def offer_run(self, run: Run) -> None:
        """The same for a run."""
        raise NotImplementedError

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        """*message* for one member of a shared subscription there; *hop*: how many workers have passed it on."""
        raise NotImplementedError


class Neighbours:
    """All of them, for who has something to tell each."""

    def gained(self, filter: bytes) -> None:
        """Somebody here subscribes to *filter*, to which nobody did."""
        raise NotImplementedError

    def lost(self, filter: bytes) -> None:
        """Nobody here subscribes to *filter* any more."""
        raise NotImplementedError

    def shared(self, share: bytes, filter: bytes, members: int, quick: int) -> None:
        """So many members of a shared subscription are here, and so many of them could take a message at once."""
        raise NotImplementedError

    def gates(self) -> list[Gate]:
        """The gates of all other workers of the node."""
        raise NotImplementedError

    def free(self) -> bool:
        """Whether all gates are free."""
        raise NotImplementedError

    def retained(self, message: Message, owner: str, stamp: int) -> None:
        """*message* is retained since *stamp* and set by the client *owner*; an empty one was deleted."""
        raise NotImplementedError

    def not_retained(self, message: Message) -> None:
        """*message* was to be retained, and is only delivered."""
        raise NotImplementedError
