# Frames about sessions: which side of a takeover (takeover.py) each one is for.
#
# A worker that is to be replaced offers its sessions to its peers (OFFER): a peer that is offered a session claims it,
# as a client that comes back would.
from collections import deque
from typing import Final

from broker.cluster import wire
from broker.cluster.forced_takeovers import ForcedTakeovers
from broker.cluster.incoming_sessions import IncomingSessions
from broker.cluster.outgoing_sessions import OutgoingSessions
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.session_claims import SessionClaims
from broker.cluster.takeover_frames import ANSWER, ASK, HAS, MARK, NUMBER, SWITCH, TOOK, USER, user_of
from broker.mqtt.packets import Will
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.worker_id import WorkerId

EARLY_MARKS: Final = 1000


class OfferedSession:
    """A claim of a session whose worker ends, for the client that will come back for it: a `Claimant`."""

    def __init__(self, client_id: str, owner: str) -> None:
        self.client_id = client_id
        self.owner = owner
        self.clean_start = False
        self.expiry = 1  # not 0: the session outlives its connection. For how long, it brings along
        self.will: Will | None = None
        self.user: str | None = None

    def found(self, session: Session | None) -> None:
        pass  # it is in the store, without a connection; or it had ended

    def refused(self, reason: CloseReason) -> None:
        pass  # the worker that ends counts it as lost


class Takeovers:
    """The base class is a worker without Redis, where nothing is claimed and sessions stay where they are."""

    def take(self, peer: Peer, kind: int, body: bytes) -> bool:
        """Take a frame from *peer* about a session; false if *kind* is no such frame."""
        return False

    def offer(self, session: Session) -> None:
        """This worker ends: let a peer have *session*."""

    def offer_to(self, session: Session, peer: Peer) -> None:
        """This node is drained: let *peer* have *session*."""

    def leaving(self) -> int:
        """Sessions that are on their way to other workers, and have not been taken yet."""
        return 0

    def pending(self) -> int:
        """Sessions that are on their way from or to other workers."""
        return 0

    def joined(self, peer: Peer) -> None:
        """*peer* is new."""

    def told(self, peer: Peer) -> None:
        """*peer*, which is new, has been told all filters of this worker."""

    def left(self, worker: WorkerId) -> None:
        """*worker*, of another node, has ended, or its node is dead."""

    def expect(self, workers: int) -> None:
        """So many workers of other nodes are to come, or their nodes are dead and not settled."""

    def lost(self, peer: Peer) -> None:
        """*peer* is gone, and all that it sent has been taken."""

    def waited_for(self) -> set[Peer]:
        """The peers that a session that moves waits for."""
        return set()

    def tick(self, now: float) -> None:
        """Abandon what takes too long."""

    def busy(self) -> bool:
        """Whether `work()` has something to do now."""
        return False

    def work(self, until: float) -> None:
        """Send chunks of sessions until the time *until*."""


