# python -m tests.tools.faults durable --faults 1000 [--seed N]: durable sessions under faults, judged by their history.
#
# A campaign consists of runs, each with a node, a history and a seed of its own, so its memory is that of one run. The
# plan of a run follows from its seed; what happens then follows from the machine, too. So a seed repeats the faults,
# and a violation that depends on a moment may need several runs with that seed.
import argparse
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.tools.faults.durable.cold import COOLED, READ
from tests.tools.faults.durable.judged_run import JudgedRun, Outcome, shortened
from tests.tools.faults.durable.run import DurableRun

FAULTS: Final = 1000
EACH: Final = 20  # faults of one run: with 10 000 messages each, its history takes about 300 MB
MESSAGES: Final = 10_000  # for each fault
SUMS: Final = ("published", "acknowledged", "delivered", "repeated", "late", "violations")


def options() -> argparse.ArgumentParser:
    return campaign_options("durable", "Harm a node with stored sessions.", FAULTS, MESSAGES)


def campaign_options(name: str, description: str, faults: int, messages: int) -> argparse.ArgumentParser:
    """The options of `campaign()`. *faults*, *messages*: what there is by default."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.tools.faults {name}", description=description)
    parser.add_argument("--faults", type=int, default=faults, help=f"how many (default {faults}), {EACH} in each run")
    parser.add_argument(
        "--messages",
        type=int,
        default=messages,
        help=f"that are acknowledged for each fault (default {messages}); 0: only those of the slow clients",
    )
    parser.add_argument("--seed", type=int, help="of the first run, each has the next one; random if it is left out")
    parser.add_argument("--workers", type=int, help="of the node (default: 2 or 3, by the seed)")
    parser.add_argument("--each", type=int, default=EACH, help=f"faults of one run (default {EACH})")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the folders of runs that fail are to stay")
    parser.add_argument("--keep-going", action="store_true", help="go on after a run that fails")
    return parser


def report(outcome: Outcome) -> str:
    figures = ", ".join(f"{name} {value:.8g}" for name, value in outcome.figures.items())
    lines = [f"seed {outcome.seed} ({outcome.told}): {'FAILED' if outcome.failures else 'well'}; {figures}"]
    if outcome.failures:
        lines += [f"  {fault}" for fault in outcome.faults]
    return "\n".join([*lines, *(f"  ! {failure}" for failure in outcome.failures)])


def _durable_run(folder: Path, seed: int, workers: int, faults: int, messages: int) -> DurableRun:
    return DurableRun(folder, seed, workers, faults, messages=messages)


class Summary:
    """What all runs of a campaign found."""

    def __init__(self) -> None:
        self.failed: list[int] = []  # seeds
        self._runs = 0
        self._faults: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        self._runs += 1
        self._faults += outcome.kinds
        self._verdicts += outcome.verdicts
        self._sums.update({name: int(outcome.figures.get(name, 0)) for name in (*SUMS, COOLED, READ)})
        if outcome.failures:
            self.failed.append(outcome.seed)

    def __str__(self) -> str:
        minutes = (time.monotonic() - self._began) / 60
        faults = self._faults.total()
        lines = [f"{len(self.failed)} of {self._runs} runs failed; {faults} faults in {minutes:.1f} minutes:"]
        lines += [f"  {number:6} {kind}" for kind, number in self._faults.most_common()]
        lines += ["messages:", *(f"  {self._sums[name]:9} {name}" for name in SUMS)]
        if self._sums[COOLED]:
            lines += ["sessions:", f"  {self._sums[COOLED]:9} went cold", f"  {self._sums[READ]:9} were read again"]
        if self._verdicts:
            lines += ["verdicts:", *(f"  {number:6} {kind}" for kind, number in self._verdicts.most_common())]
        if self.failed:
            lines.append(f"seeds of runs that failed: {' '.join(map(str, self.failed))}")
        return "\n".join(lines)


def run(
    folder: Path,
    seed: int,
    workers: int,
    faults: int,
    messages: int,
    make: Callable[[Path, int, int, int, int], JudgedRun] = _durable_run,
) -> Outcome:
    """One run, which *make* makes; whatever ends it too early is a failure of it."""
    try:
        return make(folder, seed, workers, faults, messages).go()
    except Exception:
        return Outcome(seed, "did not end", failures=[shortened(traceback.format_exc())])


def campaign(arguments: argparse.Namespace, one_run: Callable[[Path, int, int, int, int], Outcome] = run) -> Summary:
    """All runs that *arguments* ask for, each told when it ends. *one_run*: see `run()`."""
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    summary = Summary()
    left = arguments.faults
    try:
        while left > 0 and (arguments.keep_going or not summary.failed):
            folder = Path(tempfile.mkdtemp(prefix="weir-"))
            faults = min(left, arguments.each)
            workers = arguments.workers or 2 + seed % 2
            outcome = one_run(folder, seed, workers, faults, faults * arguments.messages)
            print(report(outcome), flush=True)
            summary.add(outcome)
            if outcome.failures:
                print(f"  kept in {_keep(folder, seed, arguments.keep)}", flush=True)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            left -= faults
            seed += 1
    finally:
        print(summary, flush=True)
    return summary


def main(words: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # or the node would outlive its run
    return 1 if campaign(options().parse_args(words)).failed else 0


def _keep(folder: Path, seed: int, keep: Path | None) -> Path:
    """Where the logs, the data and the history of a run that failed are from now on."""
    if keep is None:
        return folder
    keep.mkdir(parents=True, exist_ok=True)
    kept = keep / f"seed-{seed}-{folder.name}"
    shutil.move(folder, kept)
    return kept


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
