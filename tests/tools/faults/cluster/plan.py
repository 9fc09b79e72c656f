# What happens to a cluster in one run: a seeded sequence of faults of nodes, of workers, of Redis and of the lanes.
#
# What lasts goes on by itself, while the next faults begin: a node that was killed is started again, one that is
# suspended goes on, and one that is cut off reaches Redis again. Some of that takes longer than the lease of a node.
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Final

from supervisor.membership import ALONE
from supervisor.node_lease import LEASE
from tests.tools.faults.durable.plan import (
    BRIEF,
    CUT_REPLIES,
    CUT_REQUESTS,
    DELAY,
    KILL_REDIS,
    KILL_WORKER,
    MOST_BYTES,
    PAUSES,
    STOP_REDIS,
    STOP_WORKER,
    Planned,
)

KILL_NODE: Final = "kill node, start it again"
LOSE_NODE: Final = "kill node, start it again after its lease"
SUSPEND_NODE: Final = "suspend node"
SUSPEND_LONG: Final = "suspend node past its lease"
CUT_OFF: Final = "cut node off from Redis"
CUT_OFF_LONG: Final = "cut node off from Redis past its lease"
CUT_OFF_ALONE: Final = "cut node off from Redis until it goes on alone"
RESTART: Final = "stop and start node"
LEAVE: Final = "stop node, start it after a lease"
UPGRADE: Final = "stop node, start it as the next build"  # never beside other faults

WEIGHTS: Final = {
    KILL_NODE: 4,
    LOSE_NODE: 3,
    SUSPEND_NODE: 3,
    SUSPEND_LONG: 2,
    CUT_OFF: 3,
    CUT_OFF_LONG: 2,
    CUT_OFF_ALONE: 1,
    RESTART: 3,
    LEAVE: 1,
    KILL_REDIS: 3,
    STOP_REDIS: 2,
    CUT_REQUESTS: 4,
    CUT_REPLIES: 4,
    DELAY: 2,
    KILL_WORKER: 4,
    STOP_WORKER: 3,
}
OF_NODES: Final = (
    KILL_NODE,
    LOSE_NODE,
    SUSPEND_NODE,
    SUSPEND_LONG,
    CUT_OFF,
    CUT_OFF_LONG,
    CUT_OFF_ALONE,
    RESTART,
    LEAVE,
    UPGRADE,
)
DEATHS: Final = (KILL_NODE, LOSE_NODE)
PAST: Final = (1.0, 4.0)  # seconds by which something lasts longer than a lease
# A short run has these, and so many of each.
FEW: Final = (
    *(
        KILL_NODE,
        LOSE_NODE,
        SUSPEND_NODE,
        SUSPEND_LONG,
        CUT_OFF,
        CUT_OFF_LONG,
        RESTART,
        RESTART,
        KILL_REDIS,
        KILL_REDIS,
    ),
    *(KILL_NODE, STOP_REDIS, CUT_REQUESTS, CUT_REQUESTS, CUT_REPLIES, CUT_REPLIES, KILL_WORKER, KILL_WORKER),
    *(STOP_WORKER, DELAY),
)
CALM: Final = 0.3  # of all faults have time before them, so that what the others did is over
CALM_DEATHS: Final = 0.5  # of DEATHS: how soon clients are served again is judged of those alone


def plan(random: Random, nodes: int, workers: int, faults: int, brisk: bool = False) -> list[Planned]:
    """*brisk*: it begins with FEW, in a random order, and with shorter pauses."""
    first: Sequence[str] = random.sample(FEW, len(FEW)) if brisk else ()
    planned = []
    for number in range(faults):
        if number < len(first):
            kind = first[number]
        else:
            (kind,) = random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        pause = (random.choice(PAUSES) + random.random() * 0.2) / (4 if brisk else 1)
        planned.append(
            Planned(
                pause,
                kind,
                random.randrange(workers),
                _seconds(random, kind),
                min(MOST_BYTES, int(random.expovariate(1 / 500.0)) + 1),
                random.random() < (CALM_DEATHS if kind in DEATHS else 0.0 if brisk else CALM),
                random.randrange(nodes),
            )
        )
    return planned


def upgrades(random: Random, nodes: int, workers: int) -> list[Planned]:
    """Each node is upgraded, in a random order. All but the last one stop once more, beside nodes of the former build,
    and a worker of theirs dies.
    """
    order = random.sample(range(nodes), nodes)
    kinds = [(UPGRADE, order[0])]
    for former, node in pairwise(order):
        kinds += [(RESTART, former), (KILL_WORKER, former), (UPGRADE, node)]
    return [Planned(random.choice(PAUSES), kind, random.randrange(workers), 0.0, 1, node=node) for kind, node in kinds]


def told(planned: Planned) -> str:
    match planned.kind:
        case kind if kind in OF_NODES:
            return f"{kind}: n{planned.node + 1}, {planned.seconds:.2f} s"
        case kind if kind in (CUT_REQUESTS, CUT_REPLIES):
            return f"{kind} of n{planned.node + 1} after {planned.number} bytes"
        case kind if kind == DELAY:
            return f"{kind} for n{planned.node + 1}, {planned.seconds:.2f} s"
        case kind if kind == KILL_WORKER:
            return f"{kind} {planned.worker} of n{planned.node + 1}"
        case kind if kind == STOP_WORKER:
            return f"{kind} {planned.worker} of n{planned.node + 1} for {planned.seconds:.2f} s"
        case kind if kind == STOP_REDIS:
            return f"{kind} for {planned.seconds:.2f} s"
        case kind:
            return kind


def _seconds(random: Random, kind: str) -> float:
    match kind:
        case kind if kind in (LOSE_NODE, SUSPEND_LONG, CUT_OFF_LONG, LEAVE):
            return LEASE + random.uniform(*PAST)
        case kind if kind == CUT_OFF_ALONE:
            return ALONE + random.uniform(*PAST)
        case kind if kind in (SUSPEND_NODE, CUT_OFF):
            return random.uniform(0.3, LEASE / 2)
        case kind if kind == DELAY:
            return random.uniform(0.02, 0.3)
        case kind if kind == STOP_WORKER and random.random() < 0.5:
            return random.uniform(0.2, BRIEF)
    return random.uniform(0.2, 3.0)
