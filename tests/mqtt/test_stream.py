from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.encode import encode
from broker.mqtt.packets import PUBACK, V5, V31, V311, Ack, Connect, Packet, PingReq, Publish
from broker.mqtt.stream import PacketReader
from broker.reasons import CloseReason, ProtocolError
from tests.mqtt.reading import PLENTY, read
from tests.mqtt.strategies import VERSIONS, connects, packets

PING = b"\xc0\0"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """*data* in pieces, cut at *places* (taken modulo its length)."""
    borders = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(borders)]


cuts = st.lists(st.integers(0, 1 << 16), max_size=12)
versions = st.sampled_from([0, *VERSIONS])
# Bytes that are often framed like packets: pure noise seldom gets beyond its first byte.
frames = st.builds(
    lambda first, missing, body: bytes((first, len(body) + missing)) + body,
    st.sampled_from(list(b"\x10\x20\x30\x32\x40\x50\x62\x70\x82\x90\xa2\xb0\xc0\xe0\xf0")),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([b"", b"\0", b"\0\1", b"\0\1\0", b"\0\1a\0\1", b"\0\1\0\1a\0"]) | st.binary(max_size=12),
)
noise = st.lists(frames, max_size=6).map(b"".join) | st.binary(max_size=64)
limits = st.sampled_from([5, 16, 64, PLENTY])  # with less, half of a length that is malformed is too large already


def single_bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@given(noise, versions, limits, cuts)
def test_any_bytes_are_packets_or_an_error_however_they_are_cut(
    data: bytes, version: int, limit: int, places: list[int]
) -> None:
    """Bytes from outside raise something that nobody catches, or what is read depends on how TCP cut it."""
    expected = read([data], version, limit)

    assert expected == read(cut(data, places), version, limit)
    assert expected == read(single_bytes(data), version, limit)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data(), cuts, limits)
def test_a_conversation_is_read_the_same_however_it_is_cut(
    version: int, draw: st.DataObject, places: list[int], limit: int
) -> None:
    """A packet is lost or changed at the border between two reads; the CONNECT decides the version."""
    sent: list[Packet] = [draw.draw(connects(version)), *draw.draw(st.lists(packets(version), max_size=4))]
    data = b"".join(encode(packet, version) for packet in sent)

    assert (sent, None) == read(cut(data, places), 0)
    assert (sent, None) == read(cut(data, places), version)
    assert read([data], 0, limit) == read(cut(data, places), 0, limit)


@pytest.mark.parametrize("version", VERSIONS)
@given(st.data())
def test_a_damaged_packet_is_a_packet_or_an_error(version: int, draw: st.DataObject) -> None:
    """A packet that is nearly right raises something that nobody catches, or is read differently in pieces."""
    data = bytearray(encode(draw.draw(packets(version)), version))
    for place in draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=3)):
        data[place] = draw.draw(st.integers(0, 255))
    damaged = bytes(data) + draw.draw(st.binary(max_size=4))

    assert read([damaged], version) == read(single_bytes(damaged), version)


def test_packets_before_a_mistake_come_out_first() -> None:
    """A client's last good packets are lost because a bad one arrived with them."""
    packets, reason = read([PING + PING + b"\xff"], V311)

    assert [PingReq(), PingReq()] == packets
    assert CloseReason.MALFORMED_PACKET is reason


def test_an_error_is_repeated() -> None:
    """What follows a mistake is read as packets."""
    reader = PacketReader(V311, PLENTY)
    reader.feed(b"\xff")
    for _ in range(2):
        with pytest.raises(ProtocolError):
            reader.next_packet()
        reader.feed(PING)


@pytest.mark.parametrize(
    ("data", "version", "reason"),
    [
        (b"G", 0, CloseReason.NOT_MQTT),  # GET / HTTP/1.1
        (b"\x16\x03\x01\x02\x00", 0, CloseReason.MALFORMED_PACKET),  # a TLS handshake on the plain port
        (b"\x36", V311, CloseReason.MALFORMED_PACKET),  # QoS 3
        (b"\x30\xff\xff\xff\xff", V311, CloseReason.MALFORMED_PACKET),  # a length of five bytes
        (b"\x30\x80\x00", V5, CloseReason.MALFORMED_PACKET),  # a padded length
        (b"\x30\xff\xff\xff\x7f", V311, CloseReason.PACKET_TOO_LARGE),
        (b"\x30\x40", V5, CloseReason.PACKET_TOO_LARGE),
    ],
)
def test_a_mistake_is_seen_at_the_byte_that_shows_it(data: bytes, version: int, reason: CloseReason) -> None:
    """A peer that can only be refused is waited for, with room kept for what it announced."""
    assert ([], reason) == read([data], version, limit=64)
    assert ([], None) == read([data[:-1]], version, limit=64)


