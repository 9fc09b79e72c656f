from broker.mqtt.packets import Properties
from broker.mqtt.packets import Will as WillFields
from broker.mqtt.properties import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    MESSAGE_EXPIRY_INTERVAL,
    PAYLOAD_FORMAT_INDICATOR,
    RESPONSE_TOPIC,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL_DELAY_INTERVAL,
    encode_properties,
)
from broker.session.message import NEVER
from broker.session.will import Will, expires_at, forwardable
from tests.session.receiver import NOW


def test_what_the_publisher_says_goes_on_to_the_receivers() -> None:
    """A property would be lost or reordered on its way.

    [MQTT-3.3.2-4], [MQTT-3.3.2-15] to [MQTT-3.3.2-18], [MQTT-3.3.2-20]
    """
    properties: Properties = {
        USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3")],
        RESPONSE_TOPIC: "r",
        CORRELATION_DATA: b"c",
        CONTENT_TYPE: "text",
        PAYLOAD_FORMAT_INDICATOR: 1,
    }

    assert encode_properties(properties) == bytes((len(forwardable(properties)),)) + forwardable(properties)


def test_what_each_receiver_gets_anew_does_not_go_on() -> None:
    """A receiver would be sent the publisher's alias, or twice an expiry [MQTT-3.3.2-6]."""
    own: Properties = {MESSAGE_EXPIRY_INTERVAL: 5, TOPIC_ALIAS: 1, SUBSCRIPTION_IDENTIFIER: [1], WILL_DELAY_INTERVAL: 9}

    assert b"" == forwardable({}) == forwardable(own)
    assert forwardable({CONTENT_TYPE: "text"}) == forwardable({CONTENT_TYPE: "text", **own})


def test_many_properties_go_on_whole() -> None:
    """A section whose length takes two bytes would begin with one of them."""
    properties: Properties = {USER_PROPERTY: [("key", "x" * 200)]}

    assert 205 + 3 == len(forwardable(properties)) and USER_PROPERTY == forwardable(properties)[0]


def test_a_message_expires_as_its_publisher_says() -> None:
    """Messages would never expire, or all would [MQTT-3.3.2-5]."""
    assert NOW + 5 == expires_at({MESSAGE_EXPIRY_INTERVAL: 5}, NOW)
    assert NEVER == expires_at({}, NOW)


def test_a_will_is_the_message_that_the_client_described() -> None:
    """Others would be told something else, or with a delay that is not theirs to know."""
    properties: Properties = {WILL_DELAY_INTERVAL: 30, MESSAGE_EXPIRY_INTERVAL: 5, CONTENT_TYPE: "text"}
    will = Will(WillFields(b"gone", b"payload", 2, True, properties))

    published = will.message(NOW)

    assert 30 == will.delay
    assert (b"gone", b"payload", 2, True) == (published.topic, published.payload, published.qos, published.retain)
    assert forwardable({CONTENT_TYPE: "text"}) == published.properties
    assert NOW + 5 == published.expires


def test_a_will_without_a_delay_is_due_at_once() -> None:
    """Every will would wait, or none be published."""
    assert 0 == Will(WillFields(b"gone", b"")).delay
