# Everything that a worker knows about one client, for `weir why`. It reads the state of other objects and changes
# nothing. explain.py makes sentences of the facts.
from typing import Final, cast

from broker.cluster.parts import ClusterLinks
from broker.delivery.catching_up import ClientPace
from broker.insight.facts import (
    BackboneFacts,
    ConfiguredFacts,
    ConnectingFacts,
    ConnectionFacts,
    ContentionFacts,
    CreditFacts,
    DecisionFacts,
    EndFacts,
    Facts,
    GateFacts,
    HeldFacts,
    LevelFacts,
    LimitFacts,
    LogFacts,
    LogTroubleFacts,
    LossFacts,
    OverrideFacts,
    PaceFacts,
    PriceFacts,
    PublishFacts,
    ReaderFacts,
    SessionFacts,
    StoreFacts,
    TurnFacts,
)
from broker.insight.shared_log_facts import shared_logs_of
from broker.overload.admit import Publish
from broker.overload.client import ProtectedClient
from broker.overload.connects import Connects
from broker.overload.gate import Gate
from broker.overload.level import backbone_of, log_of, store_of
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.quotas.overrides import Limit
from broker.overload.quotas.quota import QuotaExceeded
from broker.protocol.connection import Connection
from broker.protocol.essentials import Essentials
from broker.protocol.recent_disconnects import RecentDisconnect, RecentDisconnects
from broker.reasons import PauseReason
from broker.session.decisions import Decision
from broker.session.losses import Loss
from broker.session.session import Session
from broker.store.durable.application_queue import ApplicationQueue
from broker.worker_id import WorkerId

BEHIND: Final = 0.1  # seconds without a turn that leaves nothing, from which they are told
DIGITS: Final = 3  # of times in seconds: milliseconds are precise enough


