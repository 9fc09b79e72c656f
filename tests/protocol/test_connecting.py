# Who may come in, and what those hear who may not.
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

from broker.config.schema import Config, Limits
from broker.mqtt.encode import encode
from broker.mqtt.packets import V5, V31, V311, ConnAck, Connect, PingReq, PingResp, Publish, Will
from broker.mqtt.properties import ASSIGNED_CLIENT_IDENTIFIER, AUTHENTICATION_METHOD, MAXIMUM_PACKET_SIZE
from broker.protocol.lifecycle import REFUSABLE
from broker.reasons import CloseReason
from tests.inprocess import Broker
from tests.protocol.talk import closed, greeting, messages, subscribe

Brokers = Callable[..., Broker]
Log = list[MutableMapping[str, Any]]

LIMITS = Limits(qos=1, retain=False, client_id_bytes=23, topic_levels=4)
CONNECT_LEVEL = 8  # the protocol level in the bytes of a CONNECT 3.1.1 or 5.0: after two lengths and "MQTT"


def a_connect(version: int, *, will: Will | None = None, client_id: str = "me", method: str = "") -> Connect:
    properties = {AUTHENTICATION_METHOD: method} if method else {}
    return Connect(version, client_id, will=will, properties=dict(properties))


REFUSALS = [
    # (connect, what CONNACK says or None for a close without a word, the reason that is counted)
    (a_connect(V31, client_id="x" * 24), 2, CloseReason.CLIENT_ID_INVALID),
    (a_connect(V311, client_id="x" * 24), 2, CloseReason.CLIENT_ID_INVALID),
    (a_connect(V5, client_id="x" * 24), 0x85, CloseReason.CLIENT_ID_INVALID),
    (Connect(V311, "", clean_start=False), 2, CloseReason.CLIENT_ID_INVALID),
    (Connect(V31, ""), 2, CloseReason.CLIENT_ID_INVALID),
    (a_connect(V5, method="SCRAM-SHA-1"), 0x8C, CloseReason.BAD_AUTHENTICATION_METHOD),
    (a_connect(V311, will=Will(b"w", b"", qos=2)), None, CloseReason.QOS_NOT_SUPPORTED),
    (a_connect(V5, will=Will(b"w", b"", qos=2)), 0x9B, CloseReason.QOS_NOT_SUPPORTED),
    (a_connect(V311, will=Will(b"w", b"", retain=True)), None, CloseReason.RETAIN_NOT_SUPPORTED),
    (a_connect(V5, will=Will(b"w", b"", retain=True)), 0x9A, CloseReason.RETAIN_NOT_SUPPORTED),
    (a_connect(V311, will=Will(b"a/b/c/d/e", b"")), None, CloseReason.TOPIC_LEVELS),
    (a_connect(V5, will=Will(b"a/b/c/d/e", b"")), 0x90, CloseReason.TOPIC_LEVELS),
    (a_connect(V5, will=Will(b"a/+", b"")), 0x90, CloseReason.TOPIC_NAME_INVALID),
    (a_connect(V311, will=Will(b"$SYS/broker/uptime", b"")), 5, CloseReason.NOT_AUTHORIZED),
    (a_connect(V5, will=Will(b"$SYS/broker/uptime", b"")), 0x87, CloseReason.NOT_AUTHORIZED),
]


@pytest.mark.parametrize(("connect", "code", "reason"), REFUSALS)
def test_a_refusal_says_why_in_the_words_of_its_version(
    brokers: Brokers, log: Log, connect: Connect, code: int | None, reason: CloseReason
) -> None:
    """A client would not learn why it is kept out, or an operator not why a client is missing.

    Or a client that is refused be let in all the same: for its id [MQTT-3.1.3-8], 3.1.1 [MQTT-3.1.3-9], or for having
    none, 3.1.1 [MQTT-3.1.3-7], 3.1.1 [MQTT-3.1.3-8]; for its method [MQTT-4.12.0-1], [MQTT-4.12.0-4]; for its will
    [MQTT-3.2.2-12], [MQTT-3.2.2-13]. Each of them is closed [MQTT-3.1.4-2], [MQTT-3.2.2-7], [MQTT-4.13.2-1], without a
    word where its version has none, 3.1.1 [MQTT-3.2.2-6], and never has a session [MQTT-3.2.2-6].
    """
    broker = brokers(Config(limits=LIMITS))
    client = broker.open(connect.version)
    client.send(connect)

    assert ([] if code is None else [ConnAck(False, code)]) == client.receive()
    assert client.closed
    assert {reason: 1} == closed(broker)
    assert 1 == broker.counters.connects_refused
    assert [reason.label] == [line["reason"] for line in log if line["event"] == "client_closed"]
    assert 0 == broker.session_count()


