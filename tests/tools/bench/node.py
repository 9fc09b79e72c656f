# What a second worker costs: CPU per delivered message of all processes of a node, with two workers and with one.
#
# The kernel deals clients to the workers as it likes, so about half of the messages cross from one to the other. What
# two workers cost more than one is the price of those, and of smaller batches: each worker has half of the traffic.
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import LOADS
from tests.tools.bench.speed import Runs, calibrate, run_load
from tests.tools.bench.table import markdown, number

NAMES: Final = ("p2p-10-qos1", "fanout-3000")
AT_MOST: Final = 1.6  # times the cost of one worker
CROSSING: Final = 0.5  # of the messages of pairs


def measure(
    bench: Bench, runs: int, v5: bool, least_cpu: float, names: Sequence[str] = NAMES
) -> tuple[str, dict[str, Any]]:
    """A table, and every single result, of the loads *names*."""
    rows = []
    results: dict[str, Any] = {}
    for load in [load for load in LOADS if load.name in names]:
        with bench.weir(workers=1) as one, bench.weir(workers=2) as two:
            nodes = {1: one, 2: two}
            measured = {workers: Runs(calibrate(bench, load, node, v5, least_cpu)) for workers, node in nodes.items()}
            for _ in range(runs):
                for workers, node in nodes.items():
                    measured[workers].results.append(run_load(bench, load, node, measured[workers].count, v5))
        costs = {workers: found.median("broker_cpu_us_per_rx") for workers, found in measured.items()}
        crossing = number((costs[2] - costs[1]) / CROSSING) if load.pattern == "p2p" else "-"
        spreads = [f"{number(costs[workers])} ({found.spread()})" for workers, found in measured.items()]
        rows.append([load.name, *spreads, number(costs[2] / costs[1]), AT_MOST, crossing])
        results[load.name] = {str(workers): asdict(found) for workers, found in measured.items()}
    header = ["load", "one worker us", "two workers us", "ratio", "at most", "us a message that crosses"]
    return markdown(header, rows), results
