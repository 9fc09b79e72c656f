import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.routing.interest import FILTERS, HASH, LEVELS, TopicHashes, entries_of, entry_of, hash_of, interest_of
from tests.routing.reference import filters, matches, topics


def is_for(entry: bytes, topic: bytes) -> bool:
    return TopicHashes(topic).of(entry[1:-HASH]) == entry[-HASH:]


@given(filters, topics)
def test_a_topic_has_the_hash_of_each_filter_that_matches_it(filter: bytes, topic: bytes) -> None:
    """A message would not wake a session that waits for it [MQTT-3.3.2-3], or wake those that do not."""
    assert matches(filter, topic) == is_for(entry_of(filter), topic)


@given(st.lists(filters, max_size=6, unique=True))
def test_interest_is_read_as_it_was_written(wanted: list[bytes]) -> None:
    """A session would lose a filter on the way to Redis and back."""
    interest = interest_of(wanted)

    assert interest is not None
    assert [entry_of(filter) for filter in wanted] == entries_of(interest)


def test_the_form_of_interest_does_not_change() -> None:
    """It is stored: another version of the broker would find no session of this one."""
    assert bytes.fromhex("000debd2558bca8fa0") == entry_of(b"a/b")
    assert bytes.fromhex("03030001a6498f11a1e3593d") == entry_of(b"a/+/c")
    assert bytes.fromhex("020101ab4cba441499e977") == entry_of(b"a/#")


def test_what_takes_too_long_to_find_has_no_interest() -> None:
    """A level that is not counted in a byte, or a session with thousands of filters, would hold the loop."""
    deep = b"a/" * LEVELS

    assert interest_of([deep + b"+"]) is None
    assert interest_of([deep + b"#"]) is not None
    assert interest_of([deep + b"a"]) is not None  # without wildcards nothing is counted
    assert interest_of([b"%d" % number for number in range(FILTERS)]) is not None
    assert interest_of([b"%d" % number for number in range(FILTERS + 1)]) is None


@pytest.mark.parametrize(
    "malformed",
    [
        b"\0",
        b"\0" + bytes(7),
        b"\0" + bytes(8) + b"\1",
        b"\1\1" + bytes(8),
        b"\xff" + bytes(100),
        b"".join(b"\0%08d" % number for number in range(FILTERS + 1)),
    ],
)
def test_malformed_interest_is_found_out(malformed: bytes) -> None:
    """What somebody has written to Redis would end a worker at its start."""
    assert entries_of(malformed) is None


@given(st.binary(max_size=40), topics)
@example(b"\1\0\1", b"a")
def test_no_shape_is_an_error(shape: bytes, topic: bytes) -> None:
    """A malformed shape in Redis would fail each publish."""
    interest = bytes((len(shape),)) + shape + bytes(HASH)

    for entry in entries_of(interest) or []:
        TopicHashes(topic).of(entry[1:-HASH])


def test_the_same_filter_twice_is_one_entry() -> None:
    """A session would be found twice, and get a message twice."""
    assert [entry_of(b"a")] == entries_of(entry_of(b"a") * 2)
    assert HASH == len(hash_of(b"a"))
