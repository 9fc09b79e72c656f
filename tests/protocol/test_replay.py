# Retained messages for a new subscription: in pages, as fast as the reader takes them, and none is lost.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Delivery, Limits
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    V5,
    V311,
    Ack,
    PingReq,
    PingResp,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, RECEIVE_MAXIMUM, SUBSCRIPTION_IDENTIFIER
from broker.net.loop import SLICE
from broker.overload.cost import VISITS_PER_DELIVERY
from broker.protocol.subscribing import PAGE
from tests.inprocess import Broker, Client
from tests.protocol.talk import dropped, messages, narrow, payloads, subscribe

Brokers = Callable[..., Broker]

MANY = 10 * PAGE + 7
TOPICS = [b"r/%03d" % n for n in range(MANY)]
SMALL = Delivery(high_watermark=16 * 1024, low_watermark=8 * 1024)


def retain(broker: Broker, size: int = 0, expiry: int = 0) -> None:
    """A retained message of *size* more bytes for each of TOPICS."""
    publisher = broker.connect("publisher", V5)
    properties = {MESSAGE_EXPIRY_INTERVAL: expiry} if expiry else {}
    for topic in TOPICS:
        publisher.send(Publish(topic, topic + bytes(size), 1, True, packet_id=1, properties=dict(properties)))
    publisher.receive()
    publisher.drop()


def topics(packets: list[Publish]) -> list[bytes]:
    return sorted(packet.topic for packet in packets)


def test_all_retained_messages_come_after_the_suback(brokers: Brokers) -> None:
    """A subscriber would miss what is retained beyond a page, or see it before it knows its subscription."""
    broker = brokers()
    retain(broker)
    client = broker.connect("me")
    client.send(Subscribe(1, [Wanted(b"r/#", 1)]))
    said = client.receive()

    assert 1 + MANY == len(said)
    assert TOPICS == topics(messages(said[1:]))
    assert {(1, True)} == {(message.qos, message.retain) for message in messages(said)}


def test_a_slow_reader_gets_them_all_in_its_own_time(brokers: Brokers) -> None:
    """Retained messages would be skipped like live ones, or all be held in memory for one slow reader."""
    broker = brokers(Config(delivery=SMALL))
    retain(broker, 1000)
    client = broker.connect("me")
    narrow(broker)
    client.reading = False
    client.send(Subscribe(1, [Wanted(b"r/#")]))
    broker.settle()

    assert broker.outbound_budget.used < 16 * 1024 + 2000
    assert broker.counters.publishes_sent < 50
    client.reading = True
    assert TOPICS == topics(messages(client.receive()))
    assert {} == dropped(broker)


@pytest.mark.parametrize("qos", [1, 2])
def test_a_small_window_gets_them_all_as_it_acknowledges(brokers: Brokers, qos: int) -> None:
    """The replay would stop at a full window, or overrun it [MQTT-3.3.4-9]."""
    broker = brokers()
    publisher = broker.connect("publisher", V5)
    for topic in TOPICS:
        publisher.send(Publish(topic, b"x", 2, True, packet_id=1), Ack(6, 1))
    publisher.receive()
    client = broker.connect("me", V5, properties={RECEIVE_MAXIMUM: 3})
    window = subscribe(client, Wanted(b"r/#", qos))
    seen: list[Publish] = []
    while window:
        assert len(window) <= 3
        seen += window
        if qos == 2:
            client.send(*[Ack(PUBREC, message.packet_id) for message in window])
            assert [] == messages(client.receive())
        client.send(*[Ack(PUBCOMP if qos == 2 else PUBACK, message.packet_id) for message in window])
        window = messages(client.receive())

    assert TOPICS == topics(seen)


def test_a_replay_gives_way_to_others(brokers: Brokers) -> None:
    """One subscriber to everything would hold the worker until it has it all."""
    broker = brokers()
    retain(broker)
    client, other = broker.connect("me"), broker.connect("other")
    broker.settle()
    client.send(Subscribe(1, [Wanted(b"r/#")]))
    broker.clock.step = SLICE / 8
    while not broker.counters.publishes_sent:
        broker.loop.turn()
    other.send(PingReq())
    while not other.inbox:
        broker.loop.turn()
        other.pull()

    assert 0 < broker.counters.publishes_sent < MANY
    broker.clock.step = 0.0
    assert TOPICS == topics(messages(client.receive()))


