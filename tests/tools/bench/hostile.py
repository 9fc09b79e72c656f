# What hostile clients cost a well-behaved pair beside them: lost messages, delay, memory, and workers.
#
# A node of WORKERS workers that may use MEMORY bytes, with its default settings otherwise, is started afresh for each
# attack, so that its longest slice, its memory and the death of a worker belong to that attack. The pair is a process
# of its own with a fixed rate, which counts the delay from when a message was to be sent: neither its own scheduling
# nor the attacker's is measured as the broker's. Beside some attacks an honest client does again and again what the
# attack would prevent, see visits.py.
import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final

from tests.system.node import worker_pids
from tests.system.processes import BrokerProcess, free_port, start_weir
from tests.tools.bench.attackers import ATTACKS
from tests.tools.bench.contenders import WEIR_SETTINGS, Bench, ToolFailed
from tests.tools.bench.cost import forget_peak, peak_kib, resident_kib
from tests.tools.bench.table import markdown, number
from tests.tools.bench.visits import Visits, password_file, visiting
from tests.tools.fuzz.campaign import counters
from tests.tools.fuzz.victim import listening

RATE: Final = 1000  # messages a second of the pair, QoS 1
LATEST: Final = 30.0  # ms, p99
WORKERS: Final = 2
MEMORY: Final = 1 << 30  # bytes that all processes of the node may use
FAILED_VISITS: Final = 0.01  # part of an honest client's visits that may fail
SETTLE: Final = 2.0  # seconds after an attack
END: Final = 30.0  # seconds that an attacker may take to end
NOBODY: Final = "nobody"
FINE: Final = "fine"
HEADER: Final = (
    "beside",
    "lost",
    "p50 ms",
    "p99 ms",
    "last ms",
    "slice ms",
    "MiB peak",
    "MiB kept",
    "connections",
    "ended",
    "visits",
    "failed",
    "visit p99 ms",
    "attacker",
    "verdict",
)


def measure(bench: Bench, transport: str, names: list[str], seconds: int) -> tuple[str, dict[str, Any]]:
    """The pair beside nobody, and beside each of the attackers; *seconds* for each."""
    results: dict[str, Any] = {}
    for name in [NOBODY, *names]:
        results[name] = beside_one(bench, transport, name, seconds)
        print(f"... {name}: {verdict(results[name])}", flush=True)
    table = markdown(HEADER, [row(name, one) for name, one in results.items()])
    return f"{table}\n\n{WORKERS} workers, {MEMORY >> 20} MiB; p99 at most {LATEST:.0f} ms.", results


def failures(results: dict[str, Any]) -> list[str]:
    """What is not as it must be, one sentence for each attacker."""
    judged = {name: verdict(result) for name, result in results.items()}
    return [f"{name}: {words}" for name, words in judged.items() if words != FINE]


def beside_one(bench: Bench, transport: str, name: str, seconds: int) -> dict[str, Any]:
    """A node of its own, the pair, and the attacker *name* beside it."""
    ports = {key: free_port() for key in ("tcp", "tls", "ws", "wss", "admin")}
    settings: dict[str, object] = {**WEIR_SETTINGS, "sys.interval": 1, "node.workers": WORKERS, "node.memory": MEMORY}
    settings |= {"access.password_file": password_file(bench.folder), "access.allow_anonymous": "true"}
    settings |= {"admin.enabled": "true", "admin.port": ports["admin"]}
    for listener in ("tls", "ws", "wss"):
        settings |= listening(bench.folder, listener, ports[listener])
    broker = start_weir(ports["tcp"], bench.folder, settings, bench.packages)
    try:
        workers, before = worker_pids_of(broker), resident_kib(broker.pid)
        result = attacked(bench, broker, transport, ports, name, seconds)
        time.sleep(SETTLE)  # the broker's own time to be rid of the attacker, which nothing tells us
        result["kept_kib"] = resident_kib(broker.pid) - before
        result["died"] = died(broker, workers)
    finally:
        broker.terminate()
    return result | {"longest_slice_ms": longest_slice_ms(broker)}


