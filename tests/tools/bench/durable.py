# What durable sessions cost: CPU per message of all processes, Redis included, beside Mosquitto with the same sessions
# in its memory.
#
# With subscribers that are away every message is stored; they have other names in each run, so that no queue is full.
# Latencies are those of PUBACK, while 10 000 messages a second come for absent subscribers. Loads of catch_up.py have a
# table of their own.
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.system.processes import BrokerProcess
from tests.tools.bench import catch_up
from tests.tools.bench.contenders import MOSQUITTO, WEIR, Bench, run_tool
from tests.tools.bench.table import markdown, number

PLENTY: Final = 10_000_000
SETTINGS: Final[Mapping[str, object]] = {
    "store.durability": "process",
    "limits.queue": PLENTY,
    "limits.queue_bytes": "1GiB",
    "redis.memory": "8GiB",
}
LONGEST_RUN: Final = 120  # seconds


class DurableLoad(NamedTuple):
    name: str
    arguments: tuple[str, ...]  # of mqload
    publishes: int
    receivers: int  # of each, that a cost is divided by
    most: float  # microseconds for a message and receiver; of the loads with a rate: p99 of PUBACK in milliseconds
    settings: Mapping[str, object]


def _load(name: str, count: int, most: float, *arguments: str, receivers: int = 1, **settings: object) -> DurableLoad:
    by_key = {key.replace("__", "."): value for key, value in settings.items()}
    return DurableLoad(name, arguments, count, receivers, most, by_key)


TEN: Final = ("--pattern", "p2p", "--pubs", "10")
DURABLE_LOADS: Final = (
    _load("device-10-qos1", 600_000, 2.5, *TEN, "--qos", "1", "--window", "100"),
    _load("device-10-qos1-hold0", 400_000, 3.5, *TEN, "--qos", "1", "--window", "100", store__hold=0),
    _load("device-10-qos2", 300_000, 5.0, *TEN, "--qos", "2", "--window", "100"),
    _load("device-trickle", 60_000, 0, "--pattern", "p2p", "--pubs", "200", "--qos", "1", "--window", "1"),
    _load("away-10-qos1", 400_000, 2.0, *TEN, "--qos", "1", "--window", "100", "--away"),
    _load(
        "away-fanout-1000",
        1_000,
        1.2,
        *("--pattern", "fanout", "--pubs", "1", "--subs", "1000", "--qos", "1", "--window", "10", "--away"),
        receivers=1000,
    ),
    _load(
        "away-fanout-1000-300",  # bytes: the bodies are stored once
        1_000,
        1.2,
        *("--pattern", "fanout", "--pubs", "1", "--subs", "1000", "--qos", "1", "--window", "10", "--away"),
        *("--payload", "300"),
        receivers=1000,
    ),
    _load("puback-10000", 50_000, 8.0, *TEN, "--qos", "1", "--rate", "10000", "--away"),
    _load("power-10000", 50_000, 15.0, *TEN, "--qos", "1", "--rate", "10000", "--away", store__durability="power"),
)


NAMES: Final = (*(load.name for load in DURABLE_LOADS), *(load.name for load in catch_up.CATCH_UPS))


def measure(bench: Bench, names: Sequence[str], runs: int, quick: bool) -> tuple[str, dict[str, Any]]:
    """Tables, and every single result: *runs* runs of each load on both brokers, in turn."""
    tables: list[str] = []
    results: dict[str, Any] = {}
    if set(names) & {load.name for load in DURABLE_LOADS}:
        table, results = _measure(bench, names, runs, quick)
        tables.append(table)
    if set(names) & {load.name for load in catch_up.CATCH_UPS}:
        table, found = catch_up.measure(bench, names, runs, quick, SETTINGS)
        tables.append(table)
        results |= found
    return "\n".join(tables), results


def _measure(bench: Bench, names: Sequence[str], runs: int, quick: bool) -> tuple[str, dict[str, Any]]:
    rows = []
    results: dict[str, Any] = {}
    for load in DURABLE_LOADS:
        if load.name not in names:
            continue
        found = results[load.name] = _run(bench, load, runs, quick)
        ours, theirs = (_cost(load, found[name]) for name in (WEIR, MOSQUITTO))
        p50, p99 = (statistics.median(each[key] for each in found[WEIR]) / 1e3 for key in ("p50_us", "p99_us"))
        rate = statistics.median(each["rx_per_s"] for each in found[WEIR])
        rows.append([load.name, *map(number, (theirs, ours, theirs / ours, load.most, rate, p50, p99))])
        print(f"... {load.name}: {number(ours)} us", flush=True)
    header = ["load", "Mosquitto us", "Weir us", "ratio", "at most", "publishes/s", "p50 ms", "p99 ms"]
    return f"\n{markdown(header, rows)}", results


def _cost(load: DurableLoad, results: Sequence[dict[str, Any]]) -> float:
    return statistics.median(float(each["broker_cpu_us_per_rx"]) for each in results) / load.receivers


def _run(bench: Bench, load: DurableLoad, runs: int, quick: bool) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {MOSQUITTO: [], WEIR: []}
    with (
        bench.mosquitto(more=catch_up.UNLIMITED) as mosquitto,
        bench.weir(more={**SETTINGS, **load.settings}) as weir,
    ):
        for run in range(-1, runs):  # the first one warms up
            for name, broker in ((MOSQUITTO, mosquitto), (WEIR, weir)):
                result = _once(
                    bench, load, broker, f"r{run}", load.publishes // 20 if quick or run < 0 else load.publishes
                )
                if run >= 0:
                    found[name].append(result)
    return found


def _once(bench: Bench, load: DurableLoad, broker: BrokerProcess, prefix: str, count: int) -> dict[str, Any]:
    command = [str(bench.mqload), *load.arguments, "--persistent", "--prefix", prefix, "--count", str(count)]
    command += ["--maxsec", str(LONGEST_RUN), "--port", str(broker.port), "--pids", str(broker.pid)]
    return run_tool(command)
