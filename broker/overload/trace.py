# A trace: all that `admit` went by, and what it said, so that the same can be decided again, or otherwise by another
# policy.
#
# It is a stream of msgpack arrays, bounded in bytes: when the next does not fit it ends, and counts what came after.
# It begins in the middle of things, so the state of a gate or an account is in it where it occurs first. What happens
# to a gate or the level is recorded right before it is done, and each record belongs to the slice before it: who
# records says by `slice()` what time it is, and what is contended, before anything else.
#
# What follows from a decision (that gates and accounts are charged) is not in it: whoever plays it decides, and does
# the same, or under another policy something else. So a trace is a few tens of bytes for each publish, and a run of
# QoS 0 publishes that follow one another is one record.
#
# Twice it says more than `admit` goes by, for who tries another policy: what was measured at each step of the level,
# from which the level follows, and when a client that was held was read again. So how long clients were held comes out
# of it to the last bit, too.
from collections.abc import Iterator
from typing import Any, Final, cast

import msgpack

from broker.config.schema import Overload
from broker.overload.admit import (
    ACCEPT,
    ACCEPTED,
    PAUSE,
    UNBOUNDED,
    Publish,
    Quotas,
    Verdict,
    admit,
    following,
    waits,
)
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import Level, Signal, Signals
from broker.reasons import CloseReason, DropReason, PauseReason, PublishRefusal

VERSION: Final = 3
READABLE: Final = (2, VERSION)
LARGEST: Final = 1 << 30  # bytes of one that is replayed

# Kinds of records.
BEGIN: Final = 0  # version, state of the ledger, about
SLICE: Final = 1  # now, contended
LEVEL: Final = 2  # level
GATE: Final = 3  # resource, its bit, state; gates are numbered as they occur. Version 2: bit, state
ACCOUNT: Final = 4  # zero, client; accounts are numbered as they occur
TAKE: Final = 5  # gate, count, bytes: what passed it without being judged, such as a will
DONE: Final = 6  # gate, count, bytes, latency
PROCESSED: Final = 7  # gate, bytes
RESET: Final = 8  # gate
PUBLISH: Final = 9  # account, what it spent unseen, gates, whether one is shut, the quotas' answer, Publish, verdict
RUN: Final = 10  # account, spent unseen, gates, room in quotas, longest, price, exempt, count, bytes, cost, deliveries
SIGNALS: Final = 11  # [name, resource] of each, in the order in which MEASURED has them from now on
MEASURED: Final = 12  # a step of the level: signals in their units, highest level of other workers, what they contend
RELEASED: Final = 13  # account, whether it is gone


class TraceError(Exception):
    """Bytes that are no trace. Its text says what is wrong with them."""


