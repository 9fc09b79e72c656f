# Who runs what: the whole fast suite once, unharmed, with the lines that each test runs.
import os
import pickle
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import coverage
import pytest

from tests.tools.mutation.mutants import Mutant
from tests.tools.mutation.trial import Case, run

IMPORTING: Final = ""  # the context of what runs outside of tests


@dataclass(frozen=True)
class Attempt:
    """A mutant and the tests for it, in their order; *anew*: it runs at import, so they have to be collected anew."""

    mutant: Mutant
    cases: list[Case]
    anew: bool

    def stages(self) -> list[list[Case]]:
        """To collect what stands beside is quick, and usually enough."""
        if not self.anew:
            return [self.cases]
        near = [case for case in self.cases if _is_beside(case, self.mutant)]
        return [near, self.cases[len(near) :]]


class Survey:
    """What each test runs of *files*. Starts at once: what is imported before is not seen."""

    def __init__(self, root: Path, files: Iterable[Path]) -> None:
        self._root = root
        self._files = [str(root / file) for file in files]
        self._coverage = coverage.Coverage(data_file=None, config_file=False, include=self._files)
        self._coverage.start()
        self._cases: dict[str, Case] = {}
        self._seen: set[str] = set()  # tests that run any line
        self._contexts: dict[str, dict[int, list[str]]] = {}

    def take(self, items: list[pytest.Item], failed: list[str]) -> None:
        """Run *items*, and remember which lines of the files they run outside of imports.

        In a child: what a test leaves behind would be found by the same test, run again. *failed* is what the child
        knows of failures, and then what we do.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump((self._measure(items), self._lines(), failed), pipe)
            os._exit(0)
        os.close(writing)
        self._coverage.stop()
        with os.fdopen(reading, "rb") as pipe:
            seconds, self._contexts, failed[:] = pickle.load(pipe)
        os.waitpid(child, 0)
        self._seen = {name for lines in self._contexts.values() for names in lines.values() for name in names}
        cases = sorted((Case(item.nodeid, item, seconds[item.nodeid]) for item in items), key=lambda case: case.seconds)
        self._cases = {case.name: case for case in cases}

    def _measure(self, items: list[pytest.Item]) -> dict[str, float]:
        seconds = {}
        for item in items:
            self._coverage.switch_context(item.nodeid)
            begin = time.perf_counter()
            run(item)
            seconds[item.nodeid] = time.perf_counter() - begin
        return seconds

    def _lines(self) -> dict[str, dict[int, list[str]]]:
        self._coverage.stop()
        data = self._coverage.get_data()
        return {file: data.contexts_by_lineno(file) for file in self._files}

    def attempt(self, mutant: Mutant, patience: float) -> Attempt:
        """With those that run a line of *mutant*, the quickest first, and no more than last *patience* seconds.

        For what runs at import: those that stand beside it, which may do no more than look at a table, then those that
        run a line of its module, then all that run any line.
        """
        names = self._names(mutant)
        anew = mutant.place is None or IMPORTING in names
        if anew:
            cases = [case for case in self._cases.values() if case.name in self._seen or _is_beside(case, mutant)]
            lines = self._contexts[str(self._root / mutant.path)].values()
            names = {name for names in lines for name in names}
            cases.sort(key=lambda case: (not _is_beside(case, mutant), case.name not in names, case.seconds))
        else:
            cases = [case for case in self._cases.values() if case.name in names]
        chosen: list[Case] = []
        for case in cases:
            patience -= case.seconds
            if patience < 0 and chosen:
                break
            chosen.append(case)
        return Attempt(mutant, chosen, anew)

    def _names(self, mutant: Mutant) -> set[str]:
        lines = self._contexts[str(self._root / mutant.path)]
        return {name for line in mutant.lines for name in lines.get(line, ())}


def _is_beside(case: Case, mutant: Mutant) -> bool:
    """In a folder of the same name: the tests mirror the tree."""
    return Path(case.name.partition("::")[0]).parent.name == mutant.path.parent.name
