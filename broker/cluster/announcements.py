# What this worker announces to all its peers: filters, members of shared subscriptions, and retained messages.
#
# A filter that gains its first subscriber here, or loses its last, is told to every peer under a sequence number, and
# each peer confirms the numbers it has taken. A SUBACK waits for these confirmations, so it means "subscribed in the
# whole cluster". For peers of other nodes it waits for PATIENCE at most: their node may have died, which only the end
# of its lease says. What else waits, waits for them as for the others; see mesh.py for those that are silent. A
# confirmation also says what the peer had sent before it: `when_confirmed()` waits until that has been taken as well,
# so a message that any worker retained before is found among the retained messages here.
#
# A session that is taken by force from a worker of another node, which does not answer, waits for the workers beside
# that one for NODE_PATIENCE: if the node has died none of them answers, and the client of the session waits meanwhile.
# If they live, they are told of the session before the worker that it was taken from learns that it was: that one keeps
# it in the routes until it has heard of us (protocol/durable_sessions.py).
#
# A retained message is written to every peer by the worker where it was set: all workers hold all of them.
from collections import deque
from collections.abc import Callable
from itertools import chain
from typing import Final

from broker.cluster import wire
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.net.stream import Stream
from broker.overload.gate import Gate
from broker.routing.neighbour import Neighbours
from broker.session.message import Message
from broker.worker_id import WorkerId

COLD_ENTRIES: Final = 256  # entries of cold sessions in one frame


PATIENCE: Final = 0.5  # seconds that a SUBACK waits for peers of other nodes
NODE_PATIENCE: Final = 0.05  # seconds; with those of `DISTANT_ANSWER` and a tick a client waits for less than 0.5
GRAIN: Final = 0.05  # seconds by which it may wait less, so that those of some time go together
NOTHING_DUE: Final = float("inf")


Late = Callable[[Stream, list[Peer], float], None]


class Confirmation:
    """Something that waits until all peers, *besides* one, have confirmed the changes up to *sequence*.

    For peers of other nodes it waits until the time *until*.
    """

    def __init__(
        self, sequence: int, stream: Stream | None, then: Callable[[], None], besides: WorkerId | None, until: float
    ) -> None:
        self.until = until
        self.missing: set[Peer] | None = None  # that have not confirmed, once this is the first that waits
        self.sequence = sequence
        self.stream = stream
        self.then = then
        self.besides = besides


