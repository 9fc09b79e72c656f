# A client that lost messages learns it: by a message on its gap topic, or by properties of the next message.
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from broker.auth.passwords import hash_password
from broker.config.schema import Access, Config, Delivery, Limits
from broker.mqtt.packets import PUBACK, PUBREC, V5, V311, Ack, Properties, Publish, SubAck, Subscribe, Wanted
from broker.mqtt.properties import (
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from broker.protocol.gap_notices import AT_ONCE
from broker.reasons import DropReason
from broker.session.losses import IGNORED, QUIET
from tests.inprocess import Broker, Client
from tests.protocol.talk import acks, dropped, messages, narrow, payloads, subscribe

Brokers = Callable[..., Broker]

ROOT = "$SYS/broker/clients/"
WALL = 1_800_000_000.0
FULL = DropReason.QUEUE_FULL.label
QUEUE = 3
SMALL = Config(limits=Limits(queue=QUEUE))
SLOW = Config(delivery=Delivery(high_watermark=16 * 1024, low_watermark=8 * 1024))
ASKS: Properties = {USER_PROPERTY: [("other", "1"), ("weir-gap", "1")]}


@pytest.fixture
def broker(brokers: Brokers) -> Broker:
    """Its sessions hold QUEUE messages while their clients are away."""
    return begin(brokers, SMALL)


def begin(brokers: Brokers, config: Config) -> Broker:
    broker = brokers(config)
    broker.worker.protocol.gaps._wall = lambda: WALL + broker.clock.now
    return broker


def connect(broker: Broker, client_id: str = "me", version: int = V5, more: Properties | None = None) -> Client:
    """A client with a session that stays."""
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 1000, **(more or {})}
    return broker.connect(client_id, version, clean_start=False, properties=properties if version == V5 else None)


def subscriber(broker: Broker, *filters: str, qos: int = 1, version: int = V5) -> Client:
    client = connect(broker, version=version)
    subscribe(client, *filters, qos=qos)
    return client


def publish(broker: Broker, count: int, topic: str = "t", qos: int = 1, size: int = 1) -> None:
    publisher = broker.connect("publisher")
    for number in range(1, count + 1):
        publisher.send(Publish(topic.encode(), b"%d" % number + bytes(size - 1), qos, packet_id=number if qos else 0))
        publisher.receive()
    publisher.drop()


def gap_of(client_id: str = "me") -> str:
    return f"{ROOT}{client_id}/gap"


def notices(received: list[Publish], client_id: str = "me") -> list[dict[str, Any]]:
    return [json.loads(each.payload) for each in received if each.topic == gap_of(client_id).encode()]


def pairs(message: Publish) -> list[tuple[str, str]]:
    """The user properties of *message* that tell of a gap."""
    found = message.properties.get(USER_PROPERTY, [])
    assert isinstance(found, list)
    return [pair for pair in found if isinstance(pair, tuple) and pair[0].startswith("weir-gap")]


# Notices.


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_that_was_away_learns_what_it_lost(broker: Broker, version: int, qos: int) -> None:
    """It would believe that it has got everything."""
    client = subscriber(broker, "t", version=version)
    client.send(Subscribe(2, [Wanted(gap_of().encode(), qos)]))
    client.receive()
    client.drop()
    broker.clock.now = 2000.0
    publish(broker, QUEUE + 2)
    broker.look_at_gaps()
    received = messages(connect(broker, version=version).inbox)

    first = int((WALL + 2000.0) * 1000)
    gap = {"count": 2, "reasons": {FULL: 2}, "first": first, "last": first, "topics": ["t"]}
    assert [gap] == notices(received)
    assert [qos, 1, 1, 1] == [each.qos for each in received]  # before what is left
    assert [b"3", b"4", b"5"] == [each.payload for each in received[1:]]
    assert not received[0].retain
    assert {DropReason.QUEUE_FULL: 2} == dropped(broker)


