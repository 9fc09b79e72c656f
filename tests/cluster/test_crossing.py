# Messages between clients of different workers: as if there were one.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V311, Connect, Properties, Publish, Subscribe, Unsubscribe, Wanted
from broker.mqtt.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    SESSION_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    USER_PROPERTY,
)
from broker.reasons import DropReason
from broker.session.origin import TransferFilter
from tests.cluster.across import names
from tests.cluster.talk import payloads, subscribed
from tests.innode import Node

__all__ = ["names"]  # a fixture

Nodes = Callable[..., Node]


@pytest.mark.parametrize("subscriber_version", [V311, V5])
@pytest.mark.parametrize("publisher_version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_crosses(nodes: Nodes, qos: int, publisher_version: int, subscriber_version: int) -> None:
    """Clients would hear each other only if they happened to come to the same worker."""
    one, two = nodes(2)
    subscriber = one.connect("subscriber", subscriber_version)
    publisher = two.connect("publisher", publisher_version)
    subscribed(subscriber, "a/+")
    publisher.send(Publish(b"a/b", b"hello", qos, packet_id=7 if qos else 0))
    publisher.receive()

    (message,) = subscriber.receive()
    assert isinstance(message, Publish)
    assert (b"a/b", b"hello", qos, False, False) == (
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.dup,
    )


@pytest.mark.parametrize("qos", [0, 1])
def test_messages_keep_their_order(nodes: Nodes, qos: int) -> None:
    """What a device says would be heard in another order than it was said."""
    one, two = nodes(2, Config(limits=Limits(inflight=65535, receive_maximum=65535)))
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher", V5)
    subscribed(subscriber, "#")
    for n in range(300):  # runs, single packets, properties and other topics, all mixed
        properties: Properties = {USER_PROPERTY: [("n", str(n))]} if n % 7 == 0 else {}
        topic = b"b" if n % 11 == 0 else b"a"
        publisher.send(
            Publish(
                topic, b"%d" % n, qos if n % 5 else 0, packet_id=n + 1 if qos and n % 5 else 0, properties=properties
            )
        )
    received = payloads(subscriber)

    assert [b"%d" % n for n in range(300)] == received


def test_everything_that_belongs_to_a_message_crosses(nodes: Nodes) -> None:
    """A request would lose its response topic, or live for ever."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber", V5), two.connect("publisher", V5)
    subscribed(subscriber, "a", properties={SUBSCRIPTION_IDENTIFIER: [9]})
    publisher.send(Publish(b"a", b"1", 1, packet_id=1, properties={USER_PROPERTY: [("k", "v")]}))
    publisher.send(
        Publish(b"a", b"2", 1, packet_id=2, properties={MESSAGE_EXPIRY_INTERVAL: 60, USER_PROPERTY: [("k", "w")]})
    )
    first, second = subscriber.receive()

    assert isinstance(first, Publish) and isinstance(second, Publish)
    assert {USER_PROPERTY: [("k", "v")], SUBSCRIPTION_IDENTIFIER: [9]} == first.properties
    assert {MESSAGE_EXPIRY_INTERVAL: 60, USER_PROPERTY: [("k", "w")], SUBSCRIPTION_IDENTIFIER: [9]} == second.properties


def test_a_message_crosses_once_whoever_wants_it(nodes: Nodes) -> None:
    """The same bytes would go to a worker once for each of its subscribers."""
    one, two = nodes(2)
    subscribers = [one.connect(f"s{n}") for n in range(10)]
    for n, subscriber in enumerate(subscribers):
        subscribed(subscriber, "a/b", f"a/+/{n}", "#")
    publisher = two.connect("publisher")
    (peer,) = two.mesh.peers
    before = peer._written
    publisher.send(Publish(b"a/b", b"x" * 1000))
    publisher.receive()

    assert 1000 < peer._written - before < 1100
    assert all([b"x" * 1000] == payloads(subscriber) for subscriber in subscribers)


def test_what_nobody_wants_there_does_not_cross(nodes: Nodes) -> None:
    """Each message would cost every worker something."""
    one, two = nodes(2)
    subscriber, publisher = one.connect("subscriber"), two.connect("publisher")
    subscribed(subscriber, "a", "b/#", "$share/g/c")
    subscriber.send(Unsubscribe(2, [b"a", b"b/#", b"$share/g/c"]))
    subscriber.receive()
    (peer,) = two.mesh.peers
    before = peer._written
    for topic in (b"a", b"b/c", b"c"):
        publisher.send(Publish(topic, b""))
    publisher.receive()

    assert before == peer._written
    assert (0, 0) == two.routes.statistics()[1:]


def test_the_last_subscriber_takes_the_interest_with_it(nodes: Nodes) -> None:
    """The first of two who left would take the other's messages with it."""
    one, two = nodes(2)
    staying, leaving, publisher = one.connect("staying"), one.connect("leaving"), two.connect("publisher")
    subscribed(staying, "a")
    subscribed(leaving, "a")
    leaving.drop()
    publisher.send(Publish(b"a", b"1"))
    publisher.receive()
    assert [b"1"] == payloads(staying)

    staying.drop()
    assert 0 == two.routes._neighbour_filters.filters()


def test_a_fan_out_in_pages_keeps_the_order(nodes: Nodes) -> None:
    """While thousands are served what comes behind would overtake it."""
    one, two = nodes(2)
    subscribers = [one.open() for _ in range(700)]
    for n, subscriber in enumerate(subscribers):
        subscriber.send(Connect(V311, f"s{n}"), Subscribe(1, [Wanted(b"all", 0), Wanted(b"few", 0)]))
    one.settle()
    publisher = two.connect("publisher", V5)
    for client in subscribers:
        client.inbox.clear()
    publisher.send(Publish(b"all", b"1"), Publish(b"all", b"2", 1, packet_id=1), Publish(b"few", b"3"))
    one.settle()

    received = [[packet.payload for packet in client.inbox if isinstance(packet, Publish)] for client in subscribers]
    assert all([b"1", b"2", b"3"] == payloads for payloads in received)


def test_no_local_holds_across_workers(nodes: Nodes) -> None:
    """Somebody who is not the publisher would be taken for it, or the other way round."""
    one, two = nodes(2)
    other, itself = one.connect("other", V5), two.connect("itself", V5)
    for client in (other, itself):
        subscribed(client, Wanted(b"a", 1, no_local=True))
    itself.send(Publish(b"a", b"x"))
    itself.receive()

    assert [b"x"] == payloads(other)
    assert [] == payloads(itself)


def test_a_run_that_is_too_large_for_one_receiver(nodes: Nodes) -> None:
    """A receiver with a small maximum packet size would lose the short messages beside a long one."""
    from broker.mqtt.properties import MAXIMUM_PACKET_SIZE

    one, two = nodes(2)
    subscriber = one.connect("subscriber", V5, properties={MAXIMUM_PACKET_SIZE: 100})
    publisher = two.connect("publisher")
    subscribed(subscriber, "a")
    publisher.send_bytes(b"".join(encode(Publish(b"a", payload), V311) for payload in (b"1", bytes(200), b"2")))
    publisher.receive()

    assert [b"1", b"2"] == payloads(subscriber)
    assert 1 == one.counters.dropped_by_reason[DropReason.TOO_LARGE.label]


def test_three_workers_hear_each_other(nodes: Nodes) -> None:
    """A message would go round, or stop at the next worker."""
    node = nodes(3)
    clients = [broker.connect(f"c{n}") for n, broker in enumerate(node)]
    for client in clients:
        subscribed(client, "#")
    for n, client in enumerate(clients):
        client.send(Publish(b"t", b"%d" % n))
        node.settle()

    assert all([b"0", b"1", b"2"] == sorted(payloads(client)) for client in clients)


@pytest.mark.parametrize("marked", [False, True])
def test_a_fan_out_in_pages_knows_where_it_comes_from(nodes: Nodes, marked: bool) -> None:
    """A session that moves would take what is not for it here, or not what is."""
    one, two = nodes(2)
    for n in range(600):
        one.open().send(Connect(V311, f"s{n}"), Subscribe(1, [Wanted(b"a", 0)]))
    mover = one.connect("mover", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribed(mover, "a")
    mover.drop()
    session = one.session("mover")
    assert session is not None
    session.transfer_filter = TransferFilter(marked)
    session.transfer_filter.mark(two.identity)
    for broker in (one, two):
        publisher = broker.connect("publisher", V5)
        publisher.send(Publish(b"a", b"from %d" % broker.number, 1, packet_id=1))
        publisher.receive()
    session.transfer_filter = None
    back = one.connect("mover", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})

    assert [b"from 1" if marked else b"from 0"] == payloads(back)


def test_what_is_published_here_comes_from_here(nodes: Nodes) -> None:
    """After another worker's message it would be taken for one of that worker's by sessions that move."""
    one, two = nodes(2)
    mover = one.connect("mover", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
    subscribed(mover, "a")
    mover.drop()
    session = one.session("mover")
    assert session is not None
    session.transfer_filter = TransferFilter(True)
    session.transfer_filter.mark(one.identity)
    here, there = one.connect("here", V5), two.connect("there", V5)
    there.send(Publish(b"a", b"there", 1, packet_id=1))
    there.receive()
    here.send(Publish(b"a", b"here", 1, packet_id=1))
    here.receive()
    session.transfer_filter = None
    back = one.connect("mover", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})

    assert [b"here"] == payloads(back)


def test_an_expiry_goes_on_where_it_crosses_to(nodes: Nodes) -> None:
    """A message would be as young as ever for who comes back [MQTT-3.3.2-5], [MQTT-3.3.2-6]."""
    node = nodes(2)
    one, two = node
    for client_id in ("early", "late"):
        client = one.connect(client_id, V5, properties={SESSION_EXPIRY_INTERVAL: 100})
        subscribed(client, "a")
        client.drop()
    publisher = two.connect("publisher", V5)
    publisher.send(Publish(b"a", b"x", 1, packet_id=1, properties={MESSAGE_EXPIRY_INTERVAL: 20}))
    node.advance(15.1)
    early = one.connect("early", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100})
    (message,) = early.receive()
    assert isinstance(message, Publish) and {MESSAGE_EXPIRY_INTERVAL: 5} == message.properties
    node.advance(6)
    assert [] == payloads(one.connect("late", V5, clean_start=False, properties={SESSION_EXPIRY_INTERVAL: 100}))