def test_the_limit_counts_the_whole_packet() -> None:
    """A client is refused for a packet that the maximum packet size allows, or allowed one byte more (2.1.4)."""
    packet = encode(Publish(b"a", bytes(200)), V311)

    assert ([Publish(b"a", bytes(200))], None) == read([packet], V311, len(packet))
    assert ([], CloseReason.PACKET_TOO_LARGE) == read([packet], V311, len(packet) - 1)


def test_the_limit_counts_each_packet_alone() -> None:
    """A client is refused for many small packets that come together."""
    assert ([PingReq()] * 9, None) == read([PING * 9], V311, limit=3)


def test_the_connect_says_how_the_rest_is_read() -> None:
    """What follows a CONNECT in the same segment is read as another version, or refused."""
    for version, rest in ((V31, b"\xcf\0"), (V311, PING), (V5, b"\x40\x03\x00\x01\x10")):
        reader = PacketReader(0, PLENTY)
        read_all = list(reader.feed(encode(Connect(version, "c"), version) + rest))
        assert 2 == len(read_all)
        assert version == reader.version


def test_a_second_connect_changes_nothing() -> None:
    """A client changes the version in the middle of a connection (the session refuses it [MQTT-3.1.0-2])."""
    reader = PacketReader(0, PLENTY)
    list(reader.feed(encode(Connect(V5, "c"), V5) + encode(Connect(V311, "c"), V311)))

    assert V5 == reader.version


def test_a_padded_length_is_judged_by_the_version_that_the_connect_names() -> None:
    """5.0 accepts padding in its first packet [MQTT-1.5.5-1], or 3.1.1 clients that pad are shut out."""
    for version, reason in ((V311, None), (V5, CloseReason.MALFORMED_PACKET)):
        plain = encode(Connect(version, "c"), version)
        for padding in (b"\0", b"\x80\0"):
            padded = plain[:1] + bytes((plain[1] | 0x80,)) + padding + plain[2:]
            for chunks in ([padded], single_bytes(padded)):
                packets, refused = read(chunks, 0)
                assert reason is refused
                assert ([] if reason else [Connect(version, "c")]) == packets


def test_more_may_be_fed_before_everything_is_taken() -> None:
    """What arrives while a publish waits at a gate is lost, overtakes, or is not noticed."""
    ack = encode(Ack(PUBACK, 7), V311)
    long = encode(Publish(b"topic", bytes(40)), V311)
    reader = PacketReader(V311, PLENTY)

    reader.feed(long[:30])
    assert reader.next_packet() is None
    reader.feed(long[30:] + PING + ack[:1])
    assert Publish(b"topic", bytes(40)) == reader.next_packet()
    reader.feed(ack[1:])
    reader.feed(PING)

    assert [PingReq(), Ack(PUBACK, 7), PingReq()] == list(reader)
    assert 0 == reader.waiting()


@pytest.mark.parametrize("pieces", [[PING * 2], [PING[:1], PING[1:] + PING]])
def test_a_mistake_behind_what_is_not_taken_yet_is_seen_at_its_byte(pieces: list[bytes]) -> None:
    """A single bad byte is waited behind, because it came while packets in front of it were not taken."""
    reader = PacketReader(V311, PLENTY)
    for piece in pieces:
        reader.feed(piece)
    assert PingReq() == reader.next_packet()

    reader.feed(b"\xff")

    assert PingReq() == reader.next_packet()
    with pytest.raises(ProtocolError):
        reader.next_packet()


def test_packets_may_be_taken_one_by_one() -> None:
    """A packet that comes right after another was taken is skipped."""
    reader = PacketReader(V311, PLENTY)
    for _ in range(3):
        reader.feed(PING)
        assert PingReq() == reader.next_packet()


def test_a_small_packet_is_not_held_back_by_a_long_one_before_it() -> None:
    """After a packet that came in pieces a short one waits until as many bytes have come again."""
    long = encode(Publish(b"topic", bytes(40)), V311)
    reader = PacketReader(V311, PLENTY)
    assert [] == list(reader.feed(long[:5]))
    reader.feed(long[5:] + PING)
    reader.next_packet()
    reader.feed(PING)

    assert [PingReq(), PingReq()] == list(reader)


def test_nothing_waits_at_first() -> None:
    """A new connection is taken for one that sent something."""
    assert 0 == PacketReader(0, PLENTY).waiting()


def test_waiting_counts_what_is_not_read() -> None:
    """The budget for unread bytes is charged too little, and a client fills our memory."""
    reader = PacketReader(V311, PLENTY)
    reader.feed(PING + b"\x30")
    assert 3 == reader.waiting()
    reader.next_packet()
    assert 1 == reader.waiting()
    assert reader.next_packet() is None
    reader.feed(b"\x05\x00")
    assert 3 == reader.waiting()
