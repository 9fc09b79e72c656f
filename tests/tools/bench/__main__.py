# python -m tests.tools.bench BENCHMARK: measures, and prints tables.
#
# `speed`, `transports`, `connects`, `storm` and `fanout` compare Weir with Mosquitto. The others measure Weir alone:
# `hostile` beside clients that mean harm, `crowd` while many clients connect, `node` with two workers and with one,
# `flush` with adaptive flushing and with a send at the end of each tick, `protection` with overload protection and
# without it, `versus` this build beside another one, `durable` beside Mosquitto with sessions in its memory,
# `durable-sizes` what durable sessions take while nothing happens, `restart` how soon a node serves that has many, and
# `takeover` how soon a client has its durable session at another worker, or after the death of its worker, and
# `applications` services whose messages wait in a log, in Kafka or in Redis, `stuck-member` when others have the work
# of a service that does not acknowledge, `inbound_cost` publishes that go through the inbound backbone, `cluster`
# messages and sessions that go from one node to another, and `drain` a node that is drained under load, or dies.
import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.tools.bench import (
    applications,
    cluster,
    crowd,
    drain,
    durable,
    durable_sizes,
    flush,
    hostile,
    inbound_cost,
    node,
    protection,
    restart,
    scale,
    speed,
    stuck_member,
    takeover,
    transports,
    versus,
)
from tests.tools.bench.attackers import ATTACKS
from tests.tools.bench.contenders import ENCRYPTED, TRANSPORTS, Bench, open_bench
from tests.tools.bench.loads import LOADS, Load
from tests.tools.bench.table import number

