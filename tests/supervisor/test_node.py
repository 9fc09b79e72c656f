# What a node tells its workers of each other.
import socket
from collections.abc import Sequence
from pathlib import Path

import structlog

from broker.config.schema import Config
from broker.control.frames import FromSupervisor, OtherWorkers, StatisticsReport
from broker.metrics.counters import Counters
from broker.metrics.gauges import Gauges
from broker.metrics.report import report
from broker.worker_id import WorkerId
from supervisor.folder import NodeFolder
from supervisor.logfile import LogFile
from supervisor.node import Node
from supervisor.node_redis import NodeRedis
from supervisor.workers import WorkerProcess


class Listening(WorkerProcess):
    """A worker that was never started, and what it would have been told."""

    def __init__(self, node: Node, shard: int) -> None:
        super().__init__(WorkerId("weir", shard, shard), node._page, node)
        self.told: list[int] = []
        node.shards[shard].process = self

    def send(self, frame: FromSupervisor, sockets: Sequence[socket.socket] = ()) -> None:
        assert isinstance(frame, OtherWorkers)
        self.told.append(frame.report["counters"].get("publishes_received", 0))

    def says(self, count: int) -> None:
        """As it does each second."""
        counters = Counters()
        counters.publishes_received = count
        self._hear(StatisticsReport(report(counters, Gauges())))

    def end(self) -> None:
        self.close()
        self._link.close()
        assert self._theirs is not None
        self._theirs.close()


async def test_a_worker_is_told_of_the_others_when_something_has_changed(tmp_path: Path) -> None:
    """One that is alone would be woken each second to hear nothing, or `$SYS` show what was a while ago."""
    config, folder = Config(), NodeFolder("weir", str(tmp_path))
    node = Node(config, folder, [[], []], LogFile(), lambda: "", NodeRedis(config, folder, structlog.get_logger()))
    one, other = workers = [Listening(node, 0), Listening(node, 1)]
    for _ in range(3):
        one.says(1)
    other.says(5)
    for _ in range(3):
        one.says(2)
    other.says(6)
    other.says(6)
    one.says(2)

    assert [0, 5, 6] == one.told
    assert [1, 2] == other.told
    for worker in workers:
        worker.end()