@pytest.mark.parametrize(("level", "version", "code"), [(6, V5, 0x84), (3, V311, 1), (9, V5, 0x84)])
def test_an_unknown_protocol_level_is_answered_as_the_nearest_version(
    brokers: Brokers, level: int, version: int, code: int
) -> None:
    """A client of another version would see a dead line, not that we do not speak its language [MQTT-3.1.2-2].

    3.1.1 [MQTT-3.1.2-2]
    """
    broker = brokers()
    client = broker.open(version)
    connect = bytearray(encode(greeting("me", version), version))
    connect[CONNECT_LEVEL] = level
    client.send_bytes(bytes(connect))

    assert [ConnAck(False, code)] == client.receive()
    assert client.closed
    assert {CloseReason.UNSUPPORTED_VERSION: 1} == closed(broker)


@pytest.mark.parametrize("first", [b"\xc0\0", b"GET / HTTP/1.1\r\n\r\n", b"\xf0\0", b"\xe0\0"])
def test_what_does_not_begin_with_connect_is_closed_without_a_word(brokers: Brokers, first: bytes) -> None:
    """A stranger (a browser, an early PINGREQ, AUTH or DISCONNECT) would be taken for a client [MQTT-3.1.0-1].

    Or be told more than a close, which only clients understand [MQTT-3.14.0-1].
    """
    broker = brokers()
    client = broker.open()
    client.send_bytes(first)

    assert [] == client.receive()
    assert client.closed
    assert {CloseReason.NOT_MQTT: 1} == closed(broker)


def test_who_says_nothing_is_closed_at_the_connect_timeout_and_not_before(brokers: Brokers) -> None:
    """Silent sockets would pile up, or slow clients be turned away."""
    broker = brokers(Config(limits=Limits(connect_timeout=3.0)))
    silent = broker.open()
    half = broker.open()
    half.send_bytes(encode(greeting("half"), V5)[:-1])
    broker.advance(2.8)
    assert not silent.closed
    broker.advance(0.5)

    assert silent.closed
    assert half.closed
    assert {CloseReason.CONNECT_TIMEOUT: 2} == closed(broker)


def test_a_client_that_connected_is_not_touched_by_the_connect_timeout(brokers: Brokers) -> None:
    """Every client would be closed a few seconds after it came."""
    broker = brokers(Config(limits=Limits(connect_timeout=1.0)))
    client = broker.connect("me")
    broker.advance(5.0)

    assert not client.closed


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_over_the_connection_limit_a_client_is_told_so(brokers: Brokers, version: int) -> None:
    """Clients would hammer a full broker, not knowing that it is full."""
    broker = brokers(connections=2)
    friends = [broker.connect("a"), broker.connect("b")]
    late = broker.open(version)
    late.send(greeting("c", version))

    assert [ConnAck(False, 0x97 if version == V5 else 3)] == late.receive()
    assert late.closed
    assert {CloseReason.CONNECTION_LIMIT: 1} == closed(broker)
    friends[0].drop()
    broker.connect("c", version)  # there is room again


def test_far_over_the_connection_limit_a_socket_is_closed_at_once(brokers: Brokers, log: Log) -> None:
    """Who opens sockets and says nothing would use up our descriptors."""
    broker = brokers(connections=1)
    waiting = [broker.open() for _ in range(1 + REFUSABLE)]
    broker.settle()
    one_more = broker.open()
    broker.settle()

    assert one_more.closed
    assert not any(client.closed for client in waiting)
    assert {CloseReason.CONNECTION_LIMIT: 1} == closed(broker)
    assert [("connection_refused", "connection_limit")] == [(line["event"], line["reason"]) for line in log]
    waiting[0].drop()
    again = broker.open()
    broker.settle()
    assert not again.closed


