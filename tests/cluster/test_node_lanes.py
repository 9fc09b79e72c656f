# Lanes between workers of different nodes over a real Redis, on reactors: what becomes of them when connections, Redis
# or the other end go away.
import select
import time
from collections.abc import Callable, Iterator
from random import Random

import pytest

from broker.cluster.lane_message import FORMAT, PAIRED, LaneMessage, Part
from broker.cluster.lane_pair import SETTLING, WINDOW
from broker.cluster.node_lanes import MOST_WAITING, NodeLanes
from broker.cluster.seal import LANE, Seal
from broker.metrics.counters import Counters
from broker.net.dialling import Dialler
from broker.net.stream import CLOSED, Stream
from broker.overload.quantum import PUBLISH_COST
from broker.reasons import CloseReason
from broker.store.redis.keys import Keys
from broker.worker_id import WorkerId
from tests.inprocess import Broker
from tests.redis_servers import PATIENCE, RunningRedis
from tests.store.loop import Lines

pytestmark = pytest.mark.system  # real servers

Brokers = Callable[..., Broker]
KEY = b"a key of at least sixteen bytes "


class Reader:
    """Keeps what a lane brings."""

    def __init__(self) -> None:
        self.read = b""
        self.ends: list[str] = []

    def serve(self, stream: Stream, quantum: int, now: float) -> int:
        self.read += stream.input[stream.position :]
        stream.forget_input()
        return PUBLISH_COST

    def drained(self, stream: Stream, now: float) -> None:
        pass

    def lost(self, stream: Stream, reason: CloseReason, now: float) -> None:
        self.ends.append(reason.label)


class LaneWorker:
    """A worker of node *node*, with lanes to one other worker."""

    def __init__(self, broker: Broker, server: RunningRedis, node: str, key: bytes = b"") -> None:
        self.broker = broker
        self.worker = WorkerId(node, 0, 1000 + ord(node))
        self.counters = Counters()
        self.log = Lines()
        self.failures: list[Exception] = []
        self.restarts: list[WorkerId] = []
        self.opened: list[tuple[Stream, Stream]] = []
        self.readers: list[tuple[Reader, Reader]] = []
        self.seal = Seal(key, self.counters, self.log)
        self.lanes = NodeLanes(
            broker.reactor,
            Dialler(broker.reactor, self.failures.append),
            Dialler(broker.reactor, self.failures.append),
            server.address,
            "weir",
            self.worker,
            self.counters,
            self.log,
            self.seal,
            lambda: 1_700_000_000.0,
            self._restarted,
        )
        self.lanes.start(broker.clock.now)

    def open(self, worker: WorkerId) -> None:
        data, control = self.lanes.open(worker, self.broker.clock.now)
        readers = Reader(), Reader()
        self.opened.append((data, control))
        self.readers.append(readers)
        self.broker.reactor.attach(data, readers[0])
        self.broker.reactor.attach(control, readers[1])

    def _restarted(self, worker: WorkerId) -> None:
        self.restarts.append(worker)
        self.open(worker)

    def write(self, data: bytes) -> None:
        self.opened[-1][0].outbox.write(data)

    def tell(self, data: bytes) -> None:
        self.opened[-1][1].outbox.write(data)

    @property
    def data(self) -> bytes:
        return self.readers[-1][0].read

    @property
    def control(self) -> bytes:
        return self.readers[-1][1].read

    def turn(self) -> float:
        clock = self.broker.clock
        clock.looks = 0
        clock.now = time.monotonic()
        wait = self.lanes.tick(clock.now) - clock.now
        return min(wait, self.broker.loop.turn())


class Two:
    def __init__(self, one: LaneWorker, two: LaneWorker) -> None:
        self.one = one
        self.two = two
        self.all = (one, two)

    def join(self) -> None:
        self.one.open(self.two.worker)
        self.two.open(self.one.worker)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, [worker.log.events for worker in self.all]
            self.turn()
        assert [] == self.one.failures == self.two.failures

    def turn(self) -> None:
        wait = min(worker.turn() for worker in self.all)
        if wait > 0.0:
            select.select([worker.broker.loop for worker in self.all], [], [], min(wait, 0.05))

    def settled(self) -> bool:
        return all(worker.lanes.statistics().unconfirmed == 0 for worker in self.all)


@pytest.fixture
def server(start_redis: Callable[..., RunningRedis]) -> RunningRedis:
    return start_redis()


@pytest.fixture
def two(brokers: Brokers, server: RunningRedis) -> Iterator[Two]:
    made = Two(LaneWorker(brokers(), server, "a", KEY), LaneWorker(brokers(), server, "b", KEY))
    yield made
    for worker in made.all:
        worker.lanes.stop(time.monotonic())


def test_lanes_carry_bytes_both_ways(two: Two) -> None:
    """Workers of different nodes could tell each other nothing."""
    two.join()
    two.one.write(b"data")
    two.one.tell(b"control")
    two.two.write(b"atad")
    two.until(lambda: two.two.data == b"data" and two.two.control == b"control" and two.one.data == b"atad")
    two.until(two.settled)

    assert 0 == two.one.counters.lane_bytes_resent == two.two.counters.lane_gaps
    statistics = two.one.lanes.statistics()
    assert (1, 0, 0, 0, 0) == (
        statistics.workers,
        statistics.unpaired,
        statistics.unconfirmed,
        statistics.unsent,
        statistics.unserved,
    )


