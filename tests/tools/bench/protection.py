# What overload protection costs who is not overloaded: CPU per delivered message with it and without it.
#
# The two nodes take turns, and each run is compared with the one after it: the machine's speed drifts by more, over a
# minute, than what is measured here. Each pair is the other way round than the one before.
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import Load
from tests.tools.bench.speed import Runs, calibrate, core, place, run_load
from tests.tools.bench.table import markdown, number

AT_MOST: Final = 1.1  # times the cost without
NODES: Final = {"on": {}, "off": {"overload.enabled": "false"}}


def measure(bench: Bench, loads: Sequence[Load], runs: int, v5: bool, least_cpu: float) -> tuple[str, dict[str, Any]]:
    """A table, and every single result: *runs* pairs of runs for each of *loads*."""
    rows = []
    results: dict[str, Any] = {}
    for load in loads:
        measured = pairs(bench, load, runs, v5, least_cpu)
        ratios = [
            on["broker_cpu_us_per_rx"] / off["broker_cpu_us_per_rx"]
            for on, off in zip(measured["on"].results, measured["off"].results, strict=True)
        ]
        costs = [f"{number(found.median('broker_cpu_us_per_rx'))} ({found.spread()})" for found in measured.values()]
        middle = statistics.median(ratios)
        spread = f"{number(min(ratios))}-{number(max(ratios))}"
        rows.append([load.name, *costs, number(middle), spread, AT_MOST, "fine" if middle <= AT_MOST else "too dear"])
        results[load.name] = {name: asdict(found) for name, found in measured.items()}
        print(f"... {load.name}: {number(middle)} times", flush=True)
    header = ["load", "protected us", "unprotected us", "ratio", "of pairs", "at most", "verdict"]
    return f"\n{markdown(header, rows)}", results


def pairs(bench: Bench, load: Load, runs: int, v5: bool, least_cpu: float) -> dict[str, Runs]:
    """What each of NODES took."""
    with bench.weir(more=NODES["on"]) as on, bench.weir(more=NODES["off"]) as off:
        nodes = {"on": on, "off": off}
        if load.cores:
            for node in nodes.values():
                place(node, core(load.cores - 1))
        measured = {name: Runs(calibrate(bench, load, node, v5, least_cpu)) for name, node in nodes.items()}
        for run in range(runs):
            for name in sorted(nodes, reverse=run % 2 == 0):
                measured[name].results.append(run_load(bench, load, nodes[name], measured[name].count, v5))
    return measured