def test_a_notice_that_is_not_acknowledged_comes_again(broker: Broker) -> None:
    """A client would lose the news of the loss with its next connection."""
    subscriber(broker, "t", gap_of()).drop()
    publish(broker, QUEUE + 1)
    first = connect(broker)
    (sent,) = [each for each in messages(first.inbox) if each.topic != b"t"]
    first.drop()
    second = connect(broker)
    (again,) = [each for each in messages(second.inbox) if each.topic != b"t"]
    second.send(*[Ack(PUBACK, each.packet_id) for each in messages(second.inbox)])
    second.receive()
    second.drop()

    assert (sent.packet_id, sent.payload, True) == (again.packet_id, again.payload, again.dup)
    assert [] == connect(broker).inbox


@pytest.mark.parametrize("filter", ["$SYS/#", ROOT + "+/gap", ROOT + "#", ROOT + "me/gap", "$SYS/broker/+/+/+"])
def test_nobody_else_reads_a_notice(broker: Broker, filter: str) -> None:
    """Anybody would learn what others are subscribed to, and how they fare."""
    others = [connect(broker, f"other {version}", version) for version in (V311, V5)]
    for other in others:
        subscribe(other, filter, f"$share/group/{filter}", qos=1)
    subscriber(broker, "t", f"$share/group/{gap_of()}").drop()
    publish(broker, QUEUE + 1)
    broker.look_at_gaps()
    received = messages(connect(broker).inbox)
    broker.advance(2)
    broker.look_at_gaps()

    assert [] == [each for other in others for each in other.receive()]
    assert [] == notices(received)  # a shared subscription is for what several may read


def test_a_wildcard_gives_a_client_its_own_notices(broker: Broker) -> None:
    """A client that does not know the id that it was given could not subscribe."""
    client = connect(broker)
    subscribe(client, "t", qos=1)
    client.send(Subscribe(2, [Wanted(f"{ROOT}+/gap".encode(), 0), Wanted(b"$SYS/#", 1)], {11: [7]}))
    client.receive()
    client.drop()
    publish(broker, QUEUE + 1)
    received = messages(connect(broker).inbox)

    assert [1] == [gap["count"] for gap in notices(received)]  # one, although two filters match
    assert (1, [7, 7]) == (received[0].qos, received[0].properties[11])


@pytest.mark.parametrize(("client_id", "level"), [("a/b", "a%2Fb"), ("+", "%2B"), ("#", "%23"), ("50%", "50%25")])
def test_a_client_id_of_any_signs_has_a_topic(broker: Broker, client_id: str, level: str) -> None:
    """A client would get no notices, or those of another one."""
    client = connect(broker, client_id)
    subscribe(client, "t", gap_of(level), qos=1)
    client.drop()
    publish(broker, QUEUE + 1)

    assert [1] == [gap["count"] for gap in notices(messages(connect(broker, client_id).inbox), level)]


@pytest.mark.parametrize("long", ["x" * 65535, "/" * 2000])
def test_a_client_id_that_is_too_long_for_a_topic_gets_none(brokers: Brokers, long: str) -> None:
    """The topic could not be sent; or 64 KiB would be copied for each of 47 filters, each second."""
    broker = begin(brokers, Config(limits=Limits(queue=QUEUE, client_id_bytes=65535, topic_bytes=4096)))
    client = connect(broker, long)
    subscribe(client, "t", f"{ROOT}+/gap", qos=1)
    client.drop()
    publish(broker, QUEUE + 1)
    broker.look_at_gaps()

    assert [b"2", b"3", b"4"] == payloads(connect(broker, long).inbox)


def test_what_was_lost_before_nobody_asked_is_not_told(broker: Broker) -> None:
    """A client that begins to listen would be told of losses of last week."""
    subscriber(broker, "t").drop()
    publish(broker, QUEUE + 2)
    broker.look_at_gaps()
    session = broker.session("me")
    assert session is not None
    assert session.losses is not None
    assert IGNORED == session.losses.state
    client = connect(broker)
    client.send(*[Ack(PUBACK, each.packet_id) for each in messages(client.inbox)])
    subscribe(client, gap_of(), qos=1)
    client.drop()
    publish(broker, QUEUE + 1)
    assert [1] == [gap["count"] for gap in notices(messages(connect(broker).inbox))]


