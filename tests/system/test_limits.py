# Limits: what a client told us to respect, and what we do with one that does not respect ours.
from collections.abc import Callable

import pytest

from broker.mqtt import packets
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, Disconnect, Publish
from broker.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SERVER_KEEP_ALIVE,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
)
from tests.system.processes import BrokerProcess
from tests.system.raw import RawClient, payloads

Dial = Callable[..., RawClient]
StartWeir = Callable[..., BrokerProcess]


@pytest.fixture
def publisher(dial: Dial, name: str) -> RawClient:
    client = dial(V5)
    client.connect(f"{name}-publisher")
    return client


@pytest.mark.weir_only("2.0.11 sends two for each acknowledgement")
@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_of_a_client_is_respected(dial: Dial, publisher: RawClient, name: str, qos: int) -> None:
    """A small client would be flooded [MQTT-3.3.4-9], or messages beyond its window be lost."""
    client = dial(V5)
    client.connect(name, properties={RECEIVE_MAXIMUM: 2})
    client.subscribe(name, qos=2)
    sent = [b"%d" % n for n in range(9)]
    for payload in sent:
        publisher.publish(name, payload, qos)

    found = []
    for _ in sent:
        window = waiting(client)
        assert len(window) <= 2
        if not window:
            break
        for message in window:
            client.acknowledge(message)
        found += payloads(window)

    assert sent == found


def waiting(client: RawClient) -> list[Publish]:
    """The messages that the broker sends before it answers a ping."""
    client.send(packets.PingReq())
    messages = []
    while not isinstance(packet := client.receive(), packets.PingResp):
        assert isinstance(packet, Publish), packet
        messages.append(packet)
    return messages


def test_the_receive_maximum_does_not_hold_up_qos_0(dial: Dial, publisher: RawClient, name: str) -> None:
    """A client that owes an acknowledgement would not even get QoS 0 (4.9)."""
    client = dial(V5)
    client.connect(name, properties={RECEIVE_MAXIMUM: 1})
    client.subscribe(f"{name}/#", qos=1)
    publisher.publish(f"{name}/x", b"unacknowledged", 1)
    publisher.publish(f"{name}/x", b"waits", 1)
    publisher.publish(f"{name}/y", b"passes")

    assert [b"unacknowledged", b"passes"] == payloads([client.expect(Publish), client.expect(Publish)])


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_too_large_for_a_client_is_not_sent(dial: Dial, publisher: RawClient, name: str, qos: int) -> None:
    """A client would have to close the connection, or the message behind be lost with it [MQTT-3.1.2-24]."""
    client = dial(V5)
    client.connect(name, properties={MAXIMUM_PACKET_SIZE: 200})
    client.subscribe(name, qos=qos)

    publisher.publish(name, bytes(300), qos)
    publisher.publish(name, b"end", qos)

    assert [] == client.take_until(b"end")


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_silent_client_is_closed_after_one_and_a_half_keep_alives(dial: Dial, name: str, version: int) -> None:
    """Dead clients would stay for ever, or living ones be thrown out too early [MQTT-3.1.2-22]."""
    client = dial(version)
    client.connect(name, keep_alive=1)

    assert 1.4 < client.seconds_until_end()


@pytest.mark.weir_only("2.0.11 closes without saying why")
def test_a_silent_client_hears_why(dial: Dial, name: str) -> None:
    """A 5.0 client could not tell a keep alive time-out (0x8D) from a broken network."""
    client = dial(V5)
    client.connect(name, keep_alive=1)

    assert [Disconnect(0x8D)] == [without_properties(packet) for packet in client.expect_end()]


def test_pings_keep_a_client_alive(dial: Dial, name: str) -> None:
    """A client that keeps the rules would be thrown out [MQTT-3.1.2-20]."""
    clock, client = dial(V5), dial(V5)
    client.connect(name, keep_alive=1)
    clock.connect(f"{name}-clock", keep_alive=2)  # ends after 3 seconds, which two of our silences would exceed

    client.socket.settimeout(0.5)
    clock.socket.settimeout(0.5)
    while not ended(clock):
        client.ping()


