# One run: a broker process, the pair, the inputs, and what is watched meanwhile.
#
# What the inputs may lawfully leave behind is bounded by the broker's settings, so that "its memory stays" means
# something: sessions end after seconds, and everything that is kept has a limit so small that it is reached early in a
# long run. (A limit that fills for minutes looks like a leak.)
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient
from tests.tools.bench.cost import cpu_seconds, resident_kib
from tests.tools.fuzz.inputs import Inputs
from tests.tools.fuzz.loop import Loop
from tests.tools.fuzz.mistakes import Mistakes
from tests.tools.fuzz.pair import Pair
from tests.tools.fuzz.swarm import Swarm
from tests.tools.fuzz.transports import Transport

SETTINGS: Final[dict[str, object]] = {
    "log.format": "json",
    "sys.interval": 1,
    "limits.connect_timeout": 3,
    "limits.session_expiry": 10,
    "limits.keep_alive": 5,
    "limits.sessions": 3000,
    "limits.packet_bytes": "64KiB",
    "limits.inflight": 50,
    "limits.pending": 50,
    "limits.queue": 25,
    "limits.queue_bytes": "64KiB",
    "limits.topic_levels": 8,
    "retained.messages": 1000,
    "retained.bytes": "1MiB",
    "routes.topics": 2000,
    "routes.bytes": "1MiB",
    "delivery.high_watermark": "128KiB",
    "delivery.low_watermark": "64KiB",
    "delivery.outbound_budget": "32MiB",
    "delivery.slow_consumer_timeout": 2,
}
CONCURRENT: Final = 600  # inputs on their way at once
# The same over TLS and WebSocket: the pair has to come in within the CONNECT's time, too, on a slow machine as well.
CONCURRENT_LAYERED: Final = 40
LOOK_EVERY: Final = 0.5  # seconds
# Seconds that this process may stand still. After more, the broker lawfully closes a client that is silent and ends the
# session of one that is away: of these limits in SETTINGS the CONNECT's is the shortest.
STANDSTILL: Final = 3.0
SETTLE: Final = 20.0  # seconds for the broker to forget everybody
TENTHS: Final = 10
WARM: Final = 1  # the tenth that the last one is compared with; in the one before it, limits fill
LONG: Final = 100.0  # seconds of a run: in a shorter one that tenth does not reach beyond the longest of SETTINGS
SLACK_KIB: Final = 4096  # that the last tenth may have more: a peak of what is in use leaves its pages with the heap
MOST_PER_INPUT: Final = 8  # bytes that it may have more for each input: a pointer that is never let go is too much
REASONS: Final = "$SYS/broker/weir/"
UPTIME: Final = b"$SYS/broker/uptime"  # changes with each sample
SYS_SAMPLES: Final = 3  # the retained one, one that may be of this moment, and one that is later
MOST_FAILURES: Final = 20  # a run ends after so many


