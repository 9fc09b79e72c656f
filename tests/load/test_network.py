# The sockets and the pace of a load, against a broker in this process.
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.packets import V5, Connect
from broker.mqtt.properties import AUTHENTICATION_METHOD
from cli.load.channel import Channel, Hangup
from cli.load.client import UP, Client, Refused
from cli.load.histogram import Histogram
from cli.load.network import Network, now_us
from cli.load.pacing import STALLED, ClosedPace, OpenPace, Pace, Windows
from cli.load.publisher import Publisher
from cli.load.subscriber import Subscriber
from tests.inprocess import Broker
from tests.load.talk import RUN

BEGAN = 1_000_000  # us
MANY = 1000  # messages; more than any test sends


class Load:
    """*pairs* publishers and subscribers at an in-process broker; the broker works when `settle()` says so."""

    def __init__(self, broker: Broker, pairs: int, window: int, qos: int, **connect: Any) -> None:
        self.broker = broker
        self.theirs: list[socket.socket] = []
        self.network = Network(self._dial, timeout=5)
        self.windows = Windows(pairs)
        self.latencies = Histogram()
        self.subscribers = [self._subscriber(number, qos, connect) for number in range(pairs)]
        self.publishers = [self._publisher(number, qos, window, connect) for number in range(pairs)]
        self.clients: list[Client] = [*self.subscribers, *self.publishers]

    def _dial(self) -> Channel:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        self.theirs.append(theirs)
        self.broker.loop.adopt(theirs, "test:0", self.broker.clock.now)
        return Channel(ours)

    def _publisher(self, number: int, qos: int, window: int, connect: dict[str, Any]) -> Publisher:
        made = Publisher(
            Connect(V5, f"p{number}", **connect), number, b"b/%d" % number, qos, b"x" * 24, RUN, window, 1, 1
        )
        made.turn = number
        made.quota = MANY
        self.windows.add(made)
        return made

    def _subscriber(self, number: int, qos: int, connect: dict[str, Any]) -> Subscriber:
        return Subscriber(
            Connect(V5, f"s{number}", **connect), b"b/%d" % number, qos, RUN, self.latencies, self.windows
        )

    def connect(self) -> None:
        for client in self.clients:
            self.network.start(client, now_us())
        self.settle()

    def settle(self, pace: Pace | None = None, now: int = BEGAN) -> None:
        """Let both sides do all there is to do, as if it took no time."""
        while True:
            self.broker.settle()
            before = self.network.bytes_sent
            moved = self.network.turn(0.0)
            woken, self.network.woken = self.network.woken, []
            if pace is not None:
                for client in woken:
                    pace.wake(client)
                pace.pump(now)
            self.network.flush()
            if not moved and before == self.network.bytes_sent:
                return


@pytest.fixture
def load(brokers: Callable[..., Broker]) -> Iterator[Callable[..., Load]]:
    made: list[Load] = []

    def make(pairs: int = 2, window: int = 0, qos: int = 1, config: Config | None = None, **connect: Any) -> Load:
        made.append(Load(brokers(config), pairs, window, qos, **connect))
        return made[-1]

    yield make
    for one in made:
        one.network.close()


def test_all_clients_come_up_and_how_long_that_took_is_known(load: Callable[..., Load]) -> None:
    """A load would begin with some of its clients missing."""
    one = load(3)
    one.connect()

    assert [UP] * 6 == [client.state for client in one.clients]
    outcome = one.network.outcome
    assert (6, 6, 6, 0) == (one.network.up, outcome.connected, len(outcome.connect_times), one.network.connecting())


def test_what_subscribers_were_sent_is_read_before_what_publishers_are_told_of_it(load: Callable[..., Load]) -> None:
    """A latency would have in it the time that we take for acknowledgements."""
    one = load(2)
    one.connect()
    seen: list[list[int]] = []

    class Seeing:
        def delivered(self, publisher: int, count: int, now: int) -> None:
            seen.append([publisher.unacknowledged for publisher in one.publishers])

        def duplicated(self) -> None:
            pass

    for subscriber in one.subscribers:
        subscriber._deliveries = Seeing()
    pace = OpenPace(one.network, one.publishers, 2000)
    pace.start(BEGAN)
    pace.pump(BEGAN + 10_000)
    one.broker.settle()

    one.network.turn(0.0)

    sent = [publisher.sent for publisher in one.publishers]
    assert min(sent) > 0
    assert seen and [sent] * len(seen) == seen
    assert [0, 0] == [publisher.unacknowledged for publisher in one.publishers]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_closed_loop_publishes_its_quota_and_no_more_than_its_window(load: Callable[..., Load], qos: int) -> None:
    """The broker would not set the pace, or messages be published that nobody asked for."""
    one = load(2, window=5, qos=qos)
    one.connect()
    pace = ClosedPace(one.network, one.publishers)
    one.windows.pace = pace
    for publisher in one.publishers:
        publisher.quota = 23
    pace.start(BEGAN)
    pace.pump(BEGAN)
    assert [5, 5] == [publisher.outstanding for publisher in one.publishers]

    one.settle(pace)

    assert (46, 46, 46, 46) == (pace.sent, pace.expected, one.windows.received, one.latencies.count)
    assert [0, 0] == [publisher.outstanding for publisher in one.publishers]


