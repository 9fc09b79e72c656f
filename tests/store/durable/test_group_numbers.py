# Numbers that a queue takes through groups: each one once, in any order, and a bounded number of them.
import pytest

from broker.session.message import NEVER, Message, group_variant
from broker.store.durable.group_numbers import CHUNK, CHUNKS, MOST, ORIGIN, ORIGINS
from broker.store.durable.log_pack import decode_log_pack, encode_log_pack
from broker.store.durable.tokens import TAKEN_IN_GROUPS, TakenNumbers, read_tokens
from tests.store.durable.test_tokens import carry_out, token_of


def adopted(record: dict[bytes, bytes]) -> TakenNumbers:
    """What the next owner goes on with."""
    stored = read_tokens(dict(record))
    return TakenNumbers(stored.taken, True, [], stored.in_groups)


def test_a_number_below_another_one_is_taken_once() -> None:
    """A publish that another member has lost would be acknowledged and lost, or be stored twice.

    The session may move between the two.
    """
    taken = TakenNumbers({}, False, [])
    numbers = [2, 1, 2, CHUNK + 1, CHUNK - 1, 3, 1, CHUNK + 1]
    expected = [True, True, False, True, True, True, False, False]
    assert expected == [taken.take_in_group(token_of(number)) for number in numbers]
    record: dict[bytes, bytes] = {}
    assert taken.unstored()
    carry_out(taken, record)
    assert not taken.unstored()
    taken = adopted(record)

    assert not any(taken.take_in_group(token_of(number)) for number in numbers)
    assert all(taken.take_in_group(token_of(number)) for number in (4, CHUNK, CHUNK + 2))
    assert taken.take(token_of(1))  # not through a group


def test_what_was_not_stored_is_taken_where_it_comes_again() -> None:
    """It would be lost, as greater numbers were stored before."""
    taken = TakenNumbers({}, False, [])
    record: dict[bytes, bytes] = {}
    assert taken.take_in_group(token_of(5))
    carry_out(taken, record)
    assert taken.take_in_group(token_of(4))

    assert [False, True] == [adopted(record).take_in_group(token_of(number)) for number in (5, 4)]


@pytest.mark.parametrize(("origins", "chunks"), [(1, CHUNKS), (ORIGINS, 1), (MOST // CHUNKS, CHUNKS)])
def test_a_queue_remembers_so_many_chunks(origins: int, chunks: int) -> None:
    """Who publishes, or has many sessions, would fill the memory of the worker and of Redis."""
    taken = TakenNumbers({}, False, [])
    record: dict[bytes, bytes] = {}
    for origin in range(2 * origins):
        for chunk in range(2 * chunks):
            assert taken.take_in_group(token_of(chunk * CHUNK + 1, origin))
            if chunk % 7 == 0:
                carry_out(taken, record)
    carry_out(taken, record)

    assert len(record) <= MOST
    assert len({name[2 : 2 + ORIGIN] for name in record}) <= ORIGINS
    newest = token_of((2 * chunks - 1) * CHUNK + 1, 2 * origins - 1)
    for numbers in (taken, adopted(record)):
        assert not numbers.take_in_group(newest)
        assert numbers.take_in_group(token_of(1, 0))
    oldest_kept = token_of(chunks * CHUNK + 1, 2 * origins - 1)
    assert not adopted(record).take_in_group(oldest_kept)


def test_a_full_chunk_is_as_long_as_it_may_be() -> None:
    """It would be taken for damaged by the next owner, or grow without bound."""
    taken = TakenNumbers({}, False, [])
    record: dict[bytes, bytes] = {}
    assert all(taken.take_in_group(token_of(number)) for number in range(1, CHUNK))
    carry_out(taken, record)

    assert [CHUNK // 8] == list(map(len, record.values()))
    assert not any(adopted(record).take_in_group(token_of(number)) for number in range(1, CHUNK))


def test_what_is_forgotten_is_taken_again() -> None:
    """Who has a session read its log once more would not get what came through groups."""
    taken = TakenNumbers({}, False, [])
    record: dict[bytes, bytes] = {}
    assert taken.take_in_group(token_of(1))
    carry_out(taken, record)
    taken.forget()
    carry_out(taken, record)

    assert {} == record
    assert taken.take_in_group(token_of(1))


@pytest.mark.parametrize(
    ("name", "value"),
    [(bytes(ORIGIN), b"1"), (bytes(2 * ORIGIN), b""), (bytes(2 * ORIGIN), bytes(CHUNK // 8 + 1))],
)
def test_a_damaged_chunk_is_found(name: bytes, value: bytes) -> None:
    """A worker would fail over it later, in the middle of other sessions."""
    with pytest.raises(ValueError, match="token"):
        read_tokens({TAKEN_IN_GROUPS + name: value})


def test_a_log_tells_what_came_through_a_group() -> None:
    """A service would not get a publish that another member has lost, if it has a later one."""
    published = Message(b"a", b"7", 2, False, b"", NEVER)
    published.hold().token = token_of(7)
    member = group_variant(published, 2, False, b"", 5)
    era = bytes(ORIGIN)
    found = decode_log_pack(encode_log_pack([published, member], era, False, 0.0, 0.0), era, 0, 0.0, 0.0)

    assert [False, True] == [each.in_group for each in found]
    assert found[0].token != found[1].token
