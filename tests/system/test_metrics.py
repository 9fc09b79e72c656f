# The metrics of a real node: what is known goes in, and the log, Prometheus and $SYS say just that.
import json
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
import redis

from broker.config.budget import WorkerBudget
from broker.config.schema import Config
from broker.metrics.record import misfit
from tests.system.processes import HOST, PATIENCE, WORKERS, BrokerProcess, free_port
from tests.system.raw import RawClient

pytestmark = pytest.mark.weir_only("the log and the names are Weir's")

StartWeir = Callable[..., BrokerProcess]
Record = dict[str, Any]

MESSAGES: Final = 40
PAYLOAD: Final = b"x" * 100


def log_of(weir: BrokerProcess) -> "redis.Redis":
    """The private Redis of the node, in which its log is."""
    assert weir.control is not None
    return redis.Redis(unix_socket_path=str(weir.control.parent / "redis" / "redis.sock"), decode_responses=True)


def records(log: "redis.Redis") -> list[Record]:
    """All that are in the log; each has the form that the analysis reads."""
    entries: Any = log.xrange("weir:metrics")
    found = [json.loads(fields["record"]) for _, fields in entries]
    assert [] == [problem for problem in map(misfit, found) if problem]
    return found


def until(log: "redis.Redis", true: Callable[[list[Record]], bool]) -> list[Record]:
    """The records once they say so."""
    deadline = time.monotonic() + PATIENCE
    while not true(found := records(log)):
        assert time.monotonic() < deadline, found[-1:]
        time.sleep(0.05)  # a stream could be waited for, but not for what its records say together
    return found


def total(found: list[Record], group: str, name: str) -> int:
    return sum(record[group][name] for record in found)


def table(found: list[Record], which: str, name: str) -> dict[str, tuple[int, int, int]]:
    """(messages, bytes, whether it cost something) by name, over all records."""
    rows: dict[str, tuple[int, int, int]] = {}
    for record in found:
        for row in record["top"][which]["rows"]:
            messages, size, cost = rows.get(row[name], (0, 0, 0))
            rows[row[name]] = (messages + row["messages"], size + row["bytes"], int(bool(cost or row["cost"])))
    return rows


def exchange(dial: Callable[..., RawClient], port: int) -> None:
    """MESSAGES go from one client to another, with QoS 1."""
    reader, writer = dial(port=port), dial(port=port)
    reader.connect("reader")
    writer.connect("writer")
    reader.subscribe("known/topic")
    for _ in range(MESSAGES):
        writer.publish("known/topic", PAYLOAD, 1)
    for _ in range(MESSAGES):
        reader.take()


def test_the_workers_divide_the_memory_that_the_node_may_use(start_weir: StartWeir) -> None:
    """Each would use its part of the whole machine, whatever node.memory says."""
    weir = start_weir({"metrics.interval": "200ms", "node.memory": "512MiB"})
    wanted = WorkerBudget(Config(), 512 << 20, WORKERS)
    found = until(log_of(weir), lambda found: {record["worker"] for record in found} == set(range(WORKERS)))

    assert {wanted.messages} == {record["queues"]["limit_bytes"] for record in found}


def test_the_log_says_what_a_node_did(start_weir: StartWeir, dial: Callable[..., RawClient]) -> None:
    """The analysis would be of other traffic than there was, or find nothing that it can read."""
    weir = start_weir({"metrics.interval": "200ms"})
    log = log_of(weir)
    exchange(dial, weir.port)
    everybody = set(range(WORKERS))  # those without a client have nothing to tell but themselves, and may do so last
    found = until(
        log,
        lambda some: (
            total(some, "out", "messages") == MESSAGES == total(some, "latency", "messages")
            and everybody == {record["worker"] for record in some}
        ),
    )

    assert (MESSAGES, MESSAGES * len(PAYLOAD)) == (total(found, "in", "messages"), total(found, "in", "bytes"))
    assert MESSAGES * len(PAYLOAD) == total(found, "out", "bytes")
    assert (MESSAGES, MESSAGES * len(PAYLOAD), 1) == table(found, "clients", "client")["writer"]
    assert {"known/topic": (MESSAGES, MESSAGES * len(PAYLOAD), 1)} == table(found, "topics", "topic")
    assert {f"node-{weir.port}"} == {record["node"] for record in found}
    assert all(record["latency"]["p99_ms"] > 0 for record in found if record["latency"]["messages"])
    assert 2 == total(found, "connects", "accepted")
    for worker in everybody:
        of_one = [record for record in found if record["worker"] == worker]
        assert [record["sequence"] for record in of_one] == list(range(len(of_one)))
        assert 1 == len({record["boot"] for record in of_one})


def test_the_log_is_off_where_it_is_not_wanted(start_weir: StartWeir, dial: Callable[..., RawClient]) -> None:
    """Who has no use for it would pay for it."""
    weir = start_weir({"metrics.enabled": "false", "metrics.interval": "100ms", "sys.interval": "100ms"})
    reader = dial(port=weir.port)
    reader.connect("reader")
    reader.subscribe("$SYS/broker/uptime")
    for _ in range(2):
        reader.take()  # a second has passed

    assert 0 == log_of(weir).exists("weir:metrics")


def exposition(port: int) -> dict[str, float]:
    with socket.create_connection((HOST, port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET /metrics HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        body = connection.makefile("rb").read().partition(b"\r\n\r\n")[2].decode()
    lines = [line.rpartition(" ") for line in body.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_prometheus_and_sys_have_the_same(start_weir: StartWeir, dial: Callable[..., RawClient]) -> None:
    """Who watches with Prometheus, or by MQTT, would not see what protection does, nor slow readers."""
    admin = free_port()
    weir = start_weir({"admin.enabled": "true", "admin.port": admin, "sys.interval": "1s"})
    watcher = dial(port=weir.port)
    watcher.connect("watcher")
    said = {message.topic: message.payload for message in watcher.subscribe("$SYS/broker/overload/#")}
    exchange(dial, weir.port)
    deadline = time.monotonic() + PATIENCE
    while (told := exposition(admin))["weir_metrics_records_written_total"] < 3 * WORKERS:
        assert time.monotonic() < deadline, told
        time.sleep(0.05)  # nobody tells when a figure is another one

    assert {
        "weir_overload_level": 0,
        "weir_overload_cluster_level": 0,
        "weir_overload_clients_using_credits": 0,
        "weir_overload_clients_throttled": 0,
        "weir_clients_non_writable": 0,
        "weir_clients_became_non_writable_total": 0,
        "weir_clients_paused": 0,
        'weir_worker_overload_level{worker="0"}': 0,
    }.items() <= told.items()
    assert told["weir_overload_credits_per_tick"] == told["weir_overload_clients_average_credits"] > 0
    assert told['weir_flushes_total{cause="tick"}'] > 0
    assert 'weir_publish_latency_seconds{quantile="0.99"}' in told
    while b"$SYS/broker/overload/latency/p99_ms" not in said or len(said) < 11:
        message = watcher.take()
        said[message.topic] = message.payload
    assert (b"0", b"none") == (said[b"$SYS/broker/overload/level"], said[b"$SYS/broker/overload/cause"])
    assert b"0" == said[b"$SYS/broker/overload/clients/non_writable"]
