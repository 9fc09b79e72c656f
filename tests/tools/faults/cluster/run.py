# One run: nodes that share a Redis, clients that come and go at all of them, and faults; then a judgement.
#
# It is a run with durable sessions, with their clients and judge; what is added to the judgement is in judges.py. Each
# client connects to a random node that was not killed or stopped, and after a failed attempt to another one, as behind
# a balancer. At the end all nodes run, and have joined each other.
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

from broker.config.schema import POWER, PROCESS
from supervisor.node_lease import LEASE
from tests.tools.faults.applications.shared import LOST, Group, SharedJudge
from tests.tools.faults.cluster import plan as kinds
from tests.tools.faults.cluster.judges import OwnershipJudge, RefusalJudge
from tests.tools.faults.cluster.nodes import ClusterNode
from tests.tools.faults.cluster.plan import plan, told, upgrades
from tests.tools.faults.durable import plan as durable
from tests.tools.faults.durable.checker import DOUBLED, Violation
from tests.tools.faults.durable.client import DurableClient
from tests.tools.faults.durable.client import Run as Clients
from tests.tools.faults.durable.history import Event
from tests.tools.faults.durable.judged_run import JudgedRun, send_signal
from tests.tools.faults.durable.lanes import Lane
from tests.tools.faults.durable.plan import Planned
from tests.tools.faults.durable.proxy import TO_CLIENT, TO_SERVER
from tests.tools.faults.durable.server import Server
from tests.tools.fuzz.loop import Loop

SERVES: Final = 120.0  # seconds for nodes to start and join each other, on a machine that is busy
LOOK: Final = 0.05  # seconds between two looks at the nodes
JOINED: Final = 0.2  # seconds between two questions to nodes whether they have joined
SERVED: Final = 2.0  # seconds for the clients of a node that has died to be served, at most
TIRED: Final = 2.0  # seconds that a node that was harmed for long is left alone: its workers are replaced
REPLACED: Final = 6.0  # seconds that it takes at most until workers are replaced that count as dead
WATCHED: Final = 20.0  # seconds that the old connection of a takeover is watched: longer than a lease
LANES: Final = ((1, 0), (2, 20))  # QoS and receive maximum (0: the default) of each
QOS_0: Final = 0.05  # seconds between two publishes at QoS 0
QUEUE: Final = 1_000_000  # messages: none is dropped if the clients cannot keep up, as on a slow machine
SHARED_PATIENCE: Final = 5.0  # seconds without a new message for a group, after which no more is expected
DELAYED: Final = 2.0  # seconds that Redis is late for a node
MOST: Final = 5  # violations of one kind that are told
MEMBER: Final = "member-"
REFUSED: Final = "refused"  # verdicts
OWNED_TWICE: Final = "owned twice"
MALFORMED: Final = "lanes that cannot be read"


class ClusterClients(Clients):
    """Clients of several nodes."""

    def __init__(self, loop: Loop, nodes: list[ClusterNode], random: Random, note: Callable[[Event], None]) -> None:
        super().__init__(loop, 0, random, note)
        self.watched = WATCHED
        self._nodes = nodes

    def door(self, avoided: int) -> int:
        """That of a node that was not killed or stopped, and is not the one where the last attempt has failed."""
        serving = [each.port for each in self._nodes if each.victim is not None]
        others = [each for each in serving if each != avoided]
        return self.random.choice(others or serving or [each.port for each in self._nodes])


