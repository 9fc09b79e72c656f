# SUBSCRIBE and UNSUBSCRIBE: what changes, what is answered, and what a subscriber sees of the change.
from collections.abc import Callable
from itertools import pairwise

import pytest

from broker.mqtt.packets import (
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.protocol.subscribing import AT_ONCE, UNSUBSCRIBED_AT_ONCE
from broker.routing.route import FEW_RECEIVERS
from tests.inprocess import Broker
from tests.protocol.talk import messages, payloads, subscribe

Brokers = Callable[..., Broker]
ROUND = 0.001  # seconds that a look at the clock takes, so that a slice has few rounds
VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


@VERSIONS
def test_several_filters_are_several_subscriptions_with_one_answer(brokers: Brokers, version: int) -> None:
    """A client would take a refusal for a grant, or the QoS of one filter for that of another [MQTT-3.9.3-1].

    Each filter has a code [MQTT-3.8.4-5], [MQTT-3.8.4-6] that says what was granted or that nothing was
    [MQTT-3.8.4-7], in the codes of its version [MQTT-3.9.3-2], 3.1.1 [MQTT-3.9.3-2].
    """
    broker = brokers()
    client = broker.connect("me", version)
    client.send(Subscribe(1, [Wanted(b"a", 2), Wanted(b"b#"), Wanted(b"c", 0), Wanted(b"a", 1), Wanted(b"d/#", 2)]))
    assert [SubAck(1, [2, 0x8F if version == V5 else 0x80, 0, 1, 2])] == client.receive()
    client.send(*[Publish(topic, topic) for topic in (b"a", b"b", b"c", b"d/x")])

    assert [b"a", b"c", b"d/x"] == payloads(client.receive())


@VERSIONS
def test_a_filter_that_is_there_is_replaced(brokers: Brokers, version: int) -> None:
    """A client would get two copies, or by its former options [MQTT-3.8.4-3], [MQTT-3.8.4-8]."""
    broker = brokers()
    client = broker.connect("me", version)
    publisher = broker.connect("publisher")
    subscribe(client, "t", qos=2)
    publisher.send(Publish(b"t", b"before"))
    publisher.receive()
    assert [b"before"] == payloads(client.receive())
    subscribe(client, "t", qos=1, identifier=7 if version == V5 else 0)
    publisher.send(Publish(b"t", b"x", 2, packet_id=1))
    publisher.receive()

    (message,) = messages(client.receive())
    assert (1, {SUBSCRIPTION_IDENTIFIER: [7]} if version == V5 else {}) == (message.qos, message.properties)


@VERSIONS
def test_replacing_shows_what_is_retained_and_loses_nothing(brokers: Brokers, version: int) -> None:
    """A client that asks again would miss the present state, or what is published while it asks [MQTT-3.8.4-4].

    3.1.1 [MQTT-3.3.1-6]
    """
    broker = brokers()
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"t/kept", b"kept", retain=True))
    publisher.receive()
    client = broker.connect("me", version)
    assert [b"kept"] == [message.payload for message in subscribe(client, "t/#", qos=1)]
    for n in range(20):
        publisher.send(Publish(b"t", b"%d" % n, 1, packet_id=n + 1))
        client.send(Subscribe(n + 1, [Wanted(b"t/#", 1)]))
    got = payloads(client.receive())

    assert [b"%d" % n for n in range(20)] == [payload for payload in got if payload != b"kept"]
    assert b"kept" in got


@VERSIONS
def test_unsubscribe_takes_the_very_filters_that_it_names(brokers: Brokers, version: int) -> None:
    """A client would lose a subscription that it wants, or keep one that it does not [MQTT-3.10.4-1].

    All of them are answered together [MQTT-3.10.4-6], in their order [MQTT-3.11.3-1], also those that were not there
    [MQTT-3.10.4-5], [MQTT-3.11.3-2]; and nothing comes by them any more [MQTT-3.10.4-2].
    """
    broker = brokers()
    client = broker.connect("me", version)
    subscribe(client, "a/b", "a/+", "c/#", "C/#")
    client.send(Unsubscribe(9, [b"a/#", b"a/+", b"c/+", b"c/#", b"A/b"]))
    codes = [0x11, 0, 0x11, 0, 0x11] if version == V5 else []
    assert [UnsubAck(9, codes)] == client.receive()
    client.send(*[Publish(topic, topic) for topic in (b"a/b", b"a/x", b"c/x", b"C/x")])

    assert [b"a/b", b"C/x"] == payloads(client.receive())


@VERSIONS
def test_what_was_begun_is_finished_after_unsubscribe(brokers: Brokers, version: int) -> None:
    """A QoS 2 message would hang between its PUBLISH and its PUBREL for ever [MQTT-3.10.4-3]."""
    broker = brokers()
    client = broker.connect("me", version, clean_start=False)
    subscribe(client, "t", qos=2)
    client.send(Publish(b"t", b"x", 2, packet_id=1))
    (message,) = messages(client.receive())
    client.send(Unsubscribe(2, [b"t"]))
    client.receive()
    client.send(Ack(PUBREC, message.packet_id))

    assert [Ack(PUBREL, message.packet_id)] == client.receive()


def test_names_are_compared_as_they_came(brokers: Brokers) -> None:
    """Two topics that look alike would be one, or one topic two [MQTT-4.7.3-4], [MQTT-1.5.4-3]."""
    broker = brokers()
    client = broker.connect("me")
    composed, decomposed, marked = "caf\u00e9", "cafe\u0301", "\ufeffcaf\u00e9"
    subscribe(client, composed, marked)
    sent = [composed, decomposed, marked, composed.upper(), composed + "/", "/" + composed, composed + " "]
    client.send(*[Publish(topic.encode(), topic.encode()) for topic in sent])

    assert [composed, marked] == [payload.decode() for payload in payloads(client.receive())]


