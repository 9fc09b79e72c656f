# One message in all the forms that receivers get it in. The wire's own decoder says what a form means.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.fields import encode_length
from broker.mqtt.packets import V5, V31, V311, Properties, Publish
from broker.mqtt.properties import (
    CONTENT_TYPE,
    MESSAGE_EXPIRY_INTERVAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
)
from broker.session.message import NEVER, Message
from tests.mqtt.reading import read
from tests.session.receiver import NOW, message

TYPED = bytes((CONTENT_TYPE, 0, 4)) + b"text"  # a property as it is encoded


def packet(data: bytes, version: int) -> Publish:
    (decoded,), reason = read([data], version)
    assert reason is None and isinstance(decoded, Publish)
    return decoded


@pytest.mark.parametrize("version", [V31, V311, V5])
@given(
    topic=st.binary(min_size=1, max_size=4).map(lambda raw: raw.hex().encode()),
    payload=st.binary(max_size=300),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    typed=st.booleans(),
    life=st.none() | st.integers(1, 100_000),
)
def test_every_form_of_a_message_says_the_same(
    version: int, topic: bytes, payload: bytes, qos: int, retain: bool, typed: bool, life: int | None
) -> None:
    """A receiver would get another message than was published, or one that it cannot read."""
    sent = Message(topic, payload, qos, retain, TYPED if typed else b"", NEVER if life is None else NOW + life)
    properties: Properties = {}
    if version == V5 and typed:
        properties[CONTENT_TYPE] = "text"
    if version == V5 and life is not None:
        properties[MESSAGE_EXPIRY_INTERVAL] = life
    expected = Publish(topic, payload, qos, retain, False, 513 if qos else 0, properties)

    data = sent.packet(version, 513, NOW) if qos else sent.whole(version, NOW)

    assert expected == packet(data, version)
    assert len(data) == sent.length(version, NOW)
    assert data == (sent.packet(version, 513, NOW) if qos else sent.whole(version, NOW))  # from what is remembered
    if qos:
        assert Publish(topic, payload, qos, retain, True, 513, properties) == packet(
            sent.again(version, 513, NOW), version
        )
    if version == V5:
        aliased = packet(sent.aliased(topic, 7, 513, NOW), V5)
        assert (
            Publish(topic, payload, qos, retain, False, expected.packet_id, {**properties, TOPIC_ALIAS: 7}) == aliased
        )
        assert b"" == packet(sent.aliased(b"", 7, 513, NOW), V5).topic


def test_one_message_serves_receivers_of_both_formats() -> None:
    """The form made for the first receiver would be sent to one of another version."""
    for qos in (0, 1):
        sent = message(b"payload", qos, properties=TYPED)
        for version in (V5, V311, V5, V31):
            data = sent.packet(version, 1, NOW) if qos else sent.whole(version, NOW)
            properties: Properties = {CONTENT_TYPE: "text"} if version == V5 else {}
            assert properties == packet(data, version).properties


def test_the_head_of_what_came_in_goes_out_again() -> None:
    """The bytes that were received would not be used, or be used for the wrong format."""
    came = encode(Publish(b"t", b"payload", 1, False, False, 77), V5)
    sent = message(b"payload", 1)
    sent.head5 = came[:5]

    assert Publish(b"t", b"payload", 1, packet_id=8) == packet(sent.packet(V5, 8, NOW), V5)
    assert Publish(b"t", b"payload", 1, packet_id=8) == packet(sent.packet(V311, 8, NOW), V311)


@pytest.mark.parametrize("qos", [0, 1])
def test_the_expiry_that_remains_is_written_anew_each_second(qos: int) -> None:
    """A message that waits would keep its whole life, or outlive it [MQTT-3.3.2-6]."""
    sent = message(b"", qos, expires=NOW + 10)

    def left(now: float) -> object:
        data = sent.packet(V5, 1, now) if qos else sent.whole(V5, now)
        return packet(data, V5).properties[MESSAGE_EXPIRY_INTERVAL]

    assert [10, 10, 9, 1, 0, 10] == [left(NOW + seconds) for seconds in (0, 0.5, 1.2, 9.9, 11, 0)]


def test_a_life_that_is_over_is_written_as_such() -> None:
    """Who gets a message at its very end would be told that it never expires, or be sent no properties at all."""
    properties: Properties = {MESSAGE_EXPIRY_INTERVAL: 0}
    for typed in (b"", TYPED):
        sent = message(b"", 1, properties=typed, expires=NOW)
        if typed:
            properties[CONTENT_TYPE] = "text"
        assert properties == packet(sent.packet(V5, 1, NOW), V5).properties


def test_what_all_receivers_share_is_made_once() -> None:
    """A fan-out would encode its topic and lengths anew for each receiver."""
    sent = message(b"payload", 1)
    sent.packet(V5, 1, NOW)
    sent.packet(V311, 1, NOW)
    (of_5, of_3) = (sent.head5, sent.head3)

    assert of_5 and of_3
    sent.length(V5, NOW)
    assert of_5 is sent.head5 and of_3 is sent.head3


@pytest.mark.parametrize("qos", [0, 1])
def test_a_worker_that_was_held_up_gives_no_message_more_time_than_it_had(qos: int) -> None:
    """A receiver would keep it for a second longer than its publisher wanted: the worker has read its clock before."""
    sent = message(b"", qos, expires=NOW + 3)
    data = sent.packet(V5, 1, NOW - 0.09) if qos else sent.whole(V5, NOW - 0.09)

    assert 3 == packet(data, V5).properties[MESSAGE_EXPIRY_INTERVAL]


def test_a_message_with_little_time_left_has_a_second() -> None:
    """Its receiver would take it for one that has expired."""
    sent = message(b"", 1, expires=NOW + 3)

    assert 1 == packet(sent.packet(V5, 1, NOW + 2.99), V5).properties[MESSAGE_EXPIRY_INTERVAL]


@pytest.mark.parametrize("qos", [0, 1])
def test_the_longest_expiry_goes_on_at_a_worker_that_is_behind(qos: int) -> None:
    """A client could have no receiver at another worker get what it publishes: the expiry has four bytes."""
    longest = 0xFFFFFFFF
    sent = message(b"", qos, expires=NOW + longest)
    data = sent.packet(V5, 1, NOW - 0.01) if qos else sent.whole(V5, NOW - 0.01)

    assert longest == packet(data, V5).properties[MESSAGE_EXPIRY_INTERVAL]


def test_a_message_expires_at_its_time() -> None:
    """A message would be delivered after its end, or not to its end [MQTT-3.3.2-5]."""
    assert [False, True, True] == [message(expires=NOW).expired(NOW + step) for step in (-0.1, 0, 0.1)]
    assert not message().expired(NOW)


def test_a_variant_keeps_the_message_and_adds_identifiers() -> None:
    """Receivers with other options would get another message, or not learn which subscription it came by."""
    identifiers = bytes((SUBSCRIPTION_IDENTIFIER,)) + encode_length(300)
    sent = Message(b"t", b"payload", 2, True, TYPED, NOW + 10).variant(1, False, identifiers)

    properties: Properties = {CONTENT_TYPE: "text", MESSAGE_EXPIRY_INTERVAL: 10, SUBSCRIPTION_IDENTIFIER: [300]}
    assert Publish(b"t", b"payload", 1, False, False, 3, properties) == packet(sent.packet(V5, 3, NOW), V5)


def test_the_size_of_a_message_counts_what_it_holds() -> None:
    """Limits in bytes would not limit topics or properties."""
    assert 1 + 7 + len(TYPED) == message(b"payload", properties=TYPED).size
