# The broker that is fuzzed: a process of its own, of the package that these tests import.
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.system.processes import BrokerProcess, free_port, packages, start_weir
from tests.tools.bench.contenders import make_certificate
from tests.tools.fuzz.campaign import SETTINGS
from tests.tools.fuzz.transports import Transport

LOG_TAIL: Final = 8000  # characters of the log that are shown of a broker that ended badly


@contextmanager
def victim(folder: Path, transport: str) -> Iterator[tuple[BrokerProcess, Transport]]:
    """A Weir with *transport* beside TCP; AssertionError if it does not end with 0."""
    folder.mkdir(parents=True, exist_ok=True)
    port, fuzzed = free_port(), free_port()
    settings = SETTINGS if transport == "tcp" else SETTINGS | listening(folder, transport, fuzzed)
    broker = start_weir(port, folder, settings, packages())
    try:
        yield broker, Transport(transport, port if transport == "tcp" else fuzzed)
    finally:
        code = broker.terminate()
    assert code == 0, f"the broker ended with {code}:\n{broker.log_text()[-LOG_TAIL:]}"


def listening(folder: Path, transport: str, port: int) -> dict[str, object]:
    """The settings of one more listener."""
    settings: dict[str, object] = {
        f"listeners.{transport}.enabled": "true",
        f"listeners.{transport}.host": "127.0.0.1",
        f"listeners.{transport}.port": port,
    }
    if transport in ("tls", "wss"):
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        make_certificate(certificate, key)
        settings |= {"tls.certificate": certificate, "tls.key": key}
    return settings
