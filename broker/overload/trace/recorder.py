# The recorder of a worker's decisions: it writes a trace (records.py) from the moments at which something is decided.
#
# Recording ends when the trace is full or its file fails (store/trace_file.py), and a log line says so. The trace up to
# then stays usable.
from typing import Any

from broker.config.schema import Overload
from broker.log import Log
from broker.overload.admit import Publish, Quotas, Verdict
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import Resources, Signals
from broker.overload.reports import Reports
from broker.overload.trace.player import RecordedAnswer
from broker.overload.trace.writer import TraceWriter


class TraceRecorder:
    def __init__(self, file: str, limit: int, log: Log, about: dict[str, Any]) -> None:
        """Record at most *limit* bytes. *file*: the path of the trace, for people. *about*: facts about the worker."""
        self.file = file
        self.recording = False
        self.ended = ""  # why nothing is recorded any more
        self._limit = limit
        self._log = log
        self._about = about
        self._writer: TraceWriter | None = None
        self._reports: Reports | None = None
        self._deciding = False  # changes of gates follow from the record that was written last
        self._run = (0, 0, 0)  # of the next run: room in the quotas; bytes and cost of one publish

    def start(self, ledger: Ledger, reports: Reports, now: float) -> None:
        """Begin to record, unless recording has ended already."""
        if self.ended:
            return
        self._writer = TraceWriter(ledger, self._limit, self._about)
        self._reports = reports
        self.recording = True
        self._log.info("trace_started", file=self.file, limit_bytes=self._limit)
        self._slice(now)

    def end(self, why: str) -> None:
        """Record nothing from now on."""
        if self.ended:
            return
        self.recording = False
        self.ended = why
        size = 0 if self._writer is None else self._writer.size
        self._log.warning("trace_stopped", why=why, file=self.file, bytes=size)

    def take_chunk(self) -> bytes:
        """The bytes that were recorded since the last call."""
        return b"" if self._writer is None else self._writer.take_chunk()

    def _slice(self, now: float) -> TraceWriter:
        """The writer, for records that belong to *now*."""
        assert self._writer is not None and self._reports is not None
        self._writer.slice(self._reports.contended, now)
        return self._writer

    # Decisions. The order of calls is: publish, verdict; and for a run: fitting, run, decided.

    def publish(
        self,
        publish: Publish,
        account: Account,
        gates: list[Gate],
        quotas: Quotas | None,
        shut: Gate | None,
        now: float,
    ) -> Quotas | None:
        """*publish* is about to be judged; returns the quotas to judge it by, which have been asked already."""
        if not self.recording:
            return quotas
        answer = None if quotas is None else quotas.test(publish, now)
        self._slice(now).publish(publish, account, gates, answer, shut is not None)
        self._deciding = True
        return RecordedAnswer(answer, quotas)

    def verdict(self, verdict: Verdict) -> None:
        if self._deciding and self._writer is not None:
            self._writer.verdict(verdict)
            self.decided()

    def fitting(self, quota: int, longest: int, cost: int) -> None:
        """The length of a run is about to be found: *quota* is the room in quotas, the rest describes one publish."""
        self._run = (quota, longest, cost)

    def run(
        self,
        account: Account,
        gates: list[Gate],
        exempt: bool,
        count: int,
        size: int,
        cost: int,
        deliveries: int,
        now: float,
    ) -> None:
        """The run is about to be charged: *count* publishes, of *size* bytes and *cost* together."""
        if not self.recording:
            return
        quota, longest, price = self._run
        writer = self._slice(now)
        writer.run(account, gates, quota, longest, price, exempt, count, size, cost, deliveries)
        self._deciding = True

    def decided(self) -> None:
        """The gates have taken what was decided."""
        self._deciding = False
        if self._writer is not None and self._writer.left_out:
            self.end("it is full")

    def level(self, level: float, now: float) -> None:
        """The level in force is about to become *level*."""
        if self.recording:
            self._slice(now).level(level)

    def measured(self, signals: Signals, resources: Resources, now: float) -> None:
        """The worker's own level has made a step."""
        if not self.recording or self._reports is None:
            return
        others = 0.0
        contended = 0
        for report in self._reports.known(now):
            others = max(others, report.level)
            contended |= resources.bits(report.contended)
        every = signals.all()
        names = [(signal.name, resources.bits((signal.resource,))) for signal in every]
        values = [signal.measured if signal.value else 0.0 for signal in every]
        self._slice(now).measured(names, values, others, contended)

    def released(self, account: Account, gone: bool, now: float) -> None:
        """A paused connection of *account* is read again, or has ended (*gone*)."""
        if self.recording:
            self._slice(now).released(account, gone)

    # Gates.

    def gate(
        self, settings: Overload, resource: str, bit: int, now: float, further: int, busy: dict[Gate, None]
    ) -> Gate:
        """A gate whose changes are recorded. (See `Gate`.)"""
        return TracedGate(settings, resource, bit, now, further, busy, self)

    def about_to(self, now: float) -> TraceWriter | None:
        """Where to record what is about to happen to a gate; None if it need not be recorded."""
        if not self.recording or self._deciding:
            return None
        return self._slice(now)

    def statistics(self) -> dict[str, Any]:
        """The state of the recording, for `weir overload`."""
        writer = self._writer
        return {
            "file": self.file,
            "state": "recording" if self.recording else self.ended or "off",
            "bytes": 0 if writer is None else writer.size,
            "limit_bytes": self._limit,
            "left_out": 0 if writer is None else writer.left_out,
        }


class TracedGate(Gate):
    """A gate that records what happens to it, unless that follows from a recorded decision."""

    def __init__(
        self,
        settings: Overload,
        resource: str,
        bit: int,
        now: float,
        further: int,
        busy: dict[Gate, None],
        recorder: TraceRecorder,
    ) -> None:
        super().__init__(settings, resource, bit, now, further, busy)
        self._recorder = recorder

    def take(self, n: int, size: int, now: float) -> None:
        writer = self._recorder.about_to(now)
        if writer is not None:
            writer.take(self, n, size)
        super().take(n, size, now)

    def done(self, n: int, size: int, latency: float, now: float) -> None:
        writer = self._recorder.about_to(now)
        if writer is not None:
            writer.done(self, n, size, latency)
        super().done(n, size, latency, now)

    def processed(self, total: int, now: float) -> None:
        writer = self._recorder.about_to(now)
        if writer is not None:
            writer.processed(self, total)
        super().processed(total, now)

    def reset(self, now: float) -> None:
        writer = self._recorder.about_to(now)
        if writer is not None:
            writer.reset(self)
        super().reset(now)
