# What hostile clients cost a well-behaved pair beside them: lost messages, delay, and the broker's memory.
#
# One broker with its default settings serves all attacks, one after the other, so that what one leaves behind weighs
# on the next. The pair is a process of its own with a fixed rate, which counts the delay from when a message was to be
# sent: neither its own scheduling nor the attacker's is measured as the broker's.
import json
import subprocess
import sys
import time
from collections import Counter
from typing import Any, Final

from tests.system.processes import BrokerProcess, free_port, start_weir
from tests.tools.bench.contenders import WEIR_SETTINGS, Bench, ToolFailed, beside, loop_statistics
from tests.tools.bench.cost import resident_kib
from tests.tools.bench.table import markdown, number
from tests.tools.fuzz.campaign import counters
from tests.tools.fuzz.victim import listening

RATE: Final = 1000  # messages a second of the pair, QoS 1
LATEST: Final = 100.0  # ms, p99
SETTLE: Final = 2.0  # seconds between two attacks
NOBODY: Final = "nobody"
TLS_ONLY: Final = "half-handshakes"


def measure(bench: Bench, transport: str, names: list[str], seconds: int) -> tuple[str, dict[str, Any]]:
    """The pair beside nobody, and beside each of the attackers; *seconds* for each."""
    ports = {"tls": free_port()}
    settings = {**WEIR_SETTINGS, "sys.interval": 1, **listening(bench.folder, "tls", ports["tls"])}
    if transport not in ("tcp", "tls"):
        ports[transport] = free_port()
        settings |= listening(bench.folder, transport, ports[transport])
    results: dict[str, Any] = {}
    ports["tcp"] = free_port()
    broker = start_weir(ports["tcp"], bench.folder, settings, bench.packages)
    try:
        for name in [NOBODY, *names]:
            results[name] = beside_one(bench, broker, transport, ports, name, seconds)
            time.sleep(SETTLE)  # the broker's own time to be rid of the attacker, which nothing tells us
            results[name]["kept_kib"] = resident_kib(broker.pid) - results[name].pop("before_kib")
            print(f"... {name}: {verdict(results[name])}", flush=True)
    finally:
        broker.terminate()
    header = ["beside", "lost", "p50 ms", "p99 ms", "last ms", "MiB more", "MiB kept", "attacker", "verdict"]
    table = markdown(header, [row(name, one) for name, one in results.items()])
    loop = loop_statistics(broker)
    held = ", ".join(f"{key} {loop[key]}" for key in ("longest_slice_ms", "longest_collection_ms") if key in loop)
    return f"{table}\n\nThe loop over all of it: {held}.", results


def beside_one(
    bench: Bench, broker: BrokerProcess, transport: str, ports: dict[str, int], name: str, seconds: int
) -> dict[str, Any]:
    counted, before = Counter(counters(broker.port)), resident_kib(broker.pid)
    if name == NOBODY:
        result = pair(bench, transport, ports[transport], seconds)
        return result | {"before_kib": before, "grown_kib": resident_kib(broker.pid) - before, "reasons": {}}
    through = "tls" if name == TLS_ONLY else transport
    command = [sys.executable, "-m", "tests.tools.bench.attackers", name]
    command += ["--port", str(ports[through]), "--transport", through]
    with beside(command) as attacker:
        assert attacker.stdout is not None
        if attacker.stdout.readline() != "ready\n":
            raise ToolFailed(f"{name} could not attack")
        result = pair(bench, transport, ports[transport], seconds)
        grown = resident_kib(broker.pid) - before
        reasons = Counter(counters(broker.port)) - counted  # before it is our end that ends the attacker
    return result | {"before_kib": before, "grown_kib": grown, "reasons": dict(reasons)}


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
    if result["lost"]:
        return f"lost {result['lost']} {result.get('said', '')}".strip()
    return "fine" if result["p99_us"] / 1e3 <= LATEST else "too late"


def row(name: str, result: dict[str, Any]) -> list[object]:
    became = ", ".join(f"{reason} {times}" for reason, times in sorted(result["reasons"].items()))
    return [
        name,
        result["lost"],
        *[number(result[key] / 1e3) for key in ("p50_us", "p99_us", "max_us")],
        f"{result['grown_kib'] / 1024:.1f}",
        f"{result['kept_kib'] / 1024:.1f}",
        became or "-",
        verdict(result),
    ]
