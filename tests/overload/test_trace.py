from dataclasses import dataclass
from io import BytesIO

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.overload.admit import DROP, PAUSE, Publish, Verdict, admit
from broker.overload.credits import Account, Ledger
from broker.overload.gate import Gate
from broker.overload.trace.player import Player, RecordedAnswer, Replayed, replay
from broker.overload.trace.records import BEGIN, GATE, PUBLISH, TraceError
from broker.overload.trace.writer import TraceWriter
from broker.reasons import DropReason, PauseReason

SETTINGS = Overload(gate_floor=3)
FEW = st.integers(0, 2)
QUOTAS = [None, None, Verdict(DROP, DropReason.EXPIRED), Verdict(PAUSE, PauseReason.GATE, 4.5)]
FAR_BIT = 1 << 200  # of a node with many workers


@dataclass
class Worker:
    """Decides, and records what it goes by from some slice on."""

    limit: int = 1 << 20

    def __post_init__(self) -> None:
        self.ledger = Ledger(SETTINGS, 0.0)
        self.gates = [Gate(SETTINGS, f"weir/{number}", 1 << number, 0.0) for number in range(3)]
        self.accounts = [Account(str(number), -500.0) for number in range(3)]
        self.trace: TraceWriter | None = None
        self.told: list[tuple[int, object, float]] = []
        self.now = 0.0
        self.contended = 0

    def begin(self) -> None:
        self.trace = TraceWriter(self.ledger, self.limit, {})

    def slice(self, wait: float, level: float, contended: int) -> None:
        self.now += wait
        self.contended = contended
        if self.trace:
            self.trace.slice(contended, self.now)
            self.trace.level(level)
        self.ledger.change(level, self.now)

    def happen(self, what: int, gate: Gate, n: int, latency: float) -> None:
        """Something happens to *gate*."""
        if what == 0:
            if self.trace:
                self.trace.done(gate, n, 100 * n, latency)
            gate.done(n, 100 * n, latency, self.now)
        elif what == 1:
            if self.trace:
                self.trace.processed(gate, 100 * n)
            gate.processed(100 * n, self.now)
        elif what == 2:
            if self.trace:
                self.trace.take(gate, n, 100 * n)
            gate.take(n, 100 * n, self.now)
        else:
            if self.trace:
                self.trace.reset(gate)
            gate.reset(self.now)

    def judge(self, publish: Publish, account: Account, gates: list[Gate], quota: Verdict | None) -> None:
        if self.trace:
            self.trace.publish(publish, account, gates, quota, False)
        quotas = RecordedAnswer(quota)
        verdict = admit(publish, account, self.ledger, gates, quotas, self.contended, SETTINGS.wait, self.now)
        if self.trace:
            self.trace.verdict(verdict)
            self.told.append((verdict.kind, verdict.reason, verdict.until))


def plain(verdict: Verdict) -> tuple[int, object, float]:
    return verdict.kind, verdict.reason, verdict.until


def replayed(data: bytes) -> list[tuple[int, object, float]]:
    """The verdicts of today, which are those of then."""
    found: list[Replayed] = list(replay(data, SETTINGS))
    assert [plain(one.recorded) for one in found] == [plain(one.verdict) for one in found]
    return [plain(one.verdict) for one in found]


publishes = st.tuples(
    st.sampled_from([3, 4, 5]), FEW, st.integers(0, 5000), st.integers(1, 3000), FEW, st.sets(FEW), st.booleans(), FEW
)
events = st.tuples(st.integers(0, 3), FEW, st.integers(1, 9), st.floats(0.0, 1.0))
slices = st.tuples(
    st.floats(0.0, 20.0), st.floats(0.0, 10.0), st.integers(0, 7), st.lists(events, max_size=3), st.lists(publishes)
)


@given(st.lists(slices, max_size=12), st.integers(0, 12), st.lists(st.sampled_from(QUOTAS), min_size=1, max_size=5))
def test_a_trace_decides_again_as_it_was_decided(
    steps: list[
        tuple[
            float,
            float,
            int,
            list[tuple[int, int, int, float]],
            list[tuple[int, int, int, int, int, set[int], bool, int]],
        ]
    ],
    begin: int,
    quotas: list[Verdict | None],
) -> None:
    """What somebody learns from a trace would not be what happened."""
    worker = Worker()
    for position, (wait, level, contended, happened, published) in enumerate(steps):
        if position == begin:
            worker.begin()
        worker.slice(wait, level, contended | FAR_BIT)
        for what, gate, n, latency in happened:
            worker.happen(what, worker.gates[gate], n, latency)
        for number, (version, qos, size, cost, client, gates, exempt, waited) in enumerate(published):
            publish = Publish(version, qos, size, cost, contended | FAR_BIT * (number & 1))
            publish.exempt = exempt
            if waited:
                publish.since = worker.now - 20.0 * waited
            account = worker.accounts[client]
            account.spent += 700 * waited  # at level 0 somebody else counts
            through = [worker.gates[gate] for gate in sorted(gates)]
            worker.judge(publish, account, through, quotas[number % len(quotas)])

    assert worker.trace is None or worker.told == replayed(worker.trace.take_chunk())


def test_a_recording_may_begin_in_the_middle() -> None:
    """Only what was recorded from the start of a worker could be replayed: nobody foresees an overload."""
    worker = Worker()
    worker.slice(50.0, 3.0, 1)
    worker.slice(50.0, 5.0, 1)
    worker.gates[0].take(3, 0, worker.now)
    worker.accounts[0].spent = 749_800
    worker.begin()
    assert worker.trace is not None
    worker.trace.slice(1, worker.now)
    for _ in range(3):
        worker.judge(Publish(5, 1, 100, 400, 1), worker.accounts[0], [worker.gates[0]], None)
        worker.judge(Publish(5, 1, 100, 400, 1), worker.accounts[0], [], None)
        worker.accounts[0].spent = 5000

    assert worker.told == replayed(worker.trace.take_chunk())
    assert {0, PAUSE} == {kind for kind, _, _ in worker.told}


