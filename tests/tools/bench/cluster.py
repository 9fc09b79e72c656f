# What a message costs that goes from one node to another: nodes of one worker that share a Valkey, on this machine.
#
# The publishers are at the first node and the subscribers at the last one, so every message crosses; CPU counts of all
# nodes and of the server that they share. The fan-out has its subscribers at all nodes in equal parts, beside the same
# subscribers at one node: what it may cost more is the copies for the other nodes.
#
# A takeover begins with the CONNECT at a node where the client is not, with so many of its messages in flight.
import math
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.redis_servers import SERVERS, RunningRedis
from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench, run_tool
from tests.tools.bench.table import markdown, number
from tests.tools.bench.takeover import EACH, MESSAGES, Comer, percentile, publish, subscriber

TEN: Final = ("--pattern", "p2p", "--pubs", "10", "--qos", "1")
FANOUT: Final = ("--pattern", "fanout", "--pubs", "1", "--subs", "510", "--qos", "0", "--window", "100")
MOST_US: Final = 2.5  # for a message that crosses
MOST_P50_MS: Final = 1.5
MOST_P99_MS: Final = 8.0
FANOUT_SHARE: Final = 0.9  # of the rate of one node
TAKEOVER_P99_MS: Final = 25.0
NODES: Final = 3
QUICK_SHARE: Final = 20


class ClusterLoad(NamedTuple):
    name: str
    options: tuple[str, ...]  # of mqload
    publishes: int
    nodes: Sequence[int]  # of the subscribers; the publishers are at node 0


LOADS: Final = (
    ClusterLoad("10 pairs w100, one node", (*TEN, "--window", "100"), 1_000_000, (0,)),
    ClusterLoad("10 pairs w100, across", (*TEN, "--window", "100"), 1_000_000, (1,)),
    ClusterLoad("10 000 a second, one node", (*TEN, "--rate", "10000"), 100_000, (0,)),
    ClusterLoad("10 000 a second, across", (*TEN, "--rate", "10000"), 100_000, (1,)),
    ClusterLoad("1 to 510, one node", FANOUT, 10_000, (0,)),
    ClusterLoad("1 to 510, over three nodes", FANOUT, 10_000, (0, 1, 2)),
)


def measure(bench: Bench, runs: int, takeovers: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """Tables, and every single result. The median of *runs* counts; loads take turns."""
    results: dict[str, Any] = {load.name: [] for load in LOADS}
    with _cluster(bench, NODES) as (server, nodes):
        for run in range(-1, runs):  # the first one warms up
            for load in LOADS:
                found = _run(bench, load, server, nodes, f"r{run}", quick or run < 0)
                if run >= 0:
                    results[load.name].append(found)
            print(f"... run {run + 1} of {runs}", flush=True)
        results["takeover_ms"] = taken = _takeovers(nodes, math.ceil(takeovers / EACH))
    rows = [_row(load, results[load.name]) for load in LOADS]
    head = ["load", "us of CPU", "deliveries a second", "p50 ms", "p99 ms"]
    verdicts = "\n".join(_verdicts(results))
    p50, p99 = percentile(taken, 50), percentile(taken, 99)
    moved = [[len(taken), number(p50), number(p99), TAKEOVER_P99_MS, _verdict(p99 <= TAKEOVER_P99_MS)]]
    table = markdown([f"takeovers with {MESSAGES} in flight", "p50 ms", "p99 ms", "at most", ""], moved)
    return f"\n{markdown(head, rows)}\n\n{verdicts}\n\n{table}", results


@contextmanager
def _cluster(bench: Bench, count: int) -> Iterator[tuple[RunningRedis, list[BrokerProcess]]]:
    """A server of the newest version, and *count* nodes of one worker that share it."""
    folder = Path(tempfile.mkdtemp(dir=bench.folder))
    server = RunningRedis(SERVERS[-1], folder / "redis")
    try:
        with ExitStack() as stack:
            nodes = []
            for _ in range(count):
                settings: dict[str, object] = {"redis.url": f"unix://{server.socket}"}
                settings |= {"limits.connects_per_second": 1_000_000, "store.durability": "process"}
                nodes.append(stack.enter_context(bench.weir(more=settings)))
            yield server, nodes
    finally:
        server.end()
        shutil.rmtree(folder)


def _run(
    bench: Bench, load: ClusterLoad, server: RunningRedis, nodes: list[BrokerProcess], prefix: str, brief: bool
) -> dict[str, Any]:
    count = load.publishes // QUICK_SHARE if brief else load.publishes
    ports = ",".join(str(nodes[each].port) for each in load.nodes)
    pids = ",".join(str(pid) for pid in (server.process.pid, *(node.pid for node in nodes)))
    command = [str(bench.mqload), *load.options, "--prefix", prefix, "--count", str(count)]
    return run_tool([*command, "--port", str(nodes[0].port), "--sub-ports", ports, "--pids", pids])


def _takeovers(nodes: list[BrokerProcess], sessions: int) -> list[float]:
    """Milliseconds of each takeover, to and fro between two nodes."""
    clients = [subscriber(nodes[0], f"taken-{each}", MESSAGES) for each in range(sessions)]
    publish(nodes[0], MESSAGES)
    for client in clients:
        client.read(MESSAGES)
    taken: list[float] = []
    for turn in range(EACH):
        for each, client in enumerate(clients):
            comer = Comer(nodes[(turn + 1) % 2].port)
            answer, seconds = comer.connect(f"taken-{each}", MESSAGES)
            assert answer is not None and answer.session_present, answer
            taken.append(1000 * seconds)
            comer.read(MESSAGES)
            client.close()
            clients[each] = comer
    for client in clients:
        client.close()
    return taken


def _row(load: ClusterLoad, found: list[dict[str, Any]]) -> list[str]:
    cost, rate, p50, p99 = (_median(found, key) for key in ("broker_cpu_us_per_rx", "rx_per_s", "p50_us", "p99_us"))
    return [load.name, number(cost), number(rate), number(p50 / 1e3), number(p99 / 1e3)]


def _verdicts(results: dict[str, Any]) -> Iterator[str]:
    across = results["10 pairs w100, across"]
    cost = _median(across, "broker_cpu_us_per_rx")
    yield f"- across: {number(cost)} us, at most {MOST_US}: {_verdict(cost <= MOST_US)}"
    slow = results["10 000 a second, across"]
    p50, p99 = _median(slow, "p50_us") / 1e3, _median(slow, "p99_us") / 1e3
    fine = p50 <= MOST_P50_MS and p99 <= MOST_P99_MS
    yield f"- across at 10 000 a second: {number(p50)} and {number(p99)} ms, at most 1.5 and 8: {_verdict(fine)}"
    one, three = (
        _median(results[name], "broker_cpu_us_per_rx") for name in ("1 to 510, one node", "1 to 510, over three nodes")
    )
    yield (
        f"- fan-out: {number(one / three)} of the deliveries of one node for each second of CPU, at least "
        f"{FANOUT_SHARE}: {_verdict(one / three >= FANOUT_SHARE)}"
    )


def _median(found: list[dict[str, Any]], key: str) -> float:
    return statistics.median(float(each[key]) for each in found)


def _verdict(fine: bool) -> str:
    return "fine" if fine else "missed"
