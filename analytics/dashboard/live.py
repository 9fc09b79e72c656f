# The live figures: the metrics records of the last minutes, folded as they arrive.
#
# The stream is read once for all open pages. Memory is bounded: the last record of each worker, a row for each of KEPT
# seconds, the counters of COUNTED seconds, and the records of HITTING seconds for the heavy hitters.
# The time is that of Redis (the ids of the entries), one clock for all nodes; the timestamps of the records are not
# used.
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from broker.metrics.record import MEASURES, misfit

KEPT: Final = 300  # seconds of the charts
COUNTED: Final = 60  # seconds of the counters of dropped, refused and throttled
HITTING: Final = 10  # seconds of heavy hitters: over a shorter time their order changes too often
FRESH: Final = 3.5  # seconds: an older record does not describe the present
FORGOTTEN: Final = 60.0  # seconds: a worker that has been silent for longer is removed
WORKERS: Final = 1000  # at most: forged records of more workers must not use more memory

Record = dict[str, Any]
Counts = dict[str, int]
Name = tuple[str, int]  # a node and the number of a worker


@dataclass(frozen=True, slots=True)
class Second:
    """One second of the cluster. The figures are None if no worker reported."""

    at: int
    level: int | None
    levels: dict[str, int]  # by node, the highest of its workers
    incoming: float | None  # messages per second
    outgoing: float | None
    held: int  # clients, by overload protection


@dataclass(slots=True)
class Counted:
    """The counters of one second, summed over all workers."""

    at: int
    dropped: Counts = field(default_factory=dict)
    refused: Counts = field(default_factory=dict)
    held_ms: Counts = field(default_factory=dict)
    connects: int = 0
    connects_refused: int = 0


@dataclass(slots=True)
class Hits:
    """The figures of a client or topic in HITTING seconds."""

    name: str
    cost: int = 0
    messages: int = 0
    bytes: int = 0
    paused_ms: int = 0


@dataclass(frozen=True, slots=True)
class LastRecord:
    record: Record
    at: float


class Live:
    def __init__(self) -> None:
        self.workers: dict[Name, LastRecord] = {}
        self.seconds: deque[Second] = deque(maxlen=KEPT)
        self.unfit = 0  # invalid entries
        self.taken = 0
        self.lost = 0  # records that are missing, by the sequence numbers
        self._counted: deque[Counted] = deque(maxlen=COUNTED)
        self._hits: deque[tuple[int, list[Record]]] = deque(maxlen=HITTING)
        self._second: int | None = None  # the current second

    def take(self, record: object, at: float) -> bool:
        """Add a record that was written at *at*. False: it is invalid, a duplicate, or of too many workers."""
        if not isinstance(record, dict) or misfit(record):
            self.unfit += 1
            return False
        name = (record["node"], record["worker"])
        before = self.workers.get(name)
        if before is not None and _is_duplicate(before.record, record):
            return False
        if before is None and len(self.workers) >= WORKERS:
            return False
        self.pass_time(at)
        if before is not None and before.record["boot"] == record["boot"]:
            self.lost += record["sequence"] - before.record["sequence"] - 1
        self.workers[name] = LastRecord(record, at)
        self._count(record, int(at))
        self.taken += 1
        return True

    def pass_time(self, at: float) -> None:
        """Set the time to *at*: finish the seconds before it, and forget silent workers."""
        now = int(at)
        if self._second is None:
            self._second = now
        if now <= self._second:
            return
        self.seconds.extend(self._row(one) for one in range(max(self._second, now - KEPT), now))
        self._second = now
        for name in [name for name, last in self.workers.items() if now - last.at > FORGOTTEN]:
            del self.workers[name]

    def fresh(self, now: float) -> dict[Name, LastRecord]:
        """Return the workers that have reported recently, by name."""
        return {name: last for name, last in sorted(self.workers.items()) if now - last.at <= FRESH}

    def counted(self, now: float, seconds: int = COUNTED) -> Counted:
        """Return the counters of the last *seconds*."""
        total = Counted(int(now))
        for one in self._counted:
            if one.at <= now - seconds:
                continue
            _add(total.dropped, one.dropped)
            _add(total.refused, one.refused)
            _add(total.held_ms, one.held_ms)
            total.connects += one.connects
            total.connects_refused += one.connects_refused
        return total

    def hitters(self, what: str, now: float, workers: Collection[Name] | None = None) -> list[Hits]:
        """Return the clients or topics of the last HITTING seconds, the most costly first; only those of *workers*."""
        found: dict[str, Hits] = {}
        for row in self._rows(what, now, workers):
            hits = found.setdefault(row[what], Hits(row[what]))
            for measure in MEASURES:
                setattr(hits, measure, getattr(hits, measure) + row[measure])
        return sorted(found.values(), key=_costly_first)

    def _rows(self, what: str, now: float, workers: Collection[Name] | None) -> Iterator[Record]:
        for second, records in self._hits:
            if second > now - HITTING:
                for record in records:
                    if workers is None or (record["node"], record["worker"]) in workers:
                        yield from record["top"][f"{what}s"]["rows"]

    def _row(self, second: int) -> Second:
        """Return the row of *second*, from the last record of each worker."""
        levels: dict[str, int] = {}
        incoming = outgoing = 0.0
        held = 0
        reported = False
        for (node, _), last in self.workers.items():
            if second + 1 - last.at > FRESH:
                continue
            record = last.record
            reported = True
            levels[node] = max(record["level"], levels.get(node, 0))
            incoming += per_second(record, record["in"]["messages"])
            outgoing += per_second(record, record["out"]["messages"])
            held += record["clients"]["throttled"]
        if not reported:
            return Second(second, None, {}, None, None, 0)
        highest = min(10, max(levels.values()))
        return Second(second, highest, levels, round(incoming, 1), round(outgoing, 1), held)

    def _count(self, record: Record, second: int) -> None:
        if not self._counted or self._counted[-1].at < second:
            self._counted.append(Counted(second))
            self._hits.append((second, []))
        total = self._counted[-1]
        _add(total.dropped, record["dropped"])
        _add(total.refused, record["refused"])
        _add(total.held_ms, {reason: figures["ms"] for reason, figures in record["paused"].items()})
        total.connects += record["connects"]["received"]
        total.connects_refused += record["connects"]["refused"]
        self._hits[-1][1].append(record)


def per_second(record: Record, count: int) -> float:
    """Return *count* per second of the interval of *record*, which may be 0 or negative if a clock was adjusted."""
    return count / max(0.001, float(record["interval_s"]))


def _is_duplicate(before: Record, record: Record) -> bool:
    """Return whether *record* is not newer than *before*, a record of the same boot."""
    return bool(before["boot"] == record["boot"] and before["sequence"] >= record["sequence"])


def _add(total: Counts, more: Counts) -> None:
    for label, count in more.items():
        total[label] = total.get(label, 0) + count


def _costly_first(hits: Hits) -> tuple[int, int, str]:
    return -hits.cost, -hits.paused_ms, hits.name
