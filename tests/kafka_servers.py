# Kafka for tests: one server for each process of pytest, which is started when the first test wants it.
#
# Starting one takes 4 s and 250 MB, so tests share it, and each takes topics of its own (`topic_name()`). With xdist
# each process has a server of its own: a shared one would have to outlive the process that started it, and another test
# might just have killed it. A test that kills or stops the server leaves it to the fixture to have it serve again.
import runpy
import shutil
import uuid
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.conftest import ROOT

SERVER: Final = runpy.run_path(str(ROOT / "deploy" / "kafka" / "server.py"))
KafkaServer: Any = SERVER["KafkaServer"]
KafkaError: Any = SERVER["KafkaError"]
free_port: Any = SERVER["free_port"]
HOST: Final[str] = SERVER["HOST"]


def topic_name() -> str:
    """A name that no other test has."""
    return f"weir.test.{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def kafka_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that all tests of this process use."""
    if shutil.which("java") is None or (shutil.which("mvn") is None and not SERVER["cache"]().is_dir()):
        pytest.skip("Kafka needs Java, and Maven to get it")
    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def kafka(kafka_of_the_run: Any) -> Iterator[Any]:
    """A server that serves; a test may kill it, stop it and start it again."""
    yield kafka_of_the_run
    if kafka_of_the_run.process.poll() is not None:
        kafka_of_the_run.start()
    kafka_of_the_run.go_on()
