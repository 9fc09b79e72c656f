# The sessions of a worker that is one of several: in its memory, and owned as the registry says.
#
# A claim asks the registry first, or, when Redis is away, the node. Who owned the session until then hands it over
# (takeover.py); only then its client is answered. Claims of one client id take their turn, as do those who ask us
# for a session that we are about to get ourselves. What was claimed and is not kept, as its client has gone meanwhile,
# is released again.
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.cluster.owned_sessions import OwnershipListener
from broker.cluster.owner import Owner
from broker.cluster.registry import CLAIMED, LOCAL, REFUSED, Registry, Verdict
from broker.cluster.takeover import OnTakeover, TakeoverRequests, TakeoverResult
from broker.cluster.will_record import encode
from broker.mqtt.properties import WILL_DELAY_INTERVAL
from broker.reasons import CloseReason
from broker.session.session import Session
from broker.store.sessions import Claimant, MemorySessions

UNDECIDED: Final = -1
MOST_BEHIND: Final = 20  # connections of one client id that wait at once: each would take over the one before


class SessionClaimsStatistics:
    def __init__(self) -> None:
        self.waiting = 0  # claims, those that wait for their turn included
        self.taken_over = 0  # sessions that came from other workers
        self.given_up = 0  # sessions that others were told they could have
        self.turned_away = 0  # clients whose session somebody else claimed later, or too many want


class SessionClaims:
    """A `SessionStore`, and what the registry tells of other owners (its `OwnershipListener`)."""

    def __init__(
        self,
        make_registry: Callable[[OwnershipListener], Registry],
        neighbours: TakeoverRequests,
        clock: Callable[[], float],
        evict: Callable[[Session], None],
    ) -> None:
        """*evict* ends a session that is here though somebody else has it, with its connection (0x8E)."""
        self.counts = SessionClaimsStatistics()
        self.memory = MemorySessions()
        self.neighbours = neighbours
        self.clock = clock
        self.evict = evict
        # Told of client ids, with the epochs of their claims, whose wills are done with while Redis cannot be told.
        self.untold: Callable[[str, int], None] = _nobody
        self._claims: dict[str, _Claim] = {}  # under way, by client id
        self.registry = make_registry(self)

    def claim(self, claimant: Claimant) -> None:
        self.counts.waiting += 1
        under_way = self._claims.get(claimant.client_id)
        if under_way is None:
            self.begin(_Claim(self, claimant, deque()))
        elif len(under_way.behind) < MOST_BEHIND:
            under_way.behind.append(claimant)
        else:
            self.counts.waiting -= 1
            self.counts.turned_away += 1
            claimant.refused(CloseReason.SERVER_BUSY)

    def has_room(self, now: float) -> bool:
        return self.registry.has_room(now)

    def begin(self, claim: "_Claim") -> None:
        claimant = claim.claimant
        self._claims[claimant.client_id] = claim
        self.registry.claim(claimant.client_id, claimant.expiry > 0, claim.will, claim.decided, self.clock())

    def over(self, claim: "_Claim") -> None:
        """*claim* has been answered: who waited for that goes on."""
        client_id = claim.claimant.client_id
        del self._claims[client_id]
        self.counts.waiting -= 1
        if self.memory.find(client_id) is None:
            self.registry.release(client_id)
        for epoch, then in claim.askers:
            self.give_up(client_id, epoch, then)
        for tell in claim.curious:
            self.tell_whether(client_id, tell)
        if claim.behind:
            self.begin(_Claim(self, claim.behind.popleft(), claim.behind))

    def give_up(self, client_id: str, epoch: int, then: OnTakeover) -> None:
        """Another worker owns *client_id* with *epoch*, so it says: *then* is called once with what is here of it.

        That is its session, as it is: to be closed (0x8E), taken out of the routes and handed over, or ended, and to be
        forgotten here. Or nothing; or nothing, and *superseded*: it is ours with an epoch that is later.
        """
        claim = self._claims.get(client_id)
        if claim is not None and claim.epoch < epoch:
            claim.askers.append((epoch, then))
            return
        held = self.registry.epoch_of(client_id) if claim is None else claim.epoch
        if held > epoch:
            then(TakeoverResult(None, held, superseded=True))
            return
        self.registry.yield_to(client_id, epoch)
        session = self.memory.find(client_id)
        if session is not None:
            self.counts.given_up += 1
        then(TakeoverResult(session, held))

    def tell_whether(self, client_id: str, then: Callable[[bool], None]) -> None:
        """Call *then*, once no claim is under way, with whether there is a session here."""
        claim = self._claims.get(client_id)
        if claim is not None:
            claim.curious.append(then)
        else:
            then(self.memory.find(client_id) is not None)

    def keep_after_all(self, session: Session, epoch: int) -> None:
        """Whoever had asked for *session* is gone: it is ours with *epoch*, the next one after that of its claim."""
        self._hold(session, epoch)

    def _hold(self, session: Session, epoch: int) -> None:
        """*session*, which is here, is ours again."""
        self.registry.hold_locally(session.client_id, epoch, _left_by(session))

    # What the registry finds out by itself.

    def superseded(self, client_id: str, owner: Owner, now: float) -> None:
        """Its claim may be one that was carried out too late for its client: then the session is only here."""
        session = self.memory.find(client_id)
        if session is None:
            return
        if owner.worker.node == self.registry.worker.node:
            self.neighbours.whether(client_id, owner, partial(self._superseded, session, owner))
        else:
            self.evict(session)

    def _superseded(self, session: Session, owner: Owner, has: bool) -> None:
        client_id = session.client_id
        if (
            self.memory.find(client_id) is not session
            or self.registry.epoch_of(client_id)
            or self._claims.get(client_id)
        ):
            return  # it has been handed over, or claimed here again
        if has:
            self.evict(session)
        else:
            self._hold(session, owner.epoch + 1)  # later than that claim, and not than those that may come meanwhile

    def superseding(self, client_id: str, former: Owner, now: float) -> None:
        self.neighbours.take_over(client_id, former, self.registry.epoch_of(client_id), False, _ignore)

    # Sessions.

    def keep(self, session: Session) -> None:
        self.memory.keep(session)

    def forget(self, session: Session) -> None:
        client_id = session.client_id
        if self.memory.find(client_id) is session and client_id not in self._claims:
            epoch = self.registry.epoch_of(client_id)
            self.registry.release(client_id)  # else it was claimed again, for its successor
            if session.will is not None:  # it is published now: killed next, we would be mourned with it again
                self.registry.tell(self.clock())
                if self.registry.owned.ended(client_id):  # Redis cannot be told now
                    self.untold(client_id, epoch)
        self.memory.forget(session)

    def without_will(self, session: Session) -> None:
        if not self.registry.drop_will(session.client_id, self.clock()):
            self.untold(session.client_id, self.registry.epoch_of(session.client_id))

    def find(self, client_id: str) -> Session | None:
        return self.memory.find(client_id)

    def sessions(self) -> Iterable[Session]:
        return self.memory.sessions()

    def count(self) -> int:
        return self.memory.count()


