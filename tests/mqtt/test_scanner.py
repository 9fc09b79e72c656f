import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.fields import encode_length
from broker.mqtt.packets import V5, V311, Properties, Publish
from broker.mqtt.properties import USER_PROPERTY
from broker.mqtt.scanner import INCOMPLETE, RunScanner, read_header
from broker.reasons import CloseReason, ProtocolError

TOPIC = b"to/pic"
NAMED = b"\x00\x06to/pic"
UNBOUNDED = 1 << 40
WORDS: Properties = {USER_PROPERTY: [("a", "b")]}


@given(st.sampled_from([0, 1, 127, 128, 16_383, 16_384]), st.binary(max_size=3))
def test_a_header_gives_the_bounds_of_its_packet(length: int, before: bytes) -> None:
    """The body is taken from the wrong place, or the next packet is looked for in the wrong place."""
    header = b"\x30" + encode_length(length)
    data = before + header + bytes(length)
    position = len(before)

    body, stop = read_header(data, position, len(data), V5)

    assert (position + len(header), len(data)) == (body, stop)


@given(st.sampled_from([2, 127, 128, 16_384, 2_097_152]), st.integers(0, 10))
def test_an_incomplete_packet_says_how_many_bytes_it_needs(length: int, have: int) -> None:
    """The reader waits for more bytes than there will be, or is called again for each byte that arrives."""
    header = b"\x30" + encode_length(length)
    data = (header + bytes(8))[:have]
    complete = len(header) <= have

    body, stop = read_header(data, 0, len(data), V311)

    assert stop > len(data) or length <= len(data) - len(header)
    assert (len(header), len(header) + length) == (body, stop) if complete else (INCOMPLETE, have + 1) == (body, stop)


@pytest.mark.parametrize(("data", "version"), [(b"\x30\x80\x80\x80\x80", V311), (b"\x30\x80\x00", V5)])
def test_a_length_that_is_none_is_malformed(data: bytes, version: int) -> None:
    """The bytes that follow a wrong length are read as a packet [MQTT-1.5.5-1]."""
    with pytest.raises(ProtocolError) as refused:
        read_header(data, 0, len(data), version)
    assert CloseReason.MALFORMED_PACKET is refused.value.reason


def scan(
    data: bytes, version: int = V311, *, most: int = UNBOUNDED, price: int = 10, room: int = UNBOUNDED, large: int = 999
) -> tuple[int, int, int, int, int]:
    return RunScanner(large, 7).scan(data, 0, NAMED, version, most, price, room)


@pytest.mark.parametrize("version", [V311, V5])
@given(st.lists(st.sampled_from([0, 1, 100, 300]), max_size=6))
def test_a_run_counts_what_it_walks_over(version: int, sizes: list[int]) -> None:
    """Messages, bytes or costs of a run are counted wrong, or it is cut between two packets."""
    packets = [encode(Publish(TOPIC, bytes(size)), version) for size in sizes]
    lengths = [len(packet) for packet in packets]
    cost = sum(10 + (length >> 7) for length in lengths)

    found = scan(b"".join(packets) + b"\xc0\x00", version)

    assert (sum(lengths), len(sizes), sum(sizes), max(lengths, default=0), cost) == found


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(
    "other",
    [
        Publish(b"to/pix", b"another topic"),
        Publish(b"to/picture", b"a longer topic"),
        Publish(TOPIC, b"retained", retain=True),
        Publish(TOPIC, b"QoS 1", qos=1, packet_id=1),
    ],
)
def test_a_run_ends_before_a_packet_that_is_none_of_it(version: int, other: Publish) -> None:
    """A message is delivered to the subscribers of another topic, or without its flags."""
    first = encode(Publish(TOPIC, b"x"), version)

    position, count, *_ = scan(first + encode(other, version) + first, version)

    assert (len(first), 1) == (position, count)


def test_a_run_ends_before_properties() -> None:
    """A receiver is sent the properties as a part of the payload."""
    first = encode(Publish(TOPIC, b"x"), V5)

    assert len(first) == scan(first + encode(Publish(TOPIC, b"x", properties=WORDS), V5), V5)[0]


@pytest.mark.parametrize(
    "tail",
    [b"\x30", b"\x30\x0a\x00", b"\x30\x80", b"\x30\x80\x80\x80\x80\x80", b"\x30\x02\x00\x06", b"\x30\x0f" + NAMED],
)
def test_a_run_ends_before_what_is_incomplete_or_wrong(tail: bytes) -> None:
    """A mistake is reported before the packets in front of it are delivered, or half a packet is delivered."""
    first = encode(Publish(TOPIC, b"x"), V311)

    assert len(first) == scan(first + tail)[0]


def test_a_run_ends_before_a_packet_that_is_too_large() -> None:
    """A packet over the limit is accepted, as it came behind a smaller one."""
    first, large = (encode(Publish(TOPIC, bytes(size)), V311) for size in (10, 100))

    assert len(first) == scan(first + large, large=len(large) - 1)[0]
    assert 2 == scan(first + large, large=len(large))[1]


def test_a_run_keeps_to_its_room_and_to_the_number_that_may_pass() -> None:
    """One connection uses more of a round than its quantum, or more is taken than its quota allows."""
    data = encode(Publish(TOPIC, b"x"), V311) * 9

    assert [0, 1, 2, 3] == [scan(data, price=10, room=room)[1] for room in (0, 1, 11, 30)]
    assert 4 == scan(data, most=4)[1]
