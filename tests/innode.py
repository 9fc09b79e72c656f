# Several whole workers in the test process, with the mesh between them and one clock.
#
# They may be of several nodes, which are joined by `LanesBetweenNodes`. Each worker has a number: with one node that is
# its shard; with N nodes the workers 0 to N - 1 have the shard 0, each in another node, the next N the shard 1, and so
# on.
#
# `settle()` of one worker lets all of them settle, except those that are stopped. A worker that is killed ends as a
# process does: all of its sockets are closed, without any packet or frame.
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from broker.cluster.peer import Peer
from broker.config.schema import MEMORY, PROCESS, Config
from broker.delivery.outbox import unbounded
from broker.net.stream import Stream
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


class LaterClock(Clock):
    """Another clock that passes with *clock*, *later* seconds ahead of it: that of another machine."""

    def __init__(self, clock: Clock, later: float) -> None:
        self._clock = clock
        self._later = later
        self.step = 0.0
        self.looks = 0

    @property
    def now(self) -> float:
        return self._clock.now + self._later

    @now.setter
    def now(self, now: float) -> None:
        self._clock.now = now - self._later


class Wall:
    """Unix time, which passes with *clock*, and a little with each look: of two writes the later one counts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._time = time.time() - clock.now

    def __call__(self) -> float:
        self._time += 1e-5  # stamps are in microseconds, and floats of this size 2.4e-7 apart
        return self._time + self._clock.now


class LanesBetweenNodes:
    """Lanes of workers of several nodes, as messages of Redis are: an end hears nothing of the end of the other one."""

    def __init__(self) -> None:
        self.brokers: dict[WorkerId, Broker] = {}
        self._prepared: dict[tuple[WorkerId, WorkerId], list[socket.socket]] = {}  # ends that were not begun yet
        self._begun: dict[tuple[WorkerId, WorkerId], list[socket.socket]] = {}
        self._kept: list[socket.socket] = []  # or the kernel would tell of an end

    def open(self, here: WorkerId, there: WorkerId) -> tuple[Stream, Stream]:
        ends = self._prepared.pop((here, there), None)
        if ends is None:
            pairs = [socket.socketpair() for _ in range(2)]
            for pair in pairs:
                for one in pair:
                    one.setblocking(False)
                    self._kept.append(one.dup())
            ends = [pair[0] for pair in pairs]
            self._forget(there, here)
            self._prepared[there, here] = [pair[1] for pair in pairs]
            if self._end(there, here):
                self.brokers[there].mesh.restarted(here)
        self._begun[here, there] = ends
        dirty = self.brokers[here].reactor.dirty
        data, control = (Stream(one, str(there), unbounded(one.fileno(), dirty)) for one in ends)
        return data, control

    def close(self, here: WorkerId, there: WorkerId) -> None:
        self._end(here, there)
        self._forget(there, here)

    def _end(self, here: WorkerId, there: WorkerId) -> bool:
        """Have the lanes that *here* has begun to *there* end behind what has arrived; false if there are none."""
        begun = self._begun.pop((here, there), [])
        for one in begun:
            if one.fileno() >= 0:
                one.shutdown(socket.SHUT_RD)
        return bool(begun)

    def _forget(self, here: WorkerId, there: WorkerId) -> None:
        for one in self._prepared.pop((here, there), []):
            one.close()

    def close_all(self) -> None:
        for here, there in list(self._prepared):
            self._forget(here, there)
        for one in self._kept:
            one.close()


class LanesOf:
    """The lanes between nodes, as the worker *here* opens them: a `LaneOpener`."""

    def __init__(self, lanes: LanesBetweenNodes, here: WorkerId) -> None:
        self._lanes = lanes
        self._here = here

    def open(self, worker: WorkerId, now: float) -> tuple[Stream, Stream]:
        return self._lanes.open(self._here, worker)

    def close(self, worker: WorkerId) -> None:
        self._lanes.close(self._here, worker)

    def unreached(self, worker: WorkerId, now: float) -> float:
        return 0.0


class Node(Sequence[Broker]):
    def __init__(
        self,
        workers: int,
        config: Config | None = None,
        redis: RedisAddress | None = None,
        names: Sequence[str] = ("weir",),
        traces: Path | None = None,
        durable: bool = False,
        prepare: Callable[[Broker], None] | None = None,
        later: float = 0.0,
    ) -> None:
        """*names*: of one node, or of those that the workers are of, by turns.

        *traces*: the folder in which each worker records what it decides, in a file named by its number.

        *durable*: sessions are stored. The workers must start before there is one. *prepare* is called with each worker
        before it reads what is stored. *later*: the clock of each node is so many seconds ahead of the one before it.
        """
        self.durable = durable
        self._prepare = prepare
        self._workers = workers
        self.names = names
        self._started: set[int] = set()  # numbers of workers that may have durable sessions
        self._lanes = LanesBetweenNodes()
        self._traces = traces
        self.clock = Clock()
        self._later = later
        self._wall = Wall(self.clock)
        self._config = stored(config) if durable else config
        self._redis = redis
        self._all: list[Broker] = []
        self._incarnations = 0
        self.workers: list[Broker] = []
        for _ in range(workers):
            self.start()

    def start(self, number: int | None = None, wall: Callable[[], float] | None = None, adopts: bool = True) -> Broker:
        """Start one more worker, which meets the others; its number is *number*, or else the lowest that is free.

        *adopts*: it has what is stored when this returns; otherwise it begins to adopt when it does not stand still any
        more.
        """
        if number is None:
            taken = {broker.number for broker in self.workers}
            number = next(number for number in range(len(taken) + 1) if number not in taken)
        self._incarnations += 1
        shard, node = divmod(number, len(self.names))
        identity = WorkerId(self.names[node], shard, self._incarnations)
        trace = "" if self._traces is None else str(self._traces / str(number))
        broker = Broker(
            self._config,
            clock=LaterClock(self.clock, node * self._later) if self._later else self.clock,
            redis=self._redis,
            identity=identity,
            wall=wall or self._wall,
            trace=trace,
            workers=len(range(node, self._workers, len(self.names))) if self.durable else 1,
        )
        broker.answered = True
        broker.number = number
        self._lanes.brokers[identity] = broker
        if broker.worker.links.node_lanes is None:  # redis.url is not set: the lanes are no messages of Redis
            broker.mesh.connect_nodes(LanesOf(self._lanes, identity))
        if self._later:
            shifts = {name: (node - number) * self._later for number, name in enumerate(self.names)}
            broker.mesh.set_clocks(shifts)
        if self._prepare is not None:
            self._prepare(broker)
        for other in self.workers:
            if other.identity.node != identity.node:
                broker.mesh.join_distant(other.identity)
                other.mesh.join_distant(identity)
                continue
            data, control = socket.socketpair(), socket.socketpair()
            for one in (*data, *control):
                one.setblocking(False)
            broker.mesh.join(other.identity, data[0], control[0])
            other.mesh.join(identity, data[1], control[1])
        self._all.append(broker)
        self.workers.append(broker)
        self._started.add(number)
        self._expect()
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

    def kill(self, broker: Broker, heard: bool = True) -> None:
        """*broker* is gone, with all that is its. Not *heard*: its node does not say so before `hear_of()`."""
        self.workers.remove(broker)
        broker.close()
        if self.workers:
            self.workers[0].settle()
        if heard:
            self.hear_of(broker)

    def hear_of(self, broker: Broker) -> None:
        """Workers of other nodes hear that *broker* is gone."""
        others = [other for other in self.workers if other.identity.node != broker.identity.node]
        self._expect()
        for other in others:
            other.mesh.leave(broker.identity)
        if others:
            self.workers[0].settle()

    def _expect(self) -> None:
        """Have workers wait for those of other nodes that have ended, as nobody has their sessions."""
        gone = self._started - {broker.number for broker in self.workers}
        for broker in self.workers if self.durable else []:
            names = [self.names[number % len(self.names)] for number in gone]
            broker.mesh.expect_distant(sum([name != broker.identity.node for name in names]))

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

    def peer(self, here: Broker, there: Broker) -> Peer:
        """What the worker *here* knows of the worker *there*."""
        (peer,) = [peer for peer in here.mesh.peers if peer.worker == there.identity]
        return peer

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
        self._lanes.close_all()


__all__ = ["Client", "Node"]
