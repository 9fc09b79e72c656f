# python -m tests.tools.soak --minutes 60: a node under steady load beside the fuzzer, and clients that come and go.
#
# Nothing may be lost, no process may grow after the first sixth of the time, and all descriptors must be closed at the
# end. What the fuzzer, and clients that never come back, may lawfully leave behind is bounded by settings, so that
# all of it is full before that sixth has passed.
import argparse
import json
import secrets
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count, takewhile
from pathlib import Path
from typing import Final

from tests.system.processes import BrokerProcess, free_port, packages, start_weir
from tests.tools.bench.contenders import build_tool
from tests.tools.bench.cost import cpu_seconds
from tests.tools.fuzz.campaign import CONCURRENT
from tests.tools.fuzz.campaign import SETTINGS as FUZZED
from tests.tools.fuzz.inputs import Inputs
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.mistakes import Mistakes
from tests.tools.fuzz.pair import Pair
from tests.tools.fuzz.swarm import AT_ONCE, Swarm
from tests.tools.fuzz.transports import Transport
from tests.tools.soak.processes import Processes
from tests.tools.soak.visitors import EXPIRY, Visitors

SETTINGS: Final[dict[str, object]] = FUZZED | {
    "node.workers": 2,
    "limits.session_expiry": EXPIRY,
    "limits.sessions": 10_000,  # of visitors there are 3 000 at once
    "limits.packet_bytes": "4KiB",  # what the fuzzer's sessions and groups hold is small beside the rest
    "limits.queue_bytes": "4KiB",
    "limits.inflight": 100,
    "limits.pending": 1000,  # messages of the load, should a worker pause
    "limits.subscriptions": 20,  # the fuzzer's client ids return before their sessions expire, and subscribe to more
    "retained.messages": 500,
    "overload.accounts": 2000,
    "metrics.length": 500,
}
LOOK_EVERY: Final = 1.0  # seconds
TELL_EVERY: Final = 60.0
SETTLE: Final = 20.0  # seconds for the broker to close what is left
LATE: Final = 60  # seconds that the load may take longer than it should
MOST_FAILURES: Final = 20


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.tools.soak", description="Load a Weir of its own for long.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=int, default=20_000, help="messages a second, QoS 1 (default 20000)")
    parser.add_argument("--clients", type=int, default=400, help="of the load: pairs (default 400)")
    parser.add_argument("--visitors", type=int, default=50, help="clients that come and go each second (default 50)")
    parser.add_argument("--inputs", type=int, default=300, help="of the fuzzer, a second (default 300)")
    parser.add_argument("--seed", type=int, help="of the fuzzer; a random one if it is left out")
    return parser


@dataclass
class Outcome:
    seconds: float = 0.0
    broker_cpu: float = 0.0  # seconds
    inputs: int = 0
    visitors: int = 0
    pair: dict[str, int] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)  # as mqload prints it
    failures: list[str] = field(default_factory=list)


