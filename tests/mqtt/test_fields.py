import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.mqtt.fields import encode_binary, encode_length, encode_string, encode_uint16, read_length
from broker.mqtt.packets import V5, V311
from broker.reasons import CloseReason, ProtocolError


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_lengths_at_their_borders(value: int, encoded: str) -> None:
    """A length near the border of its size is written or read wrong (table 1-1)."""
    data = bytes.fromhex(encoded)

    assert data == encode_length(value)
    assert (value, len(data)) == read_length(data, 0, len(data), V5)


@given(st.integers(0, (1 << 28) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_a_length_is_read_where_it_stands(value: int, before: bytes, after: bytes) -> None:
    """A length is read from the wrong place, or what follows it is taken for a part of it."""
    encoded = encode_length(value)
    data = before + encoded + after
    stop = len(before) + len(encoded)

    assert (value, stop) == read_length(data, len(before), len(data), V5)
    for end in range(len(before), stop):
        assert (-1, len(before)) == read_length(data, len(before), end, V5)


def test_a_fourth_byte_that_goes_on_is_malformed_before_the_fifth() -> None:
    """An attacker's length of five bytes is waited for, or read."""
    for data in (b"\x80\x80\x80\x80", b"\xff\xff\xff\xff\x01"):
        with pytest.raises(ProtocolError) as refused:
            read_length(data, 0, len(data), V311)
        assert refused.value.reason is CloseReason.MALFORMED_PACKET


@pytest.mark.parametrize("encoded", ["8000", "ff00", "808000", "ffffff00"])
def test_padding_is_malformed_in_version_5_only(encoded: str) -> None:
    """5.0 accepts a length with more bytes than it needs [MQTT-1.5.5-1], or 3.1.1 refuses one."""
    data = bytes.fromhex(encoded)

    assert len(data) == read_length(data, 0, len(data), V311)[1]
    with pytest.raises(ProtocolError):
        read_length(data, 0, len(data), V5)


def test_what_does_not_fit_is_refused_and_not_cut_short() -> None:
    """A value too large for its field goes out as another value [MQTT-4.7.3-3]."""
    for value in (-1, 1 << 28):
        with pytest.raises(ValueError, match="does not fit"):
            encode_length(value)
    with pytest.raises(OverflowError):
        encode_uint16(0x10000)
    with pytest.raises(OverflowError):
        encode_binary(bytes(0x10000))
    with pytest.raises(OverflowError):
        encode_string("x" * 0x10000)
