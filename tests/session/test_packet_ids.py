import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.session.packet_ids import MOST_SPANS, SPAN, PacketIds, unpack

EVERY = range(1, 65536)


@pytest.mark.slow
@given(
    st.sampled_from([1, SPAN + 1, 500]).flatmap(
        lambda apart: st.lists(
            st.tuples(st.booleans(), st.integers(1, 2 * MOST_SPANS).map(lambda number: number * apart)),
            max_size=6 * MOST_SPANS,
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


@pytest.mark.parametrize("apart", [1, SPAN])
@pytest.mark.parametrize("count", [1, MOST_SPANS, MOST_SPANS + 1, MOST_SPANS * SPAN, 65535])
def test_any_number_of_ids_costs_at_most_8_kib(count: int, apart: int) -> None:
    """A client of 3.x could have us hold 4 MB for each of its sessions, connected or not."""
    ids = PacketIds()
    for packet_id in list(EVERY)[::-apart][:count]:
        ids.add(packet_id)
    held = sum(sys.getsizeof(one) for span in ids._spans.items() for one in span)

    assert min(count, 65535 // apart + (apart > 1)) == ids.count
    assert 8192 + 300 >= held + sys.getsizeof(ids._spans) + (0 if ids._bits is None else sys.getsizeof(ids._bits))


def test_a_window_is_few_spans() -> None:
    """Each turn of a window of some hundred messages would begin with 8 KiB of bits, and end with their removal."""
    ids = PacketIds()
    for packet_id in range(60_000, 60_500):
        ids.add(packet_id)

    assert ids._bits is None and len(ids._spans) < 20


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


@pytest.mark.parametrize("count", [3, MOST_SPANS * SPAN + 3])
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