def test_a_window_that_stands_still_is_written_off(load: Callable[..., Load]) -> None:
    """A broker that drops messages would bring a load to a silent end."""
    one = load(1, window=5, qos=0)
    one.network.start(one.publishers[0], now_us())  # and nobody subscribes
    one.settle()
    pace = ClosedPace(one.network, one.publishers)
    pace.start(BEGAN)
    one.settle(pace)
    pace.maintain(BEGAN + STALLED)
    one.settle(pace, BEGAN + STALLED)
    assert (5, 0) == (pace.sent, pace.stalls)

    pace.maintain(BEGAN + 2 * STALLED)
    one.settle(pace, BEGAN + 2 * STALLED)

    assert (10, 1) == (pace.sent, pace.stalls)


def test_an_open_loop_sends_each_message_at_its_time(load: Callable[..., Load]) -> None:
    """The rate would be another than was asked for, or come in bursts."""
    one = load(2)
    one.connect()
    pace = OpenPace(one.network, one.publishers, rate=1000)
    pace.start(BEGAN)
    sent = []
    for now in (BEGAN - 1, BEGAN, BEGAN + 999, BEGAN + 1000, BEGAN + 3500):
        pace.pump(now)
        sent.append(pace.sent)

    assert [0, 1, 1, 2, 4] == sent
    assert BEGAN + 4000 == pace.next_due()
    assert [2, 2] == [publisher.sent for publisher in one.publishers]
    assert (1500, 4) == (pace.lateness.greatest, pace.lateness.count)  # the third was to leave at 2000


def test_latency_counts_from_when_a_message_was_to_be_sent(load: Callable[..., Load]) -> None:
    """A broker that stalls would hide it by stalling the measurement (coordinated omission)."""
    one = load(1)
    one.connect()
    pace = OpenPace(one.network, one.publishers, rate=1000)
    began = now_us() - 10_000_000
    one.publishers[0].quota = 1
    pace.start(began)

    one.settle(pace, began + 9_000_000)  # we were asleep: it should have left at once

    assert 10_000_000 <= one.latencies.greatest < 40_000_000
    assert (9_000_000, 1, 0, -1) == (pace.lateness.greatest, pace.sent, pace.overdue(), pace.next_due())


def test_what_the_broker_holds_back_is_not_our_lateness(load: Callable[..., Load]) -> None:
    """The load generator would be blamed for a broker that does not keep up, or the other way round."""
    one = load(1, config=Config(limits=Limits(receive_maximum=2)))
    one.connect()
    pace = OpenPace(one.network, one.publishers, rate=1000)
    pace.start(BEGAN)

    pace.pump(BEGAN + 4000)  # five are due, and two may be under way
    assert (2, 3, 0) == (pace.sent, pace.overdue(), pace.delayed)
    one.settle(pace, BEGAN + 4000)

    assert (5, 0, 3) == (pace.sent, pace.overdue(), pace.delayed)
    assert 2 == pace.lateness.count


def test_a_stopped_pace_sends_nothing_more(load: Callable[..., Load]) -> None:
    """A load would go on while its end is awaited."""
    one = load(1, config=Config(limits=Limits(receive_maximum=2)))
    one.connect()
    pace = OpenPace(one.network, one.publishers, rate=1000)
    pace.start(BEGAN)
    pace.pump(BEGAN + 4000)  # five are due, and two may be under way
    pace.stop()
    one.settle(pace, BEGAN + 1_000_000)

    assert (2, 3, -1) == (pace.sent, pace.overdue(), pace.next_due())


def test_a_refusal_while_connecting_is_the_failure_of_the_load(load: Callable[..., Load]) -> None:
    """A load would wait for clients that the broker does not let in."""
    one = load(1, properties={AUTHENTICATION_METHOD: "none that there is"})
    one.connect()

    assert isinstance(one.network.failure, Refused)
    assert ("CONNACK", 0x8C) == (one.network.failure.kind, one.network.failure.code)


def test_a_lost_connection_is_made_again_and_counted(load: Callable[..., Load]) -> None:
    """A broker that restarts would end the load, or the gap not be told."""
    one = load(1, window=5)
    one.connect()
    one.network.forgiving = True
    for theirs in one.theirs:
        theirs.shutdown(socket.SHUT_RDWR)
    one.settle()
    outcome = one.network.outcome
    assert (0, 2) == (one.network.up, outcome.lost)
    assert isinstance(outcome.why, Hangup)

    one.network.maintain(now_us() + 60_000_000)
    one.settle()

    assert (2, 2, 0) == (one.network.up, outcome.reconnects, outcome.failures)
    pace = ClosedPace(one.network, one.publishers)
    one.windows.pace = pace
    one.publishers[0].quota = 7
    pace.start(BEGAN)
    one.settle(pace)
    assert 7 == one.windows.received


def test_a_broker_that_does_not_answer_is_given_up(brokers: Callable[..., Broker]) -> None:
    """A port on which something else listens would be waited for without end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    network = Network(lambda: Channel(ours), timeout=5)
    began = now_us()
    network.start(Publisher(Connect(V5, "p"), 0, b"b", 1, b"", RUN, 1, 1, 1), began)
    network.turn(0.0)
    network.maintain(began + 4_000_000)
    assert network.failure is None

    network.maintain(began + 6_000_000)

    assert isinstance(network.failure, TimeoutError)
    network.close()
    theirs.close()
