# The player of a trace: it decides the recorded publishes again, under the recorded policy or under another one.
from collections.abc import Iterator
from typing import Any, Final

import msgpack

from broker.config.schema import Overload
from broker.overload.admit import ACCEPT, ACCEPTED, PAUSE, UNBOUNDED, Publish, Quotas, Verdict, admit, following, waits
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.level import Signal, Signals, WorkerLevel
from broker.overload.trace.records import (
    ACCOUNT,
    BEGIN,
    DONE,
    GATE,
    LARGEST,
    LEVEL,
    MEASURED,
    PROCESSED,
    PUBLISH,
    READABLE,
    RELEASED,
    RESET,
    RUN,
    SIGNALS,
    SLICE,
    TAKE,
    VERSION,
    TraceError,
    unpacked_bits,
    unpacked_verdict,
)
from broker.reasons import PauseReason

PUBLISH_FIELDS: Final = 16  # of a PUBLISH record before version 4


class RecordedAnswer:
    """Quotas that give a recorded answer, and charge the quotas behind them, if there are any."""

    def __init__(self, answer: Verdict | None, quotas: Quotas | None = None) -> None:
        self._answer = answer
        self._quotas = quotas

    def test(self, publish: Publish, now: float) -> Verdict | None:
        return self._answer

    def charge(self, publish: Publish, now: float) -> None:
        if self._quotas is not None:
            self._quotas.charge(publish, now)


class Replayed:
    """A publish of a trace that was decided again, or the publishes of a run."""

    def __init__(self, client: str, at: float, publish: Publish, count: int, number: int, gates: list[int]) -> None:
        self.client = client
        self.number = number  # of the account
        self.at = at  # by the clock of the worker that recorded it
        self.publish = publish  # for a run: one publish, as all are alike
        self.count = count
        self.run = False  # a run, which followed an accepted publish
        self.size = publish.size  # bytes of all `count` publishes
        self.cost = publish.cost  # of all `count` publishes
        self.gates = gates  # their numbers
        self.shut = False  # one of the gates was shut by something that is not a publish
        self.answer: Verdict | None = None  # of the quotas
        self.room = UNBOUNDED  # for a run: publishes that the quotas leave
        self.unseen = 0  # credits that the client spent since its last record, without being judged
        self.recorded = ACCEPTED  # the recorded verdict, without its gate
        self.verdict = ACCEPTED  # the verdict of the replay
        self.passed = count  # publishes accepted by the replay; a run that is cut short leaves the rest out


class Player:
    """Plays the records of a trace one by one, and keeps the state that follows from them."""

    def __init__(self, settings: Overload) -> None:
        self.about: dict[str, Any] = {}  # facts about the worker that recorded the trace
        self.now = 0.0
        self.contended = 0
        self.ledger = Ledger(settings, 0.0)
        self.gates: list[Gate] = []
        self.accounts: list[Account] = []
        self.signals = Signals(settings, "")
        self.level = WorkerLevel(settings, self.signals)  # of the recording worker itself
        self.resources: dict[str, int] = {}  # bits, by the name of the signal
        self.others = 0.0  # the highest level that another worker reported at the last step
        self.others_contended = 0
        self._settings = settings
        self._needed = 0  # resources of the publish that was judged last
        self._signals: list[Signal] = []  # in the order of the values in MEASURED

    def play(self, fields: list[Any]) -> Replayed | None:
        """Do what the record *fields* says; return a publish that was decided.

        ValueError, TypeError, LookupError or ArithmeticError: *fields* is not a record.
        """
        kind = fields[0]
        if kind == PUBLISH:
            return self._judge(fields)
        if kind == RUN:
            return self._follow(fields)
        if kind == SLICE:
            self.now = fields[1]
            self.contended = unpacked_bits(fields[2])
        elif kind == LEVEL:
            self.ledger.change(fields[1], self.now)
        elif kind == MEASURED:
            self._step(fields)
        elif kind == SIGNALS:
            self._know({name: unpacked_bits(resource) for name, resource in fields[1]})
        elif kind == ACCOUNT:
            self.accounts.append(Account(fields[2], fields[1]))
        elif kind == GATE:
            resource = fields[1] if len(fields) == 4 else ""
            bit, state = fields[-2:]
            gate = Gate(self._settings, resource, 0, self.now)
            gate.restore([unpacked_bits(bit), *state])
            self.gates.append(gate)
        elif kind == BEGIN:
            if fields[1] not in READABLE:
                raise ValueError(f"version {fields[1]}; versions {READABLE[0]} to {VERSION} can be read")
            granted, since, level = fields[2]
            self.ledger.restore(granted, since, level)
            self.about = fields[3]
            self.signals.node = str(self.about.get("node", ""))
        elif kind != RELEASED:  # RELEASED changes no state
            self._complete(kind, self.gates[fields[1]], fields)
        return None

    def _know(self, resources: dict[str, int]) -> None:
        """Replace the signals by those named in *resources*."""
        known = self.signals.values()
        for name in known.keys() - resources.keys():
            self.signals.remove(self.signals.named(name))
        for name in resources.keys() - known.keys():
            self.signals.add_gate(name)
        self.resources = resources
        self._signals = [self.signals.named(name) for name in resources]

    def _step(self, fields: list[Any]) -> None:
        _, values, self.others, contended = fields
        self.others_contended = unpacked_bits(contended)
        for signal, value in zip(self._signals, values, strict=True):
            signal.measure(value, self.now)
        self.signals.look(self.now)
        self.level.step()

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
        version, qos, size, cost, since, exempt, deliveries, retained = fields[7:15]
        verdict = fields[-1]
        account: Account = self.accounts[number]
        self._needed = unpacked_bits(resources)
        publish = Publish(version, qos, size, cost, self._needed)
        publish.since = since
        publish.exempt = exempt
        publish.deliveries = deliveries
        publish.retained = retained
        publish.persistent = fields[15] if len(fields) > PUBLISH_FIELDS else 0
        wait = self._settings.wait
        found = Replayed(account.client, self.now, publish, 1, number, numbers)
        found.shut = shut
        found.answer = unpacked_verdict(answer)
        found.unseen = spent - account.spent
        found.recorded = unpacked_verdict(verdict) or ACCEPTED
        account.spent = spent
        if shut and found.answer is None:
            found.verdict = waits(publish, Verdict(PAUSE, PauseReason.GATE), wait, self.now)
        else:
            gates = [self.gates[position] for position in numbers]
            quotas = RecordedAnswer(found.answer)
            found.verdict = admit(publish, account, self.ledger, gates, quotas, self.contended, wait, self.now)
        found.passed = 1 if found.verdict.kind == ACCEPT else 0
        return found

    def _follow(self, fields: list[Any]) -> Replayed:
        _, number, spent, numbers, quota, longest, price, exempt, count, size, cost, deliveries = fields
        account: Account = self.accounts[number]
        publish = Publish(0, 0, longest, price, self._needed)
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
    """Decide all publishes of the trace *data* again. A record that is cut off at the end is ignored. TraceError."""
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
