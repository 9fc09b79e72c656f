# What one client may leave with the broker: retained topics, subscriptions, deep and long topics, large packets.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits, Retained
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    Wanted,
    Will,
)
from broker.reasons import CloseReason, DropReason, FilterRefusal
from tests.inprocess import Broker, Client
from tests.protocol.talk import closed, dropped, goodbye, messages, payloads, subscribe

Brokers = Callable[..., Broker]

ONE_EACH = Config(limits=Limits(retained_per_client=1))
ONE_FOR_ALL = Config(retained=Retained(messages=1))
FULL = [(ONE_EACH, DropReason.RETAINED_PER_CLIENT), (ONE_FOR_ALL, DropReason.RETAINED_FULL)]


def retained(broker: Broker) -> list[bytes]:
    """The topics that a newcomer gets messages of."""
    late = broker.connect("late")
    topics = sorted(message.topic for message in subscribe(late, "#"))
    late.drop()
    return topics


def full(brokers: Brokers, config: Config, version: int) -> tuple[Broker, Client, Client]:
    """A broker, a reader of everything, and a client that has retained as much as it may."""
    broker = brokers(config)
    client, reader = broker.connect("client", version), broker.connect("reader")
    client.send(Publish(b"first", b"1", retain=True))
    client.receive()
    subscribe(reader, "#", qos=2)
    return broker, reader, client


@pytest.mark.parametrize(("config", "reason"), FULL)
@pytest.mark.parametrize(("qos", "kind"), [(1, PUBACK), (2, PUBREC)])
def test_who_can_be_told_is_told_that_a_message_cannot_be_retained(
    brokers: Brokers, config: Config, reason: DropReason, qos: int, kind: int
) -> None:
    """A 5.0 client would take for kept what is not, or find delivered what was refused."""
    broker, reader, client = full(brokers, config, V5)
    client.send(Publish(b"second", b"2", qos, True, packet_id=7))

    assert [Ack(kind, 7, 0x97)] == client.receive()
    assert [] == messages(reader.receive())
    assert [b"first"] == retained(broker)
    assert {reason: 1} == dropped(broker)


def test_a_refused_message_of_qos_2_can_be_sent_again_under_its_id(brokers: Brokers) -> None:
    """The id is free after a PUBREC with a failure [MQTT-4.3.3-9]: its next message would be taken for a duplicate."""
    _, reader, client = full(brokers, ONE_EACH, V5)
    client.send(Publish(b"second", b"2", 2, True, packet_id=7))
    client.receive()
    client.send(Publish(b"second", b"3", 2, packet_id=7), Ack(PUBREL, 7))

    assert [Ack(PUBREC, 7), Ack(PUBCOMP, 7)] == client.receive()
    assert [b"3"] == payloads(reader.receive())


@pytest.mark.parametrize(("config", "reason"), FULL)
@pytest.mark.parametrize(
    ("version", "qos", "answer"),
    [
        (V5, 0, []),
        (V31, 0, []),
        (V311, 0, []),
        (V31, 1, [Ack(PUBACK, 7)]),
        (V311, 1, [Ack(PUBACK, 7)]),
        (V31, 2, [Ack(PUBREC, 7)]),
        (V311, 2, [Ack(PUBREC, 7)]),
    ],
)
def test_who_cannot_be_told_has_its_message_delivered(
    brokers: Brokers, config: Config, reason: DropReason, version: int, qos: int, answer: list[Packet]
) -> None:
    """A message would be acknowledged and reach nobody."""
    broker, reader, client = full(brokers, config, version)
    client.send(Publish(b"second", b"2", qos, True, packet_id=7 if qos else 0))

    assert answer == client.receive()
    assert [b"2"] == payloads(reader.receive())
    assert [b"first"] == retained(broker)
    assert {reason: 1} == dropped(broker)


