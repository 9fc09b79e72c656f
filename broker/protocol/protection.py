# Protection: what a worker measures about itself, what it asks the pure core of overload/, and how it obeys.
#
# Each 100 ms it measures its signals, moves its level and tells the others when that changed; what is in force is the
# highest level that anybody tells. Each PUBLISH that could be held back is put to `admit`: while the worker is calm and
# nothing is limited that is nobody's, and all a publish costs then is an addition.
#
# Whoever is held back is not read, with that publish in its buffer. It waits for a gate, for credits, or for a quota;
# when its time has come it is released, and its publish is judged again. Nobody is forgotten: a wait has an end.
import math
from collections.abc import Callable
from typing import Final

from broker.config.schema import Overload
from broker.delivery.outbox import OutboundBudget
from broker.log import Log
from broker.metrics.interval import IntervalMetrics
from broker.metrics.overload_figures import OverloadFigures
from broker.mqtt.packets import V5
from broker.net.pauses import Pause
from broker.net.reactor import Reactor
from broker.overload.admit import (
    ACCEPT,
    DROP,
    NOT_WAITING,
    PAUSE,
    REFUSE,
    UNBOUNDED,
    Publish,
    Verdict,
    decide,
    following,
)
from broker.overload.connects import Connects
from broker.overload.cost import Prices
from broker.overload.credits import Accounts, Ledger
from broker.overload.gate import Gate
from broker.overload.level import STEP, Level, Resources, Signal, Signals
from broker.overload.overrides import Limit
from broker.overload.quotas import Quotas
from broker.overload.reports import Reports
from broker.overload.waiting import SLOT, Slots, Waiting, give_turns, of_credits, of_gate
from broker.protocol.connection import Connection
from broker.protocol.egress_quota import EgressQuota
from broker.protocol.tracing import Tracing
from broker.reasons import PauseReason
from broker.routing.neighbour import Gates, Neighbours
from broker.routing.routes import Route
from broker.session.session import Session
from broker.worker_id import WorkerId

SOON: Final = 0.01  # seconds between two looks at who waits for credits or a quota
# Log events of decisions. Of successive equal decisions the first is logged. A close is logged as client_closed.
EVENTS: Final = {
    DROP: "publish_dropped",
    PAUSE: "client_throttled",
    REFUSE: "publish_refused",
}


class Injected:
    """A signal that a test has set."""

    def __init__(self, value: float, until: float) -> None:
        self.value = value
        self.until = until


