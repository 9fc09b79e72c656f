import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.session.packet_ids import FEW, SPAN, SPANS, PacketIds, unpack

EVERY = range(1, 65536)


@pytest.mark.slow
@given(
    st.sampled_from([1, 500, SPAN + 1]).flatmap(
        lambda apart: st.lists(
            st.tuples(st.booleans(), st.integers(1, SPANS - 1).map(lambda number: number * apart)), max_size=6 * SPANS
        )
    )
)
def test_it_is_a_set(steps: list[tuple[bool, int]]) -> None:
    """A QoS 2 message would be delivered twice, or taken for one that was."""
    ids, expected = PacketIds(), set[int]()
    for add, packet_id in steps:
        assert (packet_id in expected) == ids.holds(packet_id)
        if add:
            assert (packet_id not in expected) == ids.add(packet_id)
            expected.add(packet_id)
        else:
            assert (packet_id in expected) == ids.discard(packet_id)
            expected.discard(packet_id)
        assert len(expected) == ids.count

    moved = unpack(ids.pack())
    for one in (ids, moved):
        assert (len(expected), expected) == (one.count, {packet_id for packet_id in EVERY if one.holds(packet_id)})


def held_by(ids: PacketIds) -> int:
    """Bytes."""
    return sys.getsizeof(ids._spans) + sum(sys.getsizeof(span) for span in ids._spans.values())


@pytest.mark.parametrize("apart", [1, SPAN // 2, SPAN])
def test_any_number_of_ids_costs_at_most_14_kib(apart: int) -> None:
    """A client of 3.x could have us hold 4 MB for each of its sessions, connected or not."""
    ids = PacketIds()
    for packet_id in EVERY[::-apart]:
        ids.add(packet_id)

    assert len(EVERY[::apart]) == ids.count
    assert held_by(ids) <= 14 * 1024


def test_a_window_that_moves_on_costs_little() -> None:
    """Each session whose client always has QoS 2 messages under way would hold bits for all ids in the end."""
    ids = PacketIds()
    for packet_id in EVERY:
        ids.add(packet_id)
        if packet_id > 500:
            ids.discard(packet_id - 500)

    assert (500, True) == (ids.count, len(ids._spans) <= 2)


def test_what_was_many_is_little_again() -> None:
    """A session would hold bits for all ids for ever, because its client once had many messages under way."""
    ids = PacketIds()
    for packet_id in EVERY:
        ids.add(packet_id)
    for packet_id in EVERY:
        ids.discard(packet_id)

    assert (0, True) == (ids.count, len(ids._spans) <= 1)
    assert ids.add(7) and ids.holds(7)


@pytest.mark.parametrize(("count", "size"), [(1, 2), (FEW, 2 * FEW), (FEW + 1, 8192), (65535, 8192)])
def test_ids_are_packed_as_other_versions_read_them(count: int, size: int) -> None:
    """A session that moves to another build would lose the QoS 2 ids of its client, or take others for them."""
    ids = PacketIds()
    for packet_id in EVERY[:count]:
        ids.add(packet_id)
    packed = ids.pack()
    pairs = b"".join(packet_id.to_bytes(2, "big") for packet_id in EVERY[:count])
    bits = sum(1 << packet_id for packet_id in EVERY[:count]).to_bytes(8192, "little")

    assert (size, pairs if count <= FEW else bits) == (len(packed), packed)


def test_one_of_many_is_forgotten_alone() -> None:
    """A PUBREL would release another message than its own, which then is delivered twice."""
    ids = PacketIds()
    for packet_id in EVERY:
        ids.add(packet_id)
    for packet_id in (1, 300, 40_000, 65535):
        assert ids.discard(packet_id) and not ids.discard(packet_id)

    assert {1, 300, 40_000, 65535} == {packet_id for packet_id in EVERY if not ids.holds(packet_id)}


@pytest.mark.parametrize("count", [3, 2 * SPAN + 3])
def test_a_copy_goes_its_own_way(count: int) -> None:
    """What came over a former connection would be released by what came over this one."""
    ids = PacketIds()
    for packet_id in range(1, count + 1):
        ids.add(packet_id)
    twin = ids.copy()
    ids.discard(1)
    twin.add(50_000)

    assert [False, False] == [ids.holds(1), ids.holds(50_000)]
    assert [True, True] == [twin.holds(1), twin.holds(50_000)]
    assert (count - 1, count + 1) == (ids.count, twin.count)
