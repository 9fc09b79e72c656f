# python -m tests.tools.fuzz --inputs 1000000 [--seed N] [--transport tcp|tls|ws|wss]: the long run. --seed repeats one.
import argparse
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.tools.fuzz.campaign import Campaign, Outcome
from tests.tools.fuzz.inputs import Inputs
from tests.tools.fuzz.transports import NAMES
from tests.tools.fuzz.victim import victim

TELL_EVERY: Final = 10.0  # seconds


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.fuzz", description="Fuzz a Weir of its own.")
    parser.add_argument("--inputs", type=int, default=10_000, help="how many (default 10000)")
    parser.add_argument("--seed", type=int, help="which; a random one if it is left out")
    parser.add_argument("--first", type=int, default=0, help="number of the first input (default 0)")
    parser.add_argument("--transport", choices=NAMES, default="tcp")
    parser.add_argument("--show", action="store_true", help="print the inputs, send nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the broker's log is to stay")
    return parser


class Progress:
    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, outcome: Outcome) -> None:
        if time.monotonic() - self._told >= TELL_EVERY:
            self._told = time.monotonic()
            print(
                f"... {outcome.inputs} inputs, {outcome.memory[-1]} KiB, {len(outcome.failures)} failures", flush=True
            )


def report(outcome: Outcome) -> str:
    lines = [
        f"{outcome.inputs} inputs from seed {outcome.seed}, number {outcome.first}, in {outcome.seconds:.0f} s: "
        f"{outcome.inputs / max(outcome.seconds, 0.001):.0f} a second, {outcome.broker_cpu:.0f} s of the broker's CPU",
        f"descriptors: {outcome.descriptors[0]} before, {outcome.descriptors[1]} after",
        f"memory by tenths of the run: {outcome.memory_by_tenths()} KiB, {max(outcome.memory, default=0)} at most",
        "pair: " + ", ".join(f"{count} {name}" for name, count in outcome.pair.items()),
        "counters:",
        *[f"  {name} {count}" for name, count in sorted(outcome.counters.items()) if count],
        *([f"void: this machine stood still for {outcome.stood_still:.1f} s"] if outcome.stood_still else []),
        f"failures: {len(outcome.failures) or 'none'}",
        *outcome.failures,
    ]
    return "\n".join(lines)


def main() -> int:
    arguments = options().parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    inputs = Inputs(seed)
    if arguments.show:
        for number in range(arguments.first, arguments.first + arguments.inputs):
            print(inputs[number])
        return 0
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-fuzz-")))
        broker, transport = stack.enter_context(victim(folder, arguments.transport))
        outcome = Campaign(broker, transport, inputs, arguments.first, arguments.inputs).run(Progress())
    print(report(outcome))
    return 1 if outcome.failures or outcome.stood_still else 0


if __name__ == "__main__":
    sys.exit(main())
