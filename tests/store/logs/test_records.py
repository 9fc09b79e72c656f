# The form of records, and which packs are new to a position.
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.logs.records import SOURCES, START, Pack, Position, Record, decode, encode

NUMBERS = st.integers(min_value=1, max_value=2**64 - 1)
PACKS = st.lists(st.builds(Pack, NUMBERS, NUMBERS, st.binary(max_size=40)), max_size=5)


@given(PACKS)
def test_a_record_has_what_was_put_into_it(packs: list[Pack]) -> None:
    """Messages would change on their way."""
    assert packs == decode(encode(packs))


@given(PACKS.filter(bool), st.data())
def test_a_record_that_was_changed_is_none(packs: list[Pack], data: st.DataObject) -> None:
    """A damaged disk would change messages, or a part of a record be taken for a whole one."""
    record = bytearray(encode(packs))
    at = data.draw(st.integers(min_value=0, max_value=len(record) - 1))
    record[at] ^= data.draw(st.integers(min_value=1, max_value=255))

    with pytest.raises(ValueError):
        decode(bytes(record))
    with pytest.raises(ValueError):
        decode(encode(packs)[:at])


def test_a_record_that_somebody_else_wrote_is_none() -> None:
    """Who may write to the log would bring the carrier down by a length that is wrong."""
    import zlib

    for content in (b"short", bytes(19) + b"\xff" + b"rest"):
        with pytest.raises(ValueError, match="ends within a pack"):
            decode(START.pack(1, zlib.crc32(content)) + content)


def test_what_was_passed_is_not_new() -> None:
    """A pack that is appended again, also behind others, would be read twice; or one that was not would be lost."""
    position = Position()
    one, two, other = Pack(1, 1, b"a"), Pack(1, 2, b"b"), Pack(2, 1, b"c")

    first = position.take(0, [one, two])
    again = position.take(1, [other, one, two, Pack(1, 3, b"d")])

    assert [one, two] == first.packs
    assert [other, Pack(1, 3, b"d")] == again.packs
    assert 2 == position.offset


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 9)), max_size=20))
def test_a_position_that_was_saved_is_the_same(tokens: list[tuple[int, int]]) -> None:
    """After a restart a client would get what it has, or not what is new."""
    position = Position(3)
    read = [position.take(3 + at, [Pack(*token, b"")]) for at, token in enumerate(tokens)]
    behind = Position(3)
    for record in read:
        behind.advance(record)

    assert position.encode() == behind.encode() == Position.decode(position.encode()).encode()
    assert all([] == position.take(99, [Pack(*token, b"")]).packs for token in tokens)


def test_a_position_is_bounded() -> None:
    """Each restart of a worker would add to what is saved with each commit, for ever."""
    position = Position()
    for source in range(1, 10 * SOURCES):
        position.take(source, [Pack(1, source, b""), Pack(source + 1, 1, b"")])
        assert [] == position.take(source, [Pack(1, 1, b"")]).packs  # a source that goes on appending is remembered

    assert len(position.encode()) == 25 + 16 * SOURCES


@pytest.mark.parametrize("saved", [b"", b"\x01short", b"\x02" + bytes(24), b"\x01" + bytes(24) + b"half a token"])
def test_what_is_no_position_is_refused(saved: bytes) -> None:
    """A damaged value would have a client begin anywhere."""
    with pytest.raises(ValueError):
        Position.decode(saved)


def test_a_record_without_new_packs_moves_the_position() -> None:
    """A commit would stay behind a record that was appended twice."""
    position = Position()
    position.take(0, [Pack(1, 1, b"")])
    committed = Position()
    for record in (Record(0, [Pack(1, 1, b"")]), position.take(1, [Pack(1, 1, b"")])):
        committed.advance(record)

    assert 2 == committed.offset == position.offset
