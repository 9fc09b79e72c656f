import pytest

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
)
from broker.mqtt.properties import RECEIVE_MAXIMUM, SERVER_KEEP_ALIVE, USER_PROPERTY
from broker.mqtt.stream import PacketReader
from broker.reasons import ProtocolError
from cli.load.client import NEW, UP, Client, Refused
from cli.load.histogram import Histogram
from cli.load.publisher import Publisher
from cli.load.subscriber import Subscriber
from tests.load.talk import NOW, RUN, TOPIC, Seen, hear, publisher, said, said_bytes, subscriber

VERSIONS = [V31, V311, V5]


def published(count: int, qos: int = 1, version: int = V5, payload: int = 40) -> list[Publish]:
    """What a publisher sends, as packets."""
    one = publisher(version=version, qos=qos, payload=payload, window=count)
    one.publish(count, NOW)
    return [packet for packet in said(one) if isinstance(packet, Publish)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_connects_and_subscribes(version: int) -> None:
    """No load could begin, or one would publish before its subscribers are there."""
    connect = Connect(version, "s", keep_alive=60, user_name="ann", password=b"x")
    one = Subscriber(connect, TOPIC, 1, RUN, Histogram(), Seen())

    one.open()
    assert [connect] == list(PacketReader(0, 1 << 20).feed(said_bytes(one)))
    hear(one, [ConnAck(False)])
    assert [Subscribe(1, [Wanted(TOPIC, 1)])] == said(one)
    assert UP != one.state
    hear(one, [SubAck(1, [1])])
    assert UP == one.state


def test_refusals_are_told_with_their_code() -> None:
    """A broker that says no would look like one that is broken."""
    refused: list[tuple[Client, Packet, tuple[str, int]]] = [
        (Publisher(Connect(V5, "p"), 0, TOPIC, 1, b"", RUN, 1, 1, 1), ConnAck(False, 0x87), ("CONNACK", 0x87)),
        (publisher(), Disconnect(0x8B), ("DISCONNECT", 0x8B)),
    ]
    waiting = Subscriber(Connect(V5, "s"), TOPIC, 1, RUN, Histogram(), Seen())
    waiting.open()
    hear(waiting, [ConnAck(False)])
    refused.append((waiting, SubAck(1, [0x87]), ("SUBACK", 0x87)))

    for client, packet, expected in refused:
        if client.state == NEW:
            client.open()
        with pytest.raises(Refused) as error:
            hear(client, [packet])
        assert expected == (error.value.kind, error.value.code)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_no_mqtt_is_said_to_be_none(version: int) -> None:
    """A web server would be waited for until the time is up."""
    one = Publisher(Connect(version, "p"), 0, TOPIC, 1, b"", RUN, 1, 1, 1)
    one.open()
    with pytest.raises(ProtocolError):
        one.take(b"HTTP/1.1 400 Bad Request\r\n\r\n", NOW)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("payload", [16, 40, 127, 128, 20_000])
def test_messages_are_measured_from_the_publisher_to_the_subscriber(version: int, qos: int, payload: int) -> None:
    """Figures would be made up: each message says when it was meant to be sent, and is counted once."""
    sender = publisher(version=version, qos=qos, payload=payload)
    sender.publish(2, NOW)
    sender.publish(1, NOW + 300)
    data = said_bytes(sender)
    seen, latencies = Seen(), Histogram()
    reader = subscriber(seen, latencies, version=version, qos=qos)

    reader.take(data, NOW + 1000)

    assert {7: 3} == seen.by_publisher
    assert (3, 1000, 2700) == (latencies.count, latencies.greatest, latencies.total)
    kind = {1: PUBACK, 2: PUBREC}.get(qos)
    assert ([Ack(kind, n) for n in (1, 2, 3)] if kind else []) == said(reader)
    assert (0, 0) == (seen.duplicates, reader.disordered)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_stream_may_be_cut_anywhere(version: int, qos: int) -> None:
    """A packet that comes in two pieces would be lost, or end the load as no MQTT."""
    data = b"".join(encode(message, version) for message in published(3, qos, version))
    for size in range(1, len(data)):
        seen = Seen()
        reader = subscriber(seen, version=version, qos=qos)
        for at in range(0, len(data), size):
            reader.take(data[at : at + size], NOW)
        assert {7: 3} == seen.by_publisher
        assert qos == 0 or 3 == len(said(reader))


def test_qos_2_goes_its_four_steps() -> None:
    """A broker would wait for the end of every message."""
    sender = publisher(qos=2)
    sender.publish(2, NOW)
    said(sender)
    hear(sender, [Ack(PUBREC, 1), Ack(PUBREC, 2, 0x10)])  # the second with a code: nobody subscribes
    assert [Ack(PUBREL, 1), Ack(PUBREL, 2)] == said(sender)
    assert 2 == sender.unacknowledged
    hear(sender, [Ack(PUBCOMP, 1), Ack(PUBCOMP, 2)])
    assert 0 == sender.unacknowledged

    reader = subscriber(Seen(), qos=2)
    hear(reader, published(1, qos=2))
    assert [Ack(PUBREC, 1)] == said(reader)
    hear(reader, [Ack(PUBREL, 1)])
    assert [Ack(PUBCOMP, 1)] == said(reader)


def test_a_window_waits_for_deliveries() -> None:
    """A closed loop would not be closed."""
    one = publisher(qos=0, window=3, readers=2, copies=2)
    assert 3 == one.room()
    one.publish(3, NOW)
    one.delivered(1, NOW)
    assert 0 == one.room()  # half a message is still under way
    one.delivered(3, NOW)
    assert 2 == one.room()
    one.quota = 4
    assert 1 == one.room()


def test_without_subscribers_a_window_waits_for_acknowledgements() -> None:
    """A load that only publishes would stand still, or not be held by its window."""
    one = publisher(window=2, readers=0, copies=0)
    one.publish(2, NOW)
    assert 0 == one.room()
    hear(one, [Ack(PUBACK, 1), Ack(PUBACK, 2, 0x10)])
    assert 2 == one.room()


def test_the_brokers_receive_maximum_is_kept() -> None:
    """A broker would have to close the connection [MQTT-3.3.4-7]; Mosquitto's default is 20."""
    one = publisher(window=100, properties={RECEIVE_MAXIMUM: 20})
    assert 20 == one.room()
    one.publish(20, NOW)
    one.delivered(20, NOW)
    assert 0 == one.room()
    hear(one, [Ack(PUBACK, packet_id) for packet_id in (1, 2, 3)])
    assert 3 == one.room()


def test_packet_ids_go_round_and_are_never_0() -> None:
    """The 65 536th message would break MQTT [MQTT-2.2.1-3]."""
    one = publisher(qos=1, payload=16)
    one.sent = 65_533
    one.publish(4, NOW)
    assert [65_534, 65_535, 1, 2] == [packet.packet_id for packet in said(one) if isinstance(packet, Publish)]


def test_duplicates_and_disorder_are_told_apart() -> None:
    """A message that comes late would count as one that came twice, and its loss be hidden."""
    messages = published(5)
    seen = Seen()
    reader = subscriber(seen)
    hear(reader, [messages[n] for n in (0, 3, 1, 1, 0, 4)])

    assert {7: 6} == seen.by_publisher
    assert (2, 1) == (seen.duplicates, reader.disordered)


def test_a_sequence_goes_on_after_its_greatest_number() -> None:
    """After 2**32 messages of one publisher everything would be a duplicate."""
    one = publisher(qos=0, window=10)
    one.sent = 2**32 - 2
    one.publish(4, NOW)
    data = said_bytes(one)
    seen = Seen()
    reader = subscriber(seen, qos=0)
    reader._next[7] = 2**32 - 2
    reader.take(data, NOW)
    assert (0, 0) == (seen.duplicates, reader.disordered)


def test_messages_of_others_are_acknowledged_and_not_measured() -> None:
    """Who loads a topic that is in use would measure nonsense; and unacknowledged messages would block the broker."""
    seen, latencies = Seen(), Histogram()
    reader = subscriber(seen, latencies)
    hear(reader, [Publish(TOPIC, b"22.5", 1, packet_id=5), Publish(TOPIC, b"other run" * 4, 2, packet_id=6)])

    assert (2, 0, {}) == (reader.foreign, latencies.count, seen.by_publisher)
    assert [Ack(PUBACK, 5), Ack(PUBREC, 6)] == said(reader)


def test_a_message_with_properties_is_measured() -> None:
    """Brokers may add properties; their messages would be lost to the measurement."""
    (message,) = published(1)
    message.properties = {USER_PROPERTY: [("broker", "x")]}
    seen, latencies = Seen(), Histogram()
    reader = subscriber(seen, latencies)
    hear(reader, [message], NOW + 50)

    assert ({7: 1}, 50) == (seen.by_publisher, latencies.greatest)
    assert [Ack(PUBACK, 1)] == said(reader)


def test_a_refused_message_is_counted_with_its_code() -> None:
    """A broker that takes nothing would look like the fastest of all."""
    one = publisher()
    one.publish(2, NOW)
    hear(one, [Ack(PUBACK, 1, 0x97), Ack(PUBACK, 2)])
    assert (1, 0x97, 0) == (one.refused, one.refusal, one.unacknowledged)


def test_a_lost_connection_owes_nothing() -> None:
    """After a reconnect a window would stand still for ever, or half a packet be read with the new stream."""
    one = publisher(window=2)
    one.publish(2, NOW)
    one.take(b"\x40\x02", NOW)
    one.lost()
    assert (NEW, 0, 0, []) == (one.state, one.room(), one.unacknowledged, one.out)
    one.open()
    hear(one, [ConnAck(False)])
    assert 2 == one.room()


def test_the_brokers_keep_alive_counts_and_pings_are_sent() -> None:
    """Idle subscribers would be closed by the broker [MQTT-3.1.2-21]."""
    one = publisher(properties={SERVER_KEEP_ALIVE: 7})
    one.ping()
    assert (7, [PingReq()]) == (one.keep_alive, said(one))
