# Two overloads, each with protection and without: what clients get and what the node measures of itself, each second.
#
# Aggressors publish three times what the workers can do to subscribers who get it all, at QoS 1; beside them are modest
# clients, who ask for less than anybody's share at any level. Once all of it is bound by the processor. Once all
# publishers are at one worker and all subscribers at another one, which is made slow: its process is stopped for most
# of each moment, as a container without processor time would be, so what it cannot do waits in the first one.
#
# What the workers can do is measured, too: the best of closed loops of the same clients and of a flood that nothing
# holds back, as what comes in large batches costs less. Which that is, a run of each tells; its figure does not count,
# as the best of several is also the luckiest. The load that was best is measured anew before, between and after the
# runs, as a machine that others use is not as fast all the time: a run is compared with the mean of what was possible
# before and after it. That is still a tenth up or down from one run to the next, so there are several rounds. Each run
# has its own node.
# What clients see is measured by them: aggressors and the modest are processes of their own, so that neither waits for
# the other's turn. A latency counts from when a publish reached the client's socket, and so from before its arrival.
import json
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import redis

from tests.system import node
from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench, ToolFailed, build_tool
from tests.tools.bench.cost import family

AGGRESSORS: Final = "aggressors"
MODEST: Final = "modest"
PROTECTED: Final = "protected"
UNPROTECTED: Final = "unprotected"
WORKERS: Final = 2
TIMES: Final = 3  # what they can do
TRIED_SECONDS: Final = 8  # each load that may be the best
PEAK_SECONDS: Final = 20
WARM_UP: Final = 2  # seconds, of each run, that do not count
SPARE: Final = 3  # times the clients that are needed: as many land at the right worker
FEWEST: Final = 100  # clients: of three times a dozen too few land there once in a hundred times
LIST: Final = 10_000
LATE: Final = 3.0  # seconds, of a record

# A worker may hold what it held at the start, and what its settings allow: these, and one gate's bytes.
BUDGETS: Final[dict[str, int]] = {
    "delivery.outbound_budget": 64 << 20,
    "limits.queue_budget": 64 << 20,
    "overload.gate_bytes": 16 << 20,
}

STOPPED: Final = 0.020  # seconds, of the slow worker
RUNS: Final = 0.005
SHARE: Final = RUNS / (STOPPED + RUNS)  # of the time


@dataclass(frozen=True)
class Scene:
    name: str
    slow: bool  # the worker of the subscribers is


@dataclass(frozen=True)
class Fleet:
    """Publishers and their subscribers, in a process of their own. Without *fanout* each has one of these."""

    name: str
    publishers: int
    subscribers: int
    fanout: bool
    window: int  # publishes that one has unacknowledged, at most


SCENES: Final = (Scene("processor", slow=False), Scene("slow-worker", slow=True))
AGGRESSIVE: Final = Fleet(AGGRESSORS, 20, 50, True, window=4096)
# In closed loops; more under way would be more than may be unacknowledged by a subscriber and wait for it, and be lost.
CLOSED: Final = tuple(Fleet(AGGRESSORS, 20, 50, True, window) for window in (20, 50, 90))
MODESTY: Final = Fleet(MODEST, 100, 20, False, window=1000)
MODEST_RATE: Final = 500  # messages a second, of all of them

Row = dict[str, float | str]


@dataclass(frozen=True)
class Run:
    """A row for each second, and what the fleets saw over all of them."""

    rows: list[Row]
    total: dict[str, dict[str, float]]

    def figures(self) -> dict[str, float]:
        """What is required of it: goodput as a share of the peak, memory as one of the budget, p99 of the modest."""
        goodput = statistics.mean(float(row["goodput"]) for row in self.rows[WARM_UP:])
        memory = max(float(row[name]) for row in self.rows for name in ("worker0_mib", "worker1_mib"))
        first = self.rows[0]
        return {
            "goodput": goodput / float(first["peak"]),
            "memory": memory / float(first["budget_mib"]),
            "p99_ms": self.total[MODEST]["p99_ms"],
        }


def measure(bench: Bench, scene: Scene, seconds: int, rounds: int) -> tuple[dict[str, Any], dict[str, Run]]:
    """What holds for all of it, and a run with protection and one without of the same round."""
    surge = build_tool("surge", bench.folder, tls=False)
    most, publishes, fleet, rate = greatest(bench, surge, scene)
    offered = round(TIMES * publishes)
    print(f"... {scene.name}: {most:.0f} deliveries a second at most; offering {offered} publishes", flush=True)
    runs: dict[str, list[Run]] = {PROTECTED: [], UNPROTECTED: []}
    before, _ = at_most(bench, surge, scene, fleet, rate, PEAK_SECONDS)
    for _ in range(rounds):
        for name, of_rounds in runs.items():
            with overloaded(bench, name == PROTECTED) as weir:
                found = run(surge, weir, scene, AGGRESSIVE, offered, seconds)
            after, _ = at_most(bench, surge, scene, fleet, rate, PEAK_SECONDS)
            peak = (before + after) / 2
            of_rounds.append(Run([{**row, "peak": peak} for row in found.rows], found.total))
            share = of_rounds[-1].figures()["goodput"]
            print(f"... {scene.name}, {name}: {share:.1%} of {before:.0f} before and {after:.0f} after it", flush=True)
            before = after
    figures = {name: [one.figures() for one in of_rounds] for name, of_rounds in runs.items()}
    facts = {"offered": offered, "weir": bench.banner(), "rounds": figures}
    drawn = middle(runs[PROTECTED])
    return facts, {name: of_rounds[drawn] for name, of_rounds in runs.items()}


