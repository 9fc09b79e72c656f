# The broker that is fuzzed: a process of its own, of the package that these tests import.
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import broker as broker_package
from tests.fuzz.campaign import SETTINGS
from tests.fuzz.transports import Transport
from tests.system.processes import BrokerProcess, free_port, start_weir


@contextmanager
def victim(folder: Path, transport: str) -> Iterator[tuple[BrokerProcess, Transport]]:
    """A Weir with *transport*; AssertionError if it does not end with 0."""
    assert broker_package.__file__ is not None
    port = free_port()
    broker = start_weir(port, folder, SETTINGS, Path(broker_package.__file__).parent.parent)
    try:
        yield broker, Transport(transport, port)
    finally:
        code = broker.terminate()
    assert code == 0, f"the broker ended with {code}:\n{broker.log_text()[-8000:]}"