class ClusterRun(JudgedRun):
    WANDERING = True

    def __init__(
        self,
        folder: Path,
        seed: int,
        workers: int,
        faults: int,
        brisk: bool = False,
        messages: int = 0,
        former: Path | None = None,
    ) -> None:
        """*folder*: for this run, with a short path. *workers*: of each node. *brisk*: see `plan()`.

        *messages*: that are to be acknowledged. *former*: the build that the nodes begin with; instead of *faults* each
        of them is upgraded. AssertionError: the nodes do not serve.
        """
        random = Random(seed)
        count, durability = random.choice((2, 3)), random.choice((PROCESS, POWER))
        planned = plan(random, count, workers, faults, brisk)
        if former is not None:
            planned = upgrades(random, count, workers)
        super().__init__(folder, seed, f"{count} nodes, {durability}", random, planned, messages)
        self._shared = SharedJudge({})
        self._refusals = RefusalJudge()
        self._owners = OwnershipJudge()
        self._looked = 0.0  # at the nodes
        self._doubled_in_groups = 0
        self._server = Server(folder / "server", durability, {})
        settings = {"store.durability": durability, "limits.queue": QUEUE}
        self._nodes = [
            ClusterNode(name, folder / name, workers, self._server.socket, settings, former)
            for name in (f"n{number + 1}" for number in range(count))
        ]
        self._others = workers * (count - 1)
        self._clients = ClusterClients(self._loop, self._nodes, self._random, self._note)
        try:
            self._wait_joined()
        except BaseException:
            self._end_nodes()
            raise
        self._make_clients()

    # The nodes.

    def _step(self) -> None:
        super()._step()
        if self._loop.now >= self._looked + LOOK:
            self._looked = self._loop.now
            for each in self._nodes:
                each.look()

    def _all_well(self) -> bool:
        return all(each.well() for each in self._nodes) and not self._stopped

    def _wait_joined(self) -> None:
        """Start the nodes that do not run, and wait until each knows all workers of all others."""
        for each in self._nodes:
            each.start()
        self._until(lambda: all(each.victim is not None for each in self._nodes), "all nodes serve", SERVES)
        until = self._loop.now + SERVES
        while not all(self._joined(each) for each in self._nodes):
            assert self._loop.now < until, f"the nodes do not join each other: {self._clusters()}"
            self._turn(JOINED)

    def _joined(self, one: ClusterNode) -> bool:
        told = self._cluster_of(one)
        return len(told["workers"]) == self._others and not told["missing"]

    def _cluster_of(self, one: ClusterNode) -> dict[str, Any]:
        assert one.victim is not None
        told: dict[str, Any] = one.victim.status()["cluster"]
        return told

    def _clusters(self) -> str:
        return "; ".join(f"{each.name}: {self._cluster_of(each)}" for each in self._nodes)

    # Clients.

    def _make_clients(self) -> None:
        super()._make_clients()
        run = self._clients
        self._careless = DurableClient(run, "z0", filter="own/z0")
        members: list[DurableClient] = []
        for name, count in (("three", 3), ("two", 2)):
            names = [f"{MEMBER}{name}-{number}" for number in range(count)]
            # At QoS 2 a message that is sent again may go to another member, in a way that is known.
            self._shared.add(name, Group("d/", names, once=False))
            members += [DurableClient(run, each, filter=f"$share/{name}/d/#", qos=2) for each in names]
        receivers = [
            DurableClient(run, "careless-0", filter="z/#", qos=0),
            DurableClient(run, "clean-0", filter="z/#", qos=1, lasting=False),
            DurableClient(run, "clean-1", filter="d/#", qos=1, lasting=False),
        ]
        publisher = DurableClient(run, "p4", filter="own/p4", lasting=False)
        self._publishers.append(publisher)
        self._roaming += [self._careless, publisher, *members]
        self._subscribers += receivers
        self._returning += receivers
        self._lasting += [self._careless, publisher, *members, *receivers]

    def _make_lanes(self) -> list[Lane]:
        return [Lane(self._clients, f"b{number}", *each) for number, each in enumerate(LANES)]

    def _load(self) -> None:
        super()._load()
        self._every(lambda: QOS_0, self._publish_carelessly)

    def _publish_carelessly(self) -> None:
        if self._careless.up:
            self._careless.publish(f"z/{self._random.randrange(3)}", 0)

    # Faults.

    def _told(self, planned: Planned) -> str:
        return told(planned)

    def _inflict(self, planned: Planned) -> None:
        self._refusals.disturbed()
        match planned.kind:
            case durable.KILL_REDIS:
                self._go_on(self._server.process.pid)
                self._server.kill()
                self._turn(self._random.uniform(0.0, 1.0))
                self._server.start()
            case durable.STOP_REDIS:
                self._stop(self._server.process.pid, planned.seconds)
            case kind if kind in kinds.OF_NODES:
                self._harm_node(self._nodes[planned.node], planned)
            case _:
                self._harm_part(self._nodes[planned.node], planned)

    def _aim(self, planned: Planned) -> Planned:
        """*planned*, or the same for the next node that is well; a node is harmed while another one is well."""
        if _is_judged(planned) or planned.kind == kinds.UPGRADE:
            self._until(self._all_well, "all nodes are well")
        well = 2 if planned.kind in kinds.OF_NODES else 1
        self._until(lambda: sum(each.well() for each in self._nodes) >= well, f"{well} nodes are well")
        count = len(self._nodes)
        following = ((planned.node + number) % count for number in range(count))
        return replace(planned, node=next(each for each in following if self._nodes[each].well()))

    def _harm_node(self, one: ClusterNode, planned: Planned) -> None:
        victim, seconds, judged = one.victim, planned.seconds, _is_judged(planned)
        assert victim is not None
        match planned.kind:
            case kinds.KILL_NODE | kinds.LOSE_NODE:
                if judged:
                    self._refusals.died(one.port)
                one.kill(seconds)
                if judged:
                    self._wait(lambda: not self._refusals.waiting(), SERVED)
            case kinds.SUSPEND_NODE | kinds.SUSPEND_LONG:
                self._harmed(one, seconds)
                for pid in victim.processes():
                    self._stop(pid, seconds)
            case kinds.CUT_OFF | kinds.CUT_OFF_LONG | kinds.CUT_OFF_ALONE:
                self._harmed(one, seconds)
                if self._random.random() < 0.5:
                    one.proxy.mute(True)
                else:
                    one.proxy.shut(True)
                self._loop.later(seconds, one.proxy.heal)
            case kinds.RESTART:
                one.stop(0.0)
            case kinds.LEAVE:
                one.stop(seconds)
            case kinds.UPGRADE:
                one.build = None
                one.stop(0.0)

    def _harmed(self, one: ClusterNode, seconds: float) -> None:
        """*one* cannot know for *seconds* what happens elsewhere; if that is long, its workers are replaced then."""
        tired = REPLACED if seconds > LEASE else TIRED
        one.harmed_until = self._loop.now + seconds + tired
        self._owners.harmed(one.port, self._clients.at() + seconds + tired)

    def _harm_part(self, one: ClusterNode, planned: Planned) -> None:
        victim, proxy = one.victim, one.proxy
        assert victim is not None
        match planned.kind:
            case durable.KILL_WORKER:
                send_signal(victim.pids[planned.worker], signal.SIGKILL)
            case durable.STOP_WORKER:
                self._owners.harmed(one.port, self._clients.at() + planned.seconds)
                self._stop(victim.pids[planned.worker], planned.seconds)
            case durable.CUT_REQUESTS:
                proxy.cut(TO_SERVER, planned.number)
            case durable.CUT_REPLIES:
                proxy.cut(TO_CLIENT, planned.number)
            case durable.DELAY:
                proxy.delay(planned.seconds)
                self._loop.later(DELAYED, lambda: proxy.delay(0.0))

    # Afterwards.

    def _heal(self) -> None:
        self._refusals.disturbed()
        for each in self._nodes:
            each.proxy.heal()
        self._wait_joined()

    def _recover(self) -> None:
        super()._recover()
        began, heard = self._loop.now, -1
        while not self._shared.complete() and heard != self._shared.delivered():
            heard = self._shared.delivered()
            self._wait(self._shared.complete, SHARED_PATIENCE)
        self.outcome.figures["s for groups"] = self._loop.now - began

    def _logs(self) -> list[str]:
        return [each.text() for each in self._nodes]

    def _note(self, event: Event) -> None:
        super()._note(event)
        self._shared.take(event)
        self._refusals.take(event)
        self._owners.take(event)

    def _judge(self) -> None:
        outcome, refusals = self.outcome, self._refusals
        finished = not outcome.failures
        super()._judge()
        malformed = [line for log in self._logs() for line in log.splitlines() if '"lanes_malformed"' in line]
        found = [(REFUSED, refusals.violations), (OWNED_TWICE, self._owners.violations), (MALFORMED, malformed)]
        if finished:
            found.append((LOST, [f"{group}: {message}" for group, message in self._shared.missing()]))
        for kind, violations in found:
            outcome.verdicts[kind] += len(violations)
            outcome.failures += [f"{kind}: {each}" for each in violations[:MOST]]
        outcome.figures["violations"] += sum(len(violations) for _, violations in found)
        outcome.figures |= {
            "shared": self._shared.delivered(),
            "doubled in groups": self._doubled_in_groups,
            "served beside another node": self._owners.served,
            "clients of dead nodes": len(refusals.waits),
            "median s until served": median(refusals.waits) if refusals.waits else 0.0,
            "longest s until served": max(refusals.waits, default=0.0),
            "longest s refused": max(refusals.refused, default=0.0),
        }

    def _is_excused(self, violation: Violation) -> bool:
        """What a group was sent is known by each queue: sent again, it may come from another one.

        And what a member may have lost with a connection between nodes goes to another one, or back to it.
        """
        excused = violation.kind == DOUBLED and violation.client.startswith(MEMBER)
        self._doubled_in_groups += excused
        return excused

    def _end(self) -> None:
        self._pause = True
        self._go_on_all()
        self._end_nodes()
        self._clients.close()
        self._loop.close()

    def _end_nodes(self) -> None:
        for each in self._nodes:
            each.close()
        self._server.kill()


def _is_judged(planned: Planned) -> bool:
    """Whether it is judged how soon the clients of a node that dies are served: nothing else is harmed then."""
    return planned.calm and planned.kind in kinds.DEATHS