def attacked(
    bench: Bench, broker: BrokerProcess, transport: str, ports: dict[str, int], name: str, seconds: int
) -> dict[str, Any]:
    """What the pair saw, and what became of the attacker *name*."""
    counted = Counter(counters(broker.port))
    forget_peak(broker.pid)
    if name == NOBODY:
        result = pair(bench, transport, ports[transport], seconds)
        return result | {"peak_kib": peak_kib(broker.pid), "reasons": {}, "attacker": {}, "visits": Visits()}
    attack = ATTACKS[name]
    through = attack.over or transport
    command = [sys.executable, "-m", "tests.tools.bench.attackers", name, "--port", str(ports[through])]
    command += ["--transport", "tcp" if through == "admin" else through]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attacker:
        assert attacker.stdout is not None
        try:
            with visiting(attack.beside, ports) as visits:
                if attacker.stdout.readline() != "ready\n":
                    raise ToolFailed(f"{name} could not attack")
                result = pair(bench, transport, ports[transport], seconds)
            result |= {"peak_kib": peak_kib(broker.pid), "visits": visits, "reasons": reasons(broker, counted)}
        finally:
            told = attacker.communicate(timeout=END)[0]
    return result | {"attacker": json.loads(told)}


def reasons(broker: BrokerProcess, before: Counter[str]) -> dict[str, int]:
    """What the broker counted since *before*, by reason, while the attacker is still there."""
    try:
        return dict(Counter(counters(broker.port)) - before)
    except (AssertionError, OSError) as error:
        return {f"not told: {error}": 1}


def worker_pids_of(broker: BrokerProcess) -> list[int]:
    assert broker.control is not None
    return worker_pids(broker.control)


def died(broker: BrokerProcess, workers: list[int]) -> int:
    """How many workers died; all if the node has ended."""
    if broker.process.poll() is not None:
        return len(workers)
    replaced = len(set(workers) - set(worker_pids_of(broker)))
    return max(replaced, broker.log_text().count('"worker_died"'))


def longest_slice_ms(broker: BrokerProcess) -> float:
    """Of all workers, as they log it at their end; a worker that was killed logs none."""
    lines = [json.loads(line) for line in broker.log_text().splitlines() if '"loop_statistics"' in line]
    return max((float(line["longest_slice_ms"]) for line in lines), default=0.0)


def pair(bench: Bench, transport: str, port: int, seconds: int) -> dict[str, Any]:
    """What the load generator saw; a connection that it lost has lost it everything."""
    command = [str(bench.mqload), "--pubs", "1", "--qos", "1", "--rate", str(RATE), "--count", str(RATE * seconds)]
    command += ["--port", str(port), "--prefix", "pair", "--maxsec", str(seconds + 20)]
    if transport != "tcp":
        command += ["--transport", transport]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    try:
        result: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"lost": RATE * seconds, "p50_us": 0, "p99_us": 0, "max_us": 0, "said": done.stderr.strip()}
    return result | {"lost": result["expected"] - result["received"]}


def verdict(result: dict[str, Any]) -> str:
    """FINE, or each bar that the node missed."""
    missed = []
    if result["died"]:
        missed.append(f"{result['died']} workers died")
    if result["lost"]:
        missed.append(f"the pair lost {result['lost']} {result.get('said', '')}".strip())
    if result["p99_us"] / 1e3 > LATEST:
        missed.append(f"p99 {result['p99_us'] / 1e3:.0f} ms, at most {LATEST:.0f}")
    if result["peak_kib"] > MEMORY >> 10:
        missed.append(f"{result['peak_kib'] >> 10} MiB, at most {MEMORY >> 20}")
    visits: Visits = result["visits"]
    if visits.failed > FAILED_VISITS * (visits.failed + len(visits.took)):
        missed.append(f"{visits.failed} of {visits.failed + len(visits.took)} visits failed: {visits.why}")
    return "; ".join(missed) or FINE


def row(name: str, result: dict[str, Any]) -> list[object]:
    became = ", ".join(f"{reason} {times}" for reason, times in sorted(result["reasons"].items()))
    visits: Visits = result["visits"]
    return [
        name,
        result["lost"],
        *[number(result[key] / 1e3) for key in ("p50_us", "p99_us", "max_us")],
        number(result["longest_slice_ms"]),
        result["peak_kib"] >> 10,
        f"{result['kept_kib'] / 1024:.1f}",
        result["attacker"].get("opened", "-"),
        result["attacker"].get("ended", "-"),
        len(visits.took) or "-",
        visits.failed or "-",
        number(visits.p99_ms()),
        became or "-",
        verdict(result),
    ]
