# Keep alive, takeover, expiry, shut-down: how connections and sessions end.
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    V5,
    V31,
    V311,
    Ack,
    ConnAck,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
)
from broker.mqtt.properties import SESSION_EXPIRY_INTERVAL
from broker.reasons import CloseReason, DropReason
from tests.inprocess import Broker
from tests.protocol.talk import closed, dropped, goodbye, messages, payloads, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]


# Keep alive.


@pytest.mark.parametrize(("version", "code"), [(V31, None), (V311, None), (V5, 0x8D)])
def test_silence_of_one_and_a_half_keep_alives_ends_a_connection(
    brokers: Brokers, version: int, code: int | None
) -> None:
    """A half-open connection would stay for ever, or a slow one end too early [MQTT-3.1.2-22], [MQTT-3.1.2-20]."""
    broker = brokers()
    client = broker.connect("me", version, keep_alive=10)
    broker.advance(14.8)
    assert not client.closed
    broker.advance(0.4)

    assert code == goodbye(client)
    assert {CloseReason.KEEP_ALIVE_TIMEOUT: 1} == closed(broker)


@pytest.mark.parametrize(
    "packet",
    [
        PingReq(),
        Publish(b"t", b""),
        Publish(b"t", b"", retain=True),
        Ack(PUBACK, 9),
        Publish(b"t", b"", 1, packet_id=1),
    ],
)
def test_any_whole_packet_keeps_a_connection_alive(brokers: Brokers, packet: Ack | PingReq | Publish) -> None:
    """A client that publishes all the time would be closed for not pinging."""
    broker = brokers()
    client = broker.connect("me", V5, keep_alive=10)
    for _ in range(5):
        broker.advance(10)
        client.send(packet)
        client.receive()

    assert not client.closed


def test_half_a_packet_does_not_keep_a_connection_alive(brokers: Brokers) -> None:
    """A client could hold a connection for ever by a byte now and then."""
    broker = brokers()
    client = broker.connect("me", V5, keep_alive=10)
    packet = encode(Publish(b"t", bytes(100)), V5)
    for byte in packet[:16]:
        client.send_bytes(bytes((byte,)))
        broker.advance(1)

    assert 0x8D == goodbye(client)


def test_a_keep_alive_of_zero_is_none(brokers: Brokers) -> None:
    """A client that switched keep alive off would be closed."""
    broker = brokers()
    client = broker.connect("me", V5, keep_alive=0)
    broker.advance(200)

    assert not client.closed


# Takeover.


@pytest.mark.parametrize(("version", "code"), [(V31, None), (V311, None), (V5, 0x8E)])
def test_the_later_connection_gets_the_session(brokers: Brokers, version: int, code: int | None) -> None:
    """Two connections would share a client id, or the one that works be refused [MQTT-3.1.4-3], [MQTT-3.1.3-2]."""
    broker = brokers()
    properties: Properties = {SESSION_EXPIRY_INTERVAL: 60} if version == V5 else {}
    former = broker.connect("me", version, clean_start=False, properties=properties)
    subscribe(former, "t", qos=1)
    later = broker.connect("me", V311, clean_start=False)

    assert code == goodbye(former)
    assert {CloseReason.SESSION_TAKEN_OVER: 1} == closed(broker)
    assert (1, 1) == (broker.connected, broker.session_count())
    later.send(Publish(b"t", b"x"))
    assert [b"x"] == payloads(later.receive())


def test_a_takeover_sends_again_what_the_former_connection_did_not_acknowledge(brokers: Brokers) -> None:
    """A message would be lost, or come as a new one, because its connection was replaced [MQTT-4.4.0-1]."""
    broker = brokers()
    former = broker.connect("me", V311, clean_start=False)
    subscribe(former, "t", qos=1)
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    first = messages(former.receive())
    later = broker.connect("me", V311, clean_start=False)

    assert later.connack.session_present
    assert [Publish(b"t", b"x", 1, dup=True, packet_id=first[0].packet_id)] == later.receive()


def test_a_clean_start_takes_over_nothing(brokers: Brokers) -> None:
    """A client that wants to begin anew would get old subscriptions and messages [MQTT-3.1.2-4], [MQTT-3.1.4-4].

    Or believe that it has [MQTT-3.2.2-2].
    """
    broker = brokers()
    former = broker.connect("me", V311, clean_start=False)
    subscribe(former, "t", qos=1)
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"t", b"x", 1, packet_id=1))
    publisher.receive()
    later = broker.connect("me", V311)
    publisher.send(Publish(b"t", b"y", 1, packet_id=2))

    assert not later.connack.session_present
    assert [] == later.receive()
    assert 0 == broker.routes.statistics()[1]
    assert {DropReason.SESSION_ENDED: 1} == dropped(broker)


def test_session_present_is_not_said_to_a_client_of_3_1(brokers: Brokers) -> None:
    """The byte is reserved in 3.1."""
    broker = brokers()
    broker.connect("me", V31, clean_start=False).drop()
    client = broker.open(V311)  # a reader that would see the flag
    client.send_bytes(b"\x10\x10\x00\x06MQIsdp\x03\x00\x00\x00\x00\x02me")

    assert [ConnAck(False)] == client.receive()


# Expiry.


