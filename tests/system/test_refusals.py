# What we refuse: bytes that are no MQTT, packets at the wrong time, clients that never say who they are.
from collections.abc import Callable

import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, Disconnect, Packet, PingReq, Publish, Subscribe, Wanted
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient

Dial = Callable[..., RawClient]
MALFORMED, PROTOCOL_ERROR = 0x81, 0x82

SUBSCRIBE_FLAGS = "flags of SUBSCRIBE"  # 3.1 gives them a meaning

# After a CONNECT: bytes, and the code that 5.0 names for them.
BROKEN = {
    "packet type 0": (b"\x00\x00", MALFORMED),
    "QoS 3": (b"\x36\x05\x00\x01ax\x00", MALFORMED),
    SUBSCRIBE_FLAGS: (b"\x8f\x06\x00\x01\x00\x01a\x00", MALFORMED),
    "length without end": (b"\x30\xff\xff\xff\xff\x01", MALFORMED),
    "topic beyond the packet": (b"\x30\x03\x00\x09a", MALFORMED),
    "topic that is no UTF-8": (b"\x30\x05\x00\x01\xff\x00x", MALFORMED),
    "packet id 0": (b"\x32\x06\x00\x01a\x00\x00\x00", PROTOCOL_ERROR),
    "subscribe to nothing": (b"\x82\x03\x00\x01\x00", PROTOCOL_ERROR),
    "a packet only servers send": (b"\x20\x03\x00\x00\x00", PROTOCOL_ERROR),
}


@pytest.mark.parametrize(
    "version, what",
    [(version, what) for version in (V31, V311, V5) for what in BROKEN if (version, what) != (V31, SUBSCRIBE_FLAGS)],
)
def test_broken_packets_end_the_connection(dial: Dial, name: str, version: int, what: str) -> None:
    """A broken client would be served on, with whatever its bytes happen to mean [MQTT-4.13.1-1]."""
    client = dial(version)
    client.connect(name)

    client.socket.sendall(BROKEN[what][0])

    assert not [packet for packet in client.expect_end() if not isinstance(packet, Disconnect)]


@pytest.mark.weir_only("2.0.11 names some of them otherwise")
@pytest.mark.parametrize("what", BROKEN)
def test_a_version_5_client_hears_what_was_broken(dial: Dial, name: str, what: str) -> None:
    """Nobody could find the mistake in a client: one close looks like another."""
    client = dial(V5)
    client.connect(name)
    data, code = BROKEN[what]

    client.socket.sendall(data)

    assert [code] == [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_wildcard_in_a_topic_name_is_refused(dial: Dial, name: str, version: int) -> None:
    """A message could be published to many topics at once [MQTT-3.3.2-2]."""
    client = dial(version)
    client.connect(name)

    client.send(Publish(f"{name}/+".encode(), b"x"))

    client.expect_end()


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize(
    "packet", [PingReq(), Publish(b"a", b"x"), Subscribe(1, [Wanted(b"a")])], ids=lambda p: type(p).__name__
)
def test_the_first_packet_must_be_connect(dial: Dial, version: int, packet: Packet) -> None:
    """Somebody could publish without having said who it is [MQTT-3.1.0-1]."""
    client = dial(version)

    client.send(packet)

    assert [] == client.expect_end()


@pytest.mark.parametrize(
    "greeting", [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\x10\x00"]
)
def test_other_protocols_are_closed(dial: Dial, greeting: bytes) -> None:
    """A web browser or a TLS client would be held until it gives up."""
    client = dial(V5)

    client.socket.sendall(greeting)

    client.expect_end()


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_second_connect_ends_the_connection(dial: Dial, name: str, version: int) -> None:
    """A client could change who it is [MQTT-3.1.0-2]."""
    client = dial(version)
    client.connect(name)

    client.send(Connect(version, name))

    client.expect_end()


@pytest.mark.parametrize(
    "protocol, level, answer", [(b"MQTT", 6, b"\x20\x03\x00\x84\x00"), (b"MQTT", 3, b"\x20\x02\x00\x01")]
)
@pytest.mark.weir_only("2.0.11 answers every unknown level as 3.1.1 would")
def test_an_unknown_version_is_answered(dial: Dial, protocol: bytes, level: int, answer: bytes) -> None:
    """A newer client could not learn that it has to speak an older version [MQTT-3.1.2-2]."""
    client = dial(V5)
    body = len(protocol).to_bytes(2, "big") + protocol + bytes([level, 2, 0, 60, 0, 1]) + b"a"

    client.socket.sendall(bytes([0x10, len(body)]) + body)

    assert answer == client.socket.recv(100)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_single_bytes_are_as_good_as_whole_packets(dial: Dial, name: str, version: int) -> None:
    """A client behind a slow line would be misread [MQTT-4.2.0-1]."""
    client = dial(version)
    said: list[Packet] = [
        Connect(version, name),
        Subscribe(1, [Wanted(name.encode(), 1)]),
        Publish(name.encode(), b"x" * 200, 1, packet_id=2),
        PingReq(),
    ]

    other = dial(V5)
    other.connect(f"{name}-other")
    for byte in b"".join(encode(packet, version) for packet in said):
        client.socket.sendall(bytes([byte]))
        other.ping()  # the broker has been round its sockets: the next byte comes alone

    heard = [type(client.receive()).__name__ for _ in range(5)]
    assert ["Ack", "ConnAck", "PingResp", "Publish", "SubAck"] == sorted(heard)


def test_many_packets_in_one_piece_are_all_taken(dial: Dial, name: str) -> None:
    """What follows a packet in the same piece of the stream would be lost."""
    client = dial(V5)
    client.connect(name)
    client.subscribe(name)

    client.socket.sendall(b"".join(encode(Publish(name.encode(), b"%d" % n), V5) for n in range(1000)))

    assert [b"%d" % n for n in range(1000)] == [client.take().payload for _ in range(1000)]


@pytest.mark.weir_only("has no such deadline")
@pytest.mark.parametrize("sent", [b"", b"\x10", b"\x10\x20\x00\x04MQTT"])
def test_who_does_not_connect_is_closed(start_weir: Callable[..., BrokerProcess], dial: Dial, sent: bytes) -> None:
    """Sockets that never say CONNECT would use up our descriptors (3.1.4)."""
    weir = start_weir({"limits.connect_timeout": "200ms"})
    client = dial(V5, port=weir.port)

    client.socket.sendall(sent)

    assert [] == client.expect_end()


def test_one_broken_client_harms_no_other(dial: Dial, name: str) -> None:
    """A malformed packet would take others down with it."""
    good, bad = dial(V5), dial(V5)
    good.connect(f"{name}-good")
    good.subscribe(name, qos=1)
    bad.connect(f"{name}-bad")

    bad.socket.sendall(b"\xff" * 1000)

    bad.expect_end()
    good.publish(name, b"x", 1)
    assert b"x" == good.take().payload


def test_refused_connects_get_an_answer_in_their_own_version(dial: Dial) -> None:
    """A 3.1.1 client without id and clean session would wait in vain, 3.1.1 [MQTT-3.1.3-8]."""
    client = dial(V311)

    client.send(Connect(V311, "", clean_start=False))

    assert ConnAck(False, 2) == client.expect(ConnAck)
    client.expect_end()
