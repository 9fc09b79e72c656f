import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PACKAGES = ("broker", "supervisor", "cli", "analytics")


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of pyproject.toml on the sources in *tree*."""
    program = "from importlinter.cli import lint_imports_command as run; run()"
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", program, "--no-cache"]
    return subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=60)


def test_the_layers_hold() -> None:
    """A lower layer would know a higher one, or the core a socket or a clock."""
    done = lint_imports(ROOT)

    assert 0 == done.returncode, done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("broker/mqtt/packets.py", "import time"),
        ("broker/mqtt/packets.py", "from broker.session import message"),
        ("broker/session/message.py", "import trio.lowlevel"),
        ("broker/session/message.py", "from broker.insight.logs import ClientLog"),
        ("broker/routing/filters.py", "import broker.net"),
        ("broker/delivery/__init__.py", "import socket"),
        ("broker/overload/__init__.py", "from random import random"),
        ("broker/metrics/__init__.py", "import broker.mqtt"),
        ("broker/reasons.py", "import cli.main"),
        ("broker/store/__init__.py", "import redis"),
        ("broker/store/__init__.py", "import kafka.errors"),
        ("supervisor/__init__.py", "import cli.main"),
        ("supervisor/__init__.py", "import kafka"),
        ("cli/load/publisher.py", "import time"),
        ("cli/load/pacing.py", "import cli.load.process"),
    ],
)
def test_an_import_that_the_design_forbids_is_found(copy: Path, module: str, line: str) -> None:
    """A contract that names modules which do not exist would hold whatever anybody imports."""
    source = copy / module
    before = source.read_text()
    source.write_text(f"{line}\n{before}")
    try:
        done = lint_imports(copy)
    finally:
        source.write_text(before)

    assert 1 == done.returncode, done.stdout
    assert "BROKEN" in done.stdout
