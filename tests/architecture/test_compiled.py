# What setup.py compiles, beside the modules of the tree, the imported modules, and the tests that run compiled.
import ast
import importlib
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from broker.version import form
from tests.conftest import ROOT
from tests.tools.suite.phases import COMPILED as TESTED_COMPILED

# Modules that stay ordinary Python: the analysis imports them where nothing is compiled, an Enum in them has its own
# __init__, or they run a few times in the life of a process.
NEVER: Final = (
    "broker/__main__.py",
    "broker/metrics/record.py",
    "broker/reasons.py",
    "broker/version.py",
    "broker/worker.py",
)


def constant(name: str) -> list[str]:
    """A list that setup.py assigns to *name*. Importing setup.py would run a build."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign) and [name] == [one.id for one in node.targets if isinstance(one, ast.Name)]:
            value: list[str] = ast.literal_eval(node.value)
            return value
    raise AssertionError(f"setup.py assigns nothing to {name}")


def matched(pattern: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern) if path.name != "__init__.py"}


def compiled() -> set[str]:
    return {path for pattern in constant("COMPILED") for path in matched(pattern)} - set(constant("INTERPRETED"))


def test_each_pattern_matches_a_module() -> None:
    """A package that is renamed would no longer be compiled, and Weir would be several times slower."""
    assert [] == [pattern for pattern in constant("COMPILED") if not matched(pattern)]


def test_each_exception_is_a_module_that_a_pattern_matches() -> None:
    """An exception that is renamed would be compiled; one that no pattern matches says nothing."""
    everything = {path for pattern in constant("COMPILED") for path in matched(pattern)}

    assert [] == [path for path in constant("INTERPRETED") if path not in everything]


def test_what_must_not_be_compiled_is_not() -> None:
    """The analysis could not import the record of metrics, or an Enum with an __init__ could not make its members."""
    assert set() == compiled() & set(NEVER)
    assert all((ROOT / path).is_file() for path in NEVER)
    assert {"broker", "cli"} == {path.partition("/")[0] for path in compiled()}


def test_every_package_with_compiled_modules_is_tested_compiled() -> None:
    """A mistake of mypyc in a package would be seen by users only."""
    tests = {path.removeprefix("broker/").removeprefix("cli/") for path in compiled()}  # they mirror the tree
    tests = {f"{folder}{slash}test_{name}" for folder, slash, name in (path.rpartition("/") for path in tests)}

    assert [] == [path for path in sorted(tests) if not path.startswith(TESTED_COMPILED)]
    assert [] == [name for name in TESTED_COMPILED if not (ROOT / "tests" / name).exists()]


def test_the_imported_modules_are_compiled_as_setup_says() -> None:
    """A compiled run would test the sources of a module, or a run of the sources a compiled one."""
    loaded = {path: importlib.import_module(path.removesuffix(".py").replace("/", ".")) for path in compiled()}
    extensions = {path for path, one in loaded.items() if str(one.__file__).endswith(tuple(EXTENSION_SUFFIXES))}

    assert (compiled() if form() == "compiled" else set()) == extensions
