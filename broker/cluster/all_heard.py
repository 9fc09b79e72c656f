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
from collections.abc import Callable
from functools import partial

from broker.cluster.announcements import Announcements
from broker.cluster.distant_peers import DistantPeers
from broker.worker_id import WorkerId


class AllHeard:
    def __init__(
        self,
        distant: DistantPeers,
        announcements: Announcements,
        told: Callable[[], bool],
        failed: Callable[[Exception], None],
    ) -> None:
        """*told*: whether all peers have told everything. *failed* is called with an exception of what has waited."""
        self._distant = distant
        self._announcements = announcements
        self._told = told
        self._failed = failed
        # By the worker besides. A worker that goes on may have lost all of its sessions, which are many.
        self._waiting: dict[WorkerId | None, list[Callable[[], None]]] = {}
        self._asking = False
        self._lost = False  # a peer, since all were asked

    def when_heard(self, then: Callable[[], None], besides: WorkerId | None = None) -> None:
        """Call *then* as soon as every worker has been heard since; *besides* is only waited for if it is a peer."""
        self._waiting.setdefault(besides, []).append(then)
        self.check()

    def lost(self) -> None:
        """A peer is gone. `check()` follows."""
        self._lost = True

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
                for then in waiting:
                    try:
                        then()
                    except Exception as error:
                        self._failed(error)
        self.check()

    def pending(self) -> int:
        """How many groups of what waits there are; those that all peers are asked for are one."""
        return len(self._waiting) + self._asking
