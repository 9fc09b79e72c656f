# Claims: a CONNECT gets the session of its client id, wherever in the cluster that is.
#
# A claim asks the registry first, or, when Redis is away, the workers of the node. The former owner hands the session
# over (takeover.py); only then the claimant is answered. Claims of one client id are taken in turn, and so are peers
# that ask for a session while this worker is claiming it. A claim whose client is gone when it succeeds is released.
# While a durable session is on its way from here to another worker, a claim of it waits: if the other worker does not
# answer, the claim would read the session in Redis, where it is that of this worker still, and would have it twice.
#
# A session of another user is not given up. Where it is on this worker, the claim is refused before anything changes.
# Otherwise Redis refuses if the session is at another node, and the worker that has it if it is at this node: only that
# worker knows whether the session has just ended. It then owns the session with an epoch after that of the claim.
#
# Who owns a session says who serves its client next; who has a durable session stored says where it is. The two differ
# after times without Redis: a claim was carried out that its worker had given up, or a client was back at a worker that
# does not know yet that the session was taken from it. So a worker ends a durable session for another owner, says that
# it has one, has it ended elsewhere, or takes another one in its place, only once the store has said where it is.
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.cluster.forced_takeovers import ForcedTakeovers, TakingClaim
from broker.cluster.owned_sessions import OwnershipConflict
from broker.cluster.owner import Owner
from broker.cluster.registered_store import RegisteredStore
from broker.cluster.registry import CLAIMED, LOCAL, OF_OTHER_USER, REFUSED, Registry, Verdict
from broker.cluster.seal import Seal
from broker.cluster.takeover import OnTakeover, TakeoverRequests, TakeoverResult
from broker.cluster.will_record import encode, sealed
from broker.mqtt.properties import WILL_DELAY_INTERVAL
from broker.protocol.durable_sessions import DurableSessions
from broker.reasons import CloseReason
from broker.session.principal import ANYBODY, may_have
from broker.session.session import Session
from broker.store.sessions import Claimant

UNDECIDED: Final = -1
MOST_WAITING: Final = 20  # claims of one client id that wait at once: each would take over from the one before
NOTHING_DUE: Final = float("inf")
# Calls its second argument once no durable session of the client id is on its way from this worker to another one.
WhenDecided = Callable[[str, Callable[[], None]], None]


class SessionClaimsStatistics:
    def __init__(self) -> None:
        self.waiting = 0  # claims that are not answered, with those that wait for their turn
        self.taken_over = 0  # sessions that came from other workers
        self.given_up = 0  # sessions that peers were told they could have
        self.turned_away = 0  # claims that failed: a later claim has the session, or too many claims wait for it
        self.of_other_users = 0  # claims of sessions that belong to another user


