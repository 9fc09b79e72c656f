# What the cold sessions of other workers want.
from hypothesis import given
from hypothesis import strategies as st

from broker.routing.hash_set import HashSet
from broker.routing.interest import TopicHashes, entry_of
from broker.routing.linear_hashing import FEWEST, LinearHashing
from tests.routing.reference import filters, matches, topics


def found(known: HashSet, topic: bytes) -> list[bytes]:
    hashes = TopicHashes(topic)
    return sorted(hashes.filter(shape) for shape in known.matching(hashes))


@given(st.lists(st.tuples(st.booleans(), filters), max_size=40), topics)
def test_a_set_has_what_was_added_and_not_removed(changes: list[tuple[bool, bytes]], topic: bytes) -> None:
    """A peer would not be sent what its sessions wait for, or be sent messages for nothing."""
    known, expected = HashSet(), set[bytes]()
    for gone, filter in changes:
        if gone:
            assert known.remove(entry_of(filter)) == (filter in expected)
            expected.discard(filter)
        else:
            assert known.add(entry_of(filter)) == (filter not in expected)
            expected.add(filter)

    assert len(expected) == len(known)
    assert sorted(filter for filter in expected if matches(filter, topic)) == found(known, topic)


def test_a_large_set_is_divided_into_small_buckets() -> None:
    """To look a topic up would take as long as there are entries."""
    known, entries = HashSet(), [entry_of(b"%d" % number) for number in range(20_000)]
    for entry in entries:
        known.add(entry)
    sizes = [len(bucket) // 8 for bucket in known._buckets]

    assert max(sizes) < 120
    assert all([bytes((ord("0") + number,))] == found(known, b"%d" % number) for number in range(10))
    assert [] == found(known, b"x")
    for entry in entries[1:]:
        assert known.remove(entry)
    assert [b"0"] == found(known, b"0")
    assert (1, {b"": 1}) == (len(known), known._shapes)


def test_a_hash_is_found_only_where_one_begins() -> None:
    """The end of one hash and the beginning of the next would be an entry that nobody has told."""
    known = HashSet()
    known._buckets[known._hashing.number(b"bbbbaaaa")] += b"aaaabbbbaaaabbbb" + b"bbbbaaaa"

    assert 16 == known._place(b"bbbbaaaa")
    del known._buckets[known._hashing.number(b"bbbbaaaa")][16:]
    assert known._place(b"bbbbaaaa") < 0


def test_a_set_that_is_not_used_any_more_is_freed_in_steps() -> None:
    """A worker would free the hashes of millions of sessions at once when another one dies."""
    known = HashSet()
    for number in range(FEWEST * 64):
        known.add(entry_of(b"%d" % number))
    steps = 1
    while not known.forget(16):
        steps += 1

    assert steps == 8


@given(st.integers(0, 1000), st.lists(st.binary(max_size=9), max_size=20))
def test_a_key_stays_in_its_bucket_or_goes_to_the_new_one(splits: int, keys: list[bytes]) -> None:
    """An entry would be looked for where it is not."""
    hashing = LinearHashing()
    for _ in range(splits):
        before = [hashing.number(key) for key in keys]
        divided = hashing.split()
        for key, former in zip(keys, before, strict=True):
            now = hashing.number(key)
            assert now < hashing.count
            assert now == former or (former == divided and now == hashing.count - 1)
