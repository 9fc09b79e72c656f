# Neighbours: the other workers of the cluster, as receivers of routes.
#
# A neighbour with a subscriber for a topic is one more receiver of its route. It gets the message once, whatever the
# number of its subscribers, and matches it again. `Neighbours` reports to all of them what they need to know of this
# worker: the filters that are subscribed to, and what is retained.
from typing import Final

from broker.overload.gate import Gate
from broker.session.message import Message
from broker.session.run import Run
from broker.session.subscriber import Subscriber
from broker.worker_id import WorkerId


class Neighbour(Subscriber):
    """Another worker. It never drops a message that it is offered; publishes are held back at its gate instead."""

    def __init__(self, worker: WorkerId, gate: Gate, confirms: bool, store: Gate | None = None) -> None:
        """*confirms*: a publish of QoS 1 or 2 waits until its durable receivers there are done with it.

        *store*: the gate that such publishes pass beside *gate*.
        """
        self.worker: Final = worker
        self.shard: Final = worker.shard
        self.gate = gate  # of publishes for this neighbour
        self.confirms: Final = confirms
        self.store: Final = store
        self.gone = False  # the worker has ended

    def offer(self, message: Message, now: float) -> None:
        """Send *message* for the subscribers of that worker; the message is not retained there."""
        raise NotImplementedError

    def offer_run(self, run: Run) -> None:
        """Send a run for the subscribers of that worker."""
        raise NotImplementedError

    def offer_from(self, client_id: str) -> None:
        """The client *client_id*, whose session may be at that worker, has published what is offered next."""
        raise NotImplementedError

    def offer_shared(self, share: bytes, filter: bytes, message: Message, hop: int, now: float) -> None:
        """Send *message* for one member of a shared subscription. *hop*: how many workers have passed it on."""
        raise NotImplementedError


class ColdReceiver:
    """The cold sessions of this worker, as one receiver of a route: whoever has messages for them reads them."""

    def __init__(self, store: Gate, gate: Gate) -> None:
        self.store: Final = store  # the gate of publishes of QoS 1 and 2 that are for cold sessions
        self.gate: Final = gate  # which is blocked while too many of them wait, and measures nothing

    def offer(self, message: Message, now: float) -> None:
        """Deliver *message*, of QoS 1 or 2, to each cold session that it is for; hold it until all are done."""
        raise NotImplementedError


class Neighbours:
    """All other workers of the cluster."""

    def gained(self, filter: bytes, durable: bool) -> None:
        """Report the first subscriber for *filter* at this worker, or the first *durable* one."""
        raise NotImplementedError

    def lost(self, filter: bytes, durable: bool) -> None:
        """Report that the last subscriber for *filter* at this worker is gone, or the last *durable* one."""
        raise NotImplementedError

    def cold_gained(self, entry: bytes) -> None:
        """Report the first cold session at this worker with *entry* in its interest."""
        raise NotImplementedError

    def cold_lost(self, entry: bytes) -> None:
        """Report that the last cold session with *entry* is warm or gone."""
        raise NotImplementedError

    def shared(self, share: bytes, filter: bytes, members: int, ready: int, durable: bool) -> None:
        """Report how many members of a shared subscription are at this worker, how many of them are ready, and whether
        any is *durable*.
        """
        raise NotImplementedError

    def gates(self) -> list[Gate]:
        """The gates of all other workers of the cluster."""
        raise NotImplementedError

    def free(self) -> bool:
        """Whether all gates are free."""
        raise NotImplementedError

    def retained(self, message: Message, owner: str, stamp: int) -> None:
        """Report that the client *owner* has set a retained message, or deleted it if it is empty, under *stamp*."""
        raise NotImplementedError

    def retained_from(self, client_id: str) -> None:
        """Report that the client *client_id* has published the message that is reported next."""
        raise NotImplementedError

    def not_retained(self, message: Message) -> None:
        """Report that *message*, whose retain flag is set, could not be retained and is only delivered."""
        raise NotImplementedError
