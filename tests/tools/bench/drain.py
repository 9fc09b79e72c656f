# A node that is drained under load, and a node that dies with many clients: what the clients of the other node notice.
#
# The drain: half of the clients publish with QoS 1 and half have stored sessions, in pairs, all at the first of two
# nodes. A client goes where the server reference says, and a publisher sends again what was not acknowledged. At the
# end each message that was acknowledged has to be there.
#
# What clients of the second node notice is measured by pairs in processes of their own, from when a message was due:
# some with stored sessions, which need the store, and some without. Pairs in the process of the load would measure how
# late that process is itself, too: it connects hundreds of clients a second meanwhile. The load is a program in C, as
# two nodes, their server and the witnesses need most of two processors without it.
#
# The death: many idle clients are at the first node, which is killed. All of them connect to the second node at once,
# while a pair is there. They are several processes, as each has a limit of descriptors.
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.redis_servers import SERVERS, RunningRedis
from tests.system import node
from tests.system.processes import HOST, BrokerProcess, free_port
from tests.tools.bench.contenders import Bench, beside, build_tool
from tests.tools.bench.cost import cpu_seconds
from tests.tools.bench.hostile import RATE
from tests.tools.bench.scale import swarm
from tests.tools.bench.table import markdown, number

CLIENTS: Final = 2000
MESSAGES: Final = 20_000  # a second, in all
WITNESSES: Final = 20  # pairs of each kind at the other node,
EACH: Final = 1000  # with so many messages a second
BEFORE: Final = 3.0  # seconds of load before the drain, and after it
LONGEST: Final = 120.0  # seconds at most until the node is drained, and until nothing is under way any more
LOOK: Final = 0.2  # seconds between two looks at the drain
MOST_P99_MS: Final = 50.0  # of the witnesses
START: Final = 60.0  # seconds at most until a node serves
SWARMS: Final = 4
DEATH_P99_MS: Final = 100.0
DEATH_LONGEST: Final = 60.0  # seconds until everybody is back
QUICK_SHARE: Final = 20


class Clients:
    """A process that prints a line when its clients are connected, begins with a line, and ends with its findings."""

    def __init__(self, *command: object) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(list(map(str, command)), stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline(), "the clients cannot connect"

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process.pid)

    def end(self) -> dict[str, Any]:
        """Publish no more; what was found."""
        found: dict[str, Any] = json.loads(self._process.communicate(timeout=LONGEST)[0])
        return found


def _movers(bench: Bench, nodes: list[BrokerProcess], pairs: int, rate: int) -> Clients:
    """All clients of the drain (movers.c): at the first of two nodes, until the broker sends them to another."""
    tool = build_tool("movers", bench.folder, bench.tls)
    return Clients(tool, "--pairs", pairs, "--rate", rate, "--ports", ",".join(str(one.port) for one in nodes))


