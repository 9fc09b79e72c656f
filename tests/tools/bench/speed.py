# CPU per delivered message, beside Mosquitto's.
#
# CPU and not messages a second: on a machine of few cores the load generator and the broker share them, and who is
# cheaper is what remains when both are busy. For each load the brokers take turns, so that a machine that warms up
# or is shared weighs on both; every run lasts at least a second of the broker's CPU; the median counts.
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import MOSQUITTO, WEIR, Bench, loop_statistics, run_tool
from tests.tools.bench.cost import family
from tests.tools.bench.loads import LATENCY_FACTOR, Load
from tests.tools.bench.table import markdown, number

LEAST_CPU: Final = 1.0  # seconds of broker CPU that a run must have
MARGIN: Final = 1.3  # calibrated for so much more, as a longer run is cheaper per message
FIRST_DELIVERIES: Final = 20_000  # of the run that calibrates
FIRST_RATE_SECONDS: Final = 1.0
ATTEMPTS: Final = 4  # to find a count that gives LEAST_CPU
LONGEST_RUN: Final = 120  # seconds


@dataclass
class Runs:
    """The runs of one broker under one load."""

    count: int  # publishes in each
    results: list[dict[str, Any]] = field(default_factory=list)

    def median(self, key: str) -> float:
        return statistics.median(float(result[key]) for result in self.results)

    def spread(self) -> str:
        """From the cheapest to the dearest run, microseconds."""
        costs = sorted(result["broker_cpu_us_per_rx"] for result in self.results)
        return f"{number(costs[0])}-{number(costs[-1])}"


@dataclass
class Outcome:
    load: Load
    mosquitto: Runs
    weir: Runs
    loop: dict[str, float]

    @property
    def ratio(self) -> float:
        return self.mosquitto.median("broker_cpu_us_per_rx") / self.weir.median("broker_cpu_us_per_rx")

    def latency_ratio(self, key: str) -> float:
        return self.weir.median(key) / max(1.0, self.mosquitto.median(key))

    def verdict(self, share: float) -> str:
        if self.ratio < self.load.at_least * share:
            return "too slow"
        if self.load.rate and max(self.latency_ratio("p50_us"), self.latency_ratio("p99_us")) > LATENCY_FACTOR:
            return "too late"
        return "aim" if self.ratio >= self.load.aim * share else "enough"


def measure(bench: Bench, load: Load, runs: int, v5: bool, least_cpu: float) -> Outcome:
    """Run *load* on both brokers in turn."""
    with bench.mosquitto(load.transport) as mosquitto, bench.weir(load.transport) as weir:
        brokers = {MOSQUITTO: mosquitto, WEIR: weir}
        if load.cores:
            for broker in brokers.values():
                place(broker, core(load.cores - 1))
        measured = {name: Runs(calibrate(bench, load, one, v5, least_cpu)) for name, one in brokers.items()}
        for _ in range(runs):
            for name, one in brokers.items():
                measured[name].results.append(run_load(bench, load, one, measured[name].count, v5))
    return Outcome(load, measured[MOSQUITTO], measured[WEIR], loop_statistics(weir))


def run_load(bench: Bench, load: Load, broker: BrokerProcess, count: int, v5: bool) -> dict[str, Any]:
    command = [str(bench.mqload), *load.arguments(), "--count", str(count), "--maxsec", str(LONGEST_RUN)]
    command += ["--port", str(broker.port), "--pids", str(broker.pid)]
    if load.cores:
        command = ["taskset", "--cpu-list", str(core(0)), *command]
    return run_tool([*command, "--v5"] if v5 else command)


def core(number: int) -> int:
    """One of those that we may use; the last one, if there are fewer."""
    ours = sorted(os.sched_getaffinity(0))
    return ours[min(number, len(ours) - 1)]


def place(broker: BrokerProcess, core: int) -> None:
    """Have all threads of all processes of *broker* run on *core* alone."""
    for pid in family(broker.pid):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})


def calibrate(bench: Bench, load: Load, broker: BrokerProcess, v5: bool, least_cpu: float) -> int:
    """How many publishes cost *broker* at least *least_cpu* seconds."""
    if load.rate:
        count = int(load.rate * FIRST_RATE_SECONDS)
    else:
        count = max(load.pubs * 10, FIRST_DELIVERIES // load.copies())
    for _ in range(ATTEMPTS):
        result = run_load(bench, load, broker, count, v5)
        spent = result["broker_cpu_us_per_rx"] * result["received"] / 1e6
        if spent >= least_cpu:
            break
        count = int(count * max(1.1, least_cpu * MARGIN / max(spent, 0.001)))
    return count


def report(outcomes: Sequence[Outcome], v5: bool, interpreted: bool) -> str:
    header = ["load", "Mosquitto us", "Weir us", "ratio", "at least", "aim", "verdict", "longest slice", "collection"]
    rows = [
        [
            outcome.load.name,
            f"{number(outcome.mosquitto.median('broker_cpu_us_per_rx'))} ({outcome.mosquitto.spread()})",
            f"{number(outcome.weir.median('broker_cpu_us_per_rx'))} ({outcome.weir.spread()})",
            number(outcome.ratio),
            number(outcome.load.at_least * share),
            number(outcome.load.aim * share),
            outcome.verdict(share),
            milliseconds(outcome.loop, "longest_slice_ms"),
            milliseconds(outcome.loop, "longest_collection_ms"),
        ]
        for outcome in outcomes
        for share in [outcome.load.share(v5, interpreted)]
    ]
    return "\n".join([markdown(header, rows), *latencies(outcomes), "", *counts(outcomes)])


def latencies(outcomes: Sequence[Outcome]) -> list[str]:
    rows = [latency(outcome, key) for outcome in outcomes if outcome.load.rate for key in ("p50_us", "p99_us")]
    return ["", markdown(["load", "latency", "Mosquitto us", "Weir us", "ratio", "at most"], rows)] if rows else []


def latency(outcome: Outcome, key: str) -> list[object]:
    ours, theirs = outcome.weir.median(key), outcome.mosquitto.median(key)
    return [
        outcome.load.name,
        key[:3],
        number(theirs),
        number(ours),
        number(outcome.latency_ratio(key)),
        LATENCY_FACTOR,
    ]


def counts(outcomes: Sequence[Outcome]) -> list[str]:
    """How much each run was."""
    return [
        f"- {outcome.load.name}: {MOSQUITTO} {size(outcome.mosquitto)}; {WEIR} {size(outcome.weir)}"
        for outcome in outcomes
    ]


def size(runs: Runs) -> str:
    return f"{runs.count} publishes, {number(cpu(runs))} s of CPU"


def cpu(runs: Runs) -> float:
    """Median CPU seconds of the broker in a run."""
    return runs.median("broker_cpu_us_per_rx") * runs.median("received") / 1e6


def milliseconds(loop: dict[str, float], key: str) -> str:
    return f"{number(loop[key])} ms" if key in loop else "-"
