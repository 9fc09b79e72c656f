# Two builds of Weir: what this one costs beside another one.
#
# The other one is named by the Python interpreter of the environment that it is installed in, or that can run its
# sources: `--other /elsewhere/.venv/bin/python`, with `--interpreted` also `--other-sources /elsewhere`.
#
# Where the kernel puts the node and the load generator, and when it moves them, costs more than builds differ: single
# pairs vary by 15 %. So each has a core of its own under every load, unless a load says where they run, or there is
# one core alone. The nodes have one worker.
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.tools.bench import pairs
from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import Load

AT_MOST: Final = 1.05  # times the cost of the other one
APART: Final = 2  # cores


def measure(
    bench: Bench,
    python: Path,
    sources: Path | None,
    loads: Sequence[Load],
    runs: int,
    v5: bool,
    least_cpu: float,
) -> tuple[str, dict[str, Any]]:
    """A table, and every single result: *runs* pairs of runs for each of *loads*."""
    other = Bench(bench.folder, sources, python)
    cores = len(os.sched_getaffinity(0))
    loads = placed(loads, cores)
    print(f"beside {other.banner()}\n{places(cores)}\n", flush=True)
    starts = (bench.weir, other.weir)
    return pairs.measure(bench, ("this", "other"), starts, loads, AT_MOST, runs=runs, v5=v5, least_cpu=least_cpu)


def placed(loads: Sequence[Load], cores: int) -> list[Load]:
    """*loads*, with node and load generator on a core each if there are enough *cores*."""
    return [load if load.cores or cores < APART else replace(load, cores=APART) for load in loads]


def places(cores: int) -> str:
    """What is to be said of where the processes run."""
    if cores < APART:
        return "There is one core: node and load generator share it."
    return "Node and load generator have a core each; under loads called `together` they share one."