def test_a_slow_reader_is_told_once_it_reads_again(brokers: Brokers) -> None:
    """Whoever reads slowly loses the most, and would be told of it only after a new connection."""
    broker = begin(brokers, SLOW)
    client = subscriber(broker, "t", gap_of(), qos=0)
    narrow(broker)
    client.reading = False
    publish(broker, 200, qos=0, size=1000)
    lost = dropped(broker)[DropReason.NOT_WRITABLE]
    broker.look_at_gaps()
    assert lost > 100
    client.reading = True
    received = messages(client.receive())
    assert [lost] == [gap["count"] for gap in notices(received)]
    assert 200 - lost == len(received) - 1
    publish(broker, 1, qos=0)
    broker.advance(3)
    broker.look_at_gaps()

    assert [b"1"] == payloads(client.receive())  # it is a client like any other again
    session = broker.session("me")
    assert session is not None
    assert session.outbox is not None
    assert session.outbox.writable
    assert not session.outbox.aside
    assert {DropReason.NOT_WRITABLE: lost} == dropped(broker)


def test_a_notice_does_not_wait_in_the_queue_that_is_full(broker: Broker) -> None:
    """A client that falls behind for good would never be told; or the notice would push out another message."""
    client = connect(broker, more={RECEIVE_MAXIMUM: 1})
    subscribe(client, "t", gap_of(), qos=1)
    publish(broker, 1 + QUEUE + 2)
    broker.look_at_gaps()
    assert [b"1"] == payloads(client.receive())  # the window is full
    client.send(Ack(PUBACK, 1))
    received = messages(client.receive())
    assert [2] == [gap["count"] for gap in notices(received)]
    assert 1 == len(received)
    session = broker.session("me")
    assert session is not None
    assert QUEUE == session.waiting()
    client.send(Ack(PUBACK, received[0].packet_id))

    assert [b"4"] == payloads(client.receive())
    assert {DropReason.QUEUE_FULL: 2} == dropped(broker)


def test_a_session_is_noted_once_for_many_losses(broker: Broker) -> None:
    """A flood would fill the list of sessions to look at."""
    subscriber(broker, "t", gap_of()).drop()
    publish(broker, QUEUE + 20)
    session, gaps = broker.session("me"), broker.worker.protocol.gaps

    assert ([session], []) == (list(gaps._noted), list(gaps._again))
    for _ in range(3):
        broker.look_at_gaps()
        publish(broker, 5)
    assert ([], [session]) == (list(gaps._noted), [each for _, each in gaps._again])


def test_a_notice_that_waits_for_the_window_costs_a_flood_nothing(brokers: Brokers) -> None:
    """Each message that is dropped meanwhile would cost what a notice costs, which nobody can be sent."""
    broker = begin(brokers, Config(limits=Limits(pending=0)))
    client = broker.connect("me", V5, properties={RECEIVE_MAXIMUM: 1})
    subscribe(client, "t", gap_of(), qos=1)
    publish(broker, 2)
    broker.look_at_gaps()
    losses = None if (session := broker.session("me")) is None else session.losses
    assert losses is not None
    assert losses.blocked
    last = losses._last
    broker.clock.now += 0.5
    publish(broker, 10)
    assert last == losses._last  # no notice was made, or it would have the time of the latest loss
    client.send(Ack(PUBACK, 1))
    client.receive()
    broker.advance(1)
    broker.look_at_gaps()

    assert [11] == [gap["count"] for gap in notices(messages(client.receive()))]