@pytest.mark.parametrize("version", [V311, V5])
def test_what_a_client_retained_counts_after_it_came_back(brokers: Brokers, version: int) -> None:
    """A client would have a new quota for each connection."""
    broker, _, client = full(brokers, ONE_EACH, version)
    client.drop()
    back = broker.connect("client", version)
    back.send(Publish(b"second", b"2", retain=True))
    back.receive()
    assert [b"first"] == retained(broker)
    assert {DropReason.RETAINED_PER_CLIENT: 1} == dropped(broker)

    back.send(Publish(b"first", b"", retain=True), Publish(b"second", b"2", retain=True))
    back.receive()
    assert [b"second"] == retained(broker)


def test_a_will_counts_as_what_its_client_retained(brokers: Brokers) -> None:
    """A client could retain any number of messages by dying."""
    broker = brokers(ONE_EACH)
    for n in range(3):
        dying = broker.connect("client", will=Will(b"will/%d" % n, b"x", 0, True))
        dying.drop()

    assert [b"will/0"] == retained(broker)
    assert {DropReason.RETAINED_PER_CLIENT: 2} == dropped(broker)


REFUSED_FILTERS = [
    (b"a/b/c/d", 0x8F, FilterRefusal.LEVELS),
    (b"$share/g/a/b/c/d", 0x8F, FilterRefusal.LEVELS),
    (b"x" * 21, 0x8F, FilterRefusal.BYTES),
    (b"a/#/b", 0x8F, FilterRefusal.INVALID),
    (b"third", 0x97, FilterRefusal.SUBSCRIPTIONS),
]


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize(("filter", "code", "reason"), REFUSED_FILTERS)
def test_a_filter_that_is_too_much_is_refused_by_its_reason(
    brokers: Brokers, version: int, filter: bytes, code: int, reason: FilterRefusal
) -> None:
    """An operator would not learn which limit a client runs into, nor the client that it does."""
    broker = brokers(Config(limits=Limits(subscriptions=2, topic_levels=3, topic_bytes=20)))
    client = broker.connect("client", version)
    wanted = [Wanted(b"1"), Wanted(b"a/b/c"), Wanted(filter), Wanted(b"1", 1)]
    client.send(Subscribe(1, wanted))

    assert [SubAck(1, [0, 0, code if version == V5 else 0x80, 1])] == client.receive()
    counters = broker.counters
    assert {reason.label: 1} == {label: n for label, n in counters.refused_by_reason.items() if n}
    assert not client.closed


REFUSED_PACKETS = [
    (Publish(b"a/b/c/d", b""), 0x90, CloseReason.TOPIC_LEVELS),
    (Publish(b"x" * 21, b""), 0x90, CloseReason.TOPIC_BYTES),
    (Publish(b"x", bytes(2000), 1, packet_id=1), 0x95, CloseReason.PACKET_TOO_LARGE),
]


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize(("packet", "code", "reason"), REFUSED_PACKETS)
def test_a_packet_that_is_too_much_ends_its_connection_by_its_reason(
    brokers: Brokers, version: int, packet: Publish, code: int, reason: CloseReason
) -> None:
    """A client could have us match thousands of levels, or hold 256 MB, for each of its packets."""
    broker = brokers(Config(limits=Limits(topic_levels=3, topic_bytes=20, packet_bytes=1024)))
    client = broker.connect("client", version)
    client.send(packet)

    assert (code if version == V5 else None) == goodbye(client)
    assert {reason: 1} == closed(broker)


def test_the_unreleased_ids_of_a_former_connection_are_released_one_by_one(brokers: Brokers) -> None:
    """With very many of them, a client of 3.x would get a message twice after it came back, or lose one."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "t")
    client = broker.connect("client", V311, clean_start=False)
    every = range(1, 2001)
    client.send(*(Publish(b"t", b"x", 2, packet_id=n) for n in every))
    client.receive()
    client.drop()
    assert 2000 == len(messages(reader.receive()))

    back = broker.connect("client", V311, clean_start=False)
    back.send(*(Publish(b"t", b"x", 2, dup=True, packet_id=n) for n in every))
    back.receive()
    assert [] == messages(reader.receive())
    back.send(*(Ack(PUBREL, n) for n in every))
    assert [Ack(PUBCOMP, n) for n in every] == back.receive()
    back.send(*(Publish(b"t", b"x", 2, packet_id=n) for n in every))
    back.receive()
    assert 2000 == len(messages(reader.receive()))
