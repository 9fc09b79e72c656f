# The asking side of takeovers (takeover.py): sessions that clients of this worker want and other workers have.
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.cluster import wire
from broker.cluster.forced_takeovers import ForcedTakeovers
from broker.cluster.owner import Owner
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.takeover import TAKEOVER_TIMEOUT, OnTakeover, TakeoverResult
from broker.cluster.takeover_frames import ASK, COMES, FORCE, MARK, NUMBER, OF_OTHER_USER, STORED, SUPERSEDED, SWITCH
from broker.overload.credits import UNKNOWN
from broker.protocol.session_transfer import SessionTransfer
from broker.session.origin import TransferFilter
from broker.session.transfer.session_import import SessionImport, SessionImportError
from broker.worker_id import WorkerId

LONG_TURN: Final = 0.25  # seconds between two ticks: after more this worker stood still
# Seconds for a worker of another node to answer; then its session is taken in the store. If it hangs, or has died, only
# the end of its lease says so, and its clients are not to wait for that.
DISTANT_ANSWER: Final = 0.3
LATER: Final = float("inf")


class IncomingSession:
    """A session that *asked* were asked for and have not answered yet."""

    def __init__(self, number: int, client_id: str, asked: set[Peer], then: OnTakeover, deadline: float) -> None:
        self.number = number
        self.client_id = client_id
        self.asked = asked
        self.then = then
        self.deadline = deadline
        self.distant_by = LATER  # when distant peers have to have answered
        self.epoch = 0  # the greatest in the answers
        self.credits = UNKNOWN  # of the client
        self.source: Peer | None = None  # the peer that sends the session
        self.stored = False  # the session is durable: it comes, whatever becomes of the claim
        self.failed: TakeoverResult | None = None  # what became of that, if it has failed
        self.lives = True  # the source does
        self.unanswered = False  # a peer has died without an answer, or was missing
        self.again = False  # the source has died before it had given it: all workers are told
        self.taking = False  # what is stored is being read
        self.imported: SessionImport | None = None  # what it has sent so far
        self.subscribing = False
        self.switched = False  # the peers have been told to mark
        self.filter = TransferFilter(True)
        self.unmarked: set[Peer] = set()


