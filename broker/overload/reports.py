# What workers report about their load to each other, within a node and between nodes.
#
# Every worker applies the highest level that any worker reports. A report counts for one second from its receipt, by
# the clock of the receiver: no clock of another worker is trusted, and a worker that falls silent does not count. A
# report arrives over several ways (the mesh, Redis), so each way may be slow: the sequence number tells which report is
# new.
#
# A calm worker reports once a second, so that people see that it is there. A worker that is not calm reports at each
# measurement, every 100 ms, so that all workers follow its level as it moves; and nodes that are drained learn at level
# 0 already that their clients are too much for it (STRAINED). Where more than CROWD workers report, it
# reports less often, down to once in SPARSEST seconds: each worker of the cluster hears each report, so Redis delivers
# workers x workers / interval per second. At 1.4 us each that is 23 % of a core for 128 workers at 100 ms, of a Redis
# that also has the registry of sessions. At 200 ms 256 workers take 36 %; at 100 ms they would take 72 %.
import math
from collections import OrderedDict
from typing import Final, cast

import msgpack

from broker.overload.level import HIGHEST, STALE, STEP, TOPOLOGY, Resources, Signals, WorkerLevel, node_of
from broker.reasons import ReportFailure
from broker.worker_id import WorkerId

VERSION: Final = 1
LARGEST: Final = 32_768  # bytes: a node of 256 workers, all of them contended
MOST_NAMES: Final = 1024
LONGEST_NAME: Final = 256
MOST_WORKERS: Final = 4096  # whose latest reports are kept
MOST_ERAS: Final = 4 * MOST_WORKERS  # incarnations whose last sequence number is known, about 250 bytes each
HEARTBEAT: Final = 1.0  # seconds
CROWD: Final = 128  # workers whose reports above level 0 are STEP apart
SLACK: Final = STEP / 4  # seconds: a measurement is as punctual as a turn of the loop
SPARSEST: Final = 0.4  # seconds between reports above level 0: two may be lost or late before one is STALE
LARGEST_NUMBER: Final = 1 << 63
STRAINED: Final = 0.5  # targets: from a delay of so many on a worker is not calm, although its level may be 0
FORMER: Final = 9  # fields of a report of an older version
FIELDS: Final = 11
UNKNOWN: Final = -1  # clients


class ReportError(Exception):
    """Bytes that are not a report. The text says what is wrong with them."""


class Report:
    """The load of one worker, as it reports it."""

    def __init__(
        self,
        worker: WorkerId,
        sequence: int,
        level: float,
        cause: str,
        value: float,
        contended: tuple[str, ...],
        clients: int = 0,
        connect_wait: float = 0.0,
    ) -> None:
        self.worker = worker
        self.sequence = sequence  # rises from 1 in each incarnation
        self.level = level  # 0 to 10, with decimals
        self.cause = cause  # the name of the worst signal, "" for none
        self.value = value  # of that, in targets; without a cause, at level 0, the worst delay: see strain()
        self.contended = contended  # names of resources
        self.clients = clients  # that are connected to the worker; UNKNOWN: an older version does not say
        self.connect_wait = connect_wait  # seconds that the CONNECTs waiting there will take

    def encode(self) -> bytes:
        fields: tuple[object, ...] = (
            VERSION,
            self.worker.node,
            self.worker.shard,
            self.worker.incarnation,
            self.sequence,
            self.level,
            self.cause,
            self.value,
            self.contended,
        )
        if self.clients != UNKNOWN:
            fields = (*fields, self.clients, self.connect_wait)
        return cast(bytes, msgpack.packb(fields))

    def strain(self) -> float:
        """The worst delay at the worker and its node, in targets, as far as the report tells it."""
        elsewhere = self.cause == TOPOLOGY or node_of(self.cause) not in ("", self.worker.node)
        return 0.0 if elsewhere else self.value

    def absurd(self) -> bool:
        """Whether a number is out of range, or not a number."""
        if not 0.0 <= self.connect_wait < math.inf:
            return True
        return not (0.0 <= self.level <= HIGHEST and 0.0 <= self.value < math.inf)


class ReceivedReport:
    """A report, and when it was received."""

    def __init__(self, report: Report, heard: float) -> None:
        self.report = report
        self.heard = heard