class RegisteredTakeovers(Takeovers):
    def __init__(
        self,
        worker: WorkerId,
        peers: Peers,
        incoming: IncomingSessions,
        outgoing: OutgoingSessions,
        claims: SessionClaims,
        forced: ForcedTakeovers | None,
    ) -> None:
        """*forced*: None: no session is durable."""
        self._worker = worker
        self._peers = peers
        self._incoming = incoming
        self._outgoing = outgoing
        self._claims = claims
        self._forced = forced
        self._offered = 0
        # For workers that are no peers (yet), by their incarnations; most of them never will be, and need none.
        self._early_marks: deque[tuple[int, bytes]] = deque(maxlen=EARLY_MARKS)

    def take(self, peer: Peer, kind: int, body: bytes) -> bool:
        incoming, outgoing = self._incoming, self._outgoing
        if kind == wire.ASK:
            number, epoch, wanted, user = ASK.unpack_from(body)
            outgoing.asked(peer, number, epoch, user_of(user), bool(wanted), body[ASK.size :].decode())
        elif kind == wire.ANSWER:
            number, what, epoch, credits = ANSWER.unpack(body)
            incoming.answered(peer, number, what, epoch, credits)
        elif kind == wire.CHUNK:
            (number,) = NUMBER.unpack_from(body)
            incoming.received(peer, number, body[NUMBER.size :])
        elif kind == wire.SWITCH:
            number, owner = SWITCH.unpack(body)
            self._switch(peer, number, owner)
        elif kind == wire.MARK:
            number, asker = MARK.unpack(body)
            if asker == self._worker.incarnation:
                incoming.marked(peer, number)
            else:
                outgoing.marked(peer, asker, number)
        elif kind == wire.TAKEN:
            outgoing.taken(peer, NUMBER.unpack(body)[0])
        elif kind == wire.ABANDON:
            outgoing.abandoned(peer, NUMBER.unpack(body)[0])
        elif kind == wire.OFFER:
            self._claims.claim(OfferedSession(body[USER.size :].decode(), user_of(body[: USER.size])))
        elif kind == wire.WHETHER:
            (number,) = NUMBER.unpack_from(body)
            outgoing.asked_whether(peer, number, body[NUMBER.size :].decode())
        elif kind == wire.HAS:
            number, has = HAS.unpack(body)
            incoming.has(number, bool(has))
        elif kind == wire.TOOK and self._forced is not None:
            self._forced.took(peer, *TOOK.unpack(body))
        elif kind == wire.LET_GO and self._forced is not None:
            self._forced.let_go(peer, NUMBER.unpack(body)[0])
        else:
            return False
        return True

    def _switch(self, peer: Peer, number: int, owner: int) -> None:
        """*peer* has subscribed a session that was at the worker with the incarnation *owner*: mark, for both."""
        mark = wire.DATA_HEAD + wire.frame(wire.MARK, MARK.pack(number, peer.worker.incarnation))
        peer.write(mark)
        if owner == self._worker.incarnation:
            self._outgoing.switched(peer, number)
            return
        former = self._peers.of_incarnation(owner)
        if former is not None:
            former.write(mark)
        else:  # all that it will be sent comes behind the mark
            self._early_marks.append((owner, mark))

    def offer(self, session: Session) -> None:
        peers = self._peers.of_own_node() or self._peers.all
        if peers:
            self._offered += 1
            self.offer_to(session, peers[self._offered % len(peers)])

    def offer_to(self, session: Session, peer: Peer) -> None:
        user = session.principal.owner().encode()
        peer.tell(wire.frame(wire.OFFER, USER.pack(user) + session.client_id.encode()))

    def leaving(self) -> int:
        return self._outgoing.pending()

    def pending(self) -> int:
        forced = 0 if self._forced is None else self._forced.pending()
        return self._incoming.pending() + self._outgoing.pending() + forced

    def joined(self, peer: Peer) -> None:
        for _ in range(len(self._early_marks)):
            owner, mark = self._early_marks.popleft()
            if owner == peer.worker.incarnation:
                peer.write(mark)
            else:
                self._early_marks.append((owner, mark))
        self._outgoing.joined(peer)
        self._incoming.joined(peer)
        if self._forced is not None:
            self._forced.joined(peer)

    def told(self, peer: Peer) -> None:
        self._incoming.told(peer)
        if self._forced is not None:
            self._forced.told(peer)

    def left(self, worker: WorkerId) -> None:
        if self._forced is not None:
            self._forced.left(worker)

    def expect(self, workers: int) -> None:
        if self._forced is not None:
            self._forced.expect(workers)

    def lost(self, peer: Peer) -> None:
        self._incoming.lost(peer)
        self._outgoing.lost(peer)
        if self._forced is not None:
            self._forced.lost(peer)

    def waited_for(self) -> set[Peer]:
        return self._incoming.waited_for() | self._outgoing.waited_for()

    def tick(self, now: float) -> None:
        self._incoming.tick(now)
        self._outgoing.tick(now)

    def busy(self) -> bool:
        return self._outgoing.busy()

    def work(self, until: float) -> None:
        self._outgoing.work(until)