class ClientDiagnostics:
    def __init__(
        self,
        base: Essentials,
        links: ClusterLinks,
        disconnects: RecentDisconnects,
        connects: Connects,
        protection: Protection,
        monitor: OverloadMonitor,
    ) -> None:
        self._store = links.store
        self._reactor = base.reactor
        self._disconnects = disconnects
        self._connects = connects
        self._protection = protection
        self._monitor = monitor
        self._config = base.config
        self._clock = base.clock
        self._wall = base.wall
        self._durable = links.durable_store
        self._carrier = links.carrier
        self._backbone = links.backbone
        self._worker = base.worker

    def facts(self, client_id: str) -> Facts:
        """The facts about *client_id* that this worker has; `facts.knows()` is false if there are none."""
        now = self._clock()
        session = self._store.find(client_id)
        connection = None if session is None else self._connection(session)
        client = None if connection is None else connection.client
        answers = None if connection is None else connection.answers
        publish = None if client is None else client.judged
        decisions = None if session is None else session.decisions
        return {
            "client": client_id,
            "node": self._worker.node,
            "worker": self._worker.shard,
            "connection": None if connection is None else _connection(connection, now),
            "turns": None if connection is None else self._turns(connection, now),
            "connecting": self._connecting(client_id, now),
            "session": None if session is None else _session(session),
            "ended": _end(self._disconnects.last_disconnect(client_id), now),
            "refused": _end(self._disconnects.last_refusal(client_id), now),
            "held": None if connection is None or client is None else self._held(connection, client, now),
            "publish": None if client is None or publish is None else self._publish(client, publish),
            "prices": self._prices(),
            "credits": None if client is None else self._credits(client, now),
            "contended": [] if publish is None else self._contended(publish, now),
            "level": self._level(),
            "limits": [] if client is None else _limits(client, now),
            "reader": None if session is None or connection is None else self._reader(connection, session, now),
            "pace": None if session is None or connection is None else _pace(connection, session),
            "losses": [] if session is None else self._losses(session),
            "untold": 0 if session is None or session.losses is None else session.losses.untold(),
            "decisions": [] if decisions is None else [_decision(one, now) for one in decisions.latest],
            "override": _override(self._protection.limits.get(client_id), now),
            "configured": None if session is None else self.configured(session),
            "unacknowledged": 0 if answers is None else answers.count,
            "long": 0 if answers is None else answers.long - answers.log,
            "logged": 0 if answers is None else answers.log,
            "stores": self._stores(now),
            "log": None if session is None else self._log(session),
            "logs": self._logs(),
            "backbone": self._behind(),
            "unanswered": [],
        }

    def _losses(self, session: Session) -> list[LossFacts]:
        """What was lost for each reason, the latest last."""
        losses = session.losses
        if losses is None:
            return []
        wall = self._wall()
        found: list[LossFacts] = []
        for label, loss in sorted(losses.by_reason().items(), key=_last):
            first, last = [_seconds(max(0.0, wall - at / 1000)) for at in (loss.first, loss.last)]
            found.append({"reason": label, "count": loss.count, "first": first, "last": last})
        return found

    def _stores(self, now: float) -> list[StoreFacts]:
        durable = self._durable
        trouble = None if durable is None else durable.trouble(now)
        if durable is None or trouble is None:
            return []
        replicas, needed = durable.missing_replicas()
        return [{"resource": store_of(str(self._worker)), "why": trouble.label, "replicas": replicas, "needed": needed}]

    def _log(self, session: Session) -> LogFacts | None:
        """The log that has what waits for *session*."""
        queue, durable = session.queue(), self._durable
        if not isinstance(queue, ApplicationQueue) or queue.parted or durable is None or durable.logs is None:
            return None
        trouble, shared = durable.logs.trouble(queue.topic), shared_logs_of(durable, session)
        return {"topic": queue.topic, "trouble": trouble, "parting": queue.parting, "shared": shared}

    def _logs(self) -> list[LogTroubleFacts]:
        trouble = None if self._carrier is None else self._carrier.trouble()
        return [] if trouble is None else [{"resource": log_of(str(self._worker)), "why": str(trouble)}]

    def _behind(self) -> BackboneFacts | None:
        if self._backbone is None:
            return None
        found = self._backbone.statistics()
        return {"lag": _seconds(found.lag), "behind": found.behind, "trouble": found.trouble}

    def configured(self, session: Session) -> ConfiguredFacts | None:
        """The override of the configuration that applies to the client of *session*."""
        user = session.principal.user
        override = self._protection.quotas.configured.find(session.client_id, None if user is None else user.decode())
        if override is None:
            return None
        table = override.table
        return {"by": table.by, "name": table.name, "settings": table.words(), "exempt": override.exempt}

    def _connection(self, session: Session) -> Connection | None:
        outbox = session.outbox
        return None if outbox is None else cast(Connection | None, self._reactor.stream_of(outbox))

    def _turns(self, connection: Connection, now: float) -> TurnFacts | None:
        behind = now - connection.behind_since if connection.behind_since else 0.0
        if behind < BEHIND or connection.paused:
            return None
        return {"behind": _seconds(behind), "ready": self._reactor.ready.count}

    def _connecting(self, client_id: str, now: float) -> ConnectingFacts | None:
        connects = self._connects
        waiter = connects.find(client_id)
        if waiter is None:
            return None
        due = max(0.0, connects.due(now) - now)
        return {"waited": _seconds(now - waiter.since), "waiting": connects.waiting(), "due": _seconds(due)}

    def _held(self, connection: Connection, client: ProtectedClient, now: float) -> HeldFacts | None:
        verdict = client.throttled
        if verdict is None or not isinstance(verdict.reason, PauseReason):
            return None
        protection, wait = self._protection, self._config.overload.wait
        store = verdict.reason is PauseReason.STORE
        bounded = store or verdict.gate is not None or verdict.reason is PauseReason.CREDITS
        return {
            "reason": verdict.reason.label,
            "since": _seconds(now - client.put_off_since),
            "due": _seconds(max(0.0, verdict.until - now)) if verdict.until and not store else None,
            "patience": _seconds(max(0.0, client.waits_since + wait - now)) if bounded else None,
            "gate": None if verdict.gate is None else self._gate(verdict.gate, now),
            "limit": verdict.limit if isinstance(verdict, QuotaExceeded) else "",
            "unread": connection.left,
            "honoured": protection.honour,
        }

    def _gate(self, gate: Gate, now: float) -> GateFacts:
        return {
            "resource": gate.resource,
            "publishes": gate.count,
            "bytes": gate.bytes,
            "delay": _seconds(gate.delay(now)),
            "refuses": gate.blocked,
            "trouble": self._log_trouble(gate),
        }

    def _log_trouble(self, gate: Gate) -> str:
        if self._backbone is not None and gate.resource == backbone_of(str(self._worker)):
            return self._backbone.trouble()
        carrier = self._carrier
        if carrier is None or gate.resource != log_of(str(self._worker)):
            return ""
        trouble = carrier.trouble()
        return "" if trouble is None else str(trouble)

    def _publish(self, client: ProtectedClient, publish: Publish) -> PublishFacts:
        protection = self._protection
        parts = protection.prices.parts(publish.size, publish.deliveries, publish.retained, publish.qos)
        return {
            "waits": client.throttled is not None,
            "size": publish.size,
            "receivers": publish.deliveries,
            "stored": publish.persistent,
            "cost": publish.cost,
            "base": parts[0],
            "for_bytes": parts[1],
            "for_deliveries": parts[2],
            "for_storing": protection.prices.stored(publish.persistent),
            "for_retaining": parts[3],
            "for_qos": parts[4],
            "needs": protection.resources.names(publish.resources),
        }

    def _prices(self) -> PriceFacts:
        cost = self._config.overload.cost
        return {
            "publish": cost.publish,
            "bytes_per_credit": cost.bytes_per_credit,
            "delivery": cost.delivery,
            "stored": 0 if self._durable is None else cost.persistent_delivery,
            "retained": cost.retained,
            "qos": cost.qos,
        }

    def _credits(self, client: ProtectedClient, now: float) -> CreditFacts:
        ledger = self._protection.ledger
        return {"balance": int(client.account.balance(ledger, now)), "cap": int(ledger.cap), "refill": ledger.refill}

    def _contended(self, publish: Publish, now: float) -> list[ContentionFacts]:
        """The contended resources that *publish* needs, with the signals and reports that say so."""
        protection = self._protection
        signals, reports = protection.signals, protection.reports
        found: list[ContentionFacts] = []
        for name in protection.resources.names(publish.resources & reports.contended):
            for signal in signals.contending(name):
                found.append(_contention(name, self._worker, signal.name, signal.value, signal.target))
            for report in reports.known(now):
                if name in report.contended:
                    target = signals.target(report.cause)
                    found.append(_contention(name, report.worker, report.cause, report.value, target))
        return found

    def _level(self) -> LevelFacts:
        protection = self._protection
        reports = protection.reports
        return {
            "enabled": self._config.overload.enabled,
            "level": round(reports.level, 1),
            "node_level": round(reports.node_level, 1),
            "worker_level": round(self._monitor.level.value, 1),
            "cause": reports.cause,
            "cause_node": reports.cause_worker.node,
            "cause_worker": reports.cause_worker.shard,
            "value": round(reports.value, 2),
            "target": protection.signals.target(reports.cause),
        }

    def _reader(self, connection: Connection, session: Session, now: float) -> ReaderFacts:
        outbox = connection.outbox
        return {
            "writable": not outbox.full,
            "unsent": outbox.size,
            "high": outbox.high,
            "low": outbox.low,
            "stalled": _seconds(now - connection.stalled_at) if outbox.blocked else None,
            "patience": self._config.delivery.slow_consumer_timeout,
            "unacknowledged": session.inflight(),
            "window": session.window,
            "waiting": session.waiting(),
            "may_wait": session.may_wait(),
        }


