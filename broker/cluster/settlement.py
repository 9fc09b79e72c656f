# Settlement: what a dead node has left goes to workers of the nodes that live.
#
# A node whose lease has run out is dead (supervisor/membership.py). For each of its workers, one that lives publishes
# the wills (orphaned_wills.py) and adopts the durable sessions, lists of shared subscriptions and dropped queues
# (store/durable/adoption.py): the one that rendezvous hashing gives. If that one dies as well, its own successor, or
# whoever settles it, goes on. A worker that starts does not wait until it serves: after all nodes were down nobody else
# could settle what those have left that do not come back.
#
#   S             has the durable sessions that it is to have from the start, and learns of the dead worker F
#   S  to all X   INHERITS F. From now on S counts as a worker that has not told all it has to tell
#   X             confirms. A worker at the place of F does not follow F any more for X: only ADOPTED says who does
#   S             makes F a former owner of its own shard in Redis, which fences F (store/durable/inheritance.py), and
#                 publishes its wills; or another worker was first: then NOT_INHERITED
#   S             adopts, and tells what the sessions wait for as of any session
#   S  to all X   ADOPTED F, when all of them have confirmed that
#   X             has publishes wait no longer for F
#
# Publishes for what F had told wait at its gate meanwhile; all others go on. The order matters: a worker that starts
# takes a publish when nobody has anything to tell any more, and when no dead worker owns sessions; so S has something
# to tell before Redis says that F owns none.
#
# F may live: its node was stopped, or cut off. It learns from its fences that it counts as dead, and ends; its
# supervisor starts another worker. It could not go on: its sessions are elsewhere, and its wills are published.
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from broker.cluster import wire
from broker.cluster.announcements import Announcements
from broker.cluster.orphaned_wills import OrphanedWills
from broker.cluster.peers import Peers
from broker.cluster.rendezvous import Place, settler_of
from broker.log import Log
from broker.protocol.durable_sessions import DurableSessions
from broker.reasons import StoreFailure
from broker.store.durable.inheritance import PATIENCE, inherit, owners_of
from broker.store.redis.connection import packed
from broker.store.redis.keys import Keys
from broker.store.redis.pipeline import CallbackCommand, CommandPipeline
from broker.worker_id import WorkerId

AGAIN: Final = 1.0  # seconds between two looks at a dead node that is not settled; each is one command
NOTHING_DUE: Final = float("inf")


class SettlementStatistics:
    def __init__(self) -> None:
        self.workers = 0  # dead ones of other nodes whose durable sessions were adopted here
        self.waiting = 0  # that are to be


