# Which of the other nodes a client is sent to, and how quickly clients may leave this one.
#
# All of it is known already: each worker tells in its overload reports its level, how many clients it has, and how long
# a CONNECT would wait there (reports.py). So nobody is asked, and a node that is silent has no room. The room of a node
# is that of all its workers, as the kernel picks one of them.
#
# How quickly clients may leave follows from the levels of the others, and from their delays before these raise a level:
# a client that moves costs its new node up to a millisecond at once, and then what it publishes. So a drain begins
# slowly, and becomes quicker while the delays of the others are below half of their targets.
#
# A report is up to a second old. What this worker has sent to a node since then counts as if it were there: otherwise
# all clients of a second would be sent to the same node.
import math
from collections.abc import Iterable
from typing import Final

from broker.overload.level import HIGHEST, STEP
from broker.overload.reports import STRAINED, Report, Reports
from broker.worker_id import WorkerId

LOOK: Final = 0.1  # seconds between two looks at the reports, which may be thousands
HEARD: Final = 1.5  # seconds for which a report counts: a calm worker reports once a second, or a little later
SAID: Final = 3.0  # seconds for which the clients of a report are shown to people: it comes once a second
FORGET: Final = 1.0  # seconds after which reports count the clients that were sent to a node
CLEARLY: Final = 2  # levels: with less between two nodes, both are about as busy
LONG: Final = 5.0  # seconds that a CONNECT would wait, from which on another node is better; many clients give up then
SURPLUS: Final = 0.1  # share of the clients that a node should have, beyond which it has clearly more
FEW: Final = 10  # clients; a smaller surplus is none
FIRST: Final = 0.1  # part of its pace with which a drain begins, and which delays at level 0 do not slow further
QUICKER: Final = 1.1  # times in STEP seconds, while the others are not strained: from FIRST to all in 2.4 s
LONGEST: Final = 100.0  # STEPs that one change of the pace may span: more is no other
SLOWER: Final = 0.7  # times in STEP seconds, while one of them is: what moves is noticed a report later


class Place:
    """Another node that runs and can be reached."""

    def __init__(self, name: str, reference: str = "", draining: bool = False) -> None:
        self.name = name
        self.reference = reference  # as clients reach it, for a Server Reference; "": it does not say
        self.draining = draining


class NodeRoom:
    """How much room a node has, by the latest reports of its workers."""

    def __init__(self, name: str, reference: str = "") -> None:
        self.name = name
        self.reference = reference
        self.workers = 0  # that report; 0: the node is silent
        self.level = 0.0  # the highest of its workers
        self.strain = 0.0  # targets; the worst delay of its workers
        self.clients = 0  # -1: a worker of an older version does not say
        self.connect_wait = 0.0  # seconds; the longest of its workers

    def add(self, level: float, strain: float, clients: int, connect_wait: float) -> None:
        """Add what a worker of the node reports."""
        self.workers += 1
        self.level = max(self.level, level)
        self.strain = max(self.strain, strain)
        self.clients = -1 if clients < 0 or self.clients < 0 else self.clients + clients
        self.connect_wait = max(self.connect_wait, connect_wait)

    def per_worker(self) -> float:
        return self.clients / self.workers if self.workers else 0.0


