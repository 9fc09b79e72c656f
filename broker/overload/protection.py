# Protection: the decisions about the publishes of clients, and the clients that they are made for.
#
# Each PUBLISH that could be put off is put to `admit` (admit.py). While the worker is calm (its gates are, see gate.py)
# and no quota concerns the client, no publish is judged, and a publish costs one addition.
import math
from collections.abc import Callable
from typing import Final

from broker.config.schema import Overload
from broker.log import Log
from broker.metrics.pause_statistics import PauseStatistics
from broker.mqtt.packets import V5
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
    waits,
)
from broker.overload.client import ProtectedClient
from broker.overload.cost import Prices
from broker.overload.credits import Accounts, CreditOwners, Ledger
from broker.overload.gate import EACH, Gate
from broker.overload.level import Resources, Signals, without_gate
from broker.overload.quotas.overrides import Limit
from broker.overload.quotas.quotas import Quotas
from broker.overload.reports import Reports
from broker.overload.throttle import Throttle
from broker.overload.topology import Topology
from broker.overload.trace.recorder import TraceRecorder
from broker.reasons import DropReason, PauseReason
from broker.worker_id import WorkerId

# Log events of decisions. Of successive equal decisions the first is logged. A close is logged as client_closed.
EVENTS: Final = {
    DROP: "publish_dropped",
    PAUSE: "client_throttled",
    REFUSE: "publish_refused",
}


