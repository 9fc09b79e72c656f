# What scenes of overload are made of: a node of several workers that tests may mislead about itself, clients on the
# worker that they are wanted on, and what its log says of when workers learned what.
import json
import math
import socket
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import count
from typing import Any, Final

from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, PingReq
from tests.system import node
from tests.system.processes import PATIENCE, BrokerProcess
from tests.system.raw import RawClient

PING: Final = PingReq()
PINGS: Final = encode(PING, V311) * 1000
StartWeir = Callable[..., BrokerProcess]
Line = dict[str, Any]

TESTED: Final = {"WEIR_TEST": "1"}  # variables of a node into which signals may be injected
ATTEMPTS: Final = 100  # connections until one is on the worker that was wanted
# Lines are what scenes look at, and none may be missing.
SETTINGS: Final[Mapping[str, object]] = {"node.workers": 2, "log.format": "json", "log.client_events_per_second": 1000}


def begin(start_weir: StartWeir, **settings: object) -> BrokerProcess:
    """A node of two workers; *settings* have __ where keys have a dot."""
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return start_weir({**SETTINGS, **given}, environment=TESTED)


def ask(weir: BrokerProcess, command: str, **arguments: object) -> Any:
    assert weir.control is not None
    return node.ask(weir.control, command, **arguments)


def inject(weir: BrokerProcess, worker: int, signal: str, value: float, seconds: float) -> None:
    """Have *worker* measure *value*, in the unit of the *signal*, for *seconds*."""
    ask(weir, "inject", worker=worker, signal=signal, value=value, seconds=seconds)


def totals(weir: BrokerProcess) -> dict[str, dict[str, Any]]:
    """What the node's workers have counted, as of the last second."""
    found: dict[str, dict[str, Any]] = ask(weir, "status")["totals"]
    return found


def levels(weir: BrokerProcess) -> list[int]:
    """By which level each worker goes, as of the last second."""
    told = [worker["statistics"] for worker in ask(weir, "status")["workers"]]
    return [one["overload"]["cluster_level"] if one else 0 for one in told]


def until(holds: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)  # between two looks at processes that are not ours


def lines(weir: BrokerProcess, event: str) -> list[Line]:
    """Those of the log that are whole, in their order."""
    whole = weir.log_text().rpartition("\n")[0]
    found = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
    return [line for line in found if line["event"] == event]


def seconds_of(line: Line) -> float:
    """When *line* was logged, in Unix time."""
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def reached(weir: BrokerProcess, worker: int, least: int, since: float) -> float:
    """When (Unix time) *worker* first said, after *since*, that the level is *least* or more; infinity: not yet."""
    return _first(weir, worker, since, lambda level: level >= least)


def calm(weir: BrokerProcess, worker: int, since: float) -> float:
    """When it first said, after *since*, that the level is 0 again; infinity: not yet."""
    return _first(weir, worker, since, lambda level: level == 0)


def _first(weir: BrokerProcess, worker: int, since: float, true: Callable[[int], bool]) -> float:
    for line in lines(weir, "overload_level_changed"):
        if line["worker"] == worker and seconds_of(line) >= since and true(line["reached"]):
            return seconds_of(line)
    return math.inf


class Clients:
    """Clients on the workers that they are wanted on. Close them all at the end."""

    def __init__(self, weir: BrokerProcess) -> None:
        self._weir = weir
        self._open: list[RawClient] = []
        self._numbers = count()

    def on(self, worker: int, name: str = "", *, version: int = V311, **options: Any) -> RawClient:
        """A client that is connected to *worker*; it is another client id if *name* is not given."""
        name = name or f"client-{next(self._numbers)}"
        for _ in range(ATTEMPTS):
            client = RawClient(self._weir.port, version)
            client.connect(name, **options)
            if ask(self._weir, "client", client=name)["worker"] == worker:
                self._open.append(client)
                return client
            client.disconnect()
        raise AssertionError(f"no connection comes to worker {worker}")

    def close(self) -> None:
        for client in self._open:
            client.close()


class Silent:
    """A client that pings as fast as it can, and reads no answer."""

    def __init__(self, port: int, name: str) -> None:
        client = RawClient(port, V311)
        client.connect(name)
        assert isinstance(client.socket, socket.socket)
        self._socket = client.socket
        self._socket.settimeout(0.0)
        self._pings = b""

    def ping(self) -> None:
        """Send what the kernel takes."""
        self._pings = self._pings or PINGS
        try:
            self._pings = self._pings[self._socket.send(self._pings) :]
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()