class Placement:
    def __init__(self, worker: WorkerId, workers: int, reports: Reports) -> None:
        """*worker* is one of *workers* of its node, and *reports* are those that it hears."""
        self._worker = worker
        self._workers = workers
        self._reports = reports
        self._places: dict[str, Place] = {}
        self._looked = -math.inf
        self._here = NodeRoom(worker.node)
        self._others: list[NodeRoom] = []
        self._sent: dict[str, int] = {}  # clients that this worker has sent to a node of late
        self._forgot = -math.inf

    def set(self, places: Iterable[Place]) -> None:
        """*places* are all other nodes that run."""
        self._places = {place.name: place for place in places}
        self._looked = -math.inf

    def others(self, now: float) -> list[NodeRoom]:
        """The other nodes that take clients, those that are silent included."""
        self._look(now)
        return self._others

    def here(self, now: float) -> NodeRoom:
        """The node of this worker."""
        self._look(now)
        return self._here

    def load(self, now: float) -> float:
        """The level of the busiest node that takes clients; the highest there is if none of them is heard."""
        heard = [room.level for room in self.others(now) if room.workers]
        return max(heard) if heard else HIGHEST

    def strain(self, now: float) -> float:
        """The worst delay of the nodes that take clients and are heard, in targets."""
        return max([room.strain for room in self.others(now)], default=0.0)

    def send(self, now: float) -> NodeRoom | None:
        """The node with most room for a client that is sent away now; None: none is heard and says how to reach it."""
        best = self._roomiest(now)
        if best is not None:
            self._sent[best.name] = self._sent.get(best.name, 0) + 1
        return best

    def better(self, now: float) -> NodeRoom | None:
        """The node that has clearly more room than this one for a client that comes now, if there is one."""
        best, here = self._roomiest(now), self._here
        if best is None:
            return None
        calmer = math.ceil(best.level) + CLEARLY <= math.ceil(here.level)
        sooner = best.level <= here.level and 2.0 * best.connect_wait + LONG <= here.connect_wait
        return self.send(now) if calmer or sooner else None

    def clients_at(self, node: str, now: float) -> int | None:
        """How many clients *node*, which is another one, has by its latest reports; None: it is not known."""
        heard = [one.report for one in self._reports.heard() if now - one.heard < SAID]
        told = [report.clients for report in heard if report.worker.node == node]
        return sum(told) if told and min(told) >= 0 else None

    def connect_wait(self, here: float, now: float) -> float:
        """Seconds that the CONNECTs which wait will take at the average node of the cluster; *here*: at this worker."""
        waits = [here, *[room.connect_wait for room in self.others(now) if room.workers]]
        return sum(waits) / len(waits)

    def surplus(self, clients: int, now: float) -> int:
        """How many of the *clients* of this worker are to move, so that each node has as many for each worker.

        0: the node of this worker does not have clearly more than the others.
        """
        here = self.here(now)
        known = [room for room in self._others if room.workers and room.clients >= 0]
        if not known or here.clients <= 0:
            return 0
        everywhere = here.clients + sum([room.clients for room in known])
        workers = here.workers + sum([room.workers for room in known])
        fair = everywhere * here.workers / workers
        more = here.clients - fair
        if more < max(float(FEW), SURPLUS * fair):
            return 0
        return min(clients, math.floor(more * clients / here.clients))

    def _roomiest(self, now: float) -> NodeRoom | None:
        best: NodeRoom | None = None
        for room in self.others(now):
            if room.workers and room.reference and (best is None or self._before(room, best)):
                best = room
        return best

    def _before(self, one: NodeRoom, other: NodeRoom) -> bool:
        """Whether *one* has more room than *other*."""
        if math.ceil(one.level) != math.ceil(other.level):
            return one.level < other.level
        if round(one.connect_wait) != round(other.connect_wait):
            return one.connect_wait < other.connect_wait
        return self._crowd(one) < self._crowd(other)

    def _crowd(self, room: NodeRoom) -> float:
        """Clients for each worker of *room*, with those that are on their way: other workers here send as many."""
        return (max(0, room.clients) + self._sent.get(room.name, 0) * self._workers) / room.workers

    def _look(self, now: float) -> None:
        if now - self._looked < LOOK:
            return
        self._looked = now
        if now - self._forgot >= FORGET:
            self._forgot = now
            self._sent.clear()
        reports = self._reports
        rooms = {name: NodeRoom(name, place.reference) for name, place in self._places.items() if not place.draining}
        self._here = rooms[self._worker.node] = NodeRoom(self._worker.node)
        self._here.add(reports.own_level, 0.0, reports.clients, reports.connect_wait)
        for one in reports.heard():
            if now - one.heard > HEARD:
                break
            self._add(rooms, one.report)
        self._others = [room for room in rooms.values() if room is not self._here]

    def _add(self, rooms: dict[str, NodeRoom], report: Report) -> None:
        room = rooms.get(report.worker.node)
        if room is not None:
            room.add(report.level, report.strain(), report.clients, report.connect_wait)


class DrainPace:
    """How many clients may be disconnected now: *fastest* a second while the other nodes are calm, *slowest* at
    level 10, and between them less by the same factor with each level.

    It begins with FIRST of that, becomes quicker while the others are not strained, and slower while one is.
    """

    def __init__(self, fastest: float, slowest: float) -> None:
        self._fastest = fastest
        self._slowest = slowest
        self._factor = (slowest / fastest) ** (1.0 / HIGHEST)
        self._part = FIRST
        self._due = 0.0
        self._counted = 0.0

    def rate(self, level: float) -> float:
        """Clients a second at *level*, 0 to 10, as strained as the others were at the last `take()`."""
        return max(self._slowest, self._fastest * float(self._factor**level) * self._part)

    def begin(self, now: float) -> None:
        """Count from *now* on."""
        self._part = FIRST
        self._due = 0.0
        self._counted = now

    def take(self, level: float, strain: float, now: float) -> int:
        """The number of clients that may leave now. Time that was not used does not add up beyond a second.

        *strain*: the worst delay of the others, in targets.
        """
        elapsed = max(0.0, now - self._counted)
        change = SLOWER if strain >= STRAINED else QUICKER
        self._part = max(FIRST, min(1.0, self._part * float(change ** min(LONGEST, elapsed / STEP))))
        rate = self.rate(level)
        self._due = min(self._due + rate * elapsed, max(1.0, rate))
        self._counted = max(self._counted, now)
        taken = math.floor(self._due)
        self._due -= taken
        return taken
