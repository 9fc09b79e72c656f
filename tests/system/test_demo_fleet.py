# The modest clients of `weir demo`.
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cli.control_client import ControlClient
from cli.demo import FLEET, Demo
from supervisor.folder import NodeFolder

pytestmark = [pytest.mark.system, pytest.mark.weir_only("a matter of Weir's processes")]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as temporary:  # of a short name, as the path of a socket has to be
        yield Path(temporary)


def test_the_overload_begins_when_the_modest_clients_are_there(folder: Path) -> None:
    """The overload would keep them out, and the demo say that they go on."""
    with Demo(folder) as shown:
        shown.start_node()
        shown.start_fleet()
        with closing(ControlClient(NodeFolder("demo", str(folder / "node")))) as control:
            gauges = control.try_request("status")["totals"]["gauges"]

    assert 2 * FLEET == gauges.get("connected")
