# One run: a node with durable sessions, clients that come and go, and faults; then a judgement.
import re
import shlex
import signal
import subprocess
import time
from math import isfinite
from pathlib import Path
from random import Random
from typing import Final

import redis

from broker.config.schema import POWER, PROCESS
from tests.system.processes import free_port
from tests.tools.faults.durable import plan as kinds
from tests.tools.faults.durable.client import Run as Clients
from tests.tools.faults.durable.cold import NAMES, RESTED
from tests.tools.faults.durable.counters import NodeCounters
from tests.tools.faults.durable.history import Fault, Rollback
from tests.tools.faults.durable.judged_run import LAST_WORDS, PATIENCE, JudgedRun, send_signal
from tests.tools.faults.durable.plan import BEHIND_PROXY, EMBEDDED, Planned, plan
from tests.tools.faults.durable.power import DAMAGED_TAILS, TAILS, compile_recorder, cut, forget_boot
from tests.tools.faults.durable.proxy import TO_CLIENT, TO_SERVER, Proxy
from tests.tools.faults.durable.server import Server
from tests.tools.faults.victim import Victim, state
from tests.tools.fuzz.campaign import peers

START: Final = 300.0  # seconds for the start of a node, at the lowest priority
LOOK: Final = 0.1  # seconds between two looks at the log of the node
RESTING: Final = 10.0  # seconds that a fault waits for a cold session, at most
READING: Final = 1.0  # seconds for which Redis is stopped, so that sessions are being read
DAMAGED: Final = re.compile(r"The data of the embedded Redis is damaged: `(.*)` cuts")


