# What happens to a node in one run: a seeded sequence of faults, each to one process.
from dataclasses import dataclass
from random import Random
from typing import Final

FIRST: Final = 1.0  # seconds of quiet before the first fault
SHORTEST: Final = 0.2  # seconds that a process is stopped
LONGEST: Final = 3.0
PAUSES: Final = (0.0, 0.3, 1.0, 2.0)  # seconds from the beginning of a fault to that of the next: they may overlap
MOST_DEATHS: Final = 6  # of workers; with ten in a minute a node gives up
DEADLY: Final = 0.8  # seconds of silence from which on a worker may be replaced


@dataclass(frozen=True)
class Fault:
    at: float  # seconds since the run began
    worker: int  # its shard; -1: Redis
    stopped: float  # seconds between SIGSTOP and SIGCONT; 0: SIGKILL

    def __str__(self) -> str:
        who = "Redis" if self.worker < 0 else f"worker {self.worker}"
        return f"{self.at:.2f} s: {who} " + (f"stopped for {self.stopped:.2f} s" if self.stopped else "killed")


def plan(seed: int, workers: int, faults: int) -> list[Fault]:
    random = Random(seed)
    at, deaths, found = FIRST, 0, list[Fault]()
    while len(found) < faults:
        worker = -1 if random.random() < 0.3 else random.randrange(workers)
        stopped = 0.0 if random.random() < 0.5 else random.uniform(SHORTEST, random.choice((DEADLY, LONGEST)))
        deaths += worker >= 0 and not 0.0 < stopped < DEADLY
        if deaths > MOST_DEATHS:
            worker = -1
        found.append(Fault(at, worker, stopped))
        at += random.choice(PAUSES) + random.random() * 0.5
    return found
