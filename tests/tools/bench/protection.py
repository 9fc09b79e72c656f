# What overload protection costs a node that is not overloaded: CPU per delivered message with it and without it.
from collections.abc import Sequence
from typing import Any, Final

from tests.tools.bench import pairs
from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import Load

AT_MOST: Final = 1.1  # times the cost without


def measure(bench: Bench, loads: Sequence[Load], runs: int, v5: bool, least_cpu: float) -> tuple[str, dict[str, Any]]:
    """A table, and every single result: *runs* pairs of runs for each of *loads*."""
    names = ("protected", "unprotected")
    starts = (bench.weir, lambda: bench.weir(more={"overload.enabled": "false"}))
    return pairs.measure(bench, names, starts, loads, AT_MOST, runs=runs, v5=v5, least_cpu=least_cpu)
