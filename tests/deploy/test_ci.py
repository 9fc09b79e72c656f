# .ci/run, with a tree and commands that only pretend.
import os
import select
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.conftest import ROOT

PATIENCE: Final = 20.0  # seconds for what should take one
TOOLS: Final = (
    "mosquitto",
    "mosquitto_pub",
    "redis-server",
    "node",
    "npm",
    "chromium",
    "java",
    "mvn",
    "openssl",
    "apt-get",
)
MAKEFILE: Final = """
.venv/needs .venv/dev .venv/node/installed test:
	@true
lint:
	@read begun <compiling; exit 7
"""
# The build, and a compiler that would outlive it.
BUILD: Final = f"""#!/bin/sh
sleep {PATIENCE + 10:g} &
echo begun >compiling
wait
"""


def executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_a_run_that_fails_leaves_no_compiler_behind(tmp_path: Path) -> None:
    """A machine would compile for minutes what nobody waits for, beside the next run and its measurements."""
    for tool in TOOLS:
        executable(tmp_path / "bin" / tool, "#!/bin/sh\n")
    executable(tmp_path / ".venv" / "bin" / "python", BUILD)
    executable(tmp_path / "deploy" / "kafka" / "server.py", "")
    executable(tmp_path / "analytics" / "connector.py", "")
    (tmp_path / "Makefile").write_text(MAKEFILE)
    os.mkfifo(tmp_path / "compiling")
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    alive, held = os.pipe()  # each process of the run holds the other end
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    done = subprocess.run(
        [tmp_path / ".ci" / "run"], capture_output=True, text=True, timeout=PATIENCE, pass_fds=[held], env=environment
    )
    os.close(held)
    all_ended, _, _ = select.select([alive], [], [], PATIENCE / 4)
    os.close(alive)

    assert 2 == done.returncode, done.stderr  # of make
    assert "Error 7" in done.stderr
    assert [alive] == all_ended


def test_a_machine_that_cannot_have_kafka_is_told_at_once(tmp_path: Path) -> None:
    """The run would fail after a quarter of an hour, with a traceback of each test that needs Kafka."""
    for tool in TOOLS:
        executable(tmp_path / "bin" / tool, "#!/bin/sh\n")
    executable(tmp_path / ".venv" / "bin" / "python", "#!/bin/sh\n")
    (tmp_path / "Makefile").write_text(".venv/needs .venv/dev:\n\t@true\n")
    for file in (".ci/run", "deploy/kafka/server.py", "deploy/kafka/pom.xml", "analytics/maven.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "JAVA_HOME": ""}

    done = subprocess.run([tmp_path / ".ci" / "run"], capture_output=True, text=True, timeout=PATIENCE, env=environment)

    assert 1 == done.returncode, done.stderr
    assert "Kafka needs Java 17 or newer, and" in done.stderr  # this one says nothing
    assert "Traceback" not in done.stderr
