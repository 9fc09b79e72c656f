# Several whole workers in the test process, with the mesh between them and one clock.
#
# `settle()` of one worker lets all of them settle, except those that are stopped. A worker that is killed ends as a
# process does: all of its sockets are closed, without any packet or frame.
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from broker.config.schema import MEMORY, PROCESS, Config
from broker.store.redis.address import RedisAddress
from broker.store.redis.connection import READY
from broker.worker_id import WorkerId
from tests.inprocess import Broker, Client, Clock


def stored(config: Config | None = None) -> Config:
    """*config* of a node whose sessions are stored."""
    config = config or Config()
    if config.store.durability != MEMORY:
        return config
    return replace(config, store=replace(config.store, durability=PROCESS))


class Wall:
    """Unix time, which passes with *clock*, and a little with each look: of two writes the later one counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time = time.time() - clock.now

    def __call__(self) -> float:
        self._time += 1e-5  # stamps are in microseconds, and floats of this size 2.4e-7 apart
        return self._time + self._clock.now


class Node(Sequence[Broker]):
    def __init__(
        self,
        workers: int,
        config: Config | None = None,
        redis: RedisAddress | None = None,
        name: str = "weir",
        traces: Path | None = None,
        durable: bool = False,
        prepare: Callable[[Broker], None] | None = None,
    ) -> None:
        """*traces*: the folder in which each worker records what it decides, in a file named by its number.

        *durable*: sessions are stored. The workers must start before there is one. *prepare* is called with each worker
        before it reads what is stored.
        """
        self.durable = durable
        self._prepare = prepare
        self._workers = workers
        self._name = name
        self._traces = traces
        self.clock = Clock()
        self._wall = Wall(self.clock)
        self._config = stored(config) if durable else config
        self._redis = redis
        self._all: list[Broker] = []
        self._incarnations = 0
        self.workers: list[Broker] = []
        for _ in range(workers):
            self.start()

    def start(self, shard: int | None = None, wall: Callable[[], float] | None = None, adopts: bool = True) -> Broker:
        """Start one more worker, which meets the others; its number is *shard*, or else the lowest that is free.

        *adopts*: it has what is stored when this returns; otherwise it begins to adopt when it does not stand still any
        more.
        """
        if shard is None:
            taken = {broker.shard for broker in self.workers}
            shard = next(number for number in range(len(taken) + 1) if number not in taken)
        self._incarnations += 1
        identity = WorkerId(self._name, shard, self._incarnations)
        trace = "" if self._traces is None else str(self._traces / str(shard))
        broker = Broker(
            self._config,
            clock=self.clock,
            redis=self._redis,
            identity=identity,
            wall=wall or self._wall,
            trace=trace,
            workers=self._workers if self.durable else 1,
        )
        broker.answered = True
        if self._prepare is not None:
            self._prepare(broker)
        for other in self.workers:
            data, control = socket.socketpair(), socket.socketpair()
            for one in (*data, *control):
                one.setblocking(False)
            broker.mesh.join(other.identity, data[0], control[0])
            other.mesh.join(identity, data[1], control[1])
        self._all.append(broker)
        self.workers.append(broker)
        for each in self._all:
            each.node = self.workers
        broker.settle()
        registry_client = broker.registry_client
        while registry_client is not None and registry_client.commands.state != READY:
            broker.settle()
        broker.stopped = not adopts
        durable = broker.worker.protocol.durable
        if durable is not None:
            ready: list[bool] = []
            durable.when_ready(lambda: ready.append(True), self.clock.now)
            while not ready and not any(each.stopped for each in self.workers):  # each of them has to confirm
                broker.settle()
        return broker

    def kill(self, broker: Broker) -> None:
        """*broker* is gone, with all that is its."""
        self.workers.remove(broker)
        broker.close()
        if self.workers:
            self.workers[0].settle()

    def publish_wills_of(self, broker: Broker, publisher: Broker) -> None:
        """Have *publisher* publish the wills of the clients of *broker*, which was killed: those that are due now."""
        wills = publisher.orphaned_wills
        wills.publish_wills_of(broker.identity.incarnation, self.clock.now)
        publisher.settle()
        while wills._unread or wills._unanswered or (wills._due and wills._due[0][0] <= self.clock.now):
            publisher.settle()

    def look_around(self) -> None:
        """Each worker tells who is quick in its shared subscriptions, as it does ten times a second of passing time."""
        for broker in self.workers:
            broker.mesh._housekeeping_at = 0.0
        self.settle()

    def __getitem__(self, number):  # type: ignore[no-untyped-def]  # as Sequence's
        return self.workers[number]

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Broker]:
        return iter(self.workers)

    def settle(self) -> None:
        self.workers[0].settle()

    def advance(self, seconds: float) -> None:
        self.workers[0].advance(seconds)

    def close(self) -> None:
        for broker in self.workers:
            broker.close()


__all__ = ["Client", "Node"]
