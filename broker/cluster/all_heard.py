# What waits until this worker has heard of every other one what has become of sessions.
#
# A worker that has lost a session, or knows that another one has, goes on counting the publishes for it as publishes
# that have a receiver, until it knows who has it now. Usually that is known before: a worker that takes a session tells
# all others first, and waits for their answers. But it does not wait for those that are silent. A worker that stood
# still, or was cut off, may hear that a session is gone and not yet where it is: it would acknowledge publishes that
# reach nobody.
#
# So what waits here waits for an answer of each worker that is listed, to something that it was asked since, on lanes
# on which it has told everything. A worker that has given up this one does not answer on the lanes that it has ended,
# and tells everything on the next ones. One that has died is waited for until another one has its sessions.
#
# When a worker takes what it has lost out of its routes it tells all others, and one of these may not have heard either
# who has it now: it was given up, too, or what it was told waits to be read. So that waits until each other worker has
# heard all in this way, which it is asked for (HEAR_ALL). That is a message from each worker to each other one, but one
# for all that waits, and only after sessions were taken by force.
from collections.abc import Callable
from functools import partial

from broker.cluster import wire
from broker.cluster.announcements import Announcements
from broker.cluster.distant_peers import DistantPeers
from broker.cluster.peer import Peer
from broker.cluster.peers import Peers
from broker.worker_id import WorkerId


class AllHeard:
    def __init__(
        self,
        peers: Peers,
        distant: DistantPeers,
        announcements: Announcements,
        told: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        """*told*: whether all peers have told everything. *failed* is called with an exception of what has waited."""
        self._peers = peers
        self._distant = distant
        self._announcements = announcements
        self._told = told
        self._failed = failed
        # By the worker besides. A worker that goes on may have lost all of its sessions, which are many.
        self._waiting: dict[WorkerId | None, list[Callable[[], None]]] = {}
        self._asking = False
        self._lost = False  # a peer, since all were asked
        self._to_let_go: list[Callable[[], None]] = []  # waits until the others have heard all, and they are not asked
        self._letting_go: list[Callable[[], None]] = []  # the same, and they are
        self._answers: dict[Peer, None] = {}  # of those that are asked, whose answers are missing
        self._number = 0  # of the last question

    def when_heard(self, then: Callable[[], None], besides: WorkerId | None = None) -> None:
        """Call *then* as soon as every worker has been heard since; *besides* is only waited for if it is a peer."""
        self._waiting.setdefault(besides, []).append(then)
        self.check()

    def when_all_have(self, then: Callable[[], None]) -> None:
        """Call *then* as soon as this worker has heard every other one, and each of them has, since."""
        self._to_let_go.append(then)
        if not self._letting_go:
            self._begin()

    def _begin(self) -> None:
        self._letting_go, self._to_let_go = self._to_let_go, []
        if self._letting_go:
            self.when_heard(self._ask_to_hear)

    def _ask_to_hear(self) -> None:
        self._number += 1
        self._answers = dict.fromkeys([peer for peer in self._peers.all if not peer.former])
        for peer in self._answers:
            peer.tell(wire.number(wire.HEAR_ALL, self._number))
        self._let_go_if_all_have()

    def asked_to_hear(self, peer: Peer, number: int) -> None:
        """*peer* asks to be told when this worker has heard all."""
        self.when_heard(partial(self._tell, peer, number))

    def _tell(self, peer: Peer, number: int) -> None:
        if not peer.gone:
            peer.tell(wire.number(wire.HEARD_ALL, number))

    def has_heard(self, peer: Peer, number: int) -> None:
        """*peer* has heard all since it was asked the question *number*."""
        if number == self._number and peer in self._answers:
            del self._answers[peer]
            self._let_go_if_all_have()

    def _let_go_if_all_have(self) -> None:
        if not self._answers:
            ready, self._letting_go = self._letting_go, []
            self._call(ready)
            self._begin()

    def lost(self, peer: Peer) -> None:
        """*peer* is gone. `check()` follows, once it is known whether it is to come back."""
        self._lost = True
        if peer in self._answers:  # it is to be heard again, and to hear all
            self._answers = {}
            self._waiting.setdefault(None, []).append(self._ask_to_hear)

    def check(self) -> None:
        """Ask all peers, if something waits and they have told everything. To be called after each change of that."""
        if not self._waiting or self._asking or self._distant.count_unheard() > 1 or not self._told():
            return
        unheard = self._distant.unheard()
        ready = [besides for besides in self._waiting if not unheard or unheard[0] == besides]
        if ready:
            asked = {besides: self._waiting.pop(besides) for besides in ready}
            self._asking, self._lost = True, False
            self._announcements.when_confirmed(None, partial(self._answered, asked))

    def _answered(self, asked: dict[WorkerId | None, list[Callable[[], None]]]) -> None:
        """Every peer has answered, or is gone: then it is to be heard again."""
        self._asking = False
        if self._lost:
            for besides, waiting in asked.items():
                self._waiting[besides] = waiting + self._waiting.get(besides, [])
        else:
            for waiting in asked.values():
                self._call(waiting)
        self.check()

    def _call(self, waiting: list[Callable[[], None]]) -> None:
        for then in waiting:
            try:
                then()
            except Exception as error:
                self._failed(error)

    def pending(self) -> int:
        """How many groups of what waits there are; those that all peers are asked for are one."""
        return len(self._waiting) + self._asking + len(self._to_let_go) + len(self._letting_go)