def test_a_subscribe_that_takes_long_gives_way_and_keeps_order(brokers: Brokers) -> None:
    """A thousand filters under thousands of access rules would hold the worker, or be overtaken by what is behind."""
    broker = brokers()
    client, other = broker.connect("me", V5), broker.connect("other")
    filters = [b"t/%d" % n for n in range(50)] + [b"wrong#"]
    client.send(
        Subscribe(1, [Wanted(one, 1) for one in filters]),
        Publish(b"t/49", b"mine"),
        Unsubscribe(2, [b"t/0", b"t/49"]),
        Publish(b"t/49", b"unheard"),
    )
    broker.clock.step = AT_ONCE
    while not client.closed and broker.worker.routes.statistics()[1] == 0:
        broker.turn()
    other.send(PingReq())
    while not other.inbox:
        broker.turn()

    assert [PingResp()] == other.inbox
    assert [] == client.inbox
    assert 0 < broker.worker.routes.statistics()[1] < 50
    broker.clock.step = 0.0
    broker.settle()
    answer, mine, removed = client.inbox
    assert [SubAck(1, [1] * 50 + [0x8F]), UnsubAck(2, [0, 0])] == [answer, removed]
    assert [b"mine"] == payloads([mine])
    assert 51 == broker.counters.subscribes


def test_a_client_that_leaves_before_its_subscribe_is_taken_leaves_nothing(brokers: Brokers) -> None:
    """Filters of a session that is gone would stay in the routes."""
    broker = brokers()
    client = broker.connect("me", V5)
    client.send(Subscribe(1, [Wanted(b"t/%d" % n, 1) for n in range(50)]))
    broker.clock.step = AT_ONCE
    while broker.worker.routes.statistics()[1] == 0:
        broker.turn()
    assert broker.worker.routes.statistics()[1] < 50
    client.drop()
    broker.clock.step = 0.0
    broker.settle()

    assert (0, 0) == broker.worker.routes.statistics()[1:]


def test_an_unsubscribe_that_takes_long_gives_way_and_keeps_order(brokers: Brokers) -> None:
    """A thousand filters would hold the worker for milliseconds, or UNSUBACK would come before the last is removed."""
    broker = brokers()
    client, other = broker.connect("me", V5), broker.connect("other")
    count = 4 * UNSUBSCRIBED_AT_ONCE
    filters = [b"t/%d" % n for n in range(count)]
    client.send(Subscribe(1, [Wanted(one, 1) for one in filters]))
    client.receive()
    last = filters[-1]
    client.send(Unsubscribe(2, [*filters, b"none"]), Subscribe(3, [Wanted(last)]), Publish(last, b"mine"))
    broker.clock.step = ROUND
    left = [count]
    while left[-1] == count or 0 < left[-1] != left[-2]:
        broker.turn()
        left.append(broker.worker.routes.statistics()[1])
        if left[-1] < count:
            other.send(Publish(last, b"%d" % left[-1]))
    broker.clock.step = 0.0
    answers = client.receive()

    steps = [before - after for before, after in pairwise(left) if before != after]
    assert 2 * UNSUBSCRIBED_AT_ONCE >= max(steps), "more than a page goes in one of the two rounds of a slice"
    packets = [packet for packet in answers if not isinstance(packet, Publish)]
    assert [UnsubAck(2, [0] * count + [0x11]), SubAck(3, [0])] == packets
    answered = answers.index(packets[0])
    assert all(packet.payload != b"mine" for packet in messages(answers[:answered]))
    assert b"mine" in payloads(answers[answered:])
    assert len(steps) - 1 <= len(messages(answers)), "others are served meanwhile"
    assert count + 1 == broker.counters.unsubscribes


@pytest.mark.interpreted
def test_a_client_that_leaves_is_removed_from_all_routes_although_one_has_many_receivers(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of its filters would stay in the routes for ever."""
    monkeypatch.setattr("broker.protocol.subscribing.VISITED_AT_ONCE", FEW_RECEIVERS)
    broker = brokers()
    crowd = [broker.connect(f"{number}") for number in range(FEW_RECEIVERS)]
    client = broker.connect("me")
    for each in crowd:
        subscribe(each, "many", qos=1)
    subscribe(client, "b", "c", "many", qos=1)  # the last one is removed first
    crowd[0].send(Publish(b"many", b""))
    broker.settle()
    client.drop()
    broker.settle()

    assert len(crowd) == broker.worker.routes.statistics()[1]


def test_a_client_that_leaves_during_its_unsubscribe_leaves_nothing(brokers: Brokers) -> None:
    """The rest of its filters would stay in the routes."""
    broker = brokers()
    client = broker.connect("me", V5)
    filters = [b"t/%d" % n for n in range(4 * UNSUBSCRIBED_AT_ONCE)]
    client.send(Subscribe(1, [Wanted(one, 1) for one in filters]))
    client.receive()
    client.send(Unsubscribe(2, filters))
    broker.clock.step = ROUND
    while broker.worker.routes.statistics()[1] == len(filters):
        broker.turn()
    assert broker.worker.routes.statistics()[1] > 0
    broker.clock.step = 0.0
    client.drop()
    broker.settle()

    assert (0, 0) == broker.worker.routes.statistics()[1:]
