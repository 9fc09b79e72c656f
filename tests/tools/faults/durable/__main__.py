# python -m tests.tools.faults durable --faults 1000 [--seed N]: durable sessions under faults, judged by their history.
#
# The plan of a run follows from its seed; what happens then follows from the machine, too. So a seed repeats the
# faults, and a violation that depends on a moment may need several runs with that seed.
import argparse
import secrets
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.tools.faults.durable.run import DurableRun, Outcome

EACH: Final = 20  # faults of one run: a node and a history of their own


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.faults durable", description="Harm a node with stored sessions."
    )
    parser.add_argument("--faults", type=int, default=1000, help=f"how many (default 1000), {EACH} in each run")
    parser.add_argument("--seed", type=int, help="of the first run, each has the next one; random if it is left out")
    parser.add_argument("--workers", type=int, default=2, help="of the node (default 2)")
    parser.add_argument("--each", type=int, default=EACH, help=f"faults of one run (default {EACH})")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the folders of runs that fail are to stay")
    return parser


def report(outcome: Outcome) -> str:
    figures = ", ".join(f"{name} {value:.4g}" for name, value in outcome.figures.items())
    lines = [f"seed {outcome.seed} ({outcome.told}): {'FAILED' if outcome.failures else 'well'}; {figures}"]
    if outcome.failures:
        lines += [f"  {fault}" for fault in outcome.faults]
    return "\n".join([*lines, *(f"  ! {failure}" for failure in outcome.failures)])


def main(words: Sequence[str]) -> int:
    arguments = options().parse_args(words)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # or the node would outlive its run
    first = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    totals: Counter[str] = Counter()
    failed = 0
    left = arguments.faults
    seed = first
    while left > 0:
        folder = Path(tempfile.mkdtemp(prefix="weir-"))
        outcome = DurableRun(folder, seed, arguments.workers, min(left, arguments.each)).go()
        print(report(outcome), flush=True)
        totals.update({name: int(value) for name, value in outcome.figures.items()})
        if outcome.failures:
            failed += 1
            kept = folder if arguments.keep is None else arguments.keep / f"seed-{seed}"
            if kept != folder:
                shutil.move(folder, kept)
            print(f"  kept in {kept}", flush=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        left -= arguments.each
        seed += 1
    print(f"{failed} of {seed - first} runs failed; {totals['faults']} faults, {totals['acknowledged']} acknowledged")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
