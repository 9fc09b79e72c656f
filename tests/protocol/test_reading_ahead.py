# Reading ahead of a publish that waits, as a connection does it: where it goes on, whatever was served in between.
from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, Ack, Packet, PingReq, PingResp, Publish
from broker.net.pauses import Pause
from broker.net.stream import Stream
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, payloads, subscribe

Brokers = Callable[..., Broker]

PINGS = bytes((0xC0, 0)) * 100


def paused(broker: Broker, client: Client) -> Stream:
    """The stream of *client*, whose next packet waits from now on."""
    (stream,) = broker.reactor.streams()
    broker.reactor.pause_reading_ahead(stream, Pause.OVERLOAD)
    return stream


def publish(payload: bytes, packet_id: int) -> bytes:
    return encode(Publish(b"a", payload, 1, packet_id=packet_id), V5)


@pytest.fixture
def client(brokers: Brokers) -> Client:
    client = brokers().connect("client", V5)
    subscribe(client, "a", qos=1)
    return client


def test_a_packet_that_was_not_complete_is_forgotten_when_it_has_been_served(client: Client) -> None:
    """What comes next would be read from before its beginning on, and the client closed for it."""
    broker = client.broker
    stream = paused(broker, client)
    packet = publish(bytes(200), 1)
    client.send_bytes(packet[:150])
    assert [] == client.receive()
    broker.reactor.resume(stream, Pause.OVERLOAD)
    client.send_bytes(packet[150:])
    assert [1] == acks(client.receive(), PUBACK)
    paused(broker, client)
    client.send(PingReq())

    assert [PingResp()] == client.receive()
    broker.reactor.resume(stream, Pause.OVERLOAD)
    client.send(PingReq())
    assert [PingResp()] == client.receive()


def test_no_packet_is_found_in_a_payload_that_arrives_in_pieces(client: Client) -> None:
    """Its bytes would be answered, and be cut out of it."""
    broker = client.broker
    first, second = publish(PINGS, 1), publish(PINGS, 2)
    client.send_bytes(first[:60])
    assert [] == client.receive()
    stream = paused(broker, client)
    for piece in (first[60:90], first[90:] + second[:60], second[60:]):
        client.send_bytes(piece)
        assert [] == client.receive()
    client.send(PingReq())
    assert [PingResp()] == client.receive()
    broker.reactor.resume(stream, Pause.OVERLOAD)

    received = client.receive()
    assert [PINGS, PINGS] == payloads(received)
    assert [1, 2] == acks(received, PUBACK)


def test_what_was_read_ahead_is_not_read_again_when_some_of_it_was_served(client: Client) -> None:
    """An acknowledgement behind it would be taken from a wrong place, or never."""
    broker = client.broker
    client.send_bytes(publish(b"mine", 1))
    (message,) = [packet for packet in client.receive() if isinstance(packet, Publish)]
    session = broker.store.find("client")
    assert session is not None and 1 == session.inflight()
    stream = paused(broker, client)
    packets = publish(b"1", 2) + publish(PINGS, 3)
    client.send_bytes(packets[:-50])
    assert [] == client.receive()
    broker.reactor.resume(stream, Pause.OVERLOAD)
    assert [b"1"] == payloads(client.receive())
    paused(broker, client)
    client.send_bytes(packets[-50:] + encode(Ack(PUBACK, message.packet_id), V5))
    assert [] == client.receive()

    assert 1 == session.inflight()  # the message "1", and no longer the one before it
    broker.reactor.resume(stream, Pause.OVERLOAD)
    assert [PINGS] == payloads(client.receive())


SIZES = st.integers(1, 5) | st.integers(1, 120)
PACKETS = st.one_of(
    st.builds(lambda size: Publish(b"a", PINGS[:size]), st.integers(0, 80)),
    st.just(PingReq()),
    st.just(Ack(PUBACK, 1)),
)


@example([Ack(PUBACK, 1), PingReq()], [(2, False), (3, True), (1, True)])  # the first one is not complete at first
@given(st.lists(PACKETS, min_size=1, max_size=12), st.lists(st.tuples(SIZES, st.booleans()), max_size=30))
def test_pauses_change_nothing_of_what_a_client_sent(packets: list[Packet], steps: list[tuple[int, bool]]) -> None:
    """Each publish arrives as it was sent, in order, and each PINGREQ is answered once, however the input is cut."""
    with closing(Broker(connections=10)) as broker:
        client = broker.connect("client", V5)
        subscribe(client, "a")
        (stream,) = broker.reactor.streams()
        data = b"".join(encode(packet, V5) for packet in packets)
        received: list[Packet] = []
        for size, pauses in [*steps, (len(data), False)]:
            if pauses:
                broker.reactor.pause_reading_ahead(stream, Pause.OVERLOAD)
            else:
                broker.reactor.resume(stream, Pause.OVERLOAD)
            client.send_bytes(data[:size])
            data = data[size:]
            received += client.receive()

        assert payloads(packets) == payloads(received)
        assert packets.count(PingReq()) == received.count(PingResp())
