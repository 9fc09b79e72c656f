# Readers that take their bytes slowly, and those that take none.
import socket
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.packets import V5, Publish
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, subscribe

Brokers = Callable[..., Broker]

TIMEOUT = 10.0
DELIVERY = Delivery(high_watermark=64 * 1024, low_watermark=1, slow_consumer_timeout=TIMEOUT)
SIZE = 1000


def blocked_reader(broker: Broker) -> Client:
    """A reader for whom the kernel holds some dozens of messages, and takes no more before most of them are read."""
    reader = broker.connect("reader", V5)
    subscribe(reader, "t")
    (stream,) = broker.streams()
    stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 * 1024)
    reader.reading = False
    publisher = broker.connect("publisher", V5)
    while not stream.outbox.blocked:
        publisher.send(Publish(b"t", bytes(SIZE)))
        broker.settle()
    return reader


def test_a_slow_reader_is_not_closed(brokers: Brokers) -> None:
    """The kernel asks for more only when much is read: a client on a bad line would be closed while it reads."""
    broker = brokers(Config(delivery=DELIVERY))
    reader = blocked_reader(broker)
    sent = broker.reactor.bytes_sent
    for _ in range(6):
        broker.advance(TIMEOUT / 2)
        assert reader.socket.recv(2 * SIZE)  # a whole packet and more, or the kernel holds it still

    assert sent == broker.reactor.bytes_sent  # only the kernel knew
    assert {} == closed(broker)
    broker.advance(TIMEOUT + 2)
    assert {CloseReason.SLOW_CONSUMER: 1} == closed(broker)


@pytest.mark.parametrize("late", [0.0, 4.0])
def test_a_reader_that_reads_nothing_is_closed_after_the_timeout(brokers: Brokers, late: float) -> None:
    """A dead reader would stay, or be closed before the timeout."""
    broker = brokers(Config(delivery=DELIVERY))
    reader = blocked_reader(broker)
    broker.advance(late)
    if late:
        assert reader.socket.recv(2 * SIZE)  # a whole packet and more, or the kernel holds it still
    broker.advance(TIMEOUT - 1.0)
    assert {} == closed(broker)
    broker.advance(3.0)

    assert {CloseReason.SLOW_CONSUMER: 1} == closed(broker)
