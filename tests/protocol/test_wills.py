# When a will is published, and when it is not.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import ClusterQuota, Config, Limits, Quotas, QuotaScope
from broker.mqtt.packets import V5, V311, Connect, Disconnect, PingReq, Properties, Publish, Wanted, Will
from broker.mqtt.properties import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
)
from broker.reasons import DropReason
from tests.inprocess import Broker, Client
from tests.protocol.talk import dropped, messages, payloads, spent, subscribe

Brokers = Callable[..., Broker]


def will(delay: int = 0, qos: int = 0, retain: bool = False) -> Will:
    return Will(b"wills", b"gone", qos, retain, {WILL_DELAY_INTERVAL: delay} if delay else {})


def watch(broker: Broker) -> Client:
    """Somebody who sees all wills."""
    watcher = broker.connect("watcher", V5)
    subscribe(watcher, "wills", qos=2)
    return watcher


def connect(broker: Broker, delay: int, expiry: int, *, clean_start: bool = True) -> Client:
    properties: Properties = {SESSION_EXPIRY_INTERVAL: expiry}
    return broker.connect("mortal", V5, clean_start=clean_start, will=will(delay), properties=properties)


def reset(client: Client) -> None:
    client.drop()


def break_protocol(client: Client) -> None:
    client.send_bytes(b"\xff\0")
    client.receive()


def fall_silent(client: Client) -> None:
    client.broker.advance(31)


def leave(client: Client) -> None:
    client.send(Disconnect())
    client.receive()


def leave_with_will(client: Client) -> None:
    client.send(Disconnect(4))
    client.receive()


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    ("end", "fired"),
    [(reset, 1), (break_protocol, 1), (fall_silent, 1), (leave, 0)],
)
def test_every_end_but_a_disconnect_publishes_the_will(
    brokers: Brokers, version: int, end: Callable[[Client], None], fired: int
) -> None:
    """A death would go unnoticed [MQTT-3.1.2-7], [MQTT-3.1.2-8], or a polite leave be taken for one [MQTT-3.14.4-3].

    Or a death be told twice [MQTT-3.1.2-10].
    """
    broker = brokers()
    watcher = watch(broker)
    client = broker.connect("mortal", version, keep_alive=20, will=will())
    end(client)

    assert [b"gone"] * fired == payloads(watcher.receive())
    broker.advance(60)
    assert [] == watcher.receive()


def test_a_disconnect_may_ask_for_the_will(brokers: Brokers) -> None:
    """5.0 lets a client leave and have its will published: code 0x04."""
    broker = brokers()
    watcher = watch(broker)
    leave_with_will(broker.connect("mortal", V5, will=will()))

    assert [b"gone"] == payloads(watcher.receive())


def test_a_will_is_a_message_like_any_other(brokers: Brokers) -> None:
    """Its QoS, retain flag and properties would be lost on the way [MQTT-3.1.2-9], [MQTT-3.1.3-10]."""
    broker = brokers()
    watcher = watch(broker)
    properties: Properties = {CONTENT_TYPE: "text", USER_PROPERTY: [("a", "1"), ("a", "2")], MESSAGE_EXPIRY_INTERVAL: 9}
    client = broker.connect("mortal", V5, will=Will(b"wills", b"gone", 2, True, properties))
    client.drop()

    assert [Publish(b"wills", b"gone", 2, packet_id=1, properties=properties)] == messages(watcher.receive())
    late = broker.connect("late", V5)
    assert [Publish(b"wills", b"gone", 0, True, properties=properties)] == subscribe(late, "wills")
    broker.advance(9.2)
    assert [] == subscribe(late, "wills")


@pytest.mark.parametrize(("delay", "expiry", "due"), [(5, 60, 5), (60, 5, 5), (5, 5, 5), (5, 0, 0), (0, 60, 0)])
def test_a_will_waits_for_its_delay_or_the_end_of_its_session(
    brokers: Brokers, delay: int, expiry: int, due: int
) -> None:
    """A client that is back in a second would be mourned, or a dead one forgotten [MQTT-3.1.2-8].

    Or be told of twice, when its session ends after its will [MQTT-3.1.2-10].
    """
    broker = brokers()
    watcher = watch(broker)
    connect(broker, delay, expiry).drop()
    if due:
        broker.advance(due - 0.5)
        assert [] == watcher.receive()
        broker.advance(1)

    assert [b"gone"] == payloads(watcher.receive())
    broker.advance(100)
    assert [] == watcher.receive()


def test_who_comes_back_in_time_takes_the_will_back(brokers: Brokers) -> None:
    """A short loss of the network would look like a death [MQTT-3.1.3-9]."""
    broker = brokers()
    watcher = watch(broker)
    connect(broker, 5, 60).drop()
    broker.advance(4)
    back = connect(broker, 5, 60, clean_start=False)  # with a will of its own, whose time has not come
    broker.advance(100)

    assert back.connack.session_present
    assert [] == watcher.receive()


def test_who_comes_back_too_late_does_not_undo_the_will(brokers: Brokers) -> None:
    """The will would be published twice, or the returned client be without one."""
    broker = brokers()
    watcher = watch(broker)
    connect(broker, 5, 60).drop()
    broker.advance(6)
    again = connect(broker, 0, 60, clean_start=False)
    assert [b"gone"] == payloads(watcher.receive())
    again.drop()

    assert [b"gone"] == payloads(watcher.receive())


