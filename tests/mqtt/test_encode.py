import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.packets import (
    PUBACK,
    PUBREC,
    PUBREL,
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Wanted,
)
from broker.mqtt.properties import REASON_STRING, TOPIC_ALIAS, USER_PROPERTY
from tests.mqtt.reading import only
from tests.mqtt.strategies import VERSIONS, packets


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
def test_every_packet_survives_the_wire(version: int, draw: st.DataObject) -> None:
    """A packet comes out different from what was sent, or its bytes depend on who encoded it."""
    sent = draw.draw(packets(version))
    data = encode(sent, version)

    received = only(data.hex(), version)

    assert sent == received
    assert data == encode(received, version)


@pytest.mark.parametrize(
    ("packet", "version", "expected"),
    [
        (Ack(PUBACK, 0x1234), V5, "4002 1234"),  # code 0 without properties is left out: 3.4.2.1
        (Ack(PUBREC, 1, 0x10), V5, "5003 0001 10"),
        (Ack(PUBREC, 1, 0, {REASON_STRING: ""}), V5, "5007 0001 00 03 1f0000"),
        (Ack(PUBREL, 1), V311, "6202 0001"),
        (Disconnect(), V5, "e000"),  # 3.14.2.1
        (Disconnect(0x8E), V5, "e001 8e"),
        (Auth(), V5, "f000"),
        (ConnAck(True), V5, "2003 0100 00"),
        (Connect(V31, "c", True, 1), V31, "100f 0006 4d5149736470 03 02 0001 000163"),
        (Connect(V5, "", True, 1), V5, "100d 0004 4d515454 05 02 0001 00 0000"),
    ],
)
def test_packets_are_as_short_as_the_specification_allows(packet: Packet, version: int, expected: str) -> None:
    """Bytes are sent that mean nothing, or one that means something is left out."""
    assert bytes.fromhex(expected) == encode(packet, version)


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (Ack(PUBREC, 1, 0x97, {REASON_STRING: "a"}), "5002 0001"),
        (Disconnect(0x8E, {REASON_STRING: "a"}), "e000"),
        (UnsubAck(1, [0x11], {REASON_STRING: "a"}), "b002 0001"),
        (SubAck(1, [0x80], {REASON_STRING: "a"}), "9003 0001 80"),
        (ConnAck(False, 5, {REASON_STRING: "a"}), "2002 0005"),
        (Publish(b"a", b"x", properties={TOPIC_ALIAS: 1}), "3004 000161 78"),
        (Subscribe(1, [Wanted(b"a", 1, True, True, 2)], {USER_PROPERTY: [("a", "b")]}), "8206 0001 000161 01"),
        (Unsubscribe(1, [b"a"], {USER_PROPERTY: [("a", "b")]}), "a205 0001 000161"),
    ],
)
def test_3_x_never_sees_what_came_with_5_0(packet: Packet, expected: str) -> None:
    """A 3.x client gets properties, options or codes that it takes for something else."""
    for version in (V31, V311):
        assert bytes.fromhex(expected) == encode(packet, version)


def test_3_1_knows_no_session_present() -> None:
    """A 3.1 client sees a bit set that its specification reserves."""
    assert b"\x20\x02\x00\x00" == encode(ConnAck(True), V31)
    assert b"\x20\x02\x01\x00" == encode(ConnAck(True), V311)


def test_what_does_not_fit_is_not_sent() -> None:
    """A topic or a packet identifier too large for its field goes out as another."""
    with pytest.raises(OverflowError):
        encode(Publish(b"a" * 0x10000, b""), V5)
    with pytest.raises(OverflowError):
        encode(Publish(b"a", b"", qos=1, packet_id=0x10000), V311)
