# A client that reads slowly or not at all: it costs a fixed number of bytes, and nobody else anything.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.delivery.outbox import REPLY_ROOM
from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, V311, Ack, PingReq, PingResp, Properties, Publish, Will
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.net.stream import LARGE_READ
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, dropped, messages, narrow, payloads, push, subscribe

Brokers = Callable[..., Broker]

HIGH = 16 * 1024
SMALL = Delivery(high_watermark=HIGH, low_watermark=HIGH // 2)
NUMBERS = [b"%04d" % n + bytes(996) for n in range(200)]  # over ten times what a slow reader may cost
ACKED = encode(Publish(b"t", b"", 1, packet_id=1), V311)


def publish(broker: Broker, qos: int) -> None:
    """Somebody publishes NUMBERS."""
    publisher = broker.connect("publisher", V5)
    for n, number in enumerate(NUMBERS, 1):
        publisher.send(Publish(b"t", number, qos, packet_id=n if qos else 0))
        publisher.receive()


def reader(broker: Broker, name: str, qos: int, *, expiry: int = 0) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: expiry}
    client = broker.connect(name, V5, properties=properties)
    subscribe(client, "t", qos=qos)
    return client


def test_a_reader_that_does_not_read_misses_qos_0_and_nobody_else_does(brokers: Brokers) -> None:
    """A slow reader would grow without end, or hold the others up (DESIGN section 6)."""
    broker = brokers(Config(delivery=SMALL))
    slow = reader(broker, "slow", 0)
    quick = reader(broker, "quick", 0)
    narrow(broker)
    slow.reading = False
    publish(broker, 0)

    assert NUMBERS == payloads(quick.receive())
    assert HIGH < broker.outbound_budget.used < HIGH + 2000
    missed = dropped(broker)[DropReason.NOT_WRITABLE]
    assert {DropReason.NOT_WRITABLE: missed} == dropped(broker)
    assert missed > 100
    slow.reading = True
    assert NUMBERS[: len(NUMBERS) - missed] == payloads(slow.receive())
    assert 0 == broker.outbound_budget.used
    publish(broker, 0)  # it is a reader like any other again
    assert NUMBERS == payloads(slow.receive())


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("pending", [0, 20])
def test_for_a_reader_that_does_not_read_a_few_qos_1_and_2_wait(brokers: Brokers, qos: int, pending: int) -> None:
    """What was promised would be dropped though there is room, or wait without a limit; or stay when it reads again."""
    broker = brokers(Config(delivery=SMALL, limits=Limits(pending=pending)))
    slow = reader(broker, "slow", qos)
    quick = reader(broker, "quick", qos)
    narrow(broker)
    slow.reading = False
    publish(broker, qos)
    missed = dropped(broker)[DropReason.PENDING_FULL]
    before = len(slow.inbox)
    slow.reading = True

    assert {DropReason.PENDING_FULL: missed} == dropped(broker)
    assert 0 == before
    assert NUMBERS[: len(NUMBERS) - missed] == payloads(slow.receive())
    assert NUMBERS == payloads(quick.receive())
    assert broker.session_count() == 3


def test_what_waits_is_in_the_order_of_its_publisher(brokers: Brokers) -> None:
    """Messages would overtake each other when a reader becomes quick again [MQTT-4.6.0-6]."""
    broker = brokers(Config(delivery=SMALL))
    slow = reader(broker, "slow", 1)
    narrow(broker)
    slow.reading = False
    publish(broker, 1)
    slow.reading = True

    assert NUMBERS == payloads(slow.receive())
    assert {} == dropped(broker)


def test_for_a_session_that_lasts_the_oldest_go_first(brokers: Brokers) -> None:
    """A session that outlives its connection would lose the newest, or keep all."""
    broker = brokers(Config(delivery=SMALL, limits=Limits(pending=0, queue=30)))
    slow = reader(broker, "slow", 1, expiry=60)
    narrow(broker)
    slow.reading = False
    publish(broker, 1)
    missed = dropped(broker)[DropReason.QUEUE_FULL]
    slow.reading = True
    sent = len(NUMBERS) - missed - 30

    assert {DropReason.QUEUE_FULL: missed} == dropped(broker)
    assert NUMBERS[:sent] + NUMBERS[-30:] == payloads(slow.receive())


def test_a_reader_that_takes_no_byte_is_closed_in_the_end(brokers: Brokers) -> None:
    """A dead reader would hold its buffers for ever."""
    broker = brokers(Config(delivery=Delivery(high_watermark=HIGH, low_watermark=1, slow_consumer_timeout=10.0)))
    slow = broker.connect("slow", will=Will(b"wills", b"slow"))
    subscribe(slow, "t")
    quick = broker.connect("quick")
    subscribe(quick, "t", "wills")
    narrow(broker)
    slow.reading = False
    publish(broker, 0)
    broker.advance(9)
    assert {} == closed(broker)
    broker.advance(2.5)

    assert {CloseReason.SLOW_CONSUMER: 1} == closed(broker)
    assert [*NUMBERS, b"slow"] == payloads(quick.receive())
    assert 0 == broker.outbound_budget.used
    slow.reading = True
    slow.receive()
    assert slow.closed


def test_a_reader_that_takes_a_little_is_not_closed(brokers: Brokers) -> None:
    """A client on a bad line would be closed although it gets on."""
    broker = brokers(Config(delivery=Delivery(high_watermark=64 * 1024, low_watermark=1, slow_consumer_timeout=10.0)))
    slow = reader(broker, "slow", 0)
    narrow(broker)
    slow.reading = False
    publish(broker, 0)
    for _ in range(6):
        broker.advance(5)
        assert slow.socket.recv(4096)

    assert {} == closed(broker)


