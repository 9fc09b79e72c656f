import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, V5, V31, V311, Ack, PingReq, Publish
from broker.protocol.read_ahead import read_ahead

ACKS = st.builds(Ack, st.sampled_from([PUBACK, PUBREC, PUBREL, PUBCOMP]), st.integers(1, 65535))
PUBLISHES = st.builds(
    lambda payload, qos, packet_id: Publish(b"t", payload, qos, packet_id=packet_id if qos else 0),
    st.binary(max_size=200),
    st.integers(0, 2),
    st.integers(1, 65535),
)
WAITING = Publish(b"waits", b"", 1, packet_id=1)


@given(st.lists(ACKS | st.just(PingReq()) | PUBLISHES), st.sampled_from([V311, V5]), st.integers(0, 20), st.binary())
def test_what_is_taken_and_what_is_left_are_all_there_was(
    packets: list[Ack | PingReq | Publish], version: int, before: int, rest: bytes
) -> None:
    """An acknowledgement would be lost or taken twice, or a publish would change its place."""
    wait = encode(WAITING, version)
    data = bytes(before) + wait + b"".join(encode(packet, version) for packet in packets) + b"\x30\x7f" + rest[:100]
    found = read_ahead(data, before, version)
    acks = [(packet.kind, packet.packet_id) for packet in packets if isinstance(packet, Ack)]
    pings = len([packet for packet in packets if isinstance(packet, PingReq)])
    assert (acks, pings) == (found.acknowledgements, found.pings)
    if not acks and not pings:
        return
    publishes = b"".join(encode(packet, version) for packet in packets if isinstance(packet, Publish))
    assert wait + publishes + b"\x30\x7f" + rest[:100] == found.left


@given(st.binary(max_size=300), st.sampled_from([V311, V5]))
def test_bytes_that_mean_nothing_are_left_alone(data: bytes, version: int) -> None:
    """What is wrong would end the connection before what lies in front of it was done, or be thrown away."""
    wait = encode(WAITING, version)
    found = read_ahead(wait + data, 0, version)

    if found.acknowledgements or found.pings:
        taken = 4 * len(found.acknowledgements) + 2 * found.pings
        assert len(wait) + len(data) == len(found.left) + taken


def test_a_packet_id_of_0_is_told_in_its_turn() -> None:
    """The client would be closed before its publish was taken."""
    wait = encode(WAITING, V311)

    assert [] == read_ahead(wait + b"\x40\x02\0\0", 0, V311).acknowledgements


@pytest.mark.parametrize(
    ("first", "kind"), [(0x48, PUBACK), (0x5F, PUBREC), (0x6A, PUBREL), (0x6B, PUBREL), (0x71, PUBCOMP)]
)
def test_flags_that_3_1_does_not_use_hide_no_acknowledgement(first: int, kind: int) -> None:
    """A PUBREL that a client of 3.1 sends again, with DUP, waits behind a publish that waits for what it frees."""
    data = encode(WAITING, V31) + bytes((first, 2, 0, 9))

    assert [(kind, 9)] == read_ahead(data, 0, V31).acknowledgements
    assert [] == read_ahead(data, 0, V311).acknowledgements


def test_flags_that_3_1_does_not_use_hide_no_ping() -> None:
    """A client of 3.1 takes the broker for dead while its publish waits."""
    data = encode(WAITING, V31) + b"\xc8\0\x62\x02\0\1"

    found = read_ahead(data, 0, V31)

    assert (1, [(PUBREL, 1)]) == (found.pings, found.acknowledgements)
    assert 0 == read_ahead(data, 0, V311).pings
