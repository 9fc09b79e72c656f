# python -m tests.tools.mutation [--package broker/mqtt] [--sample 600 --seed 1]: do the tests notice small mistakes?
#
# Each edit of edits.py in turn is made in one module, in memory, and the quick tests that run the edited line are run:
# the mutant is killed when one of them fails. Which survive is what the suite would let pass.
#
# None of the known tools fits: mutmut changes neither module-level tables nor constants, of which the wire is full,
# and removes no statements; cosmic-ray starts a process and imports everything for each mutant, seconds each.
import argparse
import gc
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import pytest

from tests.tools.mutation.score import Score, score_of
from tests.tools.mutation.survey import Attempt, Survey
from tests.tools.mutation.trial import Runner, Trial, functions_of

PACKAGES: Final = ["broker/mqtt", "broker/session", "broker/routing"]
PYTEST: Final = [
    *("-m", "not slow and not system"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # collecting anew: hypothesis and others are imported already
    *("-p", "no:terminal"),
    "--import-mode=importlib",
]


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.mutation", description="Do the tests notice small mistakes?"
    )
    parser.add_argument(
        "--package", action="append", metavar="PATH[:LINE]", help=f"a folder or a file (default {' '.join(PACKAGES)})"
    )
    parser.add_argument("--tests", action="append", metavar="PATH", help="of these tests only (default tests)")
    parser.add_argument("--sample", type=int, metavar="N", help="so many mutants, from all packages alike")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default 1)")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds of tests for one mutant (default 10)")
    parser.add_argument("--killers", action="store_true", help="show what killed each mutant, too")
    return parser


class Run:
    """All mutants of *scores*, before the tests that pytest has collected."""

    def __init__(self, root: Path, scores: list[Score], arguments: argparse.Namespace, collect: list[str]) -> None:
        self._root = root
        self._scores = scores
        self._patience: float = arguments.patience
        self._killers: bool = arguments.killers
        self._collect = collect
        self._files = {mutant.path for score in scores for mutant in score.mutants}
        self._survey = Survey(root, self._files)
        self._failed: list[str] = []
        self.runner = Runner(self._loop, self._failed.append)
        self.done = False

    def _loop(self, items: list[pytest.Item]) -> None:
        begin = time.monotonic()
        self._survey.take(items, self._failed)
        print(f"{len(items)} tests, {time.monotonic() - begin:.0f} s", flush=True)
        trial = Trial(self._root, functions_of(self._root / file for file in self._files), self.runner, self._collect)
        attempts = [
            (score, self._survey.attempt(one, self._patience)) for score in self._scores for one in score.mutants
        ]
        gc.collect()
        gc.freeze()  # so that the children share what they do not touch
        for anew in (False, True):
            cases = {case.name: case for _, one in attempts if one.anew == anew for case in one.cases}
            control = trial.judge(None, list(cases.values()), anew) if cases else None
            if self._failed or (control is not None and control.killed):
                print("Without any mutant these fail:", *self._failed, control.by if control else "")
                return
        for score, attempt in attempts:
            self._judge(trial, score, attempt)
        print(f"{time.monotonic() - begin:.0f} s")
        self.done = True

    def _judge(self, trial: Trial, score: Score, attempt: Attempt) -> None:
        mutant = attempt.mutant
        verdicts = (trial.judge(mutant, stage, attempt.anew) for stage in attempt.stages() if stage)
        verdict = next((one for one in verdicts if one.killed), None)
        score.tried += 1
        score.killed += verdict is not None
        if verdict is None:
            print(f"{mutant}\n    survives {len(attempt.cases)} tests", flush=True)
        elif self._killers:
            print(f"{mutant}\n    killed by {verdict.by}", flush=True)


def main() -> int:
    arguments = options().parse_args()
    root = Path.cwd()
    scores = [score_of(root, package) for package in arguments.package or PACKAGES]
    if arguments.sample is not None:
        chance = random.Random(arguments.seed)
        share = arguments.sample / max(1, sum(score.total for score in scores))
        for score in scores:
            score.sample(share, chance)
    os.environ.pop("PYTEST_ADDOPTS", None)  # what the run around this one is told may mean nothing without a terminal
    with tempfile.TemporaryDirectory(prefix="weir-mutation-") as folder:
        collect = [*PYTEST, f"--basetemp={folder}/tests", "-o", f"cache_dir={folder}/cache"]
        run = Run(root, scores, arguments, collect)
        pytest.main([*collect, *(arguments.tests or ["tests"])], [run.runner])
    print(*scores, sep="\n")
    return 0 if run.done else 1


if __name__ == "__main__":
    sys.exit(main())