class IncomingSessions:
    """`TakeoverRequests`, answered over the lanes of the mesh."""

    def __init__(
        self,
        worker: WorkerId,
        peers: Peers,
        transfer: SessionTransfer,
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
        others: int,
        forced: ForcedTakeovers | None,
    ) -> None:
        """*failed* is called when a session that a peer sent cannot be read. *forced*: None: no session is durable.

        *others*: peers that have stored sessions when they all live; while one is missing, nobody can tell of its own.
        """
        self._worker = worker
        self._others = others
        self._peers = peers
        self._transfer = transfer
        self._clock = clock
        self._failed = failed
        self._forced = forced
        self._number = int(clock() * 1e6)  # differs from the numbers of the process that had this shard before
        self._pending: dict[int, IncomingSession] = {}
        self._questions: dict[int, tuple[Peer, Callable[[bool], None]]] = {}  # of `whether()`, without an answer
        self._last_tick = clock()

    def pending(self) -> int:
        return len(self._pending)

    # What a claim asks.

    def take_over(self, client_id: str, former: Owner, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        peer = self._peers.find(former.worker)
        if peer is None:
            then(TakeoverResult(None, nowhere=True, unanswered=True))
        else:
            self._ask(client_id, [peer], epoch, user, wanted, then)

    def claim_within_node(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        peers = self._peers.of_own_node()
        self._ask(client_id, peers, epoch, user, wanted, then, len(peers) < self._others)

    def claim_everywhere(self, client_id: str, epoch: int, user: str, wanted: bool, then: OnTakeover) -> None:
        missing = len(self._peers.of_own_node()) < self._others or self._peers.absent > 0
        self._ask(client_id, self._peers.all, epoch, user, wanted, then, missing)

    def reaches(self, owner: Owner) -> bool:
        return self._peers.find(owner.worker) is not None

    def whether(self, client_id: str, owner: Owner, then: Callable[[bool], None]) -> None:
        peer = self._peers.find(owner.worker)
        if peer is None:
            then(self._may_live(owner.worker))
            return
        self._number += 1
        self._questions[self._number] = (peer, then)
        peer.tell(wire.frame(wire.WHETHER, NUMBER.pack(self._number) + client_id.encode()))

    def _may_live(self, worker: WorkerId) -> bool:
        """Whether *worker*, which is no peer, may live all the same: its node cannot be reached, perhaps."""
        return worker.node != self._worker.node and not self._peers.has_left(worker)

    def _ask(
        self,
        client_id: str,
        peers: list[Peer],
        epoch: int,
        user: str,
        wanted: bool,
        then: OnTakeover,
        unanswered: bool = False,
    ) -> None:
        """*unanswered*: a worker that may have the session is not among *peers*."""
        if not peers:
            then(TakeoverResult(None, nowhere=True, unanswered=unanswered))
            return
        self._number += 1
        number = self._number
        now = self._clock()
        self._pending[number] = incoming = IncomingSession(number, client_id, set(peers), then, now + TAKEOVER_TIMEOUT)
        incoming.unanswered = unanswered
        if any(peer.distant for peer in peers):
            incoming.distant_by = now + DISTANT_ANSWER
        for peer in peers:
            peer.tell(wire.frame(wire.ASK, ASK.pack(number, epoch, wanted, user.encode()) + client_id.encode()))

    # What peers answer.

    def has(self, number: int, has: bool) -> None:
        self._questions.pop(number)[1](has)

    def answered(self, peer: Peer, number: int, what: int, epoch: int, credits: float) -> None:
        incoming = self._pending.get(number)
        if incoming is None or peer not in incoming.asked:
            if what in (COMES, STORED):
                peer.tell(wire.frame(wire.ABANDON, NUMBER.pack(number)))
            return
        incoming.asked.discard(peer)
        incoming.unanswered = incoming.unanswered or what == FORCE
        incoming.epoch = max(incoming.epoch, epoch)
        incoming.credits = min(incoming.credits, credits)
        if what == SUPERSEDED:
            self._abandon(incoming, TakeoverResult(None, epoch, superseded=True))
        elif what == OF_OTHER_USER:
            self._abandon(incoming, TakeoverResult(None, epoch, of_other_user=True))
        elif (
            what in (COMES, STORED) and incoming.source is not None
        ):  # two have it, since a time when they were cut off
            peer.tell(wire.frame(wire.ABANDON, NUMBER.pack(number)))
        elif what in (COMES, STORED):
            incoming.source = peer
            incoming.stored = what == STORED
            incoming.imported = self._transfer.begin_import(peer.shift)
        self._check(incoming)

    def received(self, peer: Peer, number: int, chunk: bytes) -> None:
        incoming = self._pending.get(number)
        if incoming is None or incoming.source is not peer or incoming.imported is None:
            return  # it was abandoned, and the peer was told
        imported = incoming.imported
        try:
            imported.take(chunk)
        except SessionImportError as error:
            self._failed(error)
            stored, incoming.stored = incoming.stored, False  # if it is stored, it can be taken in the store
            self._abandon(incoming, TakeoverResult(None, incoming.epoch, unanswered=stored))
            return
        if imported.session is not None and not incoming.subscribing:
            incoming.subscribing = True
            imported.session.transfer_filter = incoming.filter
            self._transfer.subscribe(imported, partial(self._subscribed, incoming))
        self._check(incoming)

    def _subscribed(self, incoming: IncomingSession) -> None:
        """The session is subscribed here: have every worker mark from which message on its publishes are for here."""
        source = incoming.source
        if source is None or self._pending.get(incoming.number) is not incoming:
            return
        incoming.switched = True
        incoming.filter.mark(self._worker)
        incoming.unmarked = set(self._peers.all)
        for peer in self._peers.all:
            if peer.knows_all:
                self._switch(peer, incoming.number, source)
        if incoming.lives:
            source.write(wire.DATA_HEAD + wire.frame(wire.MARK, MARK.pack(incoming.number, self._worker.incarnation)))
        self._check(incoming)

    def _switch(self, peer: Peer, number: int, source: Peer) -> None:
        """Have *peer*, which knows of the session *number* here, mark its messages."""
        peer.tell(wire.frame(wire.SWITCH, SWITCH.pack(number, source.worker.incarnation)))

    def marked(self, peer: Peer, number: int) -> None:
        """What *peer* sends from here on is for the session at this worker."""
        incoming = self._pending.get(number)
        if incoming is not None:
            incoming.filter.mark(peer.worker)
            incoming.unmarked.discard(peer)
            self._check(incoming)

    def _check(self, incoming: IncomingSession) -> None:
        """Conclude *incoming* if there is nothing to wait for any more."""
        if self._pending.get(incoming.number) is not incoming or incoming.asked:
            return
        imported = incoming.imported
        if imported is None or incoming.source is None:
            nowhere, unanswered = incoming.epoch == 0, incoming.unanswered
            self._conclude(incoming, TakeoverResult(None, incoming.epoch, nowhere=nowhere, unanswered=unanswered))
        elif not (imported.complete or not incoming.lives) or not incoming.switched:
            return
        elif self._forced is not None and incoming.stored and not (imported.complete or incoming.again):
            # What the source had not stored comes again, and would come behind what was published since.
            incoming.again = True
            assert imported.session is not None
            self._forced.begin_again(imported.session, incoming.source.worker, partial(self._take, incoming))
        elif incoming.again or incoming.unmarked:
            return
        elif not incoming.stored:
            self._finish(incoming, True)
        elif not incoming.taking:
            self._take(incoming)

    def _take(self, incoming: IncomingSession) -> None:
        """Read what is stored of a durable session."""
        imported, source = incoming.imported, incoming.source
        assert imported is not None and source is not None
        incoming.taking = True
        given = imported.complete and not incoming.again
        self._transfer.take(imported, source.worker, given, partial(self._finish, incoming))

    def _finish(self, incoming: IncomingSession, there: bool) -> None:
        """All of the session is here, if it is *there*."""
        imported, source = incoming.imported, incoming.source
        assert imported is not None and source is not None
        if incoming.lives:
            source.tell(wire.frame(wire.TAKEN, NUMBER.pack(incoming.number)))
        session = None
        if there:
            session = self._transfer.finish_import(imported)
            if session.transfer_filter is incoming.filter:
                session.transfer_filter = None
            incoming.imported = None
        adopted = session is None and not incoming.lives  # perhaps, by the worker that follows the source
        # Or another worker has taken it from the source before that could give it.
        result = TakeoverResult(session, incoming.epoch, nowhere=adopted, unanswered=session is None)
        self._conclude(incoming, incoming.failed or result)

    def _abandon(self, incoming: IncomingSession, result: TakeoverResult) -> None:
        """The session will not come, or not in time; a durable one comes, but not for this claim."""
        if incoming.stored:
            incoming.failed = incoming.failed or result
            return
        if incoming.source is not None:
            incoming.source.tell(wire.frame(wire.ABANDON, NUMBER.pack(incoming.number)))
        self._conclude(incoming, result)

    def _conclude(self, incoming: IncomingSession, result: TakeoverResult) -> None:
        del self._pending[incoming.number]
        if incoming.imported is not None:
            self._transfer.cancel_import(incoming.imported)
        self._transfer.restore_credits(incoming.client_id, incoming.credits, self._clock())
        incoming.then(result)

    # Peers that come and go, and time.

    def joined(self, peer: Peer) -> None:
        """*peer* is new, and sends messages to both places, too: it has to mark, once it is `told()` of them."""
        for incoming in self._pending.values():
            if incoming.switched and incoming.source is not None:
                incoming.unmarked.add(peer)

    def told(self, peer: Peer) -> None:
        """*peer*, which is new, has been told what is subscribed to here."""
        for incoming in self._pending.values():
            if peer in incoming.unmarked and incoming.source is not None:
                self._switch(peer, incoming.number, incoming.source)

    def lost(self, peer: Peer) -> None:
        """*peer* is gone, and all that it sent has been taken."""
        for number, (asked, then) in list(self._questions.items()):
            if asked is peer:
                del self._questions[number]
                then(self._may_live(peer.worker))
        for incoming in list(self._pending.values()):
            incoming.unanswered = incoming.unanswered or peer in incoming.asked
            incoming.asked.discard(peer)
            incoming.unmarked.discard(peer)
            if incoming.source is peer:
                incoming.lives = False
            if incoming.lives or _survives(incoming):
                self._check(incoming)
            else:
                result = TakeoverResult(None, incoming.epoch, nowhere=True, unanswered=True)
                self._conclude(incoming, incoming.failed or result)

    def waited_for(self) -> set[Peer]:
        """The peers that are asked for a session or are to give it, to mark their messages for one, or to say whether
        they have one.
        """
        found = {asked for asked, _ in self._questions.values()}
        for each in self._pending.values():
            found |= each.unmarked
            found |= each.asked
            if each.source is not None:
                found.add(each.source)
        return found

    def tick(self, now: float) -> None:
        """Abandon what takes too long: the client will have gone. To be called ten times a second.

        Time in which this worker stood still does not count: answers wait on its lanes.
        """
        late = now - self._last_tick
        self._last_tick = now
        if late > LONG_TURN:
            for incoming in self._pending.values():
                incoming.deadline = min(incoming.deadline + late, now + TAKEOVER_TIMEOUT)
                incoming.distant_by += late
        for incoming in [one for one in self._pending.values() if one.distant_by <= now]:
            self._give_up_distant(incoming)
        for incoming in [one for one in self._pending.values() if one.deadline <= now and not one.stored]:
            self._abandon(incoming, TakeoverResult(None, incoming.epoch, unanswered=True))

    def _give_up_distant(self, incoming: IncomingSession) -> None:
        """Do not wait any more for distant peers that have not answered."""
        incoming.distant_by = LATER
        silent = {peer for peer in incoming.asked if peer.distant}
        if not silent:
            return
        incoming.asked -= silent
        incoming.unanswered = True
        if incoming.asked or incoming.source is not None:
            self._check(incoming)
        else:
            self._abandon(incoming, TakeoverResult(None, incoming.epoch, unanswered=True))


def _survives(incoming: IncomingSession) -> bool:
    """Whether the session is here, although the worker has died that sent it."""
    imported = incoming.imported
    return imported is not None and imported.session is not None and (imported.complete or incoming.stored)
