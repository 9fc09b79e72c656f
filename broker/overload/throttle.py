# The throttle: the clients that are paused for overload or for a quota, and the gates that some of them wait for.
#
# A paused client is not read, and the packet that was put off stays in its input. The client waits at a gate, for
# credits, for a quota, or until something is stored that its publish needs. When its time has come it is resumed, and
# its packet is judged again. Every wait has an end: a quota is waited for until it should have room, all else for at
# most `overload.wait` seconds.
from collections.abc import Callable
from math import inf
from typing import Final, cast

from broker.config.schema import Overload
from broker.metrics.pause_statistics import PauseStatistics
from broker.overload.admit import NOT_WAITING, Verdict
from broker.overload.client import ENDLESS, ProtectedClient
from broker.overload.credits import Ledger
from broker.overload.gate import Gate
from broker.overload.level import Resources, Signal, Signals
from broker.overload.reports import Reports
from broker.overload.trace.recorder import TraceRecorder
from broker.overload.wait_list import SLOT, CreditWaits, TimeSlots, WaitList, give_turns, of_gate
from broker.reasons import PauseReason

SOON: Final = 0.01  # seconds between two looks at the clients that wait


class GateQueue:
    """The clients that wait at one gate, and the signal of its delay."""

    def __init__(self, waiting: WaitList, signal: Signal) -> None:
        self.waiting = waiting
        self.signal = signal