def middle(runs: list[Run]) -> int:
    """Which of them has its goodput in the middle of theirs."""
    return sorted(range(len(runs)), key=lambda one: runs[one].figures()["goodput"])[len(runs) // 2]


def greatest(bench: Bench, surge: Path, scene: Scene) -> tuple[float, float, Fleet, int]:
    """As `at_most()`, of the load that gets most through; and that load."""
    closed = [(*at_most(bench, surge, scene, fleet, 0, TRIED_SECONDS), fleet, 0) for fleet in CLOSED]
    best = max(closed, key=itemgetter(0))
    flood = round(TIMES * best[1])
    unbound = (*at_most(bench, surge, scene, AGGRESSIVE, flood, TRIED_SECONDS), AGGRESSIVE, flood)
    return max(best, unbound, key=itemgetter(0))


def at_most(bench: Bench, surge: Path, scene: Scene, fleet: Fleet, rate: int, seconds: int) -> tuple[float, float]:
    """Deliveries a second, and publishes of the aggressors, as means; *rate* as in `run()`."""
    with overloaded(bench, protected=False) as weir:
        rows = run(surge, weir, scene, fleet, rate, seconds).rows[WARM_UP:]
    deliveries = statistics.mean(float(row["goodput"]) for row in rows)
    return deliveries, statistics.mean(float(row["aggressors_acknowledged"]) for row in rows)


@contextmanager
def overloaded(bench: Bench, protected: bool) -> Iterator[BrokerProcess]:
    settings = {**BUDGETS, "overload.enabled": str(protected).lower(), "overload.connects_per_second": 0}
    with bench.weir(workers=WORKERS, more=settings) as weir:
        yield weir


def run(surge: Path, weir: BrokerProcess, scene: Scene, aggressive: Fleet, rate: int, seconds: int) -> Run:
    """*rate*: publishes a second of the aggressors, 0 in a closed loop."""
    assert weir.control is not None
    processes = members(weir)
    at_rest = {name: resident_mib(pid) for name, pid in processes.items()}
    slow = processes["worker1"] if scene.slow else 0
    with (
        surging(surge, weir, aggressive, rate, seconds) as aggressors,
        surging(surge, weir, MODESTY, MODEST_RATE, seconds) as modest,
    ):
        for fleet, process in ((aggressive, aggressors), (MODESTY, modest)):
            choose(weir.control, fleet, process, scene.slow)
        began = time.time()
        for process in (aggressors, modest):
            say(process, "begin")
        resident = watch(processes, slow, seconds)
        seen = {AGGRESSORS: finish(aggressors), MODEST: finish(modest)}
    records = told(weir.control, began, seconds)
    budget = max(at_rest["worker0"], at_rest["worker1"]) + sum(BUDGETS.values()) / (1 << 20)
    total = {fleet: lines.pop() for fleet, lines in seen.items()}
    return Run([row(second, seen, records, resident[second], budget) for second in range(seconds)], total)


def members(weir: BrokerProcess) -> dict[str, int]:
    """The processes of the node by name."""
    assert weir.control is not None
    workers = {f"worker{n}": pid for n, pid in enumerate(node.worker_pids(weir.control))}
    known = {"supervisor": node.status(weir.control)["pid"], **workers}
    (server,) = set(family(weir.pid)) - set(known.values())
    return {**known, "redis": server}


# The fleets.


@contextmanager
def surging(
    surge: Path, weir: BrokerProcess, fleet: Fleet, rate: int, seconds: int, quiet: int = 0
) -> Iterator["subprocess.Popen[str]"]:
    """*fleet*, connected: more clients than it needs. In the last *quiet* of its *seconds* it publishes nothing."""
    clients = max(FEWEST, SPARE * (fleet.publishers + fleet.subscribers))
    command = [str(surge), "--port", str(weir.port), "--prefix", fleet.name, "--clients", str(clients)]
    command += ["--window", str(fleet.window), "--seconds", str(seconds), "--rate", str(rate), "--quiet", str(quiet)]
    command += ["--fanout"] if fleet.fanout else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            expect(process, "connected")
            yield process
        finally:
            process.kill()


def choose(control: Path, fleet: Fleet, process: "subprocess.Popen[str]", apart: bool) -> list[str]:
    """Who of the connected publishes, and who subscribes; *apart*: at the first worker, and at the second one.

    Else as many of each at both, as what a node can do depends on that. The client ids of those who publish.
    """
    listed = node.ask(control, "clients", limit=LIST, match=f"{fleet.name}-")["clients"]
    at = {int(client["client"].rpartition("-")[2]): client["worker"] for client in listed}
    publishers = deal(at, [0] if apart else [0, 1], fleet.publishers)
    subscribers = deal(at, [1] if apart else [0, 1], fleet.subscribers)
    for chosen in (publishers, subscribers):
        say(process, " ".join(map(str, chosen)))
    expect(process, "subscribed")
    return [f"{fleet.name}-{number}" for number in publishers]


def deal(at: dict[int, int], workers: Sequence[int], count: int) -> list[int]:
    """*count* clients of those whose worker is in *at*, from each of *workers* as many as from the others, or one more.

    They are taken out of it.
    """
    dealt: list[int] = []
    for dealt_to, worker in enumerate(workers):
        more = (count - len(dealt)) // (len(workers) - dealt_to)
        there = sorted(number for number in at if at[number] == worker)[:more]
        if len(there) < more:
            raise ToolFailed(f"of {len(at)} clients too few are at worker {worker}")
        dealt += there
    for number in dealt:
        del at[number]
    return dealt


def say(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def expect(process: "subprocess.Popen[str]", word: str) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != f"{word}\n":
        raise ToolFailed(f"{process.args!r} never {word}")


def finish(process: "subprocess.Popen[str]") -> list[dict[str, float]]:
    """What a fleet has seen each second, and last in all."""
    said, _ = process.communicate(timeout=30)
    if process.returncode:
        raise ToolFailed(f"{process.args!r} ended with {process.returncode}")
    return [json.loads(line) for line in said.splitlines()]


# The node.


def watch(processes: dict[str, int], slow: int, seconds: int) -> list[dict[str, float]]:
    """Resident memory of each process, MiB, at the end of each second; *slow* is a process to slow down, if any.

    It has its SHARE of the time: we are woken late where all cores are busy, and the next stops make up for it.
    """
    began = time.monotonic()
    found: list[dict[str, float]] = []
    ran = 0.0
    try:
        while len(found) < seconds:
            if slow:
                os.kill(slow, signal.SIGSTOP)
                due = began + (ran + RUNS) / SHARE - RUNS
                time.sleep(min(2 * STOPPED, max(0.0, due - time.monotonic())))
                goes_on = time.monotonic()
                os.kill(slow, signal.SIGCONT)
                time.sleep(RUNS)
                ran += time.monotonic() - goes_on
            else:
                time.sleep(max(0.0, began + len(found) + 1 - time.monotonic()))
            if time.monotonic() >= began + len(found) + 1:
                found.append({name: resident_mib(pid) for name, pid in processes.items()})
    finally:
        if slow:
            os.kill(slow, signal.SIGCONT)
    return found


def resident_mib(pid: int) -> float:
    """Of this process alone."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def told(control: Path, began: float, seconds: int) -> list[list[dict[str, Any]]]:
    """The metrics records of the workers for each second since *began*, Unix time; the last may be under way still."""
    deadline = time.monotonic() + LATE
    with redis.Redis(unix_socket_path=str(control.parent / "redis" / "redis.sock")) as server:
        while True:
            found: list[list[dict[str, Any]]] = [[] for _ in range(seconds)]
            entries: Any = server.xrange("weir:metrics")
            for _, entry in entries:
                record = json.loads(entry[b"record"])
                for second in covers(record, began, seconds):
                    found[second].append(record)
            if len(found[-1]) == WORKERS or time.monotonic() > deadline:
                return found
            time.sleep(0.05)  # nobody tells us when the next one is there


def covers(record: dict[str, Any], began: float, seconds: int) -> range:
    """The seconds since *began* that *record* is of, by their middles: a busy worker says late what became of more."""
    first = math.ceil(record["ts"] - record["interval_s"] - began - 0.5)
    return range(max(0, first), min(seconds, math.ceil(record["ts"] - began - 0.5)))


def row(
    second: int,
    seen: dict[str, list[dict[str, float]]],
    records: list[list[dict[str, Any]]],
    resident: dict[str, float],
    budget: float,
) -> Row:
    """*budget*: MiB that a worker may have resident."""
    found: Row = {"second": second + 1, "goodput": sum(rows[second]["received"] for rows in seen.values())}
    for fleet, rows in seen.items():
        found |= {f"{fleet}_{key}": value for key, value in rows[second].items() if key != "second"}
    of_workers = records[second]
    found["level"] = max((record["level"] for record in of_workers), default=0)
    worst = max(of_workers, key=lambda record: max(record["signals"].values(), default=0.0), default=None)
    found["cause"] = "" if worst is None else worst["cause"]
    found["held"] = sum(mean_held(record) for record in of_workers)
    found |= {f"{name}_mib": mib for name, mib in resident.items()}
    found["budget_mib"] = budget
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def mean_held(record: dict[str, Any]) -> float:
    """Clients that were held back, on average over the interval."""
    paused: float = sum(reason["ms"] for reason in record["paused"].values())
    return paused / 1e3 / float(record["interval_s"])
