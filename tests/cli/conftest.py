from collections.abc import Iterator

import pytest

from tests.system.processes import BrokerProcess, free_port, packages, start_weir


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node in the foreground, that tests leave running."""
    folder = tmp_path_factory.mktemp("node")
    process = start_weir(free_port(), folder, {"log.format": "json"}, packages())
    yield process
    assert 0 == process.terminate()


@pytest.fixture
def folder(running: BrokerProcess) -> str:
    assert running.control is not None
    return str(running.control.parent)