class SessionClaims:
    def __init__(
        self,
        store: RegisteredStore,
        registry: Registry,
        requests: TakeoverRequests,
        clock: Callable[[], float],
        evict: Callable[[Session], None],
        seal: Seal,
        durable: DurableSessions | None,
        forced: ForcedTakeovers | None,
    ) -> None:
        """*evict* ends a session of this worker that another worker owns, and closes its connection (0x8E).

        *seal*: of wills in Redis. *durable*: those of this worker; *forced*: what takes them from workers that do not
        answer; None: no session is durable.
        """
        self.counts = SessionClaimsStatistics()
        self.store = store
        self.registry = registry
        self.requests = requests
        self.clock = clock
        self.evict = evict
        self.seal = seal
        self.durable = durable
        self.forced = forced
        self.when_decided: WhenDecided = _nothing_leaves
        self._claims: dict[str, _Claim] = {}  # under way, by client id

    def claim(self, claimant: Claimant) -> None:
        self.counts.waiting += 1
        under_way = self._claims.get(claimant.client_id)
        if under_way is None:
            self.begin(_Claim(self, claimant, deque()))
        elif len(under_way.behind) < MOST_WAITING:
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
        self.store.claim_begins(claimant.client_id)
        self.when_decided(claimant.client_id, partial(self._begin, claim))

    def _begin(self, claim: "_Claim") -> None:
        claimant = claim.claimant
        if self.session_of_other_user(claimant) is not None:
            claim.of_other_user()
            return
        if self.durable is not None and self.durable.cold.connect(claimant.client_id, claim.session_warmed):
            return
        self.ask(claim)

    def ask(self, claim: "_Claim") -> None:
        """Have the registry answer *claim*; a session that is here is in memory."""
        claimant = claim.claimant
        here = self.store.find(claimant.client_id)
        if here is not None and here.storage is not None:
            lasting = True  # another worker may have taken it from this one, which has not heard of it
        else:  # a session that is in the memory of this worker alone may be claimed while Redis is away
            elsewhere = here is None or not self.registry.epoch_of(claimant.client_id)
            lasting = claimant.expiry > 0 and elsewhere
        self.registry.claim(claimant.client_id, claimant.owner, lasting, claim.will, claim.decided, self.clock())

    def session_of_other_user(self, claimant: Claimant) -> Session | None:
        """The session on this worker that *claimant* may not have."""
        here = self.store.find(claimant.client_id)
        return None if here is None or may_have(claimant.owner, here.principal.owner()) else here

    def over(self, claim: "_Claim") -> None:
        """*claim* has been answered: go on with what waited for that."""
        client_id = claim.claimant.client_id
        del self._claims[client_id]
        self.counts.waiting -= 1
        self.store.claim_ends(client_id)
        for epoch, user, then in claim.askers:
            self.give_up(client_id, epoch, user, then)
        for tell in claim.questions:
            self.answer_whether(client_id, tell)
        if claim.behind:
            self.begin(_Claim(self, claim.behind.popleft(), claim.behind))

    # What peers ask.

    def give_up(self, client_id: str, epoch: int, user: str, then: OnTakeover) -> None:
        """A peer says that it owns *client_id* with *epoch*: call *then* once with what this worker has of it.

        That is the session as it is: the caller closes it (0x8E), takes it out of the routes, and hands it over or ends
        it. Or there is no session here; or there is none to be had, as this worker's epoch is later (*superseded*), or
        as the session belongs to another user than the one with the tag *user* (*of_other_user*).
        """
        if self.durable is not None and not self.durable.ready():
            self.durable.when_adopted(partial(self.give_up, client_id, epoch, user, then))
            return
        claim = self._claims.get(client_id)
        if claim is not None and claim.epoch < epoch:
            claim.askers.append((epoch, user, then))
            return
        held = self.registry.epoch_of(client_id) if claim is None else claim.epoch
        if held > epoch:
            then(TakeoverResult(None, held, superseded=True))
            return
        again = partial(self._give_up_warm, client_id, epoch, user, then)
        if self.durable is not None and self.durable.cold.warm(client_id, again):
            return
        session = self.store.find(client_id)
        if session is not None and not may_have(user, session.principal.owner()):
            self.keep_owned(session, epoch + 1)
            then(TakeoverResult(None, epoch + 1, of_other_user=True))
            return
        self.registry.yield_to(client_id, epoch)
        if session is not None:
            self.counts.given_up += 1
        then(TakeoverResult(session, held))

    def _give_up_warm(self, client_id: str, epoch: int, user: str, then: OnTakeover, warm: bool) -> None:
        self.give_up(client_id, epoch, user, then)

    def answer_whether(self, client_id: str, then: Callable[[bool], None]) -> None:
        """Call *then*, once no claim is under way, with whether there is a session here."""
        claim = self._claims.get(client_id)
        if claim is not None:
            claim.questions.append(then)
        elif self.durable is not None and self._has(client_id):
            self.durable.confirm(lambda: then(self._has(client_id)))  # it may have been taken in the store
        else:
            then(self._has(client_id))

    def _has(self, client_id: str) -> bool:
        cold = self.durable is not None and self.durable.cold.has(client_id)
        return cold or self.store.find(client_id) is not None

    def keep_owned(self, session: Session, epoch: int) -> None:
        """*session* was claimed in vain: this worker owns it with *epoch*, the one after that claim.

        If it is durable it may have been taken in the store, as this worker did not answer: then it ends.
        """
        if session.storage is None:
            self._own(session, epoch)
        else:
            session.storage.confirm(partial(self._own, session, epoch))

    def owns_later(self, session: Session, epoch: int) -> bool:
        """Whether this worker has *session*, and owns it with a later epoch than *epoch*."""
        return self.store.find(session.client_id) is session and self.registry.epoch_of(session.client_id) > epoch

    def _own(self, session: Session, epoch: int) -> None:
        if self.store.find(session.client_id) is not session:
            return  # it has gone meanwhile
        self.registry.hold_locally(session.client_id, epoch, session.principal.owner(), _will_of(session, self.seal))

    # Other owners that the registry finds.

    def tick(self, now: float) -> float:
        """Settle the conflicts that the registry has found; nothing is ever due."""
        for conflict in self.registry.owned.take_conflicts():
            if not conflict.ours:
                self._superseded(conflict)
            elif self.durable is None:
                self._end_elsewhere(conflict)
            else:
                self.durable.confirm(partial(self._end_elsewhere, conflict))
        return NOTHING_DUE

    def _end_elsewhere(self, conflict: OwnershipConflict) -> None:
        """Have the former owner end the session, which is this worker's, if it is still."""
        client_id, ours = conflict.client_id, conflict.ours
        if self.registry.epoch_of(client_id) == ours:
            self.requests.take_over(client_id, conflict.owner, ours, ANYBODY, False, _ignore)

    def _superseded(self, conflict: OwnershipConflict) -> None:
        """Another worker owns a session that is here, unless its claim was carried out after it was abandoned."""
        session = self.store.find(conflict.client_id)
        if session is not None and not self.registry.epoch_of(conflict.client_id):
            settle = partial(self._settle, session, conflict.owner)
            self.requests.whether(conflict.client_id, conflict.owner, settle)

    def _settle(self, session: Session, owner: Owner, has: bool) -> None:
        """*owner* says whether it has *session*: end it here, or own it again.

        If *owner* cannot be asked it counts as having *session*. A durable one stays then, unless it was taken in the
        store: the claim of *owner* may have been given up, and with *session* all that is stored of it would end.
        """
        client_id = session.client_id
        if self.store.find(client_id) is not session or self.registry.epoch_of(client_id) or client_id in self._claims:
            return  # meanwhile it has been handed over, or claimed here again
        if has and (session.storage is None or self.requests.reaches(owner)):
            self.evict(session)
        else:
            self.keep_owned(session, owner.epoch + 1)