def test_two_replays_are_both_finished_one_after_the_other(brokers: Brokers) -> None:
    """The second filter of a SUBSCRIBE would be forgotten, or their identifiers be mixed up."""
    broker = brokers()
    retain(broker)
    client = broker.connect("me", V5)
    one = subscribe(client, "r/#", identifier=7)
    both = subscribe(client, "r/+", "r/000", identifier=8)

    assert TOPICS == topics(one)
    assert {(7,)} == {tuple(m.properties[SUBSCRIPTION_IDENTIFIER]) for m in one}  # type: ignore[arg-type]
    assert sorted([*TOPICS, b"r/000"]) == topics(both)
    assert {(8,)} == {tuple(m.properties[SUBSCRIPTION_IDENTIFIER]) for m in both}  # type: ignore[arg-type]


def held_replay(broker: Broker) -> Client:
    """A client whose window of one is full with the first retained message."""
    client = broker.connect("me", V5, properties={RECEIVE_MAXIMUM: 1})
    assert 1 == len(subscribe(client, Wanted(b"r/#", 1)))
    return client


def go_on(client: Client, packet_id: int = 1) -> list[Publish]:
    """Acknowledge until nothing comes any more; what came."""
    seen: list[Publish] = []
    client.send(Ack(PUBACK, packet_id))
    while window := messages(client.receive()):
        seen += window
        client.send(*[Ack(PUBACK, message.packet_id) for message in window])
    return seen


def test_what_expires_while_it_waits_is_not_delivered(brokers: Brokers) -> None:
    """A slow reader would be given news that its publisher has withdrawn [MQTT-3.3.2-5]."""
    broker = brokers()
    retain(broker, expiry=5)
    client = held_replay(broker)
    broker.advance(6)

    assert [] == go_on(client)


def test_who_subscribes_again_begins_again_once(brokers: Brokers) -> None:
    """A client that subscribes again and again would have us hold a scan for each, and send all of it each time."""
    broker = brokers()
    retain(broker)
    client = held_replay(broker)
    for _ in range(20):
        client.send(Subscribe(2, [Wanted(b"r/#", 1)]))
    broker.settle()

    assert TOPICS == topics(go_on(client))


def test_who_unsubscribes_is_sent_no_more(brokers: Brokers) -> None:
    """A million retained messages would follow the UNSUBACK [MQTT-3.10.4-2]."""
    broker = brokers()
    retain(broker)
    client = held_replay(broker)
    client.send(Unsubscribe(3, [b"r/#"]))
    broker.settle()

    assert [] == go_on(client)


def test_who_leaves_in_the_middle_is_forgotten(brokers: Brokers) -> None:
    """A replay for nobody would go on, or an error end the worker."""
    broker = brokers(Config(delivery=SMALL, limits=Limits(session_expiry=60.0)))
    retain(broker)
    client = broker.connect("me", V311, clean_start=False)
    subscribe(client, "r/none")
    client.reading = False
    client.send(Subscribe(1, [Wanted(b"r/#", 1)]))
    broker.clock.step = SLICE / 4
    broker.loop.turn()
    broker.clock.step = 0.0
    client.drop()
    back = broker.connect("me", V311, clean_start=False)
    again = messages(back.receive())

    assert all(message.dup or message.retain for message in again)
    back.send(PingReq())
    assert [PingResp()] == back.receive()


def test_live_messages_come_between_retained_ones(brokers: Brokers) -> None:
    """A subscriber would be deaf until the last retained message is through."""
    broker = brokers()
    retain(broker)
    client = held_replay(broker)
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"r/live", b"now"))

    assert [b"now"] == payloads(client.receive())


@pytest.mark.parametrize(("handling", "first", "second"), [(0, True, True), (1, True, False), (2, False, False)])
def test_retain_handling_is_obeyed(brokers: Brokers, handling: int, first: bool, second: bool) -> None:
    """Clients would be sent retained messages they asked not to be sent [MQTT-3.3.1-9] to [MQTT-3.3.1-11]."""
    broker = brokers()
    retain(broker)
    client = broker.connect("me", V5)
    wanted = Wanted(b"r/001", 1, retain_handling=handling)

    assert [b"r/001"] * first == payloads(subscribe(client, wanted))
    assert [b"r/001"] * second == payloads(subscribe(client, wanted))


def test_a_replay_that_finds_nothing_is_paid_for(brokers: Brokers) -> None:
    """A client could have a million topics searched again and again, and pay as for a ping."""
    broker = brokers()
    retain(broker)
    client = broker.connect("me")
    session = broker.session("me")
    assert session is not None
    account = broker.worker.protocol.protection.find("me").account  # type: ignore[union-attr]
    before = account.spent
    client.send(Subscribe(1, [Wanted(b"+/+/nothing", 1)]))
    assert 1 == len(client.receive())
    client.send(PingReq())  # what a replay has cost is charged with the next packet
    client.receive()

    assert account.spent - before >= MANY // VISITS_PER_DELIVERY
