from collections.abc import Iterator
from pathlib import Path

import pytest

import broker as broker_package
from tests.system.processes import BrokerProcess, free_port, start_weir


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A node in the foreground, that tests leave running."""
    assert broker_package.__file__ is not None
    folder = tmp_path_factory.mktemp("node")
    process = start_weir(free_port(), folder, {"log.format": "json"}, Path(broker_package.__file__).parent.parent)
    yield process
    assert 0 == process.terminate()


@pytest.fixture
def folder(running: BrokerProcess) -> str:
    assert running.control is not None
    return str(running.control.parent)
