# The same loads over TCP, TLS, WebSocket and both, and what a connection costs on each.
#
# Both brokers have the same certificate, and agree with the same client (OpenSSL's defaults) on what to encrypt
# with. TCP is there for reference: what TLS and WebSocket add is the difference to it.
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.tools.bench import scale, speed
from tests.tools.bench.contenders import MOSQUITTO, WEIR, Bench
from tests.tools.bench.loads import LOADS
from tests.tools.bench.speed import Outcome
from tests.tools.bench.table import markdown, number

MEASURED: Final = [load for load in LOADS if load.name in ("p2p-10-qos1", "trickle-qos1") or load.rate]
REQUIRED: Final = {"p2p-10-qos1-tls": 3.0}  # Mosquitto's CPU over Weir's, at least; for the others it is stated
MOST_CLIENTS: Final = 2000  # idle, or connecting in one run: a handshake takes a millisecond of each side


def measure(
    bench: Bench, transports: Sequence[str], runs: int, v5: bool, least_cpu: float, idle: int, connects: int
) -> tuple[str, dict[str, Any]]:
    outcomes: list[Outcome] = []
    costs: dict[str, Any] = {}
    memory: dict[str, Any] = {}
    for transport in transports:
        for load in MEASURED:
            outcomes.append(speed.measure(bench, load.over(transport), runs, v5, least_cpu))
            print(f"... {outcomes[-1].load.name}: {number(outcomes[-1].ratio)} times", flush=True)
        costs[transport] = scale.measure_connects(bench, transport, runs, connects)
        memory[transport] = [scale.measure_idle(bench, transport, idle) for _ in range(runs)]
        print(f"... {transport}: {connects} connects and {idle} idle connections", flush=True)
    parts = [speeds(outcomes), *speed.latencies(outcomes), "", connections(costs, memory, idle), ""]
    results = {outcome.load.name: asdict(outcome) for outcome in outcomes}
    return "\n".join(["", *parts, *speed.counts(outcomes)]), {"loads": results, "connects": costs, "idle_kib": memory}


def speeds(outcomes: Sequence[Outcome]) -> str:
    rows = [
        [
            outcome.load.name,
            f"{number(outcome.mosquitto.median('broker_cpu_us_per_rx'))} ({outcome.mosquitto.spread()})",
            f"{number(outcome.weir.median('broker_cpu_us_per_rx'))} ({outcome.weir.spread()})",
            number(outcome.ratio),
            REQUIRED.get(outcome.load.name, "-"),
        ]
        for outcome in outcomes
    ]
    return markdown(["load", "Mosquitto us", "Weir us", "ratio", "at least"], rows)


def connections(costs: dict[str, Any], memory: dict[str, Any], idle: int) -> str:
    """One row for each transport: Mosquitto's column before Weir's."""
    rows = [
        [transport]
        + [number(statistics.median(cost for _, cost in costs[transport][name])) for name in (MOSQUITTO, WEIR)]
        + [number(statistics.median(run[name] for run in memory[transport])) for name in (MOSQUITTO, WEIR)]
        for transport in costs
    ]
    header = [
        "transport",
        "Mosquitto us for a connect",
        "Weir us",
        f"Mosquitto KiB for each of {idle} idle",
        "Weir KiB",
    ]
    return markdown(header, rows)
