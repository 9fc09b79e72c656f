# Which tests run where: the phases of `make test`, which CI runs for each change, and of `make nightly`.
#
# The code exists in two forms: the sources, interpreted, and an installed copy whose hot modules are compiled.
# - Quick unit tests run on the sources: a mistake in Weir's logic shows there, with the best traceback. Coverage is
#   measured where the tests of the core are, because it doubles the time of whatever runs with it.
# - Quick unit tests of packages that have compiled modules run on the compiled copy, too. What can differ there is
#   mypyc's: types checked at run time, integers, attributes and inheritance of native classes, and when objects are
#   freed. The other packages are the same bytecode in both forms.
# - System tests run once, on the compiled copy, which is what users run. Every node has four workers, so the clients of
#   a topic, a session or a group are on different workers. Tests that choose the number of workers run by themselves.
#   Those that extend a class of the broker can only run on the sources.
# - Slow unit tests, mostly simulations, run once, on the compiled copy, where they take a fraction of the time.
# The night has what takes long and rarely finds anything: all of it interpreted, one and two workers, long models.
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REST: Final = "not faults and not nightly"
QUICK: Final = f"not slow and not system and {REST}"
SLOW: Final = f"slow and not system and {REST}"
ANY_WORKERS: Final = f"any_workers and {REST}"  # tests/system/conftest.py gives this mark
OWN_WORKERS: Final = f"system and not any_workers and {REST}"
SLOW_OR_OWN_WORKERS: Final = f"(slow or system) and not any_workers and {REST}"
OF_SOURCES: Final = f"interpreted and (slow or system) and {REST}"

# Folders and files of tests/ that execute compiled modules; tests/architecture/test_compiled.py compares with setup.py.
COMPILED: Final = (
    "architecture/test_compiled.py",
    "auth",
    "backtest",
    "carrier/test_turns.py",
    "carrier/test_worker_lanes.py",
    "cluster",
    "config/test_rate.py",
    "config/test_patterns.py",
    "config/test_tenants.py",
    "control",
    "delivery",
    "insight",
    "load",
    "metrics",
    "model",
    "mqtt",
    "net",
    "overload",
    "protocol",
    "routing",
    "session",
    "store",
    "test_worker.py",
    "test_worker_id.py",
)
COVERED: Final = ("auth", "delivery", "mqtt", "overload", "routing", "session")  # packages of the core
CORE: Final = (*COVERED, "cluster", "protocol")  # folders of tests/ that execute them
LEAST_COVERAGE: Final = 97  # percent of their lines and branches


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One run of pytest, and a second one of the tests that failed."""

    name: str
    marks: str
    paths: Sequence[str] = ("",)  # below tests/
    except_paths: Sequence[str] = ()
    compiled: bool = True
    workers: int = 1  # of each node that does not choose
    nodes: int = 1  # that share a Redis, behind a balancer, where a test needs one broker
    parallel: int = 2  # processes; with more than the machine has cores, tests of whole nodes wait for each other
    coverage: bool = False

    def arguments(self) -> list[str]:
        """What both runs of pytest are told."""
        ignored = [f"--ignore={Path('tests', path)}" for path in self.except_paths]
        return ["-m", self.marks, *ignored, *(str(Path("tests", path)) for path in self.paths)]


CHANGE: Final = (
    Phase(name="quick unit tests of the core, interpreted", marks=QUICK, paths=CORE, compiled=False, coverage=True),
    Phase(name="other quick unit tests, interpreted", marks=QUICK, except_paths=CORE, compiled=False),
    Phase(name="quick unit tests of compiled packages, compiled", marks=QUICK, paths=COMPILED),
    Phase(
        name="system tests with any number of workers, compiled, 4 workers",
        marks=ANY_WORKERS,
        paths=["system"],
        workers=4,
    ),
    # A third of that time both cores wait for clocks, so there is room for a third process.
    Phase(name="slow unit tests and other system tests, compiled", marks=SLOW_OR_OWN_WORKERS, parallel=3),
    Phase(name="slow unit tests and system tests of the sources, interpreted", marks=OF_SOURCES, compiled=False),
)
NIGHT: Final = (
    Phase(name="quick unit tests, compiled", marks=QUICK),
    Phase(name="tests marked nightly, compiled", marks="nightly and not faults"),
    Phase(name="system tests with any number of workers, compiled, 1 worker", marks=ANY_WORKERS, paths=["system"]),
    Phase(
        name="system tests with any number of workers, compiled, 2 workers",
        marks=ANY_WORKERS,
        paths=["system"],
        workers=2,
    ),
    Phase(
        name="system tests with any number of workers, compiled, 2 nodes of 2 workers",
        marks=ANY_WORKERS,
        paths=["system"],
        workers=2,
        nodes=2,
    ),
    Phase(
        name="system tests with any number of workers, interpreted", marks=ANY_WORKERS, paths=["system"], compiled=False
    ),
    Phase(name="slow unit tests, interpreted", marks=SLOW, compiled=False),
    Phase(name="other system tests, interpreted", marks=OWN_WORKERS, compiled=False),
)
