# What all runs with stored sessions have in common: clients that come and go, a history, and a judgement.
#
# What is harmed, and how, is a matter of the subclass: a node (run.py), or several (../cluster/run.py).
#
# The run has one thread, which sees everything that all clients send and get in one order. So what is written in the
# history before something else has happened before it. Only proxies, and nodes of a cluster that start, have threads.
import gzip
import os
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from broker.mqtt.packets import Publish, Will
from tests.tools.faults.durable.checker import Checker, Violation
from tests.tools.faults.durable.client import DurableClient
from tests.tools.faults.durable.client import Run as Clients
from tests.tools.faults.durable.cold import ColdClients
from tests.tools.faults.durable.counters import NodeCounters
from tests.tools.faults.durable.history import (
    Connected,
    Connecting,
    Died,
    Ended,
    Event,
    Fault,
    Kept,
    Sent,
    Subscribed,
    concerns,
)
from tests.tools.faults.durable.lanes import Lane
from tests.tools.faults.durable.plan import Planned
from tests.tools.faults.victim import state
from tests.tools.fuzz.loop import Loop

PATIENCE: Final = 60.0  # seconds for what should take one, on a machine that is busy
PROVEN: Final = 60.0  # seconds until sessions were cold and are read again: their clients are away for 20 at most
QUIET: Final = 4.0  # seconds without a delivery, after which no more is expected
PUMP: Final = 0.02  # seconds between two bursts of a publisher
BURST: Final = 5  # messages, at most
LANES: Final = ((1, 0), (2, 0), (1, 50), (2, 20))  # QoS and receive maximum (0: the default) of each
LANE_PUMP: Final = 0.01  # seconds
CATCH_UP: Final = 20.0  # seconds, at most, until the lanes have published what is planned before a fault
WINDOW: Final = 20  # publishes of one client that are not done
TOPICS: Final = 3  # of each publisher
RETAINED_TOPICS: Final = 4
READERS: Final = 6  # new subscribers that read what is retained: some at each worker
STORY: Final = 60  # events that are told of a violation
MORE: Final = 4  # violations of one kind that are told
AROUND: Final = 3.0  # seconds around it, of the connections of its client
LAST_WORDS: Final = 2000  # characters of the log of a node that did not start


@dataclass
class Outcome:
    seed: int
    told: str  # the server and its class
    faults: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)  # of faults
    verdicts: Counter[str] = field(default_factory=Counter)  # kinds of violations
    figures: dict[str, float] = field(default_factory=dict)


