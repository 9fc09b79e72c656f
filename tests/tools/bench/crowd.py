# A fleet that connects all at once, beside a pair that is in: how soon everybody is in, and what the pair notices.
#
# The fleet is several processes, each of which opens its connections as fast as the kernel takes them. The pair's
# messages all fall into the time in which the fleet comes in, as long as that takes PAIR_SECONDS.
import json
import subprocess
import time
from contextlib import ExitStack
from typing import Any, Final

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import Bench, beside, loop_statistics
from tests.tools.bench.cost import cpu_seconds
from tests.tools.bench.hostile import RATE
from tests.tools.bench.scale import swarm
from tests.tools.bench.table import markdown, number

SWARMS: Final = 4
WORKERS: Final = 2
PAIR_SECONDS: Final = 3
PAIR_BEGINS: Final = 0.5  # seconds until the pair is connected and has begun
LATEST_MS: Final = 100.0  # of the pair's messages, p99
LONGEST: Final = 60.0  # seconds until everybody is in


def measure(bench: Bench, runs: int, clients: int) -> tuple[str, dict[str, Any]]:
    """A table, and every single result, of *runs* fleets of *clients* each."""
    results = []
    for _ in range(runs):
        with bench.weir(workers=WORKERS) as weir:
            results.append(one_fleet(bench, weir, clients))
        results[-1]["loop"] = loop_statistics(weir)
    rows: list[list[object]] = [
        [
            number(one["seconds"]),
            number(clients / one["seconds"]),
            number(one["cpu_us"]),
            *[number(one["pair"][key] / 1e3) for key in ("p50_us", "p99_us", "max_us")],
            one["pair"]["expected"] - one["pair"]["received"],
        ]
        for one in results
    ]
    rows.append([f"{LONGEST} or less", "-", "-", "-", f"{LATEST_MS} or less", "-", "0"])
    header = ["all in, s", "connects/s", "CPU us for each", "pair p50 ms", "p99 ms", "last ms", "lost"]
    return f"{clients} clients, {WORKERS} workers:\n\n{markdown(header, rows)}", {"crowd": results}


def one_fleet(bench: Bench, weir: BrokerProcess, clients: int) -> dict[str, Any]:
    each = clients // SWARMS
    command = [str(bench.mqload), "--pubs", "1", "--qos", "1", "--rate", str(RATE), "--prefix", "pair"]
    command += ["--count", str(RATE * PAIR_SECONDS), "--port", str(weir.port), "--maxsec", "60"]
    with ExitStack() as stack:
        pair = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        time.sleep(PAIR_BEGINS)
        before, began = cpu_seconds(weir.pid), time.monotonic()
        swarms = [
            stack.enter_context(beside(swarm(bench, weir, "idle", count=each, window=each, first=each * n)))
            for n in range(SWARMS)
        ]
        for one in swarms:
            assert one.stdout is not None and one.stdout.readline(), "not all clients could connect"
        seconds, spent = time.monotonic() - began, cpu_seconds(weir.pid) - before
        found: dict[str, Any] = json.loads(pair.communicate()[0])
    return {"seconds": seconds, "cpu_us": spent / clients * 1e6, "pair": found}
