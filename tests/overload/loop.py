# A closed loop: publishers, admission as a worker does it, and a resource that can do so much.
#
# Time goes in steps. A resource serves in the order of arrival, answers after a latency of its own, and may keep its
# answers until they are a batch. All that decides is the real code; nothing here knows how it does.
from collections import deque
from dataclasses import dataclass, field

from broker.config.schema import Overload
from broker.overload.admit import ACCEPT, NOT_WAITING, PAUSE, Publish, admit
from broker.overload.credits import Account, Accounts, Ledger
from broker.overload.gate import Gate
from broker.overload.level import Resources, Signal, Signals, WorkerLevel
from broker.overload.wait_list import WaitList

STEP = 0.01  # seconds
STEPS_A_LOOK = 10  # the level moves every 100 ms
QUANTUM = 20  # publishes that a client may send in its turn
GOLDEN = 0.618034  # multiples of it are spread evenly: clients do not publish in step


class Store:
    """What does so many publishes a second."""

    def __init__(self, capacity: float, latency: float, batch: float) -> None:
        self.capacity = capacity
        self.served = 0.0
        self.possible = 0.0
        self.delays: list[float] = []  # of each publish, beyond the latency
        self._latency = latency
        self._batch = batch
        self._queue: deque[tuple[float, Gate]] = deque()  # (when each came, by which gate)
        self._spare = 0.0
        self._answers: dict[Gate, deque[tuple[float, float]]] = {}  # (when it goes, when its publish came)

    def send(self, gate: Gate, now: float) -> None:
        self._queue.append((now, gate))

    def work(self, now: float, measured: bool) -> None:
        """Serve for one step."""
        self._spare = min(self._spare, 1.0) + self.capacity * STEP
        served = 0
        while self._queue and self._spare >= 1.0:
            came, gate = self._queue.popleft()
            self._spare -= 1.0
            served += 1
            answered = now + STEP + self._latency
            if self._batch:
                answered = (int(answered / self._batch) + 1) * self._batch
            self._answers.setdefault(gate, deque()).append((answered, came))
            if measured:
                self.delays.append(now - came)
        if measured:
            self.served += served
            self.possible += self.capacity * STEP

    def answer(self, gate: Gate, now: float) -> None:
        """Tell the gate what is answered by now, as a worker does: together what came together."""
        answers = self._answers.get(gate, deque())
        while answers and answers[0][0] <= now:
            came = answers[0][1]
            n = 0
            while answers and answers[0][0] <= now and answers[0][1] == came:
                answers.popleft()
                n += 1
            gate.done(n, 100 * n, now - came, now)


@dataclass(eq=False)
class Client:
    account: Account
    rate: float  # publishes a second
    publish: Publish
    gates: list["Guarded"]
    heavy: bool = False
    phase: float = 0.0  # of its next publish
    backlog: int = 0
    asked: int = 0
    got: int = 0
    waits_at: WaitList | None = None


class Guarded:
    """A resource behind its gate."""

    def __init__(self, worker: "Worker", name: str, store: Store) -> None:
        self.store = store
        self.gate = Gate(worker.settings, name, worker.resources.bit(name), 0.0)
        self.waiting = WaitList(worker.settings, worker.ledger)
        self.signal: Signal = worker.signals.add_gate(name)