class DurableRun(JudgedRun):
    COLD = True  # its sessions go cold, unless it is brisk

    def __init__(
        self, folder: Path, seed: int, workers: int, faults: int, brisk: bool = False, messages: int = 0
    ) -> None:
        """*folder*: for this run, with a short path. *brisk*: see `plan()`. *messages*: that are to be acknowledged.

        AssertionError: the node does not serve.
        """
        random = Random(seed)
        self._setup = random.choice((EMBEDDED, BEHIND_PROXY))
        self._durability = random.choice((PROCESS, POWER))
        planned = self._make_plan(random, workers, faults, brisk)
        super().__init__(folder, seed, f"{self._setup}, {self._durability}", random, planned, messages)
        self._workers = workers
        self._worst_rollback = 0.0
        self._damaged = 0
        self._record = folder / "synced"
        self._environment = {"LD_PRELOAD": str(compile_recorder(folder)), "SYNC_RECORD": str(self._record)}
        self._server: Server | None = None
        self._proxy: Proxy | None = None
        self._settings: dict[str, object] = {"store.durability": self._durability}
        if not brisk and self.COLD:
            self._counters = NodeCounters(self._loop, free_port(), NAMES)
            self._settings |= {"admin.enabled": "true", "admin.port": self._counters.port}
        if self._setup == BEHIND_PROXY:
            self._server = Server(folder / "server", self._durability, self._environment)
            self._proxy = Proxy(folder / "proxy.sock", self._server.socket)
            self._settings["redis.url"] = f"unix://{folder / 'proxy.sock'}"
        self._port = 0
        try:
            self._prepare()
            self._node = self._start()
        except BaseException:
            self._end_servers()
            raise
        self._port = self._node.port
        self._clients = Clients(self._loop, self._port, self._random, self._note)
        self._make_clients()

    # The node.

    def _make_plan(self, random: Random, workers: int, faults: int, brisk: bool) -> list[Planned]:
        return plan(random, self._setup, self._durability, workers, faults, brisk)

    def _prepare(self) -> None:
        """Start what the node needs beside Redis, and add to its settings."""

    def _start(self) -> Victim:
        for attempt in range(3):
            try:
                return Victim(
                    self._folder,
                    self._workers,
                    self._port,
                    self._settings,
                    self._environment,
                    lambda: self._loop.turn(0.02),
                    START,
                )
            except AssertionError as error:
                found = DAMAGED.search(str(error)[-LAST_WORDS:])
                if found is None or attempt == 2:
                    raise
                self._damaged += 1  # as a user would
                subprocess.run(shlex.split(found[1]), input=b"y\n", check=True, capture_output=True)
        raise AssertionError("unreachable")

    def _gone(self, processes: list[int]) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(state(pid) for pid in processes):
            assert time.monotonic() < deadline, f"processes do not end: {processes}"
            self._loop.turn(0.01)
        self._node.process.wait(PATIENCE)
        self._stopped = {pid: None for pid in self._stopped if state(pid)}
        self._turn(0.05)  # the clients see it

    def _again(self) -> None:
        """Start the node after its end."""
        if self._proxy is not None:
            self._proxy.heal()
        if self._server is not None:
            self._go_on(self._server.process.pid)
            if self._server.process.poll() is not None:
                self._server.start()
        self._node = self._start()

    def _kill_all(self) -> None:
        processes = self._node.processes()
        for pid in processes:
            send_signal(pid, signal.SIGKILL)
        self._gone(processes)

    def _load(self) -> None:
        super()._load()
        self._every(lambda: LOOK, self._look)

    def _look(self) -> None:
        self._node.look()

    # Faults.

    def _inflict(self, planned: Planned) -> None:
        match planned.kind:
            case kinds.KILL_WORKER:
                send_signal(self._node.pids[planned.worker], signal.SIGKILL)
            case kinds.STOP_WORKER:
                self._stop(self._node.pids[planned.worker], planned.seconds)
            case kinds.KILL_REDIS:
                self._kill_redis()
            case kinds.STOP_REDIS:
                self._stop(self._redis(), planned.seconds)
            case kinds.STOP_SUPERVISOR:
                self._stop(self._node.process.pid, planned.seconds)
            case kinds.STOP_NODE:
                for pid in self._node.processes():
                    self._stop(pid, planned.seconds)
            case kinds.TAKE_WHILE_STOPPED:
                self._take_while_stopped(planned)
            case kinds.KILL_WORKER_READING | kinds.STOP_WORKER_READING | kinds.KILL_REDIS_READING:
                self._harm_what_reads(planned)
            case kinds.REWRITE:
                self._rewrite()
            case kinds.KILL_SUPERVISOR:
                processes = self._node.processes()
                self._go_on_all()
                self._node.process.kill()
                self._gone(processes)
                self._again()
            case kinds.KILL_NODE:
                self._kill_all()
                self._again()
            case kinds.RESTART:
                self._restart()
            case kinds.CUT_POWER:
                self._cut_power()
            case _:
                assert self._proxy is not None
                self._harm(self._proxy, planned.kind, planned)

    def _redis(self) -> int:
        return self._node.redis() if self._server is None else self._server.process.pid

    def _kill_redis(self) -> None:
        pid = self._redis()
        send_signal(pid, signal.SIGKILL)
        if self._server is not None:
            self._server.process.wait(PATIENCE)
            self._turn(self._random.uniform(0.0, 1.0))
            self._server.start()

    def _harm_what_reads(self, planned: Planned) -> None:
        """Cold sessions are being read: Redis is stopped before they are asked for."""
        cold = self._cold
        assert cold is not None
        if planned.calm:
            self._turn(RESTED)
        self._wait(lambda: len(cold.rested()) > 0, RESTING)
        self._stop(self._redis(), READING)
        cold.provoke()
        self._turn(self._random.uniform(0.05, 0.3))
        match planned.kind:
            case kinds.KILL_WORKER_READING:
                send_signal(self._node.pids[planned.worker], signal.SIGKILL)
            case kinds.STOP_WORKER_READING:
                self._stop(self._node.pids[planned.worker], planned.seconds)
            case _:
                self._kill_redis()

    def _take_while_stopped(self, planned: Planned) -> None:
        """The supervisor cannot end the worker: it goes on later, and finds its sessions taken."""
        worker = self._node.pids[planned.worker]
        late = 0.3 if self._random.random() < 0.7 else -0.1
        self._stop(self._node.process.pid, planned.seconds + late)
        self._stop(worker, planned.seconds)
        try:
            addresses = peers(worker)
        except OSError:
            return  # it is dead
        for client in self._lasting:
            if client.link is not None and client.link.address in addresses:
                self._loop.later(self._random.random() * 0.3, client.take_over)
                self._loop.later(0.9, lambda one=client: None if one.up else one.take_over())  # type: ignore[misc]
        self._turn(planned.seconds + 0.5)

    def _rewrite(self) -> None:
        folder = self._node.folder / "redis" if self._server is None else self._server.folder
        try:
            with redis.Redis(unix_socket_path=str(folder / "redis.sock"), socket_timeout=0.3) as asked:
                asked.bgrewriteaof()
        except redis.RedisError:
            pass  # it is stopped, dead, or rewriting

    def _restart(self) -> None:
        self._go_on_all()
        processes = self._node.processes()
        self._node.process.terminate()
        self._gone(processes)
        self._again()

    def _cut_power(self) -> None:
        at = time.monotonic()
        if self._server is not None:
            self._server.kill()
        self._kill_all()
        folder = self._node.folder / "redis" if self._server is None else self._server.folder
        damaged = self._server is None and self._random.random() < 0.1
        tail = self._random.choice(DAMAGED_TAILS if damaged else TAILS)
        if self._server is None:
            forget_boot(folder)
        found = cut((folder / "appendonlydir").iterdir(), self._record, tail, self._random)
        if isfinite(found.since) and self._durability == PROCESS:
            self._worst_rollback = max(self._worst_rollback, at - found.since)
            self._note(Rollback(self._clients.at(), "", found.since - self._clients.began))
            for client in self._lasting:
                client.subscribe_again()
        self._note(Fault(self._clients.at(), "", found.told))
        self._again()

    def _harm(self, proxy: Proxy, kind: str, planned: Planned) -> None:
        """Harm the connections through *proxy*. *kind*: one of AT_THE_PROXY."""
        match kind:
            case kinds.CUT_REQUESTS:
                proxy.cut(TO_SERVER, planned.number)
            case kinds.CUT_REPLIES:
                proxy.cut(TO_CLIENT, planned.number)
            case kinds.DELAY:
                proxy.delay(planned.seconds)
                self._loop.later(2.0, lambda: proxy.delay(0.0))
            case kinds.HALF_OPEN:
                proxy.mute(True)
                self._loop.later(planned.seconds, proxy.heal)

    # Afterwards.

    def _heal(self) -> None:
        if self._proxy is not None:
            self._proxy.heal()
        if self._node.process.poll() is not None:
            self._again()

    def _logs(self) -> list[str]:
        return [self._node.text()]

    def _judge(self) -> None:
        super()._judge()
        self.outcome.figures |= {"worst s rolled back": self._worst_rollback, "repaired": self._damaged}

    def _end(self) -> None:
        self._pause = True
        self._go_on_all()
        self._node.stop()
        self._end_servers()
        if self._counters is not None:
            self._counters.close()
        self._clients.close()
        self._loop.close()

    def _end_servers(self) -> None:
        if self._proxy is not None:
            self._proxy.close()
        if self._server is not None:
            self._server.kill()
