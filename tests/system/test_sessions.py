# Sessions: what outlives a connection, who owns it, and in which order what waited comes out.
from collections.abc import Callable

import pytest

from broker.mqtt import packets
from broker.mqtt.packets import V5, V31, V311, Ack, ConnAck, Connect, Disconnect, Publish
from broker.mqtt.properties import ASSIGNED_CLIENT_IDENTIFIER, SESSION_EXPIRY_INTERVAL
from tests.system.raw import RawClient, payloads

Dial = Callable[..., RawClient]
KEPT: packets.Properties = {SESSION_EXPIRY_INTERVAL: 300}
TAKEN_OVER = 0x8E


@pytest.fixture
def publisher(dial: Dial, name: str) -> RawClient:
    client = dial(V5)
    client.connect(f"{name}-publisher")
    return client


def resume(dial: Dial, name: str, version: int = V5) -> tuple[RawClient, bool]:
    """Connect to the kept session *name*: (client, session present)."""
    client = dial(version)
    return client, client.connect(name, clean_start=False, properties=KEPT).session_present


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_messages_wait_for_a_session_that_is_away(dial: Dial, publisher: RawClient, name: str, version: int) -> None:
    """QoS 1 and 2 messages would be lost, doubled or out of order while a client is away.

    [MQTT-4.5.0-1], [MQTT-4.6.0-6], 3.1.1 [MQTT-3.1.2-5]
    """
    client, present = resume(dial, name, version)
    assert not present
    client.subscribe(f"{name}/#", qos=2)
    client.disconnect()
    for n in range(10):
        publisher.publish(f"{name}/x", b"%d" % n, qos=1 + n % 2)

    client, present = resume(dial, name, version)

    assert present or version == V31  # 3.1 has no such flag
    publisher.publish(f"{name}/x", b"end", qos=1)
    assert [b"%d" % n for n in range(10)] == payloads(client.take_until(b"end"))


def test_a_clean_start_ends_the_session(dial: Dial, publisher: RawClient, name: str) -> None:
    """Old subscriptions would survive a clean start [MQTT-3.1.2-4]."""
    client, _ = resume(dial, name)
    client.subscribe(f"{name}/old", qos=1)
    client.disconnect()
    publisher.publish(f"{name}/old", b"old", qos=1)

    client = dial(V5)
    assert not client.connect(name).session_present

    client.subscribe(f"{name}/new")
    publisher.publish(f"{name}/old", b"old", qos=1)
    publisher.publish(f"{name}/new", b"end")
    assert [] == client.take_until(b"end")


def test_a_session_without_expiry_ends_with_its_connection(dial: Dial, name: str) -> None:
    """Sessions that nobody wanted kept would pile up [MQTT-4.1.0-2]."""
    client = dial(V5)
    client.connect(name, clean_start=False)
    client.subscribe(name, qos=1)
    client.disconnect()

    assert not dial(V5).connect(name, clean_start=False).session_present


def test_disconnect_may_change_the_expiry(dial: Dial, name: str) -> None:
    """A client could not give up its session when it leaves (5.0, 3.14.2.2.2)."""
    client, _ = resume(dial, name)
    client.disconnect(properties={SESSION_EXPIRY_INTERVAL: 0})

    _, present = resume(dial, name)
    assert not present


def test_what_was_not_acknowledged_comes_again(dial: Dial, publisher: RawClient, name: str) -> None:
    """A message in flight when the line broke would be lost, or not be told from a new one [MQTT-4.4.0-1]."""
    client, _ = resume(dial, name)
    client.subscribe(name, qos=2)
    publisher.publish(name, b"one", qos=1)
    publisher.publish(name, b"two", qos=2)
    first = [client.expect(Publish), client.expect(Publish)]
    client.close()

    client, _ = resume(dial, name)

    again = [client.take(), client.take()]
    assert [(m.payload, m.packet_id, True) for m in first] == [(m.payload, m.packet_id, m.dup) for m in again]