@dataclass
class Worker:
    name: str = "here"
    settings: Overload = field(default_factory=Overload)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.settings, 0.0)
        self.accounts = Accounts(self.settings, self.ledger)
        self.resources = Resources()
        self.signals = Signals(self.settings, self.name)
        self.level = WorkerLevel(self.settings, self.signals)
        self.guarded: list[Guarded] = []
        self.clients: list[Client] = []
        self.contended = 0
        self.lie: float | None = None  # what the signal of the first gate says instead of the truth, in seconds
        self.levels: list[float] = []
        self._turn = 0
        self._only_time = WaitList(self.settings, self.ledger)

    def guard(self, name: str, store: Store) -> Guarded:
        guarded = Guarded(self, name, store)
        self.guarded.append(guarded)
        return guarded

    def connect(self, count: int, rate: float, cost: int, gates: list[Guarded], heavy: bool = False) -> list[Client]:
        resources = self.resources.bit(self.name)
        for one in gates:
            resources |= one.gate.bit
        made = []
        for _ in range(count):
            account = self.accounts.arrive(f"client {len(self.clients)}", 0.0)
            client = Client(account, rate, Publish(5, 1, 100, cost, resources), gates, heavy)
            client.phase = len(self.clients) * GOLDEN % 1.0
            self.clients.append(client)
            made.append(client)
        return made

    def look(self, now: float) -> None:
        """What happens every 100 ms."""
        for position, one in enumerate(self.guarded):
            lies = self.lie is not None and position == 0
            one.signal.measure(self.lie if lies and self.lie is not None else one.gate.delay(now), now)
        self.signals.look(now)
        self.level.step()

    def apply(self, level: float, contended: tuple[str, ...], now: float) -> None:
        """*level* and what is contended, of the whole cluster, are in force."""
        self.ledger.change(level, now)
        self.contended = self.resources.bits(contended)
        self.levels.append(level)

    def step(self, now: float, measured: bool) -> None:
        for one in self.guarded:
            one.store.answer(one.gate, now)
        for client in self.clients:
            client.phase += client.rate * STEP
            more = int(client.phase)
            client.phase -= more
            client.backlog = more if client.heavy else client.backlog + more
            if measured:
                client.asked += more
        self._serve(now, measured)

    def _serve(self, now: float, measured: bool) -> None:
        self._turn += 1
        start = self._turn * 7 % max(1, len(self.clients))
        ready = deque(
            client
            for client in self.clients[start:] + self.clients[:start]
            if client.backlog and client.waits_at is None
        )
        while True:
            woken = self._woken(now)
            ready.extendleft(reversed(woken))
            if not ready:
                return
            client = ready.popleft()
            self._turn_of(client, now, measured)
            if client.waits_at is None and client.backlog:
                ready.append(client)

    def _woken(self, now: float) -> list[Client]:
        found: list[object] = list(self._only_time.wake(1 << 30, 0, now))
        for one in self.guarded:
            assert not one.waiting.expired(now)
            found += one.waiting.wake(one.gate.room(), one.gate.idle_room(), now)
        clients = [client for client in found if isinstance(client, Client)]
        for client in clients:
            client.waits_at = None
        return clients

    def _turn_of(self, client: Client, now: float, measured: bool) -> None:
        gates = [one.gate for one in client.gates]
        for _ in range(QUANTUM):
            if not client.backlog:
                return
            publish = client.publish
            wait = self.settings.wait
            verdict = admit(publish, client.account, self.ledger, gates, None, self.contended, wait, now)
            if verdict.kind == PAUSE:
                if publish.since == NOT_WAITING:
                    publish.since = now
                client.waits_at = self._only_time
                for one in client.gates:
                    if one.gate is verdict.gate:
                        client.waits_at = one.waiting
                client.waits_at.add(client, client.account, publish.since, verdict.until, now)
                return
            assert verdict.kind == ACCEPT
            publish.since = NOT_WAITING
            client.backlog -= 1
            for one in client.gates:
                one.store.send(one.gate, now)
            if measured:
                client.got += 1


def run(workers: list[Worker], stores: list[Store], seconds: float, since: float, until: float) -> None:
    """Go on from *since* to *until*; what comes after the first *seconds* is measured."""
    for step in range(round(since / STEP), round(until / STEP)):
        now = step * STEP
        measured = now >= seconds
        for worker in workers:
            worker.step(now, measured)
        for store in stores:
            store.work(now, measured)
        if step % STEPS_A_LOOK == 0:
            for worker in workers:
                worker.look(now)
            level = max(worker.level.value for worker in workers)
            contended = tuple(name for worker in workers for name in worker.signals.contended)
            for worker in workers:
                worker.apply(level, contended, now)
