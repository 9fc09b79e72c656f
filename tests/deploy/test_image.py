# deploy/Dockerfile: there is no Docker on the machines of the tests, so each instruction is looked at, and the commands
# of the stage that builds are executed in a folder with what it copies.
import fnmatch
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from broker.config.schema import Config
from cli.dashboard import PORT as DASHBOARD_PORT
from supervisor.folder import NodeFolder
from tests.conftest import ROOT
from tests.deploy.files import DOCKERFILE, USER, options

NOT_HERE: Final = ("apt-get ", "useradd ")  # what changes the machine
INSTALLED: Final = "/opt/weir"


def instructions() -> Iterator[tuple[str, str]]:
    """(instruction, the rest of its line), with lines that go on joined."""
    text = re.sub(r"\\\n\s*", "", DOCKERFILE.read_text())
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, the one that it begins with first."""
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for word, rest in instructions():
        if word == "FROM":
            _, _, name = rest.partition(" AS ")
            assert name not in found
            found[name] = []
        if name:
            found[name].append((word, rest))
    return found


def copied(stage: list[tuple[str, str]]) -> list[tuple[list[str], str]]:
    """(sources, target) of what *stage* copies from the folder of the repository."""
    found = []
    for word, rest in stage:
        if word == "COPY" and not rest.startswith("--"):
            *sources, target = rest.split()
            found.append((sources, target))
    return found


def let_in(path: str) -> bool:
    """Whether .dockerignore lets *path* into the build."""
    verdict = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = line.removeprefix("!")
            if fnmatch.fnmatch(path, pattern):
                verdict = line.startswith("!")
    return verdict


def test_all_that_is_copied_exists_and_is_let_in() -> None:
    """The build would end with an error, after minutes or at once."""
    sources = [source for stage in stages().values() for found, _ in copied(stage) for source in found]
    assert len(sources) >= 10
    assert [] == [source for source in sources if not (ROOT / source).exists() or not let_in(source)]
    assert not any(map(let_in, (".venv", ".git", "deploy/kubernetes", "tests", "cluster.key")))


def test_stages_are_built_on_those_before() -> None:
    """The build would end with an error; or a compiler would be in the image."""
    found = stages()
    seen: list[str] = []
    for name, stage in found.items():
        (_, base), *rest = stage
        base = base.partition(" ")[0]
        assert base in seen or base.startswith("python:")
        for word, text in rest:
            if word == "COPY" and text.startswith("--from="):
                assert text.removeprefix("--from=").partition(" ")[0] in seen
        seen.append(name)
    assert "broker" == seen[-1]  # what `docker build` makes without --target
    for name in ("broker", "analysis"):
        assert found[name][0][1] == f"base AS {name}"
        assert ("USER", f"{USER}:{USER}") in found[name]
        assert found[name].index(("USER", f"{USER}:{USER}")) > max(
            number for number, (word, _) in enumerate(found[name]) if word in ("RUN", "COPY")
        )


def test_what_the_image_executes_is_weirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container would end at once; or `weir status` would not find its node."""
    found = stages()
    base, analysis = dict(found["base"]), dict(found["analysis"])
    assert '["weir"]' == base["ENTRYPOINT"]
    for command in (base["CMD"], analysis["CMD"]):
        options(re.findall(r'"([^"]+)"', command))
    config = Config()
    listeners = [getattr(config.listeners, name) for name in ("tcp", "tls", "ws", "wss")]
    ports = [*(one.port for one in listeners), config.admin.port, DASHBOARD_PORT]
    assert [*map(str, ports)] == base["EXPOSE"].split()
    environment = dict(one.split("=") for one in base["ENV"].split())
    monkeypatch.setenv("XDG_STATE_HOME", environment["XDG_STATE_HOME"])
    monkeypatch.setattr(os, "geteuid", lambda: USER)
    assert base["WORKDIR"] == str(NodeFolder("weir").path.parent) and base["WORKDIR"] in base["RUN"]
    assert f"--uid {USER} " in base["RUN"]


def test_extras_and_the_version_of_python_are_there() -> None:
    """The image would lack the dashboard, or have a Python that nobody has tested."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = DOCKERFILE.read_text()
    extras = {extra for found in re.findall(r"\[([a-z,]+)\]\"", text) for extra in found.split(",")}
    assert {"analytics", "dashboard", "embedded", "kafka"} == extras == set(project["optional-dependencies"])
    (version,) = re.findall(r"with Python (\d+\.\d+)", (ROOT / "requirements.lock").read_text())
    assert f"ARG PYTHON={version}-slim-" in text


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["build", "build-analysis"])
def test_a_stage_builds(stage: str, tmp_path: Path) -> None:
    """The image could not be built, or not be used: what a clean environment lacks is found only there."""
    folder, installed = tmp_path / "src", tmp_path / "installed"
    folder.mkdir()
    found = stages()
    whole = found["build"] + (found[stage][1:] if stage != "build" else [])
    environment = {"PATH": f"{Path(sys.executable).resolve().parent}{os.pathsep}{os.environ['PATH']}"}
    environment |= {"HOME": str(tmp_path), "WEIR_OPTIMIZE": "0", "PYTHON": str(Path(sys.executable).resolve())}
    for word, text in whole:
        if word == "ARG":
            name, _, value = text.partition("=")
            environment[name] = value
        elif word == "COPY" and not text.startswith("--"):
            *sources, target = text.split()
            for source in sources:
                copy(ROOT / source, folder / target, into=target.endswith("/"))
        elif word == "RUN" and not text.startswith(NOT_HERE):
            command = text.replace(INSTALLED, str(installed)).replace("/opt/cache", str(tmp_path / "cache"))
            ran = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
            assert 0 == ran.returncode, f"{command}\n{ran.stdout[-4000:]}{ran.stderr[-4000:]}"

    weir = subprocess.run([installed / "bin" / "weir", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert "(compiled" in weir.stdout
    if stage != "build":
        assert [*(tmp_path / "cache").rglob("*.jar")]


def copy(source: Path, target: Path, into: bool) -> None:
    """As COPY does: a folder's content, or a file. *into*: *target* is a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    if into:
        target.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