def test_a_pubrel_comes_again(dial: Dial, publisher: RawClient, name: str) -> None:
    """A QoS 2 exchange that broke after PUBREC would start anew, and the message be seen twice [MQTT-4.3.3-6]."""
    client, _ = resume(dial, name)
    client.subscribe(name, qos=2)
    publisher.publish(name, b"once", qos=2)
    message = client.expect(Publish)
    client.send(Ack(packets.PUBREC, message.packet_id))
    client.expect_ack(packets.PUBREL, message.packet_id)
    client.close()

    client, _ = resume(dial, name)

    client.expect_ack(packets.PUBREL, message.packet_id)
    client.send(Ack(packets.PUBCOMP, message.packet_id))
    client.ping()


def test_a_qos_2_message_sent_twice_arrives_once(dial: Dial, name: str) -> None:
    """Exactly once would be at least once when the publisher lost our PUBREC [MQTT-4.3.3-10]."""
    subscriber = dial(V5)
    subscriber.connect(f"{name}-subscriber")
    subscriber.subscribe(name, qos=2)
    client, _ = resume(dial, f"{name}-publisher")
    client.send(Publish(name.encode(), b"once", 2, packet_id=7))
    client.expect_ack(packets.PUBREC, 7)
    client.close()

    client, _ = resume(dial, f"{name}-publisher")
    client.send(Publish(name.encode(), b"once", 2, dup=True, packet_id=7))
    client.expect_ack(packets.PUBREC, 7)
    client.send(Ack(packets.PUBREL, 7))
    client.expect_ack(packets.PUBCOMP, 7)
    client.publish(name, b"end", qos=1)

    assert [b"once"] == payloads(subscriber.take_until(b"end"))


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_second_connection_takes_over(dial: Dial, publisher: RawClient, name: str, version: int) -> None:
    """Two connections would own one session [MQTT-3.1.4-3]."""
    first, _ = resume(dial, name, version)
    first.subscribe(name, qos=1)

    second, present = resume(dial, name, version)

    assert present or version == V31
    first.expect_end()
    publisher.publish(name, b"to the second", qos=1)
    assert b"to the second" == second.take().payload


@pytest.mark.weir_only("2.0.11 only closes")
def test_the_connection_that_was_taken_over_hears_why(dial: Dial, name: str) -> None:
    """A client would come back at once, and the two throw each other out for ever [MQTT-3.1.4-3]."""
    first, _ = resume(dial, name)

    resume(dial, name)

    assert [TAKEN_OVER] == [packet.code for packet in first.expect_end() if isinstance(packet, Disconnect)]


def test_the_broker_assigns_a_client_id(dial: Dial) -> None:
    """A 5.0 client without an id would not know how to come back [MQTT-3.1.3-7]."""
    clients = [dial(V5) for _ in range(3)]

    ids = {client.connect("").properties[ASSIGNED_CLIENT_IDENTIFIER] for client in clients}

    assert 3 == len(ids)


def test_an_assigned_client_id_leads_back_to_its_session(dial: Dial) -> None:
    """The id that we gave would not name the session that we keep."""
    client = dial(V5)
    given = client.connect("", clean_start=False, properties=KEPT).properties[ASSIGNED_CLIENT_IDENTIFIER]
    client.disconnect()

    assert isinstance(given, str)
    assert resume(dial, given)[1]


@pytest.mark.parametrize("version, clean, code", [(V311, True, 0), (V311, False, 2), (V31, True, 2)])
def test_an_empty_client_id_before_5(dial: Dial, version: int, clean: bool, code: int) -> None:
    """A session without a name would be kept, 3.1.1 [MQTT-3.1.3-8]; 3.1 knows no empty id at all."""
    client = dial(version)
    client.send(Connect(version, "", clean))

    assert code == client.expect(ConnAck).code
