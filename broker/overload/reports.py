# What workers say about their load to each other, within a node and between nodes.
#
# Everybody goes by the highest level that anybody reports. A report counts for a second from its receipt, by our own
# clock: nobody's clock is trusted, and who falls silent is not feared. It is heard by several ways (the mesh, Redis),
# so that each way may be slow: the sequence number tells what is new.
#
# A calm worker is heard each second, so that people see it is there. One that is not says so more often: at one report
# a second its word would lapse whenever the next is a little late, and everybody's level would flicker.
import math
from collections import OrderedDict
from typing import Final, cast

import msgpack

from broker.overload.level import HIGHEST, STALE, Level, Resources, Signals
from broker.reasons import ReportFailure
from broker.worker_id import WorkerId

VERSION: Final = 1
LARGEST: Final = 32_768  # bytes: a node of 256 workers, all of them contended
MOST_NAMES: Final = 1024
LONGEST_NAME: Final = 256
MOST_WORKERS: Final = 4096  # of whom we know what they said
HEARTBEAT: Final = 1.0  # seconds
INSISTING: Final = 0.4  # seconds; two may be lost or late
LARGEST_NUMBER: Final = 1 << 63


class ReportError(Exception):
    """Bytes that are no report. Its text says what is wrong with them."""


class Report:
    """What one worker says of itself."""

    def __init__(
        self,
        worker: WorkerId,
        sequence: int,
        level: float,
        cause: str,
        value: float,
        contended: tuple[str, ...],
    ) -> None:
        self.worker = worker
        self.sequence = sequence  # rises from 1 in each incarnation
        self.level = level  # 0 to 10, with decimals
        self.cause = cause  # the name of the worst signal, "" for none
        self.value = value  # of that, in targets
        self.contended = contended  # names of resources

    def encode(self) -> bytes:
        fields = (
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
        return cast(bytes, msgpack.packb(fields))

    def absurd(self) -> bool:
        """Whether it says what cannot be. (What is not a number is not within any limits.)"""
        return not (0.0 <= self.level <= HIGHEST and 0.0 <= self.value < math.inf)


class ReceivedReport:
    """A report, and when it was heard."""

    def __init__(self, report: Report, heard: float) -> None:
        self.report = report
        self.heard = heard


class Reports:
    """What everybody says, ourselves included."""

    def __init__(self, worker: WorkerId, resources: Resources) -> None:
        self._worker = worker
        self._resources = resources
        self._received: OrderedDict[tuple[str, int], ReceivedReport] = (
            OrderedDict()
        )  # who was heard longest ago stands first
        self._sequence = 0
        self._sent_level = 0
        self._sent_cause = ""
        self._sent_contended: tuple[str, ...] = ()
        self._sent = -math.inf
        # In force, as of the last refresh().
        self.level = 0.0  # the highest of the cluster
        self.node_level = 0.0
        self.contended = 0  # bits
        self.cause = ""  # of the highest: the signal, and whose it is
        self.value = 0.0
        self.cause_worker = worker
        self.ignored: dict[str, int] = dict.fromkeys([reason.label for reason in ReportFailure], 0)

    def due(self, level: Level, signals: Signals, now: float) -> bool:
        """Whether ours is to be sent: something changed that others see, or it is time to say it again."""
        shown = level.shown
        if shown != self._sent_level or signals.contended != self._sent_contended:
            return True
        if shown and level.cause != self._sent_cause:
            return True
        return now - self._sent >= (INSISTING if shown or signals.contended else HEARTBEAT)

    def own(self, level: Level, signals: Signals, now: float) -> Report:
        """Ours, to be sent now."""
        self._sequence += 1
        self._sent = now
        self._sent_level = level.shown
        self._sent_cause = level.cause
        self._sent_contended = signals.contended
        return Report(
            self._worker,
            self._sequence,
            level.value,
            level.cause,
            signals.value(level.cause),
            signals.contended,
        )

    def hear(self, data: bytes, now: float) -> bool:
        """What somebody sent; false if it is ignored, which is counted."""
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
        before = self._received.get(who)
        if before is not None and before.report.worker == worker and report.sequence <= before.report.sequence:
            return self._ignore(ReportFailure.STALE)
        self._received[who] = ReceivedReport(report, now)
        self._received.move_to_end(who)
        if len(self._received) > MOST_WORKERS:
            self._received.popitem(last=False)
        return True

    def refresh(self, level: Level, signals: Signals, now: float) -> None:
        """Find what is in force, from what was heard within the last second and our own state."""
        self.level = self.node_level = level.value
        self.cause, self.value = level.cause, signals.value(level.cause)
        self.cause_worker = self._worker
        self.contended = self._resources.bits(signals.contended)
        for report in self.known(now):
            self.contended |= self._resources.bits(report.contended)
            if report.worker.node == self._worker.node:
                self.node_level = max(self.node_level, report.level)
            if report.level > self.level:
                self.level = report.level
                self.cause, self.value = report.cause, report.value
                self.cause_worker = report.worker

    def known(self, now: float) -> list[Report]:
        """What other workers said last, as far as it counts."""
        found: list[Report] = []
        for received in reversed(self._received.values()):
            if now - received.heard > STALE:
                break
            found.append(received.report)
        return found

    def heard(self) -> list[ReceivedReport]:
        """What other workers said last, whenever that was; who was heard last stands first."""
        return list(reversed(self._received.values()))

    def _ignore(self, why: ReportFailure) -> bool:
        self.ignored[why.label] += 1
        return False


def decode(data: bytes) -> Report:
    """The report that *data* is; ReportError."""
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
    if len(fields) != 9:
        raise ReportError(f"{len(fields)} fields, not 9")
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