class _Claim:
    """A CONNECT on its way to its session."""

    def __init__(self, store: SessionClaims, claimant: Claimant, behind: deque[Claimant]) -> None:
        self.store = store
        self.claimant = claimant
        self.behind = behind  # who want the same session, after this one
        self.epoch = UNDECIDED
        self.askers: list[tuple[int, OnTakeover]] = []  # workers that want it with greater epochs, when we have it
        self.curious: list[Callable[[bool], None]] = []  # who want to know whether we have it then
        self.will = _record(claimant)
        self._local = False
        self._again = False  # within the node, the second time
        self._asked_all = False
        self._done = False

    def decided(self, verdict: Verdict) -> None:
        """The registry has answered."""
        store, claimant = self.store, self.claimant
        if verdict.outcome == REFUSED:
            self._answer(CloseReason.SERVER_UNAVAILABLE, None)
            return
        client_id = claimant.client_id
        self._local = verdict.outcome == LOCAL
        self.epoch = store.registry.next_epoch(client_id) if self._local else verdict.epoch
        self._turn_away_earlier()
        here = store.memory.find(client_id)
        if verdict.outcome == CLAIMED and verdict.former is not None:
            store.neighbours.take_over(
                client_id, verdict.former, self.epoch, not claimant.clean_start, self.handed_over
            )
        elif here is None and (self._local or verdict.doubtful):
            self._ask_the_node()
        else:
            self.handed_over(TakeoverResult(None))

    def _ask_the_node(self) -> None:
        self._asked_all = True
        claimant = self.claimant
        self.store.neighbours.claim_within_node(
            claimant.client_id, self.epoch, not claimant.clean_start, self.handed_over
        )

    def handed_over(self, handover: TakeoverResult) -> None:
        """Whoever had the session has answered."""
        if self._done:
            return
        store, client_id = self.store, self.claimant.client_id
        if handover.superseded:
            if self._local and not self._again:
                self._again = True
                self.epoch = max(self.epoch, handover.epoch) + 1
                self._ask_the_node()
                return
            store.counts.turned_away += 1
            self.epoch = max(self.epoch, handover.epoch)
            self._turn_away_earlier()  # the session is there, and they would begin a second one
            store.registry.yield_to(client_id, handover.epoch)
            self._answer(CloseReason.SERVER_UNAVAILABLE, None)
            return
        here = store.memory.find(client_id)
        if handover.nowhere and here is None and not self._asked_all:
            self._ask_the_node()
            return
        if self._local:
            store.registry.hold_locally(client_id, self.epoch, self.will)
        if handover.session is not None:
            store.counts.taken_over += 1
            if here is not None and here is not handover.session:  # of a time when the other one could not be asked
                store.evict(here)
            store.memory.keep(handover.session)
        self._answer(None, handover.session or here)

    def _turn_away_earlier(self) -> None:
        """Who asks for less than we have now must not wait until we have it: we may be waiting for them."""
        askers, self.askers = self.askers, []
        for epoch, then in askers:
            if epoch > self.epoch:
                self.askers.append((epoch, then))
            else:
                then(TakeoverResult(None, self.epoch, superseded=True))

    def _answer(self, reason: CloseReason | None, session: Session | None) -> None:
        self._done = True
        try:
            if reason is not None:
                self.claimant.refused(reason)
            else:
                self.claimant.found(session)
                if session is not None and session.outbox is None and not session.ended:
                    self.store.registry.leaves(session.client_id, _left_by(session))  # its client is not there
        finally:
            self.store.over(self)


def _record(claimant: Claimant) -> bytes:
    """The will as Redis has it."""
    will = claimant.will
    if will is None:
        return b""
    delay = will.properties.get(WILL_DELAY_INTERVAL, 0)
    return encode(will, min(delay if isinstance(delay, int) else 0, claimant.expiry), claimant.user)


def _left_by(session: Session) -> bytes:
    """The same of a session that has no connection."""
    will = session.will
    if will is None:
        return b""
    user = session.principal.user
    return encode(will.fields, min(will.delay, session.expiry), None if user is None else user.decode())


def _ignore(handover: TakeoverResult) -> None:
    pass


def _nobody(client_id: str, epoch: int) -> None:
    pass