class JudgedRun(ABC):
    AT_LEAST_ONCE = False  # see checker.py
    WANDERING = False
    _clients: Clients

    def __init__(
        self, folder: Path, seed: int, told: str, random: Random, planned: list[Planned], messages: int
    ) -> None:
        """*folder*: for this run, with a short path. *told*: of what is harmed.

        *messages*: that are to be acknowledged.
        """
        self.outcome = Outcome(seed, told)
        self._plan = planned
        self._random = Random(random.random())  # of everything that depends on time
        self._folder = folder
        self._messages = messages
        self._history: list[Event] = []
        self._checker = Checker(self.AT_LEAST_ONCE, self.WANDERING)
        self._loop = Loop()
        self._stopped: dict[int, object] = {}  # process ids
        self._pause = False  # of publishers, and of those that come and go
        self._names = count()
        self._mortals: list[DurableClient] = []
        self._counters: NodeCounters | None = None

    def go(self) -> Outcome:
        try:
            self._until(self._all_up, "all clients are connected")
            self._load()
            if self._cold is not None:
                self._until(self._cold.proven, "sessions are cold, and are read again", PROVEN)
            for number, planned in enumerate(self._plan):
                self._turn(planned.pause)
                if planned.calm:
                    self._catch_up(number / len(self._plan))
                aimed = self._aim(planned)
                self._note(Fault(self._clients.at(), "", self._told(aimed)))
                self.outcome.kinds[planned.kind] += 1
                self._inflict(aimed)
            self._catch_up(1.0)
            self._recover()
        except AssertionError as error:
            self.outcome.failures.append(shortened(str(error)))
        finally:
            self._end()
        self._judge()
        if self.outcome.failures:
            self._keep_history()
        return self.outcome

    # What is harmed.

    @abstractmethod
    def _inflict(self, planned: Planned) -> None:
        """Have *planned* happen."""

    def _aim(self, planned: Planned) -> Planned:
        """Wait until *planned* can happen; with what can be harmed in its place, if it has to be something else."""
        return planned

    def _told(self, planned: Planned) -> str:
        return str(planned)

    @abstractmethod
    def _heal(self) -> None:
        """Have everything serve again."""

    @abstractmethod
    def _end(self) -> None:
        """End all processes, connections and the loop."""

    @abstractmethod
    def _logs(self) -> Sequence[str]:
        """What the nodes have logged."""

    # Clients.

    def _make_clients(self) -> None:
        run = self._clients
        self._publishers = [DurableClient(run, f"p{n}", filter=f"own/p{n}") for n in range(4)]
        self._retainers = [DurableClient(run, f"r{n}", filter=f"own/r{n}") for n in range(2)]
        self._subscribers = [
            DurableClient(run, "all-1", filter="d/#", qos=1),
            DurableClient(run, "all-2", filter="d/#", qos=2),
            DurableClient(run, "slow-1", filter="d/#", qos=1, slow=0.1, receive_maximum=30),
            DurableClient(run, "narrow-2", filter="d/#", qos=2, receive_maximum=8),
            DurableClient(run, "one-1", filter="d/p1/+", qos=1, slow=0.02),
            DurableClient(run, "one-2", filter="d/+/1", qos=2),
        ]
        self._away = [
            DurableClient(run, "away-1", filter="d/p0/#", qos=1, receive_maximum=100),
            DurableClient(run, "away-2", filter="d/p1/#", qos=2),
        ]
        self._watcher = DurableClient(run, "watcher", filter="w/#")
        self._cold = None if self._counters is None else ColdClients(run, self._counters)
        self._lanes = self._make_lanes() if self._messages else []
        self._roaming = [*self._publishers, *self._retainers, self._watcher]
        for lane in self._lanes:
            self._roaming += [lane.publisher, lane.subscriber]
        cold = [] if self._cold is None else self._cold.clients
        if self._cold is not None:
            self._roaming += self._cold.publishers
        self._returning = [*self._subscribers, *self._away, *cold]
        self._lasting = [*self._roaming, *self._returning]

    def _make_lanes(self) -> list[Lane]:
        return [Lane(self._clients, f"b{number}", *each) for number, each in enumerate(LANES)]

    def _all_up(self) -> bool:
        return all(one.up for one in self._lasting)

    def _load(self) -> None:
        for number, publisher in enumerate(self._publishers):
            self._every(lambda: PUMP, lambda one=publisher, qos=1 + number % 2: self._pump(one, qos))  # type: ignore[misc]
        for number, retainer in enumerate(self._retainers):
            self._every(lambda: 0.05, lambda one=retainer, qos=1 + number: self._retain(one, qos))  # type: ignore[misc]
        uniform = self._random.uniform
        for client in self._subscribers:
            self._every(lambda: uniform(0.5, 5.0), lambda one=client: self._roam(one, 0.1, 1.0))  # type: ignore[misc]
        for client in self._away:
            self._every(lambda: uniform(0.5, 2.0), lambda one=client: self._roam(one, 0.05, 6.0))  # type: ignore[misc]
        for lane in self._lanes:
            self._every(lambda: LANE_PUMP, lane.publish)
        for client in self._roaming:
            self._every(lambda: uniform(1.0, 8.0), lambda one=client: self._roam(one, 0.0, 0.5))  # type: ignore[misc]
        if self._cold is not None:
            self._cold.load(self._every)
        self._every(lambda: 1.0, self._let_one_die)

    def _every(self, seconds: Callable[[], float], what: Callable[[], None]) -> None:
        def due() -> None:
            if not self._pause:
                what()
            self._loop.later(seconds(), due)

        self._loop.later(seconds() * self._random.random(), due)

    def _pump(self, one: DurableClient, qos: int) -> None:
        if one.up:
            for _ in range(min(self._random.randrange(BURST + 1), WINDOW - len(one.outgoing))):
                one.publish(f"d/{one.client_id}/{self._random.randrange(TOPICS)}", qos)

    def _retain(self, one: DurableClient, qos: int) -> None:
        if one.up and len(one.outgoing) < WINDOW:
            topic = f"r/{one.client_id}/{self._random.randrange(RETAINED_TOPICS)}"
            one.publish(topic, qos, True, self._random.random() < 0.2)

    def _roam(self, one: DurableClient, clean: float, absent: float) -> None:
        chance = self._random.random()
        if chance < clean:
            one.start_clean()
        elif chance < 0.4:
            one.take_over()
        else:
            one.leave(chance < 0.7, self._random.uniform(0.0, absent))

    def _let_one_die(self) -> None:
        for one in self._mortals:
            if one.up and one.link is not None:
                one.link.close()
                one.lost(one.link)
                break
        if len(self._mortals) < 2:
            self._bear()

    def _bear(self) -> None:
        name = f"m{next(self._names)}"
        will = Will(f"w/{name}".encode(), f"{name} 1".encode(), 1)
        one = DurableClient(self._clients, name, filter=f"own/{name}", will=will, once=lambda was: self._died(one, was))
        self._mortals.append(one)

    def _died(self, one: DurableClient, was_up: bool) -> None:
        self._mortals.remove(one)
        if was_up:
            self._note(Died(self._clients.at(), one.client_id, f"w/{one.client_id}"))

    def _catch_up(self, share: float) -> None:
        """Wait until *share* of the messages is acknowledged, or CATCH_UP is over."""
        self._wait(lambda: self._checker.acknowledged >= share * self._messages, CATCH_UP)

    # Processes that are stopped.

    def _stop(self, pid: int, seconds: float) -> None:
        if pid and state(pid) and pid not in self._stopped:
            self._stopped[pid] = None
            send_signal(pid, signal.SIGSTOP)
            self._loop.later(seconds, lambda: self._go_on(pid))

    def _go_on(self, pid: int) -> None:
        if pid in self._stopped:
            del self._stopped[pid]
            send_signal(pid, signal.SIGCONT)

    def _go_on_all(self) -> None:
        for pid in list(self._stopped):
            self._go_on(pid)

    # Afterwards.

    def _recover(self) -> None:
        """Everything that is owed has the time to come."""
        self._pause = True
        self._turn(0.2)
        self._go_on_all()
        self._heal()
        if self._cold is not None:
            self._cold.come_back()
        began = self._loop.now
        self._until(self._all_up, "all clients are connected again")
        self._until(lambda: not any(one.outgoing for one in self._lasting), "all publishes are answered")
        self.outcome.figures["s to recover"] = self._loop.now - began
        for _ in range(2):
            heard = -1
            while self._checker.missing() and heard != len(self._history):
                heard = len(self._history)
                self._turn(QUIET)
            for client in self._returning:  # once more, as a reconnect may bring what was forgotten
                client.leave(False, 0.1)
            self._turn(0.5)
            self._until(self._all_up, "all clients are connected again")
        self._turn(0.5)
        self._read_retained()

    def _read_retained(self) -> None:
        found: dict[str, dict[str, int]] = {}
        readers = []
        for number in range(READERS):
            name = f"reader-{number}"
            found[name] = {}
            one = DurableClient(self._clients, name, filter="r/#", retained=True)
            one.heard = lambda packet, kept=found[name]: _keep(kept, packet)  # type: ignore[misc]
            readers.append(one)
        self._until(lambda: all(one.up for one in readers), "readers are connected")
        self._turn(1.0)
        for name, kept in found.items():
            for retainer in self._retainers:
                for number in range(RETAINED_TOPICS):
                    topic = f"r/{retainer.client_id}/{number}"
                    self._note(Kept(self._clients.at(), name, topic, kept.get(topic)))

    def _judge(self) -> None:
        outcome, checker = self.outcome, self._checker
        finished = not outcome.failures
        found = checker.check([]) if finished else checker.violations
        violations = [one for one in found if not self._is_excused(one)]
        outcome.faults = [f"{event.at:.3f} s: {event.what}" for event in self._history if isinstance(event, Fault)]
        outcome.verdicts.update(one.kind for one in violations)
        by_kind: dict[str, list[Violation]] = {}
        for one in violations:
            by_kind.setdefault(one.kind, []).append(one)
        for kind, those in by_kind.items():
            outcome.failures += [f"{len(those)} times: {kind}", self.story(those[0]), *map(str, those[1:MORE])]
        for line in (line for log in self._logs() for line in log.splitlines()):
            if "Traceback" in line or '"exception"' in line:
                outcome.failures.append(f"logged: {line[:2000]}")
        outcome.figures |= {
            "faults": outcome.kinds.total(),
            "published": len(checker.publishes),
            "acknowledged": checker.acknowledged,
            "delivered": checker.delivered,
            "events": len(self._history),
            "repeated": checker.repeated,
            "late": checker.late,
            "violations": len(violations),
            "seconds": self._clients.at(),
            "refused": sum(one.refused for one in self._lasting),
        }
        if self._counters is not None:
            outcome.figures |= self._counters.totals

    def _is_excused(self, violation: Violation) -> bool:
        """Whether *violation* is known, and told otherwise."""
        return False

    def _keep_history(self) -> None:
        with gzip.open(self._folder / "history.gz", "wt", compresslevel=1) as file:
            file.writelines(f"{event}\n" for event in self._history)

    def story(self, violation: Violation) -> str:
        """*violation* with what led to it."""
        told = []
        sent = (event.at for event in self._history if isinstance(event, Sent) and concerns(event, violation.message))
        since = (violation.at if violation.message is None else next(sent, violation.at)) - AROUND
        for event in self._history:
            near = abs(event.at - violation.at) < AROUND
            if isinstance(event, Fault) and event.at < since:
                continue
            of_client = event.client == violation.client and isinstance(
                event, Connecting | Connected | Ended | Subscribed
            )
            if (violation.message and concerns(event, violation.message)) or (near and of_client):
                told.append(f"      {event}")
        if len(told) > STORY:
            told[STORY // 2 : -STORY // 2] = ["      ..."]
        return "\n".join([str(violation), *told])

    # What it needs for that.

    def _note(self, event: Event) -> None:
        self._history.append(event)
        self._checker.take(event)

    def _step(self) -> None:
        self._loop.turn(0.02)

    def _turn(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._step()

    def _wait(self, true: Callable[[], bool], most: float) -> None:
        """Until it is *true*, or *most* seconds have passed."""
        until = time.monotonic() + most
        while not true() and time.monotonic() < until:
            self._step()

    def _until(self, true: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        """AssertionError: it is not *true* within *patience* seconds."""
        until = time.monotonic() + patience
        while not true():
            assert time.monotonic() < until, f"not within {patience:g} s: {what}; {self._down()}"
            self._step()

    def _down(self) -> str:
        down = [one.client_id for one in self._lasting if not one.up]
        busy = [f"{one.client_id} {list(one.outgoing.values())[:2]}" for one in self._lasting if one.outgoing]
        return f"down: {down}, with publishes: {busy}"


def shortened(text: str) -> str:
    """The first line of *text*, which may have the log of a node behind it, and its end."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{rest[-LAST_WORDS:]}" if rest else first


def _keep(kept: dict[str, int], packet: Publish) -> None:
    kept[packet.topic.decode()] = int(packet.payload.split()[1])


def send_signal(pid: int, number: signal.Signals) -> None:
    try:
        if pid:
            os.kill(pid, number)
    except ProcessLookupError:
        pass
