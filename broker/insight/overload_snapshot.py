# The overload of a worker at this moment, for `weir overload`. It is read from state that other objects keep, and only
# when it is requested. Values are not interpreted: the command that shows them does that, and programs get all of them.
from typing import Any, Final

from broker.config.schema import Overload
from broker.metrics.counters import Counters
from broker.metrics.interval import IntervalMetrics
from broker.overload.connects import Connects
from broker.overload.credits import TICK
from broker.overload.level import STALE, Signal
from broker.overload.monitor import OverloadMonitor
from broker.overload.protection import Protection
from broker.overload.reports import ReceivedReport

LISTED: Final = 256  # reports that are listed, the latest: some 50 KB


class OverloadSnapshot:
    def __init__(
        self,
        protection: Protection,
        monitor: OverloadMonitor,
        metrics: IntervalMetrics,
        connects: Connects,
        counters: Counters,
        settings: Overload,
    ) -> None:
        self._protection = protection
        self._monitor = monitor
        self._metrics = metrics
        self._connects = connects
        self._counters = counters
        self._settings = settings

    def take(self, now: float) -> dict[str, Any]:
        """This worker's level and signals, the reports of others, the clients that are paused. Times in seconds."""
        protection = self._protection
        level, signals, ledger = self._monitor.level, protection.signals, protection.ledger
        injected = self._monitor.injected(now)
        return {
            "enabled": self._settings.enabled,
            "level": round(level.value, 3),
            "cause": level.cause,
            "worst": round(signals.worst, 3),
            "signals": [_signal(one, injected.get(one.name), now) for one in signals.all()],
            "cluster": self._cluster(),
            "credits": {
                "per_tick": ledger.refill,
                "when_calm": self._settings.refill[0],
                "tick_s": TICK,
                "most": ledger.cap,
            },
            "held": self._held(),
            "connects": {"waiting": self._connects.waiting(), "oldest_s": round(self._connects.oldest(now), 3)},
            "reports": self._reports(now),
            "trace": None if protection.recorder is None else protection.recorder.statistics(),
        }

    def _cluster(self) -> dict[str, Any]:
        """The level in force: the highest of all workers that report."""
        reports = self._protection.reports
        return {
            "level": round(reports.level, 3),
            "cause": reports.cause if reports.level else "",
            "value": round(reports.value, 3),
            "node": reports.cause_worker.node,
            "worker": reports.cause_worker.shard,
        }

    def _held(self) -> dict[str, dict[str, int]]:
        """By reason: the clients that are throttled now, and their time in the last interval and minute."""
        pauses, last = self._metrics.pauses.paused(), self._metrics.last
        minute = self._metrics.paused_for()
        interval = {} if last is None else last["paused"]
        return {
            label: {
                "clients": pauses.get(label, 0),
                "interval_ms": interval[label]["ms"] if label in interval else 0,
                "minute_ms": minute.get(label, 0),
            }
            for label in sorted({*pauses, *minute})
        }

    def _reports(self, now: float) -> dict[str, Any]:
        """The reports of other workers, and how many were ignored."""
        reports = self._protection.reports
        heard = reports.heard()
        return {
            "heard": [_received(one, now) for one in heard[:LISTED]],
            "others": max(0, len(heard) - LISTED),
            "ignored": {label: count for label, count in reports.ignored.items() if count},
            "lost_redis": self._counters.reports_lost_redis,
        }


def _signal(signal: Signal, injected: float | None, now: float) -> dict[str, Any]:
    """*injected*: seconds for which a test sets the value; None: it is measured."""
    return {
        "name": signal.name,
        "value": round(signal.value, 3),
        "resource": signal.resource,
        "contended_s": round(now - signal.since, 3) if signal.contended else None,
        "injected_s": None if injected is None else round(injected, 3),
    }


def _received(received: ReceivedReport, now: float) -> dict[str, Any]:
    report = received.report
    age = now - received.heard
    return {
        "node": report.worker.node,
        "worker": report.worker.shard,
        "level": round(report.level, 3),
        "cause": report.cause,
        "value": round(report.value, 3),
        "contended": list(report.contended),
        "clients": report.clients if report.clients >= 0 else None,
        "connect_wait_s": round(report.connect_wait, 3),
        "age_s": round(age, 3),
        "counts": age <= STALE,
    }
