# CONNECTs that wait for their turn: what that means for those who wait, and for those who are in.
import socket
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits, Overload
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, Disconnect, PingReq, PingResp, Properties, Publish
from broker.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    REASON_STRING,
    REQUEST_PROBLEM_INFORMATION,
    USER_PROPERTY,
)
from broker.net.rounds import UNAUTHENTICATED_AT_ONCE
from broker.overload.connects import SOONEST, SPREAD
from broker.protocol.connect_attempt import TURN_TIMEOUT
from broker.reasons import CloseReason, PauseReason
from broker.store.sessions import Claimant
from tests.innode import Node
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, greeting, payloads, subscribe
from tests.redis_servers import RunningRedis

Brokers = Callable[..., Broker]

BUSY = 0x89
TIMEOUT = 2.0  # seconds for a CONNECT: less than three that wait take
SLOW = Overload(connects_per_second=1, connect_burst=2, connects_waiting=3)


def slow(brokers: Brokers) -> Broker:
    """A broker whose burst is used up: one more may come in each second, and three may wait."""
    broker = brokers(Config(overload=SLOW, limits=Limits(connect_timeout=TIMEOUT)))
    for number in range(SLOW.connect_burst):
        broker.connect(f"early{number}")
    return broker


def early(broker: Broker) -> Client:
    """One that is in."""
    return broker._clients[0]


def knock(broker: Broker, client_id: str, version: int = V5, properties: Properties | None = None) -> Client:
    """A client that has sent its CONNECT, which the broker has seen."""
    client = broker.open(version)
    client.send(Connect(version, client_id, properties=properties or {}))
    broker.settle()
    return client


def is_in(client: Client) -> bool:
    return any(isinstance(packet, ConnAck) and packet.code == 0 for packet in client.receive())


def waiting(broker: Broker) -> int:
    return broker.gauges().connects_waiting


def test_who_comes_too_soon_waits_for_its_turn(brokers: Brokers) -> None:
    """A fleet that comes back would come in faster than it can be served, or in another order than it came."""
    broker = slow(brokers)
    clients = [knock(broker, f"late{number}") for number in range(3)]
    found = []
    for _ in range(3):
        found.append((waiting(broker), [is_in(client) for client in clients]))
        broker.advance(1.0)

    assert [
        (3, [False, False, False]),
        (2, [True, False, False]),
        (1, [False, True, False]),
    ] == found
    assert is_in(clients[2])
    assert (3, {}) == (broker.counters.connects_delayed, closed(broker))


class FullClaims:
    """Claims at a Redis that does not answer."""

    def has_room(self, now: float) -> bool:
        return False

    def claim(self, claimant: Claimant) -> None:
        raise AssertionError("there is no room for a claim")


def test_the_wait_for_the_turn_has_an_end(brokers: Brokers) -> None:
    """A client whose turn never comes would keep its descriptor for ever, and never try another worker."""
    broker = brokers()
    broker.claim_from(FullClaims())
    client = knock(broker, "me")
    broker.clock.now += TURN_TIMEOUT - 1.0
    broker.settle()
    assert [] == client.receive()
    broker.clock.now += 1.2

    (connack,) = client.receive()
    assert isinstance(connack, ConnAck) and BUSY == connack.code
    assert ({CloseReason.CONNECTS_WAITING: 1}, 0) == (closed(broker), waiting(broker))
    assert 0 == len(broker.interval_metrics.pauses)


def test_waiting_does_not_slow_the_queue_down(brokers: Brokers) -> None:
    """A storm would raise the level, which lets fewer in, which raises it further, until nobody comes in any more."""
    rate = 10
    broker = brokers(Config(overload=Overload(connects_per_second=rate, connect_burst=1)))
    clients = [knock(broker, f"{number}") for number in range(8 * rate)]
    broker.advance(5.0)
    assert broker.overload_monitor.level.value > 5.0  # by those who wait
    broker.overload_monitor.inject("lag", 5.0, broker.clock.now + 0.25)  # for a moment something else is worse
    broker.advance(0.5)
    broker.advance(5.0)

    assert len(clients) == sum(is_in(client) for client in clients)


def test_who_waits_to_come_in_is_held_back_for_a_reason(brokers: Brokers) -> None:
    """Nobody could tell time that clients waited to connect from time in which nothing happened."""
    broker = slow(brokers)
    clients = [knock(broker, f"late{number}") for number in range(3)]  # a second, two and three until their turn
    clients[2].drop()
    broker.advance(3.0)
    broker.gauges()

    counters = broker.counters
    assert 3 == counters.pauses_by_reason[PauseReason.CONNECT.label]
    assert 3000 == pytest.approx(counters.paused_ms_by_reason[PauseReason.CONNECT.label], abs=200)
    assert 0 == len(broker.interval_metrics.pauses)


