# What APPLICATION clients get out of their logs: how much a second and at what cost, how soon, and what idle ones take.
#
# CPU is that of all processes: workers, carrier, supervisor, Redis, and Kafka if the logs are there. Services that were
# away get what waits for them: publishers are done before they come, so the figure is what reading and delivering take.
# The delay is that of live messages at a constant rate, from the intended time of sending to the arrival.
import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.kafka_servers import KafkaServer
from tests.system.processes import HOST, PATIENCE, BrokerProcess
from tests.system.raw import RawClient
from tests.tools.bench.catch_up import CatchUp, once
from tests.tools.bench.contenders import Bench, run_tool
from tests.tools.bench.log_cost import cpu
from tests.tools.bench.table import markdown, number
from tests.tools.bench.takeover import BATCH, percentile

LOGS: Final = ("kafka", "redis")
SETTINGS: Final = {
    "application.clients": '[{client = "*"}]',
    "application.pack_timeout": "10m",  # the slow one may take that long
    "store.durability": "process",
    "redis.memory": "8GiB",
}
AWAY: Final = (CatchUp("1 service", 1, 600_000, 150_000), CatchUp("10 services", 10, 1_000_000, 250_000))
LIVE: Final = ("--pattern", "p2p", "--qos", "1", "--persistent")
RATE: Final = 10_000  # messages a second
DELAY_MS: Final = (8.0, 40.0)  # at that rate, p50 and p99
IDLE: Final = 1000  # services
IDLE_SHARE: Final = 0.05  # of a core
SETTLE: Final = 30.0  # seconds until nothing of what was done before goes on; 1 000 new topics take Kafka 15
WATCHED: Final = 10.0  # seconds
RECONNECTS: Final = 100
FIRST_MS: Final = 60.0  # from a CONNECT to the first message
SLOW: Final = 1024  # bytes that a slow service reads, once a second
SLOW_WAITS: Final = 10_000  # messages that wait for it
BESIDE_SLOW: Final = 0.95  # of the speed of another service without it


class Node(NamedTuple):
    broker: BrokerProcess
    pids: list[int]  # of the processes that count, but for their children


