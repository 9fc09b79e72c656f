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


class Hearing:
    """*then* is called when all workers but *besides* have been heard."""

    def __init__(self, then: Callable[[], None], besides: WorkerId | None) -> None:
        self.then = then
        self.besides = besides


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
        self._waiting: list[Hearing] = []
        self._asking = False
        self._lost = False  # a peer, since all were asked

    def when_heard(self, then: Callable[[], None], besides: WorkerId | None = None) -> None:
        """Call *then* as soon as every worker has been heard since; *besides* is only waited for if it is a peer."""
        self._waiting.append(Hearing(then, besides))
        self.check()

    def lost(self) -> None:
        """A peer is gone. `check()` follows."""
        self._lost = True

    def check(self) -> None:
        """Ask all peers, if something waits and they have told everything. To be called after each change of that."""
        if not self._waiting or self._asking or not self._told():
            return
        unheard = self._distant.unheard()
        ready = [each for each in self._waiting if all(worker == each.besides for worker in unheard)]
        if ready:
            self._waiting = [each for each in self._waiting if each not in ready]
            self._asking, self._lost = True, False
            self._announcements.when_confirmed(None, partial(self._answered, ready))

    def _answered(self, ready: list[Hearing]) -> None:
        """Every peer has answered, or is gone: then it is to be heard again."""
        self._asking = False
        if self._lost:
            self._waiting += ready
        else:
            for each in ready:
                try:
                    each.then()
                except Exception as error:
                    self._failed(error)
        self.check()

    def pending(self) -> int:
        return len(self._waiting) + self._asking
