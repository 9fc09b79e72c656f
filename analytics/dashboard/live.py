# What the workers said lately: the records of the last minutes, folded as they come.
#
# The log is read once for all who look on. What is kept is bounded, however long somebody looks: the last record of
# each worker, a row for each of KEPT seconds, what was counted in COUNTED of them, and the heavy hitters of HITTING.
# Time is that of the log (the ids of its entries), one clock for all nodes; what it says of itself is not asked.
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from broker.metrics.record import MEASURES, misfit

KEPT: Final = 300  # seconds of the charts
COUNTED: Final = 60  # seconds of what was dropped, refused and held back
HITTING: Final = 10  # seconds of heavy hitters: shorter ones change places all the time
FRESH: Final = 3.5  # seconds; whose last record is older says nothing of now
FORGOTTEN: Final = 60.0  # seconds; who was silent for longer is gone
WORKERS: Final = 1000  # at most; whoever writes others into the log does not cost us more

Record = dict[str, Any]
Counts = dict[str, int]
Name = tuple[str, int]  # a node and the number of a worker


@dataclass(frozen=True, slots=True)
class Second:
    """A second of the cluster; None: nobody said anything of it."""

    at: int
    level: int | None
    levels: dict[str, int]  # by node, the highest of its workers
    incoming: float | None  # messages a second
    outgoing: float | None
    held: int  # clients, by overload protection


@dataclass(slots=True)
class Counted:
    """What was counted in one second, of all workers."""

    at: int
    dropped: Counts = field(default_factory=dict)
    refused: Counts = field(default_factory=dict)
    held_ms: Counts = field(default_factory=dict)
    connects: int = 0
    connects_refused: int = 0


@dataclass(slots=True)
class Hits:
    """What a client or a topic did in HITTING seconds."""

    name: str
    cost: int = 0
    messages: int = 0
    bytes: int = 0
    paused_ms: int = 0


@dataclass(frozen=True, slots=True)
class Heard:
    record: Record
    at: float


class Live:
    def __init__(self) -> None:
        self.workers: dict[Name, Heard] = {}
        self.seconds: deque[Second] = deque(maxlen=KEPT)
        self.unfit = 0  # entries that were no records
        self.taken = 0
        self._counted: deque[Counted] = deque(maxlen=COUNTED)
        self._hits: deque[tuple[int, list[Record]]] = deque(maxlen=HITTING)
        self._second: int | None = None  # that is being told of

    def take(self, record: object, at: float) -> bool:
        """Add what a worker said, in the log since *at*. False: it is no record, or one that was taken before."""
        if not isinstance(record, dict) or misfit(record):
            self.unfit += 1
            return False
        name = (record["node"], record["worker"])
        before = self.workers.get(name)
        if before is not None and _told(before.record, record):
            return False
        if before is None and len(self.workers) >= WORKERS:
            return False
        self.pass_time(at)
        self.workers[name] = Heard(record, at)
        self._count(record, int(at))
        self.taken += 1
        return True

    def pass_time(self, at: float) -> None:
        """It is *at* by the clock of the log: the seconds before are over."""
        now = int(at)
        if self._second is None:
            self._second = now
        if now <= self._second:
            return
        self.seconds.extend(self._row(one) for one in range(max(self._second, now - KEPT), now))
        self._second = now
        for name in [name for name, heard in self.workers.items() if now - heard.at > FORGOTTEN]:
            del self.workers[name]

    def fresh(self, now: float) -> dict[Name, Heard]:
        """The workers that speak, in the order of their names."""
        return {name: heard for name, heard in sorted(self.workers.items()) if now - heard.at <= FRESH}

    def counted(self, now: float, seconds: int = COUNTED) -> Counted:
        """What was counted in the last *seconds*."""
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

    def hitters(self, what: str, now: float) -> list[Hits]:
        """Each client or topic that somebody told of in the last HITTING seconds, the most costly first."""
        found: dict[str, Hits] = {}
        for row in self._rows(what, now):
            hits = found.setdefault(row[what], Hits(row[what]))
            for measure in MEASURES:
                setattr(hits, measure, getattr(hits, measure) + row[measure])
        return sorted(found.values(), key=_costly_first)

    def _rows(self, what: str, now: float) -> Iterator[Record]:
        for second, records in self._hits:
            if second > now - HITTING:
                for record in records:
                    yield from record["top"][f"{what}s"]["rows"]

    def _row(self, second: int) -> Second:
        """What all that speak have said last."""
        levels: dict[str, int] = {}
        incoming = outgoing = 0.0
        held = 0
        spoke = False
        for (node, _), heard in self.workers.items():
            if second + 1 - heard.at > FRESH:
                continue
            record = heard.record
            spoke = True
            levels[node] = max(record["level"], levels.get(node, 0))
            incoming += per_second(record, record["in"]["messages"])
            outgoing += per_second(record, record["out"]["messages"])
            held += record["clients"]["throttled"]
        if not spoke:
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
    """*count*, of the interval of *record*; one that is none, as a clock was set, counts as a moment."""
    return count / max(0.001, float(record["interval_s"]))


def _told(before: Record, record: Record) -> bool:
    """Whether *record* is no newer than the last of the same life of its worker."""
    return bool(before["boot"] == record["boot"] and before["sequence"] >= record["sequence"])


def _add(total: Counts, more: Counts) -> None:
    for label, count in more.items():
        total[label] = total.get(label, 0) + count


def _costly_first(hits: Hits) -> tuple[int, int, str]:
    return -hits.cost, -hits.paused_ms, hits.name