class Settlement:
    def __init__(
        self,
        worker: WorkerId,
        workers: int,
        commands: CommandPipeline,
        keys: Keys,
        notices: bytes,
        wills: OrphanedWills,
        peers: Peers,
        announcements: Announcements,
        durable: DurableSessions | None,
        adopted: Callable[[list[WorkerId]], None],
        clock: Callable[[], float],
        soon: Callable[[float], None],
        log: Log,
    ) -> None:
        """*worker* is one of *workers* of its node. *notices*: the channel of changes of the list of nodes.

        *durable*: None if sessions are in memory.

        *adopted* is called with the workers whose sessions are here, and told, perhaps none: it tells ADOPTED. *soon*
        has `tick()` called at a time.
        """
        self.settled = 0  # dead workers whose durable sessions were adopted here
        self._worker = worker
        self._workers = workers
        self._commands = commands
        self._keys = keys
        self._notices = notices
        self._wills = wills
        self._peers = peers
        self._announcements = announcements
        self._durable = durable
        self._adopted = adopted
        self._clock = clock
        self._soon = soon
        self._log = log
        self._live: list[Place] = []
        self._dead: dict[str, list[WorkerId]] = {}  # workers of dead nodes, as their nodes have said last
        self._willed: dict[WorkerId, None] = {}  # of these, whose wills are published here
        self._look_at = NOTHING_DUE
        self._looking = 0  # nodes whose owners are asked for
        self._wanted: dict[WorkerId, None] = {}  # to be settled here
        self._under_way: list[WorkerId] = []  # INHERITS was told of them
        self._inherited: list[WorkerId] = []  # of them, former owners of this shard by now
        self._unanswered = 0  # calls of the script
        self._ask_again: list[WorkerId] = []  # whose calls have failed
        self._ask_at = NOTHING_DUE

    def statistics(self) -> SettlementStatistics:
        statistics = SettlementStatistics()
        statistics.workers = self.settled
        statistics.waiting = len(self._wanted) + len(self._under_way)
        return statistics

    def set(self, live: Iterable[WorkerId], dead: dict[str, list[WorkerId]], now: float) -> None:
        """*live*: all workers of other nodes that run; *dead*: by the name of a node that is dead, its last workers."""
        own = [(self._worker.node, shard) for shard in range(self._workers)]
        self._live = own + [(worker.node, worker.shard) for worker in live]
        self._dead = dict(dead)
        self._willed = {worker: None for worker in self._willed if worker.node in dead}
        self._wanted = {worker: None for worker in self._wanted if worker.node in dead}
        self._look_at = now if dead else NOTHING_DUE
        self._soon(now)

    def tick(self, now: float) -> float:
        """Do what is due; the time of the next thing that will be."""
        if now >= self._look_at:
            self._look_at = NOTHING_DUE
            self._look(now)
        if now >= self._ask_at:
            again, self._ask_again = self._ask_again, []
            self._ask_at = NOTHING_DUE
            for dead in again:
                self._inherit(dead)
        durable = self._durable
        if self._wanted and not self._under_way and durable is not None and durable.ready():
            self._begin(durable)
        return min(self._look_at, self._ask_at)

    def _is_ours(self, dead: WorkerId) -> bool:
        place = self._worker.node, self._worker.shard
        return settler_of((dead.node, dead.shard), self._live) == place

    def _look(self, now: float) -> None:
        if self._looking:
            self._look_at = now + AGAIN
            return
        for node, workers in self._dead.items():
            if self._durable is None:
                self._publish_wills(workers, now)
            else:
                self._looking += 1
                self._commands.submit(owners_of(self._keys, node, partial(self._found_owners, node, workers)), now)

    def _publish_wills(self, workers: Iterable[WorkerId], now: float) -> None:
        for worker in workers:
            if worker not in self._willed and self._is_ours(worker):
                self._willed[worker] = None
                self._wills.publish_wills_of(worker.incarnation, now)

    def _found_owners(self, node: str, workers: list[WorkerId], owners: list[WorkerId] | None) -> None:
        self._looking -= 1
        now = self._clock()
        if node not in self._dead:
            return
        if owners is None or owners:
            self._look_at = min(self._look_at, now + AGAIN)
        if owners is not None:
            # The wills of an owner are published once it is fenced: its node may have its lease again.
            self._publish_wills([worker for worker in workers if worker not in owners], now)
            for owner in owners:
                if owner not in self._under_way and self._is_ours(owner):
                    self._wanted[owner] = None

    def _begin(self, durable: DurableSessions) -> None:
        self._under_way, self._wanted = list(self._wanted), {}
        self._inherited = []
        durable.prepare_to_settle()
        for dead in self._under_way:
            self._peers.tell(wire.number(wire.INHERITS, dead.incarnation))
        self._announcements.when_confirmed(None, self._inherit_all)

    def _inherit_all(self) -> None:
        self._unanswered = len(self._under_way)
        for dead in self._under_way:
            self._inherit(dead)

    def _inherit(self, dead: WorkerId) -> None:
        answered = partial(self._answered, dead)
        self._commands.submit(inherit(self._keys, dead, self._worker, answered), self._clock())

    def _answered(self, dead: WorkerId, ours: bool | None) -> None:
        """*ours*: *dead* is a former owner of this shard. None: it may be one, so this is not over."""
        if ours is None:
            self._ask_again.append(dead)
            self._ask_at = self._clock() + AGAIN
            return
        self._unanswered -= 1
        if ours:
            self._inherited.append(dead)
            self._willed[dead] = None
            self._wills.publish_wills_of(dead.incarnation, self._clock())
        else:
            self._peers.tell(wire.number(wire.NOT_INHERITED, dead.incarnation))
        if not self._unanswered:
            # All supervisors look at once, and tell their workers that fewer workers of dead nodes own sessions.
            notice = packed("PUBLISH", self._notices, self._worker.incarnation_text)
            self._commands.submit(CallbackCommand(notice, PATIENCE, _ignore), self._clock())
            durable = self._durable
            assert durable is not None
            durable.settle(self._inherited, self._told)

    def _told(self) -> None:
        """All workers know what the adopted sessions wait for."""
        for dead in self._inherited:
            self.settled += 1
            self._log.info("worker_settled", peer=str(dead), incarnation=dead.incarnation_text)
        self._adopted(self._inherited)
        self._under_way, self._inherited = [], []


def _ignore(reply: object, failure: StoreFailure | None) -> None:
    pass  # without the notice they look with the next renewal of their leases