class Trace:
    """A recording."""

    def __init__(self, ledger: Ledger, limit: int, about: dict[str, Any]) -> None:
        """At most *limit* bytes. *about*: whatever one has to know of who records. `slice()` is to be called first."""
        self.left_out = 0  # records that came when it was full
        self.size = 0  # bytes
        self._limit = limit
        self._chunks: list[bytes] = []
        self._gates: dict[Gate, int] = {}
        self._accounts: dict[Account, int] = {}
        self._now = -1.0
        self._contended = 0
        self._judged: list[object] = []  # the publish that is being judged
        self._signals: list[tuple[str, int]] = []
        self._record((BEGIN, VERSION, ledger.state(), about))

    def slice(self, contended: int, now: float) -> None:
        """What follows happens at *now*."""
        if now != self._now or contended != self._contended:
            self._now = now
            self._contended = contended
            self._record((SLICE, now, _packed(contended)))

    def level(self, level: float) -> None:
        """The level is about to change."""
        self._record((LEVEL, level))

    def measured(self, signals: list[tuple[str, int]], values: list[float], others: float, contended: int) -> None:
        """The worker's own level makes a step: *signals* (name, resource) have these *values* in their units.

        *others*: the highest level that another worker tells; *contended*: what they say is.
        """
        if signals != self._signals:
            self._signals = signals
            self._record((SIGNALS, [(name, _packed(resource)) for name, resource in signals]))
        self._record((MEASURED, values, others, _packed(contended)))

    def released(self, account: Account, gone: bool) -> None:
        """A connection of *account*, which was held, is read again; or *gone*."""
        number = self._account(account)
        self._record((RELEASED, number, gone))

    def take(self, gate: Gate, n: int, size: int) -> None:
        """*n* publishes that were not judged are about to pass *gate*."""
        number = self._number(gate)
        self._record((TAKE, number, n, size))

    def done(self, gate: Gate, n: int, size: int, latency: float) -> None:
        """A completion is about to be told to *gate*."""
        number = self._number(gate)
        self._record((DONE, number, n, size, latency))

    def processed(self, gate: Gate, total: int) -> None:
        """A completion in bytes is about to be told to *gate*."""
        number = self._number(gate)
        self._record((PROCESSED, number, total))

    def reset(self, gate: Gate) -> None:
        """*gate* is about to be reset."""
        number = self._number(gate)
        self._record((RESET, number))

    def publish(self, publish: Publish, account: Account, gates: list[Gate], quota: Verdict | None, shut: bool) -> None:
        """*publish* is about to be judged; *quota* is what the quotas say to it; *shut*: a gate that it needs is."""
        what = (publish.version, publish.qos, publish.size, publish.cost, publish.since, publish.exempt)
        numbers = [self._number(gate) for gate in gates]
        head = [PUBLISH, self._account(account), account.spent, numbers, shut, _answer(quota)]
        self._judged = [*head, _packed(publish.resources), *what, publish.deliveries, publish.retained]

    def verdict(self, verdict: Verdict) -> None:
        """What was decided of it."""
        self._judged.append(None if verdict.kind == ACCEPT else _answer(verdict))
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

        So many do of those that may as `following()` has it: *quota* is what quotas leave, *longest* the bytes and
        *price* the cost of one, which goes to so many *deliveries*.
        """
        numbers = [self._number(gate) for gate in gates]
        head = (RUN, self._account(account), account.spent, numbers, quota)
        self._record((*head, longest, price, exempt, count, size, cost, deliveries))

    def taken(self) -> bytes:
        """What was recorded since this was last asked."""
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def _number(self, gate: Gate) -> int:
        number = self._gates.get(gate, -1)
        if number < 0:
            number = self._gates[gate] = len(self._gates)
            bit, *state = gate.state()
            self._record((GATE, gate.resource, _packed(cast(int, bit)), state))
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


class Answered:
    """Quotas that answer as they did, and are charged, if they are there."""

    def __init__(self, answer: Verdict | None, quotas: Quotas | None = None) -> None:
        self._answer = answer
        self._quotas = quotas

    def test(self, publish: Publish, now: float) -> Verdict | None:
        return self._answer

    def charge(self, publish: Publish, now: float) -> None:
        if self._quotas is not None:
            self._quotas.charge(publish, now)


class Replayed:
    """A publish of a trace that was decided again; or those of a run, which followed it."""

    def __init__(self, client: str, at: float, publish: Publish, count: int, number: int, gates: list[int]) -> None:
        self.client = client
        self.number = number  # of its account
        self.at = at  # by the clock of who recorded it
        self.publish = publish  # of a run, one like all of them
        self.count = count
        self.run = False  # they followed one that was taken
        self.size = publish.size  # of all of them
        self.cost = publish.cost
        self.gates = gates  # numbers
        self.shut = False  # one of them was, by what is no publish
        self.answer: Verdict | None = None  # of the quotas
        self.room = UNBOUNDED  # of a run: publishes that quotas leave
        self.unseen = 0  # what its client spent since it was seen last, without being judged
        self.recorded = ACCEPTED  # without its gate
        self.verdict = ACCEPTED
        self.passed = count  # so many of them, this time: those that were left would have been judged by themselves


class Player:
    """What a trace says, done again."""

    def __init__(self, settings: Overload) -> None:
        self.about: dict[str, Any] = {}  # what the trace says of who recorded it
        self.now = 0.0
        self.contended = 0
        self.ledger = Ledger(settings, 0.0)
        self.gates: list[Gate] = []
        self.accounts: list[Account] = []
        self.level = Level(settings)  # of the worker itself
        self.signals = Signals(settings, "")
        self.resources: dict[str, int] = {}  # by the name of the signal
        self.others = 0.0  # the highest level of another worker, at the last step
        self.others_contended = 0
        self._settings = settings
        self._signals: list[Signal] = []  # in the order in which they are told

    def play(self, fields: list[Any]) -> Replayed | None:
        """Do what the record *fields* says; what was decided, if anything was. ValueError and others: it is none."""
        kind = fields[0]
        if kind == PUBLISH:
            return self._judge(fields)
        if kind == RUN:
            return self._follow(fields)
        if kind == SLICE:
            self.now = fields[1]
            self.contended = _unpacked(fields[2])
        elif kind == LEVEL:
            self.ledger.change(fields[1], self.now)
        elif kind == MEASURED:
            self._step(fields)
        elif kind == SIGNALS:
            self._know({name: _unpacked(resource) for name, resource in fields[1]})
        elif kind == ACCOUNT:
            self.accounts.append(Account(fields[2], fields[1]))
        elif kind == GATE:
            resource = fields[1] if len(fields) == 4 else ""
            bit, state = fields[-2:]
            gate = Gate(self._settings, resource, 0, self.now)
            gate.restore([_unpacked(bit), *state])
            self.gates.append(gate)
        elif kind == BEGIN:
            if fields[1] not in READABLE:
                raise ValueError(f"version {fields[1]}; versions 2 and {VERSION} can be read")
            granted, since, level = fields[2]
            self.ledger.restore(granted, since, level)
            self.about = fields[3]
        elif kind != RELEASED:  # which is for who counts how long clients were held
            self._complete(kind, self.gates[fields[1]], fields)
        return None

    def _know(self, resources: dict[str, int]) -> None:
        """These are the signals from now on."""
        known = self.signals.values()
        for name in known.keys() - resources.keys():
            self.signals.remove(self.signals.named(name))
        for name in resources.keys() - known.keys():
            self.signals.add_gate(name)
        self.resources = resources
        self._signals = [self.signals.named(name) for name in resources]

    def _step(self, fields: list[Any]) -> None:
        _, values, self.others, contended = fields
        self.others_contended = _unpacked(contended)
        for signal, value in zip(self._signals, values, strict=True):
            signal.measure(value, self.now)
        self.signals.look(self.now)
        self.level.step(self.signals.worst, self.signals.worst_name)

    def _complete(self, kind: int, gate: Gate, fields: list[Any]) -> None:
        if kind == DONE:
            gate.done(fields[2], fields[3], fields[4], self.now)
        elif kind == PROCESSED:
            gate.processed(fields[2], self.now)
        elif kind == TAKE:
            gate.take(fields[2], fields[3], self.now)
        elif kind == RESET:
            gate.reset(self.now)
        else:
            raise ValueError(f"a record of kind {kind}")

    def _judge(self, fields: list[Any]) -> Replayed:
        _, number, spent, numbers, shut, answer, resources = fields[:7]
        version, qos, size, cost, since, exempt, deliveries, retained, verdict = fields[7:]
        account: Account = self.accounts[number]
        publish = Publish(version, qos, size, cost, _unpacked(resources))
        publish.since = since
        publish.exempt = exempt
        publish.deliveries = deliveries
        publish.retained = retained
        wait = self._settings.wait
        found = Replayed(account.client, self.now, publish, 1, number, numbers)
        found.shut = shut
        found.answer = _verdict(answer)
        found.unseen = spent - account.spent
        found.recorded = _verdict(verdict) or ACCEPTED
        account.spent = spent
        if shut:
            found.verdict = waits(publish, Verdict(PAUSE, PauseReason.GATE), wait, self.now)
        else:
            gates = [self.gates[position] for position in numbers]
            quotas = Answered(found.answer)
            found.verdict = admit(publish, account, self.ledger, gates, quotas, self.contended, wait, self.now)
        found.passed = 1 if found.verdict.kind == ACCEPT else 0
        return found

    def _follow(self, fields: list[Any]) -> Replayed:
        _, number, spent, numbers, quota, longest, price, exempt, count, size, cost, deliveries = fields
        account: Account = self.accounts[number]
        publish = Publish(0, 0, longest, price, 0)
        publish.exempt = exempt
        publish.deliveries = deliveries
        found = Replayed(account.client, self.now, publish, count, number, numbers)
        found.run = True
        found.size = size
        found.cost = cost
        found.room = quota
        found.unseen = spent - account.spent
        account.spent = spent
        gates = [self.gates[position] for position in numbers]
        room = following(gates, quota, account, self.ledger, longest, price, exempt, self.now)
        found.passed = passed = min(count, room)
        for gate in gates:
            gate.take(passed, size * passed // count, self.now)
        account.follow(self.ledger, cost * passed // count, self.now)
        return found


def replay(data: bytes, settings: Overload) -> Iterator[Replayed]:
    """All publishes of the trace *data*, decided again; without what was cut off at its end. TraceError."""
    unpacker = msgpack.Unpacker(max_buffer_size=LARGEST)
    unpacker.feed(data)
    player = Player(settings)
    try:
        for fields in unpacker:
            found = player.play(fields)
            if found is not None:
                yield found
    except (ValueError, TypeError, LookupError, ArithmeticError, msgpack.UnpackException) as error:
        raise TraceError(f"no trace: {error}") from None


def _answer(verdict: Verdict | None) -> tuple[int, str, float] | None:
    return None if verdict is None else (verdict.kind, _name(verdict), verdict.until)


def _verdict(answer: list[Any] | None) -> Verdict | None:
    return None if answer is None else Verdict(answer[0], _REASONS[answer[1]], answer[2])


def _name(verdict: Verdict) -> str:
    reason = verdict.reason
    return "" if reason is None else f"{type(reason).__name__}.{reason.name}"


_REASONS: Final[dict[str, DropReason | PauseReason | PublishRefusal | CloseReason]] = {
    f"{reasons.__name__}.{reason.name}": reason
    for reasons in (DropReason, PauseReason, PublishRefusal, CloseReason)
    for reason in reasons
}


def _packed(bits: int) -> bytes:
    """As msgpack has no number for more than 64 resources."""
    return bits.to_bytes(bits.bit_length() // 8 + 1, "little")


def _unpacked(data: bytes) -> int:
    return int.from_bytes(data, "little")
