import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.session.packet_ids import FEW, PacketIds

EVERY = range(1, 65536)


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2 * FEW)), max_size=6 * FEW))
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

    assert expected == {packet_id for packet_id in EVERY if ids.holds(packet_id)}


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 1000, 65535])
def test_any_number_of_ids_costs_at_most_8_kib(count: int) -> None:
    """A client of 3.x could have us hold 4 MB for each of its sessions, connected or not."""
    ids = PacketIds()
    for packet_id in list(EVERY)[-count:]:
        ids.add(packet_id)
    held = sum(sys.getsizeof(packet_id) for packet_id in ids._few)

    assert count == ids.count
    assert 8192 + 300 >= held + sys.getsizeof(ids._few) + (0 if ids._bits is None else sys.getsizeof(ids._bits))


def test_what_was_many_is_little_again() -> None:
    """A session would hold 8 KiB for ever, because its client once had many messages under way."""
    ids = PacketIds()
    for packet_id in EVERY:
        ids.add(packet_id)
    for packet_id in EVERY:
        ids.discard(packet_id)

    assert (0, None) == (ids.count, ids._bits)
    assert ids.add(7) and ids.holds(7)


def test_one_of_many_is_forgotten_alone() -> None:
    """A PUBREL would release another message than its own, which then is delivered twice."""
    ids = PacketIds()
    for packet_id in EVERY:
        ids.add(packet_id)
    for packet_id in (1, 300, 40_000, 65535):
        assert ids.discard(packet_id) and not ids.discard(packet_id)

    assert {1, 300, 40_000, 65535} == {packet_id for packet_id in EVERY if not ids.holds(packet_id)}


@pytest.mark.parametrize("count", [3, FEW + 3])
def test_a_copy_goes_its_own_way(count: int) -> None:
    """What came over a former connection would be released by what came over this one."""
    ids = PacketIds()
    for packet_id in range(1, count + 1):
        ids.add(packet_id)
    twin = ids.copy()
    ids.discard(1)
    twin.add(1000)

    assert [False, False] == [ids.holds(1), ids.holds(1000)]
    assert [True, True] == [twin.holds(1), twin.holds(1000)]
    assert (count - 1, count + 1) == (ids.count, twin.count)
