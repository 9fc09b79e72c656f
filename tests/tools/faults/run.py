# One run: a node, clients beside each other on it, and a plan of faults.
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import redis

from tests.tools.faults.client import Client
from tests.tools.faults.flow import Flow, RoamingFlow
from tests.tools.faults.plan import Fault, plan
from tests.tools.faults.relay import Ring
from tests.tools.faults.troubles import REDIS, Trouble, Troubles
from tests.tools.faults.victim import Victim, run_delay, state
from tests.tools.faults.wills import Wills
from tests.tools.fuzz.loop import Loop

PAIRS: Final = {0: 5, 1: 10}  # by QoS
ROAMERS: Final = 4
MEMBERS: Final = 4
MORTALS: Final = 6
WATCHERS: Final = 5
EVERY: Final = 0.025  # seconds between two messages of a flow
LOOK: Final = 0.1  # seconds between two looks at who is served by whom
ROAM: Final = (0.2, 1.0)  # seconds that a roaming client stays
RETAINED_EVERY: Final = 0.2  # seconds
PATIENCE: Final = 15.0  # seconds for the node to recover, and for what is left behind to go
WHOLE_STOP: Final = 3.0  # seconds that the whole node is stopped
ALL_GONE: Final = 1.0  # seconds after the end of the supervisor
SERVES_AGAIN: Final = 3.0  # seconds from a new start
ATTEMPTS: Final = 100  # connections until each worker has one


@dataclass
class Outcome:
    seed: int
    faults: list[Fault]
    failures: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)


