# Recording: a worker's trace (overload/trace.py), from the moments at which something is decided to a file.
#
# Why a file for each worker, and not a stream of Redis? A trace that lacks one record cannot be replayed, and what is
# recorded is overload: just then Redis may be late or away, and would be given more to do. A file is whole up to its
# end, in order, and costs the loop a copy in memory; who replays traces reads one of each worker, in parallel.
#
# Written is each second, in a thread, as a disk may take its time; the loop never waits for it. When the trace is full,
# or its disk fails or falls behind, recording ends and says so: what is in the file up to then stays of use.
import os
from functools import partial
from typing import Any, Final

from broker.config.schema import Overload
from broker.log import Log
from broker.net.offload import Offload
from broker.overload.admit import Publish, Quotas, Verdict
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import Resources, Signals
from broker.overload.reports import Reports
from broker.overload.trace import Answered, Trace

WAITING: Final = 32 * 1024 * 1024  # bytes that a disk may be behind


class Tracing:
    def __init__(
        self,
        path: str,
        limit: int,
        ledger: Ledger,
        reports: Reports,
        offload: Offload,
        log: Log,
        about: dict[str, Any],
    ) -> None:
        """To the file *path*, which begins anew, at most *limit* bytes. It is to be started. *about*: who records."""
        self.path = path
        self.recording = False
        self.ended = ""  # why it records no more
        self._limit = limit
        self._trace = Trace(ledger, limit, about)
        self._reports = reports
        self._offload = offload
        self._log = log
        self._deciding = False  # what happens to gates now follows from what was recorded
        self._run = (0, 0, 0)  # what quotas leave of a run, bytes and cost of one
        self._unwritten = b""
        self._writing = False
        self._file = -1

    def start(self, now: float) -> None:
        """Begin to record."""
        try:
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._end(f"its file cannot be opened: {error.strerror}")
            return
        self.recording = True
        self._trace.slice(self._reports.contended, now)
        self._log.info("trace_started", file=self.path, limit_bytes=self._limit)

    # What happens, in this order: publish, verdict; fitting, run, decided.

    def publish(
        self,
        publish: Publish,
        account: Account,
        gates: list[Gate],
        quotas: Quotas | None,
        shut: Gate | None,
        now: float,
    ) -> Quotas | None:
        """*publish* is about to be judged: by these quotas, which have been asked."""
        if not self.recording:
            return quotas
        answer = None if quotas is None or shut is not None else quotas.test(publish, now)
        self._trace.slice(self._reports.contended, now)
        self._trace.publish(publish, account, gates, answer, shut is not None)
        self._deciding = True
        return Answered(answer, quotas)

    def verdict(self, verdict: Verdict) -> None:
        if self._deciding:
            self._trace.verdict(verdict)
            self.decided()

    def fitting(self, quota: int, longest: int, cost: int) -> None:
        """What may follow is about to be found out: quotas leave *quota*; each has *longest* bytes and *cost*."""
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
        """*count* of them are about to follow, of *size* bytes and *cost* together, each to so many *deliveries*."""
        if not self.recording:
            return
        quota, longest, price = self._run
        self._trace.slice(self._reports.contended, now)
        self._trace.run(account, gates, quota, longest, price, exempt, count, size, cost, deliveries)
        self._deciding = True

    def decided(self) -> None:
        """What followed from it is done."""
        self._deciding = False
        if self._trace.left_out:
            self._end("it is full")

    def level(self, level: float, now: float) -> None:
        """The level in force is about to change."""
        if self.recording:
            self._trace.slice(self._reports.contended, now)
            self._trace.level(level)

    def measured(self, signals: Signals, resources: Resources, now: float) -> None:
        """The worker's own level makes a step."""
        if not self.recording:
            return
        others = 0.0
        contended = 0
        for report in self._reports.known(now):
            others = max(others, report.level)
            contended |= resources.bits(report.contended)
        every = signals.all()
        names = [(signal.name, resources.bits((signal.resource,))) for signal in every]
        values = [signal.measured if signal.value else 0.0 for signal in every]
        self._trace.slice(self._reports.contended, now)
        self._trace.measured(names, values, others, contended)

    def released(self, account: Account, gone: bool, now: float) -> None:
        """A connection of *account*, which was held, is read again; or *gone*."""
        if self.recording:
            self._trace.slice(self._reports.contended, now)
            self._trace.released(account, gone)

    def gate(self, settings: Overload, resource: str, bit: int, now: float) -> Gate:
        """A gate that is recorded."""
        return TracedGate(settings, resource, bit, now, self)

    def about_to(self, now: float) -> Trace | None:
        """Where to record what is about to happen to a gate; None: it need not be."""
        if not self.recording or self._deciding:
            return None
        self._trace.slice(self._reports.contended, now)
        return self._trace

    # To the file.

    def write(self) -> None:
        """Have what was recorded written; each second."""
        if self._file < 0:
            return
        self._unwritten += self._trace.taken()
        if self._writing or not self._unwritten:
            if len(self._unwritten) > WAITING:
                self._end("its disk does not keep up")
            return
        data, self._unwritten = self._unwritten, b""
        self._writing = True
        self._offload.run(partial(_write, self._file, data), self._written)

    def close(self) -> None:
        """Write the rest, and wait for it; it is left out if the thread still writes, who would be overtaken."""
        self.recording = False
        if self._file < 0 or self._writing:
            return
        try:
            _write(self._file, self._unwritten + self._trace.taken())
        except OSError as error:
            self._end(f"its disk failed: {error.strerror}")
        os.close(self._file)
        self._file = -1

    def statistics(self) -> dict[str, Any]:
        """What is to be told of it; bytes."""
        state = "recording" if self.recording else self.ended or "off"
        return {
            "file": self.path,
            "state": state,
            "bytes": self._trace.size,
            "limit_bytes": self._limit,
            "left_out": self._trace.left_out,
        }

    def _written(self, result: object) -> None:
        self._writing = False
        if isinstance(result, OSError):
            self._end(f"its disk failed: {result.strerror}")
            self._unwritten = b""
            self._trace.taken()

    def _end(self, why: str) -> None:
        if self.ended:
            return
        self.recording = False
        self.ended = why
        self._log.warning("trace_stopped", why=why, file=self.path, bytes=self._trace.size)


class TracedGate(Gate):
    """A gate that records what happens to it, unless that follows from what was recorded."""

    def __init__(self, settings: Overload, resource: str, bit: int, now: float, tracing: Tracing) -> None:
        super().__init__(settings, resource, bit, now)
        self._tracing = tracing

    def take(self, n: int, size: int, now: float) -> None:
        trace = self._tracing.about_to(now)
        if trace is not None:
            trace.take(self, n, size)
        super().take(n, size, now)

    def done(self, n: int, size: int, latency: float, now: float) -> None:
        trace = self._tracing.about_to(now)
        if trace is not None:
            trace.done(self, n, size, latency)
        super().done(n, size, latency, now)

    def processed(self, total: int, now: float) -> None:
        trace = self._tracing.about_to(now)
        if trace is not None:
            trace.processed(self, total)
        super().processed(total, now)

    def reset(self, now: float) -> None:
        trace = self._tracing.about_to(now)
        if trace is not None:
            trace.reset(self)
        super().reset(now)


def _write(descriptor: int, data: bytes) -> None:
    """All of *data*. OSError."""
    view = memoryview(data)
    while view:
        count = os.write(descriptor, view)  # compiled, what stands in the slice itself would be done twice
        view = view[count:]