def test_an_anonymous_client_is_given_an_id(brokers: Brokers) -> None:
    """Two clients without an id would take each other's session over [MQTT-3.1.3-6], [MQTT-3.2.2-16]."""
    broker = brokers()
    one = broker.connect("", V5)
    two = broker.connect("", V5)
    three = broker.connect("", V311)
    names = {client.connack.properties.get(ASSIGNED_CLIENT_IDENTIFIER) for client in (one, two)}

    assert 2 == len(names - {None})
    assert 3 == broker.session_count()
    assert not any(client.closed for client in (one, two, three))


def test_packets_behind_connect_need_not_wait_for_connack(brokers: Brokers) -> None:
    """What a client sends in the same breath as CONNECT would be lost (3.1.4: it need not wait for CONNACK)."""
    broker = brokers()
    listener = broker.connect("listener")
    subscribe(listener, "t")
    client = broker.open(V5)
    client.send(greeting("me"), Publish(b"t", b"hello"), PingReq())

    assert [ConnAck, PingResp] == [type(packet) for packet in client.receive()]
    assert [Publish(b"t", b"hello")] == messages(listener.receive())


def test_a_connect_over_the_packet_limit_is_closed(brokers: Brokers) -> None:
    """Strangers could make us hold whatever their CONNECT announces."""
    broker = brokers(Config(limits=Limits(packet_bytes=1024)))
    client = broker.open(V5)
    client.send_bytes(b"\x10\xff\xff\xff\x7f")
    client.receive()

    assert client.closed
    assert {CloseReason.PACKET_TOO_LARGE: 1} == closed(broker)


def test_a_worker_that_stops_takes_nobody_new(brokers: Brokers) -> None:
    """A client would get a session that ends at once, instead of going to another broker."""
    broker = brokers()
    broker.lifecycle.stop(broker.clock.now)
    answers = []
    for version in (V311, V5):
        late = broker.open(version)
        late.send(greeting("late", version))
        answers += late.receive()
        assert late.closed

    assert [ConnAck(False, 3), ConnAck(False, 0x88)] == answers
    assert {CloseReason.SHUTTING_DOWN: 2} == closed(broker)


def test_a_goodbye_is_never_larger_than_the_client_takes(brokers: Brokers) -> None:
    """A small client would choke on the sentence about its own mistake [MQTT-3.14.2-3]."""
    broker = brokers()
    client = broker.connect("me", V5, properties={MAXIMUM_PACKET_SIZE: 20})
    client.send_bytes(b"\xa2\x02\x00\x01")  # UNSUBSCRIBE without properties or a filter
    before = broker.reactor.bytes_sent
    said = client.receive()

    assert client.closed
    assert [{}] == [packet.properties for packet in said if hasattr(packet, "properties")]
    assert broker.reactor.bytes_sent - before <= 20


@pytest.mark.parametrize(("version", "code"), [(V31, 0), (V311, 0), (V5, 0x81)])
@pytest.mark.parametrize("length", [b"%c\x80\0", b"%c\x80\x80\0"])
def test_a_padded_length_of_a_connect_is_refused_where_it_is_forbidden(
    brokers: Brokers, length: bytes, version: int, code: int
) -> None:
    """The first packet would be the only one of 5.0 that may be written in more than one way [MQTT-1.5.5-1]."""
    broker = brokers()
    client = broker.open(version)
    connect = encode(greeting("me", version), version)
    client.send_bytes(connect[:1] + length % (connect[1] | 0x80) + connect[2:])

    (answer,) = client.receive()
    assert isinstance(answer, ConnAck)
    assert code == answer.code
    assert (code != 0) == client.closed
    assert ({CloseReason.MALFORMED_PACKET: 1} if code else {}) == closed(broker)
