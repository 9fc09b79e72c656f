# Kafka for tests, which is started when the first test wants it: 4 s, 250 MB and a processor.
#
# - `kafka`: one server for all processes of a run; each test takes topics of its own (`topic_name()`). It outlives the
#   process that has started it, and ends with the last one that uses it (tests/kafka_keeper.py).
# - `own_kafka`: a server of this process, for tests that kill it or stop it. It serves again for the next test.
import fcntl
import os
import runpy
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import ROOT

SERVER: Final = runpy.run_path(str(ROOT / "deploy" / "kafka" / "server.py"))
KEEPER: Final = ROOT / "tests" / "kafka_keeper.py"
KafkaServer: Any = SERVER["KafkaServer"]
KafkaError: Any = SERVER["KafkaError"]
free_port: Any = SERVER["free_port"]
HOST: Final[str] = SERVER["HOST"]


def topic_name() -> str:
    """A name that no other test has."""
    return f"weir.test.{uuid.uuid4().hex}"


@dataclass(frozen=True)
class SharedKafka:
    """The server of the run. Tests do not stop it: others use it."""

    address: str


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedKafka]:
    """A server that other tests use at the same time."""
    skip_without_java()
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with shared_kafka(folder / "kafka") as server:
        yield server


@contextmanager
def shared_kafka(folder: Path) -> Iterator[SharedKafka]:
    """The server in *folder*; it is started unless another process has started it, and ends with its last user."""
    folder.mkdir(exist_ok=True)
    address = folder / "address"
    with (folder / "users").open("a") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with (folder / "starting").open("a") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not address.exists():
                _start_keeper(folder)
        yield SharedKafka(address.read_text())


def _start_keeper(folder: Path) -> None:
    """Start a server that does not end with this process, and return when it serves."""
    with (folder / "keeper.log").open("w") as log:
        keeper = subprocess.Popen(
            [sys.executable, str(KEEPER), str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert keeper.stdout is not None
    with keeper.stdout:
        keeper.stdout.read()
    keeper.returncode = 0  # it ends when nobody is left to wait for it
    assert (folder / "address").exists(), (folder / "keeper.log").read_text()


@pytest.fixture(scope="session")
def kafka_of_the_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    skip_without_java()
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def own_kafka(kafka_of_the_process: Any) -> Iterator[Any]:
    """A server that a test may kill, stop and start again."""
    yield kafka_of_the_process
    if kafka_of_the_process.process.poll() is not None:
        kafka_of_the_process.start()
    kafka_of_the_process.go_on()


def skip_without_java() -> None:
    if shutil.which("java") is None or (shutil.which("mvn") is None and not SERVER["cache"]().is_dir()):
        pytest.skip("Kafka needs Java, and Maven to get it")
