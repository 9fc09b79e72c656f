# Tests of the whole program, from outside: real processes, real sockets, other people's clients.
#
# One broker serves the whole run; a test keeps out of the others' way by names of its own (fixture `name`). Who
# needs other settings starts another one with `start_weir`, and so does who looks for a line in the log: in the one
# of the whole run a client's port may have been another's before, and the limit of lines a second leaves lines out.
# With WEIR_SYSTEM_WORKERS=4 each Weir has four workers, and clients land on any of them.
# With WEIR_SYSTEM_NODES=2 that broker is two nodes that share a Redis, and clients reach any of them.
# With WEIR_SYSTEM_BROKER=mosquitto the same tests run against Mosquitto 2.0: what fails there is a wrong test or is
# marked `weir_only` with the reason.
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system import processes
from tests.system.addresses import TRANSPORTS, Address, Transport
from tests.system.balanced_nodes import ClusterProcess
from tests.system.certificates import Authority, Certificate
from tests.system.nodes import Node, StartNode, end_and_check
from tests.system.processes import HOST, BrokerProcess, free_port, packages
from tests.system.raw import RawClient

HERE: Final = Path(__file__).parent
NODES: Final = int(os.environ.get("WEIR_SYSTEM_NODES", "1"))  # of the broker of the whole run
MOSQUITTO: Final = os.environ.get("WEIR_SYSTEM_BROKER") == "mosquitto"
# Files whose tests choose the number of workers, or need a node with one.
OWN_WORKERS: Final = tuple(
    f"test_{name}"
    for name in (
        "applications",
        "backbone",
        "bench",
        "carrier",
        "client_limits",
        "cluster",
        "demo",
        "durability",
        "durable_node",
        "load",
        "node",
        "overload_",
        "quotas",
        "simulate",
        "why",
    )
)
LOG_TAIL: Final = 8000  # characters of a broker's log that a failed test shows
RUNNING: Final[list[BrokerProcess]] = []


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "weir_only(reason): Mosquitto 2.0 does not do this")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so shells start what runs in their background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # and so would all that we start


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.system)
            if not item.path.name.startswith(OWN_WORKERS):
                item.add_marker(pytest.mark.any_workers)


def pytest_runtest_setup(item: pytest.Item) -> None:
    mark = item.get_closest_marker("weir_only")
    if MOSQUITTO and mark is not None:
        pytest.skip(f"Mosquitto: {mark.args[0]}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy sends its Result into the generator
    if report.failed:
        for running in RUNNING:
            report.sections.append((f"log of the broker on port {running.port}", running.log_text()[-LOG_TAIL:]))


def stop_and_check(process: BrokerProcess) -> None:
    """However the tests treated it, a broker ends with 0 and has not logged an error of its own."""
    code = process.terminate()
    log = process.log_text()
    RUNNING.remove(process)
    assert 0 == code, log[-LOG_TAIL:]
    assert "Traceback" not in log, log[-LOG_TAIL:]


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[StartNode]:
    """Starts nodes, all in one folder, and ends them."""
    started: list[Node] = []

    def start(workers: int = 1, port: int = 0, **settings: Any) -> Node:
        started.append(Node(tmp_path, workers, port, **settings))
        return started[-1]

    yield start
    end_and_check(started)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def certificate(authority: Authority) -> Certificate:
    """The broker's."""
    return authority.server()


@pytest.fixture(scope="session")
def addresses(authority: Authority) -> dict[Transport, Address]:
    """Where the broker of the whole run listens."""
    return {transport: Address(transport, free_port(), authority.path) for transport in TRANSPORTS}


@pytest.fixture(scope="session")
def broker(
    tmp_path_factory: pytest.TempPathFactory, addresses: dict[Transport, Address], certificate: Certificate
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    port = addresses["tcp"].port
    if MOSQUITTO:
        process = processes.start_mosquitto(port, folder, mosquitto_listeners(addresses, certificate))
    elif NODES > 1:
        process = launch_cluster(folder, addresses, certificate)
    else:
        process = launch_weir(port, folder, weir_listeners(addresses, certificate))
    RUNNING.append(process)
    yield process
    stop_and_check(process)


def launch_cluster(folder: Path, addresses: dict[Transport, Address], certificate: Certificate) -> BrokerProcess:
    """Nodes that share a Redis, behind *addresses*."""
    transports: list[Transport] = ["tcp", *(each for each in addresses if each != "tcp")]

    def listeners(ports: Sequence[int]) -> dict[str, object]:
        own = {each: addresses[each]._replace(port=port) for each, port in zip(transports, ports, strict=True)}
        return weir_listeners(own, certificate)

    return ClusterProcess(folder, NODES, [addresses[each].port for each in transports], launch_weir, listeners)


def weir_listeners(addresses: dict[Transport, Address], certificate: Certificate) -> dict[str, object]:
    """Settings for the listeners beside TCP's."""
    settings: dict[str, object] = {}
    for transport, address in addresses.items():
        if transport != "tcp":
            settings[f"listeners.{transport}.enabled"] = "true"
            settings[f"listeners.{transport}.port"] = address.port
        if address.encrypted:
            settings |= {"tls.certificate": certificate.chain, "tls.key": certificate.key}
    return settings


def mosquitto_listeners(addresses: dict[Transport, Address], certificate: Certificate) -> str:
    lines = ["user root"]  # or, started by root, it becomes somebody who may not read our certificates
    for transport, address in addresses.items():
        if transport != "tcp":
            lines.append(f"listener {address.port} {HOST}")
        if address.websocket:
            lines.append("protocol websockets")
        if address.encrypted:
            lines += [f"certfile {certificate.chain}", f"keyfile {certificate.key}"]
    return "".join(f"{line}\n" for line in lines)


def launch_weir(
    port: int, folder: Path, settings: dict[str, object], environment: dict[str, str] | None = None
) -> BrokerProcess:
    return processes.start_weir(port, folder, settings, packages(), environment)


@pytest.fixture
def port(broker: BrokerProcess) -> int:
    return broker.port


@pytest.fixture
def start_weir(tmp_path: Path) -> Iterator[Callable[..., BrokerProcess]]:
    """A function that starts one more Weir with these settings; it is stopped and checked after the test.

    *environment*: variables that it has beside ours.
    """
    started: list[BrokerProcess] = []

    def start(
        settings: dict[str, object], *, port: int = 0, environment: dict[str, str] | None = None
    ) -> BrokerProcess:
        process = launch_weir(port or free_port(), tmp_path, settings, environment)
        started.append(process)
        RUNNING.append(process)
        return process

    yield start
    for process in started:
        stop_and_check(process)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, fit for topics and for client ids."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")


@pytest.fixture
def dial(port: int) -> Iterator[Callable[..., RawClient]]:
    """Opens raw clients, RawClient(port, ...), that are closed after the test."""
    clients: list[RawClient] = []

    def open_client(version: int = 5, *, port: int = port) -> RawClient:
        client = RawClient(port, version)
        clients.append(client)
        return client

    yield open_client
    for client in clients:
        client.close()