def test_a_tick_leaves_in_one_message(two: Two) -> None:
    """Each publish would cost a PUBLISH of its own, at many times the price."""
    two.join()
    two.until(lambda: two.one.lanes.statistics().unpaired == 0)
    two.until(two.settled)
    before = two.one.counters.lane_messages_sent
    for _ in range(100):
        two.one.write(b"d" * 100)
        two.one.tell(b"c")
    two.until(lambda: len(two.two.data) == 10_000 and len(two.two.control) == 100)

    assert before + 1 == two.one.counters.lane_messages_sent


def test_what_leaves_takes_held_messages_along(two: Two) -> None:
    """A frame on the control lane would be a message for Redis, and what is held another one a moment later."""
    two.join()
    two.one.write(b"first ")
    two.until(lambda: two.two.data == b"first " and two.settled())
    outbox = two.one.opened[0][0].outbox
    outbox.joined = True
    two.one.broker.reactor.flushing._lane_hold = PATIENCE  # as when the worker is busy, but for longer
    two.one.write(b"held")
    two.one.turn()
    assert outbox.held
    sent = two.one.counters.lane_messages_sent
    two.one.tell(b"told")
    two.one.turn()

    assert sent + 1 == two.one.counters.lane_messages_sent
    two.until(lambda: (two.two.data, two.two.control) == (b"first held", b"told"))


def test_a_worker_knows_that_messages_cross(two: Two) -> None:
    """What a busy worker delivers for another node would wait as long as if it had not waited before."""
    two.join()
    two.until(lambda: two.one.lanes.statistics().unpaired == 0)
    flushing = two.two.broker.reactor.flushing
    flushing._since = time.monotonic() + PATIENCE  # the window does not end
    two.one.tell(b"told")
    two.until(lambda: two.two.control == b"told")
    assert not flushing._crossing
    two.one.write(b"data")
    two.until(lambda: two.two.data == b"data")

    assert flushing._crossing


def test_the_end_that_comes_later_is_told_everything(two: Two) -> None:
    """Workers learn of each other at different times: the first bytes would be lost."""
    two.one.open(two.two.worker)
    two.one.write(b"early")
    two.until(lambda: two.two.counters.lane_messages_ignored > 0)
    two.two.open(two.one.worker)
    two.until(lambda: two.two.data == b"early")

    assert [] == two.one.restarts


def test_nothing_is_lost_when_connections_are_cut(two: Two, server: RunningRedis) -> None:
    """Each lost connection would lose messages that were acknowledged, or repeat some, or mix them up."""
    random = Random(1)
    two.join()
    written = {worker: [b"", b""] for worker in two.all}
    with server.client() as client:
        for step in range(400):
            for worker in two.all:
                chunk = random.randbytes(random.choice((10, 500, 40_000)))
                lane = random.randrange(2)
                written[worker][lane] += chunk
                (worker.write, worker.tell)[lane](chunk)
            if step % 40 == 20:
                client.execute_command("CLIENT", "KILL", "TYPE", random.choice(("pubsub", "normal")))
            two.turn()
        one, other = written[two.one], written[two.two]
        two.until(lambda: [len(two.two.data), len(two.two.control)] == [len(part) for part in one])
        two.until(lambda: [len(two.one.data), len(two.one.control)] == [len(part) for part in other])
        two.until(two.settled)

    assert one == [two.two.data, two.two.control]
    assert other == [two.one.data, two.one.control]
    assert 0 < two.one.counters.lane_bytes_resent + two.two.counters.lane_bytes_resent
    assert [] == two.one.restarts == two.two.restarts


def test_a_worker_that_has_died_is_known_to_be_unreached(two: Two) -> None:
    """Only the end of its lease would say so."""
    two.join()
    two.one.write(b"x")
    two.until(lambda: two.two.data == b"x" and two.settled())
    now = time.monotonic()
    assert 0.0 == two.one.lanes.unreached(two.two.worker, now + SETTLING + 9)
    two.two.lanes.stop(now)
    two.one.write(b"y")
    two.until(lambda: two.one.lanes.unreached(two.two.worker, time.monotonic() + SETTLING + 1) > 0)

    assert 0.0 == two.one.lanes.unreached(two.two.worker, now)


def test_lanes_wait_while_redis_is_away(two: Two, server: RunningRedis) -> None:
    """A restart of Redis would lose messages, or end every peer."""
    two.join()
    two.until(lambda: two.one.lanes.statistics().unpaired == 0)
    server.kill()
    chunk = bytes(100_000)
    for _ in range(30):
        two.one.write(chunk)
        two.turn()
    statistics = two.one.lanes.statistics()
    assert statistics.unconfirmed <= WINDOW + 256 * 1024
    assert 30 * len(chunk) == statistics.unconfirmed + statistics.unsent
    server.start()
    two.until(lambda: len(two.two.data) == 30 * len(chunk))

    assert [] == two.one.restarts


