# One mutant before the tests: in a forked process, so that whatever it breaks is gone with it.
#
# The parent has imported and collected everything, so a trial costs a fork and the tests themselves, the quickest
# first, until one fails. A mutant that never ends, or never has enough, runs into a limit, which counts as noticed.
#
# Where the edit is in what runs at import, the child forgets the modules of this tree and collects anew.
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final, NoReturn

import hypothesis
import pytest

from tests.tools.mutation.mutants import Mutant, Place

SURVIVED: Final = 0
KILLED: Final = 1
CPU_SECONDS: Final = 2.0  # a test may use this much, and so many times what it needed unharmed
WALL_SECONDS: Final = 10.0  # the same, for one that waits for what never comes
TIMES: Final = 10
IMPORT_SECONDS: Final = 30.0
MEMORY_BYTES: Final = 1 << 30  # beyond what the parent has
EXAMPLES: Final = 25  # of hypothesis, for each test that does not ask for more

Named = dict[tuple[str, Place], list[FunctionType]]


@dataclass(frozen=True)
class Case:
    """A test, and how long it took unharmed."""

    name: str
    item: pytest.Item
    seconds: float


@dataclass(frozen=True)
class Verdict:
    killed: bool
    by: str  # the test that failed, or the limit


class Runner:
    """A plugin: pytest collects, *loop* runs what it likes of it, *on_failure* hears which test failed."""

    def __init__(self, loop: Callable[[list[pytest.Item]], None], on_failure: Callable[[str], None]) -> None:
        self._loop = loop
        self.on_failure = on_failure

    def pytest_configure(self) -> None:
        # The same examples each time; where a mutant fails is of no interest, so no smaller one is looked for.
        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile(
            "mutation", deadline=None, derandomize=True, database=None, max_examples=EXAMPLES, phases=phases
        )
        hypothesis.settings.load_profile("mutation")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        self._loop(session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.on_failure(report.nodeid)


def run(item: pytest.Item) -> None:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)


def functions_of(files: Iterable[Path]) -> Named:
    """The functions that were imported from *files*, by file and place."""
    names = {str(file) for file in files}
    found: Named = {}
    for thing in gc.get_objects():
        if isinstance(thing, FunctionType) and thing.__code__.co_filename in names:
            code = thing.__code__
            found.setdefault((code.co_filename, Place(code.co_qualname, code.co_firstlineno)), []).append(thing)
    return found


class Trial:
    """Judges mutants of what is below *root*, whose *functions* are imported; *collect* are pytest's arguments."""

    def __init__(self, root: Path, functions: Named, runner: Runner, collect: Sequence[str]) -> None:
        self._root = root
        self._functions = functions
        self._runner = runner
        self._collect = collect
        self._pipe = -1

    def judge(self, mutant: Mutant | None, cases: Sequence[Case], anew: bool) -> Verdict:
        """Whether *cases* notice *mutant*; None is the control: nothing is changed."""
        reading, self._pipe = os.pipe()
        child = os.fork()
        if child == 0:
            self._child(mutant, cases, anew)
        os.close(self._pipe)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read().decode().split("\n")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        by = said[-1] if code >= 0 else f"{signal.Signals(-code).name} in {said[-1]}"
        return Verdict(code != SURVIVED, by)

    def _child(self, mutant: Mutant | None, cases: Sequence[Case], anew: bool) -> NoReturn:
        try:
            _limit_memory()
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(silence, descriptor)
            if anew:
                self._run_anew(mutant, {case.name: case.seconds for case in cases})
            else:
                if mutant is not None:
                    self._install(mutant)
                self._runner.on_failure = self._die
                self._run((case.item, case.seconds) for case in cases)
        except BaseException as error:
            self._die(repr(error))
        os._exit(SURVIVED)

    def _run(self, items: Iterable[tuple[pytest.Item, float]]) -> None:
        for item, seconds in items:
            os.write(self._pipe, b"\n" + item.nodeid.encode())
            _allow(CPU_SECONDS + TIMES * seconds, WALL_SECONDS + TIMES * seconds)
            run(item)

    def _die(self, by: str) -> NoReturn:
        os.write(self._pipe, b"\n" + by.encode())
        os._exit(KILLED)

    def _install(self, mutant: Mutant) -> None:
        assert mutant.place is not None
        code = _find(mutant.compile(self._root), mutant.place)
        for function in self._functions[str(self._root / mutant.path), mutant.place]:
            function.__code__ = code

    def _run_anew(self, mutant: Mutant | None, seconds: dict[str, float]) -> None:
        def loop(items: list[pytest.Item]) -> None:
            found = {item.nodeid: item for item in items}
            if not seconds.keys() <= found.keys():
                self._die("tests are missing")
            self._run((found[name], seconds[name]) for name in seconds)

        _forget(self._root)
        if mutant is not None:
            sys.meta_path.insert(0, _Finder(self._root, mutant))
        _allow(IMPORT_SECONDS, 2 * IMPORT_SECONDS)
        files = dict.fromkeys(name.partition("::")[0] for name in seconds)
        status = pytest.main([*self._collect, *files], [Runner(loop, self._die)])
        if status != pytest.ExitCode.OK:
            self._die(f"pytest ended with {status!r}")


class _Finder(MetaPathFinder, Loader):
    """Imports the mutant instead of its module."""

    def __init__(self, root: Path, mutant: Mutant) -> None:
        self._file = root / mutant.path
        self._name = ".".join(mutant.path.with_suffix("").parts)
        self._code = mutant.compile(root)

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._file, loader=self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


def _forget(root: Path) -> None:
    """Let all modules of the tree be imported again, but for those of this package."""
    own = __name__.rpartition(".")[0]
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(root) and "site-packages" not in file and not name.startswith(own):
            del sys.modules[name]


def _find(code: CodeType, place: Place) -> CodeType:
    return next(one for one in _codes(code) if (one.co_qualname, one.co_firstlineno) == (place.name, place.line))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _allow(cpu: float, wall: float) -> None:
    """Both signals end a process that does not expect them."""
    signal.setitimer(signal.ITIMER_PROF, cpu)
    signal.setitimer(signal.ITIMER_REAL, wall)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
