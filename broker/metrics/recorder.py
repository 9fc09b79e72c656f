# The recorder makes the metrics record of a worker (record.py), once in each interval.
#
# Counters are cumulative, so that a missed reading loses nothing; the recorder takes the difference to the record
# before. What is measured by the interval (heavy hitters, latencies) is cleared when a record is made.
import json
from math import isfinite
from typing import Any, Final

from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.heavy_hitters import HeavyHitters, Hitter
from broker.metrics.latency import Latencies
from broker.metrics.pause_statistics import PauseStatistics
from broker.metrics.record import LONGEST_NAME, RECORD, TOP, VERSION, Group
from broker.metrics.table import COUNTERS, GAUGES, OVERLOAD, REASONS
from broker.worker_id import WorkerId

CUT: Final = "\u2026"  # at the end of a name that was cut

Counts = dict[str, int]


class Store:
    """How full a store is, and what it was asked to do since the start. 0 bytes: not known."""

    def __init__(self, used: int, limit: int, ops: int) -> None:
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
        pauses: PauseStatistics,
        *,
        worker: WorkerId,
        now: float,
    ) -> None:
        """The first interval starts *now*."""
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
        self._totals: Counts = {}  # by attribute of Counters, at the last record
        self._totals_by_reason: dict[str, Counts] = {}
        self._ops: Counts = {}

    def record(self, now: float, wall: float, gauges: Gauges, stores: dict[str, Store]) -> dict[str, Any]:
        """The record of the interval that ends *now* (*wall* in Unix time); *gauges* is a reading of this moment."""
        most = self._pauses.close_interval(now)
        values: dict[str, Any] = {
            "version": VERSION,
            "ts": round(wall, 3),
            "interval_s": round(now - self._began, 3),
            **self.about,
            "sequence": self._sequence,
            "signals": {name: round(value, 3) for name, value in gauges.overload.signals.items() if isfinite(value)},
            "stores": {name: self._store(name, store) for name, store in stores.items()},
            "top.clients": _top("client", self._clients),
            "top.topics": _top("topic", self._topics),
        }
        values.update(self._latency())
        values.update(self._counted())
        values.update(self._counted_by_reason(most))
        values.update(_held(gauges))
        self._began = now
        self._sequence += 1
        return _arranged(RECORD, values, "")

    def _counted(self) -> Counts:
        """By path: what each counter counted since the last record."""
        found: Counts = {}
        for row in COUNTERS:
            if row.record:
                count: int = getattr(self._counters, row.attribute)
                found[row.record] = count - self._totals.get(row.attribute, 0)
                self._totals[row.attribute] = count
        return found

    def _counted_by_reason(self, most: Counts) -> dict[str, dict[str, Any]]:
        """By path and label: what was counted since the last record. Labels with no count are left out.

        *most*: by reason, the most clients that were paused at one time.
        """
        paused: dict[str, Any] = {
            label: {"clients": clients, "pauses": 0, "ms": 0} for label, clients in most.items() if clients
        }
        found: dict[str, dict[str, Any]] = {"paused": paused}
        for row in REASONS:
            if not row.record:
                continue
            now: Counts = dict(getattr(self._counters, row.attribute))
            before = self._totals_by_reason.get(row.attribute, {})
            self._totals_by_reason[row.attribute] = now
            grown = {label: n - before.get(label, 0) for label, n in now.items() if n != before.get(label, 0)}
            table, _, field = row.record.partition(".*.")
            if field:  # of the objects in `paused`
                for label, count in grown.items():
                    if label in paused:
                        paused[label][field] = count
            else:
                found.setdefault(table, {}).update(grown)
        return found

    def _latency(self) -> dict[str, float]:
        """By path; the latencies are cleared."""
        latencies = self._latencies
        self.p50_ms = round(latencies.quantile(0.5) * 1e3, 3)
        self.p99_ms = round(latencies.quantile(0.99) * 1e3, 3)
        count = latencies.count
        latencies.clear()
        return {"latency.messages": count, "latency.p50_ms": self.p50_ms, "latency.p99_ms": self.p99_ms}

    def _store(self, name: str, store: Store) -> Counts:
        ops = store.ops - self._ops.get(name, 0)
        self._ops[name] = store.ops
        return {"used_bytes": store.used, "limit_bytes": store.limit, "ops": ops}


def encoded(record: dict[str, Any]) -> bytes:
    """*record* as JSON, as it is written to the log."""
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _held(gauges: Gauges) -> dict[str, Any]:
    """By path: what the worker holds, and its figures of overload."""
    found: dict[str, Any] = {row.record: getattr(gauges, row.attribute) for row in GAUGES if row.record}
    for row in OVERLOAD:
        if row.record:
            value = getattr(gauges.overload, row.attribute)
            found[row.record] = value if row.digits < 0 else round(value, row.digits)
    return found


def _arranged(group: Group, values: dict[str, Any], below: str) -> dict[str, Any]:
    """The object that *group* describes, made of *values* by path."""
    made: dict[str, Any] = {}
    for name, kind in group.fields.items():
        path = below + name
        if path in values:
            made[name] = values[path]
        else:
            assert isinstance(kind, Group), path
            made[name] = _arranged(kind, values, path + ".")
    return made


def _top(what: str, hitters: HeavyHitters) -> dict[str, Any]:
    """The rows of *hitters*, which is cleared."""
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
