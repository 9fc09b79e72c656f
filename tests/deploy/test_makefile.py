# The Makefile, with interpreters that only pretend.
import os
import shutil
import subprocess
from pathlib import Path

from tests.conftest import ROOT
from tests.deploy.test_ci import executable


def test_the_interpreter_is_looked_for_once(tmp_path: Path) -> None:
    """With pyenv each look takes a tenth of a second; each mention of PYTHON had five, and the first `make` dozens."""
    for name, code in (("python3", 1), ("python3.11", 0), ("python3.12", 0)):
        executable(tmp_path / "bin" / name, f"#!/bin/sh\necho {name} >>{tmp_path}/started\nexit {code}\n")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "requirements.lock"):
        (tmp_path / name).touch()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"

    told = subprocess.run(["make", "-n", "lock"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert (0, "") == (told.returncode, told.stderr)
    assert "python3.11 -m venv --clear .venv" in told.stdout
    assert ["python3", "python3.11"] == (tmp_path / "started").read_text().split()
