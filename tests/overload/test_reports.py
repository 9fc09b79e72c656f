import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.schema import Overload
from broker.overload.level import Resources, Signals, WorkerLevel
from broker.overload.reports import MOST_WORKERS, UNKNOWN, Report, ReportError, Reports, decode
from broker.worker_id import WorkerId

SETTINGS = Overload()
FIELDS = [1, "weir", 0, 7, 1, 2.5, "lag", 1.5, ["store"]]


class Here:
    """Worker 0 of the node weir."""

    def __init__(self) -> None:
        self.resources = Resources()
        self.store = self.resources.bit("store")
        self.reports = Reports(WorkerId("weir", 0, 1), self.resources)
        self.signals = Signals(SETTINGS, "weir/0")
        self.level = WorkerLevel(SETTINGS, self.signals)

    def hear(self, report: Report, now: float = 0.0) -> bool:
        return self.reports.hear(report.encode(), now)

    def refreshed(self, now: float = 0.0) -> Reports:
        self.reports.refresh(self.level, self.signals, now)
        return self.reports

    def due(self, now: float) -> bool:
        """Whether ours is due; then it is sent."""
        self.signals.look(now)
        due = self.reports.due(self.level, self.signals, now)
        if due:
            self.reports.own(self.level, self.signals, now)
        return due

    def ignored(self) -> dict[str, int]:
        return {label: count for label, count in self.reports.ignored.items() if count}


def report(
    worker: int = 1, level: float = 3.5, sequence: int = 1, boot: int = 1, node: str = "weir", value: float = 2.0
) -> Report:
    return Report(WorkerId(node, worker, boot), sequence, level, "store", value, ("store",))


def test_a_report_is_read_as_it_was_written() -> None:
    """Workers would not understand each other."""
    written = Report(WorkerId("weir-1", 3, 1 << 60), 9, 9.99, "lag", 100.0, ("store", "weir-1/3"), 17, 2.5)
    read = decode(written.encode())

    assert (WorkerId("weir-1", 3, 1 << 60), 9) == (read.worker, read.sequence)
    assert (9.99, "lag", 100.0, ("store", "weir-1/3")) == (read.level, read.cause, read.value, read.contended)
    assert (17, 2.5) == (read.clients, read.connect_wait)


def test_a_report_of_an_older_version_is_read() -> None:
    """During an upgrade the level of nodes that are still to come would not be in force elsewhere."""
    read = decode(msgpack.packb(FIELDS))

    assert (2.5, UNKNOWN, 0.0) == (read.level, read.clients, read.connect_wait)


def test_nodes_of_an_older_version_can_read_reports() -> None:
    """While a cluster is upgraded, no node of the former version would follow the level of the others."""
    here = Here()
    here.reports.clients = 7
    here.reports.brief = True

    assert 9 == len(msgpack.unpackb(here.reports.own(here.level, here.signals, 0.0).encode()))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no msgpack"),
        (b"\xc1", "no msgpack"),
        (msgpack.packb(FIELDS) + b"\x00", "no msgpack"),
        (b"\x81\x80\x80", "no msgpack"),
        (bytes(40_000), "a report of 40000 bytes, more than 32768"),
        (msgpack.packb({"level": 1}), "no list of fields"),
        (msgpack.packb([]), "no list of fields"),
        (msgpack.packb([2, *FIELDS[1:]]), "version 2, and only 1 is known"),
        (msgpack.packb(["x" * 1000]), "version 'xxxxxxxxxxxxxxxxxxx, and only 1"),
        (msgpack.packb(FIELDS[:8]), "8 fields, not 9 or 11"),
        (msgpack.packb([*FIELDS, 1]), "10 fields, not 9 or 11"),
        (msgpack.packb([*FIELDS, -1, 0.0]), "clients: a whole number of 0 or more"),
        (msgpack.packb([*FIELDS, 1, "soon"]), "connect_wait: a number"),
        (msgpack.packb([1, b"weir", *FIELDS[2:]]), "node: a name"),
        (msgpack.packb([1, "x" * 257, *FIELDS[2:]]), "node: a name of at most 256 characters"),
        (msgpack.packb([*FIELDS[:2], True, *FIELDS[3:]]), "worker: a whole number"),
        (msgpack.packb([*FIELDS[:4], -1, *FIELDS[5:]]), "sequence: a whole number of 0 or more"),
        (msgpack.packb([*FIELDS[:5], "3", *FIELDS[6:]]), "level: a number"),
        (msgpack.packb([*FIELDS[:8], "store"]), "contended: a list"),
        (msgpack.packb([*FIELDS[:8], [1]]), "contended: a name"),
        (msgpack.packb([*FIELDS[:8], ["x"] * 1025]), "contended: a list of at most 1024 names"),
    ],
)
def test_bytes_that_are_no_report_are_refused_with_what_is_wrong(data: bytes, words: str) -> None:
    """Whoever may write to the channel could crash a worker, or nobody could tell what it wrote."""
    with pytest.raises(ReportError) as refused:
        decode(data)

    assert words in str(refused.value)
    here = Here()
    assert not here.reports.hear(data, 0.0)
    assert {"malformed": 1} == here.ignored()


