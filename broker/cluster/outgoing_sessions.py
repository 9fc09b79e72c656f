# The giving side of takeovers (takeover.py): sessions of this worker that clients have come for at other workers.
from collections import deque
from collections.abc import Callable
from functools import partial

from broker.cluster import wire
from broker.cluster.barriers import Barriers
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeover import TakeoverResult
from broker.cluster.takeover_frames import (
    ANSWER,
    COMES,
    FORCE,
    HAS,
    NOTHING,
    NUMBER,
    OF_OTHER_USER,
    STORED,
    SUPERSEDED,
)
from broker.delivery.completion import Completion
from broker.overload.credits import UNKNOWN
from broker.protocol.session_transfer import SessionTransfer
from broker.session.origin import ForcedFilter, LeavingFilter, TransferFilter
from broker.session.session import Session
from broker.session.transfer.session_export import SessionExport
from broker.worker_id import WorkerId


class OutgoingSession:
    """A session on its way to *peer*, which owns it with *epoch*."""

    def __init__(self, peer: Peer, number: int, epoch: int, exported: SessionExport, unmarked: set[Peer]) -> None:
        self.peer = peer
        self.number = number
        self.epoch = epoch
        self.exported = exported
        self.kept = LeavingFilter() if exported.stored else None
        self.filter: TransferFilter = self.kept or TransferFilter(False)
        self.unmarked = unmarked
        self.waiting: list[Callable[[], None]] = []  # who asks for it meanwhile: answered when it is decided
        self.switched = False  # this worker's own publishes do not go to it any more
        self.passed = False  # all peers have processed what this worker accepted from its client
        self.leaving = False  # it is being given to its new worker and taken out of the routes, or has been
        self.left = False  # it has been
        self.uncertain = False  # some publishes may have come here alone
        self.refused = False  # its new worker has ended, which this worker has not heard of yet


