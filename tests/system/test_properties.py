# What MQTT 5 added to a message and to a subscription, as it reaches the other end.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import V5, V311, Properties, Publish, Wanted
from broker.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    USER_PROPERTY,
)
from tests.system.raw import RawClient, payloads

Dial = Callable[..., RawClient]


@pytest.fixture
def publisher(dial: Dial, name: str) -> RawClient:
    client = dial(V5)
    client.connect(f"{name}-publisher")
    return client


@pytest.fixture
def subscriber(dial: Dial, name: str) -> RawClient:
    client = dial(V5)
    client.connect(f"{name}-subscriber")
    return client


SAID: Properties = {
    PAYLOAD_FORMAT_INDICATOR: 1,
    CONTENT_TYPE: "text/plain; charset=utf-8",
    RESPONSE_TOPIC: "answers/here",
    CORRELATION_DATA: b"\x00\xff id",
    USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_forwarded_as_they_were(
    publisher: RawClient, subscriber: RawClient, name: str, qos: int
) -> None:
    """A property would be lost or changed, or the user properties change places.

    [MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-18], [MQTT-3.3.2-20]
    """
    subscriber.subscribe(name, qos=qos)

    publisher.publish(name, b"x", qos, properties=SAID)

    assert SAID == subscriber.take().properties


@pytest.mark.parametrize("qos", [0, 1])
def test_a_version_3_subscriber_gets_the_message_without_properties(
    dial: Dial, publisher: RawClient, name: str, qos: int
) -> None:
    """The bytes of the properties would show up in the payload of older clients."""
    subscriber = dial(V311)
    subscriber.connect(f"{name}-old")
    subscriber.subscribe(name, qos=qos)

    publisher.publish(name, b"payload", qos, properties=SAID)

    assert b"payload" == subscriber.take().payload


@pytest.mark.parametrize("qos", [0, 1])
def test_a_version_5_subscriber_gets_the_message_of_an_older_client(
    dial: Dial, subscriber: RawClient, name: str, qos: int
) -> None:
    """The payload of older clients would be taken for properties."""
    old = dial(V311)
    old.connect(f"{name}-old")
    subscriber.subscribe(name, qos=qos)

    old.publish(name, b"payload", qos)

    message = subscriber.take()
    assert (b"payload", {}) == (message.payload, message.properties)


def test_a_topic_alias_stands_for_its_topic(publisher: RawClient, subscriber: RawClient, name: str) -> None:
    """Aliases would lead to the wrong topic, or reach the subscriber, who knows others [MQTT-3.3.2-12]."""
    subscriber.subscribe(f"{name}/#")
    publisher.publish(f"{name}/a", b"set", properties={TOPIC_ALIAS: 1})
    publisher.publish("", b"used", properties={TOPIC_ALIAS: 1})
    publisher.publish(f"{name}/b", b"set again", properties={TOPIC_ALIAS: 1})
    publisher.publish("", b"used again", properties={TOPIC_ALIAS: 1})

    found = [subscriber.take() for _ in range(4)]

    assert [f"{name}/{x}".encode() for x in "aabb"] == [message.topic for message in found]
    assert not any(TOPIC_ALIAS in message.properties for message in found)


def test_the_broker_stays_within_the_aliases_that_a_client_allows(dial: Dial, publisher: RawClient, name: str) -> None:
    """We would use an alias that the client has no room for [MQTT-3.1.2-26], or that does not name the topic."""
    subscriber = dial(V5)
    subscriber.connect(f"{name}-subscriber", properties={TOPIC_ALIAS_MAXIMUM: 2})
    subscriber.subscribe(f"{name}/#")
    topics = [f"{name}/{n % 4}".encode() for n in range(16)]
    for topic in topics:
        publisher.publish(topic.decode(), b"x")

    assert topics == resolved([subscriber.take() for _ in topics], most=2)


def resolved(messages: list[Publish], most: int) -> list[bytes]:
    """The topics of *messages*, whose aliases are at most *most*."""
    known: dict[int, bytes] = {}
    topics = []
    for message in messages:
        topic, alias = message.topic, message.properties.get(TOPIC_ALIAS, 0)
        assert isinstance(alias, int) and alias <= most
        if alias and topic:
            known[alias] = topic
        topics.append(topic or known[alias])
    return topics


def test_a_message_expires_while_its_reader_is_away(dial: Dial, publisher: RawClient, name: str) -> None:
    """Stale messages would be delivered [MQTT-3.3.2-5], or others hide their remaining life [MQTT-3.3.2-6]."""
    kept: Properties = {SESSION_EXPIRY_INTERVAL: 300}
    subscriber = dial(V5)
    subscriber.connect(f"{name}-away", properties=kept)
    subscriber.subscribe(f"{name}/#", qos=1)
    subscriber.disconnect()
    publisher.publish(f"{name}/x", b"short", 1, properties={MESSAGE_EXPIRY_INTERVAL: 1})
    publisher.publish(f"{name}/x", b"long", 1, properties={MESSAGE_EXPIRY_INTERVAL: 1000})
    wait_for_expiry(dial, name, seconds=2)

    subscriber = dial(V5)
    subscriber.connect(f"{name}-away", clean_start=False, properties=kept)

    message = subscriber.take()
    left = message.properties[MESSAGE_EXPIRY_INTERVAL]
    assert b"long" == message.payload
    assert isinstance(left, int) and 900 <= left < 1000


def wait_for_expiry(dial: Dial, name: str, seconds: int) -> None:
    """Let the broker's clock go on: a client whose keep alive runs out is closed after 1.5 times."""
    clock = dial(V5)
    clock.connect(f"{name}-clock", keep_alive=seconds)
    clock.expect_end()


def test_overlapping_subscriptions_name_all_their_identifiers(
    publisher: RawClient, subscriber: RawClient, name: str
) -> None:
    """A client could not tell which of its subscriptions a message is for [MQTT-3.3.4-3]."""
    subscriber.subscribe(f"{name}/#", qos=0, properties={SUBSCRIPTION_IDENTIFIER: [1]})
    subscriber.subscribe(f"{name}/+", qos=2, properties={SUBSCRIPTION_IDENTIFIER: [268_435_455]})
    subscriber.subscribe(f"{name}/x", qos=1)

    publisher.publish(f"{name}/x", b"x", 2)
    publisher.publish(f"{name}/x", b"end", 2)

    # One copy for all, or one for each: both are lawful [MQTT-3.3.4-2]; the identifiers are the same together.
    copies = [subscriber.take(), *subscriber.take_until(b"end")]
    found = [one for copy in copies for one in identifiers(copy)]
    assert [1, 268_435_455] == sorted(found)


@pytest.mark.weir_only("sends a copy for each subscription, which is lawful")
def test_overlapping_subscriptions_bring_one_copy(publisher: RawClient, subscriber: RawClient, name: str) -> None:
    """A client with overlapping filters would see a message twice, or below the highest QoS [MQTT-3.3.4-2]."""
    subscriber.subscribe(f"{name}/#", qos=0)
    subscriber.subscribe(f"{name}/x", qos=2)
    subscriber.subscribe(f"{name}/+", qos=1)

    publisher.publish(f"{name}/x", b"x", 2)
    publisher.publish(f"{name}/x", b"end", 2)

    assert [(b"x", 2)] == [(m.payload, m.qos) for m in subscriber.take_until(b"end")]


def identifiers(message: Publish) -> list[int]:
    found = message.properties.get(SUBSCRIPTION_IDENTIFIER, [])
    assert isinstance(found, list)
    return [one for one in found if isinstance(one, int)]


def test_no_local_spares_the_publisher(publisher: RawClient, subscriber: RawClient, name: str) -> None:
    """A bridge would get its own messages back, and send them round for ever [MQTT-3.8.3-3]."""
    publisher.subscribe(Wanted(f"{name}/x".encode(), no_local=True), Wanted(f"{name}/end".encode()))
    subscriber.subscribe(Wanted(f"{name}/x".encode(), no_local=True))

    publisher.publish(f"{name}/x", b"x")
    publisher.publish(f"{name}/end", b"end")

    assert [] == publisher.take_until(b"end")
    assert b"x" == subscriber.take().payload


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("members", [2, 3])
def test_a_group_gets_each_message_once(
    dial: Dial, publisher: RawClient, name: str, version: int, members: int
) -> None:
    """Members of a shared subscription would get copies or nothing (4.8.2); others would miss theirs."""
    group = [dial(version) for _ in range(members)]
    for n, member in enumerate(group):
        member.connect(f"{name}-{n}")
        member.subscribe(f"$share/group/{name}/+/x", f"{name}/end", qos=1)
    alone = dial(version)
    alone.connect(f"{name}-alone")
    alone.subscribe(f"$share/other/{name}/y/x", f"{name}/end", qos=1)
    sent = [b"%d" % n for n in range(60)]
    for payload in sent:
        publisher.publish(f"{name}/y/x", payload, 1)

    publisher.publish(f"{name}/end", b"end", 1)

    shares = [payloads(member.take_until(b"end")) for member in group]
    assert sent == payloads(alone.take_until(b"end"))
    assert sorted(sent) == sorted(payload for share in shares for payload in share)
    assert all(shares)