def measure(bench: Bench, clients: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """Tables, and every single result. *clients* connect to the second node when the first one dies."""
    share = QUICK_SHARE if quick else 1
    with _nodes(bench, 1) as nodes:
        drained = _drain(bench, nodes, CLIENTS // share, MESSAGES // share)
    print("... the drain", flush=True)
    with _nodes(bench, 2) as nodes:
        died = _death(bench, nodes, clients)
    rows = [
        ["acknowledged", drained["acknowledged"], ""],
        ["of them lost", drained["lost"], 0],
        ["delivered twice", drained["doubled"], ""],
        ["seconds of the drain", number(drained["seconds"]), ""],
        ["clients that followed a reference", drained["moved"], ""],
        ["ends without one, by code", json.dumps(drained["refused"]), ""],
        ["never acknowledged", drained["open"], ""],
        ["longest without a connection, s", number(drained["longest_s"]), ""],
        ["p99 at the other node, ms", number(drained["p99_ms"]), MOST_P99_MS],
        ["p99 there of stored sessions, ms", number(drained["stored_p99_ms"]), MOST_P99_MS],
        ["both before the drain", f"{number(drained['p99_before_ms'])}, {number(drained['stored_p99_before_ms'])}", ""],
        ["processors that are busy", number(drained["busy"]), os.cpu_count()],
        ["of them with these clients", number(drained["own"]), ""],
    ]
    pair = died["pair"]
    death: list[list[object]] = [
        [clients, number(died["seconds"]), DEATH_LONGEST, number(pair["p99_us"] / 1e3), DEATH_P99_MS]
    ]
    header = ["reconnects after a death", "all back, s", "at most", "p99 of a pair, ms", "at most"]
    tables = f"{markdown(['drain', '', 'at most'], rows)}\n\n{markdown(header, death)}"
    return f"\n{tables}", {"drain": drained, "death": died}


@contextmanager
def _nodes(bench: Bench, workers: int) -> Iterator[list[BrokerProcess]]:
    """Two nodes that share a server, and say how clients reach them."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    server = RunningRedis(SERVERS[-1], folder / "redis")
    try:
        with ExitStack() as stack:
            nodes = []
            for _ in range(2):
                port = free_port()
                settings: dict[str, object] = {"redis.url": f"unix://{server.socket}"}
                settings |= {"limits.connects_per_second": 1_000_000, "store.durability": "process"}
                settings |= {"node.reference": f"{HOST}:{port}"}
                nodes.append(stack.enter_context(bench.weir(workers=workers, more=settings, port=port, patience=START)))
            yield nodes
    finally:
        server.end()
        shutil.rmtree(folder)


def _pairs(bench: Bench, weir: BrokerProcess, name: str, stored: bool) -> Clients:
    """Pairs at a node, with stored sessions or without, whose delays are measured once they have begun."""
    command = [bench.mqload, "--pubs", WITNESSES, "--qos", 1, "--rate", EACH, "--live", "--v5"]
    command += ["--prefix", f"{name}-{stored}", "--port", weir.port, "--maxsec", 300, "--count", 10_000_000]
    return Clients(*command, *(["--persistent"] if stored else []))


@contextmanager
def _witnesses(bench: Bench, weir: BrokerProcess, name: str) -> Iterator[list[float]]:
    """The p99 in ms at *weir* within this scope, without stored sessions and with."""
    p99: list[float] = []
    both = [_pairs(bench, weir, name, stored) for stored in (False, True)]
    for one in both:
        one.begin()
    yield p99
    p99 += [float(one.end()["p99_us"]) / 1e3 for one in both]


def _processor_seconds() -> float:
    """Of all processes of this machine since it was started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def _drain(bench: Bench, nodes: list[BrokerProcess], clients: int, rate: int) -> dict[str, Any]:
    first, second = nodes
    control = _control(first)
    movers = _movers(bench, nodes, clients // 2, rate)
    movers.begin()
    with _witnesses(bench, second, "before") as before:
        time.sleep(BEFORE)
    name = node.status(control)["node"]
    with _witnesses(bench, second, "during") as during:
        began, used, own = time.perf_counter(), _processor_seconds(), movers.cpu_seconds()
        node.ask(control, "drain", node=name, force=False)
        while node.ask(control, "drain_progress", node=name)["state"] != "drained":
            assert time.perf_counter() - began < LONGEST, "the node is not drained"
            time.sleep(LOOK)
        seconds = time.perf_counter() - began
        time.sleep(BEFORE)  # the last ones have been sent away, not let in
        elapsed = time.perf_counter() - began
        busy, own = (_processor_seconds() - used) / elapsed, (movers.cpu_seconds() - own) / elapsed
    return {
        **movers.end(),
        "seconds": seconds,
        "p99_ms": during[0],
        "stored_p99_ms": during[1],
        "p99_before_ms": before[0],
        "stored_p99_before_ms": before[1],
        "busy": busy,
        "own": own,
    }


def _death(bench: Bench, nodes: list[BrokerProcess], clients: int) -> dict[str, Any]:
    first, second = nodes
    each = clients // SWARMS
    command = [str(bench.mqload), "--pubs", "1", "--qos", "1", "--rate", str(RATE), "--prefix", "pair"]
    command += ["--count", str(RATE * 5), "--port", str(second.port), "--maxsec", "120"]
    with ExitStack() as stack:
        _arrive(bench, stack, first, each)
        for pid in [first.pid, *node.worker_pids(_control(first))]:
            os.kill(pid, signal.SIGKILL)
        pair = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        seconds = _arrive(bench, stack, second, each)
        found: dict[str, Any] = json.loads(pair.communicate()[0])
    return {"seconds": seconds, "pair": found}


def _arrive(bench: Bench, stack: ExitStack, weir: BrokerProcess, each: int) -> float:
    """Seconds until SWARMS times *each* clients are connected, which stay."""
    began = time.monotonic()
    swarms = [
        stack.enter_context(beside(swarm(bench, weir, "idle", count=each, window=each, first=each * number)))
        for number in range(SWARMS)
    ]
    for one in swarms:
        assert one.stdout is not None and one.stdout.readline(), "not all clients could connect"
    return time.monotonic() - began


def _control(weir: BrokerProcess) -> Path:
    assert weir.control is not None
    return weir.control
