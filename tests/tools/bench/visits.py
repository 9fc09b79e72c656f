# What an honest client does beside an attack, again and again: it logs in, or asks whether the node is healthy.
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from broker.auth.passwords import hash_password
from broker.mqtt.packets import V5, ConnAck, Connect
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.system.addresses import Address
from tests.system.processes import HOST
from tests.system.raw import RawClient
from tests.system.websocket import WebSocket
from tests.tools.fuzz.transports import trusting_context

USER: Final = "honest"
PASSWORD: Final = b"the right one"
ITERATIONS: Final = 210_000  # as `weir passwd` writes them
EXPIRY: Final = 60  # seconds of a persistent session
TIMEOUT: Final = 5.0  # seconds: a visit that takes longer has failed
PAUSE: Final = 0.05  # seconds between two visits

_numbers = count()


@dataclass
class Visits:
    """How the visits went."""

    failed: int = 0
    why: str = ""  # the last one failed
    took: list[float] = field(default_factory=list)  # seconds, of those that succeeded

    def p99_ms(self) -> float:
        return statistics.quantiles(self.took, n=100)[98] * 1e3 if len(self.took) > 1 else 0.0


def password_file(folder: Path) -> Path:
    """A password file with the honest user."""
    file = folder / "passwords"
    file.write_text(f"{USER}:{hash_password(PASSWORD, bytes(12), ITERATIONS)}\n")
    return file


@contextmanager
def visiting(kind: str, ports: Mapping[str, int]) -> Iterator[Visits]:
    """Visits of *kind* in a thread as long as this scope lasts; none if *kind* is ""."""
    visits, over = Visits(), threading.Event()
    if not kind:
        yield visits
        return
    visit = KINDS[kind]

    def go_on() -> None:
        while not over.wait(PAUSE):
            began = time.monotonic()
            try:
                visit(ports)
            except (AssertionError, OSError, IndexError) as error:
                visits.failed += 1
                visits.why = str(error) or type(error).__name__
            else:
                visits.took.append(time.monotonic() - began)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield visits
    finally:
        over.set()
        thread.join()


def _tcp(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=TIMEOUT)


def _log_in(client: RawClient, connect: Connect) -> None:
    try:
        client.send(connect)
        answer = client.expect(ConnAck)
        assert answer.code == 0, f"CONNACK {answer.code:#x}"
    finally:
        client.close()


def _connect(user: str | None = None, password: bytes | None = None) -> Connect:
    return Connect(V5, f"visitor-{next(_numbers)}", True, 60, user, password)


def _password(ports: Mapping[str, int]) -> None:
    _log_in(RawClient(0, V5, _tcp(ports["tcp"])), _connect(USER, PASSWORD))


def _persistent(ports: Mapping[str, int]) -> None:
    connect = _connect()
    connect.properties = {SESSION_EXPIRY_INTERVAL: EXPIRY}
    _log_in(RawClient(0, V5, _tcp(ports["tcp"])), connect)


def _tls(ports: Mapping[str, int]) -> None:
    encrypted = trusting_context().wrap_socket(_tcp(ports["tls"]), server_hostname="localhost")
    _log_in(RawClient(0, V5, encrypted), _connect())


def _ws(ports: Mapping[str, int]) -> None:
    websocket = WebSocket(Address("ws", ports["ws"], Path()))
    websocket.settimeout(TIMEOUT)
    _log_in(RawClient(0, V5, websocket), _connect())


def _health(ports: Mapping[str, int]) -> None:
    with _tcp(ports["admin"]) as connection:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 200"), "no answer"


KINDS: Final[dict[str, Callable[[Mapping[str, int]], None]]] = {
    "password": _password,
    "persistent": _persistent,
    "tls": _tls,
    "ws": _ws,
    "health": _health,
}
