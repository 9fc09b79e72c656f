# Ends of lanes over a paper Redis: what is published arrives later, in order, or not at all; connections end and come
# back, and a former connection may deliver what it had. Time is a number, and everything follows from a seed.
import heapq
from collections.abc import Callable
from functools import cache
from random import Random

from broker.cluster.lane_message import CONTROL, DATA, decode
from broker.cluster.lane_pair import BEGUN_ANEW, LanePair, SendingLane

DELAY = (0.0002, 0.02)  # seconds from one process to the next
PERIOD = 262_139  # bytes, a prime: of what is written to a lane


class End:
    """One end of the lanes to one other worker. What arrives has to follow what has arrived."""

    def __init__(self, me: "PaperWorker", peer: int) -> None:
        self.me = me
        self.peer = peer
        self.opens = 0
        self.open()

    def open(self) -> None:
        self.opens += 1
        self.me.epoch += 1
        self.pair = LanePair(self.me.incarnation, self.me.epoch)
        self.read = {DATA: 0, CONTROL: 0}

    def lane(self, number: int) -> SendingLane:
        return self.pair.data if number == DATA else self.pair.control

    def write(self, number: int, size: int) -> None:
        lane = self.lane(number)
        if lane.has_room():
            lane.write(content(self.me.incarnation, self.pair.epoch, number, lane.written, size))


@cache
def _pattern(sender: int, epoch: int, lane: int) -> bytes:
    return 3 * Random(f"{sender} {epoch} {lane}").randbytes(PERIOD)


def content(sender: int, epoch: int, lane: int, offset: int, size: int) -> bytes:
    """What *sender* writes there, at most 2 * PERIOD bytes: no two lanes have the same."""
    return _pattern(sender, epoch, lane)[offset % PERIOD :][:size]


class PaperWorker:
    def __init__(self, network: "Network", incarnation: int) -> None:
        self.network = network
        self.incarnation = incarnation
        self.epoch = incarnation * 1000
        self.publishing = True
        self.subscribed = True
        self.connection = 0  # number of the one that publishes
        self.subscription = 0
        self.ends: dict[int, End] = {}

    def both(self) -> bool:
        return self.publishing and self.subscribed

    def join(self, peer: int) -> None:
        self.ends[peer] = End(self, peer)

    def flush(self) -> None:
        if not self.both():
            return
        now = self.network.now
        for end in self.ends.values():
            pair = end.pair
            while (message := pair.next_message(now)) is not None:
                self.network.publish(self, end, pair, message)

    def receive(self, payload: bytes) -> None:
        network = self.network
        message = decode(payload)
        end = self.ends.get(message.sender)
        if end is None:
            return
        if end.pair.take(message, network.now) == BEGUN_ANEW:
            network.restarts += 1
            end.open()
            return
        network.gaps = max(network.gaps, end.pair.gaps)
        for part in end.pair.arrived:
            expected = content(message.sender, message.epoch, part.lane, end.read[part.lane], len(part.data))
            assert expected == part.data, "it is not what follows in the lane"
            end.read[part.lane] += len(part.data)

    def tick(self) -> None:
        if self.both():
            for end in self.ends.values():
                end.pair.tick(self.network.now)
                assert not end.pair.failed

    def cut_publishing(self) -> None:
        self.publishing = False
        self.connection += 1
        for end in self.ends.values():
            end.pair.disconnected()

    def cut_subscription(self) -> None:
        self.subscribed = False
        self.subscription += 1

    def connect(self) -> None:
        if not self.both():
            self.publishing = self.subscribed = True
            for end in self.ends.values():
                end.pair.connected(self.network.now)


class Network:
    def __init__(self, seed: int, workers: int = 2) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.restarts = 0  # because the other end had begun anew
        self.gaps = 0
        self.published = 0
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._latest: dict[object, float] = {}
        self.workers = {number: PaperWorker(self, number) for number in range(1, workers + 1)}
        for worker in self.workers.values():
            for other in self.workers:
                if other != worker.incarnation:
                    worker.join(other)

    def at(self, when: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self.events, (when, self._number, event))

    def _later(self, channel: object) -> float:
        """A time after all that came before it over *channel*."""
        when = max(self.now + self.random.uniform(*DELAY), self._latest.get(channel, 0.0))
        self._latest[channel] = when
        return when

    def publish(self, worker: PaperWorker, end: End, pair: LanePair, message: bytes) -> None:
        self.published += len(message)
        connection = worker.connection
        self.at(
            self._later(("to Redis", worker.incarnation, connection)),
            lambda: self._executed(worker, connection, pair, end.peer, message),
        )

    def _executed(self, worker: PaperWorker, connection: int, pair: LanePair, to: int, message: bytes) -> None:
        """Redis executes a PUBLISH, perhaps of a connection that its worker has lost."""
        if connection != worker.connection and self.random.random() < 0.5:
            return
        other = self.workers[to]
        receivers = 0
        if other.subscribed:
            receivers = 1
            subscription = other.subscription
            self.at(
                self._later(("from Redis", to, subscription)),
                lambda: other.receive(message) if other.subscription == subscription and other.subscribed else None,
            )
        if connection == worker.connection:
            self.at(
                self._later(("reply", worker.incarnation, connection)),
                lambda: (
                    pair.published(receivers, self.now)
                    if connection == worker.connection and worker.publishing
                    else None
                ),
            )

    def run(self, until: float) -> None:
        while self.now < until:
            for worker in self.workers.values():
                worker.tick()
                worker.flush()
            due = min(
                [
                    until,
                    *(
                        end.pair.due()
                        for worker in self.workers.values()
                        if worker.both()
                        for end in worker.ends.values()
                    ),
                ]
            )
            if self.events and self.events[0][0] <= due:
                self.now, _, event = heapq.heappop(self.events)
                event()
            else:
                self.now = max(due, self.now)
                if due == until:
                    break
