# What does not show in CPU per message: connecting, staying, subscribing beside others, and one very wide fan-out.
import resource
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import MOSQUITTO, WEIR, Bench, beside, loop_statistics, run_tool
from tests.tools.bench.cost import cpu_seconds, resident_kib
from tests.tools.bench.loads import LOADS
from tests.tools.bench.speed import calibrate, milliseconds, run_load
from tests.tools.bench.table import markdown, number

LEAST_CONNECTS: Final = 3000  # a second
MOST_IDLE_KIB: Final = 4.0  # of resident memory for an idle connection; the aim is 2
LEAST_KEPT: Final = 0.8  # of the speed, beside the storm
LONGEST_SLICE: Final = 20.0  # ms
DESCRIPTOR_RESERVE: Final = 200  # for what a broker opens besides its clients
STORM_LOAD: Final = next(load for load in LOADS if load.name == "p2p-10-qos1")


def descriptors() -> int:
    """Raise the soft limit, which our children inherit; connections that one process can hold."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard - DESCRIPTOR_RESERVE


@contextmanager
def both(bench: Bench, transport: str = "tcp") -> Iterator[dict[str, BrokerProcess]]:
    with ExitStack() as stack:
        yield {
            MOSQUITTO: stack.enter_context(bench.mosquitto(transport)),
            WEIR: stack.enter_context(bench.weir(transport)),
        }


def swarm(bench: Bench, broker: BrokerProcess, what: str, **options: int | str) -> list[str]:
    command = [str(bench.swarm), what, "--port", str(broker.port)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return command


def connects(bench: Bench, runs: int, count: int, idle: int) -> tuple[str, dict[str, Any]]:
    """Connects a second and CPU of each; resident memory of *idle* connections that say nothing."""
    found = measure_connects(bench, "tcp", runs, count)
    memory = measure_idle(bench, "tcp", idle)
    rows = []
    for name, measured in found.items():
        rate = statistics.median(one[0] for one in measured)
        cost = statistics.median(one[1] for one in measured)
        rows.append([name, number(rate), number(cost), number(memory[name])])
    rows.append(["required of Weir", f"{LEAST_CONNECTS} or more", "-", f"{MOST_IDLE_KIB} or less"])
    header = ["broker", "connects a second", "CPU us for each", f"KiB for each of {idle} idle"]
    return markdown(header, rows), {"connects": found, "idle_kib": memory}


def measure_connects(bench: Bench, transport: str, runs: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """For each broker and run: connects a second, and the broker's microseconds of CPU for one."""
    found: dict[str, list[tuple[float, float]]] = {}
    with both(bench, transport) as brokers:
        for _ in range(runs):
            for name, broker in brokers.items():
                before = cpu_seconds(broker.pid)
                result = run_tool(swarm(bench, broker, "connects", count=count, window=100, transport=transport))
                spent = cpu_seconds(broker.pid) - before
                found.setdefault(name, []).append((count / result["seconds"], spent / count * 1e6))
    return found


def measure_idle(bench: Bench, transport: str, count: int) -> dict[str, float]:
    """For each broker, afresh: resident KiB that each of *count* idle connections adds."""
    # What earlier connections have left behind would hide what an idle one takes.
    with both(bench, transport) as brokers:
        return {name: idle_kib(bench, broker, transport, count) for name, broker in brokers.items()}


def idle_kib(bench: Bench, broker: BrokerProcess, transport: str, count: int) -> float:
    before = resident_kib(broker.pid)
    with beside(swarm(bench, broker, "idle", count=count, window=100, transport=transport)) as clients:
        assert clients.stdout is not None and clients.stdout.readline(), "not all clients could connect"
        return (resident_kib(broker.pid) - before) / count


def storm(bench: Bench, runs: int, rate: int, least_cpu: float) -> tuple[str, dict[str, Any]]:
    """Ten pairs at QoS 1, with and without *rate* SUBSCRIBE and as many UNSUBSCRIBE a second beside them."""
    calm: dict[str, list[Any]] = {}
    stormy: dict[str, list[Any]] = {}
    with both(bench) as brokers:
        counts = {name: calibrate(bench, STORM_LOAD, one, False, least_cpu) for name, one in brokers.items()}
        for _ in range(runs):
            for name, broker in brokers.items():
                calm.setdefault(name, []).append(run_load(bench, STORM_LOAD, broker, counts[name], False))
                with beside(swarm(bench, broker, "storm", rate=rate)):
                    stormy.setdefault(name, []).append(run_load(bench, STORM_LOAD, broker, counts[name], False))
    rows = []
    for name in calm:
        speed, beside_it = median(calm[name], "rx_per_s"), median(stormy[name], "rx_per_s")
        cost, cost_beside = median(calm[name], "broker_cpu_us_per_rx"), median(stormy[name], "broker_cpu_us_per_rx")
        rows.append([name, number(speed), number(beside_it), number(beside_it / speed), number(cost / cost_beside)])
    rows.append(["required of Weir", "-", "-", f"{LEAST_KEPT} or more", "-"])
    header = ["broker", "messages/s", f"beside {rate} subscribes/s", "speed kept", "the same by CPU"]
    return markdown(header, rows), {"calm": calm, "stormy": stormy}


def median(results: list[Any], key: str) -> float:
    return statistics.median(float(result[key]) for result in results)


def fanout(bench: Bench, subs: int, publishes: int) -> tuple[str, dict[str, Any]]:
    """One publish to *subs* subscriptions, a few times; how long it held the loop of Weir."""
    command = [str(bench.mqload), "--pattern", "fanout", "--pubs", "1", "--subs", str(subs), "--window", "1"]
    command += ["--count", str(publishes)]
    results: dict[str, Any] = {}
    with both(bench) as brokers:
        for name, broker in brokers.items():
            results[name] = run_tool([*command, "--port", str(broker.port), "--pids", str(broker.pid)])
        weir = brokers[WEIR]
    loop = loop_statistics(weir)
    rows = [
        [name, number(one["broker_cpu_us_per_rx"]), number(one["p50_us"] / 1e3), number(one["max_us"] / 1e3)]
        + (
            [milliseconds(loop, "longest_slice_ms"), milliseconds(loop, "longest_collection_ms")]
            if name == WEIR
            else ["-", "-"]
        )
        for name, one in results.items()
    ]
    rows.append(["required of Weir", "-", "-", "-", f"{LONGEST_SLICE} ms or less", f"{LONGEST_SLICE} ms or less"])
    header = ["broker", "us for each", "p50 ms", "last ms", "longest slice", "longest collection"]
    return f"{publishes} publishes to {subs} subscriptions:\n\n{markdown(header, rows)}", {
        "fanout": results,
        "loop": loop,
    }