class Announcements(Neighbours):
    """Without peers every method returns at once."""

    def __init__(self, peers: Peers, reactor: Reactor, failed: Callable[[Exception], None], late: Late) -> None:
        """*failed* is called with an exception of a callable that waited for confirmations; *late* when a stream is not
        waited for any more, with the peers of other nodes that have not confirmed.
        """
        self._late = late
        self._peers = peers
        self._reactor = reactor
        self._failed = failed
        self._sequence = 0  # of the last change that was told
        self._waiting: deque[Confirmation] = deque()
        self._answers: deque[Confirmation] = deque()  # of streams, so SUBACKs
        self._answers_here: deque[Confirmation] = deque()  # of them, those that wait for peers of this node alone
        self._forced: dict[WorkerId, deque[Confirmation]] = {}  # of forced takeovers, by the workers besides
        self._owing: dict[Peer, None] = {}  # peers that a forced takeover has not waited for: see `Peer.owed`
        self._cold: list[bytes] = []  # entries of cold sessions that are not told yet, all gained or all lost
        self._cold_kind = wire.COLD_GAINED

    def gained(self, filter: bytes, durable: bool) -> None:
        self._tell_change(wire.GAINED_DURABLE if durable else wire.GAINED, filter)

    def lost(self, filter: bytes, durable: bool) -> None:
        self._tell_change(wire.LOST_DURABLE if durable else wire.LOST, filter)

    def cold_gained(self, entry: bytes) -> None:
        self._tell_cold(wire.COLD_GAINED, entry)

    def cold_lost(self, entry: bytes) -> None:
        self._tell_cold(wire.COLD_LOST, entry)

    def _tell_cold(self, kind: int, entry: bytes) -> None:
        """Entries are told together with the next ones, or before anything else is told.

        They may wait, as until something is told of the filters of a session, peers know of it by these.
        """
        if self._peers.all:
            if kind != self._cold_kind or len(self._cold) == COLD_ENTRIES:
                self._flush_cold()
                self._cold_kind = kind
            self._cold.append(entry)

    def _flush_cold(self) -> None:
        entries = self._cold
        if entries:
            self._cold = []
            self._sequence += 1
            self._peers.tell(wire.change(self._cold_kind, self._sequence, b"".join(entries)))

    def shared(self, share: bytes, filter: bytes, members: int, ready: int, durable: bool) -> None:
        if self._peers.all:
            self._flush_cold()
            self._sequence += 1
            self._peers.tell(wire.members(self._sequence, share, filter, members, ready, durable))

    def _tell_change(self, kind: int, filter: bytes) -> None:
        if self._peers.all:
            self._flush_cold()
            self._sequence += 1
            self._peers.tell(wire.change(kind, self._sequence, filter))

    def joined(self, peer: Peer) -> None:
        """*peer* is new: a full synchronisation tells it all changes up to now, so nothing waits for their numbers."""
        self._flush_cold()
        peer.confirmed = self._sequence

    def when_confirmed(self, stream: Stream | None, then: Callable[[], None], besides: WorkerId | None = None) -> None:
        """Call *then* once every peer has confirmed all changes so far; *stream*, if any, is not read until then.

        Nobody waits for the worker *besides*, and with *stream* not longer than PATIENCE for peers of other nodes.
        """
        if not self._but(besides):
            then()
            return
        self._flush_cold()
        self._sequence += 1
        self._peers.tell(wire.number(wire.SYNC, self._sequence))
        until = NOTHING_DUE
        if stream is not None:
            self._reactor.pause(stream, Pause.SUBSCRIBE)
            if any(peer.distant for peer in self._peers.all):
                until = self._reactor.clock() + PATIENCE
                self._reactor.soon(until)
        waiting = self._waiting if stream is None else self._answers
        waiting.append(Confirmation(self._sequence, stream, then, besides, until))

    def when_known(self, former: WorkerId, then: Callable[[], None]) -> None:
        """Call *then* once every peer but *former*, which does not answer, has confirmed all changes so far.

        If *former* is of another node, the workers there are waited for NODE_PATIENCE at most, and not at all if none
        of them has confirmed what the last one has waited for.
        """
        beside = [peer for peer in self._but(former) if peer.distant and peer.worker.node == former.node]
        if not beside:
            self.when_confirmed(None, then, former)
            return
        self._flush_cold()
        self._sequence += 1
        self._peers.tell(wire.number(wire.SYNC, self._sequence))
        until = self._reactor.clock()
        if any(peer.owed <= peer.confirmed for peer in beside):
            until += NODE_PATIENCE
            self._reactor.soon(until)
        forced = self._forced.setdefault(former, deque())
        forced.append(Confirmation(self._sequence, None, then, former, until))
        self._settle_forced(former, forced)

    def settle(self, peer: Peer) -> None:
        """*peer* has confirmed changes, or is gone: call what waited for it.

        The peers that the first of those that wait still needs are known, so that each confirmation takes one step: one
        filter brings as many confirmations as there are peers.
        """
        for waiting in (self._waiting, self._answers, self._answers_here):
            while waiting and not self._still_missing(waiting[0], peer):
                self._conclude(waiting.popleft())
        if self._forced:
            for former, forced in list(self._forced.items()):
                self._settle_forced(former, forced, peer)

    def _still_missing(self, first: Confirmation, by: Peer | None) -> set[Peer]:
        """The peers that *first*, the first that waits, waits for. *by*: has changed since the last call."""
        missing = first.missing
        if missing is None:
            missing = first.missing = set(self._missing(first))
        elif by is not None and (by.gone or by.confirmed >= first.sequence):
            missing.discard(by)
        return missing

    def _settle_forced(self, former: WorkerId, forced: deque[Confirmation], by: Peer | None = None) -> None:
        """Call those of *forced* that every peer but *former* has confirmed, or nobody is to wait for any more."""
        now = self._reactor.clock()
        while forced:
            missing, late = self._still_missing(forced[0], by), forced[0].until <= now
            if missing and not (late and all(peer.distant and peer.worker.node == former.node for peer in missing)):
                return
            confirmation = forced.popleft()
            for peer in missing:
                peer.owed = confirmation.sequence
                self._owing[peer] = None
            if not forced:
                self._forced.pop(former, None)
            self._conclude(confirmation)

    def tick(self, now: float) -> float:
        """Wait no more for peers of other nodes where that took too long; the time at which that is due again."""
        answers = self._answers
        while answers and answers[0].until <= now + GRAIN:
            confirmation = answers.popleft()
            missing, stream = self._missing(confirmation), confirmation.stream
            if stream is not None and missing:
                self._late(stream, [peer for peer in missing if peer.distant], now)
            confirmation.missing = {peer for peer in missing if not peer.distant}
            if confirmation.missing:
                self._answers_here.append(confirmation)
            else:
                self._conclude(confirmation)
        due = answers[0].until if answers else NOTHING_DUE
        for former, forced in list(self._forced.items()):
            self._settle_forced(former, forced)
            if forced and forced[0].until > now:
                due = min(due, forced[0].until)
        return due

    def _conclude(self, confirmed: Confirmation) -> None:
        if confirmed.stream is not None:
            self._reactor.resume(confirmed.stream, Pause.SUBSCRIBE)
        try:
            confirmed.then()
        except Exception as error:
            self._failed(error)

    def probe(self, peer: Peer) -> None:
        """Have *peer* answer something."""
        self._sequence += 1
        peer.tell(wire.number(wire.SYNC, self._sequence))

    def waited_for(self) -> set[Peer]:
        """The peers that something waits for, for as long as it takes, or has waited for in vain."""
        for peer in list(self._owing):
            if peer.gone or peer.owed <= peer.confirmed:
                del self._owing[peer]
        found = set(self._owing)
        waiting = [*self._waiting, *chain.from_iterable(self._forced.values())]
        if waiting:
            last = max([each.sequence for each in waiting])
            for peer in self._peers.all:
                if peer.confirmed < last and any(
                    each.sequence > peer.confirmed and each.besides != peer.worker for each in waiting
                ):
                    found.add(peer)
        return found

    def answers_wait_for(self) -> set[Peer]:
        """The peers of other nodes that SUBACKs wait for."""
        if not self._answers:
            return set()
        last = self._answers[-1].sequence
        return {peer for peer in self._peers.all if peer.distant and peer.confirmed < last}

    def _missing(self, waiting: Confirmation) -> list[Peer]:
        """The peers that have not confirmed what *waiting* is about."""
        return [peer for peer in self._but(waiting.besides) if peer.confirmed < waiting.sequence]

    def _but(self, besides: WorkerId | None) -> list[Peer]:
        return [peer for peer in self._peers.all if peer.worker != besides]

    def waiting(self) -> int:
        forced = sum([len(each) for each in self._forced.values()])
        return len(self._waiting) + len(self._answers) + len(self._answers_here) + forced

    def gates(self) -> list[Gate]:
        return [peer.gate for peer in self._peers.all]

    def free(self) -> bool:
        return all(peer.gate.free for peer in self._peers.all)

    def retained(self, message: Message, owner: str, stamp: int) -> None:
        if self._peers.all:
            self._peers.write(wire.token(message) + wire.message(message, wire.KEEP | wire.DELIVER, owner, stamp))

    def retained_from(self, client_id: str) -> None:
        if self._peers.all:
            self._peers.write(wire.publisher(client_id))

    def not_retained(self, message: Message) -> None:
        if self._peers.all:
            self._peers.write(wire.token(message) + wire.message(message, wire.DELIVER, "", 0))
