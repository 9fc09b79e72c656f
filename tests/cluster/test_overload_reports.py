# Reports between whole workers: two nodes of two, joined by a real Redis, and within each node by the mesh.
import select
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from broker.cluster.overload_reports import PATIENCE as PUBLISH_PATIENCE
from broker.config.schema import Config, Overload
from broker.store.redis.connection import READY, RedisConnection
from broker.worker_id import WorkerId
from tests.innode import Node
from tests.inprocess import Broker
from tests.redis_servers import PATIENCE, RunningRedis, free_port

pytestmark = pytest.mark.system  # a real Redis

Nodes = Callable[..., Node]
StartRedis = Callable[..., RunningRedis]
TWO: Final = 2
QUIET: Final = Config(overload=Overload(enabled=False))  # they tell nothing by themselves


class Cluster:
    """Its time stands still but for `flow_until()`: on a busy machine nothing is late."""

    def __init__(self, nodes: Nodes, redis: RunningRedis) -> None:
        self.nodes = [nodes(TWO, QUIET, redis, name) for name in ("left", "right")]
        self.workers: list[Broker] = [worker for node in self.nodes for worker in node]
        self.heard: list[list[bytes]] = [[] for _ in self.workers]
        for worker, heard in zip(self.workers, self.heard, strict=True):
            worker.answered = False
            worker.receive_reports_with(partial(_hear, heard))
        self.until(self.listens)

    def listens(self) -> bool:
        """Every worker hears, and can be heard, over Redis."""
        return all(line.state == READY for worker in self.workers for line in lines(worker))

    def tell(self, number: int, report: bytes) -> None:
        worker = self.workers[number]
        worker.reports.tell(report, worker.clock.now)

    def settle(self) -> None:
        for node in self.nodes:
            node.settle()

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"it does not come: {self.heard}"
            self.settle()
            select.select([worker.loop for worker in self.workers], [], [], 0.01)

    def flow_until(self, done: Callable[[], bool]) -> None:
        """The same while time passes."""
        self.until(partial(self._flow, done))

    def _flow(self, done: Callable[[], bool]) -> bool:
        for node in self.nodes:
            node.advance(0.1)
        return done()

    def counted(self, name: str) -> list[int]:
        return [getattr(worker.counters, name) for worker in self.workers]


def lines(worker: Broker) -> Iterator[RedisConnection]:
    registry_client, reports = worker.registry_client, worker.reports.redis
    assert registry_client is not None and reports is not None
    yield registry_client.commands
    assert reports.subscription is not None
    yield reports.subscription


def _hear(heard: list[bytes], report: bytes, now: float) -> None:
    heard.append(report)


@pytest.mark.parametrize("reached_by", ["unix", "tcp"])
def test_every_worker_of_every_node_hears(nodes: Nodes, start_redis: StartRedis, reached_by: str) -> None:
    """Some would go on as if nothing was, while others hold their clients back."""
    cluster = Cluster(nodes, start_redis(port=free_port() if reached_by == "tcp" else 0))
    report = b"\x00\xff\r\nany bytes"
    cluster.tell(0, report)
    cluster.until(lambda: [1, 1, 1, 1] == cluster.counted("reports_heard_redis"))

    assert [0, 1, 0, 0] == cluster.counted("reports_heard_mesh")
    assert [[report], [report] * 2, [report], [report]] == cluster.heard
    assert [1, 0, 0, 0] == cluster.counted("reports_sent_redis") == cluster.counted("reports_sent_mesh")


def test_a_redis_that_is_slow_delays_nothing_within_a_node(nodes: Nodes, start_redis: StartRedis) -> None:
    """A slow Redis would carry the news that Redis is slow."""
    server = start_redis()
    cluster = Cluster(nodes, server)
    server.pause()
    cluster.tell(0, b"slow")
    cluster.settle()

    assert [[], [b"slow"], [], []] == cluster.heard
    server.go_on()
    cluster.until(lambda: all(cluster.heard))
    assert [1, 1, 1, 1] == cluster.counted("reports_heard_redis")


def test_reports_go_on_within_a_node_and_resume_when_redis_is_back(nodes: Nodes, start_redis: StartRedis) -> None:
    """Protection would end with Redis, or stay apart after it for ever; a report of long ago would be told as new."""
    server = start_redis()
    cluster = Cluster(nodes, server)
    server.kill()
    cluster.until(lambda: not cluster.listens())
    cluster.tell(0, b"alone")
    for node in cluster.nodes:
        node.advance(PUBLISH_PATIENCE + 0.1)
    assert [1, 0, 0, 0] == cluster.counted("reports_lost_redis")
    server.start()
    cluster.flow_until(cluster.listens)

    cluster.tell(0, b"together")
    cluster.until(lambda: [1, 1, 1, 1] == cluster.counted("reports_heard_redis"))
    assert [[b"together"], [b"alone", b"together", b"together"], [b"together"], [b"together"]] == cluster.heard


def test_a_redis_that_moves_is_followed(nodes: Nodes, start_redis: StartRedis) -> None:
    """After a failover nobody would hear of the others any more."""
    former, new = start_redis(), start_redis()
    cluster = Cluster(nodes, former)
    for worker in cluster.workers:
        assert worker.registry_client is not None
        worker.registry_client.move(new.address, worker.clock.now)
        worker.reports.move(new.address, worker.clock.now)
    cluster.until(cluster.listens)

    cluster.tell(3, b"here")
    cluster.until(lambda: all(cluster.heard))
    assert [1, 1, 1, 1] == cluster.counted("reports_heard_redis")


@pytest.mark.parametrize("alone", [True, False])
def test_who_has_redis_for_itself_reports_there_and_does_not_listen(start_redis: StartRedis, alone: bool) -> None:
    """It would be woken to hear what it said itself; or a program that watches the node would not learn its level."""
    server = start_redis()
    broker = Broker(QUIET, redis=server.address, identity=WorkerId("node", 0, 1), alone=alone)
    broker.answered = True
    with server.client() as client:
        wanted = {"weir-node-0"} if alone else {"weir-node-0", "weir-node-0-reports"}
        deadline = time.monotonic() + PATIENCE
        while (found := {one["name"] for one in client.client_list() if one["name"]}) != wanted:
            assert time.monotonic() < deadline, found
            broker.settle()
    broker.reports.tell(b"report", broker.clock.now)
    while broker.counters.reports_sent_redis < 1:
        assert time.monotonic() < deadline
        broker.settle()
    broker.close()


def test_who_shares_a_redis_by_database_or_prefix_hears_only_its_own(nodes: Nodes, start_redis: StartRedis) -> None:
    """A cluster would be slowed down for the load of another one: pub/sub knows no databases."""
    server = start_redis()
    cluster = Cluster(nodes, server)
    with server.client() as client:
        for channel in ("weir:overload:1", "other:overload:0", "weir:overload"):
            client.publish(channel, "not yours")
        client.publish("weir:overload:0", "yours")
    cluster.until(lambda: all(cluster.heard))

    assert [[b"yours"]] * 4 == cluster.heard
