# Modest clients beside what wants all of a node: what they notice of it. Real load, and real times: a machine with
# something else to do fails these tests, so `make test` leaves them out.
import json
import math
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.system import scene
from tests.system.processes import BrokerProcess
from tests.system.scene import Silent, StartWeir
from tests.tools.bench import overload
from tests.tools.bench.contenders import beside, build_tool

pytestmark = [pytest.mark.weir_only("it protects nobody"), pytest.mark.slow, pytest.mark.faults]

Told = dict[str, Any]

MODEST: Final = 100  # pairs
RATE: Final = 1000  # messages a second of all of them
SECONDS: Final = 10
SETTLES: Final = 1.0  # seconds until a load that was started is all there
FEW_MS: Final = 30.0  # that nobody notices
DURING: Final = 15  # seconds of a load in which the fleet comes in
FLEET: Final = 20_000
FLEET_MS: Final = 100.0
SLOW_MS: Final = 150.0  # beside one who wants more of a slow worker than it can do
HELD: Final = 0.3  # seconds until he is held back
ASKED: Final = 0.5  # seconds after which we ask whether he was
ARRIVES: Final = 2  # seconds in which what is under way comes to its end
MODESTY: Final = overload.Fleet("modest", MODEST, 20, fanout=False, window=1000)
GREED: Final = overload.Fleet("greedy", 1, 10, fanout=True, window=4096)
AT_FULL_SPEED: Final = 1_000_000  # publishes a second
SWARMS: Final = 4
ALL_IN: Final = 60.0  # seconds
SILENT: Final = 200


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the load generators."""
    folder = tmp_path_factory.mktemp("tools")
    for name in ("mqload", "swarm", "surge"):
        build_tool(name, folder, tls=False)
    return folder


def mqload(tools: Path, weir: BrokerProcess, prefix: str, **options: object) -> list[str]:
    command = [str(tools / "mqload"), "--port", str(weir.port), "--prefix", prefix]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    return command


def modest(tools: Path, weir: BrokerProcess, prefix: str, pairs: int = MODEST) -> Told:
    """What became of the modest ones: each publishes with QoS 1 at its own pace, to a subscriber of its own."""
    command = mqload(tools, weir, prefix, pubs=pairs, qos=1, rate=RATE, count=RATE * SECONDS, maxsec=SECONDS + 30)
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 60)
    assert done.stdout, done.stderr
    told: Told = json.loads(done.stdout)
    return told


@contextmanager
def running(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A load that goes on by itself, and is ended."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        time.sleep(SETTLES)  # it says nothing until its end
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        process.kill()
        process.communicate()


def figures(told: Told) -> str:
    return ", ".join(f"{name[:-3]} {told[name] / 1e3:.1f}" for name in ("p50_us", "p99_us", "worst_p99_us", "max_us"))


def judge(calm: Told, beside_it: Told, least_ms: float) -> None:
    """Nobody lost anything, and each had its p99 below *least_ms*, or three times what it is in peace."""
    p99 = beside_it["worst_p99_us"] / 1e3
    bar = max(3 * calm["worst_p99_us"] / 1e3, least_ms)
    print(f"ms, calm: {figures(calm)}; beside it: {figures(beside_it)}; at most {bar:.1f}")
    assert (calm["expected"], beside_it["expected"]) == (calm["received"], beside_it["received"])
    assert p99 < bar


def test_modest_clients_beside_one_that_takes_the_processor(start_weir: StartWeir, tools: Path) -> None:
    """One client at full speed would take the broker away from all the others."""
    weir = scene.begin(start_weir)
    calm = modest(tools, weir, "calm")
    flood = mqload(
        tools, weir, "flood", pattern="fanout", subs=200, window=100_000, payload=100, count=10**9, maxsec=60
    )
    with running(flood):
        crowded = modest(tools, weir, "crowded")
        print(f"levels {scene.levels(weir)}, {scene.totals(weir)['reasons']}")

    judge(calm, crowded, FEW_MS)


def test_modest_clients_beside_one_that_wants_more_than_a_slow_worker_can_do(
    start_weir: StartWeir, tools: Path
) -> None:
    """One client would fill the way to what is slow, and everybody's publishes would wait behind its own."""
    weir = scene.begin(start_weir)
    calm, _ = beside_a_slow_worker(weir, tools, greedy=False)
    crowded, held = beside_a_slow_worker(weir, tools, greedy=True)

    bar = max(3 * calm["worst_p99_ms"], SLOW_MS)
    told = [
        f"{one['delivery_p50_ms']:.1f}, {one['delivery_p99_ms']:.1f}, {one['worst_p99_ms']:.1f}"
        for one in (calm, crowded)
    ]
    print(
        f"ms (p50, p99, worst p99), calm: {told[0]}; beside it: {told[1]}; at most {bar:.1f}; held after {held:.3f} s"
    )
    assert (calm["sent"], crowded["sent"]) == (calm["received"], crowded["received"])
    assert crowded["worst_p99_ms"] < bar
    assert held < HELD


