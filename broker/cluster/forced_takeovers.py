# Forced takeovers: a durable session is taken in Redis from a worker that has died or does not answer (takeover.py).
#
# What its former owner, O, had not stored is not lost: nobody answers it, so it is published again. But the next
# publish of the same client finds the session at its new owner, N, at once, and would come before it. So the connection
# of that publisher ends before its next publish is taken for the session; then it sends all of them again, in their
# order [MQTT-4.4.0-1], [MQTT-4.6.0-1].
#
#   N             reads the record of the session, and subscribes a stand-in for it, which takes nothing. When all
#                 workers but O know that, it takes the session in Redis, and subscribes it. Of each worker it takes
#                 what comes behind LET_GO, and refuses what comes before (session/origin.py)
#   N  to all X   TOOK, behind what N has told of its interest
#   X             closes the connections whose publishes O has not confirmed
#   X  to N       LET_GO, on the data lane
#   N             answers the claim when every X but O has confirmed the interest, and with it TOOK
#
# A stand-in is a session without a client that is in the routes in place of another one: the workers see that somebody
# subscribes, and what it is offered is not stored but has to come again.
#
# The stand-in is there as O ends its own session as soon as it knows, and as whoever follows O, if that has died, does
# not find it: all workers would be told that nobody there subscribes any more, perhaps before N has told that it does,
# and would acknowledge publishes that reach nobody.
#
# A session that O was about to give to N, when O died, is subscribed at N already. What N has got for it since is
# dropped, and has to come again, as what O had not stored does.
#
# N is an X itself, and so is O, if it lives. When O takes TOOK, it waits for a transaction of its own, which tells it
# what it has lost, so that it closes the connections whose publishes it had not stored; and it closes those whose
# publishes N has not confirmed. It refuses what comes for the session until it has heard all others (all_heard.py), and
# closes the connections of those publishers before it lets go, or N would have what they publish next before that. N
# does not wait for O: until O lets go, the client gets nothing that comes from there.
#
# A worker of another node that is no peer of N when this happens, as its lanes have failed, hears TOOK once it has
# joined again: until then N refuses what it sends, or what it publishes next would come before what O refuses. N waits
# for it until it has ended, or its node is dead and settled: before that, a node that was stopped may have its lease
# again, and its workers go on.
#
# O may have taken the session by force itself, from a worker P that goes on refusing what is published for it, as not
# every worker has let go for O. Redis tells N so (store/durable/forced_owners.py), and N has P named by TOOK as well.
# While not all have let go for O, it does not give the session to anybody who asks: N takes it by force, too.
#
# A will without a delay is due as the connection at O ends. While O lives nobody else can tell whether it has published
# it, or its client has withdrawn it. So N keeps it until O has let go, and publishes it if O dies before.
#
# If O does not have the session in Redis, another worker of the cluster may: the one from which the session is on its
# way to O, or the one that has adopted it from O meanwhile. The session is taken from that worker in the same way, or
# from O, if it has come there since; but not for a claim for which a later one waits, or has waited in vain: then that
# worker may have it by the later one. O is tried twice: it may have written something for a session that it has lost,
# which looks as if it had it.
#
# That worker may be N itself: it has adopted the session of a dead worker, and left it out as it was to come from a
# third one, which could not give it. Then N reads it (`DurableStore.take()`); the other steps are the same.
#
# All publishes that O has not confirmed are meant, not those for the session alone: the filters of a session may be
# thousands, and a worker that does not answer for seconds is killed by its supervisor, which has all of them published
# again, too. They stay counted at the gates of O. So what comes again for other sessions of O waits there, and the next
# forced takeover finds little to close.
from collections.abc import Callable
from functools import partial
from typing import Protocol

from broker.cluster import wire
from broker.cluster.announcements import Announcements
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.cluster.takeover_frames import NUMBER, TOOK
from broker.delivery.completion import Completion
from broker.protocol.durable_sessions import DurableSessions
from broker.protocol.pending_wills import PendingWill
from broker.session.origin import ForcedFilter
from broker.session.session import Session
from broker.session.subscription import Subscription
from broker.store.durable.forced_owners import ForcedOwners, Formers
from broker.worker_id import WorkerId