def test_there_is_one_notice_a_second(broker: Broker) -> None:
    """A client that is overloaded already would get as many notices as it loses messages."""
    client = connect(broker, more={RECEIVE_MAXIMUM: 2})
    subscribe(client, "t", gap_of(), qos=1)
    told = []
    for _ in range(20):
        publish(broker, 10)
        broker.advance(0.2)
        broker.look_at_gaps()
        received = messages(client.receive())
        told += notices(received)
        client.send(*[Ack(PUBACK, each.packet_id) for each in received])
    broker.advance(1)
    broker.look_at_gaps()
    while received := messages(client.receive()):
        told += notices(received)
        client.send(*[Ack(PUBACK, each.packet_id) for each in received])

    assert 4 <= len(told) <= 5
    assert dropped(broker)[DropReason.QUEUE_FULL] == sum(gap["count"] for gap in told)
    for earlier, later in pairwise(told):
        assert earlier["first"] <= earlier["last"] <= later["first"] < later["last"]
    protocol = broker.worker.protocol
    assert len(protocol.gaps._noted) + len(protocol.gaps._again) <= 2


def test_a_session_is_left_alone_once_it_was_told(broker: Broker) -> None:
    """Sessions that lost something once would be looked at for ever."""
    client = subscriber(broker, "t", gap_of())
    client.drop()
    publish(broker, QUEUE + 1)
    client = connect(broker)
    for _ in range(3):
        broker.advance(1)
        broker.look_at_gaps()

    session = broker.session("me")
    assert session is not None
    assert session.losses is not None
    assert (QUIET, 0) == (session.losses.state, session.losses.lost())
    assert [] == [*broker.worker.protocol.gaps._noted, *broker.worker.protocol.gaps._again]


def test_a_limited_number_of_sessions_is_looked_at_at_once(broker: Broker) -> None:
    """A fleet that loses messages at once would hold the loop for seconds."""
    many = AT_ONCE + 10
    for number in range(many):
        client = connect(broker, f"client {number}")
        subscribe(client, "t", qos=1)
        client.drop()
    publish(broker, QUEUE + 1)
    states = []
    for _ in range(2):
        broker.look_at_gaps()
        losses = [session.losses for session in broker.sessions() if session.losses is not None]
        states.append(len([each for each in losses if each.state == IGNORED]))

    assert [AT_ONCE, many] == states


def test_a_client_may_not_publish_a_notice(broker: Broker) -> None:
    """Anybody could make others believe that they lost something."""
    client = subscriber(broker, gap_of())
    liar = connect(broker, "liar")
    for number, qos in enumerate((0, 1, 2)):
        liar.send(Publish(gap_of().encode(), b"lie", qos, packet_id=number, retain=True))
    received = liar.receive()

    assert ([1], [2]) == (acks(received, PUBACK), acks(received, PUBREC))
    assert [0x87, 0x87] == [each.code for each in received if isinstance(each, Ack)]
    assert [] == client.receive()
    assert [] == subscribe(connect(broker, "late"), gap_of())


@pytest.mark.parametrize("room", [90, 120])
def test_a_notice_that_is_too_large_says_less_or_nothing(broker: Broker, room: int) -> None:
    """A client would be sent more than it accepts; or the notice be lost, which would be another gap, for ever."""
    subscriber(broker, "t", gap_of()).drop()
    publish(broker, QUEUE + 1)
    client = connect(broker, more={MAXIMUM_PACKET_SIZE: room})
    for _ in range(3):
        broker.advance(1)
        broker.look_at_gaps()
    told = notices(messages(client.receive()))

    assert [False] * (room == 120) == ["topics" in gap for gap in told]
    assert {DropReason.QUEUE_FULL: 1} == dropped(broker)


def test_an_egress_quota_is_charged_for_a_notice(brokers: Brokers) -> None:
    """Notices would not count, or the quota would lose count of what the client got."""
    broker = begin(brokers, SLOW)
    client = subscriber(broker, "t", gap_of(), qos=0)
    narrow(broker)
    client.reading = False
    publish(broker, 100, qos=0, size=1000)
    session = broker.session("me")
    assert session is not None
    assert session.outbox is not None
    limit = Egress()
    client.reading = True
    client.receive()
    session.outbox.set_egress_limit(limit)
    broker.look_at_gaps()

    assert 1 == len(notices(messages(client.receive())))
    assert [1] == limit.charged
    assert not session.outbox.writable
    session.outbox.end_egress_limit()
    assert session.outbox.writable


