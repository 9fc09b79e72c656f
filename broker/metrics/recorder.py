# The recorder: makes the metrics record of a worker (record.py), once an interval.
#
# Counters are cumulative where they are counted, so that who misses a reading misses nothing; here the difference is
# taken. What measures by the interval (heavy hitters, latencies) is cleared: the next one begins with the record.
import json
from math import isfinite
from typing import Any, Final

from broker.metrics.counters import Counters
from broker.metrics.heavy_hitters import HeavyHitters, Hitter
from broker.metrics.latency import Latencies
from broker.metrics.pauses import Pauses
from broker.metrics.record import LONGEST_NAME, TOP, VERSION
from broker.metrics.sys_topics import Gauges
from broker.worker_id import WorkerId

CUT: Final = "\u2026"  # at the end of a name that is longer

# By their names in the record, what Counters calls them.
COUNTED: Final = {
    "received": "connects_received",
    "accepted": "connects_accepted",
    "refused": "connects_refused",
    "in.messages": "publishes_received",
    "in.bytes": "publish_bytes_received",
    "out.messages": "publishes_sent",
    "out.bytes": "publish_bytes_sent",
    "became_non_writable": "became_non_writable",
}
BY_REASON: Final = {
    "dropped": "dropped_by_reason",
    "refused": "refused_by_reason",
    "publishes_refused": "publishes_refused_by_reason",
    "closed": "closed_by_reason",
    "flushes": "flushes_by_cause",
    "pauses": "pauses_by_reason",
    "paused_ms": "paused_ms_by_reason",
}

Counts = dict[str, int]


class Store:
    """Something that things are kept in. 0 bytes: not known."""

    def __init__(self, used: int, limit: int, ops: int) -> None:
        """Bytes, bytes, and what it was asked to do since the start."""
        self.used = used
        self.limit = limit
        self.ops = ops


class Recorder:
    def __init__(
        self,
        counters: Counters,
        clients: HeavyHitters,
        topics: HeavyHitters,
        latencies: Latencies,
        pauses: Pauses,
        *,
        worker: WorkerId,
        now: float,
    ) -> None:
        """*now*: when the first interval begins, in seconds."""
        self.p50_ms = 0.0  # of the last interval
        self.p99_ms = 0.0
        self._counters = counters
        self._clients = clients
        self._topics = topics
        self._latencies = latencies
        self._pauses = pauses
        self.about: dict[str, object] = {"node": worker.node, "worker": worker.shard, "boot": worker.incarnation_text}
        self._sequence = 0
        self._began = now
        self._counted: Counts = {}
        self._by_reason: dict[str, Counts] = {}
        self._ops: Counts = {}

    def record(self, now: float, wall: float, gauges: Gauges, stores: dict[str, Store]) -> dict[str, Any]:
        """The record of the interval that ends now, and at *wall*, Unix time; *gauges*: what holds now."""
        most = self._pauses.close_interval(now)
        counted = self._since(COUNTED)
        reasons = {name: self._since_by_reason(name, attribute) for name, attribute in BY_REASON.items()}
        interval = now - self._began
        self._began = now
        overload = gauges.overload
        made: dict[str, Any] = {
            "version": VERSION,
            "ts": round(wall, 3),
            "interval_s": round(interval, 3),
            **self.about,
            "sequence": self._sequence,
            "level": overload.level,
            "cluster_level": overload.cluster_level,
            "cause": overload.cause,
            "signals": {name: round(value, 3) for name, value in overload.signals.items() if isfinite(value)},
            "credits_per_tick": overload.credits_per_tick,
            "clients": {
                "connected": gauges.clients_connected,
                "throttled": overload.throttled,
                "using_credits": overload.using_credits,
                "average_credits": round(overload.average_credits, 1),
                "non_writable": gauges.non_writable,
                "became_non_writable": counted["became_non_writable"],
            },
            "paused": _paused(most, reasons),
            "connects": {name: counted[name] for name in ("received", "accepted", "refused")},
            "in": {"messages": counted["in.messages"], "bytes": counted["in.bytes"]},
            "out": {"messages": counted["out.messages"], "bytes": counted["out.bytes"]},
            "dropped": reasons["dropped"],
            "refused": reasons["refused"] | reasons["publishes_refused"],  # no label is in both
            "closed": reasons["closed"],
            "queues": {
                "messages": gauges.queued,
                "bytes": gauges.queued_bytes,
                "limit_bytes": gauges.queued_limit,
                "outbound_bytes": gauges.outbound_bytes,
                "outbound_limit_bytes": gauges.outbound_limit,
            },
            "latency": self._latency(),
            "stores": {name: self._store(name, store) for name, store in stores.items()},
            "flushes": reasons["flushes"],
            "top": {"clients": _top("client", self._clients), "topics": _top("topic", self._topics)},
        }
        self._sequence += 1
        return made

    def _since(self, names: dict[str, str]) -> Counts:
        """What was counted since the last record, also what is 0."""
        now = {name: int(getattr(self._counters, attribute)) for name, attribute in names.items()}
        grown = {name: count - self._counted.get(name, 0) for name, count in now.items()}
        self._counted = now
        return grown

    def _since_by_reason(self, name: str, attribute: str) -> Counts:
        """The same by label, without those that nothing happened for."""
        now: Counts = dict(getattr(self._counters, attribute))
        before = self._by_reason.get(name, {})
        self._by_reason[name] = now
        return {label: count - before.get(label, 0) for label, count in now.items() if count != before.get(label, 0)}

    def _latency(self) -> dict[str, Any]:
        latencies = self._latencies
        self.p50_ms = round(latencies.quantile(0.5) * 1e3, 3)
        self.p99_ms = round(latencies.quantile(0.99) * 1e3, 3)
        told = {"messages": latencies.count, "p50_ms": self.p50_ms, "p99_ms": self.p99_ms}
        latencies.clear()
        return told

    def _store(self, name: str, store: Store) -> Counts:
        ops = store.ops - self._ops.get(name, 0)
        self._ops[name] = store.ops
        return {"used_bytes": store.used, "limit_bytes": store.limit, "ops": ops}


def encoded(record: dict[str, Any]) -> bytes:
    """As it goes into the log."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _paused(most: Counts, reasons: dict[str, Counts]) -> dict[str, Counts]:
    """By reason; those that nobody was held for are left out."""
    pauses, milliseconds = reasons["pauses"], reasons["paused_ms"]
    return {
        label: {"clients": clients, "pauses": pauses.get(label, 0), "ms": milliseconds.get(label, 0)}
        for label, clients in most.items()
        if clients
    }


def _top(what: str, hitters: HeavyHitters) -> dict[str, Any]:
    """The table of *hitters*, which begin anew."""
    rows = hitters.top(TOP)
    told = {
        "rows": [{what: _name(hitter.key), **_figures(hitter)} for hitter in rows],
        "error": _figures(hitters.error()),
        "others": len(hitters) - len(rows),
    }
    hitters.clear()
    return told


def _figures(hitter: Hitter) -> Counts:
    return {
        "cost": hitter.cost,
        "messages": hitter.messages,
        "bytes": hitter.bytes,
        "paused_ms": hitter.paused // 1000,
    }


def _name(key: object) -> str:
    name = key.decode() if isinstance(key, bytes) else str(key)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + CUT
