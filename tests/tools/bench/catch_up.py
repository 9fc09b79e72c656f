# Clients that come back to what waits for them: how fast they get it, of Weir beside Mosquitto, and what other clients
# notice meanwhile.
#
# Each run fills queues for absent subscribers, as any publisher would, and has the subscribers come back. Of the time
# between their first CONNECT and the last message that one of them gets, everything counts. With `live` clients beside
# them, these are another process, with sessions that are not stored; their latency counts for as long as that takes.
# Here `p50` and `p99` are the seconds of one subscriber, from its CONNECT to its last message.
#
# Where there are many subscribers Mosquitto has fewer of them. With 10 000 one run takes it a hundred seconds, and its
# figures for each message hardly depend on their number.
import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from tests.system.processes import BrokerProcess
from tests.tools.bench.contenders import MOSQUITTO, WEIR, Bench, ToolFailed
from tests.tools.bench.table import markdown, number

UNLIMITED: Final = "max_queued_messages 0\nmax_inflight_messages 0\n"  # of Mosquitto
LONGEST_RUN: Final = 120  # seconds
# Of Weir: all subscribers connect at once at first, and that is not what is measured.
PATIENT: Final[Mapping[str, object]] = {"limits.connect_timeout": "60s"}
ENDLESS: Final = 1_000_000_000  # messages
QUICK_SHARE: Final = 20  # a quick run has so many times fewer messages, or subscribers if there are many
NO_GOAL: Final = "-"


class CatchUp(NamedTuple):
    name: str
    subscribers: int
    messages: int  # for each of them
    least: int  # messages a second
    live: int = 0  # messages a second beside it
    most: float = 0.0  # p99 of their latency, milliseconds
    theirs: int = 0  # subscribers of Mosquitto; 0: as many


CATCH_UPS: Final = (
    CatchUp("catch-up-1-of-10000", 1, 10_000, 300_000),
    CatchUp("catch-up-10000-of-100", 10_000, 100, 150_000, live=5_000, most=50.0, theirs=1_000),
)
LIVE: Final = ("--pattern", "p2p", "--pubs", "10", "--qos", "1", "--prefix", "live", "--live", "--count", str(ENDLESS))


def measure(
    bench: Bench, names: Sequence[str], runs: int, quick: bool, settings: Mapping[str, object]
) -> tuple[str, dict[str, Any]]:
    """A table, and every single result: *runs* runs of each load on both brokers, in turn. *settings*: of Weir."""
    rows = []
    results: dict[str, Any] = {}
    for load in CATCH_UPS:
        if load.name not in names:
            continue
        found = results[load.name] = _run(bench, load, runs, quick, settings)
        theirs, ours = ([_middle(found[name], key) for key in FIGURES] for name in (MOSQUITTO, WEIR))
        live = [number(theirs[-1] / 1e3), number(ours[-1] / 1e3), number(load.most)] if load.live else [NO_GOAL] * 3
        costs = map(number, (theirs[1], ours[1]))
        worst = map(number, (theirs[2] / 1e6, ours[2] / 1e6))
        rows.append([load.name, number(theirs[0]), number(ours[0]), load.least, *costs, *worst, *live])
        print(f"... {load.name}: {number(ours[0])} a second", flush=True)
    header = ["load", "Mosquitto /s", "Weir /s", "at least", "Mosquitto us", "Weir us", "Mosquitto p99 s", "Weir p99 s"]
    return f"\n{markdown([*header, 'live p99 ms: Mosquitto', 'Weir', 'at most'], rows)}", results


FIGURES: Final = ("rx_per_s", "broker_cpu_us_per_rx", "p99_us", "live_p99_us")


def _middle(results: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(float(each[key]) for each in results)


def _run(
    bench: Bench, load: CatchUp, runs: int, quick: bool, settings: Mapping[str, object]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {MOSQUITTO: [], WEIR: []}
    with bench.mosquitto(more=UNLIMITED) as mosquitto, bench.weir(more={**settings, **PATIENT}) as weir:
        for run in range(-1, runs):  # the first one warms up
            for name, broker in ((MOSQUITTO, mosquitto), (WEIR, weir)):
                own = load if name == WEIR else load._replace(subscribers=load.theirs or load.subscribers)
                result = once(bench, smaller(own) if quick or run < 0 else own, broker, f"r{run}")
                if run >= 0:
                    found[name].append(result)
    return found


def smaller(load: CatchUp) -> CatchUp:
    """*load* for a run that is not to be measured."""
    if load.subscribers > 1:
        return load._replace(subscribers=load.subscribers // QUICK_SHARE)
    return load._replace(messages=load.messages // QUICK_SHARE)


def once(
    bench: Bench,
    load: CatchUp,
    broker: BrokerProcess,
    prefix: str,
    pids: str = "",
    pattern: Sequence[str] = ("fanout", "--pubs", "1"),
) -> dict[str, Any]:
    """One run: what mqload says of it, and `live_p99_us`. *prefix*: of names that no other run has.

    *pids*: of the processes whose CPU counts, and that of their children; by default the broker alone.
    """
    command = [str(bench.mqload), "--port", str(broker.port), "--pids", pids or str(broker.pid)]
    command += ["--maxsec", str(LONGEST_RUN)]
    away = ["--pattern", *pattern, "--subs", str(load.subscribers), "--count", str(load.messages)]
    away += ["--qos", "1", "--window", "100", "--persistent", "--away", "--return", "0", "--prefix", prefix]
    with _tool([*command, *away]) as absent:
        _line(absent)
        if not load.live:
            _go_on(absent)
            return {**_line(absent), "live_p99_us": 0}
        with _tool([*command, *LIVE, "--rate", str(load.live), "--maxsec", str(2 * LONGEST_RUN)]) as live:
            _line(live)
            _go_on(live)
            _go_on(absent)
            result = _line(absent)
            assert live.stdin is not None
            live.stdin.close()
            return {**result, "live_p99_us": _line(live)["p99_us"]}


@contextmanager
def _tool(command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _line(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of JSON that *process* prints. ToolFailed: there is none."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise ToolFailed(f"{process.args!r} ended with {process.wait()}")
    result: dict[str, Any] = json.loads(line)
    if result.get("stalled"):
        raise ToolFailed(f"{process.args!r} stalled: {line}")
    return result


def _go_on(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