@dataclass
class Outcome:
    """What a run has shown; memory in KiB, times in seconds."""

    seed: int
    first: int
    inputs: int = 0
    seconds: float = 0.0
    broker_cpu: float = 0.0
    descriptors: tuple[int, int] = (0, 0)  # before and after
    memory: list[int] = field(default_factory=list)  # in equal intervals
    pair: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)  # of $SYS/broker/weir
    failures: list[str] = field(default_factory=list)
    stood_still: float = 0.0  # seconds, if the pair failed after a standstill: the run then shows nothing

    def memory_by_tenths(self) -> list[int]:
        """The mean of each tenth of the run, or what was measured, if that is less often."""
        count = len(self.memory)
        parts = min(TENTHS, count)
        tenths = [self.memory[n * count // parts : (n + 1) * count // parts] for n in range(parts)]
        return [sum(tenth) // len(tenth) for tenth in tenths]

    def judge_memory(self) -> None:
        """Fail if it grew, and the run was so long that this means something."""
        if self.seconds < LONG:
            return
        tenths = self.memory_by_tenths()
        grown = tenths[-1] - tenths[WARM]
        if grown > SLACK_KIB + self.inputs * MOST_PER_INPUT // 1024:
            self.failures.append(f"memory grew by {grown} KiB after the first tenths: {tenths}")


class Campaign:
    def __init__(self, broker: BrokerProcess, transport: Transport, inputs: Inputs, first: int, count: int) -> None:
        self.outcome = Outcome(inputs.seed, first)
        self._broker = broker
        self._transport = transport
        self._first = first
        self._mistakes = Mistakes(broker.log)
        self._loop = Loop()
        self._pair = Pair(self._loop, transport, f"pair-{time.time_ns():x}", self._pair_failed)
        numbers = iter(range(first, first + count))
        most = CONCURRENT if transport.name == "tcp" else CONCURRENT_LAYERED
        self._swarm = Swarm(self._loop, transport, inputs, numbers, most, self._input_failed)
        self._stopped = False

    def run(self, told: Callable[[Outcome], None]) -> Outcome:
        """All of it; *told* is called after each look, about twice a second."""
        outcome = self.outcome
        began, cpu = time.monotonic(), cpu_seconds(self._broker.pid)
        before = 0
        try:
            self._pair.start()  # who is served by a broker finds it started
            before = descriptors(self._broker.worker_pid) - Pair.CONNECTIONS
            while not self._swarm.finished() and not self._stopped:
                self._send_for_a_while(began)
                told(outcome)
            self._pair.stop()
        except AssertionError as error:
            self._pair_failed(str(error))
        outcome.pair = self._pair.statistics()
        outcome.broker_cpu = cpu_seconds(self._broker.pid) - cpu if self._alive() else 0.0
        self._loop.close()
        if self._alive():
            outcome.descriptors = (before, self._wait_settled(before))
            outcome.counters = counters(self._broker.port)
        self._read_log()
        outcome.judge_memory()
        return outcome

    def _send_for_a_while(self, began: float) -> None:
        """Then look whether all is well."""
        look = time.monotonic() + LOOK_EVERY
        while time.monotonic() < look and not self._swarm.finished():
            self._swarm.fill()
            self._loop.turn(0.05)
        self.outcome.inputs = self._swarm.sent
        self.outcome.seconds = time.monotonic() - began
        self._pair.check()
        self._read_log()
        if self._alive():
            self.outcome.memory.append(resident_kib(self._broker.pid))
        else:
            self._failed(f"the broker ended with {self._broker.process.returncode}; on their way: {self._running()}")
            self._stopped = True
        self._stopped = self._stopped or len(self.outcome.failures) >= MOST_FAILURES

    def _alive(self) -> bool:
        return self._broker.process.poll() is None

    def _running(self) -> str:
        """The inputs on their way, for a failure that is nobody's in particular."""
        numbers = self._swarm.running()
        return f"{numbers[0]} to {numbers[-1]}" if numbers else "none"

    def _read_log(self) -> None:
        """The broker may log whatever clients did, and no mistake of its own, nor the death of a worker."""
        for line in self._mistakes.read():
            self._logged(line)

    def _logged(self, line: str) -> None:
        try:
            facts = json.loads(line)
        except ValueError:
            facts = {}
        if facts.get("event") == "client_closed":
            return  # what it was closed for has a line of its own
        number = self._swarm.number_at(str(facts.get("address", "")))
        what = facts.get("exception", line)
        if number is None:
            self._failed(f"logged, with {self._running()} on their way: {what}")
        else:
            self._input_failed(number, f"logged: {what}")

    def _input_failed(self, number: int, what: str) -> None:
        self._failed(f"input {number}: {what}\n  {self._command(number, 1)}")

    def _pair_failed(self, what: str) -> None:
        if self._loop.longest_pause > STANDSTILL:
            self.outcome.stood_still = self._loop.longest_pause
            self._stopped = True
            return
        running = self._swarm.running()
        begin = running[0] if running else self._first
        end = running[-1] if running else self._first + self._swarm.sent
        self._failed(f"the pair: {what}\n  {self._command(begin, end - begin + 1)}")

    def _failed(self, what: str) -> None:
        if len(self.outcome.failures) < MOST_FAILURES:
            self.outcome.failures.append(what)

    def _command(self, first: int, inputs: int) -> str:
        where = "" if self._transport.name == "tcp" else f" --transport {self._transport.name}"
        return f"python -m tests.tools.fuzz --seed {self.outcome.seed} --first {first} --inputs {inputs}{where}"

    def _wait_settled(self, before: int) -> int:
        """Descriptors of the broker, once they are as many as before, or SETTLE seconds later."""
        deadline = time.monotonic() + SETTLE
        while (after := descriptors(self._broker.worker_pid)) > before and time.monotonic() < deadline:
            time.sleep(0.1)  # for what a process that is not ours does by itself
        if after > before:
            open_to = peers(self._broker.worker_pid)
            numbers = sorted(n for peer in open_to if (n := self._swarm.number_at(peer)) is not None)
            self._failed(f"{after} descriptors are open, {before} were before; of the inputs {numbers}")
        return after


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def peers(pid: int) -> set[str]:
    """Who is at the other end of the process' IPv4 connections."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            address, number = fields[2].split(":")
            host = socket.inet_ntoa(int(address, 16).to_bytes(4, sys.byteorder))
            found.add(f"{host}:{int(number, 16)}")
    return found


def counters(port: int) -> dict[str, int]:
    """What the broker counted, by reason; $SYS tells it."""
    client = RawClient(port)
    client.connect("fuzz-counters")
    told = {message.topic: message.payload for message in client.subscribe("$SYS/broker/#")}
    for _ in range(SYS_SAMPLES):
        while (message := client.take()).topic != UPTIME:
            told[message.topic] = message.payload
    client.close()
    wanted = {topic.decode().removeprefix(REASONS): value for topic, value in told.items() if REASONS.encode() in topic}
    return {name: int(float(value)) for name, value in wanted.items()}  # a share is no counter, and stays 0