def test_who_is_in_is_served_while_others_wait(brokers: Brokers) -> None:
    """All clients would stand still while a fleet comes in."""
    broker = slow(brokers)
    friend = early(broker)
    late = knock(broker, "late")
    friend.send(PingReq())

    assert ([PingResp()], []) == (friend.receive(), late.receive())


def test_waiting_does_not_count_against_the_connect_timeout(brokers: Brokers) -> None:
    """Who waits for us would be closed for being late."""
    broker = slow(brokers)
    clients = [knock(broker, f"late{number}") for number in range(3)]
    broker.advance(TIMEOUT + 1.0)

    assert all(is_in(client) for client in clients)


@pytest.mark.parametrize(
    ("how", "reason"), [(socket.SHUT_WR, CloseReason.PEER_CLOSED), (socket.SHUT_RDWR, CloseReason.PEER_RESET)]
)
def test_who_goes_leaves_its_place_at_once(brokers: Brokers, how: int, reason: CloseReason) -> None:
    """Those who gave up would be let in before those who still wait, and take their places in a full queue."""
    broker = slow(brokers)
    gone, next_one = knock(broker, "gone"), knock(broker, "next")
    gone.socket.shutdown(how)
    broker.settle()

    assert 1 == waiting(broker)
    assert {reason: 1} == closed(broker)
    broker.advance(1.0)
    assert is_in(next_one)


def test_who_knocks_and_goes_in_one_breath_takes_no_place(brokers: Brokers) -> None:
    """The end that comes with a CONNECT would be told once, when nobody is held yet, and heard when its turn comes."""
    broker = slow(brokers)
    gone = broker.open(V5)
    gone.send(Connect(V5, "gone"))
    gone.socket.shutdown(socket.SHUT_WR)
    broker.settle()

    assert 0 == waiting(broker)
    assert {CloseReason.PEER_CLOSED: 1} == closed(broker)


def test_what_was_sent_before_the_end_is_done_when_its_turn_comes(brokers: Brokers) -> None:
    """A sensor that connects, publishes and leaves in one breath would have published nothing."""
    broker = slow(brokers)
    friend = early(broker)
    subscribe(friend, "t")
    sensor = broker.open(V311)
    sensor.send(greeting("sensor", V311), Publish(b"t", b"hello"), Disconnect())
    sensor.socket.shutdown(socket.SHUT_WR)
    broker.settle()
    assert (1, []) == (waiting(broker), payloads(friend.receive()))
    broker.advance(1.0)

    assert [b"hello"] == payloads(friend.receive())


def test_a_client_that_is_gone_takes_over_no_session(brokers: Brokers) -> None:
    """A worker that was stopped would close clients that are connected, for CONNECTs that they gave up long ago."""
    broker = brokers()
    client = broker.connect("me")
    gone = broker.open(V5)
    gone.send(Connect(V5, "me"))
    gone.socket.shutdown(socket.SHUT_WR)
    broker.settle()

    assert {CloseReason.PEER_CLOSED: 1} == closed(broker)
    client.send(PingReq())
    assert [PingResp()] == client.receive()
    assert (0, 0) == (broker.counters.connects_delayed, waiting(broker))


def test_a_client_that_publishes_and_goes_at_once_is_served(brokers: Brokers) -> None:
    """A sensor that does not wait for its CONNACK would have published nothing."""
    broker = brokers()
    friend = broker.connect("friend")
    subscribe(friend, "t")
    sensor = broker.open(V311)
    sensor.send(greeting("sensor", V311), *[Publish(b"t", bytes(900), 0)] * 9, Disconnect())
    sensor.socket.shutdown(socket.SHUT_WR)
    broker.settle()

    assert 9 == len(payloads(friend.receive()))
    assert {CloseReason.CLIENT_DISCONNECTED: 1} == closed(broker)


def test_what_comes_behind_a_connect_that_waits_is_done_after_it(brokers: Brokers) -> None:
    """A client that does not wait for its CONNACK would lose what it sent meanwhile."""
    broker = slow(brokers)
    client = knock(broker, "eager")
    client.send(PingReq())
    broker.settle()
    broker.advance(1.0)

    assert [ConnAck, PingResp] == [type(packet) for packet in client.receive()]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_full_queue_turns_away_the_oldest_that_said_no_more(brokers: Brokers, version: int) -> None:
    """Memory would grow with the storm, or the queue be full of those who gave up long ago."""
    broker = slow(brokers)
    first, second, third = (knock(broker, f"late{number}", version) for number in range(3))
    first.send(PingReq())
    broker.settle()
    newcomer = knock(broker, "newcomer")
    (answer,) = second.receive()

    assert isinstance(answer, ConnAck)
    assert (BUSY if version == V5 else 3) == answer.code
    assert second.closed
    assert {CloseReason.CONNECT_DISPLACED: 1} == closed(broker)
    assert not (first.closed or third.closed or newcomer.closed)
    assert 3 == waiting(broker)


