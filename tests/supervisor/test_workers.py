# What the workers of a node are told of each other, and which of them clients get.
import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest
import structlog
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from broker.config.schema import Config, Delivery, Listener
from broker.control.frames import (
    FromSupervisor,
    OtherNodes,
    OtherWorkers,
    PublishWills,
    Ready,
    StatisticsReport,
    WillSettled,
)
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.report import report
from broker.net.listeners import listen_for_shards
from broker.worker_id import WorkerId
from supervisor.bans import NodeBans
from supervisor.folder import NodeFolder
from supervisor.limits import ClientLimits
from supervisor.logfile import LogFile
from supervisor.membership import Membership
from supervisor.node_redis import NodeRedis
from supervisor.worker_process import WorkerProcess
from supervisor.workers import SERVES_SOON, Workers

CLIENTS = 64


class SilentProcess(WorkerProcess):
    """A worker that was never started, and the frames that it would have received."""

    def __init__(self, workers: Workers, shard: int) -> None:
        identity = WorkerId("weir", shard, 100 + shard)
        super().__init__(identity, workers._page, 1.0, workers.received, workers.shards[shard].ready.set)
        self.frames: list[FromSupervisor] = []
        workers.shards[shard].process = self

    def send(self, frame: FromSupervisor, sockets: Sequence[socket.socket] = ()) -> None:
        self.frames.append(frame)

    def report(self, count: int) -> None:
        """As a worker does each second."""
        counters = Counters()
        counters.publishes_received = count
        self.receive(StatisticsReport(report(counters, Gauges())))

    def other_counts(self) -> list[int]:
        """The count of the other workers, as often as it was sent."""
        found = [frame.report for frame in self.frames if isinstance(frame, OtherWorkers)]
        return [one["counters"].get("publishes_received", 0) for one in found]

    def wills(self) -> list[FromSupervisor]:
        return [frame for frame in self.frames if isinstance(frame, PublishWills)]


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    """A listening socket for each of two shards, at the same port."""
    opened = listen_for_shards(Listener(host=("127.0.0.1",), port=0), Delivery(), 2)
    yield [one for (one,) in opened]
    for (one,) in opened:
        one.close()


@pytest.fixture
def workers(tmp_path: Path, sockets: list[socket.socket]) -> Workers:
    """Two shards without processes."""
    config, folder, log = Config(), NodeFolder("weir", str(tmp_path)), structlog.get_logger()
    limits = ClientLimits(tmp_path / "limits", log, lambda change: None)
    bans = NodeBans(tmp_path / "bans", log, lambda change: None)
    redis = NodeRedis(config, folder, log)
    return Workers(
        config,
        folder,
        [[("tcp", one)] for one in sockets],
        LogFile(),
        redis,
        limits,
        bans,
        lambda connections: None,
        lambda worker: None,
    )


async def test_a_worker_is_told_of_the_others_when_their_sum_has_changed(workers: Workers) -> None:
    """A worker that is alone would wake each second for nothing, or `$SYS` show an old sum."""
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    for _ in range(3):
        one.report(1)
    other.report(5)
    for _ in range(3):
        one.report(2)
    other.report(6)
    other.report(6)
    one.report(2)

    assert [0, 5, 6] == one.other_counts()
    assert [1, 2] == other.other_counts()
    for process in (one, other):
        process.mark_dead()


async def test_the_first_worker_that_serves_publishes_the_wills_of_an_ended_one(workers: Workers) -> None:
    """The wills would not be published, or published by both, or those be published again that were already."""
    ended, serving = SilentProcess(workers, 0), SilentProcess(workers, 1)
    ended.receive(WillSettled("c", 7))
    ended.mark_dead()
    workers.ended(ended)
    assert [] == serving.wills()

    serving.receive(Ready(100))
    serving.receive(Ready(100))

    assert [PublishWills(100, [("c", 7)])] == serving.wills()
    serving.mark_dead()


async def test_the_node_is_ready_when_all_workers_are(workers: Workers) -> None:
    """`weir start` would return before all workers serve, or not at all."""
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    one.receive(Ready(100))
    assert (False, False) == (workers.were_ready, workers.all_serve())

    other.receive(Ready(100))
    assert (True, True) == (workers.were_ready, workers.all_serve())

    one.mark_dead()
    assert (True, False) == (workers.were_ready, workers.all_serve())
    other.mark_dead()


@pytest.fixture
def come(sockets: list[socket.socket]) -> Iterator[Callable[[], None]]:
    """So many clients connect that each of two sockets would get some of them. They stay until the end of the test."""
    with contextlib.ExitStack() as stack:

        def connect() -> None:
            for _ in range(CLIENTS):
                stack.enter_context(socket.create_connection(sockets[0].getsockname()))

        yield connect


def waiting(listener: socket.socket) -> int:
    """Accept all connections that wait at *listener*; how many these are."""
    count = 0
    with contextlib.suppress(OSError):  # it is shut
        while True:
            listener.accept()[0].close()
            count += 1
    return count


