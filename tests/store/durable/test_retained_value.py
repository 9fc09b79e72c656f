# The form in which a retained message is stored.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.properties import MESSAGE_EXPIRY_INTERVAL, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS, USER_PROPERTY
from broker.session.message import NEVER, Message
from broker.session.will import forwardable
from broker.store.durable.retained_value import (
    HEAD,
    DamagedValue,
    decode_value,
    encode_deletion,
    encode_message,
    encode_stamp,
)

NOW, WALL = 1000.0, 1_800_000_000.0
STAMP = 1 << 94
PROPERTIES = forwardable({USER_PROPERTY: [("unit", "°C")]})


@given(
    payload=st.binary(min_size=1, max_size=300),
    qos=st.integers(0, 2),
    stamp=st.integers(1, (1 << 96) - 1),
    owner=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    properties=st.sampled_from([b"", PROPERTIES]),
    expires=st.none() | st.integers(1, 0xFFFFFFFF),
)
def test_a_message_comes_back_as_it_was(
    payload: bytes, qos: int, stamp: int, owner: str, properties: bytes, expires: int | None
) -> None:
    """A restart would change messages; or their time to live would begin anew, or be that of another boot."""
    message = Message(b"a/b", payload, qos, True, properties, NEVER if expires is None else NOW + expires)
    data = encode_message(message, owner, stamp, NOW, WALL)
    later = decode_value(b"a/b", data, 7.0, WALL + 60)
    found = later.message

    assert found is not None
    assert (stamp, owner) == (later.stamp, later.client_id)
    assert (b"a/b", payload, qos, True, properties) == (
        found.topic,
        found.payload,
        found.qos,
        found.retain,
        found.properties,
    )
    if expires is None:
        assert NEVER == found.expires
    else:
        assert found.expires != NEVER and abs(found.expires - (7.0 - 60 + expires)) <= 1.0


@given(one=st.integers(1, (1 << 96) - 1), other=st.integers(1, (1 << 96) - 1))
def test_stamps_have_the_order_of_their_bytes(one: int, other: int) -> None:
    """The script compares bytes: an older message would replace a newer one."""
    assert (one < other) == (encode_stamp(one) < encode_stamp(other))


def test_a_deletion_is_a_stamp() -> None:
    """What was deleted would come back, or take the room of a message."""
    data = encode_deletion(STAMP)
    found = decode_value(b"a", data, NOW, WALL)

    assert HEAD == len(data)
    assert (STAMP, None) == (found.stamp, found.message)


FULL = encode_message(Message(b"a", b"payload", 1, True, PROPERTIES, NOW + 9), "owner", STAMP, NOW, WALL)


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_value_or_damaged(data: bytes) -> None:
    """A start would end with an exception that nobody expects."""
    try:
        decode_value(b"a", data, NOW, WALL)
    except DamagedValue:
        pass


@pytest.mark.parametrize("size", range(len(FULL) - len(b"payload") + 1))
def test_a_value_that_was_cut_off_is_damaged(size: int) -> None:
    """Part of a message would be sent as the whole."""
    with pytest.raises(DamagedValue):
        decode_value(b"a", FULL[:size], NOW, WALL)


@pytest.mark.parametrize("topic", [b"", b"a/+", b"a/#", b"\xff", b"a\0", b"$SYS/broker/uptime"])
def test_a_topic_that_no_client_can_publish_to_is_damaged(topic: bytes) -> None:
    """Subscribers would get a PUBLISH that ends their connection, or what only the broker may say."""
    with pytest.raises(DamagedValue):
        decode_value(topic, FULL, NOW, WALL)


@pytest.mark.parametrize(
    "properties",
    [
        b"\x26",
        b"\x7f\x00",
        bytes((TOPIC_ALIAS, 0, 1)),
        bytes((SUBSCRIPTION_IDENTIFIER, 1)),
        bytes((MESSAGE_EXPIRY_INTERVAL, 0, 0, 0, 1)),
    ],
)
def test_properties_that_are_none_are_damaged(properties: bytes) -> None:
    """Each subscriber of MQTT 5.0 would close its connection, for ever."""
    data = encode_message(Message(b"a", b"x", 0, True, properties, NEVER), "", STAMP, NOW, WALL)
    with pytest.raises(DamagedValue):
        decode_value(b"a", data, NOW, WALL)


@pytest.mark.parametrize("flags", [0x03, 0x40, 0x80, 0x05])
def test_flags_of_a_newer_version_are_damaged(flags: int) -> None:
    """What a newer version means by them would be lost."""
    with pytest.raises(DamagedValue):
        decode_value(b"a", encode_stamp(STAMP) + bytes((flags,)) + b"x", NOW, WALL)