def measure(bench: Bench, logs: Sequence[str], runs: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """A table for each of *logs*, and every single result. The median of *runs* counts."""
    tables = []
    results: dict[str, Any] = {}
    for log in logs:
        rows: list[list[Any]] = []
        with log_node(bench, log, SETTINGS) as node:
            results[log] = found = _measure(bench, node, runs, quick, rows)
        tables.append(f"\nLogs in {log}:\n\n{markdown(['what', 'measured', 'bar', ''], rows)}")
        print(f"... {log}: {json.dumps(found)[:200]}", flush=True)
    return "\n".join(tables), results


@contextmanager
def log_node(bench: Bench, log: str, settings: Mapping[str, object]) -> Iterator[Node]:
    """A node with *settings* whose logs are in *log*."""
    if log == "redis":
        with bench.weir(workers=2, more=settings) as broker:
            yield Node(broker, [broker.pid])
        return
    server: Any = KafkaServer(Path(bench.folder, "kafka"), quick=False)
    server.start()
    try:
        with bench.weir(workers=2, more={**settings, "kafka.hosts": server.address}, patience=60) as broker:
            yield Node(broker, [broker.pid, server.process.pid])
    finally:
        server.kill()


def _measure(bench: Bench, node: Node, runs: int, quick: bool, rows: list[list[Any]]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    pids = ",".join(map(str, node.pids))
    for load in AWAY:
        load = load._replace(messages=load.messages // 20) if quick else load
        found = [
            once(
                bench,
                load,
                node.broker,
                f"away{load.subscribers}-{run}",
                pids,
                ("p2p", "--pubs", str(load.subscribers)),
            )
            for run in range(-1, runs)
        ]
        results[load.name] = found = found[1:]  # the first one warms up
        rate, cost = (statistics.median(each[key] for each in found) for key in ("rx_per_s", "broker_cpu_us_per_rx"))
        rows.append(
            [f"{load.name}, messages a second", number(rate), f"at least {load.least}", _verdict(rate >= load.least)]
        )
        rows.append([f"{load.name}, us of CPU for each message", number(cost), "", ""])
    ratios = results["beside_slow"] = []
    for run in range(2 * runs + 1):  # single pairs differ by a fifth
        alone, beside = (_beside(bench, node, quick, f"slow{run}-{int(slow)}", pids, slow) for slow in (False, True))
        ratios.append(beside / alone)
    ratio = statistics.median(ratios)
    rows.append(
        [
            "speed beside a service that reads 1 KiB/s",
            number(ratio),
            f"at least {BESIDE_SLOW}",
            _verdict(ratio >= BESIDE_SLOW),
        ]
    )
    delays = []
    for run in range(-1, runs):
        count = RATE // 4 if quick or run < 0 else 10 * RATE
        command = [str(bench.mqload), *LIVE, "--pubs", "10", "--rate", str(RATE), "--count", str(count)]
        delays.append(run_tool([*command, "--prefix", "live", "--port", str(node.broker.port), "--pids", pids]))
    results["delay"] = delays[1:]
    for name, key, most in zip(("p50", "p99"), ("p50_us", "p99_us"), DELAY_MS, strict=True):
        delay = statistics.median(each[key] for each in delays[1:]) / 1e3
        rows.append([f"{name} at {RATE} a second, ms", number(delay), f"at most {most}", _verdict(delay <= most)])
    first = results["first_ms"] = _reconnect(node.broker, RECONNECTS // 10 if quick else RECONNECTS)
    for of in (50, 99):
        took = percentile(first, of)
        rows.append(
            [f"reconnect to first message, p{of} ms", number(took), f"at most {FIRST_MS}", _verdict(took <= FIRST_MS)]
        )
    share = results["idle"] = _idle(node, IDLE // 20 if quick else IDLE)
    rows.append(
        [
            f"{IDLE} idle services, % of a core",
            number(100 * share),
            f"at most {100 * IDLE_SHARE}",
            _verdict(share <= IDLE_SHARE),
        ]
    )
    return results


def _verdict(fine: bool) -> str:
    return "fine" if fine else "missed"


def _beside(bench: Bench, node: Node, quick: bool, prefix: str, pids: str, slow: bool) -> float:
    """Messages a second of a service, while another one is *slow* or is not there."""
    load = AWAY[0]._replace(messages=AWAY[0].messages // (20 if quick else 2))
    with _slow_service(node.broker, prefix) if slow else nullcontext():
        result = once(bench, load, node.broker, prefix, pids, ("p2p", "--pubs", "1"))
    return float(result["rx_per_s"])


@contextmanager
def _slow_service(broker: BrokerProcess, name: str) -> Iterator[None]:
    """A service that reads SLOW bytes a second of many that wait for it, and acknowledges nothing."""
    service = _service(broker, name)
    service.subscribe(f"{name}/slow", qos=1)
    service.disconnect()
    publisher = RawClient(broker.port, V5)
    publisher.connect(f"{name}-publisher")
    for begun in range(0, SLOW_WAITS, BATCH):
        ids = range(begun + 1, begun + BATCH + 1)
        topic = f"{name}/slow".encode()
        publisher.socket.sendall(b"".join([encode(Publish(topic, bytes(SLOW), 1, packet_id=each), V5) for each in ids]))
        for each in ids:
            publisher.expect_ack(PUBACK, each)
    publisher.disconnect()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect((HOST, broker.port))
    service = RawClient(broker.port, V5, connection)
    service.connect(name, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    ended = threading.Event()
    reader = threading.Thread(target=_read_slowly, args=(connection, ended))
    reader.start()
    try:
        yield
    finally:
        ended.set()
        reader.join()
        service.close()


def _read_slowly(connection: socket.socket, ended: threading.Event) -> None:
    while not ended.wait(1.0):
        assert connection.recv(SLOW), "the broker closed the connection of the slow service"


def _reconnect(broker: BrokerProcess, times: int) -> list[float]:
    """Milliseconds from the CONNECT of a service to the message that has waited for it."""
    publisher = RawClient(broker.port, V5)
    publisher.connect("reconnect-publisher")
    took = []
    for number_ in range(times):
        service = _service(broker, "reconnect")
        if not number_:
            service.subscribe("reconnect", qos=1)
        service.disconnect()
        publisher.publish("reconnect", b"x" * 64, qos=1)
        began = time.perf_counter()
        service = _service(broker, "reconnect")
        found = service.take()
        took.append(1000 * (time.perf_counter() - began))
        service.acknowledge(found)
        service.disconnect()
    publisher.disconnect()
    return took


def _service(broker: BrokerProcess, client_id: str) -> RawClient:
    service = RawClient(broker.port, V5)
    service.connect(client_id, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 3600})
    return service


def _idle(node: Node, services: int) -> float:
    """What so many more connected services take, of a core, each of which has had a message from its log."""
    before = _share(node)
    publisher = RawClient(node.broker.port, V5)
    publisher.connect("idle-publisher")
    clients = []
    for each in range(services):
        client = _service(node.broker, f"idle-{each}")
        client.subscribe(f"idle/{each}", qos=1)
        clients.append(client)
    for each, client in enumerate(clients):  # is acknowledged when the log is there, which takes Kafka 50 ms each
        publisher.publish(f"idle/{each}", b"x" * 64, qos=1)
        client.acknowledge(client.take())
    publisher.disconnect()
    after = _share(node)
    for client in clients:
        client.close()
    return after - before


def _with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *[each for child in children for each in _with_children(int(child))]]


def _share(node: Node) -> float:
    time.sleep(SETTLE)
    pids = [each for pid in node.pids for each in _with_children(pid)]
    before, began = sum(map(cpu, pids)), time.monotonic()
    time.sleep(WATCHED)
    return (sum(map(cpu, pids)) - before) / (time.monotonic() - began)
