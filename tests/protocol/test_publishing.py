# PUBLISH as it comes: alone or in runs, whole or cut, with a topic or an alias, and what the publisher hears.
from collections.abc import Callable

import pytest

from broker.config.schema import Config, Retained
from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31, V311, Ack, Publish, Wanted
from broker.mqtt.properties import MAXIMUM_PACKET_SIZE, REASON_STRING, TOPIC_ALIAS
from broker.reasons import DropReason
from tests.inprocess import Broker
from tests.protocol.talk import dropped, messages, payloads, subscribe

Brokers = Callable[..., Broker]

SIZES = [0, 1, 120, 124, 125, 126, 127, 128, 300, 16_377, 16_384, 20_000]  # lengths of one, two and three bytes
RUN = [Publish(b"t", bytes((n,)) * size) for n, size in enumerate(SIZES)]
MIXED = [*RUN, Publish(b"tt", b"another"), Publish(b"t", b"q1", 1, packet_id=1), *RUN, Publish(b"t", b"r", retain=True)]


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("cut", [1, 7, 129, 4096, 1 << 20])
def test_messages_arrive_whole_and_in_order_however_they_are_cut(brokers: Brokers, version: int, cut: int) -> None:
    """A message at the edge of what one read brought would be lost, doubled, torn, or overtaken by the next.

    [MQTT-4.2.0-1], [MQTT-4.6.0-5]
    """
    broker = brokers()
    readers = [broker.connect(f"reader{v}", v) for v in (V31, V311, V5)]
    for reader in readers:
        subscribe(reader, "t", "tt")
    publisher = broker.connect("publisher", version)
    data = b"".join(encode(packet, version) for packet in MIXED)
    for at in range(0, len(data), cut):
        publisher.send_bytes(data[at : at + cut])
        if at < 2000 or cut > 100:
            broker.settle()

    assert [Ack(PUBACK, 1)] == publisher.receive()
    for reader in readers:
        got = messages(reader.receive())
        assert [(packet.topic, packet.payload) for packet in MIXED] == [
            (packet.topic, packet.payload) for packet in got
        ]
        assert {(0, False)} == {(packet.qos, packet.retain) for packet in got}
    assert len(MIXED) == broker.counters.publishes_received


def test_a_run_leaves_out_what_one_reader_does_not_take(brokers: Brokers) -> None:
    """One large message in a run would cost a small client its connection, or all the others of the run."""
    broker = brokers()
    small = broker.connect("small", V5, properties={MAXIMUM_PACKET_SIZE: 140})
    subscribe(small, "t")
    publisher = broker.connect("publisher")
    publisher.send(*RUN)
    publisher.receive()
    fitting = [packet.payload for packet in RUN if len(encode(packet, V5)) <= 140]

    assert fitting == payloads(small.receive())
    assert {DropReason.TOO_LARGE: len(RUN) - len(fitting)} == dropped(broker)


