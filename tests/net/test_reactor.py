# The reactor: how a connection ends, and that the peer can read our last packet.
import select
import socket
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, Connect, Disconnect, PingReq, PingResp, Publish
from broker.net.loop import SLICE
from broker.net.reactor import LINGER
from broker.reasons import CloseReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, closed, push

Brokers = Callable[..., Broker]

PINGS = 30_000
HIGH = 16 * 1024
SMALL = Delivery(high_watermark=HIGH, low_watermark=HIGH // 2)
ACKED = encode(Publish(b"t", b"", 1, packet_id=1), V311)
STEP = SLICE / 4  # so that a slice has room for a few looks at the clock


def test_the_last_packet_survives_what_the_client_still_sends(brokers: Brokers) -> None:
    """TCP answers bytes for a closed socket with a reset, which throws away all that is still on its way."""
    broker = brokers()
    client = broker.dial(broker.listen(), V5)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.send(Connect(V5, "me"))
    until(broker, client, lambda: len(client.inbox) == 1)
    client.reading = False
    client.send(*[PingReq()] * PINGS)
    until(broker, client, lambda: broker.counters.packets_received == 1 + PINGS)
    assert 0 == broker.outbound_budget.used  # the kernel has all of it, more than the client takes
    client.send_bytes(b"\xff\0")
    until(broker, client, lambda: bool(closed(broker)))
    client.send_bytes(bytes(10_000))
    broker.settle()
    client.reading = True
    until(broker, client, lambda: client.closed)

    assert 1 + PINGS + 1 == len(client.inbox)
    assert isinstance(client.inbox[-1], Disconnect)


def until(broker: Broker, client: Client, condition: Callable[[], bool]) -> None:
    """Let *broker* work until *condition*. TCP may take a moment even on one machine."""
    while not condition():
        reads = [client.socket.fileno()] if client.reading else []
        assert select.select([broker.loop.fileno(), *reads], [], [], 5.0)[0]
        broker.settle()


@pytest.mark.parametrize("version", [V311, V5])
def test_the_last_packet_reaches_a_client_that_is_still_sending(brokers: Brokers, version: int) -> None:
    """A close with unread input is a reset, and a reset discards what was sent before it: the reason would be lost."""
    broker = brokers()
    client = broker.connect("me", version)
    client.send(PingReq())
    client.send_bytes(b"\xff\0" + bytes(2_000_000))
    said = client.receive()

    assert [PingResp] + [Disconnect] * (version == V5) == [type(packet) for packet in said]
    assert client.closed


def test_a_peer_that_never_closes_is_closed_at_the_deadline(brokers: Brokers) -> None:
    """A client could keep a descriptor of the worker for ever."""
    broker = brokers()
    client = broker.connect("me")
    client.send(Disconnect())
    client.receive()
    assert 1 == len(broker.streams())
    broker.advance(LINGER + 0.1)

    assert [] == broker.streams()


def test_a_peer_that_never_reads_is_closed_at_the_deadline(brokers: Brokers) -> None:
    """The outbox of a closed client would stay in memory."""
    broker = brokers(Config(delivery=SMALL))
    client = broker.connect("me")
    client.reading = False
    push(client, ACKED)
    broker.lifecycle.stop(broker.clock.now)
    broker.settle()
    assert broker.outbound_budget.used > 0
    broker.advance(LINGER + 0.1)

    assert [] == broker.streams()
    assert 0 == broker.outbound_budget.used


@pytest.mark.parametrize("stopped", [False, True])
def test_a_half_closed_connection_costs_no_time(brokers: Brokers, stopped: bool) -> None:
    """The loop would spin while a client is paused that has shut its side."""
    broker = brokers(Config(delivery=SMALL))
    client = broker.connect("me")
    client.reading = False
    taken = push(client, ACKED)
    client.socket.shutdown(socket.SHUT_WR)
    broker.clock.step = STEP  # a slice that turns in circles ends, too
    if stopped:
        broker.lifecycle.stop(broker.clock.now)
    began = broker.clock.now
    broker.settle()
    assert broker.clock.now - began < LINGER / 10  # it came to rest by itself
    if not stopped:
        assert {} == closed(broker)
        client.socket.recv(65536)  # writable for a moment, and blocked again
        broker.settle()
    broker.clock.step = 0.0
    client.reading = True
    client.receive()

    assert client.closed
    if not stopped:
        assert {CloseReason.PEER_CLOSED: 1} == closed(broker)
        assert taken // len(ACKED) == broker.counters.publishes_received


def test_a_half_closed_connection_gets_its_replies(brokers: Brokers) -> None:
    """A client that sends everything, shuts its side and then reads would miss the replies."""
    broker = brokers()
    client = broker.connect("me")
    client.send_bytes(ACKED * 3)
    client.socket.shutdown(socket.SHUT_WR)

    assert [1, 1, 1] == acks(client.receive(), 4)
    assert client.closed


def test_a_reset_ends_a_connection(brokers: Brokers) -> None:
    """A client that is gone without having read everything would stay connected."""
    broker = brokers()
    client = broker.connect("me")
    client.reading = False
    client.send(PingReq())
    broker.settle()
    client.drop()

    assert {CloseReason.PEER_RESET: 1} == closed(broker)
    assert 0 == broker.connected


def test_a_descriptor_that_is_used_again_belongs_to_the_new_connection(brokers: Brokers) -> None:
    """The replies to a former client would be sent to the next one."""
    broker = brokers()
    former = broker.connect("former", properties={})
    fd = broker.streams()[0].fd
    former.send(*[PingReq() for _ in range(50)])
    former.drop()
    later = broker.connect("later")

    assert [fd] == [stream.fd for stream in broker.streams()]
    assert [] == later.receive()