def test_a_full_trace_ends_and_says_how_much_came_after() -> None:
    """A recording would fill the memory, or leave out something in the middle and replay nonsense."""
    worker = Worker(limit=2000)
    worker.begin()
    assert worker.trace is not None
    for _ in range(100):
        worker.slice(0.1, 5.0, 1)
        worker.judge(Publish(5, 1, 100, 400, 1), worker.accounts[0], [worker.gates[0]], None)

    data = worker.trace.take_chunk()
    again = replayed(data)

    assert 1000 < len(data) <= 2000
    assert 0 < len(again) < 100
    assert worker.told[: len(again)] == again
    assert worker.trace.left_out >= 100 - len(again)


def test_a_trace_can_be_judged_by_another_policy() -> None:
    """Nobody could try a table on what really happened."""
    worker = Worker()
    worker.begin()
    assert worker.trace is not None
    worker.slice(0.1, 10.0, 1)
    for _ in range(100):
        worker.judge(Publish(5, 1, 100, 40, 1), worker.accounts[0], [], None)

    generous = list(replay(worker.trace.take_chunk(), Overload(refill=(50_000,) * 11)))

    assert PAUSE == worker.told[-1][0]
    assert 100 == len(generous)
    assert all(one.verdict.kind != PAUSE for one in generous)


def test_a_trace_says_how_many_receivers_store_a_publish() -> None:
    """A backtest would price publishes for durable sessions as if nobody stored them."""
    worker = Worker()
    worker.begin()
    assert worker.trace is not None
    worker.slice(0.1, 1.0, 1)
    publish = Publish(5, 1, 100, 76, 1)
    publish.deliveries, publish.persistent = 5, 3
    worker.judge(publish, worker.accounts[0], [], None)
    data = worker.trace.take_chunk()

    assert [(5, 3)] == [(one.publish.deliveries, one.publish.persistent) for one in replay(data, SETTINGS)]
    assert [0] == [one.publish.persistent for one in replay(as_version_2(data), SETTINGS)]


def test_what_is_contended_may_change_within_a_slice() -> None:
    """Who was held back for it would seem to have passed, or the other way round."""
    worker = Worker()
    worker.begin()
    assert worker.trace is not None
    worker.slice(0.1, 10.0, 0)
    worker.accounts[0].zero = worker.ledger.granted(worker.now)  # it has nothing left
    worker.slice(0.0, 10.0, 1)
    worker.judge(Publish(5, 1, 100, 400, 1), worker.accounts[0], [], None)

    assert [PAUSE] == [kind for kind, _, _ in replayed(worker.trace.take_chunk())]


def test_of_a_run_so_many_follow_as_the_policy_has_it() -> None:
    """Most publishes go in runs, and would pass under any policy."""
    worker = Worker()
    worker.begin()
    assert worker.trace is not None
    worker.slice(0.1, 5.0, 1)
    worker.accounts[0].zero = worker.ledger.granted(worker.now) - 1010.0  # which is its balance
    worker.judge(Publish(5, 0, 100, 10, 1), worker.accounts[0], [worker.gates[0]], None)
    worker.trace.run(worker.accounts[0], [worker.gates[0]], 50, 100, 10, False, 2, 200, 20, 0)

    data = worker.trace.take_chunk()

    passed = [list(replay(data, Overload(gate_floor=floor)))[-1].passed for floor in (3, 2, 1)]
    assert [2, 1, 0] == passed


def as_version_2(trace: bytes) -> bytes:
    """*trace* as Weir wrote it before gates had the names of their resources, and publishes said who stores them."""
    records = list(msgpack.Unpacker(BytesIO(trace)))
    for record in records:
        if record[0] == BEGIN:
            record[1] = 2
        elif record[0] == GATE:
            del record[1]
        elif record[0] == PUBLISH:
            del record[-2]
    return b"".join(msgpack.packb(record) for record in records)


def test_gates_have_names_and_a_trace_without_them_is_played_the_same() -> None:
    """Who compares policies could not say which resource held clients, or an upgrade would make traces worthless."""
    worker = Worker()
    worker.begin()
    assert worker.trace is not None
    worker.slice(0.1, 5.0, 1)
    for _ in range(5):
        worker.judge(Publish(5, 0, 100, 10, 1), worker.accounts[0], worker.gates, None)
    data = worker.trace.take_chunk()
    names = []
    for trace in (data, as_version_2(data)):
        player = Player(SETTINGS)
        for fields in msgpack.Unpacker(BytesIO(trace)):
            player.play(fields)
        names.append([gate.resource for gate in player.gates])

    assert [["weir/0", "weir/1", "weir/2"], ["", "", ""]] == names
    assert [one.passed for one in replay(data, SETTINGS)] == [
        one.passed for one in replay(as_version_2(data), SETTINGS)
    ]
    assert {0, 1} == {one.passed for one in replay(data, SETTINGS)}


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"nonsense",
        msgpack.packb([0, 5, [0.0, 0.0, 0.0]]),
        msgpack.packb([77, 0]),
        msgpack.packb([6, 3, 1, 1, 0.1]),
        msgpack.packb([]),
        msgpack.packb([9, 0]),
        msgpack.packb([2, "high"]),
        msgpack.packb([2, float("inf")]),
    ],
)
def test_bytes_that_are_no_trace_are_refused(data: bytes) -> None:
    """A file given by mistake would end in a traceback."""
    with pytest.raises(TraceError, match="no trace: "):
        list(replay(data, SETTINGS))
