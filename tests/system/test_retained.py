# Retained messages: what a new subscriber is shown, and what an old one sees.
from collections.abc import Callable

import pytest

from broker.mqtt.packets import V5, V311, Wanted
from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL
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


def shown(subscriber: RawClient, publisher: RawClient, wanted: Wanted, name: str) -> list[bytes]:
    """Subscribe to *wanted*; the retained messages that this brings."""
    ahead = subscriber.subscribe(wanted)
    publisher.publish(f"{name}/end", b"end")
    return payloads(ahead + subscriber.take_until(b"end"))


def see_what_was_published(subscriber: RawClient, name: str) -> None:
    """Have what was published and acknowledged at the worker of *subscriber*, as SUBACK follows it there.

    A message that is on its way from another worker might find the subscription, and come as a new one.
    """
    subscriber.subscribe(f"{name}/nothing")


@pytest.mark.parametrize("handling, times", [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(
    publisher: RawClient, subscriber: RawClient, name: str, handling: int, times: list[int]
) -> None:
    """Subscribing again would show what was declined, or hide what was wanted [MQTT-3.3.1-9] to [MQTT-3.3.1-11]."""
    publisher.publish(f"{name}/x", b"kept", 1, retain=True)
    subscriber.subscribe(f"{name}/end")
    wanted = Wanted(f"{name}/x".encode(), retain_handling=handling)

    assert [[b"kept"] * n for n in times] == [shown(subscriber, publisher, wanted, name) for _ in times]


@pytest.mark.parametrize("as_published", [True, False])
def test_retain_as_published(publisher: RawClient, subscriber: RawClient, name: str, as_published: bool) -> None:
    """A bridge could not tell what is retained [MQTT-3.3.1-12], others would be misled [MQTT-3.3.1-13]."""
    subscriber.subscribe(Wanted(name.encode(), retain_as_published=as_published))

    publisher.publish(name, b"x", retain=True)

    assert as_published is subscriber.take().retain


def test_the_qos_of_a_retained_message_is_kept(publisher: RawClient, subscriber: RawClient, name: str) -> None:
    """A retained message would lose the QoS it was published with."""
    publisher.publish(name, b"x", qos=2, retain=True)
    see_what_was_published(subscriber, name)

    ahead = subscriber.subscribe(name, qos=2)

    message = (ahead or [subscriber.take()])[0]
    assert (2, True) == (message.qos, message.retain)


def test_a_wildcard_shows_every_retained_message_once(publisher: RawClient, subscriber: RawClient, name: str) -> None:
    """Messages would be missing after a wildcard subscription, or doubled."""
    subscriber.subscribe(f"{name}/end")
    topics = [f"{name}/room/{n}/lamp" for n in range(300)]
    for topic in topics:
        publisher.publish(topic, topic.encode(), retain=True)
    publisher.publish(f"{name}/room/7/door", b"wrong", retain=True)
    publisher.publish(f"{name}/end", b"all are there")  # also at another worker: messages keep their order
    subscriber.take_until(b"all are there")

    # Many are sent in pages, which what is published meanwhile may overtake: the end is asked for when all are here.
    found = subscriber.subscribe(f"{name}/room/+/lamp")
    found += [subscriber.take() for _ in range(len(topics) - len(found))]
    publisher.publish(f"{name}/end", b"end")

    assert [] == subscriber.take_until(b"end")
    assert sorted(topic.encode() for topic in topics) == sorted(payloads(found))


def test_a_retained_message_says_how_long_it_still_lives(
    publisher: RawClient, subscriber: RawClient, name: str
) -> None:
    """The expiry of a retained message would be lost [MQTT-3.3.2-6]."""
    publisher.publish(name, b"x", 1, retain=True, properties={MESSAGE_EXPIRY_INTERVAL: 1000})
    see_what_was_published(subscriber, name)

    ahead = subscriber.subscribe(name)

    message = (ahead or [subscriber.take()])[0]
    left = message.properties[MESSAGE_EXPIRY_INTERVAL]
    assert isinstance(left, int) and 900 <= left <= 1000


def test_a_version_3_subscriber_sees_the_retain_flag_only_at_first(dial: Dial, publisher: RawClient, name: str) -> None:
    """Old clients take the flag for "this is old news"."""
    publisher.publish(name, b"old", 1, retain=True)
    subscriber = dial(V311)
    subscriber.connect(f"{name}-old")
    see_what_was_published(subscriber, name)
    ahead = subscriber.subscribe(name)
    old = (ahead or [subscriber.take()])[0]

    publisher.publish(name, b"new", retain=True)

    assert (True, False) == (old.retain, subscriber.take().retain)
