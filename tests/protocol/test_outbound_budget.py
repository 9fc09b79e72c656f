# The outbound budget of the worker: many clients that do not read, each within its own limit.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, V311, PingReq, PingResp, Publish
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, messages, narrow, payloads, push, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]

KIB = 1024
BUDGET = 1024 * KIB
DELIVERY = Delivery(high_watermark=BUDGET, low_watermark=4 * KIB, outbound_budget=BUDGET)
ACKED = encode(Publish(b"t", b"", 1, packet_id=1), V311)


def silent_readers(broker: Broker, sizes: list[int]) -> list[Client]:
    """Readers that do not read, each owed one message of so many KiB that it alone has subscribed to."""
    readers = [broker.connect(f"{size}", V5) for size in sizes]
    for reader, size in zip(readers, sizes, strict=True):
        subscribe(reader, f"to/{size}")
    narrow(broker)
    for reader in readers:
        reader.reading = False
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"to/%d" % size, bytes(size * KIB)) for size in sizes])
    broker.settle()
    publisher.drop()
    return readers


def shed(log: Log) -> list[str]:
    """Who was closed because of the budget, in order."""
    return [line["client"] for line in log if line.get("reason") == CloseReason.OUTBOUND_BUDGET.label]


def test_the_largest_debtors_go_until_the_rest_fits(brokers: Brokers, log: Log) -> None:
    """Readers that owe us little would pay for those who hold the memory, or the worker stay over its budget."""
    broker = brokers(Config(delivery=DELIVERY))
    quick = broker.connect("quick")
    subscribe(quick, "more")
    readers = silent_readers(broker, [200, 60, 600, 40, 400, 80])
    broker.advance(3)
    assert ["600"] == shed(log)  # the others fit
    assert broker.outbound_budget.used <= BUDGET

    readers += silent_readers(broker, [510, 500])
    broker.advance(3)

    assert ["600", "510", "500"] == shed(log)
    assert broker.outbound_budget.used <= BUDGET
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"more", b"x"))
    assert [b"x"] == payloads(quick.receive())
    for reader in readers:
        reader.reading = True
    broker.settle()
    assert [b"to/200", b"to/60", b"to/40", b"to/400", b"to/80"] == [m.topic for r in readers for m in messages(r.inbox)]
    assert 0 == broker.outbound_budget.used


@pytest.mark.slow
def test_clients_that_send_and_do_not_read_are_held_together(brokers: Brokers) -> None:
    """Answers are not refused: without reading those who do not take them, they would grow beyond any budget."""
    broker = brokers(Config(delivery=DELIVERY))
    modest = broker.connect("modest")
    greedy = [broker.connect(f"greedy{n}") for n in range(4)]
    narrow(broker)
    for client in greedy:
        client.reading = False
    taken = [push(client, ACKED) for client in greedy]
    used = broker.outbound_budget.used

    assert BUDGET / 2 < used < BUDGET
    assert {} == closed(broker)
    modest.send(PingReq())
    assert [PingResp()] == modest.receive()
    for client, bytes_taken in zip(greedy, taken, strict=True):
        client.reading = True
        client.send_bytes(ACKED[bytes_taken % len(ACKED) :] if bytes_taken % len(ACKED) else b"")
    broker.settle()
    assert [-(-bytes_taken // len(ACKED)) for bytes_taken in taken] == [len(acks(c.inbox, PUBACK)) for c in greedy]
    assert 0 == broker.outbound_budget.used
