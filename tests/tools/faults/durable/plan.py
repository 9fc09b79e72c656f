# What happens to a node in one run: a seeded sequence of faults.
#
# Faults of processes may overlap: a stopped process goes on by itself, later, while the next fault begins.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from broker.config.schema import POWER

# The server of a run, and what the node is promised of it.
EMBEDDED: Final = "embedded"
BEHIND_PROXY: Final = "behind a proxy"

# Kinds of faults.
KILL_WORKER: Final = "kill worker"
STOP_WORKER: Final = "stop worker"
KILL_REDIS: Final = "kill Redis"
STOP_REDIS: Final = "stop Redis"
STOP_SUPERVISOR: Final = "stop supervisor"
KILL_SUPERVISOR: Final = "kill supervisor"
KILL_NODE: Final = "kill node"  # all its processes at once; it is started again
STOP_NODE: Final = "stop node"  # all its processes
RESTART: Final = "stop and start the node"  # as a user would
CUT_POWER: Final = "cut power"  # and what was not synced is lost
TAKE_WHILE_STOPPED: Final = "stop worker and supervisor, take its sessions"  # the worker goes on and finds them gone
REWRITE: Final = "rewrite the append-only file"
CUT_REQUESTS: Final = "cut requests"  # the connection to Redis, in the middle of a frame
CUT_REPLIES: Final = "cut replies"
KILL_WORKER_READING: Final = "kill worker while it reads cold sessions"  # Redis is stopped meanwhile
STOP_WORKER_READING: Final = "stop worker while it reads cold sessions"
KILL_REDIS_READING: Final = "kill Redis while cold sessions are read"
DELAY: Final = "delay Redis"
HALF_OPEN: Final = "half-open connections to Redis"

ANYWHERE: Final = {
    KILL_WORKER: 4,
    STOP_WORKER: 4,
    KILL_REDIS: 3,
    STOP_REDIS: 3,
    STOP_SUPERVISOR: 1,
    KILL_SUPERVISOR: 1,
    KILL_NODE: 1,
    STOP_NODE: 1,
    RESTART: 1,
    CUT_POWER: 3,
    TAKE_WHILE_STOPPED: 3,
    REWRITE: 1,
}
READING: Final = {KILL_WORKER_READING: 2, STOP_WORKER_READING: 2, KILL_REDIS_READING: 2}
AT_THE_PROXY: Final = {CUT_REQUESTS: 4, CUT_REPLIES: 6, DELAY: 3, HALF_OPEN: 3}

PAUSES: Final = (0.1, 0.3, 0.8, 1.5)  # seconds from the end of a fault, or the stop of a process, to the next fault
BRIEF: Final = 0.8  # seconds that a worker may be stopped and lives
MOST_BYTES: Final = 20_000  # that pass before a cut
MOST_DEATHS: Final = 6  # of workers between two starts of the node: with ten in a minute it gives up
MOST_RESTARTS: Final = 2
CALM: Final = 0.3  # of all faults have time before them, so that what the others did is over
CALM_READING: Final = 0.6  # of those in READING: sessions are cooled while no worker ends
RESTARTS: Final = (KILL_SUPERVISOR, KILL_NODE, RESTART, CUT_POWER)
STOPS: Final = (STOP_WORKER, STOP_WORKER_READING)
DEATHS: Final = (KILL_WORKER, KILL_WORKER_READING, TAKE_WHILE_STOPPED)


@dataclass(frozen=True)
class Planned:
    pause: float  # seconds before it
    kind: str
    worker: int  # its shard, where one is meant
    seconds: float  # that something is stopped, late, or half-open
    number: int  # of bytes until a cut
    calm: bool = False  # it waits until as much as planned was published
    node: int = 0  # where there are several

    def __str__(self) -> str:
        told = {
            KILL_WORKER: f"{self.worker}",
            STOP_WORKER: f"{self.worker} for {self.seconds:.2f} s",
            KILL_WORKER_READING: f"(worker {self.worker})",
            STOP_WORKER_READING: f"(worker {self.worker}, {self.seconds:.2f} s)",
            TAKE_WHILE_STOPPED: f"worker {self.worker}, {self.seconds:.2f} s",
            CUT_REQUESTS: f"after {self.number} bytes",
            CUT_REPLIES: f"after {self.number} bytes",
        }
        timed = (STOP_REDIS, STOP_SUPERVISOR, STOP_NODE, DELAY, HALF_OPEN)
        return f"{self.kind} {told.get(self.kind, f'{self.seconds:.2f} s' if self.kind in timed else '')}".rstrip()


def plan(random: Random, server: str, durability: str, workers: int, faults: int, brisk: bool = False) -> list[Planned]:
    """*brisk*: in a fraction of the time, without READING, and with no more than MOST_RESTARTS of the node."""
    weights = dict(ANYWHERE)
    if not brisk:
        weights |= READING
    if server == BEHIND_PROXY:
        weights |= AT_THE_PROXY
        if durability != POWER:  # nobody syncs the files of that server
            del weights[CUT_POWER]
    return draw(random, weights, workers, faults, brisk)


def draw(
    random: Random, weights: Mapping[str, int], workers: int, faults: int, brisk: bool, first: Sequence[str] = ()
) -> list[Planned]:
    """*faults* of the kinds in *weights*, after one of each in *first*. *brisk*: see `plan()`.

    The limits of deaths and restarts have to allow *first*.
    """
    planned: list[Planned] = []
    deaths = restarts = 0
    while len(planned) < faults:
        if len(planned) < len(first):
            kind = first[len(planned)]
        else:
            (kind,) = random.choices(list(weights), list(weights.values()))
        seconds = random.uniform(0.2, 3.0)
        if kind in STOPS and random.random() < 0.5:
            seconds = random.uniform(0.2, BRIEF)
        if kind == TAKE_WHILE_STOPPED:
            seconds = random.uniform(1.0, 4.0)
        if kind == DELAY:
            seconds = random.uniform(0.02, 0.5)
        if kind in RESTARTS:
            deaths = 0
            restarts += 1
            if brisk and restarts > MOST_RESTARTS:
                continue
        elif kind in DEATHS or (kind in STOPS and seconds >= BRIEF):
            deaths += 1
            if deaths > MOST_DEATHS:
                continue
        number = min(MOST_BYTES, int(random.expovariate(1 / 500.0)) + 1)
        pause = random.choice(PAUSES) + random.random() * 0.2
        if brisk:
            pause, seconds = pause / 4, seconds / 2
        calm = random.random() < (CALM_READING if kind in READING else CALM)
        planned.append(Planned(pause, kind, random.randrange(workers), seconds, number, calm))
    return planned