def test_a_stopped_server_is_not_flooded(two: Two, server: RunningRedis) -> None:
    """A server that stands still would find the same bytes many times when it goes on."""
    two.join()
    two.until(lambda: two.one.lanes.statistics().unpaired == 0)
    two.until(two.settled)
    server.pause()
    for _ in range(20):
        two.one.write(bytes(100_000))
        two.turn()
    end = time.monotonic() + 1.0
    two.until(lambda: time.monotonic() > end)
    assert 0 == two.one.counters.lane_bytes_resent
    server.go_on()
    two.until(lambda: len(two.two.data) == 20 * 100_000)


def test_an_end_that_begins_anew_makes_the_other_do_so(two: Two) -> None:
    """A worker that has dropped its peer would get the middle of what the former lanes carried."""
    two.join()
    two.one.write(b"former")
    two.until(lambda: two.two.data == b"former")
    two.one.open(two.two.worker)
    two.one.write(b"new")
    two.until(lambda: len(two.two.readers) == 2 and two.two.data == b"new")
    two.two.write(b"back")
    two.until(lambda: two.one.data == b"back")

    assert ([], [two.one.worker]) == (two.one.restarts, two.two.restarts)
    assert (0, 1) == (two.one.counters.lane_restarts, two.two.counters.lane_restarts)
    assert ["peer_closed"] == two.two.readers[0][0].ends == two.two.readers[0][1].ends
    (line,) = two.two.log.named("lanes_restarted")
    assert "a/0" == line["worker"]


def test_closed_lanes_end_behind_what_was_received(two: Two) -> None:
    """Messages that the other worker has acknowledged to its clients would be lost with the end of the lanes."""
    two.join()
    data, _ = two.two.opened[0]
    two.until(lambda: two.two.lanes.statistics().unpaired == 0)
    two.two.broker.reactor.pause(data, 1)
    two.one.write(b"acknowledged")
    two.until(lambda: two.two.lanes.statistics().unserved > 0)
    two.two.lanes.close(two.one.worker)
    reader = two.two.readers[0][0]
    assert (b"", []) == (reader.read, reader.ends)
    two.two.broker.reactor.resume(data, 1)
    two.until(lambda: bool(reader.ends))

    assert b"acknowledged" == reader.read
    two.two.broker.reactor.destroy(data)
    assert CLOSED == data.state


def test_a_lane_that_nobody_empties_fails(two: Two, server: RunningRedis) -> None:
    """Control frames have no gate: a peer that is away would fill the memory of this worker."""
    two.join()
    two.until(lambda: two.one.lanes.statistics().unpaired == 0)
    server.kill()
    for _ in range(0, MOST_WAITING + 2 * WINDOW, WINDOW):
        two.one.tell(bytes(WINDOW))
    two.until(lambda: len(two.one.restarts) == 1)
    assert 0 == two.one.lanes.statistics().unsent
    server.start()
    two.one.tell(b"anew")
    two.until(lambda: two.two.control == b"anew")


def test_what_nobody_of_the_cluster_has_sealed_is_ignored(two: Two, server: RunningRedis) -> None:
    """Anybody who may publish in Redis could publish as any client of another node."""
    two.join()
    two.until(lambda: two.two.lanes.statistics().unpaired == 0)
    channel = Keys("weir").lane(0, two.two.worker.incarnation_text)
    epoch, known = two.one.lanes._ends[two.two.worker.incarnation].pair.epoch, two.two.lanes._epoch
    forged = LaneMessage(two.one.worker.incarnation, PAIRED, epoch, known, 0, 0, [Part(0, 0, b"forged")]).encode()
    ignored = two.two.counters.lane_messages_ignored
    with server.client() as client:
        client.publish(channel, forged)
        client.publish(channel, two.one.seal.seal(LANE, b"another channel", forged))
        client.publish(channel, two.one.seal.seal(LANE, channel, bytes((FORMAT + 1,)) + forged[1:]))
    two.until(lambda: two.two.counters.lane_messages_ignored > ignored)
    two.one.write(b"genuine")
    two.until(lambda: two.two.data == b"genuine")

    assert 2 == two.two.counters.redis_forged
    assert ignored + 1 == two.two.counters.lane_messages_ignored


def test_many_bytes_arrive_at_a_slow_reader(two: Two) -> None:
    """What a reader does not take would be lost, or block the lane for ever."""
    two.join()
    two.until(lambda: two.two.lanes.statistics().unpaired == 0)
    data, _ = two.two.opened[0]
    size = 4 * WINDOW
    sent = Random(2).randbytes(size)
    two.two.broker.reactor.pause(data, 1)
    two.one.write(sent)
    two.until(lambda: two.two.lanes.statistics().unserved == size)
    two.two.broker.reactor.resume(data, 1)
    two.until(lambda: len(two.two.data) == size)

    assert sent == two.two.data
    assert 0 == two.one.counters.lane_bytes_resent
