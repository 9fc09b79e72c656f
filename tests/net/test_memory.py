# The accounts of input and of output beside what the allocator says.
import tracemalloc
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.encode import encode
from broker.mqtt.packets import V311, Publish, Subscribe, Wanted
from tests.inprocess import Broker

Brokers = Callable[..., Broker]
CLIENTS = 20
WHOLE = encode(Publish(b"nobody", bytes(60_000)), V311)
BEGINNING = encode(Publish(b"nobody", bytes(100)), V311)[:7]
BASIS = 16 * 1024  # bytes that twenty connections may grow by, whatever they have sent
WATERMARK = 1 << 20
PART = 1 << 17  # bytes

pytestmark = [
    pytest.mark.no_cover,  # what coverage remembers would count as ours
    pytest.mark.usefixtures("traced"),
]


def memory() -> int:
    return tracemalloc.get_traced_memory()[0]


def test_a_part_of_a_packet_does_not_keep_what_came_before_it(brokers: Brokers) -> None:
    """A client could make the broker hold 64 KiB for one byte that counts: ten thousand of them 640 MB."""
    broker = brokers()
    clients = [broker.connect(f"{number}") for number in range(CLIENTS)]
    for client in clients:
        client.send_bytes(WHOLE + WHOLE)
        client.receive()
    before = memory()
    for client in clients:
        client.send_bytes(WHOLE + WHOLE + BEGINNING)
        client.receive()

    assert CLIENTS * len(BEGINNING) == broker.reactor.input.used
    assert memory() - before < BASIS


@pytest.mark.parametrize("payload", [0, 20, 100, 400, 3000])
def test_the_account_of_output_is_what_it_takes(brokers: Brokers, payload: int) -> None:
    """A reader of tiny messages that does not read would hold seven times what it may."""
    broker = brokers(Config(delivery=Delivery(high_watermark=WATERMARK, low_watermark=WATERMARK >> 1)))
    reader = broker.connect("reader")
    reader.send(Subscribe(1, [Wanted(b"t", 0)]))
    reader.receive()
    reader.reading = False
    publisher = broker.connect("publisher")
    one = encode(Publish(b"t", bytes(payload)), V311)
    many = (one + encode(Publish(b"u", b""), V311)) * (1 + PART // len(one) // 20)  # so that no run is made of them

    def publish(size: int) -> int:
        """Publish until *size* bytes more wait for the reader; the account."""
        enough = broker.outbound_budget.used + size
        while broker.outbound_budget.used < enough:
            publisher.send_bytes(many)
            broker.settle()
        return broker.outbound_budget.used

    counted = publish(PART)
    before = memory()
    counted = publish(PART) - counted
    grown = memory() - before

    assert 0.85 * counted < grown < 1.15 * counted