def _last(found: tuple[str, Loss]) -> int:
    return found[1].last


def _connection(connection: Connection, now: float) -> ConnectionFacts:
    return {
        "address": connection.address,
        "transport": connection.transport,
        "version": connection.version,
        "user": connection.user or "",
        "age": _seconds(now - connection.since),
        "silent": _seconds(now - connection.heard),
        "keep_alive": connection.keep_alive,
    }


def _pace(connection: Connection, session: Session) -> PaceFacts | None:
    pace = connection.outbox.pace
    if not isinstance(pace, ClientPace):
        return None
    return {"messages": pace.messages, "bytes": pace.size, "left": session.unsent()}


def _session(session: Session) -> SessionFacts:
    return {"subscriptions": len(session.subscriptions), "expiry": session.expiry}


def _end(ending: RecentDisconnect | None, now: float) -> EndFacts | None:
    if ending is None:
        return None
    return {
        "reason": ending.reason.label,
        "code": ending.reason.code,
        "ago": _seconds(now - ending.at),
        "detail": ending.detail,
        "address": ending.address,
        "undelivered": ending.undelivered,
    }


def _contention(resource: str, worker: WorkerId, signal: str, value: float, target: float) -> ContentionFacts:
    return {
        "resource": resource,
        "node": worker.node,
        "worker": worker.shard,
        "signal": signal,
        "value": round(value, 2),
        "target": target,
    }


def _limits(client: ProtectedClient, now: float) -> list[LimitFacts]:
    quota = client.quota
    if quota is None:
        return []
    return [{"name": name, "rate": rate, "room": round(room, 1)} for name, rate, room in quota.incoming(now)]


def _decision(decision: Decision, now: float) -> DecisionFacts:
    return {
        "kind": decision.kind,
        "reason": decision.reason,
        "first": _seconds(now - decision.first),
        "last": _seconds(now - decision.last),
        "times": decision.times,
    }


def _override(limit: Limit | None, now: float) -> OverrideFacts | None:
    if limit is None or now >= limit.until:
        return None
    return {
        "rate": limit.rate,
        "exempt": limit.exempt,
        "left": _seconds(limit.until - now),
        "by": limit.by,
        "reason": limit.reason,
    }


def _seconds(value: float) -> float:
    return round(value, DIGITS)