@given(st.binary(max_size=60) | st.lists(st.integers() | st.text(), max_size=9).map(repr).map(str.encode))
def test_no_bytes_crash_a_worker(data: bytes) -> None:
    """Anybody on the channel could end the cluster."""
    Here().reports.hear(data, 0.0)


@pytest.mark.parametrize("wrong", [-0.1, 10.1, math.nan, math.inf])
def test_absurd_levels_and_values_are_ignored(wrong: float) -> None:
    """One worker that miscounts would stop all clients of the cluster, or leave the level no number."""
    here = Here()

    assert not here.hear(report(level=wrong))
    assert not here.hear(report(value=-1.0)) and not here.hear(report(value=math.nan))
    for wait in (-1.0, math.nan, math.inf):
        assert not here.hear(Report(WorkerId("weir", 1, 1), 1, 1.0, "", 0.0, (), 0, wait))
    assert {"out_of_range": 6} == here.ignored()
    assert 0.0 == here.refreshed().level


def test_what_came_before_and_our_own_echo_are_ignored() -> None:
    """A report that took the slow way would turn the clock back; we would listen to ourselves for ever."""
    here = Here()

    heard = [here.hear(report(sequence=number)) for number in (5, 4, 5, 6)]
    restarted = here.hear(report(sequence=1, boot=2))
    echo = here.hear(report(worker=0))

    assert ([True, False, False, True], True, False) == (heard, restarted, echo)
    assert {"stale": 2, "echo": 1} == here.ignored()


def test_a_report_that_was_heard_never_counts_again() -> None:
    """Whoever reads Redis could throttle all clients with a report of yesterday, sealed by a worker that restarted."""
    here = Here()
    assert [True, True] == [here.hear(report(sequence=9)), here.hear(report(sequence=1, boot=2))]
    assert [False, False] == [here.hear(report(sequence=number)) for number in (8, 9)]
    assert here.hear(report(sequence=2, boot=2, level=1.0))
    for number in range(MOST_WORKERS):
        here.hear(report(worker=2 + number))

    assert [False, False] == [here.hear(report(sequence=2, boot=2)), here.hear(report(sequence=9))]
    assert here.hear(report(sequence=3, boot=2))  # the worker that is there is heard nevertheless


def test_the_highest_counts_and_who_has_it_is_the_cause() -> None:
    """The cluster would go by somebody's calm, or `weir why` name the wrong worker."""
    here = Here()
    here.level.value = 1.0
    here.hear(report(worker=1, level=2.5))
    here.hear(report(worker=7, level=4.5, node="other"))

    reports = here.refreshed()

    assert (2.5, 4.5, here.store) == (reports.node_level, reports.level, reports.contended)
    assert ("store", 2.0, "other/7") == (reports.cause, reports.value, str(reports.cause_worker))
    here.level.value = 5.0
    assert (5.0, 5.0, "", 0) == (here.refreshed().level, reports.node_level, reports.cause, reports.cause_worker.shard)


def test_a_report_counts_for_a_second_from_its_receipt() -> None:
    """A worker that died at level 10 would slow down everybody for good."""
    here = Here()
    here.hear(report(), 10.0)

    assert 3.5 == here.refreshed(11.0).level
    assert (0.0, 0, "") == (here.refreshed(11.01).level, here.reports.contended, here.reports.cause)


def test_who_speaks_again_is_heard_whoever_fell_silent() -> None:
    """The silence of one worker would hide what another says."""
    here = Here()
    here.hear(report(worker=1), 0.0)
    here.hear(report(worker=2, level=9.0), 0.5)
    here.hear(report(worker=1, sequence=2), 1.2)

    assert 3.5 == here.refreshed(1.6).level


