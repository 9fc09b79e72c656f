# The live figures: the metrics records of the last minutes, folded as they arrive.
#
# The stream is read once for all open pages. Memory is bounded: the last record of each worker, a row for each of KEPT
# seconds, the counters of COUNTED seconds by node, and the heavy hitters of HITTING seconds: those of the cluster, of
# its overloaded workers, and of each node. With more workers fewer names of each record are taken.
# The time is that of Redis (the ids of the entries), one clock for all nodes; the timestamps of the records are not
# used.
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

from analytics.tops import BYTES, COST, MESSAGES, PAUSED, Tops, add_tops, cut
from broker.metrics.record import misfit

KEPT: Final = 300  # seconds of the charts
COUNTED: Final = 60  # seconds of the counters of dropped, refused and throttled
HITTING: Final = 10  # seconds of heavy hitters: over a shorter time their order changes too often
FRESH: Final = 3.5  # seconds: an older record does not describe the present
FORGOTTEN: Final = 60.0  # seconds: a worker that has been silent for longer is removed
WORKERS: Final = 4096  # at most: forged records of more workers must not use more memory
NAMES: Final = 40  # clients, and topics, of a record
LEAST_NAMES: Final = 3
ALL_NAMES: Final = 4000  # of a second
NAMES_KEPT: Final = 100  # of the cluster in a second, by cost and by throttled time
NAMES_OF_NODE: Final = 20
CLUSTER: Final = None  # instead of the name of a node

Record = dict[str, Any]
Counts = dict[str, int]
Name = tuple[str, int]  # a node and the number of a worker
Of = tuple[str, str | None, bool]  # "client" or "topic", a node or CLUSTER, and whether of overloaded workers only


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
    """Counters of one second or more, summed over workers."""

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


