# Nodes of one cluster, all on this machine and on one Redis, for tests that look at them with raw clients.
import select
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from broker.mqtt.packets import PUBREC, PUBREL, Ack, Properties, Publish
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from tests.redis_servers import RunningRedis
from tests.system import node
from tests.system.nodes import Node, end_and_check
from tests.system.processes import PATIENCE
from tests.system.raw import RawClient

LASTING: Final[Properties] = {SESSION_EXPIRY_INTERVAL: 3600}


class Cluster:
    """Nodes n1, n2, ... of *workers* each, whose sessions are stored in *redis*."""

    def __init__(self, folder: Path, redis: RunningRedis, settings: Mapping[str, Any], workers: int = 2) -> None:
        """*settings*: of each node, as `Node` takes them."""
        self.workers = workers
        self.redis = redis
        self._settings = settings
        self.nodes: list[Node] = []
        self._folder = folder

    def start(self, number: int, build: Path | None = None, port: int = 0, **more: Any) -> Node:
        """Start node *number*, for the first time or again with its folder.

        *build*: see `Node`. *port*: 0: any. *more*: settings.
        """
        folder = self._folder / f"n{number}"
        folder.mkdir(exist_ok=True)
        started = Node(
            folder,
            self.workers,
            port,
            build=build,
            node__name=f"n{number}",
            redis__url=f"unix://{self.redis.socket}",
            store__durability="process",
            log__client_events_per_second=1000,
            **{**self._settings, **more},
        )
        self.nodes[number - 1 : number] = [started]
        return started

    def wait_joined(self) -> None:
        """Wait until each node knows all workers of all others."""
        others = self.workers * (len(self.nodes) - 1)
        for one in self.nodes:
            one.wait_until(lambda one=one: _known(one) == (others, 0), "know the others")  # type: ignore[misc]

    def end(self) -> None:
        end_and_check(self.nodes)


def _known(one: Node) -> tuple[int, int]:
    told: dict[str, Any] = node.status(one.control)["cluster"]
    return len(told["workers"]), told["missing"]


@contextmanager
def start(
    folder: Path, redis: RunningRedis, count: int, build: Path | None = None, workers: int = 2, **settings: Any
) -> Iterator[Cluster]:
    """*count* nodes of *workers* each that know each other. *build*: see `Node`."""
    cluster = Cluster(folder, redis, settings, workers)
    try:
        for number in range(count):
            cluster.start(number + 1, build)
        cluster.wait_joined()
        yield cluster
    finally:
        cluster.end()


def send(client: RawClient, topic: str, wanted: Sequence[bytes], qos: int = 1) -> None:
    """Publish all of *wanted* at once, with QoS 1 or 2, and wait until each is acknowledged."""
    for number, payload in enumerate(wanted):
        client.send(Publish(topic.encode(), payload, qos, packet_id=number + 1))
    open_ids = set(range(1, len(wanted) + 1))
    while open_ids:
        answer = client.expect(Ack)
        assert answer.code in (0, 0x10), answer  # success; nobody subscribed
        if answer.kind == PUBREC:
            client.send(Ack(PUBREL, answer.packet_id))
        else:
            open_ids.remove(answer.packet_id)


def collect(clients: Sequence[RawClient], count: int) -> list[list[bytes]]:
    """What each of *clients* gets, until these are *count* messages; all are acknowledged."""
    came: list[list[bytes]] = [[] for _ in clients]
    sockets = [cast(socket.socket, client.socket) for client in clients]
    while sum(len(each) for each in came) < count:
        ready = select.select(sockets, [], [], PATIENCE)[0]
        assert ready, f"{[len(each) for each in came]} of {count} messages came"
        for client, each in zip(clients, came, strict=True):
            if client.socket in ready:
                each.append(client.take().payload)
                while client.has_more():
                    each.append(client.take().payload)
    return came