class Soak:
    def __init__(self, node: BrokerProcess, mqload: Path, arguments: argparse.Namespace, seed: int) -> None:
        self.outcome = Outcome()
        self.processes = Processes(node)  # before any client is there
        self._node = node
        self._seconds = arguments.minutes * 60
        self._mistakes = Mistakes(node.log)
        self._loop = Loop()
        transport = Transport("tcp", node.port)
        self._pair = Pair(self._loop, transport, f"pair-{time.time_ns():x}", self._fail)
        self._visitors = Visitors(self._loop, transport, arguments.visitors, self._fail)
        self._over = False
        numbers = takewhile(lambda number: not self._over, count())
        self._swarm = Swarm(self._loop, transport, Inputs(seed), numbers, CONCURRENT, self._input_failed)
        self._fill_every = AT_ONCE / arguments.inputs
        self._command = [str(mqload), "--pubs", str(arguments.clients // 2), "--qos", "1", "--port", str(node.port)]
        self._command += ["--rate", str(arguments.rate), "--count", str(int(arguments.rate * self._seconds))]
        self._command += ["--maxsec", str(int(self._seconds) + LATE)]

    def run(self) -> None:
        began, cpu = time.monotonic(), cpu_seconds(self._node.pid)
        self._pair.start()
        self._visitors.start()
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as load:
            self._fill()
            self._watch(load)
            self._judge_load(load.communicate()[0])
        self.outcome.seconds = time.monotonic() - began
        self._visitors.stop()
        self._over = True
        while not (self._visitors.gone() and self._swarm.finished()):
            self._loop.turn(0.1)
        try:
            self._pair.stop()
        except AssertionError as error:  # the report says what else has failed
            self._fail(str(error))
        self.outcome.broker_cpu = cpu_seconds(self._node.pid) - cpu
        self.outcome.pair, self.outcome.visitors = self._pair.statistics(), self._visitors.served
        self._loop.close()
        self.processes.wait_settled(SETTLE)
        for process in self.processes.all:
            self.outcome.failures += process.failures(self.outcome.seconds)

    def _watch(self, load: "subprocess.Popen[str]") -> None:
        """Until the load has ended, or too much has failed."""
        began = look = tell = time.monotonic()
        while load.poll() is None and len(self.outcome.failures) < MOST_FAILURES:
            self._loop.turn(0.05)
            now = time.monotonic()
            if now < look:
                continue
            look += LOOK_EVERY
            self.processes.look()
            self._pair.check()
            self.outcome.failures += [f"logged: {line}" for line in self._mistakes.read()]
            if now >= tell:
                tell += TELL_EVERY
                memory = ", ".join(f"{process.name} {process.memory[-1]}" for process in self.processes.all)
                failures = len(self.outcome.failures)
                print(
                    f"... {now - began:.0f} s, {self._swarm.sent} inputs, KiB: {memory}, {failures} failures",
                    flush=True,
                )
        load.terminate()

    def _fill(self) -> None:
        """Begin inputs, at the rate that was asked for or as fast as the broker ends those before."""
        self._swarm.fill()
        self.outcome.inputs = self._swarm.sent
        if not self._swarm.finished():
            self._loop.later(self._fill_every, self._fill)

    def _judge_load(self, said: str) -> None:
        try:
            self.outcome.load = json.loads(said)
        except ValueError:
            self._fail(f"the load ended early: {said}")
            return
        lost = self.outcome.load["expected"] - self.outcome.load["received"]
        if lost:
            self._fail(f"the load lost {lost} messages")

    def _input_failed(self, number: int, what: str) -> None:
        self._fail(f"input {number}: {what}")

    def _fail(self, what: str) -> None:
        if len(self.outcome.failures) < MOST_FAILURES:
            self.outcome.failures.append(what)


def report(outcome: Outcome, processes: Processes) -> str:
    messages = outcome.load.get("received", 0)
    lines = [
        f"{outcome.seconds:.0f} s, {outcome.inputs} inputs of the fuzzer, {outcome.visitors} visitors served",
        f"load: {outcome.load}",
        f"{outcome.broker_cpu:.0f} s of the broker's CPU, for {messages} messages of the load and all else",
        "pair: " + ", ".join(f"{number} {name}" for name, number in outcome.pair.items()),
        *[
            f"{process.name}: KiB by twelfths {process.parts()}; descriptors before and after {process.descriptors}"
            for process in processes.all
        ],
        f"failures: {len(outcome.failures) or 'none'}",
        *outcome.failures,
    ]
    return "\n".join(lines)


def main() -> int:
    arguments = options().parse_args()
    seed = secrets.randbelow(1 << 32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-soak-")))
        mqload = build_tool("mqload", folder, tls=False)
        node = start_weir(free_port(), folder, SETTINGS, packages())
        stack.callback(node.terminate)
        soak = Soak(node, mqload, arguments, seed)
        soak.run()
    print(report(soak.outcome, soak.processes))
    return 1 if soak.outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