def test_an_alias_stands_for_the_topic_it_was_last_set_to(brokers: Brokers) -> None:
    """Messages would go to the wrong topic [MQTT-3.3.2-12]."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "#")
    publisher = broker.connect("publisher", V5)
    for topic, alias in ((b"a", 1), (b"", 1), (b"b", 2), (b"", 1), (b"c", 1), (b"", 2), (b"", 1)):
        publisher.send(Publish(topic, b"x", properties={TOPIC_ALIAS: alias}))

    publisher.receive()
    assert [b"a", b"a", b"b", b"a", b"c", b"b", b"c"] == [message.topic for message in messages(reader.receive())]


def test_an_alias_ends_with_its_connection(brokers: Brokers) -> None:
    """A client that is back would publish to a topic it does not know of any more [MQTT-3.3.2-7]."""
    broker = brokers()
    broker.connect("me", V5).send(Publish(b"a", b"x", properties={TOPIC_ALIAS: 1}))
    later = broker.connect("me", V5, clean_start=False)
    later.send(Publish(b"", b"x", properties={TOPIC_ALIAS: 1}))
    later.receive()

    assert later.closed


@pytest.mark.parametrize(("version", "code"), [(V311, 0), (V5, 0x10)])
def test_a_publisher_hears_that_nobody_listens_where_its_version_has_a_word_for_it(
    brokers: Brokers, version: int, code: int
) -> None:
    """A 5.0 client would not learn that it publishes to nobody, or a 3.1.1 client get a packet it cannot read."""
    publisher = brokers().connect("publisher", version)
    publisher.send(Publish(b"t", b"x", 1, packet_id=1), Publish(b"t", b"x", 2, packet_id=2), Ack(PUBREL, 2))

    assert [Ack(PUBACK, 1, code), Ack(PUBREC, 2, code), Ack(PUBCOMP, 2)] == publisher.receive()


def test_qos_2_is_delivered_once_though_it_is_sent_again(brokers: Brokers) -> None:
    """Exactly once would be twice; and an id that was released would stay taken [MQTT-4.3.3-10], [MQTT-4.3.3-12]."""
    broker = brokers()
    reader = broker.connect("reader")
    subscribe(reader, "t", qos=2)
    publisher = broker.connect("publisher")
    publish = Publish(b"t", b"x", 2, packet_id=5)
    publisher.send(publish, Publish(b"t", b"x", 2, dup=True, packet_id=5), Ack(PUBREL, 5), publish)

    assert [Ack(PUBREC, 5), Ack(PUBREC, 5), Ack(PUBCOMP, 5), Ack(PUBREC, 5)] == publisher.receive()
    assert [b"x", b"x"] == payloads(reader.receive())


@pytest.mark.parametrize("version", [V311, V5])
def test_what_a_publisher_sent_again_is_new_to_its_readers(brokers: Brokers, version: int) -> None:
    """A reader would throw away as a duplicate what it never had: DUP is between two neighbours [MQTT-3.3.1-3]."""
    broker = brokers()
    reader = broker.connect("reader", version)
    subscribe(reader, "t", qos=2)
    publisher = broker.connect("publisher", version)
    publisher.send(*[Publish(b"t", b"x", qos, dup=True, packet_id=qos) for qos in (1, 2)])
    publisher.receive()

    assert [(1, False), (2, False)] == [(message.qos, message.dup) for message in messages(reader.receive())]


def test_acknowledgements_with_a_code_or_properties_count_like_short_ones(brokers: Brokers) -> None:
    """The window of a client that says more than it must would fill up for good."""
    broker = brokers()
    reader = broker.connect("reader", V5)
    subscribe(reader, Wanted(b"t", 2))
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t", b"x", 1 + n % 2, packet_id=n + 1) for n in range(4)])
    publisher.receive()
    got = messages(reader.receive())
    assert [1, 2, 1, 2] == [message.qos for message in got]
    for message in got:
        kind, code = (PUBACK, 0x10) if message.qos == 1 else (PUBREC, 0x80)
        reader.send(Ack(kind, message.packet_id, code, {REASON_STRING: "thanks"}))
    reader.receive()
    (session,) = [one for one in broker.sessions() if one.client_id == "reader"]

    assert not reader.closed
    assert 0 == session.inflight()


def test_retained_messages_beyond_the_limit_are_delivered_and_not_kept(brokers: Brokers) -> None:
    """Full would mean lost, or a client could make us keep any number of messages."""
    broker = brokers(Config(retained=Retained(messages=2)))
    reader = broker.connect("reader")
    subscribe(reader, "#")
    publisher = broker.connect("publisher")
    publisher.send(*[Publish(b"t/%d" % n, b"x", retain=True) for n in range(3)])
    publisher.receive()

    assert 3 == len(messages(reader.receive()))
    assert [b"t/0", b"t/1"] == [message.topic for message in subscribe(broker.connect("late"), "#")]
    assert {DropReason.RETAINED_FULL: 1} == dropped(broker)
