# One publish to thousands: in pages between other work, with its publisher held until the last one has it.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.packets import (
    PUBACK,
    V5,
    V311,
    Ack,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.net.loop import SLICE
from broker.reasons import CloseReason, DropReason
from broker.routing.fanout import PAGE
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, dropped, messages, narrow, payloads, subscribe

Brokers = Callable[..., Broker]

CROWD = 1900  # a large part of the burst of CONNECTs that is let in at once, as time stands still here
STEP = SLICE / 4


def crowd(broker: Broker, size: int, qos: int = 0) -> list[Client]:
    """Clients that subscribed to "t"."""
    clients = [broker.open() for _ in range(size)]
    for n, client in enumerate(clients):
        client.send(Connect(V311, f"reader{n}"), Subscribe(1, [Wanted(b"t", qos)]))
    broker.settle()
    for client in clients:
        client.inbox.clear()
    return clients


def away(broker: Broker, size: int) -> None:
    """Sessions without a connection that subscribed to "t"."""
    clients = [broker.open() for _ in range(size)]
    for n, client in enumerate(clients):
        client.send(Connect(V311, f"reader{n}", clean_start=False), Subscribe(1, [Wanted(b"t", 1)]), Disconnect())
    broker.settle()
    for client in clients:
        client.drop()


def begin(broker: Broker, publisher: Client, *packets: Publish) -> None:
    """Send *packets* and let the broker work, a few looks at the clock a slice, until the first reader is served."""
    publisher.send(*packets)
    broker.clock.step = STEP
    before = broker.counters.publishes_sent
    while broker.counters.publishes_sent == before:
        broker.loop.turn()


def test_a_large_fan_out_gives_way_and_keeps_order(brokers: Brokers) -> None:
    """One publish to thousands would hold the worker, or the next one overtake it, or be acknowledged too early."""
    broker = brokers(connections=CROWD + 10)
    readers = crowd(broker, CROWD, 1)
    publisher, other = broker.connect("publisher"), broker.connect("other")
    broker.settle()
    other.send(PingReq())
    begin(broker, publisher, *[Publish(b"t", b"%d" % n, n % 2, packet_id=n) for n in range(4)])
    counters = broker.counters
    other.pull()
    publisher.pull()

    assert 0 < counters.publishes_sent < CROWD
    assert 1 == counters.publishes_received  # what is behind it has not been looked at
    assert [PingResp()] == other.inbox
    assert [] == publisher.inbox
    broker.clock.step = 0.0
    broker.settle()
    assert [Ack(PUBACK, 1), Ack(PUBACK, 3)] == publisher.inbox
    assert {(b"0", b"1", b"2", b"3")} == {tuple(payloads(reader.inbox)) for reader in readers}
    assert 4 * CROWD == counters.publishes_sent


def test_the_acknowledgement_comes_after_the_last_delivery(brokers: Brokers) -> None:
    """A publisher would believe that all have its message while some do not."""
    broker = brokers(connections=CROWD)
    crowd(broker, 3 * PAGE)
    publisher = broker.connect("publisher")
    broker.settle()
    begin(broker, publisher, Publish(b"t", b"x", 1, packet_id=1))
    while not publisher.inbox:
        before = broker.counters.publishes_sent
        broker.loop.turn()
        publisher.pull()

    assert 3 * PAGE == before or 3 * PAGE == broker.counters.publishes_sent
    assert [Ack(PUBACK, 1)] == publisher.inbox


def test_readers_that_leave_meanwhile_harm_nobody(brokers: Brokers) -> None:
    """A fan-out would stop at a reader that is gone, and its publisher be held for ever."""
    broker = brokers(connections=CROWD)
    readers = crowd(broker, 3 * PAGE, 1)
    publisher = broker.connect("publisher")
    broker.settle()
    begin(broker, publisher, Publish(b"t", b"x", 1, packet_id=1))
    assert broker.counters.publishes_sent < 3 * PAGE
    broker.clock.step = 0.0
    readers[-1].socket.close()
    readers[-1].closed = True
    readers[-2].send(Unsubscribe(2, [b"t"]))
    taken_over = broker.open()
    taken_over.send(Connect(V311, f"reader{3 * PAGE - 3}"))
    broker.settle()
    publisher.send(Publish(b"t", b"y", 1, packet_id=2))

    assert [Ack(PUBACK, 1), Ack(PUBACK, 2)] == publisher.receive()
    assert all([b"x", b"y"] == payloads(reader.inbox) for reader in readers[:-3])
    assert [] == payloads(readers[-2].inbox)
    assert [] == payloads(taken_over.inbox)