class Run:
    def __init__(self, folder: Path, seed: int, workers: int, faults: int) -> None:
        self.outcome = Outcome(seed, plan(seed, workers, faults))
        self._random = Random(seed + 1)
        self._loop = Loop()
        self._ring = Ring(self._loop)
        self._node = Victim(folder, workers)
        self._folder = folder
        self._workers = workers
        self._loop.turn(0.0)
        self._troubles = Troubles(self._loop, self._ring, lambda since: self._node.waited(since))
        self._clients: list[Client] = []
        self._stopped: dict[int, Trouble] = {}
        self._pause = False  # of publishers
        self._retained = 0
        self._make_clients()

    def go(self) -> Outcome:
        outcome = self.outcome
        try:
            self._until(lambda: all(one.up for one in self._all_clients()), "all clients connect")
            self._look()
            self._load()
            self._happen()
            self._recover()
            self._stop_whole()
            self._leave()
            self._kill_supervisor()
        except AssertionError as error:
            self._troubles.fail(str(error))
        finally:
            for pid in self._stopped:
                _signal(pid, signal.SIGCONT)
            self._node.stop()
            self._ring.close()
            self._loop.close()
        self._read_log()
        outcome.failures = self._troubles.failures
        self._figures()
        return outcome

    # Clients.

    def _make_clients(self) -> None:
        loop, port, troubles = self._loop, self._node.port, self._troubles
        self._flows: list[Flow] = []
        self._roamers: list[RoamingFlow] = []
        for qos, count in PAIRS.items():
            for number in range(count):
                name = f"pair-{qos}-{number}"
                publisher, subscriber = self._client(f"{name}-p"), self._client(f"{name}-s", filter=name, qos=qos)
                self._flows.append(Flow(loop, troubles, name, qos, publisher, [subscriber]))
        for number in range(ROAMERS):
            name = f"roamer-{number}"
            publisher, subscriber = self._client(f"{name}-p"), self._client(f"{name}-s", filter=name, expiry=300)
            self._roamers.append(RoamingFlow(loop, troubles, name, publisher, subscriber))
        members = [self._client(f"member-{n}", filter="$share/group/shared/#") for n in range(MEMBERS)]
        group = Flow(loop, troubles, "shared", 1, self._client("shared-p"), members)
        group.topic = "shared/topic"
        self._flows += [*self._roamers, group]
        self._retainer = self._client("retainer")
        self._wills = Wills(loop, troubles, port, MORTALS, WATCHERS)

    def _client(self, name: str, *, filter: str = "", qos: int = 1, expiry: int = 0) -> Client:
        client = Client(self._loop, self._node.port, name, filter=filter, qos=qos, expiry=expiry)
        self._clients.append(client)
        return client

    def _all_clients(self) -> list[Client]:
        return [*self._clients, *self._wills.clients()]

    # The load, which goes on by itself.

    def _load(self) -> None:
        for number, flow in enumerate(self._flows):
            self._loop.later(EVERY * number / len(self._flows), lambda flow=flow: self._send(flow))  # type: ignore[misc]
        for flow in self._roamers:
            self._loop.later(self._random.uniform(*ROAM), lambda flow=flow: self._roam(flow))  # type: ignore[misc]
        self._loop.later(LOOK, self._look_again)
        self._loop.later(RETAINED_EVERY, self._retain)
        self._loop.later(1.0, self._let_one_die)

    def _send(self, flow: Flow) -> None:
        self._loop.later(EVERY, lambda: self._send(flow))
        if not self._pause:
            flow.send()

    def _roam(self, flow: RoamingFlow) -> None:
        self._loop.later(self._random.uniform(*ROAM), lambda: self._roam(flow))
        if not self._pause:
            flow.roam(self._random.random() < 0.5)

    def _retain(self) -> None:
        self._loop.later(RETAINED_EVERY, self._retain)
        if self._retainer.up and not self._pause:
            self._retained += 1
            payload = b"" if self._random.random() < 0.2 else b"%d" % self._retained
            self._retainer.publish(f"retained/{self._random.randrange(5)}", payload, 1, True)

    def _let_one_die(self) -> None:
        self._loop.later(1.0, self._let_one_die)
        mortals = [one for one in self._wills.mortals if one.up]
        if mortals and not self._pause:
            self._random.choice(mortals).leave(False)

    def _look_again(self) -> None:
        self._loop.later(LOOK, self._look_again)
        if any(one.up and not one.worker for one in self._all_clients()):
            self._look()

    def _look(self) -> None:
        served = self._node.served_by()
        for client in self._all_clients():
            if client.up and not client.worker:
                client.worker = served.get(client.address, 0)

    # Faults.

    def _happen(self) -> None:
        began = self._loop.now
        last = max(fault.at + fault.stopped for fault in self.outcome.faults)
        for fault in self.outcome.faults:
            self._loop.later(fault.at, lambda fault=fault: self._harm(fault))  # type: ignore[misc]
        look = 0.0
        while self._loop.now < began + last + 0.5:
            self._loop.turn(0.02)
            if self._loop.now > look:
                look = self._loop.now + LOOK
                self._node.look()

    def _harm(self, fault: Fault) -> None:
        pid = self._node.redis() if fault.worker < 0 else self._node.pids[fault.worker]
        if not pid or not state(pid) or pid in self._stopped:
            return  # it suffers from an earlier one
        trouble = self._troubles.begin(REDIS if fault.worker < 0 else pid)
        if not fault.stopped:
            self._troubles.killed.add(pid)
            _signal(pid, signal.SIGKILL)
            self._loop.later(1.0 if fault.worker < 0 else 0.05, lambda: self._troubles.over(trouble))
            return
        self._stopped[pid] = trouble
        _signal(pid, signal.SIGSTOP)
        self._loop.later(fault.stopped, lambda: self._go_on(pid))

    def _go_on(self, pid: int) -> None:
        _signal(pid, signal.SIGCONT)
        self._troubles.over(self._stopped.pop(pid))

    # Afterwards.

    def _recover(self) -> None:
        """All is as before: who is connected hears all, every worker serves, and all know the same."""
        self._until(self._serves, "the node serves again")
        self._until(lambda: all(one.up for one in self._all_clients()), "all clients are back")
        self._turn(1.5)
        self._pause = True
        self._until(lambda: all(flow.settled() for flow in self._flows), "", 5.0)
        for flow in self._flows:
            flow.finish()
        self._until(lambda: not self._wills.missing(), "", 8.0)
        self._wills.finish()
        self._hear_each_other()
        self._pause = False

    def _serves(self) -> bool:
        self._node.look()  # who has come may have waited for a processor
        self._node.pids = self._node.workers()
        return self._node.ready()

    def _hear_each_other(self) -> None:
        """A client at each worker: what each of them says, and what is retained, comes to all of them."""
        visitors = self._visit()
        said = {f"visit/{worker}" for worker in visitors}
        heard: dict[int, set[str]] = {worker: set() for worker in visitors}
        kept: dict[int, dict[str, bytes]] = {worker: {} for worker in visitors}

        def hear(worker: int, topic: str, payload: bytes) -> None:
            if topic.startswith("visit"):
                heard[worker].add(topic)
            else:
                kept[worker][topic] = payload

        ready = []
        for worker, client in visitors.items():
            for what in ("visit/+", "retained/+"):
                listener = Client(self._loop, self._node.port, f"listener-{worker}-{what}", filter=what)
                listener.on_message = lambda packet, worker=worker: hear(worker, packet.topic.decode(), packet.payload)  # type: ignore[misc]
                ready.append(listener)
            del client
        self._until(lambda: all(one.up for one in ready), "listeners connect")
        for worker, client in visitors.items():
            client.publish(f"visit/{worker}", b"hello", 1)
        self._until(lambda: all(one == said for one in heard.values()), "clients of all workers hear each other")
        self._turn(0.1)
        for client in [*visitors.values(), *ready]:
            client.close()

    def _visit(self) -> dict[int, Client]:
        """Clients, one at each worker."""
        visitors: dict[int, Client] = {}
        for number in range(ATTEMPTS):
            client = Client(self._loop, self._node.port, f"visitor-{number}")
            self._until(lambda client=client: client.up, "a visitor connects", 3.0)  # type: ignore[misc]
            worker = self._node.served_by().get(client.address, 0)
            if worker in visitors or not worker:
                client.close()
            else:
                visitors[worker] = client
            if len(visitors) == self._workers:
                return visitors
        raise AssertionError(f"only {len(visitors)} workers take connections")

    def _stop_whole(self) -> None:
        """Ctrl-Z and fg."""
        before = self._node.pids = self._node.workers()
        connected = {client.client_id: client.since for client in self._clients}
        troubles = [self._troubles.begin(pid) for pid in before]
        self._node.signal_all(signal.SIGSTOP)
        self._turn(WHOLE_STOP)
        self._node.signal_all(signal.SIGCONT)
        for trouble in troubles:
            self._troubles.over(trouble)
        self._turn(2.0)
        if self._node.workers() != before:
            self._troubles.fail("a node that was stopped as a whole lost workers when it went on")
        roaming = {flow.subscriber.client_id for flow in self._roamers}
        lost = [one.client_id for one in self._clients if connected[one.client_id] != one.since]
        if lost := [one for one in lost if one not in roaming]:
            self._troubles.fail(f"a node that was stopped as a whole lost {lost}")

    def _leave(self) -> None:
        """Everybody leaves, and nothing is left of them."""
        self._pause = True
        self._turn(0.5)
        for client in self._clients:
            client.close()
        self._wills.close()
        for flow in self._roamers:
            client = Client(self._loop, self._node.port, flow.subscriber.client_id)  # a clean start
            self._until(lambda client=client: client.up, "a session is begun anew", 4.0)  # type: ignore[misc]
            client.close()
        self._until(lambda: self._gauges() == {}, "", 5.0)
        if gauges := self._gauges():
            self._troubles.fail(f"when all had left there were {gauges}")
        self._until(lambda: not self._keys(), "", 5.0)
        if keys := self._keys():
            self._troubles.fail(f"when all had left there was in Redis: {keys}")

    def _gauges(self) -> dict[str, int]:
        gauges = self._node.status()["totals"]["gauges"]
        names = ("connected", "sessions", "subscriptions", "shared_subscriptions", "interest", "queued")
        return {name: gauges[name] for name in names if gauges.get(name)}

    def _keys(self) -> list[str]:
        socket_path = str(self._node.folder / "redis" / "redis.sock")
        with redis.Redis(unix_socket_path=socket_path, decode_responses=True) as asked:
            return [key for what in ("owner", "wills") for key in asked.scan_iter(f"weir:*{what}*")]

    def _kill_supervisor(self) -> None:
        processes = self._node.processes()
        began = time.monotonic()
        self._node.process.kill()
        self._node.process.wait()
        while left := [pid for pid in processes if state(pid)]:
            if time.monotonic() - began > 10 * ALL_GONE:
                break
            time.sleep(0.005)  # between two looks at processes that are not ours
        gone = time.monotonic() - began
        self.outcome.figures["all gone"] = gone
        if left or gone > ALL_GONE:
            self._troubles.fail(f"{gone:.2f} s after the supervisor's end there were of its processes: {left}")
        self._node = Victim(self._folder, self._workers, self._node.port)
        took, waited = self._node.start_took, self._node.waited(0.0) + run_delay(self._node.process.pid)
        self.outcome.figures |= {"started again": took, "of that without a processor": waited}
        if took - waited > SERVES_AGAIN:
            self._troubles.fail(f"a new start served after {took:.2f} s, {waited:.2f} of them without a processor")
        client = Client(self._loop, self._node.port, "first", filter="hello")
        self._until(lambda: client.up, "the new node serves", 2.0)
        client.close()
        code = self._node.stop()
        if code != 0:
            self._troubles.fail(f"SIGTERM ended the new node with {code}")

    # What it needs for that.

    def _turn(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._loop.turn(0.02)

    def _until(self, true: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """Let time pass until it is *true*; AssertionError, unless *what* is empty, if that takes too long."""
        until = time.monotonic() + patience
        while not true():
            if time.monotonic() > until:
                assert not what, f"not within {patience:g} s: {what}"
                return
            self._loop.turn(0.02)

    def _read_log(self) -> None:
        for line in self._node.text().splitlines():
            if "Traceback" in line or '"level": "critical"' in line or "exception" in line:
                self._troubles.fail(f"logged: {line[:3000]}")

    def _figures(self) -> None:
        troubles = self._troubles
        self.outcome.figures |= {
            "messages": troubles.messages,
            "worst ms of the well": troubles.worst * 1e3,
            "the same, raw": troubles.worst_raw * 1e3,
            "worst of the machine": troubles.worst_late * 1e3,
            "worst s after a trouble": troubles.worst_needing,
            "worst s out": troubles.worst_outage,
            "resumed": sum(flow.resumed for flow in self._roamers),
            "sessions lost": sum(flow.lost for flow in self._roamers),
            "wills": len(self._wills.owed),
        }


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def random_seed() -> int:
    return secrets.randbelow(1 << 32)