@dataclass(slots=True)
class _Heavy:
    """The heavy hitters of one second, and the cost of those that were left out as well."""

    tops: Tops = field(default_factory=dict)
    cost: int = 0


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
        self.turned_away = 0  # records of more than WORKERS workers
        self._counted: deque[tuple[int, dict[str | None, Counted]]] = deque(maxlen=COUNTED)
        self._hits: deque[tuple[int, dict[Of, _Heavy]]] = deque(maxlen=HITTING)
        self._second: int | None = None  # the current second

    def take(self, record: object, at: float) -> bool:
        """Add a record that was written at *at*. False: it is invalid, a duplicate, or of too many workers."""
        if not isinstance(record, dict) or misfit(record):
            self.unfit += 1
            return False
        return self.add(record, at)

    def add(self, record: Record, at: float) -> bool:
        """Add a valid *record* that was written at *at*. False: it is a duplicate, or of too many workers."""
        name = (record["node"], record["worker"])
        before = self.workers.get(name)
        if before is not None and _is_duplicate(before.record, record):
            return False
        if before is None and len(self.workers) >= WORKERS:
            self.turned_away += 1
            return False
        self.pass_time(at)
        if before is not None and before.record["boot"] == record["boot"]:
            self.lost += record["sequence"] - before.record["sequence"] - 1
        most = max(LEAST_NAMES, min(NAMES, ALL_NAMES // max(1, len(self.workers))))
        top = {what: _first(record["top"][f"{what}s"]["rows"], most) for what in ("client", "topic")}
        self.workers[name] = LastRecord({**record, "top": top}, at)
        self._count(record, int(at))
        self._hit(record, top)
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

    def counted(self, now: float, seconds: int = COUNTED, node: str | None = CLUSTER) -> Counted:
        """Return the counters of the last *seconds*, of *node* only or of the cluster."""
        total = Counted(int(now))
        for at, of_nodes in self._counted:
            one = of_nodes.get(node)
            if at <= now - seconds or one is None:
                continue
            _add(total.dropped, one.dropped)
            _add(total.refused, one.refused)
            _add(total.held_ms, one.held_ms)
            total.connects += one.connects
            total.connects_refused += one.connects_refused
        return total

    def hitters(
        self, what: str, now: float, node: str | None = CLUSTER, overloaded: bool = False
    ) -> tuple[list[Hits], int]:
        """Return the clients or topics of the last HITTING seconds, the most costly first, and the cost of all.

        Only those of *node*, or of the workers while they were *overloaded*.
        """
        together: Tops = {}
        cost = 0
        for second, heavy in self._hits:
            one = heavy.get((what, node, overloaded))
            if second > now - HITTING and one is not None:
                add_tops(together, one.tops)
                cost += one.cost
        found = [Hits(name, one[COST], one[MESSAGES], one[BYTES], one[PAUSED]) for name, one in together.items()]
        return sorted(found, key=_costly_first), cost

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
        if not self._counted or self._counted[-1][0] < second:
            self._counted.append((second, {}))
            self._hits.append((second, {}))
        of_nodes = self._counted[-1][1]
        for node in (CLUSTER, record["node"]):
            total = of_nodes.get(node)
            if total is None:
                total = of_nodes[node] = Counted(second)
            _add(total.dropped, record["dropped"])
            _add(total.refused, record["refused"])
            _add(total.held_ms, {reason: figures["ms"] for reason, figures in record["paused"].items()})
            total.connects += record["connects"]["received"]
            total.connects_refused += record["connects"]["refused"]

    def _hit(self, record: Record, top: dict[str, list[Record]]) -> None:
        """Add the heavy hitters of *record*, of which *top* has the first."""
        heavy, node = self._hits[-1][1], record["node"]
        for what, rows in top.items():
            cost = sum(row["cost"] for row in record["top"][f"{what}s"]["rows"])
            more: Tops = {}
            for row in rows:
                more[row[what]] = [row["cost"], row["messages"], row["bytes"], row["paused_ms"], node, row["cost"]]
            groups: list[tuple[Of, int]] = [((what, CLUSTER, False), NAMES_KEPT), ((what, node, False), NAMES_OF_NODE)]
            if record["level"]:
                groups.append(((what, CLUSTER, True), NAMES_KEPT))
            for of, kept in groups:
                one = heavy.get(of)
                if one is None:
                    one = heavy[of] = _Heavy()
                add_tops(one.tops, more)
                one.tops = cut(one.tops, kept)
                one.cost += cost


def _first(rows: list[Record], most: int) -> list[Record]:
    """Return the first *most* of *rows* by cost, and the first by throttled time."""
    if len(rows) <= most:
        return rows
    first = sorted(rows, key=itemgetter("cost"), reverse=True)[:most]
    held = sorted(filter(itemgetter("paused_ms"), rows), key=itemgetter("paused_ms"), reverse=True)[:most]
    return [*first, *(row for row in held if row not in first)]


def per_second(record: Record, count: int) -> float:
    """Return *count* per second of the interval of *record*, which may be 0 or negative if a clock was adjusted."""
    return count / max(0.001, float(record["interval_s"]))


def last_hits(record: Record, what: str) -> list[Hits]:
    """Return the clients or topics of a *record* of `Live.workers`, as if they were of HITTING seconds."""
    factor = HITTING / max(0.001, float(record["interval_s"]))
    rows = [
        [int(row[name] * factor) for name in ("cost", "messages", "bytes", "paused_ms")] for row in record["top"][what]
    ]
    found = [Hits(row[what], *figures) for row, figures in zip(record["top"][what], rows, strict=True)]
    return sorted(found, key=_costly_first)


def _is_duplicate(before: Record, record: Record) -> bool:
    """Return whether *record* is not newer than *before*, a record of the same boot."""
    return bool(before["boot"] == record["boot"] and before["sequence"] >= record["sequence"])


def _add(total: Counts, more: Counts) -> None:
    for label, count in more.items():
        total[label] = total.get(label, 0) + count


def _costly_first(hits: Hits) -> tuple[int, int, str]:
    return -hits.cost, -hits.paused_ms, hits.name