def test_what_nobody_here_needs_is_not_contended_here() -> None:
    """The names of others would take our bits."""
    here = Here()
    here.hear(Report(WorkerId("other", 1, 1), 1, 3.0, "disk", 2.0, ("disk", "other/1")))

    assert 0 == here.refreshed().contended


def test_our_own_contention_counts_at_once() -> None:
    """A worker would wait for the news about its own store to come round."""
    here = Here()
    here.signals.add_gate("store").measure(1.0, 0.0)
    here.signals.look(0.0)

    assert here.store == here.refreshed().contended


def test_a_report_is_due_when_others_would_see_a_change_else_now_and_then() -> None:
    """Others would learn of an overload a second late, or a calm cluster be busy telling so."""
    here = Here()
    sent = [here.due(0.0), here.due(0.1), here.due(0.9), here.due(1.0)]
    here.level.value = 0.2
    changed = [here.due(1.1), here.due(1.2)]
    here.level.value = 0.9
    within = [here.due(1.25), here.due(1.3), here.due(1.4)]
    here.signals.memory.measure(1.0, 1.7)
    cause = [here.due(1.7), here.due(1.8)]
    here.level.value = 0.0
    here.signals.memory.measure(0.0, 1.9)
    fallen = [here.due(1.9), here.due(2.0)]

    assert [True, False, False, True] == sent
    assert [True, True] == changed
    assert [False, True, True] == within  # at each measurement, 100 ms after the last, but not in between
    assert [True, True] == cause
    assert [True, False] == fallen


def test_a_worker_whose_clients_wait_says_so_before_its_level_rises() -> None:
    """A node that is drained would go on pressing clients on it for a second, and would not see how it fares."""
    here = Here()
    here.signals.memory.measure(0.8 * SETTINGS.memory_percent / 100, 0.0)  # which may be so for months
    here.signals.topology.measure(5.0, 0.0)  # and others are not behind because a node has joined
    calm = [here.due(0.0), here.due(0.1)]
    here.signals.lag.measure(0.9 * SETTINGS.lag, 0.2)
    strained = [here.due(0.2), here.due(0.25), here.due(0.3), here.due(0.4)]
    told = here.reports.own(here.level, here.signals, 0.4)
    here.signals.lag.measure(0.4 * SETTINGS.lag, 0.5)
    calm_again = [here.due(0.5), here.due(0.6)]

    assert ([True, False], [True, False, True, True], [True, False]) == (calm, strained, calm_again)
    assert (0.0, "", 0.9) == (told.level, told.cause, round(told.strain(), 3))


@pytest.mark.parametrize(
    ("workers", "sent"),
    [
        (1, [True, True, True, True, True]),
        (128, [True, True, True, True, True]),
        (256, [True, False, True, False, True]),
        (1000, [True, False, False, False, True]),
    ],
)
def test_only_a_crowd_reports_less_often_than_each_100_ms(workers: int, sent: list[bool]) -> None:
    """Others would follow a level late, or a thousand overloaded workers hear ten thousand reports a second."""
    here = Here()
    for number in range(workers - 1):
        here.hear(report(worker=number + 1, node="far"))
    here.level.value = 0.2

    assert sent == [here.due(at / 10) for at in range(5)]


def test_workers_that_are_gone_are_no_crowd() -> None:
    """A small cluster whose nodes get a new name at each start would report every 400 ms after some weeks."""
    here = Here()
    for number in range(1000):
        here.hear(report(worker=number + 1, node="far"))
    here.level.value = 0.2

    assert [True, True, True] == [here.due(60.0 + at / 10) for at in range(3)]


def test_ours_is_numbered_and_says_what_is() -> None:
    """Others would take it for one they have, or for somebody else's."""
    here = Here()
    here.signals.lag.measure(0.1, 0.0)
    here.signals.look(0.0)
    here.level.step()
    here.level.value = 2.5

    first = here.reports.own(here.level, here.signals, 0.0)
    second = here.reports.own(here.level, here.signals, 0.0)

    assert (1, 2) == (first.sequence, second.sequence)
    assert WorkerId("weir", 0, 1) == first.worker
    assert (2.5, "lag", 2.0, ("weir/0",)) == (first.level, first.cause, first.value, first.contended)


def test_only_so_many_workers_are_remembered_the_latest_ones() -> None:
    """Somebody who makes up names could fill the memory."""
    here = Here()
    here.hear(report(worker=1, level=9.0))
    for number in range(MOST_WORKERS):
        here.hear(report(worker=number + 2, level=1.0))

    assert MOST_WORKERS == len(here.reports.known(0.0))
    assert 1.0 == here.refreshed().level
