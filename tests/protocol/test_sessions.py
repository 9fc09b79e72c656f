# Which session a CONNECT leads to, and what its CONNACK says of it.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    V5,
    V31,
    V311,
    ConnAck,
    Connect,
    Disconnect,
    Properties,
    Publish,
    Subscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    REQUEST_RESPONSE_INFORMATION,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    WILL_DELAY_INTERVAL,
)
from tests.inprocess import Broker
from tests.protocol.talk import messages, payloads, subscribe

Brokers = Callable[..., Broker]
VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])
ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
BYTE_OF_FLAGS = 9  # of a CONNECT 3.1.1 or 5.0


def kept(version: int) -> Properties:
    return {SESSION_EXPIRY_INTERVAL: 60} if version == V5 else {}


@VERSIONS
def test_a_session_goes_on_or_begins(brokers: Brokers, version: int) -> None:
    """A client would lose its subscriptions [MQTT-3.1.2-5], 3.1.1 [MQTT-3.1.2-4], or not be let in [MQTT-3.1.2-6].

    Or not know which of the two it was [MQTT-3.2.2-3], [MQTT-3.1.4-4], [MQTT-3.1.4-5].
    """
    broker = brokers()
    first = broker.connect("me", version, clean_start=False, properties=kept(version))
    subscribe(first, "t", qos=1)
    first.drop()
    second = broker.connect("me", version, clean_start=False, properties=kept(version))
    second.send(Publish(b"t", b"x"))

    assert [(False, 0), (version != V31, 0)] == [(c.connack.session_present, c.connack.code) for c in (first, second)]
    assert [b"x"] == payloads(second.receive())


@VERSIONS
def test_a_clean_session_is_of_one_connection(brokers: Brokers, version: int) -> None:
    """A client that begins anew would find what it left behind [MQTT-3.1.2-4], [MQTT-3.2.2-2].

    Or leave something behind that nobody asked for, 3.1.1 [MQTT-3.1.2-6].
    """
    broker = brokers()
    broker.connect("me", version, clean_start=False, properties=kept(version)).drop()
    clean = broker.connect("me", version)
    subscribe(clean, "t", qos=1)
    clean.drop()
    later = broker.connect("me", version, clean_start=False)
    later.send(Publish(b"t", b"x"))

    assert not clean.connack.session_present
    assert not later.connack.session_present
    assert [] == payloads(later.receive())


@VERSIONS
def test_connack_is_the_first_packet_and_the_only_one_of_its_kind(brokers: Brokers, version: int) -> None:
    """A client would be sent messages of a session that it does not know it has [MQTT-3.2.0-1], [MQTT-3.2.0-2]."""
    broker = brokers()
    first = broker.connect("me", version, clean_start=False, properties=kept(version))
    subscribe(first, "t", qos=1)
    first.drop()
    broker.connect("publisher").send(*[Publish(b"t", b"%d" % n, 1, packet_id=n + 1) for n in range(3)])
    broker.settle()
    client = broker.open(version)
    client.send(Connect(version, "me", False, properties=kept(version)))

    assert [ConnAck, Publish, Publish, Publish] == [type(packet) for packet in client.receive()]


@pytest.mark.parametrize("version", [V311, V5])
def test_plain_ids_are_taken(brokers: Brokers, version: int) -> None:
    """A client whose id every broker has to take would be refused [MQTT-3.1.3-5]."""
    broker = brokers(Config(limits=Limits(client_id_bytes=23)))
    names = [ALPHABET[n : n + 23] for n in range(0, len(ALPHABET), 13)] + ["a", "0"]

    assert [0] * len(names) == [broker.connect(name, version).connack.code for name in names]


def test_an_id_that_we_gave_is_as_good_as_another(brokers: Brokers) -> None:
    """A 5.0 client could not come back to the session that it was given [MQTT-3.1.3-7]."""
    broker = brokers()
    first = broker.connect("", V5, clean_start=False, properties=kept(V5))
    name = first.connack.properties[ASSIGNED_CLIENT_IDENTIFIER]
    assert isinstance(name, str)
    first.drop()

    assert broker.connect(name, V5, clean_start=False).connack.session_present


def test_a_session_belongs_to_its_id_and_to_no_other(brokers: Brokers) -> None:
    """Clients whose ids look alike would share a session [MQTT-3.1.3-2]."""
    broker = brokers()
    names = ["me", "Me", "me ", "m\u00e9", "me\u0301"]
    for name in names:
        broker.connect(name, V311, clean_start=False)

    assert len(names) == broker.session_count()
    assert len(names) == broker.connected


def test_connack_says_what_was_granted_and_nothing_else(brokers: Brokers) -> None:
    """A client would be sent response information [MQTT-3.1.2-28] or a method [MQTT-4.12.0-6] that it did not ask for.

    Or a reason string [MQTT-3.2.2-19] or user properties [MQTT-3.2.2-20] that it has no room for.
    """
    asked: Properties = {REQUEST_RESPONSE_INFORMATION: 0, REQUEST_PROBLEM_INFORMATION: 1}
    client = brokers().connect("me", V5, properties=asked)

    assert {MAXIMUM_PACKET_SIZE, TOPIC_ALIAS_MAXIMUM} == client.connack.properties.keys() - {RECEIVE_MAXIMUM}