class Protection(Gates):
    def __init__(
        self,
        settings: Overload,
        prices: Prices,
        quotas: Quotas,
        metrics: IntervalMetrics,
        reactor: Reactor,
        budget: OutboundBudget,
        connects: Connects,
        outgoing: EgressQuota,
        log: Log,
        client_log: Log,
        *,
        worker: WorkerId,
        memory: Callable[[], float],
        tell: Callable[[bytes, float], None],
        now: float,
    ) -> None:
        """*memory*: the share of its limit that is used; *tell*: have all workers hear our report.

        *client_log*: for what clients cause.
        """
        self.honour = settings.keepalive_while_throttled == "honour"
        self.judging = False  # publishes of clients without a quota have to be judged, too
        self.tracing: Tracing | None = None  # what all decisions are recorded by
        self.prices = prices
        self.quotas = quotas
        self.limits: dict[str, Limit] = {}  # that clients have of their own; limiting.py changes them
        self.ledger = Ledger(settings, now)
        self.accounts = Accounts(settings, self.ledger)
        self.level = Level(settings)
        self._here = Level(settings)  # of this worker itself, which is all that a CONNECT needs
        self.signals = Signals(settings, str(worker))
        self.resources = Resources()
        self.reports = Reports(worker, self.resources)
        self._settings = settings
        self._own = self.resources.bit(str(worker))  # every publish needs the worker that it enters
        self._metrics = metrics
        self._reactor = reactor
        self._budget = budget
        self._connects = connects
        self._outgoing = outgoing
        self._log = log
        self._client_log = client_log
        self._memory = memory
        self._tell = tell
        self._injected: dict[str, Injected] = {}
        self._gates: dict[Gate, tuple[Waiting, Signal]] = {}
        self._credits = Waiting(settings, self.ledger)  # those who wait for credits, and no gate can help them
        self._later = Slots()  # those who wait for a quota, by when it should have room
        self._waits: dict[Connection, float] = {}  # everybody who waits, since when
        self._step = now
        self._look = 0.0
        self._shown = 0
        if not settings.enabled:
            log.warning("overload_protection_off", means="nobody is slowed down to protect the broker")

    def record(self, tracing: Tracing) -> None:
        """Have all decisions recorded from now on; to be called before there are gates."""
        self.tracing = tracing
        self.judging = tracing.recording

    # Resources.

    def add_gate(self, resource: str, now: float) -> Gate:
        bit, settings = self.resources.bit(resource), self._settings
        gate = (
            Gate(settings, resource, bit, now)
            if self.tracing is None
            else self.tracing.gate(settings, resource, bit, now)
        )
        self._gates[gate] = (Waiting(settings, self.ledger), self.signals.add_gate(resource))
        return gate

    def remove_gate(self, gate: Gate, now: float) -> None:
        waiting, signal = self._gates.pop(gate)
        self.signals.remove(signal)
        for connection in waiting.everybody():
            self._release(connection, now)

    # Clients.

    def arrive(self, connection: Connection, session: Session, now: float) -> None:
        """*session* has a connection."""
        connection.account = self.accounts.arrive(session.client_id, now)
        self._limit(connection, session, now)
        if connection.quota is not None:
            self._outgoing.arrive(connection, connection.quota)

    def limit_again(self, connection: Connection, session: Session, now: float) -> None:
        """The limit of its client is another one: if it waits, its publish is judged again."""
        self._limit(connection, session, now)
        if connection.pause is not None:
            self._forget(connection)
            self._release(connection, now)

    def _limit(self, connection: Connection, session: Session, now: float) -> None:
        limit = self.limits.get(session.client_id)
        connection.quota = self.quotas.arrive(session.client_id, connection.user, limit, now)
        connection.exempt_until = limit.until if limit is not None and limit.exempt else 0.0
        if not self._settings.enabled:
            connection.exempt_until = math.inf

    def leave(self, connection: Connection, session: Session, now: float) -> None:
        """It has it no longer."""
        if self.tracing is not None and connection.pause is not None and connection.account is not None:
            self.tracing.released(connection.account, True, now)
        self._forget(connection)
        self._metrics.pauses.end(session.client_id, now)
        if connection.account is not None:
            self.accounts.leave(connection.account)
            connection.account = None
        self._outgoing.leave(connection, now)
        if connection.quota is not None:
            self.quotas.leave(session.client_id)
            connection.quota = None

    # Publishes.

    def judge(
        self, connection: Connection, route: Route, neighbours: Neighbours | None, publish: Publish, now: float
    ) -> Verdict:
        """Whether *publish* is taken, which goes to the receivers of *route*, or to all *neighbours*, too.

        If it is, it is charged; if it has to wait, *connection* is held.
        """
        account = connection.account
        assert account is not None
        gates = route.gates if neighbours is None else neighbours.gates()
        publish.resources = self._own
        for gate in gates:
            publish.resources |= gate.bit
        publish.since = self._waits.get(connection, NOT_WAITING)
        publish.exempt = now < connection.exempt_until
        publish.deliveries = route.receivers
        publish.retained = neighbours is not None
        connection.judged = publish
        shut = self._shut(connection, route, gates)
        tracing = self.tracing
        quotas = (
            connection.quota
            if tracing is None
            else tracing.publish(publish, account, gates, connection.quota, shut, now)
        )
        contended, wait = self.reports.contended, self._settings.wait
        verdict = decide(publish, account, self.ledger, gates, quotas, shut, contended, wait, now)
        if tracing is not None:
            tracing.verdict(verdict)
        if verdict.kind == PAUSE:
            self._hold(connection, verdict, now)
        else:
            self._waits.pop(connection, None)
            if verdict.kind != ACCEPT:
                self._note(connection, verdict, now)
            else:
                connection.turn -= 1
        return verdict

    def waits_since(self, connection: Connection) -> float | None:
        """Since when *connection* is held back, or tries again after that; None: it is not."""
        return self._waits.get(connection)

    def fitting(self, connection: Connection, route: Route, longest: int, cost: int, now: float) -> int:
        """How many more like the publish that was just taken may follow it at once: of *longest* bytes and *cost*."""
        account = connection.account
        assert account is not None
        quota = UNBOUNDED if connection.quota is None else connection.quota.fitting(UNBOUNDED, longest, now)
        if connection.turn < quota and any(gate.in_turns for gate in route.gates):
            quota = max(0, connection.turn)
        if self.tracing is not None:
            self.tracing.fitting(quota, longest, cost)
        return following(route.gates, quota, account, self.ledger, longest, cost, now < connection.exempt_until, now)

    def charge(self, connection: Connection, route: Route, count: int, size: int, cost: int, now: float) -> None:
        """So many more followed it, of *size* bytes and *cost* credits together."""
        account = connection.account
        if count == 0 or account is None:
            return
        connection.turn -= count
        tracing = self.tracing
        if tracing is not None:
            tracing.run(account, route.gates, now < connection.exempt_until, count, size, cost, route.receivers, now)
        for gate in route.gates:
            gate.take(count, size, now)
        if tracing is not None:
            tracing.decided()
        if connection.quota is not None:
            connection.quota.take(0, count, size, now)
        account.follow(self.ledger, cost, now)

    def defers(self, connection: Connection, filters: int, now: float) -> bool:
        """Whether a SUBSCRIBE of so many filters has to wait; then *connection* is held.

        5.0 is told which filters are over the quota, and waits only until that is known.
        """
        over = None if connection.quota is None else connection.quota.over_filters(filters, now)
        if over is None or (connection.version == V5 and over.reason is not PauseReason.QUOTA_ASKED):
            self._waits.pop(connection, None)
            return False
        self._hold(connection, over, now)
        return True

    def _shut(self, connection: Connection, route: Route, gates: list[Gate]) -> Gate | None:
        """The gate that is closed by what is no publish, or is that of all the members of a shared subscription.

        Or the one before which it is now the turn of others.
        """
        for gate in gates:
            if gate.blocked or (gate.in_turns and connection.turn <= 0):
                return gate
        return route.closed_gate() if route.shared else None

    def _hold(self, connection: Connection, verdict: Verdict, now: float) -> None:
        reason = verdict.reason
        assert isinstance(reason, PauseReason)
        since = self._waits.setdefault(connection, now)
        account = connection.account
        assert account is not None
        if verdict.gate is not None:
            waiting, _ = self._gates[verdict.gate]
            waiting.add(connection, account, since, verdict.until, now)
            verdict.gate.let_in_turns(waiting.queued())
        elif reason is PauseReason.CREDITS:
            self._credits.add(connection, account, since, verdict.until, now)
        else:
            self._later.add(int(verdict.until / SLOT) + 1, connection)
        connection.pause = verdict
        if self.honour:
            self._reactor.pause_reading_ahead(connection, Pause.OVERLOAD)
        else:
            self._reactor.pause(connection, Pause.OVERLOAD)
        if connection.session is not None:
            self._metrics.pauses.begin(connection.session.client_id, reason, now)
        self._note(connection, verdict, now)
        self._look_by(now + SOON)

    def _note(self, connection: Connection, verdict: Verdict, now: float) -> None:
        session = connection.session
        if session is None or verdict.reason is None:
            return
        if session.note(verdict.kind, verdict.reason.label, now):
            event = EVENTS.get(verdict.kind)
            if event is not None:
                self._client_log.info(event, client=session.client_id, reason=verdict.reason.label)

    def _release(self, connection: object, now: float, turn: int = UNBOUNDED) -> None:
        assert isinstance(connection, Connection)
        connection.turn = turn
        connection.pause = None
        if connection.session is not None:
            self._metrics.pauses.end(connection.session.client_id, now)
        if self.tracing is not None and connection.account is not None:
            self.tracing.released(connection.account, False, now)
        self._reactor.resume(connection, Pause.OVERLOAD)

    def _forget(self, connection: Connection) -> None:
        """It waits no more, and is not to be released."""
        verdict, connection.pause = connection.pause, None
        self._waits.pop(connection, None)
        if verdict is None:
            return
        if verdict.gate is not None and verdict.gate in self._gates:
            self._gates[verdict.gate][0].remove(connection)
        elif verdict.gate is None and not self._credits.remove(connection):
            self._later.remove(int(verdict.until / SLOT) + 1, connection)

    # Time.

    def tick(self, now: float) -> float:
        """Do what is due; when the next thing will be."""
        if now >= self._step:
            self._step = max(self._step + STEP, now + STEP / 2)
            self._measure(now)
        if now >= self._look:
            self._look = now + SOON if self._wake(now) else math.inf
        return min(self._step, self._look, self._outgoing.tick(now))

    def opened(self, gate: Gate, now: float) -> None:
        if len(self._gates[gate][0]):
            self._look_by(now)

    def _look_by(self, when: float) -> None:
        """Look at *when*, at the latest, who may go on."""
        if when < self._look:
            self._look = when
            self._reactor.soon(when)

    def _wake(self, now: float) -> bool:
        """Release those whose turn it is; whether some wait on."""
        left = False
        for gate, (waiting, _) in self._gates.items():
            if len(waiting):
                woken = of_gate(waiting, gate, now)
                turn = give_turns(waiting, gate, len(woken))
                for connection in woken:
                    self._release(connection, now, turn)
                left = left or len(waiting) > 0
        if len(self._credits):
            for connection in of_credits(self._credits, self.reports.contended & self._own != 0, now):
                self._release(connection, now)
            left = left or len(self._credits) > 0
        for connection in self._later.take(int(now / SLOT)):
            self._release(connection, now)
        return left or not self._later.empty()

    def _measure(self, now: float) -> None:
        signals = self.signals
        signals.lag.measure(self._reactor.take_lag(), now)
        signals.outbound.measure(self._budget.used / self._budget.limit, now)
        signals.memory.measure(self._memory(), now)
        signals.connect.measure(self._connects.oldest(now), now)
        for gate, (_, signal) in self._gates.items():
            signal.measure(gate.delay(now), now)
        self._inject(now)
        signals.look(now)
        self.level.step(signals.worst, signals.worst_name)
        if self.tracing is not None:
            self.tracing.measured(signals, self.resources, now)
        self._here.step(signals.worst_here)
        self.judging = self.tracing is not None and self.tracing.recording
        if not self._settings.enabled:
            return
        reports = self.reports
        if reports.due(self.level, signals, now):
            self._tell(reports.own(self.level, signals, now).encode(), now)
        reports.refresh(self.level, signals, now)
        if reports.level != self.ledger.level:
            if self.tracing is not None:
                self.tracing.level(reports.level, now)
            self.ledger.change(reports.level, now)
        self.judging = self.judging or self.ledger.enforcing
        self._connects.allow(self._here.value, now)
        self._say(now)

    def _say(self, now: float) -> None:
        """Log that the level is another one: not each step, nor that it is 1 for a moment."""
        shown = math.ceil(self.reports.level)
        if abs(shown - self._shown) > 1 or (shown == 0 and self._shown > 0):
            # Each line has a level of its own, and says which worker of which node writes it.
            self._log.info(
                "overload_level_changed",
                reached=shown,
                before=self._shown,
                cause=self.reports.cause,
                cause_node=self.reports.cause_worker.node,
                cause_worker=self.reports.cause_worker.shard,
                value=round(self.reports.value, 2),
            )
            self._shown = shown

    def hear(self, data: bytes, now: float) -> None:
        """Another worker's report."""
        self.reports.hear(data, now)

    # For tests, and for people.

    def inject(self, name: str, value: float, until: float) -> None:
        """Have the signal *name* measure *value*, in its unit, until the time *until*. ValueError."""
        if name not in self.signals.values():
            raise ValueError(f"There is no signal {name!r}: there are {', '.join(self.signals.values())}.")
        self._injected[name] = Injected(value, until)

    def _inject(self, now: float) -> None:
        for name, injected in list(self._injected.items()):
            if now >= injected.until:
                del self._injected[name]
            elif name in self.signals.values():
                self.signals.named(name).measure(injected.value, now)

    def injected(self, now: float) -> dict[str, float]:
        """The signals that a test has set, with the seconds for which it still has."""
        return {name: one.until - now for name, one in self._injected.items() if now < one.until}

    def figures(self, now: float) -> OverloadFigures:
        """One reading, for the record, Prometheus and $SYS."""
        _, using, average, _ = self.accounts.statistics(now)
        return OverloadFigures(
            level=self.level.shown,
            cluster_level=math.ceil(self.reports.level),
            credits_per_tick=int(self.ledger.refill),
            using_credits=using,
            average_credits=average,
            throttled=len(self._waits),
            cause=self.level.cause,
            signals=self.signals.values(),
        )