def test_a_queue_full_of_those_who_speak_turns_the_newcomer_away(brokers: Brokers) -> None:
    """Who still waits would lose its place to whoever comes."""
    broker = slow(brokers)
    for number in range(3):
        knock(broker, f"late{number}").send(PingReq())
    newcomer = knock(broker, "newcomer")

    assert [BUSY] == [packet.code for packet in newcomer.receive() if isinstance(packet, ConnAck)]
    assert newcomer.closed
    assert {CloseReason.CONNECTS_WAITING: 1} == closed(broker)


def test_who_is_turned_away_is_told_when_to_come_again(brokers: Brokers) -> None:
    """A fleet that was turned away would come back at once, all together."""
    broker = slow(brokers)
    turned_away = [knock(broker, f"{number}") for number in range(20)][:-3]
    told = set()
    for client in turned_away:
        (answer,) = client.receive()
        assert isinstance(answer, ConnAck)
        pairs = answer.properties[USER_PROPERTY]
        assert isinstance(pairs, list) and isinstance(pairs[0], tuple)
        assert (1, "retry-after-ms") == (len(pairs), pairs[0][0])
        told.add(int(pairs[0][1]))

    assert SOONEST * 1e3 <= min(told) <= max(told) <= (SOONEST + SPREAD) * 1e3
    assert len(told) > len(turned_away) / 2


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({}, [REASON_STRING, USER_PROPERTY]),
        ({REQUEST_PROBLEM_INFORMATION: 0}, []),
        ({MAXIMUM_PACKET_SIZE: 60}, [USER_PROPERTY]),
        ({MAXIMUM_PACKET_SIZE: 20}, []),
    ],
)
def test_a_refusal_says_no_more_than_the_client_takes(brokers: Brokers, asked: Properties, told: list[int]) -> None:
    """A small client would choke on the sentence, or one that declined them get it [MQTT-3.2.2-19], [MQTT-3.2.2-20]."""
    broker = slow(brokers)
    client = knock(broker, "small", properties=asked)
    for number in range(3):
        knock(broker, f"{number}")
    (answer,) = client.receive()

    assert isinstance(answer, ConnAck)
    assert told == list(answer.properties)
    assert len(encode(answer, V5)) <= int(str(asked.get(MAXIMUM_PACKET_SIZE, 1 << 28)))


@pytest.mark.parametrize(("version", "code"), [(V31, 3), (V311, 3), (V5, 0x88)])
def test_who_waits_when_the_broker_stops_is_told_so(brokers: Brokers, version: int, code: int) -> None:
    """A client would see a dead line, and try the same broker again (0x8B is no code of CONNACK, table 2-6)."""
    broker = slow(brokers)
    client = knock(broker, "late", version)
    broker.lifecycle.stop(broker.clock.now)

    assert [ConnAck(False, code)] == client.receive()
    assert client.closed
    assert 0 == waiting(broker)
    assert 3 == closed(broker)[CloseReason.SHUTTING_DOWN]


def test_a_connect_that_was_not_looked_at_in_time_is_looked_at(brokers: Brokers) -> None:
    """Beside thousands of others a client would be closed for a CONNECT that lay before us in time."""
    broker = brokers(Config(limits=Limits(connect_timeout=TIMEOUT)))
    clients = [broker.open(V311) for _ in range(3 * UNAUTHENTICATED_AT_ONCE)]
    for number, client in enumerate(clients):
        client.send(greeting(f"late{number}", V311))
    broker.clock.step = 0.1  # of a second for each look at the clock: a few of them in a slice
    broker.loop.turn()
    broker.clock.step = 0.0
    assert not all(is_queued_no_more(broker))
    broker.clock.now += TIMEOUT
    broker.settle()

    assert all(is_in(client) for client in clients)


def is_queued_no_more(broker: Broker) -> list[bool]:
    return [not stream.queued for stream in broker.streams()]


def test_no_more_ask_redis_than_it_answers_in_time(
    nodes: Callable[..., Node], start_redis: Callable[[], RunningRedis]
) -> None:
    """Of 20 000 that ask at once most would be told that Redis did not answer, though it did what they asked."""
    node = nodes(2, redis=start_redis())
    clients = [node[0].open(V311) for _ in range(100)]
    for number, client in enumerate(clients):
        client.send(greeting(f"{number}", V311))
    most = 0
    while waiting(node[0]) or not most:
        node[0].loop.turn()
        registry_client = node[0].registry_client
        assert registry_client is not None
        most = max(most, registry_client.commands.statistics.waiting)
    node[0].settle()

    assert 1 < most < len(clients) / 2
    assert all(is_in(client) for client in clients)
