# The processes of a node over hours: what memory each has, and how many descriptors are open.
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.node import worker_pids
from tests.system.processes import BrokerProcess
from tests.tools.bench.cost import family, resident_kib_of
from tests.tools.fuzz.campaign import descriptors

WARM: Final = 6  # a run's first sixth is not judged: caches and limits fill
LONG: Final = 1200.0  # seconds of a run: in a shorter one the first sixth does not reach beyond what fills
PART: Final = 12  # memory is judged by twelfths of a run: five minutes of an hour
GROWTH: Final = 1.05  # times what the first twelfth that is judged had


@dataclass
class Process:
    """KiB of resident memory, at equal intervals, and descriptors before and after the run."""

    name: str
    pid: int
    memory: list[int] = field(default_factory=list)
    descriptors: tuple[int, int] = (0, 0)

    def parts(self) -> list[int]:
        """Mean memory of each twelfth of the run, in KiB."""
        count = len(self.memory)
        parts = [self.memory[n * count // PART : (n + 1) * count // PART] for n in range(PART)]
        return [sum(part) // max(1, len(part)) for part in parts]

    def failures(self, seconds: float) -> list[str]:
        """What is wrong after a run of so many seconds, in sentences."""
        found = []
        first, *others = self.parts()[PART // WARM :]
        if seconds >= LONG and max(others) > first * GROWTH:
            found.append(f"{self.name}: memory grew from {first} to {max(others)} KiB")
        before, after = self.descriptors
        if after > before:
            found.append(f"{self.name}: {after} descriptors are open, {before} were before")
        return found


class Processes:
    def __init__(self, broker: BrokerProcess) -> None:
        assert broker.control is not None
        names = {broker.pid: "supervisor"}
        names |= {pid: f"worker {shard}" for shard, pid in enumerate(worker_pids(broker.control))}
        self.all = [Process(names.get(pid) or _command(pid), pid) for pid in family(broker.pid)]
        for process in self.all:
            process.descriptors = (descriptors(process.pid), 0)

    def look(self) -> None:
        for process in self.all:
            process.memory.append(resident_kib_of(process.pid))

    def wait_settled(self, seconds: float) -> None:
        """Count the descriptors once no process has more than before, or *seconds* later."""
        deadline = time.monotonic() + seconds
        while True:
            for process in self.all:
                process.descriptors = (process.descriptors[0], descriptors(process.pid))
            if time.monotonic() > deadline or all(after <= before for before, after in self._descriptors()):
                return
            time.sleep(0.1)  # for what processes that are not ours do by themselves

    def _descriptors(self) -> list[tuple[int, int]]:
        return [process.descriptors for process in self.all]


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