@pytest.mark.parametrize(
    ("delay", "clean_start", "fired"),
    [(0, False, 1), (0, True, 1), (5, False, 0), (5, True, 1)],
)
def test_a_takeover_publishes_the_will_unless_the_session_goes_on_in_time(
    brokers: Brokers, delay: int, clean_start: bool, fired: int
) -> None:
    """The will of the connection that lost would be published at the wrong time (3.1.4, the comment on step 3)."""
    broker = brokers()
    watcher = watch(broker)
    connect(broker, delay, 60)
    second = broker.connect("mortal", V5, clean_start=clean_start)
    broker.advance(10)

    assert not second.closed
    assert [b"gone"] * fired == payloads(watcher.receive())


def test_a_clean_start_ends_a_session_that_was_away_and_publishes_its_will(brokers: Brokers) -> None:
    """A will that waits for its delay would be lost with its session [MQTT-3.1.2-8]."""
    broker = brokers()
    watcher = watch(broker)
    connect(broker, 5, 60).drop()
    broker.connect("mortal", V5)

    assert [b"gone"] == payloads(watcher.receive())


def test_a_disconnect_may_shorten_the_session_and_with_it_the_wait_of_the_will(brokers: Brokers) -> None:
    """The will would come long after the session that it stands for."""
    broker = brokers()
    watcher = watch(broker)
    client = connect(broker, 50, 60)
    client.send(Disconnect(4, {SESSION_EXPIRY_INTERVAL: 3}))
    broker.advance(2)
    assert [] == watcher.receive()
    broker.advance(2)

    assert [b"gone"] == payloads(watcher.receive())


def test_an_accepted_will_can_always_be_published(brokers: Brokers) -> None:
    """A will that our own limits refuse would be an error in the middle of nowhere, and end the worker."""
    broker = brokers(Config(limits=Limits(topic_levels=3)))
    deep = broker.open(V5)
    deep.send(Connect(V5, "deep", will=Will(b"a/b/c/d", b"")))
    deep.receive()
    edge = broker.connect("edge", V311, will=Will(b"a/b/c", b"gone"))
    watcher = broker.connect("watcher")
    subscribe(watcher, "a/#")
    edge.drop()
    watcher.send(PingReq())

    assert deep.closed
    assert [b"gone"] == payloads(watcher.receive())


def test_the_wills_of_a_refused_connect_are_not_published(brokers: Brokers) -> None:
    """Who was never let in would speak all the same (3.1.1, 3.1.2.5)."""
    broker = brokers(Config(limits=Limits(client_id_bytes=23)))
    watcher = watch(broker)
    client = broker.open(V5)
    client.send(Connect(V5, "x" * 24, will=will(), properties={RECEIVE_MAXIMUM: 1}))
    client.receive()
    broker.advance(1)

    assert client.closed
    assert [] == watcher.receive()


def test_a_will_no_local_is_not_sent_to_its_own_session(brokers: Brokers) -> None:
    """A client that comes back would find its own obituary although it asked not to hear itself [MQTT-3.8.3-3]."""
    broker = brokers()
    client = connect(broker, 0, 60)
    subscribe(client, Wanted(b"wills", 1, no_local=True))
    client.drop()
    back = broker.connect("mortal", V5, clean_start=False)

    assert back.connack.session_present
    assert [] == back.receive()


ONE_A_MINUTE = QuotaScope(incoming_messages="1:60")


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize(
    ("quotas", "reason"),
    [
        (Quotas(session=ONE_A_MINUTE), DropReason.QUOTA_SESSION_MESSAGES),
        (Quotas(tenant=ONE_A_MINUTE, tenant_of="client-prefix:-"), DropReason.QUOTA_TENANT_MESSAGES),
        (Quotas(cluster=ClusterQuota(incoming_messages="1:60")), DropReason.QUOTA_CLUSTER_MESSAGES),
    ],
)
def test_a_will_counts_against_the_quota_of_its_client(
    brokers: Brokers, log: list[MutableMapping[str, Any]], quotas: Quotas, reason: DropReason, qos: int
) -> None:
    """A client could publish at any rate by connecting and dying."""
    broker = brokers(Config(quotas=quotas))
    watcher = watch(broker)
    for _ in range(3):
        broker.connect("mortal-1", will=will(qos=qos)).drop()

    assert [b"gone"] == payloads(watcher.receive())
    assert {reason: 2} == dropped(broker)
    assert reason.label in [line["reason"] for line in log if line["event"] == "will_refused"]


def test_the_will_of_a_client_that_moved_to_another_tenant_is_its_own(brokers: Brokers) -> None:
    """The will of a client would use up the quota of clients that it has nothing to do with."""
    broker = brokers(Config(quotas=Quotas(tenant=ONE_A_MINUTE, tenant_of="client-prefix:-")))
    watcher = watch(broker)
    for name in ("acme-1", "else-1", "acme-2"):
        broker.connect(name, will=will()).drop()

    assert [b"gone", b"gone"] == payloads(watcher.receive())


def test_a_will_costs_the_credits_of_its_client(brokers: Brokers) -> None:
    """A client that only connects and dies would always count as modest."""
    broker = brokers()
    watch(broker)
    broker.connect("mortal", will=will(qos=1)).drop()

    assert 10 + 1 + 5 == spent(broker, "mortal")  # a publish with one receiver at QoS 1
