# Two builds of Weir: what this one costs beside another one.
#
# The other one is named by the Python interpreter of the environment that it is installed in, or that can run its
# sources: `--other /elsewhere/.venv/bin/python`, with `--interpreted` also `--other-sources /elsewhere`.
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.tools.bench import pairs
from tests.tools.bench.contenders import Bench
from tests.tools.bench.loads import Load

AT_MOST: Final = 1.05  # times the cost of the other one


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
    print(f"beside {other.banner()}\n", flush=True)
    starts = (bench.weir, other.weir)
    return pairs.measure(bench, ("this", "other"), starts, loads, AT_MOST, runs=runs, v5=v5, least_cpu=least_cpu)
