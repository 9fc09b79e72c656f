# Packets that are announced and not finished: the input of all together is bounded.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V31, V311, Connect, PingReq, PingResp, Publish
from broker.net.stream_limits import SHED_AT_ONCE
from broker.net.unfinished_input import SCAN_EVERY, UnfinishedInput
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, goodbye, push

Brokers = Callable[..., Broker]

BUDGET = 100_000
LARGE = Publish(b"t", bytes(80_000))


def narrow_budget(broker: Broker, budget: int = BUDGET) -> Broker:
    broker.reactor.input.limit = budget
    broker.reactor.input.most = budget * 5 // 4
    return broker


def begin(broker: Broker, name: str, size: int, version: int = V5) -> Client:
    """A client that has sent *size* bytes of a packet of 80 KB."""
    client = broker.connect(name, version)
    client.send_bytes(encode(LARGE, version)[:size])
    return client


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_the_connection_with_the_largest_incomplete_packet_is_closed(brokers: Brokers, version: int) -> None:
    """Clients that begin large packets and never finish them would use up the memory."""
    broker = narrow_budget(brokers())
    small, large, middle = (begin(broker, f"{size}", size, version) for size in (20_000, 70_000, 40_000))
    broker.settle()
    idle = broker.connect("idle")

    assert (0x97 if version == V5 else None) == goodbye(large)
    assert {CloseReason.INPUT_BUDGET: 1} == closed(broker)
    assert not (small.closed or middle.closed or idle.closed)
    assert 60_000 == broker.reactor.input.used
    small.send_bytes(encode(LARGE, version)[20_000:])
    small.send(PingReq())
    assert [PingResp()] == small.receive()


def test_nothing_is_closed_up_to_a_quarter_over_the_budget(brokers: Brokers) -> None:
    """A budget that is just reached would close a connection for each packet that comes in pieces."""
    broker = narrow_budget(brokers())
    clients = [begin(broker, str(n), 25_000) for n in range(5)]
    broker.settle()
    assert not any(client.closed for client in clients)
    begin(broker, "more", 1)
    broker.settle()

    assert 1 == sum(client.closed for client in clients)


def test_a_complete_packet_that_waits_is_not_a_reason_to_close(brokers: Brokers) -> None:
    """A client that is paused, or waits for its turn, would be closed for input that the worker did not serve."""
    broker = brokers(Config(delivery=Delivery(high_watermark=16_384, low_watermark=8192)))
    held = broker.connect("held")
    held.reading = False
    push(held, encode(Publish(b"t", b"", 1, packet_id=1), held.version))
    small = begin(broker, "small", 300, V5)
    broker.settle()
    (waits,) = [stream for stream in broker.streams() if stream.left > 300]
    narrow_budget(broker, 200)
    broker.settle()

    assert waits.paused
    assert 0x97 == goodbye(small)
    assert waits.left == broker.reactor.input.used > 200


def test_a_connect_that_is_not_finished_counts(brokers: Brokers) -> None:
    """Unauthenticated clients could use up the memory."""
    broker = narrow_budget(brokers())
    connect = encode(Connect(V5, "x", user_name="u" * 60_000), V5)
    strangers = [broker.open(V5) for _ in range(3)]
    for stranger in strangers:
        stranger.send_bytes(connect[:-1])
    broker.settle()

    assert 1 == sum(client.closed for client in strangers)
    assert {CloseReason.INPUT_BUDGET: 1} == closed(broker)


def test_many_small_incomplete_packets_are_shed_in_several_turns(brokers: Brokers) -> None:
    """Closing thousands of connections at once would hold the loop; closing too few would not bound the memory."""
    broker = brokers()
    clients = [begin(broker, str(n), 1000) for n in range(200)]
    broker.settle()
    reactor = narrow_budget(broker).reactor
    broker.loop.turn()
    assert SHED_AT_ONCE == closed(broker)[CloseReason.INPUT_BUDGET]
    broker.settle()

    assert 75 == closed(broker)[CloseReason.INPUT_BUDGET] == sum(client.closed for client in clients)
    assert BUDGET * 5 // 4 == reactor.input.used


def test_streams_are_scanned_now_and_then_and_not_in_each_turn(brokers: Brokers) -> None:
    """While the budget is exceeded by input that waits, each turn would scan a hundred thousand streams."""
    broker = brokers()
    clients = [begin(broker, str(n), 1000) for n in range(3)]
    broker.settle()
    reactor = broker.reactor
    search = UnfinishedInput()
    found = [search.largest(reactor.table, broker.clock.now) for _ in range(4)]
    assert [True] * 3 + [False] == [stream is not None for stream in found]

    assert search.largest(reactor.table, broker.clock.now + SCAN_EVERY / 2) is None
    assert search.largest(reactor.table, broker.clock.now + SCAN_EVERY) is not None
    clients[0].drop()
    assert search.largest(reactor.table, broker.clock.now + SCAN_EVERY) is not None
    assert search.largest(reactor.table, broker.clock.now + SCAN_EVERY) is None  # one of them is gone