class Egress:
    """An egress limit that allows everything."""

    def __init__(self) -> None:
        self.charged: list[int] = []

    def refusal(self) -> DropReason | None:
        return None

    def charge(self, messages: int, size: int) -> None:
        self.charged.append(messages)


# Access rules.

RULES = "topic readwrite t\ntopic readwrite u\n"


class House:
    """A broker with access rules."""

    def __init__(self, brokers: Brokers, folder: Path) -> None:
        self.acl = folder / "acl"
        self.acl.write_text(RULES + "pattern read $SYS/broker/clients/%c/gap\n")
        passwords = folder / "passwords"
        passwords.write_text(f"u:{hash_password(b'u', b'twelve bytes', 1)}\n")
        access = Access(password_file=str(passwords), acl_file=str(self.acl), allow_anonymous=True)
        self.broker = begin(brokers, Config(limits=Limits(queue=QUEUE), access=access))

    def change(self, rules: str) -> None:
        self.acl.write_text(rules)
        self.broker.reload()


@pytest.fixture
def house(brokers: Brokers, tmp_path: Path) -> House:
    return House(brokers, tmp_path)


def test_access_rules_hold_for_notices(house: House) -> None:
    """What an administrator forbids would be told."""
    broker = house.broker
    subscriber(broker, "t", gap_of()).drop()
    other = connect(broker, "other")
    other.send(Subscribe(1, [Wanted(gap_of().encode(), 1)]))
    assert [[0x87]] == [each.codes for each in other.receive() if isinstance(each, SubAck)]
    publish(broker, QUEUE + 1)
    house.change(RULES)

    assert [] == notices(messages(connect(broker).inbox))


def test_topics_that_a_client_may_not_read_any_more_are_not_named(house: House) -> None:
    """A client would learn of topics that were forbidden to it since."""
    broker = house.broker
    subscriber(broker, "t", "u", gap_of()).drop()
    publish(broker, 1, topic="u")
    publish(broker, QUEUE)
    house.change("topic readwrite t\npattern read $SYS/broker/clients/%c/gap\n")
    (gap,) = notices(messages(connect(broker).inbox))

    assert 1 == gap["count"]
    assert "topics" not in gap


# Properties.


def test_the_next_message_after_a_gap_has_properties(broker: Broker) -> None:
    """A client that knows nothing of the topic would not learn of a loss; or others would be told of it."""
    client, other = connect(broker, more=ASKS), connect(broker, "other")
    for each in (client, other):
        subscribe(each, "t", qos=1)
        each.drop()
    broker.clock.now = 2000.0
    publish(broker, QUEUE + 2)
    client = connect(broker, more=ASKS)
    received = messages(client.receive())
    time = str(int((WALL + 2000.0) * 1000))
    told = [("weir-gap-count", "2"), ("weir-gap-first", time), ("weir-gap-last", time), ("weir-gap-reason", FULL)]
    assert [told, [], []] == [pairs(each) for each in received]
    other = connect(broker, "other")  # it is sent the same messages, and has not asked
    assert [[]] * QUEUE == [pairs(each) for each in messages(other.inbox)]
    publish(broker, 1)

    assert [[]] == [pairs(each) for each in messages(client.receive())]
    session = broker.session("me")
    assert session is not None
    assert session.outbox is not None
    assert session.outbox.writable
    assert session.aliases is None


@pytest.mark.parametrize("more", [{}, {USER_PROPERTY: [("weir-gap", "0")]}])
def test_a_client_that_has_not_asked_gets_no_properties(broker: Broker, more: Properties) -> None:
    """A client that refuses user properties it does not know would break."""
    client = connect(broker, more=more)
    subscribe(client, "t", gap_of(), qos=1)
    client.drop()
    publish(broker, QUEUE + 1)
    received = messages(connect(broker, more=more).inbox)

    assert 1 == len(notices(received))
    assert [[]] * (QUEUE + 1) == [pairs(each) for each in received]


