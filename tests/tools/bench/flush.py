# What it saves to send a little later: adaptive flushing beside a send at the end of every tick.
#
# Many publishers, each of which says little, to few subscribers: each tick brings a subscriber a message or two, and a
# send costs more than they do. The load is open-loop, so that neither strategy gets less to do for being slow. Both
# nodes run all the time and take turns; who is not measured is idle, and only the measured one's CPU counts.
# mqload sends a message when its interval is over, so in each latency is an interval (10 ms while calm) of its own.
import statistics
from typing import Any, Final

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench, run_tool
from tests.tools.bench.table import markdown, number

ALWAYS: Final = "always"
ADAPTIVE: Final = "adaptive"
STRATEGIES: Final = (ALWAYS, ADAPTIVE)
PUBLISHERS: Final = 1000
SUBSCRIBERS: Final = 20
BUSY: Final = 20_000  # messages a second
CALM: Final = 100
WORKERS: Final = (1, 2)

LEAST_SAVED: Final = 0.20  # of the CPU a message, while busy
LATEST_MS: Final = 10.0  # p99, while busy
TELLABLE_MS: Final = 0.5  # of delay while calm; two runs of the same strategy differ by so much


def measure(bench: Bench, runs: int, seconds: float, rates: tuple[int, ...] = (BUSY, CALM)) -> tuple[str, Any]:
    """A table, and every single result: *runs* of *seconds* for each strategy, rate and number of workers."""
    results = []
    for workers in WORKERS:
        with (
            bench.weir(workers=workers, more=flushing(ALWAYS)) as always,
            bench.weir(workers=workers, more=flushing(ADAPTIVE)) as adaptive,
        ):
            nodes = {ALWAYS: always, ADAPTIVE: adaptive}
            for rate in rates:
                found: dict[str, list[Any]] = {strategy: [] for strategy in STRATEGIES}
                for run in range(runs):
                    for strategy, node in nodes.items():
                        # With other names than those of the run before, which may be on their way out still.
                        found[strategy].append(one_run(bench, node, f"{rate}-{run}", rate, seconds))
                results.append({"workers": workers, "rate": rate, "runs": found})
                print(f"... {rate} messages a second, workers: {workers}", flush=True)
    header = ["workers", "messages/s", "always us", "adaptive us", "saved", "p50 ms", "p99 ms", "lost", "verdict"]
    load = f"{PUBLISHERS} publishers to {SUBSCRIBERS} subscribers, QoS 0; always / adaptive:"
    return f"\n{load}\n\n{markdown(header, [row(one) for one in results])}", {"flush": results}


def flushing(strategy: str) -> dict[str, object]:
    """The settings for it; and who connects for the next run does not wait for its turn."""
    flush = {f"delivery.{kind}.flush": strategy for kind in ("non_persistent", "device")}
    return {**flush, "overload.connects_per_second": 0}


def one_run(bench: Bench, node: BrokerProcess, prefix: str, rate: int, seconds: float) -> dict[str, Any]:
    command = [str(bench.mqload), "--pattern", "gather", "--pubs", str(PUBLISHERS), "--subs", str(SUBSCRIBERS)]
    # A multiple of the publishers, each of which sends the same number.
    count = max(1, round(rate * seconds / PUBLISHERS)) * PUBLISHERS
    command += [
        "--prefix",
        prefix,
        "--rate",
        str(rate),
        "--count",
        str(count),
        "--port",
        str(node.port),
        "--pids",
        str(node.pid),
    ]
    return run_tool(command)


def row(result: dict[str, Any]) -> list[object]:
    def median(strategy: str, key: str) -> float:
        return statistics.median(float(one[key]) for one in result["runs"][strategy])

    costs = [median(strategy, "broker_cpu_us_per_rx") for strategy in STRATEGIES]
    saved = 1 - costs[1] / costs[0]
    late = {key: [median(strategy, key) / 1e3 for strategy in STRATEGIES] for key in ("p50_us", "p99_us")}
    lost = sum(one["expected"] - one["received"] for runs in result["runs"].values() for one in runs)
    return [
        result["workers"],
        result["rate"],
        *[number(cost) for cost in costs],
        f"{saved:.0%}",
        *[" / ".join(number(ms) for ms in pair) for pair in late.values()],
        lost,
        verdict(result["rate"], saved, late["p99_us"]),
    ]


def verdict(rate: int, saved: float, p99: list[float]) -> str:
    if rate < BUSY:
        return "fine" if p99[1] <= p99[0] + TELLABLE_MS else "too late"
    if saved < LEAST_SAVED:
        return f"saves less than {LEAST_SAVED:.0%}"
    return "fine" if p99[1] < LATEST_MS else "too late"
