# What the inbound backbone costs: publishes acknowledged a second, and CPU of all processes with Kafka for each.
#
# Ten publishers with a window of 100, QoS 1. Where nobody is subscribed a publish counts when it is acknowledged. With
# a subscriber for each publisher it counts when it has arrived, so what is measured is the whole way: into Kafka, out
# of it, and to the subscriber. The same loads without a backbone stand beside them.
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.kafka_servers import KafkaServer
from tests.system import node as requests
from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench, run_tool
from tests.tools.bench.table import markdown, number

BAR: Final = 100_000  # acknowledged a second
WORKERS: Final = 2
TEN: Final = ("--pattern", "p2p", "--pubs", "10", "--qos", "1", "--window", "100")
PATIENCE: Final = 60.0  # seconds for what waits in Kafka to be dispatched
QUICK_SHARE: Final = 20


class InboundLoad(NamedTuple):
    name: str
    options: tuple[str, ...]
    messages: int
    bar: int = 0  # a second, through the backbone


LOADS: Final = (
    InboundLoad("acknowledged", (*TEN, "--away"), 1_000_000, BAR),
    InboundLoad("delivered", TEN, 500_000),
    InboundLoad("delivered at 10 000 a second", (*TEN[:6], "--rate", "10000"), 50_000),
)


def measure(bench: Bench, runs: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """A table, and every single result. The median of *runs* counts."""
    server: Any = KafkaServer(Path(bench.folder, "kafka"), quick=False)
    server.start()
    rows: list[list[str]] = []
    results: dict[str, Any] = {}
    try:
        for backbone in (True, False):
            with _node(bench, server, backbone) as broker:
                for load in LOADS:
                    name = f"{load.name}{'' if backbone else ', no backbone'}"
                    found = results[name] = [
                        _run(bench, server, broker, load, f"{name[:3]}{run}-{int(backbone)}", quick)
                        for run in range(-1, runs)
                    ][1:]  # the first one warms up
                    rows.append(_row(name, load, found, backbone))
                    print(f"... {name}: {rows[-1][1]} a second", flush=True)
    finally:
        server.kill()
    head = [
        "10 publishers, QoS 1, window 100",
        "a second",
        "bar",
        "us of CPU",
        "p50 ms",
        "p99 ms",
        "left to dispatch s",
    ]
    return markdown(head, rows), results


@contextmanager
def _node(bench: Bench, server: Any, backbone: bool) -> Iterator[BrokerProcess]:
    settings = {"kafka.hosts": server.address, "inbound.backbone": "kafka" if backbone else "none"}
    with bench.weir(workers=WORKERS, more=settings, patience=60) as broker:
        yield broker


def _run(
    bench: Bench, server: Any, broker: BrokerProcess, load: InboundLoad, prefix: str, quick: bool
) -> dict[str, Any]:
    pids = f"{broker.pid},{server.process.pid}"
    count = load.messages // QUICK_SHARE if quick else load.messages
    command = [str(bench.mqload), *load.options, "--prefix", prefix, "--count", str(count)]
    found = run_tool([*command, "--port", str(broker.port), "--pids", pids])
    found["left_s"] = _until_dispatched(bench, broker)
    return found


def _until_dispatched(bench: Bench, broker: BrokerProcess) -> float:
    """Seconds until nothing waits to be dispatched."""
    assert broker.control is not None
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        gauges = requests.status(broker.control)["totals"]["gauges"]
        if not gauges.get("backbone_lag_ms") and not gauges.get("backbone_unfinished"):
            break
        time.sleep(0.1)
    return time.monotonic() - began


def _row(name: str, load: InboundLoad, found: list[dict[str, Any]], backbone: bool) -> list[str]:
    rate, cost, p50, p99, left = (
        statistics.median(each[key] for each in found)
        for key in ("rx_per_s", "broker_cpu_us_per_rx", "p50_us", "p99_us", "left_s")
    )
    bar = f"at least {load.bar}: {'fine' if rate >= load.bar else 'missed'}" if load.bar and backbone else ""
    return [name, number(rate), bar, number(cost), number(p50 / 1e3), number(p99 / 1e3), number(left)]