def test_a_publisher_that_leaves_meanwhile_is_heard_all_the_same(brokers: Brokers) -> None:
    """Half of the readers would miss the last message of a client that publishes and goes."""
    broker = brokers(connections=CROWD)
    readers = crowd(broker, 3 * PAGE)
    publisher = broker.connect("publisher")
    broker.settle()
    begin(broker, publisher, Publish(b"t", b"x", 1, packet_id=1), Publish(b"t", b"y", retain=True))
    publisher.socket.close()
    publisher.closed = True
    broker.loop.turn()
    assert {CloseReason.PEER_RESET: 1} == closed(broker)
    assert broker.counters.publishes_sent < 3 * PAGE  # it was not waited for
    broker.clock.step = 0.0
    broker.settle()
    assert 0 == broker.outbound_budget.used  # its acknowledgement is not kept for anybody
    later = broker.connect("publisher")

    assert {(b"x",)} == {tuple(payloads(reader.inbox)) for reader in readers}
    later.send(PingReq())
    assert [PingResp()] == later.receive()


def test_a_slow_reader_in_a_crowd_is_left_out_alone(brokers: Brokers) -> None:
    """One reader over its watermark would hold up thousands."""
    broker = brokers(Config(delivery=Delivery(high_watermark=8192, low_watermark=4096)), connections=CROWD)
    readers = crowd(broker, PAGE + 88)
    narrow(broker)
    slow = readers[300]
    slow.reading = False
    publisher = broker.connect("publisher")
    for n in range(30):
        publisher.send(Publish(b"t", bytes((n,)) * 1000))
        broker.settle()
    missed = dropped(broker)[DropReason.NOT_WRITABLE]

    assert {DropReason.NOT_WRITABLE: missed} == dropped(broker)
    assert 10 < missed < 30
    assert {30} == {len(messages(reader.inbox)) for reader in readers if reader is not slow}


def test_a_fan_out_to_sessions_that_are_away_comes_to_its_end(brokers: Brokers) -> None:
    """With nothing to send, a slice would never see that its time is over: the worker would hang."""
    broker = brokers(connections=CROWD)
    away(broker, 3 * PAGE)
    publisher = broker.connect("publisher")
    broker.settle()
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    broker.clock.step = STEP
    began = broker.clock.now
    broker.loop.turn()

    assert broker.clock.now - began < 2 * SLICE
    broker.clock.step = 0.0
    assert [Ack(PUBACK, 1)] == publisher.receive()
    back = broker.connect("reader7", clean_start=False)
    assert [b"x"] == payloads(back.receive())


def test_two_large_fan_outs_at_once_both_arrive(brokers: Brokers) -> None:
    """The second publisher would wait for ever, or its messages get mixed with the first one's."""
    broker = brokers(connections=CROWD)
    readers = crowd(broker, 2 * PAGE)
    one, two = broker.connect("one"), broker.connect("two")
    broker.settle()
    for publisher, name in ((one, b"a"), (two, b"b")):
        publisher.send(*[Publish(b"t", name + b"%d" % n, 1, packet_id=n) for n in range(1, 4)])
    broker.clock.step = STEP
    for _ in range(3):
        broker.loop.turn()
    broker.clock.step = 0.0

    assert [Ack(PUBACK, n) for n in (1, 2, 3)] == one.receive() == two.receive()
    broker.advance(1.0)  # outboxes of a busy worker are held
    for reader in readers:
        assert [b"a1", b"a2", b"a3"] == [p for p in payloads(reader.inbox) if p.startswith(b"a")]
        assert [b"b1", b"b2", b"b3"] == [p for p in payloads(reader.inbox) if p.startswith(b"b")]


@pytest.mark.parametrize("qos", [0, 1])
def test_one_member_of_a_shared_group_gets_a_message_beside_the_crowd(brokers: Brokers, qos: int) -> None:
    """A fan-out in pages would forget the groups, or serve them once a page."""
    broker = brokers(connections=CROWD)
    crowd(broker, 2 * PAGE)
    members = [broker.connect(f"member{n}", V5) for n in range(2)]
    for member in members:
        subscribe(member, "$share/group/t", qos=1)
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t", b"%d" % n, qos, packet_id=n * qos) for n in range(1, 5)])
    broker.settle()
    got = [payloads(member.inbox) for member in members]

    assert [2, 2] == [len(one) for one in got]
    assert [b"1", b"2", b"3", b"4"] == sorted(got[0] + got[1])