class TakingClaim(Protocol):
    """The claim that a session is taken for."""

    def is_followed(self) -> bool:
        """Called when another worker has the session than was named: whether a later claim has come.

        Then the session is left to that one, and the caller's *then* follows.
        """
        ...

    def taken(self) -> None:
        """The session is one of this worker."""
        ...


class ForcedTakeover:
    """*then* is called when the session is subscribed, and every worker but *former* knows that."""

    def __init__(self, number: int, client_id: str, former: WorkerId, again: bool, then: Callable[[], None]) -> None:
        """*again*: *former* did not have the session, and then it had."""
        self.number = number
        self.client_id = client_id
        self.session: Session | None = None  # once it is here
        self.stand_in: Session | None = None  # until it is
        self.former = former
        self.again = again
        self.formers: list[int] = []  # incarnations of workers from which *former* has taken sessions by force
        self.filter = ForcedFilter()
        self.then = then
        self.known = False  # `then` was called
        self.waiting: set[WorkerId] = set()  # workers that have not let go
        self.will: PendingWill | None = None  # of the session, until it is known whether *former* has published it


class ForcedTakeovers:
    def __init__(
        self,
        worker: WorkerId,
        peers: Peers,
        announcements: Announcements,
        durable: DurableSessions,
        owners: ForcedOwners,
        clock: Callable[[], float],
        abandon: Callable[[Completion, float], None],
    ) -> None:
        """*abandon* is called with publishes that a receiver may have lost."""
        self._owners = owners
        self._worker = worker
        self._peers = peers
        self._announcements = announcements
        self._durable = durable
        self._clock = clock
        self._abandon = abandon
        self._number = int(clock() * 1e6)  # differs from the numbers of the process that had this shard before
        self._pending: dict[int, ForcedTakeover] = {}
        self._away: set[WorkerId] = set()  # workers of other nodes that were peers, and will be again if they live
        self._unsettled: set[WorkerId] = set()  # of them, those that are not listed while dead nodes are not settled
        self._expected = 0  # workers of other nodes that are to come or to be settled
        self._named: set[Peer] = set()  # the next session that they take may have been taken from this worker before

    def pending(self) -> int:
        """Sessions that were taken, and that not every worker has let go of."""
        return len(self._pending)

    # At the worker that takes a session.

    def take(self, client_id: str, former: WorkerId | None, claim: TakingClaim, then: Callable[[], None]) -> None:
        """Make the session of *client_id* one of this worker, if *former* or another worker has it; then call *then*.

        *claim*: the one that it is taken for.
        """
        if former is None:
            self._durable.find(client_id, partial(self._found_owner, client_id, None, claim, then))
        else:
            self._take_from(self._begin(client_id, former, False, then), claim)

    def _take_from(self, taken: ForcedTakeover, claim: TakingClaim) -> None:
        stood_in = partial(self._stood_in, taken, claim)
        self._durable.stand_in_for(taken.client_id, taken.former, taken.filter, stood_in)

    def _stood_in(self, taken: ForcedTakeover, claim: TakingClaim, stand_in: Session | None) -> None:
        taken.stand_in = stand_in
        self._owners.find(taken.former.incarnation_text.encode(), partial(self._found_formers, taken, claim))

    def _found_formers(self, taken: ForcedTakeover, claim: TakingClaim, formers: Formers) -> None:
        former = taken.former
        formers.pop(former.incarnation, None)
        taken.formers = list(formers)
        self._owners.note(former.incarnation_text.encode(), formers, partial(self._noted, taken, claim))

    def _noted(self, taken: ForcedTakeover, claim: TakingClaim) -> None:
        former = taken.former
        lives = self._peers.find(former) is not None
        take = partial(self._durable.take, taken.client_id, former, lives, partial(self._read, taken, claim))
        if taken.stand_in is None:
            take()
        else:
            self._announcements.when_known(former, take)

    def _found_owner(
        self,
        client_id: str,
        failed: ForcedTakeover | None,
        claim: TakingClaim,
        then: Callable[[], None],
        owner: WorkerId | None,
    ) -> None:
        """*owner* has the session of *client_id*, which was not where it was looked for with *failed*: see above."""
        again = failed is not None and owner == failed.former
        if owner is None or (failed is not None and again and failed.again) or claim.is_followed():
            then()
        else:
            self._take_from(self._begin(client_id, owner, again, then), claim)

    def begin_again(self, session: Session, former: WorkerId, then: Callable[[], None]) -> None:
        """*former* has died, which was about to give *session*, that is subscribed here: *then* may take it."""
        taken = self._begin(session.client_id, former, False, then)
        taken.session = session
        session.transfer_filter = taken.filter
        self._owners.note(former.incarnation_text.encode(), {}, _nothing)
        self._durable.drop_early(session)
        self._subscribed(taken)

    def _begin(self, client_id: str, former: WorkerId, again: bool, then: Callable[[], None]) -> ForcedTakeover:
        self._number += 1
        return ForcedTakeover(self._number, client_id, former, again, then)

    def _read(
        self,
        taken: ForcedTakeover,
        claim: TakingClaim,
        session: Session | None,
        subscriptions: list[Subscription],
    ) -> None:
        if session is None:
            self._end_stand_in(taken)
            self._abandon_all(taken.filter.take_all_refused())
            found = partial(self._found_owner, taken.client_id, taken, claim, taken.then)
            self._durable.find(taken.client_id, found)
            return
        claim.taken()
        taken.session = session
        taken.will = self._durable.hold_will(session)
        session.transfer_filter = taken.filter
        self._durable.enrol(session, subscriptions, partial(self._subscribed, taken))

    def _end_stand_in(self, taken: ForcedTakeover) -> None:
        if taken.stand_in is not None:
            self._durable.withdraw(taken.stand_in, partial(self._abandon_late, taken))

    def _abandon_late(self, taken: ForcedTakeover) -> None:
        """Have come again what the stand-in was offered when nobody was waited for any more: it had many filters."""
        if taken.number not in self._pending:
            self._abandon_all(taken.filter.take_all_refused())

    def _subscribed(self, taken: ForcedTakeover) -> None:
        self._pending[taken.number] = taken
        self._end_stand_in(taken)
        former = taken.former
        self._durable.abandon_refused()  # perhaps *former* has taken the session from here
        for each in (former.incarnation, *taken.formers):
            self._close_unconfirmed(each)
        self._has_let_go(taken, self._worker)
        present = {peer.worker for peer in self._peers.all}
        taken.waiting = present | self._away
        if former not in present:
            self._end_hold(taken, False)
        took = _took(taken)
        for peer in self._peers.all:
            if peer.knows_all:
                peer.tell(took)
        self._announcements.when_known(former, partial(self._known, taken))

    def _known(self, taken: ForcedTakeover) -> None:
        taken.known = True
        self._end_if_over(taken)
        taken.then()

    def let_go(self, peer: Peer, number: int) -> None:
        """What *peer* sends from here on is for the session at this worker."""
        taken = self._pending.get(number)
        if taken is not None:
            if peer.worker == taken.former:
                self._end_hold(taken, True)
            self._has_let_go(taken, peer.worker)

    def joined(self, peer: Peer) -> None:
        """*peer* has sent nothing to a former owner that is to come again, if it is new."""
        self._away.discard(peer.worker)
        self._unsettled.discard(peer.worker)
        for taken in self._pending.values():
            if peer.worker not in taken.waiting:
                taken.filter.mark(peer.worker)

    def told(self, peer: Peer) -> None:
        """*peer*, which has joined, has been told what is subscribed to here."""
        for taken in self._pending.values():
            if peer.worker in taken.waiting:
                peer.tell(_took(taken))

    def lost(self, peer: Peer) -> None:
        """*peer* is gone, and all that it sent has been taken. One of another node may join again."""
        self._named.discard(peer)
        left = self._peers.has_left(peer.worker)
        comes_back = peer.distant and (not left or self._expected > 0)
        if comes_back and self._peers.find(peer.worker) is None:  # or it has joined again already
            self._away.add(peer.worker)
            if left:
                self._unsettled.add(peer.worker)
        for taken in list(self._pending.values()):
            if peer.worker == taken.former:
                self._end_hold(taken, False)
            if comes_back:
                self._abandon_all(taken.filter.take_refused(peer.worker))
            else:
                self._has_let_go(taken, peer.worker)

    def left(self, worker: WorkerId) -> None:
        """*worker*, of another node, has ended, or its node is dead. If it is a peer still, `lost()` follows."""
        if worker in self._away:
            self._unsettled.add(worker)
            if not self._expected:
                self._forget_unsettled()

    def expect(self, workers: int) -> None:
        """So many workers of other nodes are to come, or their nodes are dead and not settled."""
        self._expected = workers
        if not workers and self._unsettled:
            self._forget_unsettled()

    def _forget_unsettled(self) -> None:
        """Workers that are not listed again do not come back."""
        gone = {worker for worker in self._unsettled if self._peers.has_left(worker)}
        self._unsettled = set()
        self._away -= gone
        for taken in list(self._pending.values()):  # thousands, perhaps; what they have refused was abandoned
            taken.waiting -= gone
            self._end_if_over(taken)

    def _end_hold(self, taken: ForcedTakeover, published: bool) -> None:
        will, taken.will = taken.will, None
        if will is not None:
            self._durable.end_hold(will, published)

    def _has_let_go(self, taken: ForcedTakeover, worker: WorkerId) -> None:
        self._abandon_all(taken.filter.take_refused(worker))
        taken.filter.mark(worker)
        taken.waiting.discard(worker)
        self._end_if_over(taken)

    def _end_if_over(self, taken: ForcedTakeover) -> None:
        if taken.waiting or not taken.known:
            return
        del self._pending[taken.number]
        self._abandon_late(taken)
        session = taken.session
        if session is not None and session.transfer_filter is taken.filter:  # or it moves on
            session.transfer_filter = None
            session.pump(self._clock())

    # At the other workers.

    def took(self, peer: Peer, number: int, former: int) -> None:
        """*peer* has taken a session from the worker with the incarnation *former*.

        With the *number* 0 *former* is one of those from which the worker in the next frame may have taken it.
        """
        if former != self._worker.incarnation:
            let_go = partial(self._let_go_of_others, peer, number, former)
            if number and peer in self._named:
                self._named.discard(peer)
                self._durable.confirm(let_go)
            else:
                let_go()
        elif number:
            let_go = partial(self._durable.when_left, partial(self._let_go_of_own, peer, number))
            self._durable.confirm(partial(self._durable.confirm, let_go))  # once more: until its will is stored
        else:
            self._named.add(peer)

    def _let_go_of_others(self, peer: Peer, number: int, former: int) -> None:
        self._durable.abandon_refused()  # perhaps *former* has taken the session from here
        self._close_unconfirmed(former)
        if number:
            self._let_go(peer, number)

    def _let_go_of_own(self, peer: Peer, number: int) -> None:
        """This worker did not answer, and has ended what it had of the session. What was refused for it comes again."""
        self._close_unconfirmed(peer.worker.incarnation)
        self._let_go(peer, number)

    def _let_go(self, peer: Peer, number: int) -> None:
        if not peer.gone:
            peer.write(wire.DATA_HEAD + wire.frame(wire.LET_GO, NUMBER.pack(number)))

    def _close_unconfirmed(self, incarnation: int) -> None:
        """Close the connections whose publishes the peer with *incarnation* has not confirmed."""
        peer = self._peers.of_incarnation(incarnation)
        if peer is not None:  # or they were closed when it ended
            self._abandon_all(peer.confirming.unconfirmed())

    def _abandon_all(self, completions: list[Completion]) -> None:
        now = self._clock()
        for completion in completions:
            self._abandon(completion, now)


def _took(taken: ForcedTakeover) -> bytes:
    """For those from which *former* had taken sessions nobody waits: there is no takeover with the number 0."""
    others = [wire.frame(wire.TOOK, TOOK.pack(0, each)) for each in taken.formers]
    return b"".join([*others, wire.frame(wire.TOOK, TOOK.pack(taken.number, taken.former.incarnation))])


def _nothing() -> None:
    pass
