# What the cold sessions of other workers want.
from hypothesis import given
from hypothesis import strategies as st

from broker.routing.hash_set import FULL, HashSet
from broker.routing.interest import HASH, TopicHashes, entries_of, entry_of
from broker.routing.linear_hashing import FEWEST, HASHED, LinearHashing, hashed
from tests.routing.reference import filters, matches, topics


def found(known: HashSet, topic: bytes) -> list[bytes]:
    hashes = TopicHashes(topic)
    return sorted(hashes.filter(shape) for shape in known.matching(hashes))


@given(st.lists(st.tuples(st.sampled_from(["add", "add all", "remove"]), filters), max_size=40), topics)
def test_a_set_has_what_was_added_and_not_removed(changes: list[tuple[str, bytes]], topic: bytes) -> None:
    """A peer would not be sent what its sessions wait for, or be sent messages for nothing."""
    known, expected = HashSet(), set[bytes]()
    for change, filter in changes:
        if change == "remove":
            assert known.remove(entry_of(filter)) == (filter in expected)
            expected.discard(filter)
        elif change == "add":
            assert known.add(entry_of(filter)) == (filter not in expected)
            expected.add(filter)
        else:
            assert known.add_all(entry_of(b"a") + entry_of(filter) + entry_of(filter))
            expected |= {b"a", filter}

    assert len(expected) == len(known)
    assert sorted(filter for filter in expected if matches(filter, topic)) == found(known, topic)


def test_a_large_set_is_divided_into_small_buckets() -> None:
    """To look a topic up would take as long as there are entries."""
    known, entries = HashSet(), [entry_of(b"%d" % number) for number in range(20_000)]
    for entry in entries:
        known.add(entry)
    sizes = [len(bucket.digests) for bucket in known._buckets]

    assert max(sizes) < 4 * FULL
    assert all([bytes((ord("0") + number,))] == found(known, b"%d" % number) for number in range(10))
    assert [] == found(known, b"x")
    for entry in entries[1:]:
        assert known.remove(entry)
    assert [b"0"] == found(known, b"0")
    assert (1, {b"": 0}) == (len(known), known._shapes.numbers)


@given(st.binary(max_size=30))
def test_entries_are_read_as_they_are_everywhere(told: bytes) -> None:
    """What a peer tells by mistake would be taken for interest, or end this worker."""
    known, entries = HashSet(), entries_of(told, len(told))

    assert known.add_all(told) == (entries is not None)
    assert entries is None or len(known) == len({entry[-HASH:] for entry in entries})


def test_a_set_that_is_not_used_any_more_is_freed_in_steps() -> None:
    """A worker would free the hashes of millions of sessions at once when another one dies."""
    known = HashSet()
    for number in range(FEWEST * 2 * FULL):
        known.add(entry_of(b"%d" % number))
    steps = 1
    while not known.forget(16):
        steps += 1

    assert steps == 8


@given(st.integers(0, 1000), st.lists(st.integers(0, HASHED), max_size=20))
def test_a_key_stays_in_its_bucket_or_goes_to_the_new_one(splits: int, keys: list[int]) -> None:
    """An entry would be looked for where it is not."""
    hashing = LinearHashing()
    for _ in range(splits):
        before = [hashing.number(key) for key in keys]
        divided = hashing.split()
        for key, former in zip(keys, before, strict=True):
            now = hashing.number(key)
            assert now < hashing.count
            assert now == former or (former == divided and now == hashing.count - 1)


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_hash_has_the_same_place_compiled_and_interpreted(digest: int) -> None:
    """Compiled arithmetic has 64 bits: a sum beyond them would be another number there."""
    pieces = [digest >> shift & 0xFFFF for shift in (0, 16, 32, 48)]
    secrets = [hash(name) & (1 << 45) - 1 for name in (b"first", b"second", b"third", b"fourth", b"constant")]
    total = sum(a * b for a, b in zip(secrets, [*pieces, 1], strict=True))

    assert 0 <= total < 1 << 63
    assert total >> 15 & HASHED == hashed(digest)


def test_no_bit_of_a_hash_is_left_out() -> None:
    """Whoever finds filters whose hashes differ in it alone would fill one bucket."""
    assert all(hashed(7) != hashed(7 ^ (1 << bit)) for bit in range(63))
    assert hashed(7) != hashed(7 - (1 << 63))