REFUSED = [
    Connect(V311, "", clean_start=False),
    Connect(V311, "x" * 24),
    Connect(V5, "me", properties={AUTHENTICATION_METHOD: "SCRAM-SHA-1"}),
    Connect(V5, "me", will=Will(b"a/+", b"")),
]


@pytest.mark.parametrize("connect", REFUSED)
def test_behind_a_connect_that_is_refused_nothing_is_taken(brokers: Brokers, connect: Connect) -> None:
    """Who may not come in could speak all the same [MQTT-3.1.4-6], [MQTT-3.1.2-30]."""
    broker = brokers(Config(limits=Limits(client_id_bytes=23)))
    listener = broker.connect("listener")
    subscribe(listener, "#")
    client = broker.open(connect.version)
    client.send(connect, Connect(connect.version, "lawful"), Publish(b"t", b"x"), Subscribe(1, [Wanted(b"t")]))

    assert [ConnAck] == [type(packet) for packet in client.receive()]
    assert client.closed
    assert [] == listener.receive()
    assert 1 == broker.session_count()


@pytest.mark.parametrize(("version", "told"), [(V311, []), (V5, [ConnAck(False, 0x81)])])
def test_a_connect_that_is_none_is_closed(brokers: Brokers, version: int, told: list[ConnAck]) -> None:
    """A client that does not keep the form of CONNECT would be let in [MQTT-3.1.4-1], [MQTT-3.1.2-3].

    Or be told by 3.1.1, which has no word for it, 3.1.1 [MQTT-3.1.4-1].
    """
    client = brokers().open(version)
    connect = bytearray(encode(Connect(version, "me"), version))
    connect[BYTE_OF_FLAGS] |= 1
    client.send_bytes(bytes(connect))

    assert told == client.receive()
    assert client.closed


@pytest.mark.parametrize("properties", [{}, {TOPIC_ALIAS_MAXIMUM: 0}])
@pytest.mark.parametrize("qos", [0, 1])
def test_who_names_no_alias_maximum_is_sent_no_alias(brokers: Brokers, properties: Properties, qos: int) -> None:
    """A client would be sent a message without a topic, and close [MQTT-3.1.2-27]."""
    broker = brokers()
    client = broker.connect("me", V5, properties=properties)
    subscribe(client, "a/long/topic", qos=1)
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"a/long/topic", b"x", qos, packet_id=n * qos) for n in (1, 2)])
    publisher.receive()

    assert [(b"a/long/topic", {})] * 2 == [(m.topic, m.properties) for m in messages(client.receive())]


@pytest.mark.parametrize("most", [1, 2])
def test_no_alias_above_the_maximum_that_a_client_names(brokers: Brokers, most: int) -> None:
    """A client would be sent an alias that it has no room for [MQTT-3.1.2-26], [MQTT-3.3.2-11]."""
    broker = brokers()
    client = broker.connect("me", V5, properties={TOPIC_ALIAS_MAXIMUM: most})
    subscribe(client, "#", qos=1)
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"a/long/topic/%d" % n, b"", 1, packet_id=1) for n in range(3)])
    publisher.receive()

    aliases = [message.properties.get(TOPIC_ALIAS) for message in messages(client.receive())]
    assert [*range(1, most + 1), *[None] * (3 - most)] == aliases


@VERSIONS
@pytest.mark.parametrize("retain", [False, True])
def test_a_will_is_retained_as_it_says(brokers: Brokers, version: int, retain: bool) -> None:
    """Who subscribes later would not learn that a client is dead [MQTT-3.1.2-15], or that it was [MQTT-3.1.2-14]."""
    broker = brokers()
    broker.connect("mortal", version, will=Will(b"wills", b"gone", 1, retain)).drop()
    shown = subscribe(broker.connect("late"), "wills", qos=1)

    assert [(b"gone", 1)] * retain == [(message.payload, message.qos) for message in shown]


@VERSIONS
def test_without_a_will_nothing_is_published(brokers: Brokers, version: int) -> None:
    """Everybody would be told of each client that goes, or of a will of the one before, 3.1.1 [MQTT-3.1.2-12]."""
    broker = brokers()
    watcher = broker.connect("watcher")
    subscribe(watcher, "#")
    first = broker.connect("me", version, clean_start=False, will=Will(b"wills", b"gone"), properties=kept(version))
    first.send(Disconnect())
    first.receive()
    broker.connect("me", version, clean_start=False, properties=kept(version)).drop()

    assert [] == watcher.receive()


def test_who_comes_back_without_a_will_has_none(brokers: Brokers) -> None:
    """The will of a former connection would be published at the end of one that has none [MQTT-3.1.3-9]."""
    broker = brokers()
    watcher = broker.connect("watcher")
    subscribe(watcher, "#")
    will = Will(b"wills", b"gone", properties={WILL_DELAY_INTERVAL: 5})
    broker.connect("me", V5, will=will, properties=kept(V5)).drop()
    broker.connect("me", V5, clean_start=False, properties=kept(V5)).drop()
    broker.advance(10)

    assert [] == watcher.receive()