def beside_a_slow_worker(weir: BrokerProcess, tools: Path, *, greedy: bool) -> tuple[dict[str, float], float]:
    """What the modest saw, and after how many seconds the greedy one was held back, if it is there.

    All publish at one worker, to subscribers at another one that is stopped for most of each moment.
    """
    assert weir.control is not None
    surge, seconds, held = tools / "surge", SECONDS + ARRIVES, 0.0
    with ExitStack() as stack:
        modest = stack.enter_context(overload.surging(surge, weir, MODESTY, RATE, seconds, ARRIVES))
        fleets = [modest]
        overload.choose(weir.control, MODESTY, modest, apart=True)
        if greedy:
            greed = stack.enter_context(overload.surging(surge, weir, GREED, AT_FULL_SPEED, seconds))
            fleets.append(greed)
            (culprit,) = overload.choose(weir.control, GREED, greed, apart=True)
        slow = overload.members(weir)["worker1"]
        for fleet in fleets:
            overload.say(fleet, "begin")
        began = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            watching = thread.submit(overload.watch, {}, slow, seconds)
            if greedy:
                time.sleep(ASKED)
                held = first_held(weir, culprit) - began
            watching.result()
        return overload.finish(modest)[-1], held


def first_held(weir: BrokerProcess, client: str) -> float:
    """When *client* was held back first, by the monotonic clock; infinity: it was not."""
    decisions = scene.ask(weir, "why", client=client)["decisions"]
    now = time.monotonic()
    return min((now - one["first"] for one in decisions), default=math.inf)


def test_modest_clients_beside_a_fleet_that_comes_all_at_once(start_weir: StartWeir, tools: Path) -> None:
    """After an outage those who are in would stand still until everybody is back."""
    weir = scene.begin(start_weir)
    each = FLEET // SWARMS
    load = mqload(tools, weir, "pairs", pubs=MODEST, qos=1, rate=RATE, count=RATE * DURING, maxsec=60)
    with ExitStack() as stack:
        pairs = stack.enter_context(subprocess.Popen(load, stdout=subprocess.PIPE, text=True))
        time.sleep(SETTLES)
        began = time.monotonic()
        idle = [str(tools / "swarm"), "idle", "--port", str(weir.port), "--count", str(each), "--window", str(each)]
        swarms = [[*idle, "--first", str(each * number)] for number in range(SWARMS)]
        for one in [stack.enter_context(beside(swarm)) for swarm in swarms]:
            assert one.stdout is not None and one.stdout.readline(), "not all clients could connect"
        seconds = time.monotonic() - began
        told: Told = json.loads(pairs.communicate(timeout=60)[0])

    print(f"{FLEET} in {seconds:.1f} s; ms, those who are in: {figures(told)}")
    assert seconds < ALL_IN
    assert told["expected"] == told["received"]
    assert told["worst_p99_us"] / 1e3 < FLEET_MS


def test_a_pair_beside_clients_that_ping_and_never_read(start_weir: StartWeir, tools: Path) -> None:
    """Clients that take nothing would hold up those who do."""
    weir = scene.begin(start_weir)
    calm = modest(tools, weir, "calm", pairs=1)
    command = mqload(tools, weir, "crowded", pubs=1, qos=1, rate=RATE, count=RATE * SECONDS, maxsec=SECONDS + 30)
    with ExitStack() as stack:
        silent = [stack.enter_context(closing(Silent(weir.port, f"silent-{number}"))) for number in range(SILENT)]
        pair = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        while pair.poll() is None:
            for client in silent:
                client.ping()
            time.sleep(0.01)  # or our own process would be what the pair has to wait for
        assert pair.stdout is not None
        judge(calm, json.loads(pair.stdout.read()), FEW_MS)
    scene.until(lambda: scene.totals(weir)["counters"]["answers_sent"] > 1000 * SILENT, "they did not ping")