class _Claim(TakingClaim):
    """A CONNECT on its way to its session."""

    def __init__(self, claims: SessionClaims, claimant: Claimant, behind: deque[Claimant]) -> None:
        self.claims = claims
        self.claimant = claimant
        self.behind = behind  # claimants of the same client id that wait for their turn
        self.epoch = UNDECIDED
        self.askers: list[
            tuple[int, str, OnTakeover]
        ] = []  # peers that want the session afterwards, with greater epochs
        self.questions: list[Callable[[bool], None]] = []  # whether there is a session here afterwards
        self.will = _will_claimed_by(claimant, claims.seal, claims.durable is not None)
        self._local = False  # claimed without Redis
        self._again = False  # asked the node for the second time, with a greater epoch
        self._asked_all = False
        self._looked = False  # in Redis, for what a worker has stored that does not answer
        self._followed = False  # by a later claim, when another worker was found to have the session
        self._taken = False  # the session was taken in the store, and was here
        self._former: Owner | None = None  # the owner before this claim, unless it has answered
        self._before: Owner | None = None  # the owner before this claim, if it is known
        self._done = False

    def session_warmed(self, warm: bool) -> None:
        """The session is in memory, or there is none any more; not *warm*: Redis does not answer in time."""
        claims = self.claims
        if not warm:
            self._answer(CloseReason.SERVER_UNAVAILABLE, None)
        elif claims.session_of_other_user(self.claimant) is not None:
            self.of_other_user()
        else:
            claims.ask(self)

    def decided(self, verdict: Verdict) -> None:
        """The registry has answered."""
        claims, claimant = self.claims, self.claimant
        if verdict.outcome == REFUSED:
            self._answer(CloseReason.SERVER_UNAVAILABLE, None)
            return
        if verdict.outcome == OF_OTHER_USER:
            self.of_other_user()
            return
        client_id = claimant.client_id
        self._local = verdict.outcome == LOCAL
        self.epoch = claims.registry.next_epoch(client_id) if self._local else verdict.epoch
        self._refuse_askers_before(self.epoch + 1)
        here = claims.store.find(client_id)
        self._former = self._before = verdict.former
        if verdict.outcome == CLAIMED and verdict.former is not None:
            ask = partial(self._ask_former, verdict.former)
            if here is None or here.storage is None or claims.durable is None:
                ask()
            else:
                claims.durable.confirm(ask)
        elif here is None and (self._local or verdict.uncertain):
            self._ask_all()
        else:
            self.handed_over(TakeoverResult(None))

    def _ask_former(self, former: Owner) -> None:
        """Have *former* give the session up. It has none if the store says that a durable one is here.

        Nor is it told to end what it may have still: an earlier claim may take the session from here meanwhile, and
        *former* would end it there. A worker learns of the store what was taken from it.
        """
        claims, claimant = self.claims, self.claimant
        here = claims.store.find(claimant.client_id)
        if here is not None and here.storage is not None:
            self.handed_over(TakeoverResult(None))
            return
        wanted = not claimant.clean_start
        claims.requests.take_over(claimant.client_id, former, self.epoch, claimant.owner, wanted, self.handed_over)

    def _ask_all(self) -> None:
        self._asked_all = True
        claimant, requests = self.claimant, self.claims.requests
        ask = requests.claim_within_node if self._local else requests.claim_everywhere
        ask(claimant.client_id, self.epoch, claimant.owner, not claimant.clean_start, self.handed_over)

    def handed_over(self, result: TakeoverResult) -> None:
        """The workers that were asked have answered."""
        if self._done:
            return
        if not result.unanswered and not self._asked_all:
            self._former = None  # it has answered
        claims, client_id = self.claims, self.claimant.client_id
        kept = claims.session_of_other_user(self.claimant)
        if kept is not None:  # it came back meanwhile, from a peer that had taken it over and has died
            claims.keep_owned(kept, self.epoch)
            self.of_other_user()
            return
        if result.superseded or result.of_other_user:
            if result.superseded and self._local and not self._again:
                self._again = True
                self.epoch = max(self.epoch, result.epoch) + 1
                self._ask_all()
                return
            self.epoch = max(self.epoch, result.epoch)
            # Or they would begin a second session. The later claim itself may be one that asks: it waits for this one.
            self._refuse_askers_before(self.epoch)
            claims.registry.yield_to(client_id, result.epoch)
            if result.of_other_user:
                self.of_other_user()
            else:
                claims.counts.turned_away += 1
                self._answer(CloseReason.SERVER_UNAVAILABLE, None)
            return
        here = claims.store.find(client_id)
        if result.nowhere and here is None and not self._asked_all:
            self._ask_all()
            return
        lost = result.session is None and here is None and claims.forced is not None
        unknown = result.unanswered and not self._local  # a worker may have stored it that nobody has named
        if lost and claims.forced is not None and not self._looked and (unknown or self._former is not None):
            self._looked = True
            former = None if self._former is None else self._former.worker
            claims.forced.take(client_id, former, self, partial(self.handed_over, result))
            return
        if lost and (self._followed or self._taken):  # a later claim has it; or it has just ended
            self._yield_to_followers()
            return
        if lost and result.unanswered and self._asked_all and not self.claimant.clean_start:
            # A worker may have it that is busy with what another one has left, or that has yet to come.
            claims.counts.turned_away += 1
            claims.registry.give_back(client_id, self._before, self.claimant.owner)
            self._answer(CloseReason.SERVER_UNAVAILABLE, None)
            return
        if self._local:
            claims.registry.hold_locally(client_id, self.epoch, self.claimant.owner, self.will)
        if result.session is not None:
            claims.counts.taken_over += 1
            if here is not None and here is not result.session:  # since a time when the two workers were cut off
                claims.evict(here)
            claims.store.keep(result.session)
        self._answer(None, result.session or here)

    def is_followed(self) -> bool:
        self._followed = len(self.askers) > 0
        return self._followed

    def _yield_to_followers(self) -> None:
        """Leave the session, which another worker has, to the later claims: one of them may have taken it already.

        The peers that ask are told that it is not here, by an owner who never had it: then they ask all workers.
        """
        claims = self.claims
        askers, self.askers = self.askers, []
        if askers:
            claims.registry.yield_to(self.claimant.client_id, max(epoch for epoch, _, _ in askers))
        for _, _, then in askers:
            then(TakeoverResult(None))
        claims.counts.turned_away += 1
        self._answer(CloseReason.SERVER_UNAVAILABLE, None)

    def taken(self) -> None:
        """The session was taken in the store from a worker that did not answer, and is here.

        That worker may have kept it before, as this claim seemed to be over, with the epoch after that of this claim
        (`SessionClaims.keep_owned()`). In Redis, too, the session has to be that of this worker.
        """
        self._taken = True
        self.epoch += 2
        self.claims.registry.hold_locally(self.claimant.client_id, self.epoch, self.claimant.owner, self.will)

    def _refuse_askers_before(self, latest: int) -> None:
        """Answer peers that ask with an epoch before *latest*: this claim may be waiting for them."""
        askers, self.askers = self.askers, []
        for epoch, user, then in askers:
            if epoch >= latest:
                self.askers.append((epoch, user, then))
            else:
                then(TakeoverResult(None, self.epoch, superseded=True))

    def of_other_user(self) -> None:
        """Refuse the claim, as the session belongs to another user."""
        self.claims.counts.of_other_users += 1
        self._answer(CloseReason.CLIENT_ID_OF_OTHER_USER, None)

    def _answer(self, reason: CloseReason | None, session: Session | None) -> None:
        self._done = True
        try:
            if reason is not None:
                self.claimant.refused(reason)
            else:
                self.claimant.found(session)
                if session is not None and session.outbox is None and not session.ended:  # its client is not there
                    self.claims.registry.replace_will(session.client_id, _will_of(session, self.claims.seal))
        finally:
            self.claims.over(self)


def _will_claimed_by(claimant: Claimant, seal: Seal, durable: bool) -> bytes:
    """The will of *claimant* as it is stored in Redis; b"" if there is none, or if it is stored with its session.

    *durable*: sessions that outlive their connections are stored.
    """
    will = claimant.will
    if will is None or (durable and claimant.expiry):
        return b""
    delay = will.properties.get(WILL_DELAY_INTERVAL, 0)
    record = encode(will, min(delay if isinstance(delay, int) else 0, claimant.expiry), claimant.user)
    return sealed(seal, claimant.client_id, record)


def _will_of(session: Session, seal: Seal) -> bytes:
    """The will of *session*, which has no connection, as it is stored in Redis; b"" as above."""
    will = session.will
    if will is None or (session.storage is not None and session.expiry):
        return b""
    user = session.principal.user
    record = encode(will.fields(), min(will.delay, session.expiry), None if user is None else user.decode())
    return sealed(seal, session.client_id, record)


def _nothing_leaves(client_id: str, then: Callable[[], None]) -> None:
    then()


def _ignore(result: TakeoverResult) -> None:
    pass
