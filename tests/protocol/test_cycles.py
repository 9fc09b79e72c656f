# The hot path makes no reference cycles: what is done with is freed at once, and the collector may sleep.
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.config.schema import Config, Delivery, Limits, Quotas, QuotaScope
from broker.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    V5,
    V311,
    Ack,
    Connect,
    Disconnect,
    PingReq,
    Properties,
    Publish,
    Subscribe,
    Unsubscribe,
    Wanted,
    Will,
)
from broker.mqtt.properties import (
    MESSAGE_EXPIRY_INTERVAL,
    RECEIVE_MAXIMUM,
    SESSION_EXPIRY_INTERVAL,
    TOPIC_ALIAS,
    TOPIC_ALIAS_MAXIMUM,
    WILL_DELAY_INTERVAL,
)
from broker.routing.fanout import PAGE
from broker.routing.route import Group
from tests.garbage import ours
from tests.inprocess import Broker, Client
from tests.net.tls import Authority, shake, transport
from tests.protocol.talk import messages

Brokers = Callable[..., Broker]


def talk(broker: Broker, version: int) -> None:
    """A bit of everything that clients do, both ways."""
    properties: Properties = {}
    if version == V5:
        properties = {SESSION_EXPIRY_INTERVAL: 5, RECEIVE_MAXIMUM: 2, TOPIC_ALIAS_MAXIMUM: 5}
    will = Will(b"wills", b"x", 1, True, {WILL_DELAY_INTERVAL: 2} if version == V5 else {})
    reader = broker.connect("reader", version, clean_start=False, keep_alive=10, will=will, properties=properties)
    publisher = broker.connect("publisher", version)
    filters = [Wanted(b"t", 2), Wanted(b"t/+", 1), Wanted(b"#", 0), Wanted(b"$share/g/t", 2)]
    reader.send(Subscribe(1, filters))
    for n in range(1, 7):
        publisher.send(Publish(b"t", b"x" * n, n % 3, packet_id=n if n % 3 else 0), Ack(PUBREL, n))
        publisher.send(Publish(b"t/%d" % n, b"x", 1, True, packet_id=n))
        if version == V5:
            publisher.send(Publish(b"t", b"x", properties={TOPIC_ALIAS: 1, MESSAGE_EXPIRY_INTERVAL: 1}))
    publisher.receive()
    answer(reader)
    reader.send(Subscribe(2, [Wanted(b"t/+", 1)]), PingReq(), Unsubscribe(3, [b"t", b"none"]))
    answer(reader)
    broker.connect("reader", version, clean_start=False, properties=properties).drop()  # a takeover, and gone
    publisher.send(Publish(b"t/1", b"waits", 2, packet_id=9), Publish(b"t/2", b"", retain=True))
    publisher.receive()
    answer(broker.connect("reader", version, clean_start=False, properties=properties))
    publisher.send(Disconnect())
    publisher.receive()
    broken = broker.connect("broken", version, will=will)
    broken.send_bytes(b"\xff\0")
    broken.receive()
    stranger = broker.open(version)
    stranger.send(PingReq())
    stranger.receive()
    refused = broker.open(version)
    refused.send(Connect(version, "x" * 30))
    refused.receive()
    broker.connect("reader", version).drop()  # the session ends
    broker.advance(8)


def answer(client: Client) -> None:
    """Acknowledge all there is, to the end."""
    while said := messages(client.receive()):
        for message in said:
            if message.qos == 1:
                client.send(Ack(PUBACK, message.packet_id))
            elif message.qos == 2:
                client.send(Ack(PUBREC, message.packet_id), Ack(PUBCOMP, message.packet_id))


@pytest.mark.parametrize("version", [V311, V5])
def test_nothing_that_clients_do_leaves_a_cycle(brokers: Brokers, garbage: list[object], version: int) -> None:
    """With the collector off between pauses, memory would grow with every message or connection (DESIGN 2.9)."""
    broker = brokers(Config(limits=Limits(client_id_bytes=23)))
    talk(broker, version)

    assert [] == ours(garbage)
    assert 0 == broker.session_count()


def test_a_fan_out_in_pages_leaves_no_cycle(brokers: Brokers, garbage: list[object]) -> None:
    """Each publish to a crowd would stay in memory with its list of receivers."""
    broker = brokers()
    for n in range(PAGE + 1):
        reader = broker.open()
        reader.send(Connect(V311, f"reader{n}", clean_start=False), Subscribe(1, [Wanted(b"t", n % 2)]), Disconnect())
    publisher = broker.connect("publisher")
    publisher.send(Publish(b"t", b"x", 1, packet_id=1), Publish(b"t", b"x"), Publish(b"t", b"x", 2, packet_id=2))
    publisher.receive()
    publisher.drop()

    assert [] == ours(garbage)


def test_a_reader_that_stalls_leaves_no_cycle(brokers: Brokers, garbage: list[object]) -> None:
    """What a dead client was owed would stay in memory after its connection was closed."""
    delivery = Delivery(high_watermark=8192, low_watermark=4096, slow_consumer_timeout=2.0)
    broker = brokers(Config(delivery=delivery))
    reader = broker.connect("reader")
    reader.send(Subscribe(1, [Wanted(b"t", 1)]))
    publisher = broker.connect("publisher")
    broker.settle()
    reader.reading = False
    for n in range(1, 400):
        publisher.send(Publish(b"t", bytes(2000), 1, packet_id=n))
    publisher.receive()
    broker.advance(5)

    assert 1 == broker.connected
    assert [] == ours(garbage)


@pytest.mark.parametrize("version", [V311, V5])
def test_who_is_held_to_quotas_leaves_no_cycle(brokers: Brokers, garbage: list[object], version: int) -> None:
    """Each client with a quota would stay in memory after it has gone."""
    scope = QuotaScope(incoming_messages="2:2", outgoing_messages="2:2", subscriptions="2:2")
    broker = brokers(Config(quotas=Quotas(session=scope)))
    client = broker.connect("client", version)
    for n in range(1, 4):
        client.send(Subscribe(n, [Wanted(b"%d" % n, 1)]))
    broker.advance(2)
    for n in range(1, 7):
        client.send(Publish(b"1", b"", 1, packet_id=n))
    client.receive()
    client.drop()

    assert [] == ours(garbage)
    assert 0 == broker.session_count()


def test_a_connection_over_tls_leaves_no_cycle(brokers: Brokers, garbage: list[object], tmp_path: Path) -> None:
    """Each TLS connection would stay in memory after its end, with the buffers of OpenSSL: some 30 KiB."""
    broker = brokers()
    authority = Authority(tmp_path)
    tls = transport(broker, authority.server())
    client = broker.open(V311, tls)
    shake(client, authority.trusted_by())
    client.send(Connect(V311, "c"), PingReq())
    client.receive()
    client.send(Disconnect())
    client.receive()
    client.drop()
    no_handshake = broker.open(V311, tls)
    no_handshake.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
    broker.settle()
    no_handshake.drop()

    assert [] == broker.streams()
    assert [] == ours(garbage)


def test_this_would_see_a_cycle(garbage: list[object]) -> None:
    """The tests above could be blind."""
    group = Group(0, False, b"", 0)
    group.sessions.append(group)  # type: ignore[arg-type]
    del group

    assert ["Group"] == ours(garbage)