def test_a_client_that_asked_for_both_is_told_twice_at_once(broker: Broker) -> None:
    """One way of the two would not work for whoever uses both; or the same gap be told again and again."""
    client = connect(broker, more=ASKS)
    subscribe(client, "t", gap_of(), qos=1)
    client.drop()
    publish(broker, QUEUE + 1)
    client = connect(broker, more=ASKS)
    broker.advance(2)
    broker.look_at_gaps()
    received = messages(client.receive())

    assert [[], ["weir-gap-count"]] == [[name for name, _ in pairs(each)][:1] for each in received[:2]]
    assert 1 == len(notices(received))


def test_a_client_that_is_to_be_told_is_no_slow_reader(broker: Broker) -> None:
    """`weir why` would say that QoS 0 messages are skipped, while nothing is published at all."""
    client = connect(broker, more=ASKS)
    subscribe(client, "t", qos=1)
    client.drop()
    session = broker.session("me")
    assert session is not None
    session.missed(DropReason.EXPIRED, 1)
    connect(broker, more=ASKS)
    assert session.outbox is not None
    assert session.outbox.aside
    assert session.writable()
    reader = broker.diagnostics.facts("me")["reader"]
    assert reader is not None
    assert reader["writable"]
    assert session.ready()


def test_a_burst_of_qos_0_begins_with_properties(brokers: Brokers) -> None:
    """What is delivered in one piece would not tell; or lose its order."""
    broker = begin(brokers, SLOW)
    client = connect(broker, more=ASKS)
    subscribe(client, "t")
    narrow(broker)
    client.reading = False
    publish(broker, 100, qos=0, size=1000)
    broker.look_at_gaps()
    client.reading = True
    client.receive()
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t", b"%d" % number, 0) for number in range(100)])
    received = messages(client.receive())

    assert [b"%d" % number for number in range(100)] == [each.payload for each in received]
    lost = dropped(broker)[DropReason.NOT_WRITABLE]
    assert ("weir-gap-count", str(lost)) == pairs(received[0])[0]
    assert [[]] * 99 == [pairs(each) for each in received[1:]]


NARROW: Properties = {**ASKS, MAXIMUM_PACKET_SIZE: 300}


def owed_large_messages(broker: Broker) -> Client:
    """A client that has lost one message, and is sent others that have no room for properties."""
    client = connect(broker, more=NARROW)
    subscribe(client, "t", qos=1)
    client.drop()
    publish(broker, 1)
    publish(broker, QUEUE, size=280)
    return connect(broker, more=NARROW)


def test_properties_wait_for_a_message_that_has_room(broker: Broker) -> None:
    """A client would be sent a packet that is larger than it accepts, or lose the message [MQTT-3.1.2-24]."""
    client = owed_large_messages(broker)
    assert [[], [], []] == [pairs(each) for each in messages(client.receive())]
    publish(broker, 2)
    received = messages(client.receive())

    assert [b"1", b"2"] == [each.payload for each in received]
    assert "weir-gap-count" in dict(pairs(received[0]))
    assert [] == pairs(received[1])
    assert {DropReason.QUEUE_FULL: 1} == dropped(broker)


def test_properties_that_could_not_be_sent_come_with_the_next_connection(broker: Broker) -> None:
    """A client that leaves too early would not learn what it lost."""
    client = owed_large_messages(broker)
    client.send(*[Ack(PUBACK, each.packet_id) for each in messages(client.inbox)])
    client.receive()
    client.drop()
    publish(broker, 1)

    assert [[("weir-gap-count", "1")]] == [pairs(each)[:1] for each in messages(connect(broker, more=NARROW).inbox)]


def test_topic_aliases_go_on_beside_properties(broker: Broker) -> None:
    """A client would be sent an alias that it does not know, or none any more."""
    more: Properties = {**ASKS, TOPIC_ALIAS_MAXIMUM: 5}
    client = connect(broker, more=more)
    subscribe(client, "t", qos=1)
    client.drop()
    publish(broker, QUEUE + 1)
    received = messages(connect(broker, more=more).inbox)

    assert [b"t", b"", b""] == [each.topic for each in received]
    assert [True, False, False] == [bool(pairs(each)) for each in received]
