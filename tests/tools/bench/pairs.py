# Two nodes under the same loads, in alternating pairs of runs: what the second costs beside the first.
#
# The speed of a shared machine drifts by more, over a minute, than the difference that is looked for. So each run is
# compared with the run next to it, the order alternates from pair to pair, and the median of the ratios counts.
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import Load
from tests.tools.bench.speed import Runs, calibrate, core, place, run_load
from tests.tools.bench.table import markdown, number

Start = Callable[[], AbstractContextManager[BrokerProcess]]


def measure(
    bench: Bench, names: tuple[str, str], starts: tuple[Start, Start], loads: Sequence[Load], limit: float, **how: Any
) -> tuple[str, dict[str, Any]]:
    """A table, and every single result. *starts* start the nodes *names*; ratios are first / second, at most *limit*.

    *how*: the arguments of `run_pairs()`.
    """
    rows = []
    results: dict[str, Any] = {}
    for load in loads:
        first, second = run_pairs(bench, starts, load, **how)
        ratios = [
            one["broker_cpu_us_per_rx"] / other["broker_cpu_us_per_rx"]
            for one, other in zip(first.results, second.results, strict=True)
        ]
        costs = [f"{number(found.median('broker_cpu_us_per_rx'))} ({found.spread()})" for found in (first, second)]
        middle = statistics.median(ratios)
        spread = f"{number(min(ratios))}-{number(max(ratios))}"
        rows.append([load.name, *costs, number(middle), spread, limit, "fine" if middle <= limit else "too dear"])
        results[load.name] = {names[0]: asdict(first), names[1]: asdict(second)}
        print(f"... {load.name}: {number(middle)} times", flush=True)
    header = ["load", f"{names[0]} us", f"{names[1]} us", "ratio", "of pairs", "at most", "verdict"]
    return f"\n{markdown(header, rows)}", results


def run_pairs(
    bench: Bench, starts: tuple[Start, Start], load: Load, *, runs: int, v5: bool, least_cpu: float
) -> tuple[Runs, Runs]:
    """*runs* pairs of runs of *load*, each of at least *least_cpu* seconds of the node's CPU."""
    with starts[0]() as first, starts[1]() as second:
        nodes = (first, second)
        if load.cores:
            for node in nodes:
                place(node, core(load.cores - 1))
        measured = (
            Runs(calibrate(bench, load, first, v5, least_cpu)),
            Runs(calibrate(bench, load, second, v5, least_cpu)),
        )
        for run in range(runs):
            for one in (0, 1) if run % 2 else (1, 0):
                measured[one].results.append(run_load(bench, load, nodes[one], measured[one].count, v5))
    return measured
