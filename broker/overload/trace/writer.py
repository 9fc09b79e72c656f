# The writer of a trace: it turns what happens into records, up to a limit in bytes.
#
# When a record does not fit, the trace is complete, and the writer counts the records that come later.
from typing import Any, cast

import msgpack

from broker.overload.admit import ACCEPT, Publish, Verdict
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.trace.records import (
    ACCOUNT,
    BEGIN,
    DONE,
    GATE,
    LEVEL,
    MEASURED,
    PROCESSED,
    PUBLISH,
    RELEASED,
    RESET,
    RUN,
    SIGNALS,
    SLICE,
    TAKE,
    VERSION,
    packed_bits,
    packed_verdict,
)


class TraceWriter:
    def __init__(self, ledger: Ledger, limit: int, about: dict[str, Any]) -> None:
        """Write at most *limit* bytes. *about*: facts about the worker. `slice()` has to be called first."""
        self.left_out = 0  # records that came when the trace was full
        self.size = 0  # bytes
        self._limit = limit
        self._chunks: list[bytes] = []
        self._gates: dict[Gate, int] = {}
        self._accounts: dict[Account, int] = {}
        self._now = -1.0
        self._contended = 0
        self._judged: list[object] = []  # the record of the publish that is being judged
        self._signals: list[tuple[str, int]] = []
        self._record((BEGIN, VERSION, ledger.state(), about))

    def slice(self, contended: int, now: float) -> None:
        """Further records happen at *now*, while the resources *contended* are contended."""
        if now != self._now or contended != self._contended:
            self._now = now
            self._contended = contended
            self._record((SLICE, now, packed_bits(contended)))

    def level(self, level: float) -> None:
        """The level in force is about to become *level*."""
        self._record((LEVEL, level))

    def measured(self, signals: list[tuple[str, int]], values: list[float], others: float, contended: int) -> None:
        """The worker's own level makes a step: *signals* (name, bit of its resource) have these *values*.

        *others*: the highest level that another worker reports; *contended*: the resources that other workers report.
        """
        if signals != self._signals:
            self._signals = signals
            self._record((SIGNALS, [(name, packed_bits(resource)) for name, resource in signals]))
        self._record((MEASURED, values, others, packed_bits(contended)))

    def released(self, account: Account, gone: bool) -> None:
        """A paused connection of *account* is read again, or has ended (*gone*)."""
        number = self._account(account)
        self._record((RELEASED, number, gone))

    def take(self, gate: Gate, n: int, size: int) -> None:
        """*n* publishes that were not judged are about to pass *gate*."""
        number = self._number(gate)
        self._record((TAKE, number, n, size))

    def done(self, gate: Gate, n: int, size: int, latency: float) -> None:
        """`gate.done()` is about to be called."""
        number = self._number(gate)
        self._record((DONE, number, n, size, latency))

    def processed(self, gate: Gate, total: int) -> None:
        """`gate.processed()` is about to be called."""
        number = self._number(gate)
        self._record((PROCESSED, number, total))

    def reset(self, gate: Gate) -> None:
        """`gate.reset()` is about to be called."""
        number = self._number(gate)
        self._record((RESET, number))

    def publish(self, publish: Publish, account: Account, gates: list[Gate], quota: Verdict | None, shut: bool) -> None:
        """*publish* is about to be judged; *quota* is the answer of the quotas; *shut*: one of its gates is shut."""
        what = (publish.version, publish.qos, publish.size, publish.cost, publish.since, publish.exempt)
        numbers = [self._number(gate) for gate in gates]
        head = [PUBLISH, self._account(account), account.spent, numbers, shut, packed_verdict(quota)]
        reach = (publish.deliveries, publish.retained, publish.persistent)
        self._judged = [*head, packed_bits(publish.resources), *what, *reach]

    def verdict(self, verdict: Verdict) -> None:
        """The verdict about the publish that was recorded last."""
        self._judged.append(None if verdict.kind == ACCEPT else packed_verdict(verdict))
        self._record(tuple(self._judged))

    def run(
        self,
        account: Account,
        gates: list[Gate],
        quota: int,
        longest: int,
        price: int,
        exempt: bool,
        count: int,
        size: int,
        cost: int,
        deliveries: int,
    ) -> None:
        """*count* publishes, of *size* bytes and *cost* together, are about to follow the one that was judged last.

        The player asks `following()` how many may follow: *quota* is the room in the quotas, *longest* the bytes and
        *price* the cost of one publish, which goes to so many *deliveries*.
        """
        numbers = [self._number(gate) for gate in gates]
        head = (RUN, self._account(account), account.spent, numbers, quota)
        self._record((*head, longest, price, exempt, count, size, cost, deliveries))

    def take_chunk(self) -> bytes:
        """The bytes that were recorded since the last call."""
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def _number(self, gate: Gate) -> int:
        number = self._gates.get(gate, -1)
        if number < 0:
            number = self._gates[gate] = len(self._gates)
            bit, *state = gate.state()
            self._record((GATE, gate.resource, packed_bits(cast(int, bit)), state))
        return number

    def _account(self, account: Account) -> int:
        number = self._accounts.get(account, -1)
        if number < 0:
            number = self._accounts[account] = len(self._accounts)
            self._record((ACCOUNT, account.zero, account.client))
        return number

    def _record(self, fields: tuple[object, ...]) -> None:
        if self.left_out:
            self.left_out += 1
            return
        chunk = cast(bytes, msgpack.packb(fields))
        if self.size + len(chunk) > self._limit:
            self.left_out = 1
            return
        self._chunks.append(chunk)
        self.size += len(chunk)