def test_a_session_of_5_0_ends_with_its_connection_unless_it_asked_for_more(brokers: Brokers) -> None:
    """Sessions that nobody wants would fill the memory [MQTT-4.1.0-2], or wanted ones be lost [MQTT-3.1.2-23].

    Even while their client is here [MQTT-4.1.0-1].
    """
    broker = brokers()
    broker.connect("a", V5).drop()
    broker.connect("b", V5, properties={SESSION_EXPIRY_INTERVAL: 10}).drop()
    assert 1 == broker.session_count()
    broker.advance(9)

    assert broker.connect("b", V5, clean_start=False).connack.session_present
    broker.advance(20)  # it does not expire while its client is here
    assert 1 == broker.session_count()


def test_a_clean_start_with_an_expiry_keeps_the_session_that_it_begins(brokers: Brokers) -> None:
    """Clean start is about the past, not about the future, in 5.0."""
    broker = brokers()
    broker.connect("me", V5, clean_start=True, properties={SESSION_EXPIRY_INTERVAL: 10}).drop()

    assert broker.connect("me", V5, clean_start=False).connack.session_present


@pytest.mark.parametrize(("said", "left"), [(None, 100), (5, 5), (1000, 200), (0, 0)])
def test_disconnect_may_change_the_expiry_up_to_our_limit(brokers: Brokers, said: int | None, left: int) -> None:
    """A client could not give its session up, or could prolong it beyond what is allowed (3.14.2.2.2)."""
    broker = brokers(Config(limits=Limits(session_expiry=200.0)))
    client = broker.connect("me", V5, properties={SESSION_EXPIRY_INTERVAL: 100})
    client.send(Disconnect(0, {} if said is None else {SESSION_EXPIRY_INTERVAL: said}))
    assert [] == client.receive()
    assert client.closed
    if left:
        broker.advance(left - 1)
        assert 1 == broker.session_count()
        broker.advance(1.2)

    assert 0 == broker.session_count()
    assert {CloseReason.CLIENT_DISCONNECTED: 1} == closed(broker)


def test_an_expired_session_leaves_nothing_behind(brokers: Brokers) -> None:
    """Subscriptions and messages of sessions that are gone would be matched and kept for ever [MQTT-4.1.0-2]."""
    broker = brokers()
    client = broker.connect("me", V5, properties={SESSION_EXPIRY_INTERVAL: 10})
    subscribe(client, "t", "a/#", "+/b", "$share/g/t", qos=1)
    client.drop()
    publisher = broker.connect("publisher", V5)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1), Publish(b"a/b", b"x", packet_id=0))
    publisher.receive()
    broker.advance(11)

    assert (0, 0) == broker.routes.statistics()[1:]
    lost = {DropReason.OFFLINE_QOS0: 1, DropReason.SESSION_ENDED: 1, DropReason.NO_SHARED_MEMBER: 1}
    assert lost == dropped(broker)
    publisher.send(Publish(b"t", b"x", 1, packet_id=2))
    assert [Ack(PUBACK, 2, 0x10)] == publisher.receive()  # no matching subscribers


# The end.


def test_everybody_is_told_that_we_shut_down(brokers: Brokers, log: Log) -> None:
    """Clients would take a planned restart for a network failure, and messages on their way be lost."""
    broker = brokers()
    clients = {version: broker.connect(f"me{version}", version) for version in (V31, V311, V5)}
    subscribe(clients[V311], "t")
    silent = broker.open()
    clients[V5].send(Publish(b"t", b"last"))
    broker.settle()
    broker.lifecycle.stop(broker.clock.now)

    assert [b"last"] == payloads(clients[V311].receive())
    assert 0x8B == goodbye(clients[V5])
    assert None is goodbye(clients[V31])
    assert [] == silent.receive()
    assert all(client.closed for client in (*clients.values(), silent))
    assert {CloseReason.SHUTTING_DOWN: 4} == closed(broker)
    assert 4 == len([line for line in log if line["event"] == "client_closed"])
    for client in (*clients.values(), silent):
        client.drop()
    assert [] == broker.streams()


def test_a_client_that_just_goes_is_counted_as_such(brokers: Brokers, log: Log) -> None:
    """Lost clients would look like polite ones."""
    broker = brokers()
    client = broker.connect("me")
    client.drop()

    assert {CloseReason.PEER_CLOSED: 1} == closed(broker)
    assert ["client_connected", "client_closed"] == [line["event"] for line in log]


def test_what_came_before_the_end_of_a_stream_is_done(brokers: Brokers) -> None:
    """A client that publishes and goes would lose its last messages; there may be more than one round of them."""
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "t", qos=1)
    client = broker.connect("me")
    half = encode(Publish(b"t", b"never whole"), V311)[:-1]
    client.send(*[Publish(b"t", b"%d" % n, 1, packet_id=n + 1) for n in range(500)])
    client.send_bytes(half)
    client.socket.shutdown(socket.SHUT_WR)

    assert [b"%d" % n for n in range(500)] == payloads(listener.receive())
    assert {CloseReason.PEER_CLOSED: 1} == closed(broker)


def test_after_disconnect_nothing_is_read(brokers: Brokers) -> None:
    """Packets behind a DISCONNECT would be obeyed [MQTT-3.14.4-1], or its connection not end [MQTT-3.14.4-2]."""
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "t")
    client = broker.connect("me")
    client.send(Disconnect(), Publish(b"t", b"late"), PingReq())

    assert [] == client.receive()
    assert client.closed
    assert [] == listener.receive()
    listener.send(PingReq())
    assert [PingResp()] == listener.receive()