def ended(client: RawClient) -> bool:
    """Whether the broker has closed; looks for half a second."""
    try:
        return not client.socket.recv(4096)
    except TimeoutError:
        return False


@pytest.mark.weir_only("its limits are configured otherwise")
def test_connack_tells_what_is_enforced(start_weir: StartWeir, dial: Dial, name: str) -> None:
    """A client would run into limits that nobody told it (3.2.2)."""
    weir = start_weir(
        {
            "limits.receive_maximum": 7,
            "limits.packet_bytes": 5000,
            "limits.topic_alias_maximum": 3,
            "limits.keep_alive": 9,
        }
    )

    told = dial(V5, port=weir.port).connect(name, keep_alive=60).properties

    limits = [told[key] for key in (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, TOPIC_ALIAS_MAXIMUM, SERVER_KEEP_ALIVE)]
    assert [7, 5000, 3, 9] == limits


@pytest.mark.weir_only("its limits are configured otherwise")
def test_more_unacknowledged_than_allowed_is_refused(start_weir: StartWeir, dial: Dial, name: str) -> None:
    """A publisher could make us hold as many QoS 2 ids as it likes (0x93) [MQTT-3.3.4-7]."""
    weir = start_weir({"limits.receive_maximum": 2})
    client = dial(V5, port=weir.port)
    client.connect(name)
    for packet_id in (1, 2, 3):
        client.send(Publish(name.encode(), b"x", 2, packet_id=packet_id))

    assert 0x93 == last_word(client)


@pytest.mark.weir_only("its limits are configured otherwise")
@pytest.mark.parametrize("version", [V311, V5])
def test_a_packet_over_our_limit_is_refused(start_weir: StartWeir, dial: Dial, name: str, version: int) -> None:
    """A client could make us hold a packet of any size (0x95)."""
    weir = start_weir({"limits.packet_bytes": 2000})
    client = dial(version, port=weir.port)
    client.connect(name)

    client.socket.sendall(b"\x30\xff\xff\xff\x7f")  # announces 256 MiB: refused before any of it is there

    assert [0x95] * (version == V5) == [p.code for p in client.expect_end() if isinstance(p, Disconnect)]


def test_a_topic_alias_above_the_maximum_is_refused(dial: Dial, name: str) -> None:
    """A client could fill our memory with aliases (0x94) [MQTT-3.3.2-9]."""
    client = dial(V5)
    most = client.connect(name).properties.get(TOPIC_ALIAS_MAXIMUM, 0)
    assert isinstance(most, int)

    client.send(Publish(name.encode(), b"x", properties={TOPIC_ALIAS: most + 1}))

    assert 0x94 == last_word(client)


@pytest.mark.weir_only("its limits are configured otherwise")
def test_a_connection_over_the_limit_is_told(start_weir: StartWeir, dial: Dial, name: str) -> None:
    """A full broker would hang instead of saying so, or never recover when others have left."""
    weir = start_weir({"limits.connections": 1, "node.workers": 1})  # it is dealt to the workers: each may have one
    first = dial(V5, port=weir.port)
    first.connect(name)

    second = dial(V5, port=weir.port)
    second.send(Connect(V5, f"{name}-2"))
    assert 0x97 == second.expect(ConnAck).code

    first.disconnect()
    dial(V5, port=weir.port).connect(f"{name}-3")


def last_word(client: RawClient) -> int:
    """The reason code of the DISCONNECT before the broker closes."""
    codes = [packet.code for packet in client.expect_end() if isinstance(packet, Disconnect)]
    assert 1 == len(codes), codes
    return codes[0]


def without_properties(packet: packets.Packet) -> packets.Packet:
    return Disconnect(packet.code) if isinstance(packet, Disconnect) else packet