async def test_clients_wait_for_a_worker_that_is_replaced_soon(
    workers: Workers, sockets: list[socket.socket], come: Callable[[], None], autojump_clock: MockClock
) -> None:
    """Clients would be refused each time a worker is replaced."""
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    for process in (one, other):
        process.receive(Ready(100))
    for count in range(2):
        await trio.sleep(60)
        one.report(count)
    other.mark_dead()
    workers.ended(other)
    come()
    await trio.sleep(SERVES_SOON - 1)
    one.report(2)
    come()

    counts = list(map(waiting, sockets))
    assert 2 * CLIENTS == sum(counts)
    assert all(counts)
    one.mark_dead()


async def test_clients_go_to_another_worker_while_one_does_not_serve_for_long(
    workers: Workers, sockets: list[socket.socket], come: Callable[[], None], autojump_clock: MockClock
) -> None:
    """A worker may wait for what others know: half of the clients would have no answer until then."""
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    for process in (one, other):
        process.receive(Ready(100))
    one.report(1)
    other.mark_dead()
    workers.ended(other)
    following = SilentProcess(workers, 1)
    await trio.sleep(SERVES_SOON + 1)
    with capture_logs() as logged:
        for count in (2, 3):
            one.report(count)
            come()
    assert [2 * CLIENTS, 0] == list(map(waiting, sockets))
    assert [("worker_refuses_clients", 1, SERVES_SOON + 1)] == [
        (line["event"], line["worker"], line["absent_s"]) for line in logged
    ]

    following.receive(Ready(100))
    for count in (4, 5):
        one.report(count)
        come()
        assert all(map(waiting, sockets))
    for process in (one, following):
        process.mark_dead()


class Others:
    """As of the membership in a cluster: one other node, with *workers*."""

    def __init__(self, workers: list[WorkerId]) -> None:
        self.others = OtherNodes(workers, [], 0, [])

    def ended(self, worker: WorkerId) -> None:
        pass


@pytest.mark.parametrize("others", [None, Others([])])
async def test_all_clients_wait_while_nobody_serves(
    workers: Workers,
    sockets: list[socket.socket],
    come: Callable[[], None],
    autojump_clock: MockClock,
    others: Others | None,
) -> None:
    """The node would refuse everybody because its workers wait for another node."""
    workers._membership = cast(Membership | None, others)
    former = [SilentProcess(workers, 0), SilentProcess(workers, 1)]
    for process in former:
        process.receive(Ready(100))
    for process in former:
        process.mark_dead()
        workers.ended(process)
    following = [SilentProcess(workers, 0), SilentProcess(workers, 1)]
    await trio.sleep(SERVES_SOON + 1)
    for process in following:
        process.report(0)

    come()
    assert all(map(waiting, sockets))
    for process in following:
        process.mark_dead()


@pytest.mark.parametrize("first", [False, True])
async def test_clients_are_refused_while_another_node_is_there_and_no_worker_serves_for_long(
    workers: Workers, sockets: list[socket.socket], come: Callable[[], None], autojump_clock: MockClock, first: bool
) -> None:
    """They would have no answer for as long as the lease of a node that has died, also when this one starts."""
    workers._membership = cast(Membership, Others([WorkerId("n2", 0, 7)]))
    await trio.sleep(60)
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    if not first:
        for process in (one, other):
            process.receive(Ready(100))
        for process in (one, other):
            process.mark_dead()
            workers.ended(process)
        one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    one.report(0)
    await trio.sleep(SERVES_SOON - 1)
    one.report(1)
    come()
    assert all(map(waiting, sockets))
    await trio.sleep(2)
    other.report(1)

    with pytest.raises(ConnectionRefusedError):
        come()
    for process in (one, other):
        process.receive(Ready(100))
    come()
    assert all(map(waiting, sockets))
    for process in (one, other):
        process.mark_dead()


@pytest.mark.parametrize("long", [False, True])
async def test_a_node_that_stops_has_closed_its_sockets(
    workers: Workers, sockets: list[socket.socket], autojump_clock: MockClock, long: bool
) -> None:
    """The supervisor would fail as it stops, whether the sockets of a shard were shut before or not."""
    one, other = SilentProcess(workers, 0), SilentProcess(workers, 1)
    for process in (one, other):
        process.receive(Ready(100))
    other.mark_dead()
    workers.ended(other)
    following = SilentProcess(workers, 1)
    await trio.sleep((SERVES_SOON + 1) * long)
    one.report(1)
    for shard, listener in zip(workers.shards, sockets, strict=True):
        shard.stopping.set()
        listener.close()
    await trio.sleep(SERVES_SOON + 1)

    one.report(2)
    following.receive(Ready(100))

    assert (True, True) == (workers.shards[0].serves(), workers.shards[1].serves())
    for process in (one, following):
        process.mark_dead()