QUICK_CPU: Final = 0.05  # seconds of broker CPU for each run of --quick: does it work, not how fast is it
QUICK_SHARE: Final = 20  # --quick makes so many times fewer clients
ROADS: Final = ("transports", "hostile")  # what may go over others than TCP


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.bench", description="Measure Weir beside Mosquitto.")
    benches = ["speed", "transports", "connects", "crowd", "storm", "fanout", "hostile", "node", "flush", "protection"]
    benches += ["versus", "durable", "durable-sizes", "restart", "takeover", "applications", "stuck-member"]
    benches += ["inbound_cost", "cluster", "drain"]
    parser.add_argument("what", nargs="?", default="speed", choices=benches)
    parser.add_argument("--quick", action="store_true", help="one tiny run of each: shows that it works, not how fast")
    parser.add_argument("--runs", type=int, default=5, help="of each broker; the median counts (default 5)")
    parser.add_argument("--loads", metavar="NAME,...", help=f"of: {', '.join(load.name for load in LOADS)}")
    parser.add_argument(
        "--transport", choices=TRANSPORTS, help="of `transports`: this one only; of `hostile`: default tcp"
    )
    parser.add_argument("--v5", action="store_true", help="the clients speak MQTT 5.0 instead of 3.1.1")
    parser.add_argument("--interpreted", action="store_true", help="measure the source tree, not the installed Weir")
    parser.add_argument("--other", type=Path, metavar="PYTHON", help="of `versus`: the interpreter of the other build")
    parser.add_argument(
        "--other-sources", type=Path, metavar="FOLDER", help="of `versus --interpreted`: the other build's source tree"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single result there")
    parser.add_argument("--clients", type=int, default=9000, help="idle, or subscribed to the fan-out (default 9000)")
    parser.add_argument("--connects", type=int, default=10_000, help="connects in each run (default 10000)")
    parser.add_argument(
        "--sessions", type=int, default=100_000, help="of `durable-sizes` and `restart` (default 100000)"
    )
    parser.add_argument("--workers", type=int, default=2, help="of `restart` (default 2)")
    parser.add_argument("--takeovers", type=int, default=200, help="of `takeover`, of each kind (default 200)")
    parser.add_argument("--kills", type=int, default=takeover.KILLS, help="of `takeover` (default 10)")
    parser.add_argument(
        "--logs", metavar="NAME,...", help=f"of `applications`, `stuck-member`: {', '.join(applications.LOGS)}"
    )
    parser.add_argument("--attackers", metavar="NAME,...", help=f"of `hostile`, of: {', '.join(ATTACKS)}")
    parser.add_argument(
        "--seconds",
        type=int,
        default=10,
        help="of `hostile`, beside each attacker, and of a run of `flush` (default 10)",
    )
    parser.add_argument(
        "--rate", type=int, default=1000, help="SUBSCRIBE, and as many UNSUBSCRIBE, a second (default 1000)"
    )
    return parser


def chosen(parser: argparse.ArgumentParser, what: str, names: str | None, known: Sequence[str]) -> list[str]:
    """Those that are named, or all."""
    if names is None:
        return list(known)
    wrong = [name for name in names.split(",") if name not in known]
    if wrong:
        parser.error(f"no such {what}: {', '.join(wrong)}; there are {', '.join(known)}")
    return names.split(",")


def measure_speed(bench: Bench, loads: list[Load], arguments: argparse.Namespace, least_cpu: float) -> dict[str, Any]:
    outcomes = []
    for load in loads:
        outcomes.append(speed.measure(bench, load, arguments.runs, arguments.v5, least_cpu))
        print(f"... {load.name}: {number(outcomes[-1].ratio)} times", flush=True)
    print(f"\n{speed.report(outcomes, arguments.v5, arguments.interpreted)}")
    return {outcome.load.name: asdict(outcome) for outcome in outcomes}


def main() -> None:
    parser = options()
    arguments = parser.parse_args()
    if arguments.transport not in (None, "tcp") and arguments.what not in ROADS:
        parser.error(f"--transport: `{arguments.what}` measures TCP alone, {' and '.join(ROADS)} others, too")
    if arguments.what == "versus" and (not arguments.other or arguments.interpreted != bool(arguments.other_sources)):
        parser.error("`versus` needs --other, and --other-sources with --interpreted and only then")
    if arguments.what == "durable":
        names = chosen(parser, "load", arguments.loads, durable.NAMES)
        arguments.loads = None
    known = {load.name: load for load in LOADS}
    loads = [known[name] for name in chosen(parser, "load", arguments.loads, list(known))]
    attackers = chosen(parser, "attacker", arguments.attackers, list(ATTACKS))
    least_cpu, clients, connects = speed.LEAST_CPU, min(arguments.clients, scale.descriptors()), arguments.connects
    if arguments.quick:
        arguments.runs, least_cpu = 1, QUICK_CPU
        clients, connects = clients // QUICK_SHARE, connects // QUICK_SHARE
        arguments.sessions //= QUICK_SHARE
        arguments.takeovers, arguments.kills = arguments.takeovers // QUICK_SHARE, takeover.PER_NODE
    roads = (arguments.transport,) if arguments.transport else TRANSPORTS
    with open_bench(arguments.interpreted) as bench:
        if arguments.what == "transports" and not bench.tls and set(roads) & set(ENCRYPTED):
            parser.error("OpenSSL's headers are missing: install libssl-dev, or name a --transport without TLS")
        print(f"{bench.banner()}; MQTT {'5.0' if arguments.v5 else '3.1.1'}; median of {arguments.runs}\n", flush=True)
        if arguments.what == "speed":
            results = measure_speed(bench, loads, arguments, least_cpu)
        else:
            if arguments.what == "transports":
                sizes = min(clients, transports.MOST_CLIENTS), min(connects, transports.MOST_CLIENTS)
                table, results = transports.measure(bench, roads, arguments.runs, arguments.v5, least_cpu, *sizes)
            elif arguments.what == "connects":
                table, results = scale.connects(bench, arguments.runs, connects, clients)
            elif arguments.what == "crowd":
                table, results = crowd.measure(bench, arguments.runs, 2 * connects)
            elif arguments.what == "hostile":
                table, results = hostile.measure(bench, arguments.transport or "tcp", attackers, arguments.seconds)
            elif arguments.what == "node":
                table, results = node.measure(bench, arguments.runs, arguments.v5, least_cpu)
            elif arguments.what == "protection":
                table, results = protection.measure(bench, loads, arguments.runs, arguments.v5, least_cpu)
            elif arguments.what == "versus":
                other = arguments.other, arguments.other_sources
                table, results = versus.measure(bench, *other, loads, arguments.runs, arguments.v5, least_cpu)
            elif arguments.what == "durable":
                table, results = durable.measure(bench, names, arguments.runs, arguments.quick)
            elif arguments.what == "durable-sizes":
                table, results = durable_sizes.measure(bench, arguments.sessions)
            elif arguments.what == "restart":
                table, results = restart.measure(bench, arguments.workers, arguments.sessions)
            elif arguments.what == "takeover":
                table, results = takeover.measure(bench, arguments.takeovers, arguments.kills)
            elif arguments.what == "applications":
                logs = chosen(parser, "log", arguments.logs, applications.LOGS)
                table, results = applications.measure(bench, logs, arguments.runs, arguments.quick)
            elif arguments.what == "stuck-member":
                logs = chosen(parser, "log", arguments.logs, applications.LOGS)
                table, results = stuck_member.measure(bench, logs, arguments.runs, arguments.quick)
            elif arguments.what == "inbound_cost":
                table, results = inbound_cost.measure(bench, arguments.runs, arguments.quick)
            elif arguments.what == "cluster":
                table, results = cluster.measure(bench, arguments.runs, arguments.takeovers, arguments.quick)
            elif arguments.what == "drain":
                table, results = drain.measure(bench, 2 * connects, arguments.quick)
            elif arguments.what == "flush":
                table, results = flush.measure(bench, arguments.runs, arguments.seconds)
            elif arguments.what == "storm":
                table, results = scale.storm(bench, arguments.runs, arguments.rate, least_cpu)
            else:
                table, results = scale.fanout(bench, clients, publishes=20)
            print(table)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2, default=vars) + "\n")
    if arguments.what == "hostile" and (missed := hostile.failures(results)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