class Protection:
    def __init__(
        self,
        settings: Overload,
        quotas: Quotas,
        pauses: PauseStatistics,
        client_log: Log,
        recorder: TraceRecorder | None,
        soon: Callable[[float], None],
        *,
        worker: WorkerId,
        now: float,
        tenant_of: str = "",
    ) -> None:
        """*client_log*: for events that clients cause. *recorder*: of all decisions. *soon*: see Throttle.

        *tenant_of*: the rule of `quotas.tenant_of`.
        """
        self.honour = settings.keepalive_while_throttled == "honour"
        self.judging = False  # publishes are judged even if no quota concerns their client
        self.recorder = recorder
        self.prices = Prices(settings.cost)
        self.quotas = quotas
        self.limits: dict[str, Limit] = {}  # of single clients, set by an administrator (client_overrides.py)
        self.ledger = Ledger(settings, now)
        self.owners = CreditOwners(settings.credits_per, tenant_of)
        self.accounts = Accounts(settings, self.ledger, not self.owners.shared)
        self.resources = Resources()
        resource = str(worker)
        self.signals = Signals(settings, resource)
        self.topology = Topology(settings.topology)
        self.reports = Reports(worker, self.resources)
        self._settings = settings
        self._here = self.resources.bit(resource)  # as bits: every publish needs the worker that it enters
        for one in without_gate(resource):
            self._here |= self.resources.bit(one)
        self.throttle = Throttle(
            settings,
            self.ledger,
            self.resources,
            self.signals,
            self.reports,
            pauses,
            recorder,
            soon,
        )
        self._pauses = pauses
        self._client_log = client_log
        if recorder is not None:
            recorder.start(self.ledger, self.reports, now)
        self.judge_if_needed()

    def judge_if_needed(self) -> None:
        """Judge all publishes from now on if credits are enforced, or if decisions are recorded."""
        self.judging = self.ledger.enforcing or (self.recorder is not None and self.recorder.recording)

    # Clients.

    def arrive(self, client: ProtectedClient, now: float) -> None:
        """*client* has a session from now on."""
        self._limit(client, now)

    def limit_again(self, client: ProtectedClient, now: float) -> None:
        """The limit of *client* has changed: apply it, and judge a packet that waits again."""
        self._limit(client, now)
        if client.throttled is not None:
            self.throttle.forget(client)
            self.throttle.resume(client, now)

    def _limit(self, client: ProtectedClient, now: float) -> None:
        limit = self.limits.get(client.client_id)
        override = self.quotas.configured.find(client.client_id, client.user)
        client.quota = self.quotas.arrive(client.client_id, client.user, limit, now, override)
        client.judge_if_needed()
        client.exempt_until = limit.until if limit is not None and limit.exempt else 0.0
        if not self._settings.enabled or (override is not None and override.exempt):
            client.exempt_until = math.inf

    def leave(self, client: ProtectedClient, now: float) -> None:
        """The connection of *client* has ended."""
        if self.recorder is not None and client.throttled is not None:
            self.recorder.released(client.account, True, now)
        self.throttle.forget(client)
        self._pauses.end(client.client_id, now)
        self.accounts.leave(client.account)
        if client.quota is not None:
            self.quotas.leave(client.client_id)
            client.quota = None

    # Publishes.

    def judge(
        self, client: ProtectedClient, gates: list[Gate], publish: Publish, closed: Gate | None, now: float
    ) -> Verdict:
        """Decide about *publish* of *client*, which has to pass *gates*.

        An accepted publish is charged. If it has to wait, the client is paused. *closed* is a gate that the publish
        waits for whatever it says itself: that of all members of a shared subscription.
        """
        account = client.account
        shut: Gate | None = None  # by what is not a publish, or because it is the turn of other clients
        publish.resources = self._here
        for gate in gates:
            publish.resources |= gate.needs
            if shut is None and (gate.blocked or (gate.in_turns and client.turn <= 0)):
                shut = gate
        if shut is None:
            shut = closed
        publish.since = client.waits_since
        if publish.since == NOT_WAITING and client.put_off_since != NOT_WAITING:
            publish.since = now
        publish.exempt = now < client.exempt_until
        client.judged = publish
        recorder = self.recorder
        quotas = (
            client.quota if recorder is None else recorder.publish(publish, account, gates, client.quota, shut, now)
        )
        contended, wait = self.reports.contended, self._settings.wait
        verdict = decide(publish, account, self.ledger, gates, quotas, shut, contended, wait, now)
        if recorder is not None:
            recorder.verdict(verdict)
        if verdict.kind == PAUSE:
            self._pause(client, verdict, now)
        elif verdict.kind == ACCEPT:
            self.throttle.settle(client)
            client.turn -= publish.size + EACH
        else:
            self._refused(client, publish, verdict, now)
        return verdict

    def _refused(self, client: ProtectedClient, publish: Publish, verdict: Verdict, now: float) -> None:
        self.throttle.settle(client)
        client.account.spent += self.prices.refused(publish.size)
        self._note(client, verdict, now)

    def await_store(self, client: ProtectedClient, size: int, now: float) -> Verdict:
        """Decide about a publish of QoS 2, of *size* bytes, that may not be taken before something else is stored.

        It waits as long as for a gate: if it has to, *client* is paused until `stored()`. That is no sign of overload,
        as each session has to wait once, and is not noted.
        """
        publish = Publish(client.version, 2, size, 0, 0)
        publish.since = now if client.waits_since == NOT_WAITING else client.waits_since
        wait = self._settings.wait
        verdict = waits(publish, Verdict(PAUSE, PauseReason.STORE, publish.since + wait), wait, now)
        client.judged = None
        if verdict.kind == PAUSE:
            self.throttle.pause(client, verdict, now)
        else:
            self._refused(client, publish, verdict, now)
        return verdict

    def stored(self, client: ProtectedClient, now: float) -> None:
        """What a publish of *client* has waited for is stored: resume the client, if it waits still."""
        verdict = client.throttled
        if verdict is not None and verdict.reason is PauseReason.STORE:
            self.throttle.forget(client)
            self.throttle.resume(client, now)

    def fitting(self, client: ProtectedClient, gates: list[Gate], longest: int, cost: int, now: float) -> int:
        """How many publishes of at most *longest* bytes and *cost* each may follow the one that was accepted last."""
        quota = UNBOUNDED if client.quota is None else client.quota.fitting(UNBOUNDED, longest, now)
        for gate in gates:
            if gate.in_turns:
                quota = min(quota, max(0, client.turn // (longest + EACH)))
        if self.recorder is not None:
            self.recorder.fitting(quota, longest, cost)
        return following(gates, quota, client.account, self.ledger, longest, cost, now < client.exempt_until, now)

    def charge(
        self, client: ProtectedClient, gates: list[Gate], count: int, size: int, cost: int, deliveries: int, now: float
    ) -> None:
        """*count* publishes followed that one, of *size* bytes and *cost* together, each with so many *deliveries*."""
        if count == 0:
            return
        client.turn -= size + count * EACH
        recorder = self.recorder
        if recorder is not None:
            recorder.run(client.account, gates, now < client.exempt_until, count, size, cost, deliveries, now)
        for gate in gates:
            gate.take(count, size, now)
        if recorder is not None:
            recorder.decided()
        if client.quota is not None:
            client.quota.take(0, count, size, now)
        client.account.follow(self.ledger, cost, now)

    def charge_will(
        self, client_id: str, user: str | None, qos: int, size: int, cost: int, now: float
    ) -> DropReason | None:
        """Charge the will of a client that has disconnected to its quotas and credits; or the reason to drop the will.

        A will never waits for credits: no client is there that could be made to wait, and it tells of a death.
        """
        quota = self.quotas.of_absent(client_id, user, self.limits.get(client_id), now)
        reason = None if quota is None else quota.take_will(qos, size, now)
        if reason is None:
            self.accounts.spend(self.owners.owner(client_id, user), cost)
        return reason

    def defers(self, client: ProtectedClient, filters: int, now: float) -> bool:
        """Whether a SUBSCRIBE with so many *filters* has to wait; if so, *client* is paused.

        A client of MQTT 5 is told in the SUBACK which filters are over the quota. It waits only while Redis is asked.
        """
        over = None if client.quota is None else client.quota.over_filters(filters, now)
        if over is None or (client.version == V5 and over.reason is not PauseReason.QUOTA_ASKED):
            self.throttle.settle(client)
            return False
        self._pause(client, over, now)
        return True

    def _pause(self, client: ProtectedClient, verdict: Verdict, now: float) -> None:
        self.throttle.pause(client, verdict, now)
        self._note(client, verdict, now)

    def _note(self, client: ProtectedClient, verdict: Verdict, now: float) -> None:
        reason = verdict.reason
        if reason is not None and client.note(verdict.kind, reason.label, now) and verdict.kind in EVENTS:
            self._client_log.info(EVENTS[verdict.kind], client=client.client_id, reason=reason.label)