def test_the_budget_of_all_readers_is_kept(brokers: Brokers) -> None:
    """Many slow readers together would take the memory that one may not take alone."""
    delivery = Delivery(high_watermark=64 * 1024, low_watermark=32 * 1024, outbound_budget=128 * 1024)
    broker = brokers(Config(delivery=delivery))
    slow = [reader(broker, f"slow{n}", 0) for n in range(6)]
    quick = reader(broker, "quick", 1)
    narrow(broker)
    for client in slow:
        client.reading = False
    publish(broker, 1)

    assert NUMBERS == payloads(quick.receive())
    assert broker.outbound_budget.used < 128 * 1024
    assert {DropReason.NOT_WRITABLE} == set(dropped(broker))
    assert {} == closed(broker)  # each may have less, and nobody has to go
    for client in slow:
        client.reading = True
    broker.settle()
    assert 0 == broker.outbound_budget.used


def test_when_the_budget_is_used_up_the_largest_debtor_goes(brokers: Brokers) -> None:
    """The memory of the worker would be used up by readers of which each may have a little."""
    delivery = Delivery(high_watermark=64 * 1024, low_watermark=32 * 1024, outbound_budget=128 * 1024)
    broker = brokers(Config(delivery=delivery))
    large = reader(broker, "large", 0)
    subscribe(large, "large")
    small = [reader(broker, f"small{n}", 0) for n in range(10)]
    narrow(broker)
    for client in (large, *small):
        client.reading = False
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"large", bytes(50_000)))
    broker.settle()
    assert {} == closed(broker)
    publisher.send(Publish(b"t", bytes(20_000)))  # each outbox is empty and takes it
    broker.settle()

    assert {CloseReason.OUTBOUND_BUDGET: 1} == closed(broker)
    assert broker.outbound_budget.used < 128 * 1024
    large.reading = True
    large.receive()
    assert large.closed


# A publisher that does not read its acknowledgements.


def stuff(broker: Broker) -> tuple[Client, int]:
    """A client that has published until we took no more; how many bytes."""
    client = broker.connect("me", keep_alive=10)
    client.reading = False
    return client, push(client, ACKED)


@pytest.mark.slow
def test_a_publisher_that_reads_no_acknowledgement_is_held(brokers: Brokers) -> None:
    """Its acknowledgements would pile up without end."""
    broker = brokers(Config(delivery=SMALL))
    other = broker.connect("other")
    client, taken = stuff(broker)
    most = HIGH + REPLY_ROOM + LARGE_READ

    assert HIGH + REPLY_ROOM < broker.outbound_budget.used < most
    other.send(PingReq())
    assert [PingResp()] == other.receive()
    client.reading = True
    client.send_bytes(ACKED[taken % len(ACKED) :] if taken % len(ACKED) else b"")
    assert [1] * -(-taken // len(ACKED)) == acks(client.receive(), PUBACK)
    client.send(Publish(b"t", b"", 1, packet_id=2))
    assert [Ack(PUBACK, 2)] == client.receive()


def test_who_is_held_is_not_closed_for_its_silence(brokers: Brokers) -> None:
    """We would punish a client for a silence that we cause; only its not reading counts, and that by its own limit."""
    broker = brokers(Config(delivery=Delivery(high_watermark=HIGH, low_watermark=1, slow_consumer_timeout=50.0)))
    stuff(broker)
    broker.advance(45)
    assert {} == closed(broker)
    broker.advance(7)

    assert {CloseReason.SLOW_CONSUMER: 1} == closed(broker)


@pytest.mark.slow
def test_a_held_client_that_reads_again_is_kept_alive_again(brokers: Brokers) -> None:
    """Once held, a client would never be missed any more."""
    broker = brokers(Config(delivery=SMALL))
    client, _ = stuff(broker)
    broker.advance(40)
    client.reading = True
    client.receive()
    broker.advance(14)
    assert {} == closed(broker)
    broker.advance(2)

    assert {CloseReason.KEEP_ALIVE_TIMEOUT: 1} == closed(broker)


def test_a_held_client_that_is_reset_is_gone_at_once(brokers: Brokers) -> None:
    """A dead client that we do not read would stay until its time-outs, with all its buffers."""
    broker = brokers(Config(delivery=SMALL))
    client, _ = stuff(broker)
    client.drop()

    assert {CloseReason.PEER_RESET: 1} == closed(broker)
    assert 0 == broker.outbound_budget.used
    assert [] == broker.streams()


@pytest.mark.slow
def test_the_session_of_a_held_client_can_be_taken_over(brokers: Brokers) -> None:
    """The former connection could not read why it ended, as long as it is busy sending."""
    broker = brokers(Config(delivery=SMALL))
    client, _ = stuff(broker)
    later = broker.connect("me")
    more = push_for(client, 1_000_000)
    client.reading = True

    assert not later.closed
    assert 1_000_000 == more
    assert messages(client.receive()) == []
    assert client.closed


def push_for(client: Client, size: int) -> int:
    """Send *size* bytes, letting the broker read in between; how many it took."""
    data = bytes(size)
    sent = 0
    for _ in range(200):
        try:
            sent += client.socket.send(data[sent:])
        except BlockingIOError:
            client.broker.settle()
        if sent == size:
            break
    return sent
