# What a message costs that goes to a worker of another node: python -m tests.tools.bench.lane_cost
#
# Two processes with a reactor each, and lanes between them: over Redis, sealed or not, and for comparison over a socket
# pair as between the workers of one node. One writes a batch of messages of 100 bytes on the data lane, a chunk each;
# the other reads it and answers with 13 bytes on the control lane, as DONE has; then comes the next batch. Nothing is
# parsed or delivered. Printed are messages a second, microseconds of CPU a message of both workers and of Redis, and
# the median time of a batch there and back.
import argparse
import os
import select
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import Final

from broker.cluster.node_lanes import NodeLanes
from broker.cluster.seal import Seal
from broker.config.schema import Config
from broker.delivery.outbox import unbounded
from broker.metrics.counters import Counters
from broker.net.dialling import Dialler
from broker.net.stream import Stream
from broker.reasons import CloseReason
from broker.store.redis.address import RedisAddress
from broker.version import form
from broker.worker import Worker
from broker.worker_id import WorkerId
from tests.inprocess import AtOnce
from tests.redis_servers import SERVERS, RunningRedis
from tests.store.loop import Lines
from tests.tools.bench.log_cost import cpu

MESSAGE: Final = bytes(100)
DONE: Final = bytes(13)
BATCHES: Final = (1, 20, 100)
WARM_UP: Final = 0.5  # seconds
KEY: Final = b"a key of at least sixteen bytes "
WORKERS: Final = (WorkerId("one", 0, 1), WorkerId("two", 0, 2))


class End:
    """One process: a worker without clients, and the lanes, if there are any."""

    def __init__(self) -> None:
        worker = Worker(Config(), 100, time.monotonic, AtOnce())
        self.reactor = worker.reactor
        self.loop = worker.loop
        self.lanes: NodeLanes | None = None

    def run(self, until: float) -> None:
        while time.monotonic() < until:
            wait = self.loop.turn()
            if self.lanes is not None:
                now = time.monotonic()
                wait = min(wait, self.lanes.tick(now) - now)
            if wait > 0.0:
                select.select([self.loop], [], [], min(wait, 0.1))

    def join(
        self, me: int, address: RedisAddress | None, pair: list[socket.socket], key: bytes
    ) -> tuple[Stream, Stream]:
        """The streams of both lanes, over Redis at *address* or over the sockets *pair*."""
        reactor = self.reactor
        if address is None:
            data, control = (Stream(sock, "peer", unbounded(sock.fileno(), reactor.dirty)) for sock in pair)
            return data, control
        now, log, counters = time.monotonic(), Lines(), Counters()
        dial = [Dialler(reactor, failed) for _ in range(2)]
        worker, other = WORKERS[me], WORKERS[1 - me]
        seal = Seal(key, counters, log)
        self.lanes = NodeLanes(
            reactor, dial[0], dial[1], address, "bench", worker, counters, log, seal, time.time, lambda worker: None
        )
        self.lanes.start(now)
        return self.lanes.open(other, now)


def failed(error: Exception) -> None:
    raise error


class Sender:
    """Writes batches; serves the control lane, which says that one was read."""

    def __init__(self, data: Stream, batch: int, under_way: int) -> None:
        self.data = data
        self.batch = batch
        self.under_way = under_way
        self.done = 0
        self.taken: list[float] = []
        self._began: list[float] = []

    def write(self) -> None:
        self._began.append(time.monotonic())
        for _ in range(self.batch):
            self.data.outbox.write(MESSAGE)

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        count = stream.left // len(DONE)
        stream.position += count * len(DONE)
        stream.left -= count * len(DONE)
        for _ in range(count):
            self.done += 1
            self.taken.append(time.monotonic() - self._began.pop(0))
            self.write()
        return count

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        raise SystemExit(reason.label)


class Receiver:
    def __init__(self, control: Stream, batch: int) -> None:
        self._control = control
        self._size = batch * len(MESSAGE)
        self._read = 0

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        units = stream.left // len(MESSAGE)
        self._read += stream.left
        stream.forget_input()
        while self._read >= self._size:
            self._read -= self._size
            self._control.outbox.write(DONE)
        return units

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        raise SystemExit(0)


def measure(name: str, redis: RunningRedis | None, batch: int, under_way: int, seconds: float, key: bytes) -> None:
    address = None if redis is None else redis.address
    pairs = [socket.socketpair() for _ in range(2)]
    for sock in (sock for pair in pairs for sock in pair):
        sock.setblocking(False)
    child = os.fork()
    me = 0 if child else 1
    end = End()
    data, control = end.join(me, address, [pair[me] for pair in pairs], key)
    if not child:
        receiver = Receiver(control, batch)
        end.reactor.attach(data, receiver)
        end.reactor.attach(control, receiver)
        end.run(time.monotonic() + 3600)
    try:
        sender = Sender(data, batch, under_way)
        end.reactor.attach(data, sender)
        end.reactor.attach(control, sender)
        for _ in range(under_way):
            sender.write()
        end.run(time.monotonic() + WARM_UP)
        processes = [os.getpid(), child, *([] if redis is None else [redis.process.pid])]
        before, done, began = [cpu(pid) for pid in processes], sender.done, time.monotonic()
        sender.taken.clear()
        end.run(began + seconds)
        took, messages = time.monotonic() - began, (sender.done - done) * batch
        costs = [1e6 * (cpu(pid) - first) / messages for pid, first in zip(processes, before, strict=True)]
        median = 1e3 * sorted(sender.taken)[len(sender.taken) // 2]
        words = ", ".join(f"{cost:6.2f}" for cost in costs)
        print(
            f"{name:12} {batch:4} in a batch, {under_way} under way: {messages / took:9,.0f} a second, "
            f"sender, receiver, Redis: {words}; {median:.2f} ms",
            flush=True,
        )
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a message costs that goes to a worker of another node.")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print(f"microseconds of CPU a message, {form()}")
    with tempfile.TemporaryDirectory() as folder:
        redis = RunningRedis(SERVERS[-1], Path(folder))
        try:
            for under_way in (1, 4):
                for batch in BATCHES:
                    measure("socket pair", None, batch, under_way, options.seconds, b"")
                    measure("Redis", redis, batch, under_way, options.seconds, b"")
                    measure("Redis, seal", redis, batch, under_way, options.seconds, KEY)
        finally:
            redis.end()


if __name__ == "__main__":
    main()
