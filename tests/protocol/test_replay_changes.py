# Retained messages that change, or whose reader goes away, while they wait for a slow reader.
from collections.abc import Callable
from typing import cast

from broker.mqtt.packets import PUBACK, V5, Ack, Disconnect, Properties, Publish, Subscribe, Wanted
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, RECEIVE_MAXIMUM, SESSION_EXPIRY_INTERVAL
from broker.protocol.connection import Connection
from tests.inprocess import Broker, Client
from tests.protocol.talk import messages, payloads, subscribe

Brokers = Callable[..., Broker]
TOPICS = [b"r/%d" % n for n in range(5)]


def retain(broker: Broker, *packets: Publish) -> None:
    publisher = broker.connect("publisher")
    publisher.send(*packets)
    publisher.receive()
    publisher.drop()


def connect(broker: Broker, *, clean_start: bool = False) -> Client:
    """A client that takes one message at a time, and whose session lasts for 60 s."""
    properties: Properties = {RECEIVE_MAXIMUM: 1, SESSION_EXPIRY_INTERVAL: 60}
    return broker.connect("me", V5, clean_start=clean_start, properties=properties)


def waiting(broker: Broker) -> tuple[Client, Publish]:
    """A client that has the first of five retained messages and has not acknowledged it, and that message."""
    retain(broker, *[Publish(topic, b"old", 1, True, packet_id=1) for topic in TOPICS])
    client = connect(broker)
    (first,) = subscribe(client, Wanted(b"r/#", 1))
    return client, first


def take_all(client: Client, packet_id: int) -> list[Publish]:
    """Acknowledge until nothing comes any more; what came."""
    seen: list[Publish] = []
    client.send(Ack(PUBACK, packet_id))
    while window := messages(client.receive()):
        seen += window
        client.send(*[Ack(PUBACK, message.packet_id) for message in window])
    return seen


def replays(broker: Broker, client_id: str) -> int:
    """How many replays wait for that client's connection."""
    for stream in broker.streams():
        connection = cast(Connection, stream)
        if connection.session is not None and connection.session.client_id == client_id:
            return len(connection.replays or ())
    return 0


def test_what_is_replaced_while_it_waits_is_sent_as_it_is_then(brokers: Brokers) -> None:
    """A slow reader would be told what was true when it subscribed, or be sent both, the old one last."""
    broker = brokers()
    client, first = waiting(broker)
    retain(broker, *[Publish(topic, b"new", retain=True) for topic in TOPICS if topic != first.topic])
    live = messages(client.receive())
    rest = take_all(client, first.packet_id)

    assert [b"new"] * 4 == payloads(live)  # it has subscribed, so it hears them at once, at QoS 0
    assert [(b"new", 0, True)] * 4 == [(m.payload, m.qos, m.retain) for m in rest]
    assert sorted(set(TOPICS) - {first.topic}) == sorted(message.topic for message in rest)


def test_what_is_deleted_while_it_waits_is_not_sent(brokers: Brokers) -> None:
    """A slow reader would see what is gone, and nobody would ever take it back."""
    broker = brokers()
    client, first = waiting(broker)
    deleted, left = [[t for t in TOPICS if t != first.topic][at] for at in (slice(0, 3), slice(3, 4))]
    retain(broker, *[Publish(topic, b"", retain=True) for topic in deleted])
    assert [b""] * 3 == payloads(client.receive())

    assert left == [message.topic for message in take_all(client, first.packet_id)]


def test_what_is_replaced_by_a_shorter_life_expires_while_it_waits(brokers: Brokers) -> None:
    """The life of the message that was there before would be taken for that of its successor [MQTT-3.3.2-5]."""
    broker = brokers()
    client, first = waiting(broker)
    publisher = broker.connect("publisher", V5)
    (one, *_) = set(TOPICS) - {first.topic}
    publisher.send(Publish(one, b"brief", retain=True, properties={MESSAGE_EXPIRY_INTERVAL: 5}))
    assert [b"brief"] == payloads(client.receive())
    broker.advance(6)

    assert sorted(set(TOPICS) - {first.topic, one}) == sorted(m.topic for m in take_all(client, first.packet_id))


def test_a_session_that_comes_back_gets_the_rest(brokers: Brokers) -> None:
    """What a client subscribed to would be missing for good, because its connection broke at the wrong time."""
    broker = brokers()
    client, first = waiting(broker)
    client.drop()
    back = connect(broker)
    (again,) = messages(back.receive())

    assert (first.topic, True) == (again.topic, again.dup)
    assert sorted(set(TOPICS) - {first.topic}) == sorted(m.topic for m in take_all(back, again.packet_id))


def test_a_session_that_is_taken_over_gets_the_rest(brokers: Brokers) -> None:
    """The same for a client that is back before we know that it was away."""
    broker = brokers()
    _, first = waiting(broker)
    back = connect(broker)
    (again,) = messages(back.receive())

    assert sorted(set(TOPICS) - {first.topic}) == sorted(m.topic for m in take_all(back, again.packet_id))


def test_a_session_that_begins_anew_gets_nothing_of_the_former(brokers: Brokers) -> None:
    """A client would be sent what it has not subscribed to [MQTT-3.1.2-4]."""
    broker = brokers()
    client, _ = waiting(broker)
    client.drop()
    back = connect(broker, clean_start=True)

    assert [] == back.receive()
    assert 0 == replays(broker, "me")


def test_sessions_that_do_not_come_back_leave_no_replay(brokers: Brokers) -> None:
    """Each would leave a scan and a page of topics behind for ever."""
    broker = brokers()
    client, _ = waiting(broker)
    client.drop()
    assert 1 == len(broker.session_lifecycle.replays)
    broker.advance(61)
    assert 0 == len(broker.session_lifecycle.replays)
    later = connect(broker)
    assert 1 == len(subscribe(later, Wanted(b"r/#", 1)))
    later.send(Disconnect(0, {SESSION_EXPIRY_INTERVAL: 0}))
    later.receive()

    assert 0 == len(broker.session_lifecycle.replays)


def test_to_subscribe_again_and_again_costs_one_replay(brokers: Brokers) -> None:
    """A client that does not acknowledge could make us hold a scan for each of any number of SUBSCRIBEs."""
    broker = brokers()
    client, first = waiting(broker)
    for packet_id in range(2, 200):
        client.send(Subscribe(packet_id, [Wanted(b"r/#", 1), Wanted(b"r/+", 1)]))
    client.receive()

    assert 2 == replays(broker, "me")
    assert 2 * len(TOPICS) == len(take_all(client, first.packet_id))
