# The shapes of the filters of cold sessions, and their numbers.
from hypothesis import example, given
from hypothesis import strategies as st

from broker.routing.cold_shapes import NEW_SHAPES, SHAPES, SHORT, UNKNOWN, Shapes
from broker.routing.interest import HASH

# Short ones that differ in their length alone, or in what comes after them; and long ones that begin alike.
shapes = st.sampled_from([b"", b"\1\0", b"\1\0\0", b"\1\0\0\0", b"\2\1"]) | st.integers(2, SHORT + 3).map(
    lambda length: bytes(range(length))
)
entries = st.tuples(shapes, st.sampled_from([bytes(HASH), b"\xff" * HASH, b"\0\1\2\3\4\5\6\7"]))


def entry(shape: bytes, digest: bytes = bytes(HASH)) -> bytes:
    return bytes((len(shape),)) + shape + digest


@given(st.lists(st.tuples(entries, st.booleans()), max_size=30))
@example([((b"\1\0", b"\0" * HASH), True), ((b"\1\0\0", b"\0" * HASH), True), ((b"\1\0", b"\0" * HASH), False)])
def test_a_shape_has_one_number_as_long_as_it_is_used(changes: list[tuple[tuple[bytes, bytes], bool]]) -> None:
    """A topic would be looked up by the hash of another filter, and cold sessions miss its messages."""
    known, uses, numbers = Shapes(), dict[bytes, int](), dict[bytes, int]()
    for (shape, digest), used in changes:
        found = known.find(b"before" + entry(shape, digest), len(b"before"))
        assert found == numbers.get(shape, UNKNOWN)
        if used:
            number = known.use(entry(shape, digest), 0)
            assert number == numbers.setdefault(shape, number)
            uses[shape] = uses.get(shape, 0) + 1
        elif shape in uses:
            known.leave(numbers[shape])
            uses[shape] -= 1
            if not uses[shape]:
                del uses[shape], numbers[shape]

    assert numbers == known.numbers
    assert len(set(numbers.values())) == len(numbers)
    assert all(entry(shape, b"") == known.prefix(number) for shape, number in numbers.items())


def test_what_is_before_an_interest_is_none() -> None:
    """The deadline before a stored interest would be read as a shape."""
    known = Shapes()
    assert known.has_room(b"\1\1\1\1" + entry(b"\1\0\0"), 4)
    assert not known.has_room(b"\1\1\1\1" + entry(b"\1\0\0"), 0)
    assert not known.has_room(b"\1\1\1\1" + entry(b"\1\0\0")[:-1], 4)


def test_known_shapes_are_no_new_ones() -> None:
    """Sessions would stay in memory, although all shapes of their filters are those of others."""
    known = Shapes()
    many = [entry(bytes((number + 1, 0))) for number in range(SHAPES)]
    assert known.has_room(b"".join(many[:NEW_SHAPES]), 0)
    assert not known.has_room(b"".join(many[: NEW_SHAPES + 1]), 0)
    for each in many:
        known.use(each, 0)
    assert known.has_room(b"".join(many), 0)
    assert not known.has_room(b"".join(many) + entry(b""), 0)