class Reports:
    """The reports of all workers, this one included."""

    def __init__(self, worker: WorkerId, resources: Resources) -> None:
        self._worker = worker
        self._resources = resources
        self._received: OrderedDict[tuple[str, int], ReceivedReport] = (
            OrderedDict()
        )  # who was heard longest ago stands first
        self._loud: dict[tuple[str, int], ReceivedReport] = {}  # of them, those that may be in force
        # The last sequence number of each incarnation. A report that was heard never counts again, not even after its
        # worker has restarted or others have taken its place in `_received`.
        self._sequences: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._sequence = 0
        self._sent_level = 0
        self._sent_cause = ""
        self._sent_contended: tuple[str, ...] = ()
        self._sent_strained = False
        self._sent = -math.inf
        # Of this worker, kept up to date by whoever knows it (cluster/client_moves.py):
        self.clients = 0
        self.connect_wait = 0.0  # seconds
        self.own_level = 0.0
        self.brief = (
            False  # a node of an older version is there, which would take a report with more than FORMER for none
        )
        # In force since the last refresh():
        self.level = 0.0  # the highest level of the cluster
        self.node_level = 0.0
        self.contended = 0  # bits
        self.cause = ""  # of the highest level: the signal, and `cause_worker` whose it is
        self.value = 0.0
        self.cause_worker = worker
        self.ignored: dict[str, int] = dict.fromkeys([reason.label for reason in ReportFailure], 0)

    def due(self, level: WorkerLevel, signals: Signals, now: float) -> bool:
        """Whether a report of this worker is to be sent: what others see has changed, or the last report is old."""
        shown, strained = level.shown, signals.strain >= STRAINED
        if shown != self._sent_level or signals.contended != self._sent_contended or strained != self._sent_strained:
            return True
        if shown and level.cause != self._sent_cause:
            return True
        calm = not (shown or strained or signals.contended)
        return now - self._sent >= (HEARTBEAT if calm else self._interval(now) - SLACK)

    def _interval(self, now: float) -> float:
        """Seconds between two reports above level 0. Workers that are gone do not count."""
        if len(self._received) < CROWD:
            return STEP
        return min(SPARSEST, STEP * max(1.0, (len(self.known(now)) + 1) / CROWD))

    def own(self, level: WorkerLevel, signals: Signals, now: float) -> Report:
        """The report of this worker, which is sent now."""
        self._sequence += 1
        self._sent = now
        self._sent_level = level.shown
        self._sent_cause = level.cause
        self._sent_contended = signals.contended
        self._sent_strained = signals.strain >= STRAINED
        return Report(
            self._worker,
            self._sequence,
            level.value,
            level.cause,
            signals.value(level.cause) if level.cause else signals.strain,
            signals.contended,
            UNKNOWN if self.brief else self.clients,
            self.connect_wait,
        )

    def hear(self, data: bytes, now: float) -> bool:
        """Take the bytes of a report that was received; false if they are ignored, which is counted."""
        try:
            report = decode(data)
        except ReportError:
            return self._ignore(ReportFailure.MALFORMED)
        if report.absurd():
            return self._ignore(ReportFailure.OUT_OF_RANGE)
        worker = report.worker
        who = (worker.node, worker.shard)
        if who == (self._worker.node, self._worker.shard):
            return self._ignore(ReportFailure.ECHO)
        era = (worker.node, worker.shard, worker.incarnation)
        if report.sequence <= self._sequences.get(era, -1):
            return self._ignore(ReportFailure.STALE)
        self._sequences[era] = report.sequence
        self._sequences.move_to_end(era)
        if len(self._sequences) > MOST_ERAS:
            self._sequences.popitem(last=False)
        self._received[who] = received = ReceivedReport(report, now)
        self._received.move_to_end(who)
        if report.level or report.contended:
            self._loud[who] = received
        else:
            self._loud.pop(who, None)
        if len(self._received) > MOST_WORKERS:
            forgotten, _ = self._received.popitem(last=False)
            self._loud.pop(forgotten, None)
        return True

    def refresh(self, level: WorkerLevel, signals: Signals, now: float) -> None:
        """Find what is in force: from this worker's state, and from the reports of the last second."""
        self.level = self.node_level = self.own_level = level.value
        self.cause, self.value = level.cause, signals.value(level.cause)
        self.cause_worker = self._worker
        self.contended = self._resources.bits(signals.contended)
        for who, received in list(self._loud.items()):
            if now - received.heard > STALE:
                del self._loud[who]
                continue
            report = received.report
            self.contended |= self._resources.bits(report.contended)
            if report.worker.node == self._worker.node:
                self.node_level = max(self.node_level, report.level)
            if report.level > self.level:
                self.level = report.level
                self.cause, self.value = report.cause, report.value
                self.cause_worker = report.worker

    def known(self, now: float) -> list[Report]:
        """The latest reports of other workers that still count."""
        found: list[Report] = []
        for received in reversed(self._received.values()):
            if now - received.heard > STALE:
                break
            found.append(received.report)
        return found

    def heard(self) -> list[ReceivedReport]:
        """The latest reports of other workers, however old, the newest first."""
        return list(reversed(self._received.values()))

    def _ignore(self, why: ReportFailure) -> bool:
        self.ignored[why.label] += 1
        return False


def decode(data: bytes) -> Report:
    """Decode a report. ReportError."""
    if len(data) > LARGEST:
        raise ReportError(f"a report of {len(data)} bytes, more than {LARGEST}")
    try:
        fields: object = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ReportError(f"no msgpack: {error}") from None
    if not isinstance(fields, list) or not fields:
        raise ReportError("no list of fields")
    version = fields[0]
    if not isinstance(version, int) or version != VERSION:
        raise ReportError(f"version {repr(version)[:20]}, and only {VERSION} is known")
    if len(fields) not in (FORMER, FIELDS):
        raise ReportError(f"{len(fields)} fields, not {FORMER} or {FIELDS}")
    names = fields[8]
    if not isinstance(names, list) or len(names) > MOST_NAMES:
        raise ReportError(f"contended: a list of at most {MOST_NAMES} names is needed")
    return Report(
        WorkerId(_name("node", fields[1]), _number("worker", fields[2]), _number("boot", fields[3])),
        _number("sequence", fields[4]),
        _real("level", fields[5]),
        _name("cause", fields[6]),
        _real("value", fields[7]),
        tuple([_name("contended", one) for one in names]),
        UNKNOWN if len(fields) == FORMER else _number("clients", fields[9]),
        0.0 if len(fields) == FORMER else _real("connect_wait", fields[10]),
    )


def _name(field: str, given: object) -> str:
    if not isinstance(given, str) or len(given) > LONGEST_NAME:
        raise ReportError(f"{field}: a name of at most {LONGEST_NAME} characters is needed")
    return given


def _number(field: str, given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < LARGEST_NUMBER:
        raise ReportError(f"{field}: a whole number of 0 or more is needed")
    return given


def _real(field: str, given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ReportError(f"{field}: a number is needed")
    return float(given)
