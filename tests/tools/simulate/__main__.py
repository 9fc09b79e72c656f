# python -m tests.tools.simulate --histories 100000 [--seed N]: histories of durable sessions against a model of Redis.
#
# Each follows from its seed alone. Of one that fails it prints what was wrong, the steps that are needed for that, and
# the command that repeats it and shows what the clients saw.
import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.tools.simulate.history import History, history_of, run, shortened

BATCH = 250  # histories that a process runs before it says so
REPORTED = 10  # histories that fail and are reported


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.simulate", description="Simulate durable sessions.")
    parser.add_argument(
        "--histories", type=int, default=10_000, help="how many (default 10000), each with the next seed"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each processor")
    parser.add_argument(
        "--show", action="store_true", help="show the history SEED, shortened if it fails, and no other"
    )
    return parser


def failing(first: int, count: int) -> list[int]:
    """Of *count* seeds, those whose histories fail."""
    return [seed for seed in range(first, first + count) if run(history_of(seed))]


def report(seed: int) -> str:
    """What is wrong with the history *seed*, which fails."""
    history = shortened(history_of(seed))
    lines = [f"history {seed}: {len(history.steps)} steps are needed: {', '.join(name for name, _ in history.steps)}"]
    lines += [f"  ! {violation}" for violation in run(history)]
    return "\n".join([*lines, f"  python -m tests.tools.simulate --show --seed {seed}"])


def show(history: History) -> int:
    if run(history):
        history = shortened(history)
    found = run(history, print)
    for violation in found:
        print(f"! {violation}")
    return 1 if found else 0


def main(words: Sequence[str]) -> int:
    arguments = options().parse_args(words)
    if arguments.show:
        return show(history_of(arguments.seed))
    began = time.monotonic()
    last = arguments.seed + arguments.histories
    firsts = range(arguments.seed, last, BATCH)
    failed: list[int] = []
    with ProcessPoolExecutor(arguments.processes) as processes:
        for seeds in processes.map(failing, firsts, [min(BATCH, last - first) for first in firsts]):
            failed += seeds
        for text in processes.map(report, failed[:REPORTED]):
            print(text, flush=True)
    seconds = time.monotonic() - began
    print(f"{len(failed)} of {arguments.histories} histories failed; {arguments.histories / seconds:.0f} a second")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