class Throttle:
    def __init__(
        self,
        settings: Overload,
        ledger: Ledger,
        resources: Resources,
        signals: Signals,
        reports: Reports,
        pauses: PauseStatistics,
        recorder: TraceRecorder | None,
        soon: Callable[[float], None],
    ) -> None:
        """*soon*: has `tick()` called at the given time, at the latest."""
        self._settings = settings
        self._ledger = ledger
        self._resources = resources
        self._signals = signals
        self._reports = reports
        self._pauses = pauses
        self._recorder = recorder
        self._soon = soon
        self._queues: dict[Gate, GateQueue] = {}
        # A worker of 200 nodes has a thousand gates, few of which are in use at one time: nothing looks at all of them.
        self.busy: Final[dict[Gate, None]] = {}  # gates to whose resources something is, or was lately, under way
        self._crowded: dict[Gate, WaitList] = {}  # gates that clients wait for
        self._credits = CreditWaits(settings, ledger)  # clients that wait for credits, and that no gate can help
        self._timed = TimeSlots()  # clients that wait for a quota or for the store, by when that ends
        self._look = inf

    def waiting(self) -> int:
        """Clients that wait at a gate or for credits: what HiveMQ calls back-pressure. A quota is none."""
        return len(self._credits) + sum([len(waiting) for waiting in self._crowded.values()])

    # Gates.

    def add_gate(self, resource: str, now: float, further: tuple[str, ...] = ()) -> Gate:
        """A new gate for *resource*. A publish that needs it also needs the resources *further*, which have no gate."""
        settings, recorder = self._settings, self._recorder
        bit, needed = self._resources.bit(resource), 0
        for one in further:
            needed |= self._resources.bit(one)
        if recorder is None:
            gate = Gate(settings, resource, bit, now, needed, self.busy)
        else:
            gate = recorder.gate(settings, resource, bit, now, needed, self.busy)
        self._queues[gate] = GateQueue(WaitList(settings, self._ledger), self._signals.add_gate(resource))
        return gate

    def remove_gate(self, gate: Gate, now: float) -> None:
        """The resource of *gate* is gone: resume every client that waits for it."""
        queue = self._queues.pop(gate)
        self.busy.pop(gate, None)
        self._crowded.pop(gate, None)
        self._signals.remove(queue.signal)
        for client in queue.waiting.remove_all():
            self.resume(cast(ProtectedClient, client), now)

    def opened(self, gate: Gate, now: float) -> None:
        """*gate* has room: resume the clients whose turn has come, soon."""
        if len(self._queues[gate].waiting):
            self._look_by(now)

    def measure_gates(self, now: float) -> None:
        """Take the delay of each gate as its signal. A gate that nothing is under way to has none."""
        for gate in list(self.busy):
            delay, queue = gate.delay(now), self._queues.get(gate)
            if queue is not None:
                queue.signal.measure(delay, now)
            if queue is None or (delay == 0.0 and gate.count == 0):
                del self.busy[gate]

    # Clients.

    def pause(self, client: ProtectedClient, verdict: Verdict, now: float) -> None:
        """Pause *client*, whose packet is put off by *verdict*."""
        reason = verdict.reason
        assert isinstance(reason, PauseReason)
        overload = verdict.gate is not None or reason is PauseReason.CREDITS
        if not overload and reason is not PauseReason.STORE:
            client.waits_since = NOT_WAITING
        elif client.waits_since == NOT_WAITING:
            client.waits_since = now
        if client.put_off_since == NOT_WAITING:
            client.put_off_since = now
            client.judge_if_needed()
        if verdict.gate is not None:
            waiting = self._queues[verdict.gate].waiting
            waiting.add(client, client.account, client.waits_since, verdict.until, now)
            self._crowded[verdict.gate] = waiting
            verdict.gate.let_in_turns(waiting.queued())
        elif overload:
            self._credits.add(client, client.account, client.waits_since, verdict.until, verdict.needed, now)
        else:
            self._timed.add(int(verdict.until / SLOT) + 1, client)
        client.throttled = verdict
        client.pause()
        self._pauses.begin(client.client_id, reason, now)
        self._look_by(now + SOON)

    def resume(self, client: ProtectedClient, now: float, turn: int = ENDLESS) -> None:
        """Have the packet of *client*, which was removed from its wait list, judged again."""
        client.turn = turn
        client.throttled = None
        self._pauses.end(client.client_id, now)
        if self._recorder is not None:
            self._recorder.released(client.account, False, now)
        client.resume()

    def settle(self, client: ProtectedClient) -> None:
        """The packet of *client* that was put off, if there is one, is decided."""
        if client.put_off_since != NOT_WAITING:
            client.put_off_since = client.waits_since = NOT_WAITING
            client.judge_if_needed()

    def forget(self, client: ProtectedClient) -> None:
        """Remove *client* from its wait list without resuming it."""
        verdict, client.throttled = client.throttled, None
        self.settle(client)
        if verdict is None:
            return
        if verdict.gate is not None and verdict.gate in self._queues:
            self._queues[verdict.gate].waiting.remove(client)
        elif verdict.reason is PauseReason.CREDITS:
            self._credits.remove(client, verdict.needed)
        elif verdict.gate is None:
            self._timed.remove(int(verdict.until / SLOT) + 1, client)

    # Time.

    def tick(self, now: float) -> float:
        """Resume the clients whose time has come; return when to look again."""
        if now >= self._look:
            self._look = now + SOON if self._wake(now) else inf
        return self._look

    def _look_by(self, when: float) -> None:
        if when < self._look:
            self._look = when
            self._soon(when)

    def _wake(self, now: float) -> bool:
        """Resume the clients whose time has come; true if others go on waiting."""
        left = False
        for gate, waiting in list(self._crowded.items()):
            if len(waiting):
                woken = of_gate(waiting, gate, now)
                turn = give_turns(waiting, gate, len(woken))
                for client in woken:
                    self.resume(cast(ProtectedClient, client), now, turn)
                left = left or len(waiting) > 0
            if not len(waiting):
                self._crowded.pop(gate, None)
        if len(self._credits):
            for client in self._credits.take(self._reports.contended, now):
                self.resume(cast(ProtectedClient, client), now)
            left = left or len(self._credits) > 0
        for one in self._timed.take(int(now / SLOT)):
            self.resume(cast(ProtectedClient, one), now)
        return left or not self._timed.empty()
