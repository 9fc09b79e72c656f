# deploy/install.py: which build is installed, and that a start does not wait for the compiler.
import os
import runpy
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT

SCRIPT: Final = ROOT / "deploy" / "install.py"
INSTALL: dict[str, Any] = runpy.run_path(str(SCRIPT))
Options: Any = INSTALL["Options"]
PATIENCE: Final = 120.0  # seconds for a build that takes a few

# Weir in small. It "compiles" an extension of one line, and takes its time as gcc does.
PROJECT: Final = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "weirmq"
version = "1.0"
[project.scripts]
weir = "broker.main:main"
[tool.setuptools]
packages = ["broker"]
""",
    "setup.py": """\
import os
import time
from pathlib import Path
from setuptools import Extension, setup
extensions = []
if os.environ["WEIR_COMPILE"] != "0":
    while Path("{gate}").exists():
        time.sleep(0.05)
    Path("hot.c").write_text(
        '#include <Python.h>\\\\nstatic struct PyModuleDef hot = {{PyModuleDef_HEAD_INIT, "hot"}};'
        'PyMODINIT_FUNC PyInit_hot(void) {{ return PyModule_Create(&hot); }}'
    )
    extensions.append(Extension("broker.hot", ["hot.c"]))
setup(ext_modules=extensions)
""",
    "broker/__init__.py": "",
    "broker/main.py": "import importlib.util\n"
    "def main():\n"
    "    print('compiled' if importlib.util.find_spec('broker.hot') else 'interpreted')\n",
    "supervisor/__init__.py": "",
    "cli/__init__.py": "",
    "analytics/__init__.py": "",
    "README.md": "",
    "LICENSE": "",
}


def write(tree: Path, gate: Path) -> None:
    for name, text in PROJECT.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text.format(gate=gate) if name == "setup.py" else text)


def build(builds: Path, name: str, wheel: str) -> Path:
    (builds / name).mkdir(parents=True)
    (builds / name / wheel).touch()
    return builds / name


COMPILED_WHEEL: Final = "weirmq-1.0-cp311-cp311-linux_x86_64.whl"
PLAIN_WHEEL: Final = "weirmq-1.0-py3-none-any.whl"


def test_the_checksum_follows_the_text_of_the_sources(tmp_path: Path) -> None:
    """An edit would run an old build, or a checkout that only changes dates would compile for minutes."""
    write(tmp_path, tmp_path / "gate")
    before = INSTALL["checksum"](tmp_path, Options())

    os.utime(tmp_path / "broker" / "main.py", (1, 1))
    (tmp_path / "broker" / "main.pyc").touch()
    (tmp_path / "README.md").write_text("another text")
    assert before == INSTALL["checksum"](tmp_path, Options())

    (tmp_path / "broker" / "main.py").write_text("another = 1\n")
    assert before != INSTALL["checksum"](tmp_path, Options())


def test_the_fastest_build_of_the_sources_is_chosen(tmp_path: Path) -> None:
    """A start would run a slower build than it has, or one of other sources."""
    assert INSTALL["best_build"]("a", tmp_path, Options()) is None
    build(tmp_path, "b-O3-trained", COMPILED_WHEEL)
    build(tmp_path, "a-interpreted", PLAIN_WHEEL)
    assert INSTALL["best_build"]("a", tmp_path, Options()) is None
    plain = build(tmp_path, "a-O3", COMPILED_WHEEL)
    build(tmp_path, "a-O1", COMPILED_WHEEL)
    assert plain == INSTALL["best_build"]("a", tmp_path, Options())
    trained = build(tmp_path, "a-O3-trained", COMPILED_WHEEL)
    assert trained == INSTALL["best_build"]("a", tmp_path, Options())
    assert tmp_path / "a-interpreted" == INSTALL["best_build"]("a", tmp_path, Options(compile="0"))


def test_a_build_that_was_to_be_compiled_and_is_not_is_not_taken(tmp_path: Path) -> None:
    """WEIR_COMPILE=1 would install an interpreted build that an earlier call made without a compiler."""
    fallback = build(tmp_path, "a-O3", PLAIN_WHEEL)

    assert fallback == INSTALL["best_build"]("a", tmp_path, Options())
    assert INSTALL["best_build"]("a", tmp_path, Options(compile="1")) is None


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The Python of an environment of its own, which borrows pip and setuptools from ours."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    return folder / "bin" / "python"


@pytest.mark.slow
def test_a_start_does_not_wait_for_the_compiler_and_the_next_one_is_compiled(tmp_path: Path, environment: Path) -> None:
    """The first start would take minutes, or all later ones would run interpreted."""
    tree, gate = tmp_path / "tree", tmp_path / "gate"
    write(tree, gate)
    gate.touch()
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTHON"))}

    def install(*arguments: str) -> str:
        command = [str(environment), str(SCRIPT), *arguments]
        return subprocess.run(
            command, cwd=tree, env=variables, check=True, capture_output=True, text=True, timeout=PATIENCE
        ).stdout

    said = install("--now")
    assert "interpreted\nWeir runs interpreted this time: it is being compiled in the background" in said

    gate.unlink()
    deadline = time.monotonic() + PATIENCE
    builds = environment.parent.parent / "builds"
    while not list(builds.glob("*-O3/*.whl")):
        assert time.monotonic() < deadline, (builds / "build.log").read_text()
        time.sleep(0.05)  # for a process that is not ours
    assert "Installing Weir\ncompiled\n" == install("--now")
    assert "" == install("--now")
    assert "" == install()