class OutgoingSessions:
    def __init__(
        self,
        worker: WorkerId,
        peers: Peers,
        barriers: Barriers,
        transfer: SessionTransfer,
        claims: SessionClaims,
        clock: Callable[[], float],
        abandon: Callable[[Completion, float], None],
    ) -> None:
        """*abandon* is called with publishes that nobody has taken."""
        self._abandon = abandon
        self._worker = worker
        self._peers = peers
        self._barriers = barriers
        self._transfer = transfer
        self._claims = claims
        claims.when_decided = self._when_decided
        self._clock = clock
        self._pending: dict[tuple[int, int], OutgoingSession] = {}  # by incarnation of the asking peer, and its number
        self._undecided: dict[str, OutgoingSession] = {}  # by client id
        self._sending: deque[OutgoingSession] = deque()  # those with chunks to be sent

    def pending(self) -> int:
        """Sessions that are on their way, and have not been taken yet."""
        return len(self._pending)

    # What peers ask.

    def asked_whether(self, peer: Peer, number: int, client_id: str) -> None:
        self._claims.answer_whether(client_id, partial(self._answer_whether, peer, number))

    def _answer_whether(self, peer: Peer, number: int, has: bool) -> None:
        if not peer.gone:
            peer.tell(wire.frame(wire.HAS, HAS.pack(number, has)))

    def asked(self, peer: Peer, number: int, epoch: int, user: str, wanted: bool, client_id: str) -> None:
        """*peer* owns *client_id* with *epoch*, and asks for its session, or for its end if it is not *wanted*.

        *user*: the tag of the user that asks.
        """
        again = partial(self.asked, peer, number, epoch, user, wanted, client_id)
        if not self._waits(client_id, again):
            then = partial(self._given_up, peer, number, epoch, wanted, client_id, again)
            self._claims.give_up(client_id, epoch, user, then)

    def _waits(self, client_id: str, then: Callable[[], None]) -> bool:
        """Whether the session is on its way to a peer, which may be dead: *then* is called when that is decided."""
        outgoing = self._undecided.get(client_id)
        if outgoing is None or outgoing.exported.session.ended:
            return False
        outgoing.waiting.append(then)
        return True

    def _when_decided(self, client_id: str, then: Callable[[], None]) -> None:
        outgoing = self._undecided.get(client_id)
        if outgoing is None or outgoing.exported.session.ended or not outgoing.exported.stored:
            then()
        else:
            outgoing.waiting.append(then)

    def _is_pending(self, outgoing: OutgoingSession) -> bool:
        """Whether its new worker has neither taken nor abandoned it, and lives."""
        return self._pending.get((outgoing.peer.worker.incarnation, outgoing.number)) is outgoing

    def _given_up(
        self,
        peer: Peer,
        number: int,
        epoch: int,
        wanted: bool,
        client_id: str,
        again: Callable[[], None],
        result: TakeoverResult,
    ) -> None:
        """*again*: has it asked once more."""
        session = result.session
        now = self._clock()
        if peer.gone:
            if session is not None:
                self._claims.keep_owned(session, epoch + 1)
            return
        if session is None:
            refusal = OF_OTHER_USER if result.of_other_user else SUPERSEDED
            refused = result.superseded or result.of_other_user
            # Another peer asked as well while the session was read, or claimed here, and may be given it.
            if not refused and self._waits(client_id, again):
                return
            self._answer(peer, number, refusal if refused else NOTHING, result.epoch, UNKNOWN)
            return
        if wanted and isinstance(session.transfer_filter, ForcedFilter):
            self._have_taken(peer, number, session, result.epoch)
            return
        if not wanted:
            end = partial(self._end_unwanted, peer, number, session, epoch, result.epoch)
            self._transfer.when_owned(session, end, now)
            return
        exported = self._transfer.begin_export(session, now)
        credits = self._transfer.credits_of(session.client_id, now)
        if exported is None:
            self._barriers.when_passed(partial(self._ended, peer, number, result.epoch, credits), now)
            return
        outgoing = OutgoingSession(peer, number, epoch, exported, set(self._peers.all))
        session.transfer_filter = outgoing.filter
        self._pending[peer.worker.incarnation, number] = self._undecided[session.client_id] = outgoing
        # On the lane of the chunks, which could otherwise arrive first.
        comes = ANSWER.pack(number, STORED if exported.stored else COMES, result.epoch, credits)
        peer.write(wire.DATA_HEAD + wire.frame(wire.ANSWER, comes))
        self._sending.append(outgoing)
        self._barriers.when_passed(partial(self._passed, outgoing), now)

    def _have_taken(self, peer: Peer, number: int, session: Session, held: int) -> None:
        """Have *peer* take *session* by force, as not every worker has let go for this one (forced_takeovers.py).

        A worker of another node does so if it gets no answer in time; it may have a former build, that knows none.
        """
        now = self._clock()
        self._transfer.part(session, now)
        if not peer.distant:
            self._barriers.when_passed(lambda _: self._answer(peer, number, FORCE, held, UNKNOWN), now)

    def _end_unwanted(self, peer: Peer, number: int, session: Session, epoch: int, held: int) -> None:
        """End *session*, which *peer* owns with *epoch* and does not want; this worker owned it with *held*."""
        now = self._clock()
        if not self._claims.owns_later(session, epoch):
            self._transfer.end_instead(session, now)
        credits = self._transfer.credits_of(session.client_id, now)
        self._barriers.when_passed(partial(self._ended, peer, number, held, credits), now)

    def _ended(self, peer: Peer, number: int, epoch: int, credits: float, now: float) -> None:
        self._answer(peer, number, NOTHING, epoch, credits)

    def _answer(self, peer: Peer, number: int, what: int, epoch: int, credits: float) -> None:
        if not peer.gone:
            peer.tell(wire.frame(wire.ANSWER, ANSWER.pack(number, what, epoch, credits)))

    # Until nothing arrives for the session any more.

    def _passed(self, outgoing: OutgoingSession, now: float) -> None:
        outgoing.passed = True
        self._leave(outgoing)

    def switched(self, peer: Peer, number: int) -> None:
        """*peer* has subscribed its session, and this worker has marked: publishes from here go to it there."""
        outgoing = self._pending.get((peer.worker.incarnation, number))
        if outgoing is not None:
            outgoing.switched = True
            outgoing.filter.mark(self._worker)
            self._leave(outgoing)

    def marked(self, peer: Peer, asker: int, number: int) -> None:
        """What *peer* sends from here on is for the session at the worker with the incarnation *asker*."""
        outgoing = self._pending.get((asker, number))
        if outgoing is not None:
            outgoing.filter.mark(peer.worker)
            outgoing.unmarked.discard(peer)
            self._leave(outgoing)

    def _leave(self, outgoing: OutgoingSession) -> None:
        """Take the session out of the routes once nothing is sent to it any more; then the rest of it is sent."""
        if outgoing.leaving or not outgoing.passed or not outgoing.switched or outgoing.unmarked:
            return
        if self._is_pending(outgoing):
            outgoing.leaving = True
            self._withdraw(outgoing)

    def _withdraw(self, outgoing: OutgoingSession) -> None:
        left, refused = partial(self._left, outgoing), partial(self._refused, outgoing)
        self._transfer.withdraw(outgoing.exported, outgoing.peer.worker, left, refused)

    def _left(self, outgoing: OutgoingSession) -> None:
        """Nothing is delivered to it here any more; a durable one is that of its new worker."""
        outgoing.left = True
        if self._is_pending(outgoing):
            # If the worker that follows it is here, it has died, and some publishes may have come here alone.
            taker = outgoing.peer
            replaced = any(each is not taker and each.worker.same_place(taker.worker) for each in self._peers.all)
            self._release_kept(outgoing, not replaced and not outgoing.uncertain)
            self._sending.append(outgoing)
        else:  # that worker has died: whoever claims the session takes it from there
            self._release_kept(outgoing, False)
            self._finish(outgoing)

    def _refused(self, outgoing: OutgoingSession) -> None:
        """Its new worker has ended: it stays."""
        if self._is_pending(outgoing):
            outgoing.refused = True  # until `lost()`
        else:
            self._stay(outgoing, self._keep)

    def _release_kept(self, outgoing: OutgoingSession, settled: bool) -> None:
        """Answer the publishes that were refused here, if they are *settled*; or have them come again."""
        now = self._clock()
        for completion in [] if outgoing.kept is None else outgoing.kept.take_refused():
            if settled:
                completion.settle(now)
            else:
                self._abandon(completion, now)

    # How it ends.

    def taken(self, peer: Peer, number: int) -> None:
        """*peer* has all of it."""
        outgoing = self._pending.pop((peer.worker.incarnation, number), None)
        if outgoing is not None:
            self._finish(outgoing)

    def _finish(self, outgoing: OutgoingSession) -> None:
        self._transfer.finish_export(outgoing.exported)
        self._decide(outgoing)

    def abandoned(self, peer: Peer, number: int) -> None:
        """*peer* has gone on without it: it ends here, unless it is durable."""
        outgoing = self._pending.get((peer.worker.incarnation, number))
        if outgoing is not None:
            self._take_back(outgoing, self._keep if outgoing.exported.stored else self._end)

    def _take_back(self, outgoing: OutgoingSession, then: Callable[[OutgoingSession], None]) -> None:
        """Make it a session of this worker again, without a connection, and call *then*.

        If it is being given to its new worker, `_left()` or `_refused()` follows.
        """
        del self._pending[outgoing.peer.worker.incarnation, outgoing.number]
        if not outgoing.exported.giving:
            self._stay(outgoing, then)
        elif outgoing.left:
            self._finish(outgoing)

    def _stay(self, outgoing: OutgoingSession, then: Callable[[OutgoingSession], None]) -> None:
        session = outgoing.exported.session
        if session.transfer_filter is outgoing.filter:  # or it was taken from here by force, and refuses all
            session.transfer_filter = None
        self._transfer.cancel_export(outgoing.exported, self._clock(), partial(then, outgoing))
        self._release_kept(outgoing, False)

    def _keep(self, outgoing: OutgoingSession) -> None:
        """Its new owner is gone: this worker owns it, after that claim and before claims that came since."""
        session = outgoing.exported.session
        if not session.ended:
            self._claims.keep_owned(session, outgoing.epoch + 1)
        self._decide(outgoing)

    def _end(self, outgoing: OutgoingSession) -> None:
        self._transfer.end_instead(outgoing.exported.session, self._clock())
        self._decide(outgoing)

    def _decide(self, outgoing: OutgoingSession) -> None:
        """It is clear whether this worker has the session: answer who asked for it meanwhile."""
        client_id = outgoing.exported.session.client_id
        if self._undecided.get(client_id) is outgoing:
            del self._undecided[client_id]
        for ask in outgoing.waiting:
            ask()

    # Peers that come and go.

    def joined(self, peer: Peer) -> None:
        """*peer* is new: it will be asked to mark its messages for sessions that are on their way."""
        for outgoing in self._pending.values():
            if outgoing.leaving:
                outgoing.filter.mark(peer.worker)
                outgoing.uncertain = outgoing.uncertain or peer.distant  # the others serve nobody yet
            else:
                outgoing.unmarked.add(peer)

    def lost(self, peer: Peer) -> None:
        """*peer* is gone, and all that it sent has been taken."""
        for outgoing in list(self._pending.values()):
            outgoing.unmarked.discard(peer)
            if outgoing.peer is peer:
                self._take_back(outgoing, self._keep)
            else:
                self._leave(outgoing)

    def waited_for(self) -> set[Peer]:
        """The peers that are to take a session, or to mark their messages for one."""
        return {peer for each in self._pending.values() for peer in (each.peer, *each.unmarked)}

    def tick(self, now: float) -> None:
        """Try again what was refused, if the new worker does live: Redis may have lost that it owns sessions."""
        for outgoing in list(self._pending.values()):
            if outgoing.refused:
                outgoing.refused = False
                self._withdraw(outgoing)

    # Chunks.

    def busy(self) -> bool:
        """Whether a chunk can be sent now."""
        return bool(self._sending) and any(outgoing.peer.gate.open for outgoing in self._sending)

    def work(self, until: float) -> None:
        """Send chunks until the time *until*, and at least one."""
        for _ in range(len(self._sending)):
            outgoing = self._sending.popleft()
            if not self._is_pending(outgoing):
                continue
            if self._send(outgoing, until):
                self._sending.append(outgoing)
            if self._clock() >= until:
                return

    def _send(self, outgoing: OutgoingSession, until: float) -> bool:
        """Send chunks of *outgoing*; true if there are more, which have to wait."""
        peer = outgoing.peer
        while peer.gate.open:
            chunk = outgoing.exported.next_chunk()
            if not chunk:
                return False
            peer.write(wire.DATA_HEAD + wire.frame(wire.CHUNK, NUMBER.pack(outgoing.number) + chunk))
            if self._clock() >= until:
                break
        return True
