# What the workers of a node are told of each other.
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog

from broker.config.schema import Config
from broker.control.frames import FromSupervisor, OtherWorkers, PublishWills, Ready, StatisticsReport, WillSettled
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.report import report
from broker.worker_id import WorkerId
from supervisor.bans import NodeBans
from supervisor.folder import NodeFolder
from supervisor.limits import ClientLimits
from supervisor.logfile import LogFile
from supervisor.node_redis import NodeRedis
from supervisor.worker_process import WorkerProcess
from supervisor.workers import Workers


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
def workers(tmp_path: Path) -> Workers:
    """Two shards without processes."""
    config, folder, log = Config(), NodeFolder("weir", str(tmp_path)), structlog.get_logger()
    limits = ClientLimits(tmp_path / "limits", log, lambda change: None)
    bans = NodeBans(tmp_path / "bans", log, lambda change: None)
    redis = NodeRedis(config, folder, log)
    return Workers(
        config,
        folder,
        [[], []],
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
